//! Queues in groups of three (Punyala §4.1): even shares in the order of arrival, the integer
//! program over classes and over programs, and SMRA.
//!
//! The slowdowns are those of pairs: what a member loses to the two others adds up. No group of
//! three was measured before the plans are made.

use super::{EVEN, Programs, PunyalaArgs, SMRA};
use partita_bench::pairing::{gain, makespan};
use partita_bench::queues::Queue;
use partita_bench::{Arrangement, Cell, Cells};
use partita_cli::failure::Failure;
use partita_cli::report::Metric;
use partita_cli::table::Table;
use partita_policy::Slowdowns;
use std::collections::BTreeSet;
use std::fmt::Write as _;

const SIZE: usize = 3;

/// Times of one queue in nanoseconds.
#[derive(Debug)]
pub struct Threes {
    name: String,
    applications: usize,
    /// By arrival on even shares.
    base: f64,
    policies: [(&'static str, f64); 4],
}

impl PunyalaArgs {
    /// Measures queues in groups of three.
    pub(super) fn threes(
        &self,
        programs: &Programs<'_>,
        queues: &[Queue],
        slowdowns: &Slowdowns,
        cells: &mut Cells,
    ) -> Result<Vec<Threes>, Failure> {
        let default = if self.common.quick { 1 } else { queues.len() };
        let count = self.threes.map_or(default, usize::from);
        let failed = |error: partita_policy::MatchingError| Failure::new(error.to_string());
        let (pairing, classes) = (&programs.pairing, &programs.classes);
        let of_classes = Slowdowns { classes: slowdowns.classes.clone(), ..Slowdowns::default() };
        let mut found = Vec::new();
        for queue in queues.iter().take(count) {
            let arrival = queue.groups_by_arrival(SIZE);
            let ilp = queue.matched_by_program(classes, &of_classes, SIZE).map_err(failed)?;
            let known = queue.matched_by_program(classes, slowdowns, SIZE).map_err(failed)?;
            let mut time = |plan: &[Vec<usize>], arrangement: &Arrangement| {
                let groups: BTreeSet<&Vec<usize>> = plan.iter().collect();
                let cell = |group: &Vec<usize>| pairing.cell(group, arrangement.clone());
                let runs: Vec<Cell<'_>> = groups.into_iter().map(cell).collect();
                self.common.compute("groups of three", cells, &runs)?;
                let times = plan.iter().map(|group| Ok(makespan(&cells.get(&cell(group))?)));
                times.sum::<Result<f64, Failure>>()
            };
            let base = time(&arrival, &EVEN)?;
            let serial = queue.members.iter().map(|&member| pairing.solos[member].original).sum();
            let policies = [
                ("serial", serial),
                ("ILP", time(&ilp, &EVEN)?),
                ("ILP+SMRA", time(&ilp, &SMRA)?),
                ("programs", time(&known, &EVEN)?),
            ];
            let (name, applications) = (queue.name.clone(), queue.members.len());
            found.push(Threes { name, applications, base, policies });
        }
        Ok(found)
    }
}

impl Threes {
    /// The gain of each policy over even shares by arrival in per cent.
    fn gains(&self) -> impl Iterator<Item = (&'static str, f64)> {
        self.policies.iter().map(|(name, time)| (*name, 100.0 * gain(*time, self.base)))
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let metric = |(policy, value)| {
            Metric::plain(format!("{}: {policy} over even, by threes", self.name), value, "%")
        };
        self.gains().map(metric).collect()
    }

    /// Lines of `queues.csv`.
    pub fn csv(&self) -> String {
        let mut text = String::new();
        let even = [("even", self.base)];
        for (policy, time) in even.iter().chain(&self.policies) {
            let gain = 100.0 * gain(*time, self.base);
            let Threes { name, applications, .. } = self;
            let _ = writeln!(text, "{name},{applications},{policy} by threes,{time:.0},{gain:.2}");
        }
        text
    }
}

/// The gains; empty where no queue was cut into groups of three.
pub fn table(queues: &[Threes]) -> String {
    let Some(first) = queues.first() else { return String::new() };
    let mut heading = vec!["QUEUE"];
    heading.extend(first.policies.iter().map(|(name, _)| *name));
    let mut table = Table::new(&heading);
    for queue in queues {
        let name = [format!("{} ({})", queue.name, queue.applications)];
        table.row(name.into_iter().chain(queue.gains().map(|(_, gain)| format!("{gain:+.1} %"))));
    }
    format!("\ngroups of three: throughput over even shares by arrival\n\n{}", table.render())
}
