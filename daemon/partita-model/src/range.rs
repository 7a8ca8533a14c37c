//! Ranges of device addresses.

use crate::DeviceAddress;

/// A range of device addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    /// First byte.
    pub start: DeviceAddress,
    /// Length in bytes.
    pub bytes: u64,
}

impl AddressRange {
    /// The first byte after the range, saturating.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.start.0.saturating_add(self.bytes)
    }

    /// Whether `bytes` bytes at `address` lie inside.
    #[must_use]
    pub const fn contains(&self, address: DeviceAddress, bytes: u64) -> bool {
        match address.0.checked_add(bytes) {
            Some(end) => address.0 >= self.start.0 && end <= self.end(),
            None => false,
        }
    }
}
