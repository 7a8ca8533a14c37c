//! Rows of addresses, and the words that they name in a piece of memory.

use crate::exec::rows::{LANES, Row, blend64, each, lanes};

/// A value of `N` bytes in memory.
pub(super) trait Word<const N: usize>: Copy + Default {
    /// From memory.
    fn from_bytes(bytes: [u8; N]) -> Self;
    /// To memory.
    fn to_bytes(self) -> [u8; N];
}

impl Word<4> for u32 {
    #[inline(always)]
    fn from_bytes(bytes: [u8; 4]) -> Self {
        u32::from_le_bytes(bytes)
    }

    #[inline(always)]
    fn to_bytes(self) -> [u8; 4] {
        self.to_le_bytes()
    }
}

impl Word<8> for u64 {
    #[inline(always)]
    fn from_bytes(bytes: [u8; 8]) -> Self {
        u64::from_le_bytes(bytes)
    }

    #[inline(always)]
    fn to_bytes(self) -> [u8; 8] {
        self.to_le_bytes()
    }
}

/// Lanes of which a row that is not consecutive as a whole may be made, each consecutive in itself: tiles are 16 wide.
const HALF: usize = LANES / 2;

/// Whether the addresses of a row follow one another at a distance of `N`.
#[inline(always)]
pub(super) fn is_consecutive<const N: usize>(addresses: &Row<u64>) -> bool {
    let first = addresses.lane(0);
    let mut different = 0;
    for lane in 0..LANES {
        different |= addresses.lane(lane) ^ first.wrapping_add((lane * N) as u64);
    }
    different == 0
}

/// As [`is_consecutive`].
#[inline(always)]
pub(super) fn is_consecutive32<const N: usize>(addresses: &Row<u32>) -> bool {
    let first = addresses.lane(0);
    let mut different = 0;
    for lane in 0..LANES {
        different |= addresses.lane(lane) ^ first.wrapping_add((lane * N) as u32);
    }
    different == 0
}

/// The addresses of a row; lanes out of the mask, which must not be empty, get that of its first lane.
#[inline(always)]
pub(super) fn addresses_of(row: &Row<u64>, offset: u64, mask: u32) -> [u64; LANES] {
    let addresses = each(|lane| row.lane(lane).wrapping_add(offset));
    if mask == u32::MAX {
        return addresses;
    }
    let first = addresses[(mask.trailing_zeros() & 31) as usize];
    blend64(mask, &addresses, &[first; LANES])
}

/// The places of `N` bytes at `addresses` in `length` bytes from `base`, counted in `N` bytes. `None` where one of them
/// is not inside, or not aligned.
#[inline(always)]
pub(super) fn places<const N: usize>(
    addresses: &[u64; LANES],
    base: u64,
    length: usize,
) -> Option<[u64; LANES]> {
    let last = (length as u64).checked_sub(N as u64)?;
    let (mut outside, mut bits) = (0, base);
    for lane in 0..LANES {
        // Both numbers are below 2^63 where the place is inside: then neither difference has the top bit.
        let offset = addresses[lane].wrapping_sub(base);
        outside |= offset | last.wrapping_sub(offset);
        bits |= addresses[lane];
    }
    if outside >> 63 != 0 || bits % N as u64 != 0 {
        return None;
    }
    Some(each(|lane| addresses[lane].wrapping_sub(base) / N as u64))
}

/// Whether 16 places follow one another.
#[inline(always)]
fn is_run(places: &[u64; HALF]) -> bool {
    let mut different = 0;
    for lane in 0..HALF {
        different |= places[lane] ^ places[0].wrapping_add(lane as u64);
    }
    different == 0
}

/// Whether 16 places are one.
#[inline(always)]
fn is_one(places: &[u64; HALF]) -> bool {
    places.iter().fold(0, |different, place| different | (place ^ places[0])) == 0
}

/// Reads the words at places that [`places`] has found to be inside.
#[inline(always)]
pub(super) fn gather<const N: usize, T: Word<N>>(bytes: &[u8], places: &[u64; LANES]) -> [T; LANES] {
    let words = bytes.as_chunks::<N>().0;
    let mut out = [T::default(); LANES];
    for (out, places) in out.as_chunks_mut::<HALF>().0.iter_mut().zip(places.as_chunks::<HALF>().0) {
        let first = places[0] as usize;
        if is_one(places) {
            *out = [T::from_bytes(words[first]); HALF];
        } else if is_run(places)
            && let Some(words) = words.get(first..).and_then(|words| words.first_chunk::<HALF>())
        {
            for lane in 0..HALF {
                out[lane] = T::from_bytes(words[lane]);
            }
        } else {
            for lane in 0..HALF {
                out[lane] = T::from_bytes(words[places[lane] as usize]);
            }
        }
    }
    out
}

/// Writes words to places that [`places`] has found to be inside, for the lanes in `mask`; where two lanes write one
/// place, the higher lane wins.
#[inline(always)]
pub(super) fn scatter<const N: usize, T: Word<N>>(
    bytes: &mut [u8],
    places: &[u64; LANES],
    mask: u32,
    values: &Row<T>,
) {
    let words = bytes.as_chunks_mut::<N>().0;
    if mask != u32::MAX {
        for lane in lanes(mask) {
            words[places[lane] as usize] = values.lane(lane).to_bytes();
        }
        return;
    }
    for (half, places) in places.as_chunks::<HALF>().0.iter().enumerate() {
        let first = places[0] as usize;
        if is_run(places)
            && let Some(words) = words.get_mut(first..).and_then(|words| words.first_chunk_mut::<HALF>())
        {
            for lane in 0..HALF {
                words[lane] = values.lane(half * HALF + lane).to_bytes();
            }
        } else {
            for lane in 0..HALF {
                words[places[lane] as usize] = values.lane(half * HALF + lane).to_bytes();
            }
        }
    }
}

/// Reads 32 words that follow one another.
#[inline(always)]
pub(super) fn copy_in<const N: usize, T: Word<N>>(bytes: &[u8]) -> [T; LANES] {
    let mut out = [T::default(); LANES];
    for (out, word) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = T::from_bytes(*word);
    }
    out
}

/// Writes 32 words that follow one another.
#[inline(always)]
pub(super) fn copy_out<const N: usize, T: Word<N>>(bytes: &mut [u8], values: &Row<T>) {
    for (lane, word) in bytes.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *word = values.lane(lane).to_bytes();
    }
}
