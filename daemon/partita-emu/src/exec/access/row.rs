//! Rows of addresses, and the words in memory that they name.

use crate::dispatch::vector::{HALF, Shape, Vector};
use crate::exec::registers::Width;
use crate::exec::rows::{LANES, Row, lanes};
use crate::exec::state::Hot;
use std::cell::Cell;

/// A value of `N` bytes in memory.
pub(super) trait Word<const N: usize>: Copy + Default + 'static {
    /// Converts from memory.
    fn from_bytes(bytes: [u8; N]) -> Self;
    /// Converts to memory.
    fn to_bytes(self) -> [u8; N];
    /// The rows of an operand of this width.
    fn operand<'a, W: Width>(core: &Hot<'a, W>, index: u32) -> W::Operand<'a, Row<Self>>;
    /// Writes the lanes of a row that `mask` names.
    fn put(row: &Row<Self>, mask: u32, values: &[Self; LANES]);
    /// Writes half a row from memory.
    fn read(words: &[[u8; N]; HALF], to: &[Cell<Self>; HALF], vector: impl Vector);
    /// Writes memory from half a row.
    fn write(from: &[Cell<Self>; HALF], words: &mut [[u8; N]; HALF], vector: impl Vector);
    /// Writes one value to half a row.
    fn fill(self, to: &[Cell<Self>; HALF], vector: impl Vector);
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
    fn operand<'a, W: Width>(core: &Hot<'a, W>, index: u32) -> W::Operand<'a, Row<u32>> {
        core.rows32(index)
    }

    #[inline(always)]
    fn put(row: &Row<u32>, mask: u32, values: &[u32; LANES]) {
        row.put(mask, values);
    }

    #[inline(always)]
    fn read(words: &[[u8; 4]; HALF], to: &[Cell<u32>; HALF], vector: impl Vector) {
        vector.read32(words, to);
    }

    #[inline(always)]
    fn write(from: &[Cell<u32>; HALF], words: &mut [[u8; 4]; HALF], vector: impl Vector) {
        vector.write32(from, words);
    }

    #[inline(always)]
    fn fill(self, to: &[Cell<u32>; HALF], vector: impl Vector) {
        vector.fill32(self, to);
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
    fn operand<'a, W: Width>(core: &Hot<'a, W>, index: u32) -> W::Operand<'a, Row<u64>> {
        core.rows64(index)
    }

    #[inline(always)]
    fn put(row: &Row<u64>, mask: u32, values: &[u64; LANES]) {
        row.put(mask, values);
    }

    #[inline(always)]
    fn read(words: &[[u8; 8]; HALF], to: &[Cell<u64>; HALF], vector: impl Vector) {
        vector.read64(words, to);
    }

    #[inline(always)]
    fn write(from: &[Cell<u64>; HALF], words: &mut [[u8; 8]; HALF], vector: impl Vector) {
        vector.write64(from, words);
    }

    #[inline(always)]
    fn fill(self, to: &[Cell<u64>; HALF], vector: impl Vector) {
        vector.fill64(self, to);
    }
}

/// The distance of each of 16 lanes from the first, where neighbours are `N` bytes apart.
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

/// A row of addresses of the width that the state space has.
pub(super) trait Addresses {
    /// Whether each of 16 addresses names `N` aligned bytes within `length` bytes from `base`.
    fn are_inside<const N: usize>(
        &self,
        half: usize,
        base: u64,
        length: usize,
        vector: impl Vector,
    ) -> bool;

    /// The pattern of 16 addresses. Neighbours in a run are `N` bytes apart.
    fn shape<const N: usize>(&self, half: usize, vector: impl Vector) -> Shape;

    /// A lane's address plus `offset`.
    fn at(&self, lane: usize, offset: i64) -> u64;
}

impl Addresses for Row<u64> {
    #[inline(always)]
    fn are_inside<const N: usize>(
        &self,
        half: usize,
        base: u64,
        length: usize,
        vector: impl Vector,
    ) -> bool {
        let Some(last) = (length as u64).checked_sub(N as u64) else { return false };
        vector.is_inside64(self.half(half), base, last, N as u64 - 1)
    }

    #[inline(always)]
    fn shape<const N: usize>(&self, half: usize, vector: impl Vector) -> Shape {
        vector.shape64(self.half(half), &const { run::<N>() })
    }

    #[inline(always)]
    fn at(&self, lane: usize, offset: i64) -> u64 {
        self.lane(lane).wrapping_add_signed(offset)
    }
}

impl Addresses for Row<u32> {
    #[inline(always)]
    fn are_inside<const N: usize>(
        &self,
        half: usize,
        _: u64,
        length: usize,
        vector: impl Vector,
    ) -> bool {
        let Some(last) = length.checked_sub(N) else { return false };
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        vector.is_inside32(self.half(half), last, N as u32 - 1)
    }

    #[inline(always)]
    fn shape<const N: usize>(&self, half: usize, vector: impl Vector) -> Shape {
        vector.shape32(self.half(half), &const { run32::<N>() })
    }

    #[inline(always)]
    fn at(&self, lane: usize, offset: i64) -> u64 {
        u64::from(self.lane(lane).wrapping_add(offset as u32))
    }
}

/// Memory from address `base` on, as words of `N` bytes. `None` where `base` is not a multiple of
/// `N`.
#[inline(always)]
fn words<const N: usize>(base: u64, bytes: &[u8]) -> Option<&[[u8; N]]> {
    base.is_multiple_of(N as u64).then_some(bytes.as_chunks().0)
}

/// The index of the word at an address. A misaligned address gives an index past the end.
#[inline(always)]
fn place<const N: usize>(address: u64, base: u64) -> usize {
    // The rotation moves the bits that must be zero to the top.
    (address.wrapping_sub(base)).rotate_right(N.ilog2()) as usize
}

/// The patterns of the two halves of a row of addresses.
#[inline(always)]
pub(super) fn shapes<const N: usize>(
    addresses: &impl Addresses,
    vector: impl Vector,
) -> [Shape; 2] {
    [addresses.shape::<N>(0, vector), addresses.shape::<N>(1, vector)]
}

/// Whether a row whose halves have these patterns is one run.
#[inline(always)]
pub(super) fn is_run<const N: usize>(addresses: &impl Addresses, shapes: [Shape; 2]) -> bool {
    shapes == [Shape::Run; 2]
        && addresses.at(HALF, 0) == addresses.at(0, 0).wrapping_add((HALF * N) as u64)
}

/// The words that half a row accesses.
#[derive(Clone, Copy)]
pub(super) enum Half<'m, const N: usize> {
    /// Each lane has the word after the previous lane's.
    Run(&'m [[u8; N]; HALF]),
    /// All lanes have one word.
    One(&'m [u8; N]),
}

/// Finds the words that the two halves of a row access, at `addresses` + `offset` in memory that
/// starts at `base`. `None` where a half is scattered, or a word lies outside `bytes`.
#[inline(always)]
pub(super) fn find<'m, const N: usize>(
    bytes: &'m [u8],
    base: u64,
    addresses: &impl Addresses,
    offset: i64,
    shapes: [Shape; 2],
) -> Option<[Half<'m, N>; 2]> {
    let words = words::<N>(base, bytes)?;
    let find = |half: usize| {
        let rest = words.get(place::<N>(addresses.at(half * HALF, offset), base)..)?;
        match shapes[half] {
            Shape::Run => Some(Half::Run(rest.first_chunk()?)),
            Shape::One => Some(Half::One(rest.first()?)),
            Shape::Scattered => None,
        }
    };
    Some([find(0)?, find(1)?])
}

/// Writes the words of [`find`] to the lanes in `mask`.
#[inline(always)]
pub(super) fn put<const N: usize, T: Word<N>>(
    row: &Row<T>,
    mask: u32,
    words: [Half<'_, N>; 2],
    vector: impl Vector,
) {
    let whole = |row: &Row<T>| {
        for half in 0..2 {
            match words[half] {
                Half::Run(words) => T::read(words, row.half(half), vector),
                Half::One(word) => T::from_bytes(*word).fill(row.half(half), vector),
            }
        }
    };
    if mask == u32::MAX {
        whole(row);
    } else {
        let values = Row::filled(T::default());
        whole(&values);
        T::put(row, mask, &values.get());
    }
}

/// Writes a row to memory where both halves are runs; see [`find`]. False, with nothing written,
/// where a half is no run or a word lies outside `bytes`.
#[inline(always)]
pub(super) fn write<const N: usize, T: Word<N>>(
    bytes: &mut [u8],
    base: u64,
    addresses: &impl Addresses,
    offset: i64,
    shapes: [Shape; 2],
    values: &Row<T>,
    vector: impl Vector,
) -> bool {
    if shapes != [Shape::Run; 2] || !base.is_multiple_of(N as u64) {
        return false;
    }
    let words = bytes.as_chunks_mut::<N>().0;
    let places = [0, 1].map(|half| place::<N>(addresses.at(half * HALF, offset), base));
    let last = words.len().checked_sub(HALF);
    if !last.is_some_and(|last| places.iter().all(|&place| place <= last)) {
        return false;
    }
    for (half, place) in places.into_iter().enumerate() {
        let Some(words) = words[place..].first_chunk_mut() else { return false };
        T::write(values.half(half), words, vector);
    }
    true
}

/// Reads the words at `addresses`, in memory that starts at `base`, into the lanes in `mask`.
/// False, with nothing read, where a word lies outside `bytes`.
#[inline(always)]
pub(super) fn gather<const N: usize, T: Word<N>>(
    bytes: &[u8],
    base: u64,
    addresses: &impl Addresses,
    mask: u32,
    to: &Row<T>,
    vector: impl Vector,
) -> bool {
    let Some(words) = words::<N>(base, bytes) else { return false };
    let inside = |half| addresses.are_inside::<N>(half, base, bytes.len(), vector);
    if !(inside(0) && inside(1)) {
        return false;
    }
    let word = |lane| T::from_bytes(words[addresses.at(lane, 0).wrapping_sub(base) as usize / N]);
    if mask == u32::MAX {
        for lane in 0..LANES {
            to.set_lane(lane, word(lane));
        }
    } else {
        for lane in lanes(mask) {
            to.set_lane(lane, word(lane));
        }
    }
    true
}

/// Writes the lanes in `mask` to `addresses`, in memory that starts at `base`. Where two lanes
/// write one word, the higher lane wins. False, with nothing written, where a word lies outside
/// `bytes`.
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
    for lane in lanes(mask) {
        words[place::<N>(addresses.at(lane, 0), base)] = values.lane(lane).to_bytes();
    }
    true
}
