//! `ld.global` and `st.global` of 32 and 64 bits: the most frequent accesses.

use super::row::{Addresses, Word, find, gather, is_run, put, scatter, shapes, write};
use super::trouble::{Access, global_trouble};
use super::{Outcome, host, load_kind, stray};
use crate::dispatch::vector::{Shape, Vector};
use crate::exec::inst::Inst;
use crate::exec::registers::{Rows, Width};
use crate::exec::rows::{LANES, Row, Row64, blend64, each, lanes};
use crate::exec::scratch::{self, readable};
use crate::exec::state::Hot;
use crate::exec::step::{Env, Trouble};
use crate::exec::trace::AccessKind;

/// `ld.global` of 32 or 64 bits into a row of that width.
#[inline(always)]
pub fn load_global<W: Width>(
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

/// `st.global` of 32 or 64 bits from a row of that width.
#[inline(always)]
pub fn store_global<W: Width>(
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
    if env.ahead.is_some() {
        return load_ahead::<N, T, W>(core, i, env, pc, vector);
    }
    let (masks, base, d) = (core.active(i), core.rows64(i.a), T::operand(core, i.d));
    let kind = load_kind(i);
    for w in 0..core.warps() {
        let mask = masks[w];
        if mask != 0 {
            env.trace.counts.global_loads += 1;
            let at = At { offset: i.imm, mask, pc, warp: core.first_warp + w };
            load::<N, T, false>(env, base.of(w), at, kind, d.of(w), vector)?;
        }
    }
    Ok(())
}

/// The loads of a CTA that runs ahead: what it has stored comes before what memory holds.
#[inline(never)]
fn load_ahead<const N: usize, T: Word<N>, W: Width>(
    core: &Hot<'_, W>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
    vector: impl Vector,
) -> Outcome {
    let (masks, base, d) = (core.active(i), core.rows64(i.a), T::operand(core, i.d));
    let has_stored = env.ahead.as_ref().is_some_and(|ahead| !ahead.scratch.is_empty());
    for w in 0..core.warps() {
        let mask = masks[w];
        if mask != 0 {
            env.trace.counts.global_loads += 1;
            let at = At { offset: i.imm, mask, pc, warp: core.first_warp + w };
            // The destination may be the row of addresses.
            let addresses = has_stored.then(|| addresses_of(base.of(w), at));
            load::<N, T, true>(env, base.of(w), at, load_kind(i), d.of(w), vector)?;
            if let Some(addresses) = addresses {
                overlay::<N, T>(env, &addresses, at, d.of(w));
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
    if env.ahead.is_some() {
        return store_ahead::<N, T, W>(core, i, env, pc);
    }
    let (masks, base, b) = (core.active(i), core.rows64(i.a), T::operand(core, i.b));
    for w in 0..core.warps() {
        let mask = masks[w];
        if mask != 0 {
            env.trace.counts.global_stores += 1;
            let at = At { offset: i.imm, mask, pc, warp: core.first_warp + w };
            store(env, base.of(w), at, b.of(w), vector)?;
        }
    }
    Ok(())
}

/// The stores of a CTA that runs ahead.
#[inline(never)]
fn store_ahead<const N: usize, T: Word<N>, W: Width>(
    core: &Hot<'_, W>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
) -> Outcome {
    let (masks, base, b) = (core.active(i), core.rows64(i.a), T::operand(core, i.b));
    for w in 0..core.warps() {
        let mask = masks[w];
        if mask != 0 {
            env.trace.counts.global_stores += 1;
            let at = At { offset: i.imm, mask, pc, warp: core.first_warp + w };
            keep::<N, T>(env, &addresses_of(base.of(w), at), at, b.of(w))?;
        }
    }
    Ok(())
}

/// The lanes of an access, and the access's place in the program.
#[derive(Clone, Copy)]
struct At {
    offset: i64,
    mask: u32,
    pc: usize,
    warp: usize,
}

/// The lanes' addresses. Lanes outside the mask get the address of the mask's first lane.
#[inline(always)]
fn addresses_of(base: &Row64, at: At) -> [u64; LANES] {
    let addresses = each(|lane| base.at(lane, at.offset));
    if at.mask == u32::MAX {
        return addresses;
    }
    let first = addresses[(at.mask.trailing_zeros() & 31) as usize];
    blend64(at.mask, &addresses, &[first; LANES])
}

#[inline(always)]
fn load<const N: usize, T: Word<N>, const AHEAD: bool>(
    env: &mut Env<'_>,
    base: &Row64,
    at: At,
    kind: AccessKind,
    to: &Row<T>,
    vector: impl Vector,
) -> Outcome {
    let memory = match &env.ahead {
        Some(ahead) if AHEAD => ahead.memory,
        _ => &*env.memory,
    };
    let shapes = shapes::<N>(base, vector);
    let first = base.at(0, at.offset);
    if is_run::<N>(base, shapes) {
        let end = first.wrapping_add((N * LANES) as u64);
        if let Some(bytes) = env.grants.bytes(memory, at.pc, first, end)
            && let Some(words) = find(bytes, first, base, at.offset, shapes)
        {
            put(to, at.mask, words, vector);
            env.trace.range(kind, first, end, at.pc);
            return Ok(());
        }
    } else if !shapes.contains(&Shape::Scattered)
        && let Some((start, bytes)) = env.grants.around(memory, at.pc, first)
        && let Some(words) = find(bytes, start, base, at.offset, shapes)
    {
        if env.trace.wanted {
            env.trace.scattered(kind, &addresses_of(base, at), at.mask, N as u32, at.pc);
        }
        put(to, at.mask, words, vector);
        return Ok(());
    }
    let addresses = addresses_of(base, at);
    let around = env.grants.around(memory, at.pc, addresses[0]);
    let read = around.is_some_and(|(start, bytes)| {
        gather(bytes, start, &Row::of(addresses), at.mask, to, vector)
    });
    if !read {
        T::put(to, at.mask, &load_each(env, &addresses, at)?);
    }
    if env.trace.wanted {
        env.trace.scattered(kind, &addresses, at.mask, N as u32, at.pc);
    }
    Ok(())
}

/// Loads lane by lane. The access spans several allocations, or a lane faults.
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
        let found = env.grants.bytes(readable(&env.ahead, env.memory), at.pc, address, end);
        match found
            .filter(|_| address.is_multiple_of(N as u64))
            .and_then(|bytes| bytes.first_chunk::<N>())
        {
            Some(bytes) => values[lane] = T::from_bytes(*bytes),
            None if address.is_multiple_of(N as u64) => {
                let mut bytes = [0; N];
                if !host::read(env, address, &mut bytes)
                    && !stray::read(env, (at.warp, lane, at.pc), address, &mut bytes)
                {
                    return Err(global_trouble(
                        env,
                        at.warp,
                        lane,
                        at.pc,
                        address,
                        N as u32,
                        Access::Load,
                    ));
                }
                values[lane] = T::from_bytes(bytes);
            }
            None => {
                return Err(global_trouble(
                    env,
                    at.warp,
                    lane,
                    at.pc,
                    address,
                    N as u32,
                    Access::Load,
                ));
            }
        }
    }
    Ok(values)
}

/// Puts what a CTA that runs ahead has stored over what it has loaded.
#[inline(never)]
fn overlay<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    addresses: &[u64; LANES],
    at: At,
    to: &Row<T>,
) {
    for lane in lanes(at.mask) {
        let mut bytes = to.lane(lane).to_bytes();
        if scratch::overlay(env, at.pc, addresses[lane], &mut bytes) {
            to.set_lane(lane, T::from_bytes(bytes));
        }
    }
}

/// Keeps what a warp of a CTA stores that runs ahead.
fn keep<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    addresses: &[u64; LANES],
    at: At,
    values: &Row<T>,
) -> Outcome {
    let first = addresses[0];
    let is_run = at.mask == u32::MAX
        && first.is_multiple_of(N as u64)
        && addresses
            .iter()
            .zip(0_u64..)
            .all(|(&at, lane)| at == first.wrapping_add(lane * N as u64));
    if is_run {
        let mut bytes = [0; 8 * LANES];
        for (lane, word) in bytes.chunks_exact_mut(N).take(LANES).enumerate() {
            word.copy_from_slice(&values.lane(lane).to_bytes());
        }
        if scratch::store(env, at.pc, first, &bytes[..N * LANES]) {
            return Ok(());
        }
    }
    for lane in lanes(at.mask) {
        let address = addresses[lane];
        let bytes = values.lane(lane).to_bytes();
        if !address.is_multiple_of(N as u64) || !scratch::store(env, at.pc, address, &bytes) {
            let (bytes, access) = (N as u32, Access::Store);
            return Err(global_trouble(env, at.warp, lane, at.pc, address, bytes, access));
        }
    }
    Ok(())
}

#[inline(always)]
fn store<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row64,
    at: At,
    values: &Row<T>,
    vector: impl Vector,
) -> Outcome {
    if at.mask == u32::MAX {
        let shapes = shapes::<N>(base, vector);
        let first = base.at(0, at.offset);
        if is_run::<N>(base, shapes) {
            let end = first.wrapping_add((N * LANES) as u64);
            if let Some(bytes) = env.grants.bytes_mut(env.memory, at.pc, first, end)
                && write(bytes, first, base, at.offset, shapes, values, vector)
            {
                env.trace.range(AccessKind::Store, first, end, at.pc);
                return Ok(());
            }
        } else if shapes == [Shape::Run; 2]
            && let Some((start, bytes)) = env.grants.around_mut(env.memory, at.pc, first)
            && write(bytes, start, base, at.offset, shapes, values, vector)
        {
            if env.trace.wanted {
                env.trace.scattered(
                    AccessKind::Store,
                    &addresses_of(base, at),
                    at.mask,
                    N as u32,
                    at.pc,
                );
            }
            return Ok(());
        }
    }
    let addresses = addresses_of(base, at);
    let around = env.grants.around_mut(env.memory, at.pc, addresses[0]);
    let stored = around.is_some_and(|(start, bytes)| {
        scatter(bytes, start, &Row::of(addresses), at.mask, values, vector)
    });
    if !stored {
        store_each(env, &addresses, at, values)?;
    }
    if env.trace.wanted {
        env.trace.scattered(AccessKind::Store, &addresses, at.mask, N as u32, at.pc);
    }
    Ok(())
}

/// Stores lane by lane after a check of all lanes. The access spans several allocations, or a lane
/// faults.
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
                && !host::read(env, address, &mut [0; N])
                && !stray::may_write(env, address, N as u64)
        {
            return Err(global_trouble(
                env,
                at.warp,
                lane,
                at.pc,
                address,
                N as u32,
                Access::Store,
            ));
        }
    }
    for lane in lanes(at.mask) {
        let address = addresses[lane];
        if let Some(bytes) = env.grants.bytes_mut(env.memory, at.pc, address, address + N as u64) {
            bytes.copy_from_slice(&values.lane(lane).to_bytes());
        } else {
            let (site, bytes) = ((at.warp, lane, at.pc), values.lane(lane).to_bytes());
            let written = host::write(env, address, &bytes)
                || stray::write(env, site, address, &bytes, Access::Store);
            debug_assert!(written, "checked above");
        }
    }
    Ok(())
}
