//! Terms over the fluid GPU: minima hold where they can, maxima always, and nobody starves.

use crate::simulator::{Program, Random, Simulator, check_orders, gpu};
use partita_model::{ApplicationId, Entitlement, Priority, SmAmount, Terms, Weight};
use partita_policy::{
    CdSearch, CdSearchSettings, Demand, Even, Everyone, Partitioner, Policy, PolicySettings,
    Selector, SlateTable, Smra, SmraSettings, Turns, explain,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Any terms, as a rule of a GPU with some tens of SMs.
pub(crate) fn entitlement(random: &mut Random) -> Entitlement {
    let mut below = |limit: u64| u16::try_from(random.below(limit)).unwrap();
    let priority = [Priority::Batch, Priority::Normal, Priority::Latency][usize::from(below(3))];
    let terms = Terms {
        min: (below(2) == 0).then_some(SmAmount::Sms(below(12))),
        max: (below(2) == 0).then_some(SmAmount::Sms(1 + below(30))),
        weight: (below(2) == 0).then_some(Weight::try_from(i64::from(below(5))).unwrap()),
        priority: Some(priority),
        ..Terms::default()
    };
    let need = (priority == Priority::Latency && below(2) == 0).then_some(below(60));
    Entitlement { need, ..Entitlement::of(&terms, 140) }
}

fn policy(name: &str, sms: u16) -> Policy {
    let partitioner: Box<dyn Partitioner + Send> = match name {
        "even" => Box::new(Even),
        "smra" => Box::new(Smra::new(SmraSettings::default(), gpu(sms))),
        "demand" | "slate" => Box::new(Demand::new(gpu(sms))),
        _ => Box::new(CdSearch::new(CdSearchSettings::default(), gpu(sms)).unwrap()),
    };
    let selector: Box<dyn Selector + Send> = match name {
        "slate" => Box::new(Turns::new(SlateTable::new(gpu(sms)), 700_000)),
        _ => Box::new(Everyone::default()),
    };
    Policy::new(PolicySettings::new(700_000), selector, partitioner)
}

fn entitled(min: u16, max: u16, weight: i64) -> Entitlement {
    let terms = Terms {
        min: Some(SmAmount::Sms(min)),
        max: Some(SmAmount::Sms(max)),
        weight: Some(Weight::try_from(weight).unwrap()),
        ..Terms::default()
    };
    Entitlement::of(&terms, 140)
}

/// A change of terms is in the next orders, under every partitioner.
#[test]
fn terms_change_while_applications_run() {
    for name in ["even", "cd-search", "smra", "demand"] {
        let mut simulator = Simulator::new(gpu(24), policy(name, 24), 3);
        let programs = [(); 3].map(|()| Program::any(&mut simulator.random));
        let ids = programs.map(|program| ApplicationId(simulator.arrive(program)));
        simulator.advance(500_000);
        simulator.running[0].entitlement = entitled(15, 15, 1);
        simulator.advance(1_000);
        let sms =
            |simulator: &Simulator| ids.map(|id| simulator.policy.orders().plan.sms(id).len());
        assert_eq!(sms(&simulator)[0], 15, "{name}");
        simulator.advance(3_000_000);
        assert_eq!(sms(&simulator)[0], 15, "{name}");
        simulator.running[0].entitlement = entitled(0, 3, 1);
        simulator.advance(3_000_000);
        assert!(sms(&simulator)[0] <= 3, "{name}");
        simulator.running[0].entitlement = Entitlement::default();
        simulator.advance(1_000);
        assert!(sms(&simulator)[0] > 3, "{name}: {:?}", sms(&simulator));
    }
}

/// `partita why` names what each application was promised, and who leaves SMs to whom.
#[test]
fn sentences_say_what_was_promised_and_why() {
    let mut simulator = Simulator::new(gpu(24), policy("even", 24), 7);
    for (min, priority) in [(8, Priority::Latency), (0, Priority::Batch)] {
        let program = Program::any(&mut simulator.random);
        simulator.arrive(program);
        let min = Some(SmAmount::Sms(min));
        let terms = Terms { min, priority: Some(priority), ..Terms::default() };
        simulator.running.last_mut().unwrap().entitlement = Entitlement::of(&terms, 24);
    }
    simulator.advance(1_000);
    let text = explain(simulator.policy.current().unwrap()).join("\n");
    for sentence in [
        "application 1 has a minimum of 8 SMs, priority `latency`, and gets 23 SMs.",
        "application 2 has priority `batch`, and gets 1 SM: it leaves the rest to applications of \
         priority `latency`.",
    ] {
        assert!(text.contains(sentence), "{text}");
    }
}

/// Weights divide as they say where nothing is to be traded: everybody gains in proportion.
#[test]
fn weights_divide_among_programs_that_scale() {
    for (weights, expected) in [([1, 9], [2, 22]), ([2, 8], [5, 19]), ([5, 5], [12, 12])] {
        let mut simulator = Simulator::new(gpu(24), policy("cd-search", 24), 5);
        let scales = Program { apki: 1.0, hit_rate: 0.9, ..Program::any(&mut Random(1)) };
        let ids = weights.map(|weight| {
            let id = simulator.arrive(scales);
            simulator.running.last_mut().unwrap().entitlement = entitled(0, 24, weight);
            ApplicationId(id)
        });
        simulator.advance(4_000_000);
        let plan = &simulator.policy.orders().plan;
        assert_eq!(ids.map(|id| plan.sms(id).len()), expected, "{weights:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Sixteen applications with any terms come, go, rest and change their terms.
    #[test]
    fn what_was_promised_holds(
        name in prop::sample::select(vec!["even", "cd-search", "smra", "demand", "slate"]),
        sms in 1_u16..140,
        seed in any::<u64>(),
        events in prop::collection::vec((1_u64..200, 0_u8..6), 1..60),
    ) {
        let mut simulator = Simulator::new(gpu(sms), policy(name, sms), seed);
        for (kilocycles, event) in events {
            let count = u64::try_from(simulator.running.len()).unwrap();
            let whom = usize::try_from(simulator.random.below(count)).unwrap();
            match event {
                0 | 1 if count < 16 => {
                    let program = Program::any(&mut simulator.random);
                    simulator.arrive(program);
                    let said = entitlement(&mut simulator.random);
                    simulator.running.last_mut().unwrap().entitlement = said;
                }
                2 if count > 0 => { simulator.running.remove(whom); }
                3 if count > 0 => simulator.running[whom].has_work ^= true,
                4 if count > 0 => {
                    let said = entitlement(&mut simulator.random);
                    simulator.running[whom].entitlement = said;
                }
                _ => {}
            }
            simulator.advance(kilocycles * 1_000);
            let orders = simulator.policy.orders();
            check_orders(orders, simulator.sms(), &[]);
            let sms_of = |id: u32| orders.plan.sms(ApplicationId(id)).len();
            let at_work = || simulator.running.iter().filter(|one| one.has_work);
            for one in &simulator.running {
                prop_assert!(sms_of(one.id) <= one.entitlement.max, "a maximum always holds");
            }
            // An SM for each of those that take no turns, and their minima, and one for the rest.
            let owed: u16 = simulator.running.iter().map(|one| one.entitlement.min.max(1)).sum();
            if owed < sms {
                for one in at_work() {
                    let has = sms_of(one.id);
                    prop_assert!(has >= one.entitlement.min, "{has} of {:?}", one.entitlement);
                }
            }
        }
    }

    /// Whoever has a positive weight works within the bound that the module names.
    #[test]
    fn nobody_starves(
        name in prop::sample::select(vec!["even", "cd-search"]),
        sms in 2_u16..24,
        seed in any::<u64>(),
        count in 2_u32..16,
    ) {
        let mut simulator = Simulator::new(gpu(sms), policy(name, sms), seed);
        for _ in 0..count {
            let program = Program::any(&mut simulator.random);
            simulator.arrive(program);
            let said = entitlement(&mut simulator.random);
            // The sum of minima leaves an SM.
            let min = said.min.min((sms - 1) / u16::try_from(count).unwrap());
            simulator.running.last_mut().unwrap().entitlement = Entitlement { min, ..said };
        }
        let privileged =
            simulator.running.iter().filter(|one| one.entitlement.always_runs()).count();
        prop_assume!(privileged < usize::from(sms));
        // 2 ms have 1.4 million cycles.
        let mut served: BTreeMap<u32, u64> = BTreeMap::new();
        let turns = u64::from(count) + 2;
        for _ in 0..turns * 4 {
            simulator.advance(350_000);
            for one in &simulator.running {
                let sms = simulator.policy.orders().plan.sms(ApplicationId(one.id));
                *served.entry(one.id).or_default() += u64::from(!sms.is_empty());
            }
        }
        for one in simulator.running.iter().filter(|one| one.entitlement.weight.get() > 0) {
            prop_assert!(served[&one.id] > 0, "{:?} got no SM", one.entitlement);
        }
    }
}
