//! Which applications their terms let run, and which SMs the terms leave open.

use super::*;
use partita_model::Cause;

const ANY: u16 = u16::MAX;

fn entitled(min: u16, max: u16, weight: i64, priority: Priority) -> Entitlement {
    let weight = Weight::try_from(weight).unwrap();
    Entitlement { min, max, weight, priority, ..Entitlement::default() }
}

fn sample(sms: u16, of: &[Entitlement]) -> Sample {
    let application = |(id, &entitlement): (u32, &Entitlement)| ApplicationSample {
        entitlement,
        ..ApplicationSample::unseen(id)
    };
    Sample {
        now: Nanos(0),
        cause: Cause::Membership,
        interval: None,
        sms: SmSet::range(0, sms),
        applications: (1..).zip(of).map(application).collect(),
    }
}

/// Who runs first where a selector would run everybody.
fn admitted(sms: u16, of: &[Entitlement]) -> Vec<u32> {
    let sample = sample(sms, of);
    let together = sample.applications.iter().map(|a| a.application).collect();
    let mut selected = Selected { together, ..Selected::default() };
    Entitlements::default().admit(&sample, &mut selected);
    selected.together.iter().map(|id| id.0).collect()
}

#[test]
fn batch_takes_turns_on_what_urgent_applications_leave() {
    let normal = Entitlement::default();
    let batch = entitled(0, ANY, 1, Priority::Batch);
    let urgent = entitled(0, ANY, 1, Priority::Latency);
    let needs = |sms| Entitlement { need: Some(sms), ..urgent };
    let least = |sms| entitled(sms, ANY, 1, Priority::Normal);
    // It needs all SMs: one is left for `batch`.
    assert_eq!(admitted(8, &[urgent, batch, batch, batch]), [1, 2]);
    assert_eq!(admitted(8, &[needs(5), batch, batch, batch]), [1, 2, 3, 4]);
    assert_eq!(admitted(8, &[needs(5), batch, batch, batch, batch]), [1, 2, 3, 4]);
    // 2 SMs and 3, of 8: a minimum is not all that its application can use.
    assert_eq!(admitted(8, &[needs(2), least(3), batch, batch, batch, batch]), [1, 2, 3, 4, 5]);
    // `normal` applications do not yield, and `batch` ones only to urgent ones.
    assert_eq!(admitted(8, &[urgent, normal, normal, batch, batch]), [1, 2, 3, 4]);
    assert_eq!(admitted(8, &[batch, batch, normal, normal]), [1, 2, 3, 4]);
    // Of 4 SMs 2 are owed, one is the `normal` ones' and one is left for `batch`.
    let owed = |min| entitled(min, ANY, 1, Priority::Latency);
    assert_eq!(admitted(4, &[owed(2), normal, normal, batch]), [1, 2, 4]);
    // One is left: both kinds take turns on it.
    assert_eq!(admitted(4, &[owed(3), normal, batch]).len(), 2);
}

#[test]
fn no_more_run_than_there_are_sms() {
    let minimum = entitled(1, ANY, 1, Priority::Normal);
    let urgent = entitled(0, ANY, 1, Priority::Latency);
    let (normal, batch) = (Entitlement::default(), entitled(0, ANY, 1, Priority::Batch));
    assert_eq!(admitted(4, &[minimum, minimum, minimum, minimum, normal]).len(), 4);
    assert_eq!(admitted(4, &[urgent, urgent, urgent, urgent, batch]).len(), 4);
    // Three minima and an SM for turns are as many as there are.
    assert_eq!(admitted(4, &[normal, normal, minimum, minimum, minimum]), [1, 3, 4, 5]);
}

#[test]
fn weight_0_comes_after_all_others() {
    let (idle, normal) = (entitled(0, ANY, 0, Priority::Normal), Entitlement::default());
    assert_eq!(admitted(2, &[idle, normal, normal]), [2, 3]);
    assert_eq!(admitted(3, &[idle, idle, normal, normal]), [1, 3, 4]);
    // It is owed no SM either.
    let least: Vec<u16> =
        bounds(&sample(8, &[idle, normal])).iter().map(|bounds| bounds.least).collect();
    assert_eq!(least, [0, 1]);
}

/// The selector found no room for the fifth; whether there is some is the terms' to say.
#[test]
fn who_had_no_room_has_turns_and_is_told_of_once() {
    let mut entitlements = Entitlements::default();
    let bounded = entitled(0, 2, 1, Priority::Normal);
    let all = [bounded, bounded, bounded, bounded, bounded];
    let no_room = |id| Note::NoRoom { application: ApplicationId(id) };
    let mut now = 0;
    for waiting in [5, 4, 3, 2, 1, 5] {
        let sample = Sample { now: Nanos(now), ..sample(4, &all) };
        let mut selected = Selected {
            together: (1..=4).map(ApplicationId).collect(),
            notes: vec![no_room(5)],
            ..Selected::default()
        };
        entitlements.admit(&sample, &mut selected);
        assert_eq!(selected.notes, [no_room(waiting)]);
        assert_eq!(selected.together.len(), 4);
        now = entitlements.again_at().unwrap().0;
    }
    entitlements.rest();
    assert_eq!(entitlements.again_at(), None, "no terms, no turns");
}

#[test]
fn bounds_that_leave_no_choice_decide() {
    let normal = Priority::Normal;
    let exactly = |sms| entitled(sms, sms, 1, normal);
    let decided = |of: &[Entitlement]| {
        let mut sample = sample(24, of);
        Entitlements::bound(&mut sample);
        let decision = Entitlements::decision(&sample)?;
        let counts = sample.applications.iter().map(|a| decision.plan.sms(a.application).len());
        Some(counts.collect::<Vec<_>>())
    };
    assert_eq!(decided(&[exactly(4), exactly(6)]), Some(vec![4, 6]));
    assert_eq!(decided(&[exactly(4), Entitlement::default()]), Some(vec![4, 20]));
    assert_eq!(decided(&[Entitlement::default(), entitled(2, ANY, 1, normal)]), None);
    assert_eq!(decided(&[]), None);
    // An urgent application needs 4 SMs, and the other may have the 20 that are left.
    let urgent = Entitlement { need: Some(4), ..entitled(0, ANY, 1, Priority::Latency) };
    let most = |sms| entitled(0, sms, 1, Priority::Batch);
    assert_eq!(decided(&[urgent, most(20)]), Some(vec![4, 20]));
}

#[test]
fn an_equal_split_is_exchanged_by_those_that_have_another() {
    let normal = entitled(0, ANY, 1, Priority::Normal);
    let exchanged = |counts: [u16; 3]| {
        let sample = sample(24, &[normal; 3]);
        let holders: Vec<_> = (1..=3).map(|id| (ApplicationId(id), SmSet::EMPTY)).collect();
        let plan = allot(sample.sms, &holders, &counts);
        let of = |(taker, giver, sms): (ApplicationId, ApplicationId, u16)| (taker.0, giver.0, sms);
        exchanged(&sample, &plan).into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(exchanged([8, 10, 6]), [(2, 3, 2)]);
    assert_eq!(exchanged([10, 8, 6]), [(1, 3, 2)]);
    assert_eq!(exchanged([8, 8, 8]), []);
}

#[test]
fn a_priority_is_there_where_an_application_has_it() {
    let batch = entitled(0, ANY, 1, Priority::Batch);
    let sample = sample(8, &[batch, batch]);
    let all = [Priority::Batch, Priority::Normal, Priority::Latency];
    assert_eq!(all.map(|priority| has(&sample, priority)), [true, false, false]);
}
