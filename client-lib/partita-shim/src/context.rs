//! Contexts: a device's primary context, the contexts that programs create, and each thread's stack
//! of contexts.
//!
//! All contexts of a process on a device share one session, and therefore one window of device
//! memory. The primary context's handle is made once and stays valid, because the runtime makes the
//! context current before it retains it, and continues with it after a reset.
//!
//! A thread's stack is a fixed array without a destructor, because calls may arrive while the
//! thread's other storage is being destroyed.

use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The most contexts on a thread's stack.
const STACK_DEPTH: usize = 64;

thread_local! {
    static STACK: Stack = const { Stack { handles: [const { Cell::new(0) }; STACK_DEPTH],
        depth: Cell::new(0) } };
}

struct Stack {
    handles: [Cell<u64>; STACK_DEPTH],
    depth: Cell<usize>,
}

impl Stack {
    fn top(&self) -> u64 {
        match self.depth.get() {
            0 => 0,
            depth => self.handles[depth - 1].get(),
        }
    }

    fn push(&self, handle: u64) -> CuResult {
        let depth = self.depth.get();
        self.handles.get(depth).ok_or(CuError::OUT_OF_MEMORY)?.set(handle);
        self.depth.set(depth + 1);
        Ok(())
    }

    fn pop(&self) -> CuResult<u64> {
        let top = self.top();
        let depth = self.depth.get().checked_sub(1).ok_or(CuError::INVALID_CONTEXT)?;
        self.depth.set(depth);
        Ok(top)
    }
}

/// One context.
pub struct Context {
    /// `cuCtxGetId`.
    pub id: u64,
    /// Flags as given at its creation or by `cuCtxSetFlags`.
    pub flags: AtomicU32,
}

/// All contexts.
pub struct Contexts {
    table: Handles<Context>,
    primary: u64,
    /// The retain count of the primary context.
    retained: Mutex<u32>,
}

impl Contexts {
    /// The primary context, inactive, and no other.
    pub fn new(device: DeviceIndex) -> CuResult<Self> {
        let table = Handles::new(Kind::Context, device);
        let primary = table.insert(Context { id: next_id(), flags: AtomicU32::new(0) })?;
        Ok(Contexts { table, primary, retained: Mutex::new(0) })
    }

    /// The primary context's handle.
    pub fn primary(&self) -> u64 {
        self.primary
    }

    /// The calling thread's current context.
    pub fn current(&self) -> CuResult<u64> {
        match current_handle() {
            0 => Err(CuError::INVALID_CONTEXT),
            handle if handle == self.primary => Ok(handle),
            handle => match self.table.get(handle) {
                Ok(_) => Ok(handle),
                Err(_) => Err(CuError::CONTEXT_IS_DESTROYED),
            },
        }
    }

    /// The context of a handle; null stands for the current one.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Context>> {
        let handle = if handle == 0 { self.current()? } else { handle };
        self.table.get(handle).map_err(|_| CuError::INVALID_CONTEXT)
    }

    /// `cuCtxSetCurrent` with one of these contexts: replaces the top of the stack.
    pub fn set_current(&self, handle: u64) -> CuResult {
        self.get(handle)?;
        STACK.with(|stack| {
            if stack.depth.get() > 0 {
                stack.pop()?;
            }
            stack.push(handle)
        })
    }

    /// `cuCtxPushCurrent`.
    pub fn push(&self, handle: u64) -> CuResult {
        self.get(handle)?;
        STACK.with(|stack| stack.push(handle))
    }

    /// `cuCtxCreate`: the new context becomes current.
    pub fn create(&self, flags: u32) -> CuResult<u64> {
        let handle = self.table.insert(Context { id: next_id(), flags: AtomicU32::new(flags) })?;
        STACK.with(|stack| stack.push(handle))?;
        Ok(handle)
    }

    /// `cuCtxDestroy`: also takes it from the calling thread's stack if it is on top.
    pub fn destroy(&self, handle: u64) -> CuResult {
        if handle == self.primary {
            return Err(CuError::INVALID_CONTEXT);
        }
        self.table.remove(handle).map_err(|_| CuError::INVALID_CONTEXT)?;
        if current_handle() == handle {
            pop()?;
        }
        Ok(())
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub fn retain_primary(&self) -> u64 {
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        *retained = retained.saturating_add(1);
        self.primary
    }

    /// Releases the primary context once. The answer says whether that was the last time.
    pub fn release_primary(&self) -> CuResult<bool> {
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        *retained = retained.checked_sub(1).ok_or(CuError::INVALID_CONTEXT)?;
        Ok(*retained == 0)
    }

    /// `cuDevicePrimaryCtxReset`: nobody retains the primary context any more.
    pub fn forget_retained(&self) {
        *self.retained.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    /// Whether somebody retains the primary context.
    pub fn primary_is_active(&self) -> bool {
        *self.retained.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }
}

/// The calling thread's current context, alive or not; 0 for none.
pub fn current_handle() -> u64 {
    STACK.with(Stack::top)
}

/// `cuCtxPopCurrent`.
pub fn pop() -> CuResult<u64> {
    STACK.with(Stack::pop)
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_a_stack_of_its_own() {
        let contexts = Contexts::new(DeviceIndex(0)).unwrap();
        let primary = contexts.primary();
        assert_eq!(contexts.current(), Err(CuError::INVALID_CONTEXT));
        contexts.set_current(primary).unwrap();
        assert_eq!(contexts.current(), Ok(primary), "before it is retained");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| contexts.current());
            assert_eq!(other.join().unwrap(), Err(CuError::INVALID_CONTEXT));
        });
        let created = contexts.create(0).unwrap();
        assert_eq!(contexts.current(), Ok(created));
        contexts.push(primary).unwrap();
        assert_eq!(pop(), Ok(primary));
        assert_eq!(contexts.destroy(created), Ok(()));
        assert_eq!(contexts.current(), Ok(primary), "destroying the current context pops it");
        pop().unwrap();
        assert_eq!(pop(), Err(CuError::INVALID_CONTEXT));
    }

    #[test]
    fn a_destroyed_context_stays_on_other_stacks_as_destroyed() {
        let contexts = Contexts::new(DeviceIndex(0)).unwrap();
        let created = contexts.create(0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| contexts.destroy(created)).join().unwrap().unwrap();
        });
        assert_eq!(contexts.current(), Err(CuError::CONTEXT_IS_DESTROYED));
        assert_eq!(contexts.push(created), Err(CuError::INVALID_CONTEXT));
    }

    #[test]
    fn the_primary_context_counts_its_owners() {
        let contexts = Contexts::new(DeviceIndex(0)).unwrap();
        assert_eq!(contexts.release_primary(), Err(CuError::INVALID_CONTEXT));
        assert_eq!(contexts.retain_primary(), contexts.retain_primary());
        assert!(contexts.primary_is_active());
        assert_eq!(contexts.release_primary(), Ok(false));
        assert_eq!(contexts.release_primary(), Ok(true));
        assert!(!contexts.primary_is_active());
        assert_eq!(contexts.destroy(contexts.primary()), Err(CuError::INVALID_CONTEXT));
    }

    #[test]
    fn a_stack_has_an_end() {
        let contexts = Contexts::new(DeviceIndex(0)).unwrap();
        for _ in 0..STACK_DEPTH {
            contexts.push(contexts.primary()).unwrap();
        }
        assert_eq!(contexts.push(contexts.primary()), Err(CuError::OUT_OF_MEMORY));
    }
}
