//! Fair numbers of SMs: by weight, between a least and a most for each application.
//!
//! The division is max-min fair: an SM goes to the application that has fewest for its weight.
//! Where nothing was said of anybody, the division is the even one, give or take one SM.

use partita_model::{ApplicationId, SmSet};
use std::cmp::Reverse;

/// Between what a partitioner may choose for an application, and its part in a fair division.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bounds {
    /// The fewest SMs.
    pub least: u16,
    /// The most SMs.
    pub most: u16,
    /// The part in what is left, relative to the others' weights.
    pub weight: u16,
}

impl Default for Bounds {
    /// What an application has of which nothing was said.
    fn default() -> Self {
        Bounds { least: 0, most: u16::MAX, weight: 1 }
    }
}

impl Bounds {
    /// Whether an application may have so many SMs.
    pub(crate) fn contain(&self, sms: u16) -> bool {
        (self.least..=self.most).contains(&sms)
    }

    /// How well off an application with `sms` SMs is: compared by the SMs that it has for its
    /// weight. One of weight 0 is better off than all others.
    fn wealth(&self, sms: u16) -> (bool, u64) {
        // Halfway between this SM and the next one: so no weight is favoured by rounding.
        let halves = 2 * u64::from(sms) + 1;
        match u64::from(self.weight) {
            0 => (true, halves),
            weight => (false, (halves << 32) / weight),
        }
    }
}

/// `total` SMs by weight, each number between its bounds. Ties go to the application that has most
/// SMs now, then to the lowest id: that moves fewest. Where the least numbers add up to more than
/// `total`, the last applications get less.
pub(crate) fn fair_counts(
    total: u16,
    holders: &[(ApplicationId, SmSet)],
    bounds: &[Bounds],
) -> Vec<u16> {
    let mut left = total;
    let mut counts: Vec<u16> = bounds
        .iter()
        .map(|bounds| {
            let least = bounds.least.min(left);
            left -= least;
            least
        })
        .collect();
    // An SM for each before anyone has a second one, so that weights starve nobody.
    let first = |at: usize, sms: u16| sms > 0 || bounds[at].weight == 0;
    while left > 0 {
        let may = |at: &usize| counts[*at] < bounds[*at].most;
        let poorest = (0..counts.len()).filter(may).min_by_key(|&at| {
            let (id, has) = holders[at];
            let wealth = bounds[at].wealth(counts[at]);
            (first(at, counts[at]), wealth, Reverse(has.len()), id)
        });
        let Some(poorest) = poorest else { break };
        counts[poorest] += 1;
        left -= 1;
    }
    counts
}

/// The numbers next to `wanted` that keep to the bounds, and add up to as much where the bounds
/// let them.
pub(crate) fn fitted(total: u16, wanted: &[u16], bounds: &[Bounds]) -> Vec<u16> {
    let target = wanted.iter().map(|&sms| u32::from(sms)).sum::<u32>().min(total.into());
    let keep = |(&sms, bounds): (&u16, &Bounds)| sms.min(bounds.most).max(bounds.least);
    let mut counts: Vec<u16> = wanted.iter().zip(bounds).map(keep).collect();
    let sum = |counts: &[u16]| counts.iter().map(|&sms| u32::from(sms)).sum::<u32>();
    while sum(&counts) > target {
        let may = |at: &usize| counts[*at] > bounds[*at].least;
        let richest = (0..counts.len()).filter(may);
        let Some(richest) = richest.max_by_key(|&at| (bounds[at].wealth(counts[at]), Reverse(at)))
        else {
            break;
        };
        counts[richest] -= 1;
    }
    while sum(&counts) < target {
        let may = |at: &usize| counts[*at] < bounds[*at].most;
        let poorest = (0..counts.len()).filter(may);
        let Some(poorest) = poorest.min_by_key(|&at| (bounds[at].wealth(counts[at]), at)) else {
            break;
        };
        counts[poorest] += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plans::even_counts;
    use proptest::prelude::*;

    fn bounds(least: u16, most: u16, weight: u16) -> Bounds {
        Bounds { least, most, weight }
    }

    fn holders(sms: &[u16]) -> Vec<(ApplicationId, SmSet)> {
        let mut start = 0;
        let ids = (1..).map(ApplicationId);
        let mut set = |&sms: &u16| {
            let set = SmSet::range(start, sms);
            start += sms;
            set
        };
        ids.zip(sms.iter().map(&mut set)).collect()
    }

    #[track_caller]
    fn check(total: u16, of: &[Bounds], expected: &[u16]) {
        assert_eq!(fair_counts(total, &holders(&vec![0; of.len()]), of), expected);
    }

    #[test]
    fn weights_divide_what_is_left() {
        let any = Bounds::default();
        check(24, &[any, any], &[12, 12]);
        check(24, &[bounds(0, 99, 2), any], &[16, 8]);
        check(132, &[bounds(0, 999, 1), bounds(0, 999, 9)], &[13, 119]);
        check(24, &[bounds(0, 6, 9), any], &[6, 18]);
        check(24, &[bounds(20, 24, 1), any], &[20, 4]);
        check(24, &[bounds(0, 5, 1), bounds(0, 6, 1)], &[5, 6]);
        // A weight of 1,000 starves nobody; a weight of 0 gets what nobody else can use.
        check(24, &[bounds(0, 99, 1000), any, any], &[22, 1, 1]);
        check(24, &[bounds(0, 99, 0), any], &[0, 24]);
        check(24, &[bounds(0, 99, 0), bounds(0, 9, 1)], &[15, 9]);
        check(4, &[bounds(3, 9, 1), bounds(3, 9, 1)], &[3, 1]);
        check(24, &[], &[]);
    }

    #[test]
    fn numbers_that_do_not_keep_to_the_bounds_are_moved() {
        let any = Bounds::default();
        for (wanted, of, expected) in [
            ([12, 12], [any, any], [12, 12]),
            ([20, 4], [bounds(0, 8, 1), any], [8, 16]),
            ([2, 22], [bounds(6, 24, 1), any], [6, 18]),
            // SMs that a partitioner leaves empty stay empty.
            ([8, 8], [bounds(0, 6, 1), any], [6, 10]),
            ([4, 4], [bounds(8, 24, 1), any], [8, 0]),
            ([20, 4], [bounds(0, 4, 1), bounds(0, 4, 1)], [4, 4]),
        ] {
            assert_eq!(fitted(24, &wanted, &of), expected, "{wanted:?} {of:?}");
        }
    }

    fn any_bounds() -> impl Strategy<Value = Bounds> {
        (0_u16..40, 0_u16..200, 0_u16..20)
            .prop_map(|(least, more, weight)| bounds(least, least.saturating_add(more), weight))
    }

    proptest! {
        #[test]
        fn without_terms_the_division_is_even(
            total in 0_u16..300, has in prop::collection::vec(0_u16..30, 0..8),
        ) {
            let holders = holders(&has);
            let counts = fair_counts(total, &holders, &vec![Bounds::default(); has.len()]);
            prop_assert_eq!(counts, even_counts(total, &holders));
        }

        #[test]
        fn bounds_hold_and_nothing_is_wasted(
            total in 0_u16..300,
            of in prop::collection::vec(any_bounds(), 1..8),
            wanted in prop::collection::vec(0_u16..300, 8),
        ) {
            let least: u32 = of.iter().map(|b| u32::from(b.least)).sum();
            let most: u32 = of.iter().map(|b| u32::from(b.most)).sum();
            let counts = fair_counts(total, &holders(&vec![0; of.len()]), &of);
            let sum: u32 = counts.iter().map(|&sms| u32::from(sms)).sum();
            prop_assert_eq!(sum, u32::from(total).min(most));
            for (sms, bounds) in counts.iter().zip(&of) {
                prop_assert!(*sms <= bounds.most);
                prop_assert!(*sms >= bounds.least || least > total.into());
            }
            if least <= total.into() {
                let wanted = &wanted[..of.len()];
                let counts = fitted(total, wanted, &of);
                let sum: u32 = counts.iter().map(|&sms| u32::from(sms)).sum();
                prop_assert!(sum <= total.into());
                prop_assert!(counts.iter().zip(&of).all(|(sms, bounds)| bounds.contain(*sms)));
            }
        }
    }

    #[test]
    fn bounds_contain_their_ends() {
        let bounds = bounds(3, 5, 1);
        assert_eq!([2, 3, 5, 6].map(|sms| bounds.contain(sms)), [false, true, true, false]);
    }
}
