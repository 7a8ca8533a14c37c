//! The loop between a selector and a partitioner that do as they are told and keep what they see.

use super::*;
use crate::plans::allot;
use crate::{Everyone, IntervalRequest, Matching, MatchingSettings, Turns};
use partita_model::{Calibration, Cycles, Note, SmPart, Weight};
use std::sync::{Arc, Mutex};

type Seen = Arc<Mutex<Vec<Sample>>>;

/// A clock of 1 GHz: a cycle is a nanosecond.
const KHZ: u32 = 1_000_000;

const REQUEST: IntervalRequest = IntervalRequest {
    warm_up: Cycles(100),
    at_least: Cycles(200),
    ctas: 1,
    at_most: Cycles(1000),
    awaits: Awaits::Everybody,
    launches: false,
};

/// Runs everybody but one who waits in each odd step.
#[derive(Default)]
struct Chooses {
    again: Option<Nanos>,
    wants: Option<IntervalRequest>,
    parts: BTreeMap<ApplicationId, SmPart>,
    waits: Option<ApplicationId>,
    seen: Seen,
}

impl Selector for Chooses {
    fn name(&self) -> &'static str {
        "chooses"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let mut seen = self.seen.lock().unwrap();
        let is_odd = seen.len() % 2 == 1;
        seen.push(sample.clone());
        let ids = sample.applications.iter().map(|a| a.application);
        let together = ids.filter(|id| !is_odd || self.waits != Some(*id)).collect();
        Selected { together, parts: self.parts.clone(), notes: Vec::new() }
    }

    fn again_at(&self) -> Option<Nanos> {
        self.again
    }

    fn interval(&self) -> Option<IntervalRequest> {
        self.wants
    }
}

/// Gives each application its number of SMs.
#[derive(Default)]
struct Gives {
    sms: Vec<u16>,
    next: Option<IntervalRequest>,
    seen: Seen,
}

impl Partitioner for Gives {
    fn name(&self) -> &'static str {
        "gives"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        self.seen.lock().unwrap().push(sample.clone());
        let holders: Vec<_> =
            sample.applications.iter().map(|a| (a.application, SmSet::EMPTY)).collect();
        Decision {
            plan: allot(sample.sms, &holders, &self.sms[..holders.len()]),
            stalled: SmSet::EMPTY,
            gated: SmSet::EMPTY,
            stage: "gives",
            notes: vec![Note::Demand { application: ApplicationId(1), useful: 1, gets: 1 }],
            next: self.next,
        }
    }
}

fn policy(selector: Chooses, partitioner: Gives) -> Policy {
    Policy::new(PolicySettings::new(KHZ), Box::new(selector), Box::new(partitioner))
}

fn gives(sms: &[u16]) -> Gives {
    Gives { sms: sms.to_vec(), ..Gives::default() }
}

/// An application with work.
fn works(id: u32) -> ApplicationObservation {
    ApplicationObservation {
        application: ApplicationId(id),
        tenant: TenantId(1),
        tag: None,
        has_work: true,
        lends_at: Nanos(0),
        busy: Nanos(0),
        total: Progress::default(),
        in_flight: 1,
        launched: 0,
        counting: false,
        stuck: false,
        character: None,
        cramped: false,
        entitlement: Entitlement::default(),
    }
}

fn look(now: u64, applications: &[ApplicationObservation]) -> Observation {
    Observation {
        now: Nanos(now),
        sms: SmSet::range(0, 8),
        pinned: SmSet::EMPTY,
        settled: true,
        applications: applications.to_vec(),
    }
}

fn asked(seen: &Seen) -> usize {
    seen.lock().unwrap().len()
}

#[test]
fn others_who_answer_are_asked_at_the_next_look() {
    let mut policy = policy(Chooses::default(), gives(&[5, 3]));
    let all = [works(1), works(2)];
    assert!(policy.observe(&look(0, &all)).is_some());
    assert_eq!([1, 2, 3].map(|id| policy.takes_part(ApplicationId(id))), [true, true, false]);
    policy.replace(Box::new(Everyone::default()), Box::new(gives(&[2, 6])));
    assert_eq!(policy.names(), ("everyone", "gives"));
    assert_eq!(policy.orders().plan.sms(ApplicationId(1)).len(), 5, "they have not been asked");
    let orders = policy.observe(&look(1, &all)).unwrap();
    assert_eq!(orders.plan.sms(ApplicationId(1)).len(), 2);
    assert_eq!(policy.current().unwrap().cause, Cause::Configuration);
    assert_eq!(policy.observe(&look(2, &all)), None, "once");
    // Every decision has a number of its own.
    let numbers: Vec<u64> = policy.records().map(|record| record.sequence).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn the_selector_is_asked_when_it_wants_to_be() {
    let selector =
        Chooses { again: Some(Nanos(500)), waits: Some(ApplicationId(1)), ..Chooses::default() };
    let (seen, partitioner) = (selector.seen.clone(), gives(&[4, 4]));
    let mut policy = policy(selector, partitioner);
    let all = [works(1), works(2)];
    policy.observe(&look(0, &all));
    assert_eq!((asked(&seen), policy.next_at()), (1, Some(Nanos(500))));
    assert_eq!(policy.observe(&look(499, &all)), None);
    assert_eq!(asked(&seen), 1);
    // The first one waits now: the running application changes, though nobody shares SMs.
    let orders = policy.observe(&look(500, &all)).unwrap();
    assert_eq!([1, 2].map(|id| orders.plan.sms(ApplicationId(id)).len()), [0, 4]);
    assert_eq!(asked(&seen), 2);
}

/// A turn that ends in the midst of a partitioner's interval is no measurement of the partitioner.
#[test]
fn a_partitioner_is_asked_about_its_own_intervals() {
    let selector = Chooses { again: Some(Nanos(500)), ..Chooses::default() };
    let patient =
        IntervalRequest { at_least: Cycles(100_000), at_most: Cycles(200_000), ..REQUEST };
    let partitioner = Gives { next: Some(patient), ..gives(&[8]) };
    let seen = (selector.seen.clone(), partitioner.seen.clone());
    let mut own = policy(selector, partitioner);
    own.observe(&look(0, &[works(1)]));
    assert_eq!(own.observe(&look(500, &[works(1)])), None);
    assert_eq!((asked(&seen.0), asked(&seen.1)), (2, 1));
    // And an interval of the selector is the selector's.
    let selector = Chooses { wants: Some(REQUEST), ..Chooses::default() };
    let partitioner = gives(&[8]);
    let seen = (selector.seen.clone(), partitioner.seen.clone());
    let mut policy = policy(selector, partitioner);
    (0..=1200).step_by(20).for_each(|now| drop(policy.observe(&look(now, &[works(1)])).cloned()));
    assert_eq!((asked(&seen.0), asked(&seen.1)), (2, 1));
}

#[test]
fn only_a_change_is_followed_by_a_warm_up() {
    let partitioner = Gives { next: Some(REQUEST), ..gives(&[8]) };
    let seen = partitioner.seen.clone();
    let mut policy = policy(Chooses::default(), partitioner);
    for now in (0..4000).step_by(20) {
        policy.observe(&look(now, &[works(1)]));
    }
    let seen = seen.lock().unwrap();
    let intervals: Vec<_> = seen.iter().filter_map(|sample| sample.interval).collect();
    // Workers are seen to have followed at the first look, and caches are warm 100 ns later.
    assert_eq!((intervals[0].settled, intervals[0].start), (Nanos(20), Nanos(120)));
    assert_eq!(intervals[1].start, intervals[0].end);
}

#[test]
fn who_is_without_work_lends_its_sms_when_it_says() {
    let mut policy = policy(Chooses::default(), gives(&[4, 4, 0]));
    let idle = |id, lends_at| ApplicationObservation {
        has_work: false,
        lends_at: Nanos(lends_at),
        in_flight: 0,
        ..works(id)
    };
    let one = ApplicationObservation { lends_at: Nanos(50), ..works(1) };
    let takes_part = |policy: &Policy| [1, 2, 3].map(|id| policy.takes_part(ApplicationId(id)));
    policy.observe(&look(0, &[one.clone(), works(2), idle(3, 100)]));
    assert_eq!((takes_part(&policy), policy.next_at()), ([true, true, false], None));
    // The third has had no work yet, and so has nothing to lend.
    policy.observe(&look(10, &[one.clone(), idle(2, 900), idle(3, 100)]));
    assert_eq!((takes_part(&policy), policy.next_at()), ([true, true, false], Some(Nanos(900))));
    policy.observe(&look(899, &[one.clone(), idle(2, 900), idle(3, 100)]));
    assert_eq!(takes_part(&policy), [true, true, false]);
    policy.observe(&look(900, &[one, idle(2, 900), idle(3, 100)]));
    assert_eq!((takes_part(&policy), policy.next_at()), ([true, false, false], None));
    // Nobody wants what the last one has.
    policy.observe(&look(950, &[idle(1, 2000), idle(2, 900), idle(3, 100)]));
    assert_eq!((takes_part(&policy), policy.next_at()), ([true, false, false], None));
}

#[test]
fn several_changes_at_one_look_are_seen() {
    let selector = Chooses::default();
    let seen = selector.seen.clone();
    let mut policy = policy(selector, gives(&[4, 4]));
    let both = |cramped, weight: i64| {
        [1, 2].map(|id| ApplicationObservation {
            cramped,
            entitlement: Entitlement {
                weight: Weight::try_from(weight).unwrap(),
                ..Entitlement::default()
            },
            ..works(id)
        })
    };
    for (now, cramped, weight, causes) in [
        (0, false, 1, 1),
        (1, true, 1, 2),
        (2, true, 1, 2),
        (3, false, 1, 2),
        (4, true, 1, 3),
        (5, true, 3, 4),
        (6, true, 3, 4),
    ] {
        policy.observe(&look(now, &both(cramped, weight)));
        assert_eq!(asked(&seen), causes, "{now}");
    }
    let causes: Vec<Cause> = seen.lock().unwrap().iter().map(|sample| sample.cause).collect();
    let expected = [Cause::Membership, Cause::Membership, Cause::Membership, Cause::Terms];
    assert_eq!(causes, expected);
}

#[test]
fn who_has_ctas_in_flight_or_completes_some_is_not_at_rest() {
    let selector = Chooses { again: Some(Nanos(200)), ..Chooses::default() };
    let seen = selector.seen.clone();
    let mut policy = policy(selector, gives(&[3, 3, 2]));
    for now in [0, 100, 200] {
        // One with a CTA in flight, one that completes one by 100 ns, one that does nothing.
        let completes = Progress { ctas: u64::from(now >= 100), traffic: None };
        let resting = |id| ApplicationObservation { in_flight: 0, ..works(id) };
        let two = ApplicationObservation { total: completes, ..resting(2) };
        policy.observe(&look(now, &[works(1), two, resting(3)]));
    }
    let seen = seen.lock().unwrap();
    let rested: Vec<u64> = seen[1].applications.iter().map(|a| a.rested.0).collect();
    assert_eq!(rested, [0, 100, 200]);
}

/// Whether an interval that the first application has ended waits for the second, which does
/// nothing.
fn is_awaited(sms: [u16; 2], second: &ApplicationObservation) -> bool {
    let partitioner = Gives { next: Some(REQUEST), ..gives(&sms) };
    let seen = partitioner.seen.clone();
    let mut policy = policy(Chooses::default(), partitioner);
    for now in (0..=600).step_by(20) {
        let total = Progress { ctas: now, traffic: None };
        let first = ApplicationObservation { total, ..works(1) };
        // At first it has work, and so takes part.
        let has_work = now == 0 || second.has_work;
        let second = ApplicationObservation { has_work, ..second.clone() };
        policy.observe(&look(now, &[first, second]));
    }
    asked(&seen) == 1
}

#[test]
fn intervals_wait_for_those_that_can_work() {
    let weighing = |weight: i64| Entitlement {
        weight: Weight::try_from(weight).unwrap(),
        ..Entitlement::default()
    };
    for (has_work, stuck, weight, sms, expected) in [
        (true, false, 1, 4, true),
        (true, true, 1, 4, false),
        (false, false, 1, 4, false),
        // An application of weight 0 may have no SM for long; any other has one soon.
        (true, false, 0, 0, false),
        (true, false, 0, 4, true),
        (true, false, 1, 0, true),
    ] {
        let second = ApplicationObservation {
            has_work,
            stuck,
            lends_at: Nanos(10_000),
            entitlement: weighing(weight),
            ..works(2)
        };
        let told = format!("work {has_work}, stuck {stuck}, weight {weight}, {sms} SMs");
        assert_eq!(is_awaited([8 - sms, sms], &second), expected, "{told}");
    }
}

#[test]
fn an_administrator_is_told_once_of_workers_that_do_not_follow() {
    let mut policy = policy(Chooses::default(), Gives { next: Some(REQUEST), ..gives(&[8]) });
    let late = |now| Observation { settled: false, ..look(now, &[works(1)]) };
    let limit = PolicySettings::new(KHZ).settle_limit.0;
    policy.observe(&late(5));
    for now in (5..limit).step_by(500_000) {
        let busy = Nanos(now);
        let works = ApplicationObservation { busy, ..works(1) };
        policy.observe(&Observation { applications: vec![works], ..late(now) });
    }
    assert_eq!(policy.poll_notice(), None);
    let works = ApplicationObservation { busy: Nanos(limit + 5), ..works(1) };
    policy.observe(&Observation { applications: vec![works], ..late(limit + 5) });
    assert_eq!(policy.poll_notice(), Some(Notice::NotSettled { since: Nanos(5) }));
    assert_eq!(policy.poll_notice(), None);
}

/// Where nothing was said of anybody, terms change nothing: not what a selector shares out.
#[test]
fn without_terms_two_share_sms_in_parts() {
    let half = SmPart::new(1, 2).unwrap();
    let parts = [1, 2].map(|id| (ApplicationId(id), half)).into();
    let mut policy = policy(Chooses { parts, ..Chooses::default() }, gives(&[4, 4]));
    let orders = policy.observe(&look(0, &[works(1), works(2)])).unwrap();
    assert_eq!([1, 2].map(|id| orders.plan.part(ApplicationId(id))), [Some(half); 2]);
    assert_eq!(orders.plan.sms(ApplicationId(1)), SmSet::range(0, 8));
}

#[test]
fn slowdowns_are_those_that_the_adviser_learns() {
    let hardware = Calibration {
        sms: 8,
        sm_clock_khz: KHZ,
        warp_instructions_per_cycle: 2.0,
        access_bytes: 32,
        noc_bytes_per_second: 1e12,
        llc_bytes_per_second: 1e12,
        dram_bytes_per_second: 1e11,
        dram_utilisation: 0.5,
    };
    let known = Slowdowns::default();
    let adviser = Matching::new(hardware, MatchingSettings::default(), known.clone());
    let selector = Box::new(Turns::new(adviser, KHZ));
    let learns = Policy::new(PolicySettings::new(KHZ), selector, Box::new(gives(&[8])));
    assert_eq!(learns.slowdowns(), Some(&known));
    assert_eq!(policy(Chooses::default(), gives(&[8])).slowdowns(), None);
}
