//! The journal: what has happened to applications, for readers of events. It is bounded, and
//! forgets the oldest events first.
//!
//! Nothing is written at a launch. An event costs one entry of a ring; sentences are made when
//! somebody asks.

use partita_model::{ApplicationId, EventBatch, GpuEvent, Happening, Nanos, TenantId};
use std::collections::{BTreeMap, VecDeque};

/// Events that are remembered.
const CAPACITY: usize = 4096;

/// The journal.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    entries: VecDeque<GpuEvent>,
    /// The number of the last event.
    last: u64,
    tenants: BTreeMap<ApplicationId, TenantId>,
}

impl Journal {
    /// The number of the last event.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Remembers whose an application is, until it has left.
    pub(crate) fn enters(&mut self, application: ApplicationId, tenant: TenantId) -> bool {
        self.tenants.insert(application, tenant).is_none()
    }

    pub(crate) fn push(&mut self, time: Nanos, what: Happening) {
        self.last += 1;
        let application = what.application();
        let tenant = application.and_then(|application| self.tenants.get(&application).copied());
        if let Happening::ApplicationLeft { application } = &what {
            self.tenants.remove(application);
        }
        if self.entries.len() == CAPACITY {
            self.entries.pop_front();
        }
        self.entries.push_back(GpuEvent { sequence: self.last, time, tenant, what });
    }

    /// Up to `most` events after the one with this number.
    pub(crate) fn since(&self, after: u64, most: usize) -> EventBatch {
        let first = self.entries.front().map_or(self.last + 1, |event| event.sequence);
        let lost = first.saturating_sub(after.saturating_add(1));
        let skipped = usize::try_from(after.saturating_add(1).saturating_sub(first));
        let mut rest = self.entries.iter().skip(skipped.unwrap_or(usize::MAX));
        let events = rest.by_ref().take(most).cloned().collect();
        EventBatch { events, lost, more: rest.next().is_some(), last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ApplicationId = ApplicationId(1);

    #[test]
    fn a_reader_gets_what_follows_and_is_told_what_is_forgotten() {
        let mut journal = Journal::default();
        assert_eq!(journal.since(0, 10), EventBatch::default());
        assert!(journal.enters(A, TenantId(7)) && !journal.enters(A, TenantId(7)));
        for _ in 0..3 {
            journal.push(Nanos(1), Happening::ApplicationLeft { application: A });
        }
        let batch = journal.since(1, 1);
        assert_eq!((batch.events[0].sequence, batch.lost, batch.more), (2, 0, true));
        assert_eq!(journal.since(0, 1).events[0].tenant, Some(TenantId(7)));
        assert_eq!(journal.since(2, 1).events[0].tenant, None, "it has left before");
        let nothing = journal.since(3, 10);
        assert_eq!((nothing.events.len(), nothing.lost, nothing.more), (0, 0, false));
        let nothing = journal.since(u64::MAX, 10);
        assert_eq!((nothing.events.len(), nothing.last), (0, 3));
        for _ in 0..CAPACITY {
            journal.push(Nanos(2), Happening::Restarted { reason: None });
        }
        let batch = journal.since(1, CAPACITY * 2);
        assert_eq!((batch.events.len(), batch.lost, batch.more), (CAPACITY, 2, false));
    }
}
