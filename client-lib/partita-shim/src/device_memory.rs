//! The device memory that the program has allocated: addresses and sizes.
//!
//! The daemon decides about memory. This copy answers questions about pointers without asking the
//! daemon.

use crate::error::CuResult;
use partita_client::Session;
use partita_model::DeviceAddress;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Size.
    pub bytes: u64,
}

/// All allocations, by first address.
pub struct Allocations {
    live: Mutex<BTreeMap<u64, u64>>,
}

impl Allocations {
    /// None.
    pub const fn new() -> Self {
        Allocations { live: Mutex::new(BTreeMap::new()) }
    }

    /// `cuMemAlloc`.
    pub fn allocate(&self, session: &Session, bytes: u64) -> CuResult<u64> {
        let address = session.mem_alloc(bytes)?.0;
        self.lock().insert(address, bytes);
        Ok(address)
    }

    /// `cuMemFree`.
    pub fn free(&self, session: &Session, address: u64) -> CuResult {
        session.mem_free(DeviceAddress(address))?;
        self.lock().remove(&address);
        Ok(())
    }

    /// The allocation that an address is inside of.
    pub fn find(&self, address: u64) -> Option<Range> {
        find(&self.lock(), address)
    }

    /// Frees everything.
    pub fn clear(&self, session: &Session) {
        for address in std::mem::take(&mut *self.lock()).into_keys() {
            // Memory that cannot be freed any more ends with the session.
            let _ = session.mem_free(DeviceAddress(address));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The range of a map from start to size that an address is inside of.
pub fn find(ranges: &BTreeMap<u64, u64>, address: u64) -> Option<Range> {
    let (&start, &bytes) = ranges.range(..=address).next_back()?;
    (address - start < bytes).then_some(Range { start, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_belong_to_the_range_that_they_are_inside_of() {
        let ranges = BTreeMap::from([(0x1000, 0x100), (0x2000, 1)]);
        let check = |address, expect: Option<u64>| {
            assert_eq!(find(&ranges, address).map(|range| range.start), expect, "{address:#x}");
        };
        check(0xfff, None);
        check(0x1000, Some(0x1000));
        check(0x10ff, Some(0x1000));
        check(0x1100, None);
        check(0x2000, Some(0x2000));
        check(0x2001, None);
    }
}
