//! What one grid may touch of global memory.
//!
//! The grants of a grid are the live parts of the ranges that its launch may access. They are
//! computed anew when an allocation comes or goes. Each access site of a kernel remembers the last
//! grant that it hit, so the usual check is two comparisons.

use super::Memory;
use partita_device::AddressRange;
use partita_model::{DeviceAddress, MemoryAccess};

#[derive(Clone, Copy, Debug)]
struct Grant {
    low: u64,
    high: u64,
    slot: u32,
    /// Start of the allocation, from which offsets are counted.
    start: u64,
}

/// Where bytes lie: an allocation, and their offset in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The allocation.
    pub slot: u32,
    /// Bytes from its start.
    pub offset: u64,
}

/// What one launch may touch.
#[derive(Clone, Debug)]
pub struct Grants {
    access: Vec<AddressRange>,
    /// Ranges that are read-only: the module's constants, then protected memory.
    read_only: Vec<AddressRange>,
    /// How many of `read_only` are the module's constants.
    constants: usize,
    list: Vec<Grant>,
    /// Whether no two grants overlap.
    disjoint: bool,
    /// Index of the last grant used, by access site.
    hints: Vec<u32>,
    epoch: u64,
}

impl Grants {
    /// Grants for `access`, with `sites` access sites.
    #[must_use]
    pub fn new(access: Vec<AddressRange>, read_only: Vec<AddressRange>, sites: usize) -> Self {
        let constants = read_only.len();
        Grants {
            access,
            read_only,
            constants,
            list: Vec::new(),
            disjoint: true,
            hints: vec![0; sites],
            epoch: 0,
        }
    }

    #[cold]
    #[inline(never)]
    fn refresh(&mut self, memory: &Memory) {
        self.list.clear();
        self.read_only.truncate(self.constants);
        for range in &self.access {
            // Only its own views: another tenant's may be millions.
            let before = memory.views.range(..range.start.0).next_back();
            let views = before.into_iter().chain(memory.views.range(range.start.0..range.end()));
            for (&start, view) in views.filter(|(_, view)| view.access != MemoryAccess::None) {
                let (low, high) = (start.max(range.start.0), (start + view.bytes).min(range.end()));
                if low >= high {
                    continue;
                }
                self.list.push(Grant { low, high, slot: view.slot as u32, start });
                if view.access == MemoryAccess::Read {
                    self.read_only
                        .push(AddressRange { start: DeviceAddress(start), bytes: view.bytes });
                }
            }
        }
        self.list.sort_by_key(|grant| grant.low);
        self.disjoint = self.list.windows(2).all(|pair| pair[0].high <= pair[1].low);
        self.epoch = memory.epoch;
    }

    #[inline(always)]
    fn find(&mut self, memory: &Memory, site: usize, low: u64, high: u64) -> Option<Grant> {
        if self.epoch != memory.epoch {
            self.refresh(memory);
        }
        let hint = self.hints.get(site).copied().unwrap_or(0);
        // `low <= high` fails for an access that wraps at the top of the addresses.
        if let Some(grant) = self.list.get(hint as usize)
            && low >= grant.low
            && high <= grant.high
            && low <= high
        {
            return Some(*grant);
        }
        self.search(site, low, high)
    }

    #[cold]
    #[inline(never)]
    fn search(&mut self, site: usize, low: u64, high: u64) -> Option<Grant> {
        let holds = |grant: &Grant| low >= grant.low && high <= grant.high && low <= high;
        let index = if self.disjoint {
            let behind = self.list.partition_point(|grant| grant.low <= low);
            behind.checked_sub(1).filter(|&index| holds(&self.list[index]))?
        } else {
            // Where ranges of `access` overlap, the start alone could miss a candidate.
            self.list.iter().position(holds)?
        };
        if let Some(hint) = self.hints.get_mut(site) {
            *hint = index as u32;
        }
        Some(self.list[index])
    }

    /// The bytes from `low` to before `high`, where one live and granted allocation holds them.
    #[inline(always)]
    pub fn bytes<'m>(
        &mut self,
        memory: &'m Memory,
        site: usize,
        low: u64,
        high: u64,
    ) -> Option<&'m [u8]> {
        let grant = self.find(memory, site, low, high)?;
        let allocation = memory.slots.get(grant.slot as usize)?.as_ref()?;
        allocation.data.get((low - grant.start) as usize..(high - grant.start) as usize)
    }

    /// Where the bytes from `low` to before `high` lie, where one live and granted allocation holds
    /// them.
    pub fn place(&mut self, memory: &Memory, site: usize, low: u64, high: u64) -> Option<Place> {
        let grant = self.find(memory, site, low, high)?;
        Some(Place { slot: grant.slot, offset: low - grant.start })
    }

    /// The grant around `address`: its first address and its bytes.
    #[inline(always)]
    pub fn around<'m>(
        &mut self,
        memory: &'m Memory,
        site: usize,
        address: u64,
    ) -> Option<(u64, &'m [u8])> {
        let grant = self.find(memory, site, address, address.checked_add(1)?)?;
        let allocation = memory.slots.get(grant.slot as usize)?.as_ref()?;
        let bytes = (grant.low - grant.start) as usize..(grant.high - grant.start) as usize;
        Some((grant.low, allocation.data.get(bytes)?))
    }

    /// As [`Grants::around`], for writing. `None` also where a part of it may only be read.
    #[inline(always)]
    pub fn around_mut<'m>(
        &mut self,
        memory: &'m mut Memory,
        site: usize,
        address: u64,
    ) -> Option<(u64, &'m mut [u8])> {
        let grant = self.find(memory, site, address, address.checked_add(1)?)?;
        if !self.read_only.is_empty() && self.is_read_only(grant.low, grant.high) {
            return None;
        }
        let allocation = memory.slots.get_mut(grant.slot as usize)?.as_mut()?;
        let bytes = (grant.low - grant.start) as usize..(grant.high - grant.start) as usize;
        Some((grant.low, allocation.data.get_mut(bytes)?))
    }

    /// As [`Grants::bytes`], for writing.
    #[inline(always)]
    pub fn bytes_mut<'m>(
        &mut self,
        memory: &'m mut Memory,
        site: usize,
        low: u64,
        high: u64,
    ) -> Option<&'m mut [u8]> {
        let grant = self.find(memory, site, low, high)?;
        if !self.read_only.is_empty() && self.is_read_only(low, high) {
            return None;
        }
        let allocation = memory.slots.get_mut(grant.slot as usize)?.as_mut()?;
        allocation.data.get_mut((low - grant.start) as usize..(high - grant.start) as usize)
    }

    /// Whether a byte of the range may only be read.
    #[must_use]
    pub fn is_read_only(&self, low: u64, high: u64) -> bool {
        self.read_only.iter().any(|range| low < range.end() && high > range.start.0)
    }

    /// Whether the launch may touch the range, live or not.
    #[must_use]
    pub fn covers(&self, address: u64, bytes: u64) -> bool {
        self.access.iter().any(|range| range.contains(DeviceAddress(address), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::WindowId;

    fn range(start: u64, bytes: u64) -> AddressRange {
        AddressRange { start: DeviceAddress(start), bytes }
    }

    fn memory() -> (Memory, u64) {
        let mut memory = Memory::new(1 << 30);
        let base = memory.reserve(WindowId(1), 1 << 24).unwrap().0;
        (memory, base)
    }

    #[test]
    fn grants_follow_allocations() {
        let (mut memory, base) = memory();
        memory.allocate(WindowId(1), range(base, 4096)).unwrap();
        let mut grants = Grants::new(vec![range(base + 1024, 8192)], Vec::new(), 1);
        assert!(grants.bytes(&memory, 0, base, base + 4).is_none(), "not granted");
        assert!(grants.bytes(&memory, 0, base + 1024, base + 1028).is_some());
        assert!(grants.bytes(&memory, 0, base + 4096, base + 4100).is_none(), "not live");
        memory.allocate(WindowId(1), range(base + 4096, 4096)).unwrap();
        assert!(grants.bytes_mut(&mut memory, 0, base + 4096, base + 4100).is_some());
        memory.free(DeviceAddress(base + 4096)).unwrap();
        assert!(grants.bytes(&memory, 0, base + 4096, base + 4100).is_none(), "freed");
    }

    #[test]
    fn what_is_protected_is_not_granted() {
        let (mut memory, base) = memory();
        memory.allocate(WindowId(1), range(base, 4096)).unwrap();
        memory.alias(DeviceAddress(base), range(base + 8192, 4096)).unwrap();
        let mut grants = Grants::new(vec![range(base, 1 << 20)], Vec::new(), 1);
        let mut may = |memory: &mut Memory, address: u64| {
            let read = grants.bytes(memory, 0, address, address + 4).is_some();
            (read, grants.bytes_mut(memory, 0, address, address + 4).is_some())
        };
        for (access, expected) in [
            (MemoryAccess::None, (false, false)),
            (MemoryAccess::Read, (true, false)),
            (MemoryAccess::ReadWrite, (true, true)),
        ] {
            memory.protect(DeviceAddress(base + 8192), access).unwrap();
            assert_eq!(may(&mut memory, base + 8192), expected, "{access:?}");
            assert_eq!(may(&mut memory, base), (true, true), "the other address");
        }
        assert!(memory.protect(DeviceAddress(base + 4), MemoryAccess::Read).is_err());
    }
}
