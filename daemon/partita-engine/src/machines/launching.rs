//! Steps of launches on their way to the device.

use super::Machines;
use super::as_written::Now;
use crate::effects::Effect;
use crate::launches::{BARRIER, Checker, Fit, Form, Part, Pending, Place, Start, fence};
use crate::observer::Account;
use crate::sessions::{
    Answer, Application, Call, CopyTurn, Forming, Head, Queued, Refusal, Submitted, Taken, Then,
};
use crate::turn::{Bug, Turn};
use crate::{About, LogLevel, Payload, Request, Rests};
use partita_device::{AddressRange, Phase};
use partita_model::{
    ApplicationId, CudaResult, LaunchId, Nanos, OperationId, Originals, Priority, SessionId,
    StreamId, request,
};

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

impl Machines {
    /// Takes a request. Requests of unknown sessions are dropped.
    pub(crate) fn request(&mut self, turn: &mut Turn<'_>, call: Call, request: Request) {
        let answer = match self.sessions.admit(turn, call) {
            Ok(false) => return,
            Ok(true) => match self.sessions.take(turn, call, request) {
                Taken::Answer(answer) => answer,
                Taken::Later => return,
                Taken::Launch(request) => self.launch(turn, call.session, request),
            },
            Err(refusal) => Err(refusal),
        };
        match answer {
            Ok(payload) => turn.reply(call, CudaResult::SUCCESS, payload),
            Err(Refusal::Code(code)) => turn.reply(call, code, Payload::None),
            Err(Refusal::Explained(code, text)) => {
                turn.reply(call, code, Payload::Explanation(text));
            }
            // Only some requests can be tried again.
            Err(Refusal::Busy) => turn.reply(call, CudaResult::ERROR_OUT_OF_MEMORY, Payload::None),
            Err(Refusal::Violation(reason)) => self.end(turn, call.session, reason),
        }
    }

    /// Takes a launch: checked, cut into parts where it is counted, and put into its stream.
    fn launch(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        request: request::Launch,
    ) -> Answer {
        let stream = self.sessions.stream_of(session, request.stream)?;
        let id = LaunchId(turn.next_id());
        let later = self.sessions.is_form_later(session, &request).then(|| request.clone());
        let pending = self.check(turn, session, id, request)?;
        if let Some(request) = later {
            self.sessions.ask_for_form(turn, session, &request);
            let forming = Queued::Forming(Box::new(Forming { request, as_written: pending }));
            self.sessions.append(turn, (session, stream), forming, Then::Main(id), None);
            return Ok(Payload::None);
        }
        let record = self.sessions.get(session).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        let application = record.application();
        // Counting costs an application that is alone more than its profile is worth.
        let is_counted =
            turn.config().originals == Originals::Never || self.sessions.applications().count() > 1;
        let ledger = self.handover.ledger();
        let (before, last) = self.observer.cut(turn, ledger, session, pending, is_counted);
        if !self.count_launch(turn, session, application, &last) {
            return Err(CudaResult::ERROR_UNKNOWN.into());
        }
        for pending in before.into_iter().map(Box::new).chain([last]) {
            self.begin_demand(turn, application, &pending);
            let then = Then::Main(pending.spec.id);
            let launch = Queued::Launch(pending);
            self.sessions.append(turn, (session, stream), launch, then, None);
        }
        Ok(Payload::None)
    }

    /// What a launch is, if the program may launch that.
    fn check(
        &self,
        turn: &mut Turn<'_>,
        session: SessionId,
        id: LaunchId,
        request: request::Launch,
    ) -> Result<Box<Pending>, Refusal> {
        let record = self.sessions.get(session).ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        let instance = self.sessions.loaded(session, request.module);
        let instance = instance.ok_or(CudaResult::ERROR_INVALID_HANDLE)?;
        let checker = Checker { facts: turn.facts(), ledger: self.handover.ledger() };
        let mut pending = checker.check(id, instance, request)?;
        let spec = &mut pending.spec;
        spec.asked = turn.now();
        spec.awaits_host = spec.kernel.awaits && record.names_host(spec.params.bytes());
        let tenant = record.identity().tenant;
        let who = (tenant, self.sessions.may_run_unfenced(tenant));
        let is_object = |handle| record.has_texture(handle);
        fence(record.guards(), record.range().start, who, spec, is_object)?;
        if self.launches.keeps_to_groups(turn) {
            let places = self.places(self.handover.ledger().sms(), pending.spec.cta);
            pending.set_grouped(places);
        }
        Ok(pending)
    }

    /// Enters a program's launch in its application's account. `false` where that is unknown.
    fn count_launch(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        application: ApplicationId,
        pending: &Pending,
    ) -> bool {
        let name = self.sessions.application(application).map_or("", |a| &a.name);
        let ctas_per_sm = self.handover.ledger().occupancy(pending.spec.cta);
        self.observer.saw_kernel(turn.now(), (application, &pending.spec), ctas_per_sm);
        let Some(account) = self.observer.account_mut(application) else {
            turn.bug(session, Bug::NoApplication(application));
            return false;
        };
        if let Some(line) = account.count_launch(name, pending) {
            let about = About { application: Some(application), ..session.into() };
            turn.log(LogLevel::Info, about.kernel(&pending.spec.kernel.name), line);
        }
        true
    }

    /// A launch is queued: its application wants SMs.
    fn begin_demand(&mut self, turn: &mut Turn<'_>, application: ApplicationId, pending: &Pending) {
        let needs_groups = matches!(pending.form, Form::MachineCode | Form::Grouped(_))
            || pending.claims_clusters();
        if needs_groups
            && self.launches.needs_groups(application)
            && self.observer.account(application).is_some_and(Account::is_active)
        {
            turn.push(Effect::Replan);
        }
        let is_confined = pending.is_confined();
        let ctas_per_sm = self.handover.ledger().occupancy(pending.spec.cta);
        let (launch, how) = ((application, &pending.spec), (is_confined, ctas_per_sm));
        let is_urgent = |a: &Application| a.entitlement.priority == Priority::Latency;
        if self.observer.queued(turn, launch, how)
            && self.sessions.application(application).is_some_and(is_urgent)
        {
            turn.push(Effect::Replan);
        }
        if !is_confined {
            return;
        }
        if self.observer.demand_began(turn, application) {
            turn.push(Effect::Join(application));
        }
    }

    /// A launch at the head of its queue, with its kernel's form if that came. It is not counted,
    /// for it stands in its queue as one operation.
    fn formed(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        forming: Forming,
    ) -> Result<Box<Pending>, Bug> {
        let record = self.sessions.get(session).ok_or(Bug::NoSession(session))?;
        let application = record.application();
        let Forming { request, as_written } = forming;
        let module = self.sessions.loaded(session, request.module);
        let is_loaded = module.is_some_and(|module| module.id == as_written.spec.module);
        let pending = match is_loaded {
            // Where the form does not serve the launch, the launch goes as it was checked.
            true => self.check(turn, session, as_written.spec.id, request).unwrap_or(as_written),
            false => as_written,
        };
        let ledger = self.handover.ledger();
        let (_, pending) = self.observer.cut(turn, ledger, session, pending, false);
        self.count_launch(turn, session, application, &pending);
        self.begin_demand(turn, application, &pending);
        Ok(pending)
    }

    // Queues.

    /// Submits whatever can be of a stream, and of the session's others then.
    pub(super) fn pump_appended(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        stream: StreamId,
    ) {
        if self.pump_stream(turn, session, stream) == Pumped::Some {
            self.pump_session(turn, session);
        }
    }

    /// Submits whatever can be of a session.
    pub(super) fn pump_session(&mut self, turn: &mut Turn<'_>, session: SessionId) {
        loop {
            let mut submitted = false;
            let mut from = StreamId(0);
            while let Some(stream) = self.sessions.backlog_from(session, from) {
                match self.pump_stream(turn, session, stream) {
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

    /// Submits launches that wait for room or for their turn, in order of arrival. Where a launch
    /// still waits, so do those of its application and kind behind it.
    pub(super) fn pump_waiting(&mut self, turn: &mut Turn<'_>) {
        let mut candidates = self.launches.candidates();
        while let Some((id, waiting)) = candidates.pop_first() {
            match self.pump_stream(turn, waiting.session, waiting.stream) {
                Pumped::Nothing => {}
                Pumped::Some => self.pump_session(turn, waiting.session),
                // The others go when it has failed.
                Pumped::Failed => return,
            }
            candidates.extend(self.launches.candidate_behind((id, waiting)));
        }
    }

    /// Submits the head of a stream's queue as long as that goes.
    fn pump_stream(&mut self, turn: &mut Turn<'_>, session: SessionId, stream: StreamId) -> Pumped {
        let mut pumped = Pumped::Nothing;
        while let Some(id) = {
            let now = turn.now();
            self.sessions.submittable((turn.config(), now), session, stream)
        } {
            match self.submit(turn, (session, stream), id) {
                Ok(Pumped::Some) => pumped = Pumped::Some,
                Ok(Pumped::Nothing) => return pumped,
                Ok(Pumped::Failed) => return Pumped::Failed,
                Err(bug) => {
                    turn.bug(session, bug);
                    return Pumped::Failed;
                }
            }
        }
        pumped
    }

    /// Submits one operation, if it can go.
    fn submit(
        &mut self,
        turn: &mut Turn<'_>,
        (session, stream): (SessionId, StreamId),
        id: OperationId,
    ) -> Result<Pumped, Bug> {
        let head = match self.sessions.take_head(id)? {
            Head::Forming(forming) if self.sessions.waits_for_form(session, &forming) => {
                self.sessions.put_back(id, Queued::Forming(forming))?;
                return Ok(Pumped::Nothing);
            }
            Head::Forming(forming) => Head::Launch(self.formed(turn, session, *forming)?),
            other => other,
        };
        let (work, expected) = match head {
            Head::Work(work) => match self.sessions.copy_turn(turn, (session, stream), id, work) {
                CopyTurn::Whole(work) => (work, None),
                CopyTurn::Piece { piece, rest } => {
                    let is_taken = self.sessions.submit_piece(turn, id, piece, rest)?;
                    return Ok(if is_taken { Pumped::Some } else { Pumped::Failed });
                }
                CopyTurn::Wait(work) => {
                    self.sessions.await_turn(id, Queued::Plain(work))?;
                    return Ok(Pumped::Nothing);
                }
            },
            Head::Closed | Head::Forming(_) => return Ok(Pumped::Nothing),
            Head::Launch(pending) => {
                let launch = pending.spec.id;
                let place = self.place(session, stream, id).ok_or(Bug::NoStream(stream))?;
                match self.start(turn, place, pending) {
                    Start::Submit(work) => (work, self.expected_time(turn, launch)),
                    Start::Failed => {
                        self.observer.over(place.application, turn.now(), 1);
                        return Ok(Pumped::Failed);
                    }
                    Start::Part(part) => return self.submit_part(turn, id, *part),
                    Start::Later(pending) => {
                        self.launches.forget_waiting(pending.ticket(id));
                        self.sessions.put_back(id, Queued::Launch(pending))?;
                        return Ok(Pumped::Nothing);
                    }
                    Start::Wait(pending) | Start::Demoted(pending) => {
                        self.launches.wait_for_turn(turn, place, &pending);
                        self.launches.look_after_rest(turn);
                        self.sessions.await_turn(id, Queued::Launch(pending))?;
                        return Ok(Pumped::Nothing);
                    }
                }
            }
        };
        let submitted = self.sessions.submit(turn, id, work, expected)?;
        self.submitted(turn, submitted)
    }

    /// Submits a part of the launch at the head of a queue, which stays there with the rest.
    fn submit_part(
        &mut self,
        turn: &mut Turn<'_>,
        head: OperationId,
        part: Part,
    ) -> Result<Pumped, Bug> {
        let Part { operation, launch, work, rest } = part;
        self.sessions.put_back(head, Queued::Launch(rest))?;
        let submitted = self.sessions.submit_part(turn, head, (operation, launch), work)?;
        self.submitted(turn, submitted)
    }

    fn submitted(&mut self, turn: &mut Turn<'_>, submitted: Submitted) -> Result<Pumped, Bug> {
        match submitted {
            Submitted::Accepted { front } => {
                if let Some(launch) = front {
                    let now = turn.now();
                    self.became_front(turn, launch, now)?;
                }
                Ok(Pumped::Some)
            }
            Submitted::Answered => Ok(Pumped::Some),
            Submitted::Failed => Ok(Pumped::Failed),
        }
    }

    fn place(&self, session: SessionId, stream: StreamId, main: OperationId) -> Option<Place> {
        let record = self.sessions.get(session)?;
        let (application, priority) = (record.application(), record.priority_of(stream)?);
        Some(Place { session, application, stream, main, priority })
    }

    // Starts.

    /// Starts a launch, if it may go and has room: in its form, or as it was written.
    fn start(&mut self, turn: &mut Turn<'_>, place: Place, mut pending: Box<Pending>) -> Start {
        let is_confined = pending.is_confined();
        let application = place.application;
        if self.is_next_slice_early(turn, place, &mut pending) {
            return Start::Later(pending);
        }
        if !is_confined {
            self.take_turn(turn, application);
        }
        let is_open = turn.device.phase() == Phase::Open;
        if !is_open || self.waits_for_loading(turn, &pending) {
            return Start::Wait(pending);
        }
        self.see_urgent(turn);
        let in_turn = Place { main: pending.ticket(place.main), ..place };
        if !self.launches.may_go(turn, in_turn, is_confined) {
            return Start::Wait(pending);
        }
        let (id, kind) = (pending.spec.id, pending.kind());
        let (outlook, now) = self.form_now(turn, place, &pending);
        match now {
            Now::AsQueued => {}
            Now::AsWritten(sms) => pending.set_as_written(sms),
            Now::Later => return Start::Later(pending),
        }
        let Some(window) = self.sessions.get(place.session).map(|session| session.range()) else {
            turn.bug(place.session, Bug::NoSession(place.session));
            return Start::Failed;
        };
        let start = match &pending.form {
            Form::Worker(_) | Form::Ticket => self.start_claiming(turn, (place, window), pending),
            Form::MachineCode | Form::Grouped(_) => {
                self.see_if_cramped(turn, application, None);
                let handover = &self.handover;
                self.launches.start_on_groups(turn, handover, (place, window), pending)
            }
            Form::Slice(_) => return self.start_slice(turn, (place, window), pending),
            Form::Original(original) if original.keeps_to.is_none() => {
                return self.start_original(turn, (place, window), pending);
            }
            Form::Original(_) => {
                let name = pending.spec.kernel.name.clone();
                let start = self.launches.start_original(turn, (place, window), pending, None);
                if let (Start::Submit(_), Some(account)) =
                    (&start, self.observer.account_mut(place.application))
                {
                    account.ran_as_written(&name, kind);
                }
                start
            }
        };
        match start {
            Start::Submit(work) => {
                if outlook.is_some() {
                    self.launches.expect(id, outlook);
                }
                self.starts(turn, place);
                Start::Submit(work)
            }
            // It has kept its application's demand up until now.
            Start::Failed | Start::Demoted(_) => {
                self.observer.demand_ended(turn, place.application, 1);
                start
            }
            Start::Wait(_) | Start::Later(_) | Start::Part(_) => start,
        }
    }

    /// An original, or a slice, wants to start: rests and turns that others ask for no more end.
    fn take_turn(&mut self, turn: &Turn<'_>, application: ApplicationId) {
        let (launches, observer) = (&mut self.launches, &self.observer);
        if launches.others_at_work(turn, application, observer.active()) == 0 {
            launches.end_rest(application);
        }
        if launches.others_at_work(turn, application, observer.at_work()) == 0 {
            launches.begin_turn_anew(application, turn.rest_clock());
        }
    }

    /// Notes which applications of priority `latency` are at work: all others yield to them.
    fn see_urgent(&mut self, turn: &Turn<'_>) {
        if turn.config().rests != Rests::ByDevice {
            return;
        }
        let grace = |id: ApplicationId| {
            let account = self.observer.account(id)?;
            Some((id, Some(account.lends_at()).filter(|_| !account.has_work())))
        };
        self.launches.see_urgent(self.sessions.urgent().filter_map(grace));
    }

    fn start_claiming(
        &mut self,
        turn: &mut Turn<'_>,
        (place, window): (Place, AddressRange),
        mut pending: Box<Pending>,
    ) -> Start {
        match self.launches.fit_clusters(turn, &self.handover, (place, &pending)) {
            Fit::Now => {}
            Fit::Later => return Start::Wait(pending),
            Fit::Never(reason) => {
                let name = &pending.spec.kernel.name;
                let text = format!("a launch of kernel `{name}` runs alone: {reason}");
                turn.log(LogLevel::Info, About::from(place.session).kernel(name), text);
                pending.set_alone(reason);
                self.launches.look_by(turn.now());
                return Start::Demoted(pending);
            }
        }
        let cta_time = self.observer.cta_time(&pending.spec);
        let of = place.lane();
        let kept_to = self.launches.kept_to(turn, &self.handover, of.application, of.stream);
        let is_kept = kept_to.is_some();
        let laid_out = self.launches.lay_out(&self.handover, of, is_kept, (&pending, cta_time));
        let Some(layout) = laid_out else {
            self.see_if_cramped(turn, place.application, Some(pending.spec.cta));
            return Start::Wait(pending);
        };
        let count_block = self.observer.begin_counting(turn, &mut pending);
        let (handover, place) = (&mut self.handover, (place, window));
        let known = (layout, cta_time, count_block);
        self.launches.start_claiming(turn, handover, place, pending, known)
    }

    pub(super) fn start_original(
        &mut self,
        turn: &mut Turn<'_>,
        (place, window): (Place, AddressRange),
        pending: Box<Pending>,
    ) -> Start {
        let mut barrier = None;
        if pending.needs_barrier_in_window() {
            barrier = self.sessions.allocate_zeroed(turn, place.session, &BARRIER);
            if barrier.is_none() {
                let name = &pending.spec.kernel.name;
                let text = format!("no memory for the barrier of kernel `{name}`");
                turn.fail(place.session, CudaResult::ERROR_OUT_OF_MEMORY, text);
                return Start::Failed;
            }
        }
        let start = self.launches.start_original(turn, (place, window), pending, barrier);
        match (&start, barrier) {
            (Start::Submit(_), _) => self.starts(turn, place),
            (_, Some(barrier)) => self.sessions.free_zeroed(turn, place.session, barrier),
            _ => {}
        }
        start
    }

    pub(super) fn starts(&mut self, turn: &mut Turn<'_>, place: Place) {
        let has_company = self.launches.has_company(place.application);
        self.observer.starts(turn, place.application, has_company);
    }

    /// The expected duration of a launch: of what may be ahead where nothing is known of workers.
    fn expected_time(&self, turn: &Turn<'_>, id: LaunchId) -> Option<Nanos> {
        let launch = self.launches.get(id)?;
        if launch.is_original() {
            return Some(launch.outlook()?.expected.time);
        }
        let (spec, workers) = self.launches.entered_workers(&self.handover, id)?;
        let Some(cta) = self.observer.cta_time(spec) else { return Some(turn.config().ahead) };
        Some(Nanos(spec.ctas().div_ceil(workers.max(1)).saturating_mul(cta.0)))
    }

    /// A launch may begin to run: its task size may be known better than when it was enqueued.
    /// `begun` is the device time of the end of what was before it.
    pub(super) fn became_front(
        &mut self,
        turn: &mut Turn<'_>,
        id: LaunchId,
        begun: Nanos,
    ) -> Result<(), Bug> {
        self.launches.became_front(turn, &self.handover, id, begun)?;
        let entered = self.launches.entered_workers(&self.handover, id);
        // Other forms have no tasks.
        let Some((spec, workers)) = entered else { return Ok(()) };
        let (left, cta_time) = (spec.ctas(), self.observer.cta_time(spec));
        let size = crate::observer::task_size(spec, left, left.min(workers), cta_time);
        self.launches.set_task(turn, id, size)
    }
}
