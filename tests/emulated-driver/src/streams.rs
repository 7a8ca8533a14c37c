//! Streams: making them, submitting to them, waiting for them.

use crate::abi::{exports, put};
use crate::channels::Op;
use crate::driver::Driver;
use crate::events::{LOOK, find};
use crate::status::{self, Status};
use partita_model::SmSet;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Operations that a stream takes before a call waits, where that is a habit.
const MOST_ENTRIES: u64 = 1_024;

/// What callers know of a stream.
#[derive(Default)]
pub struct StreamCell {
    /// Whether it is of a green context.
    pub is_green: bool,
    count: Mutex<Count>,
    changed: Condvar,
}

/// Operations of a stream.
#[derive(Clone, Copy, Default)]
struct Count {
    submitted: u64,
    ended: u64,
    /// The number of the last operation that may last: all but copies, records and waits for these.
    last_lasting: u64,
}

impl StreamCell {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until `ended` operations have ended, or the context has.
    fn wait_for(&self, driver: &Driver, ended: u64) -> Result<MutexGuard<'_, Count>, Status> {
        let mut count = self.count();
        while count.ended < ended {
            driver.live()?;
            let woken = self.changed.wait_timeout(count, LOOK);
            count = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(count)
    }

    /// Counts one more operation, as soon as there is room for it.
    fn enter(&self, driver: &Driver, lasts: bool) -> Result<(), Status> {
        let most = if driver.settings.habits.entries { MOST_ENTRIES } else { u64::MAX };
        loop {
            let Count { submitted, ended, .. } = *self.count();
            if submitted - ended >= most {
                driver.waits(true, "the stream is full");
            }
            let mut count = self.wait_for(driver, (submitted + 1).saturating_sub(most))?;
            // Another thread may have submitted meanwhile.
            if count.submitted - count.ended < most {
                count.submitted += 1;
                if lasts {
                    count.last_lasting = count.submitted;
                }
                return Ok(());
            }
        }
    }

    /// An operation of the stream has ended.
    pub fn leave(&self) {
        self.count().ended += 1;
        self.changed.notify_all();
    }

    /// Whether something has not ended that may last.
    pub fn lasts(&self) -> bool {
        let count = self.count();
        count.ended < count.last_lasting
    }

    fn is_empty(&self) -> bool {
        let count = self.count();
        count.ended == count.submitted
    }

    /// Sleeps until all operations so far have ended, or the context has.
    pub fn wait(&self, driver: &Driver) -> Result<(), Status> {
        let submitted = self.count().submitted;
        drop(self.wait_for(driver, submitted)?);
        driver.live()
    }
}

impl Driver {
    /// A stream by its handle.
    pub fn stream(&self, stream: u64) -> Result<Arc<StreamCell>, Status> {
        self.tables().streams.get(&stream).cloned().ok_or(status::INVALID_HANDLE)
    }

    /// Makes a stream on all SMs, or on some.
    pub fn create_stream(&self, priority: i32, sms: Option<SmSet>) -> Result<u64, Status> {
        let handle = self.handle();
        let cell = Arc::new(StreamCell { is_green: sms.is_some(), ..StreamCell::default() });
        let shared = Arc::clone(&cell);
        self.gpu.call(move |owner| owner.create_stream(handle, shared, priority, sms))??;
        self.tables().streams.insert(handle, cell);
        Ok(handle)
    }

    /// Appends an operation to a stream.
    pub fn submit(&self, stream: u64, op: Op) -> Result<(), Status> {
        let lasts = match &op {
            Op::ToDevice { .. } | Op::ToHost { .. } | Op::Record { .. } => false,
            Op::Wait { event, .. } => event.lasts(),
            _ => true,
        };
        self.stream(stream)?.enter(self, lasts)?;
        self.gpu.submit(stream, op)
    }

    /// Waits for everything that has been submitted.
    pub fn drain_streams(&self) -> Result<(), Status> {
        let streams: Vec<Arc<StreamCell>> = self.tables().streams.values().cloned().collect();
        streams.iter().try_for_each(|stream| stream.wait(self))
    }

    /// Whether anything that may last is in a stream.
    pub fn has_grids(&self) -> bool {
        self.tables().streams.values().any(|stream| stream.lasts())
    }

    /// Waits until a stream is empty.
    pub fn synchronize(&self, stream: u64) -> Result<(), Status> {
        let stream = self.stream(stream)?;
        self.awaits_stream();
        if stream.lasts() {
            self.waits(true, "the stream has more than copies");
        }
        stream.wait(self)
    }
}

exports! {
    cuStreamCreateWithPriority(stream: *mut u64, _flags: c_uint, priority: c_int) |driver| {
        put(stream, driver.create_stream(priority.clamp(GREATEST_PRIORITY, 0), None)?);
        Ok(())
    }
    cuStreamDestroy_v2(stream: u64) |driver| {
        driver.tables().streams.remove(&stream).ok_or(status::INVALID_HANDLE)?;
        driver.gpu.call(move |owner| owner.destroy_stream(stream))
    }
    cuStreamQuery(stream: u64) beside |driver| {
        if driver.stream(stream)?.is_empty() { Ok(()) } else { Err(status::NOT_READY) }
    }
    cuStreamSynchronize(stream: u64) beside |driver| { driver.synchronize(stream) }
    cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) |driver| {
        let event = find(driver, event)?;
        let number = event.state().recorded;
        driver.submit(stream, Op::Wait { event, number })
    }
    cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: c_uint) |driver| {
        let is_live = driver.tables().is_live(address, 8);
        if flags > 3 || !address.is_multiple_of(8) || !is_live {
            return Err(status::INVALID_VALUE);
        }
        driver.submit(stream, Op::WaitValue { address, value, comparison: flags })
    }
    cuLaunchHostFunc(stream: u64, function: extern "C" fn(*mut c_void),
        data: *mut c_void) |driver| {
        driver.submit(stream, Op::Host { function, data: data.expose_provenance() })
    }
}

/// The least number that a stream's priority can have; lower numbers go first.
pub const GREATEST_PRIORITY: c_int = -5;
