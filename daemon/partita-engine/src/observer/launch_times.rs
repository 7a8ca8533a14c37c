//! How long launches take, and which launches are short enough to run as they were written.
//!
//! A kernel in its original form cannot be interrupted between two CTAs. An application that has
//! the GPU to itself runs such a launch only where a newcomer does not wait longer for it than for
//! a worker: [`Expected::is_short`].
//!
//! The time is learnt per kernel, grid, block and dynamic shared memory, from launches that had the
//! whole GPU. A launch of workers bounds the time of the original from above. A kernel and shape of
//! which nothing was seen may have the CTA time of an earlier run in its profile
//! ([`super::profiling`]); otherwise it runs as workers first.
//!
//! An original that took too long was a *surprise*: its data made it longer than before. Its kernel
//! and shape then run as workers until [`FIRST_PENANCE`] launches in a row were short. The number
//! doubles with each further surprise.

use super::cta_times::LONGEST;
use crate::launches::Spec;
use partita_model::{Dim3, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest CTA for which a newcomer may wait in addition to the time of a task. It is the time
/// for which an application without work keeps its SMs ([`crate::EngineConfig::idle_grace`]).
const LONGEST_CTA: Nanos = Nanos(1_000_000);
/// Short launches in a row that end the penance for the first surprise.
const FIRST_PENANCE: u32 = 8;
/// The longest penance.
const LONGEST_PENANCE: u32 = 1 << 16;
/// Kernels and shapes that are remembered. Beyond that some are forgotten.
const MOST_SHAPES: usize = 8192;
/// From one original to the next the expected time falls by this part of itself at most.
const DECAY: u64 = 8;

/// What is expected of one or several launches, in their original form, on the whole GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Expected {
    /// The time of all of them, one after the other.
    pub(crate) time: Nanos,
    /// The time of the longest CTA, as far as it counts.
    cta: Nanos,
}

impl Expected {
    /// Of a launch that takes `time`, in which each place runs up to `rounds` CTAs.
    pub(crate) fn of(time: Nanos, rounds: u64) -> Self {
        Expected { time, cta: Nanos(time.0 / rounds.max(1)).min(LONGEST_CTA) }
    }

    /// Of these launches and `other`.
    pub(crate) fn and(self, other: Self) -> Self {
        let time = Nanos(self.time.0.saturating_add(other.time.0));
        Expected { time, cta: self.cta.max(other.cta) }
    }

    /// The longest time for which a newcomer may wait for these launches.
    pub(crate) fn bound(self) -> Nanos {
        LONGEST + self.cta
    }

    /// Whether the launches are over no later than workers would leave an SM.
    pub(crate) fn is_short(self) -> bool {
        self.time <= self.bound()
    }
}

/// A kernel's code, the launch's grid and block, dynamic shared memory.
type Key = (Arc<str>, [u32; 3], [u32; 3], u32);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    time: Nanos,
    /// The time is an original's.
    is_original: bool,
    /// Short launches since the last one that was not.
    short: u32,
    /// Short launches after which the original may run.
    penance: u32,
}

/// Times of launches, by kernel and shape.
#[derive(Debug, Default)]
pub(super) struct LaunchTimes(BTreeMap<Key, Seen>);

impl LaunchTimes {
    /// The time of a launch that has the whole GPU, and whether its original may run.
    pub(super) fn get(&self, spec: &Spec) -> Option<(Nanos, bool)> {
        let seen = self.0.get(&key(spec)?)?;
        Some((seen.time, seen.short >= seen.penance))
    }

    /// A launch has taken `time`, with up to `rounds` CTAs for each place.
    pub(super) fn saw(&mut self, spec: &Spec, time: Nanos, rounds: u64, is_original: bool) {
        let Some(key) = key(spec) else { return };
        let first = Seen { time, is_original, short: 0, penance: 1 };
        let seen = self.0.entry(key).or_insert(first);
        let same_form = seen.is_original && is_original;
        let least = Nanos(if same_form { seen.time.0 - seen.time.0 / DECAY } else { 0 });
        (seen.time, seen.is_original) = (time.max(least), is_original);
        if Expected::of(time, rounds).is_short() {
            seen.short = seen.short.saturating_add(1);
        } else {
            seen.short = 0;
            if is_original {
                seen.penance = (seen.penance * 2).clamp(FIRST_PENANCE, LONGEST_PENANCE);
            }
        }
        if self.0.len() > MOST_SHAPES {
            self.0.pop_first();
        }
    }
}

fn key(spec: &Spec) -> Option<Key> {
    let extents = |extent: Dim3| [extent.x, extent.y, extent.z];
    let hash = spec.kernel.hash.clone()?;
    Some((hash, extents(spec.grid), extents(spec.block), spec.dynamic_shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_short_by_the_time_of_a_task_and_a_cta() {
        let check = |launches: &[(u64, u64)], short: bool| {
            let all = launches
                .iter()
                .map(|&(micros, rounds)| Expected::of(Nanos(micros * 1_000), rounds));
            let sum = all.fold(Expected::default(), Expected::and);
            assert_eq!(sum.is_short(), short, "{launches:?}: {sum:?}");
        };
        check(&[], true);
        check(&[(20, 100)], true);
        check(&[(25, 100)], false);
        // Two rounds of CTAs: 15 us each.
        check(&[(30, 2)], true);
        check(&[(50, 2)], false);
        // All CTAs at once, but not for ever.
        check(&[(900, 1)], true);
        check(&[(1_021, 1)], false);
        check(&[(5, 9), (5, 9), (5, 9), (5, 9)], true);
        check(&[(5, 9), (5, 9), (5, 9), (5, 9), (5, 9)], false);
    }
}
