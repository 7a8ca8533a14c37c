//! `ld.global` and `st.global` of 32 and 64 bits, the accesses that programs make most.

use super::row::{Word, addresses_of, copy_in, copy_out, gather, is_consecutive, places, scatter};
use super::trouble::{Access, global_trouble};
use super::{Outcome, load_kind};
use crate::exec::inst::Inst;
use crate::exec::rows::{LANES, Row, Row64, lanes};
use crate::exec::state::Core;
use crate::exec::step::{Env, Trouble};
use crate::exec::trace::AccessKind;

/// `ld.global` of 32 or 64 bits into a row of that width.
#[inline(always)]
pub fn load_global(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let (masks, base, kind) = (core.active(i), core.frame.rows64(i.a), load_kind(i));
    let wide = i.aux & 8 != 0;
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask == 0 {
            continue;
        }
        env.trace.counts.global_loads += 1;
        let at = At { offset: i.imm as u64, mask, pc, warp: core.first_warp + w };
        if wide {
            let values = load::<8, u64>(env, base.of(w), at, kind)?;
            core.row64(i.d, w).put(mask, &values);
        } else {
            let values = load::<4, u32>(env, base.of(w), at, kind)?;
            core.row32(i.d, w).put(mask, &values);
        }
    }
    Ok(())
}

/// `st.global` of 32 or 64 bits from a row of that width.
#[inline(always)]
pub fn store_global(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let (masks, base) = (core.active(i), core.frame.rows64(i.a));
    let wide = i.aux & 8 != 0;
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask == 0 {
            continue;
        }
        env.trace.counts.global_stores += 1;
        let at = At { offset: i.imm as u64, mask, pc, warp: core.first_warp + w };
        if wide {
            store::<8, u64>(env, base.of(w), at, core.row64(i.b, w))?;
        } else {
            store::<4, u32>(env, base.of(w), at, core.row32(i.b, w))?;
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

#[inline(always)]
fn load<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row64,
    at: At,
    kind: AccessKind,
) -> Result<[T; LANES], Box<Trouble>> {
    let first = base.lane(0).wrapping_add(at.offset);
    let end = first.wrapping_add((N * LANES) as u64);
    if is_consecutive::<N>(base)
        && first.is_multiple_of(N as u64)
        && let Some(bytes) = env.grants.bytes(env.memory, at.pc, first, end)
    {
        env.trace.range(kind, first, end, at.pc);
        return Ok(copy_in(bytes));
    }
    let addresses = addresses_of(base, at.offset, at.mask);
    let values = match env.grants.around(env.memory, at.pc, addresses[0]) {
        Some((start, bytes)) if let Some(places) = places::<N>(&addresses, start, bytes.len()) => {
            gather(bytes, &places)
        }
        _ => load_each(env, &addresses, at)?,
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
fn store<const N: usize, T: Word<N>>(env: &mut Env<'_>, base: &Row64, at: At, values: &Row<T>) -> Outcome {
    let first = base.lane(0).wrapping_add(at.offset);
    let end = first.wrapping_add((N * LANES) as u64);
    if at.mask == u32::MAX
        && is_consecutive::<N>(base)
        && first.is_multiple_of(N as u64)
        && let Some(bytes) = env.grants.bytes_mut(env.memory, at.pc, first, end)
    {
        copy_out(bytes, values);
        env.trace.range(AccessKind::Store, first, end, at.pc);
        return Ok(());
    }
    let addresses = addresses_of(base, at.offset, at.mask);
    match env.grants.around_mut(env.memory, at.pc, addresses[0]) {
        Some((start, bytes)) if let Some(places) = places::<N>(&addresses, start, bytes.len()) => {
            scatter(bytes, &places, at.mask, values);
        }
        _ => store_each(env, &addresses, at, values)?,
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
