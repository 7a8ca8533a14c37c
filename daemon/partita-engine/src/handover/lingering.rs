//! Workers that linger: they are on SMs that have gone to others.
//!
//! An application comes in by SM when [`super::Handover::advance`] gives the SM to its next owner
//! although workers are there. It goes out when these are gone, or when it has the SM again.

use partita_model::{ApplicationId, Nanos, SmId, SmSet};
use std::collections::BTreeMap;

/// Where workers linger, and when their application lost the SM.
#[derive(Debug, Default)]
pub(crate) struct Lingering(BTreeMap<(ApplicationId, SmId), Nanos>);

impl Lingering {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn begin(&mut self, id: ApplicationId, sm: SmId, lost: Nanos) {
        self.0.insert((id, sm), lost);
    }

    pub(super) fn end(&mut self, id: ApplicationId, sm: SmId) {
        self.0.remove(&(id, sm));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// When an application lost an SM on which its workers linger.
    pub(super) fn since(&self, id: ApplicationId, sm: SmId) -> Option<Nanos> {
        self.0.get(&(id, sm)).copied()
    }

    /// Whether anybody lingers on an SM.
    pub(super) fn has(&self, sm: SmId) -> bool {
        self.0.keys().any(|(_, other)| *other == sm)
    }

    /// The SMs on which workers of an application linger.
    pub(crate) fn of(&self, id: ApplicationId) -> SmSet {
        let own = self.0.range((id, SmId(0))..=(id, SmId(u16::MAX)));
        own.map(|((_, sm), _)| *sm).collect()
    }

    /// The SMs on which workers of any application linger.
    pub(crate) fn sms(&self) -> SmSet {
        self.0.keys().map(|(_, sm)| *sm).collect()
    }

    /// The applications whose workers linger, with the SMs.
    pub(crate) fn all(&self) -> BTreeMap<ApplicationId, SmSet> {
        let mut all: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        for (id, sm) in self.0.keys() {
            all.entry(*id).or_default().insert(*sm);
        }
        all
    }

    /// Forgets workers that are gone. `is_on` says whether workers of an application may be on an
    /// SM.
    pub(crate) fn see_off(&mut self, is_on: impl Fn(ApplicationId, SmId) -> bool) {
        self.0.retain(|(id, sm), _| is_on(*id, *sm));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_known_by_application_and_sm() {
        let mut lingering = Lingering::default();
        let [a, b] = [1, 2].map(ApplicationId);
        for (id, sm) in [(a, 3), (a, 5), (b, 5)] {
            lingering.begin(id, SmId(sm), Nanos(u64::from(sm)));
        }
        assert_eq!(lingering.of(a).to_string(), "3,5");
        assert_eq!(lingering.of(b).to_string(), "5");
        assert_eq!(lingering.sms().to_string(), "3,5");
        assert_eq!(lingering.all().into_keys().collect::<Vec<_>>(), [a, b]);
        assert_eq!(
            (lingering.since(a, SmId(3)), lingering.since(b, SmId(3))),
            (Some(Nanos(3)), None)
        );
        lingering.end(a, SmId(5));
        assert!(lingering.has(SmId(5)));
        lingering.see_off(|id, _| id == a);
        assert_eq!((lingering.has(SmId(5)), lingering.is_empty()), (false, false));
        assert_eq!(lingering.sms().to_string(), "3");
        lingering.clear();
        assert!(lingering.is_empty());
    }
}
