//! Fragments of matrices over the lanes of a warp, and their elements. Pure functions;
//! [`super::product`] multiplies.
//!
//! Layouts of `mma` follow the PTX ISA, "Warp-level Matrix Multiply-Accumulate Instructions",
//! "Matrix Fragments for mma.m8n8k4 … mma.m16n8k32". With `g` = lane / 4 and `t` = lane % 4 they
//! are all one: a 32-bit register (64-bit for f64) holds `e` neighbouring elements of a row of A or
//! a column of B that start at `e * t`, and each further register of A goes 8 rows down first and
//! then `4 * e` columns right. The layouts of `wmma` are the implementation's own by the ISA
//! ("Matrix Fragments for WMMA"); here they are tiles of the same shape. Its f16 fragments of A and
//! B have more elements than the matrix; the further ones repeat the first.

use super::narrow::{E2M1, E2M3, E3M2, Narrow};
use super::rows::LANES;
use std::sync::Arc;

/// The type of an element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX type of that name")]
pub enum Element {
    B1,
    S4,
    U4,
    E4m3,
    E5m2,
    /// Six bits at the lower end of a byte.
    E3m2,
    /// Six bits at the lower end of a byte.
    E2m3,
    /// Four bits, two numbers a byte.
    E2m1,
    /// The same four bits in the middle of a byte.
    E2m1InByte,
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
            Element::S4 | Element::U4 | Element::E2m1 => 4,
            Element::S8 | Element::U8 | Element::E4m3 | Element::E5m2 => 8,
            Element::E3m2 | Element::E2m3 | Element::E2m1InByte => 8,
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

    /// The format of an element of four or six bits, and the place of its lowest bit.
    #[must_use]
    pub const fn narrow(self) -> Option<(Narrow, u32)> {
        match self {
            Element::E3m2 => Some((E3M2, 0)),
            Element::E2m3 => Some((E2M3, 0)),
            Element::E2m1 => Some((E2M1, 0)),
            Element::E2m1InByte => Some((E2M1, 2)),
            _ => None,
        }
    }

    /// Whether sums of it are sums of integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        use Element::{B1, S4, S8, S32, U4, U8};
        matches!(self, B1 | S4 | U4 | S8 | U8 | S32)
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
}

/// A fragment with the places of its elements. Finding a place takes divisions, and a product has
/// hundreds.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The fragment.
    pub fragment: Fragment,
    /// Where each element of each lane lies in the matrix given row after row, lane after lane.
    places: Arc<[u16]>,
}

impl Layout {
    /// The layout of a fragment.
    #[must_use]
    pub fn new(fragment: Fragment) -> Self {
        let places = (0..fragment.elements())
            .flat_map(|element| (0..LANES).map(move |lane| fragment.place(lane, element)))
            .map(|(row, column)| (row * fragment.columns + column) as u16)
            .collect();
        Self { fragment, places }
    }

    /// Register and shift of an element, and its places.
    fn elements(&self) -> impl Iterator<Item = (usize, usize, &[u16; LANES])> {
        let (per, width) = (self.fragment.element.per_register(), self.fragment.element.width());
        let places = self.places.as_chunks().0;
        places
            .iter()
            .enumerate()
            .map(move |(element, places)| (element / per, width * (element % per), places))
    }

    /// The whole matrix, row after row.
    #[must_use]
    pub fn gather(&self, registers: &[Register]) -> Vec<u64> {
        let mut matrix = vec![0; self.fragment.rows * self.fragment.columns];
        let ones = u64::MAX >> (64 - self.fragment.element.width());
        for (register, shift, places) in self.elements() {
            let Some(register) = registers.get(register) else { continue };
            for (place, bits) in places.iter().zip(register) {
                matrix[usize::from(*place)] = bits >> shift & ones;
            }
        }
        matrix
    }

    /// The fragment of a matrix given row after row, in `count` registers.
    #[must_use]
    pub fn spread(&self, matrix: &[u64], count: usize) -> Vec<Register> {
        let mut registers = vec![[0; LANES]; count];
        let per = self.fragment.element.per_register();
        let width = self.fragment.element.width();
        for (element, places) in self.places.as_chunks::<LANES>().0.iter().cycle().enumerate() {
            let Some(register) = registers.get_mut(element / per) else { break };
            for (bits, place) in register.iter_mut().zip(places) {
                *bits |= matrix[usize::from(*place)] << (width * (element % per));
            }
        }
        registers
    }
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
                let layout = Layout::new(fragment);
                let registers = layout.spread(&matrix, fragment.registers());
                assert_eq!(layout.gather(&registers), matrix);
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
}
