//! Tests of the objectives: proposals by curves that are known in closed form.
//!
//! A member without observations has the curve `1 − left^(n ÷ 12)` on 24 SMs, and so the speed
//! alone `1 − left²`.

use super::super::{CdSearchSettings, Stage};
use super::*;
use crate::{ApplicationSample, Partitioner, Sample};
use partita_model::{Calibration, Cause, Nanos};

const HARDWARE: Calibration = Calibration {
    sms: 24,
    sm_clock_khz: 1_000_000,
    warp_instructions_per_cycle: 2.0,
    access_bytes: 32,
    noc_bytes_per_second: 320e9,
    llc_bytes_per_second: 320e9,
    dram_bytes_per_second: 160e9,
    dram_utilisation: 0.5,
};
/// What half of all SMs leave, at most and at least: an SM is next to enough, or speed is in
/// proportion.
const SATURATED: (Class, f64) = (Class::Memory, 0.001);
const LINEAR: (Class, f64) = (Class::Compute, 0.999);

fn trial(counts: &[u16], speeds: &[f64]) -> Trial {
    Trial { counts: counts.to_vec(), speeds: speeds.to_vec() }
}

/// A search among members of these classes and curves on their even shares, in which so much was
/// measured.
fn search(sms: u16, objective: Objective, of: &[(Class, f64)], trials: Vec<Trial>) -> CdSearch {
    let mut cd = CdSearch::new(CdSearchSettings::default(), HARDWARE).unwrap();
    let ids = 1..=u32::try_from(of.len()).unwrap();
    cd.step(&Sample {
        now: Nanos(0),
        cause: Cause::Membership,
        interval: None,
        sms: SmSet::range(0, sms),
        applications: ids.map(ApplicationSample::unseen).collect(),
    });
    for (member, &(class, left)) in cd.members.iter_mut().zip(of) {
        (member.class, member.expected) = (class, Some(left));
    }
    cd.stage = Stage::Search;
    cd.search.objective = objective;
    cd.search.trials = trials;
    cd
}

#[test]
fn the_best_plan_is_the_one_of_most_that_leaves_everybody_enough() {
    use Objective::{Power, Throughput};
    let even = || trial(&[12, 12], &[1.0, 1.0]);
    for (objective, trials, wanted) in [
        // 0.6 of the even speed is enough, 0.59 is not.
        (Throughput, vec![trial(&[10, 14], &[0.6, 1.5]), trial(&[8, 16], &[0.59, 1.9])], 1),
        (Throughput, vec![trial(&[10, 14], &[0.59, 1.9])], 0),
        // Of several that are as good the first.
        (Throughput, vec![trial(&[10, 14], &[1.5, 0.75]), trial(&[14, 10], &[0.75, 1.5])], 1),
        // The fewest SMs with 0.95 of the even speed.
        (Power, vec![trial(&[8, 8], &[0.96, 0.95]), trial(&[6, 6], &[0.96, 0.94])], 1),
        (Power, vec![trial(&[6, 6], &[0.95, 0.95]), trial(&[8, 8], &[1.0, 1.0])], 1),
    ] {
        let trials: Vec<Trial> = [even()].into_iter().chain(trials).collect();
        let cd = search(24, objective, &[(Class::Compute, 0.5); 2], trials.clone());
        assert_eq!(cd.view().best(), Some(&trials[wanted]), "{objective:?}");
    }
}

/// On 4, 6, 8 and 12 SMs the one has 0.90, 0.97, 0.99 and 1 of its speed alone; the other has a
/// 24th for each SM. The sum is greatest where the one has 4.
#[test]
fn a_proposal_is_at_most_a_third_of_the_even_share_from_the_best() {
    let both = [SATURATED, LINEAR];
    let next = |tried: &[[u16; 2]], best: [u16; 2]| {
        let trials = tried.iter().map(|counts| trial(counts, &[1.0, 1.0])).collect();
        search(24, Objective::Throughput, &both, trials).view().next(&best)
    };
    assert_eq!(next(&[[12, 12]], [12, 12]), Some(vec![8, 16]));
    assert_eq!(next(&[[12, 12], [8, 16]], [8, 16]), Some(vec![4, 20]));
    // What promises most is tried: the neighbour that promises next to as much, 1.72 of 1.73.
    assert_eq!(next(&[[8, 16], [4, 20]], [4, 20]), Some(vec![6, 18]));
    // The other neighbour promises 1.60, more than 2 % less.
    assert_eq!(next(&[[8, 16], [4, 20], [6, 18]], [4, 20]), None);
}

/// The first counts a hundred times as much as the second, which is in proportion.
fn next_within(sms: u16, first: Bounds, second: Bounds) -> Option<Vec<u16>> {
    let even = [sms / 2; 2];
    let trials = vec![trial(&even, &[1.0, 1.0])];
    let mut cd = search(sms, Objective::Throughput, &[(Class::Memory, 0.5), LINEAR], trials);
    (cd.members[0].bounds, cd.members[1].bounds) = (first, second);
    cd.view().next(&even)
}

#[test]
fn proposals_keep_to_bounds_and_starve_nobody() {
    let heavy = Bounds { weight: 100, ..Bounds::default() };
    let light = Bounds::default();
    assert_eq!(next_within(24, heavy, light), Some(vec![16, 8]), "a third of twelve is four");
    assert_eq!(next_within(24, Bounds { most: 15, ..heavy }, light), Some(vec![14, 10]));
    assert_eq!(next_within(24, Bounds { most: 13, least: 11, ..heavy }, light), None);
    assert_eq!(next_within(24, heavy, Bounds { least: 8, ..light }), Some(vec![16, 8]));
    assert_eq!(next_within(24, heavy, Bounds { least: 9, ..light }), Some(vec![14, 10]));
    // Two of four SMs are a step: the other would have none.
    assert_eq!(next_within(4, heavy, light), None);
    // SMs that the other may not have would be nobody's.
    let light = Bounds { weight: 100, ..light };
    assert_eq!(next_within(24, Bounds::default(), light), Some(vec![8, 16]));
    let next = |most| next_within(24, Bounds::default(), Bounds { most, ..light });
    assert_eq!((next(14), next(12)), (Some(vec![10, 14]), None));
}

/// Both have the curve of `left` = 0.25 in units of the even speed: with n of 12 SMs
/// `(1 − 0.25^(n ÷ 12)) ÷ 0.75`. It promises 0.958 with 11 SMs, 0.914 with 10.
fn fewest(trials: Vec<Trial>) -> Option<Vec<u16>> {
    let mut cd = search(24, Objective::Power, &[(Class::Memory, 0.25); 2], trials);
    for member in &mut cd.members {
        member.observations = vec![(12, 1.0), (6, 0.5 / 0.75)];
    }
    cd.view().next(&[12, 12])
}

#[test]
fn numbers_are_halved_until_they_are_too_few() {
    let even = || trial(&[12, 12], &[1.0, 1.0]);
    assert_eq!(fewest(vec![even()]), Some(vec![6, 6]));
    // 0.95 is enough.
    assert_eq!(fewest(vec![even(), trial(&[6, 6], &[0.95, 0.95])]), Some(vec![3, 3]));
    // The first goes up to what its curve promises, the second goes on.
    assert_eq!(fewest(vec![even(), trial(&[6, 6], &[0.94, 0.97])]), Some(vec![11, 3]));
}

#[test]
fn then_the_fewest_are_sought_that_may_be_enough() {
    let even = || trial(&[12, 12], &[1.0, 1.0]);
    // The first had enough with 9, the second with 6: both more than what was too few.
    let known = || vec![even(), trial(&[6, 6], &[0.5, 0.97]), trial(&[9, 3], &[0.96, 0.5])];
    assert_eq!(fewest(known()), Some(vec![9, 6]));
    // What was tried is not tried again.
    let tried = trial(&[9, 6], &[0.96, 0.97]);
    assert_eq!(fewest(known().into_iter().chain([tried]).collect()), None);
    // Eleven were too few, whatever the curve promises.
    let lacked = vec![even(), trial(&[6, 6], &[0.5, 0.97]), trial(&[11, 3], &[0.94, 0.96])];
    assert_eq!(fewest(lacked), Some(vec![12, 2]));
}
