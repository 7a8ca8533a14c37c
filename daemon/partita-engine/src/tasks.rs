//! How many CTAs a worker claims at once.
//!
//! A worker looks at the signal between two tasks, so a task bounds how long an SM takes to change
//! hands; each claim costs an atomic, so a task should not be smaller than that demands. A CTA's
//! time is measured while launches run, and kept per kernel; until it is known a task is one CTA.
//! Launches that are over before they have been looked at twice bound its mean: CTAs took no longer
//! than all workers had. A kernel's profile says what it was in earlier runs. The control block's
//! task size is the host's to change at any time.

use crate::control_block::{Telemetry, signal_task};
use crate::state::{Launch, LaunchForm, LaunchSpec, Then};
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{LaunchId, ModuleId, Nanos};
use std::sync::Arc;

/// The largest task, and how many tasks each worker should get at least: Slate (PPoPP '19) §3.2
/// uses tasks of 10 CTAs; eight rounds keep the last one short against the whole.
const MAX_TASK: u64 = 10;
const TASKS_PER_WORKER: u64 = 8;
/// The longest task, where a CTA is not longer: what a resize may wait (design, "The life of a
/// launch").
const LONGEST: Nanos = Nanos(20_000);
/// Rounds of tasks after which a CTA's time is known for the first time.
const ROUNDS: u64 = 2;
/// Rounds of tasks over which its bounds are drawn closer. Then it is measured anew: data may make
/// it another.
const MOST_ROUNDS: u64 = 16;
/// Kernels whose CTA time is remembered. Beyond that the oldest modules are forgotten.
const MOST_KERNELS: usize = 4096;

/// CTAs per task, for `total` CTAs by so many workers, each of which takes about so long.
pub(crate) fn task_size(total: u64, workers: u64, cta: Option<Nanos>) -> u64 {
    let in_time = cta.map_or(1, |cta| LONGEST.0 / cta.0.max(1));
    (total / (TASKS_PER_WORKER * workers.max(1))).min(in_time).clamp(1, MAX_TASK)
}

impl LaunchSpec {
    /// CTAs per task of this launch.
    pub(crate) fn task_size(&self, total: u64, workers: u64, cta: Option<Nanos>) -> u64 {
        if self.kernel.follows { 1 } else { task_size(total, workers, cta) }
    }
}

/// From when on a launch's progress is watched for the time of its CTAs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Since {
    time: Nanos,
    completed: u64,
    /// Workers that worked then. Where others work now, what was done says nothing of how long one
    /// takes.
    working: u64,
    /// The largest task since.
    task: u64,
}

/// What is known of the time of a CTA by what workers have completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CtaTime {
    at_least: Nanos,
    mean: Nanos,
    at_most: Nanos,
}

impl CtaTime {
    /// From `done` CTAs that so many workers have completed in some time. Workers tell of whole
    /// tasks, all at once where they keep step: so there may be a round of tasks too many in it, or
    /// too few.
    fn of(time: Nanos, working: u64, task: u64, done: u64) -> Self {
        let per = |done: u64| Nanos(time.0.saturating_mul(working) / done.max(1));
        let round = working.saturating_mul(task);
        CtaTime {
            at_least: per(done.saturating_add(round)),
            mean: per(done),
            at_most: per(done.saturating_sub(round)),
        }
    }

    /// What was known before, if it may still be so. The first time errs on the long side: tasks
    /// that are too short cost little, those that are too long keep an SM from its owner.
    fn correct(self, known: Option<Nanos>) -> Nanos {
        known.map_or(self.at_most, |known| known.clamp(self.at_least, self.at_most))
    }
}

impl Engine {
    /// What is known of the time of a launch's CTAs.
    pub(crate) fn cta_time(&self, spec: &LaunchSpec) -> Option<Nanos> {
        let measured = self.cta_times.get(&(spec.module, spec.kernel.name.clone()));
        let kept = || self.profiles.get(spec.profile.as_ref()?)?.cta_time;
        measured.copied().or_else(kept)
    }

    /// How long a worker launch takes, as far as is known; as long as may be ahead where nothing
    /// is.
    pub(crate) fn expected_time(&self, then: Then) -> Option<Nanos> {
        let Then::Main(id) = then else { return None };
        let launch =
            self.launches.get(&id).filter(|launch| launch.spec.form() == LaunchForm::Worker)?;
        let Some(cta) = self.cta_time(&launch.spec) else { return Some(self.config.ahead) };
        let ctas = launch.spec.total() - launch.spec.first;
        Some(Nanos(ctas.div_ceil(self.workers_entered(launch).max(1)).saturating_mul(cta.0)))
    }

    fn workers_entered(&self, launch: &Launch) -> u64 {
        self.ledger
            .workers(launch.stream, launch.spec.launch)
            .iter()
            .map(|&count| u64::from(count))
            .sum()
    }

    /// A launch may begin to run: its task size may be known better than when it was enqueued.
    pub(crate) fn front_task(&mut self, device: &mut dyn Device, id: LaunchId) {
        let Some(launch) = self.launches.get(&id).filter(|l| l.spec.form() == LaunchForm::Worker)
        else {
            return;
        };
        let cta = self.cta_time(&launch.spec);
        let held = self.workers_entered(launch);
        let left = launch.spec.total() - launch.spec.first;
        let size = launch.spec.task_size(left, left.min(held), cta);
        if let Some(worker) = self.launches.get_mut(&id).and_then(|launch| launch.worker.as_mut()) {
            worker.begun = Some(device.now());
        }
        self.set_task(device, id, size);
    }

    fn set_task(&mut self, device: &mut dyn Device, id: LaunchId, size: u64) {
        let Some(launch) = self.launches.get_mut(&id) else { return };
        let Some(worker) = launch.worker.as_mut().filter(|worker| u64::from(worker.task) != size)
        else {
            return;
        };
        worker.task = u32::try_from(size).unwrap_or(1);
        let (block, session) = (worker.block, launch.session);
        if let Err(error) = signal_task(device, block, size) {
            self.log(
                LogLevel::Error,
                Some(session),
                format!("{id} was not told its task size: {error}"),
            );
        }
    }

    /// A launch has completed: its CTAs took no longer in the mean than all that worked on it had
    /// time, each of which has registered.
    pub(crate) fn bound_cta_time(&mut self, id: LaunchId, now: Nanos) {
        let Some(launch) = self.launches.get(&id).filter(|l| l.spec.form() == LaunchForm::Worker)
        else {
            return;
        };
        let Some(worker) = launch.worker.as_ref().filter(|worker| worker.count_block.is_none())
        else {
            return;
        };
        let Some(begun) = worker.begun else { return };
        let done = launch.spec.total() - launch.spec.first;
        let spent = now.saturating_sub(begun).0.saturating_mul(worker.seen.registered.max(1));
        let bound = Nanos(spent / done.max(1));
        if self.cta_time(&launch.spec).is_none_or(|known| bound < known) {
            let kernel = (launch.spec.module, launch.spec.kernel.name.clone());
            self.keep_cta_time(kernel, bound);
            self.profile_cta_time(id, bound);
        }
    }

    fn keep_cta_time(&mut self, kernel: (ModuleId, Arc<str>), time: Nanos) {
        self.cta_times.insert(kernel, time);
        if self.cta_times.len() > MOST_KERNELS {
            self.cta_times.pop_first();
        }
    }

    /// Takes a CTA's time from what a launch has done since the last time, and corrects its task
    /// size.
    pub(crate) fn adapt_task(&mut self, device: &mut dyn Device, id: LaunchId) {
        let now = device.now();
        let Some(launch) = self.launches.get_mut(&id) else { return };
        if launch.spec.form() != LaunchForm::Worker {
            return;
        }
        let Some(worker) = &mut launch.worker else { return };
        if worker.count_block.is_some() {
            // What counts is slower.
            return;
        }
        let Telemetry { next, completed, .. } = worker.seen;
        let total = launch.spec.total();
        let working = worker.seen.live_total() - worker.seen.live_on(&self.stalled);
        if working == 0 || next >= total {
            // Those who leave would make the others look slow.
            worker.since = None;
            return;
        }
        let begin = Since { time: now, completed, working, task: worker.task.into() };
        let since = worker.since.get_or_insert(begin);
        since.task = since.task.max(worker.task.into());
        let since = *since;
        if since.working != working {
            worker.since = Some(begin);
            return;
        }
        let done = completed.saturating_sub(since.completed);
        let round = working * since.task;
        if done < ROUNDS * round {
            return;
        }
        let time = CtaTime::of(now.saturating_sub(since.time), working, since.task, done);
        let kernel = (launch.spec.module, launch.spec.kernel.name.clone());
        let known = self.cta_times.get(&kernel).copied();
        let cta = time.correct(known);
        if done >= MOST_ROUNDS * round {
            worker.since = Some(begin);
        }
        let size = launch.spec.task_size(total, working, Some(cta));
        self.keep_cta_time(kernel, cta);
        if done >= MOST_ROUNDS * round || known.is_none() {
            self.profile_cta_time(id, time.mean);
        }
        self.set_task(device, id, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ctas_time_is_drawn_closer() {
        // 100 workers with tasks of 5 CTAs of 4 us each, all in step: a round ends each 20 us.
        let seen = |nanos: u64, rounds: u64| CtaTime::of(Nanos(nanos), 100, 5, rounds * 500);
        let mut known = None;
        // Looked at within a round; then from just before a round's end to just behind one.
        for (nanos, rounds, expected) in
            [(59_000, 2, 11_800), (70_000, 3, 7_000), (130_000, 6, 5_200), (240_000, 13, 4_000)]
        {
            let time = seen(nanos, rounds);
            assert!(
                time.at_least.0 <= 4_000 && time.at_most.0 >= 4_000,
                "{nanos} {rounds}: {time:?}"
            );
            known = Some(time.correct(known));
            assert_eq!(known, Some(Nanos(expected)), "{nanos} {rounds}");
        }
        // Now they take 8 us.
        let time = CtaTime::of(Nanos(160_000), 100, 5, 2_000);
        assert_eq!(time.correct(known), Nanos(6_400));
    }

    #[test]
    fn tasks_are_short_and_many() {
        let check = |total, workers, cta: Option<u64>, expected| {
            assert_eq!(
                task_size(total, workers, cta.map(Nanos)),
                expected,
                "{total} {workers} {cta:?}"
            );
        };
        check(1 << 20, 100, None, 1);
        check(1 << 20, 100, Some(1_000), 10);
        check(1 << 20, 100, Some(4_000), 5);
        check(1 << 20, 100, Some(50_000), 1);
        check(1_600, 100, Some(10), 2);
        check(100, 100, Some(10), 1);
        check(100, 0, Some(0), 10);
    }
}
