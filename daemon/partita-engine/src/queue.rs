//! Streams: what goes to the device when.
//!
//! The device keeps the order inside a stream, so the engine submits ahead. An operation waits in
//! the engine only while what it depends on in another stream has not been submitted itself, while
//! the device already has enough of its stream ([`crate::ahead`]), or, for a launch, while it may
//! not run ([`crate::launching`]).
//!
//! Legacy default stream (CUDA Driver API, "Stream synchronization behavior"): what is appended to
//! it comes after everything in the session's blocking streams, and what is appended to these after
//! everything in it. Streams of the device know no such rule; it becomes waits here.

use crate::effects::Effect;
use crate::launching::Start;
use crate::state::{LaunchForm, Operation, Queued, SessionState, Stream, Then};
use crate::{Action, Engine, Payload, StreamKind};
use partita_device::{Device, DeviceError, Outcome, Work};
use partita_model::{ApplicationId, CudaResult, LaunchId, Nanos, OperationId, SessionId, StreamId};

/// What became of the attempt to submit the head of a queue.
enum Submission {
    /// It is in flight.
    Done,
    /// It has to wait.
    Blocked,
    /// Its session fails: nothing else of it goes.
    Failed,
}

/// What became of the attempt to submit what queues hold.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pumped {
    /// Nothing was submitted.
    Nothing,
    /// Something was.
    Some,
    /// The session fails: nothing else of it goes.
    Failed,
}

impl Engine {
    /// Appends an operation to a stream.
    pub(crate) fn append(
        &mut self,
        session: SessionId,
        stream: StreamId,
        queued: Queued,
        then: Then,
        after: Option<OperationId>,
    ) -> OperationId {
        let id = OperationId(self.next_id());
        let mut after: Vec<OperationId> = after.into_iter().collect();
        self.add_legacy_order(session, stream, &mut after);
        let operation = Operation { session, stream, after, queued: Some(queued), then };
        self.operations.insert(id, Box::new(operation));
        let record = self.sessions.get_mut(&session).expect("the caller has the session");
        record.operations += 1;
        let target = record.streams.get_mut(&stream).expect("a handle names a live stream");
        target.queue.push_back(id);
        target.last = Some(id);
        record.backlog.insert(stream);
        self.effects.push(Effect::PumpStream(session, stream));
        id
    }

    fn add_legacy_order(
        &mut self,
        session: SessionId,
        stream: StreamId,
        after: &mut Vec<OperationId>,
    ) {
        let Some(record) = self.sessions.get_mut(&session) else { return };
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
        let Some(own) = record.streams.get_mut(&stream) else { return };
        if own.kind == StreamKind::Blocking
            && let Some(last) = last.filter(|last| self.operations.contains_key(last))
            && own.waited_legacy < Some(last)
        {
            own.waited_legacy = Some(last);
            after.push(last);
        }
    }

    /// Submits whatever can be of a session.
    pub(crate) fn pump_session(&mut self, device: &mut dyn Device, session: SessionId) {
        loop {
            let mut submitted = false;
            let mut from = StreamId(0);
            while let Some(stream) = self.backlog_from(session, from) {
                match self.pump_stream(device, session, stream) {
                    Pumped::Nothing => {}
                    Pumped::Some => submitted = true,
                    Pumped::Failed => return,
                }
                from = StreamId(stream.0 + 1);
            }
            if !submitted {
                return;
            }
        }
    }

    /// Submits whatever can be of a stream, and of the session's others then.
    pub(crate) fn pump_appended(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        stream: StreamId,
    ) {
        if self.pump_stream(device, session, stream) == Pumped::Some {
            self.pump_session(device, session);
        }
    }

    /// The first stream from `from` on that has something queued.
    fn backlog_from(&self, session: SessionId, from: StreamId) -> Option<StreamId> {
        self.sessions.get(&session)?.backlog.range(from..).next().copied()
    }

    /// Submits launches that wait for room or for their turn, in order of arrival.
    pub(crate) fn pump_waiting(&mut self, device: &mut dyn Device) {
        let mut from = OperationId(0);
        while let Some((&id, &waiting)) = self.waiting.range(from..).next() {
            from = OperationId(id.0 + 1);
            match self.pump_stream(device, waiting.session, waiting.stream) {
                Pumped::Nothing => {}
                Pumped::Some => self.pump_session(device, waiting.session),
                // The others go when it has failed.
                Pumped::Failed => return,
            }
        }
    }

    /// Submits the head of a stream's queue as long as that goes; whether anything was submitted.
    fn pump_stream(
        &mut self,
        device: &mut dyn Device,
        session: SessionId,
        stream: StreamId,
    ) -> Pumped {
        let mut submitted = false;
        while let Some(id) = self.submittable(session, stream) {
            match self.submit(device, id) {
                Submission::Done => submitted = true,
                Submission::Blocked => break,
                Submission::Failed => return Pumped::Failed,
            }
        }
        if submitted { Pumped::Some } else { Pumped::Nothing }
    }

    /// The head of the queue, if nothing but the launch rules can hold it back.
    fn submittable(&mut self, session: SessionId, stream: StreamId) -> Option<OperationId> {
        let record = self.sessions.get_mut(&session)?;
        let target = record.streams.get(&stream)?;
        let Some(&id) = target.queue.front() else {
            record.backlog.remove(&stream);
            return None;
        };
        if target.in_flight.len() >= self.config.stream_depth {
            return None;
        }
        let is_queued =
            |other: &OperationId| self.operations.get(other).is_some_and(|o| o.queued.is_some());
        let operation = self.operations.get(&id)?;
        let is_sized = matches!(&operation.queued,
            Some(Queued::Launch(spec)) if spec.form() == LaunchForm::Worker);
        let too_early = is_sized && target.ahead.is_enough(self.config.ahead);
        (!too_early && !operation.after.iter().any(is_queued)).then_some(id)
    }

    fn submit(&mut self, device: &mut dyn Device, id: OperationId) -> Submission {
        let Some(operation) = self.operations.get_mut(&id) else { return Submission::Blocked };
        let (session, stream, then) = (operation.session, operation.stream, operation.then);
        let work = match operation.queued.take() {
            None => return Submission::Blocked,
            Some(Queued::Plain(work)) => work,
            Some(Queued::Gate) => {
                operation.queued = Some(Queued::Gate);
                return Submission::Blocked;
            }
            Some(Queued::Launch(spec)) => match self.start_launch(device, id, spec) {
                Start::Submit(work) => work,
                Start::Wait => return Submission::Blocked,
                Start::Failed => return Submission::Failed,
            },
        };
        self.submit_waits(device, id, &work);
        let expected = self.expected_time(then);
        let result = device.enqueue(stream, id, work);
        if let Some(record) = self.sessions.get_mut(&session)
            && let Some(target) = record.streams.get_mut(&stream)
        {
            target.queue.pop_front();
            target.in_flight.push_back(id);
            if let Some(expected) = expected {
                target.ahead.push(id, expected);
            }
            if target.in_flight.len() == 1 {
                self.became_front(device, id);
            }
        }
        if let Err(error) = result {
            return self.refused(device, id, then, &error);
        }
        Submission::Done
    }

    /// Lets the stream wait for what the operation depends on in others.
    fn submit_waits(&mut self, device: &mut dyn Device, id: OperationId, work: &Work) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let (session, stream) = (operation.session, operation.stream);
        for on in std::mem::take(&mut operation.after) {
            let waits_itself = matches!(work, Work::Wait { on: own } if *own == on);
            if waits_itself || !self.operations.contains_key(&on) {
                continue;
            }
            let wait = OperationId(self.next_id());
            if device.enqueue(stream, wait, Work::Wait { on }).is_err() {
                continue;
            }
            let then = Then::Nothing;
            let operation = Operation { session, stream, after: Vec::new(), queued: None, then };
            self.operations.insert(wait, Box::new(operation));
            if let Some(record) = self.sessions.get_mut(&session)
                && let Some(target) = record.streams.get_mut(&stream)
            {
                record.operations += 1;
                target.in_flight.push_back(wait);
            }
        }
    }

    /// The device did not take an operation although the engine had checked it.
    fn refused(
        &mut self,
        device: &mut dyn Device,
        id: OperationId,
        then: Then,
        error: &DeviceError,
    ) -> Submission {
        let time = device.now();
        let Some(session) = self.operations.get(&id).map(|operation| operation.session) else {
            return Submission::Done;
        };
        if let Then::Reply { sequence } = then {
            self.reply(
                session,
                sequence,
                CudaResult::ERROR_INVALID_VALUE,
                Payload::Explanation(error.to_string()),
            );
            self.effects.push(Effect::Retire(id));
            return Submission::Done;
        }
        let code = match then {
            Then::Main(_) => CudaResult::ERROR_LAUNCH_OUT_OF_RESOURCES,
            _ => CudaResult::ERROR_UNKNOWN,
        };
        self.fail(session, code, error.to_string());
        self.effects.push(Effect::Ended { operation: id, time, ok: false });
        Submission::Failed
    }

    /// An operation has ended.
    pub(crate) fn operation_done(&mut self, id: OperationId, time: Nanos, outcome: Outcome) {
        let Some(operation) = self.operations.get(&id) else { return };
        let (session, then) = (operation.session, operation.then);
        let failed = match outcome {
            Outcome::Complete => None,
            Outcome::Cancelled => {
                Some((CudaResult::ERROR_LAUNCH_FAILED, "work was cancelled".to_owned()))
            }
            Outcome::Fault(fault) => {
                let (code, fault) = self.describe_fault(then, *fault);
                self.print_assertion(session, &fault);
                Some((code, fault.to_string()))
            }
        };
        let ok = failed.is_none();
        if let Some((code, text)) = failed {
            self.fail(session, code, text);
        }
        self.effects.push(Effect::Ended { operation: id, time, ok });
    }

    /// The second step of an operation's end, after its session has failed where it did.
    pub(crate) fn operation_ended(
        &mut self,
        device: &mut dyn Device,
        id: OperationId,
        time: Nanos,
        ok: bool,
    ) {
        let Some(operation) = self.operations.get(&id) else { return };
        let (session, then) = (operation.session, operation.then);
        if let Then::Main(launch) | Then::Helper(launch) = then {
            self.count_grid(device, launch, id);
        }
        match then {
            Then::Nothing => {}
            Then::Reply { sequence } => self.reply_done(session, sequence, ok),
            Then::Record { event, sequence } => self.event_reached(session, event, sequence, time),
            Then::Main(launch) => self.main_grid_done(device, launch, ok),
            Then::Helper(launch) => self.helper_grid_done(device, launch, id),
        }
        // Before the session may be released: the launch still counts for its application.
        if let Then::Main(launch) | Then::Helper(launch) = then {
            self.finish_launch_if_done(device, launch);
        }
        self.effects.push(Effect::Retire(id));
    }

    fn reply_done(&mut self, session: SessionId, sequence: u64, ok: bool) {
        let code = match self.sessions.get(&session).map(|session| session.state) {
            Some(SessionState::Open) if ok => CudaResult::SUCCESS,
            Some(SessionState::Open) => CudaResult::ERROR_UNKNOWN,
            Some(SessionState::Failed(code)) => code,
            Some(SessionState::Closing) | None => return,
        };
        self.reply(session, sequence, code, Payload::None);
    }

    fn event_reached(
        &mut self,
        session: SessionId,
        event: crate::EventHandle,
        sequence: u64,
        time: Nanos,
    ) {
        let Some(record) = self.sessions.get(&session) else { return };
        if record.state != SessionState::Open || !record.events.contains_key(&event) {
            return;
        }
        self.actions.push_back(Action::EventRecorded { session, event, sequence, time });
    }

    /// Strikes an operation out of its stream and goes on with what waited for it.
    pub(crate) fn retire(&mut self, device: &mut dyn Device, id: OperationId) {
        let Some(operation) = self.operations.remove(&id) else { return };
        let (session, stream) = (operation.session, operation.stream);
        let Some(record) = self.sessions.get_mut(&session) else { return };
        record.operations -= 1;
        record.word_waits.remove(&id);
        if let Some(target) = record.streams.get_mut(&stream) {
            target.ahead.remove(id);
            let was_front = target.in_flight.front() == Some(&id);
            if was_front {
                target.in_flight.pop_front();
            } else {
                // Only a cancelled grid can end before its predecessor.
                target.in_flight.retain(|other| *other != id);
            }
            if was_front && let Some(&next) = target.in_flight.front() {
                self.became_front(device, next);
            }
        }
        self.notify_waiters(device, session, id);
        self.drop_stream_if_done(device, session, stream);
        if self.sessions.get(&session).is_some_and(|session| !session.backlog.is_empty()) {
            self.effects.push(Effect::PumpSession(session));
        }
        self.effects.push(Effect::Release(session));
    }

    /// An operation has become the first of its stream: a launch may start to run now.
    fn became_front(&mut self, device: &mut dyn Device, id: OperationId) {
        if let Some(Then::Main(launch)) = self.operations.get(&id).map(|operation| operation.then) {
            self.launch_became_front(device, launch);
            self.front_task(device, launch);
        }
    }

    /// Whose grid an operation is.
    pub(crate) fn owner_of(&self, grid: OperationId) -> Option<(ApplicationId, LaunchId)> {
        let (Then::Main(id) | Then::Helper(id)) = self.operations.get(&grid)?.then else {
            return None;
        };
        Some((self.launches.get(&id)?.application, id))
    }
}
