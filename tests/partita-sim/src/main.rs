//! Plays seeds, and reports every invariant that does not hold.

use clap::Parser;
use partita_sim::{Failure, run};
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::process::ExitCode;

/// Plays seeds of the deterministic simulation: the engine and the emulated GPU among faulty
/// clients.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    partita-sim --seeds 0-999          play a thousand seeds\n  \
    partita-sim --seeds 17 --log       repeat one, with all that happened in it\n\n\
    The exit code is 1 where something did not hold.")]
struct Arguments {
    /// A seed, or the first and the last of several
    #[arg(long, value_name = "N[-M]", value_parser = seeds, default_value = "0-99")]
    seeds: RangeInclusive<u64>,
    /// Print every request, every wish of the engine and every plan, with device time in
    /// nanoseconds
    #[arg(long)]
    log: bool,
}

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |text: &str| {
        text.parse::<u64>().map_err(|error: ParseIntError| format!("{text:?}: {error}"))
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last { Err(format!("{first} comes after {last}")) } else { Ok(first..=last) }
}

fn main() -> ExitCode {
    let arguments = partita_args::parse::<Arguments>();
    let (mut failures, mut played, mut launches) = (Vec::<Failure>::new(), 0_u64, 0_u64);
    for seed in arguments.seeds {
        let (result, log) = run(seed, arguments.log);
        for line in log {
            println!("{line}");
        }
        played += 1;
        match result {
            Ok(outcome) => launches += outcome.launches,
            Err(failure) => {
                eprintln!("{failure}");
                failures.push(failure);
            }
        }
    }
    println!("{played} seeds played with {launches} launches, {} failed", failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
