//! Page-locked host memory: allocations of `cuMemHostAlloc` and registrations of
//! `cuMemHostRegister`.
//!
//! Allocations come from the session's host memory, which the device copies from and to without
//! staging. When that memory is used up, allocations come from the system and are pageable to the
//! device, as registered memory always is. Kernels reach the session's host memory at the same
//! addresses, if the daemon's device supports it and the addresses were free in this process. The
//! attribute `CAN_MAP_HOST_MEMORY` reports this. Managed memory is of the same kind. Allocated
//! memory is zeroed.
//!
//! Registered memory is *lent* to kernels when the program asks for it: its pages become pages of
//! the session's host memory ([`crate::page_exchange`]). Kernels reach these pages at another
//! address than the program does.

use crate::device_memory::{Range, find};
use crate::error::{CuError, CuResult};
use crate::log;
use crate::page_exchange::Pages;
use partita_client::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The source of a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Session,
    System,
}

/// All page-locked memory.
pub struct HostAllocations {
    known: Mutex<Known>,
}

struct Known {
    /// Memory of `cuMemHostAlloc`: size by first address.
    allocated: BTreeMap<u64, u64>,
    /// Memory of `cuMemAllocManaged`: size by first address.
    managed: BTreeMap<u64, u64>,
    /// Memory of `cuMemHostRegister`: size by first address.
    registered: BTreeMap<u64, u64>,
    /// The pieces of `allocated` that are the system's memory.
    from_system: BTreeSet<u64>,
    /// Flags of both.
    flags: BTreeMap<u64, u32>,
    /// The pieces of `registered` that kernels can access.
    lent: BTreeMap<u64, Lent>,
}

/// Registered memory whose pages are the session's.
#[derive(Clone, Copy)]
struct Lent {
    pages: Pages,
    /// The address of these bytes in the session and on the device.
    shared: u64,
}

impl Lent {
    /// Converts an address of the program to the device's address.
    fn on_device(&self, address: u64) -> u64 {
        self.shared + (address - self.pages.start)
    }
}

impl HostAllocations {
    /// None.
    pub const fn new() -> Self {
        HostAllocations {
            known: Mutex::new(Known {
                allocated: BTreeMap::new(),
                managed: BTreeMap::new(),
                registered: BTreeMap::new(),
                from_system: BTreeSet::new(),
                flags: BTreeMap::new(),
                lent: BTreeMap::new(),
            }),
        }
    }

    /// `cuMemHostAlloc`.
    pub fn allocate(&self, session: &Session, bytes: usize, flags: u32) -> CuResult<*mut c_void> {
        let (address, source) = match session.host_alloc(bytes as u64) {
            Ok(address) => (address.cast(), Source::Session),
            Err(error) if error.code == CuError::OUT_OF_MEMORY.0 => {
                (map_pages(bytes)?, Source::System)
            }
            Err(error) => return Err(error.into()),
        };
        self.add(address as u64, bytes as u64, flags, source);
        Ok(address)
    }

    fn add(&self, address: u64, bytes: u64, flags: u32, source: Source) {
        let mut known = self.lock();
        known.allocated.insert(address, bytes);
        known.flags.insert(address, flags);
        if source == Source::System {
            known.from_system.insert(address);
        }
    }

    /// `cuMemAllocManaged`.
    pub fn allocate_managed(&self, session: &Session, bytes: usize) -> CuResult<u64> {
        let address = session.host_alloc(bytes as u64)? as u64;
        self.lock().managed.insert(address, bytes as u64);
        Ok(address)
    }

    /// Frees managed memory; false where there is none.
    pub fn free_managed(&self, session: &Session, address: u64) -> CuResult<bool> {
        if self.lock().managed.remove(&address).is_none() {
            return Ok(false);
        }
        session.host_free(address as *mut u8)?;
        Ok(true)
    }

    /// The managed allocation that an address is inside of.
    pub fn find_managed(&self, address: u64) -> Option<Range> {
        find(&self.lock().managed, address)
    }

    /// Frees all managed memory.
    pub fn clear_managed(&self, session: &Session) {
        for address in std::mem::take(&mut self.lock().managed).into_keys() {
            // Memory that cannot be freed any more ends with the session.
            let _ = session.host_free(address as *mut u8);
        }
    }

    /// `cuMemFreeHost`.
    pub fn free(&self, session: &Session, address: u64) -> CuResult {
        let (bytes, source) = self.take(address)?;
        match source {
            Source::Session => Ok(session.host_free(address as *mut u8)?),
            Source::System => {
                // No copy is under way, because every call returns only after it has read or
                // written all its memory.
                let bytes = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
                // SAFETY: a mapping of this size that `map_pages` made, taken from the table just
                // now.
                let failed = unsafe { libc::munmap(address as *mut c_void, bytes) };
                if failed == 0 { Ok(()) } else { Err(CuError::OPERATING_SYSTEM) }
            }
        }
    }

    fn take(&self, address: u64) -> CuResult<(u64, Source)> {
        let mut known = self.lock();
        let bytes = known.allocated.remove(&address).ok_or(CuError::INVALID_VALUE)?;
        known.flags.remove(&address);
        let source =
            if known.from_system.remove(&address) { Source::System } else { Source::Session };
        Ok((bytes, source))
    }

    /// `cuMemHostRegister`.
    pub fn register(&self, address: u64, bytes: u64, flags: u32) -> CuResult {
        if address == 0 || bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let mut known = self.lock();
        let last = address.checked_add(bytes - 1).ok_or(CuError::INVALID_VALUE)?;
        let starts_inside = known.registered.range(address..=last).next().is_some();
        if starts_inside || find(&known.registered, address).is_some() {
            return Err(CuError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        known.registered.insert(address, bytes);
        known.flags.insert(address, flags);
        Ok(())
    }

    /// `cuMemHostUnregister`: waits for all work where kernels reach the memory.
    pub fn unregister(&self, session: &Session, address: u64) -> CuResult {
        let lent = {
            let mut known = self.lock();
            known.registered.remove(&address).ok_or(CuError::HOST_MEMORY_NOT_REGISTERED)?;
            known.flags.remove(&address);
            known.lent.remove(&address)
        };
        let Some(Lent { pages, shared }) = lent else { return Ok(()) };
        // After an error the session writes no more.
        let finished = session.synchronize(None);
        pages.take_back()?;
        finished?;
        Ok(session.host_free(shared as *mut u8)?)
    }

    /// Whether an address is inside of registered memory.
    pub fn is_registered(&self, address: u64) -> bool {
        find(&self.lock().registered, address).is_some()
    }

    /// Lets kernels reach the registered memory that an address is inside of; the device's address
    /// of it.
    pub fn lend(&self, session: &Session, address: u64) -> CuResult<u64> {
        let mut known = self.lock();
        let range = find(&known.registered, address).ok_or(CuError::INVALID_VALUE)?;
        if let Some(lent) = known.lent.get(&range.start) {
            return Ok(lent.on_device(address));
        }
        let refused = |why: &str| {
            log::say(format_args!(
                "kernels cannot reach the registered memory at {:#x}: {why}; allocate it with \
                 cudaHostAlloc",
                range.start
            ));
            CuError::NOT_SUPPORTED
        };
        if session.shared_window().is_none() {
            return Err(refused("this device reaches no host memory"));
        }
        let pages = Pages::around(range.start, range.bytes)?;
        pages.check().map_err(refused)?;
        let shared = session.host_alloc(pages.bytes)? as u64;
        if let Err(error) = pages.lend(shared) {
            session.host_free(shared as *mut u8)?;
            return Err(error);
        }
        let lent = Lent { pages, shared };
        known.lent.insert(range.start, lent);
        Ok(lent.on_device(address))
    }

    /// The device's address of registered memory that kernels reach.
    pub fn lent_at(&self, address: u64) -> Option<u64> {
        let known = self.lock();
        let range = find(&known.registered, address)?;
        known.lent.get(&range.start).map(|lent| lent.on_device(address))
    }

    /// The program's address of registered memory that the device has elsewhere.
    pub fn lender_of(&self, on_device: u64) -> Option<u64> {
        let known = self.lock();
        let mut ranges =
            known.lent.iter().map(|(start, lent)| (start, lent, known.registered.get(start)));
        ranges.find_map(|(start, lent, bytes)| {
            let offset = on_device.checked_sub(lent.on_device(*start))?;
            (offset < *bytes?).then_some(start + offset)
        })
    }

    /// The range that an address is inside of, and its flags.
    pub fn find(&self, address: u64) -> Option<(Range, u32)> {
        let known = self.lock();
        let range = find(&known.allocated, address).or_else(|| find(&known.registered, address))?;
        Some((range, known.flags.get(&range.start).copied().unwrap_or(0)))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Zeroed pages from the system.
fn map_pages(bytes: usize) -> CuResult<*mut c_void> {
    // SAFETY: a new private mapping wherever the system likes.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED { Err(CuError::OUT_OF_MEMORY) } else { Ok(address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_and_known_until_they_are_taken() {
        let host = HostAllocations::new();
        let address = map_pages(5000).unwrap() as u64;
        host.add(address, 5000, 7, Source::System);
        let memory = crate::abi::Memory::at(address);
        assert!(memory.bytes(5000).unwrap().iter().all(|byte| *byte == 0));
        assert_eq!(host.find(address + 4999), Some((Range { start: address, bytes: 5000 }, 7)));
        assert_eq!(host.find(address + 5000), None);
        assert_eq!(host.take(address + 1), Err(CuError::INVALID_VALUE));
        assert_eq!(host.take(address), Ok((5000, Source::System)));
        assert_eq!(host.take(address), Err(CuError::INVALID_VALUE));
    }

    #[test]
    fn memory_is_registered_once() {
        let host = HostAllocations::new();
        host.register(0x1000, 0x1000, 0).unwrap();
        for (address, bytes) in [(0x1000, 1), (0x1fff, 1), (0x800, 0x900)] {
            assert_eq!(
                host.register(address, bytes, 0),
                Err(CuError::HOST_MEMORY_ALREADY_REGISTERED)
            );
        }
        host.register(0x2000, 1, 0).unwrap();
        assert_eq!(host.lent_at(0x1000), None);
    }
}
