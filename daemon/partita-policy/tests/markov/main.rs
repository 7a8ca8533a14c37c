//! The Markov model against closed forms, against the process that it models, and against absurd
//! numbers.

mod kernelet;
mod simulator;

use partita_model::Calibration;
use partita_policy::Character;
use partita_policy::markov::{Alone, Model, ModelError, Ratio, Shared, Sm, Workload};
use proptest::prelude::*;
use simulator::{Resident, folded, simulate};

fn hardware() -> Calibration {
    Calibration {
        sms: 24,
        sm_clock_khz: 1_400_000,
        warp_instructions_per_cycle: 1.0,
        access_bytes: 32,
        noc_bytes_per_second: 1.0e12,
        llc_bytes_per_second: 4.3e11,
        dram_bytes_per_second: 1.77e11,
        dram_utilisation: 0.5,
    }
}

fn model(units: u32) -> Model {
    Model::new(&hardware(), units).expect("a GPU")
}

/// Coalesced loads from DRAM; 8 CTAs of 6 warps.
fn workload(memory_ratio: f64) -> Workload {
    Workload {
        memory_ratio,
        warp_instructions: 1_000.0,
        warps: 6,
        ctas_fit: 8,
        ctas_alone: 8,
        uncoalesced: 0.0,
        coalesced_sectors: 4.0,
        uncoalesced_sectors: 32.0,
        llc: 1.0,
        dram: 1.0,
        slots: 1.0,
        base_cycles: 400.0,
    }
}

fn alone(workload: Workload) -> Alone {
    model(Model::UNITS).alone(workload).expect("a kernel")
}

fn near(found: f64, wanted: f64, within: f64) {
    assert!((found - wanted).abs() <= within, "{found}, not {wanted} within {within}");
}

#[test]
fn without_accesses_an_sm_issues_at_its_full_rate() {
    near(alone(workload(0.0)).ipc, 1.0, 1e-9);
    let four = Calibration { warp_instructions_per_cycle: 4.0, ..hardware() };
    near(Model::new(&four, 8).unwrap().alone(workload(0.0)).unwrap().ipc, 4.0, 1e-9);
    // A single warp cannot use four schedulers.
    let one = Workload { warps: 1, ctas_fit: 1, ctas_alone: 1, ..workload(0.0) };
    near(Model::new(&four, 8).unwrap().alone(one).unwrap().ipc, 1.0, 1e-9);
}

/// One warp is ready for 1 ÷ R_m cycles and idle for L.
#[test]
fn one_warp_waits_for_each_access() {
    let one = Workload { warps: 1, ctas_fit: 1, ctas_alone: 1, ..workload(0.1) };
    let Sm { port_cycles, dram_cycles, .. } = *model(8).sm();
    let latency = 400.0 + 4.0 * port_cycles + 4.0 * dram_cycles;
    near(alone(one).ipc, 1.0 / (1.0 + 0.1 * latency), 1e-9);
}

#[test]
fn saturated_dram_sets_the_pace() {
    let dram_bound = Workload { ctas_fit: 32, ctas_alone: 32, ..workload(0.5) };
    let most = 1.0 / (0.5 * 4.0 * model(8).sm().dram_cycles);
    for base_cycles in [0.0, 100.0, 400.0] {
        let found = alone(Workload { base_cycles, ..dram_bound }).ipc;
        assert!(found < most * 1.02 && found > most * 0.9, "{found} of {most}");
    }
}

#[test]
fn alike_kernels_share_evenly_and_gain_nothing() {
    for ratio in [0.0, 0.02, 0.1, 0.4] {
        let kernel = alone(workload(ratio));
        let shared = model(Model::UNITS).shared([&kernel, &kernel], [4, 4]).unwrap();
        near(shared.ipc[0], shared.ipc[1], 1e-9);
        near(shared.throughput(), 1.0, 1e-6);
        near(shared.profit(), 0.0, 1e-6);
        for rule in [Ratio::Balanced, Ratio::Profitable] {
            let chosen = model(Model::UNITS).chosen([&kernel, &kernel], rule).unwrap().unwrap();
            assert_eq!(chosen.ctas, [4, 4], "{ratio}");
        }
    }
}

#[test]
fn more_accesses_or_less_bandwidth_are_slower() {
    let ipcs: Vec<f64> = [0.0, 0.01, 0.03, 0.1, 0.3, 1.0].map(|r| alone(workload(r)).ipc).into();
    assert!(ipcs.is_sorted_by(|faster, slower| faster > slower), "{ipcs:?}");
    let with = |factor: f64| {
        let dram_bytes_per_second = hardware().dram_bytes_per_second * factor;
        let hardware = Calibration { dram_bytes_per_second, ..hardware() };
        Model::new(&hardware, 8).unwrap().alone(workload(0.1)).unwrap().ipc
    };
    let ipcs = [0.25, 0.5, 1.0, 2.0].map(with);
    assert!(ipcs.is_sorted_by(|slower, faster| slower < faster), "{ipcs:?}");
    let scattered = [0.0, 0.3, 1.0].map(|uncoalesced| Workload { uncoalesced, ..workload(0.05) });
    let ipcs = scattered.map(|workload| alone(workload).ipc);
    assert!(ipcs.is_sorted_by(|faster, slower| faster > slower), "{ipcs:?}");
}

#[test]
fn unlike_kernels_gain_and_alike_memory_bound_ones_do_not() {
    let compute = alone(Workload { base_cycles: 300.0, ..workload(0.01) });
    let memory = alone(workload(0.3));
    let gain = model(8).chosen([&compute, &memory], Ratio::Profitable).unwrap().unwrap();
    assert!(gain.profit() > 0.2, "{gain:?}");
    // The order of the two decides nothing.
    let swapped = model(8).chosen([&memory, &compute], Ratio::Profitable).unwrap().unwrap();
    near(swapped.profit(), gain.profit(), 1e-9);
    let other = alone(Workload { base_cycles: 600.0, ..workload(0.4) });
    let none = model(8).chosen([&memory, &other], Ratio::Profitable).unwrap().unwrap();
    assert!(none.profit() < 0.1, "{none:?}");
    // A kernel that hits the LLC does not wait for DRAM.
    let beside_dram = [0.0, 1.0].map(|dram| {
        let kernel = alone(Workload { dram, ..workload(0.1) });
        model(8).shared([&kernel, &memory], [4, 4]).unwrap().ipc[0]
    });
    assert!(beside_dram[0] > beside_dram[1] * 1.5, "{beside_dram:?}");
}

/// With one kind of access the chain is exact: only chance is between it and the simulation. The
/// two kinds of access share a state in the chain, which costs accuracy.
#[test]
fn predictions_are_those_of_the_process() {
    let scattered = Workload { uncoalesced: 0.3, dram: 0.3, ..workload(0.05) };
    let cases = [
        (workload(0.01), workload(0.3), [6, 2], 0.01),
        (workload(0.1), Workload { base_cycles: 50.0, ..workload(0.2) }, [4, 4], 0.01),
        (workload(0.02), Workload { dram: 0.1, ..workload(0.15) }, [3, 5], 0.01),
        (workload(0.02), scattered, [4, 4], 0.05),
        (Workload { slots: 3.0, ..workload(0.05) }, workload(0.2), [4, 4], 0.01),
        (Workload { uncoalesced: 0.1, ..workload(0.2) }, scattered, [4, 4], 0.05),
    ];
    for (seed, (one, other, ctas, within)) in (1..).zip(cases) {
        let kernels = [alone(one), alone(other)];
        let sm = *model(8).sm();
        let on = |of: usize, ctas: u32| {
            let workload = kernels[of].workload;
            Resident { workload, ctas, unit_warps: folded(&sm, &workload, 8) }
        };
        for of in [0, 1] {
            let simulated = simulate(&sm, &[on(of, 8)], 400_000, seed);
            near(kernels[of].ipc, simulated[0], within);
        }
        let shared = model(8).shared([&kernels[0], &kernels[1]], ctas).unwrap();
        let simulated = simulate(&sm, &[on(0, ctas[0]), on(1, ctas[1])], 400_000, seed);
        for (found, simulated) in shared.ipc.into_iter().zip(simulated) {
            near(found, simulated, within);
        }
    }
}

/// A counted kernel of the given instructions per cycle alone.
fn counted(ratio: f64, sectors: f64, ipc: f64) -> Character {
    let hardware = hardware();
    let instructions = 2_000.0;
    let accesses = instructions * ratio;
    let cycles = instructions / ipc / f64::from(hardware.sms);
    Character {
        warp_instructions: instructions,
        memory_instructions: accesses,
        sectors: accesses * sectors,
        llc_sectors: accesses * sectors,
        dram_sectors: accesses * sectors / 2.0,
        warps: 6.0,
        ctas_per_sm: 8.0,
        ctas_per_launch: 1_000.0,
        alone: Some(cycles / f64::from(hardware.sm_clock_khz) * 1e6),
        kind: None,
    }
}

#[test]
fn a_fit_explains_the_speed_alone() {
    // Something else than memory slows the last two.
    for (ratio, sectors, ipc, slots) in
        [(0.1, 4.0, 0.3, 1.0), (0.1, 10.0, 0.2, 1.0), (0.0, 0.0, 0.5, 2.0), (0.01, 4.0, 0.1, 10.0)]
    {
        let found = model(8).fitted(&counted(ratio, sectors, ipc), &hardware()).unwrap();
        near(found.ipc, ipc, ipc * 1e-3);
        near(found.workload.slots, slots, slots * 0.02);
    }
    // With half of its warps a kernel of a slow pipeline is as fast as with all.
    let slow = model(8).fitted(&counted(0.0, 0.0, 0.5), &hardware()).unwrap();
    let idle = model(8).alone(Workload { warps: 1, base_cycles: 1e6, ..workload(1.0) }).unwrap();
    near(model(8).shared([&slow, &idle], [4, 4]).unwrap().speeds()[0], 1.0, 0.02);
    // Nothing is faster than the issue rate or its bandwidth.
    let found = model(8).fitted(&counted(0.3, 4.0, 5.0), &hardware()).unwrap();
    near(found.workload.base_cycles, 0.0, 0.0);
    let unknown = Character { alone: None, ..counted(0.1, 4.0, 0.3) };
    assert_eq!(model(8).fitted(&unknown, &hardware()), Err(ModelError::NotMeasured));
}

#[test]
fn a_kernel_that_fills_an_sm_with_one_cta_shares_with_none() {
    let whole = alone(Workload { ctas_fit: 1, ctas_alone: 1, ..workload(0.1) });
    let other = alone(workload(0.01));
    assert_eq!(model(8).chosen([&whole, &other], Ratio::Profitable), Ok(None));
    assert!(model(8).shared([&other, &other], [0, 4]).is_err());
    assert!(model(8).shared([&other, &other], [9, 4]).is_err());
}

#[test]
fn ratios_fill_an_sm_and_the_rules_choose_among_all() {
    let kernels = [
        alone(workload(0.01)),
        alone(workload(0.1)),
        alone(Workload { warp_instructions: 4_000.0, ctas_fit: 6, ctas_alone: 6, ..workload(0.3) }),
        alone(Workload { warp_instructions: 300.0, uncoalesced: 0.5, ..workload(0.05) }),
        alone(Workload { warps: 2, ctas_fit: 20, ctas_alone: 20, ..workload(0.05) }),
    ];
    for (one, other) in kernels.iter().flat_map(|one| kernels.iter().map(move |b| (one, b))) {
        let apart = |shared: &Shared| {
            let time = |of: &Alone, at: usize| {
                of.workload.warp_instructions * f64::from(shared.ctas[at]) / shared.ipc[at]
            };
            let (one, other) = (time(one, 0), time(other, 1));
            (one - other).abs() / one.max(other)
        };
        let ratios = model(8).ratios([one, other]).unwrap();
        for shared in &ratios {
            let places = |of: &Alone, at: usize| {
                f64::from(shared.ctas[at]) / f64::from(of.workload.ctas_fit)
            };
            let (full, cta) = (places(one, 0) + places(other, 1), 1.0 / 6.0);
            assert!(full <= 1.0 && full > 1.0 - cta, "{shared:?}");
        }
        let chosen = |rule| model(8).chosen([one, other], rule).unwrap().unwrap();
        let least = ratios.iter().map(apart).fold(f64::INFINITY, f64::min);
        let balanced = chosen(Ratio::Balanced);
        assert!(apart(&balanced) <= least + 0.1);
        let most = ratios.iter().map(Shared::profit).fold(f64::NEG_INFINITY, f64::max);
        near(chosen(Ratio::Profitable).profit(), most, 1e-8);
        assert!(balanced.profit() <= most);
    }
}

#[test]
fn errors_name_the_number_and_what_it_may_be() {
    let error = |workload: Workload| model(8).alone(workload).unwrap_err().to_string();
    let text = error(Workload { warps: 0, ..workload(0.1) });
    assert_eq!(text, "Markov model: warps is 0; it must be a number from 1 to 1024");
    assert!(error(workload(f64::NAN)).contains("memory_ratio is NaN"));
    assert!(error(Workload { base_cycles: f64::INFINITY, ..workload(0.1) }).contains("1e7"));
    assert!(Model::new(&hardware(), 0).is_err());
    assert!(Model::new(&hardware(), 17).is_err());
    assert!(Model::new(&Calibration { sms: 0, ..hardware() }, 8).is_err());
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<f64>(),
        0.0..1.0_f64,
        1.0..1e6_f64,
        Just(0.0),
        Just(1.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
    ]
}

fn resident() -> impl Strategy<Value = f64> {
    prop_oneof![number(), (1..64_u32).prop_map(f64::from)]
}

fn positive() -> impl Strategy<Value = f64> {
    prop_oneof![1e-3..1e3_f64, 1e-300..1e300_f64]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn absurd_characters_have_an_error_or_an_answer(
        numbers in prop::collection::vec(number(), 9),
        residents in prop::collection::vec(resident(), 3),
        supply in prop::collection::vec(positive(), 4),
        units in 1..17_u32,
    ) {
        let character = Character {
            warp_instructions: numbers[0],
            memory_instructions: numbers[1],
            sectors: numbers[2],
            llc_sectors: numbers[3],
            dram_sectors: numbers[4],
            warps: residents[0],
            ctas_per_sm: residents[1],
            ctas_per_launch: residents[2],
            alone: Some(numbers[5]),
            kind: None,
        };
        let hardware = Calibration {
            warp_instructions_per_cycle: supply[0],
            noc_bytes_per_second: supply[1],
            llc_bytes_per_second: supply[2],
            dram_bytes_per_second: supply[3],
            ..hardware()
        };
        let model = Model::new(&hardware, units).unwrap();
        if let Ok(found) = model.fitted(&character, &hardware) {
            prop_assert!(found.ipc > 0.0 && found.ipc <= supply[0] * (1.0 + 1e-6), "{:?}", found);
        }
    }

    #[test]
    fn absurd_pairs_have_an_error_or_an_answer(
        ratios in prop::collection::vec(prop_oneof![number(), 0.0..=1.0_f64], 4),
        sectors in prop::collection::vec(prop_oneof![0.0..40.0_f64, 0.0..1e6_f64], 8),
        base in prop::collection::vec(prop_oneof![0.0..2e3_f64, 0.0..1e7_f64, number()], 2),
        residents in prop::collection::vec(0..40_u32, 6),
        supply in prop::collection::vec(positive(), 4),
    ) {
        let workload = |at: usize| Workload {
            memory_ratio: ratios[at],
            uncoalesced: ratios[2 + at],
            coalesced_sectors: sectors[at],
            uncoalesced_sectors: sectors[2 + at],
            llc: sectors[4 + at],
            dram: sectors[6 + at],
            slots: 1.0 + sectors[at],
            base_cycles: base[at],
            warps: residents[at],
            ctas_fit: residents[2 + at],
            ctas_alone: residents[4 + at],
            ..workload(0.0)
        };
        let hardware = Calibration {
            warp_instructions_per_cycle: supply[0],
            noc_bytes_per_second: supply[1],
            llc_bytes_per_second: supply[2],
            dram_bytes_per_second: supply[3],
            ..hardware()
        };
        let model = Model::new(&hardware, 8).unwrap();
        let kernels = [0, 1].map(|at| model.alone(workload(at)));
        if let [Ok(one), Ok(other)] = kernels
            && let Ok(Some(shared)) = model.chosen([&one, &other], Ratio::Profitable)
        {
            let sum: f64 = shared.ipc.iter().sum();
            prop_assert!(sum > 0.0 && sum <= supply[0] * (1.0 + 1e-6), "{:?}", shared);
            prop_assert!(shared.profit() < 1.0 && shared.ctas.iter().all(|ctas| *ctas > 0));
        }
    }
}
