//! The fewest SMs with which the requests of an application meet its latency target.
//!
//! A *request* is work without a pause: from the first launch after a pause to the end of the last
//! launch before the next one. A pause is longer than the grace of the application. Launches
//! that run alone on the device or in slices count like all others.
//!
//! Requests may follow each other without a pause. The program's own *waits* tell them apart: a
//! wait of the host for a stream, an event, the context or a result that it reads back, at whose
//! end nothing of the application is left to run. How many waits a request has is learnt between
//! pauses: the fewest of late ([`WaitsOfRequest`]). Where no pause was seen yet, every wait ends a
//! request.
//! Work that outlasts the target without a pause and without a wait is a missed request, and what
//! follows the next.
//!
//! The target is met while at most 1 of [`MISSES`] requests takes longer. The time for which
//! requests wait in their program counts, by estimate ([`super::queueing`]): a program that took
//! twice as long for each would serve each in time, and never keep up.
//!
//! - **Fewer SMs** follow after [`TRIES`] requests on the same number, if the longest of them, and
//!   a wait before it, would still take at most [`SAFE`] of the target; also if none would take
//!   longer than now by more than [`SAME`], and the program would keep up if that were wrong by a
//!   tenth. The expectation is a prediction of the launches' times, or their rounds of CTAs
//!   ([`super::composition`]). What is measured then corrects it, and at most half of the SMs goes
//!   in one step. Predictions are only a prior: where requests take longer than predicted by more
//!   than a tenth, or miss the target, rounds of CTAs count from then on.
//! - **SMs come back** that were given up last, in one of three cases during the first 40 requests
//!   on fewer. One of them misses the target. Or they take so long that the program might not keep
//!   up with its earlier rate. Or they take longer, and are answered late. What they took tells of
//!   the numbers between.
//! - **More SMs** follow where the target is missed: at once by the time of requests, and after
//!   [`TRIES`] requests by the estimate with waits. The same expectation tells how many. The number
//!   that missed it is not tried again for [`FORGOTTEN`] requests.

use super::as_float;
use super::composition::{Composition, Part, Prior, scaled};
use super::queueing::{Arrivals, Queueing};
use partita_model::{LatencyTarget, Nanos, TargetReport};

/// One request of this many may miss the target: the 99th percentile meets it.
const MISSES: u32 = 100;
/// Requests on one number of SMs before a smaller one is tried.
const TRIES: u32 = 20;
/// The part of the target, in per cent, that an expected time may take.
const SAFE: u64 = 90;
/// A time is the same as another up to this part of that, in per cent.
const SAME: u64 = 102;
/// The part of a predicted time, in per cent, up to which the prediction stands.
const STANDS: u64 = 110;
/// After this many requests, a number of SMs that missed the target is tried again.
const FORGOTTEN: u32 = 1_000;
/// Requests of a window count half when there are twice as many.
const WINDOW: u32 = 500;

/// The request that runs.
#[derive(Clone, Debug)]
struct Running {
    began: Nanos,
    /// The time since the request before it.
    idle: Option<Nanos>,
    /// The most SMs that it had.
    sms: u16,
    made: Composition,
    /// Waits of the host in it so far.
    waits: u32,
    /// Something was launched since the last of them.
    is_fresh: bool,
}

/// The waits of the host in a request: the fewest between two pauses, over the last [`TRIES`] to
/// twice as many pauses.
#[derive(Clone, Copy, Debug, Default)]
struct WaitsOfRequest {
    /// Waits since the last pause.
    since: u32,
    present: Option<u32>,
    before: Option<u32>,
    /// Pauses of the present.
    pauses: u32,
}

impl WaitsOfRequest {
    /// A pause has begun. Whether requests have fewer waits than was known.
    fn paused(&mut self) -> bool {
        let since = std::mem::take(&mut self.since);
        let is_fewer = self.is_known() && since > 0 && since < self.fewest();
        // Work without a wait says nothing.
        if since > 0 {
            self.present = Some(self.present.map_or(since, |present| present.min(since)));
            self.pauses += 1;
        }
        if self.pauses >= TRIES {
            (self.before, self.present, self.pauses) = (self.present, None, 0);
        }
        is_fewer
    }

    fn is_known(self) -> bool {
        self.present.or(self.before).is_some()
    }

    fn fewest(self) -> u32 {
        self.present.into_iter().chain(self.before).min().unwrap_or(1)
    }
}

/// Requests on one number of SMs.
#[derive(Clone, Debug, Default)]
struct Window {
    sms: u16,
    seen: u32,
    missed: u32,
    /// Requests since the longest one was forgotten.
    fresh: u32,
    longest: Nanos,
    /// The launches of the longest one.
    made: Composition,
    /// The longest request that met the target.
    longest_met: Nanos,
    /// How requests follow each other.
    queueing: Queueing,
}

impl Window {
    /// The time within which 99 of 100 requests would be answered, the wait in their program
    /// included, where the longest would take `longest`. `None` where the program would not keep
    /// up.
    fn answered_in(&self, longest: Nanos, arrivals: &Arrivals) -> Option<Nanos> {
        let ratio = as_float(longest.0) / as_float(self.longest.0.max(1));
        Some(longest + self.queueing.wait_at_most(ratio, arrivals)?)
    }

    /// The same on the SMs that it has. Requests that missed the target are counted elsewhere.
    fn answered_now(&self, arrivals: &Arrivals) -> Option<Nanos> {
        Some(self.longest_met + self.queueing.wait(1.0, arrivals)?)
    }

    /// Whether 99 of 100 requests would be answered within `limit`.
    fn answers_within(&self, longest: Nanos, limit: Nanos, arrivals: &Arrivals) -> bool {
        self.answered_in(longest, arrivals).is_some_and(|time| time <= limit)
    }
}

/// What was before the last SMs were given up.
#[derive(Clone, Copy, Debug)]
struct Tried {
    fewest: Option<u16>,
    sms: u16,
    queueing: Queueing,
    /// Whether a prediction told that fewer would do.
    by_prediction: bool,
}

/// Requests took `ratio` times as long on the second number of SMs as on the first.
#[derive(Clone, Copy, Debug)]
struct Measured {
    on: (u16, u16),
    ratio: f64,
}

impl Measured {
    /// How many times as long requests would take on a number of SMs between the two: a part of
    /// their time is inversely proportional to the number (Amdahl, AFIPS 1967).
    fn ratio_on(&self, sms: u16) -> f64 {
        let [from, to, sms] = [self.on.0, self.on.1, sms].map(|sms| 1.0 / f64::from(sms.max(1)));
        1.0 + (self.ratio - 1.0).max(0.0) * (sms - from) / (to - from)
    }
}

/// What requests of one application took, and the SMs that follow.
#[derive(Clone, Debug, Default)]
pub(super) struct RightSize {
    target: Option<LatencyTarget>,
    /// SMs that the application has.
    held: u16,
    running: Option<Running>,
    /// When the last request ended.
    ended: Option<Nanos>,
    window: Window,
    /// How often requests come, whatever SMs they had.
    arrivals: Arrivals,
    waits: WaitsOfRequest,
    /// The longest time that was predicted for a number of SMs, while that is not measured.
    predicted: Option<(u16, Nanos)>,
    /// Predictions were wrong.
    distrusts: bool,
    before: Option<Tried>,
    /// How much longer requests took when SMs were given up last.
    measured: Option<Measured>,
    /// The SMs that meet the target; `None` while that is not known.
    fewest: Option<u16>,
    /// The same when a launch last told of it.
    told: Option<u16>,
    /// The time within which requests were answered on all SMs, by estimate.
    on_all: Nanos,
    /// The largest number that missed it, and the requests since.
    too_few: (u16, u32),
    seen: u64,
    missed: u64,
}

impl RightSize {
    /// Sets the target. Another one begins anew.
    pub(super) fn set_target(&mut self, target: Option<LatencyTarget>) {
        if self.target != target {
            let RightSize { held, told, .. } = *self;
            *self = RightSize { target, held, told, ..RightSize::default() };
        }
    }

    /// Notes the number of SMs that the application has now.
    pub(super) fn holds(&mut self, sms: u16) {
        self.held = sms;
        if let Some(running) = &mut self.running {
            running.sms = running.sms.max(sms);
        }
    }

    /// A launch is queued. Whether the application needs other SMs than at the launch before: what
    /// was found since then, by a wait or a pause, counts too.
    pub(super) fn launched(&mut self, now: Nanos, part: Part, prior: Prior<'_>) -> bool {
        let Some(target) = self.target else { return false };
        let spent = self.running.as_ref().map(|running| now.saturating_sub(running.began));
        if spent.is_some_and(|spent| spent > target.nanos()) {
            self.cut(now, prior);
        }
        let made = Composition::default();
        let idle = self.ended.map(|ended| now.saturating_sub(ended));
        let sms = self.held;
        let fresh = || Running { began: now, idle, sms, made, waits: 0, is_fresh: true };
        let running = self.running.get_or_insert_with(fresh);
        running.is_fresh = true;
        if let Part::Own(size) = part {
            running.made.add(size);
        }
        std::mem::replace(&mut self.told, self.fewest) != self.fewest
    }

    /// A launch that ran alone, or a slice, took so long.
    pub(super) fn took_alone(&mut self, time: Nanos) {
        if let Some(running) = &mut self.running {
            running.made.add_alone(time);
        }
    }

    /// A wait of the host has ended, and the last launch before it at `at`. Nothing is left to run.
    pub(super) fn waited(&mut self, at: Nanos, prior: Prior<'_>) {
        let Some(running) = &mut self.running else { return };
        if !std::mem::replace(&mut running.is_fresh, false) {
            // It waited for the same launches before.
            return;
        }
        running.waits += 1;
        self.waits.since += 1;
        if running.waits >= self.waits.fewest() {
            self.cut(at, prior);
        }
    }

    /// The application paused from `at` on.
    pub(super) fn paused(&mut self, at: Nanos, prior: Prior<'_>) {
        self.cut(at, prior);
        if self.waits.paused() {
            // Several requests were taken for one.
            (self.window, self.arrivals) = (Window::default(), Arrivals::default());
            (self.before, self.measured, self.predicted) = (None, None, None);
        }
    }

    /// The request that runs, if any, ended at `at`.
    fn cut(&mut self, at: Nanos, prior: Prior<'_>) {
        if let (Some(target), Some(running)) = (self.target, self.running.take()) {
            let took = at.saturating_sub(running.began);
            self.ended = Some(at);
            self.record(target.nanos(), took, running, prior);
        }
    }

    /// The fewest SMs that meet the target, where that is known.
    pub(super) fn sms(&self) -> Option<u16> {
        self.fewest
    }

    /// What became of the target, if there is one.
    pub(super) fn report(&self) -> Option<TargetReport> {
        let RightSize { seen, missed, fewest: sms, .. } = *self;
        self.target.map(|target| TargetReport { target, seen, missed, sms })
    }

    fn record(&mut self, target: Nanos, took: Nanos, request: Running, prior: Prior<'_>) {
        let is_missed = took > target;
        self.seen += 1;
        self.missed += u64::from(is_missed);
        let (_, since) = &mut self.too_few;
        *since += 1;
        if *since >= FORGOTTEN {
            (self.too_few, self.measured) = ((0, 0), None);
        }
        if self.window.sms != request.sms {
            self.window = Window { sms: request.sms, ..Window::default() };
        }
        let window = &mut self.window;
        if window.seen >= 2 * WINDOW {
            (window.seen, window.missed) = (window.seen / 2, window.missed / 2);
            (window.fresh, window.longest, window.longest_met) = (0, Nanos(0), Nanos(0));
            window.queueing.fade();
        }
        window.seen += 1;
        window.missed += u32::from(is_missed);
        window.fresh += 1;
        window.queueing.saw(request.idle, took);
        self.arrivals.saw(request.idle, took);
        if !is_missed {
            window.longest_met = window.longest_met.max(took);
        }
        if took >= window.longest {
            (window.longest, window.made) = (took, request.made);
        }
        if self.fewest == Some(self.window.sms) && self.window.seen > 2 * TRIES {
            self.before = None;
        }
        let is_trial = self.is_trial();
        let window = &self.window;
        let is_known = window.fresh >= TRIES;
        // All SMs may not be enough either.
        let limit = target.max(Nanos(self.on_all.0.saturating_mul(STANDS) / 100));
        let enough = if is_trial { TRIES / 2 } else { TRIES };
        let has_fewer = window.fresh >= enough && self.fewest.is_some();
        let is_slow =
            has_fewer && window.answered_now(&self.arrivals).is_none_or(|time| time > limit);
        let is_missed = window.missed * MISSES > window.seen;
        // The first requests on fewer SMs may be late though they take no longer: then more of them
        // came, and the SMs are not to blame.
        if is_trial && (is_missed || self.falls_behind(is_slow)) {
            self.step_back();
        } else if is_missed || is_slow && !is_trial {
            self.grow(target);
        } else if is_known {
            self.check_prediction();
            self.shrink(target, prior);
        }
    }

    /// Holds the time that was predicted for the window's SMs against what was measured.
    fn check_prediction(&mut self) {
        let Window { sms, longest, .. } = self.window;
        if let Some((_, predicted)) = self.predicted.take_if(|(on, _)| *on == sms) {
            self.distrusts |= longest.0 > predicted.0.saturating_mul(STANDS) / 100;
        }
    }

    /// Whether these are the first requests on fewer SMs.
    fn is_trial(&self) -> bool {
        let sms = self.window.sms;
        self.fewest == Some(sms) && self.before.is_some_and(|before| sms < before.sms)
    }

    /// Whether they take so long that the program might not keep up, or longer than before while
    /// requests are answered late.
    fn falls_behind(&self, is_slow: bool) -> bool {
        let Some(Tried { queueing, .. }) = &self.before else { return false };
        let longer = self.window.queueing.longer_than(queueing);
        longer.is_some_and(|ratio| {
            queueing.wait_at_most(ratio, &self.arrivals).is_none()
                || is_slow && ratio > as_float(SAME) / 100.0
        })
    }

    /// Takes the SMs back that were given up last.
    fn step_back(&mut self) {
        if let (Some(before), Some(tried)) = (self.before.take(), self.fewest) {
            let Tried { fewest, sms, queueing, by_prediction } = before;
            let ratio = self.window.queueing.longer_than(&queueing);
            self.measured = ratio.map(|ratio| Measured { on: (sms, tried), ratio });
            self.too_few = (self.too_few.0.max(tried), 0);
            self.fewest = fewest;
            self.predicted = None;
            self.distrusts |= by_prediction;
            self.window = Window::default();
        }
    }

    /// The target is missed on the window's SMs.
    fn grow(&mut self, target: Nanos) {
        let window = &self.window;
        let Window { sms, longest, made, .. } = window;
        // Where others' minima leave it less than it may have, the number says nothing.
        let Some(fewest) = self.fewest.filter(|fewest| sms >= fewest) else { return };
        // A prediction has led here, or would not lead further: more SMs are to help at once.
        let safe = |on: &u16| {
            let expected = made.expected(*longest, (*sms, *on), None);
            window.answers_within(expected, part(target), &self.arrivals)
        };
        let most = u16::try_from(made.largest()).unwrap_or(u16::MAX);
        self.too_few = (self.too_few.0.max(fewest), 0);
        // Beyond an SM for each CTA nothing grows faster: all that it can use.
        self.fewest = (fewest.max(*sms) + 1..most).find(safe);
        self.distrusts |= self.predicted.take().is_some();
        (self.before, self.measured) = (None, None);
        // While the program did not keep up, requests came more often than was seen.
        (self.window, self.arrivals) = (Window::default(), Arrivals::default());
    }

    /// The target is met on the window's SMs.
    fn shrink(&mut self, target: Nanos, prior: Prior<'_>) {
        let prior = Some(prior).filter(|_| !self.distrusts);
        let window = &self.window;
        let &Window { sms, longest, ref made, .. } = window;
        let measured = self.measured.filter(|measured| measured.on.0 == sms);
        let expected = |on: u16| match measured {
            Some(measured) if on >= measured.on.1 => scaled(longest, measured.ratio_on(on)),
            _ => made.expected(longest, (sms, on), prior),
        };
        let Some(now) = window.answered_now(&self.arrivals) else { return };
        let is_same = |time: Nanos| time.0 <= longest.0.saturating_mul(SAME) / 100;
        // The prediction that SMs make no difference may be too low.
        let keeps_up =
            window.queueing.wait_at_most(as_float(STANDS) / 100.0, &self.arrivals).is_some();
        let is_met = |time: Nanos| {
            keeps_up && time <= part(target) && is_same(time)
                || window.answers_within(time, part(target), &self.arrivals)
        };
        let least = (self.too_few.0 + 1).max(sms / 2).max(1);
        let found = (least..sms).find(|on| is_met(expected(*on)));
        if let Some(found) = found.filter(|found| self.fewest.is_none_or(|now| *found < now)) {
            if self.fewest.is_none() {
                self.on_all = now;
            }
            self.predicted = Some((found, expected(found))).filter(|_| prior.is_some());
            // The first number found may not have been tried yet.
            let untried = self.before.filter(|before| before.sms == sms);
            let fewest = untried.map_or(self.fewest, |before| before.fewest);
            let by_prediction = prior.is_some() && measured.is_none();
            let queueing = window.queueing;
            self.before = Some(Tried { fewest, sms, queueing, by_prediction });
            self.fewest = Some(found);
        }
    }
}

/// The part of a target that an expected time may take.
fn part(target: Nanos) -> Nanos {
    Nanos(target.0.saturating_mul(SAFE) / 100)
}

#[cfg(test)]
#[path = "right_size_tests.rs"]
mod tests;
