//! Tests of CD-search step by step: classes, probes, watching and groups, with numbers by hand.

use super::*;
use crate::{ApplicationSample, Bounds};
use partita_model::{IntervalRecord, Nanos, Progress, Traffic};

/// 24 SMs that together want 1.536 TB/s where each instruction is an access.
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
/// Cycles of an interval: 100 µs, in which the LLC serves a million accesses and DRAM half of that.
const SPAN: u64 = 100_000;

/// An application with CTAs, of which no traffic is counted.
fn uncounted(id: u32, ctas: u64) -> ApplicationSample {
    ApplicationSample {
        progress: Progress { ctas, traffic: None },
        span: Cycles(SPAN),
        busy: Cycles(SPAN),
        ..ApplicationSample::unseen(id)
    }
}

/// One with warp instructions, accesses and hits.
fn counted(id: u32, instructions: u64, accesses: u64, hits: u64) -> ApplicationSample {
    let traffic = Some(Traffic::exact(10, instructions, accesses, hits));
    ApplicationSample { progress: Progress { ctas: 10, traffic }, ..uncounted(id, 10) }
}

/// One that wants half of the LLC's bandwidth, and all of its accesses hit.
fn compute(id: u32) -> ApplicationSample {
    counted(id, 9_600, 1_000, 1_000)
}

/// One that wants twice the LLC's bandwidth.
fn memory(id: u32) -> ApplicationSample {
    counted(id, 2_400, 1_000, 1_000)
}

fn bounded(bounds: Bounds, of: ApplicationSample) -> ApplicationSample {
    ApplicationSample { bounds, ..of }
}

fn new() -> CdSearch {
    CdSearch::new(CdSearchSettings::default(), HARDWARE).unwrap()
}

/// Shows applications on `sms` SMs, at the end of an interval where that is the cause.
fn show(
    cd: &mut CdSearch,
    cause: Cause,
    now: u64,
    sms: u16,
    applications: &[ApplicationSample],
) -> Decision {
    let now = Nanos(now);
    let record = IntervalRecord { settled: now, start: now, end: now, cycles: SPAN };
    let interval = (cause == Cause::Interval).then_some(record);
    let sms = SmSet::range(0, sms);
    cd.step(&Sample { now, cause, interval, sms, applications: applications.to_vec() })
}

fn arrive(cd: &mut CdSearch, applications: &[ApplicationSample]) -> Decision {
    show(cd, Cause::Membership, 0, 24, applications)
}

fn measured(cd: &mut CdSearch, now: u64, applications: &[ApplicationSample]) -> Decision {
    show(cd, Cause::Interval, now, 24, applications)
}

/// What follows from the even split of these applications.
fn begun(applications: &[ApplicationSample]) -> (CdSearch, Decision) {
    let mut cd = new();
    arrive(&mut cd, applications);
    let decision = measured(&mut cd, 0, applications);
    (cd, decision)
}

fn counts(decision: &Decision, ids: &[u32]) -> Vec<u16> {
    ids.iter().map(|&id| decision.plan.sms(ApplicationId(id)).len()).collect()
}

fn tries(decision: &Decision) -> Vec<(u32, u16, u16)> {
    let of = |note: &Note| match note {
        Note::Tries { application, active, of } => Some((application.0, *active, *of)),
        _ => None,
    };
    decision.notes.iter().filter_map(of).collect()
}

fn classes(cd: &CdSearch) -> Vec<Class> {
    cd.members.iter().map(|member| member.class).collect()
}

#[track_caller]
fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "{found}, not {wanted}");
}

#[test]
fn what_an_even_split_does_not_tell_is_measured_three_times_more() {
    let profiled = ApplicationSample { profiled: true, ..uncounted(2, 10) };
    for (applications, then) in [
        ([compute(1), uncounted(2, 0)], "watch"),
        ([uncounted(1, 0), uncounted(2, 0)], "watch"),
        // Its traffic would soon be known.
        ([compute(1), profiled], "probe"),
    ] {
        let mut cd = new();
        arrive(&mut cd, &applications);
        let stages = [0; 4].map(|now| measured(&mut cd, now, &applications).stage);
        assert_eq!(stages, ["profile", "profile", "profile", then], "{applications:?}");
    }
    assert_eq!(begun(&[compute(1), uncounted(2, 10)]).1.stage, "probe", "nobody counts it");
}

#[test]
fn classes_lead_to_an_objective() {
    use Class::{Compute, Memory, Unknown};
    let silent = || uncounted(2, 0);
    for (applications, found, stage) in [
        ([compute(1), compute(2)], [Compute, Compute], "watch"),
        ([memory(1), memory(2)], [Memory, Memory], "power"),
        ([memory(1), compute(2)], [Memory, Compute], "refine"),
        ([memory(1), silent()], [Memory, Unknown], "power"),
        ([compute(1), silent()], [Compute, Unknown], "watch"),
    ] {
        let mut cd = new();
        arrive(&mut cd, &applications);
        cd.settings.patience = 0;
        assert_eq!(measured(&mut cd, 0, &applications).stage, stage, "{found:?}");
        assert_eq!(classes(&cd), found);
    }
}

#[test]
fn a_class_says_who_is_quick_and_what_is_expected() {
    let quick = ApplicationSample { warm_up_ctas: 5, ..memory(2) };
    let (cd, decision) = begun(&[compute(1), quick]);
    let of = |note: &Note| match note {
        Note::Classified { quick, .. } => Some(*quick),
        _ => None,
    };
    let found: Vec<bool> = decision.notes.iter().filter_map(of).collect();
    assert_eq!(found, [false, true]);
    // At demand = supply it is the border, a half; at twice the supply a half of a half.
    near(cd.members[0].expected.unwrap(), 0.5_f64.sqrt());
    near(cd.members[1].expected.unwrap(), 0.25);
}

/// Of a million accesses and half a million misses two take 6 % or 8 % together.
#[test]
fn what_lenders_take_of_a_bandwidth_adds_up() {
    for (accesses, hits, wanted) in
        [(30_000, 30_000, 16), (40_000, 40_000, 4), (15_000, 0, 16), (20_000, 0, 4)]
    {
        let lender = |id| counted(id, 10_000_000, accesses, hits);
        let (_, decision) = begun(&[uncounted(1, 10), lender(2), lender(3)]);
        assert_eq!(tries(&decision), [(1, wanted, 8)], "{accesses} {hits}");
    }
}

#[test]
fn who_cannot_have_fewer_is_not_probed() {
    // SMs of the even share, and the minimum.
    for (even, least, stage, wanted) in [
        (1, 0, "watch", None),
        (2, 0, "probe", Some(1)),
        (8, 0, "probe", Some(4)),
        (8, 7, "probe", Some(7)),
        (8, 8, "watch", None),
    ] {
        let bounds = Bounds { least, ..Bounds::default() };
        let applications = [1, 2].map(|id| bounded(bounds, uncounted(id, 10)));
        let mut cd = new();
        show(&mut cd, Cause::Membership, 0, 2 * even, &applications);
        let decision = show(&mut cd, Cause::Interval, 0, 2 * even, &applications);
        assert_eq!(decision.stage, stage, "{least} of {even}");
        let active = tries(&decision).first().map(|(_, active, _)| *active);
        assert_eq!(active, wanted, "{least} of {even}");
        let class = if stage == "watch" { Class::Compute } else { Class::Unknown };
        assert_eq!(classes(&cd), [class; 2]);
    }
}

/// The first of two is probed on 24 SMs: on how many SMs?
fn probed_on(first: ApplicationSample, second: ApplicationSample) -> u16 {
    let (_, decision) = begun(&[first, second]);
    assert_eq!((decision.stage, tries(&decision).len()), ("probe", 1));
    let (_, active, of) = tries(&decision)[0];
    // An application with SMs on loan waits on none of them.
    let stalled = of.saturating_sub(active);
    assert_eq!((of, decision.stalled.len()), (12, stalled));
    assert_eq!(counts(&decision, &[1, 2]), if active > of { [18, 6] } else { [12, 12] });
    active
}

#[test]
fn modest_applications_lend_half_of_their_sms() {
    // A 16th of a bandwidth is modest: 62,500 accesses, or 31,250 that miss.
    let takes = |accesses, hits| counted(2, 10_000_000, accesses, hits);
    for (second, wanted) in [
        (takes(60_000, 60_000), 18),
        (takes(70_000, 70_000), 6),
        (takes(30_000, 0), 18),
        (takes(35_000, 0), 6),
    ] {
        assert_eq!(probed_on(uncounted(1, 10), second), wanted);
    }
    // An application whose terms rule out that number of SMs gets and lends none.
    let (free, modest) = (Bounds::default(), || takes(60_000, 60_000));
    for (first, second, wanted) in [
        (Bounds { most: 18, ..free }, free, 18),
        (Bounds { most: 17, ..free }, free, 6),
        (free, Bounds { least: 6, ..free }, 18),
        (free, Bounds { least: 7, ..free }, 6),
    ] {
        let found = probed_on(bounded(first, uncounted(1, 10)), bounded(second, modest()));
        assert_eq!(found, wanted, "{first:?} {second:?}");
    }
    // An application with a single SM has none to lend.
    let single = bounded(Bounds { most: 1, ..free }, modest());
    let (mut cd, applications) = (new(), [uncounted(1, 10), single]);
    show(&mut cd, Cause::Membership, 0, 5, &applications);
    let decision = show(&mut cd, Cause::Interval, 0, 5, &applications);
    assert_eq!(tries(&decision), [(1, 2, 4)]);
}

#[test]
fn sms_are_lent_where_rounds_do_not_hide_the_gain() {
    for (rounds, wanted) in [
        // 12 slots: a round on 12 SMs, two on 6, two thirds of one on 18.
        (1.0, 6),
        // 24 slots: two rounds, four, and two of which a third is empty.
        (2.0, 6),
        // 30 slots: on 12 SMs and on 18 a sixth of three and of two rounds is empty.
        (2.5, 18),
        // 39 slots: full by 0.81 on 12 SMs, 0.72 on 18 and 0.93 on 6, which is further off.
        (3.25, 18),
        // Of nine rounds the last does not count.
        (9.0, 18),
    ] {
        let first = ApplicationSample { rounds: Some(rounds), ..uncounted(1, 10) };
        let second = counted(2, 10_000_000, 1_000, 1_000);
        assert_eq!(probed_on(first, second), wanted, "{rounds}");
    }
    // 19 slots: full by 0.95 on 5 SMs and on 2, 0.90 on 7.
    let first = ApplicationSample { rounds: Some(3.8), ..uncounted(1, 10) };
    let (mut cd, applications) = (new(), [first, counted(2, 10_000_000, 100, 100)]);
    show(&mut cd, Cause::Membership, 0, 10, &applications);
    let decision = show(&mut cd, Cause::Interval, 0, 10, &applications);
    assert_eq!(tries(&decision), [(1, 2, 5)]);
}

#[test]
fn who_shows_nothing_in_a_probe_keeps_what_it_has() {
    let modest = || counted(2, 10_000_000, 1_000, 1_000);
    let (mut cd, decision) = begun(&[uncounted(1, 10), modest()]);
    assert_eq!(decision.stage, "probe");
    let rests = ApplicationSample { busy: Cycles(0), ..uncounted(1, 0) };
    let stages = [0; 4].map(|now| measured(&mut cd, now, &[rests.clone(), modest()]).stage);
    assert_eq!(stages, ["probe", "probe", "probe", "watch"]);
    assert_eq!(classes(&cd), [Class::Compute; 2]);
}

/// Every plan but the even split is a loss.
#[test]
fn a_search_that_finds_nothing_tells_of_no_change() {
    let all = [memory(1), compute(2)];
    let (mut cd, decision) = begun(&all);
    assert_eq!(decision.stage, "refine");
    let slow = [counted(1, 1_200, 500, 500), counted(2, 4_800, 500, 500)];
    let end = (0..9).map(|now| measured(&mut cd, now, &slow)).find(|end| end.stage == "watch");
    let end = end.unwrap();
    assert_eq!(counts(&end, &[1, 2]), [12, 12]);
    let others = |note: &&Note| !matches!(note, Note::Classified { .. } | Note::Measured { .. });
    let notes: Vec<&Note> = end.notes.iter().filter(others).collect();
    let (application, sms) = (ApplicationId(1), 12);
    assert_eq!(notes, [&Note::Needs { application, sms, of: sms, relative: Some(1.0) }]);
}

/// The first look at 1,000 ns is followed by a pause of two million cycles of a nanosecond.
#[test]
fn an_unknown_class_is_asked_for_again_after_a_pause() {
    let silent = |id| uncounted(id, 0);
    let weightless = bounded(Bounds { weight: 0, ..Bounds::default() }, silent(2));
    for (applications, again) in [
        (vec![compute(1), silent(2)], "profile"),
        (vec![compute(1), silent(2), silent(3)], "profile"),
        (vec![compute(1), compute(2)], "watch"),
        // Who has no SM has nothing to show.
        (vec![compute(1), weightless], "watch"),
    ] {
        let mut cd = new();
        arrive(&mut cd, &applications);
        cd.settings.patience = 0;
        for now in [0, 1_000, 2_000_999] {
            assert_eq!(measured(&mut cd, now, &applications).stage, "watch", "{now}");
        }
        assert_eq!(measured(&mut cd, 2_001_000, &applications).stage, again);
    }
}

#[test]
fn counters_that_show_another_class_are_no_fit() {
    let (mut cd, _) = begun(&[compute(1), compute(2)]);
    // As fast as before, with four times the accesses.
    let changed = [counted(1, 9_600, 4_000, 4_000), compute(2)];
    assert_eq!(measured(&mut cd, 0, &changed).stage, "watch");
    let decision = measured(&mut cd, 2_000_000, &changed);
    assert_eq!(decision.stage, "profile");
    let (application, from, to) = (ApplicationId(1), Class::Compute, Class::Memory);
    assert_eq!(decision.notes[0], Note::ClassChanged { application, from, to });
}

#[test]
fn other_applications_or_bounds_are_another_group() {
    let all = [compute(1), compute(2)];
    let (cd, _) = begun(&all);
    // Others at the end of an interval.
    let others = measured(&mut cd.clone(), 0, &[compute(1), compute(3)]);
    assert_eq!((others.stage, counts(&others, &[1, 2, 3])), ("profile", vec![12, 0, 12]));
    // The same under other bounds.
    let most = Bounds { most: 8, ..Bounds::default() };
    let bounded = measured(&mut cd.clone(), 0, &[bounded(most, compute(1)), compute(2)]);
    assert_eq!((bounded.stage, counts(&bounded, &[1, 2])), ("watch", vec![8, 16]));
}

#[test]
fn a_group_that_comes_again_is_told_with_its_classes() {
    let silent = uncounted(3, 0);
    let mut cd = new();
    let all = [memory(1), compute(2), silent];
    arrive(&mut cd, &all);
    cd.settings.patience = 0;
    assert_eq!(measured(&mut cd, 0, &all).stage, "refine");
    for _ in 0..2 {
        // One alone is no group that is remembered.
        let alone = arrive(&mut cd, &all[..1]);
        assert_eq!(alone.notes, [Note::Alone { application: ApplicationId(1) }]);
        let again = arrive(&mut cd, &all);
        let of = |note: &Note| match note {
            Note::Classified { application, class, .. } => (application.0, *class),
            _ => panic!("{note:?}"),
        };
        let told: Vec<(u32, Class)> = again.notes.iter().map(of).collect();
        assert_eq!(told, [(1, Class::Memory), (2, Class::Compute)]);
        assert_eq!(again.stage, "refine");
    }
}

/// Ids fall, so that the group that left first is the last in order of id.
#[test]
fn of_more_than_64_groups_the_one_that_left_first_is_forgotten() {
    let mut cd = new();
    let group = |place: u32| [100 - place, 200].map(ApplicationSample::unseen);
    let is_known = |cd: &CdSearch, place| arrive(&mut cd.clone(), &group(place)).notes.is_empty();
    (0..64).for_each(|place| drop(arrive(&mut cd, &group(place))));
    assert!((0..63).all(|place| is_known(&cd, place)));
    (64..66).for_each(|place| drop(arrive(&mut cd, &group(place))));
    assert!(!is_known(&cd, 0));
    // A group that returns leaves room for the group that goes.
    assert!((1..65).all(|place| is_known(&cd, place)));
}
