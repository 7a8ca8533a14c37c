//! The accesses of an instruction, with what the hardware asks of their addresses.

use super::lines::{Lines, Matrix};
use crate::ir::{Base, Body, Inst, Mod, Module, Op, Operand, Space, Symbol};

/// An address that an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub base: Base,
    pub offset: i32,
    /// Bytes that are accessed; those of one line where the lines' distance is in a register.
    pub bytes: u32,
    /// The alignment that they need, a power of two.
    pub align: u32,
    /// `None` is a generic address.
    pub space: Option<Space>,
    /// Only the warp's first lanes use their address, for the whole warp.
    pub lanes: Option<u32>,
    /// Local memory takes no such operation.
    pub is_atomic: bool,
    /// The hardware takes the address for one of shared memory, also where it is a generic one.
    pub is_shared: bool,
    /// The lines of a matrix, where the instruction has their distance.
    pub lines: Option<Lines>,
}

/// The most accesses of one instruction: a copy has two.
pub(super) type Accesses = Vec<Access>;

/// The accesses of an instruction.
pub(super) fn accesses(module: &Module, body: &Body, inst: &Inst) -> Accesses {
    let form = module.form(inst);
    let operands = body.operands(inst.operands);
    let space = module.access_space(body, inst);
    let of = |index: usize, bytes: u32, space: Option<Space>, lanes: Option<u32>| {
        let &Operand::Mem(base, offset) = operands.get(index)? else { return None };
        let is_atomic = matches!(form.op, Op::Atom | Op::Red);
        let is_shared = matches!(form.op, Op::Ldmatrix | Op::Stmatrix);
        let align = bytes;
        Some(Access { base, offset, bytes, align, space, lanes, is_atomic, is_shared, lines: None })
    };
    let first = operands.iter().position(|operand| matches!(operand, Operand::Mem(..)));
    let one = |bytes: u32, lanes: Option<u32>| {
        first.and_then(|index| of(index, bytes, space, lanes)).into_iter().collect()
    };
    match form.op {
        // As with bulk copies, the size is in a register.
        Op::St if form.has(Mod::Bulk) => Vec::new(),
        Op::Ld | Op::Ldu | Op::St | Op::Atom | Op::Red => {
            let element = form.last_type().map_or(1, crate::ir::Type::bytes);
            one((element * form.vector()).next_power_of_two(), None)
        }
        // A line of the cache (PTX ISA, "applypriority" and "discard").
        Op::Applypriority | Op::Discard => one(128, None),
        Op::Ldmatrix | Op::Stmatrix => {
            let matrices = [(Mod::X2, 2), (Mod::X4, 4)].into_iter();
            let count = matrices.filter(|(word, _)| form.has(*word)).map(|(_, count)| count);
            // A matrix of 16 by 16 bytes has 16 lines.
            let lines = if module.text(form.text).contains(".m16n16") { 16 } else { 8 };
            one(16, Some(lines * count.max().unwrap_or(1)))
        }
        Op::Mbarrier => one(8, None),
        Op::Wmma if first.is_some() => {
            let matrix = Matrix::of(module, form);
            let access = first.and_then(|index| of(index, 1, space, Some(32)));
            let whole = matrix.zip(access).map(|(matrix, access)| matrix.access(access, operands));
            whole.into_iter().collect()
        }
        Op::Cp if form.has(Mod::Async) && !form.has(Mod::Bulk) => {
            // The size is a number, and 16 at most.
            let bytes = match operands.get(2) {
                Some(&(Operand::Int(bytes) | Operand::Uint(bytes))) => bytes.clamp(1, 16),
                _ => 16,
            };
            let bytes = u32::try_from(bytes).unwrap_or(16);
            let shared = Some(Space::Shared);
            let both = [of(0, bytes, shared, None), of(1, bytes, Some(Space::Global), None)];
            both.into_iter().flatten().collect()
        }
        _ => Vec::new(),
    }
}

/// Whether an address is a number that the fence does not move. Nothing of a program lies there.
pub(super) fn is_absolute(module: &Module, body: &Body, inst: &Inst) -> bool {
    let space = module.access_space(body, inst);
    let is_number = |operand: &Operand| matches!(operand, Operand::Absolute(_));
    space.is_some_and(|space| space != Space::Global)
        && body.operands(inst.operands).iter().any(is_number)
}

/// What a barrier instruction gets in operands that the hardware refuses or waits for in vain: its
/// number, and the number of threads.
pub(super) fn barrier(module: &Module, body: &Body, inst: &Inst) -> [Option<Operand>; 2] {
    let [number, count] = module.form(inst).barrier_operands(body.operands(inst.operands));
    [number.filter(|number| !matches!(number, Operand::Int(_) | Operand::Uint(_))), count]
}

/// The variable that an address names.
pub(super) fn named(access: &Access) -> Option<crate::ir::VarId> {
    match access.base {
        Base::Symbol(Symbol::Var(id)) => Some(id),
        _ => None,
    }
}
