//! How many CTAs a worker claims at once.
//!
//! A worker looks at the signal between two tasks, so a task bounds how long an SM takes to change
//! hands. Each claim costs an atomic, so a task should not be smaller than that bound demands. A
//! CTA's time is measured while launches run, and kept per kernel; until it is known a task is one
//! CTA. A launch that is over before it has been looked at twice bounds its mean CTA time: total
//! worker time ÷ CTAs. A kernel's profile holds its CTA time from earlier runs. The host may change
//! a control block's task size at any time.

use crate::launches::Spec;
use partita_model::{ModuleId, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest task. Slate (IPDPS '19) §3.2 uses tasks of 10 CTAs.
const MAX_TASK: u64 = 10;
/// Tasks that each worker should get at least: eight rounds keep the last one short against the
/// whole.
const TASKS_PER_WORKER: u64 = 8;
/// The longest task, where a CTA is not longer: what a resize may wait (design, "The life of a
/// launch").
pub(super) const LONGEST: Nanos = Nanos(20_000);
/// Kernels whose CTA time is remembered. Beyond that the oldest modules are forgotten.
const MOST_KERNELS: usize = 4096;

/// CTAs per task of a launch of which `total` CTAs are left, for `workers` workers whose CTAs take
/// about `cta` each.
pub(crate) fn task_size(spec: &Spec, total: u64, workers: u64, cta: Option<Nanos>) -> u64 {
    if spec.kernel.follows { 1 } else { size(total, workers, cta) }
}

fn size(total: u64, workers: u64, cta: Option<Nanos>) -> u64 {
    let in_time = cta.map_or(1, |cta| LONGEST.0 / cta.0.max(1));
    (total / (TASKS_PER_WORKER * workers.max(1))).min(in_time).clamp(1, MAX_TASK)
}

/// Measured times of CTAs, by kernel.
#[derive(Debug, Default)]
pub(super) struct CtaTimes(BTreeMap<(ModuleId, Arc<str>), Nanos>);

impl CtaTimes {
    pub(super) fn get(&self, spec: &Spec) -> Option<Nanos> {
        self.0.get(&(spec.module, spec.kernel.name.clone())).copied()
    }

    pub(super) fn keep(&mut self, spec: &Spec, time: Nanos) {
        self.0.insert((spec.module, spec.kernel.name.clone()), time);
        if self.0.len() > MOST_KERNELS {
            self.0.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_short_and_many() {
        let check = |total, workers, cta: Option<u64>, expected| {
            assert_eq!(size(total, workers, cta.map(Nanos)), expected, "{total} {workers} {cta:?}");
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
