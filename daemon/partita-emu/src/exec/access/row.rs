//! Rows of addresses, and the words that they name in a piece of memory.

use crate::dispatch::vector::{HALF, Shape, Vector};
use crate::exec::registers::{Frame, Operand};
use crate::exec::rows::{LANES, Row, lanes};

/// A value of `N` bytes in memory.
pub(super) trait Word<const N: usize>: Copy + Default {
    /// From memory.
    fn from_bytes(bytes: [u8; N]) -> Self;
    /// To memory.
    fn to_bytes(self) -> [u8; N];
    /// The rows of an operand of this width.
    fn operand<'a>(frame: &Frame<'a>, index: u32) -> Operand<'a, Row<Self>>;
    /// Writes the lanes of a row that `mask` names.
    fn put(row: &Row<Self>, mask: u32, values: &[Self; LANES]);
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

    #[inline(always)]
    fn operand<'a>(frame: &Frame<'a>, index: u32) -> Operand<'a, Row<u32>> {
        frame.rows32(index)
    }

    #[inline(always)]
    fn put(row: &Row<u32>, mask: u32, values: &[u32; LANES]) {
        row.put(mask, values);
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

    #[inline(always)]
    fn operand<'a>(frame: &Frame<'a>, index: u32) -> Operand<'a, Row<u64>> {
        frame.rows64(index)
    }

    #[inline(always)]
    fn put(row: &Row<u64>, mask: u32, values: &[u64; LANES]) {
        row.put(mask, values);
    }
}

/// What 16 lanes that follow one another at a distance of `N` are apart from the first.
const fn run<const N: usize>() -> [u64; HALF] {
    let mut run = [0; HALF];
    let mut lane = 0;
    while lane < HALF {
        run[lane] = (lane * N) as u64;
        lane += 1;
    }
    run
}

const fn run32<const N: usize>() -> [u32; HALF] {
    let mut run = [0; HALF];
    let mut lane = 0;
    while lane < HALF {
        run[lane] = (lane * N) as u32;
        lane += 1;
    }
    run
}

/// A row of addresses, as wide as the space needs them.
pub(super) trait Addresses {
    /// Whether each of 16 names `N` bytes, aligned from `base` on, among the `length` from there.
    fn are_inside<const N: usize>(&self, half: usize, base: u64, length: usize, vector: impl Vector) -> bool;

    /// How 16 of them lie; those of a run are `N` bytes apart.
    fn shape<const N: usize>(&self, half: usize, vector: impl Vector) -> Shape;

    /// A lane's address.
    fn lane(&self, lane: usize) -> u64;
}

impl Addresses for [u64; LANES] {
    #[inline(always)]
    fn are_inside<const N: usize>(&self, half: usize, base: u64, length: usize, vector: impl Vector) -> bool {
        let Some(last) = (length as u64).checked_sub(N as u64) else { return false };
        vector.is_inside64(&self.as_chunks::<HALF>().0[half], base, last, N as u64 - 1)
    }

    #[inline(always)]
    fn shape<const N: usize>(&self, half: usize, vector: impl Vector) -> Shape {
        vector.shape64(&self.as_chunks::<HALF>().0[half], &const { run::<N>() })
    }

    #[inline(always)]
    fn lane(&self, lane: usize) -> u64 {
        self[lane]
    }
}

impl Addresses for [u32; LANES] {
    #[inline(always)]
    fn are_inside<const N: usize>(&self, half: usize, _: u64, length: usize, vector: impl Vector) -> bool {
        let Some(last) = length.checked_sub(N) else { return false };
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        vector.is_inside32(&self.as_chunks::<HALF>().0[half], last, N as u32 - 1)
    }

    #[inline(always)]
    fn shape<const N: usize>(&self, half: usize, vector: impl Vector) -> Shape {
        vector.shape32(&self.as_chunks::<HALF>().0[half], &const { run32::<N>() })
    }

    #[inline(always)]
    fn lane(&self, lane: usize) -> u64 {
        u64::from(self[lane])
    }
}

/// Memory from address `base` on, as words of `N` bytes. `None` where their addresses are not multiples of `N`.
#[inline(always)]
fn words<const N: usize>(base: u64, bytes: &[u8]) -> Option<&[[u8; N]]> {
    base.is_multiple_of(N as u64).then_some(bytes.as_chunks().0)
}

/// Which word of those from `base` on an address names; one beyond all where it is misaligned.
#[inline(always)]
fn place<const N: usize>(address: u64, base: u64) -> usize {
    // Rotated, the bits that must be zero are at the top.
    (address.wrapping_sub(base)).rotate_right(N.ilog2()) as usize
}

/// Reads the words at `addresses` from memory that starts at `base`. `None` where one of them is not there.
#[inline(always)]
pub(super) fn gather<const N: usize, T: Word<N>>(
    bytes: &[u8],
    base: u64,
    addresses: &impl Addresses,
    vector: impl Vector,
) -> Option<[T; LANES]> {
    let words = words::<N>(base, bytes)?;
    let mut out = [T::default(); LANES];
    for (half, out) in out.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
        let place = |lane: usize| place::<N>(addresses.lane(half * HALF + lane), base);
        match addresses.shape::<N>(half, vector) {
            Shape::Run => {
                let words: &[[u8; N]; HALF] = words.get(place(0)..)?.first_chunk()?;
                for lane in 0..HALF {
                    out[lane] = T::from_bytes(words[lane]);
                }
            }
            Shape::One => *out = [T::from_bytes(*words.get(place(0))?); HALF],
            Shape::Scattered => {
                if !addresses.are_inside::<N>(half, base, bytes.len(), vector) {
                    return None;
                }
                for lane in 0..HALF {
                    let offset = addresses.lane(half * HALF + lane).wrapping_sub(base);
                    out[lane] = T::from_bytes(words[offset as usize / N]);
                }
            }
        }
    }
    Some(out)
}

/// Writes words to `addresses` in memory that starts at `base`, for the lanes in `mask`; where two lanes write one
/// place, the higher lane wins. False where one of the places is not there: then nothing has been written.
#[inline(always)]
pub(super) fn scatter<const N: usize, T: Word<N>>(
    bytes: &mut [u8],
    base: u64,
    addresses: &impl Addresses,
    mask: u32,
    values: &Row<T>,
    vector: impl Vector,
) -> bool {
    let inside = |half| addresses.are_inside::<N>(half, base, bytes.len(), vector);
    if !(base.is_multiple_of(N as u64) && inside(0) && inside(1)) {
        return false;
    }
    let words = bytes.as_chunks_mut::<N>().0;
    if mask != u32::MAX {
        for lane in lanes(mask) {
            words[place::<N>(addresses.lane(lane), base)] = values.lane(lane).to_bytes();
        }
        return true;
    }
    for half in 0..LANES / HALF {
        let first = half * HALF;
        if addresses.shape::<N>(half, vector) == Shape::Run {
            let start = place::<N>(addresses.lane(first), base);
            let words: &mut [[u8; N]; HALF] =
                words[start..].first_chunk_mut().expect("the last of the run is inside");
            for lane in 0..HALF {
                words[lane] = values.lane(first + lane).to_bytes();
            }
        } else {
            for lane in first..first + HALF {
                words[place::<N>(addresses.lane(lane), base)] = values.lane(lane).to_bytes();
            }
        }
    }
    true
}

/// Whether a row follows one another at a distance of `N`.
#[inline(always)]
pub(super) fn is_run<const N: usize>(addresses: &impl Addresses, vector: impl Vector) -> bool {
    addresses.lane(HALF) == addresses.lane(0).wrapping_add((HALF * N) as u64)
        && addresses.shape::<N>(0, vector) == Shape::Run
        && addresses.shape::<N>(1, vector) == Shape::Run
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
