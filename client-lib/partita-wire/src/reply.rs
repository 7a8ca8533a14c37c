//! Answers of the data plane, as bytes.

use crate::bytes::{BytesError, Reader, Writer};
use crate::{CallError, code};
use partita_model::request::{Secret, Sequence};
use partita_model::tensor_map::{TENSOR_MAP_BYTES, TensorMap};
use partita_model::{AddressRange, DeviceAddress, ParamLayout};

/// The largest answer in bytes. An answer that is larger than a record takes several records.
pub const MAX_REPLY: usize = 16 << 20;
/// The kind of an answer's records.
pub(crate) const KIND: u16 = 1;
/// The number of an answer that belongs to no request: why the session has failed. A client that
/// does not know of it drops the answer, because nobody waits for it.
pub(crate) const NOBODYS: Sequence = Sequence(0);
/// The kind of a record with a kernel's output; it belongs to no request.
pub(crate) const OUTPUT: u16 = 2;
/// Bytes of kernels' output that a client keeps for each console until the program looks: the size
/// of CUDA's own buffer of `printf`.
pub(crate) const MAX_OUTPUT: usize = 1 << 20;
/// A record's flag: further parts of the same answer follow.
pub(crate) const MORE: u16 = 1;
/// A flag of [`OUTPUT`]: it belongs on standard error.
pub(crate) const ERROR: u16 = 1;
/// Bytes of an answer in one record.
pub(crate) const PART_BYTES: usize = 16 << 10;
const MAX_NAME: usize = 32 << 10;
const MAX_TEXT: usize = 32 << 10;

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The work is done.
    Done,
    /// The address of the new memory or array.
    Address(DeviceAddress),
    /// What another process shows to open memory or an event.
    Secret(Secret),
    /// The addresses of memory of another process.
    Opened(AddressRange),
    /// Device memory as the session may use it.
    Memory {
        /// Bytes left.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The contents of a loaded module.
    Module(ModuleReply),
    /// The number of a new texture or surface object, as kernels use it.
    Texture(u64),
    /// A tensor map.
    TensorMap(Box<TensorMap>),
}

/// The contents of a loaded module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModuleReply {
    /// Kernels that can be launched, by the index that a launch names.
    pub kernels: Vec<KernelReply>,
    /// Kernels that cannot run here, each with its reason.
    pub refused: Vec<(String, String)>,
    /// Global and constant variables.
    pub variables: Vec<VariableReply>,
}

/// A kernel that can be launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelReply {
    /// Its name.
    pub name: String,
    /// Its parameters in order.
    pub params: Vec<ParamLayout>,
    /// 32-bit registers per thread.
    pub registers: u32,
    /// Static shared memory per CTA in bytes.
    pub static_shared: u64,
    /// Local memory per thread in bytes.
    pub local: u64,
    /// The largest CTA that it can be launched with, in threads.
    pub max_threads: u32,
    /// The form in which it runs: `worker`, `original` …; `later` where that is known when it is
    /// first launched.
    pub form: String,
    /// Its place among all kernels of the program's module, in a module with kernels that launch
    /// kernels; else 0.
    pub place: u32,
    /// Whether it may launch kernels. Its last parameter is then the address of memory of
    /// [`partita_model::nested`], and the program knows nothing of the parameter.
    pub launches: bool,
    /// Dynamic shared memory per CTA in bytes that each launch has beside what the program asks
    /// for. It counts where CTAs have to fit, and nowhere else.
    pub hidden_shared: u32,
}

impl KernelReply {
    /// Size of its parameter space.
    #[must_use]
    pub fn param_bytes(&self) -> u32 {
        self.params.iter().map(|param| param.offset.saturating_add(param.bytes)).max().unwrap_or(0)
    }
}

/// A variable of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VariableReply {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: DeviceAddress,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The reason why an answer does not parse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an answer of {length} bytes {error}")]
pub struct MalformedReply {
    length: usize,
    error: String,
}

const DONE: u32 = 0;
const ADDRESS: u32 = 1;
const MEMORY: u32 = 2;
const MODULE: u32 = 3;
const TEXTURE: u32 = 4;
const TENSOR_MAP: u32 = 5;
const SECRET: u32 = 6;
const OPENED: u32 = 7;
/// A module with kernels that launch kernels, for clients with the feature `NESTED`.
const NESTED_MODULE: u32 = 8;
/// A module with kernels that have hidden shared memory, for clients with the feature
/// `HIDDEN_SHARED`.
const HIDDEN_MODULE: u32 = 9;

/// Appends an outcome: the code, and then the reply or the error's text.
pub(crate) fn encode(outcome: Result<&Reply, &CallError>, into: &mut Vec<u8>) {
    let mut writer = Writer(into);
    let reply = match outcome {
        Ok(reply) => reply,
        Err(error) => {
            let code = if error.code == code::SUCCESS { code::UNKNOWN } else { error.code };
            writer.u32(code.cast_unsigned());
            writer.text(&error.text, MAX_TEXT);
            return;
        }
    };
    writer.u32(code::SUCCESS.cast_unsigned());
    match reply {
        Reply::Done => writer.u32(DONE),
        Reply::Address(address) => {
            writer.u32(ADDRESS);
            writer.u64(address.0);
        }
        Reply::Memory { free, total } => {
            writer.u32(MEMORY);
            writer.u64(*free);
            writer.u64(*total);
        }
        Reply::Texture(texture) => {
            writer.u32(TEXTURE);
            writer.u64(*texture);
        }
        Reply::TensorMap(map) => {
            writer.u32(TENSOR_MAP);
            writer.bytes(&map[..]);
        }
        Reply::Secret(Secret(secret)) => {
            writer.u32(SECRET);
            writer.bytes(&secret.to_le_bytes());
        }
        Reply::Opened(AddressRange { start, bytes }) => {
            writer.u32(OPENED);
            writer.u64(start.0);
            writer.u64(*bytes);
        }
        Reply::Module(module) if module.kernels.iter().any(|kernel| kernel.hidden_shared > 0) => {
            writer.u32(HIDDEN_MODULE);
            encode_module(module, &mut writer);
            encode_nested(module, &mut writer);
            for kernel in &module.kernels {
                writer.u32(kernel.hidden_shared);
            }
        }
        Reply::Module(module) if module.kernels.iter().any(|kernel| kernel.launches) => {
            writer.u32(NESTED_MODULE);
            encode_module(module, &mut writer);
            encode_nested(module, &mut writer);
        }
        Reply::Module(module) => {
            writer.u32(MODULE);
            encode_module(module, &mut writer);
        }
    }
}

fn encode_module(module: &ModuleReply, writer: &mut Writer<'_>) {
    writer.count(module.kernels.len());
    for kernel in &module.kernels {
        writer.text(&kernel.name, MAX_NAME);
        writer.count(kernel.params.len());
        for param in &kernel.params {
            writer.u32(param.offset);
            writer.u32(param.bytes);
        }
        writer.u32(kernel.registers);
        writer.u64(kernel.static_shared);
        writer.u64(kernel.local);
        writer.u32(kernel.max_threads);
        writer.text(&kernel.form, MAX_TEXT);
    }
    writer.count(module.refused.len());
    for (name, reason) in &module.refused {
        writer.text(name, MAX_NAME);
        writer.text(reason, MAX_TEXT);
    }
    writer.count(module.variables.len());
    for variable in &module.variables {
        writer.text(&variable.name, MAX_NAME);
        writer.u64(variable.address.0);
        writer.u64(variable.bytes);
    }
}

fn encode_nested(module: &ModuleReply, writer: &mut Writer<'_>) {
    for kernel in &module.kernels {
        writer.u32(kernel.place);
        writer.u8(u8::from(kernel.launches));
    }
}

/// Reads an outcome from a private copy.
pub(crate) fn decode(bytes: &[u8]) -> Result<Result<Reply, CallError>, MalformedReply> {
    read(bytes).map_err(|error| MalformedReply { length: bytes.len(), error: error.to_string() })
}

fn read(bytes: &[u8]) -> Result<Result<Reply, CallError>, BytesError> {
    let mut reader = Reader::new(bytes);
    let code = reader.u32("code")?.cast_signed();
    if code != code::SUCCESS {
        let text = reader.text(MAX_TEXT, "error text")?;
        reader.finish()?;
        return Ok(Err(CallError { code, text }));
    }
    let at = reader.at();
    let reply = match reader.u32("kind of answer")? {
        DONE => Reply::Done,
        ADDRESS => Reply::Address(DeviceAddress(reader.u64("address")?)),
        MEMORY => {
            Reply::Memory { free: reader.u64("free memory")?, total: reader.u64("total memory")? }
        }
        MODULE => Reply::Module(read_module(&mut reader)?),
        NESTED_MODULE => {
            let mut module = read_module(&mut reader)?;
            read_nested(&mut module, &mut reader)?;
            Reply::Module(module)
        }
        HIDDEN_MODULE => {
            let mut module = read_module(&mut reader)?;
            read_nested(&mut module, &mut reader)?;
            for kernel in &mut module.kernels {
                kernel.hidden_shared = reader.u32("hidden shared memory")?;
            }
            Reply::Module(module)
        }
        TEXTURE => Reply::Texture(reader.u64("texture")?),
        TENSOR_MAP => {
            let mut map = Box::new([0; TENSOR_MAP_BYTES]);
            for byte in &mut map[..] {
                *byte = reader.u8("tensor map")?;
            }
            Reply::TensorMap(map)
        }
        SECRET => {
            let low = reader.u64("secret")?;
            let high = reader.u64("secret")?;
            Reply::Secret(Secret(u128::from(high) << 64 | u128::from(low)))
        }
        OPENED => {
            let start = DeviceAddress(reader.u64("address")?);
            Reply::Opened(AddressRange { start, bytes: reader.u64("size")? })
        }
        other => {
            return Err(BytesError::Value { at, what: "kind of answer", value: u64::from(other) });
        }
    };
    reader.finish()?;
    Ok(Ok(reply))
}

fn read_nested(module: &mut ModuleReply, reader: &mut Reader<'_>) -> Result<(), BytesError> {
    for kernel in &mut module.kernels {
        kernel.place = reader.u32("place of a kernel")?;
        kernel.launches = reader.u8("whether it launches kernels")? != 0;
    }
    Ok(())
}

fn read_module(reader: &mut Reader<'_>) -> Result<ModuleReply, BytesError> {
    let mut module = ModuleReply::default();
    for _ in 0..reader.count(36, "number of kernels")? {
        let name = reader.text(MAX_NAME, "kernel name")?;
        let mut params = Vec::new();
        for _ in 0..reader.count(8, "number of parameters")? {
            params.push(ParamLayout { offset: reader.u32("offset")?, bytes: reader.u32("size")? });
        }
        module.kernels.push(KernelReply {
            name,
            params,
            registers: reader.u32("registers")?,
            static_shared: reader.u64("static shared memory")?,
            local: reader.u64("local memory")?,
            max_threads: reader.u32("largest CTA")?,
            form: reader.text(MAX_TEXT, "form")?,
            place: 0,
            launches: false,
            hidden_shared: 0,
        });
    }
    for _ in 0..reader.count(8, "number of refused kernels")? {
        let name = reader.text(MAX_NAME, "kernel name")?;
        module.refused.push((name, reader.text(MAX_TEXT, "reason")?));
    }
    for _ in 0..reader.count(20, "number of variables")? {
        module.variables.push(VariableReply {
            name: reader.text(MAX_NAME, "variable name")?,
            address: DeviceAddress(reader.u64("address")?),
            bytes: reader.u64("size")?,
        });
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module() -> ModuleReply {
        let kernel = KernelReply {
            name: "_Z6vecAddPKfS0_Pfi".to_owned(),
            params: vec![ParamLayout { offset: 0, bytes: 8 }, ParamLayout { offset: 24, bytes: 4 }],
            registers: 16,
            static_shared: 1024,
            local: 8,
            max_threads: 1024,
            form: "worker".to_owned(),
            place: 0,
            launches: false,
            hidden_shared: 0,
        };
        assert_eq!(kernel.param_bytes(), 28);
        ModuleReply {
            kernels: vec![kernel.clone(), KernelReply { params: Vec::new(), ..kernel }],
            refused: vec![("k".to_owned(), "uses wgmma".to_owned())],
            variables: vec![VariableReply {
                name: "x".to_owned(),
                address: DeviceAddress(5),
                bytes: 6,
            }],
        }
    }

    /// The first kernel may launch the second.
    fn with_launches() -> ModuleReply {
        let mut module = module();
        module.kernels[0].launches = true;
        module.kernels[1].place = 7;
        module
    }

    /// The second kernel has hidden shared memory, too.
    fn with_hidden_shared() -> ModuleReply {
        let mut module = with_launches();
        module.kernels[1].hidden_shared = 6416;
        module
    }

    fn bytes(outcome: Result<&Reply, &CallError>) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(outcome, &mut bytes);
        bytes
    }

    #[test]
    fn answers_survive_the_way_and_no_part_of_them_does() {
        let replies = [
            Reply::Done,
            Reply::Address(DeviceAddress(u64::MAX)),
            Reply::Memory { free: 1, total: 2 },
            Reply::Module(module()),
            Reply::Texture(3),
            Reply::Secret(Secret(u128::MAX / 3)),
            Reply::Opened(AddressRange { start: DeviceAddress(5), bytes: u64::MAX }),
            Reply::TensorMap(Box::new(std::array::from_fn(|byte| byte.to_le_bytes()[0]))),
            Reply::Module(ModuleReply::default()),
            Reply::Module(with_launches()),
            Reply::Module(with_hidden_shared()),
        ];
        let error = CallError::new(700, "illegal address in kernel `k`");
        let outcomes = replies.into_iter().map(Ok).chain([Err(error)]);
        for outcome in outcomes {
            let bytes = bytes(outcome.as_ref());
            assert_eq!(decode(&bytes).as_ref(), Ok(&outcome));
            for cut in 0..bytes.len() {
                assert!(decode(&bytes[..cut]).is_err(), "{outcome:?} cut to {cut}");
            }
        }
    }

    /// Clients without the features `NESTED` and `HIDDEN_SHARED` know nothing of the other forms.
    #[test]
    fn a_module_that_needs_no_feature_has_the_form_that_every_client_knows() {
        let kind = |module| bytes(Ok(&Reply::Module(module)))[4..8].to_vec();
        assert_eq!(kind(module()), MODULE.to_le_bytes());
        assert_eq!(kind(ModuleReply::default()), MODULE.to_le_bytes());
        assert_eq!(kind(with_launches()), NESTED_MODULE.to_le_bytes());
        assert_eq!(kind(with_hidden_shared()), HIDDEN_MODULE.to_le_bytes());
    }

    #[test]
    fn an_error_never_looks_like_success() {
        let bytes = bytes(Err(&CallError::new(code::SUCCESS, "?")));
        assert_eq!(decode(&bytes).unwrap().unwrap_err().code, code::UNKNOWN);
    }

    #[test]
    fn counts_beyond_the_message_are_refused_before_anything_is_reserved() {
        let mut bytes = bytes(Ok(&Reply::Module(ModuleReply::default())));
        bytes[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = decode(&bytes).unwrap_err().to_string();
        assert!(
            error.contains("number of kernels at byte 8 has length 4294967295, more than 0"),
            "{error}"
        );
    }
}
