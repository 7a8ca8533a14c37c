//! Memory at addresses of the program's choice (CUDA Driver API, "Virtual Memory Management").
//!
//! An allocation keeps its first address as its home. It is mapped at addresses that the session
//! has reserved, as often as the device can. Where the device cannot reach memory at several
//! addresses, the allocation moves to its only mapping, and back. An allocation can be freed only
//! while it is mapped nowhere.
//!
//! Mapped memory may not be touched before access is given. This module holds copies and fills to
//! that, and the device holds kernels to it, if it can.

use super::record::{Call, Waiter, WaiterThen};
use super::window::{Mapped, Mapping};
use super::{Answer, Refusal, Sessions};
use crate::Payload;
use crate::turn::Turn;
use partita_device::{AddressRange, DeviceError};
use partita_model::{CudaResult, DeviceAddress, MemoryAccess, SessionId};

/// Ranges of addresses that one session may have reserved. They cost the engine memory.
const MAX_RESERVED: usize = 1 << 16;

impl Sessions {
    pub(super) fn reserve(&mut self, id: SessionId, bytes: u64, alignment: u64) -> Answer {
        let window = &mut self.session_mut(id).window;
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let range =
            (window.reserved_ranges() < MAX_RESERVED).then(|| window.reserve(bytes, alignment));
        match range.flatten() {
            Some(range) => Ok(Payload::Address(range.start)),
            None => Err(CudaResult::ERROR_OUT_OF_MEMORY.into()),
        }
    }

    pub(super) fn unreserve(&mut self, id: SessionId, address: DeviceAddress) -> Answer {
        if self.session_mut(id).window.unreserve(address) {
            Ok(Payload::None)
        } else {
            Err(CudaResult::ERROR_INVALID_VALUE.into())
        }
    }

    pub(super) fn map(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        home: DeviceAddress,
        range: AddressRange,
    ) -> Answer {
        let window = &mut self.session_mut(id).window;
        let Some(mapped) = window.map(home, range) else {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        };
        let mut moved = false;
        let result = match alias(turn, home, range) {
            // The home is out of reach from now on.
            Ok(()) => [home, range.start]
                .into_iter()
                .try_for_each(|at| protect(turn, at, MemoryAccess::None)),
            Err(DeviceError::Unsupported(_)) if mapped == Mapped::Alone => {
                moved = true;
                relocate(turn, home, range.start)
            }
            Err(error) => Err(error),
        };
        let session = self.session_mut(id);
        session.settle_slack(turn);
        let window = &mut session.window;
        if let Err(error) = result {
            window.unmap(range.start);
            return Err(refusal(&error));
        }
        window.mapping_mut(range.start).expect("mapped above").moved = moved;
        Ok(Payload::None)
    }

    pub(super) fn unmap(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        address: DeviceAddress,
    ) -> Result<(), Refusal> {
        if !self.session_mut(call.session).window.begin_unmap(address) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        self.wait_for_all(turn, call, WaiterThen::Unmap(address));
        Ok(())
    }

    pub(super) fn finish_unmap(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        address: DeviceAddress,
    ) {
        let mapping = self.session_mut(id).window.unmap(address);
        let Mapping { home, moved, .. } = mapping.expect("an ending mapping stays until here");
        let result = if moved { relocate(turn, address, home) } else { turn.device.free(address) };
        self.session_mut(id).settle_slack(turn);
        if let Err(error) = result {
            turn.log_error(Some(id), format!("memory could not be unmapped: {error}"));
        }
    }

    /// Says what may be done to a range that is made of whole mappings. More is allowed at once,
    /// less when earlier work is done.
    pub(super) fn set_access(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        range: AddressRange,
        access: MemoryAccess,
    ) -> Result<(), Refusal> {
        let Call { session: id, sequence } = call;
        let mappings = self.session_mut(id).window.mappings_of(range);
        let mappings = mappings.ok_or(CudaResult::ERROR_INVALID_VALUE)?;
        if access == MemoryAccess::Read && mappings.iter().any(|(_, mapping)| mapping.moved) {
            let text = "memory that kernels may only read: not supported by this device".to_owned();
            return Err(Refusal::Explained(CudaResult::ERROR_NOT_SUPPORTED, text));
        }
        let less = mappings.iter().any(|(_, mapping)| mapping.access > access);
        let pending = if less { self.last_operations(id) } else { Vec::new() };
        let then = WaiterThen::Protect(range, access);
        self.wait_for(turn, id, Waiter { sequence, pending, then });
        Ok(())
    }

    pub(super) fn finish_set_access(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        range: AddressRange,
        access: MemoryAccess,
    ) {
        // What has been unmapped meanwhile needs none.
        let mappings = self.session_mut(id).window.mappings_of(range).unwrap_or_default();
        let mut result = Ok(());
        for (address, mapping) in mappings {
            mapping.access = access;
            if !mapping.moved {
                result = result.and(protect(turn, address, access));
            }
        }
        if let Err(error) = result {
            turn.log_error(Some(id), format!("access to memory could not be set: {error}"));
        }
    }
}

fn alias(turn: &mut Turn<'_>, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
    let aliasing = turn.device.aliasing();
    aliasing.ok_or_else(|| unsupported("memory at several addresses"))?.alias(home, range)
}

fn protect(
    turn: &mut Turn<'_>,
    address: DeviceAddress,
    access: MemoryAccess,
) -> Result<(), DeviceError> {
    let aliasing = turn.device.aliasing();
    aliasing.ok_or_else(|| unsupported("access rights of memory"))?.protect(address, access)
}

fn relocate(
    turn: &mut Turn<'_>,
    from: DeviceAddress,
    to: DeviceAddress,
) -> Result<(), DeviceError> {
    let relocation = turn.device.relocation();
    relocation.ok_or_else(|| unsupported("moving memory to other addresses"))?.relocate(from, to)
}

fn unsupported(what: &str) -> DeviceError {
    DeviceError::Unsupported(what.to_owned())
}

fn refusal(error: &DeviceError) -> Refusal {
    let code = match error {
        DeviceError::Busy => return Refusal::Busy,
        DeviceError::Unsupported(_) => CudaResult::ERROR_NOT_SUPPORTED,
        _ => CudaResult::ERROR_INVALID_VALUE,
    };
    Refusal::Explained(code, error.to_string())
}
