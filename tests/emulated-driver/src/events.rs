//! Events.

use crate::abi::{exports, put};
use crate::channels::Op;
use crate::driver::Driver;
use crate::status::{self, Status};
use std::ffi::c_uint;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The pause between two looks at the context of a thread that waits.
pub const LOOK: Duration = Duration::from_millis(20);

/// An event. Recordings are counted: the event is reached when its last recording is.
#[derive(Default)]
pub struct EventCell {
    state: Mutex<EventState>,
    changed: Condvar,
}

/// The recordings of an event.
#[derive(Clone, Copy, Default)]
pub struct EventState {
    /// The number of recordings.
    pub recorded: u64,
    /// The last recording that was reached.
    pub reached: u64,
    /// When it was reached, in nanoseconds.
    pub nanos: u64,
    /// Whether more than copies was before the last recording.
    follows_grids: bool,
}

impl EventState {
    fn is_reached(&self) -> bool {
        self.reached >= self.recorded
    }
}

impl EventCell {
    /// The present state.
    pub fn state(&self) -> EventState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a wait for it may last: it is not reached, and not only copies are before it.
    pub fn lasts(&self) -> bool {
        let state = self.state();
        state.follows_grids && !state.is_reached()
    }

    /// Counts a recording, which more than copies may precede. Returns its number.
    pub fn record(&self, follows_grids: bool) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.recorded += 1;
        state.follows_grids = follows_grids;
        state.recorded
    }

    /// A recording is reached.
    pub fn reach(&self, number: u64, nanos: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if number > state.reached {
            (state.reached, state.nanos) = (number, nanos);
            self.changed.notify_all();
        }
    }

    /// Sleeps until the last recording is reached, or the context has ended.
    fn wait(&self, driver: &Driver) -> Result<(), Status> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_reached() {
            driver.waits(true, "the event is not reached");
        }
        while !state.is_reached() {
            driver.live()?;
            let woken = self.changed.wait_timeout(state, LOOK);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        driver.live()
    }
}

/// An event by its handle.
pub fn find(driver: &Driver, event: u64) -> Result<Arc<EventCell>, Status> {
    driver.tables().events.get(&event).cloned().ok_or(status::INVALID_HANDLE)
}

exports! {
    cuEventCreate(event: *mut u64, _flags: c_uint) |driver| {
        let handle = driver.handle();
        driver.tables().events.insert(handle, Arc::default());
        put(event, handle);
        Ok(())
    }
    cuEventDestroy_v2(event: u64) |driver| {
        driver.tables().events.remove(&event).map(|_| ()).ok_or(status::INVALID_HANDLE)
    }
    cuEventRecord(event: u64, stream: u64) |driver| {
        let event = find(driver, event)?;
        let number = event.record(driver.stream(stream)?.lasts());
        driver.submit(stream, Op::Record { event, number })
    }
    cuEventQuery(event: u64) beside |driver| {
        if find(driver, event)?.state().is_reached() { Ok(()) } else { Err(status::NOT_READY) }
    }
    cuEventSynchronize(event: u64) beside |driver| { find(driver, event)?.wait(driver) }
    cuEventElapsedTime(milliseconds: *mut f32, start: u64, end: u64) |driver| {
        let (start, end) = (find(driver, start)?.state(), find(driver, end)?.state());
        if start.recorded == 0 || end.recorded == 0 {
            return Err(status::INVALID_HANDLE);
        }
        if !start.is_reached() || !end.is_reached() {
            return Err(status::NOT_READY);
        }
        let nanos = end.nanos.wrapping_sub(start.nanos).cast_signed();
        #[expect(clippy::cast_precision_loss, reason = "CUDA tells it as a float")]
        put(milliseconds, nanos as f32 / 1e6);
        Ok(())
    }
}
