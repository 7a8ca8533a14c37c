//! Independent thread scheduling, as GPUs have it since Volta: every thread runs in the end,
//! whatever the threads of its own warp wait for.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_emu::direct::{Argument, Form, Run, prepare};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;

const LIVENESS: &str = include_str!("ptx/liveness.ptx");
/// Far more than any of the kernels needs.
const LIMIT: u64 = 5_000_000;

/// What a kernel leaves in `words` words that are zero at first, in every timing mode. Returns the
/// most warp instructions of any run.
fn check(kernel: &str, ctas: u32, threads: u32, words: usize, wanted: impl Fn(&[u32])) -> u64 {
    let mut most = 0;
    for timing in [Timing::On, Timing::Off] {
        for seed in [1, 2] {
            let job = Run {
                ptx: LIVENESS.into(),
                kernel: kernel.to_owned(),
                grid: Dim3::linear(ctas),
                block: Dim3::linear(threads),
                dynamic_shared: 0,
                arguments: vec![Argument::Buffer(vec![0; 4 * words])],
                form: Form::Original,
                spec: Spec::named("cd-search-24").unwrap(),
                options: Options { timing, seed, ..Options::default() },
            };
            let ran = prepare(&job).unwrap().run_within(LIMIT);
            let ran = ran
                .unwrap_or_else(|error| panic!("{kernel}, {threads} threads, {timing:?}: {error}"));
            let found: Vec<u32> = ran.buffers[0]
                .as_chunks::<4>()
                .0
                .iter()
                .map(|word| u32::from_le_bytes(*word))
                .collect();
            println!(
                "{kernel}, {threads} threads, {timing:?}: {} warp instructions",
                ran.counters.warp_instructions
            );
            wanted(&found);
            most = most.max(ran.counters.warp_instructions);
        }
    }
    most
}

#[test]
fn a_lock_with_backoff() {
    for (ctas, threads) in [(1, 2), (1, 32), (3, 64), (1, 256)] {
        check("lock_backoff", ctas, threads, 2, |words| assert_eq!(words, [0, ctas * threads]));
    }
}

#[test]
fn a_lock_whose_waiters_part_and_meet() {
    for (ctas, threads) in [(1, 32), (2, 96)] {
        check("lock_parting", ctas, threads, 2, |words| assert_eq!(words, [0, ctas * threads]));
    }
}

#[test]
fn lanes_wait_for_the_lane_before_them() {
    check("relay", 1, 96, 96, |words| assert_eq!(words, (1..=96).collect::<Vec<_>>()));
}

#[test]
fn lanes_wait_for_the_lane_behind_them_in_shared_memory() {
    check("relay_shared", 1, 64, 64, |words| assert_eq!(words, (1..=64).rev().collect::<Vec<_>>()));
}

#[test]
fn critical_sections_nest() {
    for (ctas, threads) in [(1, 32), (2, 64)] {
        let all = ctas * threads;
        check("nested", ctas, threads, 4, |words| assert_eq!(words, [0, all, 0, all]));
    }
}

#[test]
fn one_lane_serves_the_others() {
    check("served", 1, 32, 64, |words| {
        let wanted: Vec<u32> = (0..32).map(|lane| lane * lane + 1).collect();
        assert_eq!(words[32..], wanted);
    });
}

#[test]
fn lanes_meet_in_different_places_while_others_spin() {
    check("meet_apart", 1, 32, 3, |words| assert_eq!(words, [8, 7, 30 * 8]));
}

#[test]
fn warps_pass_barriers_of_their_own() {
    for threads in [64, 128, 256, 512] {
        check("barriers_by_warp", 1, threads, threads as usize, |words| {
            let wanted: Vec<u32> = (0..threads)
                .map(|thread| thread / 64 + 1)
                .map(|turns| turns * (turns + 1) / 2)
                .collect();
            assert_eq!(words, wanted);
        });
    }
}

/// Lanes that work for long hold nobody up for ever, but their warp stays together behind them, as
/// on a GPU: the immediate post-dominator is where all meet.
#[test]
fn a_warp_stays_together_behind_a_long_loop_of_each_lane() {
    let most = check("taking_turns", 1, 64, 65, |words| {
        assert_eq!((words[0], &words[1..]), (64 * 2_000, &[2_000; 64][..]));
    });
    // 2 warps × 32 rounds × (2,000 × 7 instructions of one lane, 1,000 × 3 of all).
    let together = 2 * 32 * (2_000 * 7 + 1_000 * 3);
    assert!(most < together + together / 20, "{most} warp instructions, together {together}");
}
