//! Tests of CD-search as printed, interval by interval, with numbers by hand.

use super::*;
use partita_model::{IntervalRecord, Nanos, Progress, Traffic};

const HARDWARE: Calibration = Calibration {
    sms: 24,
    sm_clock_khz: 700_000,
    warp_instructions_per_cycle: 2.0,
    access_bytes: 32,
    noc_bytes_per_second: 268.8e9,
    llc_bytes_per_second: 268.8e9,
    dram_bytes_per_second: 177.4e9,
    dram_utilisation: 0.5,
};

/// An application with CTAs and traffic in an interval.
fn did(id: u32, ctas: u64, traffic: Option<Traffic>) -> ApplicationSample {
    ApplicationSample {
        progress: Progress { ctas, traffic },
        span: Cycles(20_000),
        busy: Cycles(20_000),
        ..ApplicationSample::unseen(id)
    }
}

/// One that wants four times what the LLC delivers, and does a part of 1,000 instructions.
fn memory(id: u32, thousandths: u64) -> ApplicationSample {
    did(id, 10, Some(Traffic::exact(10, thousandths, thousandths, thousandths)))
}

/// One that wants a 25th of what the LLC delivers.
fn compute(id: u32) -> ApplicationSample {
    did(id, 10, Some(Traffic::exact(10, 1_000, 10, 10)))
}

fn sample(cause: Cause, applications: &[ApplicationSample]) -> Sample {
    let now = Nanos(0);
    let record = IntervalRecord { settled: now, start: now, end: now, cycles: 20_000 };
    let interval = (cause == Cause::Interval).then_some(record);
    Sample { now, cause, interval, sms: SmSet::range(0, 24), applications: applications.to_vec() }
}

fn arrived(applications: &[ApplicationSample]) -> CdSearchPaper {
    let mut paper = CdSearchPaper::new(HARDWARE).unwrap();
    paper.step(&sample(Cause::Membership, applications));
    paper
}

fn measured(paper: &mut CdSearchPaper, applications: &[ApplicationSample]) -> Decision {
    paper.step(&sample(Cause::Interval, applications))
}

/// Who tries how many SMs of 12.
fn tries(decision: &Decision) -> Vec<(u32, u16)> {
    let of = |note: &Note| match note {
        Note::Tries { application, active, of: 12 } => Some((application.0, *active)),
        _ => None,
    };
    decision.notes.iter().filter_map(of).collect()
}

fn counts(decision: &Decision) -> [u16; 2] {
    [1, 2].map(|id| decision.plan.sms(ApplicationId(id)).len())
}

/// The notes that a search ends with.
fn ends(decision: &Decision) -> Vec<Note> {
    let rounded = |relative: f64| (relative * 1e9).round() / 1e9;
    let end = |note: &Note| match note.clone() {
        Note::Measured { .. } => None,
        Note::Needs { application, sms, of, relative } => {
            Some(Note::Needs { application, sms, of, relative: relative.map(rounded) })
        }
        other => Some(other),
    };
    decision.notes.iter().filter_map(end).collect()
}

fn needs(id: u32, sms: u16, relative: f64) -> Note {
    Note::Needs { application: ApplicationId(id), sms, of: 12, relative: Some(relative) }
}

#[test]
fn section_4_2_stalls_two_more_until_five_percent_are_lost() {
    let mut paper = arrived(&[memory(1, 1_000), compute(2)]);
    let first = measured(&mut paper, &[memory(1, 1_000), compute(2)]);
    assert_eq!(
        (first.stage, tries(&first), first.stalled.len()),
        ("performance", vec![(1, 10)], 2)
    );
    let second = measured(&mut paper, &[memory(1, 960), compute(2)]);
    assert_eq!((tries(&second), second.stalled.len()), (vec![(1, 8)], 4));
    let end = measured(&mut paper, &[memory(1, 940), compute(2)]);
    assert_eq!((end.stage, counts(&end), end.stalled.len()), ("found", [10, 14], 0));
    let receives = Note::Receives { application: ApplicationId(2), from: 12, to: 14 };
    assert_eq!(ends(&end), [needs(1, 10, 0.96), receives], "nothing is gated");
}

#[test]
fn section_4_3_resumes_one_at_a_time_until_five_percent_are_lost() {
    let mut paper = arrived(&[memory(1, 1_000), memory(2, 1_000)]);
    let one = measured(&mut paper, &[memory(1, 1_000), memory(2, 1_000)]);
    assert_eq!((one.stage, tries(&one)), ("power", vec![(1, 1), (2, 1)]));
    // Four SMs would be 1.2 times as fast as half, three 0.9 times. Twelve would be 0.6 times.
    let tentative = measured(&mut paper, &[memory(1, 300), memory(2, 50)]);
    assert_eq!((tries(&tentative), tentative.stalled.len()), (vec![(1, 4), (2, 12)], 8));
    // With all of its half the other has ended, whatever it does.
    let more = measured(&mut paper, &[memory(1, 900), memory(2, 900)]);
    assert_eq!((more.stage, tries(&more), more.stalled.len()), ("power", vec![(1, 5)], 7));
    let more = measured(&mut paper, &[memory(1, 940), memory(2, 900)]);
    assert_eq!(tries(&more), [(1, 6)]);
    let end = measured(&mut paper, &[memory(1, 960), memory(2, 900)]);
    assert_eq!((end.stage, counts(&end), end.gated.len()), ("found", [6, 12], 6));
    let gates = Note::Gates { sms: end.gated };
    assert_eq!(ends(&end), [needs(1, 6, 0.96), needs(2, 12, 0.9), gates]);
}

#[test]
fn unknown_applications_are_measured_four_times() {
    let uncounted = |id| did(id, 10, None);
    let silent = |id| did(id, 0, memory(id, 1_000).progress.traffic);
    for all in [
        [uncounted(1), compute(2)],
        [uncounted(1), uncounted(2)],
        // It completed nothing.
        [silent(1), compute(2)],
        [silent(1), silent(2)],
        [compute(1), silent(2)],
    ] {
        let mut paper = arrived(&all);
        let stages = [(); 4].map(|()| measured(&mut paper, &all).stage);
        assert_eq!(stages, ["profile", "profile", "profile", "found"], "{all:?}");
    }
    let all = [compute(1), compute(2)];
    assert_eq!(measured(&mut arrived(&all), &all).stage, "found");
}

/// §4.1.2: a CTA that ended within the warm-up.
#[test]
fn who_ended_a_cta_in_the_warm_up_is_quick() {
    let quick = ApplicationSample { warm_up_ctas: 2, ..compute(2) };
    let all = [compute(1), quick];
    let decision = measured(&mut arrived(&all), &all);
    let of = |note: &Note| match note {
        Note::Classified { quick, .. } => Some(*quick),
        _ => None,
    };
    assert_eq!(decision.notes.iter().filter_map(of).collect::<Vec<_>>(), [false, true]);
}

/// §4: an arrival or a departure restarts classification; so does whatever is no interval.
#[test]
fn what_is_not_the_next_interval_begins_again() {
    let all = [memory(1, 1_000), compute(2)];
    let mut paper = arrived(&all);
    assert_eq!(measured(&mut paper, &all).stage, "performance");
    let others = [memory(1, 1_000), compute(3)];
    let interval = sample(Cause::Interval, &all);
    for other in [
        sample(Cause::Interval, &others),
        Sample { cause: Cause::Configuration, ..interval.clone() },
        Sample { interval: None, ..interval },
    ] {
        let begun = paper.clone().step(&other);
        assert_eq!((begun.stage, begun.stalled), ("profile", SmSet::EMPTY), "{other:?}");
    }
}

#[test]
fn a_speed_needs_time_and_a_cta() {
    for (busy, span, ctas, wanted) in [
        (10, 10, 1, Some(10)),
        (20, 10, 1, Some(10)),
        (1, 10, 1, Some(1)),
        (0, 10, 1, None),
        (10, 0, 1, None),
        (10, 10, 0, None),
        (0, 0, 0, None),
    ] {
        let seen =
            ApplicationSample { busy: Cycles(busy), span: Cycles(span), ..did(1, ctas, None) };
        assert_eq!(speed(&seen).map(|speed| speed.busy_cycles), wanted, "{busy} {span} {ctas}");
    }
}
