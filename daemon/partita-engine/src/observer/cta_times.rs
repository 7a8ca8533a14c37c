//! How many CTAs a worker claims at once, at most.
//!
//! A worker looks at the signal between two tasks, so a task bounds how long an SM takes to change
//! hands. Each claim costs an atomic, so a task should not be smaller than that bound demands.
//! Workers begin with one CTA and claim more while tasks are short by their own clock, up to the
//! bound of the host. A CTA's time is measured while launches run, and kept per kernel. A launch
//! that is over before it has been looked at twice bounds its mean CTA time: total worker time ÷
//! CTAs. A kernel's profile holds its CTA time from earlier runs. The host may change the bound at
//! any time.

use crate::launches::Spec;
use partita_model::{ModuleId, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The largest task of CTAs whose time is not known. Slate (IPDPS '19) §3.2 uses tasks of 10 CTAs.
const UNKNOWN: u32 = 10;
/// The largest task.
const LARGEST: u64 = 64;
/// Workers claim at most their share of what is left ÷ this number
/// ([`partita_model::control::SHIFT`]), so the last tasks are short against the whole.
const TASKS_PER_WORKER: u64 = 2;
/// The longest task, where a CTA is not longer: what a resize may wait (design, "The life of a
/// launch").
pub(super) const LONGEST: Nanos = Nanos(20_000);
/// Kernels whose CTA time is remembered. Beyond that the oldest modules are forgotten.
const MOST_KERNELS: usize = 4096;

/// CTAs of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskSize {
    /// What most workers claim at first, where the CTAs' time is known; else 1.
    pub(crate) expected: u32,
    /// The bound that workers know.
    pub(crate) most: u32,
}

impl TaskSize {
    /// A CTA at a time.
    pub(crate) const ONE: TaskSize = TaskSize { expected: 1, most: 1 };
}

/// The tasks of a launch of which `total` CTAs are left, for `workers` workers whose CTAs take
/// about `cta` each.
pub(crate) fn task_size(spec: &Spec, total: u64, workers: u64, cta: Option<Nanos>) -> TaskSize {
    if spec.kernel.follows { TaskSize::ONE } else { size(total, workers, cta) }
}

fn size(total: u64, workers: u64, cta: Option<Nanos>) -> TaskSize {
    let Some(cta) = cta else { return TaskSize { expected: 1, most: UNKNOWN } };
    let in_time = (LONGEST.0 / cta.0.max(1)).clamp(1, LARGEST);
    // A power of two: a new bound is told to every SM, and measured times change a little always.
    let most = 1_u32 << in_time.ilog2();
    let share = (total / (TASKS_PER_WORKER * workers.max(1))).max(1);
    TaskSize { expected: u32::try_from(share).unwrap_or(most).min(most), most }
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
            let size = size(total, workers, cta.map(Nanos));
            assert_eq!((size.expected, size.most), expected, "{total} {workers} {cta:?}");
        };
        check(1 << 20, 100, None, (1, 10));
        check(1 << 20, 100, Some(1_000), (16, 16));
        check(1 << 20, 100, Some(4_000), (4, 4));
        check(1 << 20, 100, Some(50_000), (1, 1));
        check(400, 100, Some(10), (2, 64));
        check(100, 100, Some(10), (1, 64));
        check(200, 0, Some(0), (64, 64));
    }
}
