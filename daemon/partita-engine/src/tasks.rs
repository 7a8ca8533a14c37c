//! How many CTAs a worker claims at once.
//!
//! A worker looks at the signal between two tasks, so a task bounds how long an SM takes to change hands; each claim costs
//! an atomic, so a task should not be smaller than that demands. A CTA's time is measured while launches run, and kept
//! per kernel; until it is known a task is one CTA. The control block's task size is the host's to change at any time.

use crate::control_block::{Telemetry, signal_task};
use crate::state::LaunchForm;
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{LaunchId, Nanos};

/// The largest task, and how many tasks each worker should get at least: Slate (PPoPP '19) §3.2 uses tasks of 10 CTAs;
/// eight rounds keep the last one short against the whole.
const MAX_TASK: u64 = 10;
const TASKS_PER_WORKER: u64 = 8;
/// The longest task, where a CTA is not longer: what a resize may wait (design, "The life of a launch").
const LONGEST: Nanos = Nanos(20_000);
/// Rounds of CTAs from which a CTA's time is taken. CTAs end in bursts, so it is wrong by up to a round.
const ROUNDS: u64 = 2;
/// Kernels whose CTA time is remembered. Beyond that the oldest modules are forgotten.
const MOST_KERNELS: usize = 4096;

/// CTAs per task, for `total` CTAs by so many workers, each of which takes about so long.
pub(crate) fn task_size(total: u64, workers: u64, cta: Option<Nanos>) -> u64 {
    let in_time = cta.map_or(1, |cta| LONGEST.0 / cta.0.max(1));
    (total / (TASKS_PER_WORKER * workers.max(1))).min(in_time).clamp(1, MAX_TASK)
}

/// From when on a launch's progress is watched for the time of its CTAs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Since {
    time: Nanos,
    completed: u64,
    /// Workers that worked then. Where others work now, what was done says nothing of how long one takes.
    working: u64,
}

impl Engine {
    /// Takes a CTA's time from what a launch has done since the last time, and corrects its task size.
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
        let begin = Since { time: now, completed, working };
        let since = *worker.since.get_or_insert(begin);
        if since.working != working {
            worker.since = Some(begin);
            return;
        }
        let done = completed.saturating_sub(since.completed);
        if done < ROUNDS * working {
            return;
        }
        worker.since = Some(begin);
        let cta = Nanos(now.saturating_sub(since.time).0.saturating_mul(working) / done);
        let size = task_size(total, working, Some(cta));
        let (block, session, changed) = (worker.block, launch.session, size != u64::from(worker.task));
        worker.task = u32::try_from(size).unwrap_or(1);
        let kernel = (launch.spec.module, launch.spec.kernel.name.clone());
        self.cta_times.insert(kernel, cta);
        self.profile_cta_time(id, cta);
        if self.cta_times.len() > MOST_KERNELS {
            self.cta_times.pop_first();
        }
        if changed && let Err(error) = signal_task(device, block, size) {
            self.log(LogLevel::Error, Some(session), format!("{id} was not told its task size: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_short_and_many() {
        let check = |total, workers, cta: Option<u64>, expected| {
            assert_eq!(task_size(total, workers, cta.map(Nanos)), expected, "{total} {workers} {cta:?}");
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
