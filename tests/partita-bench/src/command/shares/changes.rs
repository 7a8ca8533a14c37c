//! The time until changed shares reach running kernels.
//!
//! Two applications run with minima that are also maxima. Four times in the run these change, and
//! each SM that changes hands tells when the last worker of its loser had left, and when the first
//! worker of its winner had come.

use super::{Kind, Runs, Way, divided};
use partita_bench::{Application, Arrangement, Cell, Handover, Profiles};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use std::fmt::Write as _;

/// Shares in parts, from the first to the last.
const SHARES: [[u16; 2]; 5] = [[25, 75], [75, 25], [50, 50], [10, 90], [90, 10]];
/// The goal: nanoseconds besides a task.
const GOAL: u64 = 50_000;
/// Nanoseconds of the longest task of several CTAs. A longer CTA is a task by itself.
const TASK: u64 = 20_000;

/// The run of a kind's programs with changing shares.
pub fn cell<'a>(runs: &Runs<'a>, programs: &[&'a Application]) -> Cell<'a> {
    let apart = runs.micros * 1_000 / SHARES.len() as u64;
    let from = |(number, parts): (u64, &[u16; 2])| {
        let asked = divided(runs.spec.sms, parts);
        (number * apart, Way::bounds(&asked))
    };
    let changes = (0..).zip(&SHARES).map(from).collect();
    runs.together(programs, Arrangement::ChangingTerms(changes))
}

/// What became of a kind's run.
pub struct Changed {
    kind: Kind,
    handovers: Vec<Handover>,
    /// A task of the programs' slowest kernel, in nanoseconds, by the mean time of its CTAs.
    task: u64,
}

impl Changed {
    /// `profiles` are those of the programs' kernels.
    pub fn new(kind: Kind, handovers: Vec<Handover>, profiles: &Profiles) -> Changed {
        let times = profiles.values().flatten().filter_map(|(_, profile)| profile.cta_time);
        let longest = times.map(|time| time.0).max().unwrap_or(0);
        Changed { kind, handovers, task: longest.max(TASK) }
    }

    fn times(&self, of: impl Fn(&Handover) -> Option<u64>) -> Times {
        let mut known: Vec<u64> = self.handovers.iter().filter_map(of).collect();
        known.sort_unstable();
        Times { missing: self.handovers.len() - known.len(), known }
    }

    fn goal(&self) -> u64 {
        GOAL + self.task
    }
}

/// Times of all SMs that changed hands, in nanoseconds, rising.
struct Times {
    known: Vec<u64>,
    /// SMs on which the next change came first.
    missing: usize,
}

impl Times {
    fn median(&self) -> Option<f64> {
        let at = self.known.len().checked_sub(1)? / 2;
        self.known.get(at).map(|nanos| *nanos as f64 / 1e3)
    }

    fn worst(&self) -> Option<f64> {
        self.known.last().map(|nanos| *nanos as f64 / 1e3)
    }
}

/// The figures of all kinds.
pub fn metrics(all: &[Changed]) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for changed in all {
        let name = |what: &str| format!("{}, changed shares: {what}", changed.kind.name());
        let goal = changed.goal() as f64 / 1e3;
        let count = changed.handovers.len() as f64;
        metrics.push(Metric::plain(name("SMs that changed hands"), count, ""));
        for (what, times) in [
            ("last worker gone", changed.times(|handover| handover.left)),
            ("first new worker", changed.times(|handover| handover.entered)),
        ] {
            let median = times.median().into_iter();
            metrics.extend(
                median.map(|time| Metric::plain(name(&format!("{what}, median")), time, "µs")),
            );
            let worst = times.worst().into_iter();
            metrics
                .extend(worst.map(|time| {
                    Metric::at_most(name(&format!("{what}, worst")), time, "µs", goal)
                }));
            let missing = times.missing as f64;
            metrics.push(Metric::at_most(name(&format!("{what}, never")), missing, "SMs", 0.0));
        }
    }
    metrics
}

/// All kinds, as people read them.
pub fn table(all: &[Changed]) -> String {
    let mut table =
        Table::new(&["KIND", "SMS", "GONE", "WORST", "NEVER", "COME", "WORST", "NEVER", "GOAL"]);
    let micros = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.1} µs"));
    for changed in all {
        let mut cells = vec![changed.kind.name().to_owned(), changed.handovers.len().to_string()];
        for times in [changed.times(|one| one.left), changed.times(|one| one.entered)] {
            cells.extend([micros(times.median()), micros(times.worst())]);
            cells.push(times.missing.to_string());
        }
        cells.push(micros(Some(changed.goal() as f64 / 1e3)));
        table.row(cells);
    }
    format!(
        "\nSMs that changed hands when shares changed. GONE, COME: from the change until the last \
         worker of the one had left, and until the first worker of the other had come; NEVER: not \
         before the next change; GOAL: {} µs and a task\n\n{}",
        GOAL / 1_000,
        table.render()
    )
}

/// Each SM that changed hands, as programs read it. `-` where that was not before the next change.
pub fn csv(all: &[Changed]) -> String {
    let mut text = String::from("kind,gone_ns,come_ns,goal_ns\n");
    for changed in all {
        for Handover { left, entered } in &changed.handovers {
            let [left, entered] =
                [left, entered].map(|time| time.map_or("-".to_owned(), |nanos| nanos.to_string()));
            let _ = writeln!(text, "{},{left},{entered},{}", changed.kind.name(), changed.goal());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_sm_misses_the_goal_and_one_that_never_came_is_counted() {
        let times = [(Some(5_000), Some(9_000)), (Some(80_000), None), (None, Some(11_000))];
        let handovers = times.map(|(left, entered)| Handover { left, entered }).to_vec();
        let changed = [Changed::new(Kind::Compute, handovers, &Profiles::new())];
        let found: Vec<(String, f64, Option<bool>)> = metrics(&changed)
            .into_iter()
            .map(|metric| {
                let name = metric.name.rsplit(": ").next().unwrap_or_default().to_owned();
                (name, metric.value, metric.met)
            })
            .collect();
        let expected = [
            ("SMs that changed hands", 3.0, None),
            ("last worker gone, median", 5.0, None),
            ("last worker gone, worst", 80.0, Some(false)),
            ("last worker gone, never", 1.0, Some(false)),
            ("first new worker, median", 9.0, None),
            ("first new worker, worst", 11.0, Some(true)),
            ("first new worker, never", 1.0, Some(false)),
        ];
        assert_eq!(found, expected.map(|(name, value, met)| (name.to_owned(), value, met)));
        assert!(csv(&changed).contains("compute,80000,-,70000\n"));
        assert!(table(&changed).contains("80.0 µs"));
    }
}
