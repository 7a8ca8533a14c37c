//! The trace: where CTAs were, and when borders moved. It is bounded, and drops the oldest entries
//! first.

use partita_model::{ApplicationId, Nanos, TenantId, Timekeeping, TraceEntry, TraceReport};
use std::collections::{BTreeMap, VecDeque};

/// Applications whose tenants are remembered, also when they are gone.
const OWNERS: usize = 1 << 14;

/// The trace.
#[derive(Debug)]
pub(crate) struct Trace {
    entries: VecDeque<TraceEntry>,
    capacity: usize,
    dropped: u64,
    /// The tenants of the latest applications.
    owners: BTreeMap<ApplicationId, TenantId>,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Self {
        Trace { entries: VecDeque::new(), capacity, dropped: 0, owners: BTreeMap::new() }
    }

    /// Remembers whose an application is.
    pub(crate) fn enters(&mut self, application: ApplicationId, tenant: TenantId) {
        self.owners.insert(application, tenant);
        if self.owners.len() > OWNERS {
            self.owners.pop_first();
        }
    }

    pub(crate) fn push(&mut self, entry: TraceEntry) {
        if self.entries.len() >= self.capacity {
            self.dropped += 1;
            if self.entries.pop_front().is_none() {
                return;
            }
        }
        self.entries.push_back(entry);
    }

    pub(crate) fn report(&self, timekeeping: Timekeeping, since: Option<Nanos>) -> TraceReport {
        let since = since.unwrap_or_default();
        let entries = self.entries.iter().filter(|entry| time(entry) >= since).cloned().collect();
        TraceReport { timekeeping, entries, dropped: self.dropped }
    }
}

impl Trace {
    /// The entries about one tenant's applications.
    pub(crate) fn report_of(&self, timekeeping: Timekeeping, tenant: TenantId) -> TraceReport {
        let own = |entry: &&TraceEntry| self.owners.get(&application(entry)) == Some(&tenant);
        let entries = self.entries.iter().filter(own).cloned().collect();
        TraceReport { timekeeping, entries, dropped: self.dropped }
    }
}

fn application(entry: &TraceEntry) -> ApplicationId {
    match entry {
        TraceEntry::Residency { application, .. } | TraceEntry::Resize { application, .. } => {
            *application
        }
    }
}

fn time(entry: &TraceEntry) -> Nanos {
    match entry {
        TraceEntry::Residency { change, .. } => change.time,
        TraceEntry::Resize { time, .. } => *time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::SmSet;

    #[test]
    fn a_tenant_gets_what_is_its_own() {
        let mut trace = Trace::new(10);
        trace.enters(ApplicationId(1), TenantId(1000));
        trace.enters(ApplicationId(2), TenantId(1001));
        for application in [1, 2, 1, 3] {
            trace.push(TraceEntry::Resize {
                time: Nanos(5),
                application: ApplicationId(application),
                from: SmSet::EMPTY,
                to: SmSet::range(0, 2),
            });
        }
        let entries = |tenant| trace.report_of(Timekeeping::Off, TenantId(tenant)).entries.len();
        assert_eq!([1000, 1001, 1002].map(entries), [2, 1, 0]);
        for application in 4..20_000 {
            trace.enters(ApplicationId(application), TenantId(1000));
        }
        assert_eq!(trace.owners.len(), OWNERS);
    }

    #[test]
    fn is_bounded_and_says_so() {
        let mut trace = Trace::new(2);
        for time in [1, 2, 3] {
            trace.push(TraceEntry::Resize {
                time: Nanos(time),
                application: ApplicationId(1),
                from: SmSet::EMPTY,
                to: SmSet::range(0, 2),
            });
        }
        let report = trace.report(Timekeeping::Simulated, Some(Nanos(3)));
        assert_eq!((report.entries.len(), report.dropped), (1, 1));
        assert_eq!(trace.report(Timekeeping::Simulated, None).entries.len(), 2);
    }
}
