//! `mma.m8n8k4` on f16: four products of 8 by 4 and 4 by 8 matrices, one for each quad pair. A quad
//! pair is the lanes with equal `lane % 16 / 4` (PTX ISA, "Matrix Fragments for mma.m8n8k4 with
//! .f16 floating point type").

use super::matrix::{Element, Register};
use super::product::{real, rounded};
use super::rows::LANES;

/// The layout and types of the spelling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quads {
    /// Whether A is given by rows.
    pub a_by_rows: bool,
    /// Whether B is given by rows.
    pub b_by_rows: bool,
    /// Elements of C, f16 or f32.
    pub of_c: Element,
    /// Elements of D.
    pub of_d: Element,
}

/// Row and column of a lane's element of A.
const fn place_a(lane: usize, i: usize, by_rows: bool) -> (usize, usize) {
    let below = lane / 16 * 4;
    if by_rows { (lane % 4 + below, i) } else { (i + below, lane % 4) }
}

/// Row and column of a lane's element of B.
const fn place_b(lane: usize, i: usize, by_rows: bool) -> (usize, usize) {
    let right = lane / 16 * 4;
    if by_rows { (lane % 4, i + right) } else { (i, lane % 4 + right) }
}

/// Row and column of a lane's element of C and D.
fn place_c(lane: usize, i: usize, element: Element) -> (usize, usize) {
    let below = lane / 16 * 4;
    if element == Element::F16 {
        (lane % 4 + below, i)
    } else {
        ((lane & 1) + (i & 2) + below, (i & 4) + (lane & 2) + (i & 1))
    }
}

/// Registers of C or D.
#[must_use]
pub const fn registers(element: Element) -> usize {
    8 / element.per_register()
}

fn element_of(registers: &[Register], lane: usize, i: usize, element: Element) -> f64 {
    let per = element.per_register();
    let word = registers.get(i / per).map_or(0, |register| register[lane]);
    real(element, word >> (element.width() * (i % per)))
}

/// `D = A * B + C` of each quad pair, each sum rounded once.
#[must_use]
pub fn multiply(quads: Quads, a: &[Register], b: &[Register], c: &[Register]) -> Vec<Register> {
    let mut d = vec![[0; LANES]; registers(quads.of_d)];
    for pair in 0..4 {
        let lanes = (0..LANES).filter(|lane| lane % 16 / 4 == pair);
        let (mut left, mut right, mut plus) = ([[0.0; 4]; 8], [[0.0; 8]; 4], [[0.0; 8]; 8]);
        for lane in lanes.clone() {
            for i in 0..4 {
                let (row, column) = place_a(lane, i, quads.a_by_rows);
                left[row][column] = element_of(a, lane, i, Element::F16);
                let (row, column) = place_b(lane, i, quads.b_by_rows);
                right[row][column] = element_of(b, lane, i, Element::F16);
            }
            for i in 0..8 {
                let (row, column) = place_c(lane, i, quads.of_c);
                plus[row][column] = element_of(c, lane, i, quads.of_c);
            }
        }
        for lane in lanes {
            for i in 0..8 {
                let (row, column) = place_c(lane, i, quads.of_d);
                let sum = (0..4)
                    .fold(plus[row][column], |sum, k| left[row][k].mul_add(right[k][column], sum));
                let per = quads.of_d.per_register();
                d[i / per][lane] |= rounded(quads.of_d, sum) << (quads.of_d.width() * (i % per));
            }
        }
    }
    d
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_quad_pair_belongs_to_one_element() {
        for by_rows in [true, false] {
            let (mut a, mut b) = ([[0; 4]; 8], [[0; 8]; 4]);
            for lane in (0..LANES).filter(|lane| lane % 16 / 4 == 2) {
                for i in 0..4 {
                    let (row, column) = place_a(lane, i, by_rows);
                    a[row][column] += 1;
                    let (row, column) = place_b(lane, i, by_rows);
                    b[row][column] += 1;
                }
            }
            assert_eq!((a, b), ([[1; 4]; 8], [[1; 8]; 4]));
        }
        for element in [Element::F16, Element::F32] {
            let mut c = [[0; 8]; 8];
            for lane in (0..LANES).filter(|lane| lane % 16 / 4 == 1) {
                for i in 0..8 {
                    let (row, column) = place_c(lane, i, element);
                    c[row][column] += 1;
                }
            }
            assert_eq!(c, [[1; 8]; 8], "{element:?}");
        }
    }
}
