//! Sparse left factors of `mma.sp` and `wgmma.mma_async.sp` (PTX ISA, "Sparse matrix storage").
//!
//! Half of the elements of each row are zero, and the other half is stored in order. The metadata
//! have four bits for each chunk of a row, which say where the chunk's elements belong: two places
//! of two bits among four units of the chunk. A unit is an element, a pair of neighbours of four
//! bits, or half of a `.tf32` element, whose two halves have neighbouring places.
//!
//! Each thread in a group of four has metadata of the rows `g` and `g + 8`, where `g` is the
//! group's number. For elements of 16 and 32 bits a thread has four chunks of both rows, `g` in the
//! lower half; for smaller ones it has eight chunks of one row. The instruction's selector says
//! which threads of the group count where not all do.

use super::inst::Source;
use super::matrix::{Element, Register};
use super::warpgroup::ROWS;

/// Bits of metadata for a chunk.
const CHUNK_BITS: usize = 4;

/// Where the elements of a sparse left factor belong.
#[derive(Clone, Copy, Debug)]
pub struct Sparse {
    /// The metadata of each thread.
    pub metadata: Source,
    /// The threads that have it.
    pub selector: usize,
}

/// Elements of a chunk.
const fn chunk(element: Element) -> usize {
    match element.width() {
        32 => 2,
        4 => 8,
        _ => 4,
    }
}

/// The selectors that a product of this length has; 0 for a length that no product has.
#[must_use]
pub const fn selectors(element: Element, k: usize) -> usize {
    // Bits of a row, of which a group of threads has 128 for two rows.
    match 64_usize.checked_div((k / chunk(element)).saturating_mul(CHUNK_BITS)) {
        Some(count) => count,
        None => 0,
    }
}

/// The bits of a row's chunk.
fn bits(
    metadata: &Register,
    (element, selector): (Element, usize),
    chunks: usize,
    (row, at): (usize, usize),
) -> usize {
    let (group, half) = (row % 8, row / 8);
    let wide = element.width() >= 16;
    let (per, step) = if wide { (4, at / 4) } else { (8, at / 8) };
    let steps = chunks / per;
    let (thread, shift) = match (wide, steps) {
        (true, _) => (steps * selector + step, 16 * half + CHUNK_BITS * (at % per)),
        (false, 1) => (2 * selector + half, CHUNK_BITS * (at % per)),
        (false, _) => (2 * step + half, CHUNK_BITS * (at % per)),
    };
    (metadata[4 * group + thread] >> shift) as usize & 15
}

/// The left factor with its zeros: 16 rows of `k` elements, from rows of half of them.
#[must_use]
pub fn expand(
    compressed: &[u64],
    metadata: &Register,
    (element, selector): (Element, usize),
    k: usize,
) -> Vec<u64> {
    let chunk = chunk(element);
    let mut whole = vec![0; ROWS * k];
    for (row, given) in compressed.chunks_exact(k / 2).enumerate() {
        for (at, given) in given.chunks_exact(chunk / 2).enumerate() {
            let bits = bits(metadata, (element, selector), k / chunk, (row, at));
            let start = row * k + at * chunk;
            let places = [bits & 3, bits >> 2];
            match (given, chunk) {
                (&[one], _) => whole[start + places[0] / 2] = one,
                (&[first, second], _) => {
                    whole[start + places[0]] = first;
                    whole[start + places[1]] = second;
                }
                (pairs, _) => {
                    for (pair, place) in pairs.chunks_exact(2).zip(places) {
                        whole[start + 2 * place..][..2].copy_from_slice(pair);
                    }
                }
            }
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 9, whose group is the second, in the last chunk.
    #[test]
    fn elements_go_where_the_metadata_say() {
        let mut metadata = [0; 32];
        let check = |metadata: &Register, element, selector, k, given: &[u64], expect: &[u64]| {
            let (chunk, half) = (chunk(element), k / 2);
            let mut compressed = vec![0; ROWS * half];
            compressed[10 * half - given.len()..10 * half].copy_from_slice(given);
            let whole = expand(&compressed, metadata, (element, selector), k);
            assert_eq!(&whole[10 * k - chunk..10 * k], expect, "{element:?} {k}");
        };
        // The upper half of a thread's bits is of row 9; its last four are of the last chunk.
        metadata[4 + 2] = 0b1101 << 28;
        check(&metadata, Element::F16, 2, 16, &[7, 8], &[0, 7, 0, 8]);
        metadata[4 + 3] = 0b1000 << 28;
        check(&metadata, Element::Bf16, 1, 32, &[7, 8], &[7, 0, 8, 0]);
        metadata[4] = 0b1110 << 28;
        check(&metadata, Element::Tf32, 0, 8, &[7], &[0, 7]);
        metadata[4 + 1] = 0b0100 << 28;
        check(&metadata, Element::Tf32, 0, 16, &[7], &[7, 0]);
        // The second thread of a pair has row 9.
        metadata[4 + 1] = 0b1001 << 28;
        check(&metadata, Element::S8, 0, 32, &[7, 8], &[0, 7, 8, 0]);
        check(&metadata, Element::U4, 0, 64, &[7, 8, 9, 10], &[0, 0, 7, 8, 9, 10, 0, 0]);
        // The fourth has the second half of the row.
        metadata[4 + 3] = 0b1100 << 28;
        check(&metadata, Element::E4m3, 0, 64, &[7, 8], &[7, 0, 0, 8]);
        check(&metadata, Element::S4, 0, 128, &[7, 8, 9, 10], &[7, 8, 0, 0, 0, 0, 9, 10]);
    }

    #[test]
    fn selectors_count_the_threads_that_have_metadata() {
        for (element, k, count) in [
            (Element::F16, 16, 4),
            (Element::Bf16, 32, 2),
            (Element::Tf32, 8, 4),
            (Element::Tf32, 16, 2),
            (Element::S8, 32, 2),
            (Element::E5m2, 64, 1),
            (Element::U4, 64, 2),
            (Element::S4, 128, 1),
            (Element::F16, 1, 0),
            (Element::Tf32, usize::MAX, 0),
        ] {
            assert_eq!(selectors(element, k), count, "{element:?} {k}");
        }
    }
}
