//! The tensor memory of a CTA: 128 lanes of 512 columns of 32 bits (PTX ISA, "Tensor Memory").
//!
//! An address has the lane in its upper half and the column in its lower half. Each CTA has storage
//! of its own for its columns of the SM, from its first allocation until it has no column left.

use super::columns::{Offer, UNIT};

/// Lanes.
pub const ROWS: usize = 128;
/// Columns of 32 bits.
pub const COLUMNS: usize = 512;
/// Lanes that a warp may access.
pub const WARP_ROWS: usize = 32;

/// A place in tensor memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The lane.
    pub row: usize,
    /// The column.
    pub column: usize,
}

impl Cell {
    /// The place that an address names.
    #[must_use]
    pub const fn at(address: u64) -> Self {
        Cell { row: (address >> 16 & 0xffff) as usize, column: (address & 0xffff) as usize }
    }

    /// The place some lanes down and columns right.
    #[must_use]
    pub const fn plus(self, rows: usize, columns: usize) -> Self {
        Cell { row: self.row + rows, column: self.column + columns }
    }
}

/// A CTA's tensor memory.
#[derive(Clone, Debug)]
pub struct TensorMemory {
    /// Row after row, from the first allocation on.
    words: Vec<u32>,
    /// The columns that the CTA has, one bit for 32 of them.
    pub units: u16,
    /// Which of the SM's columns they are ([`super::columns::Claims`]).
    pub side: usize,
    /// Whether it has not given up the permit to allocate.
    pub may_allocate: bool,
    /// The columns that it has chosen for its pair, and waits with.
    pub offer: Option<Offer>,
}

impl Default for TensorMemory {
    fn default() -> Self {
        TensorMemory { words: Vec::new(), units: 0, side: 0, may_allocate: true, offer: None }
    }
}

impl TensorMemory {
    /// Begins with a new CTA.
    pub fn start(&mut self) {
        *self = TensorMemory::default();
    }

    /// Provides the storage.
    pub fn allocate(&mut self, units: u16) {
        self.units |= units;
        if self.words.is_empty() {
            self.words = vec![0; ROWS * COLUMNS];
        }
    }

    /// Takes columns away, and the storage with the last of them.
    pub fn release(&mut self, units: u16) {
        self.units &= !units;
        if self.units == 0 {
            self.words = Vec::new();
        }
    }

    /// `count` words of a row; `None` where one lies outside the columns that the CTA has.
    #[must_use]
    pub fn row(&self, at: Cell, count: usize) -> Option<&[u32]> {
        self.holds(at, count)
            .then(|| self.words.get(at.row * COLUMNS + at.column..)?.get(..count))?
    }

    /// As [`TensorMemory::row`], to be changed.
    pub fn row_mut(&mut self, at: Cell, count: usize) -> Option<&mut [u32]> {
        if !self.holds(at, count) {
            return None;
        }
        self.words.get_mut(at.row * COLUMNS + at.column..)?.get_mut(..count)
    }

    fn holds(&self, at: Cell, count: usize) -> bool {
        let end = at.column.saturating_add(count);
        let unit = |column: usize| self.units >> (column / UNIT) & 1 == 1;
        at.row < ROWS
            && end <= COLUMNS
            && (at.column..end).step_by(UNIT).all(unit)
            && (count == 0 || unit(end - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allocated_columns_are_there() {
        let mut memory = TensorMemory::default();
        assert!(memory.row(Cell::at(0), 1).is_none());
        memory.allocate(0b110);
        let row = memory.row_mut(Cell::at(127 << 16 | 32), 64).unwrap();
        row[63] = 7;
        assert_eq!(memory.row(Cell { row: 127, column: 95 }, 1), Some(&[7][..]));
        for (row, column, count) in
            [(128, 32, 1), (0, 31, 2), (0, 95, 2), (0, 511, 1), (0, 64, 449)]
        {
            assert!(memory.row(Cell { row, column }, count).is_none(), "{row} {column} {count}");
        }
        memory.release(0b100);
        assert_eq!(memory.row(Cell { row: 127, column: 63 }, 1), Some(&[0][..]));
        memory.release(0b010);
        assert!(memory.words.is_empty() && memory.row(Cell::at(32), 1).is_none());
    }
}
