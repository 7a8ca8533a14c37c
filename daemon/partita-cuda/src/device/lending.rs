//! Memory that sessions share, as far as the device's phases concern it.
//!
//! Mapping waits for no grid, but unmapping may. What has to go first goes in a phase, and so does
//! what has ended ([`crate::windows`]).

use super::CudaDevice;
use crate::windows::{Becomes, Loan};
use partita_device::{AddressRange, DeviceError, Lending, LentShape};
use partita_model::DeviceAddress;

impl Lending for CudaDevice {
    fn lent_shape(&self, home: DeviceAddress) -> Result<LentShape, DeviceError> {
        self.windows.lent_shape(home)
    }

    fn lend(&mut self, home: DeviceAddress, to: DeviceAddress) -> Result<(), DeviceError> {
        let loan = self.windows.loan(home, to)?;
        let Loan { range, from, window } = loan;
        if !self.windows.has_own(home) {
            self.make_room(window, (range, Becomes::Alias))?;
        }
        self.windows.lend(home, to, &loan)?;
        self.signals.outdate(range.start.0, range.bytes);
        let filled_at = self.windows.view_of(home).unwrap_or(from);
        self.zeros.share(filled_at, range.start.0, range.bytes);
        Ok(())
    }
}

impl CudaDevice {
    /// Unmaps lent memory that has ended, when the device is idle.
    pub(super) fn end_loans(&mut self, address: DeviceAddress, bytes: u64) {
        let range = AddressRange { start: address, bytes };
        let Some(window) = self.windows.window_of(address.0) else { return };
        if !self.windows.has_ended_loans(window, range) {
            return;
        }
        let ended = (range, Becomes::Nothing);
        if self.habits.waits {
            self.wanted.push((window, ended));
            self.loader.await_idleness();
            return;
        }
        if let Err(error) = self.windows.clear(window, ended, &self.zeros) {
            tracing::warn!(%error, "lent memory stays mapped");
        }
        self.windows.refill(window);
    }
}
