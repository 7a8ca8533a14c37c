//! What an interval sees of one application, and between which moments it is measured.
//!
//! # Edges
//!
//! CTAs that start together end together, so completions come in bursts of as many CTAs as are in
//! flight. An interval that is cut anywhere counts one burst more or less. So an application is
//! measured between two *edges*, moments at which its count was seen to grow: from the first in the
//! interval to the last with a whole number of *rounds* between them, a round being as many CTAs as
//! are in flight. However long a burst lasts, both are at the same place in it. There must be
//! [`ROUNDS`] of them at least, or fewer that are so much alike that their mean is known to
//! [`STEADY`]: launches whose CTAs take as long as an interval would need eight of them for each
//! step of a search. An edge is seen as late as the next look, so an interval is looked at often
//! ([`crate::measuring`]).
//!
//! # Launches
//!
//! The rounds of a launch need not be alike: its last one is seldom full, its first CTAs may fill
//! caches or prepare what the others use. An interval that is half of a launch says nothing of the
//! other half. So the last edge is one behind a whole number of launches, where that leaves out no
//! more than a quarter. An interval that is to tell a class ([`IntervalRequest::launches`]) waits
//! for the first of these, if it takes no longer than twice as long. And however long its launch
//! is, an application is waited for that has *paused*: for longer than [`PAUSE`] rounds nothing of
//! it was complete, and the rounds that were seen have no place for that.

use crate::IntervalRequest;
use crate::models::float;
use partita_model::{Nanos, Progress};

/// Times as many CTAs as are in flight must complete in an interval.
const ROUNDS: u64 = 8;
/// A mean of at least so many rounds may do, where its standard error is a small part of it: a
/// fifth of what a search looks for.
const FEWEST_ROUNDS: u32 = 3;
const STEADY: f64 = 0.01;
/// CTAs of a round at least: of fewer, each one more or less would show.
const ROUND_CTAS: u64 = 8;
/// Nothing complete for longer than so many rounds take is a pause, if it is at least such a part
/// of the interval.
const PAUSE: f64 = 3.0;
const PAUSE_PART: u64 = 8;

/// What the intervals look at: one application at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reading {
    /// Work done since it came.
    pub(crate) total: Progress,
    /// Device time with work since it came.
    pub(crate) busy: Nanos,
    /// CTAs that have begun and not ended.
    pub(crate) in_flight: u64,
    /// All CTAs of their launches.
    pub(crate) launched: u64,
    /// Whether an interval should wait for its CTAs.
    pub(crate) awaited: bool,
    /// Whether some of them are counted, which takes longer.
    pub(crate) counting: bool,
}

/// The speeds of the rounds so far (Welford 1962).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Rounds {
    begin: Option<(Nanos, u64)>,
    count: u32,
    mean: f64,
    squares: f64,
}

impl Rounds {
    /// So many CTAs were complete at an edge, and a round has that many.
    fn edge(&mut self, now: Nanos, ctas: u64, round: u64) {
        let Some((since, before)) = self.begin else {
            self.begin = Some((now, ctas));
            return;
        };
        let (time, done) = (now.saturating_sub(since).0, ctas.saturating_sub(before));
        if done < round || time == 0 {
            return;
        }
        self.begin = Some((now, ctas));
        self.count = self.count.saturating_add(1);
        let speed = float(done) / float(time);
        let deviation = speed - self.mean;
        self.mean += deviation / f64::from(self.count);
        self.squares += deviation * (speed - self.mean);
    }

    fn are_steady(&self) -> bool {
        let count = f64::from(self.count);
        let error = (self.squares / (count * (count - 1.0)).max(1.0)).sqrt();
        self.count >= FEWEST_ROUNDS && error <= STEADY * self.mean
    }
}

/// What an interval has seen of one application.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Marks {
    begin: Reading,
    latest: Reading,
    first: Option<(Nanos, Reading)>,
    last: Option<(Nanos, Reading)>,
    /// The last ones behind a whole number of rounds, and of launches.
    rounds_whole: Whole,
    launches_whole: Whole,
    start: Nanos,
    /// The last edge, or the start, and the longest time before that in which nothing was complete.
    latest_edge: Nanos,
    pause: Nanos,
    most_in_flight: u64,
    most_launched: u64,
    rounds: Rounds,
}

/// Whole multiples of a number of CTAs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Whole {
    last: Option<(Nanos, Reading)>,
    /// CTAs behind which there will be one more.
    next: u64,
}

impl Whole {
    fn edge(&mut self, now: Nanos, reading: Reading, first: u64, of: u64) {
        let ctas = reading.total.ctas;
        // What is in flight, or launched, may turn out to be more.
        let next = self.next.max(first.saturating_add(of));
        if ctas >= next {
            self.last = Some((now, reading));
            let beyond = (ctas - next) % of.max(1);
            self.next = (ctas - beyond).saturating_add(of);
        }
    }
}

impl Marks {
    pub(crate) fn new(now: Nanos, reading: Reading) -> Self {
        Marks {
            begin: reading,
            latest: reading,
            first: None,
            last: None,
            rounds_whole: Whole::default(),
            launches_whole: Whole::default(),
            start: now,
            latest_edge: now,
            pause: Nanos(0),
            most_in_flight: reading.in_flight,
            most_launched: reading.launched,
            rounds: Rounds::default(),
        }
    }

    pub(crate) fn see(&mut self, now: Nanos, reading: Reading) {
        self.most_in_flight = self.most_in_flight.max(reading.in_flight);
        self.most_launched = self.most_launched.max(reading.launched);
        let ctas = reading.total.ctas;
        if ctas > self.latest.total.ctas {
            let round = self.round();
            let first = self.first.get_or_insert((now, reading)).1.total.ctas;
            self.rounds_whole.edge(now, reading, first, round);
            // Of none, or of more than can be counted, there is no whole number.
            let launches = round.checked_next_multiple_of(self.most_launched).unwrap_or(u64::MAX);
            self.launches_whole.edge(now, reading, first, launches);
            self.last = Some((now, reading));
            self.rounds.edge(now, ctas, round);
            self.pause = self.pause.max(now.saturating_sub(self.latest_edge));
            self.latest_edge = now;
        }
        self.latest = reading;
    }

    fn round(&self) -> u64 {
        self.most_in_flight.max(ROUND_CTAS)
    }

    /// From the first edge to the last behind a whole number of launches, if that leaves no more
    /// than a quarter out, or it has paused; of rounds otherwise, or to the last of all where there
    /// is neither.
    fn between_edges(&self, now: Nanos) -> Option<Done> {
        let rounds = self.between_rounds()?;
        let launches = self.launches_whole.last.and_then(|last| self.until(last));
        let most = |done: &Done| {
            done.progress.ctas >= rounds.progress.ctas / 4 * 3 || self.has_paused(now)
        };
        Some(launches.filter(most).unwrap_or(rounds))
    }

    fn between_rounds(&self) -> Option<Done> {
        self.until(self.rounds_whole.last.or(self.last)?)
    }

    fn until(&self, (to, last): (Nanos, Reading)) -> Option<Done> {
        let (from, first) = self.first?;
        let progress = difference(&last.total, &first.total);
        let busy = last.busy.saturating_sub(first.busy);
        let span = to.saturating_sub(from);
        (progress.ctas > 0).then_some(Done { progress, busy, span, ..Done::default() })
    }

    /// Whether it is known what it does in so much time.
    pub(crate) fn enough(&self, now: Nanos, request: &IntervalRequest, at_least: Nanos) -> bool {
        let Some(done) = self.between_edges(now) else { return false };
        let (ctas, steady) = (done.progress.ctas, self.rounds.are_steady());
        let ends_soon = self.most_launched <= ctas.saturating_mul(2);
        let uneven = request.launches && ends_soon || self.has_paused(now);
        let waits = uneven && self.most_launched > 0 && self.launches_whole.last.is_none();
        let all = ctas >= self.most_in_flight.saturating_mul(ROUNDS) || steady;
        all && !waits && ctas >= request.ctas && done.span >= at_least
    }

    /// Whether for long nothing was complete.
    fn has_paused(&self, now: Nanos) -> bool {
        let pause = self.pause.max(now.saturating_sub(self.latest_edge)).0;
        let interval = now.saturating_sub(self.start).0;
        let long = |done: Done| {
            let rounds = float(done.progress.ctas) / float(self.round());
            float(pause) * rounds > PAUSE * float(done.span.0)
        };
        pause >= interval / PAUSE_PART && self.between_rounds().is_some_and(long)
    }

    /// Between edges, or the whole interval where there are none.
    pub(crate) fn done(&self, now: Nanos, warm_up_ctas: u64) -> Done {
        let whole = || Done {
            progress: difference(&self.latest.total, &self.begin.total),
            busy: self.latest.busy.saturating_sub(self.begin.busy),
            span: now.saturating_sub(self.start),
            ..Done::default()
        };
        let rounds = (self.most_in_flight > 0)
            .then(|| float(self.most_launched) / float(self.most_in_flight));
        Done { warm_up_ctas, rounds, ..self.between_edges(now).unwrap_or_else(whole) }
    }
}

/// What one application did in an interval.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Done {
    pub(crate) progress: Progress,
    pub(crate) busy: Nanos,
    /// How long that was.
    pub(crate) span: Nanos,
    pub(crate) warm_up_ctas: u64,
    /// All CTAs of its launches ÷ those in flight, the most of either.
    pub(crate) rounds: Option<f64>,
}

/// What was done between two totals. Totals that went backwards count as nothing done.
fn difference(later: &Progress, earlier: &Progress) -> Progress {
    let ctas = later.ctas.saturating_sub(earlier.ctas);
    let traffic = later.traffic.zip(earlier.traffic);
    let traffic = traffic.map(|(later, earlier)| later.combine(&earlier, u64::saturating_sub));
    // Of fewer CTAs than completed it says nothing of the others.
    Progress { ctas, traffic: traffic.filter(|traffic| traffic.ctas >= ctas) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts come from clients.
    #[test]
    fn any_count_is_seen() {
        const COUNTS: [u64; 4] = [0, 3, u64::MAX - 1, u64::MAX];
        for case in 0..64 {
            let [in_flight, launched, ctas] =
                [case % 4, case / 4 % 4, case / 16].map(|index| COUNTS[index]);
            let reading = |ctas| {
                let total = Progress { ctas, traffic: None };
                Reading { total, in_flight, launched, ..Reading::default() }
            };
            let mut marks = Marks::new(Nanos(0), reading(0));
            for (now, ctas) in [(1, ctas / 2), (2, ctas), (u64::MAX, ctas.saturating_add(1))] {
                marks.see(Nanos(now), reading(ctas));
            }
            let done = marks.done(Nanos(u64::MAX), ctas);
            assert!(done.progress.ctas <= ctas.saturating_add(1), "{done:?}");
        }
    }

    #[test]
    fn fewer_rounds_do_where_they_are_alike() {
        let rounds = |times: &[u64]| {
            let mut rounds = Rounds::default();
            let mut now = 0;
            for (index, time) in (0..).zip([0].iter().chain(times)) {
                now += time;
                rounds.edge(Nanos(now), index * 100, 100);
            }
            rounds.are_steady()
        };
        assert!(rounds(&[1000, 1000, 1000]));
        assert!(rounds(&[1000, 1010, 995, 1005]));
        assert!(!rounds(&[1000, 1000]), "two may be alike by chance");
        assert!(!rounds(&[1000, 1100, 900, 1000]));
        assert!(!rounds(&[]));
    }

    /// Rounds of 10,000 CTAs in 100 µs, the first slower and the last faster by a part: the
    /// standard error of their mean is √(2 part² ÷ (3 × 2)) = part ÷ √3, and 1 % may be.
    #[test]
    fn three_rounds_are_alike_by_the_error_of_their_mean() {
        let is_steady = |part_of_10_000: u64| {
            let mut rounds = Rounds::default();
            let mut ctas = 0;
            rounds.edge(Nanos(0), ctas, 9_000);
            for (now, done) in
                [(1, 10_000 - part_of_10_000), (2, 10_000), (3, 10_000 + part_of_10_000)]
            {
                ctas += done;
                rounds.edge(Nanos(now * 100_000), ctas, 9_000);
            }
            assert!((rounds.mean - 0.1).abs() < 1e-12 && rounds.count == 3, "{rounds:?}");
            rounds.are_steady()
        };
        assert_eq!([0, 165, 190].map(is_steady), [true, true, false]);
    }

    #[test]
    fn a_round_is_as_many_ctas_as_are_in_flight_or_eight() {
        let mut rounds = Rounds::default();
        // Halves of a round, then one and a half of one; at one moment there is no speed.
        for (now, ctas) in [(0, 0), (5, 50), (10, 100), (25, 250), (25, 400), (40, 400)] {
            rounds.edge(Nanos(now), ctas, 100);
        }
        assert_eq!((rounds.count, rounds.begin), (3, Some((Nanos(40), 400))));
        for (in_flight, round) in [(0, 8), (1, 8), (100, 100)] {
            let marks = Marks::new(Nanos(0), Reading { in_flight, ..Reading::default() });
            assert_eq!(marks.round(), round);
        }
    }

    /// Launches of 40 CTAs, 10 of which are in flight: a round every 100 ns.
    fn regular(rounds: u64) -> Marks {
        let reading = |ctas| {
            let total = Progress { ctas, traffic: None };
            Reading { total, in_flight: 10, launched: 40, ..Reading::default() }
        };
        let mut marks = Marks::new(Nanos(0), reading(0));
        (1..=rounds).for_each(|round| marks.see(Nanos(round * 100), reading(round * 10)));
        marks
    }

    /// The first edge is behind the first round.
    #[test]
    fn a_whole_launch_counts_where_it_is_three_quarters_of_all() {
        // Launches are whole behind the fifth and the ninth round.
        for (rounds, ctas) in [(4, 30), (5, 40), (6, 40), (7, 60), (8, 70), (9, 80), (10, 80)] {
            let done = regular(rounds).done(Nanos(rounds * 100), 0);
            assert_eq!((done.progress.ctas, done.span), (ctas, Nanos(ctas * 10)), "{rounds}");
            assert_eq!(done.rounds, Some(4.0));
        }
        // A single edge is no measure: the whole interval is.
        let done = regular(1).done(Nanos(250), 0);
        assert_eq!((done.progress.ctas, done.span), (10, Nanos(250)));
        let nothing = Marks::new(Nanos(0), Reading::default()).done(Nanos(100), 3);
        assert_eq!((nothing.rounds, nothing.warm_up_ctas), (None, 3));
    }

    #[test]
    fn a_pause_is_longer_than_three_rounds_and_an_eighth_of_the_interval() {
        // Rounds of 100 ns.
        assert!(!regular(6).has_paused(Nanos(900)));
        assert!(regular(6).has_paused(Nanos(901)));
        // 400 of 6,400 ns are less than an eighth, 1,000 of 7,000 are more.
        assert!(!regular(60).has_paused(Nanos(6_400)));
        assert!(regular(60).has_paused(Nanos(7_000)));
        // An application that paused is measured by whole launches, however many rounds follow.
        assert_eq!(regular(7).done(Nanos(1_001), 0).progress.ctas, 40);
    }
}
