//! `ld.shared` and `st.shared` of 32 and 64 bits at 32-bit addresses.

use super::Outcome;
use super::row::{Word, find, gather, is_run, put, scatter, shapes, write};
use super::trouble::{Access, shared_trouble};
use crate::dispatch::vector::{Shape, Vector};
use crate::exec::inst::Inst;
use crate::exec::registers::{Rows, Width};
use crate::exec::rows::{LANES, Row, Row32, blend32, each, lanes};
use crate::exec::state::Hot;
use crate::exec::step::{Env, Trouble};

/// `ld.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn load_shared<W: Width>(
    core: &Hot<'_, W>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    if i.aux & 8 != 0 {
        load_rows::<8, u64, W>(core, i, env, pc, vector)
    } else {
        load_rows::<4, u32, W>(core, i, env, pc, vector)
    }
}

/// `st.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn store_shared<W: Width>(
    core: &Hot<'_, W>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    if i.aux & 8 != 0 {
        store_rows::<8, u64, W>(core, i, env, pc, vector)
    } else {
        store_rows::<4, u32, W>(core, i, env, pc, vector)
    }
}

#[inline(always)]
fn load_rows<const N: usize, T: Word<N>, W: Width>(
    core: &Hot<'_, W>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    let (masks, base, d) = (core.active(i), core.rows32(i.a), T::operand(core, i.d));
    for w in 0..core.warps() {
        let (mask, base) = (masks[w], base.of(w));
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let shapes = shapes::<N>(base, vector);
        if env.trace.wanted && !(N == 4 && is_run::<N>(base, shapes)) {
            note::<N>(env, base, i.imm as u32, mask, shapes);
        }
        match find(env.shared, env.own_window, base, i.imm, shapes) {
            Some(words) => put(d.of(w), mask, words, vector),
            None => {
                let at = (i.imm as u32, mask, core.first_warp + w, pc);
                load_scattered(env, base, at, d.of(w), vector)?;
            }
        }
    }
    Ok(())
}

#[inline(always)]
fn store_rows<const N: usize, T: Word<N>, W: Width>(
    core: &Hot<'_, W>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    let (masks, base, b) = (core.active(i), core.rows32(i.a), T::operand(core, i.b));
    for w in 0..core.warps() {
        let (mask, base) = (masks[w], base.of(w));
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let shapes = shapes::<N>(base, vector);
        if mask != u32::MAX
            || !write(env.shared, env.own_window, base, i.imm, shapes, b.of(w), vector)
        {
            store_scattered(
                env,
                base,
                (i.imm as u32, mask, core.first_warp + w, pc),
                b.of(w),
                vector,
            )?;
        }
        if env.trace.wanted && !(N == 4 && is_run::<N>(base, shapes)) {
            note::<N>(env, base, i.imm as u32, mask, shapes);
        }
    }
    Ok(())
}

/// The offset of the addresses, the lanes, the warp, and the instruction.
type At = (u32, u32, usize, usize);

#[inline(always)]
fn load_scattered<const N: usize, T: Word<N>>(
    env: &Env<'_>,
    base: &Row32,
    (offset, mask, warp, pc): At,
    to: &Row<T>,
    vector: impl Vector,
) -> Outcome {
    let addresses = addresses_of(base, offset.wrapping_sub(env.own_window as u32), mask);
    if gather(env.shared, 0, &addresses, mask, to, vector) {
        return Ok(());
    }
    Err(first_trouble::<N>(env, &addresses, mask, (warp, pc), Access::Load))
}

#[inline(always)]
fn store_scattered<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row32,
    (offset, mask, warp, pc): At,
    values: &Row<T>,
    vector: impl Vector,
) -> Outcome {
    let addresses = addresses_of(base, offset.wrapping_sub(env.own_window as u32), mask);
    if scatter(env.shared, 0, &addresses, mask, values, vector) {
        return Ok(());
    }
    Err(first_trouble::<N>(env, &addresses, mask, (warp, pc), Access::Store))
}

/// Records the access in the trace. A run of words needs no record, because each lane has its own
/// bank.
#[inline(always)]
fn note<const N: usize>(
    env: &mut Env<'_>,
    base: &Row32,
    offset: u32,
    mask: u32,
    shapes: [Shape; 2],
) {
    if N == 4 && mask == u32::MAX && !shapes.contains(&Shape::Scattered) {
        let words = |half: usize| {
            let first = base.lane(half * LANES / 2).wrapping_add(offset) / 4;
            (first, if shapes[half] == Shape::Run { LANES as u32 / 2 } else { 1 })
        };
        env.trace.shared_pieces(words(0), words(1));
        return;
    }
    note_each(env, base, offset, mask);
}

#[inline(never)]
fn note_each(env: &mut Env<'_>, base: &Row32, offset: u32, mask: u32) {
    let addresses = each(|lane| u64::from(base.lane(lane).wrapping_add(offset)));
    env.trace.shared(&addresses, mask);
}

/// The lanes' addresses plus `offset`. Lanes outside the mask get the address of the mask's first
/// lane.
#[inline(always)]
fn addresses_of(base: &Row32, offset: u32, mask: u32) -> Row32 {
    let addresses = each(|lane| base.lane(lane).wrapping_add(offset));
    if mask == u32::MAX {
        return Row::of(addresses);
    }
    let first = addresses[(mask.trailing_zeros() & 31) as usize];
    Row::of(blend32(mask, &addresses, &[first; LANES]))
}

/// The first lane that faults. The addresses count from the CTA's own window on.
#[cold]
#[inline(never)]
fn first_trouble<const N: usize>(
    env: &Env<'_>,
    addresses: &Row32,
    mask: u32,
    (warp, pc): (usize, usize),
    access: Access,
) -> Box<Trouble> {
    let size = env.shared.len() as u64;
    let bad = |&lane: &usize| {
        !addresses.lane(lane).is_multiple_of(N as u32)
            || u64::from(addresses.lane(lane)) + N as u64 > size
    };
    let lane = lanes(mask).find(bad).expect("a row has a place where all of its lanes have one");
    let address = addresses.lane(lane).wrapping_add(env.own_window as u32);
    shared_trouble(env, warp, lane, pc, u64::from(address), N as u32, access)
}
