//! Which kernels' CTAs may run ahead of their turn, in any order.
//!
//! The accesses of such a kernel are weak, so where CTAs of a launch touch the same bytes and one
//! of them stores there, they race (PTX ISA, "Memory Consistency Model", "Race-freedom"). Without
//! races a CTA finds the same values whenever it runs. Reductions of whole numbers may come in any
//! order, where nobody asks for their results. Nor does such a kernel look at the time or the
//! place, print, allocate, or wait for others than the CTA's own threads.

use super::access::{ACQUIRE, PAST_L1, RELEASE, STRONG_STORE};
use super::inst::{
    AtomicKind, AtomicOp, AtomicType, BarrierKind, Hardware, Inst, Op, Space, Target,
};
use super::program::Program;

/// Whether CTAs of `warps` warps, of which `together` execute together, may run ahead.
#[must_use]
pub fn may_run_ahead(program: &Program, warps: usize, together: usize) -> bool {
    let one_team = warps <= together;
    !program.uses_cluster
        && program.tensor_ops.is_empty()
        && program.code.iter().all(|inst| is_independent(program, inst, one_team))
}

fn is_independent(program: &Program, inst: &Inst, one_team: bool) -> bool {
    match inst.op {
        Op::LdGlobal | Op::LdShared | Op::StGlobal | Op::StShared | Op::Memory => {
            inst.aux & (PAST_L1 | STRONG_STORE | ACQUIRE | RELEASE) == 0
        }
        // Teams of one CTA would meet in another order.
        Op::Atomic => {
            let op = &program.atomic_ops[inst.imm as usize];
            one_team && op.space == Space::Shared
                || is_in_any_order(op) && inst.aux & (ACQUIRE | RELEASE) == 0
        }
        Op::Barrier => one_team || program.barrier_ops[inst.imm as usize].kind == BarrierKind::Sync,
        Op::Special32 | Op::Special64 => {
            [Hardware::Warpid, Hardware::Activemask].iter().any(|&kind| inst.aux == kind as u16)
        }
        Op::AtomicWide
        | Op::Async
        | Op::ClusterArrive
        | Op::ClusterWait
        | Op::Nanosleep
        | Op::System
        | Op::Tensor
        | Op::Texture
        | Op::Trap => false,
        _ => true,
    }
}

/// Whether it is a reduction of global memory that gives the same in any order.
fn is_in_any_order(op: &AtomicOp) -> bool {
    use AtomicKind as K;
    use AtomicType as T;
    op.space == Space::Global
        && op.target == Target::None
        && matches!(op.kind, K::Add | K::Min | K::Max | K::And | K::Or | K::Xor)
        && matches!(op.ty, T::U16 | T::U32 | T::S32 | T::U64 | T::S64)
}
