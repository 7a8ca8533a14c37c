//! Rows of 32 lanes: the unit in which the executor reads, computes and writes.
//!
//! Every loop here runs over exactly 32 lanes without a branch. The compiler turns it into a few
//! vector instructions of the width that the caller was compiled for. Lanes are cells: an
//! instruction may read and write the same row without a bounds check for each lane.

use std::cell::Cell;

/// Lanes of a warp.
pub const LANES: usize = 32;

/// 32 lanes of a register.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Row<T: Copy>([Cell<T>; LANES]);

/// 32 lanes of 32 bits.
pub type Row32 = Row<u32>;

/// 32 lanes of 64 bits.
pub type Row64 = Row<u64>;

impl<T: Copy> Row<T> {
    /// A row that has `value` in all lanes.
    #[must_use]
    pub fn filled(value: T) -> Self {
        Row(std::array::from_fn(|_| Cell::new(value)))
    }

    /// A row of given lanes.
    #[inline(always)]
    #[must_use]
    pub fn of(lanes: [T; LANES]) -> Self {
        Row(lanes.map(Cell::new))
    }

    /// One lane.
    #[inline(always)]
    #[must_use]
    pub fn lane(&self, lane: usize) -> T {
        self.0[lane].get()
    }

    /// Half of the lanes: 0 is the lower one.
    #[inline(always)]
    #[must_use]
    pub fn half(&self, half: usize) -> &[Cell<T>; LANES / 2] {
        &self.0.as_chunks().0[half]
    }

    /// Writes one lane.
    #[inline(always)]
    pub fn set_lane(&self, lane: usize, value: T) {
        self.0[lane].set(value);
    }

    /// All lanes.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> [T; LANES] {
        let mut lanes = [self.0[0].get(); LANES];
        for lane in 0..LANES {
            lanes[lane] = self.0[lane].get();
        }
        lanes
    }

    /// Writes all lanes.
    #[inline(always)]
    pub fn set(&self, value: &[T; LANES]) {
        for lane in 0..LANES {
            self.0[lane].set(value[lane]);
        }
    }
}

const BITS: [u32; LANES] = {
    let mut bits = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

impl Row<u32> {
    /// Writes the lanes that `mask` names.
    #[inline(always)]
    pub fn put(&self, mask: u32, value: &[u32; LANES]) {
        if mask == u32::MAX {
            self.set(value);
        } else {
            self.set(&blend32(mask, value, &self.get()));
        }
    }
}

impl Row<u64> {
    /// Writes the lanes that `mask` names.
    #[inline(always)]
    pub fn put(&self, mask: u32, value: &[u64; LANES]) {
        if mask == u32::MAX {
            self.set(value);
        } else {
            self.set(&blend64(mask, value, &self.get()));
        }
    }
}

/// The lanes that `mask` names from `yes`, the others from `no`.
#[inline(always)]
#[must_use]
pub fn blend32(mask: u32, yes: &[u32; LANES], no: &[u32; LANES]) -> [u32; LANES] {
    let mut out = [0; LANES];
    for lane in 0..LANES {
        let keep = if mask & BITS[lane] != 0 { u32::MAX } else { 0 };
        out[lane] = (yes[lane] & keep) | (no[lane] & !keep);
    }
    out
}

/// The lanes that `mask` names from `yes`, the others from `no`.
#[inline(always)]
#[must_use]
pub fn blend64(mask: u32, yes: &[u64; LANES], no: &[u64; LANES]) -> [u64; LANES] {
    let mask = u64::from(mask);
    let mut out = [0; LANES];
    for lane in 0..LANES {
        let bit = 1_u64 << lane;
        let keep = if mask & bit != 0 { u64::MAX } else { 0 };
        out[lane] = (yes[lane] & keep) | (no[lane] & !keep);
    }
    out
}

/// A row of lanes computed one by one.
#[inline(always)]
#[must_use]
pub fn each<T: Copy + Default>(f: impl Fn(usize) -> T) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    for lane in 0..LANES {
        out[lane] = f(lane);
    }
    out
}

/// The bits of lanes for which `f` holds, which compares 32 bits.
#[inline(always)]
#[must_use]
pub fn lanes_where(f: impl Fn(usize) -> bool) -> u32 {
    let mut bits = [0_u32; LANES];
    for lane in 0..LANES {
        bits[lane] = if f(lane) { BITS[lane] } else { 0 };
    }
    bits.iter().fold(0, |mask, bits| mask | bits)
}

/// The bits of lanes for which `f` holds, which compares 64 bits.
#[inline(always)]
#[must_use]
pub fn lanes_where_wide(f: impl Fn(usize) -> bool) -> u32 {
    let mut bits = [0_u64; LANES];
    for lane in 0..LANES {
        bits[lane] = if f(lane) { 1 << lane } else { 0 };
    }
    bits.iter().fold(0, |mask, bits| mask | bits) as u32
}

/// The lanes of a mask, lowest first.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_name_lanes() {
        for mask in [0, 1, 0x8000_0000, 0xdead_beef, u32::MAX, 0x0102_0408] {
            assert_eq!(lanes_where(|lane| mask >> lane & 1 == 1), mask);
            assert_eq!(lanes_where_wide(|lane| mask >> lane & 1 == 1), mask);
            assert_eq!(lanes(mask).fold(0_u32, |sum, lane| sum | 1 << lane), mask);
            let (row, wide) = (Row32::filled(7), Row64::filled(7));
            row.put(mask, &each(|lane| lane as u32));
            wide.put(mask, &each(|lane| lane as u64));
            for lane in 0..LANES {
                let expect = if mask >> lane & 1 == 1 { lane as u32 } else { 7 };
                assert_eq!((row.lane(lane), wide.lane(lane)), (expect, u64::from(expect)));
            }
        }
    }
}
