//! `ld.shared` and `st.shared` of 32 and 64 bits at 32-bit addresses.

use super::Outcome;
use super::row::{Word, gather, is_run, scatter};
use super::trouble::{Access, shared_trouble};
use crate::dispatch::vector::Vector;
use crate::exec::inst::Inst;
use crate::exec::rows::{LANES, Row32, blend32, each, lanes};
use crate::exec::state::Core;
use crate::exec::step::{Env, Trouble};

/// `ld.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn load_shared(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize, vector: impl Vector) -> Outcome {
    if i.aux & 8 != 0 {
        load_rows::<8, u64>(core, i, env, pc, vector)
    } else {
        load_rows::<4, u32>(core, i, env, pc, vector)
    }
}

/// `st.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn store_shared(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize, vector: impl Vector) -> Outcome {
    if i.aux & 8 != 0 {
        store_rows::<8, u64>(core, i, env, pc, vector)
    } else {
        store_rows::<4, u32>(core, i, env, pc, vector)
    }
}

#[inline(always)]
fn load_rows<const N: usize, T: Word<N>>(
    core: &Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    let (masks, base, d) = (core.active(i), core.frame.rows32(i.a), T::operand(&core.frame, i.d));
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let addresses = addresses_of(base.of(w), i.imm as u32, mask);
        let Some(values) = gather(env.shared, 0, &addresses, vector) else {
            return Err(first_trouble::<N>(env, &addresses, mask, (core.first_warp + w, pc), Access::Load));
        };
        note::<N>(env, &addresses, mask, vector);
        T::put(d.of(w), mask, &values);
    }
    Ok(())
}

#[inline(always)]
fn store_rows<const N: usize, T: Word<N>>(
    core: &Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    let (masks, base, b) = (core.active(i), core.frame.rows32(i.a), T::operand(&core.frame, i.b));
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let addresses = addresses_of(base.of(w), i.imm as u32, mask);
        if !scatter(env.shared, 0, &addresses, mask, b.of(w), vector) {
            return Err(first_trouble::<N>(env, &addresses, mask, (core.first_warp + w, pc), Access::Store));
        }
        note::<N>(env, &addresses, mask, vector);
    }
    Ok(())
}

/// For the trace. A run of words has a bank for each lane.
#[inline(always)]
fn note<const N: usize>(env: &mut Env<'_>, addresses: &[u32; LANES], mask: u32, vector: impl Vector) {
    if env.trace.wanted && !(N == 4 && is_run::<N>(addresses, vector)) {
        env.trace.shared(&addresses.map(u64::from), mask);
    }
}

/// The addresses; lanes out of the mask get that of its first lane.
#[inline(always)]
fn addresses_of(base: &Row32, offset: u32, mask: u32) -> [u32; LANES] {
    let addresses = each(|lane| base.lane(lane).wrapping_add(offset));
    if mask == u32::MAX {
        return addresses;
    }
    let first = addresses[(mask.trailing_zeros() & 31) as usize];
    blend32(mask, &addresses, &[first; LANES])
}

/// The first lane at fault.
#[cold]
#[inline(never)]
fn first_trouble<const N: usize>(
    env: &Env<'_>,
    addresses: &[u32; LANES],
    mask: u32,
    (warp, pc): (usize, usize),
    access: Access,
) -> Box<Trouble> {
    let size = env.shared.len() as u64;
    let bad = |&lane: &usize| {
        !addresses[lane].is_multiple_of(N as u32) || u64::from(addresses[lane]) + N as u64 > size
    };
    let lane = lanes(mask).find(bad).expect("a row has a place where all of its lanes have one");
    shared_trouble(env, warp, lane, pc, u64::from(addresses[lane]), N as u32, access)
}
