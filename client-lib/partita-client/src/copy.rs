//! Copies. The program's memory goes through the staging part of the arena in chunks. While the
//! device copies one chunk, the next one is staged.

use crate::inbox::{BatchId, Slot};
use crate::session::Session;
use crate::staging::Range;
use partita_model::DeviceAddress;
use partita_model::request::{ArenaRange, Request, Sequence, StreamHandle};
use partita_wire::{CallError, code};
use std::collections::VecDeque;

/// The largest chunk in bytes. A chunk is also at most a quarter of the arena, so that several are
/// in flight.
const CHUNK_BYTES: u64 = 512 << 10;

/// The moment at which a copy to the device returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    UntilDone,
    UntilStaged,
}

/// A chunk on its way to the host.
struct Coming {
    sequence: Sequence,
    range: Range,
    bytes: usize,
}

impl Session {
    /// `cuMemcpyHtoD` in a stream: returns when the copy is done.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the device's side is not live memory of the session; the session's own
    /// errors.
    pub fn copy_to_device(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: &[u8],
    ) -> Result<(), CallError> {
        self.stage(stream, to, from, Wait::UntilDone)
    }

    /// `cuMemcpyHtoDAsync` from pageable memory: returns when the bytes are staged. The next
    /// synchronisation reports a failure.
    ///
    /// # Errors
    /// The session's own errors.
    pub fn copy_to_device_async(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: &[u8],
    ) -> Result<(), CallError> {
        self.stage(stream, to, from, Wait::UntilStaged)
    }

    fn stage(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: &[u8],
        wait: Wait,
    ) -> Result<(), CallError> {
        self.check_range(to, from.len())?;
        let batch = match wait {
            Wait::UntilDone => self.inbox().with(|state| state.new_batch()),
            Wait::UntilStaged => BatchId::NOBODY,
        };
        let mut to = to.0;
        for chunk in from.chunks(self.chunk_bytes()) {
            let bytes = chunk.len() as u64;
            let range = self.inbox().take_staging(bytes)?;
            self.inbox().shared().arena().write(range.offset, chunk);
            let request = Request::<&[u8]>::CopyToDevice {
                stream,
                to: DeviceAddress(to),
                from: ArenaRange { offset: range.offset, bytes },
            };
            self.submit_expecting(&request, Some(Slot::Staged(Some(range), batch)))?;
            to += bytes;
        }
        match wait {
            Wait::UntilDone => self.inbox().wait(|state| state.take_batch(batch))?,
            Wait::UntilStaged => Ok(()),
        }
    }

    /// `cuMemcpyDtoH` in a stream: returns when the bytes are there.
    ///
    /// # Errors
    /// As [`Session::copy_to_device`].
    pub fn copy_to_host(
        &self,
        stream: StreamHandle,
        into: &mut [u8],
        from: DeviceAddress,
    ) -> Result<(), CallError> {
        self.check_range(from, into.len())?;
        let mut from = from.0;
        let mut coming = VecDeque::new();
        let mut requested = 0;
        let mut arrived = 0;
        let mut failed = None;
        while arrived < into.len() {
            if requested < into.len() && failed.is_none() {
                let bytes = self.chunk_bytes().min(into.len() - requested);
                // A thread with a chunk must not wait for another one: two such threads could wait
                // for each other.
                let range = if coming.is_empty() {
                    Some(self.inbox().take_staging(bytes as u64)?)
                } else {
                    self.inbox().with(|state| state.staging.take(bytes as u64))
                };
                if let Some(range) = range {
                    let request = Request::<&[u8]>::CopyToHost {
                        stream,
                        to: ArenaRange { offset: range.offset, bytes: bytes as u64 },
                        from: DeviceAddress(from),
                    };
                    let sequence = self.submit_expecting(&request, Some(Slot::Waiting))?;
                    coming.push_back(Coming { sequence, range, bytes });
                    from += bytes as u64;
                    requested += bytes;
                    continue;
                }
            }
            let Some(Coming { sequence, range, bytes }) = coming.pop_front() else { break };
            match self.inbox().wait(|state| state.take(sequence))? {
                Ok(_) if failed.is_none() => {
                    self.inbox()
                        .shared()
                        .arena()
                        .read(range.offset, &mut into[arrived..arrived + bytes]);
                }
                Ok(_) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
            arrived += bytes;
            self.inbox().give_staging(range);
        }
        failed.map_or(Ok(()), Err)
    }

    /// `cuMemcpyDtoDAsync`: returns at once.
    ///
    /// # Errors
    /// As [`Session::copy_to_device`], as far as the window goes.
    pub fn copy_on_device(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        from: DeviceAddress,
        bytes: u64,
    ) -> Result<(), CallError> {
        self.check_window(to, bytes)?;
        self.check_window(from, bytes)?;
        if bytes > 0 {
            self.submit(&Request::<&[u8]>::CopyOnDevice { stream, to, from, bytes })?;
        }
        Ok(())
    }

    /// `cuMemsetD8Async` and its kind: writes `count` copies of the lowest `width` bytes of
    /// `value`; returns at once.
    ///
    /// # Errors
    /// `INVALID_VALUE` where the width is not 1, 2 or 4 or the address not a multiple of it; as
    /// [`Session::copy_on_device`].
    pub fn fill(
        &self,
        stream: StreamHandle,
        to: DeviceAddress,
        value: u32,
        width: u8,
        count: u64,
    ) -> Result<(), CallError> {
        let bytes = count.checked_mul(u64::from(width));
        let good = matches!(width, 1 | 2 | 4) && to.0.is_multiple_of(u64::from(width));
        let Some(bytes) = bytes.filter(|_| good) else {
            let text = format!("cannot fill {count} elements of {width} bytes at {to}");
            return Err(CallError::new(code::INVALID_VALUE, text));
        };
        self.check_window(to, bytes)?;
        if bytes > 0 {
            self.submit(&Request::<&[u8]>::Fill { stream, to, value, width, count })?;
        }
        Ok(())
    }

    fn check_range(&self, address: DeviceAddress, bytes: usize) -> Result<(), CallError> {
        self.check()?;
        self.check_window(address, bytes as u64)
    }

    pub(crate) fn check_window(&self, address: DeviceAddress, bytes: u64) -> Result<(), CallError> {
        let is_elsewhere =
            || self.arrays().contain(address, bytes) || self.outside().contain(address, bytes);
        if self.window().contains_range(address, bytes) || is_elsewhere() {
            return Ok(());
        }
        let text = format!("{bytes} bytes at {address} are not device memory of this process");
        Err(CallError::new(code::INVALID_VALUE, text))
    }

    fn chunk_bytes(&self) -> usize {
        let quarter = self.inbox().shared().layout().staging_bytes() / 4;
        usize::try_from(CHUNK_BYTES.min(quarter)).expect("half a MiB").max(256)
    }
}
