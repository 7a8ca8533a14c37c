//! Memory that two windows map, for processes that share it ([`partita_device::Lending`]).
//!
//! The driver maps whole pieces only. So the second window maps all pieces in which the allocation
//! lies, and reaches what its neighbours there keep; CUDA lends whole pages, too. Memory of an
//! allocation's own ([`super::aliases`]) is lent by itself, and the second window maps it where the
//! program asks.
//!
//! # Invariants
//!
//! - Lent memory keeps its physical memory: neither window copies it to other memory.
//! - A piece that was lent gets no further allocation once it is unused, in either window: what
//!   lies there would be the other process's, too. It is unmapped when the device is idle.

use super::aliases::{Own, refused, unsupported};
use super::{Piece, Window, Windows};
use crate::driver::{Failure, Place};
use partita_device::{AddressRange, DeviceError, LentShape};
use partita_model::{DeviceAddress, WindowId};
use std::sync::Arc;

/// What a second window maps.
pub(crate) struct Loan {
    /// The addresses that it takes there.
    pub(crate) range: AddressRange,
    /// The same memory in the first window; all but one allocation of it may be its neighbours'.
    pub(crate) from: u64,
    /// The second window.
    pub(crate) window: WindowId,
}

impl Window {
    /// The first address of a used piece in a range that another window maps, too.
    pub(super) fn shared_in(&self, start: u64, end: u64) -> Option<u64> {
        let mut pieces = self.pieces_over(start, end);
        pieces.find(|(_, piece)| piece.is_shared && piece.users > 0).map(|(&at, _)| at)
    }
}

impl Windows {
    /// See [`partita_device::Lending::lent_shape`].
    pub(crate) fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError> {
        let (window, bytes) = self.lendable(home)?;
        let alignment = self.granularity;
        if window.own.contains_key(&home.0) {
            return Ok(LentShape { before: 0, bytes, alignment });
        }
        let pieces = window.pieces_over(home.0, home.0 + bytes);
        let (mut first, mut end) = (home.0, home.0 + bytes);
        for (&at, piece) in pieces {
            if piece.place != Place::Device || piece.alias.is_some() {
                return Err(unsupported("another process cannot map this memory"));
            }
            (first, end) = (first.min(at), end.max(at + piece.bytes));
        }
        Ok(LentShape { before: home.0 - first, bytes: end - first, alignment })
    }

    /// What lending an allocation at an address would map; nothing has to be free there yet.
    pub(crate) fn loan(&self, home: DeviceAddress, to: DeviceAddress) -> Result<Loan, DeviceError> {
        let LentShape { before, bytes, alignment } = self.lent_shape(home)?;
        let bad_range = DeviceError::BadRange { address: to, bytes };
        let id = self.window_of(to.0).ok_or_else(|| bad_range.clone())?;
        let window = self.windows.get(&id).ok_or_else(|| bad_range.clone())?;
        let start = to.0.checked_sub(before).filter(|start| start.is_multiple_of(alignment));
        let start = start.ok_or_else(|| bad_range.clone())?;
        let range = AddressRange { start: DeviceAddress(start), bytes };
        let is_inside = start >= window.base
            && start.checked_add(bytes).is_some_and(|end| end <= window.base + window.bytes);
        if !is_inside || self.window_of(home.0) == Some(id) {
            return Err(bad_range);
        }
        let last = window.live.range(..range.end()).next_back();
        let is_free = last.is_none_or(|(&at, &bytes)| at + bytes <= start);
        let on_host = window.host.as_ref().is_some_and(|host| host.overlaps(range));
        let is_used = window.pieces_over(start, range.end()).any(|(_, piece)| piece.users > 0);
        if !is_free || on_host || is_used {
            return Err(bad_range);
        }
        Ok(Loan { range, from: home.0 - before, window: id })
    }

    /// Maps an allocation's memory in another window, where nothing is mapped any more
    /// ([`Windows::clear`]).
    pub(crate) fn lend(
        &mut self,
        home: DeviceAddress,
        to: DeviceAddress,
        loan: &Loan,
    ) -> Result<(), DeviceError> {
        let (window, bytes) = self.lendable(home)?;
        let bad_range = DeviceError::BadRange { address: to, bytes };
        let id = self.window_of(home.0).ok_or_else(|| bad_range.clone())?;
        if let Some(own) = window.own.get(&home.0) {
            let physical = Arc::clone(&own.physical);
            let own = Own { physical, start: None, is_shared: true };
            let borrower = self.windows.get_mut(&loan.window).ok_or_else(|| bad_range.clone())?;
            borrower.own.insert(to.0, own);
            borrower.live.insert(to.0, bytes);
            let window = self.windows.get_mut(&id).ok_or(bad_range)?;
            if let Some(own) = window.own.get_mut(&home.0) {
                own.is_shared = true;
            }
            return Ok(());
        }
        let pieces: Vec<(u64, u64)> = window
            .pieces_over(home.0, home.0 + bytes)
            .map(|(&at, piece)| (at, piece.bytes))
            .collect();
        let start = loan.range.start.0;
        self.map_again(&pieces, start).map_err(|failure| refused(&failure))?;
        let window = self.windows.get_mut(&id).ok_or_else(|| bad_range.clone())?;
        for (at, _) in &pieces {
            if let Some(piece) = window.pieces.get_mut(at) {
                piece.is_shared = true;
            }
        }
        let borrower = self.windows.get_mut(&loan.window).ok_or(bad_range)?;
        for (at, bytes) in pieces {
            let (place, alias) = (Place::Device, None);
            let (is_shared, is_borrowed) = (true, true);
            let piece = Piece { bytes, users: 1, used: 0, place, alias, is_shared, is_borrowed };
            borrower.pieces.insert(start + (at - loan.from), piece);
        }
        borrower.live.insert(to.0, bytes);
        borrower.is_filled = false;
        Ok(())
    }

    /// Whether another window has mapped pieces in which an allocation lies.
    pub(crate) fn is_lent(&self, home: DeviceAddress) -> bool {
        self.lendable(home).is_ok_and(|(window, bytes)| {
            window.pieces_over(home.0, home.0 + bytes).any(|(_, piece)| piece.is_shared)
        })
    }

    /// Whether a range has unused pieces that get no further allocation.
    pub(crate) fn has_ended_loans(&self, id: WindowId, range: AddressRange) -> bool {
        self.windows.get(&id).is_some_and(|window| {
            let mut pieces = window.pieces_over(range.start.0, range.end());
            pieces.any(|(_, piece)| piece.users == 0 && piece.is_shared)
        })
    }

    /// The window and the bytes of an allocation.
    fn lendable(&self, home: DeviceAddress) -> Result<(&Window, u64), DeviceError> {
        let bad_range = DeviceError::BadRange { address: home, bytes: 0 };
        let window = self.window_of(home.0).and_then(|id| self.windows.get(&id));
        let window = window.ok_or_else(|| bad_range.clone())?;
        Ok((window, *window.live.get(&home.0).ok_or(bad_range)?))
    }

    /// Maps the memory of pieces, which lie one behind the other, from an address on.
    fn map_again(&self, pieces: &[(u64, u64)], start: u64) -> Result<(), Failure> {
        let Some(&(first, _)) = pieces.first() else { return Ok(()) };
        let mut mapped = Vec::new();
        let mut map = || {
            for &(at, bytes) in pieces {
                let to = start + (at - first);
                self.context.retain(at, bytes)?.map(to)?;
                mapped.push((to, bytes));
            }
            let bytes = pieces.iter().map(|(_, bytes)| bytes).sum();
            self.context.give_access(start, bytes, Place::Device)
        };
        let result = map();
        if result.is_err() {
            for (at, bytes) in mapped {
                let unmapped = self.context.unmap(at, bytes);
                tracing::debug!(?unmapped, "memory that was not lent");
            }
        }
        result
    }
}
