//! Whole groups of SMs for applications whose kernels cannot be kept to single SMs.
//!
//! The unit is a group, a set of SMs that the device keeps grids to only as a whole. Given a plan
//! of single SMs, an application that needs groups gets as many as come nearest to the SMs that it
//! had, one at least; of those that there are, the ones of which it has most already. What it takes
//! beyond its own is made good, SM by SM, from what it had outside of its groups. Whoever needs no
//! groups keeps at least one SM. Where all that cannot be, the plan stays as it is.
//!
//! Bounds hold beyond the first group: without one, an application's kernels would need the whole
//! device. Further groups stay within the application's maximum, and leave other applications the
//! minima that the plan gave them. An application below its own minimum rounds up.

use super::Bounds;
use partita_model::{ApplicationId, SmSet};
use std::collections::{BTreeMap, BTreeSet};

/// The plan with whole groups for those who need them. Partitions stay disjoint and nobody's
/// becomes empty. Nobody has the SMs `idle`, and groups may take them. `bounds` tells how many SMs
/// an application may have.
#[must_use]
pub fn whole_groups(
    plan: &BTreeMap<ApplicationId, SmSet>,
    groups: &[SmSet],
    who: &BTreeSet<ApplicationId>,
    idle: SmSet,
    bounds: impl Fn(ApplicationId) -> Bounds,
) -> BTreeMap<ApplicationId, SmSet> {
    let all = plan.values().fold(idle, |all, sms| all.union(sms));
    // Groups that nobody outside of the plan has a part of.
    let mut left: Vec<SmSet> =
        groups.iter().filter(|group| group.difference(&all).is_empty()).copied().collect();
    let least = |id: &ApplicationId, had: &SmSet| had.len().min(bounds(*id).least.max(1));
    let others: Vec<u16> =
        plan.iter().filter(|(id, _)| !who.contains(id)).map(|(id, had)| least(id, had)).collect();
    let mut given: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
    let mut taken = SmSet::EMPTY;
    let asking: Vec<(ApplicationId, SmSet)> =
        plan.iter().filter(|(id, _)| who.contains(id)).map(|(id, sms)| (*id, *sms)).collect();
    let smallest = left.iter().map(SmSet::len).min().unwrap_or(1).max(1);
    for (index, &(id, had)) in asking.iter().enumerate() {
        let after = &asking[index + 1..];
        let kept: usize =
            after.iter().map(|(id, had)| usize::from(least(id, had).div_ceil(smallest))).sum();
        let mut own = SmSet::EMPTY;
        loop {
            // A first group goes before minima.
            let (groups_of_others, sms_of_others) = match own.is_empty() {
                true => (after.len(), others.len()),
                false => (kept, others.iter().copied().map(usize::from).sum::<usize>()),
            };
            let sms_of_others = sms_of_others + groups_of_others * usize::from(smallest);
            if left.len() <= groups_of_others {
                break;
            }
            let best = best_group(&left, &had);
            let Some(&group) = best.and_then(|best| left.get(best)) else { break };
            let Bounds { least, most, .. } = bounds(id);
            // The nearest number: one more where at least half of it was its own.
            let is_near = own.len() + group.len() / 2 > had.len();
            let has_least = own.len() >= least.min(had.len());
            let is_enough = is_near && has_least || own.len() + group.len() > most;
            let remaining = usize::from(all.difference(&taken).difference(&group).len());
            if !own.is_empty() && is_enough || remaining < sms_of_others {
                break;
            }
            own = own.union(&group);
            taken = taken.union(&group);
            left.retain(|other| *other != group);
        }
        if !own.is_empty() {
            given.insert(id, own);
        }
    }
    let shared = share_rest(plan, &all.difference(&taken), given, |id| bounds(id).most);
    if shared.values().any(SmSet::is_empty) { plan.clone() } else { shared }
}

/// The group of which `had` has most; the first of these.
fn best_group(groups: &[SmSet], had: &SmSet) -> Option<usize> {
    let own = |group: &SmSet| group.intersection(had).len();
    (0..groups.len()).max_by_key(|&at| (own(&groups[at]), std::cmp::Reverse(at)))
}

/// Who got no groups keeps of the rest what was its own, and gets what it lost as far as there is
/// any.
fn share_rest(
    plan: &BTreeMap<ApplicationId, SmSet>,
    rest: &SmSet,
    given: BTreeMap<ApplicationId, SmSet>,
    most: impl Fn(ApplicationId) -> u16,
) -> BTreeMap<ApplicationId, SmSet> {
    let mut shared = given;
    let mut free = *rest;
    let waiting: Vec<(ApplicationId, SmSet)> = plan
        .iter()
        .filter(|(id, _)| !shared.contains_key(id))
        .map(|(id, sms)| (*id, *sms))
        .collect();
    for (id, had) in &waiting {
        let kept = had.intersection(rest);
        free = free.difference(&kept);
        shared.insert(*id, kept);
    }
    // One SM at a time for whoever has lost most, and whoever has none first.
    let mut spare: Vec<_> = free.iter().collect();
    spare.reverse();
    while let Some(sm) = spare.pop() {
        let lost = |(id, had): &(ApplicationId, SmSet)| {
            let has = shared.get(id).map_or(0, SmSet::len);
            (has == 0, had.len().saturating_sub(has))
        };
        let neediest =
            waiting.iter().map(|who| (lost(who), who.0)).filter(|((_, lost), _)| *lost > 0);
        let Some((_, id)) = neediest.max_by_key(|(lost, id)| (*lost, std::cmp::Reverse(*id)))
        else {
            spare.push(sm);
            break;
        };
        shared.entry(id).or_default().insert(sm);
    }
    // What nobody misses stays whose it was: its other kernels use it.
    for sm in spare {
        let Some((id, _)) = plan.iter().find(|(_, had)| had.contains(sm)) else { continue };
        let sms = shared.entry(*id).or_default();
        if sms.len() < most(*id) {
            sms.insert(sm);
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sms(numbers: impl IntoIterator<Item = u16>) -> SmSet {
        numbers.into_iter().map(partita_model::SmId).collect()
    }

    fn groups(count: u16, each: u16) -> Vec<SmSet> {
        (0..count).map(|group| SmSet::range(group * each, each)).collect()
    }

    fn plan(parts: &[SmSet]) -> BTreeMap<ApplicationId, SmSet> {
        (1..).map(ApplicationId).zip(parts.iter().copied()).collect()
    }

    #[track_caller]
    fn check(parts: &[SmSet], groups: &[SmSet], who: &[u32], expect: &[SmSet]) {
        let who = who.iter().copied().map(ApplicationId).collect();
        assert_eq!(whole_groups(&plan(parts), groups, &who, SmSet::EMPTY, free), plan(expect));
    }

    fn free(_: ApplicationId) -> Bounds {
        Bounds::default()
    }

    #[test]
    fn the_nearest_number_of_groups() {
        let four = groups(4, 8);
        // All of the GPU, with SMs of no group.
        check(&[SmSet::range(0, 34)], &four, &[1], &[SmSet::range(0, 34)]);
        check(
            &[SmSet::range(0, 18), SmSet::range(18, 16)],
            &four,
            &[1],
            &[SmSet::range(0, 18), SmSet::range(18, 16)],
        );
        check(
            &[SmSet::range(0, 21), SmSet::range(21, 11)],
            &four,
            &[1],
            &[SmSet::range(0, 24), SmSet::range(24, 8)],
        );
        // Half of a group is enough for one more.
        check(
            &[SmSet::range(0, 20), SmSet::range(20, 12)],
            &four,
            &[1],
            &[SmSet::range(0, 24), SmSet::range(24, 8)],
        );
        check(
            &[SmSet::range(0, 2), SmSet::range(2, 30)],
            &four,
            &[1],
            &[SmSet::range(0, 8), SmSet::range(8, 24)],
        );
        check(
            &[SmSet::range(0, 18), SmSet::range(18, 14)],
            &four,
            &[1, 2],
            &[SmSet::range(0, 16), SmSet::range(16, 16)],
        );
    }

    #[test]
    fn groups_that_lie_scattered_are_swapped_for() {
        let scattered = [sms([0, 1, 4, 5]), sms([2, 3, 6, 7])];
        check(
            &[SmSet::range(0, 4), SmSet::range(4, 4)],
            &scattered,
            &[2],
            &[sms([2, 3, 6, 7]), sms([0, 1, 4, 5])],
        );
    }

    #[test]
    fn an_application_gets_the_groups_of_which_it_has_most() {
        let parts = [SmSet::range(0, 8), SmSet::range(8, 8)];
        check(&parts, &groups(2, 8), &[2], &parts);
        // What nobody misses stays whose it was, beside the group.
        let parts = [SmSet::range(0, 13), SmSet::range(13, 11)];
        check(&parts, &groups(3, 8), &[2], &parts);
    }

    #[test]
    fn nobody_is_left_without() {
        check(
            &[SmSet::range(0, 7), SmSet::range(7, 1)],
            &groups(1, 8),
            &[1],
            &[SmSet::range(0, 7), SmSet::range(7, 1)],
        );
        check(
            &[SmSet::range(0, 4), SmSet::range(4, 4)],
            &[],
            &[1],
            &[SmSet::range(0, 4), SmSet::range(4, 4)],
        );
    }

    /// A maximum leaves SMs that nobody has: an application below a group's size takes them.
    #[test]
    fn groups_may_take_idle_sms() {
        let groups = [SmSet::range(0, 8), SmSet::range(8, 8)];
        let alone = BTreeMap::from([(ApplicationId(1), SmSet::range(2, 6))]);
        let who = BTreeSet::from([ApplicationId(1)]);
        let idle = SmSet::range(0, 16).difference(&SmSet::range(2, 6));
        let after = whole_groups(&alone, &groups, &who, idle, free);
        assert_eq!(after, BTreeMap::from([(ApplicationId(1), SmSet::range(0, 8))]));
        assert_eq!(whole_groups(&alone, &groups, &who, SmSet::EMPTY, free), alone);
    }

    #[track_caller]
    fn check_bounds(parts: &[SmSet], who: &[u32], bounds: &[(u16, u16)], expect: &[SmSet]) {
        let who = who.iter().copied().map(ApplicationId).collect();
        let bounds = |ApplicationId(id): ApplicationId| {
            let (least, most) = bounds[id as usize - 1];
            Bounds { least, most, weight: 1 }
        };
        let after = whole_groups(&plan(parts), &groups(4, 8), &who, SmSet::EMPTY, bounds);
        assert_eq!(after, plan(expect));
    }

    #[test]
    fn groups_beyond_the_first_stay_within_bounds() {
        let parts = [SmSet::range(0, 20), SmSet::range(20, 12)];
        // A maximum of 20 is not rounded to 24.
        check_bounds(&parts, &[1], &[(0, 20), (0, 32)], &parts);
        // Nor where it would cost the neighbour its minimum.
        check_bounds(&parts, &[1], &[(0, 32), (10, 32)], &parts);
        check_bounds(&parts, &[1], &[(20, 32), (12, 32)], &parts);
        let rounded = [SmSet::range(0, 24), SmSet::range(24, 8)];
        check_bounds(&parts, &[1], &[(0, 32), (8, 32)], &rounded);
        // Less than half of a group is missing, but a minimum is rounded up.
        let parts = [SmSet::range(0, 18), SmSet::range(18, 14)];
        check_bounds(&parts, &[1], &[(18, 32), (8, 32)], &rounded);
        check_bounds(&parts, &[1], &[(16, 32), (8, 32)], &parts);
        // Another one that needs groups has a minimum, too.
        let parts = [SmSet::range(0, 12), SmSet::range(12, 20)];
        let rounded = [SmSet::range(0, 8), SmSet::range(8, 24)];
        check_bounds(&parts, &[1, 2], &[(0, 32), (20, 32)], &rounded);
        let rounded = [SmSet::range(0, 16), SmSet::range(16, 16)];
        check_bounds(&parts, &[1, 2], &[(0, 32), (0, 32)], &rounded);
    }

    /// What later ones need of groups is not left for a third one's minimum.
    #[test]
    fn groups_of_two_leave_a_third_its_minimum() {
        let parts = [SmSet::range(0, 14), SmSet::range(14, 8), SmSet::range(22, 10)];
        let after = whole_groups(
            &plan(&parts),
            &groups(4, 8),
            &BTreeSet::from([1, 2].map(ApplicationId)),
            SmSet::EMPTY,
            |id| Bounds { least: if id.0 == 3 { 10 } else { 0 }, most: 32, weight: 1 },
        );
        assert!(after[&ApplicationId(3)].len() >= 10, "{after:?}");
    }

    /// Without a group its kernels would run alone on the device.
    #[test]
    fn the_first_group_goes_before_bounds() {
        let parts = [SmSet::range(0, 4), SmSet::range(4, 28)];
        let rounded = [SmSet::range(0, 8), SmSet::range(8, 24)];
        check_bounds(&parts, &[1], &[(0, 4), (28, 32)], &rounded);
    }

    /// Groups took SMs that nobody had, so what lies in no group would be too much.
    #[test]
    fn loose_sms_stay_within_the_maximum() {
        let parts = [sms([0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]), SmSet::range(20, 4)];
        let who = BTreeSet::from([ApplicationId(1)]);
        let idle = sms([4, 5, 6, 7, 12, 13, 14, 15]);
        let most = |most| move |_| Bounds { least: 0, most, weight: 1 };
        let after = |bounds| whole_groups(&plan(&parts), &groups(3, 8), &who, idle, bounds);
        assert_eq!(after(most(16)), plan(&[SmSet::range(0, 16), SmSet::range(20, 4)]));
        assert_eq!(after(most(20)), plan(&[SmSet::range(0, 20), SmSet::range(20, 4)]));
    }

    proptest! {
        #[test]
        fn plans_stay_plans(cuts in prop::collection::vec(1_u16..12, 1..6), each in 1_u16..9,
            mask in any::<u8>()) {
            let mut start = 0;
            let mut parts = Vec::new();
            for length in cuts {
                parts.push(SmSet::range(start, length));
                start += length;
            }
            let who: BTreeSet<ApplicationId> =
                (1..=5).filter(|id| mask & (1 << id) != 0).map(ApplicationId).collect();
            let groups = groups(start / each, each);
            let before = plan(&parts);
            let after = whole_groups(&before, &groups, &who, SmSet::EMPTY, free);
            prop_assert!(after.keys().eq(before.keys()));
            prop_assert!(after.values().all(|sms| !sms.is_empty()));
            let sum: u16 = after.values().map(SmSet::len).sum();
            let union = after.values().fold(SmSet::EMPTY, |all, sms| all.union(sms));
            prop_assert_eq!(sum, union.len(), "disjoint");
            prop_assert_eq!(union, SmSet::range(0, start), "nothing is lost");
        }
    }

    /// One SM is left. Who lost its only one gets it before one that lost three of five.
    #[test]
    fn of_what_is_left_who_has_none_gets_the_first() {
        let before = plan(&[sms([0]), sms([1, 2, 3, 4, 5]), sms([6, 7])]);
        let given = BTreeMap::from([(ApplicationId(3), sms([0, 3, 4, 5]))]);
        let after = share_rest(&before, &sms([1, 2, 6]), given, |_| u16::MAX);
        assert_eq!(after, plan(&[sms([6]), sms([1, 2]), sms([0, 3, 4, 5])]));
    }
}
