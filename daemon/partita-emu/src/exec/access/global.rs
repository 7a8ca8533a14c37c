//! `ld.global` and `st.global` of 32 and 64 bits, the accesses that programs make most.

use super::row::{Word, copy_in, copy_out, gather, is_run, scatter};
use super::trouble::{Access, global_trouble};
use super::{Outcome, load_kind};
use crate::dispatch::vector::Vector;
use crate::exec::inst::Inst;
use crate::exec::rows::{LANES, Row, Row64, blend64, each, lanes};
use crate::exec::state::Core;
use crate::exec::step::{Env, Trouble};
use crate::exec::trace::AccessKind;

/// `ld.global` of 32 or 64 bits into a row of that width.
#[inline(always)]
pub fn load_global(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize, vector: impl Vector) -> Outcome {
    if i.aux & 8 != 0 {
        load_rows::<8, u64>(core, i, env, pc, vector)
    } else {
        load_rows::<4, u32>(core, i, env, pc, vector)
    }
}

/// `st.global` of 32 or 64 bits from a row of that width.
#[inline(always)]
pub fn store_global(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize, vector: impl Vector) -> Outcome {
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
    let (masks, base, d) = (core.active(i), core.frame.rows64(i.a), T::operand(&core.frame, i.d));
    let kind = load_kind(i);
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask != 0 {
            env.trace.counts.global_loads += 1;
            let at = At { offset: i.imm as u64, mask, pc, warp: core.first_warp + w };
            T::put(d.of(w), mask, &load(env, base.of(w), at, kind, vector)?);
        }
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
    let (masks, base, b) = (core.active(i), core.frame.rows64(i.a), T::operand(&core.frame, i.b));
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask != 0 {
            env.trace.counts.global_stores += 1;
            let at = At { offset: i.imm as u64, mask, pc, warp: core.first_warp + w };
            store(env, base.of(w), at, b.of(w), vector)?;
        }
    }
    Ok(())
}

/// Who accesses, and where.
#[derive(Clone, Copy)]
struct At {
    offset: u64,
    mask: u32,
    pc: usize,
    warp: usize,
}

/// Lanes out of the mask get the address of its first lane.
#[inline(always)]
fn fill(addresses: &mut [u64; LANES], mask: u32) {
    if mask != u32::MAX {
        let first = addresses[(mask.trailing_zeros() & 31) as usize];
        *addresses = blend64(mask, addresses, &[first; LANES]);
    }
}

#[inline(always)]
fn load<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row64,
    at: At,
    kind: AccessKind,
    vector: impl Vector,
) -> Result<[T; LANES], Box<Trouble>> {
    let mut addresses = each(|lane| base.lane(lane).wrapping_add(at.offset));
    let first = addresses[0];
    let end = first.wrapping_add((N * LANES) as u64);
    if is_run::<N>(&addresses, vector)
        && first.is_multiple_of(N as u64)
        && let Some(bytes) = env.grants.bytes(env.memory, at.pc, first, end)
    {
        env.trace.range(kind, first, end, at.pc);
        return Ok(copy_in(bytes));
    }
    fill(&mut addresses, at.mask);
    let around = env.grants.around(env.memory, at.pc, addresses[0]);
    let values = match around.and_then(|(start, bytes)| gather(bytes, start, &addresses, vector)) {
        Some(values) => values,
        None => load_each(env, &addresses, at)?,
    };
    env.trace.scattered(kind, &addresses, at.mask, N as u32, at.pc);
    Ok(values)
}

/// Lane by lane: several allocations, or a lane at fault.
#[cold]
#[inline(never)]
fn load_each<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    addresses: &[u64; LANES],
    at: At,
) -> Result<[T; LANES], Box<Trouble>> {
    let mut values = [T::default(); LANES];
    for lane in lanes(at.mask) {
        let address = addresses[lane];
        let end = address.wrapping_add(N as u64);
        let found = env.grants.bytes(env.memory, at.pc, address, end);
        match found.filter(|_| address.is_multiple_of(N as u64)).and_then(|bytes| bytes.first_chunk::<N>()) {
            Some(bytes) => values[lane] = T::from_bytes(*bytes),
            None => return Err(global_trouble(env, at.warp, lane, at.pc, address, N as u32, Access::Load)),
        }
    }
    Ok(values)
}

#[inline(always)]
fn store<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row64,
    at: At,
    values: &Row<T>,
    vector: impl Vector,
) -> Outcome {
    let mut addresses = each(|lane| base.lane(lane).wrapping_add(at.offset));
    let first = addresses[0];
    let end = first.wrapping_add((N * LANES) as u64);
    if at.mask == u32::MAX
        && is_run::<N>(&addresses, vector)
        && first.is_multiple_of(N as u64)
        && let Some(bytes) = env.grants.bytes_mut(env.memory, at.pc, first, end)
    {
        copy_out(bytes, values);
        env.trace.range(AccessKind::Store, first, end, at.pc);
        return Ok(());
    }
    fill(&mut addresses, at.mask);
    let around = env.grants.around_mut(env.memory, at.pc, addresses[0]);
    let stored =
        around.is_some_and(|(start, bytes)| scatter(bytes, start, &addresses, at.mask, values, vector));
    if !stored {
        store_each(env, &addresses, at, values)?;
    }
    env.trace.scattered(AccessKind::Store, &addresses, at.mask, N as u32, at.pc);
    Ok(())
}

/// Lane by lane, after all have been checked: several allocations, or a lane at fault.
#[cold]
#[inline(never)]
fn store_each<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    addresses: &[u64; LANES],
    at: At,
    values: &Row<T>,
) -> Outcome {
    for lane in lanes(at.mask) {
        let address = addresses[lane];
        let end = address.wrapping_add(N as u64);
        if !address.is_multiple_of(N as u64)
            || env.grants.bytes_mut(env.memory, at.pc, address, end).is_none()
        {
            return Err(global_trouble(env, at.warp, lane, at.pc, address, N as u32, Access::Store));
        }
    }
    for lane in lanes(at.mask) {
        let address = addresses[lane];
        if let Some(bytes) = env.grants.bytes_mut(env.memory, at.pc, address, address + N as u64) {
            bytes.copy_from_slice(&values.lane(lane).to_bytes());
        }
    }
    Ok(())
}
