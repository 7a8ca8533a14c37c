//! How long requests wait inside their program, which the engine does not see.
//!
//! A program may take requests one after the other. A request that comes while another is served
//! then waits in the program, and its first launch comes late. The engine sees only when requests
//! begin and end, and estimates the wait from these:
//!
//! - A request that begins within a quarter of the mean time of requests after the end of the one
//!   before has waited. The part of such requests is `q`.
//! - Requests arrive at rate `λ`, and take `S`: what the engine sees, and the time that the program
//!   itself needs between two requests. That is the mean distance of a request that has waited from
//!   the one before. The program is busy for the part `ρ = λ E[S]` of the time; where requests come
//!   in bursts, `q` is greater and counts in its place.
//! - A request that waits does so for `E[S²] / (2 E[S] (1 - ρ))` on the average (Pollaczek and
//!   Khinchine; Kleinrock, *Queueing Systems* 1, 1975, chapter 5). Waits are taken to be
//!   distributed exponentially: one in 100 requests waits for longer than `ln(100 q)` times that.
//!
//! The first request after a pause may wait for SMs that were lent. Only requests that have waited
//! count in `S`, where there are enough of them: in a busy time the first request is an exception
//! that does not change how fast later requests follow (Welch, *Operations Research* 12, 1964).
//!
//! Whether fewer SMs would do is asked for the highest rate that the requests seen leave possible:
//! of 20 independent ones the rate is known to within 45 %.
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
/// The rate of `n` requests that arrive independently may be higher than it seems by this / √n: two
/// standard deviations of their mean distance.
const DOUBT: f64 = 2.0;
/// From this many requests that have waited on, only such requests count.
const ENOUGH: f64 = 10.0;
/// From this number of requests that have waited on, they are compared with those on other SMs.
const FEW: f64 = 3.0;

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

/// Requests of an application as they follow each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queueing {
    all: Served,
    waited: Served,
    /// Time between requests, in nanoseconds.
    idle: f64,
    /// The part of it before requests that have waited: the program's own time.
    between: f64,
}

impl Queueing {
    /// A request took `took`, and began `idle` after the one before it.
    pub(super) fn saw(&mut self, idle: Option<Nanos>, took: Nanos) {
        let took = as_float(took.0);
        self.all.add(took);
        if let Some(idle) = idle.map(|idle| as_float(idle.0)) {
            self.idle += idle;
            if idle <= AT_ONCE * self.all.mean() {
                self.waited.add(took);
                self.between += idle;
            }
        }
    }

    /// What was seen counts half.
    pub(super) fn fade(&mut self) {
        let Queueing { all, waited, idle, between } = *self;
        let (all, waited) = (all.halved(), waited.halved());
        *self = Queueing { all, waited, idle: idle / 2.0, between: between / 2.0 };
    }

    /// The time for which one of 100 requests would wait if each took `ratio` times as long. `None`
    /// where the program would not keep up.
    pub(super) fn wait(&self, ratio: f64) -> Option<Nanos> {
        self.wait_where(ratio, 1.0)
    }

    /// The same where requests come as often as the few that were seen leave possible.
    pub(super) fn wait_at_most(&self, ratio: f64) -> Option<Nanos> {
        self.wait_where(ratio, 1.0 + DOUBT / self.all.requests.max(1.0).sqrt())
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

    fn wait_where(&self, ratio: f64, more: f64) -> Option<Nanos> {
        let served = if self.waited.requests >= ENOUGH { self.waited } else { self.all };
        let own = self.between / self.waited.requests.max(1.0);
        let rate = self.all.requests / (self.all.time + self.idle).max(1.0);
        let waits = ratio * self.waited.requests / self.all.requests.max(1.0);
        let seen = ratio * served.mean();
        let busy = (more * rate * (seen + own)).max(waits);
        if busy > MOST_BUSY {
            return None;
        }
        let square = ratio * ratio * served.squares / served.requests.max(1.0);
        let square = square + 2.0 * seen * own + own * own;
        let mean = square / (2.0 * (seen + own).max(1.0) * (1.0 - busy));
        let longest = mean * (ONE_IN * waits).max(1.0).ln();
        let longest = std::time::Duration::try_from_secs_f64(longest / 1e9).ok()?;
        u64::try_from(longest.as_nanos()).ok().map(Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests that take `took` each, by the time between them in turn.
    fn seen(took: u64, idle: &[u64]) -> Queueing {
        let mut queueing = Queueing::default();
        for &idle in idle.iter().cycle().take(100) {
            queueing.saw(Some(Nanos(idle)), Nanos(took));
        }
        queueing
    }

    #[track_caller]
    fn check(queueing: &Queueing, ratio: f64, expected: Option<f64>) {
        let found = queueing.wait(ratio).map(|wait| as_float(wait.0));
        match (found, expected) {
            (Some(found), Some(expected)) => {
                assert!((found - expected).abs() <= 1.0, "{found}, not {expected}");
            }
            _ => assert_eq!(found, expected),
        }
    }

    #[test]
    fn requests_that_never_follow_at_once_do_not_wait() {
        let frames = seen(10_000, &[20_000]);
        check(&frames, 1.0, Some(0.0));
        check(&frames, 2.5, Some(0.0));
        check(&frames, 3.0, None);
    }

    #[test]
    fn waits_are_those_of_pollaczek_and_khinchine() {
        // Every other request follows at once, and half of the time is idle.
        let random = seen(10_000, &[0, 20_000]);
        // E[S^2] / (2 E[S] (1 - 1/2)) = 10 us, times ln 50.
        check(&random, 1.0, Some(10_000.0 * 50_f64.ln()));
        // 15 us / (2 (1 - 3/4)), times ln 75.
        check(&random, 1.5, Some(30_000.0 * 75_f64.ln()));
        check(&random, 2.0, None);
    }

    #[test]
    fn a_program_is_busy_between_requests_too() {
        // Requests of 10 us that follow after 2 us in turn with such that do after 12.
        let between = seen(10_000, &[2_000, 12_000]);
        // 12 us of 17 each.
        let wait = 12_000.0 / (2.0 * (1.0 - 12.0 / 17.0)) * 50_f64.ln();
        check(&between, 1.0, Some(wait));
        // 15.5 of 17 would be too busy; without the program's time it would be 13.5.
        check(&between, 1.35, None);
    }

    #[test]
    fn bursts_count_by_those_who_wait() {
        // Four at once, and then a long pause.
        let bursts = seen(10_000, &[1_000_000, 0, 0, 0]);
        check(&bursts, 1.0, Some(20_000.0 * 75_f64.ln()));
        // Without any pause nothing keeps up.
        check(&seen(10_000, &[0]), 0.95, None);
    }

    #[test]
    fn few_requests_leave_a_doubt() {
        // A hundred: they may come a fifth more often.
        let random = seen(10_000, &[0, 20_000]);
        let wait = |busy: f64| 10_000.0 / (2.0 * (1.0 - busy)) * 50_f64.ln();
        let found = random.wait_at_most(1.0).map(|wait| as_float(wait.0));
        assert!(found.is_some_and(|found| (found - wait(0.6)).abs() <= 1.0), "{found:?}");
        // 0.5 × 1.6 × 1.2 is too busy.
        assert!(random.wait(1.6).is_some() && random.wait_at_most(1.6).is_none());
    }

    #[test]
    fn what_fades_says_the_same() {
        let mut random = seen(10_000, &[0, 20_000]);
        let before = random.wait(1.2);
        random.fade();
        assert_eq!(random.wait(1.2), before);
        assert_eq!(Queueing::default().wait(1.0), Some(Nanos(0)));
    }
}
