//! Memory at the addresses between the margins that have none of their own.
//!
//! A kernel may go past its memory, and an address without memory would end the GPU's context. Such
//! addresses therefore map the scratch memory behind the margins, from the window's first launch
//! on. Where memory is allocated later, scratch mappings make room, and so do mappings of other
//! memory that have ended. That may wait for grids ([`Windows::is_free`]). The rest of their
//! addresses is filled again at the next launch.

use super::{Piece, SCRATCH_BYTES, Window, Windows};
use crate::driver::{Context, Failure, Physical, Place};
use crate::zeros::Zeros;
use partita_device::{AddressRange, DeviceError};
use partita_model::WindowId;

/// Mappings that become accessible by one call, which other threads' calls may wait for.
const TOGETHER: u64 = 64;

/// Maps scratch memory over a range of addresses, as often as it takes.
pub(super) fn map(
    context: &Context,
    scratch: &Physical,
    (start, end): (u64, u64),
    mapped: &mut impl FnMut(u64, u64),
) -> Result<(), Failure> {
    let (mut at, mut accessible) = (start, start);
    while at < end {
        let bytes = (end - at).min(scratch.bytes());
        scratch.map_first(at, bytes)?;
        mapped(at, bytes);
        at += bytes;
        if at == end || at - accessible >= TOGETHER * scratch.bytes() {
            context.give_access(accessible, at - accessible, Place::Device)?;
            accessible = at;
        }
    }
    Ok(())
}

/// What a range of addresses is to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Becomes {
    /// An allocation, which uses pieces of the window's memory that are there.
    Memory,
    /// Another address of memory that is mapped elsewhere, too.
    Alias,
    /// Nothing: what was lent there has ended.
    Nothing,
}

impl Becomes {
    /// Whether an unused piece must go.
    pub(super) fn replaces(self, piece: &Piece) -> bool {
        self != Becomes::Memory || piece.alias.is_some() || piece.is_shared
    }
}

impl Windows {
    /// Gives every address of a window memory, before a kernel runs there.
    pub(crate) fn fill(&mut self, id: WindowId) {
        let context = &self.context;
        let Some(window) = self.windows.get_mut(&id).filter(|window| !window.is_filled) else {
            return;
        };
        window.is_filled = true;
        let gaps = window.unfilled();
        let (Some(scratch), filler) = (&window.scratch, &mut window.filler) else { return };
        for gap in gaps {
            let mut note = |at, bytes| {
                filler.insert(at, bytes);
            };
            if let Err(failure) = map(context, scratch, gap, &mut note) {
                tracing::warn!(%failure, "addresses stay unmapped: a kernel that strays there ends \
                    the GPU's context");
                return;
            }
        }
    }

    /// Gives addresses that have lost their memory some again, in a window where every address had
    /// memory: kernels that use them may be on their way.
    pub(crate) fn refill(&mut self, id: WindowId) {
        if self.windows.get(&id).is_some_and(|window| !window.filler.is_empty()) {
            self.fill(id);
        }
    }

    /// Whether nothing that must be unmapped first is in the way of a range.
    pub(crate) fn is_free(&self, id: WindowId, (range, becomes): (AddressRange, Becomes)) -> bool {
        let (first, last) = self.pages(range);
        self.windows.get(&id).is_none_or(|window| {
            let mut pieces = window.pieces_over(first, last).map(|(_, piece)| piece);
            let has_pieces = pieces.any(|piece| piece.users == 0 && becomes.replaces(piece));
            window.filler_over(first, last).is_empty() && !has_pieces
        })
    }

    /// Unmaps what is in the way of a range. The driver may wait for all grids.
    pub(crate) fn clear(
        &mut self,
        id: WindowId,
        (range, becomes): (AddressRange, Becomes),
        zeros: &Zeros,
    ) -> Result<(), DeviceError> {
        let (first, last) = self.pages(range);
        if self.knows(id) {
            self.make_way(id, [first, last], zeros, |piece| becomes.replaces(piece))?;
        }
        let context = &self.context;
        let Some(window) = self.windows.get_mut(&id) else { return Ok(()) };
        for (at, bytes) in window.filler_over(first, last) {
            let unmapped = context.unmap(at, bytes);
            unmapped.map_err(|failure| DeviceError::Unsupported(failure.to_string()))?;
            window.filler.remove(&at);
            window.is_filled = false;
        }
        Ok(())
    }

    fn pages(&self, range: AddressRange) -> (u64, u64) {
        let first = range.start.0 - range.start.0 % self.granularity;
        (first, range.end().next_multiple_of(self.granularity))
    }
}

impl Window {
    fn filler_over(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let from = first.saturating_sub(SCRATCH_BYTES.max(1));
        let near = self.filler.range(from..last).map(|(&at, &bytes)| (at, bytes));
        near.filter(|(at, bytes)| at + bytes > first).collect()
    }

    /// The ranges of addresses without memory.
    fn unfilled(&self) -> Vec<(u64, u64)> {
        let pieces = self.pieces.iter().map(|(&at, piece)| (at, piece.bytes));
        let filler = self.filler.iter().map(|(&at, &bytes)| (at, bytes));
        let host = self.host.as_ref().map(crate::host::HostRange::range);
        let mut taken: Vec<(u64, u64)> = pieces.chain(filler).chain(host).collect();
        taken.push((self.end, 0));
        taken.sort_unstable();
        let mut gaps = Vec::new();
        let mut at = self.base;
        for (start, bytes) in taken {
            if start > at {
                gaps.push((at, start));
            }
            at = at.max(start + bytes);
        }
        gaps
    }
}
