//! The last status of a `partita-gpu`, for requests shortly after one another.
//!
//! A question interrupts the thread that owns engine and device, and takes time from launches. So a
//! status answers further requests until it is [`MAX_AGE`] old. A status of half that age is
//! renewed while it is told, and a reader in a loop does not wait for the process.
//!
//! Invariant: what a reader can know from `partitad` is in the status that it gets afterwards. So
//! no status from before one of these is told after it:
//!
//! - the answer to a request that changes something;
//! - the coming of a session: while a client is handed over, none is told either;
//! - an event that readers of events are told.
//!
//! Everything else, such as the number of launches, is at most [`MAX_AGE`] old. A request that must
//! not be answered so says `Cache-Control: no-cache` (RFC 9111, section 5.2.1.4).

use partita_model::StatusReport;
use partita_wire::supervise::{Answer, Ask};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The greatest age of a status that is told. The guide of the API names it.
pub const MAX_AGE: Duration = Duration::from_millis(5);
/// The age from which on a status is renewed.
const RENEWED_FROM: Duration = MAX_AGE.checked_div(2).expect("two is not zero");

/// When a question for the status was asked.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    at: Instant,
    changes: u64,
}

#[derive(Debug)]
struct Taken<T> {
    asked: Asked,
    report: Arc<T>,
    /// A request has been told to renew it.
    is_renewed: bool,
}

#[derive(Debug)]
struct Inner<T> {
    /// Changes that a reader can know of.
    changes: u64,
    taken: Option<Taken<T>>,
}

/// The last status of one process.
#[derive(Debug)]
pub struct Recent<T = StatusReport>(Mutex<Inner<T>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent(Mutex::new(Inner { changes: 0, taken: None }))
    }
}

/// A status that may be told.
#[derive(Debug)]
pub struct Found<T = StatusReport> {
    /// The status.
    pub report: Arc<T>,
    /// Whether the one who gets it asks for the next one.
    pub is_to_renew: bool,
}

impl<T> Recent<T> {
    /// The status will be asked for.
    #[must_use]
    pub fn asked(&self, now: Instant) -> Asked {
        Asked { at: now, changes: self.lock().changes }
    }

    /// Keeps an answer, unless a later question has been answered before.
    pub fn keep(&self, asked: Asked, report: Arc<T>) {
        let mut inner = self.lock();
        if inner.taken.as_ref().is_none_or(|taken| taken.asked.at <= asked.at) {
            inner.taken = Some(Taken { asked, report, is_renewed: false });
        }
    }

    /// Something has changed that a reader can know of: what was asked before is not told any more.
    pub fn changed(&self) {
        self.lock().changes += 1;
    }

    /// The status that may be told now.
    #[must_use]
    pub fn get(&self, now: Instant) -> Option<Found<T>> {
        let mut inner = self.lock();
        let changes = inner.changes;
        let taken = inner.taken.as_mut().filter(|taken| taken.asked.changes == changes)?;
        let age = now.saturating_duration_since(taken.asked.at);
        if age >= MAX_AGE {
            return None;
        }
        let is_to_renew = age >= RENEWED_FROM && !taken.is_renewed;
        taken.is_renewed |= is_to_renew;
        Some(Found { report: Arc::clone(&taken.report), is_to_renew })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an exchange changes what a reader can know.
#[must_use]
pub fn is_change(ask: &Ask) -> bool {
    match ask {
        Ask::Heartbeat | Ask::Status | Ask::Trace(_) | Ask::Accounts | Ask::Events { .. } => false,
        Ask::SetPlan(_)
        | Ask::ClearPlan
        | Ask::CancelLaunches { .. }
        | Ask::Configure(_)
        | Ask::SetTerms { .. }
        | Ask::Reserve(_)
        | Ask::EndWhenIdle
        | Ask::End => true,
    }
}

/// Whether an answer tells events.
#[must_use]
pub fn tells_events(answer: &Answer) -> bool {
    matches!(answer, Answer::Events(batch) if !batch.events.is_empty() || batch.lost > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_until_it_is_old_and_renewed_once() {
        let (recent, start) = (Recent::default(), Instant::now());
        assert!(recent.get(start).is_none());
        recent.keep(recent.asked(start), Arc::new(()));
        let found = |age: Duration| recent.get(start + age).map(|found| found.is_to_renew);
        let tick = Duration::from_micros(1);
        assert_eq!(found(RENEWED_FROM - tick), Some(false));
        assert_eq!(found(RENEWED_FROM), Some(true));
        assert_eq!(found(MAX_AGE - tick), Some(false), "somebody renews it");
        assert_eq!(found(MAX_AGE), None);
    }

    #[test]
    fn no_status_from_before_a_change_is_told() {
        let (recent, now) = (Recent::default(), Instant::now());
        let before = recent.asked(now);
        recent.changed();
        recent.keep(before, Arc::new(()));
        assert!(recent.get(now).is_none(), "it was asked before the change");
        recent.keep(recent.asked(now), Arc::new(()));
        assert!(recent.get(now).is_some());
        recent.changed();
        assert!(recent.get(now).is_none());
    }

    #[test]
    fn an_earlier_question_replaces_no_later_one() {
        let (recent, now) = (Recent::default(), Instant::now());
        let early = recent.asked(now);
        let late = recent.asked(now + MAX_AGE / 2);
        recent.keep(late, Arc::new(()));
        recent.keep(early, Arc::new(()));
        assert!(recent.get(now + MAX_AGE).is_some(), "the later one is kept");
    }
}
