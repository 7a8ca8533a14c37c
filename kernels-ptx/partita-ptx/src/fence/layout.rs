//! How windows lie in the address space, so that an access may stray from a fenced address and
//! still reach nobody else.
//!
//! The address space is divided into *cells*: a power of two of bytes, aligned to that. A tenant's
//! window lies inside one cell and keeps a *margin* clear of both its ends ([`margin_bytes`]).
//! Nothing lies in the margins: on the emulated GPU an access there is a fault, on a real one they
//! are addresses that are reserved and never mapped, or all mapped to one page that nobody uses.
//!
//! ```text
//! cell k - 1 ──┐┌────────────── cell k ──────────────┐┌── cell k + 1
//!    … margin  ││  margin  │   window …   │  margin  ││  margin …
//! ```
//!
//! Then, for a displacement `d` of at most a margin, either way:
//!
//! - `p` in the cell: `p + d` is in the cell or in a neighbour's margin, and never in a neighbour's
//!   window;
//! - `p + d` in the window: `p` is in the cell, so forcing `p` into the cell changes nothing that a
//!   right program does.
//!
//! Cells have two kinds. A full cell has room for a GPU's memory and for wide margins, so that few
//! accesses need a fence of their own. A small cell takes a sixteenth of the addresses, so that
//! thousands of windows exist, and its kernels carry more fences. The widest margin keeps small
//! cells from full ones, because what strays from a full cell would skip a small cell's margin.

/// Bytes at either end of a full cell in which nothing lies: what an unsigned 32-bit index of
/// elements of 16 bytes can span.
pub const MARGIN_BYTES: u64 = 1 << 36;

/// Bits of the smallest full cell.
pub const LEAST_CELL_BITS: u32 = 38;

/// Bits of a small cell.
pub const SMALL_CELL_BITS: u32 = 34;

/// Bytes of the window in a small cell.
pub const SMALL_WINDOW_BYTES: u64 = (1 << SMALL_CELL_BITS) - 2 * margin_bytes(SMALL_CELL_BITS);

/// Bytes at either end of a cell of so many bits in which nothing lies.
///
/// ```
/// use partita_ptx::fence::{MARGIN_BYTES, SMALL_CELL_BITS, margin_bytes};
/// assert_eq!(margin_bytes(38), MARGIN_BYTES);
/// assert_eq!(margin_bytes(SMALL_CELL_BITS), 4 << 30);
/// ```
#[must_use]
pub const fn margin_bytes(cell_bits: u32) -> u64 {
    let quarter = 1 << (cell_bits - 2);
    if quarter < MARGIN_BYTES { quarter } else { MARGIN_BYTES }
}

/// The smallest full cell for a window of so many bytes, as the number of address bits below it. At
/// most 63.
///
/// ```
/// use partita_ptx::fence::{cell_bits, MARGIN_BYTES};
/// assert_eq!(cell_bits(64 << 20), 38);
/// assert_eq!(cell_bits(282 << 30), 39);
/// assert!(2 * MARGIN_BYTES + (282 << 30) <= 1 << 39);
/// ```
#[must_use]
pub const fn cell_bits(window_bytes: u64) -> u32 {
    let mut bits = LEAST_CELL_BITS;
    while bits < 63 && (1 << bits) - 2 * MARGIN_BYTES < window_bytes {
        bits += 1;
    }
    bits
}
