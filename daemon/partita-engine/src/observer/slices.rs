//! How large the slices of a launch are: the smallest whose overhead is at most 2 % (Kernelet,
//! TPDS '14, section 4.1), found while slices run.
//!
//! # The search
//!
//! A slice of n CTAs takes n × r + c, where r is the time that the GPU takes for a CTA and c the
//! overhead of a slice: its start, and the places that are empty at its end. For each CTA that is
//! r + c ÷ n. A slice of twice as many CTAs takes r + c ÷ 2n for each, so half of the overhead
//! shows against it. The smallest slice with at most 2 % of overhead is therefore the smallest that
//! is at most 1 % slower for each CTA than the slice of twice its size.
//!
//! The search begins with slices that fill the GPU once and doubles their size. [`SAMPLES`] slices
//! of a size are measured, and the fastest stands: others have found cold caches, or ran beside
//! launches of their application. The search ends at the size that it looks for, or where larger
//! slices would take longer than [`LONGEST_SLICE`]. The size is remembered by kernel and shape.
//!
//! # Bounds
//!
//! Others wait for slices in flight. So a slice takes no longer than [`LONGEST_SLICE`] by the last
//! measurement, unless one round of its CTAs does. A launch that is expected to take no longer runs
//! whole. The device does not see what a slice costs the host, so a slice takes no less than
//! [`SHORTEST_SLICE`] once the search has ended. Beside an application of priority `latency` a
//! slice takes no longer than [`URGENT_SLICE`], whatever that costs. Where the device tells no
//! time, slices have [`ROUNDS`] rounds.

use crate::launches::Spec;
use partita_model::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The longest slice, where a round of CTAs is not longer. Two slices may be in flight, so others
/// wait twice as long.
pub(crate) const LONGEST_SLICE: Nanos = Nanos(1_000_000);
/// The longest slice beside an application of priority `latency`.
pub(crate) const URGENT_SLICE: Nanos = Nanos(100_000);
/// The shortest slice. The host spends about 4 us on a slice, which is 2 % of this time.
const SHORTEST_SLICE: Nanos = Nanos(200_000);
/// Slices of each size that are measured.
const SAMPLES: u32 = 3;
/// Rounds of CTAs in a slice where no time is told.
const ROUNDS: u64 = 8;
/// Kernels and shapes that are remembered. Beyond that some are forgotten.
const MOST_SHAPES: usize = 8192;

/// A kernel's code, the launch's block, dynamic shared memory.
type Key = (Arc<str>, [u32; 3], u32);

/// Picoseconds of the GPU for each CTA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Pace(u64);

impl Pace {
    fn of(time: Nanos, ctas: u64) -> Self {
        Pace((time.0.saturating_mul(1_000) / ctas.max(1)).max(1))
    }

    fn time_of(self, ctas: u64) -> Nanos {
        Nanos(ctas.saturating_mul(self.0) / 1_000)
    }

    /// The CTAs that take so long.
    fn ctas_in(self, time: Nanos) -> u64 {
        time.0.saturating_mul(1_000) / self.0
    }

    /// Whether slices at this pace have at most 2 % of overhead, by the pace of slices of twice
    /// their size.
    fn suffices(self, twice: Pace) -> bool {
        self.0.saturating_mul(100) <= twice.0.saturating_mul(101)
    }
}

/// What is known of a kernel in a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Search {
    /// Slices have 2 to this power rounds of CTAs.
    doublings: u32,
    is_settled: bool,
    /// The pace of slices of half the size.
    half: Option<Pace>,
    /// The fastest slice of this size, and how many were seen.
    fastest: Option<Pace>,
    samples: u32,
    /// The pace of the slice, or whole launch, that was seen last.
    latest: Pace,
}

impl Search {
    /// A slice of this search's size had this pace. `round` is the time of a round of CTAs.
    fn add(&mut self, pace: Pace, round: Nanos) {
        let fastest = self.fastest.map_or(pace, |fastest| fastest.min(pace));
        self.fastest = Some(fastest);
        self.samples += 1;
        if self.is_settled || self.samples < SAMPLES {
            return;
        }
        if self.half.is_some_and(|half| half.suffices(fastest)) {
            self.doublings -= 1;
            self.is_settled = true;
        } else if round.0.saturating_mul(2 << self.doublings) > LONGEST_SLICE.0 {
            self.is_settled = true;
        } else {
            self.doublings += 1;
            (self.half, self.fastest, self.samples) = (Some(fastest), None, 0);
        }
    }
}

/// Sizes of slices, by kernel and shape.
#[derive(Debug, Default)]
pub(super) struct Slices(BTreeMap<Key, Search>);

impl Slices {
    /// How many of a launch's CTAs, of which all of `spec` are left, run next. `round` is the
    /// number of CTAs that the GPU holds at once. Slices take no longer than `longest`; `None`
    /// where no time is told.
    pub(super) fn next(&self, spec: &Spec, round: u64, longest: Option<Nanos>) -> u64 {
        let (left, round) = (spec.ctas(), round.max(1));
        let search = key(spec).and_then(|key| self.0.get(&key));
        let size = match (longest, search) {
            (None, _) => round.saturating_mul(ROUNDS),
            (Some(_), None) => round,
            (Some(longest), Some(search)) => {
                let most = search.latest.ctas_in(longest);
                if left <= most {
                    return left;
                }
                let found = round.saturating_mul(1 << search.doublings);
                let least = match search.is_settled {
                    true => search.latest.ctas_in(SHORTEST_SLICE).next_multiple_of(round),
                    false => 0,
                };
                found.max(least).min(most / round * round).max(round)
            }
        };
        // What is left would be a small slice with much overhead.
        if left - left.min(size) < size / 2 { left } else { size }
    }

    /// The time that so many CTAs are expected to take.
    pub(super) fn time_of(&self, spec: &Spec, ctas: u64) -> Option<Nanos> {
        Some(self.0.get(&key(spec)?)?.latest.time_of(ctas))
    }

    /// A slice, or a launch that ran whole, has taken `time`.
    pub(super) fn saw(&mut self, spec: &Spec, time: Nanos, round: u64) {
        let Some(key) = key(spec) else { return };
        let (ctas, round) = (spec.ctas(), round.max(1));
        let latest = Pace::of(time, ctas);
        let (half, fastest) = (None, None);
        let first = Search { doublings: 0, is_settled: false, half, fastest, samples: 0, latest };
        let search = self.0.entry(key).or_insert(first);
        search.latest = latest;
        if ctas == round.saturating_mul(1 << search.doublings) {
            search.add(latest, latest.time_of(round));
        }
        if self.0.len() > MOST_SHAPES {
            self.0.pop_first();
        }
    }
}

fn key(spec: &Spec) -> Option<Key> {
    let block = [spec.block.x, spec.block.y, spec.block.z];
    Some((spec.kernel.hash.clone()?, block, spec.dynamic_shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The doublings at which the search ends where a round takes `round` and a slice `overhead`
    /// besides, in nanoseconds; the first slice of a size takes twice as long.
    fn search(round: u64, overhead: u64) -> u32 {
        let pace = |nanos: u64, rounds: u64| Pace::of(Nanos(nanos), rounds * 100);
        let latest = pace(round, 1);
        let (half, fastest) = (None, None);
        let mut search =
            Search { doublings: 0, is_settled: false, half, fastest, samples: 0, latest };
        for _ in 0..100 {
            let rounds = 1 << search.doublings;
            let warm = if search.samples == 0 { 2 } else { 1 };
            search.add(pace((rounds * round + overhead) * warm, rounds), Nanos(round));
        }
        assert!(search.is_settled, "{search:?}");
        search.doublings
    }

    #[test]
    fn the_smallest_slice_with_at_most_two_percent_of_overhead_is_found() {
        for (round, overhead, doublings) in [
            (10_000, 0, 0),
            (10_000, 190, 0),
            (10_000, 250, 1),
            (10_000, 2_000, 4),
            (10_000, 5_000, 5),
            // The bound on a slice's time.
            (10_000, 1_000_000, 6),
            (2_000_000, 1_000_000, 0),
        ] {
            assert_eq!(search(round, overhead), doublings, "{overhead} of {round}");
            let is_small = overhead * 1_000 <= (round << doublings) * 21;
            assert!(is_small || round << (doublings + 1) > LONGEST_SLICE.0, "{overhead}");
        }
    }
}
