//! The counters behind Slate's levels, of programs that Slate's bench does not judge, and the
//! thresholds that follow from them.
//!
//!     cargo run --release -p partita-bench --example levels -- docs/results/cd-search/mixes.csv
//!
//! The programs are the fourteen of CD-search's bench. Each runs alone until its kernels are
//! counted and timed. The table of mixes says what each pair does on even shares (`even`, STP).
//! Thresholds are judged by what Slate's table would then make of all pairs: a pair that runs
//! together has that STP, a pair in turns has 1, and a pair that is tried has the greater of both.

use partita_bench::{Application, Arrangement, Cell, Cells, Profiles, measured, workloads};
use partita_emu::Spec;
use partita_model::profile::LaunchShape;
use partita_model::{ApplicationId, Calibration};
use partita_policy::{Adviser, Candidate, Character, Launched, SlateTable, SlateThresholds, uses};
use std::collections::BTreeMap;
use std::error::Error;

/// The GPU of the table of mixes.
const SPEC: &str = "cd-search-24";
const SEED: u64 = 1;
/// Beyond the longest run that counts.
const CYCLES: u64 = 20_000_000;
/// Thresholds that are tried: multiples of this part.
const STEP: f64 = 0.05;
const STEPS: u32 = 22;
/// STP by which two choices of thresholds count as alike.
const ALIKE: f64 = 0.0005;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("name the table of mixes, a file")?;
    let mixes = mixes(&std::fs::read_to_string(path)?);
    let spec = Spec::named(SPEC)?;
    let hardware = measured(&spec);
    let mut cells = Cells::new(None, SEED)?;
    let mut known = BTreeMap::new();
    println!("PROGRAM     ISSUE SLOTS  LLC OR DRAM");
    for workload in workloads(SEED) {
        let application = &workload.application;
        let cell = Cell {
            applications: vec![application],
            spec: &spec,
            arrangement: Arrangement::Count,
            cycles: CYCLES,
            launches: Vec::new(),
            arrivals: Vec::new(),
        };
        let profiles = cells.get(&cell)?.profiles;
        let Some(character) = character(application, &profiles) else {
            println!("{:11} not counted", application.name);
            continue;
        };
        if let Some((compute, memory)) = uses(&hardware, &character) {
            println!("{:11} {:11.3}  {memory:11.3}", application.name, compute);
            known.insert(application.name.clone(), character);
        }
    }
    let pairs: Vec<(Character, Character, f64)> = mixes
        .iter()
        .filter_map(|([a, b], stp)| Some((*known.get(a)?, *known.get(b)?, *stp)))
        .collect();
    println!("\n{} of {} pairs are known", pairs.len(), mixes.len());
    let all = pairs.iter().map(|(.., stp)| stp).sum::<f64>() / pairs.len() as f64;
    println!("all together: STP {all:.4}");
    judge(&hardware, &pairs);
    Ok(())
}

/// Pairs of names with their throughput on even shares.
fn mixes(text: &str) -> Vec<([String; 2], f64)> {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap_or_default();
    let Some(even) = header.iter().position(|name| *name == "even") else { return Vec::new() };
    let row = |cells: Vec<&str>| {
        let [first, second] = cells.first()?.split('+').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(([first.to_owned(), second.to_owned()], cells.get(even)?.parse().ok()?))
    };
    lines.filter_map(row).collect()
}

/// An application's character by the profiles of its kernels, weighted by the CTAs of a pass.
/// Kernels are told apart by the shapes of their launches.
fn character(application: &Application, profiles: &Profiles) -> Option<Character> {
    let mut weights: BTreeMap<LaunchShape, (f64, Launched)> = BTreeMap::new();
    for step in &application.pass {
        let ctas = u64::try_from(step.grid.count()).ok()?;
        let threads = u32::try_from(step.block.count()).ok()?;
        let launched = Launched { warps: threads.div_ceil(32), ctas_per_sm: 1, ctas };
        let shape = LaunchShape::new(ctas, step.block, step.dynamic_shared);
        weights.entry(shape).or_insert((0.0, launched)).0 += ctas as f64;
    }
    let kernels = profiles.values().flatten().filter_map(|(shape, profile)| {
        let (weight, launched) = weights.get(shape)?;
        let character = Character::of(profile, *launched)?;
        character.alone.map(|_| (character, *weight))
    });
    Character::mean(&kernels.collect::<Vec<_>>())
}

/// Prints the best thresholds, and today's.
fn judge(hardware: &Calibration, pairs: &[(Character, Character, f64)]) {
    let value = |thresholds: SlateThresholds| {
        let table = SlateTable::with_thresholds(*hardware, thresholds);
        let of = |(a, b, stp): &(Character, Character, f64)| {
            let candidate = |id, character: &Character| Candidate {
                application: ApplicationId(id),
                character: Some(*character),
            };
            let pair = [candidate(1, a), candidate(2, b)];
            match (table.is_disputed(&pair), table.advise(&pair).len()) {
                (true, _) => stp.max(1.0),
                (false, 1) => *stp,
                _ => 1.0,
            }
        };
        pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
    };
    println!("thresholds in force: STP {:.4}", value(SlateThresholds::default()));
    let levels = || (1..=STEPS).map(|step| f64::from(step) * STEP);
    let cuts: Vec<[f64; 2]> = levels()
        .flat_map(|medium| {
            levels().filter(move |high| *high > medium).map(move |high| [medium, high])
        })
        .collect();
    let tried: Vec<(SlateThresholds, f64)> = cuts
        .iter()
        .flat_map(|&compute| cuts.iter().map(move |&memory| SlateThresholds { compute, memory }))
        .map(|thresholds| (thresholds, value(thresholds)))
        .collect();
    let best = tried.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    println!("best thresholds: STP {best:.4}; alike are");
    let alike: Vec<SlateThresholds> = tried
        .iter()
        .filter(|(_, value)| *value >= best - ALIKE)
        .map(|(thresholds, _)| *thresholds)
        .collect();
    type Cut = fn(&SlateThresholds) -> f64;
    let cuts: [(&str, Cut); 4] = [
        ("compute, medium", |thresholds| thresholds.compute[0]),
        ("compute, high", |thresholds| thresholds.compute[1]),
        ("memory, medium", |thresholds| thresholds.memory[0]),
        ("memory, high", |thresholds| thresholds.memory[1]),
    ];
    for (name, cut) in cuts {
        let least = alike.iter().map(cut).fold(f64::INFINITY, f64::min);
        let most = alike.iter().map(cut).fold(0.0, f64::max);
        println!("  {name}: {least:.2} to {most:.2}");
    }
}
