//! Steps of launches that run as they were written.
//!
//! A gate lets an application leave an SM between two tasks. A launch that is over as soon as a
//! task needs no gate. So a launch starts in its original form where all of this holds:
//!
//! - its module has the original beside the form, and nothing forbids that ([`Pending::is_free`]);
//! - a newcomer waits no longer for the launch and all of its application's launches in flight
//!   than it may, by what is expected of them ([`crate::observer::Expected::is_within`]);
//! - the launch keeps to its application's SMs.
//!
//! The last holds in two cases.
//!
//! - *Alone*: the application holds every SM, none is stalled or without power, and no other
//!   application has a launch queued, waiting or in flight.
//! - *Beside others* ([`Originals::Short`]): the device keeps the launch to the application's SMs
//!   ([`Launches::kept_as_written`](crate::launches::Launches::kept_as_written)).
//!
//! Borders do not move to the launch's SMs before it is over ([`crate::handover`]).
//!
//! An application that is the only one connected may start longer launches ([`LONG`]). A newcomer's
//! modules are then given to the device when these launches are over, but no later than [`LONG`]
//! after they were prepared. A real GPU loads no module before either.

use super::Machines;
use crate::handover::ledger::Usage;
use crate::launches::{Checker, Launch, Outlook, Pending, Place};
use crate::observer::{LONG, SHORT, Took};
use crate::turn::Turn;
use crate::{ModuleHandle, PrepareError, PreparedModule};
use partita_model::{
    ApplicationId, LaunchId, Nanos, Originals, SessionId, Sharing, SmSet, Timekeeping,
};

/// The shortest launch that waits for the one before it. The device waits for the host then, which
/// takes about 10 µs.
const WORTH_A_PAUSE: Nanos = Nanos(1_000_000);

/// The form in which a launch of workers or tickets starts now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Now {
    /// As it was queued.
    AsQueued,
    /// As it was written, on these SMs.
    AsWritten(SmSet),
    /// As it was written, once one of the launches in flight is over.
    Later,
}

impl Machines {
    /// What is expected of a launch of workers or tickets, and the form in which it starts.
    pub(super) fn form_now(
        &mut self,
        turn: &mut Turn<'_>,
        place: Place,
        pending: &Pending,
    ) -> (Option<Outlook>, Now) {
        if turn.config().originals == Originals::Never || !pending.is_free() {
            return (None, Now::AsQueued);
        }
        let is_alone = self.has_gpu(turn, place.application);
        let sms = match is_alone {
            true => Some(self.handover.ledger().sms()),
            false => self.kept_beside_others(turn, place),
        };
        let holds = |sms: &SmSet| self.handover.holds_cluster(turn.device, &pending.spec, sms);
        let sms = sms.filter(|sms| !pending.claims_clusters() || holds(sms));
        let on = sms.unwrap_or_else(|| self.handover.ledger().sms());
        let places = self.places(on, pending.spec.cta);
        let Some((expected, is_allowed)) = self.observer.expected(&pending.spec, places) else {
            return (None, Now::AsQueued);
        };
        let limit = if is_alone { self.limit(place.application) } else { SHORT };
        let outlook = Some(Outlook { expected, limit });
        let Some(sms) = sms.filter(|_| is_allowed && expected.is_within(limit)) else {
            return (outlook, Now::AsQueued);
        };
        if !self.fits(turn, pending) {
            return (outlook, Now::AsQueued);
        }
        let ahead = self.launches.expected_of(place.application, turn.now());
        if ahead.is_some_and(|ahead| ahead.and(expected).is_within(limit)) {
            return (outlook, Now::AsWritten(sms));
        }
        // The end of a launch ahead lets the stream go on.
        let may_pause = match self.launches.on_stream(place) {
            0 => false,
            1 => {
                let is_short = ahead.is_some_and(|ahead| ahead.is_within(limit));
                is_short && expected.time >= WORTH_A_PAUSE
            }
            _ => true,
        };
        (outlook, if may_pause { Now::Later } else { Now::AsQueued })
    }

    /// The SMs to which the device keeps a launch beside other applications.
    fn kept_beside_others(&mut self, turn: &mut Turn<'_>, place: Place) -> Option<SmSet> {
        let may = turn.config().originals == Originals::Short
            // Without time nobody knows what is short.
            && turn.facts().timekeeping != Timekeeping::Off;
        if !may {
            return None;
        }
        self.launches.kept_as_written(turn, &self.handover, place)
    }

    /// The time for which a newcomer may wait, in addition to that of the longest CTA.
    fn limit(&self, application: ApplicationId) -> Nanos {
        let is_only = self.sessions.applications().all(|(id, _)| id == application);
        if is_only { LONG } else { SHORT }
    }

    /// Whether an application holds every SM, and no other has work.
    fn has_gpu(&self, turn: &Turn<'_>, application: ApplicationId) -> bool {
        turn.common.sharing == Sharing::Spatial
            // Without time nobody knows what is short.
            && turn.facts().timekeeping != Timekeeping::Off
            && self.handover.has_all(application)
            && self.observer.at_work().all(|other| other == application)
            && !self.launches.has_company(application)
            && !self.launches.is_other_waiting(application)
    }

    /// Whether the original can be launched with this block.
    fn fits(&self, turn: &Turn<'_>, pending: &Pending) -> bool {
        let spec = &pending.spec;
        let checker = Checker { facts: turn.facts(), ledger: self.handover.ledger() };
        let facts = spec.kernel.fallback_facts.as_ref().and_then(|facts| facts.as_ref().ok());
        facts.is_some_and(|facts| {
            checker.check_resources(&spec.kernel, facts, spec.block, spec.dynamic_shared).is_ok()
        })
    }

    /// Places for CTAs of this size on some SMs.
    pub(super) fn places(&self, sms: SmSet, cta: Usage) -> u64 {
        u64::from(self.handover.ledger().occupancy(cta)) * u64::from(sms.len())
    }

    /// A launch that had its SMs from its beginning to its end tells how long such launches take.
    pub(super) fn learn_time(&mut self, turn: &mut Turn<'_>, id: LaunchId, end: Nanos) {
        // Nobody asks for the time.
        if turn.config().originals == Originals::Never {
            return;
        }
        let Some(launch) = self.launches.get(id) else { return };
        let application = launch.place().application;
        let Some(sms) = launch.had(self.handover.granted(application)) else { return };
        if !self.handover.lingering().sms().is_disjoint(&sms) {
            return;
        }
        let Some(time) = launch.time_whole(end) else { return };
        let (spec, is_original) = (launch.spec(), launch.is_original());
        let places = self.places(sms, spec.cta);
        // What holds now may not have held when the launch began.
        let began = launch.outlook().filter(|_| is_original).map(|outlook| outlook.limit);
        let limit = began.unwrap_or_else(|| self.limit(application));
        self.observer.saw_launch(turn, spec, Took { time, is_original, limit }, places);
    }

    // Newcomers.

    /// Takes a module that the shell has prepared. A newcomer's waits for launches that began when
    /// nobody else was connected.
    pub(crate) fn prepared(
        &mut self,
        turn: &mut Turn<'_>,
        session: SessionId,
        module: ModuleHandle,
        result: Result<PreparedModule, PrepareError>,
    ) {
        let application = self.sessions.get(session).map(|session| session.application());
        if application.is_some_and(|id| self.launches.is_lent_to_another(id)) {
            self.sessions.hold_module((session, module), result, turn.now() + LONG);
        } else {
            self.sessions.prepared(turn, session, module, result);
        }
    }

    /// Goes on with the modules of newcomers that need not wait any longer.
    pub(super) fn let_modules_in(&mut self, turn: &mut Turn<'_>) {
        while let Some((session, module)) = self.sessions.held_module(|session, until| {
            let is_lent = self.launches.is_lent_to_another(session.application());
            !is_lent || until <= turn.now()
        }) {
            self.sessions.let_module_in(turn, (session, module));
        }
    }
}

impl Launch {
    /// Device time from the launch's turn in its stream to its end, where all CTAs of the program's
    /// launch ran in it.
    pub(super) fn time_whole(&self, end: Nanos) -> Option<Nanos> {
        let spec = self.spec();
        let is_whole = spec.first == 0 && spec.is_last();
        Some(end.saturating_sub(self.begun()?)).filter(|_| is_whole)
    }
}
