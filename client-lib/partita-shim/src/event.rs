//! Events: handles and flags; what has happened, the session knows.

use crate::error::{CuError, CuResult};
use crate::handles::{Handles, Kind};
use partita_client::{EventHandle, Session};
use std::sync::Arc;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`: what `cuEventCreate` takes. Not `CU_EVENT_INTERPROCESS`.
const KNOWN_FLAGS: u32 = 1 | DISABLE_TIMING;

/// An event.
pub struct Event {
    /// Its name in the session.
    pub client: EventHandle,
    /// Whether the program asks for its time.
    pub has_time: bool,
}

/// All events.
pub struct Events {
    table: Handles<Event>,
}

impl Events {
    /// None.
    pub const fn new() -> Self {
        Events { table: Handles::new(Kind::Event) }
    }

    /// `cuEventCreate`.
    pub fn create(&self, session: &Session, flags: u32) -> CuResult<u64> {
        if flags & !KNOWN_FLAGS != 0 {
            return Err(if flags & 4 != 0 { CuError::NOT_SUPPORTED } else { CuError::INVALID_VALUE });
        }
        let client = session.create_event()?;
        self.table.insert(Event { client, has_time: flags & DISABLE_TIMING == 0 })
    }

    /// The event of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Event>> {
        self.table.get(handle)
    }

    /// `cuEventDestroy`.
    pub fn destroy(&self, session: &Session, handle: u64) -> CuResult {
        let event = self.table.remove(handle)?;
        Ok(session.destroy_event(event.client)?)
    }

    /// Destroys all events.
    pub fn clear(&self, session: &Session) {
        for event in self.table.remove_where(|_| true) {
            // What cannot be destroyed any more ends with the session.
            let _ = session.destroy_event(event.client);
        }
    }
}
