//! The runtime's storage by context (the export table `CTX_LOCAL_STORAGE`): values by context and
//! key, with destructors.
//!
//! Nearly every call of the runtime reads this storage first, so it stays in the process.

use crate::error::{CuError, CuResult};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

/// The program's destructor of a value, called with context, key and value.
pub type Destructor = Option<unsafe extern "C" fn(u64, *mut c_void, *mut c_void)>;

/// All values.
pub struct Storage {
    values: RwLock<BTreeMap<(u64, usize), Value>>,
}

#[derive(Clone, Copy)]
struct Value {
    value: usize,
    destructor: Destructor,
}

impl Storage {
    /// No values.
    pub const fn new() -> Self {
        Storage { values: RwLock::new(BTreeMap::new()) }
    }

    /// Puts a value, in place of an older one under the same key.
    pub fn put(&self, context: u64, key: *mut c_void, value: *mut c_void, destructor: Destructor) {
        let value = Value { value: value as usize, destructor };
        self.write().insert((context, key as usize), value);
    }

    /// Finds a value.
    pub fn get(&self, context: u64, key: *mut c_void) -> CuResult<*mut c_void> {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        let value = values.get(&(context, key as usize)).ok_or(CuError::INVALID_HANDLE)?;
        Ok(value.value as *mut c_void)
    }

    /// Forgets a value without calling its destructor: its owner does it.
    pub fn delete(&self, context: u64, key: *mut c_void) -> CuResult {
        self.write().remove(&(context, key as usize)).map(drop).ok_or(CuError::INVALID_HANDLE)
    }

    /// Ends the values of a context, with their destructors.
    pub fn clear_context(&self, context: u64) {
        self.end(|of| of == context);
    }

    /// Ends all values, with their destructors.
    pub fn clear(&self) {
        self.end(|_| true);
    }

    fn end(&self, which: impl Fn(u64) -> bool) {
        let ended = {
            let mut values = self.write();
            let (ended, kept) = std::mem::take(&mut *values)
                .into_iter()
                .partition(|((context, _), _)| which(*context));
            *values = kept;
            let ended: BTreeMap<(u64, usize), Value> = ended;
            ended
        };
        // Destructors run outside the lock, because they may call the library.
        for ((context, key), value) in ended {
            if let Some(destructor) =
                value.destructor.filter(|function| is_loaded(*function as usize))
            {
                // SAFETY: the owner of the value gave its function, whose code is still loaded.
                unsafe { destructor(context, key as *mut c_void, value.value as *mut c_void) };
            }
        }
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<(u64, usize), Value>> {
        self.values.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether code at an address belongs to a library that is still loaded: a runtime may have been
/// closed by `dlclose` without forgetting its values.
fn is_loaded(address: usize) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `dladdr` takes any address and writes at most one `Dl_info`.
    unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static ENDED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn count(context: u64, key: *mut c_void, value: *mut c_void) {
        assert_eq!((context, key as usize, value as usize), (7, 1, 11));
        ENDED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn values_live_by_context_and_key() {
        let storage = Storage::new();
        let [one, two] = [1usize, 2].map(|key| key as *mut c_void);
        storage.put(7, one, 11 as *mut c_void, Some(count));
        storage.put(8, one, 12 as *mut c_void, None);
        assert_eq!(storage.get(7, one), Ok(11 as *mut c_void));
        assert_eq!(storage.get(8, one), Ok(12 as *mut c_void));
        assert_eq!(storage.get(7, two), Err(CuError::INVALID_HANDLE));
        assert_eq!(storage.delete(8, one), Ok(()));
        assert_eq!(storage.delete(8, one), Err(CuError::INVALID_HANDLE));
        assert_eq!(ENDED.load(Ordering::Relaxed), 0);
        storage.clear_context(7);
        assert_eq!(ENDED.load(Ordering::Relaxed), 1);
        storage.clear();
        assert_eq!(ENDED.load(Ordering::Relaxed), 1, "ended once");
    }
}
