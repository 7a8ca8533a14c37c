//! Every committed input of every fuzz target holds.
//!
//! Most are where the fuzzer begins. `found-…` was found by it and broke something.

use partita_fuzz::TARGETS;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The largest input in bytes: an input is to be read by people.
const MOST_BYTES: usize = 4096;

fn seeds(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("an entry of the folder").path()).collect();
    files.sort();
    files
}

#[test]
fn every_seed_holds() {
    for (target, check) in TARGETS {
        let files = seeds(target);
        assert!(!files.is_empty(), "{target} has no seed");
        for file in files {
            let input = std::fs::read(&file).expect("a committed file");
            assert!(input.len() <= MOST_BYTES, "{} is large", file.display());
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
                eprintln!("{target}: {}", file.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
}
