//! From a kernel's profile to what its CTAs do: traffic, intensities.
//!
//! | quantity | from | unit |
//! | --- | --- | --- |
//! | traffic of CTAs | the counted CTAs', in proportion | CTAs, warp instructions, sectors |
//! | compute intensity (Slate §III-B, per CTA) | warp instructions of a CTA ÷ its time | warp instructions a second |
//! | memory intensity (the same) | bytes to and from the LLC of a CTA ÷ its time | bytes a second |
//!
//! The intensities are of one CTA beside as many others as ran when its time was measured.

use crate::models::float;
use partita_model::{KernelProfile, LlcUse, Traffic};

/// Bytes of a sector.
const SECTOR_BYTES: f64 = 32.0;

/// What so many CTAs do: in proportion to those that were counted.
///
/// It is a running total: what a kernel did between two numbers of CTAs is the difference of two
/// such totals, so that rounding does not add up.
#[must_use]
pub fn traffic_of(profile: &KernelProfile, ctas: u64) -> Traffic {
    let counted = profile.counts.ctas;
    let share = |value: u64| {
        let product = u128::from(value) * u128::from(ctas);
        u64::try_from(product / u128::from(counted.max(1))).unwrap_or(u64::MAX)
    };
    let LlcUse { least, accesses, most, hits_least, hits, hits_most, dirtied } = profile.llc;
    Traffic {
        ctas: if counted == 0 { 0 } else { ctas },
        warp_instructions: share(profile.counts.warp_instructions),
        llc_accesses: share(accesses),
        llc_hits: share(hits),
        llc_least: share(least),
        llc_most: share(most),
        hits_least: share(hits_least),
        hits_most: share(hits_most),
        llc_dirtied: share(dirtied),
    }
}

/// Warp instructions a second of one CTA; `None` before its time is known.
#[must_use]
pub fn compute_intensity(profile: &KernelProfile) -> Option<f64> {
    per_second(profile, float(profile.counts.warp_instructions))
}

/// Bytes a second between one CTA and the LLC; `None` before its time is known.
#[must_use]
pub fn memory_intensity(profile: &KernelProfile) -> Option<f64> {
    per_second(profile, float(profile.llc.accesses) * SECTOR_BYTES)
}

fn per_second(profile: &KernelProfile, total: f64) -> Option<f64> {
    let seconds = float(profile.cta_time?.0) / 1e9;
    let per_cta = total / float(profile.counts.ctas.max(1));
    (seconds > 0.0).then(|| per_cta / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Counts, Nanos};

    fn profile() -> KernelProfile {
        KernelProfile {
            launches: 1,
            counts: Counts { ctas: 3, warp_instructions: 1000, sectors: 100, ..Counts::default() },
            llc: LlcUse {
                least: 10,
                accesses: 50,
                most: 100,
                hits_least: 5,
                hits: 20,
                hits_most: 30,
                dirtied: 7,
            },
            cta_time: Some(Nanos(2000)),
            ..KernelProfile::default()
        }
    }

    #[test]
    fn rounding_does_not_add_up() {
        let mut sum = Traffic::default();
        for ctas in 0..3000 {
            let step = traffic_of(&profile(), ctas + 1)
                .combine(&traffic_of(&profile(), ctas), u64::saturating_sub);
            sum = sum.combine(&step, u64::saturating_add);
        }
        assert_eq!(sum, traffic_of(&profile(), 3000));
        assert_eq!((sum.ctas, sum.warp_instructions, sum.llc_accesses), (3000, 1_000_000, 50_000));
        assert_eq!(traffic_of(&KernelProfile::default(), 7).ctas, 0, "nothing was counted");
    }

    #[test]
    fn intensities_are_per_second() {
        let close = |found: Option<f64>, wanted: f64| (found.unwrap() / wanted - 1.0).abs() < 1e-9;
        assert!(close(compute_intensity(&profile()), 1000.0 / 3.0 / 2e-6));
        assert!(close(memory_intensity(&profile()), 50.0 * 32.0 / 3.0 / 2e-6));
        for cta_time in [None, Some(Nanos(0))] {
            assert_eq!(compute_intensity(&KernelProfile { cta_time, ..profile() }), None);
        }
    }
}
