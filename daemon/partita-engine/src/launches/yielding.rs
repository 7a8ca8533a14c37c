//! Kernels that run alone yield to applications of priority `latency`.
//!
//! A kernel that runs alone holds the whole device, and nothing ends it early. So while an
//! application of priority `latency` is *at work*, launches that run alone of other applications
//! are *held back*. Nobody waits for a launch that is held back ([`super::admission`]). An
//! application is at work while it has launches, and for its grace after them.
//!
//! Nobody starves: an application that has been held back for [`SHARE`] times the time of its last
//! turn, and for [`PATIENCE`] at least, has one turn more. A `latency` application therefore waits
//! for launches that run alone for about 1 % of the time in which it has work. One that comes while
//! such a launch runs waits for its end: two slices ([`super::slice`]) or one launch.
//!
//! A launch may be held back on an idle device. Applications yield only where the engine's caller
//! then lets time pass ([`crate::Rests::ByDevice`]).
//!
//! This page decides who yields. The order of all other launches is [`super::admission`]'s.

use super::Launches;
use super::waiting::Kind;
use partita_model::{ApplicationId, Nanos};
use std::collections::BTreeMap;

/// The shortest time for which an application is held back.
const PATIENCE: Nanos = Nanos(10_000_000);
/// The time for which an application is held back, as a multiple of its last turn.
const SHARE: u64 = 99;

/// The applications of priority `latency` that are at work, and those that are held back.
#[derive(Debug, Default)]
pub(super) struct Yielding {
    /// Applications of priority `latency`, with the end of their grace where they have no launches.
    urgent: BTreeMap<ApplicationId, Option<Nanos>>,
    /// Since when applications are held back.
    held: BTreeMap<ApplicationId, Nanos>,
    /// The time of each application's last turn.
    turns: BTreeMap<ApplicationId, Nanos>,
}

impl Yielding {
    /// Whether launches of an application that run alone wait for urgent ones.
    pub(super) fn holds(&self, application: ApplicationId, now: Nanos) -> bool {
        self.end(application, now).is_some_and(|end| end > now)
    }

    /// When the last urgent application's grace ends, if nothing else is launched, where the
    /// application yields to any.
    fn urgent_until(&self, application: ApplicationId) -> Option<Nanos> {
        if self.urgent.contains_key(&application) {
            return None;
        }
        self.urgent.values().map(|grace| grace.unwrap_or(Nanos(u64::MAX))).max()
    }

    /// When the application is held back no longer, if nothing else is launched.
    fn end(&self, application: ApplicationId, now: Nanos) -> Option<Nanos> {
        let free = self.urgent_until(application)?;
        let since = self.held.get(&application).copied().unwrap_or(now);
        let turn = self.turns.get(&application).copied().unwrap_or_default();
        let patience = Nanos(turn.0.saturating_mul(SHARE)).max(PATIENCE);
        Some(free.min(Nanos(since.0.saturating_add(patience.0))))
    }

    /// A launch of an application that runs alone has started.
    pub(super) fn started(&mut self, application: ApplicationId) {
        self.held.remove(&application);
    }

    /// The application's launches that ran alone took so long.
    pub(super) fn took(&mut self, application: ApplicationId, time: Nanos) {
        self.turns.insert(application, time);
    }

    pub(super) fn forget(&mut self, application: ApplicationId) {
        self.urgent.remove(&application);
        self.held.remove(&application);
        self.turns.remove(&application);
    }
}

impl Launches {
    /// The applications of priority `latency`, and until when each is at work by its grace if it
    /// has no launches that keep to its partition (`None`: it has some).
    pub(crate) fn see_urgent(
        &mut self,
        applications: impl Iterator<Item = (ApplicationId, Option<Nanos>)>,
    ) {
        let works = |id: &ApplicationId| {
            self.of.contains_key(id) || self.waiting.of_kind(Kind::Alone).any(|other| other == *id)
        };
        let urgent = applications.map(|(id, grace)| (id, grace.filter(|_| !works(&id)))).collect();
        self.yielding.urgent = urgent;
    }

    /// A launch that runs alone waits. Where urgent ones hold it back, the engine looks again when
    /// they do not.
    pub(super) fn look_after_urgent(&mut self, application: ApplicationId, now: Nanos) {
        if self.yielding.urgent_until(application).is_some_and(|until| until > now) {
            // It counts from the first time, also where it then waits for launches in flight.
            self.yielding.held.entry(application).or_insert(now);
        } else {
            self.yielding.started(application);
        }
        if let Some(end) = self.yielding.end(application, now).filter(|end| *end > now) {
            self.look_by(end);
        }
    }

    /// When the next launch is held back no longer.
    pub(crate) fn end_of_yielding(&self, now: Nanos) -> Option<Nanos> {
        let waiting = self.waiting.of_kind(Kind::Alone);
        waiting.filter_map(|id| self.yielding.end(id, now)).filter(|end| *end > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URGENT: ApplicationId = ApplicationId(1);
    const OTHER: ApplicationId = ApplicationId(2);

    fn holds(yielding: &Yielding, micros: u64) -> bool {
        yielding.holds(OTHER, Nanos(micros * 1_000))
    }

    #[test]
    fn others_are_held_back_until_the_grace_ends() {
        let mut yielding = Yielding::default();
        assert!(!holds(&yielding, 0));
        yielding.urgent.insert(URGENT, None);
        assert!(holds(&yielding, 0) && !yielding.holds(URGENT, Nanos(0)));
        yielding.urgent.insert(URGENT, Some(Nanos(500_000)));
        assert!(holds(&yielding, 499) && !holds(&yielding, 500));
    }

    #[test]
    fn nobody_is_held_back_for_ever() {
        let mut yielding = Yielding::default();
        yielding.urgent.insert(URGENT, None);
        yielding.held.insert(OTHER, Nanos(1_000_000));
        assert!(holds(&yielding, 10_999) && !holds(&yielding, 11_000));
        // A long turn is paid for by a long wait.
        yielding.took(OTHER, Nanos(2_000_000));
        assert!(holds(&yielding, 198_999) && !holds(&yielding, 199_000));
        yielding.started(OTHER);
        assert!(holds(&yielding, 500_000), "it begins anew");
    }
}
