//! Host memory that kernels reach: mapped and managed memory.
//!
//! The device holds no copy of it. Every access copies from or to the host at that moment, because
//! the program may read or change the memory while a kernel runs. So host memory is slower than
//! device memory, as on a GPU.
//!
//! The last part of it belongs to the variables that modules declare managed.

use super::Memory;
use partita_device::{AddressRange, DeviceError, HostSpan};
use partita_model::{DeviceAddress, WindowId};
use std::collections::BTreeMap;

/// One window's host memory.
#[derive(Debug)]
pub(super) struct HostRange {
    window: WindowId,
    start: u64,
    memory: HostSpan,
    /// Managed variables lie from this address to the end.
    variables_from: u64,
    /// Lengths of managed variables, by address.
    variables: BTreeMap<u64, u64>,
}

impl HostRange {
    fn end(&self) -> u64 {
        self.start + self.memory.bytes()
    }

    pub(super) fn overlaps(&self, range: AddressRange) -> bool {
        self.start < range.end() && range.start.0 < self.end()
    }
}

impl Memory {
    /// See [`partita_device::HostMapping::map_host`].
    ///
    /// # Errors
    /// As there.
    pub fn map_host(
        &mut self,
        window: WindowId,
        start: DeviceAddress,
        memory: HostSpan,
        variables: u64,
    ) -> Result<(), DeviceError> {
        let bytes = memory.bytes();
        let bad = DeviceError::BadRange { address: start, bytes };
        let found =
            self.windows.get(&window).ok_or_else(|| DeviceError::BadId(window.to_string()))?;
        let end = start.0.checked_add(bytes).filter(|end| *end <= found.base + found.bytes);
        if end.is_none() || start.0 < found.base || bytes == 0 || variables > bytes {
            return Err(bad);
        }
        if self.overlaps(AddressRange { start, bytes }) {
            return Err(bad);
        }
        let variables_from = start.0 + bytes - variables;
        let host = HostRange {
            window,
            start: start.0,
            memory,
            variables_from,
            variables: BTreeMap::new(),
        };
        self.hosts.insert(start.0, host);
        Ok(())
    }

    /// Forgets a window's host memory.
    pub(super) fn unmap_host(&mut self, window: WindowId) {
        self.hosts.retain(|_, host| host.window != window);
    }

    /// Host memory around an address: the address's offset in it, and the bytes that follow.
    pub(super) fn host_at(&self, address: u64) -> Option<(&HostSpan, u64, u64)> {
        let (_, host) = self.hosts.range(..=address).next_back()?;
        let rest = host.end().checked_sub(address).filter(|rest| *rest > 0)?;
        Some((&host.memory, address - host.start, rest))
    }

    /// Whether there is host memory at an address.
    #[must_use]
    pub fn is_host(&self, address: DeviceAddress) -> bool {
        self.host_at(address.0).is_some()
    }

    /// Whether the host may use the memory of a range, too: memory that was mapped, or that kernels
    /// reach by the host's page tables.
    #[must_use]
    pub fn is_shared_with_host(&self, address: DeviceAddress, bytes: usize) -> bool {
        self.is_host(address) || self.process.find(address.0, bytes).is_some()
    }

    /// Copies out of host memory; false where not all of it is.
    #[must_use]
    pub fn read_host(&self, address: u64, into: &mut [u8]) -> bool {
        match self.host_at(address) {
            Some((memory, at, rest)) if rest >= into.len() as u64 => {
                memory.read(at, into);
                true
            }
            _ => match self.process.find(address, into.len()) {
                Some(memory) => {
                    memory.read(0, into);
                    true
                }
                None => false,
            },
        }
    }

    /// Copies into host memory; false where not all of it is.
    #[must_use]
    pub fn write_host(&self, address: u64, from: &[u8]) -> bool {
        match self.host_at(address) {
            Some((memory, at, rest)) if rest >= from.len() as u64 => {
                memory.write(at, from);
                true
            }
            _ => match self.process.find(address, from.len()) {
                Some(memory) => {
                    memory.write(0, from);
                    true
                }
                None => false,
            },
        }
    }

    /// Puts `new` into host memory if `old` is there, in one step for the host too; `None` where
    /// not all of it is host memory, or the host's processor has no atomics of that size.
    #[must_use]
    pub fn exchange_host(&self, address: u64, old: &[u8], new: &[u8]) -> Option<bool> {
        let fits = |memory: &HostSpan, rest: u64| {
            rest >= new.len() as u64 && memory.can_exchange(new.len())
        };
        match self.host_at(address) {
            Some((memory, at, rest)) => {
                fits(memory, rest).then(|| memory.compare_exchange(at, old, new))
            }
            None => {
                let memory = self.process.find(address, new.len())?;
                fits(&memory, memory.bytes()).then(|| memory.compare_exchange(0, old, new))
            }
        }
    }

    /// Makes room for a module's managed variables, which are zero.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the window has no host memory,
    /// [`DeviceError::OutOfMemory`].
    pub fn allocate_managed(
        &mut self,
        window: WindowId,
        bytes: u64,
        alignment: u64,
    ) -> Result<DeviceAddress, DeviceError> {
        let host = self.hosts.values_mut().find(|host| host.window == window).ok_or_else(|| {
            DeviceError::Unsupported(
                "managed variables without memory that the host and the device share".to_owned(),
            )
        })?;
        let mut start = host.variables_from.next_multiple_of(alignment.max(256));
        for (&other, &length) in &host.variables {
            if other >= start && other - start >= bytes {
                break;
            }
            start = (other + length).next_multiple_of(alignment.max(256));
        }
        let available = host.end().saturating_sub(start);
        if bytes > available {
            return Err(DeviceError::OutOfMemory { wanted: bytes, available });
        }
        host.variables.insert(start, bytes.max(1));
        let zeroes = vec![
            0;
            usize::try_from(bytes)
                .map_err(|_| DeviceError::OutOfMemory { wanted: bytes, available })?
        ];
        host.memory.write(start - host.start, &zeroes);
        Ok(DeviceAddress(start))
    }

    /// Gives back what `allocate_managed` gave.
    pub fn free_managed(&mut self, address: DeviceAddress) {
        for host in self.hosts.values_mut() {
            host.variables.remove(&address.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::HostMemory;
    use std::sync::{Arc, Mutex};

    struct Shared(Mutex<Vec<u8>>);

    impl HostMemory for Shared {
        fn size(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }

        fn read(&self, offset: u64, into: &mut [u8]) {
            into.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..into.len()]);
        }

        fn write(&self, offset: u64, from: &[u8]) {
            self.0.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
        }
    }

    const WINDOW: WindowId = WindowId(1);

    fn mapped() -> (Memory, u64, Arc<Shared>) {
        let mut memory = Memory::new(1 << 30);
        let start = memory.reserve(WINDOW, 1 << 24).unwrap().0 + (1 << 23);
        let shared = Arc::new(Shared(Mutex::new(vec![0; 8192])));
        let span = HostSpan::new(shared.clone(), 0, 8192).unwrap();
        memory.map_host(WINDOW, DeviceAddress(start), span, 4096).unwrap();
        (memory, start, shared)
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (mut memory, start, shared) = mapped();
        memory.write(DeviceAddress(start + 10), &[1, 2, 3]).unwrap();
        assert_eq!(shared.0.lock().unwrap()[10..13], [1, 2, 3]);
        shared.0.lock().unwrap()[11] = 9;
        memory.copy(DeviceAddress(start + 100), DeviceAddress(start + 10), 3).unwrap();
        let mut back = [0; 3];
        memory.read(DeviceAddress(start + 100), &mut back).unwrap();
        assert_eq!(back, [1, 9, 3]);
        memory.fill(DeviceAddress(start), &[7], 8192).unwrap();
        assert!(shared.0.lock().unwrap().iter().all(|byte| *byte == 7));
        assert!(memory.read(DeviceAddress(start + 8190), &mut back).is_err());
        assert!(
            !memory.read_host(start + 8190, &mut back) && !memory.read_host(start - 1, &mut back)
        );
        memory.release(WINDOW).unwrap();
        assert!(!memory.read_host(start, &mut back));
    }

    #[test]
    fn nothing_else_lies_there() {
        let (mut memory, start, shared) = mapped();
        let range = AddressRange { start: DeviceAddress(start + 4096), bytes: 1 };
        assert!(memory.allocate(WINDOW, range).is_err());
        let span = HostSpan::new(shared, 0, 8192).unwrap();
        for at in [start + 4096, start - 4096, 0] {
            assert!(
                memory.map_host(WINDOW, DeviceAddress(at), span.clone(), 0).is_err(),
                "{at:#x}"
            );
        }
    }

    #[test]
    fn managed_variables_have_the_last_part_and_give_it_back() {
        let (mut memory, start, _) = mapped();
        let a = memory.allocate_managed(WINDOW, 1000, 4).unwrap();
        let b = memory.allocate_managed(WINDOW, 1000, 4).unwrap();
        assert_eq!((a.0, b.0), (start + 4096, start + 5120));
        assert!(memory.allocate_managed(WINDOW, 3000, 4).is_err());
        memory.free_managed(a);
        assert_eq!(memory.allocate_managed(WINDOW, 1024, 4).unwrap(), a);
        assert!(memory.allocate_managed(WindowId(2), 4, 4).is_err());
    }
}
