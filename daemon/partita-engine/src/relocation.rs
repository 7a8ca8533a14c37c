//! Memory at addresses of the program's choice (CUDA Driver API, "Virtual Memory Management").
//!
//! An allocation keeps the place that it was given as its home, and moves between that and addresses that the session has
//! reserved. Only what is at home can be freed.

use crate::requests::{Answer, Refusal};
use crate::state::{Waiter, WaiterThen};
use crate::{Engine, LogLevel, Payload};
use partita_device::{Device, DeviceError};
use partita_model::{CudaResult, DeviceAddress, SessionId};

/// Ranges of addresses that one session may have reserved; they cost the engine memory.
const MAX_RESERVED: usize = 1 << 16;

impl Engine {
    pub(crate) fn reserve(&mut self, id: SessionId, bytes: u64, alignment: u64) -> Answer {
        let window = &mut self.session_mut(id).window;
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let range = (window.reserved_ranges() < MAX_RESERVED).then(|| window.reserve(bytes, alignment));
        match range.flatten() {
            Some(range) => Ok(Payload::Address(range.start)),
            None => Err(CudaResult::ERROR_OUT_OF_MEMORY.into()),
        }
    }

    pub(crate) fn unreserve(&mut self, id: SessionId, address: DeviceAddress) -> Answer {
        if self.session_mut(id).window.unreserve(address) {
            Ok(Payload::None)
        } else {
            Err(CudaResult::ERROR_INVALID_VALUE.into())
        }
    }

    pub(crate) fn move_in(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        from: DeviceAddress,
        to: DeviceAddress,
    ) -> Answer {
        let window = &mut self.session_mut(id).window;
        if !window.move_in(from, to) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        if let Err(error) = device.relocate(from, to) {
            window.move_out(to);
            let code = match error {
                DeviceError::Unsupported(_) => CudaResult::ERROR_NOT_SUPPORTED,
                _ => CudaResult::ERROR_INVALID_VALUE,
            };
            return Err(Refusal::Explained(code, error.to_string()));
        }
        Ok(Payload::None)
    }

    pub(crate) fn move_out(
        &mut self,
        device: &mut dyn Device,
        id: SessionId,
        sequence: u64,
        address: DeviceAddress,
    ) -> Result<(), Refusal> {
        if !self.session_mut(id).window.begin_move_out(address) {
            return Err(CudaResult::ERROR_INVALID_VALUE.into());
        }
        let pending = self.last_operations(id);
        self.wait_for(device, id, Waiter { sequence, pending, then: WaiterThen::MoveOut(address) });
        Ok(())
    }

    pub(crate) fn finish_move_out(&mut self, device: &mut dyn Device, id: SessionId, address: DeviceAddress) {
        let Some(home) = self.session_mut(id).window.move_out(address) else { return };
        if let Err(error) = device.relocate(address, home) {
            self.log(LogLevel::Error, Some(id), format!("memory could not be moved back: {error}"));
        }
    }
}
