//! Cells: the addresses of one window, aligned to their size, with memory in both margins, and the
//! holes in cells.

use super::{Addresses, SCRATCH_BYTES, filler};
use crate::driver::{Context, Failure, Physical, Place};
use partita_model::AddressPart;
use partita_ptx::fence::MARGIN_BYTES;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Addresses that several GPUs share: above the driver's own, and below those of libraries and
/// stacks.
const CELLS: Range<u64> = 0x1000_0000_0000..0x7000_0000_0000;

/// Attempts to reserve addresses again that were just released. Another thread of the process may
/// take them in between.
const ATTEMPTS: u32 = 8;

/// A cell without a window.
pub(super) struct Cell {
    /// The address ranges reserved for it.
    pub(super) addresses: Vec<Addresses>,
    /// The window lies from here to `end`.
    pub(super) base: u64,
    pub(super) end: u64,
    /// The memory behind the margins.
    pub(super) scratch: Option<Physical>,
    /// The margins' mappings.
    pub(super) margins: Vec<Addresses>,
}

/// Makes cells, on any thread whose context is the GPU's.
#[derive(Clone)]
pub(super) struct Cells {
    pub(super) context: Arc<Context>,
    pub(super) granularity: u64,
    /// Address bits of every tenant's cell. No cell is larger.
    pub(super) cell_bits: u32,
    /// This device's part of the addresses of several GPUs.
    pub(super) part: AddressPart,
    /// Held while addresses are released and reserved again.
    pub(super) addresses: Arc<Mutex<()>>,
}

impl Cells {
    /// Makes a cell. `taken` says at which addresses cells begin already, as far as that is known.
    pub(super) fn make(&self, taken: &dyn Fn(u64) -> bool) -> Result<Cell, Failure> {
        let bytes = 1_u64 << self.cell_bits;
        let (cell, addresses) = self.reserve(bytes, taken)?;
        let (base, end) = (cell + MARGIN_BYTES, cell + bytes - MARGIN_BYTES);
        let addresses = self.part_cell(addresses, [base, end]);
        let held =
            |at: u64| addresses.iter().any(|(start, bytes)| (*start..start + bytes).contains(&at));
        if ![cell, base, cell + bytes - 1].into_iter().all(held) {
            // Other code of the process took them while they were released.
            for (start, bytes) in addresses {
                if let Err(failure) = self.context.unreserve(start, bytes) {
                    tracing::warn!(%failure, "addresses stay reserved");
                }
            }
            return Err(Failure::no_addresses());
        }
        let (scratch, margins) = self.fill_margins([(cell, base), (end, cell + bytes)]);
        Ok(Cell { addresses, base, end, scratch, margins })
    }

    /// Maps scratch memory over the addresses beside the window and returns the mappings. A stray
    /// access faults where mapping failed.
    fn fill_margins(&self, ranges: [Addresses; 2]) -> (Option<Physical>, Vec<Addresses>) {
        let mut mapped = Vec::new();
        let mut fill = || -> Result<Physical, Failure> {
            let bytes = SCRATCH_BYTES.next_multiple_of(self.granularity);
            let scratch = self.context.create(bytes, Place::Device)?;
            for (start, end) in ranges {
                filler::map(&self.context, &scratch, (start, end), &mut |at, bytes| {
                    mapped.push((at, bytes));
                })?;
            }
            Ok(scratch)
        };
        let scratch = fill().inspect_err(|failure| {
            tracing::warn!(%failure, "margins stay unmapped: a kernel that strays there ends the \
                GPU's context");
        });
        (scratch.ok(), mapped)
    }

    /// Reserves the addresses of a cell. Returns its start and the reserved range, which is larger
    /// where the driver does not align enough.
    fn reserve(
        &self,
        bytes: u64,
        taken: &dyn Fn(u64) -> bool,
    ) -> Result<(u64, Addresses), Failure> {
        let _alone = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.part.is_whole() {
            return self.reserve_in_part(bytes, taken);
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
    fn reserve_in_part(
        &self,
        bytes: u64,
        taken: &dyn Fn(u64) -> bool,
    ) -> Result<(u64, Addresses), Failure> {
        let addresses = self.part.of(CELLS);
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

    /// Splits a reserved range at two borders. [`super::Windows::map_host`] can then release the
    /// middle and leave a hole. On failure the range stays whole.
    fn part_cell(&self, whole: Addresses, [first, last]: [u64; 2]) -> Vec<Addresses> {
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
        let _alone = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
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
