//! The trace: where CTAs were, and when borders moved. It is bounded, and drops the oldest entries
//! first.

use partita_model::{Nanos, Timekeeping, TraceEntry, TraceReport};
use std::collections::VecDeque;

/// The trace.
#[derive(Debug)]
pub(crate) struct Trace {
    entries: VecDeque<TraceEntry>,
    capacity: usize,
    dropped: u64,
}

impl Trace {
    pub(crate) fn new(capacity: usize) -> Self {
        Trace { entries: VecDeque::new(), capacity, dropped: 0 }
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

fn time(entry: &TraceEntry) -> Nanos {
    match entry {
        TraceEntry::Residency { change, .. } => change.time,
        TraceEntry::Resize { time, .. } => *time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{ApplicationId, SmSet};

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
