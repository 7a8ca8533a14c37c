//! Fragments of matrices over the lanes of a warp, and their product. Pure functions.
//!
//! Layouts of `mma` follow the PTX ISA, "Warp-level Matrix Multiply-Accumulate Instructions",
//! "Matrix Fragments for mma.m8n8k4 … mma.m16n8k32". With `g` = lane / 4 and `t` = lane % 4 they
//! are all one: a 32-bit register (64-bit for f64) holds `e` neighbouring elements of a row of A or
//! a column of B that start at `e * t`, and each further register of A goes 8 rows down first and
//! then `4 * e` columns right. The layouts of `wmma` are the implementation's own by the ISA
//! ("Matrix Fragments for WMMA"); here they are tiles of the same shape. Its f16 fragments of A and
//! B have more elements than the matrix; the further ones repeat the first.
//!
//! Sums are made in double precision, where products of narrower elements are exact, and rounded
//! once to nearest. The ISA leaves order and precision of the sums open.

use super::float::NAN_F32;
use super::packed::{E4M3, E5M2};
use super::rows::LANES;
use half::{bf16, f16};

/// The type of an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX type of that name")]
pub enum Element {
    B1,
    S4,
    U4,
    E4m3,
    E5m2,
    S8,
    U8,
    F16,
    Bf16,
    Tf32,
    F32,
    S32,
    F64,
}

impl Element {
    /// Size in bits, in memory and in a register.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Element::B1 => 1,
            Element::S4 | Element::U4 => 4,
            Element::S8 | Element::U8 | Element::E4m3 | Element::E5m2 => 8,
            Element::F16 | Element::Bf16 => 16,
            Element::Tf32 | Element::F32 | Element::S32 => 32,
            Element::F64 => 64,
        }
    }

    /// Elements of a register.
    #[must_use]
    pub const fn per_register(self) -> usize {
        if self.width() < 32 { 32 / self.width() } else { 1 }
    }

    /// Whether sums of it are sums of integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        use Element::{B1, S4, S8, S32, U4, U8};
        matches!(self, B1 | S4 | U4 | S8 | U8 | S32)
    }

    fn integer(self, bits: u64) -> i64 {
        match self {
            Element::B1 => i64::from(bits as u8 & 1),
            Element::S4 => i64::from(((bits as u8) << 4) as i8 >> 4),
            Element::U4 => i64::from(bits as u8 & 15),
            Element::S8 => i64::from(bits as u8 as i8),
            Element::U8 => i64::from(bits as u8),
            _ => i64::from(bits as u32 as i32),
        }
    }

    /// The value of a real element.
    #[must_use]
    pub fn real(self, bits: u64) -> f64 {
        match self {
            Element::E4m3 => E4M3.value(bits as u8),
            Element::E5m2 => E5M2.value(bits as u8),
            Element::F16 => f16::from_bits(bits as u16).to_f64(),
            Element::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            // PTX ISA, "Alternate Floating-Point Data Formats": the low 13 bits are ignored.
            Element::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
            Element::F64 => f64::from_bits(bits),
            _ => f64::from(f32::from_bits(bits as u32)),
        }
    }

    /// A value rounded to an element.
    #[must_use]
    pub fn bits(self, value: f64) -> u64 {
        match self {
            Element::F64 => value.to_bits(),
            Element::F16 if value.is_nan() => 0x7fff,
            Element::F16 => u64::from(f16::from_f64(value).to_bits()),
            _ if value.is_nan() => u64::from(NAN_F32),
            _ => u64::from((value as f32).to_bits()),
        }
    }
}

/// Which factor of `D = A * B + C` a fragment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The left factor, M by K.
    A,
    /// The right factor, K by N.
    B,
    /// The addend and the result, M by N.
    C,
}

/// A matrix spread over a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// The role of the matrix in a product.
    pub role: Role,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Its elements.
    pub element: Element,
}

/// Lanes' registers.
pub type Register = [u64; LANES];

impl Fragment {
    /// Different elements per lane.
    #[must_use]
    pub const fn elements(&self) -> usize {
        self.rows * self.columns / LANES
    }

    /// Registers per lane, where none is repeated.
    #[must_use]
    pub const fn registers(&self) -> usize {
        self.elements().div_ceil(self.element.per_register())
    }

    /// Row and column of a lane's element.
    #[must_use]
    pub const fn place(&self, lane: usize, element: usize) -> (usize, usize) {
        let (g, t) = (lane / 4, lane % 4);
        let element = element % self.elements();
        let per = self.element.per_register();
        let (register, part) = (element / per, element % per);
        let height = if self.rows < 16 { self.rows } else { 16 };
        match self.role {
            Role::A => {
                let of_tile = self.registers() / (self.rows / height);
                let (tile, register) = (register / of_tile, register % of_tile);
                let (down, right) =
                    if height == 16 { (register % 2, register / 2) } else { (0, register) };
                (16 * tile + 8 * down + g, per * t + part + 4 * per * right)
            }
            Role::B => {
                let of_tile = self.registers() / (self.columns / 8);
                let (tile, register) = (register / of_tile, register % of_tile);
                (per * t + part + 4 * per * register, 8 * tile + g)
            }
            Role::C => {
                let of_tile = if height == 16 { 4 } else { 2 };
                let (tile, own) = (element / of_tile, element % of_tile);
                let across = self.columns / 8;
                (16 * (tile / across) + 8 * (own / 2) + g, 8 * (tile % across) + 2 * t + own % 2)
            }
        }
    }

    /// An element of a lane's registers.
    #[must_use]
    pub fn element_of(&self, registers: &[Register], lane: usize, element: usize) -> u64 {
        let per = self.element.per_register();
        let register = registers.get(element / per).map_or(0, |register| register[lane]);
        if self.element == Element::F64 {
            return register;
        }
        let bits = self.element.width();
        register >> (bits * (element % per)) & ((1 << bits) - 1)
    }

    /// Sets an element of a lane's registers, which are zero before.
    pub fn set_element(&self, registers: &mut [Register], lane: usize, element: usize, value: u64) {
        let per = self.element.per_register();
        let shift = self.element.width() * (element % per);
        registers[element / per][lane] |= value << shift;
    }

    /// The whole matrix, row after row.
    #[must_use]
    pub fn gather(&self, registers: &[Register]) -> Vec<u64> {
        let mut matrix = vec![0; self.rows * self.columns];
        for lane in 0..LANES {
            for element in 0..self.elements() {
                let (row, column) = self.place(lane, element);
                matrix[row * self.columns + column] = self.element_of(registers, lane, element);
            }
        }
        matrix
    }

    /// The fragment of a matrix given row after row, in `count` registers.
    #[must_use]
    pub fn spread(&self, matrix: &[u64], count: usize) -> Vec<Register> {
        let mut registers = vec![[0; LANES]; count];
        for lane in 0..LANES {
            for element in 0..count * self.element.per_register() {
                let (row, column) = self.place(lane, element);
                self.set_element(
                    &mut registers,
                    lane,
                    element,
                    matrix[row * self.columns + column],
                );
            }
        }
        registers
    }
}

/// How products and sums are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Integer results wrap around.
    Plain,
    /// Integer results saturate.
    Saturate,
    /// The product of two bits is their exclusive or.
    Xor,
}

/// `D = A * B + C` over matrices given row after row.
#[must_use]
pub fn multiply(
    [a, b, c]: [&[u64]; 3],
    [of_a, of_b, of_c]: [Fragment; 3],
    of_d: Element,
    rule: Rule,
) -> Vec<u64> {
    let elements = [of_a.element, of_b.element, of_c.element];
    sums([a, b, c], elements, [of_b.columns, of_a.columns], (rule, false, of_d))
}

/// `D = A * B + C`, or `C - A * B` where the products are `negated`. A has rows of `k` elements, B
/// and C have rows of `n`, and D is made of elements `of_d`.
#[must_use]
pub fn sums(
    [a, b, c]: [&[u64]; 3],
    [of_a, of_b, of_c]: [Element; 3],
    [n, k]: [usize; 2],
    (rule, negated, of_d): (Rule, bool, Element),
) -> Vec<u64> {
    if of_a.is_integer() {
        let right: Vec<i64> = b.iter().map(|&bits| of_b.integer(bits)).collect();
        return rows(a, c, [n, k], |left, start| {
            let mut sum: Vec<i64> = start.iter().map(|&bits| of_c.integer(bits)).collect();
            for (&left, right) in left.iter().zip(right.chunks_exact(n)) {
                let left = of_a.integer(left);
                for (sum, &right) in sum.iter_mut().zip(right) {
                    *sum += if rule == Rule::Xor { left ^ right } else { left * right };
                }
            }
            let bounds = i64::from(i32::MIN)..=i64::from(i32::MAX);
            let bits = |sum: i64| match rule {
                Rule::Saturate => sum.clamp(*bounds.start(), *bounds.end()),
                _ => sum,
            };
            sum.into_iter().map(|sum| u64::from(bits(sum) as u32)).collect()
        });
    }
    let right: Vec<f64> = b.iter().map(|&bits| of_b.real(bits)).collect();
    rows(a, c, [n, k], |left, start| {
        let mut sum: Vec<f64> = start.iter().map(|&bits| of_c.real(bits)).collect();
        for (&left, right) in left.iter().zip(right.chunks_exact(n)) {
            let left = if negated { -of_a.real(left) } else { of_a.real(left) };
            let pairs = sum.iter_mut().zip(right);
            // Products of narrower elements are exact, so two operations round once, too.
            if of_a == Element::F64 {
                pairs.for_each(|(sum, &right)| *sum = left.mul_add(right, *sum));
            } else {
                pairs.for_each(|(sum, &right)| *sum += left * right);
            }
        }
        sum.into_iter().map(|sum| of_d.bits(sum)).collect()
    })
}

/// The rows of D, each from a row of A and one of C.
fn rows(
    a: &[u64],
    c: &[u64],
    [n, k]: [usize; 2],
    row: impl Fn(&[u64], &[u64]) -> Vec<u64>,
) -> Vec<u64> {
    a.chunks_exact(k).zip(c.chunks_exact(n)).flat_map(|(left, start)| row(left, start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTORS: [(Element, [usize; 3]); 23] = [
        (Element::S4, [8, 8, 32]),
        (Element::U4, [16, 8, 64]),
        (Element::B1, [8, 8, 128]),
        (Element::B1, [16, 8, 256]),
        (Element::E4m3, [16, 8, 32]),
        (Element::E5m2, [16, 8, 16]),
        (Element::F16, [16, 8, 8]),
        (Element::F16, [16, 8, 16]),
        (Element::F16, [16, 16, 16]),
        (Element::F16, [32, 8, 16]),
        (Element::F16, [8, 32, 16]),
        (Element::Bf16, [16, 8, 16]),
        (Element::Bf16, [8, 32, 16]),
        (Element::Tf32, [16, 8, 4]),
        (Element::Tf32, [16, 8, 8]),
        (Element::Tf32, [16, 16, 8]),
        (Element::F64, [8, 8, 4]),
        (Element::F64, [16, 8, 16]),
        (Element::S8, [8, 8, 16]),
        (Element::S8, [16, 8, 16]),
        (Element::U8, [16, 8, 32]),
        (Element::S8, [16, 16, 16]),
        (Element::U8, [32, 8, 16]),
    ];

    #[test]
    fn every_place_belongs_to_one_element() {
        for (element, [m, n, k]) in FACTORS {
            let sum = if element == Element::F64 { element } else { Element::F32 };
            for (role, rows, columns, element) in
                [(Role::A, m, k, element), (Role::B, k, n, element), (Role::C, m, n, sum)]
            {
                let fragment = Fragment { role, rows, columns, element };
                let mut seen = vec![0; rows * columns];
                for lane in 0..LANES {
                    for element in 0..fragment.elements() {
                        let (row, column) = fragment.place(lane, element);
                        seen[row * columns + column] += 1;
                    }
                }
                assert!(seen.iter().all(|&count| count == 1), "{fragment:?}: {seen:?}");
                let matrix: Vec<u64> = (0..rows * columns)
                    .map(|index| {
                        index as u64 & 0x7f & (u64::MAX >> (64 - fragment.element.width()))
                    })
                    .collect();
                assert_eq!(
                    fragment.gather(&fragment.spread(&matrix, fragment.registers())),
                    matrix
                );
            }
        }
    }

    /// Rows and columns by the ISA's formulas, written out: (fragment, element index, `row`,
    /// `column`). Lane 22 has groupID 5 and threadID_in_group 2.
    #[test]
    fn places_are_those_of_the_isa() {
        let check = |role, rows, columns, element, index, expect| {
            let fragment = Fragment { role, rows, columns, element };
            assert_eq!(fragment.place(22, index), expect, "{fragment:?} element {index}");
        };
        use Element::{F16, F32, F64, S8, Tf32};
        for (index, expect) in [(0, (5, 4)), (1, (5, 5)), (2, (13, 4)), (4, (5, 12)), (7, (13, 13))]
        {
            check(Role::A, 16, 16, F16, index, expect);
        }
        for (index, expect) in [(0, (4, 5)), (1, (5, 5)), (2, (12, 5)), (3, (13, 5))] {
            check(Role::B, 16, 8, F16, index, expect);
        }
        for (index, expect) in [(0, (5, 2)), (1, (13, 2)), (2, (5, 6)), (3, (13, 6))] {
            check(Role::A, 16, 8, Tf32, index, expect);
        }
        for (index, expect) in
            [(0, (5, 8)), (3, (5, 11)), (4, (13, 8)), (8, (5, 24)), (15, (13, 27))]
        {
            check(Role::A, 16, 32, S8, index, expect);
        }
        for (index, expect) in [(0, (8, 5)), (3, (11, 5)), (4, (24, 5)), (7, (27, 5))] {
            check(Role::B, 32, 8, S8, index, expect);
        }
        for (index, expect) in [(0, (5, 4)), (1, (5, 5)), (2, (13, 4)), (3, (13, 5))] {
            check(Role::C, 16, 8, F32, index, expect);
        }
        check(Role::A, 8, 4, F64, 0, (5, 2));
        check(Role::B, 4, 8, F64, 0, (2, 5));
        check(Role::C, 8, 8, F64, 1, (5, 5));
    }

    #[test]
    fn integers_wrap_or_saturate() {
        let of = |role, rows, columns, element| Fragment { role, rows, columns, element };
        let factors = [
            of(Role::A, 8, 16, Element::U8),
            of(Role::B, 16, 8, Element::S8),
            of(Role::C, 8, 8, Element::S32),
        ];
        let (a, b, c) = (vec![255; 128], vec![127; 128], vec![i32::MAX as u64; 64]);
        let wrapped = multiply([&a, &b, &c], factors, Element::S32, Rule::Plain);
        assert_eq!(wrapped[0] as u32 as i32, i32::MAX.wrapping_add(16 * 255 * 127));
        assert_eq!(
            multiply([&a, &b, &c], factors, Element::S32, Rule::Saturate)[63],
            i32::MAX as u64
        );
    }
}
