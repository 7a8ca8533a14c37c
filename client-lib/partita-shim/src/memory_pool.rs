//! Memory pools: memory that is allocated and freed in stream order.
//!
//! A block that is freed in a stream is kept, and reused for a later allocation in the *same*
//! stream: the block's earlier users come before its later users in that stream. Blocks return to
//! the daemon when a pool is trimmed or memory runs short, after all work has ended. A block serves
//! requests of at least half its size.
//!
//! A pool that another process shares has no blocks here. Its owner hands out single blocks, which
//! this process opens as it opens other memory.

use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use crate::runtime::Runtime;
use partita_client::{Secret, StreamHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const UNIT: u64 = 512;

/// One pool.
pub struct Pool {
    sharing: Sharing,
    state: Mutex<State>,
}

/// How processes share a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sharing {
    /// Not at all.
    Alone,
    /// This process's, and other processes may have blocks of it.
    Exported(PoolName),
    /// Another process's.
    Imported(PoolName),
}

/// What tells a shared pool from others. It opens nothing.
pub type PoolName = u128;

/// The blocks of a pool, and the attributes that programs set (`CUmemPool_attribute`).
#[derive(Default)]
struct State {
    /// Kept blocks by stream and size.
    kept: BTreeMap<(u64, u64), Vec<u64>>,
    /// Blocks in use by address.
    used: BTreeMap<u64, u64>,
    used_bytes: u64,
    used_high: u64,
    reserved_bytes: u64,
    reserved_high: u64,
    release_threshold: u64,
    /// `REUSE_…`: 1 to 3, kept and not obeyed: reuse within one stream is always right.
    reuse: [i32; 3],
}

/// An attribute's value, which has its size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attribute {
    /// The first three.
    Switch(i32),
    /// The others.
    Bytes(u64),
}

/// All pools.
pub struct Pools {
    table: Handles<Pool>,
    default: u64,
    current: Mutex<u64>,
    /// Open blocks of other processes.
    imported: Mutex<BTreeSet<u64>>,
}

impl Pools {
    /// The device's default pool.
    pub fn new(device: DeviceIndex) -> CuResult<Self> {
        let table = Handles::new(Kind::MemoryPool, device);
        let default = table.insert(Pool::new(Sharing::Alone))?;
        Ok(Pools { table, default, current: Mutex::new(default), imported: Mutex::default() })
    }

    /// The default pool's handle.
    pub fn default_pool(&self) -> u64 {
        self.default
    }

    /// The handle of the pool that allocations without a pool come from.
    pub fn current(&self) -> u64 {
        *lock(&self.current)
    }

    /// `cuDeviceSetMemPool`.
    pub fn set_current(&self, handle: u64) -> CuResult {
        if self.get(handle)?.imported().is_some() {
            return Err(CuError::INVALID_VALUE);
        }
        *lock(&self.current) = handle;
        Ok(())
    }

    /// `cuMemPoolCreate`.
    pub fn create(&self, is_shared: bool) -> CuResult<u64> {
        self.table.insert_with(|handle| {
            let name = PoolName::from(std::process::id()) << 64 | PoolName::from(handle);
            Ok(Pool::new(if is_shared { Sharing::Exported(name) } else { Sharing::Alone }))
        })
    }

    /// `cuMemPoolImportFromShareableHandle`.
    pub fn import(&self, name: PoolName) -> CuResult<u64> {
        self.table.insert(Pool::new(Sharing::Imported(name)))
    }

    /// The shared pool that an address is a block of in use.
    pub fn exported(&self, address: u64) -> Option<PoolName> {
        let all = self.table.all();
        let pool = all.iter().find(|pool| lock(&pool.state).used.contains_key(&address))?;
        pool.exported()
    }

    /// `cuMemPoolImportPointer`.
    pub fn open(&self, runtime: &Runtime, secret: Secret) -> CuResult<u64> {
        let address = runtime.opened.open(&runtime.session, secret)?;
        lock(&self.imported).insert(address);
        Ok(address)
    }

    /// Ends the use of another process's block; false where there is none.
    pub fn close(&self, runtime: &Runtime, address: u64) -> CuResult<bool> {
        if !lock(&self.imported).contains(&address) {
            return Ok(false);
        }
        // It waits for all work, and other threads do not wait for it.
        runtime.opened.close(&runtime.session, address)?;
        // It may have been imported several times.
        if runtime.opened.find(address).is_none() {
            lock(&self.imported).remove(&address);
        }
        Ok(true)
    }

    /// `cuMemPoolDestroy`. Blocks in use stay until they are freed.
    pub fn destroy(&self, runtime: &Runtime, handle: u64) -> CuResult {
        if handle == self.default {
            return Err(CuError::INVALID_VALUE);
        }
        let pool = self.table.remove(handle)?;
        let mut current = lock(&self.current);
        if *current == handle {
            *current = self.default;
        }
        drop(current);
        pool.trim(runtime, 0)
    }

    /// The pool of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Pool>> {
        self.table.get(handle)
    }

    /// `cuMemFreeAsync`: keeps a block of whichever pool it is from; false where it is from none.
    pub fn free(&self, address: u64, stream: StreamHandle) -> bool {
        self.table.all().iter().any(|pool| pool.free(address, stream))
    }

    /// Whether a block was freed and is kept: to the program it does not exist.
    pub fn is_kept(&self, address: u64) -> bool {
        let holds = |pool: &Arc<Pool>| {
            lock(&pool.state).kept.values().flatten().any(|kept| *kept == address)
        };
        self.table.all().iter().any(holds)
    }

    /// Forgets a block that was freed in another way.
    pub fn forget(&self, address: u64) {
        for pool in self.table.all() {
            pool.forget(address);
        }
    }

    /// Forgets every block: their memory went with the context.
    pub fn clear(&self) {
        for pool in self.table.all() {
            lock(&pool.state).forget_blocks();
        }
        lock(&self.imported).clear();
    }

    /// Gives back all that is kept.
    pub fn trim(&self, runtime: &Runtime) -> CuResult {
        self.table.all().iter().try_for_each(|pool| pool.trim(runtime, 0))
    }
}

impl Pool {
    fn new(sharing: Sharing) -> Self {
        Pool { sharing, state: Mutex::new(State { reuse: [1; 3], ..State::default() }) }
    }

    /// Its name, where other processes may have blocks of it.
    pub fn exported(&self) -> Option<PoolName> {
        match self.sharing {
            Sharing::Exported(name) => Some(name),
            Sharing::Alone | Sharing::Imported(_) => None,
        }
    }

    /// Its name, where it is another process's.
    pub fn imported(&self) -> Option<PoolName> {
        match self.sharing {
            Sharing::Imported(name) => Some(name),
            Sharing::Alone | Sharing::Exported(_) => None,
        }
    }

    /// `cuMemAllocAsync`.
    pub fn allocate(&self, runtime: &Runtime, bytes: u64, stream: StreamHandle) -> CuResult<u64> {
        if self.imported().is_some() {
            return Err(CuError::INVALID_VALUE);
        }
        let bytes = bytes
            .checked_next_multiple_of(UNIT)
            .filter(|bytes| *bytes > 0)
            .ok_or(CuError::INVALID_VALUE)?;
        if let Some(address) = lock(&self.state).take(bytes, stream) {
            return Ok(address);
        }
        let allocate = || runtime.allocations.allocate(&runtime.session, bytes);
        let address = match allocate() {
            Err(CuError::OUT_OF_MEMORY) => {
                runtime.pools.trim(runtime)?;
                allocate()?
            }
            other => other?,
        };
        lock(&self.state).add(address, bytes);
        Ok(address)
    }

    fn free(&self, address: u64, stream: StreamHandle) -> bool {
        lock(&self.state).keep(address, stream)
    }

    fn forget(&self, address: u64) {
        let mut state = lock(&self.state);
        if let Some(bytes) = state.used.remove(&address) {
            state.used_bytes -= bytes;
            state.reserved_bytes -= bytes;
        }
    }

    /// `cuMemPoolTrimTo`: gives kept blocks back until the pool has no more than `bytes`.
    pub fn trim(&self, runtime: &Runtime, bytes: u64) -> CuResult {
        let blocks = lock(&self.state).give_back(bytes);
        if blocks.is_empty() {
            return Ok(());
        }
        runtime.session.synchronize(None)?;
        blocks
            .into_iter()
            .try_for_each(|address| runtime.allocations.free(&runtime.session, address))
    }

    /// `cuMemPoolGetAttribute`.
    pub fn attribute(&self, attribute: i32) -> CuResult<Attribute> {
        let state = lock(&self.state);
        Ok(match attribute {
            1 => Attribute::Switch(state.reuse[0]),
            2 => Attribute::Switch(state.reuse[1]),
            3 => Attribute::Switch(state.reuse[2]),
            4 => Attribute::Bytes(state.release_threshold),
            5 => Attribute::Bytes(state.reserved_bytes),
            6 => Attribute::Bytes(state.reserved_high),
            7 => Attribute::Bytes(state.used_bytes),
            8 => Attribute::Bytes(state.used_high),
            _ => return Err(CuError::INVALID_VALUE),
        })
    }

    /// `cuMemPoolSetAttribute`; the high-water marks can only be reset.
    pub fn set_attribute(&self, attribute: i32, value: Attribute) -> CuResult {
        let mut state = lock(&self.state);
        match (attribute, value) {
            (1, Attribute::Switch(value)) => state.reuse[0] = value,
            (2, Attribute::Switch(value)) => state.reuse[1] = value,
            (3, Attribute::Switch(value)) => state.reuse[2] = value,
            (4, Attribute::Bytes(value)) => state.release_threshold = value,
            (6, Attribute::Bytes(0)) => state.reserved_high = state.reserved_bytes,
            (8, Attribute::Bytes(0)) => state.used_high = state.used_bytes,
            _ => return Err(CuError::INVALID_VALUE),
        }
        Ok(())
    }
}

impl State {
    /// A kept block for `bytes` bytes in a stream.
    fn take(&mut self, bytes: u64, stream: StreamHandle) -> Option<u64> {
        let sizes = (stream.0, bytes)..=(stream.0, bytes.saturating_mul(2));
        let (&(_, size), blocks) = self.kept.range_mut(sizes).next()?;
        let address = blocks.pop().expect("empty lists are removed");
        if blocks.is_empty() {
            self.kept.remove(&(stream.0, size));
        }
        self.set_used(address, size);
        Some(address)
    }

    fn add(&mut self, address: u64, bytes: u64) {
        self.reserved_bytes += bytes;
        self.reserved_high = self.reserved_high.max(self.reserved_bytes);
        self.set_used(address, bytes);
    }

    fn set_used(&mut self, address: u64, bytes: u64) {
        self.used.insert(address, bytes);
        self.used_bytes += bytes;
        self.used_high = self.used_high.max(self.used_bytes);
    }

    fn keep(&mut self, address: u64, stream: StreamHandle) -> bool {
        let Some(bytes) = self.used.remove(&address) else { return false };
        self.used_bytes -= bytes;
        self.kept.entry((stream.0, bytes)).or_default().push(address);
        true
    }

    fn forget_blocks(&mut self) {
        self.kept.clear();
        self.used.clear();
        (self.used_bytes, self.reserved_bytes) = (0, 0);
    }

    /// Takes out kept blocks, until no more than `bytes` bytes are reserved or none is left.
    fn give_back(&mut self, bytes: u64) -> Vec<u64> {
        let mut blocks = Vec::new();
        while self.reserved_bytes > bytes
            && let Some((key, kept)) = self.kept.pop_last()
        {
            self.reserved_bytes -= key.1 * kept.len() as u64;
            blocks.extend(kept);
        }
        blocks
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamHandle = StreamHandle(1);
    const B: StreamHandle = StreamHandle(2);

    #[test]
    fn a_block_is_used_again_in_its_own_stream_only() {
        let mut state = State::default();
        state.add(0x1000, 1024);
        assert_eq!(state.take(1024, A), None, "in use");
        assert!(state.keep(0x1000, A));
        assert!(!state.keep(0x1000, A), "freed once");
        assert_eq!(state.take(1024, B), None, "another stream");
        assert_eq!(state.take(1536, A), None, "too small");
        assert_eq!(state.take(256, A), None, "far too large");
        assert_eq!(state.take(512, A), Some(0x1000));
        assert_eq!(
            (state.used_bytes, state.reserved_bytes),
            (1024, 1024),
            "a block is used as a whole"
        );
    }

    #[test]
    fn trimming_gives_back_what_is_kept() {
        let mut state = State::default();
        for (address, bytes) in [(0x1000, 512), (0x2000, 1024), (0x3000, 1024)] {
            state.add(address, bytes);
        }
        assert!(state.keep(0x1000, A) && state.keep(0x2000, B));
        assert!(state.give_back(4096).is_empty());
        assert_eq!(state.give_back(2000), [0x2000]);
        assert_eq!(state.give_back(0), [0x1000]);
        assert!(state.give_back(0).is_empty(), "the third is in use");
        assert_eq!(
            (state.used_bytes, state.reserved_bytes, state.reserved_high),
            (1024, 1024, 2560)
        );
    }
}
