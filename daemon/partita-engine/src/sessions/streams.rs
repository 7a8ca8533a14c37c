//! Streams and gates of sessions, as requests know them.

use super::record::{Call, Queued, Stage, Stream, Then, Waiter, WaiterThen};
use super::{Answer, Refusal, Sessions};
use crate::effects::Effect;
use crate::turn::{Bug, Turn};
use crate::{Payload, Sequence, StreamHandle, StreamKind};
use partita_device::Work;
use partita_model::{CudaResult, OperationId, SessionId, StreamId};

/// Streams, events, modules, arrays and textures that one session may have at once.
const MAX_OBJECTS: usize = 1 << 16;
/// The priority of streams whose launches go first: few priorities are told apart.
const HIGHEST_PRIORITY: i32 = -5;

impl Sessions {
    pub(crate) fn stream_of(
        &self,
        id: SessionId,
        stream: StreamHandle,
    ) -> Result<StreamId, Refusal> {
        let session = self.records.get(&id).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        session.handles.get(&stream).copied().ok_or(Refusal::Code(CudaResult::ERROR_INVALID_HANDLE))
    }

    pub(super) fn check_room_for_object(&self, id: SessionId) -> Result<(), Refusal> {
        let count = self.records.get(&id).map_or(0, |session| {
            let textures = session.arrays.len() + session.textures.len();
            session.streams.len() + session.events.len() + session.modules.len() + textures
        });
        if count < MAX_OBJECTS {
            return Ok(());
        }
        Err(Refusal::Violation(format!(
            "more than {MAX_OBJECTS} streams, events, modules, arrays and textures"
        )))
    }

    pub(super) fn stream_create(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        stream: StreamHandle,
        (kind, priority): (StreamKind, i32),
    ) -> Answer {
        self.check_room_for_object(id)?;
        let new = StreamId(turn.next_id());
        let session = self.session_mut(id);
        if session.handles.contains_key(&stream) {
            return Err(Refusal::Violation(format!("{stream} exists already")));
        }
        turn.device.create_stream(new).map_err(|error| {
            Refusal::Explained(CudaResult::ERROR_OUT_OF_MEMORY, error.to_string())
        })?;
        let priority = priority.clamp(HIGHEST_PRIORITY, 0);
        session.streams.insert(new, Stream { priority, ..Stream::new(kind) });
        session.handles.insert(stream, new);
        Ok(Payload::None)
    }

    pub(super) fn stream_destroy(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        stream: StreamHandle,
    ) -> Answer {
        if stream == StreamHandle::LEGACY {
            return Err(CudaResult::ERROR_INVALID_HANDLE.into());
        }
        let stream_id = self.stream_of(id, stream)?;
        let session = self.session_mut(id);
        session.handles.remove(&stream);
        session.streams.get_mut(&stream_id).expect("a handle names a live stream").destroyed = true;
        self.drop_stream_if_done(turn, id, stream_id);
        Ok(Payload::None)
    }

    pub(super) fn drop_stream_if_done(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        stream: StreamId,
    ) {
        let session = self.session_mut(id);
        if session.streams.get(&stream).is_some_and(|record| record.destroyed && record.is_empty())
        {
            session.streams.remove(&stream);
            if let Err(error) = turn.device.destroy_stream(stream) {
                turn.log_error(Some(id), format!("{stream} could not be destroyed: {error}"));
            }
        }
    }

    pub(super) fn stream_query(&self, id: SessionId, stream: StreamHandle) -> Answer {
        let pending = self.pending_of(id, Some(stream))?;
        if pending.is_empty() { Ok(Payload::None) } else { Err(CudaResult::ERROR_NOT_READY.into()) }
    }

    pub(super) fn synchronize(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        stream: Option<StreamHandle>,
    ) -> Result<(), Refusal> {
        let pending = self.pending_of(call.session, stream)?;
        self.are_awaited(call.session, &pending);
        let waiter = Waiter { sequence: call.sequence, pending, then: WaiterThen::Reply };
        self.wait_for(turn, call.session, waiter);
        Ok(())
    }

    pub(super) fn gate(
        &mut self,
        turn: &mut Turn<'_>,
        call: Call,
        stream: StreamHandle,
    ) -> Result<(), Refusal> {
        let Call { session, sequence } = call;
        let place = (session, self.stream_of(session, stream)?);
        let then = Then::Reply { sequence, awaited: false };
        self.append(turn, place, Queued::Plain(Work::Marker), then, None);
        let gate = self.append(turn, place, Queued::Gate, Then::Nothing, None);
        self.session_mut(session).gates.insert(sequence, gate);
        Ok(())
    }

    pub(super) fn open_gate(
        &mut self,
        turn: &mut Turn<'_>,
        id: SessionId,
        gate: Sequence,
    ) -> Answer {
        let Some(operation) = self.session_mut(id).gates.remove(&gate.0) else {
            return Err(Refusal::Violation(format!("{gate} is no closed gate")));
        };
        match self.operations.get_mut(&operation) {
            Some(record) => record.stage = Stage::Queued(Queued::Plain(Work::Marker)),
            None => turn.bug(id, Bug::NoOperation(operation)),
        }
        turn.push(Effect::PumpSession(id));
        Ok(Payload::None)
    }

    /// The last operations that are not done, of a stream or of all. The legacy stream stands for
    /// every blocking stream, because whatever is appended to it comes after all of them.
    fn pending_of(
        &self,
        id: SessionId,
        stream: Option<StreamHandle>,
    ) -> Result<Vec<OperationId>, Refusal> {
        let Some(stream) = stream else { return Ok(self.last_operations(id)) };
        let stream_id = self.stream_of(id, stream)?;
        let session = self.records.get(&id).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        let concerned = session.streams.iter().filter(|(other, record)| {
            **other == stream_id
                || (stream_id == session.legacy && record.kind == StreamKind::Blocking)
        });
        Ok(self.live(concerned.filter_map(|(_, record)| record.last)))
    }

    pub(super) fn last_operations(&self, id: SessionId) -> Vec<OperationId> {
        let streams = self.records.get(&id).into_iter().flat_map(|record| record.streams.values());
        self.live(streams.filter_map(|stream| stream.last))
    }

    fn live(&self, operations: impl Iterator<Item = OperationId>) -> Vec<OperationId> {
        operations.filter(|operation| self.operations.contains_key(operation)).collect()
    }
}
