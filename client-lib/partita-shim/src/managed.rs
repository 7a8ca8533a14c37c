//! Managed memory: host memory that kernels reach at the program's own addresses
//! ([`crate::host_memory`]).
//!
//! No data moves, so prefetches and advice have no effect. The program's advice is kept, because
//! the program may query it.

use crate::error::{CuError, CuResult};
use crate::host_memory::HostAllocations;
use partita_client::Session;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CU_DEVICE_INVALID`: no location.
pub const NOWHERE: i32 = -2;

/// A program's advice about one allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Mostly read.
    pub read_mostly: bool,
    /// The preferred place: a device, -1 for the host, [`NOWHERE`].
    pub preferred: i32,
    /// The devices that access the memory.
    pub accessed_by: BTreeSet<i32>,
    /// The target of the last prefetch.
    pub prefetched: i32,
}

impl Default for Advice {
    fn default() -> Self {
        Advice {
            read_mostly: false,
            preferred: NOWHERE,
            accessed_by: BTreeSet::new(),
            prefetched: NOWHERE,
        }
    }
}

/// All advice, by the first address of the allocation.
pub struct Managed {
    advice: Mutex<BTreeMap<u64, Advice>>,
}

impl Managed {
    /// None.
    pub const fn new() -> Self {
        Managed { advice: Mutex::new(BTreeMap::new()) }
    }

    /// `cuMemAllocManaged`.
    pub fn allocate(
        &self,
        session: &Session,
        host: &HostAllocations,
        bytes: usize,
    ) -> CuResult<u64> {
        if session.shared_window().is_none() {
            return Err(CuError::NOT_SUPPORTED);
        }
        host.allocate_managed(session, bytes)
    }

    /// Forgets what was advised of an allocation.
    pub fn forget(&self, start: u64) {
        self.lock().remove(&start);
    }

    /// The advice about an allocation.
    pub fn advice(&self, start: u64) -> Advice {
        self.lock().get(&start).cloned().unwrap_or_default()
    }

    /// `cuMemPrefetchAsync`.
    pub fn prefetch(&self, start: u64, to: i32) {
        self.lock().entry(start).or_default().prefetched = to;
    }

    /// `cuMemAdvise`.
    pub fn advise(&self, start: u64, advice: i32, device: i32) -> CuResult {
        let mut all = self.lock();
        let known = all.entry(start).or_default();
        match advice {
            1 => known.read_mostly = true,
            2 => known.read_mostly = false,
            3 => known.preferred = device,
            4 => known.preferred = NOWHERE,
            5 => drop(known.accessed_by.insert(device)),
            6 => drop(known.accessed_by.remove(&device)),
            _ => return Err(CuError::INVALID_VALUE),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Advice>> {
        self.advice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_kept_until_the_memory_goes() {
        let managed = Managed::new();
        for (advice, device) in [(1, 0), (3, -1), (5, 0), (5, -1), (6, 0)] {
            managed.advise(0x1000, advice, device).unwrap();
        }
        managed.prefetch(0x1000, 0);
        let accessed_by = BTreeSet::from([-1]);
        let expect = Advice { read_mostly: true, preferred: -1, accessed_by, prefetched: 0 };
        assert_eq!(managed.advice(0x1000), expect);
        assert_eq!(managed.advise(0x1000, 7, 0), Err(CuError::INVALID_VALUE));
        assert_eq!(managed.advice(0x2000), Advice::default());
        managed.forget(0x1000);
        assert_eq!(managed.advice(0x1000), Advice::default());
    }
}
