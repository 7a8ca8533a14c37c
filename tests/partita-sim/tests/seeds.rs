//! Seeds hold, and a seed means one play. `partita-sim --seeds 0-999` plays more of them.

use partita_sim::run;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const SEEDS: u64 = 300;

#[test]
fn every_play_holds() {
    let (next, slices) = (AtomicU64::new(0), AtomicU64::new(0));
    let workers = thread::available_parallelism().map_or(2, usize::from);
    let play = || {
        let mut failures = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return failures;
            }
            match run(seed, false).0 {
                Ok(outcome) => drop(slices.fetch_add(outcome.slices, Ordering::Relaxed)),
                Err(failure) => failures.push(failure.to_string()),
            }
        }
    };
    let failures: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(play)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a play panicked")).collect()
    });
    assert!(
        failures.is_empty(),
        "{} of {SEEDS} failed, the first:\n{}",
        failures.len(),
        failures[0]
    );
    let slices = slices.into_inner();
    assert!(slices > SEEDS / 10, "only {slices} slices ran");
}

#[test]
fn a_seed_means_one_play() {
    for seed in [3, 14, 15, 92, 65] {
        let [first, second] =
            [run(seed, false), run(seed, true)].map(|(result, _)| result.unwrap());
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert!(first.clients > 0 && first.nanos > 0);
    }
    assert_ne!(run(3, false).0.unwrap().digest, run(14, false).0.unwrap().digest);
}
