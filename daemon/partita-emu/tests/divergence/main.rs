//! Random control flow on the emulated GPU against an interpreter that knows single threads only.
//!
//! `PROPTEST_CASES` sets how many programs are tried, `PROPTEST_RNG_SEED` which.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]
#![expect(clippy::cast_possible_truncation, reason = "registers and lanes are small")]

mod build;
mod program;
mod reference;

use partita_emu::direct::{Argument, DirectError, Form, Run, prepare};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use program::{GLOBAL_WORDS, OUT_WORDS, Program};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestError, TestRunner};
use reference::Left;

/// The number of programs by default.
const CASES: u32 = 80;
const SEED: u64 = 1;
/// No program of a few hundred lines needs more.
const MOST_INSTRUCTIONS: u64 = 50_000_000;

/// One thread, odd ones, whole warps, several, and more dimensions than one.
const BLOCKS: [[u32; 3]; 10] = [
    [32, 1, 1],
    [1, 1, 1],
    [31, 1, 1],
    [33, 1, 1],
    [96, 1, 1],
    [4, 3, 5],
    [8, 2, 4],
    [7, 5, 3],
    [128, 2, 1],
    [20, 17, 1],
];
const GRIDS: [[u32; 3]; 3] = [[1, 1, 1], [3, 1, 1], [2, 1, 2]];

/// What the global accumulators hold at first; the last word is the lock.
const GLOBALS: [u32; GLOBAL_WORDS] = [5, 700, 3, 0x55, 0x100, 0xffff_00ff, 11, 12, 0];

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Runs a program in one way. `None` where it has no worker form.
fn differs(
    program: &Program,
    text: &str,
    wanted: &Left,
    form: Form,
    timing: Timing,
) -> Option<String> {
    let [x, y, z] = program.grid;
    let [bx, by, bz] = program.block;
    let job = Run {
        ptx: text.into(),
        kernel: "k".to_owned(),
        grid: Dim3::new(x, y, z),
        block: Dim3::new(bx, by, bz),
        dynamic_shared: 0,
        arguments: vec![
            Argument::Buffer(vec![0; 4 * wanted.out.len()]),
            Argument::Buffer(bytes(&GLOBALS)),
        ],
        form,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing, seed: 1, ..Options::default() },
    };
    let ran = match prepare(&job).and_then(|prepared| prepared.run_within(MOST_INSTRUCTIONS)) {
        Ok(ran) => ran,
        Err(DirectError::NoForm { .. }) => return None,
        Err(error) => return Some(error.to_string()),
    };
    let (out, found) = (words(&ran.buffers[0]), words(&ran.buffers[1]));
    if found != wanted.globals {
        return Some(format!("global accumulators {found:?}, wanted {:?}", wanted.globals));
    }
    let at = (0..out.len()).find(|&at| out[at] != wanted.out[at])?;
    let (thread, word) = (at / OUT_WORDS, at % OUT_WORDS);
    let count = program.threads() as usize;
    Some(format!(
        "CTA {} thread {}: word {word} is {:#x}, wanted {:#x}",
        thread / count,
        thread % count,
        out[at],
        wanted.out[at]
    ))
}

fn check(program: &Program) -> Result<(), TestCaseError> {
    let text = program.text();
    let [block, grid] = [program.block, program.grid];
    let wanted = reference::run(program, &GLOBALS).map_err(|error| {
        TestCaseError::fail(format!("block {block:?}, grid {grid:?}: {error}\n{text}"))
    })?;
    for (form, timing) in [
        (Form::Original, Timing::On),
        (Form::Original, Timing::Off),
        (Form::Worker { task: 1 }, Timing::Off),
        (Form::Worker { task: 2 }, Timing::On),
        (Form::Ticket, Timing::Off),
        (Form::Contained, Timing::Off),
    ] {
        if let Some(difference) = differs(program, &text, &wanted, form, timing) {
            return Err(TestCaseError::fail(format!(
                "{form:?}, timing {timing:?}, block {block:?}, grid {grid:?}: {difference}\n{text}"
            )));
        }
    }
    Ok(())
}

#[test]
fn threads_do_what_each_would_do_alone() {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(SEED);
    }
    config.max_shrink_iters = 1000;
    let seed = config.rng_seed;
    let mut runner = TestRunner::new(config);
    let choices = prop::collection::vec(any::<u32>(), 0..400);
    let shapes = (0..BLOCKS.len(), 0..GRIDS.len());
    let result = runner.run(&(shapes, choices), |((block, grid), choices)| {
        check(&build::build(BLOCKS[block], GRIDS[grid], &choices))
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("{seed:?}: {reason}\nchoices {value:?}"),
        Err(error) => panic!("{seed:?}: {error}"),
    }
}
