//! Addresses, physical memory, mappings, and memory of the host.
//!
//! The emulated GPU has one window ([`WINDOW_RANGE`]) for everything:
//!
//! - Physical memory of the device is an allocation at a *home*, an address that no kernel may use.
//!   A mapping with access is an alias of it.
//! - Physical memory of the host is a file in memory, mapped into this process at the same address.
//! - Page-locked memory has the same address for the process and for kernels.
//!
//! Reserved addresses are reserved in this process, so nothing else of the process lies there.

use crate::driver::Tables;
use crate::host::{self, SharedFile};
use crate::status::{self, Status};
use partita_model::{AddressRange, DeviceAddress};
use std::collections::BTreeMap;
use std::ops::Range;

/// The addresses of everything that the GPU reaches.
pub const WINDOW_RANGE: AddressRange =
    AddressRange { start: DeviceAddress(ADDRESSES.start), bytes: END - ADDRESSES.start };

/// Addresses that callers reserve.
const ADDRESSES: Range<u64> = 0x1000_0000_0000..0x6000_0000_0000;
/// Page-locked memory.
const PINNED: Range<u64> = 0x6000_0000_0000..0x6400_0000_0000;
/// Homes of physical memory. Variables of modules lie above, down from [`END`].
const HOMES: Range<u64> = 0x6400_0000_0000..0x6c00_0000_0000;
const END: u64 = 0x7000_0000_0000;

/// The granularity of physical memory and of reserved addresses, in bytes.
pub const GRANULARITY: u64 = 2 << 20;

/// Where physical memory is.
#[derive(Debug)]
pub enum Physical {
    /// On the device, at this home.
    Device(u64),
    /// On the host.
    Host(SharedFile),
    /// In no place: it counts the memory of arrays.
    ForArrays,
}

/// An allocation of physical memory.
#[derive(Debug)]
pub struct Allocation {
    /// Its place.
    pub physical: Physical,
    /// Bytes.
    pub bytes: u64,
    /// Handles and mappings.
    holders: u32,
}

/// A mapping.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    allocation: u64,
    access: Access,
    /// Whether the GPU knows it.
    is_made: bool,
}

/// What the device may do (`CUmemAccess_flags`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// A change that the GPU must make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A home is another allocation's memory from now on.
    Create {
        /// The home.
        home: u64,
        /// Bytes.
        bytes: u64,
    },
    /// The home's memory is at an address, too.
    Alias {
        /// The home.
        home: u64,
        /// The address.
        at: u64,
        /// The first bytes only.
        bytes: u64,
    },
    /// This process's memory is at its own address.
    Host {
        /// The address.
        at: u64,
        /// Bytes.
        bytes: u64,
    },
    /// What kernels may do to a mapping.
    Protect {
        /// The mapping's first address.
        at: u64,
        /// The access.
        access: Access,
    },
    /// The end of a home or of an alias.
    Free {
        /// Its address.
        at: u64,
    },
    /// The end of [`Change::Host`].
    ForgetHost {
        /// Its address.
        at: u64,
    },
}

/// All memory.
#[derive(Default, Debug)]
pub struct AddressSpace {
    /// Reserved addresses: bytes by start.
    reserved: BTreeMap<u64, u64>,
    allocations: BTreeMap<u64, Allocation>,
    mappings: BTreeMap<u64, Mapping>,
    /// Homes: bytes by start.
    homes: BTreeMap<u64, u64>,
    /// Page-locked memory of this library.
    pinned: BTreeMap<u64, u64>,
    /// Page-locked memory of callers.
    registered: BTreeMap<u64, u64>,
    /// Variables of modules.
    pub variables: BTreeMap<u64, u64>,
}

/// The range of a map from start to bytes that begins last at or before an address.
fn around(ranges: &BTreeMap<u64, u64>, address: u64) -> Option<u64> {
    let (start, bytes) = ranges.range(..=address).next_back()?;
    (address - start < *bytes).then_some(start + bytes)
}

fn overlapping(ranges: &BTreeMap<u64, u64>, start: u64, end: u64) -> Option<u64> {
    let (at, bytes) = ranges.range(..end).next_back()?;
    (at + bytes > start).then_some(at + bytes)
}

/// The first gap of `bytes` between ranges that `take` accepts.
fn first_gap(
    ranges: &BTreeMap<u64, u64>,
    within: &Range<u64>,
    bytes: u64,
    alignment: u64,
    take: impl Fn(u64) -> bool,
) -> Option<u64> {
    let mut at = within.start.checked_next_multiple_of(alignment)?;
    while at.checked_add(bytes).is_some_and(|end| end <= within.end) {
        match overlapping(ranges, at, at + bytes) {
            Some(end) => at = end.max(at + 1).checked_next_multiple_of(alignment)?,
            None if take(at) => return Some(at),
            None => at = at.checked_add(alignment)?,
        }
    }
    None
}

impl AddressSpace {
    /// Reserves addresses, at `hint` where they are free there.
    pub fn reserve(&mut self, bytes: u64, alignment: u64, hint: u64) -> Result<u64, Status> {
        let is_whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
        if !is_whole || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(status::INVALID_VALUE);
        }
        let alignment = alignment.max(GRANULARITY);
        let end = hint.checked_add(bytes);
        let is_inside = hint >= ADDRESSES.start && end.is_some_and(|end| end <= ADDRESSES.end);
        let wanted = is_inside
            && hint.is_multiple_of(alignment)
            && overlapping(&self.reserved, hint, hint + bytes).is_none()
            && host::map_at(hint, bytes, false);
        let start = if wanted {
            hint
        } else {
            let take = |at| host::map_at(at, bytes, false);
            let found = first_gap(&self.reserved, &ADDRESSES, bytes, alignment, take);
            found.ok_or(status::OUT_OF_MEMORY)?
        };
        self.reserved.insert(start, bytes);
        Ok(start)
    }

    /// Gives reserved addresses back.
    pub fn unreserve(&mut self, start: u64, bytes: u64) -> Result<(), Status> {
        let is_used = self.mappings.range(start..start.saturating_add(bytes)).next().is_some();
        if self.reserved.get(&start) != Some(&bytes) || is_used {
            return Err(status::INVALID_VALUE);
        }
        self.reserved.remove(&start);
        host::unmap(start, bytes);
        Ok(())
    }

    /// Takes a home for physical memory.
    pub fn take_home(&mut self, bytes: u64) -> Result<u64, Status> {
        let home = first_gap(&self.homes, &HOMES, bytes, GRANULARITY, |_| true);
        let home = home.ok_or(status::OUT_OF_MEMORY)?;
        self.homes.insert(home, bytes);
        Ok(home)
    }

    /// Gives back a home.
    pub fn give_home_back(&mut self, home: u64) {
        self.homes.remove(&home);
    }

    /// Enters physical memory.
    pub fn enter(&mut self, handle: u64, physical: Physical, bytes: u64) {
        self.allocations.insert(handle, Allocation { physical, bytes, holders: 1 });
    }

    /// Whether physical memory is for arrays, and has as many bytes.
    pub fn is_for_arrays(&self, handle: u64, bytes: u64) -> bool {
        self.allocations.get(&handle).is_some_and(|allocation| {
            matches!(allocation.physical, Physical::ForArrays) && allocation.bytes >= bytes
        })
    }

    /// One more holder of physical memory.
    pub fn hold(&mut self, handle: u64) {
        if let Some(allocation) = self.allocations.get_mut(&handle) {
            allocation.holders += 1;
        }
    }

    /// One more holder of the physical memory that is mapped at an address.
    pub fn retain(&mut self, address: u64) -> Result<u64, Status> {
        let mapping = self.mappings.range(..=address).next_back();
        let mapping = mapping.filter(|(start, mapping)| address - **start < mapping.bytes);
        let handle = mapping.ok_or(status::INVALID_VALUE)?.1.allocation;
        self.hold(handle);
        Ok(handle)
    }

    /// One holder less. What the GPU must do.
    pub fn release(&mut self, handle: u64) -> Result<Vec<Change>, Status> {
        let allocation = self.allocations.get_mut(&handle).ok_or(status::INVALID_VALUE)?;
        allocation.holders -= 1;
        if allocation.holders > 0 {
            return Ok(Vec::new());
        }
        let allocation = self.allocations.remove(&handle).ok_or(status::INVALID_VALUE)?;
        Ok(match allocation.physical {
            Physical::Device(home) => {
                self.give_home_back(home);
                vec![Change::Free { at: home }]
            }
            Physical::Host(_) | Physical::ForArrays => Vec::new(),
        })
    }

    /// Maps the first bytes of physical memory at reserved addresses. Kernels have no access yet,
    /// and the GPU learns of the mapping when they get it.
    pub fn map(&mut self, start: u64, bytes: u64, handle: u64) -> Result<(), Status> {
        let end = start.checked_add(bytes).ok_or(status::INVALID_VALUE)?;
        let is_whole = bytes > 0 && [start, bytes].iter().all(|n| n.is_multiple_of(GRANULARITY));
        let is_reserved = around(&self.reserved, start).is_some_and(|until| end <= until);
        let before = self.mappings.range(..end).next_back();
        let is_free = before.is_none_or(|(at, mapping)| at + mapping.bytes <= start);
        if !is_whole || !is_reserved || !is_free {
            return Err(status::INVALID_VALUE);
        }
        let allocation = self.allocations.get_mut(&handle).ok_or(status::INVALID_VALUE)?;
        if bytes > allocation.bytes || matches!(allocation.physical, Physical::ForArrays) {
            return Err(status::INVALID_VALUE);
        }
        allocation.holders += 1;
        let mapping = Mapping { bytes, allocation: handle, access: Access::None, is_made: false };
        self.mappings.insert(start, mapping);
        Ok(())
    }

    /// The mappings that make up a range, none in part.
    fn tiles(&self, start: u64, bytes: u64) -> Result<Vec<u64>, Status> {
        let end = start.checked_add(bytes).ok_or(status::INVALID_VALUE)?;
        let (mut at, mut found) = (start, Vec::new());
        while at < end {
            let mapping = self.mappings.get(&at).ok_or(status::INVALID_VALUE)?;
            found.push(at);
            at += mapping.bytes;
        }
        if at == end && bytes > 0 { Ok(found) } else { Err(status::INVALID_VALUE) }
    }

    /// Sets what the device may do to mappings. What the GPU must do.
    pub fn set_access(
        &mut self,
        start: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Vec<Change>, Status> {
        let mut changes = Vec::new();
        for at in self.tiles(start, bytes)? {
            let Some(mapping) = self.mappings.get_mut(&at) else { continue };
            let allocation = self.allocations.get(&mapping.allocation);
            let physical = &allocation.ok_or(status::INVALID_VALUE)?.physical;
            if !mapping.is_made {
                changes.push(match physical {
                    Physical::Device(home) => {
                        Change::Alias { home: *home, at, bytes: mapping.bytes }
                    }
                    Physical::Host(file) if file.map(at, mapping.bytes) => {
                        Change::Host { at, bytes: mapping.bytes }
                    }
                    Physical::Host(_) | Physical::ForArrays => return Err(status::OUT_OF_MEMORY),
                });
                mapping.is_made = true;
                mapping.access = Access::ReadWrite;
            }
            if mapping.access != access && matches!(physical, Physical::Device(_)) {
                changes.push(Change::Protect { at, access });
            }
            mapping.access = access;
        }
        Ok(changes)
    }

    /// Ends mappings. What the GPU must do.
    pub fn unmap(&mut self, start: u64, bytes: u64) -> Result<Vec<Change>, Status> {
        let mut changes = Vec::new();
        for at in self.tiles(start, bytes)? {
            let Some(mapping) = self.mappings.remove(&at) else { continue };
            let allocation = self.allocations.get(&mapping.allocation);
            let is_host =
                allocation.is_some_and(|found| matches!(found.physical, Physical::Host(_)));
            match (mapping.is_made, is_host) {
                (true, true) => {
                    host::reserve_again(at, mapping.bytes);
                    changes.push(Change::ForgetHost { at });
                }
                (true, false) => changes.push(Change::Free { at }),
                (false, _) => {}
            }
            changes.extend(self.release(mapping.allocation)?);
        }
        Ok(changes)
    }

    /// Page-locked memory of this library.
    pub fn pin(&mut self, bytes: u64) -> Result<u64, Status> {
        let bytes = bytes.max(1).checked_next_multiple_of(4096).ok_or(status::INVALID_VALUE)?;
        let take = |at| host::map_at(at, bytes, true);
        let start = first_gap(&self.pinned, &PINNED, bytes, 4096, take);
        let start = start.ok_or(status::OUT_OF_MEMORY)?;
        self.pinned.insert(start, bytes);
        Ok(start)
    }

    /// Page-locks memory of a caller.
    pub fn register(&mut self, start: u64, bytes: u64) -> Result<(), Status> {
        let end = start.checked_add(bytes).filter(|_| bytes > 0).ok_or(status::INVALID_VALUE)?;
        if overlapping(&self.registered, start, end).is_some() {
            return Err(status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.registered.insert(start, bytes);
        Ok(())
    }

    /// Ends [`AddressSpace::register`].
    pub fn unregister(&mut self, start: u64) -> Result<(), Status> {
        self.registered.remove(&start).map(|_| ()).ok_or(status::HOST_MEMORY_NOT_REGISTERED)
    }

    /// Whether a range of the host's memory is page-locked.
    pub fn is_locked(&self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let inside = |ranges| around(ranges, start).is_some_and(|until| end <= until);
        inside(&self.pinned) || inside(&self.registered)
    }

    /// Whether the device may use all of a range.
    pub fn is_live(&self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes) else { return false };
        let mut at = start;
        while at < end {
            let mapping = self.mappings.range(..=at).next_back();
            let mapping = mapping.filter(|(first, mapping)| {
                at - **first < mapping.bytes && mapping.access != Access::None
            });
            let mapping = mapping.map(|(first, mapping)| first + mapping.bytes);
            let others = [&self.pinned, &self.variables];
            let until = mapping.or_else(|| others.iter().find_map(|ranges| around(ranges, at)));
            let Some(until) = until else { return false };
            at = until;
        }
        true
    }
}

impl Tables {
    /// Whether the device may use all of a range.
    pub fn is_live(&self, start: u64, bytes: u64) -> bool {
        self.memory.is_live(start, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = GRANULARITY;

    /// Makes physical memory of `bytes` bytes on the device.
    fn create(space: &mut AddressSpace, handle: u64, bytes: u64) -> u64 {
        let home = space.take_home(bytes).expect("there is room");
        space.enter(handle, Physical::Device(home), bytes);
        home
    }

    #[test]
    fn addresses_are_reserved_where_they_are_wanted_or_elsewhere() {
        let mut space = AddressSpace::default();
        let first = space.reserve(4 * PAGE, 1 << 30, 0).expect("there is room");
        assert!(first.is_multiple_of(1 << 30));
        let other = space.reserve(4 * PAGE, 0, first).expect("there is room");
        assert_ne!(first, other);
        assert_eq!(space.unreserve(first, PAGE), Err(status::INVALID_VALUE));
        assert_eq!(space.unreserve(first, 4 * PAGE), Ok(()));
        // A part of what was given back.
        assert_eq!(space.reserve(PAGE, 0, first + 2 * PAGE), Ok(first + 2 * PAGE));
        for (bytes, alignment) in [(0, 0), (PAGE + 1, 0), (PAGE, 3 * PAGE)] {
            assert_eq!(space.reserve(bytes, alignment, 0), Err(status::INVALID_VALUE));
        }
        assert_eq!(space.unreserve(other, 4 * PAGE), Ok(()));
        assert_eq!(space.unreserve(first + 2 * PAGE, PAGE), Ok(()));
    }

    #[test]
    fn one_allocation_has_many_addresses() {
        let mut space = AddressSpace::default();
        let at = space.reserve(8 * PAGE, 0, 0).expect("there is room");
        let home = create(&mut space, 1, 2 * PAGE);
        for wrong in [(at + 1, PAGE), (at, PAGE - 1), (at, 4 * PAGE), (at + 7 * PAGE, 2 * PAGE)] {
            assert_eq!(space.map(wrong.0, wrong.1, 1), Err(status::INVALID_VALUE), "{wrong:?}");
        }
        space.map(at, 2 * PAGE, 1).expect("it is reserved");
        space.map(at + 2 * PAGE, PAGE, 1).expect("it is reserved");
        assert_eq!(space.map(at + PAGE, PAGE, 1), Err(status::INVALID_VALUE));
        assert!(!space.is_live(at, 1), "nobody may use it yet");
        assert_eq!(space.set_access(at, PAGE, Access::Read), Err(status::INVALID_VALUE));
        let made = space.set_access(at, 3 * PAGE, Access::ReadWrite).expect("whole mappings");
        let alias = |at, bytes| Change::Alias { home, at, bytes };
        assert_eq!(made, [alias(at, 2 * PAGE), alias(at + 2 * PAGE, PAGE)]);
        assert!(space.is_live(at, 3 * PAGE) && !space.is_live(at, 3 * PAGE + 1));
        let changed = space.set_access(at, 2 * PAGE, Access::None).expect("a whole mapping");
        assert_eq!(changed, [Change::Protect { at, access: Access::None }]);
        assert_eq!(space.release(1), Ok(Vec::new()), "mappings keep the memory");
        assert_eq!(space.unreserve(at, 8 * PAGE), Err(status::INVALID_VALUE));
        assert_eq!(space.unmap(at, 2 * PAGE), Ok(vec![Change::Free { at }]));
        let last = at + 2 * PAGE;
        let ends = vec![Change::Free { at: last }, Change::Free { at: home }];
        assert_eq!(space.unmap(last, PAGE), Ok(ends));
        assert_eq!(space.unreserve(at, 8 * PAGE), Ok(()));
    }
}
