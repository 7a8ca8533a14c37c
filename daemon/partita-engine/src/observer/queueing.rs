//! How long requests wait inside their program, which the engine does not see.
//!
//! A program may take requests one after the other. A request that comes while another is served
//! then waits in the program, and its first launch comes late. The engine sees only when requests
//! begin and end, and estimates the wait from these:
//!
//! - A request that begins within a quarter of the mean time of requests after the end of the one
//!   before has waited. The part of such requests is `q`.
//! - Requests arrive at rate `λ` ([`Arrivals`]), and take `S`: what the engine sees, and the time
//!   that the program itself needs between two requests. That is the mean distance of a request
//!   that has waited from the one before. The program is busy for the part `ρ = λ E[S]` of the
//!   time. Where requests come in bursts, `q` is certainly greater, and `λ` counts as `q / E[S]`,
//!   less the doubt. A program of which more than nine tenths of the requests certainly wait does
//!   not keep up.
//! - A request waits for longer than `x` with a probability of about `C e^(-η x)`. `η` is the
//!   positive root of `λ (E[e^(η S)] - 1) = η`, and `C = (1 - ρ) / (λ E[S e^(η S)] - 1)` (Cramér
//!   and Lundberg; Asmussen, *Applied Probability and Queues*, 2003, chapter XIII). `S` is taken
//!   to have a gamma distribution of the mean and the variance that were seen. Where they differ
//!   much, the wait is at least exponential, with the mean of Pollaczek and Khinchine. Where fewer
//!   requests wait than `ρ`, as with requests at regular times, `C` is less by as much.
//!
//! The first request after a pause may wait for SMs that were lent. Only requests that have waited
//! count in `S`, where there are enough of them: in a busy time the first request is an exception
//! that does not change how fast later requests follow (Welch, *Operations Research* 12, 1964).
//!
//! Requests come as often on whatever SMs they are served, so `λ` is learnt from all of them, and
//! `S` on each number of SMs. Whether fewer SMs would do is asked for the highest rate that the
//! requests seen leave possible: of 20 independent ones the rate is known to within 67 %.
//!
//! Programs in which the next request depends on the answer to the last, and that never pause, look
//! as if they could not keep up. They get all SMs that they can use. A pause of up to a quarter of
//! a request counts as the program's own time.

use super::as_float;
use partita_model::Nanos;

/// One request in this many may wait for longer than the estimate.
const ONE_IN: f64 = 100.0;
/// A request that begins within this part of the mean time after the one before has waited.
const AT_ONCE: f64 = 0.25;
/// The greatest part of the time for which a program may be busy. Beyond it the estimate is
/// arbitrarily long, and small errors decide.
const MOST_BUSY: f64 = 0.9;
/// Standard deviations by which what was seen may be wrong.
const DOUBT: f64 = 2.0;
/// The same for the rate: that of `n` requests that arrive independently may be higher than it
/// seems by this / √n. A rate that is taken for too low costs more than one for too high: a queue
/// grows that takes long to empty.
const RATE_DOUBT: f64 = 3.0;
/// From this many requests that have waited on, only such requests count.
const ENOUGH: f64 = 10.0;
/// Once so many requests were seen, each of them counts half.
const MANY: f64 = 400.0;
/// From this number of requests that have waited on, they are compared with those on other SMs.
const FEW: f64 = 3.0;
/// From this number of requests on, the part that waits says that a program does not keep up.
const SOME: f64 = 20.0;

/// Sums over requests.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    requests: f64,
    time: f64,
    squares: f64,
}

impl Served {
    fn add(&mut self, time: f64) {
        self.requests += 1.0;
        self.time += time;
        self.squares += time * time;
    }

    fn mean(self) -> f64 {
        self.time / self.requests.max(1.0)
    }

    /// The variance of the mean, relative to the mean's square.
    fn variance_of_mean(self) -> f64 {
        let (requests, mean) = (self.requests.max(1.0), self.mean().max(1.0));
        (self.squares / requests / (mean * mean) - 1.0).max(0.0) / requests
    }

    fn halved(self) -> Served {
        let Served { requests, time, squares } = self;
        Served { requests: requests / 2.0, time: time / 2.0, squares: squares / 2.0 }
    }
}

/// How often requests come, on whatever SMs they are served. The last [`MANY`] or so count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    requests: f64,
    /// Requests that have waited.
    waited: f64,
    /// Nanoseconds that requests took.
    time: f64,
    /// Nanoseconds between requests.
    idle: f64,
    /// The part of it before requests that have waited.
    between: f64,
}

impl Arrivals {
    /// A request took `took`, and began `idle` after the one before it.
    pub(super) fn saw(&mut self, idle: Option<Nanos>, took: Nanos) {
        if self.requests >= MANY {
            let Arrivals { requests, waited, time, idle, between } = self;
            for sum in [requests, waited, time, idle, between] {
                *sum /= 2.0;
            }
        }
        self.requests += 1.0;
        self.time += as_float(took.0);
        if let Some(idle) = idle.map(|idle| as_float(idle.0)) {
            self.idle += idle;
            if idle <= AT_ONCE * self.time / self.requests {
                self.waited += 1.0;
                self.between += idle;
            }
        }
    }

    /// What is known of the requests to come; at most, as far as few requests tell.
    fn expected(&self, at_most: bool) -> ToCome {
        let (requests, all) = (self.requests.max(1.0), (self.time + self.idle).max(1.0));
        let own = self.between / self.waited.max(1.0) * requests;
        let busy = ((self.time + own) / all).max(f64::MIN_POSITIVE);
        let waits = self.waited / requests;
        let doubt = doubt_of(waits, requests);
        let bursts = ((waits - doubt) / busy).max(1.0);
        let seen = self.requests / all;
        if at_most {
            let rate = seen * bursts * (1.0 + RATE_DOUBT / requests.sqrt());
            // The bursts that were seen are possible, too.
            let rate = rate.max(seen * waits / busy);
            ToCome { rate, waits: ((waits + doubt) / busy).min(1.0) }
        } else {
            ToCome { rate: seen * bursts, waits: (waits / busy).min(1.0) }
        }
    }
}

/// By how much the part of the requests that waits may differ from what was seen.
fn doubt_of(waits: f64, requests: f64) -> f64 {
    DOUBT * (waits * (1.0 - waits) / requests).sqrt()
}

/// Requests to come.
#[derive(Clone, Copy, Debug)]
struct ToCome {
    /// Requests in a nanosecond; of bursts, as many as would let as many requests wait.
    rate: f64,
    /// The share of requests that wait, divided by the share that would wait if requests came
    /// independently. At most 1.
    waits: f64,
}

/// What requests of an application take on one number of SMs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queueing {
    all: Served,
    waited: Served,
    /// Time between requests that have waited and those before, in nanoseconds: the program's own.
    between: f64,
}

impl Queueing {
    /// A request took `took`, and began `idle` after the one before it.
    pub(super) fn saw(&mut self, idle: Option<Nanos>, took: Nanos) {
        let took = as_float(took.0);
        self.all.add(took);
        if let Some(idle) = idle.map(|idle| as_float(idle.0))
            && idle <= AT_ONCE * self.all.mean()
        {
            self.waited.add(took);
            self.between += idle;
        }
    }

    /// What was seen counts half.
    pub(super) fn fade(&mut self) {
        let Queueing { all, waited, between } = *self;
        *self = Queueing { all: all.halved(), waited: waited.halved(), between: between / 2.0 };
    }

    /// The time for which one of 100 requests would wait if each took `ratio` times as long. `None`
    /// where the program would not keep up.
    pub(super) fn wait(&self, ratio: f64, arrivals: &Arrivals) -> Option<Nanos> {
        self.wait_of(arrivals.expected(false), ratio)
    }

    /// The same where requests come as often as the few that were seen leave possible.
    pub(super) fn wait_at_most(&self, ratio: f64, arrivals: &Arrivals) -> Option<Nanos> {
        self.wait_of(arrivals.expected(true), ratio)
    }

    /// How many times as long requests certainly take as `before`: two standard deviations of the
    /// means are left out. Where a few have waited only these count, because the first after a
    /// pause may wait for SMs.
    pub(super) fn longer_than(&self, before: &Queueing) -> Option<f64> {
        let ratio = |now: Served, before: Served| {
            let is_known = now.requests >= FEW && before.requests >= FEW;
            let doubt = (now.variance_of_mean() + before.variance_of_mean()).sqrt();
            is_known.then(|| now.mean() / before.mean().max(1.0) / (1.0 + DOUBT * doubt))
        };
        ratio(self.waited, before.waited).or_else(|| ratio(self.all, before.all))
    }

    /// The part of the requests that has certainly waited.
    fn certainly_waits(&self) -> f64 {
        let requests = self.all.requests.max(1.0);
        let waits = self.waited.requests / requests;
        if requests < SOME { 0.0 } else { waits - doubt_of(waits, requests) }
    }

    fn wait_of(&self, ToCome { rate, waits }: ToCome, ratio: f64) -> Option<Nanos> {
        let served = if self.waited.requests >= ENOUGH { self.waited } else { self.all };
        let own = self.between / self.waited.requests.max(1.0);
        let (seen, square) = (served.mean(), served.squares / served.requests.max(1.0));
        let mean = ratio * seen + own;
        // Of a program that is busy all the time nobody sees how often requests come.
        if rate * mean > MOST_BUSY || ratio * self.certainly_waits() > MOST_BUSY {
            return None;
        }
        let variance = ratio * ratio * (square - seen * seen).max(0.0);
        let longest = tail(rate * mean, variance / (mean * mean).max(1.0), waits) * mean;
        let longest = std::time::Duration::try_from_secs_f64(longest / 1e9).ok()?;
        u64::try_from(longest.as_nanos()).ok().map(Nanos)
    }
}

/// The time for which one of 100 requests waits, in means of what a request takes. `busy` is the
/// part of the time in which one is served, `variance` that of their times over the square of the
/// mean, and `waits` that of [`ToCome`].
fn tail(busy: f64, variance: f64, waits: f64) -> f64 {
    /// What a gamma distribution can have. Requests of one length have none.
    const LEAST_VARIANCE: f64 = 1e-4;
    /// Halvings of the range of the root.
    const STEPS: u32 = 50;
    if busy <= 0.0 {
        return 0.0;
    }
    let variance = variance.max(LEAST_VARIANCE);
    let moment = |at: f64| (1.0 - at * variance).powf(-1.0 / variance);
    let (mut root, mut above) = (0.0, 1.0 / variance);
    for _ in 0..STEPS {
        let middle = f64::midpoint(root, above);
        if busy * (moment(middle) - 1.0) < middle {
            root = middle;
        } else {
            above = middle;
        }
    }
    let slope = moment(root) / (1.0 - root * variance);
    let part = waits * (1.0 - busy) / (busy * slope - 1.0);
    let longest = (ONE_IN * part).max(1.0).ln() / root;
    if variance <= 1.0 {
        return longest;
    }
    // Most of those who wait do so behind one long request, for which the tail is not yet right.
    // At a variance of 1 both are the same.
    let mean = (1.0 + variance) / (2.0 * (1.0 - busy));
    longest.max(mean * (ONE_IN * busy * waits).max(1.0).ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that take `took` each, by the time between them in turn.
    fn seen(took: u64, idle: &[u64]) -> (Queueing, Arrivals) {
        let (mut queueing, mut arrivals) = (Queueing::default(), Arrivals::default());
        for &idle in idle.iter().cycle().take(100) {
            queueing.saw(Some(Nanos(idle)), Nanos(took));
            arrivals.saw(Some(Nanos(idle)), Nanos(took));
        }
        (queueing, arrivals)
    }

    /// The wait in parts of 10 us.
    fn wait((queueing, arrivals): &(Queueing, Arrivals), ratio: f64) -> Option<f64> {
        queueing.wait(ratio, arrivals).map(|wait| as_float(wait.0) / 10_000.0)
    }

    #[track_caller]
    fn check(found: Option<f64>, expected: f64) {
        assert!(found.is_some_and(|found| (found - expected).abs() < 0.02), "{found:?}");
    }

    #[test]
    fn one_in_100_waits_for_as_long_as_in_known_queues() {
        // Requests of one length, by the exact distribution (Crommelin 1932).
        for (busy, wait) in [(0.5, 3.336), (0.6, 4.530), (0.8, 10.356)] {
            check(Some(tail(busy, 0.0, 1.0)), wait);
        }
        // Exponential times: P(W > x) = ρ e^(-(1 - ρ) x).
        for busy in [0.1_f64, 0.5, 0.8] {
            check(Some(tail(busy, 1.0, 1.0)), (100.0 * busy).ln() / (1.0 - busy));
        }
        check(Some(tail(0.0, 1.0, 1.0)), 0.0);
        // One request of 100 takes a hundred times as long as each other one. A simulation of the
        // queue gave waits of 42.6 and 49.
        for (busy, least, most) in [(0.1, 30.0, 50.0), (0.2, 40.0, 60.0)] {
            let wait = tail(busy, 24.5, 1.0);
            assert!((least..most).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn requests_that_never_follow_at_once_do_not_wait() {
        let frames = seen(10_000, &[20_000]);
        check(wait(&frames, 1.0), 0.0);
        check(wait(&frames, 2.5), 0.0);
        assert_eq!(wait(&frames, 3.0), None);
        assert_eq!(frames.0.wait_at_most(2.0, &frames.1), Some(Nanos(0)));
    }

    #[test]
    fn longer_requests_wait_longer_and_at_last_do_not_keep_up() {
        // Every other request follows at once, and half of the time is idle.
        let random = seen(10_000, &[0, 20_000]);
        check(wait(&random, 1.0), tail(0.5, 0.0, 1.0));
        check(wait(&random, 1.5), 1.5 * tail(0.75, 0.0, 1.0));
        assert_eq!(wait(&random, 2.0), None);
    }

    #[test]
    fn a_program_is_busy_between_requests_too() {
        // Requests of 10 us that follow after 2 us in turn with such that do after 12: 12 us of 17.
        let between = seen(10_000, &[2_000, 12_000]);
        check(wait(&between, 1.0), 1.2 * tail(12.0 / 17.0, 0.0, 0.5 / (12.0 / 17.0)));
        // 15.5 of 17 would be too busy; without the program's time it would be 13.5.
        assert_eq!(wait(&between, 1.35), None);
    }

    #[test]
    fn bursts_count_by_those_who_wait() {
        // Four at once, and then a long pause: three of four wait, 66 of 100 certainly.
        let bursts = seen(10_000, &[1_000_000, 0, 0, 0]);
        let certain = 0.75 - 2.0 * (0.75_f64 * 0.25 / 100.0).sqrt();
        check(wait(&bursts, 1.0), tail(certain, 0.0, 1.0));
        // Without any pause nothing keeps up.
        assert_eq!(wait(&seen(10_000, &[0]), 0.95), None);
    }

    #[test]
    fn few_requests_leave_a_doubt() {
        // A hundred: they may come three tenths more often.
        let (random, arrivals) = seen(10_000, &[0, 20_000]);
        let found = random.wait_at_most(1.0, &arrivals).map(|wait| as_float(wait.0) / 10_000.0);
        check(found, tail(0.65, 0.0, 1.0));
        // 0.5 × 1.6 × 1.3 is too busy.
        assert!(random.wait(1.6, &arrivals).is_some());
        assert!(random.wait_at_most(1.6, &arrivals).is_none());
    }

    #[test]
    fn what_is_long_ago_says_the_same_and_counts_half() {
        let (mut random, mut arrivals) = seen(10_000, &[0, 20_000]);
        let before = random.wait(1.2, &arrivals);
        random.fade();
        assert_eq!(random.wait(1.2, &arrivals), before);
        assert_eq!(Queueing::default().wait(1.0, &Arrivals::default()), Some(Nanos(0)));
        // The rate doubles, and 1,600 requests later nothing else is known.
        for idle in [0, 10_000].into_iter().cycle().take(1_600) {
            arrivals.saw(Some(Nanos(idle)), Nanos(5_000));
        }
        let rate = arrivals.expected(false).rate * 10_000.0;
        assert!((0.95..=1.05).contains(&rate), "{rate}");
    }
}
