//! How windows lie in the address space, so that an access may stray from a fenced address and
//! still reach nobody else.
//!
//! The address space is divided into *cells*: a power of two of bytes, aligned to that. A tenant's
//! window lies inside one cell and keeps [`MARGIN_BYTES`] clear of both its ends. Nothing lies in
//! the margins: on the emulated GPU an access there is a fault, on a real one they are addresses
//! that are reserved and never mapped, or all mapped to one page that nobody uses.
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

/// Bytes at either end of a cell in which nothing lies: what an unsigned 32-bit index of
/// elements of 16 bytes can span.
pub const MARGIN_BYTES: u64 = 1 << 36;

/// Bits of the smallest cell.
pub const LEAST_CELL_BITS: u32 = 38;

/// The smallest cell for a window of so many bytes, as the number of address bits below it. At most
/// 63.
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
