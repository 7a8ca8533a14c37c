//! Tests of the matching: its groups against classes, measurements and an exhaustive search.

use super::*;
use crate::selectors::{Selector, Turns};
use crate::{ApplicationSample, Character, Sample};
use ContentionClass::{Cache, Compute, Memory, MemoryCache};
use partita_model::{Cause, Nanos, SmSet};

const HARDWARE: Calibration = Calibration {
    sms: 60,
    sm_clock_khz: 700_000,
    warp_instructions_per_cycle: 2.0,
    access_bytes: 32,
    noc_bytes_per_second: 268.8e9,
    llc_bytes_per_second: 268.8e9,
    dram_bytes_per_second: 177.4e9,
    dram_utilisation: 0.5,
};

/// A character of a class.
fn character(class: ContentionClass) -> Character {
    let (dram, llc) = match class {
        Memory => (130.0, 130.0),
        MemoryCache => (80.0, 120.0),
        Cache => (20.0, 150.0),
        Compute => (5.0, 10.0),
    };
    Character {
        warp_instructions: 20_000.0,
        memory_instructions: 400.0,
        llc_sectors: llc * 1e3 / 32.0,
        dram_sectors: dram * 1e3 / 32.0,
        alone: Some(1e3),
        ..Character::default()
    }
}

fn candidates(classes: &[ContentionClass]) -> Vec<Candidate> {
    let candidate = |(id, &class): (u32, &ContentionClass)| Candidate {
        application: ApplicationId(id),
        character: Some(character(class)),
    };
    (1..).zip(classes).map(candidate).collect()
}

fn matched(group: u8) -> Matching {
    let group = GroupSize::try_from(group).unwrap();
    let settings = MatchingSettings { group, ..MatchingSettings::default() };
    Matching::new(HARDWARE, settings, Slowdowns::default())
}

fn ids(groups: &[Group]) -> Vec<Vec<u32>> {
    groups.iter().map(|group| group.members.iter().map(|id| id.0).collect()).collect()
}

#[test]
fn classes_that_complete_each_other_run_together() {
    let all = candidates(&[Memory, Memory, Compute, Compute]);
    assert_eq!(ids(&matched(2).advise(&all)), [[1, 3], [2, 4]]);
    let three = matched(3).advise(&candidates(&[Memory, Compute, Cache]));
    assert!(three.len() < 3, "{three:?}");
}

#[test]
fn unknown_applications_run_alone() {
    let mut all = candidates(&[Memory, Compute]);
    all.push(Candidate { application: ApplicationId(3), character: None });
    assert_eq!(ids(&matched(2).advise(&all)), [vec![1, 2], vec![3]]);
}

#[test]
fn groups_follow_what_co_runs_show() {
    let all = candidates(&[Memory, Memory, Compute, Compute]);
    let mut matching = matched(2);
    let pair = |a: usize, b: usize| [all[a], all[b]];
    assert!(matching.is_disputed(&pair(0, 2)));
    // Memory beside compute does less than in turns; memory beside memory does as much.
    matching.learn(&pair(0, 2), &[0.4, 0.4]);
    matching.learn(&pair(0, 1), &[0.52, 0.52]);
    let slowdown = matching.slowdowns.classes.of(Memory, Compute).slowdown;
    assert!((slowdown - 2.5).abs() < 1e-9, "{slowdown}");
    assert_eq!(ids(&matching.advise(&all)), [[1, 2], [3, 4]]);
    let notes = matching.notes(&all);
    let of_pair = notes.iter().find(
        |note| matches!(note, Note::Matched { members, .. } if members[0] == ApplicationId(1)),
    );
    assert!(matches!(of_pair, Some(Note::Matched { measured: true, .. })), "{notes:?}");
}

#[test]
fn a_loss_is_charged_to_all_neighbours() {
    let mut matching = matched(3);
    let all = candidates(&[Compute, Cache, Memory]);
    // By the estimate A and C take twice as long beside anybody.
    matching.learn(&all, &[0.25, 0.5, 0.5]);
    let slowdown = |of, beside| matching.slowdowns.classes.of(of, beside).slowdown;
    assert!((slowdown(Compute, Cache) - 2.5).abs() < 1e-9);
    assert!((slowdown(Compute, Memory) - 2.5).abs() < 1e-9);
    assert!((slowdown(Memory, Compute) - 1.5).abs() < 1e-9);
}

/// Candidates of one class, each of a kind of its own.
fn of_kinds(class: ContentionClass, kinds: &[u64]) -> Vec<Candidate> {
    let candidate = |(id, &kind): (u32, &u64)| Candidate {
        application: ApplicationId(id),
        character: Some(Character { kind: Some(Kind(kind)), ..character(class) }),
    };
    (1..).zip(kinds).map(candidate).collect()
}

#[test]
fn programs_that_were_measured_together_go_before_their_classes() {
    let mut matching = matched(2);
    let all = of_kinds(MemoryCache, &[11, 12, 13, 14]);
    let pair = |a: usize, b: usize| [all[a], all[b]];
    // By the class all pairs are worth the same. 1 beside 2 does badly, 1 beside 4 well.
    matching.learn(&pair(0, 1), &[0.52, 0.52]);
    matching.learn(&pair(2, 3), &[0.52, 0.52]);
    matching.learn(&pair(0, 3), &[0.9, 0.9]);
    matching.learn(&pair(1, 2), &[0.6, 0.6]);
    assert_eq!(ids(&matching.advise(&all)), [[1, 4], [2, 3]]);
    // The same programs in another run, in another order.
    let again = of_kinds(MemoryCache, &[14, 13, 12, 11]);
    assert_eq!(ids(&matching.advise(&again)), [[1, 4], [2, 3]]);
    // What was kept is enough.
    let kept = Matching::new(HARDWARE, matching.settings, matching.slowdowns.clone());
    assert_eq!(matching.advise(&again), kept.advise(&again));
}

#[test]
fn the_classes_weigh_a_quarter_of_a_measurement() {
    let mut matching = matched(2);
    let all = of_kinds(Compute, &[1, 2]);
    matching.slowdowns.pairs.measure(Kind(1), Kind(2), 1.0);
    let sorts = matching.sorts(&all).unwrap();
    // By the estimate 2.
    let (slowdown, measured) = matching.slowdown(sorts[0], sorts[1]);
    assert!((slowdown - (0.25 * 2.0 + 1.0) / 1.25).abs() < 1e-12 && measured == 1);
    assert_eq!(matching.slowdown(sorts[1], sorts[0]).1, 0, "the other way is not known");
}

/// The greatest sum of values, by trying all groups of the first candidate that is left.
fn exhaustive(left: u32, most: usize, value: &dyn Fn(u32) -> f64, known: &mut [f64]) -> f64 {
    if left == 0 {
        return 0.0;
    }
    let place = usize::try_from(left).unwrap();
    if known[place].is_nan() {
        let first = left & left.wrapping_neg();
        let (others, mut some, mut best) = (left ^ first, left ^ first, f64::MIN);
        loop {
            if some.count_ones() < u32::try_from(most).unwrap() {
                let rest = exhaustive(others ^ some, most, value, known);
                best = best.max(value(first | some) + rest);
            }
            if some == 0 {
                break;
            }
            some = (some - 1) & others;
        }
        known[place] = best;
    }
    known[place]
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(48))]
    #[test]
    fn groups_of_programs_are_the_exhaustive_matching(
        slowdowns in proptest::collection::vec(1.0..2.6_f64, 64),
        most in 2_u8..=4,
        count in 2_usize..8,
    ) {
        let mut matching = matched(most);
        let count = if most == 4 { count.min(4) } else { count };
        let kinds: Vec<u64> = (0..u64::try_from(count).unwrap()).collect();
        let all = of_kinds(Compute, &kinds);
        let table = |of: usize, beside: usize| slowdowns[of * 8 + beside];
        for of in 0..count {
            for beside in 0..count {
                // So often that the classes count for nothing.
                for _ in 0..400 {
                    let (of_kind, beside_kind) = (Kind(kinds[of]), Kind(kinds[beside]));
                    let pairs = &mut matching.slowdowns.pairs;
                    pairs.measure(of_kind, beside_kind, table(of, beside));
                }
            }
        }
        let value = |set: u32| {
            let members: Vec<usize> = (0..count).filter(|at| set >> at & 1 == 1).collect();
            let speeds = speeds(members.len(), |a, b| table(members[a], members[b]));
            members.len() as f64 * speeds.iter().sum::<f64>()
        };
        let everybody = (1_u32 << count) - 1;
        let mut known = vec![f64::NAN; 1 << count];
        let best = exhaustive(everybody, usize::from(most), &value, &mut known);
        let reached: f64 = matching
            .advise(&all)
            .iter()
            .map(|group| value(group.members.iter().map(|id| 1 << (id.0 - 1)).sum()))
            .sum();
        proptest::prop_assert!(
            reached >= 0.99 * best && reached <= best + 1e-6,
            "{reached} of {best}"
        );
    }
}

/// Applications come and go: nobody waits for longer than a turn of each other.
#[test]
fn nobody_waits_for_ever() {
    const TURN: u64 = 2_000_000;
    for group in 2..=4 {
        let mut turns = Turns::new(matched(group), HARDWARE.sm_clock_khz);
        let mut waits = BTreeMap::<ApplicationId, u64>::new();
        let mut now = 0;
        for step in 0..1_200_u64 {
            // Ten that stay, and ten that come and go.
            let here = |id: u64| id < 10 || (step / (id + 3) + id).is_multiple_of(2);
            let class = |id: u64| ContentionClass::ALL[usize::try_from(id % 4).unwrap()];
            let applications: Vec<ApplicationSample> = (0..20)
                .filter(|&id| here(id))
                .map(|id| ApplicationSample {
                    profiled: true,
                    character: Some(Character { kind: Some(Kind(id)), ..character(class(id)) }),
                    ..ApplicationSample::unseen(u32::try_from(id).unwrap())
                })
                .collect();
            let count = applications.len() as u64;
            let sms = SmSet::range(0, 60);
            let (cause, interval) = (Cause::Membership, None);
            let ids: Vec<ApplicationId> = applications.iter().map(|a| a.application).collect();
            let sample = Sample { now: Nanos(now), cause, interval, sms, applications };
            let together = turns.step(&sample).together;
            waits.retain(|id, _| ids.contains(id));
            let next = turns.again_at().unwrap().0;
            for id in ids {
                let wait = waits.entry(id).or_default();
                *wait = if together.contains(&id) { 0 } else { *wait + next - now };
                let most = 2 * TURN * (count - 1);
                assert!(*wait <= most, "{id} waits for {wait} of {most} ns in groups of {group}");
            }
            now = next;
        }
    }
}

#[test]
fn what_is_expected_of_a_group_follows_from_the_matrix() {
    let groups = matched(2).advise(&candidates(&[Memory, Compute]));
    // By the estimate the one takes 1.25 times as long beside the other, which takes twice as long.
    let expected = groups[0].expected.clone().unwrap();
    assert_eq!((groups.len(), expected.speeds), (1, vec![0.8, 0.5]));
    assert!((expected.throughput - 1.3).abs() < 1e-12);
}

/// The kinds of a batch that are sorts of their own, after one measurement of each pair.
fn told_apart(group: u8, batch: &[u64], pairs: &[(u64, u64)]) -> Vec<Option<u64>> {
    let mut matching = matched(group);
    for &(of, beside) in pairs {
        matching.slowdowns.pairs.measure(Kind(of), Kind(beside), 1.5);
    }
    let all = of_kinds(Compute, batch);
    let sorts = matching.sorts(&all).unwrap();
    let batch: Vec<_> = all.iter().map(|one| one.application).zip(sorts).collect();
    matching.told_apart(&batch).iter().map(|sort| sort.kind.map(|Kind(kind)| kind)).collect()
}

#[test]
fn kinds_count_where_they_were_measured_beside_others_of_the_batch() {
    // One way is enough.
    assert_eq!(told_apart(2, &[1, 2, 3], &[(1, 2)]), [Some(1), Some(2), None]);
    assert_eq!(told_apart(2, &[1, 2], &[(1, 9), (8, 2)]), [None, None]);
    // A kind beside itself needs two of it.
    assert_eq!(told_apart(2, &[4], &[(4, 4)]), [None]);
    assert_eq!(told_apart(2, &[4, 4], &[(4, 4)]), [Some(4), Some(4)]);
    // Groups of four have eight sorts, of which four are the classes: the kind goes of which
    // fewest pairs were measured.
    let pairs = [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (5, 1)];
    assert_eq!(told_apart(4, &[5, 1, 2, 3, 4], &pairs), [None, Some(1), Some(2), Some(3), Some(4)]);
    assert_eq!(told_apart(3, &[5, 1], &pairs), [Some(5), Some(1)]);
}

#[test]
fn answers_are_kept_for_the_same_queue_and_slowdowns() {
    let mut matching = matched(2);
    let all = candidates(&[Memory, Memory, Compute, Compute]);
    assert_eq!(ids(&matching.advise(&all)), [[1, 3], [2, 4]]);
    // 1.2484 and 2.004 are 80 and 128 steps of 64 to one, as 1.25 and 2 are.
    matching.learn(&[all[0], all[2]], &[0.801, 0.499]);
    assert_eq!(ids(&matching.advise(&all)), [[1, 3], [2, 4]]);
    assert_eq!(matching.solved.borrow().len(), 1);
    // The same sorts, but of one there is one less, of the other one more.
    let others = candidates(&[Memory, Compute, Compute, Compute]);
    assert_eq!(ids(&matching.advise(&others)), [[1, 2], [3, 4]]);
    // Other slowdowns, the same queue.
    matching.learn(&[all[0], all[2]], &[0.1, 0.1]);
    matching.learn(&[all[0], all[1]], &[0.52, 0.52]);
    assert_eq!(ids(&matching.advise(&all)), [[1, 2], [3, 4]]);
    assert_eq!(matching.solved.borrow().len(), 3);
}

#[test]
fn the_oldest_answers_go_first() {
    let matching = matched(2);
    for count in 1..=KEPT + 2 {
        matching.advise(&candidates(&vec![Compute; count]));
    }
    let kept: Vec<u32> = matching.solved.borrow().iter().map(|kept| kept.queue[0].1).collect();
    assert!(kept.iter().copied().eq(3..=18), "{kept:?}");
}

#[test]
fn notes_say_whether_a_group_was_measured() {
    let mut matching = matched(2);
    let all = candidates(&[Memory, Compute, Compute]);
    let matched = |matching: &Matching| -> Vec<(Vec<u32>, bool)> {
        let of = |note: Note| match note {
            Note::Matched { members, measured, .. } => {
                Some((members.iter().map(|id| id.0).collect(), measured))
            }
            _ => None,
        };
        matching.notes(&all).into_iter().filter_map(of).collect()
    };
    // An application on its own is no group.
    assert_eq!(matched(&matching), [(vec![1, 2], false)]);
    matching.learn(&all[..2], &[0.8, 0.5]);
    assert_eq!(matched(&matching), [(vec![1, 2], true)]);
    let kept = matching.slowdowns().unwrap();
    assert_eq!(kept.classes.of(Memory, Compute).measured, 1, "what is to be kept");
}

#[test]
fn groups_of_known_applications_tell_something() {
    let all = candidates(&[Memory, Compute]);
    let unknown = Candidate { application: ApplicationId(3), character: None };
    let matching = matched(2);
    assert!(matching.is_disputed(&all));
    for members in [&all[..1], &[all[0], unknown], &[unknown], &[]] {
        assert!(!matching.is_disputed(members), "{members:?}");
    }
}

#[test]
fn a_loss_is_charged_in_proportion_to_what_was_expected() {
    let slowdown = |matching: &Matching, of, beside| {
        let found = matching.slowdowns.classes.of(of, beside);
        (found.slowdown * 1e9).round() / 1e9
    };
    // By the estimate M loses 0.6 beside M, which together want 1.28 of DRAM: 1.25 × 1.28 − 1. It
    // loses 0.25 beside A. It has lost 1.7, twice as much as expected.
    let mut matching = matched(3);
    let all = candidates(&[Memory, Memory, Compute]);
    matching.learn(&all, &[1.0 / 2.7, 1.0 / 2.7, 1.0 / 3.0]);
    let found = [(Memory, Memory), (Memory, Compute), (Compute, Memory)]
        .map(|(of, beside)| slowdown(&matching, of, beside));
    assert_eq!(found.to_vec(), [2.2, 1.5, 2.0]);
    // Where nothing was expected all are charged alike.
    let classes = partita_model::InterferenceMatrix::estimated(|_, _| 1.0).unwrap();
    let slowdowns = Slowdowns { classes, ..Slowdowns::default() };
    let mut matching = Matching::new(HARDWARE, matching.settings, slowdowns);
    matching.learn(&candidates(&[Compute, Cache, Memory]), &[0.5, 1.0, 1.0]);
    let found = [(Compute, Cache), (Compute, Memory), (Cache, Compute)]
        .map(|(of, beside)| slowdown(&matching, of, beside));
    assert_eq!(found.to_vec(), [1.5, 1.5, 1.0]);
}

/// Eq. 3.7: as many groups of the greatest size as possible, and one of what is left.
#[test]
fn full_groups_leave_one_rest() {
    for (group, count, wanted) in [
        (2, 4, &[2, 2][..]),
        (2, 5, &[2, 2, 1]),
        (3, 8, &[3, 3, 2]),
        (4, 4, &[4]),
        (4, 3, &[3]),
        (4, 0, &[]),
    ] {
        let matching = matched(group);
        let settings = MatchingSettings { sizes: Sizes::Full, ..matching.settings };
        let matching = Matching::new(HARDWARE, settings, Slowdowns::default());
        let groups = matching.advise(&candidates(&vec![Memory; count]));
        let mut sizes: Vec<usize> = groups.iter().map(|group| group.members.len()).collect();
        sizes.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(sizes, wanted, "{count} in groups of {group}");
    }
}
