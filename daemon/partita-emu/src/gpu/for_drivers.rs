//! What a driver on top of the emulated GPU needs, because its callers choose addresses themselves.
//! A daemon that serves the emulated GPU uses nothing of this.

use super::EmulatedGpu;
use crate::memory::PageTables;
use partita_device::{AddressRange, DeviceError};
use partita_model::{DeviceAddress, WindowId};

impl EmulatedGpu {
    /// Makes a window of these very addresses. All other windows must lie elsewhere.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] where the id is taken; [`DeviceError::BadRange`] where another window
    /// has some of the addresses.
    pub fn reserve_range(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<(), DeviceError> {
        self.memory.reserve_range(window, range)
    }

    /// Lets kernels reach a process's memory wherever nothing else lies and their launch may go.
    pub fn set_page_tables(&mut self, tables: Box<dyn PageTables>) {
        self.memory.set_page_tables(tables);
    }

    /// Forgets the host memory that was mapped at an address. Nothing in flight may use it.
    pub fn unmap_host(&mut self, start: DeviceAddress) {
        self.memory.unmap_host_at(start);
    }
}
