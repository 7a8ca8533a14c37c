//! What a counted launch says of its traffic is what the GPU's own counters say of the kernel as it
//! was written.
//!
//! As the engine does it: workers count the first CTAs of a launch, two rounds over the SMs; the
//! replay knows nothing but that count block and the caches' sizes. The truth is the original's
//! second launch.

use crate::world::{World, rewritten};
use partita_device::Device;
use partita_emu::Timing;
use partita_model::profile::{self, Counts, LlcUse};
use partita_model::{Dim3, GridCounters, control};
use partita_policy::{Recorded, Replay};
use partita_ptx::Pass;

const TRAFFIC: &str = include_str!("../ptx/traffic.ptx");
const BLOCK: u32 = 256;
/// Two rounds of six CTAs of 256 threads over 24 SMs.
const WORKERS: u32 = 6 * 24;
const COUNTED: u64 = 2 * WORKERS as u64;
const RECORDS: u64 = 1 << 19;
/// Hit rates may be beyond their bounds by so much: of misses in flight on one sector all but the
/// first hit in the LLC.
const LOOSE: f64 = 0.12;

struct Case {
    kernel: &'static str,
    ctas: u32,
    /// Further parameter.
    mask: Option<u64>,
    /// Bytes that it reads.
    from: usize,
}

fn params(world: &mut World, case: &Case) -> Vec<u64> {
    let from: Vec<u8> = (0..case.from / 4).flat_map(|at| (at as u32 % 97).to_le_bytes()).collect();
    let from = world.buffer(&from);
    let to = world.buffer(&vec![0; (case.ctas * BLOCK * 4) as usize]);
    [from, to].into_iter().chain(case.mask).collect()
}

fn truth(case: &Case) -> GridCounters {
    let mut world = World::new(&rewritten(TRAFFIC, &[]), Timing::On, 1);
    let params = params(&mut world, case);
    let grid = Dim3::linear(case.ctas);
    world.launch(0, case.kernel, grid, BLOCK, &params);
    let operation = world.launch(0, case.kernel, grid, BLOCK, &params);
    world.settle();
    world.check_outcomes();
    world.gpu.take_counters(operation).unwrap()
}

fn estimate(case: &Case) -> (Counts, LlcUse) {
    let mut world = World::new(&rewritten(TRAFFIC, &[Pass::Count, Pass::Worker]), Timing::On, 1);
    let plain = params(&mut world, case);
    let block = world.buffer(&vec![0; (profile::RECORDS + 8 * RECORDS) as usize]);
    let mut replay = Replay::new(world.gpu.l1(), world.gpu.spec().llc_bytes);
    let mut found = None;
    for _ in 0..2 {
        let zeros = vec![0; profile::RECORDS as usize];
        world.gpu.poke(partita_model::DeviceAddress(block), &zeros).unwrap();
        world.poke(block + profile::CAPACITY, RECORDS as u32);
        let ctas = COUNTED.min(u64::from(case.ctas));
        let grid = Dim3::linear(case.ctas);
        let control = world.control(grid, 1, WORKERS.min(case.ctas));
        world.poke(control + control::TOTAL, ctas as u32);
        // A parameter of four bytes takes eight: the next one is aligned.
        let mut counted = plain.clone();
        counted.extend([block, control]);
        world.launch(0, case.kernel, Dim3::linear(WORKERS.min(case.ctas)), BLOCK, &counted);
        world.settle();
        world.check_outcomes();
        let [warps, threads, loads, stores, atomics, sectors, past_sectors, recorded] = [
            profile::WARP_INSTRUCTIONS,
            profile::THREAD_INSTRUCTIONS,
            profile::GLOBAL_LOADS,
            profile::GLOBAL_STORES,
            profile::ATOMICS,
            profile::GLOBAL_SECTORS,
            profile::PAST_SECTORS,
            profile::RECORDED,
        ]
        .map(|offset| world.long(block + offset));
        let records = world.bytes(block + profile::RECORDS, 8 * recorded.min(RECORDS) as usize);
        let records: Vec<u64> =
            records.as_chunks::<8>().0.iter().map(|r| u64::from_le_bytes(*r)).collect();
        let counts = Counts {
            ctas,
            warp_instructions: warps,
            thread_instructions: threads,
            global_loads: loads,
            global_stores: stores,
            atomics,
            sectors,
            past_sectors,
        };
        let recorded = Recorded { counts, records: &records, launch_ctas: u64::from(case.ctas) };
        found = Some((counts, replay.launch(&recorded)));
    }
    found.unwrap()
}

#[test]
fn the_truth_lies_within_the_bounds() {
    let word = |words: usize| words * 4;
    let cases = [
        Case { kernel: "stream", ctas: 4096, mask: None, from: word(4096 * 256) },
        Case { kernel: "stream", ctas: 256, mask: None, from: word(256 * 256) },
        Case { kernel: "reuse", ctas: 4096, mask: None, from: word(4096 * 256) },
        Case { kernel: "gather", ctas: 1024, mask: Some((1 << 16) - 1), from: word(1 << 16) },
        Case { kernel: "gather", ctas: 1024, mask: Some((1 << 21) - 1), from: word(1 << 21) },
        Case { kernel: "gather", ctas: 1024, mask: Some((1 << 11) - 1), from: word(1 << 11) },
        Case { kernel: "stencil", ctas: 2048, mask: None, from: word((2048 + 4) * 256) },
        Case { kernel: "table", ctas: 512, mask: None, from: word(1 << 14) },
    ];
    let mut wrong = Vec::new();
    for case in &cases {
        let truth = truth(case);
        let (counts, found) = estimate(case);
        let per_cta = |value: u64, ctas: u64| value as f64 / ctas as f64;
        let (counted, true_instructions) = (
            per_cta(counts.warp_instructions, counts.ctas),
            per_cta(truth.warp_instructions, u64::from(case.ctas)),
        );
        // The emulated GPU does not count the way out of a kernel without branches.
        assert!((0.0..=8.0).contains(&(counted - true_instructions)), "{}: {counted}", case.kernel);
        let instructions = counted * f64::from(case.ctas);
        let true_apki = truth.llc_accesses as f64 * 1000.0 / instructions;
        let [least, likely, most] = [found.least, found.accesses, found.most]
            .map(|n| n as f64 * 1000.0 / counts.warp_instructions as f64);
        // What DRAM moved, a sector for each miss, sooner or later.
        let true_rate =
            (1.0 - truth.dram_bytes as f64 / (32.0 * truth.llc_accesses as f64)).max(0.0);
        let rate = |hits: u64| hits as f64 / found.accesses.max(1) as f64;
        let [low, rate, high] = [found.hits_least, found.hits, found.hits_most].map(rate);
        let line = format!(
            "{:8} {:5} CTAs: APKI {true_apki:6.1} in {least:6.1} {likely:6.1} {most:6.1}; hit \
             rate {true_rate:.3} in {low:.3} \
             {rate:.3} {high:.3}",
            case.kernel, case.ctas
        );
        println!("{line}");
        let within = |low: f64, value: f64, high: f64| low <= value * 1.01 && value <= high * 1.01;
        let near = (likely / true_apki - 1.0).abs() < 0.12 && (rate - true_rate).abs() < LOOSE;
        if !within(least, true_apki, most) || !within(low - LOOSE, true_rate, high + LOOSE) || !near
        {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
