//! Measuring windows: when one starts, when it ends, what was done in it.
//!
//! A window starts once the last worker has followed the decision before. Then comes a warm-up, in which caches fill and
//! queues settle, then the measurement. Waiting for workers is bounded too: one that never reaches a task border must
//! not keep a policy from going on.

use crate::WindowRequest;
use crate::bandwidth::float;
use partita_model::{ApplicationId, Cycles, Nanos, Progress, Traffic, WindowRecord};
use std::collections::BTreeMap;

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

/// What the windows look at: one application at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reading {
    /// Work done since it came.
    pub(crate) total: Progress,
    /// Device time with work since it came.
    pub(crate) busy: Nanos,
    /// Whether a window should wait for its CTAs.
    pub(crate) awaited: bool,
}

/// What one application did in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Done {
    pub(crate) progress: Progress,
    pub(crate) busy: Nanos,
    pub(crate) warm_up_ctas: u64,
}

/// A window that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Measured {
    pub(crate) window: WindowRecord,
    pub(crate) done: BTreeMap<ApplicationId, Done>,
}

type Readings = BTreeMap<ApplicationId, Reading>;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Phase {
    /// Workers still follow the decision.
    Settling { since: Nanos },
    /// Caches fill.
    WarmUp { settled: Nanos, before: Readings },
    /// It counts.
    Measuring { settled: Nanos, start: Nanos, warm_up: BTreeMap<ApplicationId, u64>, before: Readings },
}

/// Keeps one window at a time.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    clock: Clock,
    settle_limit: Nanos,
    open: Option<(WindowRequest, Phase)>,
    /// Since when workers have not followed, once that is too long. Told once.
    overdue: Option<Nanos>,
}

impl Windows {
    pub(crate) fn new(clock: Clock, settle_limit: Nanos) -> Self {
        Windows { clock, settle_limit, open: None, overdue: None }
    }

    /// Ends the present window, if there is one, and begins the next, if one is wanted: with a warm-up after a change.
    pub(crate) fn begin(
        &mut self,
        now: Nanos,
        request: Option<WindowRequest>,
        changed: bool,
        readings: &Readings,
    ) {
        self.open = request.map(|request| {
            let phase = if changed {
                Phase::Settling { since: now }
            } else {
                Phase::Measuring {
                    settled: now,
                    start: now,
                    warm_up: BTreeMap::new(),
                    before: readings.clone(),
                }
            };
            (request, phase)
        });
    }

    /// The moment since which workers have been late, once per decision.
    pub(crate) fn take_overdue(&mut self) -> Option<Nanos> {
        self.overdue.take()
    }

    /// Looks at the present state; answers where the window has ended.
    pub(crate) fn observe(&mut self, now: Nanos, settled: bool, readings: &Readings) -> Option<Measured> {
        let (request, phase) = self.open.as_mut()?;
        match phase {
            Phase::Settling { since } => {
                let late = now.saturating_sub(*since) >= self.settle_limit;
                if late && !settled {
                    self.overdue = Some(*since);
                }
                if settled || late {
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
                    *phase = Phase::Measuring { settled, start: now, warm_up, before: readings.clone() };
                }
                None
            }
            Phase::Measuring { settled, start, warm_up, before } => {
                let elapsed = now.saturating_sub(*start);
                let enough = readings.iter().filter(|(_, reading)| reading.awaited).all(|(id, reading)| {
                    let earlier = before.get(id).copied().unwrap_or_default();
                    reading.total.ctas.saturating_sub(earlier.total.ctas) >= request.ctas
                });
                let least = elapsed >= self.clock.nanos(request.at_least);
                if !(least && enough || elapsed >= self.clock.nanos(request.at_most)) {
                    return None;
                }
                let cycles = self.clock.cycles(elapsed).0;
                let window = WindowRecord { settled: *settled, start: *start, end: now, cycles };
                let done = readings
                    .iter()
                    .map(|(&id, reading)| {
                        let earlier = before.get(&id).copied().unwrap_or_default();
                        let done = Done {
                            progress: difference(&reading.total, &earlier.total),
                            busy: reading.busy.saturating_sub(earlier.busy),
                            warm_up_ctas: warm_up.get(&id).copied().unwrap_or(0),
                        };
                        (id, done)
                    })
                    .collect();
                self.open = None;
                Some(Measured { window, done })
            }
        }
    }

    /// When to look again at the latest.
    pub(crate) fn next_at(&self, now: Nanos) -> Option<Nanos> {
        let (request, phase) = self.open.as_ref()?;
        let soon = Nanos(now.0.saturating_add((self.clock.nanos(request.at_least).0 / 8).max(1)));
        let at = |from: Nanos, cycles| Nanos(from.0.saturating_add(self.clock.nanos(cycles).0));
        Some(match phase {
            Phase::Settling { .. } => soon,
            Phase::WarmUp { settled, .. } => at(*settled, request.warm_up),
            Phase::Measuring { start, .. } => {
                let first = at(*start, request.at_least);
                if now < first { first } else { soon.min(at(*start, request.at_most)) }
            }
        })
    }
}

/// What was done between two totals. Totals that went backwards count as nothing done.
fn difference(later: &Progress, earlier: &Progress) -> Progress {
    let traffic = later.traffic.zip(earlier.traffic).map(|(later, earlier)| Traffic {
        warp_instructions: later.warp_instructions.saturating_sub(earlier.warp_instructions),
        llc_accesses: later.llc_accesses.saturating_sub(earlier.llc_accesses),
        llc_hits: later.llc_hits.saturating_sub(earlier.llc_hits),
    });
    Progress { ctas: later.ctas.saturating_sub(earlier.ctas), traffic }
}

/// What an application did, and how long it had work to do: a speed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Speed {
    pub(crate) progress: Progress,
    pub(crate) busy_cycles: u64,
}

impl Speed {
    /// This speed ÷ another, in warp instructions where both know them, in CTAs otherwise. `None` where one of them says
    /// nothing: no time, or no work in the other.
    pub(crate) fn relative_to(&self, other: &Speed) -> Option<f64> {
        if self.busy_cycles == 0 || other.busy_cycles == 0 {
            return None;
        }
        let instructions = |speed: &Speed| speed.progress.traffic.map(|traffic| traffic.warp_instructions);
        let (mine, others) = match (instructions(self), instructions(other)) {
            (Some(mine), Some(others)) if others > 0 => (mine, others),
            _ => (self.progress.ctas, other.progress.ctas),
        };
        let per_cycle = |work, cycles| float(work) / float(cycles);
        (others > 0).then(|| per_cycle(mine, self.busy_cycles) / per_cycle(others, other.busy_cycles))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: WindowRequest =
        WindowRequest { warm_up: Cycles(100), at_least: Cycles(200), ctas: 64, at_most: Cycles(1000) };

    fn readings(list: &[(u32, u64, bool)]) -> Readings {
        let reading =
            |ctas, awaited| Reading { total: Progress { ctas, traffic: None }, busy: Nanos(0), awaited };
        list.iter().map(|&(id, ctas, awaited)| (ApplicationId(id), reading(ctas, awaited))).collect()
    }

    /// A clock of 1 GHz: a cycle is a nanosecond.
    fn windows() -> Windows {
        let mut windows = Windows::new(Clock { khz: 1_000_000 }, Nanos(5_000));
        windows.begin(Nanos(0), Some(REQUEST), true, &Readings::new());
        windows
    }

    #[test]
    fn waits_for_workers_then_warms_up_then_measures() {
        let mut windows = windows();
        for (now, settled, ctas) in [(10, false, 0), (50, true, 10), (149, true, 15), (150, true, 20)] {
            assert_eq!(windows.observe(Nanos(now), settled, &readings(&[(1, ctas, true)])), None, "{now}");
        }
        assert_eq!(windows.next_at(Nanos(150)), Some(Nanos(350)));
        assert_eq!(windows.observe(Nanos(349), true, &readings(&[(1, 90, true)])), None);
        let measured = windows.observe(Nanos(350), true, &readings(&[(1, 90, true)])).unwrap();
        let window = WindowRecord { settled: Nanos(50), start: Nanos(150), end: Nanos(350), cycles: 200 };
        assert_eq!(measured.window, window);
        let done = measured.done[&ApplicationId(1)];
        assert_eq!((done.progress.ctas, done.warm_up_ctas), (70, 10));
        assert_eq!(windows.next_at(Nanos(400)), None);
    }

    #[test]
    fn waits_for_ctas_of_those_that_get_on_but_not_for_ever() {
        let run = |slow_awaited, until| {
            let mut windows = windows();
            for now in (0..until).step_by(10) {
                let totals = readings(&[(1, now, true), (2, now / 100, slow_awaited)]);
                if let Some(measured) = windows.observe(Nanos(now), true, &totals) {
                    return Some(measured.window.cycles);
                }
            }
            None
        };
        assert_eq!(run(false, 2000), Some(200));
        assert_eq!(run(true, 2000), Some(1000));
    }

    #[test]
    fn workers_that_never_follow_are_told_of_once() {
        let mut windows = windows();
        assert_eq!(windows.observe(Nanos(4_999), false, &Readings::new()), None);
        assert_eq!(windows.take_overdue(), None);
        assert_eq!(windows.observe(Nanos(5_000), false, &Readings::new()), None);
        assert_eq!((windows.take_overdue(), windows.take_overdue()), (Some(Nanos(0)), None));
        assert_eq!(windows.observe(Nanos(5_100), false, &Readings::new()), None);
        assert!(windows.observe(Nanos(5_300), false, &Readings::new()).is_some());
    }

    #[test]
    fn absurd_readings_do_no_harm() {
        let mut windows = windows();
        let most = u64::MAX;
        assert_eq!(windows.observe(Nanos(most), true, &readings(&[(1, most, true)])), None);
        assert_eq!(windows.observe(Nanos(0), true, &readings(&[])), None);
        assert_eq!(windows.observe(Nanos(most), true, &readings(&[(2, 0, true)])), None);
        assert!(windows.next_at(Nanos(most)).is_some());
        let speed = |ctas, busy_cycles| Speed { progress: Progress { ctas, traffic: None }, busy_cycles };
        assert_eq!(speed(5, 10).relative_to(&speed(0, 10)), None);
        assert_eq!(speed(5, 0).relative_to(&speed(5, 10)), None);
        assert!(speed(most, 1).relative_to(&speed(1, most)).unwrap().is_finite());
    }
}
