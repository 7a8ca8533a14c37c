//! Where windows lie among the addresses: each in a cell of its own ([`margin_bytes`]).
//!
//! Full cells take the lower part of the addresses, small cells the upper part. What strays from a
//! full cell would skip a small cell's margin, so the widest margin lies between the two parts, and
//! behind the small cells. Cells that were given back are the first to be used again.

use partita_model::AddressPart;
use partita_ptx::fence::{MARGIN_BYTES, SMALL_CELL_BITS, cell_bits, margin_bytes};
use std::collections::BTreeSet;

/// First address of the first window's cell. Everything below belongs to the other spaces' windows
/// or to nothing.
pub const GLOBAL_BASE: u64 = 0x1000_0000_0000;
/// The end of the addresses for windows.
pub(super) const ADDRESS_END: u64 = 1 << 47;

/// Eighths of the addresses that are for full cells. The rest has room for 4,096 small ones.
const FULL_EIGHTHS: u64 = 3;

/// A cell in use.
#[derive(Debug)]
pub(super) struct Cell {
    start: u64,
    bits: u32,
}

impl Cell {
    pub fn window_base(&self) -> u64 {
        self.start + margin_bytes(self.bits)
    }
}

/// Cells of one kind.
#[derive(Debug)]
struct Region {
    /// The end of the last cell that was ever used.
    next: u64,
    end: u64,
    /// Cells that were given back: bits and first address.
    vacant: BTreeSet<(u32, u64)>,
}

impl Region {
    fn new(start: u64, end: u64) -> Self {
        Region { next: start, end, vacant: BTreeSet::new() }
    }

    /// A cell of `bits` address bits; the error is the bytes of addresses that are left.
    fn take(&mut self, bits: u32) -> Result<Cell, u64> {
        let found = self.vacant.range((bits, 0)..=(bits, u64::MAX)).next().copied();
        if let Some(found) = found {
            self.vacant.remove(&found);
            return Ok(Cell { start: found.1, bits });
        }
        let start = self.next.next_multiple_of(1 << bits);
        if self.end.saturating_sub(start) < 1 << bits {
            return Err(self.end.saturating_sub(self.next));
        }
        self.next = start + (1 << bits);
        Ok(Cell { start, bits })
    }
}

/// All cells of a device.
#[derive(Debug)]
pub(super) struct Cells {
    full: Region,
    small: Region,
    /// Where the full cells' part of the addresses begins.
    start: u64,
    least_bits: u32,
}

impl Cells {
    /// Full cells have at least `least_bits` address bits.
    pub fn new(part: AddressPart, least_bits: u32) -> Self {
        let part = part.of(GLOBAL_BASE..ADDRESS_END);
        let border = part.start + (part.end - part.start) / 8 * FULL_EIGHTHS;
        Cells {
            full: Region::new(part.start, border),
            small: Region::new(border + MARGIN_BYTES, part.end - MARGIN_BYTES),
            start: part.start,
            least_bits,
        }
    }

    fn bits(&self, bytes: u64) -> u32 {
        cell_bits(bytes).max(self.least_bits)
    }

    /// The number of full cells for windows of `bytes` bytes.
    pub fn full_windows(&self, bytes: u64) -> usize {
        let cell = 1 << self.bits(bytes);
        let room = self.full.end.saturating_sub(self.start.next_multiple_of(cell));
        usize::try_from(room / cell).unwrap_or(usize::MAX)
    }

    /// A full cell for a window of `bytes` bytes; the error is the bytes that are left.
    pub fn full(&mut self, bytes: u64) -> Result<Cell, u64> {
        self.full.take(self.bits(bytes))
    }

    /// A small cell; the error is the bytes of addresses that are left.
    pub fn small(&mut self) -> Result<Cell, u64> {
        self.small.take(SMALL_CELL_BITS)
    }

    pub fn give_back(&mut self, cell: Cell) {
        let region = if cell.start < self.full.end { &mut self.full } else { &mut self.small };
        region.vacant.insert((cell.bits, cell.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_small_cells_keep_clear_of_full_ones() {
        for part in ["0/1", "0/8", "7/8"].map(|text| AddressPart::parse(text).unwrap()) {
            let mut cells = Cells::new(part, 0);
            let full: Vec<Cell> = std::iter::from_fn(|| cells.full(1 << 30).ok()).collect();
            let small: Vec<Cell> = std::iter::from_fn(|| cells.small().ok()).collect();
            assert_eq!(full.len(), cells.full_windows(1 << 30));
            let least = if part.is_whole() { (160, 4096) } else { (20, 500) };
            assert!(full.len() >= least.0 && small.len() >= least.1, "{part:?}: {}", small.len());
            let end = |cell: &Cell| cell.start + (1 << cell.bits);
            for pair in full.windows(2).chain(small.windows(2)) {
                assert!(end(&pair[0]) <= pair[1].start);
            }
            let all = part.of(GLOBAL_BASE..ADDRESS_END);
            let (last, first) = (&full[full.len() - 1], &small[0]);
            assert!(all.start <= full[0].start && end(last) + MARGIN_BYTES <= first.start);
            assert!(end(&small[small.len() - 1]) + MARGIN_BYTES <= all.end);
        }
    }

    #[test]
    fn a_cell_that_was_given_back_is_used_again() {
        let mut cells = Cells::new(AddressPart::WHOLE, 0);
        let (full, small) = (cells.full(1 << 30).unwrap(), cells.small().unwrap());
        let starts = (full.start, small.start);
        let (other, another) = (cells.full(1 << 30).unwrap(), cells.small().unwrap());
        cells.give_back(small);
        cells.give_back(full);
        assert_eq!((cells.full(1 << 30).unwrap().start, cells.small().unwrap().start), starts);
        let next = (cells.full(1 << 30).unwrap().start, cells.small().unwrap().start);
        assert_eq!(next, (other.start + (1 << 38), another.start + (1 << 34)));
    }
}
