//! What each rule of CD-search is worth on programs that nobody has tuned it to.
//!
//! ```text
//! cargo run -p partita-policy --example ablation -- --seeds 0-9
//! ```
//!
//! Random mixes of random programs run on the fluid GPU of the tests, under the whole policy and
//! under the policy without one rule each. A mix is the same for every policy. The table gives, for
//! all mixes of at least one compute-intensive program:
//!
//! | column | meaning |
//! | --- | --- |
//! | found | STP of the split that the search ends with, against the even split, in percent |
//! | spread | standard deviation of the mean over the seeds |
//! | p10, worst | the tenth percentile and the least of `found` |
//! | whole | STP over the first 4 M cycles, search included, against the even split, in percent |
//! | kcycles | thousands of cycles until the search ends |
//!
//! and for mixes of memory-intensive programs only (the power mode) `kept`, the mean speed against
//! the even split, `least`, the slowest program's, and `freed`, the part of the SMs that stay
//! empty.

#![expect(clippy::print_stdout, reason = "a table is what it is for")]

mod mixes;
#[path = "../../tests/fluid/simulator.rs"]
#[expect(dead_code, reason = "the tests use all of it")]
mod simulator;
mod statistics;

use mixes::{KINDS, Kind, Outcome};
use partita_model::Cycles;
use partita_policy::CdSearchSettings;
use statistics::{Column, mean};
use std::ops::RangeInclusive;

/// Mixes of each kind and seed.
const MIXES: u64 = 12;

/// The policy, and the policy without one rule each: a setting that never applies.
fn variants() -> Vec<(&'static str, CdSearchSettings)> {
    const NEVER: f64 = f64::NEG_INFINITY;
    let whole = CdSearchSettings::default;
    let with = |change: fn(&mut CdSearchSettings)| {
        let mut settings = whole();
        change(&mut settings);
        settings
    };
    vec![
        ("the whole policy", whole()),
        ("no search: even, or power by halves", with(|s| s.trials = 0)),
        ("trials: 4 instead of 8", with(|s| s.trials = 4)),
        ("hope: no neighbours", with(|s| s.hope = NEVER)),
        ("least: nobody is spared", with(|s| s.least = 0.0)),
        ("step: 1 SM instead of 2", with(|s| s.step = 1)),
        ("step: 4 SMs instead of 2", with(|s| s.step = 4)),
        ("few_rounds: no steps", with(|s| s.few_rounds = 0.0)),
        ("modest: nobody lends", with(|s| s.modest = NEVER)),
        ("patience: no interval again", with(|s| s.patience = 0)),
        ("ctas: 16 instead of 64", with(|s| s.search.ctas = 16)),
        ("tolerance: nothing is a misfit", with(|s| s.tolerance = f64::INFINITY)),
        ("pause: none", with(|s| s.pause = Cycles(0))),
    ]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let seeds = value("--seeds").as_deref().map_or(Some(0..=2), range);
    let Some(seeds) = seeds else { return println!("--seeds takes FIRST-LAST, such as 0-9") };
    let by_kind = arguments.iter().any(|argument| argument == "--by-kind");
    let (only, kinds) = (value("--only").unwrap_or_default(), value("--kinds").unwrap_or_default());
    println!(
        "{:<36} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} | {:>6} {:>6} {:>6}",
        "", "found", "spread", "p10", "worst", "whole", "kcycles", "kept", "least", "freed"
    );
    for (name, settings) in variants().into_iter().filter(|(name, _)| name.contains(&only)) {
        let outcomes: Vec<Seen> =
            seeds.clone().flat_map(|seed| run(seed, settings, &kinds)).collect();
        print_row(name, &outcomes);
        for kind in KINDS.iter().filter(|_| by_kind) {
            let of_kind: Vec<Seen> =
                outcomes.iter().filter(|seen| seen.kind.name == kind.name).copied().collect();
            print_row(&format!("  {}", kind.name), &of_kind);
        }
    }
}

/// What came of one mix.
#[derive(Clone, Copy)]
struct Seen {
    seed: u64,
    kind: &'static Kind,
    outcome: Outcome,
}

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    let (first, last) = text.split_once('-')?;
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn run(seed: u64, settings: CdSearchSettings, kinds: &str) -> Vec<Seen> {
    let mixes = KINDS
        .iter()
        .filter(|kind| kind.name.contains(kinds))
        .flat_map(|kind| (0..MIXES).map(move |mix| (kind, mix)));
    mixes.map(|(kind, mix)| Seen { seed, kind, outcome: kind.run(seed, mix, settings) }).collect()
}

fn print_row(name: &str, outcomes: &[Seen]) {
    let percent = |against: f64| (against - 1.0) * 100.0;
    let performance = outcomes.iter().filter(|seen| !seen.outcome.power);
    let found =
        Column::new(performance.clone().map(|seen| (seen.seed, percent(seen.outcome.found))));
    let whole = mean(performance.clone().map(|seen| percent(seen.outcome.whole)));
    let cycles = mean(outcomes.iter().map(|seen| seen.outcome.kilocycles));
    let power: Vec<&Outcome> =
        outcomes.iter().map(|seen| &seen.outcome).filter(|outcome| outcome.power).collect();
    let of = |value: fn(&Outcome) -> f64| mean(power.iter().map(|outcome| value(outcome)));
    let least = power.iter().map(|outcome| outcome.least).fold(f64::INFINITY, f64::min);
    println!(
        "{name:<36} {:7.2} {:7.2} {:7.2} {:7.2} {whole:7.2} {cycles:8.0} | {:6.3} {least:6.3} \
         {:6.3}",
        found.mean(),
        found.spread(),
        found.quantile(0.1),
        found.quantile(0.0),
        of(|outcome| outcome.kept),
        of(|outcome| outcome.freed),
    );
}
