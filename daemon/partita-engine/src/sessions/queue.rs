//! Streams: what goes to the device when.
//!
//! The device keeps the order inside a stream, so the engine submits ahead. An operation waits in
//! the engine only in these cases: an operation of another stream that it depends on has not been
//! submitted, the device already has enough of its stream ([`super::ahead`]), or it is a launch
//! that may not start ([`crate::launches`]). Copies between host and device, and launches behind
//! them, wait also because of copies ([`super::copies`]).
//!
//! Legacy default stream (CUDA Driver API, "Stream synchronization behavior"): what is appended to
//! it comes after everything in the session's blocking streams. What is appended to a blocking
//! stream comes after everything in the legacy stream. Streams of the device know no such rule; it
//! becomes waits here.

use super::Sessions;
use super::copy_times::CopyTimes;
use super::record::{Call, Forming, Operation, Queued, SessionState, Stage, Stream, Then};
use crate::effects::Effect;
use crate::launches::Pending;
use crate::turn::{Bug, Turn};
use crate::{Action, EngineConfig, EventHandle, Payload, StreamKind};
use partita_device::{DeviceError, Work};
use partita_model::{CudaResult, LaunchId, Nanos, OperationId, SessionId, StreamId, TracedCopy};

/// What the head of a queue wants.
pub(crate) enum Head {
    /// This can be submitted.
    Work(Work),
    /// A launch that [`crate::launches`] starts, or that is given back by [`Sessions::put_back`].
    Launch(Box<Pending>),
    /// A launch that becomes one with a form, or is given back by [`Sessions::put_back`].
    Forming(Box<Forming>),
    /// The session opens the gate first.
    Closed,
}

/// What became of a submission.
pub(crate) enum Submitted {
    /// The device has it. A launch that is the first of its stream may run now.
    Accepted { front: Option<LaunchId> },
    /// The device refused it, although the engine had checked it: its request is answered so.
    Answered,
    /// The device refused it, and its session fails.
    Failed,
}

/// What came of an operation's end.
pub(crate) struct Retired {
    /// A launch that is the first of the stream now.
    pub(crate) front: Option<LaunchId>,
    /// What the operation was, if it was a copy.
    pub(crate) copy: Option<TracedCopy>,
}

impl Sessions {
    /// Appends an operation to a stream.
    pub(crate) fn append(
        &mut self,
        turn: &mut Turn<'_>,
        (session, stream): (SessionId, StreamId),
        queued: Queued,
        then: Then,
        after: Option<OperationId>,
    ) -> OperationId {
        let id = OperationId(turn.next_id());
        let mut after: Vec<OperationId> = after.into_iter().collect();
        self.add_legacy_order(session, stream, &mut after);
        self.are_awaited(session, &after);
        let is_launch = matches!(queued, Queued::Launch(_) | Queued::Forming(_));
        let stage = Stage::Queued(queued);
        let operation = Operation { session, stream, after, stage, then };
        self.operations.insert(id, Box::new(operation));
        let record = self.session_mut(session);
        record.operations += 1;
        let target = record.streams.get_mut(&stream).expect("a handle names a live stream");
        target.queue.push_back(id);
        target.last = Some(id);
        if is_launch {
            target.last_launch = Some(id);
        }
        // What is behind a head that waits for its turn goes when that has gone.
        if !record.awaiting_turn.contains(&stream) {
            record.backlog.insert(stream);
            turn.push(Effect::PumpStream(session, stream));
        } else {
            self.copy_stands_anew((session, stream));
        }
        id
    }

    /// Other streams, or the host, wait for operations of a session.
    pub(super) fn are_awaited(&mut self, session: SessionId, operations: &[OperationId]) {
        for id in operations {
            let Some(stream) = self.operations.get(id).map(|operation| operation.stream) else {
                continue;
            };
            let record = self.records.get_mut(&session);
            // Helper grids have streams that the session does not know.
            if let Some(target) = record.and_then(|record| record.streams.get_mut(&stream)) {
                target.awaited = target.awaited.max(Some(*id));
                self.copy_stands_anew((session, stream));
            }
        }
    }

    fn add_legacy_order(
        &mut self,
        session: SessionId,
        stream: StreamId,
        after: &mut Vec<OperationId>,
    ) {
        let record = self.records.get_mut(&session).expect("looked up when its request came");
        let legacy = record.legacy;
        if stream == legacy {
            let blocking = |(id, other): &(&StreamId, &Stream)| {
                **id != legacy && other.kind == StreamKind::Blocking
            };
            let lasts = record.streams.iter().filter(blocking).filter_map(|(_, other)| other.last);
            after.extend(lasts.filter(|last| self.operations.contains_key(last)));
            return;
        }
        let last = record.streams.get(&legacy).and_then(|legacy| legacy.last);
        let own = record.streams.get_mut(&stream).expect("a handle names a live stream");
        if own.kind == StreamKind::Blocking
            && let Some(last) = last.filter(|last| self.operations.contains_key(last))
            && own.waited_legacy < Some(last)
        {
            own.waited_legacy = Some(last);
            after.push(last);
        }
    }

    /// The first stream from `from` on that has something queued, is not parked and does not await
    /// its turn.
    pub(crate) fn backlog_from(&self, session: SessionId, from: StreamId) -> Option<StreamId> {
        // The session may have gone or failed since the pump of its queues became due.
        self.records
            .get(&session)
            .filter(|record| record.is_open())?
            .backlog
            .range(from..)
            .next()
            .copied()
    }

    /// The head of a stream's queue, if nothing but the launch rules can hold it back. A stream
    /// whose head depends on an operation that has not been submitted is parked until it is.
    pub(crate) fn submittable(
        &mut self,
        (config, now): (&EngineConfig, Nanos),
        session: SessionId,
        stream: StreamId,
    ) -> Option<OperationId> {
        // Session and stream may have gone, or failed, since the pump became due.
        let record = self.records.get_mut(&session).filter(|record| record.is_open())?;
        let target = record.streams.get(&stream)?;
        let Some(&id) = target.queue.front() else {
            record.backlog.remove(&stream);
            return None;
        };
        if target.in_flight.len() >= config.stream_depth {
            return None;
        }
        let operation = self.operations.get(&id)?;
        let is_sized = matches!(&operation.stage,
            Stage::Queued(Queued::Launch(spec)) if spec.is_worker());
        let too_early = is_sized && target.ahead.is_enough(config.ahead);
        // What another session is to do first must be done. So no launch waits on the device for
        // another session's, which may need its SMs.
        let holds_back = |other: &&OperationId| {
            let other = self.operations.get(other);
            other.is_some_and(|other| {
                other.session != session || !matches!(other.stage, Stage::InFlight)
            })
        };
        if let Some(&on) = operation.after.iter().find(holds_back) {
            record.backlog.remove(&stream);
            record.parked.entry(on).or_default().insert(stream);
            self.shared_events.waits(session, on, &self.operations);
            return None;
        }
        let record = self.records.get(&session)?;
        let target = record.streams.get(&stream)?;
        let operation = self.operations.get(&id)?;
        let waits = self.is_early((config, now), (record, target), (id, operation));
        (!too_early && !waits).then_some(id)
    }

    /// Takes what the head of a queue will ask of the device.
    pub(crate) fn take_head(&mut self, id: OperationId) -> Result<Head, Bug> {
        let operation = self.operations.get_mut(&id).ok_or(Bug::NoOperation(id))?;
        match std::mem::replace(&mut operation.stage, Stage::Starting) {
            Stage::Queued(Queued::Plain(work)) => Ok(Head::Work(work)),
            Stage::Queued(Queued::Launch(spec)) => Ok(Head::Launch(spec)),
            Stage::Queued(Queued::Forming(forming)) => Ok(Head::Forming(forming)),
            Stage::Queued(Queued::Gate) => {
                operation.stage = Stage::Queued(Queued::Gate);
                Ok(Head::Closed)
            }
            Stage::Starting | Stage::InFlight => Err(Bug::NothingQueued(id)),
        }
    }

    /// Gives a launch back that has to wait. The pump of its session's queues looks at it again.
    pub(crate) fn put_back(&mut self, id: OperationId, queued: Queued) -> Result<(), Bug> {
        let operation = self.operations.get_mut(&id).ok_or(Bug::NoOperation(id))?;
        operation.stage = Stage::Queued(queued);
        let (session, stream) = (operation.session, operation.stream);
        self.records.get_mut(&session).ok_or(Bug::NoSession(session))?.goes_on(stream);
        Ok(())
    }

    /// Gives an operation back that waits for its turn among those of others. Only whoever lets it
    /// wait looks at it again.
    pub(crate) fn await_turn(&mut self, id: OperationId, queued: Queued) -> Result<(), Bug> {
        let operation = self.operations.get_mut(&id).ok_or(Bug::NoOperation(id))?;
        operation.stage = Stage::Queued(queued);
        let (session, stream) = (operation.session, operation.stream);
        let record = self.records.get_mut(&session).ok_or(Bug::NoSession(session))?;
        record.backlog.remove(&stream);
        record.awaiting_turn.insert(stream);
        Ok(())
    }

    /// Submits the head of a queue. `expected` is the time that it counts for among what the device
    /// has of its stream.
    pub(crate) fn submit(
        &mut self,
        turn: &mut Turn<'_>,
        id: OperationId,
        work: Work,
        expected: Option<Nanos>,
    ) -> Result<Submitted, Bug> {
        let operation = self.operations.get_mut(&id).ok_or(Bug::NoOperation(id))?;
        operation.stage = Stage::InFlight;
        let (session, stream, then) = (operation.session, operation.stream, operation.then);
        let after = std::mem::take(&mut operation.after);
        let record = self.records.get_mut(&session).ok_or(Bug::NoStream(stream))?;
        record.unpark(id);
        record.goes_on(stream);
        let target = self.stream_mut(session, stream).ok_or(Bug::NoStream(stream))?;
        target.queue.pop_front();
        if let Some(expected) = expected {
            target.ahead.push(id, expected);
        }
        self.give(turn, (session, stream), (id, then), (after, work))
    }

    /// Submits a part of the head of a queue as an operation of its own. The head stays, and what
    /// waits for it waits for the rest.
    pub(crate) fn submit_part(
        &mut self,
        turn: &mut Turn<'_>,
        head: OperationId,
        (part, launch): (OperationId, LaunchId),
        work: Work,
    ) -> Result<Submitted, Bug> {
        let operation = self.operations.get_mut(&head).ok_or(Bug::NoOperation(head))?;
        let (session, stream, then) = (operation.session, operation.stream, Then::Main(launch));
        let after = std::mem::take(&mut operation.after);
        let stage = Stage::InFlight;
        let operation = Operation { session, stream, after: Vec::new(), stage, then };
        self.operations.insert(part, Box::new(operation));
        self.records.get_mut(&session).ok_or(Bug::NoStream(stream))?.operations += 1;
        self.give(turn, (session, stream), (part, then), (after, work))
    }

    /// Gives the device an operation behind what the operation waits for.
    fn give(
        &mut self,
        turn: &mut Turn<'_>,
        (session, stream): (SessionId, StreamId),
        (id, then): (OperationId, Then),
        (after, work): (Vec<OperationId>, Work),
    ) -> Result<Submitted, Bug> {
        self.submit_waits(turn, (session, stream), after, &work)?;
        let copy = CopyTimes::of(&work);
        let result = turn.device.enqueue(stream, id, work);
        if let Some(copy) = copy.filter(|_| result.is_ok()) {
            self.copy_times.given(id, id, copy, turn.now());
        }
        let target = self.stream_mut(session, stream).ok_or(Bug::NoStream(stream))?;
        target.in_flight.push_back(id);
        let is_front = target.in_flight.len() == 1;
        match (result, then) {
            (Err(error), _) => Ok(refused(turn, (session, id, then), &error)),
            (Ok(()), Then::Main(launch)) if is_front => {
                Ok(Submitted::Accepted { front: Some(launch) })
            }
            (Ok(()), _) => Ok(Submitted::Accepted { front: None }),
        }
    }

    fn stream_mut(&mut self, session: SessionId, stream: StreamId) -> Option<&mut Stream> {
        self.records.get_mut(&session)?.streams.get_mut(&stream)
    }

    /// Lets a stream wait for operations of others, on which the work that follows depends.
    pub(super) fn submit_waits(
        &mut self,
        turn: &mut Turn<'_>,
        (session, stream): (SessionId, StreamId),
        after: Vec<OperationId>,
        work: &Work,
    ) -> Result<(), Bug> {
        for on in after {
            let waits_itself = matches!(work, Work::Wait { on: own } if *own == on);
            // What has no record is done.
            if waits_itself || !self.operations.contains_key(&on) {
                continue;
            }
            let wait = OperationId(turn.next_id());
            if let Err(error) = turn.device.enqueue(stream, wait, Work::Wait { on }) {
                turn.log_error(Some(session), format!("{stream} does not wait for {on}: {error}"));
                continue;
            }
            let (then, stage) = (Then::Nothing, Stage::InFlight);
            let operation = Operation { session, stream, after: Vec::new(), stage, then };
            self.operations.insert(wait, Box::new(operation));
            let record = self.records.get_mut(&session).ok_or(Bug::NoStream(stream))?;
            record.operations += 1;
            let target = record.streams.get_mut(&stream).ok_or(Bug::NoStream(stream))?;
            target.in_flight.push_back(wait);
        }
        Ok(())
    }

    /// Enters an operation that the launch machine has given the device on a stream of its own.
    pub(crate) fn enter_helper(
        &mut self,
        session: SessionId,
        stream: StreamId,
        id: OperationId,
        launch: LaunchId,
    ) {
        let (then, stage) = (Then::Helper(launch), Stage::InFlight);
        let operation = Operation { session, stream, after: Vec::new(), stage, then };
        self.operations.insert(id, Box::new(operation));
        self.session_mut(session).operations += 1;
    }

    /// Whose an operation is, and what follows it.
    pub(crate) fn operation(&self, id: OperationId) -> Option<(SessionId, StreamId, Then)> {
        let operation = self.operations.get(&id)?;
        Some((operation.session, operation.stream, operation.then))
    }

    /// The launch of which an operation is a grid.
    pub(crate) fn launch_of(&self, grid: OperationId) -> Option<LaunchId> {
        match self.operations.get(&grid)?.then {
            Then::Main(id) | Then::Helper(id) => Some(id),
            Then::Nothing | Then::Reply { .. } | Then::Record { .. } => None,
        }
    }

    /// Answers the request of an operation that has ended.
    pub(crate) fn reply_done(&self, turn: &mut Turn<'_>, call: Call, ok: bool) {
        let code = match self.records.get(&call.session).map(|session| session.state) {
            Some(SessionState::Open) if ok => CudaResult::SUCCESS,
            Some(SessionState::Open) => CudaResult::ERROR_UNKNOWN,
            Some(SessionState::Failed(code)) => code,
            // Nobody waits for the answer any more.
            Some(SessionState::Closing) | None => return,
        };
        turn.reply(call, code, Payload::None);
    }

    /// A stream has reached the record of an event. The program may have destroyed the event.
    pub(crate) fn event_reached(
        &self,
        turn: &mut Turn<'_>,
        call: Call,
        event: EventHandle,
        time: Nanos,
    ) {
        let Call { session, sequence } = call;
        let record = self.records.get(&session).filter(|record| record.is_open());
        if record.is_some_and(|record| record.events.contains_key(&event)) {
            turn.act(Action::EventRecorded { session, event, sequence, time });
            // The host may wait for it.
            self.host_waited(turn, session);
        }
    }

    /// Strikes an operation out of its stream and goes on with what waited for it.
    pub(crate) fn retire(
        &mut self,
        turn: &mut Turn<'_>,
        id: OperationId,
        time: Nanos,
    ) -> Option<Retired> {
        // The device may tell the end of what a lost device's sessions have forgotten.
        let operation = self.operations.remove(&id)?;
        self.copy_ended(turn, id);
        self.wake_others(turn, id);
        let (session, stream) = (operation.session, operation.stream);
        let record = self.records.get_mut(&session)?;
        record.operations -= 1;
        record.word_waits.remove(&id);
        record.unpark(id);
        let (mut front, mut before) = (None, Nanos(0));
        // Helper grids have side streams, which the session does not know.
        if let Some(target) = record.streams.get_mut(&stream) {
            target.ahead.remove(id);
            before = target.last_end;
            target.last_end = time.max(before);
            if target.in_flight.front() == Some(&id) {
                target.in_flight.pop_front();
                front = target.in_flight.front().copied();
            } else {
                // Only a cancelled grid can end before its predecessor.
                target.in_flight.retain(|other| *other != id);
            }
        }
        let has_backlog = !record.backlog.is_empty();
        let awaits_turn = !record.awaiting_turn.is_empty();
        let is_closing = record.state == SessionState::Closing;
        let application = record.application;
        let copy = self.copy_times.ended(id, before, time).map(|took| TracedCopy {
            application,
            session,
            stream,
            operation: took.whole,
            kind: took.kind,
            bytes: took.bytes,
            start: took.start,
            end: took.end,
        });
        self.notify_waiters(turn, session, id);
        self.drop_stream_if_done(turn, session, stream);
        if has_backlog {
            turn.push(Effect::PumpSession(session));
        }
        if awaits_turn {
            turn.push(Effect::PumpWaiting);
        }
        if is_closing {
            turn.push(Effect::Release(session));
        }
        let front = front.and_then(|front| match self.operations.get(&front)?.then {
            Then::Main(launch) => Some(launch),
            _ => None,
        });
        Some(Retired { front, copy })
    }
}

/// The device did not take an operation although the engine had checked it.
fn refused(
    turn: &mut Turn<'_>,
    (session, operation, then): (SessionId, OperationId, Then),
    error: &DeviceError,
) -> Submitted {
    let time = turn.now();
    if let Then::Reply { sequence, .. } = then {
        let text = Payload::Explanation(error.to_string());
        turn.reply(Call { session, sequence }, CudaResult::ERROR_INVALID_VALUE, text);
        turn.push(Effect::Retire { operation, time });
        return Submitted::Answered;
    }
    let code = match then {
        Then::Main(_) => CudaResult::ERROR_LAUNCH_OUT_OF_RESOURCES,
        _ => CudaResult::ERROR_UNKNOWN,
    };
    turn.fail(session, code, error.to_string());
    turn.push(Effect::Failed { operation, time });
    Submitted::Failed
}
