//! Steps of operations, launches and sessions that end.

use super::Machines;
use crate::effects::Effect;
use crate::launches::code_of;
use crate::sessions::{Call, Retired, Then};
use crate::turn::{Bug, Turn};
use crate::{About, Action, CloseReason, LogLevel, Rests};
use partita_device::{Fault, Outcome};
use partita_model::{
    ApplicationId, Console, CudaResult, Happening, LaunchId, Nanos, OperationId, SessionId,
};

impl Machines {
    /// The device is done with an operation. Its session fails first, where the operation has.
    pub(super) fn done(
        &mut self,
        turn: &mut Turn<'_>,
        id: OperationId,
        time: Nanos,
        outcome: Outcome,
    ) {
        // A lost device may tell the ends of what it has lost.
        let Some((session, _, then)) = self.sessions.operation(id) else { return };
        match outcome {
            // No failure has to go first.
            Outcome::Complete => return self.ended_of(turn, (id, session, then), time, true),
            Outcome::Cancelled => {
                let text = "work was cancelled".to_owned();
                turn.fail(session, CudaResult::ERROR_LAUNCH_FAILED, text);
            }
            Outcome::Fault(mut fault) => {
                self.launches.in_program_terms(self.sessions.launch_of(id), &mut fault);
                print_assertion(turn, session, &fault);
                turn.fail(session, code_of(fault.kind), fault.to_string());
            }
        }
        turn.push(Effect::Failed { operation: id, time });
    }

    /// The second step of an operation's end: after its session has failed, where it has.
    pub(super) fn ended(&mut self, turn: &mut Turn<'_>, id: OperationId, time: Nanos, ok: bool) {
        // The device may have been lost since.
        let Some((session, _, then)) = self.sessions.operation(id) else { return };
        self.ended_of(turn, (id, session, then), time, ok);
    }

    /// An operation has ended; a failure of its session has gone before.
    fn ended_of(
        &mut self,
        turn: &mut Turn<'_>,
        (id, session, then): (OperationId, SessionId, Then),
        time: Nanos,
        ok: bool,
    ) {
        let result = match then {
            Then::Nothing => Ok(()),
            Then::Reply { sequence, awaited } => {
                self.sessions.reply_done(turn, Call { session, sequence }, ok);
                if awaited {
                    self.sessions.host_waited(turn, session);
                }
                Ok(())
            }
            Then::Record { event, sequence } => {
                let call = Call { session, sequence };
                self.sessions.event_reached(turn, call, event, time);
                Ok(())
            }
            Then::Main(launch) => self.main_done(turn, (session, launch), (id, time), ok),
            Then::Helper(launch) => self.helper_done(turn, launch, id),
        };
        if let Err(bug) = result {
            turn.bug(session, bug);
        }
        if turn.has_effects() {
            turn.push(Effect::Retire { operation: id, time });
        } else {
            self.retire(turn, id, time);
        }
    }

    /// A launch's main grid is done.
    fn main_done(
        &mut self,
        turn: &mut Turn<'_>,
        (session, id): (SessionId, LaunchId),
        (operation, time): (OperationId, Nanos),
        ok: bool,
    ) -> Result<(), Bug> {
        self.count_grid(turn, id, operation)?;
        let is_open = self.sessions.get(session).is_some_and(|session| session.is_open());
        let over = self.launches.main_done(turn, id, ok, is_open)?;
        let launch = self.launches.get(id).ok_or(Bug::NoLaunch(id))?;
        let (application, spec) = (over.application, launch.spec());
        let done = (over.before, over.after);
        let ctas_per_sm = self.handover.ledger().occupancy(spec.cta);
        self.observer.completed(turn.now(), (application, spec), ctas_per_sm, done);
        if over.part_complete
            && let Some(bound) = self.launches.bound_of(turn.now(), id)
        {
            self.observer.bound(turn, spec, bound);
        }
        if let Some(took) = launch.slice_time(time).filter(|_| over.part_complete) {
            let round = self.places(self.handover.ledger().sms(), spec.cta);
            self.observer.saw_slice(turn, spec, took, round);
        }
        // A slice that is not the last leaves its launch to run.
        let is_last = over.is_confined || spec.is_last();
        let alone = launch.begun().filter(|_| !over.is_confined);
        if over.complete {
            self.meter(turn, id, time);
            self.learn_time(turn, id, time);
            self.learn_alone_whole(turn, id, time);
        }
        let account = self.observer.account_mut(application);
        let account = account.ok_or(Bug::NoApplication(application))?;
        if over.complete {
            account.launch_completed();
        }
        if let Some(begun) = alone {
            account.took_alone(time.saturating_sub(begun));
        }
        if over.is_confined {
            self.observer.demand_ended(turn, application, 1);
        }
        if is_last {
            self.observer.over(application, turn.now(), 1);
        }
        self.finish(turn, id)
    }

    /// One of a launch's helper grids is done.
    fn helper_done(
        &mut self,
        turn: &mut Turn<'_>,
        id: LaunchId,
        operation: OperationId,
    ) -> Result<(), Bug> {
        self.count_grid(turn, id, operation)?;
        self.launches.helper_done(turn, id, operation)?;
        self.finish(turn, id)
    }

    fn count_grid(
        &mut self,
        turn: &Turn<'_>,
        id: LaunchId,
        operation: OperationId,
    ) -> Result<(), Bug> {
        let launch = self.launches.get(id).ok_or(Bug::NoLaunch(id))?;
        let counting = turn.device.counting();
        let counters = counting.and_then(|counting| counting.grid_counters(operation));
        self.observer.count_grid(launch.place().application, counters);
        Ok(())
    }

    /// Strikes a launch out when none of its grids is left. The session is released later: until
    /// then the launch counts for its application.
    fn finish(&mut self, turn: &mut Turn<'_>, id: LaunchId) -> Result<(), Bug> {
        let gone = self.launches.finish(turn, &mut self.handover, id)?;
        let Some(gone) = gone else { return Ok(()) };
        if let Some(took) = gone.turn.filter(|_| turn.config().rests != Rests::Never) {
            let application = gone.launch.place().application;
            let others = self.launches.others_at_work(turn, application, self.observer.active());
            self.launches.rest(turn, application, (took, others));
        }
        self.let_modules_in(turn);
        if let Some((session, barrier)) = gone.barrier() {
            self.sessions.free_zeroed(turn, session, barrier);
        }
        if let Some((count, complete)) = gone.count() {
            let launch = (gone.launch.place().application, gone.launch.spec());
            self.observer.part_done(turn, launch, count, complete);
        }
        Ok(())
    }

    /// Strikes an operation out of its stream and goes on with what waited for it.
    pub(super) fn retire(&mut self, turn: &mut Turn<'_>, id: OperationId, time: Nanos) {
        let Some(Retired { front, copy }) = self.sessions.retire(turn, id, time) else { return };
        if let Some(copy) = copy {
            self.trace.push_copy(copy);
        }
        if let Some(launch) = front {
            let begun = self.became_front(turn, launch, time);
            turn.sound(begun);
        }
    }

    // Sessions.

    /// Makes an error stick to a session and cancels its work. A session that is gone, closing or
    /// failed stays as it is.
    pub(super) fn fail(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        code: CudaResult,
        text: String,
    ) {
        if self.sessions.fail(turn, session, code, text.clone()) {
            self.tell_fault(turn, session, code, text);
            self.cancel_work(turn, session);
            turn.push(Effect::PumpWaiting);
        }
    }

    /// Logs a bug of the engine, and ends the session that it concerns.
    pub(super) fn report_bug(&mut self, turn: &mut Turn<'_>, session: Option<SessionId>, bug: Bug) {
        let text = format!("a bug in Partita, not in the program: {bug}; please report it");
        turn.log_error(session, text.clone());
        if let Some(session) = session {
            self.end(turn, session, text);
        }
    }

    /// Ends a session that broke the protocol, or of which the engine has lost track.
    pub(super) fn end(&mut self, turn: &mut Turn<'_>, session: SessionId, reason: String) {
        if self.sessions.can_end(session) {
            turn.log(LogLevel::Warning, Some(session), format!("{session} is ended: {reason}"));
            turn.act(Action::EndSession { session, reason });
            self.close(turn, session, CloseReason::Goodbye);
        }
    }

    /// Begins to close a session and cancels its work. A session that is gone or closing stays as
    /// it is.
    pub(crate) fn close(&mut self, turn: &mut Turn<'_>, session: SessionId, reason: CloseReason) {
        if self.sessions.close(turn, session, reason) {
            self.cancel_work(turn, session);
            turn.push(Effect::Release(session));
            turn.push(Effect::PumpWaiting);
        }
    }

    /// Drops what a session has queued and cancels its grids.
    fn cancel_work(&mut self, turn: &mut Turn<'_>, session: SessionId) {
        // The session may have gone.
        let Some(dropped) = self.sessions.drop_queued(turn, session) else { return };
        self.launches.forget_queued(session);
        self.observer.demand_ended(turn, dropped.application, dropped.confined);
        self.observer.over(dropped.application, turn.now(), dropped.launches);
        self.launches.cancel(turn, session);
    }

    /// All sessions of an application are closing.
    pub(super) fn leave(&mut self, turn: &mut Turn<'_>, id: ApplicationId) {
        self.observer.set_active(id, false);
        if self.handover.is_pinned(id) {
            self.handover.unpin();
            let text = format!("{id} leaves: its pinned plan ends, the policy takes over");
            turn.log(LogLevel::Info, id, text);
        }
        turn.push(Effect::Replan);
    }

    /// Gives everything of a closing session back once nothing of it is in flight.
    pub(super) fn release_if_done(&mut self, turn: &mut Turn<'_>, id: SessionId) {
        let launches = &mut self.launches;
        let side_streams = || launches.forget_session(id);
        // Something of it is in flight, or it is not closing.
        let application = self.sessions.get(id).map(|session| session.application());
        let released = self.sessions.release_if_done(turn, id, side_streams);
        let Some(released) = released else { return };
        if let Some(application) = application {
            turn.happened(Happening::SessionLeft { session: id, application });
        }
        self.observer.forget_session(id);
        if let Some(application) = released.application {
            turn.happened(Happening::ApplicationLeft { application });
            turn.common.meter.application_left(application);
            self.observer.forget_application(application);
            self.launches.forget_application(application);
        }
    }

    /// The device is gone, and with it all work of everyone.
    pub(super) fn device_lost(&mut self, turn: &mut Turn<'_>, reason: String) {
        if self.sessions.is_lost() {
            return;
        }
        let (text, now) = (format!("the device was lost: {reason}"), turn.now());
        turn.common.meter.device_lost(now);
        self.sessions.device_lost(turn, &text);
        self.launches.device_lost();
        self.handover.device_lost(turn.facts());
        self.observer.device_lost(|id| self.sessions.application(id).is_some());
        self.let_modules_in(turn);
        turn.log_error(About::default(), text);
        turn.act(Action::DeviceLost { reason });
    }
}

/// The program is told of a failed assertion on its standard error, as CUDA does it.
fn print_assertion(turn: &mut Turn<'_>, session: SessionId, fault: &Fault) {
    if let (Some(assertion), Some(position)) = (&fault.assertion, fault.position) {
        let text = assertion.message(position.cta).into_bytes();
        turn.act(Action::Output { session, console: Console::Error, text });
    }
}
