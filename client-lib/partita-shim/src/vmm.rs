//! Memory and addresses apart: memory of `cuMemCreate` is mapped into addresses of
//! `cuMemAddressReserve` (CUDA Driver API, "Virtual Memory Management"). PyTorch's expandable
//! segments are built on it.
//!
//! To the daemon such memory is an ordinary allocation, its home; no program learns the home's
//! address. So it is with memory of another process, which is opened instead of allocated. The
//! daemon maps the allocation, or its first part, into reserved addresses as often as
//! the device supports. It holds copies and kernels to the access that was granted.

use crate::device_memory::Range;
use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use partita_client::{Secret, Session};
use partita_model::{DeviceAddress, MemoryAccess};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sizes and addresses are multiples of this, as on NVIDIA's GPUs.
pub const GRANULARITY: u64 = 2 << 20;

/// Memory without an address.
pub struct Physical {
    home: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// `CUmemAllocationProp` as the program gave it.
    pub properties: [u64; 4],
    /// Whether it is another process's.
    is_opened: bool,
    state: Mutex<State>,
}

/// The state that decides how long memory lives: until it has neither owner nor mapping.
struct State {
    owners: u32,
    mappings: u32,
}

/// One mapping.
#[derive(Clone, Copy)]
struct Mapping {
    handle: u64,
    bytes: u64,
    access: MemoryAccess,
}

/// All memory, reserved addresses and mappings.
pub struct Vmm {
    memory: Handles<Physical>,
    /// Memory that several processes may have, by what opens it.
    shared: Mutex<BTreeMap<Secret, u64>>,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// Length by start.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
}

impl Physical {
    /// Maps the memory once and unmaps it, so that the device keeps it apart from other memory.
    /// Both processes can map only such memory where they like.
    fn part(&self, session: &Session) -> CuResult {
        if lock(&self.state).mappings > 0 {
            return Ok(());
        }
        let place = session.reserve(self.bytes, GRANULARITY)?;
        let mapped = session.map(DeviceAddress(self.home), place, self.bytes);
        let mapped = mapped.and_then(|()| session.unmap(place));
        session.unreserve(place)?;
        Ok(mapped?)
    }

    fn end(&self, session: &Session) -> CuResult {
        let home = DeviceAddress(self.home);
        let ended =
            if self.is_opened { session.close_memory(home) } else { session.mem_free(home) };
        ended.map_err(CuError::from)
    }
}

impl Vmm {
    /// None.
    pub const fn new(device: DeviceIndex) -> Self {
        let places = Places { reserved: BTreeMap::new(), mapped: BTreeMap::new() };
        Vmm {
            memory: Handles::new(Kind::Physical, device),
            shared: Mutex::new(BTreeMap::new()),
            places: Mutex::new(places),
        }
    }

    /// `cuMemAddressReserve`.
    pub fn reserve(&self, session: &Session, bytes: u64, alignment: u64) -> CuResult<u64> {
        let alignment = if alignment == 0 { GRANULARITY } else { alignment };
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || !alignment.is_power_of_two() {
            return Err(CuError::INVALID_VALUE);
        }
        let start = session.reserve(bytes, alignment.max(GRANULARITY))?.0;
        lock(&self.places).reserved.insert(start, bytes);
        Ok(start)
    }

    /// `cuMemAddressFree`: exactly what was reserved.
    pub fn unreserve(&self, session: &Session, start: u64, bytes: u64) -> CuResult {
        if lock(&self.places).reserved.get(&start) != Some(&bytes) {
            return Err(CuError::INVALID_VALUE);
        }
        session.unreserve(DeviceAddress(start))?;
        lock(&self.places).reserved.remove(&start);
        Ok(())
    }

    /// `cuMemCreate`.
    pub fn create(&self, session: &Session, bytes: u64, properties: [u64; 4]) -> CuResult<u64> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return Err(CuError::INVALID_VALUE);
        }
        let home = session.mem_alloc(bytes)?.0;
        let state = Mutex::new(State { owners: 1, mappings: 0 });
        self.memory.insert(Physical { home, bytes, properties, is_opened: false, state })
    }

    /// `cuMemExportToShareableHandle`: what opens the memory in another process.
    pub fn export(&self, session: &Session, handle: u64) -> CuResult<Secret> {
        let memory = self.get(handle)?;
        let is_exported = lock(&self.shared).values().any(|other| *other == handle);
        if !is_exported {
            // It waits for the session's work, and other threads do not wait for it.
            memory.part(session)?;
        }
        let mut shared = lock(&self.shared);
        if let Some((secret, _)) = shared.iter().find(|(_, other)| **other == handle) {
            return Ok(*secret);
        }
        let secret = session.export_memory(DeviceAddress(memory.home))?;
        shared.insert(secret, handle);
        Ok(secret)
    }

    /// `cuMemImportFromShareableHandle`. Memory that this process has already keeps its handle, and
    /// has one owner more.
    pub fn import(&self, session: &Session, secret: Secret, properties: [u64; 4]) -> CuResult<u64> {
        let mut shared = lock(&self.shared);
        if let Some(handle) = shared.get(&secret) {
            lock(&self.get(*handle)?.state).owners += 1;
            return Ok(*handle);
        }
        let range = session.open_memory(secret)?;
        let state = Mutex::new(State { owners: 1, mappings: 0 });
        let (home, bytes) = (range.start.0, range.bytes);
        let memory = Physical { home, bytes, properties, is_opened: true, state };
        let handle = self.memory.insert(memory)?;
        shared.insert(secret, handle);
        Ok(handle)
    }

    /// The memory of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Physical>> {
        self.memory.get(handle).map_err(|_| CuError::INVALID_VALUE)
    }

    /// `cuMemRelease`.
    pub fn release(&self, session: &Session, handle: u64) -> CuResult {
        let memory = self.get(handle)?;
        {
            let mut state = lock(&memory.state);
            state.owners = state.owners.checked_sub(1).ok_or(CuError::INVALID_VALUE)?;
        }
        self.free_if_unused(session, handle, &memory)
    }

    /// `cuMemRetainAllocationHandle`.
    pub fn retain(&self, address: u64) -> CuResult<u64> {
        let (_, mapping) = self.find_mapping(address).ok_or(CuError::INVALID_VALUE)?;
        lock(&self.get(mapping.handle)?.state).owners += 1;
        Ok(mapping.handle)
    }

    fn free_if_unused(&self, session: &Session, handle: u64, memory: &Physical) -> CuResult {
        {
            let state = lock(&memory.state);
            if state.owners > 0 || state.mappings > 0 {
                return Ok(());
            }
        }
        self.memory.remove(handle)?;
        lock(&self.shared).retain(|_, shared| *shared != handle);
        memory.end(session)
    }

    /// `cuMemMap`.
    pub fn map(&self, session: &Session, to: u64, bytes: u64, handle: u64) -> CuResult {
        let memory = self.get(handle)?;
        let sizes_fit = bytes.is_multiple_of(GRANULARITY) && (1..=memory.bytes).contains(&bytes);
        if !sizes_fit || !to.is_multiple_of(GRANULARITY) {
            return Err(CuError::INVALID_VALUE);
        }
        let mut state = lock(&memory.state);
        session.map(DeviceAddress(memory.home), DeviceAddress(to), bytes)?;
        state.mappings += 1;
        lock(&self.places).mapped.insert(to, Mapping { handle, bytes, access: MemoryAccess::None });
        Ok(())
    }

    /// `cuMemUnmap`: whole mappings, as many as the range has, without gaps.
    pub fn unmap(&self, session: &Session, start: u64, bytes: u64) -> CuResult {
        for (at, mapping) in self.mappings(start, bytes)? {
            session.unmap(DeviceAddress(at))?;
            lock(&self.places).mapped.remove(&at);
            let memory = self.get(mapping.handle)?;
            lock(&memory.state).mappings -= 1;
            self.free_if_unused(session, mapping.handle, &memory)?;
        }
        Ok(())
    }

    /// The mappings that make up a range.
    fn mappings(&self, start: u64, bytes: u64) -> CuResult<Vec<(u64, Mapping)>> {
        let end = start.checked_add(bytes).filter(|_| bytes > 0).ok_or(CuError::INVALID_VALUE)?;
        let places = lock(&self.places);
        let mut at = start;
        let mut found = Vec::new();
        while at < end {
            let mapping = *places.mapped.get(&at).ok_or(CuError::INVALID_VALUE)?;
            found.push((at, mapping));
            at += mapping.bytes;
        }
        if at == end { Ok(found) } else { Err(CuError::INVALID_VALUE) }
    }

    /// `cuMemSetAccess` for whole mappings.
    pub fn set_access(
        &self,
        session: &Session,
        start: u64,
        bytes: u64,
        access: MemoryAccess,
    ) -> CuResult {
        let inside = self.mappings(start, bytes)?;
        session.set_access(DeviceAddress(start), bytes, access)?;
        let mut places = lock(&self.places);
        for (at, _) in inside {
            places.mapped.entry(at).and_modify(|mapping| mapping.access = access);
        }
        Ok(())
    }

    /// Whether this may be done to a range, as far as mappings decide it.
    pub fn permits(&self, start: u64, bytes: u64, access: MemoryAccess) -> bool {
        let places = lock(&self.places);
        let end = start.saturating_add(bytes);
        let first = places.mapped.range(..=start).next_back().map_or(start, |(&at, _)| at);
        let over =
            places.mapped.range(first..end).filter(|(at, mapping)| **at + mapping.bytes > start);
        over.into_iter().all(|(_, mapping)| mapping.access >= access)
    }

    /// `cuMemGetAccess`.
    pub fn access(&self, address: u64) -> CuResult<MemoryAccess> {
        Ok(self.find_mapping(address).ok_or(CuError::INVALID_VALUE)?.1.access)
    }

    /// The mapping that an address is inside of.
    pub fn find(&self, address: u64) -> Option<Range> {
        let (start, mapping) = self.find_mapping(address)?;
        Some(Range { start, bytes: mapping.bytes })
    }

    fn find_mapping(&self, address: u64) -> Option<(u64, Mapping)> {
        let places = lock(&self.places);
        let (&start, &mapping) = places.mapped.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping))
    }

    /// Ends everything.
    pub fn clear(&self, session: &Session) {
        let Places { reserved, mapped } = std::mem::take(&mut *lock(&self.places));
        // A mapping that cannot be removed any more ends with the session.
        for at in mapped.into_keys() {
            let _ = session.unmap(DeviceAddress(at));
        }
        for start in reserved.into_keys() {
            let _ = session.unreserve(DeviceAddress(start));
        }
        lock(&self.shared).clear();
        for memory in self.memory.remove_where(|_| true) {
            let _ = memory.end(session);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
