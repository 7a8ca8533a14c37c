//! Fuzz targets, each with every case of the corpus as a seed: the parser; print∘parse;
//! rewrite∘verify.
//!
//! Plain mutation loops with a seeded generator, which need no fuzzer: the same seed gives the same
//! inputs. Each target runs some thousand inputs, and more until `PARTITA_FUZZ_SECONDS` have
//! passed, where that is set. A failure prints the input. `tests/fuzz.sh` looks by coverage.

#![expect(clippy::unwrap_used, reason = "a corpus that cannot be read fails the test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use partita_ptx::{Pass, Version, WorkerOptions, lower, parse, passes, print, verify};

/// Inputs of each target, at least.
const INPUTS: u64 = 1500;

/// A seeded source of numbers (Steele, Lea and Flood 2014, SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % (end.max(1) as u64)).unwrap()
    }
}

fn seeds() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut todo = vec![root.join("../corpus"), root.join("../device")];
    let mut files = Vec::new();
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "ptx") {
                files.push(path);
            }
        }
    }
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Words, numbers, and everything else by the character.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut word = false;
    for (at, character) in text.char_indices() {
        let part = character.is_alphanumeric() || matches!(character, '_' | '$' | '%' | '.');
        if !(part && word) && at > start {
            tokens.push(&text[start..at]);
            start = at;
        }
        word = part;
    }
    tokens.push(&text[start..]);
    tokens
}

/// A seed with a few pieces taken out, doubled, moved, replaced by others of its own or of another
/// seed.
fn mutated(seeds: &[String], random: &mut Random) -> String {
    let mut text: Vec<&str> = tokens(&seeds[random.below(seeds.len())]);
    let other: Vec<&str> = tokens(&seeds[random.below(seeds.len())]);
    for _ in 0..=random.below(4) {
        let (at, from) = (random.below(text.len()), random.below(other.len()));
        let count = 1 + random.below(12);
        let end = (at + count).min(text.len());
        match random.below(6) {
            0 => drop(text.drain(at..end)),
            1 => {
                let again = text[at..end].to_vec();
                text.splice(at..at, again);
            }
            2 => drop(
                text.splice(at..end, other[from..(from + count).min(other.len())].iter().copied()),
            ),
            3 => {
                let to = random.below(text.len());
                text.swap(at, to);
            }
            // A whole statement of the other seed.
            4 => {
                let rest = &other[from..];
                let start = rest.iter().position(|token| *token == ";").map_or(0, |at| at + 1);
                let length =
                    rest[start..].iter().position(|token| *token == ";").map_or(0, |at| at + 1);
                text.splice(at..at, rest[start..start + length].iter().copied());
            }
            _ => {
                text[at] = ["0", "4294967295", "-1", "%p1", "%r1", "_", "{", ";", "sm_50", "\u{0}"]
                    [random.below(10)]
            }
        }
        if text.is_empty() {
            text.push("");
        }
    }
    text.concat()
}

/// Runs a target on mutated seeds.
fn fuzz(seed: u64, target: impl Fn(&str)) {
    let seconds = std::env::var("PARTITA_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let (seeds, mut random) = (seeds(), Random(seed));
    seeds.iter().for_each(|seed| target(seed));
    let mut inputs = 0;
    while inputs < INPUTS || Instant::now() < end {
        let text = mutated(&seeds, &mut random);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(&text))) {
            eprintln!("input {inputs} of seed {seed}:\n{text}");
            std::panic::resume_unwind(panic);
        }
        inputs += 1;
    }
}

#[test]
fn parser() {
    fuzz(1, |text| {
        if let Err(errors) = parse(text) {
            assert!(!errors.list().is_empty());
            let lines = text.lines().count() + 1;
            assert!(
                errors.list().iter().all(|error| (error.pos.line as usize) <= lines),
                "{errors}"
            );
        }
    });
}

#[test]
fn print_of_parse() {
    fuzz(2, |text| {
        let Ok(module) = parse(text) else { return };
        let once = print(&module);
        let again = parse(&once)
            .unwrap_or_else(|errors| panic!("what is printed does not parse: {errors}"));
        assert_eq!(print(&again), once, "printing is stable");
        assert_eq!(
            verify(&module).is_ok(),
            verify(&again).is_ok(),
            "printing keeps what the verifier says"
        );
    });
}

#[test]
fn rewrite_of_verify() {
    fuzz(3, |text| {
        let Ok(module) = parse(text) else { return };
        if verify(&module).is_err() {
            return;
        }
        let options =
            WorkerOptions { keep_originals: text.len() % 2 == 0, ..WorkerOptions::default() };
        let mut random = Random(text.len() as u64);
        let some: Vec<Pass> = Pass::ALL.into_iter().filter(|_| random.below(2) == 0).collect();
        for wanted in
            [some.as_slice(), &Pass::ALL, &[Pass::Fence, Pass::Count, Pass::Slice, Pass::Cancel]]
        {
            let rewritten = passes::apply(&module, wanted, &options).module;
            let printed = print(&rewritten);
            parse(&printed).and_then(|again| verify(&again)).unwrap_or_else(|errors| {
                panic!("{wanted:?} broke the module: {errors}\n{printed}")
            });
            // Whatever it is lowered to, it says the same.
            let oldest = Version { major: 7, minor: 0 };
            if let Ok(lowered) = lower(&rewritten, oldest)
                && lowered.version != rewritten.version
            {
                let (_, body) = printed.split_once('\n').unwrap_or_default();
                assert_eq!(print(&lowered).split_once('\n').unwrap_or_default().1, body);
            }
        }
    });
}
