//! Events: handles and flags. The session knows which events have happened.

use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use partita_client::{EventHandle, Session, StreamHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`: what `cuEventCreate` takes. Not
/// `CU_EVENT_INTERPROCESS`.
const KNOWN_FLAGS: u32 = 1 | DISABLE_TIMING;

/// An event.
pub struct Event {
    /// Its name in the session.
    pub client: EventHandle,
    /// Whether the program asks for its time.
    pub has_time: bool,
    /// Whether it was last recorded in a stream that captured.
    pub captured: AtomicBool,
    /// Whether it was ever recorded elsewhere.
    pub recorded: AtomicBool,
}

impl Event {
    /// An event that was never recorded.
    pub fn new(client: EventHandle, has_time: bool) -> Self {
        Event {
            client,
            has_time,
            captured: AtomicBool::new(false),
            recorded: AtomicBool::new(false),
        }
    }

    /// Records it in a stream.
    pub fn record(&self, session: &Session, stream: StreamHandle) -> CuResult {
        self.recorded.store(true, Ordering::Relaxed);
        Ok(session.record_event(self.client, stream)?)
    }

    /// Refuses what cannot be asked of an event that stands for nodes of a graph.
    pub fn outside_capture(&self) -> CuResult {
        if self.captured.load(Ordering::Relaxed) { Err(CuError::CAPTURED_EVENT) } else { Ok(()) }
    }
}

/// All events.
pub struct Events {
    table: Handles<Event>,
}

impl Events {
    /// None.
    pub const fn new(device: DeviceIndex) -> Self {
        Events { table: Handles::new(Kind::Event, device) }
    }

    /// `cuEventCreate`.
    pub fn create(&self, session: &Session, flags: u32) -> CuResult<u64> {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(if flags & 4 != 0 {
                CuError::NOT_SUPPORTED
            } else {
                CuError::INVALID_VALUE
            });
        }
        let client = session.create_event()?;
        self.table.insert(Event::new(client, flags & DISABLE_TIMING == 0))
    }

    /// The event of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Event>> {
        self.table.get(handle)
    }

    /// `cuEventDestroy`.
    pub fn destroy(&self, session: &Session, handle: u64) -> CuResult<Arc<Event>> {
        let event = self.table.remove(handle)?;
        session.destroy_event(event.client)?;
        Ok(event)
    }

    /// Destroys all events.
    pub fn clear(&self, session: &Session) {
        for event in self.table.remove_where(|_| true) {
            // An event that cannot be destroyed any more ends with the session.
            let _ = session.destroy_event(event.client);
        }
    }
}
