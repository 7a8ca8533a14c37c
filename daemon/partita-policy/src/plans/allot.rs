//! From numbers of SMs to sets of SMs, with as few moves as possible.

use crate::Plan;
use partita_model::{ApplicationId, SmSet};
use std::cmp::Reverse;

/// `total` in equal parts, give or take one, for holders of so many SMs each.
///
/// The remainder of the division goes to those who have most, ties to the lowest id: that moves
/// fewest.
pub(crate) fn even_counts(total: u16, holders: &[(ApplicationId, SmSet)]) -> Vec<u16> {
    let Some(count) = u16::try_from(holders.len()).ok().filter(|&count| count > 0) else {
        return vec![0; holders.len()];
    };
    let (base, extras) = (total / count, usize::from(total % count));
    let mut by_holding: Vec<usize> = (0..holders.len()).collect();
    by_holding.sort_by_key(|&i| (Reverse(holders[i].1.len()), holders[i].0));
    let mut counts = vec![base; holders.len()];
    for &i in by_holding.iter().take(extras) {
        counts[i] += 1;
    }
    counts
}

/// Everybody with so many of `sms`, but for those with none. Everybody keeps the lowest SMs that it
/// has; what is missing comes from those that nobody keeps. Where the counts add up to more than
/// there is, the last get less.
pub(crate) fn allot(sms: SmSet, holders: &[(ApplicationId, SmSet)], counts: &[u16]) -> Plan {
    let mut free = sms;
    let mut sets: Vec<SmSet> = holders
        .iter()
        .zip(counts)
        .map(|((_, has), &count)| {
            let kept: SmSet = has.intersection(&free).iter().take(count.into()).collect();
            free = free.difference(&kept);
            kept
        })
        .collect();
    let mut free = free.iter();
    for (set, &count) in sets.iter_mut().zip(counts) {
        while set.len() < count
            && let Some(sm) = free.next()
        {
            set.insert(sm);
        }
    }
    let partitions = holders.iter().map(|(id, _)| *id).zip(sets).filter(|(_, sms)| !sms.is_empty());
    Plan::of_disjoint(partitions.collect())
}

/// Gives everyone at least one by taking from those who have most (ties: the lowest index), while
/// that is possible.
pub(crate) fn at_least_one(counts: &mut [u16]) {
    while let Some(poor) = counts.iter().position(|&count| count == 0) {
        let Some(rich) =
            (0..counts.len()).max_by_key(|&i| (counts[i], Reverse(i))).filter(|&i| counts[i] > 1)
        else {
            return;
        };
        counts[rich] -= 1;
        counts[poor] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_left_without() {
        for (before, after) in [
            (vec![5, 0, 0], vec![3, 1, 1]),
            (vec![2, 2, 0], vec![1, 2, 1]),
            (vec![1, 1, 0], vec![1, 1, 0]),
            (vec![], vec![]),
        ] {
            let mut counts = before;
            at_least_one(&mut counts);
            assert_eq!(counts, after);
        }
    }

    #[test]
    fn keeps_what_it_can() {
        let holders = [
            (ApplicationId(1), "0-3".parse().unwrap()),
            (ApplicationId(2), "2-7".parse().unwrap()),
        ];
        for (counts, expected) in
            [([2, 5], ["0-1", "2-6"]), ([6, 6], ["0-3", "4-7"]), ([0, 3], ["", "2-4"])]
        {
            let plan = allot(SmSet::range(0, 8), &holders, &counts);
            let expected: Vec<_> =
                (1..).map(ApplicationId).zip(expected).filter(|(_, sms)| !sms.is_empty()).collect();
            let found: Vec<_> = plan.iter().map(|(id, sms)| (id, sms.to_string())).collect();
            assert_eq!(
                found,
                expected.iter().map(|(id, sms)| (*id, (*sms).to_owned())).collect::<Vec<_>>()
            );
        }
    }
}
