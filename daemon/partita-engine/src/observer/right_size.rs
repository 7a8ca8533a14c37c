//! The fewest SMs with which the requests of an application meet its latency target.
//!
//! A *request* is work without a pause: from the first launch after a pause to the end of the last
//! launch before the next one. A pause is longer than the grace of the application. Several
//! requests of a program that leave no pause count as one, which is longer than each of them.
//! Work that outlasts the target without a pause is a missed request, and what follows the next.
//!
//! The target is met while at most 1 of [`MISSES`] requests takes longer.
//!
//! - **Fewer SMs** follow after [`TRIES`] requests on the same number, if the longest of them would
//!   still take at most [`SAFE`] of the target. The expectation is that time grows with the rounds
//!   of CTAs, which is the worst case: Masola, Eq. 4, has it for kernels that no bandwidth bounds.
//!   What is measured then corrects it, and at most half of the SMs goes in one step.
//! - **More SMs** follow at once where the target is missed, by the same expectation. The number
//!   that missed it is not tried again for [`FORGOTTEN`] requests.

use partita_model::{LatencyTarget, Nanos, TargetReport};
use std::collections::BTreeMap;

/// One request of this many may miss the target: the 99th percentile meets it.
const MISSES: u32 = 100;
/// Requests on one number of SMs before a smaller one is tried.
const TRIES: u32 = 20;
/// The part of the target, in per cent, that an expected time may take.
const SAFE: u64 = 90;
/// After this many requests, a number of SMs that missed the target is tried again.
const FORGOTTEN: u32 = 1_000;
/// Requests of a window count half when there are twice as many.
const WINDOW: u32 = 500;
/// Sizes of launches that are told apart. Others count as the next larger one.
const SIZES: usize = 32;

/// The launches of a request by their number of CTAs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Launches(BTreeMap<u64, u64>);

impl Launches {
    fn add(&mut self, ctas: u64) {
        let is_known = self.0.len() < SIZES || self.0.contains_key(&ctas);
        let next = || self.0.range(ctas..).next().or(self.0.last_key_value());
        let size = if is_known { ctas } else { next().map_or(ctas, |(size, _)| *size) };
        *self.0.entry(size).or_default() += 1;
    }

    /// Rounds of CTAs, one CTA for each SM and round.
    fn rounds(&self, sms: u16) -> u64 {
        let rounds = |(ctas, count): (&u64, &u64)| ctas.div_ceil(u64::from(sms.max(1))) * count;
        self.0.iter().map(rounds).sum()
    }

    /// The expected time on `on` SMs of what took `time` on `from` SMs.
    fn expected(&self, time: Nanos, from: u16, on: u16) -> Nanos {
        let (before, then) = (self.rounds(from).max(1), self.rounds(on).max(1));
        Nanos(time.0.saturating_mul(then) / before)
    }
}

/// The request that runs.
#[derive(Clone, Debug)]
struct Running {
    began: Nanos,
    /// The most SMs that it had.
    sms: u16,
    launches: Launches,
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
    launches: Launches,
}

/// What requests of one application took, and the SMs that follow.
#[derive(Clone, Debug, Default)]
pub(super) struct RightSize {
    target: Option<LatencyTarget>,
    /// SMs that the application has.
    held: u16,
    running: Option<Running>,
    window: Window,
    /// The SMs that meet the target; `None` while that is not known.
    fewest: Option<u16>,
    /// The largest number that missed it, and the requests since.
    too_few: (u16, u32),
    seen: u64,
    missed: u64,
}

impl RightSize {
    /// Sets the target. Another one begins anew.
    pub(super) fn set_target(&mut self, target: Option<LatencyTarget>) {
        if self.target != target {
            *self = RightSize { target, held: self.held, ..RightSize::default() };
        }
    }

    /// Notes the number of SMs that the application has now.
    pub(super) fn holds(&mut self, sms: u16) {
        self.held = sms;
        if let Some(running) = &mut self.running {
            running.sms = running.sms.max(sms);
        }
    }

    /// A launch of `ctas` CTAs is queued. Whether the application needs more SMs than before.
    pub(super) fn launched(&mut self, now: Nanos, ctas: u64) -> bool {
        let Some(target) = self.target else { return false };
        let before = self.fewest;
        let spent = self.running.as_ref().map(|running| now.saturating_sub(running.began));
        if spent.is_some_and(|spent| spent > target.nanos()) {
            self.ended(now);
        }
        let fresh = || Running { began: now, sms: self.held, launches: Launches::default() };
        self.running.get_or_insert_with(fresh).launches.add(ctas);
        before != self.fewest
    }

    /// The application paused from `at` on.
    pub(super) fn ended(&mut self, at: Nanos) {
        if let (Some(target), Some(running)) = (self.target, self.running.take()) {
            self.record(target.nanos(), at.saturating_sub(running.began), running);
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

    fn record(&mut self, target: Nanos, took: Nanos, request: Running) {
        let is_missed = took > target;
        self.seen += 1;
        self.missed += u64::from(is_missed);
        let (_, since) = &mut self.too_few;
        *since += 1;
        if *since >= FORGOTTEN {
            self.too_few = (0, 0);
        }
        if self.window.sms != request.sms {
            self.window = Window { sms: request.sms, ..Window::default() };
        }
        let window = &mut self.window;
        if window.seen >= 2 * WINDOW {
            (window.seen, window.missed) = (window.seen / 2, window.missed / 2);
            (window.fresh, window.longest) = (0, Nanos(0));
        }
        window.seen += 1;
        window.missed += u32::from(is_missed);
        window.fresh += 1;
        if took >= window.longest {
            (window.longest, window.launches) = (took, request.launches);
        }
        if window.missed * MISSES > window.seen {
            self.grow(target);
        } else if window.fresh >= TRIES {
            self.shrink(target);
        }
    }

    /// The target is missed on the window's SMs.
    fn grow(&mut self, target: Nanos) {
        let Window { sms, longest, launches, .. } = &self.window;
        // Where others' minima leave it less than it may have, the number says nothing.
        let Some(fewest) = self.fewest.filter(|fewest| sms >= fewest) else { return };
        let safe = |on: &u16| launches.expected(*longest, *sms, *on) <= part(target);
        let most = u16::try_from(launches.0.keys().max().copied().unwrap_or(0)).unwrap_or(u16::MAX);
        self.too_few = (self.too_few.0.max(fewest), 0);
        // Beyond an SM for each CTA nothing grows faster: all that it can use.
        self.fewest = (fewest.max(*sms) + 1..most).find(safe);
        self.window = Window::default();
    }

    /// The target is met on the window's SMs.
    fn shrink(&mut self, target: Nanos) {
        let Window { sms, longest, launches, .. } = &self.window;
        let safe = |on: &u16| launches.expected(*longest, *sms, *on) <= part(target);
        let least = (self.too_few.0 + 1).max(sms / 2).max(1);
        let found = (least..*sms).find(safe);
        if let Some(found) = found.filter(|found| self.fewest.is_none_or(|now| *found < now)) {
            self.fewest = Some(found);
        }
    }
}

/// The part of a target that an expected time may take.
fn part(target: Nanos) -> Nanos {
    Nanos(target.0.saturating_mul(SAFE) / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: u64 = 100_000;

    /// An application whose requests are launches of these CTAs, and its clock.
    struct Program {
        size: RightSize,
        now: u64,
        launches: Vec<u64>,
    }

    impl Program {
        fn new(launches: &[u64]) -> Self {
            let mut size = RightSize::default();
            size.set_target(LatencyTarget::of(Nanos(TARGET)));
            Program { size, now: 0, launches: launches.to_vec() }
        }

        /// SMs that it gets of `most`, its own part of which is the need.
        fn gets(&self, most: u16) -> u16 {
            most.min(self.size.sms().unwrap_or(u16::MAX))
        }

        /// A request on `sms` SMs that takes so long.
        fn request(&mut self, sms: u16, took: u64) {
            self.size.holds(sms);
            for ctas in self.launches.clone() {
                self.size.launched(Nanos(self.now), ctas);
            }
            self.size.ended(Nanos(self.now + took));
            self.now += 10 * TARGET;
        }

        /// Plays `count` requests whose time depends on the SMs, and returns the SMs after them.
        fn requests(&mut self, count: usize, time: impl Fn(u16) -> u64) -> u16 {
            for _ in 0..count {
                let sms = self.gets(24);
                self.request(sms, time(sms));
            }
            self.gets(24)
        }
    }

    #[test]
    fn sms_fall_to_the_fewest_that_meet_the_target_and_stay() {
        // Time falls with the SMs: 24 SMs take 20 us, 6 take 80, 5 take 96.
        let work = |sms: u16| 480_000 / u64::from(sms);
        let mut program = Program::new(&[240; 8]);
        assert_eq!(program.requests(19, work), 24, "too early");
        assert_eq!(program.requests(1, work), 12, "half of them in a step");
        assert_eq!(program.requests(20, work), 6);
        assert_eq!(program.requests(800, work), 6, "5 SMs would take more than nine tenths");
        assert_eq!(program.size.report().unwrap().missed, 0);
    }

    #[test]
    fn what_is_measured_corrects_the_expectation() {
        // No faster with more SMs than 4: a request has few CTAs at a time.
        let work = |sms: u16| 40_000 * 4 / u64::from(sms.min(4));
        let mut program = Program::new(&[24]);
        assert_eq!(program.requests(400, work), 2, "one SM would take 160 us");
    }

    #[test]
    fn a_missed_target_brings_more_sms_at_once_and_is_not_tried_again_soon() {
        // The work grows: what 6 SMs did in 80 us takes them 160.
        let work = |sms: u16| 480_000 / u64::from(sms);
        let mut program = Program::new(&[240; 8]);
        assert_eq!(program.requests(60, work), 6);
        assert_eq!(program.requests(1, |_| 160_000), 11, "160 us on 6 are 87 on 11");
        let slower = |sms: u16| 960_000 / u64::from(sms);
        assert_eq!(program.requests(900, slower), 11);
        assert_eq!(program.size.report().unwrap().missed, 1);
        // A rare miss is within the target's part.
        assert_eq!(program.requests(1, |_| 160_000), 11);
        let report = program.size.report().unwrap();
        assert_eq!((report.missed, report.sms), (2, Some(11)));
    }

    #[test]
    fn fewer_sms_than_it_may_have_say_nothing() {
        let mut program = Program::new(&[240; 8]);
        let work = |sms: u16| 480_000 / u64::from(sms);
        assert_eq!(program.requests(60, work), 6);
        // Others' minima leave it 2.
        for _ in 0..10 {
            program.request(2, 240_000);
        }
        assert_eq!(program.gets(24), 6);
    }

    #[test]
    fn work_without_a_pause_is_missed_and_asks_for_all() {
        let mut program = Program::new(&[240; 8]);
        assert_eq!(program.requests(60, |sms| 480_000 / u64::from(sms)), 6);
        program.size.holds(6);
        let mut grew = 0;
        for step in 0..100 {
            grew += u32::from(program.size.launched(Nanos(program.now + step * 50_000), 4));
            let sms = program.gets(24);
            program.size.holds(sms);
        }
        assert!(grew > 0);
        assert_eq!(program.size.sms(), None, "no number of SMs is enough");
    }

    #[test]
    fn another_target_begins_anew_and_none_asks_nothing() {
        let mut program = Program::new(&[240; 8]);
        program.requests(60, |sms| 480_000 / u64::from(sms));
        program.size.set_target(LatencyTarget::of(Nanos(TARGET)));
        assert_eq!(program.gets(24), 6, "the same");
        program.size.set_target(None);
        assert_eq!((program.gets(24), program.size.report()), (24, None));
        assert_eq!(program.requests(100, |_| 1), 24);
    }

    #[test]
    fn many_sizes_of_launches_take_bounded_memory() {
        let mut launches = Launches::default();
        (1..1_000).for_each(|ctas| launches.add(ctas));
        assert_eq!(launches.0.len(), SIZES);
        assert_eq!(launches.rounds(u16::MAX), 999);
    }
}
