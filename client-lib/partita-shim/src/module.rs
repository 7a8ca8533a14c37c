//! Modules and their kernels.
//!
//! A library ([`crate::library`]) belongs to no context. All contexts of a process on a device
//! share one session, so a library holds one module there. The module is loaded with the library,
//! and loaded again when the library is used after a reset. `CUfunction` and `CUkernel` are handles
//! of one kind, and a kernel keeps one handle for its module's life, because CUDA programs pass one
//! where the other is expected.

use crate::device_memory::Range;
use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use crate::image::{Image, ptx_architecture};
use crate::library::Library;
use crate::log;
use partita_client::image::{self, Image as Code, ImageKind};
use partita_client::{KernelReply, ModuleHandle, Session, VariableReply};
use partita_model::{DeviceFacts, DeviceKind, nested};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A module as the daemon has it. A library's can be loaded again: it outlives a reset of the
/// context, after which its variables have their first values again.
pub struct Instance {
    /// The module's handle in the session; 0 while it is not loaded.
    client: AtomicU64,
    variables: Mutex<BTreeMap<String, VariableReply>>,
    /// The code to load again after a reset; `None` for a plain module, which ends with its
    /// context.
    code: Option<OwnedCode>,
    /// The owner.
    pub owner: Owner,
    /// The architecture that its PTX was made for, e.g. 75; the device's where that is not known.
    pub architecture: u32,
}

struct OwnedCode {
    kind: ImageKind,
    bytes: Vec<u8>,
    unpacked_bytes: u64,
}

impl Instance {
    fn new(
        code: &Code<'_>,
        architecture: u32,
        loaded: ModuleHandle,
        variables: Vec<VariableReply>,
        owner: Owner,
    ) -> Self {
        let kept = (owner != Owner::Context).then(|| OwnedCode {
            kind: code.kind,
            bytes: code.bytes.to_vec(),
            unpacked_bytes: code.unpacked_bytes,
        });
        let (client, empty) = (AtomicU64::new(0), Mutex::new(BTreeMap::new()));
        let instance = Instance { client, variables: empty, code: kept, owner, architecture };
        instance.set(&mut lock(&instance.variables), loaded, variables);
        instance
    }

    fn set(
        &self,
        place: &mut BTreeMap<String, VariableReply>,
        loaded: ModuleHandle,
        variables: Vec<VariableReply>,
    ) {
        *place = variables.into_iter().map(|variable| (variable.name.clone(), variable)).collect();
        self.client.store(loaded.0, Ordering::Release);
    }

    /// Its name in the session; loads it again if need be.
    pub fn client(&self, session: &Session) -> CuResult<ModuleHandle> {
        match self.client.load(Ordering::Acquire) {
            0 => self.load_again(session),
            client => Ok(ModuleHandle(client)),
        }
    }

    fn load_again(&self, session: &Session) -> CuResult<ModuleHandle> {
        let code = self.code.as_ref().ok_or(CuError::INVALID_HANDLE)?;
        let mut variables = lock(&self.variables);
        let client = self.client.load(Ordering::Acquire);
        if client != 0 {
            return Ok(ModuleHandle(client));
        }
        let code =
            Code { kind: code.kind, bytes: &code.bytes, unpacked_bytes: code.unpacked_bytes };
        let loaded = session.load_module(&code)?;
        self.set(&mut variables, loaded.module, loaded.contents.variables);
        Ok(loaded.module)
    }

    fn unload(&self, session: &Session) -> CuResult {
        match self.client.swap(0, Ordering::AcqRel) {
            0 => Ok(()),
            client => Ok(session.unload_module(ModuleHandle(client))?),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The owner of a module.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The context; the module ends with it.
    Context,
    /// A library.
    Library,
    /// A library that the CUDA runtime made of what nvcc put into the program.
    Runtime,
}

/// A loaded module.
pub struct Module {
    /// Its handle.
    pub handle: u64,
    /// The module's instance in the daemon.
    pub instance: Arc<Instance>,
    /// The handles of the kernels, in the module's order.
    pub functions: Vec<u64>,
    by_name: BTreeMap<String, u64>,
    refused: BTreeMap<String, String>,
    /// The kernels that kernels may launch, by the numbers that these have for them.
    by_place: BTreeMap<u32, u64>,
    /// Units of [`partita_model::nested`] that a launch of any of them takes.
    pub launch_units: u32,
}

impl Module {
    /// The handle of the kernel that a kernel launches by this number.
    pub fn kernel_at(&self, place: u32) -> CuResult<u64> {
        self.by_place.get(&place).copied().ok_or(CuError::NOT_FOUND)
    }

    /// The handle of a kernel by name. A name that does not exist is answered on stderr with those
    /// that do, if the user asked for it: programs probe for kernels.
    pub fn function(&self, name: &str) -> CuResult<u64> {
        if let Some(handle) = self.by_name.get(name) {
            return Ok(*handle);
        }
        if let Some(reason) = self.refused.get(name) {
            log::say(format_args!("kernel {name} cannot run: {reason}"));
            return Err(CuError::NOT_SUPPORTED);
        }
        if log::is_wanted() {
            let names: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
            log::say(format_args!("no kernel {name}; the module has: {}", names.join(", ")));
        }
        Err(CuError::NOT_FOUND)
    }

    /// A variable by name.
    pub fn variable(&self, session: &Session, name: &str) -> CuResult<VariableReply> {
        self.instance.client(session)?;
        lock(&self.instance.variables).get(name).cloned().ok_or(CuError::NOT_FOUND)
    }
}

/// A kernel of a module.
pub struct Function {
    /// Its handle.
    pub handle: u64,
    /// Its module, as the daemon has it.
    pub instance: Arc<Instance>,
    /// Its module's handle.
    pub module: u64,
    /// Its index in the module.
    pub index: u32,
    /// The daemon's answer about the kernel.
    pub facts: KernelReply,
    /// Its name for C.
    pub name: CString,
    /// Size of the program's part of its parameter space.
    pub param_bytes: usize,
    /// Where in its parameter space the address of its launches' memory is, if it may launch
    /// kernels.
    pub queue: Option<u32>,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub max_dynamic_shared: AtomicU32,
    /// `CU_FUNC_ATTRIBUTE_SHARED_MEMORY_MODE`.
    pub shared_mode: AtomicI32,
}

/// All modules.
pub struct Modules {
    /// Modules, those of libraries too.
    pub modules: Handles<Module>,
    /// Libraries.
    pub libraries: Handles<Library>,
    /// Kernels.
    pub functions: Handles<Function>,
    /// Kernels of other devices' libraries by their handles: the module at home, and the kernel
    /// here.
    foreign: RwLock<BTreeMap<u64, (u64, Arc<Function>)>>,
}

impl Modules {
    /// None.
    pub const fn new(device: DeviceIndex) -> Self {
        Modules {
            modules: Handles::new(Kind::Module, device),
            libraries: Handles::new(Kind::Library, device),
            functions: Handles::new(Kind::Function, device),
            foreign: RwLock::new(BTreeMap::new()),
        }
    }

    /// The kernel here that a handle of another device's library has been found to mean.
    pub fn foreign(&self, handle: u64) -> Option<Arc<Function>> {
        let foreign = self.foreign.read().unwrap_or_else(PoisonError::into_inner);
        foreign.get(&handle).map(|(_, function)| function.clone())
    }

    /// Has it found the next time.
    pub fn remember_foreign(&self, handle: u64, module: u64, function: &Arc<Function>) {
        let mut foreign = self.foreign.write().unwrap_or_else(PoisonError::into_inner);
        foreign.insert(handle, (module, function.clone()));
    }

    /// Forgets those of a module of another device.
    pub fn forget_foreign(&self, module: u64) {
        let mut foreign = self.foreign.write().unwrap_or_else(PoisonError::into_inner);
        foreign.retain(|_, (of, _)| *of != module);
    }

    /// Loads an image. `report` gets the text of an error.
    pub fn load(
        &self,
        session: &Session,
        image: &Image<'_>,
        owner: Owner,
        report: &mut dyn FnMut(&str),
    ) -> CuResult<u64> {
        let facts = session.facts();
        let mut refuse = |code: i32, text: &str| {
            log::say(format_args!("{text}"));
            report(text);
            CuError(code)
        };
        let choice = choose(image, facts).map_err(|error| refuse(error.code, &error.text))?;
        let bundled;
        let code = match choice.codes[..] {
            [code] => code,
            ref several => {
                let (bytes, unpacked_bytes) = image::bundle(several);
                bundled = bytes;
                Code { kind: ImageKind::Bundle, bytes: &bundled, unpacked_bytes }
            }
        };
        let loaded = session.load_module(&code).map_err(|error| refuse(error.code, &error.text))?;
        let contents = loaded.contents;
        let instance = Arc::new(Instance::new(
            &code,
            choice.architecture,
            loaded.module,
            contents.variables,
            owner,
        ));
        let default_dynamic = u32::try_from(facts.shared_per_cta.0).unwrap_or(u32::MAX);
        self.modules.insert_with(|module| {
            let mut functions = Vec::with_capacity(contents.kernels.len());
            let (mut by_name, mut by_place) = (BTreeMap::new(), BTreeMap::new());
            let mut most_params = 0;
            for (index, mut facts) in (0..).zip(contents.kernels) {
                // The program knows nothing of this parameter.
                let queue = if facts.launches { facts.params.pop() } else { None };
                let place = facts.place;
                most_params = most_params.max(facts.param_bytes());
                let static_shared = u32::try_from(facts.static_shared).unwrap_or(u32::MAX);
                let name = facts.name.clone();
                let handle = self.functions.insert_with(|handle| {
                    Ok(Function {
                        handle,
                        instance: instance.clone(),
                        module,
                        index,
                        name: CString::new(facts.name.as_str())
                            .map_err(|_| CuError::INVALID_PTX)?,
                        param_bytes: facts.param_bytes() as usize,
                        queue: queue.map(|param| param.offset),
                        max_dynamic_shared: AtomicU32::new(
                            default_dynamic.saturating_sub(static_shared),
                        ),
                        shared_mode: AtomicI32::new(0),
                        facts,
                    })
                })?;
                by_name.insert(name, handle);
                by_place.insert(place, handle);
                functions.push(handle);
            }
            let refused = contents.refused.into_iter().collect();
            let launch_units = nested::units(most_params);
            Ok(Module {
                handle: module,
                instance,
                functions,
                by_name,
                refused,
                by_place,
                launch_units,
            })
        })
    }

    /// The variable that an address is inside of.
    pub fn find_variable(&self, address: u64) -> Option<Range> {
        let holds = |variable: &VariableReply| {
            let start = variable.address.0;
            (start..start.saturating_add(variable.bytes)).contains(&address)
        };
        self.modules.all().iter().find_map(|module| {
            let variables = lock(&module.instance.variables);
            let found = variables.values().find(|variable| holds(variable))?;
            Some(Range { start: found.address.0, bytes: found.bytes })
        })
    }

    /// Unloads a module; its kernels' handles end with it.
    pub fn unload(&self, session: &Session, handle: u64) -> CuResult {
        let module = self.modules.remove(handle)?;
        for function in &module.functions {
            // A kernel's handle lives as long as its module's, and only this function removes both.
            let _ = self.functions.remove(*function);
        }
        module.instance.unload(session)
    }

    /// Ends the context's modules, and unloads those of libraries until they are used again.
    pub fn clear(&self, session: &Session) {
        let is_contexts = |instance: &Instance| instance.owner == Owner::Context;
        self.functions.remove_where(|function| is_contexts(&function.instance));
        let ended = self.modules.remove_where(|module| is_contexts(&module.instance));
        for module in self.modules.all().iter().chain(&ended) {
            // The daemon unloads remaining modules at the session's end.
            let _ = module.instance.unload(session);
        }
    }
}

/// The code of an image that is loaded; several codes are linked.
struct Choice<'a> {
    codes: Vec<Code<'a>>,
    architecture: u32,
}

/// The reason why no code of an image is loaded.
struct NoCode {
    code: i32,
    text: String,
}

/// The part of an image that suits the device.
fn choose<'a>(image: &Image<'a>, facts: &DeviceFacts) -> Result<Choice<'a>, NoCode> {
    let containers = match image {
        Image::Elf(_) if facts.kind == DeviceKind::Emulated => {
            return Err(machine_code_only(facts));
        }
        Image::Elf(bytes) | Image::Ptx(bytes) => return select(bytes, facts),
        Image::Fatbin(containers) => containers,
    };
    // A container is a translation unit, or (the first of several) what was linked from the others.
    let suited: Vec<Choice<'a>> =
        containers.iter().filter_map(|container| select(container, facts).ok()).collect();
    let Some(architecture) = suited.iter().map(|choice| choice.architecture).max() else {
        if facts.kind == DeviceKind::Cuda
            && let Some(code) = machine_code(containers, facts)?
        {
            return Ok(code);
        }
        // The joined containers say in one message what each of them has.
        return match select(&containers.concat(), facts) {
            Err(no_code) => Err(no_code),
            // One of them is a damaged set of parts, whose parts are found one by one.
            Ok(_) => Err(NoCode {
                code: CuError::INVALID_IMAGE.0,
                text: "the program's parts for a link are damaged: link the program again".into(),
            }),
        };
    };
    Ok(Choice { codes: suited.into_iter().flat_map(|choice| choice.codes).collect(), architecture })
}

fn select<'a>(bytes: &'a [u8], facts: &DeviceFacts) -> Result<Choice<'a>, NoCode> {
    let device =
        u32::from(facts.compute_capability.major) * 10 + u32::from(facts.compute_capability.minor);
    let codes = image::select_parts(bytes, facts.compute_capability)
        .map_err(|error| NoCode { code: error.code(), text: error.to_string() })?;
    Ok(Choice { codes, architecture: ptx_architecture(bytes, device).unwrap_or(device) })
}

/// Machine code of the first container that has some for the device: what was linked comes before
/// what it was linked from.
fn machine_code<'a>(
    containers: &[&'a [u8]],
    facts: &DeviceFacts,
) -> Result<Option<Choice<'a>>, NoCode> {
    for container in containers {
        let found = image::select_machine_code(container, facts.compute_capability)
            .map_err(|error| NoCode { code: error.code(), text: error.to_string() })?;
        if let Some((code, architecture)) = found {
            return Ok(Some(Choice { codes: vec![code], architecture }));
        }
    }
    Ok(None)
}

fn machine_code_only(facts: &DeviceFacts) -> NoCode {
    let sm = format!("{}{}", facts.compute_capability.major, facts.compute_capability.minor);
    NoCode {
        code: CuError::NO_BINARY_FOR_GPU.0,
        text: format!(
            "the program brings machine code only, which `{}` cannot run: \
             compile it with `-gencode arch=compute_{sm},code=compute_{sm}` (or an older \
             compute_XX)",
            facts.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::tests::facts;
    use partita_client::image::fatbin;

    /// Each container alone has no code, and all of them as one do.
    #[test]
    fn damaged_parts_beside_another_container_are_refused() {
        let part = |kind, architecture| {
            (Code { kind, bytes: b".version 8.0", unpacked_bytes: 0 }, architecture)
        };
        // A packed part without a size is damaged, and the newest part is whole.
        let parts = fatbin::parts(&[part(ImageKind::PtxZstd, 75), part(ImageKind::Ptx, 80)]);
        // Machine code that is no part of a link: the highest of the entry's flags is clear.
        let mut other = fatbin::parts(&[part(ImageKind::Cubin, 70)]);
        other[fatbin::HEADER_BYTES + 47] = 0;
        let error = |containers: &[&[u8]]| {
            let chosen = choose(&Image::Fatbin(containers.to_vec()), &facts());
            chosen.err().map(|no_code| (no_code.code, no_code.text))
        };
        assert_eq!(error(&[&parts]).map(|(code, _)| code), Some(CuError::INVALID_IMAGE.0));
        assert_eq!(error(&[&other]).map(|(code, _)| code), Some(CuError::NO_BINARY_FOR_GPU.0));
        let (code, text) = error(&[&parts, &other]).expect("it is refused");
        assert_eq!(code, CuError::INVALID_IMAGE.0);
        assert!(text.contains("link the program again"), "{text}");
    }
}
