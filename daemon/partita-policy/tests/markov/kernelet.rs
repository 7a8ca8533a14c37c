//! Kernelet's advice: the pairs that are known to be best, against all matchings, and what holds
//! for any candidates.

use crate::{counted, hardware};
use partita_model::ApplicationId;
use partita_policy::markov::{Alone, Model, Ratio};
use partita_policy::{Adviser, Candidate, Character, Group, Kernelet, KerneletSettings};
use proptest::prelude::*;

fn kernelet(settings: KerneletSettings) -> Kernelet {
    Kernelet::new(hardware(), settings).expect("a GPU")
}

fn candidates(characters: &[Option<Character>]) -> Vec<Candidate> {
    let ids = (1..).map(ApplicationId);
    let with = |(application, character): (_, &Option<Character>)| Candidate {
        application,
        character: *character,
    };
    ids.zip(characters).map(with).collect()
}

fn members(groups: &[Group]) -> Vec<Vec<u32>> {
    groups.iter().map(|group| group.members.iter().map(|id| id.0).collect()).collect()
}

fn compute(ipc: f64) -> Option<Character> {
    Some(counted(0.01, 4.0, ipc))
}

fn memory(ipc: f64) -> Option<Character> {
    Some(counted(0.25, 4.0, ipc))
}

#[test]
fn complements_run_together_and_alike_ones_alone() {
    let advise =
        |of: &[Option<Character>]| kernelet(KerneletSettings::default()).advise(&candidates(of));
    let groups = advise(&[compute(0.9), memory(0.15), memory(0.15), compute(0.9)]);
    assert_eq!(members(&groups), [[1, 2], [3, 4]]);
    for group in &groups {
        let expected = group.expected.as_ref().unwrap();
        assert!(expected.throughput > 1.2, "{expected:?}");
        assert_eq!(expected.quotas.iter().sum::<u32>(), 8);
    }
    assert_eq!(members(&advise(&[compute(0.9), compute(0.9)])), [[1], [2]]);
    assert_eq!(members(&advise(&[memory(0.15), memory(0.15)])), [[1], [2]]);
    // What nothing is known of, or too little, is alone.
    let unknown = memory(0.15).map(|character| Character { alone: None, ..character });
    let groups = advise(&[None, unknown, compute(0.9), memory(0.15)]);
    assert_eq!(members(&groups), [vec![3, 4], vec![1], vec![2]]);
    assert_eq!(groups[1].expected, None);
    assert!(advise(&[]).is_empty());
}

#[test]
fn the_greatest_profit_comes_first() {
    let of = [compute(0.9), compute(0.5), memory(0.15), memory(0.08)];
    let groups = kernelet(KerneletSettings::default()).advise(&candidates(&of));
    let throughput: Vec<f64> =
        groups.iter().map(|group| group.expected.as_ref().unwrap().throughput).collect();
    assert_eq!(throughput.len(), 2);
    assert!(throughput[0] > throughput[1], "{throughput:?}");
    let choosy = |least_profit| {
        let settings = KerneletSettings { least_profit, ..KerneletSettings::default() };
        kernelet(settings).advise(&candidates(&of)).len()
    };
    let most = 1.0 - 1.0 / throughput[0];
    assert_eq!((choosy(most - 1e-6), choosy(most + 1e-6)), (3, 4));
}

/// The greatest sum of profits over all ways to pair some of the kernels.
fn best(model: &Model, kernels: &[Alone]) -> f64 {
    let Some((first, others)) = kernels.split_first() else { return 0.0 };
    let with = |at: usize| {
        let pair = model.chosen([first, &others[at]], Ratio::Balanced).expect("two kernels");
        let mut left = others.to_vec();
        left.remove(at);
        pair.map_or(0.0, |shared| shared.profit().max(0.0)) + best(model, &left)
    };
    (0..others.len()).map(with).fold(best(model, others), f64::max)
}

/// A character of numbers in \[0, 1\].
fn character(numbers: &[f64]) -> Character {
    let ratio = 0.005 + 0.3 * numbers[0] * numbers[0];
    let character = counted(ratio, 2.0 + 10.0 * numbers[1], 0.05 + 0.9 * numbers[2]);
    Character { warp_instructions: 2_000.0 * (0.5 + numbers[3]), ..character }
}

fn numbers() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(0.0..1.0_f64, 4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A greedy matching has half of the greatest sum, at least, but for pairs that gain too
    /// little.
    #[test]
    fn advice_is_near_the_best_of_all_matchings(of in prop::collection::vec(numbers(), 2..7)) {
        let characters: Vec<_> = of.iter().map(|numbers| Some(character(numbers))).collect();
        let model = Model::new(&hardware(), Model::UNITS).expect("a GPU");
        let kernels: Vec<Alone> = characters
            .iter()
            .map(|character| model.fitted(&character.unwrap(), &hardware()).unwrap())
            .collect();
        let groups = kernelet(KerneletSettings::default()).advise(&candidates(&characters));
        let profit = |group: &Group| 1.0 - 1.0 / group.expected.as_ref().unwrap().throughput;
        let found: f64 = groups.iter().map(profit).sum();
        let best = best(&model, &kernels);
        prop_assert!(found >= best / 2.0 - 0.06, "{} of {}", found, best);
    }

    #[test]
    fn every_candidate_is_in_one_group(
        of in prop::collection::vec(prop::option::weighted(0.9, numbers()), 0..80),
        rotated in 0..80_usize,
    ) {
        let characters: Vec<_> =
            of.iter().map(|numbers| numbers.as_ref().map(|numbers| character(numbers))).collect();
        let mut candidates = candidates(&characters);
        let adviser = kernelet(KerneletSettings { units: 4, ..KerneletSettings::default() });
        let groups = adviser.advise(&candidates);
        let mut all: Vec<u32> = members(&groups).concat();
        all.sort_unstable();
        prop_assert!(all.iter().copied().eq((1..).take(candidates.len())), "{:?}", all);
        let mut throughputs = Vec::new();
        for group in &groups {
            let Some(expected) = &group.expected else { continue };
            prop_assert_eq!(expected.speeds.len(), group.members.len());
            let sum: f64 = expected.speeds.iter().sum();
            prop_assert!((sum - expected.throughput).abs() < 1e-9);
            if group.members.len() == 2 {
                prop_assert!(group.members[0] < group.members[1]);
                prop_assert!(expected.throughput > 1.0);
                prop_assert!(expected.quotas.iter().all(|ctas| (1..8).contains(ctas)));
                throughputs.push(expected.throughput);
            }
        }
        prop_assert!(throughputs.is_sorted_by(|one, other| one >= other));
        // Neither what it remembers nor the order of the candidates decides.
        candidates.rotate_left(rotated.min(of.len()));
        prop_assert_eq!(&adviser.advise(&candidates), &groups);
    }
}
