//! Memory at several addresses (CUDA Driver API, "Virtual Memory Management").
//!
//! An allocation that is to be mapped at further addresses gets physical memory of its own, in one
//! piece, with its contents. Its first address keeps only its name. Each further address is a
//! mapping of that memory. One more mapping, outside of every window, serves for filling it.
//!
//! Mappings that have ended stay until other memory needs their addresses, memory is short or the
//! window goes, as all pieces do.

use super::{Addresses, Becomes, Piece, Remains, Window, Windows};
use crate::driver::{Failure, Physical, Place};
use crate::zeros::Zeros;
use partita_device::{AddressRange, DeviceError};
use partita_model::{DeviceAddress, MemoryAccess, WindowId};
use std::sync::Arc;

/// An allocation's own memory.
pub(super) struct Own {
    pub(super) physical: Arc<Physical>,
    /// The address of the mapping outside all windows. Memory of another window has it there.
    pub(super) start: Option<u64>,
    /// Whether another window has the memory, too.
    pub(super) is_shared: bool,
}

impl Own {
    /// The addresses outside all windows.
    pub(super) fn view(&self) -> Option<Addresses> {
        Some((self.start?, self.physical.bytes()))
    }

    /// The addresses and mappings to release after the allocation's end. Mappings keep the memory
    /// alive.
    pub(super) fn remains(self) -> Remains {
        let view: Vec<Addresses> = self.view().into_iter().collect();
        Remains { addresses: view.clone(), pieces: view, ..Remains::default() }
    }
}

/// A copy that must precede the use of memory at its new addresses: target, source, bytes, and the
/// bytes to zero after them.
pub(crate) struct Moved {
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: u64,
    pub(crate) rest: Addresses,
}

pub(super) fn unsupported(why: &str) -> DeviceError {
    DeviceError::Unsupported(format!("memory at several addresses: {why}"))
}

pub(super) fn refused(failure: &Failure) -> DeviceError {
    unsupported(&failure.to_string())
}

impl Windows {
    /// Unmaps unused pieces between two page borders, where `which` agrees.
    pub(super) fn make_way(
        &mut self,
        id: WindowId,
        [first, last]: [u64; 2],
        zeros: &Zeros,
        which: impl Fn(&Piece) -> bool,
    ) -> Result<&mut Window, DeviceError> {
        let context = &self.context;
        let window = self.windows.get_mut(&id).ok_or_else(|| DeviceError::BadId(id.to_string()))?;
        let unused = |(_, piece): &(&u64, &Piece)| piece.users == 0 && which(piece);
        let unused: Vec<u64> =
            window.pieces_over(first, last).filter(unused).map(|(&at, _)| at).collect();
        for at in unused {
            let Some(piece) = window.pieces.get(&at) else { continue };
            if zeros.pending(at, piece.bytes).is_some() {
                return Err(unsupported("it is being filled with zeros"));
            }
            context.unmap(at, piece.bytes).map_err(|failure| refused(&failure))?;
            window.pieces.remove(&at);
            window.is_filled = false;
        }
        Ok(window)
    }

    /// Gives an allocation its own memory if it has none. Returns the copy that this requires.
    pub(crate) fn make_own(
        &mut self,
        home: DeviceAddress,
        zeros: &Zeros,
    ) -> Result<Option<Moved>, DeviceError> {
        let bad_range = DeviceError::BadRange { address: home, bytes: 0 };
        let id = self.window_of(home.0).ok_or_else(|| bad_range.clone())?;
        let window = self.windows.get(&id).ok_or_else(|| bad_range.clone())?;
        let bytes = *window.live.get(&home.0).ok_or_else(|| bad_range.clone())?;
        if window.own.contains_key(&home.0) {
            return Ok(None);
        }
        let pieces: Vec<&Piece> =
            window.pieces_over(home.0, home.0 + bytes).map(|(_, piece)| piece).collect();
        if pieces.iter().any(|piece| piece.alias.is_some() || piece.place != Place::Device) {
            return Err(unsupported("it is one of several addresses itself"));
        }
        if pieces.iter().any(|piece| piece.is_shared) {
            return Err(unsupported("another process has opened it before it was mapped"));
        }
        let whole = bytes.next_multiple_of(self.granularity);
        let make = |windows: &Windows| -> Result<(Physical, u64), Failure> {
            let physical = windows.context.create(whole, Place::Device)?;
            let start = windows.context.reserve(whole, 0, 0)?;
            let mapped = physical
                .map(start)
                .and_then(|()| windows.context.give_access(start, whole, Place::Device));
            match mapped {
                Ok(()) => Ok((physical, start)),
                Err(failure) => {
                    let _ = windows.context.unmap(start, whole);
                    windows.context.unreserve(start, whole)?;
                    Err(failure)
                }
            }
        };
        let made = match make(self) {
            Err(failure)
                if failure.is_out_of_memory()
                    && self.unmap_unused(&(0, 0), zeros).unwrap_or(false) =>
            {
                make(self)
            }
            made => made,
        };
        let (physical, start) = made.map_err(|failure| {
            let available = self.context.memory().map_or(0, |(free, _)| free);
            let out = DeviceError::OutOfMemory { wanted: whole, available };
            if failure.is_out_of_memory() { out } else { refused(&failure) }
        })?;
        let moved = Moved { to: start, from: home.0, bytes, rest: (start + bytes, whole - bytes) };
        let window = self.windows.get_mut(&id).ok_or(bad_range)?;
        let own = Own { physical: Arc::new(physical), start: Some(start), is_shared: false };
        window.own.insert(home.0, own);
        window.leave(home.0, home.0 + bytes);
        Ok(Some(moved))
    }

    /// Maps the first bytes of an allocation with its own memory. Returns another address of that
    /// memory.
    pub(crate) fn alias(
        &mut self,
        home: DeviceAddress,
        range: AddressRange,
        zeros: &Zeros,
    ) -> Result<u64, DeviceError> {
        let id = self.room_for_alias(home, range)?;
        let (start, end) = (range.start.0, range.end());
        let replaces = |piece: &Piece| Becomes::Alias.replaces(piece);
        let (context, ignores_rights) = (Arc::clone(&self.context), self.ignores_rights);
        let window = self.make_way(id, [start, end], zeros, replaces)?;
        let Some(own) = window.own.get(&home.0) else {
            return Err(DeviceError::BadRange { address: home, bytes: range.bytes });
        };
        if window.pieces_over(start, end).next().is_some() {
            return Err(unsupported("something else is in its pages"));
        }
        // What fills memory of another window is known by its address here.
        let (view, is_shared) = (own.start.unwrap_or(home.0), own.is_shared);
        own.physical.map_first(start, range.bytes).map_err(|failure| refused(&failure))?;
        if ignores_rights
            && let Err(failure) = context.give_access(start, range.bytes, Place::Device)
        {
            context.unmap(start, range.bytes).map_err(|failure| refused(&failure))?;
            return Err(refused(&failure));
        }
        window.pieces.insert(
            start,
            Piece {
                bytes: range.bytes,
                users: 1,
                used: range.bytes,
                place: Place::Device,
                alias: Some(MemoryAccess::None),
                is_shared,
                is_borrowed: false,
            },
        );
        window.live.insert(start, range.bytes);
        Ok(view)
    }

    /// Reverts [`Windows::make_own`] where the copy failed.
    pub(crate) fn unmake_own(&mut self, home: DeviceAddress) -> Option<Remains> {
        let window = self.window_of(home.0).and_then(|id| self.windows.get_mut(&id))?;
        let own = window.own.remove(&home.0)?;
        let bytes = *window.live.get(&home.0)?;
        window.enter(home.0, home.0 + bytes);
        Some(own.remains())
    }

    /// The address outside all windows of an allocation's own memory.
    pub(crate) fn view_of(&self, home: DeviceAddress) -> Option<u64> {
        let window = self.window_of(home.0).and_then(|id| self.windows.get(&id))?;
        window.own.get(&home.0)?.start
    }

    /// Whether an allocation has memory of its own.
    pub(crate) fn has_own(&self, home: DeviceAddress) -> bool {
        let window = self.window_of(home.0).and_then(|id| self.windows.get(&id));
        window.is_some_and(|window| window.own.contains_key(&home.0))
    }

    /// The window in which an alias would lie. An error where the range is not free for an alias.
    pub(crate) fn room_for_alias(
        &self,
        home: DeviceAddress,
        range: AddressRange,
    ) -> Result<WindowId, DeviceError> {
        let bad_range = DeviceError::BadRange { address: range.start, bytes: range.bytes };
        let id = self.window_of(home.0).ok_or_else(|| bad_range.clone())?;
        let window = self.windows.get(&id).ok_or_else(|| bad_range.clone())?;
        let (start, end) = (range.start.0, range.end());
        let bytes = *window.live.get(&home.0).ok_or_else(|| bad_range.clone())?;
        let inside = start >= window.base && end <= window.base + window.bytes;
        let before = window.live.range(..end).next_back();
        let free = before.is_none_or(|(&at, &bytes)| at + bytes <= start);
        let on_host = window.host.as_ref().is_some_and(|host| host.overlaps(range));
        if !inside || !free || on_host || range.bytes == 0 || range.bytes > bytes {
            return Err(bad_range);
        }
        if !start.is_multiple_of(self.granularity) || !range.bytes.is_multiple_of(self.granularity)
        {
            return Err(unsupported(&format!(
                "addresses and sizes must be multiples of {}",
                self.granularity
            )));
        }
        if window.pieces_over(start, end).any(|(_, piece)| piece.users > 0) {
            return Err(unsupported("something else is in its pages"));
        }
        Ok(id)
    }

    /// Sets kernels' access to the memory that begins at an address, where rights are kept.
    pub(crate) fn protect(
        &mut self,
        address: DeviceAddress,
        access: MemoryAccess,
    ) -> Result<(), DeviceError> {
        let bad_range = DeviceError::BadRange { address, bytes: 0 };
        let context = &self.context;
        let id = self.window_of(address.0).ok_or_else(|| bad_range.clone())?;
        let window = self.windows.get_mut(&id).ok_or_else(|| bad_range.clone())?;
        if window.own.contains_key(&address.0) {
            // No memory begins at the address.
            return Ok(());
        }
        if !window.live.contains_key(&address.0) {
            return Err(bad_range);
        }
        let Some(Piece { bytes, alias: Some(now), .. }) = window.pieces.get_mut(&address.0) else {
            return Err(DeviceError::Unsupported(
                "access rights of memory that shares its pages".to_owned(),
            ));
        };
        if *now != access && !self.ignores_rights {
            context.set_access(address.0, *bytes, access).map_err(|failure| refused(&failure))?;
        }
        *now = access;
        Ok(())
    }
}
