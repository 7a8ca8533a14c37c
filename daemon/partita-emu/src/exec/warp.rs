//! Collective operations of a warp: `shfl`, `vote`, `match`, `redux`, `bar.warp.sync`, `elect`.
//!
//! A `.sync` instruction names its members. The fragment waits for members that live and are
//! elsewhere, and takes them in when they reach the same instruction. Complete warps of the team go
//! ahead. A lane that its own mask lacks waits for nobody in `vote` and `match`.

use super::float::{NAN, NAN_F32, min_max};
use super::inst::{Inst, Op, Source, WarpKind, WarpOp};
use super::program::Program;
use super::registers::Registers;
use super::rows::{LANES, lanes};
use super::state::Core;
use super::team::{Fragment, MAX_WARPS, Masks, State, Team, is_empty};

/// Executes the instruction for every warp whose members are all here. False where none is; then
/// the fragment waits.
#[inline(never)]
pub fn execute(
    core: &mut Core<'_>,
    i: &Inst,
    team: &mut Team,
    fragment: &mut Fragment,
    program: &Program,
    pc: usize,
) -> bool {
    let op = &program.warp_ops[i.imm as usize];
    if op.members != Source::None {
        let mut late = lacking(core, op, team);
        if !is_empty(&late) {
            let waiting =
                (0..core.warps).any(|w| late[w] != 0 && team.waiting_at(pc as u32, w) != 0);
            if waiting {
                team.absorb_waiting(fragment, pc as u32);
                core.masks = fragment.masks;
                late = lacking(core, op, team);
            }
        }
        if !is_empty(&late) {
            let mut late = Team::split(fragment, &late);
            core.masks = fragment.masks;
            late.state = State::Warp;
            if is_empty(&fragment.masks) {
                *fragment = late;
                core.masks = late.masks;
                return false;
            }
            team.fragments.push(late);
        }
    }
    for w in 0..core.warps {
        let here = core.masks[w];
        if here != 0 {
            together(core, op, w, here);
        }
    }
    true
}

/// Whether a lane that its own mask excludes waits for no other lane. ptxas compiles `vote` and
/// `match` to `WARPSYNC mask`, then the operation over the converged lanes, then `& mask`.
fn passes_outsiders(kind: WarpKind) -> bool {
    use WarpKind as K;
    matches!(kind, K::VoteAll | K::VoteAny | K::VoteUni | K::VoteBallot | K::MatchAny | K::MatchAll)
}

/// The threads whose members have not all arrived.
fn lacking(core: &Core<'_>, op: &WarpOp, team: &Team) -> Masks {
    let mut late = [0; MAX_WARPS];
    for (w, late) in late[..core.warps].iter_mut().enumerate() {
        let (here, alive) = (core.masks[w], team.alive[w]);
        for (group, members) in groups(core, op, w, here) {
            // Threads that name other members come from another call or turn of a loop.
            let missing = members & alive & !group;
            let named = |lane: usize| core.get(op.members, w, lane) as u32 & alive;
            if missing & !here != 0 || lanes(missing).any(|lane| named(lane) != members & alive) {
                let outsiders = if passes_outsiders(op.kind) { !members } else { 0 };
                *late |= group & !outsiders;
            }
        }
    }
    late
}

/// The threads `here`, grouped by the members that they name. Several groups of a warp may reach
/// one instruction at once.
fn groups(
    core: &Core<'_>,
    op: &WarpOp,
    w: usize,
    here: u32,
) -> impl Iterator<Item = (u32, u32)> + use<> {
    let named = match op.members {
        Source::None => [u64::from(here); LANES],
        members => core.get_all(members, w),
    };
    let mut rest = here;
    std::iter::from_fn(move || {
        let first = lanes(rest).next()?;
        let group = lanes(rest)
            .filter(|&lane| named[lane] == named[first])
            .fold(0_u32, |all, lane| all | 1 << lane);
        rest &= !group;
        Some((group, named[first] as u32))
    })
}

/// Threads may meet at different `bar.warp.sync` (PTX ISA, "bar.warp.sync": members execute one
/// with the same mask): lets those go on whose members all wait at one. True where there are any.
pub fn meet_apart(registers: &Registers, team: &mut Team, program: &Program) -> bool {
    let at_barrier = |fragment: &Fragment| {
        let inst = &program.code[fragment.pc as usize];
        let op = (inst.op == Op::Warp).then(|| &program.warp_ops[inst.imm as usize])?;
        (fragment.state == State::Warp && op.kind == WarpKind::BarWarp).then_some(op.members)
    };
    let mut named = [[None; LANES]; MAX_WARPS];
    for fragment in &team.fragments {
        let Some(members) = at_barrier(fragment) else { continue };
        let core = super::step::team_state(registers, team, fragment.masks);
        for w in 0..team.warps {
            for lane in lanes(fragment.masks[w]) {
                named[w][lane] = Some(core.get(members, w, lane) as u32 & team.alive[w]);
            }
        }
    }
    let mut passing: Masks = [0; MAX_WARPS];
    for (passing, named) in passing.iter_mut().zip(&named) {
        for (lane, own) in named.iter().enumerate() {
            if own.is_some_and(|members| lanes(members).all(|other| named[other] == *own)) {
                *passing |= 1 << lane;
            }
        }
    }
    if is_empty(&passing) {
        return false;
    }
    for index in 0..team.fragments.len() {
        if at_barrier(&team.fragments[index]).is_none() {
            continue;
        }
        let fragment = &mut team.fragments[index];
        let mut go = fragment.masks;
        go.iter_mut().zip(passing).for_each(|(go, passing)| *go &= passing);
        if is_empty(&go) {
            continue;
        }
        let mut gone = Team::split(fragment, &go);
        gone.state = State::Ready;
        gone.pc += 1;
        team.fragments.push(gone);
    }
    team.fragments.retain(|fragment| !is_empty(&fragment.masks));
    true
}

fn together(core: &mut Core<'_>, op: &WarpOp, w: usize, here: u32) {
    use WarpKind as K;
    match op.kind {
        K::BarWarp => {}
        K::ShflUp | K::ShflDown | K::ShflBfly | K::ShflIdx => shuffle(core, op, w, here),
        _ => {
            // Sources are read before any group writes, because a target may be a source.
            let (a, bits) = (core.get_all(op.a, w), votes(core, op, w));
            for (group, members) in groups(core, op, w, here) {
                let members = members & here;
                match op.kind {
                    K::VoteAll | K::VoteAny | K::VoteUni | K::VoteBallot => {
                        vote(core, op, w, group, bits & members, members);
                    }
                    K::MatchAny | K::MatchAll => find_equal(core, op, w, group, &a, members),
                    K::Elect => elect(core, op, w, group, members),
                    _ => reduce(core, op, w, group, &a, members),
                }
            }
        }
    }
}

fn elect(core: &mut Core<'_>, op: &WarpOp, w: usize, group: u32, members: u32) {
    let leader = (members.trailing_zeros() & 31) as u64;
    core.put_all(op.target, w, group, &[leader; LANES]);
    core.put_all(
        op.predicate,
        w,
        group,
        &std::array::from_fn(|lane| u64::from(lane as u64 == leader)),
    );
}

/// PTX ISA, "Data Movement and Conversion: shfl.sync", pseudocode. A read of an inactive lane is
/// undefined there and gives 0 here, because correct programs for real GPUs sum over absent lanes.
fn shuffle(core: &mut Core<'_>, op: &WarpOp, w: usize, here: u32) {
    let values = core.get_all(op.a, w);
    let b = core.get_all(op.b, w);
    let c = core.get_all(op.c, w);
    let mut out = [0; LANES];
    let mut valid = [0; LANES];
    for lane in 0..LANES {
        let position = (b[lane] & 0x1f) as i64;
        let clamp = c[lane] & 0x1f;
        let segment = c[lane] >> 8 & 0x1f;
        let max = ((lane as u64 & segment) | (clamp & !segment)) as i64;
        let min = (lane as u64 & segment) as i64;
        let own = lane as i64;
        let (from, inside) = match op.kind {
            WarpKind::ShflUp => (own - position, own - position >= max),
            WarpKind::ShflDown => (own + position, own + position <= max),
            WarpKind::ShflBfly => (own ^ position, (own ^ position) <= max),
            _ => {
                let from = min | (position & !(segment as i64));
                (from, from <= max)
            }
        };
        let from = if inside { from & 31 } else { own } as usize;
        out[lane] = if here >> from & 1 == 1 { values[from] } else { 0 };
        valid[lane] = u64::from(inside);
    }
    core.put_all(op.target, w, here, &out);
    core.put_all(op.predicate, w, here, &valid);
}

fn votes(core: &Core<'_>, op: &WarpOp, w: usize) -> u32 {
    let bits = match op.a {
        Source::P(p) => core.predicate(p, w),
        _ => 0,
    };
    if op.negated { !bits } else { bits }
}

fn vote(core: &mut Core<'_>, op: &WarpOp, w: usize, group: u32, bits: u32, members: u32) {
    let value = match op.kind {
        WarpKind::VoteAll => u64::from(bits == members),
        WarpKind::VoteAny => u64::from(bits != 0),
        WarpKind::VoteUni => u64::from(bits == members || bits == 0),
        _ => u64::from(bits),
    };
    core.put_all(op.target, w, group, &[value; LANES]);
}

fn find_equal(
    core: &mut Core<'_>,
    op: &WarpOp,
    w: usize,
    group: u32,
    values: &[u64; LANES],
    members: u32,
) {
    let mut out = [0; LANES];
    let mut all = true;
    for lane in lanes(group) {
        let equal = lanes(members)
            .filter(|&other| values[other] == values[lane])
            .fold(0_u32, |bits, other| bits | 1 << other);
        all &= equal == members;
        out[lane] = u64::from(equal);
    }
    if op.kind == WarpKind::MatchAll {
        out = [if all { u64::from(members) } else { 0 }; LANES];
        core.put_all(op.predicate, w, group, &[u64::from(all); LANES]);
    }
    core.put_all(op.target, w, group, &out);
}

fn reduce(
    core: &mut Core<'_>,
    op: &WarpOp,
    w: usize,
    group: u32,
    values: &[u64; LANES],
    members: u32,
) {
    use WarpKind as K;
    let mut all = lanes(members).map(|lane| values[lane] as u32);
    let value = match op.kind {
        K::ReduxAdd => all.fold(0, u32::wrapping_add),
        K::ReduxMinU => all.min().unwrap_or(0),
        K::ReduxMaxU => all.max().unwrap_or(0),
        K::ReduxMinS => all.map(|v| v as i32).min().unwrap_or(0) as u32,
        K::ReduxMaxS => all.map(|v| v as i32).max().unwrap_or(0) as u32,
        K::ReduxAnd => all.fold(u32::MAX, |a, b| a & b),
        K::ReduxOr => all.fold(0, |a, b| a | b),
        K::ReduxF32 { maximum, absolute, nan } => {
            let how = if nan { NAN } else { 0 };
            let sizes = all.map(f32::from_bits).map(|v| if absolute { v.abs() } else { v });
            let best = sizes.map(f64::from).reduce(|a, b| min_max(a, b, maximum, how));
            best.filter(|best| !best.is_nan()).map_or(NAN_F32, |best| (best as f32).to_bits())
        }
        _ => all.by_ref().fold(0, |a, b| a ^ b),
    };
    core.put_all(op.target, w, group, &[u64::from(value); LANES]);
}
