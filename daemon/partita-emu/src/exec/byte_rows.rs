//! `ldmatrix` and `stmatrix` of elements of 8 bits, and of 4 and 6 bits that become bytes (PTX ISA,
//! "Warp-level matrix load instruction", "Warp-level matrix store instruction").
//!
//! A line of 16 bytes lies at the address of each lane, line after line. Elements of 4 and 6 bits
//! are packed at the beginning of a line and lie at the lower end of their bytes in registers.
//! `.trans` makes a line a column of the matrix: a lane then has bytes of four columns.

use super::access::{read_bytes, write_bytes};
use super::matrix::Register;
use super::rows::LANES;
use super::step::{Env, Trouble};

/// The shape and the format of the matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRows {
    /// Bits of an element in memory: 8, 6 or 4.
    pub bits: u32,
    /// Whether a matrix has 16 columns that are lines (`.m16n16.trans`), else 8 rows.
    pub transposed: bool,
}

/// Bytes of a line.
const LINE: usize = 16;

type Outcome<T> = Result<T, Box<Trouble>>;

impl ByteRows {
    /// Lines in memory for a number of registers a lane. A transposed load has 16 lines for two.
    #[must_use]
    pub const fn lines(self, registers: usize) -> usize {
        8 * registers
    }

    /// The 16 elements of a line.
    fn unpack(self, line: [u8; LINE]) -> [u8; LINE] {
        let all = u128::from_le_bytes(line);
        let mask = (1_u128 << self.bits) - 1;
        std::array::from_fn(|index| (all >> (self.bits * index as u32) & mask) as u8)
    }
}

/// The registers of a load.
pub fn load(
    rows: ByteRows,
    env: &mut Env<'_>,
    (warp, pc): (usize, usize),
    addresses: &Register,
    count: usize,
) -> Outcome<Vec<Register>> {
    let mut lines = [[0; LINE]; LANES];
    for (lane, line) in lines.iter_mut().enumerate().take(rows.lines(count)) {
        read_bytes(env, (warp, lane, pc), addresses[lane], line)?;
        *line = rows.unpack(*line);
    }
    let byte = |lane: usize, register: usize, part: usize| {
        let (group, first) = (lane / 4, 4 * (lane % 4));
        if rows.transposed {
            // Two registers a matrix: rows 0 to 7, and 8 to 15.
            lines[16 * (register / 2) + first + part][8 * (register % 2) + group]
        } else {
            lines[8 * register + group][first + part]
        }
    };
    Ok((0..count)
        .map(|register| {
            std::array::from_fn(|lane| {
                let word = std::array::from_fn(|part| byte(lane, register, part));
                u64::from(u32::from_le_bytes(word))
            })
        })
        .collect())
}

/// `stmatrix.m16n8.trans`: a line is a column of 16 bytes. A lane has rows `g` and `g + 8` of two
/// columns, as in the fragment of a sum.
pub fn store(
    env: &mut Env<'_>,
    (warp, pc): (usize, usize),
    addresses: &Register,
    registers: &[Register],
) -> Outcome<()> {
    for (index, register) in registers.iter().enumerate() {
        for column in 0..8 {
            let line: [u8; LINE] = std::array::from_fn(|row| {
                let word = (register[4 * (row % 8) + column / 2] as u32).to_le_bytes();
                word[2 * (row / 8) + column % 2]
            });
            let lane = 8 * index + column;
            write_bytes(env, (warp, lane, pc), addresses[lane & 31], &line)?;
        }
    }
    Ok(())
}
