//! Which kernels' CTAs may run ahead of their turn, in any order.
//!
//! The accesses of such a kernel are weak, so where CTAs of a launch touch the same bytes and one
//! of them stores there, they race (PTX ISA, "Memory Consistency Model", "Race-freedom"). Without
//! races a CTA finds the same values whenever it runs. Nor does it look at the time or the place,
//! print, allocate, or wait for others than its own threads.

use super::access::{ACQUIRE, PAST_L1, RELEASE, STRONG_STORE};
use super::inst::{BarrierKind, Hardware, Inst, Op, Space};
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
        Op::Atomic => one_team && program.atomic_ops[inst.imm as usize].space == Space::Shared,
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
