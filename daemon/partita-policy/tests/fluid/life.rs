//! The loop in the course of life: applications come, go, rest, change, hang; what is seen of them
//! is late or absurd.

use crate::simulator::{Program, Random, Simulator, check_orders, gpu};
use crate::terms::entitlement;
use partita_model::{
    ApplicationId, Class, DecisionRecord, Entitlement, Nanos, Note, Priority, Progress, Share,
    SmSet, TenantId, Terms, Traffic,
};
use partita_policy::{
    ApplicationObservation, CdSearch, CdSearchSettings, Character, Demand, Even, Everyone,
    Kernelet, KerneletSettings, Kind, Observation, Orders, Partitioner, Policy, PolicySettings,
    Selector, SlateTable, StaticShares, Turns, explain, notice,
};
use proptest::prelude::*;

fn partitioner(name: &str, sms: u16) -> Box<dyn Partitioner + Send> {
    match name {
        "even" => Box::new(Even),
        "static" => Box::new(StaticShares::new(vec![
            Share { tenant: Some(TenantId(1)), tag: None, sms: sms / 3 },
            Share { tenant: None, tag: Some("a".into()), sms: sms / 2 },
        ])),
        "slate" => Box::new(Demand::new(gpu(sms))),
        _ => Box::new(CdSearch::new(CdSearchSettings::default(), gpu(sms)).expect("it is a GPU")),
    }
}

fn policy(name: &str, sms: u16) -> Policy {
    let selector: Box<dyn Selector + Send> = if name.contains("slate") {
        Box::new(Turns::new(SlateTable::new(gpu(sms)), 700_000))
    } else if name.contains("kernelet") {
        let kernelet = Kernelet::new(gpu(sms), KerneletSettings::default()).expect("it is a GPU");
        Box::new(Turns::new(kernelet, 700_000))
    } else {
        Box::new(Everyone::default())
    };
    Policy::new(PolicySettings::new(700_000), selector, partitioner(name, sms))
}

fn simulator(sms: u16, seed: u64) -> Simulator {
    Simulator::new(gpu(sms), policy("cd-search", sms), seed)
}

/// One bound by bandwidth beyond some seven SMs, one that is not.
fn unlike() -> [Program; 2] {
    let memory = Program {
        issue: 1.0,
        parallelism: 100.0,
        latency: 300.0,
        apki: 300.0,
        hit_rate: 0.3,
        instructions_per_cta: 2_000.0,
        counted: true,
        slots: None,
    };
    [memory, Program { apki: 5.0, hit_rate: 0.8, ..memory }]
}

#[test]
fn a_search_says_what_it_did_and_why() {
    let mut simulator = simulator(24, 1);
    simulator.noise = 0.0;
    let [memory, compute] = unlike();
    let ids = [simulator.arrive(memory), simulator.arrive(compute)];
    simulator.converge();
    let stages: Vec<&str> = simulator.policy.records().map(|r| r.stage.as_str()).collect();
    assert_eq!((stages[0], stages[1], *stages.last().unwrap()), ("profile", "refine", "watch"));
    let record = simulator.policy.current().unwrap();
    let text = explain(record).join("\n");
    for part in [
        "application 1 is memory-intensive: all SMs would ask for 1290.2 GB/s (300.0 LLC accesses \
         per kilo warp instruction), \
         more than the 142.7 GB/s",
        "application 2 is compute-intensive: all SMs would ask for 21.5 GB/s",
        &format!("application 1 needs {} SMs: they keep 9", simulator.active(ids[0])),
        &format!("application 2 goes from 12 to {} SMs", simulator.active(ids[1])),
    ] {
        assert!(text.contains(part), "no `{part}` in\n{text}");
    }
    let json = serde_json::to_string(record).unwrap();
    // The last digit of a number may be another.
    let read: DecisionRecord = serde_json::from_str(&json).unwrap();
    assert_eq!(explain(&read), explain(record));
    assert_eq!((&read.applications, read.interval), (&record.applications, record.interval));
}

#[test]
fn those_without_work_lend_their_sms_and_get_them_back() {
    for name in ["even", "static", "cd-search"] {
        let mut simulator = Simulator::new(gpu(24), policy(name, 24), 3);
        let ids = unlike().map(|program| simulator.arrive(program));
        simulator.advance(2_000_000);
        assert!(simulator.active(ids[0]) > 0 && simulator.active(ids[1]) > 0);
        simulator.running[1].has_work = false;
        simulator.advance(600_000);
        assert!(simulator.active(ids[1]) > 0, "{name}: within the grace time it keeps them");
        simulator.advance(200_000);
        assert_eq!((simulator.active(ids[0]), simulator.active(ids[1])), (24, 0), "{name}");
        simulator.running[1].has_work = true;
        simulator.advance(simulator.drain + 1_000);
        assert!(simulator.active(ids[1]) >= 8, "{name}: back at the next launch");
        // Nobody works: nothing moves, whatever time passes.
        simulator.advance(2_000_000);
        let before = simulator.policy.orders().plan.clone();
        for running in &mut simulator.running {
            running.has_work = false;
        }
        simulator.advance(5_000_000);
        assert_eq!(simulator.policy.orders().plan, before, "{name}");
    }
}

fn classifications(simulator: &Simulator) -> usize {
    simulator.policy.records().filter(|record| record.stage == "profile").count()
}

#[test]
fn a_group_that_comes_again_goes_on_where_it_was() {
    let mut simulator = simulator(24, 9);
    let ids = unlike().map(|program| simulator.arrive(program));
    simulator.converge();
    let found = simulator.active(ids[0]);
    assert!(found < 12, "{found}");
    for _ in 0..5 {
        simulator.running[1].has_work = false;
        simulator.advance(800_000);
        assert_eq!(simulator.active(ids[0]), 24);
        simulator.running[1].has_work = true;
        simulator.advance(simulator.drain + 1_000);
        assert_eq!(simulator.active(ids[0]), found);
    }
    assert_eq!(classifications(&simulator), 1);
    // Another group is another search, and so is one on other SMs.
    simulator.arrive(unlike()[1]);
    simulator.converge();
    assert_eq!(classifications(&simulator), 2);
    simulator.running.pop();
    simulator.advance(20_000);
    assert_eq!((simulator.active(ids[0]), classifications(&simulator)), (found, 2));
}

/// A server needs other numbers of SMs from request to request, and pauses between them.
#[test]
fn two_beside_a_server_are_searched_once() {
    let mut simulator = simulator(24, 9);
    let server = simulator.arrive(unlike()[1]);
    let ids = unlike().map(|program| simulator.arrive(program));
    let terms = |priority| Terms { priority: Some(priority), ..Terms::default() };
    let entitled = |priority| Entitlement::of(&terms(priority), 24);
    for running in &mut simulator.running[1..] {
        running.entitlement = entitled(Priority::Batch);
    }
    let need = |simulator: &mut Simulator, sms| {
        let entitlement = entitled(Priority::Latency);
        simulator.running[0].entitlement = Entitlement { need: Some(sms), ..entitlement };
    };
    need(&mut simulator, 8);
    simulator.converge();
    simulator.running[0].has_work = false;
    simulator.advance(800_000);
    simulator.converge();
    let found = ids.map(|id| simulator.active(id));
    assert!(found[0] < 12, "{found:?}");
    let searched = classifications(&simulator);
    for sms in [4, 9, 6, 12, 5] {
        need(&mut simulator, sms);
        simulator.running[0].has_work = true;
        simulator.advance(simulator.drain + 1_000);
        assert_eq!(simulator.active(server), sms);
        simulator.advance(100_000);
        simulator.running[0].has_work = false;
        simulator.advance(800_000);
        assert_eq!(ids.map(|id| simulator.active(id)), found, "after {sms}");
    }
    assert_eq!(classifications(&simulator), searched);
}

#[test]
fn a_search_that_was_cut_off_goes_on() {
    let mut simulator = simulator(24, 9);
    let ids = unlike().map(|program| simulator.arrive(program));
    // No turn is as long as the search.
    for _ in 0..16 {
        simulator.running[1].has_work = false;
        simulator.advance(800_000);
        simulator.running[1].has_work = true;
        simulator.advance(90_000);
    }
    assert!(simulator.active(ids[0]) < 12, "{:?}", simulator.policy.current());
    assert_eq!(classifications(&simulator), 1);
}

#[test]
fn others_get_on_beside_one_that_spins() {
    let mut simulator = simulator(48, 4);
    let [memory, compute] = unlike();
    let ids = [simulator.arrive(memory), simulator.arrive(compute), simulator.arrive(compute)];
    simulator.running[2].spins = true;
    simulator.advance(50_000_000);
    let record = simulator.policy.records().rfind(|record| record.stage == "watch").unwrap();
    let is_unknown = |note: &Note| match note {
        Note::Classified { application, class, .. } => {
            application.0 == ids[2] && *class == Class::Unknown
        }
        _ => false,
    };
    assert!(record.notes.iter().any(is_unknown), "{:?}", record.notes);
    let gets =
        |id: u32| record.applications.iter().find(|a| a.application.0 == id).unwrap().gets.len();
    assert_eq!(gets(ids[2]), 16, "it keeps its share and gets nobody else's");
    assert!(gets(ids[1]) > 16, "the others are searched as if it was not there");
}

#[test]
fn a_phase_that_no_longer_fits_is_classified_again() {
    for counted in [true, false] {
        let mut simulator = simulator(24, 5);
        let [memory, compute] = unlike().map(|program| Program { counted, ..program });
        let ids = [simulator.arrive(memory), simulator.arrive(compute)];
        simulator.converge();
        let found = simulator.active(ids[0]);
        assert!(found < 12 && simulator.active(ids[1]) == 24 - found);
        // They change roles.
        simulator.running[0].program = compute;
        simulator.running[1].program = memory;
        simulator.advance(20_000_000);
        assert_eq!(
            (simulator.active(ids[0]), simulator.active(ids[1])),
            (24 - found, found),
            "{counted}"
        );
    }
}

/// A program that rests during the first interval is measured once more, and gets its class.
#[test]
fn a_rest_between_launches_costs_no_class() {
    let mut simulator = simulator(24, 8);
    let ids = unlike().map(|program| simulator.arrive(program));
    simulator.advance(10_000);
    simulator.running[1].has_work = false;
    simulator.advance(40_000);
    simulator.running[1].has_work = true;
    simulator.converge();
    let mut notes = simulator.policy.records().flat_map(|record| &record.notes);
    let class = notes.find_map(|note| match note {
        Note::Classified { application, class, .. } if application.0 == ids[1] => Some(*class),
        _ => None,
    });
    assert_eq!(class, Some(Class::Compute));
    assert!(simulator.active(ids[1]) > 12, "it gets what the other does not need");
}

#[test]
fn phases_faster_than_a_search_are_not_searched_for_ever() {
    let mut simulator = simulator(24, 6);
    let [memory, compute] = unlike();
    simulator.arrive(memory);
    simulator.arrive(compute);
    for _ in 0..1_000 {
        simulator.advance(300_000);
        simulator.running[0].program =
            if simulator.random.below(2) == 0 { memory } else { compute };
    }
    let begun = simulator.policy.records().filter(|record| record.stage == "profile").count();
    assert!(begun <= 12, "{begun} classifications in 300 M cycles");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Arrivals, departures, rest and work at any step of a search.
    #[test]
    fn whoever_comes_and_goes(
        name in prop::sample::select(vec!["even", "static", "cd-search"]),
        sms in 1_u16..140,
        seed in any::<u64>(),
        drain in prop::sample::select(vec![0_u64, 5_000, 200_000]),
        noise in prop::sample::select(vec![0.0, 0.02, 0.9]),
        events in prop::collection::vec((1_u64..200, 0_u8..5), 1..40),
    ) {
        let mut simulator = Simulator::new(gpu(sms), policy(name, sms), seed);
        simulator.drain = drain;
        simulator.noise = noise;
        for (kilocycles, event) in events {
            let count = u64::try_from(simulator.running.len()).unwrap();
            let whom = usize::try_from(simulator.random.below(count)).unwrap();
            match event {
                0 | 1 if count < 20 => {
                    let program = Program::any(&mut simulator.random);
                    simulator.arrive(program);
                }
                2 if count > 0 => { simulator.running.remove(whom); }
                3 if count > 0 => simulator.running[whom].has_work ^= true,
                4 if count > 0 => simulator.running[whom].spins ^= true,
                _ => {}
            }
            simulator.advance(kilocycles * 1_000);
            let with_work: Vec<u32> =
                simulator.running.iter().filter(|r| r.has_work).map(|r| r.id).collect();
            let waiting = simulator.running.len() > usize::from(sms);
            check_orders(simulator.policy.orders(), simulator.sms(),
                if waiting { &[] } else { &with_work });
        }
    }

    /// Whatever is seen, orders hold, and the same is answered to the same.
    #[test]
    fn absurd_observations(
        name in prop::sample::select(
            vec!["even", "static", "cd-search", "slate", "slate+cd-search", "kernelet"]
        ),
        seed in any::<u64>(),
        said in any::<bool>(),
    ) {
        let run = || {
            let mut random = Random(seed);
            let mut policy = policy(name, 24);
            let mut all: Vec<Orders> = Vec::new();
            for _ in 0..300 {
                let seen = absurd(&mut random, policy.next_at(), said);
                let sms = seen.sms;
                let with_work: Vec<u32> = seen.applications.iter().rev()
                    .map(|a| (a.application.0, a.has_work))
                    .collect::<std::collections::BTreeMap<_, _>>().into_iter()
                    .filter_map(|(id, has_work)| has_work.then_some(id)).collect();
                policy.observe(&seen);
                let members = seen.applications.len();
                let room = members <= usize::from(sms.len());
                // Pairs take turns.
                let turns = name.contains("slate") || name == "kernelet";
                // By terms SMs may stay empty, and applications may take turns.
                let all_run = room && !turns && !said;
                check_orders(policy.orders(), sms, if all_run { &with_work } else { &[] });
                all.push(policy.orders().clone());
                prop_assert!(policy.records().count() <= 256);
                if let Some(record) = policy.current() {
                    prop_assert!(explain(record).iter().all(|line| !line.contains("NaN")));
                }
                while let Some(told) = policy.poll_notice() {
                    prop_assert!(!notice(&told).is_empty());
                }
            }
            let records: Vec<DecisionRecord> = policy.records().cloned().collect();
            Ok((all, records))
        };
        prop_assert_eq!(run()?, run()?);
    }
}

/// Some of its numbers make no sense.
fn character(random: &mut Random) -> Character {
    let kind = Some(Kind(random.below(5)));
    let mut any = || match random.below(8) {
        0 => 0.0,
        1 => f64::NAN,
        2 => f64::INFINITY,
        3 => -1.0,
        _ => random.scale(1e-3, 1e9),
    };
    Character {
        warp_instructions: any(),
        memory_instructions: any(),
        sectors: any(),
        llc_sectors: any(),
        dram_sectors: any(),
        warps: any(),
        ctas_per_sm: any(),
        ctas_per_launch: any(),
        alone: Some(any()).filter(|alone| *alone >= 0.0),
        kind,
    }
}

fn small(random: &mut Random, limit: u32) -> u32 {
    u32::try_from(random.below(limit.into())).expect("below a u32")
}

fn absurd(random: &mut Random, due: Option<Nanos>, said: bool) -> Observation {
    let any = |random: &mut Random| match random.below(5) {
        0 => 0,
        1 => u64::MAX,
        2 => random.below(100),
        _ => random.below(1 << 40),
    };
    let now = match random.below(6) {
        0 => any(random),
        1 => 0,
        _ => due.map_or(1_000, |due| due.0.saturating_add(random.below(100))),
    };
    let applications = (0..random.below(6))
        .map(|_| ApplicationObservation {
            application: ApplicationId(small(random, 6)),
            tenant: TenantId(small(random, 3)),
            tag: (random.below(2) == 0).then(|| "a".to_owned()),
            has_work: random.below(4) > 0,
            lends_at: Nanos(any(random)),
            busy: Nanos(any(random)),
            in_flight: any(random),
            launched: any(random),
            counting: random.below(8) == 0,
            stuck: random.below(8) == 0,
            cramped: random.below(8) == 0,
            entitlement: if said { entitlement(random) } else { Entitlement::default() },
            character: (random.below(3) > 0).then(|| character(random)),
            total: Progress {
                ctas: any(random),
                traffic: (random.below(2) == 0).then(|| Traffic {
                    ctas: any(random),
                    warp_instructions: any(random),
                    llc_accesses: any(random),
                    llc_hits: any(random),
                    llc_least: any(random),
                    llc_most: any(random),
                    hits_least: any(random),
                    hits_most: any(random),
                    llc_dirtied: any(random),
                }),
            },
        })
        .collect();
    let sms = if random.below(10) == 0 { SmSet::range(3, 9) } else { SmSet::range(0, 24) };
    let pinned = SmSet::range(0, 24).difference(&sms);
    Observation { now: Nanos(now), sms, pinned, settled: random.below(3) > 0, applications }
}
