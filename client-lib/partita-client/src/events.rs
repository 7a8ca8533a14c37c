//! CUDA events. Each has a slot of the session's memory, so that a query costs no round trip.
//!
//! A slot shows the number of the event's latest record that the device reached. Numbers only grow:
//! an event has happened when its slot shows at least the number of its latest record. An event
//! without a record counts as happened, as in CUDA (CUDA Driver API, `cuEventQuery`).
//!
//! Of an event that processes share, the daemon alone knows the latest record: a query is a call.
//! So is a record: another process that then learns of it by any way finds it recorded.
//!
//! Simulated device time stands still until the program calls. There the query of an event that has
//! not happened is a call, so that a polling program lets time pass.

use crate::inbox::lock;
use crate::session::Session;
use partita_model::Timekeeping;
use partita_model::request::{EventHandle, Request, Secret, Sequence, StreamHandle};
use partita_wire::{CallError, EventSlot, code};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Debug)]
struct Event {
    slot: u32,
    /// The number of the event's latest record; 0 for none.
    recorded: AtomicU64,
    /// The stream of that record.
    stream: AtomicU64,
    /// Other processes may record it, too. Then the daemon alone knows the latest record.
    is_shared: AtomicBool,
}

/// The session's events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    live: HashMap<EventHandle, Arc<Event>>,
    last_handle: u64,
    free_slots: Vec<u32>,
    used_slots: u32,
}

impl Events {
    fn create(&self, slots: u64) -> Option<(EventHandle, u32)> {
        let mut table = lock(&self.table);
        let slot = match table.free_slots.pop() {
            Some(slot) => slot,
            None if u64::from(table.used_slots) < slots => {
                table.used_slots += 1;
                table.used_slots - 1
            }
            None => return None,
        };
        table.last_handle += 1;
        let handle = EventHandle(table.last_handle);
        table.live.insert(
            handle,
            Arc::new(Event {
                slot,
                recorded: AtomicU64::new(0),
                stream: AtomicU64::new(0),
                is_shared: AtomicBool::new(false),
            }),
        );
        Some((handle, slot))
    }

    fn remove(&self, event: EventHandle, slot: u32) {
        let mut table = lock(&self.table);
        if table.live.remove(&event).is_some() {
            table.free_slots.push(slot);
        }
    }

    fn get(&self, event: EventHandle) -> Result<Arc<Event>, CallError> {
        let found = lock(&self.table).live.get(&event).cloned();
        found.ok_or_else(|| CallError::new(code::INVALID_HANDLE, format!("{event} does not exist")))
    }
}

impl Event {
    fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }
}

fn all_in_use(slots: u64) -> CallError {
    let text = format!("all {slots} events of the session are in use: destroy some");
    CallError::new(code::OUT_OF_MEMORY, text)
}

impl Session {
    /// `cuEventCreate`.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` where the session has as many events as slots; the session's own errors.
    pub fn create_event(&self) -> Result<EventHandle, CallError> {
        let slots = self.inbox().shared().layout().event_slots();
        let (event, slot) = self.events().create(slots).ok_or_else(|| all_in_use(slots))?;
        self.submit(&Request::<&[u8]>::EventCreate { event, slot })?;
        Ok(event)
    }

    /// `cuEventDestroy`: returns at once, also where a record is still queued.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn destroy_event(&self, event: EventHandle) -> Result<(), CallError> {
        let found = self.events().get(event)?;
        self.submit(&Request::<&[u8]>::EventDestroy { event })?;
        self.events().remove(event, found.slot);
        Ok(())
    }

    /// `cuEventRecord`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), CallError> {
        let found = self.events().get(event)?;
        if found.is_shared() {
            return self.call_done(&Request::EventRecord { event, stream });
        }
        let sequence = self.submit(&Request::<&[u8]>::EventRecord { event, stream })?;
        found.stream.store(stream.0, Ordering::Relaxed);
        found.recorded.fetch_max(sequence.0, Ordering::Release);
        Ok(())
    }

    /// `cuStreamWaitEvent`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), CallError> {
        self.events().get(event)?;
        self.submit(&Request::<&[u8]>::StreamWait { stream, event })?;
        Ok(())
    }

    /// `cuEventQuery`: whether its latest record has happened.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn query_event(&self, event: EventHandle) -> Result<bool, CallError> {
        self.check()?;
        let found = self.events().get(event)?;
        if found.is_shared() {
            return match self.call_done(&Request::EventQuery { event }) {
                Ok(()) => Ok(true),
                Err(error) if error.code == code::NOT_READY => Ok(false),
                Err(error) => Err(error),
            };
        }
        if self.happened(&found).is_some() {
            return Ok(true);
        }
        // A program that only polls must learn that the daemon is gone.
        self.check_bell()?;
        if self.facts().timekeeping == Timekeeping::Simulated {
            let stream = StreamHandle(found.stream.load(Ordering::Relaxed));
            match self.query_stream(stream) {
                // The stream may have been destroyed since the record.
                Err(error) if error.code != code::INVALID_HANDLE => return Err(error),
                _ => {}
            }
        }
        Ok(self.happened(&found).is_some())
    }

    /// `cuEventSynchronize`.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the session's own errors.
    pub fn synchronize_event(&self, event: EventHandle) -> Result<(), CallError> {
        self.check()?;
        let found = self.events().get(event)?;
        if found.is_shared() {
            self.call_done(&Request::EventSynchronize { event })?;
            return self.check();
        }
        if self.happened(&found).is_some() {
            return Ok(());
        }
        self.inbox().wait(|_| match self.verdict() {
            Ok(()) => self.happened(&found).map(|_| Ok(())),
            Err(error) => Some(Err(error)),
        })?
    }

    /// `cuEventElapsedTime` in nanoseconds of device time; negative where `end` happened first.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where one was never recorded, `NOT_READY` where one has not happened; the
    /// session's own errors.
    pub fn elapsed_ns(&self, start: EventHandle, end: EventHandle) -> Result<i64, CallError> {
        self.check()?;
        let time = |event: EventHandle| {
            let found = self.events().get(event)?;
            if found.recorded.load(Ordering::Acquire) == 0 {
                return Err(CallError::new(
                    code::INVALID_HANDLE,
                    format!("{event} was never recorded"),
                ));
            }
            let slot = self.happened(&found).ok_or_else(|| {
                CallError::new(code::NOT_READY, format!("{event} has not happened yet"))
            })?;
            Ok(slot.time_ns)
        };
        let (start, end) = (time(start)?, time(end)?);
        Ok(end.wrapping_sub(start).cast_signed())
    }

    /// `cuIpcGetEventHandle`: what another process shows to open the event.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `NOT_SUPPORTED` by an older daemon; the session's own errors.
    pub fn export_event(&self, event: EventHandle) -> Result<Secret, CallError> {
        self.require_processes()?;
        let found = self.events().get(event)?;
        let secret = self.call_secret(&Request::ExportEvent { event })?;
        found.is_shared.store(true, Ordering::Release);
        Ok(secret)
    }

    /// `cuIpcOpenEventHandle`: an event of another process.
    ///
    /// # Errors
    /// `INVALID_HANDLE` where the secret opens nothing; `OUT_OF_MEMORY` where the session has as
    /// many events as slots; `NOT_SUPPORTED` by an older daemon; the session's own errors.
    pub fn open_event(&self, secret: Secret) -> Result<EventHandle, CallError> {
        self.require_processes()?;
        let slots = self.inbox().shared().layout().event_slots();
        let (event, slot) = self.events().create(slots).ok_or_else(|| all_in_use(slots))?;
        match self.call_done(&Request::OpenEvent { event, secret }) {
            Ok(()) => {
                self.events().get(event)?.is_shared.store(true, Ordering::Release);
                Ok(event)
            }
            Err(error) => {
                self.events().remove(event, slot);
                Err(error)
            }
        }
    }

    fn happened(&self, event: &Event) -> Option<EventSlot> {
        let recorded = event.recorded.load(Ordering::Acquire);
        let slot = self.inbox().shared().event(event.slot);
        (slot.sequence >= Sequence(recorded)).then_some(slot)
    }
}
