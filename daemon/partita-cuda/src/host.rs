//! Host memory inside a window, for kernels: mapped memory, managed memory, and variables that
//! modules declare managed.
//!
//! The session's memory is mapped a second time in this process, at the addresses where kernels
//! access it, in a hole of the window's reserved addresses. A GPU that uses the host's page tables
//! finds it there, and nothing is page-locked: pages come and go with the program's use. For
//! another GPU the loading thread page-locks the memory, of which each window has less then. The
//! driver does not know this memory, so functions of the host copy and fill it, in their streams
//! ([`crate::tasks`]).

use partita_device::{AddressRange, DeviceError, HostSpan};
use partita_model::DeviceAddress;
use std::any::Any;
use std::collections::BTreeMap;

/// One window's host memory.
pub(crate) struct HostRange {
    start: u64,
    memory: HostSpan,
    _twin: Box<dyn Any + Send + Sync>,
    /// Whether the driver page-locks it.
    pub(crate) is_locked: bool,
    /// Managed variables lie from this address to the end.
    variables_from: u64,
    /// Lengths of managed variables, by address.
    variables: BTreeMap<u64, u64>,
}

impl HostRange {
    /// Host memory that is mapped at `start`. Its last `variables` bytes are for managed variables.
    pub(crate) fn new(
        start: u64,
        memory: HostSpan,
        twin: Box<dyn Any + Send + Sync>,
        variables: u64,
    ) -> HostRange {
        let variables_from = start + memory.bytes().saturating_sub(variables);
        HostRange {
            start,
            memory,
            _twin: twin,
            is_locked: false,
            variables_from,
            variables: BTreeMap::new(),
        }
    }

    /// Its first address and its bytes.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.start, self.memory.bytes())
    }

    fn end(&self) -> u64 {
        self.start + self.memory.bytes()
    }

    pub(crate) fn overlaps(&self, range: AddressRange) -> bool {
        self.start < range.end() && range.start.0 < self.end()
    }

    /// The memory at an address; `None` unless the whole range is inside.
    pub(crate) fn part(&self, address: DeviceAddress, bytes: u64) -> Option<HostSpan> {
        self.memory.part(address.0.checked_sub(self.start)?, bytes)
    }

    /// Reserves zeroed memory for a module's managed variables.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        alignment: u64,
    ) -> Result<DeviceAddress, DeviceError> {
        let mut start = self.variables_from.next_multiple_of(alignment.max(256));
        for (&other, &length) in &self.variables {
            if other >= start && other - start >= bytes {
                break;
            }
            start = (other + length).next_multiple_of(alignment.max(256));
        }
        let available = self.end().saturating_sub(start);
        let out = DeviceError::OutOfMemory { wanted: bytes, available };
        let place = self.part(DeviceAddress(start), bytes).ok_or_else(|| out.clone())?;
        place.write(0, &vec![0; usize::try_from(bytes).map_err(|_| out)?]);
        self.variables.insert(start, bytes.max(1));
        Ok(DeviceAddress(start))
    }

    /// Releases memory of [`HostRange::allocate`].
    pub(crate) fn free(&mut self, address: DeviceAddress) {
        self.variables.remove(&address.0);
    }
}
