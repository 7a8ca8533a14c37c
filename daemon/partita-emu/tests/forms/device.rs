//! Partita's own kernels on the emulated GPU.

use crate::world::{World, mix, rewritten};
use partita_device::Outcome;
use partita_emu::Timing;
use partita_emu::direct::{control_block, open_gates};
use partita_model::{Dim3, OperationId, SmId, control};

const IDLE: &str = include_str!("../../../../kernels-ptx/device/idle.ptx");
const DISPATCH: &str = include_str!("../../../../kernels-ptx/device/dispatch.ptx");
const CALIBRATE: &str = include_str!("../../../../kernels-ptx/device/calibrate.ptx");
/// Of the emulated GPU.
const SMS: u32 = 24;
/// Two CTAs of so many threads fill one.
const HALF_SM: u32 = 768;

/// All of them in one module.
fn world(timing: Timing, seed: u64) -> World {
    let body = |text: &'static str| text.split_once(".address_size 64").unwrap().1;
    World::new(
        &rewritten(&format!("{IDLE}{}{}", body(DISPATCH), body(CALIBRATE)), &[]),
        timing,
        seed,
    )
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn is_done(world: &World, operation: OperationId) -> bool {
    world
        .done
        .iter()
        .any(|(done, outcome)| *done == operation && !matches!(outcome, Outcome::Fault(_)))
}

/// Runs on until something holds.
fn until(world: &mut World, what: &str, mut holds: impl FnMut(&mut World) -> bool) {
    for _ in 0..2000 {
        if holds(world) {
            return;
        }
        world.advance(1000);
    }
    panic!("never: {what}");
}

#[test]
fn an_unmodified_kernel_keeps_off_the_sms_where_others_sleep() {
    for (seed, named) in [0x0000_0fff_u32, 0x00aa_aaaa, 0x0000_0001].into_iter().enumerate() {
        let mut world = world(Timing::On, seed as u64);
        let block = world.buffer(&[0; 64]);
        world.poke(block + 8, named);
        let idle = world.launch(0, "partita_idle", Dim3::linear(2 * SMS), HALF_SM, &[block]);
        until(&mut world, "all named SMs are taken", |world| {
            world.words(block + 4, 1)[0] == 2 * named.count_ones()
        });

        let places = world.buffer(&[0xff; 16 * 300]);
        let probe = world.launch(1, "partita_probe", Dim3::linear(300), 64, &[places, 700]);
        until(&mut world, "the other kernel ends", |world| is_done(world, probe));
        let used: Vec<u32> = world.words(places, 4 * 300).chunks(4).map(|place| place[0]).collect();
        assert!(used.iter().all(|&sm| sm < SMS && named >> sm & 1 == 0), "{named:#x}: {used:?}");

        // One SM is let go, then all.
        let fewer = named & (named - 1);
        world.poke(block + 8, fewer);
        until(&mut world, "one awakes", |world| {
            world.words(block + 4, 1)[0] == 2 * fewer.count_ones()
        });
        assert!(fewer == 0 || !is_done(&world, idle));
        world.poke(block, 1);
        world.settle();
        assert!(is_done(&world, idle));
        assert_eq!(world.words(block + 40, 1), [2 * named.count_ones()], "each slept once");
    }
}

#[test]
fn the_device_makes_the_control_block_that_the_host_would() {
    for (grid, task, main, by_place) in [
        (Dim3::linear(1), 1, 1, false),
        (Dim3 { x: 70_000, y: 60_000, z: 50 }, 7, 99, true),
        (Dim3 { x: 3, y: 5, z: 7 }, 10, 48, true),
        (Dim3::linear(100), 10, 64, false),
    ] {
        let mut world = world(Timing::Off, 1);
        let wanted = control_block((grid, Dim3::linear(1)), task, main, SMS as u16, by_place);
        let is_gate = |at: usize| {
            let at = at as u64;
            let gates = |sm| control::gate_at(SmId(sm))..control::gate_at(SmId(sm)) + 4;
            (0..SMS as u16).any(|sm| gates(sm).contains(&at))
        };
        let is_signal = |at: usize| (control::RETIRED..control::COMPLETED).contains(&(at as u64));
        // Whatever was there before; the host's part is as it must be.
        let contents: Vec<u8> = (wanted.iter().enumerate())
            .map(|(at, &byte)| if is_gate(at) || is_signal(at) { byte } else { 0xa5 })
            .collect();
        let block = world.buffer(&contents);
        let count = open_gates(grid, task, main, SMS as u16, by_place).by_place();
        assert_eq!(count > 0, by_place);
        let params = [block, pair(grid.x, grid.y), pair(grid.z, count), pair(main, SMS)];
        world.launch(0, "partita_dispatch", Dim3::linear(1), 32, &params);
        world.settle();
        world.check_outcomes();
        let made = world.bytes(block, wanted.len());
        let unused = |at: usize| {
            let slots = 512..512 + 16 * SMS as usize;
            let fields = [0..8, 16..28, 128..168, 256..384, 384..392, slots];
            !fields.iter().any(|field| field.contains(&at))
        };
        for (at, (made, wanted)) in made.iter().zip(&wanted).enumerate() {
            assert!(made == wanted || unused(at), "byte {at} is {made:#x}, not {wanted:#x}");
        }
    }
}

#[test]
fn the_stream_waits_while_a_launch_is_held() {
    for abort in [false, true] {
        let mut world = world(Timing::On, 1);
        let block = world.control(Dim3::linear(500), 1, 0);
        let places = world.buffer(&[0; 16]);
        let hold = world.launch(0, "partita_hold", Dim3::linear(1), 32, &[block]);
        let next = world.launch(0, "partita_probe", Dim3::linear(1), 32, &[places, 0]);
        world.poke(block + control::COMPLETED, 499);
        for _ in 0..20 {
            world.advance(5000);
        }
        assert!(!is_done(&world, hold) && !is_done(&world, next));
        if abort {
            world.poke(block + control::ABORT, 1);
        } else {
            world.poke(block + control::COMPLETED, 500);
        }
        world.settle();
        assert!(is_done(&world, hold) && is_done(&world, next));
    }
}

/// What the reading kernels make of a piece.
fn folded(piece: &[u32]) -> u32 {
    piece.iter().fold(0, |sum, word| sum ^ word)
}

fn noise(words: usize) -> (Vec<u8>, Vec<u32>) {
    let mut state = 7;
    let words: Vec<u32> = (0..words).map(|_| mix(&mut state) as u32).collect();
    (words.iter().flat_map(|word| word.to_le_bytes()).collect(), words)
}

#[test]
fn reads_that_the_llc_holds_do_not_go_to_dram() {
    let (ctas, threads, rounds, set) = (48, 256, 24, 256 << 10);
    let mut world = world(Timing::On, 1);
    let (bytes, words) = noise(set as usize / 4);
    let (from, sink) = (world.buffer(&bytes), world.buffer(&[0; 4]));
    let params = [from, sink, pair(set - 1, rounds)];
    let read = world.launch(0, "partita_read_llc", Dim3::linear(ctas), threads, &params);
    world.settle();
    world.check_outcomes();
    let mut sum = 0_u32;
    for thread in 0..ctas * threads {
        for round in 0..rounds {
            let at = (thread * 16 + round * threads * 16) & (set - 1);
            sum = sum.wrapping_add(folded(&words[at as usize / 4..][..4]));
        }
    }
    assert_eq!(world.words(sink, 1), [sum]);
    let counters = world.gpu.take_counters(read).unwrap();
    let sectors = u64::from(ctas * threads * rounds / 2);
    assert_eq!(
        (counters.llc_accesses, counters.l1_hits),
        (sectors + u64::from(ctas * threads / 32), 0)
    );
    assert!(counters.llc_hits * 10 >= counters.llc_accesses * 9, "{counters:?}");
}

#[test]
fn a_stream_comes_from_dram() {
    let pieces = 300_001;
    let mut world = world(Timing::On, 1);
    let (bytes, words) = noise(pieces * 4);
    let (from, sink) = (world.buffer(&bytes), world.buffer(&[0; 4]));
    let stream =
        world.launch(0, "partita_stream", Dim3::linear(96), 256, &[from, sink, pieces as u64]);
    world.settle();
    world.check_outcomes();
    let sum = words.chunks(4).fold(0_u32, |sum, piece| sum.wrapping_add(folded(piece)));
    assert_eq!(world.words(sink, 1), [sum]);
    let counters = world.gpu.take_counters(stream).unwrap();
    assert!(counters.dram_bytes >= pieces as u64 * 15, "{counters:?}");
}

#[test]
fn arithmetic_fills_the_schedulers() {
    let (ctas, threads, rounds) = (96, 384, 6);
    let mut world = world(Timing::On, 1);
    let sink = world.buffer(&[0; 4]);
    let params = [sink, u64::from(rounds)];
    let work = world.launch(0, "partita_arithmetic", Dim3::linear(ctas), threads, &params);
    world.settle();
    world.check_outcomes();
    assert_eq!(world.words(sink, 1), [64 * rounds * ctas * threads]);
    let counters = world.gpu.take_counters(work).unwrap();
    // Two schedulers issue two warp instructions a cycle at the best.
    let rate = counters.warp_instructions as f64 / counters.sm_cycles as f64;
    assert!((1.0..=2.0).contains(&rate), "{rate} warp instructions a cycle of an SM, {counters:?}");
}

#[test]
fn the_probe_finds_every_sm() {
    let mut world = world(Timing::On, 3);
    let places = world.buffer(&[0xff; 16 * 24]);
    world.launch(0, "partita_probe", Dim3::linear(SMS), 256, &[places, 100_000]);
    world.settle();
    world.check_outcomes();
    let words = world.words(places, 4 * SMS as usize);
    let mut sms: Vec<u32> = words.chunks(4).map(|place| place[0]).collect();
    sms.sort_unstable();
    assert_eq!(sms, (0..SMS).collect::<Vec<_>>(), "breadth first: one CTA each");
    assert!(words.chunks(4).all(|place| place[1] == 0));
}
