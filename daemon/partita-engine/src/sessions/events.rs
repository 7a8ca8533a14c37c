//! Events of sessions.

use super::record::{Call, EventState, Queued, Then};
use super::{Answer, Refusal, Sessions};
use crate::turn::Turn;
use crate::{EventHandle, Payload, StreamHandle};
use partita_device::Work;
use partita_model::{CudaResult, SessionId};

impl Sessions {
    pub(super) fn event_create(&mut self, id: SessionId, event: EventHandle) -> Answer {
        self.check_room_for_object(id)?;
        let session = self.session_mut(id);
        if session.events.contains_key(&event) {
            return Err(Refusal::Violation(format!("{event} exists already")));
        }
        session.events.insert(event, EventState::Own(None));
        Ok(Payload::None)
    }

    pub(super) fn event_destroy(&mut self, id: SessionId, event: EventHandle) -> Answer {
        match self.session_mut(id).events.remove(&event) {
            Some(state) => {
                self.drop_event(state);
                Ok(Payload::None)
            }
            None => Err(CudaResult::ERROR_INVALID_HANDLE.into()),
        }
    }

    pub(super) fn event_record(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        event: EventHandle,
        stream: StreamHandle,
    ) -> Answer {
        let Call { session, sequence } = call;
        let stream = self.stream_of(session, stream)?;
        if !self.session_mut(session).events.contains_key(&event) {
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        }
        let then = Then::Record { event, sequence };
        let marker = Queued::Plain(Work::Marker);
        let operation = self.append(turn, (session, stream), marker, then, None);
        self.set_recorded(session, event, operation);
        Ok(Payload::None)
    }

    pub(super) fn stream_wait(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        stream: StreamHandle,
        event: EventHandle,
    ) -> Answer {
        let stream = self.stream_of(id, stream)?;
        let Some(on) = self.recorded(id, event)? else { return Ok(Payload::None) };
        let is_own = self.operations.get(&on).is_some_and(|operation| operation.session == id);
        // What another session does first is done when this goes to the device.
        let wait = if is_own { Work::Wait { on } } else { Work::Marker };
        self.await_elsewhere(id, on);
        self.append(turn, (id, stream), Queued::Plain(wait), Then::Nothing, Some(on));
        Ok(Payload::None)
    }
}
