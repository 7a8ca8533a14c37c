//! How long launches take, and which launches are short enough to run as they were written.
//!
//! A kernel in its original form cannot be interrupted between two CTAs. An application runs such a
//! launch only where a newcomer does not wait too long for it ([`Expected::is_within`]). The limit
//! is [`SHORT`] where another application could launch at any moment, and [`LONG`] where a newcomer
//! would have to connect and to load a module first.
//!
//! The time is learnt per kernel, block, dynamic shared memory and grid, from launches that had the
//! same SMs from their beginning to their end. On fewer SMs a launch takes longer by as much as it
//! has more rounds of CTAs. A launch of workers bounds the time of the original from above. Where
//! nothing was seen of a grid, these follow in order:
//!
//! 1. The kernel's other grids: `n` times as many CTAs take at most `n` times as long.
//! 2. The CTA time that its profile holds from an earlier run ([`super::profiling`]).
//! 3. A kernel without loops: its CTAs take at most [`STRAIGHT`] each.
//! 4. A launch whose CTAs all run at once: it ends with its longest CTA, however long that takes.
//!    A kernel that may wait for what others write is excepted.
//!
//! Any other launch runs as workers first.
//!
//! An original that took too long was a *surprise*: its data made it longer than before. Its kernel
//! and shape then run as workers until [`FIRST_PENANCE`] launches in a row were short. The number
//! doubles with each further surprise.

use super::cta_times::LONGEST;
use crate::launches::Spec;
use partita_model::{Dim3, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The time for which a newcomer may wait in addition to that of the longest CTA: that of a task.
pub(crate) const SHORT: Nanos = LONGEST;
/// The same before the newcomer has loaded its first module, which takes a program tens of
/// milliseconds on a real GPU.
pub(crate) const LONG: Nanos = Nanos(10_000_000);
/// The longest CTA for which a newcomer may wait in addition to the time of a task. It is the
/// longest time for which an application without work keeps its SMs
/// ([`crate::EngineConfig::idle_grace`]).
const LONGEST_CTA: Nanos = Nanos(1_000_000);
/// The time that a CTA without loops is taken to need: 32 warps of some thousand instructions.
const STRAIGHT: Nanos = Nanos(50_000);
/// Short launches in a row that end the penance for the first surprise.
const FIRST_PENANCE: u32 = 8;
/// The longest penance.
const LONGEST_PENANCE: u32 = 1 << 16;
/// Kernels and shapes that are remembered. Beyond that some are forgotten.
const MOST_SHAPES: usize = 8192;
/// Smaller and larger grids of a kernel from which the time of another grid is taken.
const MOST_RELATIVES: usize = 8;
/// From one original to the next the expected time falls by this part of itself at most.
const DECAY: u64 = 8;

/// What is expected of one or several launches, in their original form.
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

    /// Of what is left of a launch that has run for `run`.
    pub(crate) fn after(self, run: Nanos) -> Self {
        Expected { time: self.time.saturating_sub(run), ..self }
    }

    /// The longest time for which a newcomer may wait for these launches.
    pub(crate) fn bound(self, limit: Nanos) -> Nanos {
        limit + self.cta
    }

    /// Whether a newcomer that comes now waits no longer for these launches than it may.
    pub(crate) fn is_within(self, limit: Nanos) -> bool {
        self.time <= self.bound(limit)
    }
}

/// A kernel's code, the launch's block, dynamic shared memory, grid.
type Key = (Arc<str>, [u32; 3], u32, [u32; 3]);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    time: Nanos,
    /// CTAs that each place ran, one after the other, at most.
    rounds: u64,
    /// The time is an original's.
    is_original: bool,
    /// Short launches since the last one that was not.
    short: u32,
    /// Short launches after which the original may run.
    penance: u32,
}

impl Seen {
    fn is_allowed(self) -> bool {
        self.short >= self.penance
    }

    /// What is expected of the same launch in `rounds` rounds: on fewer SMs it has more. On more
    /// SMs it takes no longer.
    fn expected(self, rounds: u64) -> Expected {
        let time = self.time.0.saturating_mul(rounds).div_ceil(self.rounds).max(self.time.0);
        Expected::of(Nanos(time), rounds.max(self.rounds))
    }
}

/// A launch that has had the same SMs from its beginning to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Took {
    pub(crate) time: Nanos,
    pub(crate) is_original: bool,
    /// The time for which a newcomer may wait, in addition to that of the longest CTA.
    pub(crate) limit: Nanos,
}

/// Times of launches, by kernel and shape.
#[derive(Debug, Default)]
pub(super) struct LaunchTimes(BTreeMap<Key, Seen>);

impl LaunchTimes {
    /// What is expected of a launch, with up to `rounds` CTAs for each place, and whether its
    /// original may run. `cta_time` is what an earlier run has found.
    pub(super) fn get(
        &self,
        spec: &Spec,
        rounds: u64,
        cta_time: impl FnOnce() -> Option<Nanos>,
    ) -> Option<(Expected, bool)> {
        let key = key(spec)?;
        if let Some(seen) = self.0.get(&key) {
            return Some((seen.expected(rounds), seen.is_allowed()));
        }
        let by_ctas = |cta: Nanos| Nanos(cta.0.saturating_mul(rounds));
        let time = self
            .of_relatives(&key, spec.ctas(), rounds)
            .or_else(|| cta_time().map(by_ctas))
            .or_else(|| (!spec.kernel.loops).then(|| by_ctas(STRAIGHT)))
            // With this time no other launch of unknown length fits beside it.
            .or_else(|| (rounds == 1 && !spec.kernel.awaits).then_some(LONGEST_CTA))?;
        Some((Expected::of(time, rounds), true))
    }

    /// The most that a grid of `ctas` CTAs takes in `rounds` rounds, by the next smaller and larger
    /// grids of its kernel.
    fn of_relatives(&self, key: &Key, ctas: u64, rounds: u64) -> Option<Nanos> {
        let with = |grid| (key.0.clone(), key.1, key.2, grid);
        let smaller = self.0.range(with([0; 3])..key.clone()).rev().take(MOST_RELATIVES);
        let larger = self.0.range(key..&with([u32::MAX; 3])).take(MOST_RELATIVES);
        let seen = smaller.chain(larger).filter(|(_, seen)| seen.is_allowed());
        let count = |grid: &[u32; 3]| grid.iter().map(|&n| u64::from(n)).product::<u64>().max(1);
        let most = |(_, _, _, grid): &Key, seen: &Seen| {
            let times = ctas.div_ceil(count(grid)).max(rounds.div_ceil(seen.rounds));
            Nanos(seen.time.0.saturating_mul(times))
        };
        seen.map(|(key, seen)| most(key, seen)).min()
    }

    /// A launch is over that had up to `rounds` CTAs for each place.
    pub(super) fn saw(&mut self, spec: &Spec, took: Took, rounds: u64) {
        let Some(key) = key(spec) else { return };
        let Took { time, is_original, limit } = took;
        let rounds = rounds.max(1);
        let first = Seen { time, rounds, is_original, short: 0, penance: 1 };
        let seen = self.0.entry(key).or_insert(first);
        let same_form = seen.is_original && is_original && seen.rounds == rounds;
        let least = Nanos(if same_form { seen.time.0 - seen.time.0 / DECAY } else { 0 });
        (seen.time, seen.rounds, seen.is_original) = (time.max(least), rounds, is_original);
        if Expected::of(time, rounds).is_within(limit) {
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
    Some((hash, extents(spec.block), spec.dynamic_shared, extents(spec.grid)))
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
            assert_eq!(sum.is_within(SHORT), short, "{launches:?}: {sum:?}");
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
