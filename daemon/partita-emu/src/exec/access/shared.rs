//! `ld.shared` and `st.shared` of 32 and 64 bits at 32-bit addresses.

use super::Outcome;
use super::row::{Word, copy_in, copy_out, gather, is_consecutive32, places, scatter};
use super::trouble::{Access, shared_trouble};
use crate::exec::inst::Inst;
use crate::exec::rows::{LANES, Row, Row32, each, lanes};
use crate::exec::state::Core;
use crate::exec::step::{Env, Trouble};

/// `ld.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn load_shared(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let (masks, base, offset) = (core.active(i), core.frame.rows32(i.a), i.imm as u32);
    let wide = i.aux & 8 != 0;
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let who = (core.first_warp + w, pc);
        if wide {
            let values = load::<8, u64>(env, base.of(w), offset, mask, who)?;
            core.row64(i.d, w).put(mask, &values);
        } else {
            let values = load::<4, u32>(env, base.of(w), offset, mask, who)?;
            core.row32(i.d, w).put(mask, &values);
        }
    }
    Ok(())
}

/// `st.shared` of 32 or 64 bits with a 32-bit address.
#[inline(always)]
pub fn store_shared(core: &Core<'_>, i: &Inst, env: &mut Env<'_>, pc: usize) -> Outcome {
    let (masks, base, offset) = (core.active(i), core.frame.rows32(i.a), i.imm as u32);
    let wide = i.aux & 8 != 0;
    for w in 0..core.warps.min(masks.len()) {
        let mask = masks[w];
        if mask == 0 {
            continue;
        }
        env.trace.counts.shared_accesses += 1;
        let who = (core.first_warp + w, pc);
        if wide {
            store::<8, u64>(env, base.of(w), offset, mask, who, core.row64(i.b, w))?;
        } else {
            store::<4, u32>(env, base.of(w), offset, mask, who, core.row32(i.b, w))?;
        }
    }
    Ok(())
}

/// The addresses; lanes out of the mask get that of its first lane.
#[inline(always)]
fn addresses_of(base: &Row32, offset: u32, mask: u32) -> [u64; LANES] {
    if mask == u32::MAX {
        return each(|lane| u64::from(base.lane(lane).wrapping_add(offset)));
    }
    let first = base.lane((mask.trailing_zeros() & 31) as usize);
    let addresses = crate::exec::rows::blend32(mask, &base.get(), &[first; LANES]);
    each(|lane| u64::from(addresses[lane].wrapping_add(offset)))
}

#[inline(always)]
fn load<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row32,
    offset: u32,
    mask: u32,
    who: (usize, usize),
) -> Result<[T; LANES], Box<Trouble>> {
    let first = base.lane(0).wrapping_add(offset);
    if is_consecutive32::<N>(base)
        && first.is_multiple_of(N as u32)
        && let Some(bytes) = env.shared.get(first as usize..).and_then(|bytes| bytes.get(..N * LANES))
    {
        return Ok(copy_in(bytes));
    }
    let addresses = addresses_of(base, offset, mask);
    let Some(places) = places::<N>(&addresses, 0, env.shared.len()) else {
        return Err(first_trouble::<N>(env, &addresses, mask, who, Access::Load));
    };
    if env.trace.wanted {
        env.trace.shared(&addresses, mask);
    }
    Ok(gather(env.shared, &places))
}

#[inline(always)]
fn store<const N: usize, T: Word<N>>(
    env: &mut Env<'_>,
    base: &Row32,
    offset: u32,
    mask: u32,
    who: (usize, usize),
    values: &Row<T>,
) -> Outcome {
    let first = base.lane(0).wrapping_add(offset);
    if mask == u32::MAX
        && is_consecutive32::<N>(base)
        && first.is_multiple_of(N as u32)
        && let Some(bytes) = env.shared.get_mut(first as usize..).and_then(|bytes| bytes.get_mut(..N * LANES))
    {
        copy_out(bytes, values);
        return Ok(());
    }
    let addresses = addresses_of(base, offset, mask);
    let Some(places) = places::<N>(&addresses, 0, env.shared.len()) else {
        return Err(first_trouble::<N>(env, &addresses, mask, who, Access::Store));
    };
    if env.trace.wanted {
        env.trace.shared(&addresses, mask);
    }
    scatter(env.shared, &places, mask, values);
    Ok(())
}

/// The first lane at fault.
#[cold]
#[inline(never)]
fn first_trouble<const N: usize>(
    env: &Env<'_>,
    addresses: &[u64; LANES],
    mask: u32,
    (warp, pc): (usize, usize),
    access: Access,
) -> Box<Trouble> {
    let size = env.shared.len() as u64;
    let bad = |&lane: &usize| !addresses[lane].is_multiple_of(N as u64) || addresses[lane] + N as u64 > size;
    let lane = lanes(mask).find(bad).expect("a row has a place where all of its lanes have one");
    shared_trouble(env, warp, lane, pc, addresses[lane], N as u32, access)
}
