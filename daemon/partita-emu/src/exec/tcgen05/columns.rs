//! Allocation of tensor memory (PTX ISA, "Tensor Memory Allocation", "tcgen05.alloc,
//! tcgen05.dealloc, tcgen05.relinquish_alloc_permit").
//!
//! The CTAs of an SM share its 512 columns. An allocation has a power of two of columns, from 32
//! on, and begins at a multiple of its size. It waits while no such run is free. The columns of a
//! CTA that ends are free again, without a fault: the ISA asks for `dealloc` and says nothing of
//! what happens without it.
//!
//! The two CTAs of a pair get the same columns: the CTA of even rank chooses, and the CTA of
//! odd rank waits for it. CTAs of odd rank have columns of their own here, because a pair lies on
//! two SMs of a GPU and may lie on one here.

use super::super::access::{is_shared, write_bytes};
use super::memory::TensorMemory;
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

/// What allocations of a CTA change, but the addresses that they write.
#[derive(Clone, Copy, Debug)]
pub struct Allocated {
    claims: Claims,
    units: u16,
    side: usize,
    ahead: [Option<[u8; 2]>; 2],
}

impl Allocated {
    /// As it is now.
    pub fn now(env: &mut Env<'_>, site: Site) -> Outcome<Allocated> {
        let of_other = other_of_pair(env, site).and_then(|other| other.ahead);
        let tensor = of_cta(env, site)?;
        let TensorMemory { units, side, ahead, .. } = *tensor.memory;
        Ok(Allocated { claims: *tensor.claims, units, side, ahead: [ahead, of_other] })
    }

    /// Makes it so again.
    pub fn restore(self, env: &mut Env<'_>, site: Site) -> Outcome {
        let [own, of_other] = self.ahead;
        if let Some(other) = other_of_pair(env, site) {
            other.ahead = of_other;
        }
        let tensor = of_cta(env, site)?;
        *tensor.claims = self.claims;
        (tensor.memory.units, tensor.memory.side) = (self.units, self.side);
        tensor.memory.ahead = own;
        Ok(())
    }
}

/// The tensor memory of the other CTA of the running CTA's pair.
fn other_of_pair<'e>(env: &'e mut Env<'_>, site: Site) -> Option<&'e mut TensorMemory> {
    let rank = env.cluster.as_ref()?.rank;
    memory_of(env, site, Some(rank ^ 1)).ok()
}

/// `alloc`: false where the CTA must wait.
pub fn alloc(env: &mut Env<'_>, site: Site, to: u64, columns: u64, pair: bool) -> Outcome<bool> {
    let count = count_of(site, "tcgen05.alloc", columns)?;
    if !of_cta(env, site)?.memory.may_allocate {
        let detail = "`tcgen05.alloc` after the CTA gave up its permit to allocate".to_owned();
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
    }
    if !is_shared(to) {
        let detail = "`tcgen05.alloc` to an address outside shared memory".to_owned();
        return Err(trouble(FaultKind::InvalidAddressSpace, site, Some(to), detail));
    }
    // The other CTA of the pair may have chosen already.
    let (mut chosen, mut side) = (None, 0);
    if pair {
        ranks_of(env, site, true)?;
        let rank = env.cluster.as_ref().map_or(0, |peers| peers.rank);
        side = rank & 1;
        let other = memory_of(env, site, Some(rank ^ 1))?;
        if let Some([first, of_other]) = other.ahead {
            if u32::from(of_other) != count {
                let detail = format!(
                    "`tcgen05.alloc.cta_group::2` of {columns} columns; the other CTA of the pair \
                     allocates {}",
                    usize::from(of_other) * UNIT
                );
                return Err(trouble(FaultKind::IllegalInstruction, site, None, detail));
            }
            chosen = Some(u32::from(first));
        } else if side == 1 || of_cta(env, site)?.memory.ahead.is_some() {
            // Only CTAs of even rank choose: two pairs that each had half of their columns would
            // wait for each other.
            return Ok(false);
        }
    }
    let tensor = of_cta(env, site)?;
    if tensor.memory.units != 0 && tensor.memory.side != side {
        let detail = "`tcgen05.alloc` with another `.cta_group` than the columns that the CTA has";
        return Err(trouble(FaultKind::IllegalInstruction, site, None, detail.to_owned()));
    }
    let taken = &mut tensor.claims.0[side];
    let found = match chosen {
        Some(first) => Some(first).filter(|&first| *taken & units(first, count) == 0),
        None => free(*taken, count),
    };
    let Some(first) = found else { return Ok(false) };
    let bits = units(first, count);
    *taken |= bits;
    tensor.memory.allocate(bits);
    tensor.memory.side = side;
    if pair {
        match chosen {
            None => tensor.memory.ahead = Some([first as u8, count as u8]),
            Some(_) => {
                let rank = env.cluster.as_ref().map_or(0, |peers| peers.rank);
                memory_of(env, site, Some(rank ^ 1))?.ahead = None;
            }
        }
    }
    let address = first * UNIT as u32;
    write_bytes(env, site, to, &address.to_le_bytes())?;
    env.trace.counts.shared_accesses += 1;
    Ok(true)
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
