//! Measuring intervals: when one starts, when it ends, what was done in it.
//!
//! An interval starts when the last worker has followed the decision before. Then comes a
//! warm-up, in which caches fill and queues settle, then the measurement, which [`mod@marks`] says
//! the end of: eight rounds of the CTAs in flight, or three that are alike. Waiting for workers
//! is bounded: one that never reaches a task border does not keep a policy from going on. CTAs
//! that are counted take longer than others: an interval waits until there are none, and begins
//! again where some come, at most [`RESTARTS`] times.

mod marks;

use crate::models::float;
use crate::{Awaits, IntervalRequest};
use marks::{Done, Marks};
use partita_model::{ApplicationId, Cycles, IntervalRecord, Nanos, Progress};
use std::collections::BTreeMap;

pub(crate) use marks::Reading;

/// Restarts of one interval because of counted CTAs: a program may bring new kernels for ever.
const RESTARTS: u8 = 4;
/// Looks in the shortest length of an interval: an edge is late by a sixteenth of it at most.
const LOOKS: u64 = 16;

/// The SM clock, to convert between cycles and device time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Clock {
    pub(crate) khz: u32,
}

impl Clock {
    /// So many cycles as device time, rounded up.
    pub(crate) fn nanos(self, cycles: Cycles) -> Nanos {
        let nanos = (u128::from(cycles.0) * 1_000_000).div_ceil(u128::from(self.khz.max(1)));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// So much device time in cycles, rounded down.
    pub(crate) fn cycles(self, nanos: Nanos) -> Cycles {
        let cycles = u128::from(nanos.0) * u128::from(self.khz) / 1_000_000;
        Cycles(u64::try_from(cycles).unwrap_or(u64::MAX))
    }
}

/// An interval that has ended.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Measured {
    pub(crate) interval: IntervalRecord,
    pub(crate) done: BTreeMap<ApplicationId, Done>,
}

type Readings = BTreeMap<ApplicationId, Reading>;

#[derive(Clone, PartialEq, Debug)]
enum Phase {
    /// Workers still follow the decision.
    Settling { since: Nanos },
    /// Caches fill.
    WarmUp { settled: Nanos, before: Readings },
    /// It counts.
    Measuring {
        settled: Nanos,
        start: Nanos,
        warm_up: BTreeMap<ApplicationId, u64>,
        marks: BTreeMap<ApplicationId, Marks>,
    },
}

/// Keeps one interval at a time.
#[derive(Clone, Debug)]
pub(crate) struct Intervals {
    clock: Clock,
    settle_limit: Nanos,
    open: Option<(IntervalRequest, Phase)>,
    /// Since when workers have not followed, once that is too long. Told once.
    overdue: Option<Nanos>,
    /// How often the present interval has begun again because of CTAs that are counted.
    restarts: u8,
}

impl Intervals {
    pub(crate) fn new(clock: Clock, settle_limit: Nanos) -> Self {
        Intervals { clock, settle_limit, open: None, overdue: None, restarts: 0 }
    }

    /// Ends the present interval, if there is one, and begins the next, if one is wanted: with a
    /// warm-up after a change.
    pub(crate) fn begin(
        &mut self,
        now: Nanos,
        request: Option<IntervalRequest>,
        changed: bool,
        readings: &Readings,
    ) {
        self.restarts = 0;
        self.open = request.map(|request| {
            let phase = if changed {
                Phase::Settling { since: now }
            } else {
                Phase::Measuring {
                    settled: now,
                    start: now,
                    warm_up: BTreeMap::new(),
                    marks: marks(now, readings),
                }
            };
            (request, phase)
        });
    }

    /// Begins the present interval again: nobody had work for so long that the interval would say
    /// more of that than of anything else.
    pub(crate) fn restart(&mut self, now: Nanos) {
        if let Some((_, phase)) = &mut self.open {
            *phase = Phase::Settling { since: now };
        }
    }

    /// Whose CTAs the present interval waits for.
    pub(crate) fn awaits(&self) -> Awaits {
        self.open.as_ref().map(|(request, _)| request.awaits).unwrap_or_default()
    }

    /// The moment since which workers have been late, once per decision.
    pub(crate) fn take_overdue(&mut self) -> Option<Nanos> {
        self.overdue.take()
    }

    /// Looks at the present state; answers where the interval has ended.
    pub(crate) fn observe(
        &mut self,
        now: Nanos,
        settled: bool,
        readings: &Readings,
    ) -> Option<Measured> {
        let (request, phase) = self.open.as_mut()?;
        let counting = readings.values().any(|reading| reading.counting);
        if counting && !matches!(phase, Phase::Settling { .. }) && self.restarts < RESTARTS {
            self.restarts += 1;
            *phase = Phase::Settling { since: now };
        }
        match phase {
            Phase::Settling { since } => {
                let late = now.saturating_sub(*since) >= self.settle_limit;
                if late && !settled {
                    self.overdue = Some(*since);
                }
                if settled && !counting || late {
                    *phase = Phase::WarmUp { settled: now, before: readings.clone() };
                }
                None
            }
            Phase::WarmUp { settled, before } => {
                if now.saturating_sub(*settled) >= self.clock.nanos(request.warm_up) {
                    let warm_up = readings
                        .iter()
                        .map(|(&id, reading)| {
                            let earlier = before.get(&id).copied().unwrap_or_default();
                            (id, reading.total.ctas.saturating_sub(earlier.total.ctas))
                        })
                        .collect();
                    let settled = *settled;
                    *phase = Phase::Measuring {
                        settled,
                        start: now,
                        warm_up,
                        marks: marks(now, readings),
                    };
                }
                None
            }
            Phase::Measuring { settled, start, warm_up, marks } => {
                for (&id, &reading) in readings {
                    marks.entry(id).or_insert_with(|| Marks::new(now, reading)).see(now, reading);
                }
                let elapsed = now.saturating_sub(*start);
                let at_least = self.clock.nanos(request.at_least);
                let awaited =
                    |id: &ApplicationId| readings.get(id).is_some_and(|reading| reading.awaited);
                let enough = marks
                    .iter()
                    .filter(|(id, _)| awaited(id))
                    .all(|(_, marks)| marks.enough(now, request, at_least));
                if !(elapsed >= at_least && enough || elapsed >= self.clock.nanos(request.at_most))
                {
                    return None;
                }
                let cycles = self.clock.cycles(elapsed).0;
                let interval =
                    IntervalRecord { settled: *settled, start: *start, end: now, cycles };
                let warm_up = |id| warm_up.get(id).copied().unwrap_or(0);
                let done =
                    marks.iter().map(|(id, marks)| (*id, marks.done(now, warm_up(id)))).collect();
                self.open = None;
                Some(Measured { interval, done })
            }
        }
    }

    /// When to look again at the latest.
    pub(crate) fn next_at(&self, now: Nanos) -> Option<Nanos> {
        let (request, phase) = self.open.as_ref()?;
        let soon =
            Nanos(now.0.saturating_add((self.clock.nanos(request.at_least).0 / LOOKS).max(1)));
        let at = |from: Nanos, cycles| Nanos(from.0.saturating_add(self.clock.nanos(cycles).0));
        Some(match phase {
            Phase::Settling { .. } => soon,
            Phase::WarmUp { settled, .. } => at(*settled, request.warm_up),
            Phase::Measuring { start, .. } => soon.min(at(*start, request.at_most)),
        })
    }
}

fn marks(now: Nanos, readings: &Readings) -> BTreeMap<ApplicationId, Marks> {
    readings.iter().map(|(&id, &reading)| (id, Marks::new(now, reading))).collect()
}

/// What an application did, and how long it had work to do: a speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Speed {
    pub(crate) progress: Progress,
    pub(crate) busy_cycles: u64,
}

impl Speed {
    /// This speed ÷ another, in warp instructions where both know them, in CTAs otherwise. `None`
    /// where one of them says nothing: no time, or no work in the other.
    pub(crate) fn relative_to(&self, other: &Speed) -> Option<f64> {
        if self.busy_cycles == 0 || other.busy_cycles == 0 {
            return None;
        }
        let instructions =
            |speed: &Speed| speed.progress.traffic.map(|traffic| traffic.warp_instructions);
        let (mine, others) = match (instructions(self), instructions(other)) {
            (Some(mine), Some(others)) if others > 0 => (mine, others),
            _ => (self.progress.ctas, other.progress.ctas),
        };
        let per_cycle = |work, cycles| float(work) / float(cycles);
        (others > 0)
            .then(|| per_cycle(mine, self.busy_cycles) / per_cycle(others, other.busy_cycles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::Traffic;

    const REQUEST: IntervalRequest = IntervalRequest {
        warm_up: Cycles(100),
        at_least: Cycles(200),
        ctas: 64,
        at_most: Cycles(1000),
        awaits: Awaits::Everybody,
        launches: true,
    };

    /// Applications with CTAs completed and in flight; who has none in flight is not waited for.
    fn readings(list: &[(u32, u64, u64)]) -> Readings {
        let reading = |ctas, in_flight| Reading {
            total: Progress { ctas, traffic: None },
            busy: Nanos(0),
            in_flight,
            launched: 0,
            awaited: in_flight > 0,
            counting: false,
        };
        list.iter()
            .map(|&(id, ctas, in_flight)| (ApplicationId(id), reading(ctas, in_flight)))
            .collect()
    }

    /// A clock of 1 GHz: a cycle is a nanosecond.
    fn intervals() -> Intervals {
        let mut intervals = Intervals::new(Clock { khz: 1_000_000 }, Nanos(5_000));
        intervals.begin(Nanos(0), Some(REQUEST), true, &Readings::new());
        intervals
    }

    #[test]
    fn waits_for_workers_then_warms_up_then_measures() {
        let mut intervals = intervals();
        for (now, settled, ctas) in
            [(10, false, 0), (50, true, 10), (149, true, 15), (150, true, 20)]
        {
            assert_eq!(
                intervals.observe(Nanos(now), settled, &readings(&[(1, ctas, 1)])),
                None,
                "{now}"
            );
        }
        assert_eq!(intervals.next_at(Nanos(150)), Some(Nanos(150 + 200 / 16)));
        for (now, ctas) in [(170, 30), (369, 90)] {
            assert_eq!(
                intervals.observe(Nanos(now), true, &readings(&[(1, ctas, 1)])),
                None,
                "{now}"
            );
        }
        let measured = intervals.observe(Nanos(370), true, &readings(&[(1, 100, 1)])).unwrap();
        let interval =
            IntervalRecord { settled: Nanos(50), start: Nanos(150), end: Nanos(370), cycles: 220 };
        assert_eq!(measured.interval, interval);
        let done = measured.done[&ApplicationId(1)];
        assert_eq!((done.progress.ctas, done.span, done.warm_up_ctas), (70, Nanos(200), 10));
        assert_eq!(intervals.next_at(Nanos(400)), None);
    }

    /// Runs an interval in which an application completes `burst` CTAs at once every `period`;
    /// answers what was measured.
    fn measure(burst: u64, period: u64, phase: u64, in_flight: u64) -> Option<(u64, Done)> {
        let mut intervals = intervals();
        let mut now = 0;
        while now < 3_000 {
            let totals = readings(&[(1, (now + phase) / period * burst, in_flight)]);
            if let Some(measured) = intervals.observe(Nanos(now), true, &totals) {
                return Some((measured.interval.cycles, measured.done[&ApplicationId(1)]));
            }
            now = intervals.next_at(Nanos(now)).unwrap().0;
        }
        None
    }

    #[test]
    fn bursts_are_counted_whole() {
        for phase in 0..80 {
            let (cycles, done) = measure(100, 80, phase, 100).unwrap();
            assert!(cycles < 1_000, "{cycles}");
            let rounds = done.progress.ctas / 100;
            assert_eq!(done.progress.ctas % 100, 0, "whole rounds");
            assert!((3..=8).contains(&rounds), "{rounds}");
            // An edge is seen up to a sixteenth of 200 cycles late.
            assert!(done.span.0.abs_diff(80 * rounds) <= 13, "{phase}: {done:?}");
        }
    }

    /// CTAs of a burst do not end at one moment.
    #[test]
    fn bursts_that_last_are_counted_whole() {
        for phase in 0..80 {
            let mut intervals = intervals();
            let (mut now, period) = (0_u64, 80);
            let done = loop {
                // 100 CTAs in the last 30 of 80 ns.
                let (rounds, within) = ((now + phase) / period, (now + phase) % period);
                let ctas = rounds * 100 + within.saturating_sub(50) * 100 / 30;
                let measured = intervals.observe(Nanos(now), true, &readings(&[(1, ctas, 100)]));
                if let Some(measured) = measured {
                    break measured.done[&ApplicationId(1)];
                }
                now = intervals.next_at(Nanos(now)).unwrap().0;
            };
            // Cut anywhere in a burst it is up to 8 % off.
            let (expected, ctas) = (done.span.0 * 100, done.progress.ctas * period);
            assert!(ctas.abs_diff(expected) * 32 < expected, "{phase}: {done:?}");
        }
    }

    /// Measures launches of `launched` CTAs, of which a part `done` is complete after a part of
    /// `period`; answers CTAs a microsecond.
    fn measure_launches(
        request: IntervalRequest,
        launched: u64,
        period: u64,
        phase: u64,
        done: impl Fn(f64) -> f64,
    ) -> f64 {
        let mut intervals = Intervals::new(Clock { khz: 1_000_000 }, Nanos(5_000));
        intervals.begin(Nanos(0), Some(request), true, &Readings::new());
        let mut now = 0_u64;
        loop {
            let (launches, within) = ((now + phase) / period, (now + phase) % period);
            let part = (done(float(within) / float(period)) * float(launched)).floor();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a few hundred"
            )]
            let mut readings = readings(&[(1, launches * launched + part as u64, 10)]);
            readings.values_mut().for_each(|reading| reading.launched = launched);
            if let Some(measured) = intervals.observe(Nanos(now), true, &readings) {
                let done = measured.done[&ApplicationId(1)];
                return float(done.progress.ctas) / float(done.span.0) * 1000.0;
            }
            now = intervals.next_at(Nanos(now)).unwrap().0;
        }
    }

    #[test]
    fn classes_come_from_whole_launches() {
        // The first half of 150 CTAs takes three times as long as the second.
        let half_slow = |part: f64| if part < 0.75 { part / 1.5 } else { part * 2.0 - 1.0 };
        let range = |request| {
            let speeds =
                (0..300).map(|phase| measure_launches(request, 150, 300, phase, half_slow));
            speeds.fold((f64::MAX, 0.0_f64), |(least, most), speed| {
                (least.min(speed), most.max(speed))
            })
        };
        let request = IntervalRequest { ctas: 80, ..REQUEST };
        let (least, most) = range(request);
        assert!(least > 460.0 && most < 540.0, "500 is right: {least} to {most}");
        let (least, most) = range(IntervalRequest { launches: false, ..request });
        assert!(least < 400.0 && most > 550.0, "without it is anything: {least} to {most}");
    }

    #[test]
    fn pauses_are_waited_for() {
        // Nothing for two thirds of 900 ns, then 40 rounds: an interval in these alone would see
        // three times the speed.
        let late = |part: f64| ((part - 2.0 / 3.0) * 3.0).max(0.0);
        let request = IntervalRequest { at_most: Cycles(4_000), launches: false, ..REQUEST };
        // Measuring begins 112 ns later, in the first half of the pause: what begins with the
        // rounds sees none.
        for phase in (0..300).map(|phase| phase + 900 - 112) {
            let speed = measure_launches(request, 400, 900, phase, late);
            assert!((speed / (400.0 / 0.9) - 1.0).abs() < 0.1, "{phase}: {speed}");
        }
    }

    #[test]
    fn waits_for_those_that_get_on_but_not_for_ever() {
        let unawaited = measure(1, 1, 0, 0).unwrap().0;
        assert!((200..=212).contains(&unawaited), "nobody is waited for: {unawaited}");
        assert_eq!(measure(1, 100, 0, 1).unwrap().0, 1000, "64 CTAs do not come in time");
        let (cycles, done) = measure(0, 1, 0, 1).unwrap();
        assert_eq!((cycles, done.progress.ctas, done.span), (1000, 0, Nanos(1000)));
    }

    #[test]
    fn an_interval_that_begins_again_has_forgotten() {
        let mut intervals = intervals();
        for (now, ctas) in [(50, 10), (150, 20), (170, 30)] {
            assert_eq!(intervals.observe(Nanos(now), true, &readings(&[(1, ctas, 1)])), None);
        }
        intervals.restart(Nanos(9_000));
        for (now, ctas) in [(9_010, 40), (9_110, 50), (9_120, 60), (9_300, 150)] {
            assert_eq!(intervals.observe(Nanos(now), true, &readings(&[(1, ctas, 1)])), None);
        }
        let measured = intervals.observe(Nanos(9_320), true, &readings(&[(1, 160, 1)])).unwrap();
        assert_eq!(
            (measured.interval.settled, measured.interval.start),
            (Nanos(9_010), Nanos(9_110))
        );
        assert_eq!(measured.done[&ApplicationId(1)].progress.ctas, 100);
    }

    #[test]
    fn ctas_that_are_counted_are_not_measured() {
        let mut intervals = intervals();
        let counting = |counting, ctas| {
            let mut readings = readings(&[(1, ctas, 1)]);
            readings.values_mut().for_each(|reading| reading.counting = counting);
            readings
        };
        let mut see = |now, is, ctas| intervals.observe(Nanos(now), true, &counting(is, ctas));
        for (now, is, ctas) in
            [(10, true, 10), (90, true, 90), (100, false, 100), (200, false, 110)]
        {
            assert_eq!(see(now, is, ctas), None);
        }
        // A new kernel comes in the midst of it.
        for (now, is, ctas) in
            [(210, true, 120), (300, false, 130), (400, false, 140), (410, false, 150)]
        {
            assert_eq!(see(now, is, ctas), None);
        }
        let measured = see(620, false, 300).unwrap();
        assert_eq!((measured.interval.settled, measured.interval.start), (Nanos(300), Nanos(400)));
        assert_eq!(measured.done[&ApplicationId(1)].progress.ctas, 150);
        // For ever it does not wait.
        let mut intervals = self::intervals();
        let ends = (0..)
            .map(|step| step * 50)
            .find(|now| intervals.observe(Nanos(*now), true, &counting(true, *now)).is_some());
        assert!(ends.unwrap() <= 10 * 5_000, "{ends:?}");
    }

    #[test]
    fn workers_that_never_follow_are_told_of_once() {
        let mut intervals = intervals();
        assert_eq!(intervals.observe(Nanos(4_999), false, &Readings::new()), None);
        assert_eq!(intervals.take_overdue(), None);
        assert_eq!(intervals.observe(Nanos(5_000), false, &Readings::new()), None);
        assert_eq!((intervals.take_overdue(), intervals.take_overdue()), (Some(Nanos(0)), None));
        assert_eq!(intervals.observe(Nanos(5_100), false, &Readings::new()), None);
        assert!(intervals.observe(Nanos(5_300), false, &Readings::new()).is_some());
    }

    #[test]
    fn absurd_readings_do_no_harm() {
        let mut intervals = intervals();
        let most = u64::MAX;
        assert_eq!(intervals.observe(Nanos(most), true, &readings(&[(1, most, most)])), None);
        assert_eq!(intervals.observe(Nanos(0), true, &readings(&[])), None);
        assert_eq!(intervals.observe(Nanos(most), true, &readings(&[(2, 0, 1)])), None);
        assert!(intervals.next_at(Nanos(most)).is_some());
        let speed =
            |ctas, busy_cycles| Speed { progress: Progress { ctas, traffic: None }, busy_cycles };
        assert_eq!(speed(5, 10).relative_to(&speed(0, 10)), None);
        assert_eq!(speed(5, 0).relative_to(&speed(5, 10)), None);
        assert!(speed(most, 1).relative_to(&speed(1, most)).unwrap().is_finite());
    }

    /// Programs that bring new kernels for ever begin an interval again four times.
    #[test]
    fn restarts_are_bounded() {
        let mut intervals = intervals();
        for (step, counting) in (0..20).zip([false, true].into_iter().cycle()) {
            let mut readings = readings(&[(1, 0, 1)]);
            readings.values_mut().for_each(|reading| reading.counting = counting);
            assert_eq!(intervals.observe(Nanos(step), true, &readings), None);
        }
        assert_eq!(intervals.restarts, 4);
    }

    #[test]
    fn speeds_compare_by_instructions_where_both_have_some() {
        let speed = |ctas, instructions: Option<u64>, busy_cycles| {
            let traffic = instructions
                .map(|warp_instructions| Traffic { warp_instructions, ..Traffic::default() });
            Speed { progress: Progress { ctas, traffic }, busy_cycles }
        };
        let relative = |mine, others| speed(5, mine, 10).relative_to(&speed(50, others, 20));
        // 100 in 10 cycles by 50 in 20; or 5 CTAs in 10 by 50 in 20.
        for (mine, others, expected) in [
            (Some(100), Some(50), 4.0),
            (Some(100), None, 0.2),
            (None, Some(50), 0.2),
            (Some(100), Some(0), 0.2),
        ] {
            let found = relative(mine, others).unwrap();
            assert!((found - expected).abs() < 1e-12, "{mine:?} {others:?}: {found}");
        }
    }
}
