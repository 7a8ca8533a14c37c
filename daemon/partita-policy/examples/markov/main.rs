//! What a prediction of the Markov model costs, and how far it is from the process that it models.
//!
//! ```text
//! cargo run --release -p partita-policy --example markov
//! ```
//!
//! Sixteen random kernels and all their pairs, for numbers of units:
//!
//! | column | meaning |
//! | --- | --- |
//! | fit | µs to fit the base latency of a kernel |
//! | chain | µs of one pair with given numbers of CTAs |
//! | balanced | µs of one pair with its best ratio: up to five chains |
//! | arrival | ms to fit a sixteenth kernel and pair it with the fifteen others |
//! | all | ms of all 120 pairs |
//! | same | error of the sum of IPCs against a simulation of the same units: mean and greatest, in percent of the issue rate |
//! | unfolded | the same against the paper's virtual SM, with the base fitted at the same folding |
//! | CP | mean co-scheduling profit of the pairs, with balanced and with profitable ratios, in percent |
//! | error | mean error of the co-scheduling profit against the virtual SM, in points |

//! Then the time that the adviser `kernelet` takes for all sixteen at once, and for the sixteenth
//! where it has advised on the fifteen others.

#![expect(clippy::print_stdout, reason = "a table is what it is for")]

#[path = "../../tests/markov/simulator.rs"]
mod simulator;

use partita_model::{ApplicationId, Calibration};
use partita_policy::markov::{Alone, Model, Ratio, Shared, Sm};
use partita_policy::{Adviser as _, Candidate, Character, Kernelet, KerneletSettings};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use simulator::{Resident, folded, simulate, unfolded};
use std::time::Instant;

const ROUNDS: u32 = 50_000;
const KERNELS: u64 = 16;
/// Runs of which the fastest counts.
const RUNS: u32 = 9;

fn main() {
    println!(
        "{:<8} {:>5} {:>6} {:>6} {:>8} {:>7} {:>6} {:>6} {:>6} {:>8} {:>6} {:>6} {:>6} {:>6}",
        "GPU",
        "units",
        "fit",
        "chain",
        "balanced",
        "arrival",
        "all",
        "same",
        "most",
        "unfolded",
        "most",
        "CP",
        "CP",
        "error"
    );
    for (name, hardware, warps) in [("fermi", fermi(), 48), ("hopper", hopper(), 64)] {
        for units in [6, 8, 12] {
            let Ok(model) = Model::new(&hardware, units) else { continue };
            println!("{name:<8} {units:>5} {}", row(&model, &hardware, warps));
        }
    }
    for (name, hardware, warps) in [("fermi", fermi(), 48), ("hopper", hopper(), 64)] {
        let (all, sixteenth) = advice(&hardware, warps);
        println!("{name}: advice on 16 kernels {all:.2} ms, on the sixteenth {sixteenth:.2} ms");
    }
}

/// Milliseconds of the adviser for sixteen kernels at once, and for one more than fifteen.
fn advice(hardware: &Calibration, warps: u32) -> (f64, f64) {
    let candidates: Vec<Candidate> = (0..16)
        .map(|id| {
            let character = Some(character(u64::from(id), hardware, warps));
            Candidate { application: ApplicationId(id), character }
        })
        .collect();
    let fresh = || Kernelet::new(*hardware, KerneletSettings::default()).ok();
    let (all, _) = timed(|| fresh().map(|kernelet| kernelet.advise(&candidates)));
    let sixteenth = (0..RUNS).filter_map(|_| {
        let kernelet = fresh()?;
        kernelet.advise(&candidates[..15]);
        let begin = Instant::now();
        std::hint::black_box(kernelet.advise(&candidates));
        Some(begin.elapsed().as_secs_f64())
    });
    (all * 1e3, sixteenth.fold(f64::INFINITY, f64::min) * 1e3)
}

fn fermi() -> Calibration {
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

fn hopper() -> Calibration {
    Calibration {
        sms: 132,
        sm_clock_khz: 1_755_000,
        warp_instructions_per_cycle: 4.0,
        access_bytes: 32,
        noc_bytes_per_second: 1.5e13,
        llc_bytes_per_second: 5.5e12,
        dram_bytes_per_second: 3.35e12,
        dram_utilisation: 0.5,
    }
}

fn row(model: &Model, hardware: &Calibration, warps: u32) -> String {
    let characters: Vec<Character> =
        (0..KERNELS).map(|seed| character(seed, hardware, warps)).collect();
    let (fit, kernels) = timed(|| fitted(model, hardware, &characters));
    let pairs: Vec<[&Alone; 2]> = (0..kernels.len())
        .flat_map(|one| (0..one).map(move |other| (one, other)))
        .map(|(one, other)| [&kernels[one], &kernels[other]])
        .collect();
    let balanced =
        || pairs.iter().filter_map(|pair| model.chosen(*pair, Ratio::Balanced).ok()?).collect();
    let (all, shared): (f64, Vec<Shared>) = timed(balanced);
    let with = |pair: &[&Alone; 2], shared: &Shared| model.shared(*pair, shared.ctas).ok();
    let (chain, _) =
        timed(|| pairs.iter().zip(&shared).filter_map(|(p, s)| with(p, s)).collect::<Vec<_>>());
    let (arrival, _) = timed(|| {
        let newest = fitted(model, hardware, &characters[15..]);
        let others = kernels[..15].iter();
        others
            .filter_map(|other| model.chosen([&newest[0], other], Ratio::Balanced).ok()?)
            .collect::<Vec<_>>()
    });
    let profitable = |pair: &[&Alone; 2]| model.chosen(*pair, Ratio::Profitable).ok()?;
    let most_profitable: Vec<f64> =
        pairs.iter().filter_map(profitable).map(|shared| shared.profit() * 100.0).collect();
    let sm = model.sm();
    let (mut same, mut virtual_sm, mut profit) = (vec![], vec![], vec![]);
    for (seed, (pair, shared)) in (0..).zip(pairs.iter().zip(&shared)).step_by(5) {
        let simulated = |unit: &dyn Fn(&Alone) -> f64| {
            let on = |of: usize, ctas: u32| {
                let unit_warps = unit(pair[of]);
                Resident { workload: pair[of].workload, ctas, unit_warps }
            };
            let both = [on(0, shared.ctas[0]), on(1, shared.ctas[1])];
            let ipc = simulate(sm, &both, ROUNDS, seed);
            let alone = [0, 1]
                .map(|of| simulate(sm, &[on(of, pair[of].workload.ctas_alone)], ROUNDS, seed)[0]);
            Shared { ctas: shared.ctas, ipc: [ipc[0], ipc[1]], alone }
        };
        let error = |simulated: &Shared| {
            let sum = |shared: &Shared| shared.ipc[0] + shared.ipc[1];
            (sum(shared) - sum(simulated)).abs() / sm.issue_rate * 100.0
        };
        same.push(error(&simulated(&|of| folded(sm, &of.workload, model.units()))));
        let unfolded = simulated(&|_| unfolded(sm));
        virtual_sm.push(error(&unfolded));
        profit.push((shared.profit() - unfolded.profit()).abs() * 100.0);
    }
    let each = |seconds: f64, of: usize| seconds * 1e6 / of as f64;
    format!(
        "{:6.1} {:6.1} {:8.1} {:7.2} {:6.2} {:6.2} {:6.2} {:8.2} {:6.2} {:6.2} {:6.2} {:6.2}",
        each(fit, kernels.len()),
        each(chain, pairs.len()),
        each(all, pairs.len()),
        arrival * 1e3,
        all * 1e3,
        mean(&same),
        most(&same),
        mean(&virtual_sm),
        most(&virtual_sm),
        mean(&shared.iter().map(|shared| shared.profit() * 100.0).collect::<Vec<_>>()),
        mean(&most_profitable),
        mean(&profit),
    )
}

/// A random kernel: how it issues, what it moves, how it fits.
fn character(seed: u64, hardware: &Calibration, warps: u32) -> Character {
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut below = |bound: u64| u32::try_from(random.next_u64() % bound).unwrap_or(0);
    let of_cta = 4 << below(2);
    let warp_instructions = f64::from(1_000 + below(20_000));
    let ratio = [0.01, 0.03, 0.08, 0.15, 0.3][below(5) as usize];
    let accesses = warp_instructions * ratio;
    let sectors = accesses * [2.0, 4.0, 4.0, 8.0, 20.0][below(5) as usize];
    let llc = sectors * [1.0, 0.7, 0.3][below(3) as usize];
    let dram = llc * [1.0, 0.5, 0.1][below(3) as usize];
    let mut character = Character {
        warp_instructions,
        memory_instructions: accesses,
        sectors,
        llc_sectors: llc,
        dram_sectors: dram,
        warps: f64::from(of_cta),
        ctas_per_sm: f64::from(warps / of_cta),
        ctas_per_launch: 1e6,
        alone: None,
        kind: None,
    };
    // As fast as its bandwidth allows, or slower.
    let Ok(sm) = Sm::of(hardware) else { return character };
    let memory = (llc * sm.llc_cycles).max(dram * sm.dram_cycles) / warp_instructions;
    let most = sm.issue_rate.min(1.0 / memory);
    let ipc = most * f64::from(40 + below(60)) / 100.0;
    let cycles = warp_instructions / ipc / f64::from(hardware.sms);
    character.alone = Some(cycles / f64::from(hardware.sm_clock_khz) * 1e6);
    character
}

fn fitted(model: &Model, hardware: &Calibration, characters: &[Character]) -> Vec<Alone> {
    characters.iter().filter_map(|character| model.fitted(character, hardware).ok()).collect()
}

/// Seconds of a computation, the least of several runs: others share the machine. And its result.
fn timed<T>(mut compute: impl FnMut() -> T) -> (f64, T) {
    let mut run = || {
        let begin = Instant::now();
        let result = std::hint::black_box(compute());
        (begin.elapsed().as_secs_f64(), result)
    };
    let (first, result) = run();
    ((1..RUNS).map(|_| run().0).fold(first, f64::min), result)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}
