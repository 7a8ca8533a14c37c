//! Events that sessions of one tenant share (CUDA Driver API, "Interprocess communication").
//!
//! A shared event is the operation of its latest record, whichever session appended it. What waits
//! for an operation of another session waits in the engine until that is done: the device never
//! has a launch that waits for another session's. An operation that is dropped, because its session
//! has failed or gone, counts as done.

use super::record::{Call, EventState, Operation, Waiter, WaiterThen};
use super::{Answer, Refusal, Sessions};
use crate::effects::Effect;
use crate::turn::Turn;
use crate::{EventHandle, LogLevel, Payload};
use partita_model::request::Secret;
use partita_model::{CudaResult, OperationId, SessionId, TenantId};
use std::collections::{BTreeMap, BTreeSet};

/// All shared events.
#[derive(Default)]
pub(super) struct SharedEvents {
    by_secret: BTreeMap<Secret, SharedEvent>,
    /// Sessions with streams or requests that wait for an operation of another session.
    waiting: BTreeMap<OperationId, BTreeSet<SessionId>>,
}

struct SharedEvent {
    tenant: TenantId,
    /// Number of handles in all sessions.
    handles: u32,
    /// The operation of its latest record, which may be done.
    latest: Option<OperationId>,
}

impl SharedEvents {
    /// A session waits for an operation, which may be its own.
    pub(super) fn waits(
        &mut self,
        session: SessionId,
        on: OperationId,
        operations: &BTreeMap<OperationId, Box<Operation>>,
    ) {
        if operations.get(&on).is_some_and(|operation| operation.session != session) {
            self.waiting.entry(on).or_default().insert(session);
        }
    }

    fn drop_handle(&mut self, secret: Secret) {
        if let Some(event) = self.by_secret.get_mut(&secret) {
            event.handles -= 1;
            if event.handles == 0 {
                self.by_secret.remove(&secret);
            }
        }
    }
}

impl Sessions {
    pub(super) fn export_event(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        event: EventHandle,
    ) -> Answer {
        let session = self.session_mut(id);
        let tenant = session.identity.tenant;
        let state = session.events.get(&event).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        let latest = match *state {
            EventState::Shared(secret) => return Ok(Payload::Secret(secret)),
            EventState::Own(latest) => latest,
        };
        let secret = turn.secret().ok_or(CudaResult::ERROR_NOT_SUPPORTED)?;
        self.session_mut(id).events.insert(event, EventState::Shared(secret));
        let shared = SharedEvent { tenant, handles: 1, latest };
        self.shared_events.by_secret.insert(secret, shared);
        Ok(Payload::Secret(secret))
    }

    pub(super) fn open_event(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        (event, secret): (EventHandle, Secret),
    ) -> Answer {
        self.check_room_for_object(id)?;
        let session = self.session_mut(id);
        let tenant = session.identity.tenant;
        if session.events.contains_key(&event) {
            return Err(Refusal::Violation(format!("{event} exists already")));
        }
        let found = self.shared_events.by_secret.get_mut(&secret);
        let shared = found.ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        if shared.tenant != tenant {
            let text = "it tried to open an event of another user".to_owned();
            turn.log(LogLevel::Warning, Some(id), text);
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        }
        shared.handles += 1;
        self.session_mut(id).events.insert(event, EventState::Shared(secret));
        Ok(Payload::None)
    }

    /// The operation of an event's latest record, if that is not done.
    pub(super) fn recorded(
        &self,
        id: SessionId,
        event: EventHandle,
    ) -> Result<Option<OperationId>, CudaResult> {
        let state = self.records.get(&id).and_then(|record| record.events.get(&event));
        let latest = match state.ok_or(CudaResult::ERROR_INVALID_HANDLE)? {
            EventState::Own(latest) => *latest,
            EventState::Shared(secret) => {
                self.shared_events.by_secret.get(secret).and_then(|event| event.latest)
            }
        };
        Ok(latest.filter(|operation| self.operations.contains_key(operation)))
    }

    /// Makes an operation the latest record of an event.
    pub(super) fn set_recorded(
        &mut self,
        id: SessionId,
        event: EventHandle,
        operation: OperationId,
    ) {
        let shared = match self.session_mut(id).events.get_mut(&event) {
            Some(EventState::Own(latest)) => {
                *latest = Some(operation);
                None
            }
            Some(EventState::Shared(secret)) => Some(*secret),
            None => None,
        };
        let shared = shared.and_then(|secret| self.shared_events.by_secret.get_mut(&secret));
        if let Some(shared) = shared {
            shared.latest = Some(operation);
        }
    }

    pub(super) fn event_query(&mut self, id: SessionId, event: EventHandle) -> Answer {
        match self.recorded(id, event)? {
            Some(_) => Err(CudaResult::ERROR_NOT_READY.into()),
            None => Ok(Payload::None),
        }
    }

    pub(super) fn event_synchronize(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        event: EventHandle,
    ) -> Result<(), Refusal> {
        let Call { session, sequence } = call;
        let on = self.recorded(session, event)?;
        if let Some(on) = on {
            self.await_elsewhere(session, on);
        }
        let pending = on.into_iter().collect();
        self.wait_for(turn, session, Waiter { sequence, pending, then: WaiterThen::Reply });
        Ok(())
    }

    /// A session waits for an operation, which may be another's.
    pub(super) fn await_elsewhere(&mut self, session: SessionId, on: OperationId) {
        self.shared_events.waits(session, on, &self.operations);
        if let Some(owner) = self.operations.get(&on).map(|operation| operation.session) {
            self.are_awaited(owner, &[on]);
        }
    }

    /// An operation has ended, or was dropped: other sessions that wait for it go on.
    pub(super) fn wake_others(&mut self, turn: &mut Turn<'_>, id: OperationId) {
        for session in self.shared_events.waiting.remove(&id).into_iter().flatten() {
            let Some(record) = self.records.get_mut(&session) else { continue };
            record.unpark(id);
            self.notify_waiters(turn, session, id);
            turn.push(Effect::PumpSession(session));
        }
    }

    /// An event handle has gone.
    pub(super) fn drop_event(&mut self, state: EventState) {
        if let EventState::Shared(secret) = state {
            self.shared_events.drop_handle(secret);
        }
    }

    /// A session has gone, and its events with it.
    pub(super) fn leave_events<'a>(
        &mut self,
        id: SessionId,
        events: impl Iterator<Item = &'a EventState>,
    ) {
        for state in events {
            self.drop_event(*state);
        }
        self.shared_events.waiting.retain(|_, sessions| {
            sessions.remove(&id);
            !sessions.is_empty()
        });
    }
}
