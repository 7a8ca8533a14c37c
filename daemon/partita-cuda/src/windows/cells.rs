//! Addresses of cells: one cell for a window, aligned to its size, and the holes in cells.

use super::{Addresses, Window, Windows};
use crate::driver::Failure;
use std::ops::Range;

/// Addresses that several GPUs share: above the driver's own, and below those of libraries and
/// stacks.
const CELLS: Range<u64> = 0x1000_0000_0000..0x7000_0000_0000;

/// Attempts to reserve addresses again that were just released. Another thread of the process may
/// take them in between.
const ATTEMPTS: u32 = 8;

impl Windows {
    /// Reserves an address cell. Returns its start and the reserved range, which is larger where
    /// the driver does not align enough.
    pub(super) fn cell(&self, bytes: u64) -> Result<(u64, Addresses), Failure> {
        if !self.part.is_whole() {
            return self.cell_in_part(bytes);
        }
        if let Ok(cell) = self.context.reserve(bytes, bytes, 0) {
            if cell.is_multiple_of(bytes) {
                return Ok((cell, (cell, bytes)));
            }
            self.context.unreserve(cell, bytes)?;
        }
        let start = self.context.reserve(2 * bytes, 0, 0)?;
        Ok((start.next_multiple_of(bytes), (start, 2 * bytes)))
    }

    /// Reserves a cell among this GPU's addresses, at the first place that the driver grants. Other
    /// processes hold the other GPUs, and a program may have windows of all of them.
    fn cell_in_part(&self, bytes: u64) -> Result<(u64, Addresses), Failure> {
        let addresses = self.part.of(CELLS);
        let is_start = |window: &Window, at| window.addresses.iter().any(|(start, _)| *start == at);
        let taken = |at: u64| self.windows.values().any(|window| is_start(window, at));
        let mut at = addresses.start.next_multiple_of(bytes);
        let mut refused = None;
        while at.checked_add(bytes).is_some_and(|end| end <= addresses.end) {
            if !taken(at) {
                match self.context.reserve(bytes, 0, at) {
                    Ok(start) if start == at => return Ok((at, (at, bytes))),
                    // The driver returned another address, so the place is taken.
                    Ok(start) => self.context.unreserve(start, bytes)?,
                    Err(failure) => refused = Some(failure),
                }
            }
            at += bytes;
        }
        Err(refused.unwrap_or_else(Failure::no_addresses))
    }

    /// Splits a reserved range at two borders. [`Windows::map_host`] can then release the middle
    /// and leave a hole. On failure the range stays whole.
    pub(super) fn part_cell(&self, whole: Addresses, [first, last]: [u64; 2]) -> Vec<Addresses> {
        let (start, bytes) = whole;
        let parts = [(start, first - start), (first, last - first), (last, start + bytes - last)];
        match self.take_anew(&[whole], &parts, || Ok(())) {
            Ok(((), taken)) => taken,
            Err(taken) => taken,
        }
    }

    /// Releases addresses and reserves parts of them again, around a call of `between` for the
    /// rest. On failure it reserves the released addresses again where possible, and returns these
    /// as its error.
    pub(super) fn take_anew<T>(
        &self,
        given: &[Addresses],
        wanted: &[Addresses],
        between: impl Fn() -> std::io::Result<T>,
    ) -> Result<(T, Vec<Addresses>), Vec<Addresses>> {
        let take = |parts: &[Addresses]| {
            let mut taken = Vec::new();
            for &(start, bytes) in parts.iter().filter(|(_, bytes)| *bytes > 0) {
                match self.context.reserve(bytes, 0, start) {
                    Ok(at) if at == start => taken.push((start, bytes)),
                    Ok(at) => {
                        let _ = self.context.unreserve(at, bytes);
                    }
                    Err(failure) => tracing::debug!(%failure, "cannot reserve the addresses again"),
                }
            }
            taken
        };
        let give = |parts: &[Addresses]| {
            for &(start, bytes) in parts {
                if let Err(failure) = self.context.unreserve(start, bytes) {
                    tracing::warn!(%failure, "addresses stay reserved");
                }
            }
        };
        let mut held = given.to_vec();
        for _ in 0..ATTEMPTS {
            give(&held);
            if let Ok(done) = between() {
                held = take(wanted);
                if held.len() == wanted.iter().filter(|(_, bytes)| *bytes > 0).count() {
                    return Ok((done, held));
                }
                give(&held);
            }
            held = take(given);
        }
        Err(held)
    }
}
