//! Allocation of tensor memory (PTX ISA, "Tensor Memory Allocation", "tcgen05.alloc,
//! tcgen05.dealloc, tcgen05.relinquish_alloc_permit").
//!
//! The CTAs of an SM share its 512 columns. An allocation has a power of two of columns, from 32
//! on, and begins at a multiple of its size. It waits while no such run is free. The columns of a
//! CTA that ends are free again, without a fault: the ISA asks for `dealloc` and says nothing of
//! what happens without it.
//!
//! The two CTAs of a pair get the same columns, and wait for each other: the CTA of even rank
//! chooses, and goes on when the CTA of odd rank has taken them. CTAs of odd rank have columns of
//! their own here, because a pair lies on two SMs of a GPU and may lie on one here.

use super::super::access::{is_shared, write_bytes};
use super::{Outcome, Site, memory_of, of_cta, ranks_of, trouble};
use crate::exec::step::Env;
use partita_device::FaultKind;

/// Columns that are allocated together.
pub const UNIT: usize = 32;
/// Units of an SM.
const UNITS: u32 = 16;

/// The columns of an SM that CTAs have, one bit a unit: first of CTAs that allocate alone and of
/// CTAs of even rank, then of CTAs of odd rank that allocate with their pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claims(pub [u16; 2]);

/// The bits of `count` units from `first` on.
const fn units(first: u32, count: u32) -> u16 {
    (((1_u32 << count) - 1) << first) as u16
}

/// The first run of `count` units that is free.
fn free(taken: u16, count: u32) -> Option<u32> {
    (0..UNITS).step_by(count as usize).find(|&first| taken & units(first, count) == 0)
}

/// The number of units in `columns`; a fault where it is none.
fn count_of(site: Site, what: &str, columns: u64) -> Outcome<u32> {
    let columns = columns & 0xffff_ffff;
    if columns.is_power_of_two() && (32..=512).contains(&columns) {
        return Ok(columns as u32 / UNIT as u32);
    }
    let detail = format!("`{what}` of {columns} columns; 32, 64, 128, 256 and 512 are allowed");
    Err(trouble(FaultKind::IllegalInstruction, site, None, detail))
}

/// What a warp asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The warp.
    pub site: Site,
    /// Where the columns' address goes.
    pub to: u64,
    /// How many.
    pub columns: u64,
}

/// The columns that a CTA of even rank has chosen for its pair.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The warp, lane and instruction that made the offer.
    by: Site,
    /// The first unit, and the number of units.
    runs: Vec<(u32, u32)>,
    /// Whether the other CTA of the pair has them, too.
    is_taken: bool,
}

/// Runs of these numbers of units, where all are free: they are taken then.
fn choose(taken: &mut u16, counts: &[u32]) -> Option<Vec<(u32, u32)>> {
    let mut after = *taken;
    let choose = |&count: &u32| {
        let first = free(after, count)?;
        after |= units(first, count);
        Some((first, count))
    };
    let runs = counts.iter().map(choose).collect::<Option<_>>()?;
    *taken = after;
    Some(runs)
}

/// `alloc` of the warps that execute it together: false where they must wait, and execute it again.
/// No warp has columns then, but the CTA may have made an offer.
pub fn alloc(env: &mut Env<'_>, requests: &[Request], pair: bool) -> Outcome<bool> {
    let Some(&Request { site, .. }) = requests.first() else { return Ok(true) };
    let mut counts = Vec::with_capacity(requests.len());
    for &Request { site, to, columns } in requests {
        counts.push(count_of(site, "tcgen05.alloc", columns)?);
        if !of_cta(env, site)?.memory.may_allocate {
            let detail = "`tcgen05.alloc` after the CTA gave up its permit to allocate".to_owned();
            return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
        }
        if !is_shared(to) {
            let detail = "`tcgen05.alloc` to an address outside shared memory".to_owned();
            return Err(trouble(FaultKind::InvalidAddressSpace, site, Some(to), detail));
        }
    }
    let rank = env.cluster.as_ref().map_or(0, |peers| peers.rank);
    let side = if pair { rank & 1 } else { 0 };
    let memory = &of_cta(env, site)?.memory;
    if memory.units != 0 && memory.side != side {
        let detail = "`tcgen05.alloc` with another `.cta_group` than the columns that the CTA has";
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail.to_owned()));
    }
    let runs = match (pair, side) {
        (false, _) => choose_own(env, site, side, &counts)?,
        (true, 0) => offer(env, site, &counts)?,
        (true, _) => take(env, site, &counts)?,
    };
    let Some(runs) = runs else { return Ok(false) };
    for ((first, _), &Request { site, to, .. }) in runs.into_iter().zip(requests) {
        let address = first * UNIT as u32;
        write_bytes(env, site, to, &address.to_le_bytes())?;
        env.trace.counts.shared_accesses += 1;
    }
    Ok(true)
}

type Runs = Option<Vec<(u32, u32)>>;

/// Runs that the CTA has from now on.
fn choose_own(env: &mut Env<'_>, site: Site, side: usize, counts: &[u32]) -> Outcome<Runs> {
    let tensor = of_cta(env, site)?;
    let runs = choose(&mut tensor.claims.0[side], counts);
    for &(first, count) in runs.iter().flatten() {
        tensor.memory.allocate(units(first, count));
        tensor.memory.side = side;
    }
    Ok(runs)
}

/// The CTA of even rank chooses for its pair, and waits until the other one has the same runs. Two
/// pairs that each had half of their columns would wait for each other if both CTAs chose.
fn offer(env: &mut Env<'_>, site: Site, counts: &[u32]) -> Outcome<Runs> {
    let own = &mut of_cta(env, site)?.memory.offer;
    // The other CTA may have left since it took the columns.
    if let Some(offer) = own.take_if(|offer| offer.by == site && offer.is_taken) {
        return Ok(Some(offer.runs));
    }
    let waits = own.is_some();
    ranks_of(env, site, true)?;
    if waits {
        return Ok(None);
    }
    if let Some(runs) = choose_own(env, site, 0, counts)? {
        of_cta(env, site)?.memory.offer = Some(Offer { by: site, runs, is_taken: false });
    }
    Ok(None)
}

/// The CTA of odd rank takes what its pair offers.
fn take(env: &mut Env<'_>, site: Site, counts: &[u32]) -> Outcome<Runs> {
    let [even, _] = ranks_of(env, site, true)?[..] else { return Ok(None) };
    let offer = memory_of(env, site, even)?.offer.as_ref().filter(|offer| !offer.is_taken);
    let Some(runs) = offer.map(|offer| offer.runs.clone()) else { return Ok(None) };
    let offered: Vec<u32> = runs.iter().map(|&(_, count)| count).collect();
    if offered != counts {
        let columns =
            |units: &[u32]| units.iter().map(|&units| units as usize * UNIT).sum::<usize>();
        let detail = format!(
            "`tcgen05.alloc.cta_group::2` of {} columns; the other CTA of the pair allocates {}",
            columns(counts),
            columns(&offered)
        );
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
    }
    let tensor = of_cta(env, site)?;
    let bits = runs.iter().fold(0, |bits, &(first, count)| bits | units(first, count));
    if tensor.claims.0[1] & bits != 0 {
        return Ok(None);
    }
    tensor.claims.0[1] |= bits;
    tensor.memory.allocate(bits);
    tensor.memory.side = 1;
    if let Some(offer) = &mut memory_of(env, site, even)?.offer {
        offer.is_taken = true;
    }
    Ok(Some(runs))
}

/// `dealloc`
pub fn dealloc(env: &mut Env<'_>, site: Site, address: u64, columns: u64) -> Outcome {
    let count = count_of(site, "tcgen05.dealloc", columns)?;
    let tensor = of_cta(env, site)?;
    let (first, lane) = ((address & 0xffff) as u32 / UNIT as u32, address >> 16 & 0xffff);
    let whole = (address & 0xffff).is_multiple_of(UNIT as u64) && lane == 0;
    let bits = if first + count <= UNITS { units(first, count) } else { 0 };
    if !whole || bits == 0 || tensor.memory.units & bits != bits {
        let detail = format!(
            "`tcgen05.dealloc` of {} columns from lane {lane}, column {} on, which the CTA has not \
             allocated",
            count as usize * UNIT,
            address & 0xffff
        );
        return Err(trouble(FaultKind::IllegalInstruction, site, Some(address), detail));
    }
    tensor.memory.release(bits);
    tensor.claims.0[tensor.memory.side & 1] &= !bits;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_begin_at_multiples_of_their_size() {
        assert_eq!(free(0, 16), Some(0));
        assert_eq!(free(1, 16), None);
        assert_eq!(free(1, 1), Some(1));
        assert_eq!(free(1, 8), Some(8));
        assert_eq!(free(0b10, 4), Some(4));
        assert_eq!(free(u16::MAX, 1), None);
        assert_eq!((units(0, 16), units(15, 1), units(4, 4)), (u16::MAX, 1 << 15, 0xf0));
    }
}
