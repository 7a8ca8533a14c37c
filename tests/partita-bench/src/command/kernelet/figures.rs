//! What the runs of `partita bench kernelet` say.

use super::measure::{Measured, Mix, RANDOM_PLANS};
use partita_bench::coscheduling::{Pair, Sliced};
use partita_bench::pairing::gain;
use partita_bench::plot::{Bars, Line, curves, sorted_bars};
use partita_bench::{PAPER_BANDWIDTH, PAPER_IPC};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use std::fmt::Write as _;

/// The overhead that slices may have (Kernelet §4.1), in per cent.
const SLICE_OVERHEAD: f64 = 2.0;
/// The error within which the paper counts a prediction as good, in per cent of the peak (§5.2).
const PAPER_ERROR: f64 = 20.0;

/// What the paper reports of a GPU (§5.3), in per cent.
struct Paper {
    spec: &'static str,
    /// The least and the greatest gain over consolidation.
    gains: [f64; 2],
    /// The greatest distance to the oracle.
    distance: f64,
}

const PAPERS: [Paper; 2] = [
    Paper { spec: "Emulated GPU, Tesla C2050 (Kernelet)", gains: [5.0, 31.0], distance: 3.0 },
    Paper { spec: "Emulated GPU, GTX 680 (Kernelet)", gains: [7.0, 23.0], distance: 15.0 },
];

/// Everything that was measured.
pub struct Figures {
    pub all: Vec<Measured>,
}

impl Figures {
    pub fn metrics(&self) -> Vec<Metric> {
        self.all.iter().flat_map(of_gpu).collect()
    }

    /// Programs alone, and mixes.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for measured in &self.all {
            let _ = write!(text, "\n{}: programs alone\n\n{}", measured.spec.name, alone(measured));
            let _ = write!(
                text,
                "\n{}: mixes, gains over one after the other\n\n{}",
                measured.spec.name,
                mixes(measured)
            );
        }
        text
    }

    /// Who shares SMs with whom, and what is expected.
    pub fn decisions(&self) -> String {
        let mut text = String::new();
        for measured in &self.all {
            for mix in &measured.mixes {
                let _ = writeln!(text, "\n{}, {}", measured.spec.name, mix.name);
                for group in &mix.groups {
                    let _ = writeln!(text, "  {}", decision(measured, group));
                }
            }
        }
        text
    }

    pub fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("mixes.svg", self.plot()),
            ("random.svg", self.distribution()),
            ("pairs.csv", self.pairs_csv()),
            ("mixes.csv", self.mixes_csv()),
            ("slices.csv", self.slices_csv()),
        ]
    }

    fn each_mix(&self) -> impl Iterator<Item = (&Measured, &Mix)> {
        self.all.iter().flat_map(|measured| measured.mixes.iter().map(move |mix| (measured, mix)))
    }

    fn plot(&self) -> String {
        let over = |of: fn(&Mix) -> f64| {
            self.each_mix().map(|(_, mix)| 100.0 * of(mix)).collect::<Vec<f64>>()
        };
        let bars = Bars {
            names: self
                .each_mix()
                .map(|(gpu, mix)| format!("{} {}", short(gpu), mix.name))
                .collect(),
            kinds: vec![
                ("Kernelet's plan".to_owned(), over(|mix| by_table(mix, mix.kernelet))),
                ("oracle".to_owned(), over(|mix| by_table(mix, mix.oracle))),
                ("consolidation".to_owned(), over(|mix| gain(mix.consolidation, mix.apart))),
                ("selector kernelet".to_owned(), over(|mix| gain(mix.live, mix.apart))),
            ],
        };
        sorted_bars("Mixes: change against one after the other", "per cent", &bars)
    }

    /// The distribution of random plans of the last mix, as in Kernelet Fig. 7.
    fn distribution(&self) -> String {
        let mut lines = Vec::new();
        for measured in &self.all {
            let Some(mix) = measured.mixes.last() else { continue };
            let count = mix.random.len().max(1) as f64;
            let points = mix.random.iter().zip(1..);
            let points: Vec<(f64, f64)> =
                points.map(|(time, rank)| (time / mix.kernelet, f64::from(rank) / count)).collect();
            lines.push(Line { name: short(measured).to_owned(), points, dashed: false });
        }
        let title = "ALL: random plans";
        curves(title, "time, Kernelet's plan = 1", "part of the plans", &lines)
    }

    fn pairs_csv(&self) -> String {
        let mut text = "gpu,first,second,first_ctas,second_ctas,first_speed,second_speed,\
                        first_predicted,second_predicted\n"
            .to_owned();
        for measured in &self.all {
            for pair in &measured.pairs {
                let [first, second] = pair.members.map(|member| measured.names[member].as_str());
                let Pair { ctas, speeds, predicted, .. } = pair;
                let _ = writeln!(
                    text,
                    "{},{first},{second},{},{},{:.4},{:.4},{:.4},{:.4}",
                    short(measured),
                    ctas[0],
                    ctas[1],
                    speeds[0],
                    speeds[1],
                    predicted[0],
                    predicted[1]
                );
            }
        }
        text
    }

    fn mixes_csv(&self) -> String {
        let mut text = "gpu,mix,one_after_the_other_ns,consolidation_ns,live_ns,by_table_apart_ns,\
                        kernelet_ns,oracle_ns,best_ns,best_random_ns\n"
            .to_owned();
        for (gpu, mix) in self.each_mix() {
            let _ = writeln!(
                text,
                "{},{},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0}",
                short(gpu),
                mix.name,
                mix.apart,
                mix.consolidation,
                mix.live,
                mix.apart_by_table,
                mix.kernelet,
                mix.oracle,
                mix.best,
                mix.random.first().copied().unwrap_or(f64::NAN)
            );
        }
        text
    }

    fn slices_csv(&self) -> String {
        let mut text = "gpu,program,ctas,overhead\n".to_owned();
        for measured in &self.all {
            for (name, slices) in measured.names.iter().zip(&measured.slices) {
                for Sliced { ctas, overhead } in slices {
                    let _ = writeln!(text, "{},{name},{ctas},{overhead:.4}", short(measured));
                }
            }
        }
        text
    }
}

/// The figures of one GPU.
fn of_gpu(measured: &Measured) -> Vec<Metric> {
    let paper = PAPERS.iter().find(|paper| paper.spec == measured.spec.name);
    let named = |what: &str| format!("{}: {what}", short(measured));
    let beside = |metric: Metric, paper: Option<f64>| Metric { paper, ..metric };
    let mut metrics = characters(measured);
    let alone: Vec<f64> = measured
        .solos
        .iter()
        .map(|solo| 100.0 * (solo.predicted_ipc - solo.ipc).abs() / peak(measured))
        .collect();
    let error =
        Metric::at_most(named("IPC alone, mean error of the peak"), mean(&alone), "%", 10.0);
    metrics.push(beside(error, Some(PAPER_ERROR)));
    let errors = errors(measured);
    let error =
        Metric::at_most(named("IPC of pairs, mean error of the peak"), mean(&errors), "%", 10.0);
    metrics.push(beside(error, Some(PAPER_ERROR)));
    let within = errors.iter().filter(|error| **error <= PAPER_ERROR).count();
    let within = 100.0 * within as f64 / errors.len().max(1) as f64;
    metrics.push(Metric::plain(named("pairs within 20 % of the peak"), within, "%"));
    let profits: Vec<f64> = measured.pairs.iter().map(profit_error).collect();
    metrics.push(Metric::plain(named("profit of pairs, mean error"), mean(&profits), "points"));
    let found: Vec<f64> = measured
        .slices
        .iter()
        .filter_map(|slices| smallest(slices))
        .map(|slice| 100.0 * slice.overhead)
        .collect();
    let overhead = Metric::at_most(
        named("slices, mean overhead at the size found"),
        mean(&found),
        "%",
        SLICE_OVERHEAD,
    );
    metrics.push(beside(overhead, Some(SLICE_OVERHEAD)));
    let gains: Vec<f64> =
        measured.mixes.iter().map(|mix| 100.0 * over_consolidation(mix)).collect();
    let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
    let most = gains.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let name = named("Kernelet's plan: mean gain over consolidation");
    metrics.push(Metric::plain(name, mean(&gains), "%"));
    let name = named("Kernelet's plan: least gain over consolidation");
    metrics.push(beside(Metric::plain(name, least, "%"), paper.map(|paper| paper.gains[0])));
    let name = named("Kernelet's plan: best gain over consolidation");
    metrics.push(beside(Metric::plain(name, most, "%"), paper.map(|paper| paper.gains[1])));
    let over: Vec<f64> =
        measured.mixes.iter().map(|mix| 100.0 * by_table(mix, mix.kernelet)).collect();
    let name = named("Kernelet's plan: mean gain over one after the other");
    metrics.push(Metric::plain(name, mean(&over), "%"));
    let live: Vec<f64> =
        measured.mixes.iter().map(|mix| 100.0 * gain(mix.live, mix.consolidation)).collect();
    let name = named("selector kernelet: mean gain over consolidation");
    metrics.push(beside(Metric::plain(name, mean(&live), "%"), paper.map(|paper| paper.gains[0])));
    let far: Vec<f64> =
        measured.mixes.iter().map(|mix| 100.0 * (mix.kernelet / mix.oracle - 1.0)).collect();
    let name = named("Kernelet's plan: mean distance to the oracle");
    let distance = Metric::at_most(name, mean(&far), "%", 1.0);
    metrics.push(beside(distance, paper.map(|paper| paper.distance)));
    let better: Vec<f64> = measured.mixes.iter().map(faster).collect();
    let name = named("random plans that are faster than Kernelet's");
    let better = 100.0 * better.iter().sum::<f64>() / (RANDOM_PLANS as f64 * better.len() as f64);
    metrics.push(beside(Metric::at_most(name, better, "%", 0.0), Some(0.0)));
    metrics
}

/// How the programs are, beside what the paper's text has of its own.
fn characters(measured: &Measured) -> Vec<Metric> {
    let named = |what: &str| format!("{}: {what}", short(measured));
    let is_fermi = measured.spec.name == PAPERS[0].spec;
    let of_paper =
        |metric: Metric, paper: f64| Metric { paper: is_fermi.then_some(paper), ..metric };
    let uses: Vec<f64> = measured.solos.iter().map(|solo| solo.issue).collect();
    let bandwidth = measured.solos.iter().map(|solo| 100.0 * solo.bandwidth);
    let least = bandwidth.clone().fold(f64::INFINITY, f64::min);
    let most = bandwidth.fold(0.0, f64::max);
    vec![
        of_paper(Metric::plain(named("PUR, mean"), mean(&uses), ""), PAPER_IPC),
        of_paper(Metric::plain(named("MUR, least"), least, "%"), 100.0 * PAPER_BANDWIDTH[0]),
        of_paper(Metric::plain(named("MUR, greatest"), most, "%"), 100.0 * PAPER_BANDWIDTH[1]),
    ]
}

/// Errors of the summed IPC of pairs, in per cent of the peak.
fn errors(measured: &Measured) -> Vec<f64> {
    let ipc = |pair: &Pair, speeds: [f64; 2], fitted: bool| {
        let of = |at: usize| {
            let solo = &measured.solos[pair.members[at]];
            speeds[at] * if fitted { solo.fitted.ipc } else { solo.ipc }
        };
        of(0) + of(1)
    };
    let error = |pair: &Pair| {
        let off = ipc(pair, pair.predicted, true) - ipc(pair, pair.speeds, false);
        100.0 * off.abs() / peak(measured)
    };
    measured.pairs.iter().map(error).collect()
}

/// The error of the co-scheduling profit, in points.
fn profit_error(pair: &Pair) -> f64 {
    let profit = |speeds: [f64; 2]| 1.0 - 1.0 / speeds.iter().sum::<f64>().max(1e-9);
    100.0 * (profit(pair.predicted) - profit(pair.speeds)).abs()
}

/// The smallest slices with an overhead that is allowed.
fn smallest(slices: &[Sliced]) -> Option<&Sliced> {
    slices.iter().find(|slice| 100.0 * slice.overhead <= SLICE_OVERHEAD).or(slices.last())
}

/// How much sooner a plan is done than one after the other, both by the table.
fn by_table(mix: &Mix, time: f64) -> f64 {
    gain(time, mix.apart_by_table)
}

/// The same of the adviser's plan over consolidation, each by its own one after the other: the
/// table has no arrivals, and runs have.
fn over_consolidation(mix: &Mix) -> f64 {
    (1.0 + by_table(mix, mix.kernelet)) / (1.0 + gain(mix.consolidation, mix.apart)) - 1.0
}

/// How many random plans are faster than the adviser's.
fn faster(mix: &Mix) -> f64 {
    // The same plan with the members in another order is not faster.
    mix.random.iter().filter(|time| **time < mix.kernelet * (1.0 - 1e-9)).count() as f64
}

fn alone(measured: &Measured) -> String {
    let mut table = Table::new(&[
        "PROGRAM",
        "TIME",
        "PUR",
        "MUR",
        "IPC",
        "PREDICTED",
        "CTAS/SM",
        "SLICE",
        "OVERHEAD",
    ]);
    for ((name, solo), slices) in measured.names.iter().zip(&measured.solos).zip(&measured.slices) {
        let slice = smallest(slices);
        table.row(vec![
            name.clone(),
            format!("{:.0} us", solo.nanos / 1e3),
            format!("{:.2}", solo.issue),
            format!("{:.1} %", 100.0 * solo.bandwidth),
            format!("{:.2}", solo.ipc),
            format!("{:.2}", solo.predicted_ipc),
            solo.ctas_per_sm.to_string(),
            slice.map_or_else(String::new, |slice| format!("{} of {}", slice.ctas, solo.ctas)),
            slice.map_or_else(String::new, |slice| format!("{:+.1} %", 100.0 * slice.overhead)),
        ]);
    }
    table.render()
}

fn mixes(measured: &Measured) -> String {
    let mut table = Table::new(&[
        "MIX",
        "CONSOLIDATION",
        "KERNELET",
        "ORACLE",
        "BEST",
        "BEST OF 1,000",
        "KERNELET/CONSOL.",
        "LIVE",
    ]);
    for mix in &measured.mixes {
        let shown = |gain: f64| format!("{:+.1} %", 100.0 * gain);
        let over = |time: f64| shown(by_table(mix, time));
        table.row(vec![
            mix.name.to_owned(),
            shown(gain(mix.consolidation, mix.apart)),
            over(mix.kernelet),
            over(mix.oracle),
            over(mix.best),
            over(mix.random.first().copied().unwrap_or(f64::NAN)),
            shown(over_consolidation(mix)),
            shown(gain(mix.live, mix.apart)),
        ]);
    }
    table.render()
}

fn decision(measured: &Measured, group: &partita_policy::Group) -> String {
    let names: Vec<&str> =
        group.members.iter().map(|member| measured.names[member.0 as usize].as_str()).collect();
    let expected = group.expected.as_ref().filter(|_| names.len() > 1);
    let Some(expected) = expected else { return format!("{} runs alone.", names.join(", ")) };
    let quotas: Vec<String> = expected.quotas.iter().map(ToString::to_string).collect();
    format!(
        "{} share each SM with {} CTAs; together they should be {:.2} times as fast as one after \
         the other.",
        names.join(" and "),
        quotas.join(" and "),
        expected.throughput
    )
}

fn peak(measured: &Measured) -> f64 {
    measured.spec.issue_per_cycle as f64
}

/// The GPU's name without what every one of ours has.
fn short(measured: &Measured) -> &str {
    let name = measured.spec.name.trim_start_matches("Emulated GPU, ");
    name.trim_end_matches(" (Kernelet)")
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
