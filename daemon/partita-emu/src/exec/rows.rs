//! Rows of 32 lanes: the unit in which the executor reads, computes and writes.
//!
//! Every loop here runs over exactly 32 lanes with no branch in it, so that the compiler turns it into a handful of
//! vector instructions of whatever width the caller was compiled for.

/// Lanes of a warp.
pub const LANES: usize = 32;

/// 32 lanes of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct Row32(pub [u32; LANES]);

/// 32 lanes of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub struct Row64(pub [u64; LANES]);

const BITS: [u32; LANES] = {
    let mut bits = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

/// Replaces the lanes of `old` that `mask` names.
#[inline(always)]
pub fn blend32(mask: u32, old: &mut [u32; LANES], new: &[u32; LANES]) {
    for lane in 0..LANES {
        let keep = if mask & BITS[lane] != 0 { u32::MAX } else { 0 };
        old[lane] = (new[lane] & keep) | (old[lane] & !keep);
    }
}

/// Replaces the lanes of `old` that `mask` names.
#[inline(always)]
pub fn blend64(mask: u32, old: &mut [u64; LANES], new: &[u64; LANES]) {
    for lane in 0..LANES {
        let keep = if mask & BITS[lane] != 0 { u64::MAX } else { 0 };
        old[lane] = (new[lane] & keep) | (old[lane] & !keep);
    }
}

/// The bits of lanes for which `f` holds.
#[inline(always)]
pub fn lanes_where(f: impl Fn(usize) -> bool) -> u32 {
    let mut truth = [0_u8; LANES];
    for lane in 0..LANES {
        truth[lane] = u8::from(f(lane));
    }
    let mut mask = 0;
    let (words, _) = truth.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        // Gathers the lowest bit of eight bytes into one byte.
        let bits = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= (bits as u32) << (8 * index);
    }
    mask
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
            assert_eq!(lanes(mask).fold(0_u32, |sum, lane| sum | 1 << lane), mask);
            let mut row = [7; LANES];
            blend32(mask, &mut row, &std::array::from_fn(|lane| lane as u32));
            let mut wide = [7; LANES];
            blend64(mask, &mut wide, &std::array::from_fn(|lane| lane as u64));
            for lane in 0..LANES {
                let expect = if mask >> lane & 1 == 1 { lane as u32 } else { 7 };
                assert_eq!((row[lane], wide[lane]), (expect, u64::from(expect)));
            }
        }
    }
}
