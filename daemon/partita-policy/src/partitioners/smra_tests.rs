//! Tests of SMRA step by step: scores, throughput, groups and pauses, with numbers by hand.

use super::*;
use partita_model::{IntervalRecord, Progress, Traffic};

/// 16 SMs of 2 GHz that issue four instructions a cycle.
const HARDWARE: Calibration = Calibration {
    sms: 16,
    sm_clock_khz: 2_000_000,
    warp_instructions_per_cycle: 4.0,
    access_bytes: 32,
    noc_bytes_per_second: 1e12,
    llc_bytes_per_second: 1e12,
    dram_bytes_per_second: 100e9,
    dram_utilisation: 0.5,
};
/// Cycles of an interval: 50 µs, in which an SM has 400,000 issue slots and DRAM moves 5 MB, which
/// are 156,250 accesses.
const SPAN: u64 = 100_000;

/// An application with CTAs, warp instructions, and accesses that miss.
fn did(id: u32, ctas: u64, warp_instructions: u64, accesses: u64) -> ApplicationSample {
    let traffic = Traffic::exact(ctas, warp_instructions, accesses, 0);
    ApplicationSample {
        progress: Progress { ctas, traffic: Some(traffic) },
        span: Cycles(SPAN),
        busy: Cycles(SPAN),
        ..ApplicationSample::unseen(id)
    }
}

fn new() -> Smra {
    Smra::new(SmraSettings::default(), HARDWARE)
}

fn sample(cause: Cause, now: u64, applications: Vec<ApplicationSample>) -> Sample {
    let now = Nanos(now);
    let record = IntervalRecord { settled: now, start: now, end: now, cycles: SPAN };
    let interval = (cause == Cause::Interval).then_some(record);
    Sample { now, cause, interval, sms: SmSet::range(0, 16), applications }
}

fn arrive(smra: &mut Smra, ids: &[u32]) -> Decision {
    let applications = ids.iter().map(|&id| ApplicationSample::unseen(id)).collect();
    smra.step(&sample(Cause::Membership, 0, applications))
}

fn measured(smra: &mut Smra, now: u64, applications: &[ApplicationSample]) -> Decision {
    smra.step(&sample(Cause::Interval, now, applications.to_vec()))
}

fn counts(decision: &Decision, ids: &[u32]) -> Vec<u16> {
    ids.iter().map(|&id| decision.plan.sms(ApplicationId(id)).len()).collect()
}

#[track_caller]
fn near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9, "{found}, not {wanted}");
}

#[test]
fn a_score_is_one_for_a_low_ipc_and_two_for_a_high_bandwidth() {
    // Of four SMs' 1.6 million slots a half is no low IPC, the border itself.
    let mut smra = Smra::new(SmraSettings { low_issue: 0.5, ..SmraSettings::default() }, HARDWARE);
    arrive(&mut smra, &[1, 2, 3, 4]);
    let decision = measured(
        &mut smra,
        0,
        &[
            did(1, 10, 800_000, 31_250),
            did(2, 10, 160_000, 31_250),
            did(3, 10, 800_000, 62_500),
            did(4, 10, 160_000, 62_500),
        ],
    );
    let wanted = [(1, 0, 0.5, 0.2), (2, 1, 0.1, 0.2), (3, 2, 0.5, 0.4), (4, 3, 0.1, 0.4)];
    for (note, (id, points, issue, dram)) in decision.notes.iter().zip(wanted) {
        let Note::Scored { application, score, issue_part, dram_part } = note else {
            panic!("{note:?}")
        };
        assert_eq!((*application, *score), (ApplicationId(id), points));
        near(*issue_part, issue);
        near(*dram_part, dram);
    }
    let moves = Note::Moves { from: ApplicationId(4), to: ApplicationId(1), sms: 1 };
    assert_eq!(decision.notes[4..], [moves]);
    assert_eq!(counts(&decision, &[1, 2, 3, 4]), [5, 4, 4, 3]);
}

/// An application whose CTA takes this time alone, in nanoseconds.
fn alone(nanos: f64, of: ApplicationSample) -> ApplicationSample {
    let character = crate::Character { alone: Some(nanos), ..crate::Character::default() };
    ApplicationSample { character: Some(character), ..of }
}

#[test]
fn throughput_is_in_parts_of_the_speeds_alone() {
    let even = [did(1, 100, 320_000, 62_500), did(2, 50, 1_600_000, 0)];
    // One goes on at half of its speed, the other at 1.5 times its speed.
    let after = [did(1, 50, 160_000, 31_250), did(2, 75, 2_400_000, 0)];
    // In 50 µs 100 CTAs of 250 ns are half of the speed alone, 50 of them a quarter.
    for (of, throughput, relative) in [
        ([Some(250.0), Some(250.0)], 0.5 + 0.25, (0.5 * 0.5 + 1.5 * 0.25) / 0.75),
        // Where one is unknown the even split is the unit of all.
        ([Some(250.0), None], 2.0, (0.5 + 1.5) / 2.0),
    ] {
        let mut smra = new();
        arrive(&mut smra, &[1, 2]);
        let with = |of: Option<f64>, sample: &ApplicationSample| match of {
            Some(nanos) => alone(nanos, sample.clone()),
            None => sample.clone(),
        };
        let even: Vec<_> = of.iter().zip(&even).map(|(of, sample)| with(*of, sample)).collect();
        assert_eq!(counts(&measured(&mut smra, 0, &even), &[1, 2]), [7, 9]);
        near(smra.group.throughput, throughput);
        let decision = measured(&mut smra, 0, &after);
        let Note::Judged { from, to, sms, relative: found } = decision.notes[0] else {
            panic!("{decision:?}")
        };
        assert_eq!((from, to, sms), (ApplicationId(1), ApplicationId(2), 1));
        near(found, relative);
        // What lost is undone.
        let wanted = if relative < 1.0 { [8, 8] } else { [6, 10] };
        assert_eq!(counts(&decision, &[1, 2]), wanted);
    }
}

#[test]
fn who_shows_nothing_is_measured_three_times_more() {
    let mut smra = new();
    arrive(&mut smra, &[1, 2]);
    let silent = [did(1, 10, 1_600_000, 0), did(2, 0, 0, 0)];
    // The end of an interval of which nothing is told counts for nothing.
    let mut untold = sample(Cause::Interval, 0, silent.to_vec());
    untold.interval = None;
    for _ in 0..5 {
        assert_eq!(smra.step(&untold).stage, "profile");
    }
    let stages = [0; 4].map(|now| measured(&mut smra, now, &silent).stage);
    assert_eq!(stages, ["profile", "profile", "profile", "watch"]);
}

#[test]
fn one_alone_rests_and_is_told_so_again() {
    let mut smra = new();
    for _ in 0..2 {
        let decision = arrive(&mut smra, &[7]);
        assert_eq!((decision.stage, decision.next), ("rest", None));
        assert_eq!(decision.notes, [Note::Alone { application: ApplicationId(7) }]);
        arrive(&mut smra, &[7, 8]);
    }
}

#[test]
fn other_speeds_begin_again_after_a_pause() {
    let mut smra = new();
    arrive(&mut smra, &[1, 2]);
    let alike = |parts: u64| [1, 2].map(|id| did(id, 10, 16_000 * parts, 0));
    assert_eq!(measured(&mut smra, 0, &alike(100)).stage, "watch");
    // A change by 5 % is noise, one by 20 % is none: the first begins at once.
    assert_eq!(measured(&mut smra, 10, &alike(105)).stage, "watch");
    assert_eq!(measured(&mut smra, 20, &alike(80)).stage, "profile");
    assert_eq!(measured(&mut smra, 30, &alike(80)).stage, "watch");
    // The pause of two million cycles is a million nanoseconds.
    assert_eq!(measured(&mut smra, 1_000_019, &alike(100)).stage, "watch");
    assert_eq!(measured(&mut smra, 1_000_020, &alike(100)).stage, "profile");
    assert_eq!(measured(&mut smra, 1_000_030, &alike(100)).stage, "watch");
    // It doubles.
    assert_eq!(measured(&mut smra, 3_000_019, &alike(80)).stage, "watch");
    assert_eq!(measured(&mut smra, 3_000_020, &alike(80)).stage, "profile");
}

#[test]
fn other_scores_begin_again_at_the_same_speed() {
    let mut smra = new();
    arrive(&mut smra, &[1, 2]);
    let scored = |accesses| [did(1, 10, 1_600_000, accesses), did(2, 10, 1_600_000, 0)];
    assert_eq!(measured(&mut smra, 0, &scored(0)).stage, "watch");
    assert_eq!(measured(&mut smra, 10, &scored(0)).stage, "watch");
    assert_eq!(measured(&mut smra, 20, &scored(62_500)).stage, "profile");
}

#[test]
fn a_group_goes_on_where_it_was_on_the_same_sms() {
    let mut smra = new();
    arrive(&mut smra, &[1, 2]);
    let moves = measured(&mut smra, 0, &[did(1, 10, 320_000, 62_500), did(2, 10, 1_600_000, 0)]);
    assert_eq!((moves.stage, counts(&moves, &[1, 2])), ("move", vec![7, 9]));
    arrive(&mut smra, &[1, 3]);
    let again = arrive(&mut smra.clone(), &[1, 2]);
    assert_eq!((again.stage, again.plan), ("move", moves.plan));
    // On other SMs it begins, whether it was away or not.
    let both = || vec![ApplicationSample::unseen(1), ApplicationSample::unseen(2)];
    let fewer = Sample { sms: SmSet::range(0, 8), ..sample(Cause::Interval, 0, both()) };
    for _ in 0..2 {
        let begins = smra.step(&fewer);
        assert_eq!((begins.stage, counts(&begins, &[1, 2])), ("profile", vec![4, 4]));
        arrive(&mut smra, &[1, 2]);
    }
}

/// Ids fall, so that the group that left first is the last in order of id.
#[test]
fn of_more_than_64_groups_the_one_that_left_first_is_forgotten() {
    let mut smra = new();
    let group = |place: u32| [100 - place, 200];
    let is_known = |smra: &Smra, place| arrive(&mut smra.clone(), &group(place)).notes.is_empty();
    for place in 0..=64 {
        arrive(&mut smra, &group(place));
    }
    assert!((0..64).all(|place| is_known(&smra, place)));
    arrive(&mut smra, &group(65));
    let forgotten: Vec<u32> = (0..65).filter(|&place| !is_known(&smra, place)).collect();
    assert_eq!(forgotten, [0]);
}
