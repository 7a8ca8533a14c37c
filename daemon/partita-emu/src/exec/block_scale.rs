//! Factors of `mma` with block scaling: each row of A and each column of B has scale factors, one
//! for each chunk along K (PTX ISA, "Block Scaling for mma.sync"). The scaled factors are exact in
//! double precision, so that [`super::product`] multiplies them as such.
//!
//! With `g` the number of a group of four threads: two threads of the group, which a selector
//! names, hold the factors of the rows `g` and `g + 8` of A, the even one that of `g`. One thread
//! holds the factors of column `g` of B. A second selector names the byte of the first factor.

use super::inst::Source;
use super::matrix::{Element, Register};
use super::narrow::{ue4m3, ue8m0};
use super::product::real;
use super::state::Core;

/// The scale factors of A or B.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Four bytes of each thread.
    pub data: Source,
    /// The byte of the first factor.
    pub byte: Source,
    /// The thread, or pair of threads, of a group.
    pub thread: Source,
}

/// The scale factors of a product.
#[derive(Clone, Copy, Debug)]
pub struct Scales {
    /// Of A and B.
    pub of: [Scale; 2],
    /// Whether they are powers of two (`.ue8m0`), else `.ue4m3`.
    pub powers: bool,
    /// Factors of a row or column: 1, 2 or 4.
    pub count: usize,
}

/// The greatest selectors of threads of A and B.
pub const THREADS: [u64; 2] = [1, 3];

/// Whether a byte is the first of as many factors (PTX ISA, table "Valid values for various
/// selector components").
#[must_use]
pub const fn is_first_byte(byte: u64, count: usize) -> bool {
    byte < 4 && byte.is_multiple_of(count as u64)
}

impl Scales {
    /// The rows that it reads, for the timing model.
    pub fn sources(&self) -> impl Iterator<Item = Source> {
        self.of.into_iter().flat_map(|scale| [scale.data, scale.byte, scale.thread])
    }

    /// The factors of the lines (rows of A or columns of B), for each line and chunk; or what is
    /// wrong with a selector.
    fn factors(
        &self,
        core: &Core<'_>,
        which: usize,
        (w, lane): (usize, usize),
    ) -> Result<Vec<f64>, String> {
        let scale = self.of[which];
        let byte = core.get(scale.byte, w, lane) & 0xffff;
        let thread = core.get(scale.thread, w, lane) & 0xffff;
        if thread > THREADS[which] || !is_first_byte(byte, self.count) {
            let name = ["A", "B"][which];
            return Err(format!(
                "scale factors of {name} from byte {byte} of thread {thread}; {} factors allow \
                 threads up to {} and bytes at multiples of {0}",
                self.count, THREADS[which]
            ));
        }
        let data: Register = core.get_all(scale.data, w);
        let lines = if which == 0 { 16 } else { 8 };
        let mut factors = Vec::with_capacity(lines * self.count);
        for line in 0..lines {
            let group = line % 8;
            let own = if which == 0 { 2 * thread as usize + line / 8 } else { thread as usize };
            let word = data[4 * group + own] >> (8 * byte);
            for index in 0..self.count {
                let bits = (word >> (8 * index)) as u8;
                factors.push(if self.powers { ue8m0(bits) } else { ue4m3(bits) });
            }
        }
        Ok(factors)
    }

    /// A and B times their factors, as bits of double precision: A by rows of `k` elements, B by
    /// rows of 8.
    pub fn apply(
        &self,
        core: &Core<'_>,
        at: (usize, usize),
        (a, b): (&[u64], &[u64]),
        ([of_a, of_b], k): ([Element; 2], usize),
    ) -> Result<[Vec<u64>; 2], String> {
        let chunk = (k / self.count).max(1);
        let (left, right) = (self.factors(core, 0, at)?, self.factors(core, 1, at)?);
        let times = |bits: u64, element: Element, factor: Option<&f64>| {
            (value(element, bits) * factor.copied().unwrap_or(f64::NAN)).to_bits()
        };
        let a = a.iter().enumerate().map(|(index, &bits)| {
            let (row, column) = (index / k, index % k);
            times(bits, of_a, left.get(row * self.count + column / chunk))
        });
        let b = b.iter().enumerate().map(|(index, &bits)| {
            let (row, column) = (index / 8, index % 8);
            times(bits, of_b, right.get(column * self.count + row / chunk))
        });
        Ok([a.collect(), b.collect()])
    }
}

/// The value of an element of four to eight bits.
fn value(element: Element, bits: u64) -> f64 {
    match element.narrow() {
        Some((narrow, shift)) => narrow.value((bits >> shift) as u8),
        None => real(element, bits),
    }
}
