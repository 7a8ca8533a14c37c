//! How long an application without work keeps its SMs: its *grace*.
//!
//! A program that launches short kernels one after the other has none between two launches, for as
//! long as its host takes. If others got its SMs in each of these gaps, every launch would wait for
//! a border. A program that has ended, or computes on the host, should not keep SMs from others.
//!
//! Nobody knows how long a gap will be. Two rules bound what a wrong guess costs:
//!
//! - An application of which no gap was seen keeps its SMs for [`LOAN`], the time that two borders
//!   take. An owner that waits for as long as a loan costs loses at most twice the time that the
//!   best choice would have lost (the rent-or-buy bound; Karlin et al., "Competitive snoopy
//!   caching", 1988).
//! - An application that had gaps keeps its SMs for twice its longest gap of late. A gap longer
//!   than the bound of the grace is a pause and says nothing of gaps. The memory of a long gap
//!   fades by an eighth of the difference with each shorter one.
//!
//! The bound is [`crate::EngineConfig::idle_grace`], or [`crate::EngineConfig::urgent_grace`] for
//! applications of priority `latency`. A session that has ended keeps no SMs at all.

use super::cta_times::LONGEST;
use partita_model::Nanos;

/// The time from a launch to its first worker on a free SM, a helper grid included: up to 8.3 µs
/// were measured (`partita bench resize`).
const ARRIVAL: Nanos = Nanos(10_000);
/// What a loan costs: the borrower's workers leave after a task, and the new ones arrive; once for
/// each of two borders.
pub(super) const LOAN: Nanos = Nanos(2 * (LONGEST.0 + ARRIVAL.0));
/// The memory of the longest gap fades by one such part with each shorter gap.
const FADING: u64 = 8;

/// What was seen of an application's gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Gaps {
    /// The longest gap of late.
    longest: Nanos,
}

impl Gaps {
    /// A gap of this length has ended; `most` bounds the grace.
    pub(super) fn saw(&mut self, gap: Nanos, most: Nanos) {
        if gap <= most {
            let faded = self.longest.0 - self.longest.saturating_sub(gap).0 / FADING;
            self.longest = Nanos(faded.max(gap.0));
        }
    }

    /// For how long the application keeps its SMs without work, `most` at most.
    pub(super) fn grace(self, most: Nanos) -> Nanos {
        Nanos(self.longest.0.saturating_mul(2)).max(LOAN).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Nanos = Nanos(1_000_000);

    #[track_caller]
    fn check(gaps: &[u64], expected: u64) {
        let mut seen = Gaps::default();
        for &gap in gaps {
            seen.saw(Nanos(gap), MOST);
        }
        assert_eq!(seen.grace(MOST).0, expected, "{gaps:?}");
    }

    #[test]
    fn the_grace_follows_the_longest_gap_of_late() {
        // A loan takes two borders of 30 us.
        check(&[], 60_000);
        check(&[5_000, 20_000], 60_000);
        check(&[100_000], 200_000);
        check(&[100_000, 40_000, 90_000], 2 * 92_188);
        // The bound holds, and a pause says nothing.
        check(&[900_000], 1_000_000);
        check(&[100_000, 5_000_000], 200_000);
        check(&[5_000_000], 60_000);
    }

    #[test]
    fn a_long_gap_is_forgotten() {
        let mut gaps = vec![800_000];
        gaps.extend([10_000; 40]);
        check(&gaps, 60_000);
    }

    #[test]
    fn absurd_gaps_do_no_harm() {
        let mut gaps = Gaps::default();
        gaps.saw(Nanos(u64::MAX), Nanos(u64::MAX));
        gaps.saw(Nanos(0), Nanos(u64::MAX));
        assert_eq!(gaps.grace(MOST), MOST);
        assert_eq!(gaps.grace(Nanos(7)), Nanos(7), "the bound goes before");
    }
}
