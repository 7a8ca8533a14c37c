//! Host memory of `cuMemHostAlloc`, from and to which the device copies without staging.
//!
//! It is the second part of the arena, which the data plane has mapped already. Copies are
//! asynchronous: the device reads or writes the bytes when the stream reaches the copy. Kernels
//! reach addresses inside [`Session::shared_window`] directly. The end of the part belongs to the
//! device.

use crate::inbox::{BatchId, Slot, lock};
use crate::session::Session;
use crate::staging::{FreeRanges, Range};
use partita_model::DeviceAddress;
use partita_model::request::{ArenaRange, Request, StreamHandle};
use partita_wire::{CallError, code};
use std::collections::BTreeMap;
use std::sync::Mutex;

const PAGE: u64 = 4096;

/// The session's host memory.
#[derive(Debug)]
pub(crate) struct HostArena {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: FreeRanges,
    /// Ranges in use by their offsets.
    live: BTreeMap<u64, Range>,
}

impl HostArena {
    pub(crate) fn new(first: u64, bytes: u64) -> Self {
        HostArena {
            state: Mutex::new(State {
                free: FreeRanges::new(first, bytes, PAGE),
                live: BTreeMap::new(),
            }),
        }
    }
}

/// A range inside one allocation of host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRange(ArenaRange);

impl Session {
    /// `cuMemHostAlloc`: zeroed memory at a page's border. The address stays valid until
    /// [`Session::host_free`], or until the session is dropped.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, `INVALID_VALUE` for 0 bytes; the session's own errors.
    pub fn host_alloc(&self, bytes: u64) -> Result<*mut u8, CallError> {
        self.check()?;
        if bytes == 0 {
            return Err(CallError::new(
                code::INVALID_VALUE,
                "cannot allocate 0 bytes of host memory",
            ));
        }
        let mut state = lock(&self.host().state);
        let range = state.free.take(bytes).ok_or_else(|| {
            let text = format!(
                "{bytes} bytes of page-locked host memory are not free: use pageable memory"
            );
            CallError::new(code::OUT_OF_MEMORY, text)
        })?;
        state.live.insert(range.offset, range);
        Ok(self.inbox().shared().arena().address(range.offset))
    }

    /// `cuMemFreeHost`: waits for all earlier work, because it may use the memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` where nothing was allocated there; what the work failed with.
    pub fn host_free(&self, address: *mut u8) -> Result<(), CallError> {
        let arena = self.inbox().shared().arena();
        let offset = arena.offset_of(address, 0);
        let range = offset.and_then(|offset| lock(&self.host().state).live.get(&offset).copied());
        let Some(range) = range else {
            let text = format!("{address:?} is not the start of page-locked memory");
            return Err(CallError::new(code::INVALID_VALUE, text));
        };
        self.synchronize(None)?;
        arena.discard(range.offset, range.bytes).map_err(|error| {
            CallError::new(code::UNKNOWN, format!("cannot give host memory back: {error}"))
        })?;
        let mut state = lock(&self.host().state);
        if state.live.remove(&range.offset).is_some() {
            state.free.give(range);
        }
        Ok(())
    }

    /// The range of `bytes` bytes at an address, where all of it is in one allocation of host
    /// memory.
    #[must_use]
    pub fn host_range(&self, address: *const u8, bytes: u64) -> Option<HostRange> {
        let offset = self.inbox().shared().arena().offset_of(address, bytes)?;
        let state = lock(&self.host().state);
        let (_, range) = state.live.range(..=offset).next_back()?;
        (offset + bytes <= range.offset + range.bytes)
            .then_some(HostRange(ArenaRange { offset, bytes }))
    }

    /// `cuMemcpyHtoDAsync` from host memory: returns at once. The next synchronisation
    /// reports a failure.
    ///
    /// # Errors
    /// `INVALID_VALUE` outside the window; the session's own errors.
    pub fn copy_from_host_memory(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: HostRange,
    ) -> Result<(), CallError> {
        self.check_window(to, from.0.bytes)?;
        self.copy_directly(&Request::CopyToDevice { stream, to, from: from.0 })
    }

    /// `cuMemcpyDtoHAsync` to host memory: returns at once. The next synchronisation
    /// reports a failure.
    ///
    /// # Errors
    /// As [`Session::copy_from_host_memory`].
    pub fn copy_to_host_memory(
        &self,
        stream: StreamHandle,
        to: HostRange,
        from: DeviceAddress,
    ) -> Result<(), CallError> {
        self.check_window(from, to.0.bytes)?;
        self.copy_directly(&Request::CopyToHost { stream, to: to.0, from })
    }

    fn copy_directly(&self, request: &Request<&[u8]>) -> Result<(), CallError> {
        // With an answer, a failure affects only the copy. Without one, it would end the session.
        self.submit_expecting(request, Some(Slot::Staged(None, BatchId::NOBODY)))?;
        Ok(())
    }
}
