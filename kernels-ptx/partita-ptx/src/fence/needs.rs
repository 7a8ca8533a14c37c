//! Finds the operands of an instruction that are addresses to be forced into the cell, and the
//! instructions that cannot be forced.

use crate::ir::{Base, Body, Form, Inst, Mod, Module, Op, Operand, Space, Symbol};
use crate::report::Reason;

/// How an operand is forced into the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// The operand is an address of global memory.
    Global,
    /// The operand may be an address of shared or local memory.
    Generic,
}

/// The needs of an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Operands that are addresses.
    pub addresses: Vec<(usize, Access)>,
    /// Bytes from the address on that the instruction may reach.
    pub bytes: i64,
    /// The operand with the distance of a matrix's rows, in elements.
    pub stride: Option<usize>,
}

impl Needs {
    /// Whether the instruction needs nothing.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.stride.is_none()
    }
}

/// Bytes of the largest usual access.
const LARGEST_BYTES: i64 = 256;
/// Bytes of the largest bulk copy, whose size has 32 bits.
const BULK_BYTES: i64 = 1 << 32;
/// Rows of a matrix, and bytes of an element, at most.
const MATRIX: i64 = 32 * 8;
/// Bytes of the largest matrix whose rows lie side by side.
const MATRIX_BYTES: i64 = 32 * MATRIX;

/// The largest distance of a matrix's rows, in elements: a matrix spans a quarter of a margin.
pub(super) const fn most_stride(margin: i64) -> u64 {
    (margin / 4 / MATRIX).cast_unsigned()
}

/// Finds the needs of an instruction.
pub(super) fn needs(module: &Module, body: &Body, inst: &Inst) -> Result<Needs, Reason> {
    let form = module.form(inst);
    let operands = body.operands(inst.operands);
    let unfenced =
        |by| Err(Reason::Unfenced { instruction: module.text(form.text).to_owned(), by });
    let is_address = |operand: &Operand| matches!(operand, Operand::Mem(..) | Operand::Absolute(_));
    let address = operands.iter().position(is_address);
    match form.op {
        // Shared memory is the only one that it may write; the hardware bounds that space only.
        Op::St if form.has(Mod::Bulk) && form.space().is_none() => {
            unfenced("any number of zeros at a generic address")
        }
        Op::Ld
        | Op::Ldu
        | Op::St
        | Op::Atom
        | Op::Red
        | Op::Prefetch
        | Op::Prefetchu
        | Op::Applypriority
        | Op::Discard
        | Op::Createpolicy => {
            let addresses = by_space(module, body, inst, address)?;
            Ok(Needs { addresses, bytes: LARGEST_BYTES, stride: None })
        }
        Op::Wmma => {
            if address.is_some() && form.space().is_none() {
                // The rows of a generic matrix could begin in shared memory and end elsewhere.
                return unfenced("rows from a generic address");
            }
            let addresses = by_space(module, body, inst, address)?;
            let outside = form.space() == Some(Space::Global);
            let stride = (outside && address.is_some() && operands.len() > 2).then_some(2);
            Ok(Needs { addresses, bytes: MATRIX_BYTES, stride })
        }
        // The ISA does not say where parameters lie among generic addresses.
        Op::Cvta if !form.has(Mod::To) && form.space().is_some_and(Space::is_param) => {
            unfenced("a generic address of parameters")
        }
        Op::Cp if form.has(Mod::Tensor) => unfenced("a tensor map"),
        Op::Cp => Ok(copy(module, form, operands)),
        // These access only shared memory, which the hardware bounds.
        Op::Mbarrier | Op::Ldmatrix | Op::Stmatrix | Op::Movmatrix | Op::Wgmma | Op::Mma => {
            Ok(Needs::default())
        }
        // What they name is looked at elsewhere ([`super::handles`]).
        Op::Tex | Op::Tld4 | Op::Txq | Op::Suld | Op::Sust | Op::Sured | Op::Suq | Op::Istypep => {
            Ok(Needs::default())
        }
        Op::Stackrestore => unfenced("the stack pointer"),
        // Descriptors and addresses of tensor memory name nothing outside the cluster's SMs.
        Op::Tcgen05
            if address.is_none() || !module.text(form.text).starts_with("tcgen05.alloc") =>
        {
            Ok(Needs::default())
        }
        Op::Tcgen05 => {
            let inside = module.access_space(body, inst).is_some_and(Space::is_shared);
            if inside { Ok(Needs::default()) } else { unfenced("a generic address") }
        }
        Op::Tensormap | Op::Multimem | Op::Clusterlaunchcontrol => unfenced("descriptors"),
        Op::Call => match operands.iter().any(|operand| matches!(operand, Operand::Reg(_))) {
            true => Err(Reason::CallThroughRegister),
            false => Ok(Needs::default()),
        },
        Op::Other(_) => unfenced("ways that the pass does not know"),
        _ if address.is_some() => unfenced("an address that the pass does not know"),
        _ => Ok(Needs::default()),
    }
}

/// An access whose space the form names, or the variable at the address.
fn by_space(
    module: &Module,
    body: &Body,
    inst: &Inst,
    address: Option<usize>,
) -> Result<Vec<(usize, Access)>, Reason> {
    let Some(address) = address else { return Ok(Vec::new()) };
    let (form, operands) = (module.form(inst), body.operands(inst.operands));
    let access = match module.access_space(body, inst) {
        None => Access::Generic,
        Some(Space::Global) => Access::Global,
        Some(Space::Tex | Space::Reg | Space::Sreg) => {
            let instruction = module.text(form.text).to_owned();
            return Err(Reason::Unfenced { instruction, by: "a texture" });
        }
        Some(_) => return Ok(Vec::new()),
    };
    let inside = is_variable(module, operands[address]);
    Ok(if inside { Vec::new() } else { vec![(address, access)] })
}

/// Whether the operand is a place near a variable of global memory, which lies in the window.
fn is_variable(module: &Module, operand: Operand) -> bool {
    matches!(operand, Operand::Mem(Base::Symbol(Symbol::Var(id)),
        _) if module.var(id).space == Space::Global)
}

/// `cp.async` and `cp.async.bulk`: the form names the spaces, destination first.
fn copy(module: &Module, form: &Form, operands: &[Operand]) -> Needs {
    let spaces: Vec<Space> = form
        .mods
        .iter()
        .filter_map(|modifier| match modifier {
            Mod::Space(space) => Some(*space),
            _ => None,
        })
        .collect();
    let addresses: Vec<(usize, Access)> = spaces
        .iter()
        .enumerate()
        .filter(|&(index, space)| {
            *space == Space::Global
                && matches!(operands.get(index), Some(Operand::Mem(..) | Operand::Absolute(_)))
                && !is_variable(module, operands[index])
        })
        .map(|(index, _)| (index, Access::Global))
        .collect();
    Needs {
        addresses,
        bytes: if form.has(Mod::Bulk) { BULK_BYTES } else { LARGEST_BYTES },
        stride: None,
    }
}
