//! The meter: what applications have had of the device, and how long launches and resizes took.
//!
//! A launch costs one look-up and a few additions. Nothing here decides anything.

use partita_model::{ApplicationId, CudaResult, Nanos, ResizeReason, SmSet, Totals, Usage};
use std::collections::BTreeMap;

/// After so much compared time of an application its older half counts for half.
const FADES_AFTER: f64 = 100e6;

/// The meter of one application.
#[derive(Debug, Default)]
struct Metered {
    usage: Usage,
    /// SMs that it has, and its minimum.
    sms: u16,
    minimum: u16,
    /// It has work that keeps to its SMs.
    works: bool,
    /// Since when all this holds.
    since: Nanos,
    /// Compared time and time alone of late.
    recent: (f64, f64),
}

impl Metered {
    /// What it has had until now.
    fn until(&self, now: Nanos) -> Usage {
        let time = now.saturating_sub(self.since).0;
        let mut usage = self.usage;
        usage.sm_ns = usage.sm_ns.saturating_add(u64::from(self.sms).saturating_mul(time));
        if self.works {
            usage.busy_ns = usage.busy_ns.saturating_add(time);
        }
        if self.sms < self.minimum {
            let missing = if self.works { &mut usage.short_ns } else { &mut usage.lent_ns };
            *missing = missing.saturating_add(time);
        }
        usage
    }

    /// Something else holds from now on.
    fn change(&mut self, now: Nanos) {
        (self.usage, self.since) = (self.until(now), now);
    }
}

/// The times of one launch that is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// From its call until it was the first of its stream.
    pub(crate) wait: Nanos,
    /// From there to its end.
    pub(crate) run: Nanos,
    /// What it would have taken alone on the whole device, in nanoseconds, where that is known.
    pub(crate) alone: Option<f64>,
}

/// The meter.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    applications: BTreeMap<ApplicationId, Metered>,
    totals: Totals,
    /// Since when SMs change hands, if they do.
    resizing: Option<Nanos>,
}

impl Meter {
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What an application has had until now.
    pub(crate) fn usage(&self, id: ApplicationId, now: Nanos) -> Usage {
        let Some(metered) = self.applications.get(&id) else { return Usage::default() };
        let (compared, alone) = metered.recent;
        let progress = (compared > 0.0).then(|| alone / compared);
        Usage { progress, ..metered.until(now) }
    }

    pub(crate) fn session_came(&mut self) {
        self.totals.sessions += 1;
    }

    pub(crate) fn application_left(&mut self, id: ApplicationId) {
        self.applications.remove(&id);
    }

    /// An application has these SMs from now on.
    pub(crate) fn granted(&mut self, id: ApplicationId, now: Nanos, sms: &SmSet) {
        let metered = self.applications.entry(id).or_default();
        metered.change(now);
        metered.sms = sms.len();
    }

    /// An application has work that keeps to its SMs from now on, or none.
    pub(crate) fn works(&mut self, id: ApplicationId, now: Nanos, works: bool) {
        let metered = self.applications.entry(id).or_default();
        metered.change(now);
        metered.works = works;
    }

    /// Sets an application's minimum: the SMs that it is to have whenever it has work.
    pub(crate) fn promised(&mut self, id: ApplicationId, now: Nanos, minimum: u16) {
        let known = self.applications.get(&id).map_or(0, |metered| metered.minimum);
        if known != minimum {
            let metered = self.applications.entry(id).or_default();
            metered.change(now);
            metered.minimum = minimum;
        }
    }

    pub(crate) fn launched(&mut self, id: ApplicationId, timed: Timed) {
        let Timed { wait, run, alone } = timed;
        self.totals.launch_wait.count(wait);
        self.totals.launch_time.count(run);
        let metered = self.applications.entry(id).or_default();
        let usage = &mut metered.usage;
        usage.wait_ns = usage.wait_ns.saturating_add(wait.0);
        usage.run_ns = usage.run_ns.saturating_add(run.0);
        let Some(alone) = alone else { return };
        #[expect(clippy::cast_precision_loss, reason = "a launch takes less than 2^53 ns")]
        let run = run.0 as f64;
        usage.compared_ns += run;
        usage.alone_ns += alone;
        let recent = &mut metered.recent;
        *recent = (recent.0 + run, recent.1 + alone);
        if recent.0 > FADES_AFTER {
            *recent = (recent.0 / 2.0, recent.1 / 2.0);
        }
    }

    pub(crate) fn failed(&mut self, id: ApplicationId, code: CudaResult) {
        self.applications.entry(id).or_default().usage.faults += 1;
        *self.totals.faults.entry(code.to_string()).or_default() += 1;
    }

    /// SMs were taken from applications.
    pub(crate) fn resize_began(&mut self, now: Nanos, reason: ResizeReason) {
        *self.totals.resizes.entry(reason).or_default() += 1;
        self.resizing.get_or_insert(now);
    }

    /// Every SM is with its owner.
    pub(crate) fn settled(&mut self, now: Nanos) {
        if let Some(since) = self.resizing.take() {
            self.totals.resize_time.count(now.saturating_sub(since));
        }
    }

    /// The device is gone, and with it everything that applications had.
    pub(crate) fn device_lost(&mut self, now: Nanos) {
        self.resizing = None;
        for metered in self.applications.values_mut() {
            metered.change(now);
            (metered.sms, metered.works) = (0, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ApplicationId = ApplicationId(1);

    #[test]
    fn sm_time_follows_the_borders() {
        let mut meter = Meter::default();
        meter.granted(A, Nanos(10), &SmSet::range(0, 4));
        assert_eq!(meter.usage(A, Nanos(15)).sm_ns, 20);
        meter.granted(A, Nanos(20), &SmSet::range(0, 1));
        assert_eq!(meter.usage(A, Nanos(25)).sm_ns, 45);
        meter.device_lost(Nanos(30));
        assert_eq!(meter.usage(A, Nanos(99)).sm_ns, 50);
        meter.application_left(A);
        assert_eq!(meter.usage(A, Nanos(99)), Usage::default());
    }

    #[test]
    fn time_below_the_minimum_counts_while_there_is_work() {
        let mut meter = Meter::default();
        meter.promised(A, Nanos(0), 4);
        meter.granted(A, Nanos(0), &SmSet::range(0, 2));
        meter.works(A, Nanos(100), true);
        meter.granted(A, Nanos(130), &SmSet::range(0, 4));
        meter.works(A, Nanos(200), false);
        meter.granted(A, Nanos(300), &SmSet::EMPTY);
        let usage = meter.usage(A, Nanos(400));
        assert_eq!((usage.busy_ns, usage.short_ns), (100, 30));
        meter.works(A, Nanos(400), true);
        meter.promised(A, Nanos(410), 0);
        meter.device_lost(Nanos(420));
        let usage = meter.usage(A, Nanos(500));
        assert_eq!((usage.busy_ns, usage.short_ns), (120, 40));
    }

    #[test]
    fn a_minimum_is_lent_while_there_is_no_work() {
        let mut meter = Meter::default();
        meter.promised(A, Nanos(0), 4);
        meter.granted(A, Nanos(0), &SmSet::range(0, 4));
        meter.works(A, Nanos(100), true);
        meter.works(A, Nanos(200), false);
        meter.granted(A, Nanos(260), &SmSet::range(0, 1));
        assert_eq!(meter.usage(A, Nanos(300)).lent_ns, 40);
        meter.works(A, Nanos(500), true);
        meter.granted(A, Nanos(530), &SmSet::range(0, 4));
        let usage = meter.usage(A, Nanos(600));
        assert_eq!((usage.lent_ns, usage.short_ns), (240, 30));
    }

    #[test]
    fn progress_is_of_late() {
        let mut meter = Meter::default();
        let timed = |run, alone| Timed { wait: Nanos(3), run: Nanos(run), alone: Some(alone) };
        meter.launched(A, Timed { wait: Nanos(3), run: Nanos(5), alone: None });
        assert_eq!(meter.usage(A, Nanos(0)).progress, None);
        for _ in 0..40 {
            meter.launched(A, timed(10_000_000, 10_000_000.0));
        }
        let progress = |meter: &Meter| meter.usage(A, Nanos(0)).progress.unwrap();
        assert!((progress(&meter) - 1.0).abs() < 1e-9);
        for _ in 0..40 {
            meter.launched(A, timed(10_000_000, 5_000_000.0));
        }
        assert!((progress(&meter) - 0.5).abs() < 0.02, "{}", progress(&meter));
        let usage = meter.usage(A, Nanos(0));
        assert_eq!((usage.wait_ns, usage.run_ns), (81 * 3, 800_000_005));
    }

    #[test]
    fn a_resize_lasts_until_the_last_sm_has_changed_hands() {
        let mut meter = Meter::default();
        meter.settled(Nanos(5));
        meter.resize_began(Nanos(10), ResizeReason::Interval);
        meter.resize_began(Nanos(20), ResizeReason::Plan);
        meter.settled(Nanos(4010));
        let totals = meter.totals();
        assert_eq!(totals.resizes.values().sum::<u64>(), 2);
        assert_eq!(totals.resize_time.sum_ns, 4000);
        assert_eq!(totals.resize_time.buckets[2], 1);
    }
}
