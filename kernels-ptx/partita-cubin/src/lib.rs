//! Reads from an image of machine code (a *cubin*) the facts of its kernels: names, parameters,
//! registers, shared memory, largest CTAs.
//!
//! A cubin is an ELF file. Its code stays closed; its tables have the facts that a launch needs.
//! NVIDIA does not document them. The layout here was found by compiling kernels with known
//! parameters for compute capability 7.5 to 12.0 with the assemblers of CUDA 12.9 and 13.5, and a
//! test holds it against these.
//!
//! | where | what |
//! | --- | --- |
//! | symbol, a function with 0x10 in `st_other` | a kernel; its section is `.text.NAME` |
//! | symbol, an object in `.nv.global`, `.nv.global.init` or `.nv.constant3` | a variable |
//! | `.nv.info`, attribute 0x2f | symbol, registers per thread |
//! | `.nv.info`, attribute 0x11 | symbol, bytes of the stack frame |
//! | `.nv.info.NAME`, attributes 0x17 and 0x45 | one parameter: number, offset, size; the second where all take more than 4,096 bytes |
//! | `.nv.info.NAME`, attribute 0x19 | size of the parameter space |
//! | `.nv.info.NAME`, attributes 0x05 and 0x10 | the largest CTA, and the only one |
//! | `.nv.shared.NAME` | static shared memory, with the 1,024 bytes that are the system's from compute capability 9.0 on |
//! | `.nv.constant0.NAME` | the parameters lie at its end |
//!
//! An attribute is a byte of format, a byte that names it, and its value. Formats 1 to 3 have a
//! value of 16 bits in place; format 4 has a size of 16 bits and as many bytes.
//!
//! The bytes are untrusted. Every offset, size and count is checked before use, nothing is taken
//! for larger than the image, and every error names its place. The crate executes nothing and
//! leaves other tables alone.

mod bytes;
mod elf;
mod info;

use elf::{Elf, Symbol};
use info::Attributes;
use std::collections::BTreeMap;

/// The most kernels of an image: more than any library's module has; 15,000 were seen in one.
const MOST_KERNELS: usize = 1 << 17;
/// The most bytes of one kernel's parameters, since CUDA 12.1.
const MOST_PARAM_BYTES: u32 = 32_764;

/// Bytes of shared memory that the system keeps of each CTA from compute capability 9.0 on; the
/// kernel's section counts them.
const RESERVED_SHARED: u64 = 1024;

/// The facts of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cubin {
    /// The architecture of the image: 90 for compute capability 9.0.
    pub architecture: u32,
    /// Its kernels, in the order of the symbols.
    pub kernels: Vec<Kernel>,
    /// Its variables with a name outside.
    pub variables: Vec<Variable>,
    /// Whether it keeps anything from one launch to the next, under a name or without.
    pub has_state: bool,
}

/// A kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Its parameters in order.
    pub params: Vec<Param>,
    /// Bytes of its parameter space.
    pub param_bytes: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of static shared memory per CTA.
    pub shared_bytes: u64,
    /// Bytes of local memory per thread that its own frame takes.
    pub frame_bytes: u64,
    /// The largest extent of a CTA (`.maxntid`), where one is declared.
    pub max_block: Option<[u32; 3]>,
    /// The only extent of a CTA (`.reqntid`), where one is declared.
    pub required_block: Option<[u32; 3]>,
}

impl Kernel {
    /// The largest CTA in threads that its directives allow.
    #[must_use]
    pub fn max_threads(&self) -> Option<u64> {
        let [x, y, z] = self.required_block.or(self.max_block)?;
        Some(u64::from(x).saturating_mul(y.into()).saturating_mul(z.into()))
    }
}

/// A parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Param {
    /// Its offset in the parameter space.
    pub offset: u32,
    /// Its size in bytes.
    pub size: u32,
}

/// A variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is in constant memory.
    pub is_constant: bool,
}

/// Why an image is no cubin that can be launched from.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CubinError {
    /// The image is not NVIDIA's.
    #[error("not a 64-bit ELF file of machine code for NVIDIA's GPUs: {0}")]
    Foreign(&'static str),
    /// A table lies outside of the image.
    #[error("{what}: {bytes} bytes at {at} lie outside of an image of {image} bytes")]
    Outside {
        /// Which.
        what: String,
        /// Where it is said to begin.
        at: u64,
        /// How long it is said to be.
        bytes: u64,
        /// How long the image is.
        image: usize,
    },
    /// A number that cannot be.
    #[error("{what} is {value}, which it cannot be")]
    Value {
        /// Which.
        what: String,
        /// Its value.
        value: u64,
    },
    /// Something that a launch needs is missing.
    #[error("kernel `{kernel}` has no {what}")]
    Missing {
        /// Whose.
        kernel: String,
        /// What.
        what: &'static str,
    },
}

/// Reads an image.
///
/// # Errors
/// [`CubinError`]; what is right of it is not told then.
pub fn read(image: &[u8]) -> Result<Cubin, CubinError> {
    let elf = Elf::open(image)?;
    let symbols = elf.symbols()?;
    let mut of_symbol: BTreeMap<u64, OfSymbol> = BTreeMap::new();
    let mut of_kernel: BTreeMap<&str, Attributes> = BTreeMap::new();
    let mut shared: BTreeMap<&str, u64> = BTreeMap::new();
    for section in &elf.sections {
        if section.name == ".nv.info" {
            module_attributes(info::attributes(elf.contents(section)?), &mut of_symbol)?;
        } else if let Some(kernel) = section.name.strip_prefix(".nv.info.") {
            of_kernel.insert(kernel, info::kernel(kernel, elf.contents(section)?)?);
        } else if let Some(kernel) = section.name.strip_prefix(".nv.shared.") {
            shared.insert(kernel, section.bytes);
        }
    }
    let architecture = elf.architecture();
    let mut kernels = Vec::new();
    for (index, symbol) in (0..).zip(&symbols).filter(|(_, symbol)| symbol.is_kernel()) {
        if kernels.len() >= MOST_KERNELS {
            return Err(CubinError::Value {
                what: "the number of kernels".to_owned(),
                value: u64::MAX,
            });
        }
        let own = of_symbol.get(&index).copied().unwrap_or_default();
        let attributes = of_kernel.get(symbol.name.as_str());
        let missing = |what| CubinError::Missing { kernel: symbol.name.clone(), what };
        let attributes = attributes.ok_or_else(|| missing("table of attributes"))?;
        let shared = shared.get(symbol.name.as_str()).copied().unwrap_or(0);
        let reserved = if architecture >= 90 { RESERVED_SHARED } else { 0 };
        kernels.push(Kernel {
            name: symbol.name.clone(),
            params: params(&symbol.name, attributes)?,
            param_bytes: attributes.param_bytes,
            registers: own.registers.ok_or_else(|| missing("number of registers"))?,
            shared_bytes: shared.saturating_sub(reserved),
            frame_bytes: own.frame_bytes,
            max_block: attributes.max_block,
            required_block: attributes.required_block,
        });
    }
    let is_memory = |name: &str| name == ".nv.global" || name == ".nv.global.init";
    let variables = symbols.iter().filter(|symbol| symbol.is_variable());
    let variables = variables.filter_map(|symbol| {
        let section = elf.sections.get(usize::from(symbol.section))?;
        let is_constant = section.name == ".nv.constant3";
        (is_constant || is_memory(&section.name)).then(|| variable(symbol, is_constant))
    });
    let variables: Vec<Variable> = variables.collect();
    let has_state =
        elf.sections.iter().any(|section| is_memory(&section.name) && section.bytes > 0);
    Ok(Cubin { architecture, kernels, variables, has_state })
}

fn variable(symbol: &Symbol, is_constant: bool) -> Variable {
    Variable { name: symbol.name.clone(), bytes: symbol.bytes, is_constant }
}

/// What the module's own table says of a symbol.
#[derive(Clone, Copy, Default)]
struct OfSymbol {
    registers: Option<u32>,
    frame_bytes: u64,
}

fn module_attributes<'a>(
    attributes: impl Iterator<Item = Result<info::Attribute<'a>, CubinError>>,
    of_symbol: &mut BTreeMap<u64, OfSymbol>,
) -> Result<(), CubinError> {
    for attribute in attributes {
        let attribute = attribute?;
        if !matches!(attribute.name, info::REGISTERS | info::FRAME) {
            continue;
        }
        let [symbol, value] = attribute.words("an attribute of a symbol")?;
        let entry = of_symbol.entry(symbol.into()).or_default();
        match attribute.name {
            info::REGISTERS => entry.registers = Some(value),
            _ => entry.frame_bytes = value.into(),
        }
    }
    Ok(())
}

/// The parameters in order: each number once, inside the parameter space, none before the one
/// before it ends.
fn params(kernel: &str, attributes: &Attributes) -> Result<Vec<Param>, CubinError> {
    let bad = |what: &str, value: u64| CubinError::Value {
        what: format!("kernel `{kernel}`: {what}"),
        value,
    };
    if attributes.param_bytes > MOST_PARAM_BYTES {
        return Err(bad("the size of its parameters", attributes.param_bytes.into()));
    }
    let mut params = Vec::with_capacity(attributes.params.len());
    let mut end = 0;
    for (expected, (&ordinal, param)) in (0..).zip(&attributes.params) {
        if ordinal != expected {
            return Err(bad("the number of a parameter", ordinal.into()));
        }
        if param.offset < end
            || param.size == 0
            || param.offset + param.size > attributes.param_bytes
        {
            return Err(bad("the place of a parameter", param.offset.into()));
        }
        end = param.offset + param.size;
        params.push(*param);
    }
    Ok(params)
}
