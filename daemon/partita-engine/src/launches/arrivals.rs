//! Workers on their way: those that grids were sent for and that have not been seen yet.
//!
//! The latency of a launch lies between the moment at which a grid is enqueued and the moment at
//! which its CTAs are seen. An engine that counts those CTAs as missing sends them twice. The
//! surplus CTAs keep other applications' grids waiting in the hardware's block scheduler. So
//! workers on their way count as there until that time is over. A worker that has not been seen by
//! then has found no place, or a place on an SM that was not granted yet, and left.
//!
//! This module counts by the times that it is given. [`super::worker`] decides how many workers
//! are sent.

use partita_model::Nanos;
use std::collections::VecDeque;

/// The time for which a grid's workers count as on their way doubles at most this often.
const MAX_BACKOFF: u32 = 8;
/// A worker that appears later than `FORGOTTEN` × the longest expected latency is attributed to
/// another grid.
const FORGOTTEN: u64 = 4;

/// The expected time from sending a grid until its workers are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Latency {
    time: Nanos,
    least: Nanos,
    most: Nanos,
}

impl Latency {
    /// A latency between two bounds. The upper bound holds until a grid is seen.
    pub(crate) fn new(least: Nanos, most: Nanos) -> Self {
        Latency { time: most, least: least.min(most), most }
    }

    /// A grid has taken at most `time`. Looks at intervals give no lower bound.
    fn seen(&mut self, time: Nanos) {
        self.time = Nanos(self.time.0.midpoint(time.0.min(self.time.0))).max(self.least);
    }

    /// A grid may have taken longer than the engine has waited for it.
    fn late(&mut self, time: Nanos) {
        self.time = Nanos(self.time.0.midpoint(time.0.max(self.time.0))).min(self.most);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sent {
    at: Nanos,
    /// Until then its workers count as on their way.
    due: Nanos,
    ctas: u64,
    /// Workers of the grid that have come.
    came: u64,
    /// No other grid of the launch was on its way.
    alone: bool,
}

/// The workers on their way to one launch, by grid, in the order of sending.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arrivals {
    sent: VecDeque<Sent>,
    /// Grids since the last worker came.
    attempts: u32,
}

impl Arrivals {
    /// The main grid may start.
    pub(crate) fn begin(&mut self, ctas: u64, now: Nanos, due: Nanos) {
        // The main grid stood behind others, so the time since its sending is no latency.
        self.sent = VecDeque::from([Sent { at: now, due, ctas, came: 0, alone: false }]);
    }

    /// A grid was sent that is to bring `ctas` workers.
    pub(crate) fn send(&mut self, ctas: u64, now: Nanos, latency: Latency) {
        let patience = Nanos(latency.time.0 << self.attempts.min(MAX_BACKOFF));
        self.attempts = self.attempts.saturating_add(1);
        let alone = self.sent.is_empty();
        self.sent.push_back(Sent { at: now, due: now + patience, ctas, came: 0, alone });
    }

    /// `came` workers have come since the last look. They count for the grids that were sent first.
    pub(crate) fn look(&mut self, mut came: u64, now: Nanos, latency: &mut Latency) {
        if came > 0 {
            self.attempts = 0;
            let is_first = |sent: &&Sent| sent.alone && sent.came == 0 && sent.at < now;
            if let Some(first) = self.sent.front().filter(is_first) {
                let time = now.saturating_sub(first.at);
                match (now > first.due, self.sent.len()) {
                    (true, _) => latency.late(time),
                    (false, 1) => latency.seen(time),
                    (false, _) => {}
                }
            }
        }
        while let Some(sent) = self.sent.front_mut().filter(|_| came > 0) {
            let of_it = came.min(sent.ctas - sent.came);
            (sent.came, came) = (sent.came + of_it, came - of_it);
            if sent.came < sent.ctas {
                break;
            }
            self.sent.pop_front();
        }
        let forgotten = Nanos(latency.most.0.saturating_mul(FORGOTTEN));
        self.sent.retain(|sent| now < sent.due + forgotten);
    }

    /// Workers on their way.
    pub(crate) fn expected(&self, now: Nanos) -> u64 {
        let on_their_way = self.sent.iter().filter(|sent| now < sent.due);
        on_their_way.fold(0, |sum, sent| sum.saturating_add(sent.ctas - sent.came))
    }

    /// No worker is missing any more, or other workers are: grids without effect do not make the
    /// next wait longer.
    pub(crate) fn forgive(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1_000;

    fn at(micros: u64) -> Nanos {
        Nanos(micros * MICRO)
    }

    fn latency() -> Latency {
        Latency::new(at(1), at(10))
    }

    #[test]
    fn who_is_on_the_way_is_not_sent_again() {
        let (mut arrivals, mut latency) = (Arrivals::default(), latency());
        arrivals.send(8, at(100), latency);
        arrivals.send(4, at(101), latency);
        assert_eq!(arrivals.expected(at(101)), 12);
        arrivals.look(6, at(103), &mut latency);
        assert_eq!(arrivals.expected(at(103)), 6);
        arrivals.look(5, at(104), &mut latency);
        assert_eq!(arrivals.expected(at(104)), 1);
        // It has found no place.
        assert_eq!((arrivals.expected(at(120)), arrivals.expected(at(121))), (1, 0));
        arrivals.look(u64::MAX, at(121), &mut latency);
        assert_eq!(arrivals, Arrivals::default());
    }

    #[test]
    fn the_latency_is_that_of_grids_that_were_sent_alone() {
        let (mut arrivals, mut latency) = (Arrivals::default(), latency());
        for expected in [6_500, 4_750, 3_875, 3_437] {
            arrivals.send(8, at(100), latency);
            arrivals.look(8, at(103), &mut latency);
            assert_eq!(latency.time, Nanos(expected));
        }
        arrivals.send(1, at(200), latency);
        arrivals.send(1, at(202), latency);
        arrivals.look(1, at(202), &mut latency);
        arrivals.look(1, at(203), &mut latency);
        assert_eq!(latency.time, Nanos(3_437), "of which of the two it is nobody knows");
        // Later than it was waited for.
        arrivals.send(8, at(300), latency);
        assert_eq!(arrivals.expected(at(304)), 0);
        arrivals.look(8, at(307), &mut latency);
        assert_eq!(latency.time, Nanos(5_218));
        for _ in 0..10 {
            arrivals.send(1, at(400), latency);
            arrivals.look(1, at(490), &mut latency);
        }
        assert!(latency.time <= at(10), "{latency:?}");
    }

    #[test]
    fn grids_without_effect_are_waited_for_longer_and_longer() {
        let (mut arrivals, latency) = (Arrivals::default(), latency());
        let mut now = at(0);
        for wait in [10, 20, 40, 80] {
            arrivals.send(1, now, latency);
            assert_eq!(arrivals.expected(now + at(wait - 1)), 1, "{wait}");
            now += at(wait);
            assert_eq!(arrivals.expected(now), 0, "{wait}");
        }
        arrivals.forgive();
        arrivals.send(1, now, latency);
        assert_eq!(arrivals.expected(now + at(10)), 0);
        for _ in 0..100 {
            arrivals.send(u64::MAX, now, latency);
        }
        assert_eq!(arrivals.expected(now), u64::MAX);
    }
}
