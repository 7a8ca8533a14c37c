//! The trace: where CTAs were, when borders moved, and when copies were under way. It is bounded,
//! and drops the oldest entries first.
//!
//! Copies have a ring of their own, so that a program of many short copies pushes no launch and no
//! border out of the trace. Pieces of one copy that follow one another are one entry, so that a
//! long copy beside others does not fill the ring.

use partita_model::{
    ApplicationId, Nanos, TenantId, Timekeeping, TraceEntry, TraceReport, TracedCopy,
};
use std::collections::{BTreeMap, VecDeque};

/// Applications whose tenants are remembered, also when they are gone.
const OWNERS: usize = 1 << 14;
/// Entries of CTAs and borders for each of a copy. A launch has two for each CTA.
const ENTRIES_PER_COPY: usize = 4;
/// Latest copies among which the piece before is looked for: copies of other directions may be
/// between.
const LOOKED_AT: usize = 4;

/// The trace.
#[derive(Debug)]
pub(crate) struct Trace {
    entries: VecDeque<TraceEntry>,
    capacity: usize,
    dropped: u64,
    copies: VecDeque<TracedCopy>,
    dropped_copies: u64,
    /// The tenants of the latest applications.
    owners: BTreeMap<ApplicationId, TenantId>,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Self {
        Trace {
            entries: VecDeque::new(),
            capacity,
            dropped: 0,
            copies: VecDeque::new(),
            dropped_copies: 0,
            owners: BTreeMap::new(),
        }
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

    /// Enters a copy, or a piece of one, that has ended.
    pub(crate) fn push_copy(&mut self, copy: TracedCopy) {
        let latest = self.copies.iter().rev().take(LOOKED_AT);
        let before = latest.enumerate().find(|(_, other)| other.kind == copy.kind);
        if let Some((back, other)) = before
            && other.operation == copy.operation
            && let Some(first) = self.copies.remove(self.copies.len() - 1 - back)
        {
            let bytes = first.bytes + copy.bytes;
            self.copies.push_back(TracedCopy { bytes, start: first.start, ..copy });
            return;
        }
        if self.copies.len() >= self.capacity / ENTRIES_PER_COPY {
            self.dropped_copies += 1;
            if self.copies.pop_front().is_none() {
                return;
            }
        }
        self.copies.push_back(copy);
    }

    pub(crate) fn report(&self, timekeeping: Timekeeping, since: Option<Nanos>) -> TraceReport {
        let since = since.unwrap_or_default();
        let is_late = |entry: &TraceEntry| time(entry) >= since;
        self.part(timekeeping, is_late, |copy| copy.end >= since)
    }

    /// The entries about one tenant's applications.
    pub(crate) fn report_of(&self, timekeeping: Timekeeping, tenant: TenantId) -> TraceReport {
        let is_own = |application| self.owners.get(&application) == Some(&tenant);
        let is_own_copy = |copy: &TracedCopy| is_own(copy.application);
        self.part(timekeeping, |entry| is_own(application(entry)), is_own_copy)
    }

    fn part(
        &self,
        timekeeping: Timekeeping,
        entries: impl Fn(&TraceEntry) -> bool,
        copies: impl Fn(&TracedCopy) -> bool,
    ) -> TraceReport {
        TraceReport {
            timekeeping,
            entries: self.entries.iter().filter(|entry| entries(entry)).cloned().collect(),
            dropped: self.dropped,
            copies: self.copies.iter().filter(|copy| copies(copy)).cloned().collect(),
            dropped_copies: self.dropped_copies,
        }
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
    use partita_model::{CopyKind, OperationId, SessionId, SmSet, StreamId};

    fn copy(application: u32, operation: u64, start: u64) -> TracedCopy {
        TracedCopy {
            application: ApplicationId(application),
            session: SessionId(1),
            stream: StreamId(1),
            operation: OperationId(operation),
            kind: CopyKind::HostToDevice,
            bytes: 8,
            start: Nanos(start),
            end: Nanos(start + 5),
        }
    }

    #[test]
    fn a_tenant_gets_what_is_its_own() {
        let mut trace = Trace::new(100);
        trace.enters(ApplicationId(1), TenantId(1000));
        trace.enters(ApplicationId(2), TenantId(1001));
        for application in [1, 2, 1, 3] {
            trace.push(TraceEntry::Resize {
                time: Nanos(5),
                application: ApplicationId(application),
                from: SmSet::EMPTY,
                to: SmSet::range(0, 2),
            });
            trace.push_copy(copy(application, u64::from(application), 5));
        }
        let entries = |tenant| {
            let own = trace.report_of(Timekeeping::Off, TenantId(tenant));
            (own.entries.len(), own.copies.len())
        };
        assert_eq!([1000, 1001, 1002].map(entries), [(2, 2), (1, 1), (0, 0)]);
        for application in 4..20_000 {
            trace.enters(ApplicationId(application), TenantId(1000));
        }
        assert_eq!(trace.owners.len(), OWNERS);
    }

    #[test]
    fn copies_push_out_copies_only() {
        let mut trace = Trace::new(4 * ENTRIES_PER_COPY);
        trace.push(TraceEntry::Resize {
            time: Nanos(1),
            application: ApplicationId(1),
            from: SmSet::EMPTY,
            to: SmSet::range(0, 2),
        });
        (0..100).for_each(|id| trace.push_copy(copy(1, id, 10 * id)));
        let report = trace.report(Timekeeping::Off, None);
        assert_eq!((report.entries.len(), report.dropped), (1, 0));
        let ids: Vec<u64> = report.copies.iter().map(|copy| copy.operation.0).collect();
        assert_eq!((ids, report.dropped_copies), (vec![96, 97, 98, 99], 96));
        let late = trace.report(Timekeeping::Off, Some(Nanos(985)));
        assert_eq!((late.entries.len(), late.copies.len()), (0, 2));
        let mut none = Trace::new(0);
        none.push_copy(copy(1, 1, 1));
        assert_eq!(none.report(Timekeeping::Off, None).dropped_copies, 1);
    }

    #[test]
    fn pieces_that_follow_one_another_are_one_copy() {
        let mut trace = Trace::new(100);
        let back = |start| TracedCopy { kind: CopyKind::DeviceToHost, ..copy(2, 9, start) };
        // A copy of the other direction between two pieces parts them not, one of the same does.
        for piece in [copy(1, 7, 0), copy(1, 7, 5), back(6), copy(1, 7, 10), back(11)] {
            trace.push_copy(piece);
        }
        for piece in [copy(1, 8, 15), copy(1, 7, 20)] {
            trace.push_copy(piece);
        }
        let of = |copy: &TracedCopy| (copy.operation.0, copy.bytes, copy.start.0, copy.end.0);
        let copies: Vec<_> = trace.report(Timekeeping::Off, None).copies.iter().map(of).collect();
        assert_eq!(copies, [(7, 24, 0, 15), (9, 16, 6, 16), (8, 8, 15, 20), (7, 8, 20, 25)]);
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
