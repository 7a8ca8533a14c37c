//! Events: handles and flags. The session knows which events have happened.

use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use partita_client::{EventHandle, Secret, Session, StreamHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`. Such an event has no time.
const INTERPROCESS: u32 = 4;
/// What `cuEventCreate` takes: these and `CU_EVENT_BLOCKING_SYNC`.
const KNOWN_FLAGS: u32 = 1 | DISABLE_TIMING | INTERPROCESS;

/// An event.
pub struct Event {
    /// Its name in the session.
    pub client: EventHandle,
    /// Whether the program asks for its time.
    pub has_time: bool,
    /// Whether other processes may open it.
    pub is_interprocess: bool,
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
            is_interprocess: false,
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
        let has_time = flags & DISABLE_TIMING == 0;
        let is_interprocess = flags & INTERPROCESS != 0;
        if flags & !KNOWN_FLAGS != 0 || is_interprocess && has_time {
            return Err(CuError::INVALID_VALUE);
        }
        let client = session.create_event()?;
        self.table.insert(Event { is_interprocess, ..Event::new(client, has_time) })
    }

    /// `cuIpcOpenEventHandle`.
    pub fn open(&self, session: &Session, secret: Secret) -> CuResult<u64> {
        self.table.insert(Event::new(session.open_event(secret)?, false))
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
