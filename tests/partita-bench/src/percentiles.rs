//! Percentiles of measured values, and how far chance may have moved them.

use crate::track::float;

/// The part of samples whose percentile lies below an interval, and the part above it.
const TAIL: f64 = 0.025;

/// The value below which a part of all lies: the nearest rank. 0 where there is none.
#[must_use]
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * float(sorted.len() as u64)).ceil().max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    let at = rank as usize - 1;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// An interval that holds the percentile of the distribution with a probability of 95 % at least,
/// whatever the distribution: two of the values, by their ranks (David and Nagaraja, Order
/// Statistics, §7.1). `None` where there are too few values: 6 are needed for the median, 368 for
/// the 99th percentile, and 3,688 for the 99.9th.
///
/// The values count as independent. Requests that wait in the same queue are not, so their interval
/// is too narrow.
#[must_use]
pub fn interval(values: &[f64], part: f64) -> Option<[f64; 2]> {
    let (low, high) = ranks(values.len(), part)?;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some([*sorted.get(low - 1)?, *sorted.get(high - 1)?])
}

/// The ranks of an interval's ends, counted from 1. The number of values below the percentile is
/// binomial: the ends are the ranks that leave at most [`TAIL`] of it on each side.
fn ranks(count: usize, part: f64) -> Option<(usize, usize)> {
    let all = float(count as u64);
    // The logarithm of the probability that `below` values lie below: it begins near 0.
    let mut log = all * (1.0 - part).ln();
    let (mut sum, mut low) = (0.0, None);
    for below in 0..count {
        sum += log.exp();
        if sum <= TAIL {
            low = Some(below + 1);
        }
        if sum >= 1.0 - TAIL {
            return low.map(|low| (low, below + 1));
        }
        let number = float(below as u64);
        log += ((all - number) / (number + 1.0) * part / (1.0 - part)).ln();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        for (part, expected) in [(0.5, 100.0), (0.99, 198.0), (0.999, 200.0), (1.0, 200.0)] {
            assert!((percentile(&values, part) - expected).abs() < 1e-9, "{part}");
        }
        assert!(percentile(&[], 0.5).abs() < 1e-9);
    }

    /// Ranks of the median as tables have them, and the fewest values of each percentile.
    #[test]
    fn ranks_are_those_of_the_binomial_distribution() {
        assert_eq!(ranks(10, 0.5), Some((2, 9)));
        assert_eq!(ranks(100, 0.5), Some((40, 61)));
        for (part, fewest) in [(0.5, 6), (0.99, 368), (0.999, 3_688)] {
            assert_eq!(ranks(fewest - 1, part), None, "{part}");
            assert_eq!(ranks(fewest, part).map(|(_, high)| high), Some(fewest), "{part}");
        }
        assert_eq!(ranks(0, 0.5), None);
        let (low, high) = ranks(1_000_000, 0.999).unwrap();
        assert!((998_930..998_945).contains(&low) && (999_055..999_070).contains(&high));
    }

    #[test]
    fn intervals_hold_the_percentile_in_95_of_100_samples() {
        let mut random = Random::new(5);
        let held = (0..400).filter(|_| {
            let values: Vec<f64> =
                (0..500).map(|_| float(random.below(1 << 40)) / float(1 << 40)).collect();
            let [low, high] = interval(&values, 0.5).unwrap();
            (low..=high).contains(&0.5)
        });
        let held = held.count();
        assert!((366..=396).contains(&held), "{held} of 400");
    }
}
