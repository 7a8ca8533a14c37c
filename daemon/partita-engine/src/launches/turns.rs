//! Turns of kernels that run alone on the device.
//!
//! While an original runs that is kept to no SMs, every other application waits. So an application
//! has a *turn*: from the start of such a launch until none of its is in flight. After a turn of
//! time T, with n other applications at work, the application's originals *rest* for T × n. All of
//! them then get the same share of time.
//!
//! A turn begins anew with each launch, or slice, that starts while no other application has work.
//! A rest ends early when no other application is at work any more. A resting launch keeps nobody
//! waiting ([`super::admission`]).
//!
//! The time is the device's, or the host's where the device has none ([`Rests`]). An emulated GPU
//! without time executes kernels on one thread of the host, so a turn takes as much of that
//! thread's time as others are to have. An application is then at work for [`HOST_GRACE`] after
//! its last launch has begun or ended.

use super::Launches;
use super::waiting::Kind;
use crate::Rests;
use crate::turn::{Turn, earliest};
use partita_model::{ApplicationId, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// Host time for which an application without launches counts as at work. A program on a busy host
/// may need this long between two launches.
const HOST_GRACE: Nanos = Nanos(100_000_000);

/// The turns and rests of all applications.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When the turns began that are under way.
    begun: BTreeMap<ApplicationId, Nanos>,
    /// When rests end.
    rests: BTreeMap<ApplicationId, Nanos>,
    /// When applications began or ended a launch last, where they rest by the host's time.
    seen: BTreeMap<ApplicationId, Nanos>,
    /// The host time at which launches that rest are looked at again.
    look_at: Option<Nanos>,
}

impl Turns {
    /// An application has begun or ended a launch.
    pub(super) fn saw(&mut self, turn: &Turn<'_>, application: ApplicationId) {
        if turn.config().rests == Rests::ByHost {
            self.seen.insert(application, turn.rest_clock());
        }
    }

    /// Applications that are at work by the host's time.
    fn seen_lately(&self, now: Nanos) -> impl Iterator<Item = ApplicationId> {
        let lately = self.seen.iter().filter(move |(_, at)| **at + HOST_GRACE > now);
        lately.map(|(application, _)| *application)
    }

    /// An original has started.
    pub(super) fn begin(&mut self, application: ApplicationId, now: Nanos) {
        self.begun.entry(application).or_insert(now);
    }

    /// The last original in flight is gone. The time of the turn.
    pub(super) fn end(&mut self, application: ApplicationId, now: Nanos) -> Option<Nanos> {
        self.begun.remove(&application).map(|begun| now.saturating_sub(begun))
    }

    /// Whether an application's originals rest.
    pub(super) fn is_resting(&self, application: ApplicationId, now: Nanos) -> bool {
        self.rests.get(&application).is_some_and(|until| *until > now)
    }

    pub(super) fn forget(&mut self, application: ApplicationId) {
        self.begun.remove(&application);
        self.rests.remove(&application);
        self.seen.remove(&application);
    }
}

impl Launches {
    /// Other applications that are at work or have launches waiting or in flight. `active`: those
    /// that are at work by device time.
    pub(crate) fn others_at_work(
        &self,
        turn: &Turn<'_>,
        application: ApplicationId,
        active: impl Iterator<Item = ApplicationId>,
    ) -> usize {
        let by_host = turn.config().rests == Rests::ByHost;
        let active = active.filter(|_| !by_host).chain(self.turns.seen_lately(turn.rest_clock()));
        let (confined, alone) =
            (self.waiting.of_kind(Kind::Confined), self.waiting.of_kind(Kind::Alone));
        let mut others: BTreeSet<ApplicationId> =
            active.chain(confined).chain(alone).chain(self.of.keys().copied()).collect();
        others.remove(&application);
        others.len()
    }

    /// The application's turn is over: it took the time `took`, and `others` applications were at
    /// work beside it.
    pub(crate) fn rest(
        &mut self,
        turn: &Turn<'_>,
        application: ApplicationId,
        (took, others): (Nanos, usize),
    ) {
        let rest = took.0.saturating_mul(others as u64);
        if rest > 0 {
            let until = turn.rest_clock().0.saturating_add(rest);
            self.turns.rests.insert(application, Nanos(until));
        }
    }

    /// No other application is at work.
    pub(crate) fn end_rest(&mut self, application: ApplicationId) {
        self.turns.rests.remove(&application);
    }

    /// When a waiting original has rested enough by device time ([`Launches::end_of_rest`]).
    pub(crate) fn end_of_device_rest(&self, turn: &Turn<'_>) -> Option<Nanos> {
        let by_device = turn.config().rests == Rests::ByDevice;
        by_device.then(|| self.end_of_rest(turn.now(), turn.config().idle_grace)).flatten()
    }

    /// Notes that a launch waits. The engine looks at resting launches when the first rest ends.
    pub(crate) fn look_after_rest(&mut self, turn: &Turn<'_>) {
        if let Some(at) = self.end_of_device_rest(turn) {
            self.look_by(at);
        } else if turn.config().rests == Rests::ByHost
            && let Some(at) = self.end_of_rest(turn.rest_clock(), HOST_GRACE)
        {
            self.turns.look_at = earliest(self.turns.look_at, at);
        }
    }

    /// The host time at which launches that rest are to be looked at.
    pub(crate) fn rest_ends(&self) -> Option<Nanos> {
        self.turns.look_at
    }

    /// Whether launches that rest are to be looked at now, by host time.
    pub(crate) fn has_rested(&mut self, now: Nanos) -> bool {
        self.turns.look_at.take_if(|at| *at <= now).is_some()
    }

    /// No other application has work, so the time before `now` was taken from nobody.
    pub(crate) fn begin_turn_anew(&mut self, application: ApplicationId, now: Nanos) {
        self.turns.begun.entry(application).and_modify(|begun| *begun = now);
    }

    /// When a waiting original has rested enough; no later than `grace` from now, to see whether
    /// others are at work still.
    fn end_of_rest(&self, now: Nanos, grace: Nanos) -> Option<Nanos> {
        let resting = self.waiting.of_kind(Kind::Alone);
        let until = resting.filter_map(|application| self.turns.rests.get(&application));
        until.filter(|until| **until > now).min().map(|until| (*until).min(now + grace))
    }
}
