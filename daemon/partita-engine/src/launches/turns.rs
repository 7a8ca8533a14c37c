//! Turns of kernels that run alone on the device.
//!
//! While an original runs that is kept to no SMs, every other application waits. So an application
//! has a *turn*: from the start of such a launch until none of its is in flight. After a turn of
//! time T, with n other applications at work, the application's originals *rest* for T × n. All of
//! them then get the same share of time.
//!
//! A rest ends early when no other application is at work any more. A resting launch keeps nobody
//! waiting ([`super::admission`]). Rests end by timers, so there are none where no time passes on
//! an idle device ([`crate::EngineConfig::rests`]).

use super::Launches;
use super::waiting::Kind;
use partita_model::{ApplicationId, Nanos};
use std::collections::{BTreeMap, BTreeSet};

/// The turns and rests of all applications.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When the turns began that are under way.
    begun: BTreeMap<ApplicationId, Nanos>,
    /// When rests end.
    rests: BTreeMap<ApplicationId, Nanos>,
}

impl Turns {
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
    }
}

impl Launches {
    /// Other applications that are at work or have launches waiting or in flight.
    pub(crate) fn others_at_work(
        &self,
        application: ApplicationId,
        active: impl Iterator<Item = ApplicationId>,
    ) -> usize {
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
        application: ApplicationId,
        (took, others): (Nanos, usize),
        now: Nanos,
    ) {
        let rest = took.0.saturating_mul(others as u64);
        if rest > 0 {
            self.turns.rests.insert(application, Nanos(now.0.saturating_add(rest)));
        }
    }

    /// No other application is at work.
    pub(crate) fn end_rest(&mut self, application: ApplicationId) {
        self.turns.rests.remove(&application);
    }

    /// When a waiting original has rested enough; no later than `grace` from now, to see whether
    /// others are at work still.
    pub(crate) fn end_of_rest(&self, now: Nanos, grace: Nanos) -> Option<Nanos> {
        let resting = self.waiting.of_kind(Kind::Alone);
        let until = resting.filter_map(|application| self.turns.rests.get(&application));
        until.filter(|until| **until > now).min().map(|until| (*until).min(now + grace))
    }
}
