//! Which groups a queue is cut into: the integer program of Punyala §3.2.3, for any kinds of
//! applications.
//!
//! Applications of one *sort* are interchangeable. A [`Choice`] is a group of sorts with its value.
//! The program says how often each choice runs, so that every application is in one group and the
//! sum of values is greatest. Its size depends on the sorts, and not on the queue.
//!
//! # Invariants
//!
//! - The groups of an answer hold exactly the applications of the queue.
//! - The same queue and values give the same answer.

use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, constraint,
    microlp, variable,
};
use std::collections::BTreeMap;

/// A group that may run.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The sorts of its members, in ascending order.
    pub sorts: Vec<usize>,
    /// What it is worth; a finite number.
    pub value: f64,
}

/// Why a queue is not matched.
#[derive(Debug, thiserror::Error)]
pub enum MatchingError {
    /// The solver finds no answer. Every value has to be a finite number.
    #[error("no matching: {0}")]
    Unsolved(#[from] ResolutionError),
    /// The solver's answer is no matching of this queue.
    #[error("the answer of the solver does not hold the queue {0:?}")]
    Wrong(Vec<u32>),
}

/// All groups with a given number of sorts that the queue can fill, sorts in ascending order.
#[must_use]
pub fn fillable(queue: &[u32], size: usize) -> Vec<Vec<usize>> {
    fn extend(queue: &[u32], size: usize, group: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if group.len() == size {
            all.push(group.clone());
            return;
        }
        for sort in group.last().copied().unwrap_or(0)..queue.len() {
            let taken = group.iter().filter(|member| **member == sort).count();
            if taken < queue[sort] as usize {
                group.push(sort);
                extend(queue, size, group, all);
                group.pop();
            }
        }
    }
    let mut all = Vec::new();
    extend(queue, size, &mut Vec::new(), &mut all);
    all
}

/// The groups that are worth more than their members in several groups. No plan needs any other
/// group. Smaller groups come first; sizes are free.
#[must_use]
pub(super) fn needed(groups: impl Iterator<Item = Choice>) -> Vec<Choice> {
    // The greatest value of the same members in one group or several.
    let mut best = BTreeMap::<Vec<usize>, f64>::new();
    let mut found = Vec::new();
    for choice in groups {
        let apart = best_apart(&choice.sorts, &best);
        let most = apart.map_or(choice.value, |apart| apart.max(choice.value));
        best.insert(choice.sorts.clone(), most);
        if apart.is_none_or(|apart| choice.value > apart) {
            found.push(choice);
        }
    }
    found
}

/// The greatest value of a group's members in two parts.
fn best_apart(group: &[usize], best: &BTreeMap<Vec<usize>, f64>) -> Option<f64> {
    let part = |mask: usize, is_in: bool| -> Option<f64> {
        let members = group.iter().enumerate().filter(|(at, _)| (mask >> at & 1 == 1) == is_in);
        best.get(&members.map(|(_, sort)| *sort).collect::<Vec<usize>>()).copied()
    };
    // The last member is always in the second part.
    let masks = 1..1_usize << group.len().saturating_sub(1);
    let sums = masks.filter_map(|mask| Some(part(mask, true)? + part(mask, false)?));
    sums.reduce(f64::max)
}

/// How often each choice runs (Eq. 3.3 and 3.6). `sizes` says how many groups of a size there are;
/// the number is free for sizes that it does not name.
///
/// # Errors
/// Where a value is no number.
pub fn pack(
    queue: &[u32],
    choices: &[Choice],
    sizes: &[(usize, u32)],
) -> Result<Vec<u32>, MatchingError> {
    let mut variables = ProblemVariables::new();
    let times: Vec<Variable> = choices
        .iter()
        .map(|choice| {
            let often = choice.sorts.iter().map(|&sort| queue[sort] / taken(choice, sort).max(1));
            let most = often.min().unwrap_or(0);
            variables.add(variable().integer().min(0.0).max(f64::from(most)))
        })
        .collect();
    let sum = |factor: &dyn Fn(&Choice) -> f64| -> Expression {
        let factors = choices.iter().map(factor).zip(&times).filter(|(factor, _)| *factor != 0.0);
        factors.map(|(factor, &times)| factor * times).sum()
    };
    let mut model = variables.maximise(sum(&|choice| choice.value)).using(microlp);
    for (sort, &count) in queue.iter().enumerate().filter(|(_, count)| **count > 0) {
        let holds = sum(&|choice| f64::from(taken(choice, sort)));
        model.add_constraint(constraint!(holds == f64::from(count)));
    }
    for &(size, count) in sizes {
        let holds = sum(&|choice| f64::from(u8::from(choice.sorts.len() == size)));
        model.add_constraint(constraint!(holds == f64::from(count)));
    }
    let solution = model.solve()?;
    let found: Vec<u32> = times.iter().map(|&times| whole(solution.value(times))).collect();
    let holds = |sort: usize| -> u32 {
        choices.iter().zip(&found).map(|(choice, times)| taken(choice, sort) * times).sum()
    };
    let is_whole = queue.iter().enumerate().all(|(sort, count)| holds(sort) == *count);
    is_whole.then_some(found).ok_or_else(|| MatchingError::Wrong(queue.to_vec()))
}

/// Members of a sort in a group.
fn taken(choice: &Choice, sort: usize) -> u32 {
    let count = choice.sorts.iter().filter(|member| **member == sort).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The nearest whole number of a solver's answer.
fn whole(value: f64) -> u32 {
    // Bounded by the queue's length, which is 32 bits.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    let whole = value.round().clamp(0.0, f64::from(u32::MAX)) as u32;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_no_more_of_a_sort_than_the_queue() {
        assert_eq!(fillable(&[1, 0, 2], 2), [[0, 2], [2, 2]]);
        assert_eq!(fillable(&[1, 0, 2], 3), [[0, 2, 2]]);
        assert!(fillable(&[1, 0, 2], 4).is_empty());
    }

    /// The groups that are needed of three sorts: alone each is worth 1, pairs and the three what
    /// is given. All numbers are sums of eighths, so ties are exact.
    fn needed_of(pairs: [f64; 3], three: f64) -> Vec<Vec<usize>> {
        let alone = [0, 1, 2].map(|sort| (vec![sort], 1.0));
        let two = [vec![0, 1], vec![0, 2], vec![1, 2]].into_iter().zip(pairs);
        let all = alone.into_iter().chain(two).chain([(vec![0, 1, 2], three)]);
        let found = needed(all.map(|(sorts, value)| Choice { sorts, value }));
        found.into_iter().map(|choice| choice.sorts).filter(|sorts| sorts.len() > 1).collect()
    }

    #[test]
    fn a_group_is_needed_where_no_parts_are_worth_as_much() {
        let (none, three) = (Vec::<Vec<usize>>::new(), || vec![0, 1, 2]);
        // Two apart are worth 2, three apart 3.
        assert_eq!(needed_of([2.0; 3], 3.0), none);
        assert_eq!(needed_of([2.0; 3], 3.125), [three()]);
        // A pair of 2.5 and the third are worth 3.5, whichever the pair.
        for (at, pair) in [vec![0, 1], vec![0, 2], vec![1, 2]].into_iter().enumerate() {
            let mut pairs = [1.5; 3];
            pairs[at] = 2.5;
            for three in [3.25, 3.5] {
                assert_eq!(needed_of(pairs, three), std::slice::from_ref(&pair));
            }
            assert_eq!(needed_of(pairs, 3.625), [pair, three()]);
        }
    }
}
