//! The requests of threads at a barrier, and the results of its reduction. The CTA decides whether
//! the barrier opens.

use super::inst::{BarrierKind, Source};
use super::program::Program;
use super::registers::Registers;
use super::rows::LANES;
use super::step::team_state;
use super::team::{Fragment, MAX_WARPS, Masks, State, Team, count};

/// What the barrier at `fragment.pc` asks for: id, awaited threads, votes and voters, and whether
/// the fragment waits.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The barrier.
    pub id: u64,
    /// Threads awaited.
    pub threads: Option<u32>,
    /// Threads whose predicate is true.
    pub votes: u32,
    /// Threads.
    pub voters: u32,
    /// Whether they wait.
    pub waits: bool,
}

/// The threads of a fragment at a barrier that name another barrier, or another number of threads,
/// than the fragment's first thread.
#[must_use]
pub fn elsewhere(
    registers: &Registers,
    team: &Team,
    fragment: &Fragment,
    program: &Program,
) -> Masks {
    let core = team_state(registers, team, fragment.masks);
    let op = &program.barrier_ops[program.code[fragment.pc as usize].imm as usize];
    let mut first = None;
    let mut others: Masks = [0; MAX_WARPS];
    if op.id.is_shared() && op.threads.is_shared() {
        return others;
    }
    for w in 0..core.warps {
        for lane in super::rows::lanes(fragment.masks[w]) {
            let meant = [core.get(op.id, w, lane), core.get(op.threads, w, lane)];
            if *first.get_or_insert(meant) != meant {
                others[w] |= 1 << lane;
            }
        }
    }
    others
}

/// Reads the operands of the barrier at which a fragment stands.
#[must_use]
pub fn arrival(
    registers: &Registers,
    team: &Team,
    fragment: &Fragment,
    program: &Program,
) -> Arrival {
    let core = team_state(registers, team, fragment.masks);
    let op = &program.barrier_ops[program.code[fragment.pc as usize].imm as usize];
    let warp = fragment.masks.iter().position(|&mask| mask != 0).unwrap_or(0);
    let lane = (fragment.masks[warp].trailing_zeros() & 31) as usize;
    let threads = (op.threads != Source::None).then(|| core.get(op.threads, warp, lane) as u32);
    let mut votes = 0;
    for w in 0..core.warps {
        let mask = fragment.masks[w];
        if mask != 0
            && let Source::P(p) = op.value
        {
            let bits = core.predicate(p, w) ^ if op.negated { u32::MAX } else { 0 };
            votes += (bits & mask).count_ones();
        }
    }
    Arrival {
        id: core.get(op.id, warp, lane),
        threads,
        votes,
        voters: count(&fragment.masks),
        waits: op.kind != BarrierKind::Arrive,
    }
}

/// Writes the result of a barrier's reduction for the threads that wait at the barrier.
pub fn deliver_votes(
    registers: &Registers,
    team: &Team,
    program: &Program,
    id: u8,
    votes: u32,
    voters: u32,
) {
    for fragment in &team.fragments {
        if fragment.state != State::Barrier(id) {
            continue;
        }
        let op = &program.barrier_ops[program.code[fragment.pc as usize].imm as usize];
        let value = match op.kind {
            BarrierKind::RedPopc => u64::from(votes),
            BarrierKind::RedAnd => u64::from(votes == voters),
            BarrierKind::RedOr => u64::from(votes != 0),
            BarrierKind::Sync | BarrierKind::Arrive => continue,
        };
        let core = team_state(registers, team, fragment.masks);
        for w in 0..team.warps {
            core.put_all(op.target, w, fragment.masks[w], &[value; LANES]);
        }
    }
}
