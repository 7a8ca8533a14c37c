//! What a driver on top of the emulated GPU needs, because its callers choose addresses themselves:
//! a window at addresses of its choice, host memory that goes before its window, and kernels that
//! use the host's page tables. A daemon that serves the emulated GPU uses nothing of this.

use super::{Memory, Window};
use partita_device::{AddressRange, DeviceError, HostSpan};
use partita_model::{DeviceAddress, WindowId};
use std::fmt;

/// The memory of a process, as its page tables say
/// (`CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS`).
pub trait PageTables: Send + Sync {
    /// The process's memory of these addresses; `None` where some of it is not there.
    fn find(&self, address: u64, bytes: u64) -> Option<HostSpan>;
}

/// The page tables that kernels use where nothing else lies.
#[derive(Default)]
pub(super) struct Process(Option<Box<dyn PageTables>>);

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.0.is_some()).finish()
    }
}

impl Process {
    pub(super) fn find(&self, address: u64, bytes: usize) -> Option<HostSpan> {
        self.0.as_ref()?.find(address, bytes as u64)
    }
}

impl Memory {
    /// Lets kernels reach a process's memory wherever nothing else lies and their launch may go.
    pub fn set_page_tables(&mut self, tables: Box<dyn PageTables>) {
        self.process = Process(Some(tables));
    }

    /// Makes a window of these very addresses, in no cell. Windows of [`Memory::reserve`] must lie
    /// elsewhere.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] where the id is taken; [`DeviceError::BadRange`] where another window
    /// has some of the addresses.
    pub fn reserve_range(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<(), DeviceError> {
        if self.windows.contains_key(&window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        let meets =
            |other: &Window| other.base < range.end() && range.start.0 < other.base + other.bytes;
        if range.bytes == 0 || self.windows.values().any(meets) {
            return Err(DeviceError::BadRange { address: range.start, bytes: range.bytes });
        }
        let (base, bytes) = (range.start.0, range.bytes);
        let made = Window { cell: None, base, bytes, variables_from: base + bytes, heap: None };
        self.windows.insert(window, made);
        Ok(())
    }

    /// Forgets the host memory that was mapped at an address. Nothing in flight may use it.
    pub fn unmap_host_at(&mut self, start: DeviceAddress) {
        self.hosts.remove(&start.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::HostMemory;
    use std::sync::{Arc, Mutex};

    struct Tables(Arc<Word>);

    impl PageTables for Tables {
        fn find(&self, address: u64, bytes: u64) -> Option<HostSpan> {
            let memory: Arc<dyn HostMemory> = Arc::clone(&self.0) as _;
            HostSpan::new(memory, address.checked_sub(1 << 20)?, bytes)
        }
    }

    struct Word(Mutex<[u8; 8]>);

    impl HostMemory for Word {
        fn size(&self) -> u64 {
            8
        }

        fn read(&self, offset: u64, into: &mut [u8]) {
            into.copy_from_slice(&self.0.lock().unwrap()[offset as usize..][..into.len()]);
        }

        fn write(&self, offset: u64, from: &[u8]) {
            self.0.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
        }
    }

    #[test]
    fn kernels_reach_the_process_where_nothing_else_lies() {
        let word = Arc::new(Word(Mutex::new([0, 1, 2, 3, 4, 5, 6, 7])));
        let mut memory = Memory::new(1 << 30);
        let mut back = [0; 2];
        assert!(!memory.read_host(1 << 20, &mut back));
        memory.set_page_tables(Box::new(Tables(Arc::clone(&word))));
        assert!(memory.read_host((1 << 20) + 3, &mut back));
        assert_eq!(back, [3, 4]);
        assert!(!memory.read_host((1 << 20) + 7, &mut back), "the second byte is not there");
        assert!(memory.write_host((1 << 20) + 6, &[9, 9]));
        assert_eq!(memory.exchange_host(1 << 20, &[0, 1], &[8, 8]), Some(true));
        assert_eq!(memory.exchange_host(1 << 21, &[0, 1], &[8, 8]), None);
        assert!(memory.is_shared_with_host(DeviceAddress(1 << 20), 8));
        assert!(!memory.is_shared_with_host(DeviceAddress(1 << 20), 9));
        assert_eq!(*word.0.lock().unwrap(), [8, 8, 2, 3, 4, 5, 9, 9]);
    }

    #[test]
    fn a_window_lies_where_its_owner_wants_it() {
        let mut memory = Memory::new(1 << 30);
        let at = |start| AddressRange { start: DeviceAddress(start), bytes: 1 << 30 };
        memory.reserve_range(WindowId(1), at(1 << 44)).unwrap();
        let bad = |start| DeviceError::BadRange { address: DeviceAddress(start), bytes: 1 << 30 };
        let meeting = (1 << 44) - 4096;
        assert_eq!(memory.reserve_range(WindowId(2), at(meeting)), Err(bad(meeting)));
        assert!(matches!(
            memory.reserve_range(WindowId(1), at(1 << 45)),
            Err(DeviceError::BadId(_))
        ));
        let start = DeviceAddress((1 << 44) + 512);
        memory.allocate(WindowId(1), AddressRange { start, bytes: 512 }).unwrap();
        memory.write(start, &[7]).unwrap();
        memory.release(WindowId(1)).unwrap();
        assert_eq!(memory.used(), 0);
        memory.reserve_range(WindowId(1), at(1 << 44)).unwrap();
    }
}
