//! Which patterns of classes a queue is cut into: the integer program of Punyala §3.2.3.
//!
//! A [`Pattern`] says how many applications of each class run together (Eq. 3.1). The program
//! chooses how often each pattern runs, so that every application is in one group and the sum over
//! groups is greatest. Its size depends on the number of classes and the size of groups, and not on
//! the queue: 14 variables for pairs, 69 for groups of four.
//!
//! # Invariants
//!
//! - The patterns of an answer hold exactly the applications of the queue.
//! - The same queue and values give the same answer.

use super::packing::{Choice, MatchingError, pack};
use partita_model::{ContentionClass, GroupSize, InterferenceMatrix};

/// Numbers of applications, by class in the order of [`ContentionClass::ALL`].
pub type Counts = [u32; 4];

/// Applications of each class in a group (Eq. 3.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pattern(pub Counts);

impl Pattern {
    /// The classes of its members, in the order of the classes.
    pub fn classes(&self) -> impl Iterator<Item = ContentionClass> + Clone {
        let counts = self.0;
        ContentionClass::ALL
            .into_iter()
            .flat_map(move |class| (0..counts[class.place()]).map(move |_| class))
    }

    /// The number of its members.
    #[must_use]
    pub fn members(&self) -> u32 {
        self.0.iter().sum()
    }
}

/// How large the groups are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// As printed (Eq. 3.7): as many groups of the greatest size as possible, and one group of the
    /// applications that are left.
    Full,
    /// Any size up to the greatest: applications that slow each other down take turns.
    Any,
}

/// All patterns of so many applications, those with more of the first class first. There are
/// `(4 + size − 1) choose size` (Eq. 3.2).
#[must_use]
pub fn patterns(size: u32) -> Vec<Pattern> {
    let mut all = Vec::new();
    for first in (0..=size).rev() {
        for second in (0..=size - first).rev() {
            for third in (0..=size - first - second).rev() {
                all.push(Pattern([first, second, third, size - first - second - third]));
            }
        }
    }
    all
}

/// The expected speeds of a pattern's members, as parts of the speeds alone, in the order of
/// [`Pattern::classes`].
///
/// The matrix has pairs. What a member loses to each other member adds up:
/// `S_i = 1 + Σ (s_ij − 1)` over the other members. So three applications that each scale with
/// their SMs, or that share one bandwidth, have a slowdown of 3.
#[must_use]
pub fn speeds(pattern: &Pattern, matrix: &InterferenceMatrix) -> Vec<f64> {
    let classes: Vec<ContentionClass> = pattern.classes().collect();
    let speed = |(at, &of): (usize, &ContentionClass)| {
        let others = classes.iter().enumerate().filter(|(other, _)| *other != at);
        let lost: f64 = others.map(|(_, &beside)| matrix.of(of, beside).slowdown - 1.0).sum();
        1.0 / (1.0 + lost)
    };
    classes.iter().enumerate().map(speed).collect()
}

/// The sum of the expected speeds of a pattern: `N_C · e_k` of Eq. 3.4.
#[must_use]
pub fn throughput(pattern: &Pattern, matrix: &InterferenceMatrix) -> f64 {
    speeds(pattern, matrix).iter().sum()
}

/// How often each pattern runs, so that the sum of values is greatest (Eq. 3.3) and each
/// application of the queue is in one group (Eq. 3.6). Patterns that never run are left out.
///
/// # Errors
/// Where a value is no number.
pub fn matching(
    queue: Counts,
    most: GroupSize,
    sizes: Sizes,
    value: &dyn Fn(&Pattern) -> f64,
) -> Result<Vec<(Pattern, u32)>, MatchingError> {
    let total: u32 = queue.iter().sum();
    let most = u32::from(most.get()).min(total);
    if most == 0 {
        return Ok(Vec::new());
    }
    // Groups of each size; `None` where that is free.
    let groups: Vec<(u32, Option<u32>)> = match sizes {
        Sizes::Any => (1..=most).map(|size| (size, None)).collect(),
        Sizes::Full => {
            let rest = Some((total % most, Some(1))).filter(|(size, _)| *size > 0);
            [(most, Some(total / most))].into_iter().chain(rest).collect()
        }
    };
    let fits = |pattern: &Pattern| pattern.0.iter().zip(queue).all(|(one, all)| *one <= all);
    let possible: Vec<Pattern> =
        groups.iter().flat_map(|(size, _)| patterns(*size)).filter(fits).collect();
    let choices: Vec<Choice> = possible
        .iter()
        .map(|pattern| {
            let sorts = pattern.classes().map(ContentionClass::place).collect();
            Choice { sorts, value: value(pattern) }
        })
        .collect();
    let fixed: Vec<(usize, u32)> =
        groups.iter().filter_map(|(size, count)| Some((*size as usize, (*count)?))).collect();
    let times = pack(&queue, &choices, &fixed)?;
    Ok(possible.into_iter().zip(times).filter(|(_, times)| *times > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn size(size: u8) -> GroupSize {
        GroupSize::try_from(size).unwrap()
    }

    /// The greatest sum of values over all ways to cut a queue into groups, by trying all.
    fn exhaustive(
        queue: Counts,
        groups: &[Pattern],
        value: &dyn Fn(&Pattern) -> f64,
        known: &mut BTreeMap<Counts, f64>,
    ) -> f64 {
        if queue == [0; 4] {
            return 0.0;
        }
        if let Some(best) = known.get(&queue) {
            return *best;
        }
        let mut best = f64::NEG_INFINITY;
        for group in groups {
            let mut rest = queue;
            let fits = rest.iter_mut().zip(group.0).all(|(all, one)| {
                let fits = *all >= one;
                *all = all.saturating_sub(one);
                fits
            });
            if fits {
                best = best.max(value(group) + exhaustive(rest, groups, value, known));
            }
        }
        known.insert(queue, best);
        best
    }

    fn sum(found: &[(Pattern, u32)], value: &dyn Fn(&Pattern) -> f64) -> f64 {
        found.iter().map(|(pattern, times)| value(pattern) * f64::from(*times)).sum()
    }

    #[test]
    fn patterns_are_counted_by_equation_3_2() {
        let counts = [1, 2, 3, 4].map(|size| patterns(size).len());
        assert_eq!(counts, [4, 10, 20, 35]);
        assert_eq!(patterns(2)[1], Pattern([1, 1, 0, 0]), "the order of appendix A");
    }

    /// The example of appendix A: the values of Eq. 5.1 and the answer of Eq. 5.7.
    #[test]
    fn appendix_a() {
        let values =
            [0.0072, 0.0110, 0.0146, 0.03584, 0.0204, 0.0202, 0.0698, 0.0178, 0.0412, 0.166];
        let pairs = patterns(2);
        let value = |pattern: &Pattern| {
            pairs.iter().position(|pair| pair == pattern).map_or(0.0, |at| values[at])
        };
        let found = matching([2, 5, 2, 5], size(2), Sizes::Full, &value).unwrap();
        let times = |pattern: &Pattern| {
            found.iter().find(|(found, _)| found == pattern).map_or(0, |(_, times)| *times)
        };
        let all: Vec<u32> = pairs.iter().map(times).collect();
        assert_eq!(all, [0, 0, 2, 0, 2, 0, 1, 0, 0, 2]);
    }

    #[test]
    fn losses_to_several_neighbours_add_up() {
        let matrix = InterferenceMatrix::estimated(|_, _| 2.0).unwrap();
        for members in 1..=4 {
            let speeds = speeds(&Pattern([0, 0, 0, members]), &matrix);
            let expected = 1.0 / f64::from(members);
            assert!(speeds.iter().all(|speed| (speed - expected).abs() < 1e-12), "{speeds:?}");
        }
    }

    #[test]
    fn an_empty_queue_has_no_groups() {
        assert!(matching([0; 4], size(2), Sizes::Any, &|_| 1.0).unwrap().is_empty());
        assert!(matching([0; 4], size(3), Sizes::Full, &|_| 1.0).unwrap().is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn it_is_the_exhaustive_matching(
            queue in prop::array::uniform4(0_u32..6),
            slowdowns in prop::collection::vec(1.0..4.0_f64, 16),
            most in 2_u8..=4,
            is_full in any::<bool>(),
        ) {
            let matrix = InterferenceMatrix::estimated(|of, beside| {
                slowdowns[of.place() * 4 + beside.place()]
            }).unwrap();
            let value =
                |pattern: &Pattern| f64::from(pattern.members()) * throughput(pattern, &matrix);
            let total: u32 = queue.iter().sum();
            if is_full && !total.is_multiple_of(most.into()) {
                return Ok(());
            }
            let (sizes, least) = if is_full { (Sizes::Full, most) } else { (Sizes::Any, 1) };
            let all = u32::from(least)..=u32::from(most);
            let groups: Vec<Pattern> = all.flat_map(patterns).collect();
            let best = exhaustive(queue, &groups, &value, &mut BTreeMap::new());
            let found = matching(queue, size(most), sizes, &value).unwrap();
            let reached = sum(&found, &value);
            prop_assert!(reached >= best * 0.99 && reached <= best + 1e-6, "{reached} of {best}");
        }
    }

    #[test]
    fn a_pattern_of_six_has_six_members() {
        let pattern = Pattern([2, 0, 3, 1]);
        assert_eq!((pattern.members(), pattern.classes().count()), (6, 6));
    }

    #[test]
    fn speeds_follow_from_the_matrix() {
        // M takes 1.6 times as long beside M, 1.25 times beside A; A twice as long beside M.
        let matrix = InterferenceMatrix::default();
        let wanted = [1.0 / 1.85, 1.0 / 1.85, 1.0 / 3.0];
        let found = speeds(&Pattern([2, 0, 0, 1]), &matrix);
        assert_eq!(found.len(), 3);
        assert!(found.iter().zip(wanted).all(|(is, wanted)| (is - wanted).abs() < 1e-12));
        let sum = throughput(&Pattern([2, 0, 0, 1]), &matrix);
        assert!((sum - (2.0 / 1.85 + 1.0 / 3.0)).abs() < 1e-12, "{sum}");
    }

    /// Eq. 3.7 where the queue is no multiple of the size.
    #[test]
    fn what_is_left_of_full_groups_is_one_group() {
        let (mixed, one) = (Pattern([1, 1, 0, 0]), Pattern([1, 0, 0, 0]));
        let value = |pattern: &Pattern| if *pattern == mixed { 10.0 } else { 1.0 };
        // Patterns that never run are left out.
        let found = matching([3, 2, 0, 0], size(2), Sizes::Full, &value).unwrap();
        assert_eq!(found, [(mixed, 2), (one, 1)]);
    }
}
