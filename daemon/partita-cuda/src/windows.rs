//! Device memory: cells of reserved addresses, and physical memory mapped into them.
//!
//! A window lies in a cell of its own, a power of two of addresses aligned to that, and keeps [`MARGIN_BYTES`] clear of both ends
//! ([`mod@partita_ptx::fence`]); the margins are reserved and never mapped. Inside, physical memory is mapped in whole pages of the
//! driver's granularity, as large pieces as an allocation needs, and each piece stays as long as any allocation lies in it.
//!
//! # Invariants
//!
//! - A piece that nobody uses any more stays mapped, for the next allocation of the same tenant there, until memory is
//!   short or its window goes: unmapping may wait for the device.
//! - New pieces are told to the caller, who fills them with zeros before anyone can read them: they may have been another
//!   tenant's.

use crate::driver::{Context, Failure, Place};
use partita_device::{AddressRange, DeviceError};
use partita_model::{DeviceAddress, WindowId};
use partita_ptx::fence::{MARGIN_BYTES, cell_bits};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Piece {
    bytes: u64,
    /// Allocations in it.
    users: u32,
    place: Place,
}

struct Window {
    /// What was taken for its cell: start and length.
    addresses: (u64, u64),
    base: u64,
    bytes: u64,
    /// Allocations: start and length.
    live: BTreeMap<u64, u64>,
    pieces: BTreeMap<u64, Piece>,
}

/// What is left of a window: addresses and mapped pieces, to be given back where nobody waits for it.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    addresses: Option<(u64, u64)>,
    pieces: Vec<(u64, u64)>,
}

impl Remains {
    /// Gives it back.
    pub(crate) fn give_back(self, context: &Context) -> Result<(), Failure> {
        for (start, bytes) in self.pieces {
            context.unmap(start, bytes)?;
        }
        self.addresses.map_or(Ok(()), |(start, bytes)| context.unreserve(start, bytes))
    }
}

/// Every window.
pub(crate) struct Windows {
    context: Arc<Context>,
    granularity: u64,
    windows: BTreeMap<WindowId, Window>,
    by_base: BTreeMap<u64, WindowId>,
}

impl Windows {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Failure> {
        let granularity = context.granularity()?;
        Ok(Windows {
            context: Arc::clone(context),
            granularity,
            windows: BTreeMap::new(),
            by_base: BTreeMap::new(),
        })
    }

    pub(crate) fn reserve(&mut self, id: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        if self.windows.contains_key(&id) {
            return Err(DeviceError::BadId(id.to_string()));
        }
        let bytes = bytes.checked_next_multiple_of(self.granularity);
        let bytes = bytes.ok_or(DeviceError::OutOfMemory { wanted: u64::MAX, available: 0 })?;
        let cell_bytes = 1_u64 << cell_bits(bytes);
        let (cell, addresses) =
            self.cell(cell_bytes).map_err(|_| DeviceError::OutOfMemory { wanted: bytes, available: 0 })?;
        let base = cell + MARGIN_BYTES;
        let window = Window { addresses, base, bytes, live: BTreeMap::new(), pieces: BTreeMap::new() };
        self.windows.insert(id, window);
        self.by_base.insert(base, id);
        Ok(DeviceAddress(base))
    }

    /// A cell of so many bytes, and the addresses that were taken for it: more, where the driver does not align so far.
    fn cell(&self, bytes: u64) -> Result<(u64, (u64, u64)), Failure> {
        if let Ok(cell) = self.context.reserve(bytes, bytes) {
            if cell.is_multiple_of(bytes) {
                return Ok((cell, (cell, bytes)));
            }
            self.context.unreserve(cell, bytes)?;
        }
        let start = self.context.reserve(2 * bytes, 0)?;
        Ok((start.next_multiple_of(bytes), (start, 2 * bytes)))
    }

    pub(crate) fn release(&mut self, id: WindowId) -> Result<Remains, DeviceError> {
        let window = self.windows.remove(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        self.by_base.remove(&window.base);
        let pieces = window.pieces.iter().map(|(&start, piece)| (start, piece.bytes)).collect();
        Ok(Remains { addresses: Some(window.addresses), pieces })
    }

    /// Makes a range live; returns the pieces that are new.
    pub(crate) fn allocate(
        &mut self,
        id: WindowId,
        range: AddressRange,
        place: Place,
    ) -> Result<Vec<(u64, u64)>, DeviceError> {
        let bad_range = DeviceError::BadRange { address: range.start, bytes: range.bytes };
        let granularity = self.granularity;
        let window = self.windows.get_mut(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        let (start, end) = (range.start.0, range.end());
        let inside = range.bytes > 0 && start >= window.base && end <= window.base + window.bytes;
        let before = window.live.range(..end).next_back();
        if !inside || before.is_some_and(|(&at, &bytes)| at + bytes > start) {
            return Err(bad_range);
        }
        let (first, last) = (start - start % granularity, end.next_multiple_of(granularity));
        if window.pieces_over(start, end).any(|(_, piece)| piece.place != place) {
            return Err(bad_range);
        }
        let gaps = window.gaps(first, last);
        let mut made = Vec::new();
        for (at, bytes) in gaps {
            match self.map(at, bytes, place) {
                Ok(()) => made.push((at, bytes)),
                Err(failure) => {
                    for (at, bytes) in made {
                        let _ = self.context.unmap(at, bytes);
                    }
                    let available = self.context.memory().map_or(0, |(free, _)| free);
                    return Err(if failure.is_out_of_memory() {
                        DeviceError::OutOfMemory { wanted: range.bytes, available }
                    } else {
                        DeviceError::Unsupported(failure.to_string())
                    });
                }
            }
        }
        let Some(window) = self.windows.get_mut(&id) else { return Err(bad_range) };
        for &(at, bytes) in &made {
            window.pieces.insert(at, Piece { bytes, users: 0, place });
        }
        window.count(start, end, |users| users + 1);
        window.live.insert(start, range.bytes);
        Ok(made)
    }

    /// Maps a piece; where memory is short, what nobody uses goes first.
    fn map(&mut self, at: u64, bytes: u64, place: Place) -> Result<(), Failure> {
        match self.context.map(at, bytes, place) {
            Err(failure) if failure.is_out_of_memory() && self.unmap_unused()? => {
                self.context.map(at, bytes, place)
            }
            result => result,
        }
    }

    /// Unmaps what nobody uses; whether there was any.
    fn unmap_unused(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        for window in self.windows.values_mut() {
            let unused: Vec<u64> =
                window.pieces.iter().filter(|(_, piece)| piece.users == 0).map(|(&at, _)| at).collect();
            for at in unused {
                if let Some(piece) = window.pieces.remove(&at) {
                    self.context.unmap(at, piece.bytes)?;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    pub(crate) fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        let bad_range = DeviceError::BadRange { address, bytes: 0 };
        let window = self.window_of(address.0).and_then(|id| self.windows.get_mut(&id));
        let window = window.ok_or_else(|| bad_range.clone())?;
        let bytes = window.live.remove(&address.0).ok_or(bad_range)?;
        window.count(address.0, address.0 + bytes, |users| users.saturating_sub(1));
        Ok(())
    }

    /// The window that an address lies in.
    pub(crate) fn window_of(&self, address: u64) -> Option<WindowId> {
        let (_, id) = self.by_base.range(..=address).next_back()?;
        let window = self.windows.get(id)?;
        (address < window.base + window.bytes).then_some(*id)
    }

    pub(crate) fn knows(&self, id: WindowId) -> bool {
        self.windows.contains_key(&id)
    }

    /// Where a range lies, if all of it is mapped, in pieces of one place.
    pub(crate) fn place_of(&self, address: DeviceAddress, bytes: u64) -> Option<Place> {
        let end = address.0.checked_add(bytes)?;
        let window = self.windows.get(&self.window_of(address.0)?)?;
        let mut at = address.0;
        let mut found = None;
        for (&start, piece) in window.pieces_over(address.0, end) {
            if start > at || found.is_some_and(|place| place != piece.place) {
                return None;
            }
            found = Some(piece.place);
            at = start + piece.bytes;
        }
        if at >= end { found } else { None }
    }
}

impl Window {
    fn pieces_over(&self, start: u64, end: u64) -> impl Iterator<Item = (&u64, &Piece)> {
        let first = self.pieces.range(..=start).next_back().map_or(start, |(&at, _)| at);
        self.pieces.range(first..end).filter(move |(at, piece)| **at + piece.bytes > start)
    }

    /// What is not mapped between two page borders.
    fn gaps(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = first;
        for (&start, piece) in self.pieces_over(first, last) {
            if start > at {
                gaps.push((at, start - at));
            }
            at = start + piece.bytes;
        }
        if at < last {
            gaps.push((at, last - at));
        }
        gaps
    }

    fn count(&mut self, start: u64, end: u64, change: impl Fn(u32) -> u32) {
        let over: Vec<u64> = self.pieces_over(start, end).map(|(&at, _)| at).collect();
        for at in over {
            if let Some(piece) = self.pieces.get_mut(&at) {
                piece.users = change(piece.users);
            }
        }
    }
}
