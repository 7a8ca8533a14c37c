//! The paper's own partitioner on the fluid GPU: what CD-search §4 and §7.4.3 describe.

use crate::simulator::{Program, Random, Simulator, check_orders, gpu, speeds, stp};
use partita_model::{ApplicationId, Class, DecisionRecord, Note};
use partita_policy::{CdSearchPaper, Everyone, Policy, PolicySettings, explain};

const SMS: u16 = 24;
/// Intervals measure to about 3 %: 1 % of noise and a grain of one CTA in 64.
const GRAIN: f64 = 0.03;

/// Bound by DRAM from eight SMs on.
const MEMORY: Program = Program {
    issue: 1.0,
    parallelism: 100.0,
    latency: 300.0,
    apki: 300.0,
    hit_rate: 0.3,
    instructions_per_cta: 2_000.0,
    counted: true,
    slots: None,
};
/// Never bound by bandwidth.
const COMPUTE: Program = Program { apki: 5.0, hit_rate: 0.8, ..MEMORY };

/// A GPU without noise, and these programs at the end of their search.
fn searched(programs: &[Program]) -> (Simulator, Vec<u32>) {
    let hardware = gpu(SMS);
    let policy = Policy::new(
        PolicySettings::new(hardware.sm_clock_khz),
        Box::new(Everyone::default()),
        Box::new(CdSearchPaper::new(hardware).unwrap()),
    );
    let mut simulator = Simulator::new(hardware, policy, 1);
    simulator.noise = 0.0;
    let ids: Vec<u32> = programs.iter().map(|&program| simulator.arrive(program)).collect();
    simulator.converge();
    check_orders(simulator.policy.orders(), simulator.sms(), &ids);
    (simulator, ids)
}

fn counts(simulator: &Simulator, ids: &[u32]) -> Vec<u16> {
    ids.iter().map(|&id| simulator.active(id)).collect()
}

/// The numbers of SMs at work that were measured for an application, in order.
fn measured(simulator: &Simulator, id: u32) -> Vec<u16> {
    let notes = simulator.policy.records().flat_map(|record| &record.notes);
    let active = notes.filter_map(|note| match note {
        Note::Measured { application, active, .. } if *application == ApplicationId(id) => {
            Some(*active)
        }
        _ => None,
    });
    active.collect()
}

/// The cycles between two decisions.
fn cycles_between(records: &[&DecisionRecord], from: usize, to: usize) -> u64 {
    (records[to].time.0 - records[from].time.0) * 7 / 10
}

/// The speed of the first of two programs with so many SMs, against its even share.
fn kept(programs: [Program; 2], sms: u16) -> f64 {
    let at = |first| speeds(&gpu(SMS), &[(programs[0], first), (programs[1], SMS / 2)])[0];
    at(sms) / at(SMS / 2)
}

#[test]
fn performance_mode_stalls_steps_of_two_and_preempts_once() {
    let (simulator, ids) = searched(&[MEMORY, COMPUTE]);
    let steps = measured(&simulator, ids[0]);
    assert!(steps.len() >= 3, "{steps:?}");
    assert!(steps.iter().zip([10, 8, 6, 4, 2, 1]).all(|(step, expected)| *step == expected));
    let sms = counts(&simulator, &ids);
    let enough = steps[steps.len() - 2];
    assert_eq!(sms, [enough, SMS - enough], "one step back from the first that lost 5 %");
    assert!(kept([MEMORY, COMPUTE], enough) >= 0.95 - GRAIN);
    assert!(kept([MEMORY, COMPUTE], enough - 2) < 0.95 + GRAIN);

    let records: Vec<&DecisionRecord> = simulator.policy.records().collect();
    let plans =
        |record: &&DecisionRecord| record.applications.iter().map(|a| a.gets).collect::<Vec<_>>();
    let searching: Vec<_> = records.iter().filter(|r| r.stage == "performance").collect();
    assert!(searching.windows(2).all(|pair| plans(pair[0]) == plans(pair[1])), "only stalls");
    let last = records.last().unwrap();
    assert_eq!(last.stage, "found");
    assert!(last.applications.iter().all(|a| a.stalled.is_empty()));
    // An iteration: 40K cycles, and what workers take to follow.
    let first = records.iter().position(|record| record.stage == "performance").unwrap();
    let iteration = cycles_between(&records, first, first + 1);
    assert!((40_000..=40_000 + 5_000 + 4_000).contains(&iteration), "{iteration}");
}

#[test]
fn performance_mode_never_gives_the_memory_intensive_one_more() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let programs = [Program::memory(&mut random), Program::compute(&mut random)];
        let (simulator, ids) = searched(&programs);
        let sms = counts(&simulator, &ids);
        assert!(sms[0] <= SMS / 2 && sms[0] + sms[1] == SMS, "seed {seed}: {sms:?}");
        assert!(kept(programs, sms[0]) >= 0.95 - GRAIN, "seed {seed}");
        let mix = [(programs[0], sms[0]), (programs[1], sms[1])];
        let even = programs.map(|program| (program, SMS / 2));
        let hardware = gpu(SMS);
        assert!(stp(&hardware, &mix) >= stp(&hardware, &even) - 0.05 - GRAIN, "seed {seed}");
    }
}

#[test]
fn compute_mixes_stay_even() {
    let (simulator, ids) = searched(&[COMPUTE, COMPUTE]);
    assert_eq!(counts(&simulator, &ids), [12, 12]);
    assert!(measured(&simulator, ids[0]).is_empty(), "no search");
    assert!(simulator.policy.orders().stalled.is_empty());
}

/// §4.3: one SM each, the ratio as a tentative number, then one more at a time.
#[test]
fn power_mode_extrapolates_then_resumes_one_at_a_time() {
    let programs = [MEMORY, MEMORY];
    let (simulator, ids) = searched(&programs);
    for &id in &ids {
        let steps = measured(&simulator, id);
        assert_eq!(steps[0], 1, "all but one are stalled");
        // With one SM each nobody waits for bandwidth; with half of the SMs both do.
        let one = speeds(&gpu(SMS), &[(MEMORY, 1), (MEMORY, 1)])[0];
        let half = speeds(&gpu(SMS), &[(MEMORY, 12), (MEMORY, 12)])[0];
        let ratio = half / one;
        let tentative = f64::from(steps[1]);
        assert!(tentative >= ratio - GRAIN * ratio && tentative < ratio + 1.0 + GRAIN * ratio);
        assert!(steps[1..].windows(2).all(|pair| pair[1] == pair[0] + 1), "{steps:?}");
    }
    let sms = counts(&simulator, &ids);
    let gated = simulator.policy.orders().gated.len();
    assert_eq!(sms.iter().sum::<u16>() + gated, SMS);
    assert!(gated > 0);
    let now = speeds(&gpu(SMS), &[(MEMORY, sms[0]), (MEMORY, sms[1])]);
    let then = speeds(&gpu(SMS), &[(MEMORY, 12), (MEMORY, 12)]);
    assert!(now.iter().zip(&then).all(|(now, then)| now / then >= 0.95 - GRAIN));
}

/// §7.4.3: the fewest SMs for each memory-intensive application, the rest evenly to the others.
#[test]
fn four_applications_share_what_is_left_evenly() {
    let (simulator, ids) = searched(&[MEMORY, COMPUTE, COMPUTE, MEMORY]);
    let sms = counts(&simulator, &ids);
    assert_eq!(sms.iter().sum::<u16>(), SMS);
    assert!(sms[0] < 6 && sms[3] < 6, "{sms:?}");
    assert!(sms[1].abs_diff(sms[2]) <= 1 && sms[1] > 6, "{sms:?}");
}

/// §4: an arrival restarts classification; so does a departure.
#[test]
fn whoever_comes_or_goes_restarts_the_search() {
    let (mut simulator, ids) = searched(&[MEMORY, COMPUTE]);
    let before = counts(&simulator, &ids);
    let third = simulator.arrive(COMPUTE);
    simulator.advance(10_000);
    assert_eq!(counts(&simulator, &[ids[0], ids[1], third]), [8, 8, 8]);
    simulator.converge();
    simulator.running.retain(|running| running.id != third);
    simulator.advance(10_000);
    assert_eq!(counts(&simulator, &ids), [12, 12]);
    simulator.converge();
    assert_eq!(counts(&simulator, &ids), before);
}

/// An application that nobody counts keeps its share, and the others are searched around it.
#[test]
fn without_counters_it_keeps_its_share() {
    let unknown = Program { counted: false, ..COMPUTE };
    // DRAM is full with four SMs of eight.
    let greedy = Program { apki: 600.0, parallelism: 400.0, ..MEMORY };
    let (simulator, ids) = searched(&[unknown, greedy, COMPUTE]);
    let sms = counts(&simulator, &ids);
    assert_eq!(sms[0], 8);
    assert!(sms[1] < 8 && sms[2] > 8, "{sms:?}");
    let mut notes = simulator.policy.records().flat_map(|record| &record.notes);
    assert!(notes.any(|note| matches!(note, Note::Classified { class: Class::Unknown, .. })));
}

#[test]
fn it_explains_itself() {
    let (simulator, _) = searched(&[MEMORY, COMPUTE]);
    let text = explain(simulator.policy.current().unwrap()).join(" ");
    for part in ["of cd-search-paper (found)", "of its speed", "SMs: they keep", "goes from 12 to"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}
