//! From runs to figures: the metrics beside goals and the paper's values, and tables.

use super::strangers::Stranger;
use partita_bench::Workload;
use partita_bench::study::{Alone, Kind, Mix, Outcome, Study, pairs, wrong_by_dram};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use partita_model::Class;

/// Strangers' kernels that there should be, and the part of them that should be told right: 18 of
/// 20.
const STRANGERS: f64 = 20.0;
const STRANGERS_RIGHT: f64 = 0.9;

/// Everything that was measured.
pub struct Figures<'a> {
    /// The workloads, with what the paper says of them.
    pub workloads: &'a [Workload],
    /// Each alone.
    pub study: &'a Study<'a>,
    /// Mixes of two.
    pub mixes: Vec<Mix>,
    /// Mixes of four.
    pub fours: Vec<Mix>,
    /// Mixes on other GPUs: what they are, the paper's throughput, per cent.
    pub variants: Vec<(&'static str, Option<f64>, Vec<Mix>)>,
    /// Kernels that are not ours.
    pub strangers: Vec<Stranger>,
}

/// A change in per cent.
pub fn percent(new: f64, old: f64) -> f64 {
    100.0 * (new / old.max(1e-12) - 1.0)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn with_paper(metric: Metric, paper: f64) -> Metric {
    Metric { paper: Some(paper), ..metric }
}

fn letter(class: Option<Class>) -> &'static str {
    match class {
        Some(Class::Memory) => "M",
        Some(Class::Compute) => "C",
        Some(Class::Unknown) => "?",
        None => "-",
    }
}

impl Figures<'_> {
    /// The names of a mix's applications.
    pub fn names(&self, members: &[usize]) -> String {
        let names: Vec<&str> =
            members.iter().map(|&index| self.study.applications[index].name.as_str()).collect();
        names.join("+")
    }

    fn truths(&self, members: &[usize]) -> Vec<Class> {
        members.iter().map(|&index| self.study.alone[index].truth).collect()
    }

    fn is_right(&self, mix: &Mix) -> bool {
        mix.found.iter().zip(self.truths(&mix.members)).all(|(found, truth)| *found == Some(truth))
    }

    /// An application is told right where it was in every mix that it is in; those in none are not
    /// counted.
    fn told_right(&self, index: usize) -> Option<bool> {
        let truth = self.study.alone[index].truth;
        let found = self.mixes.iter().flat_map(|mix| mix.members.iter().zip(&mix.found));
        let own: Vec<bool> = found
            .filter(|(member, _)| **member == index)
            .map(|(_, found)| *found == Some(truth))
            .collect();
        (!own.is_empty()).then(|| own.iter().all(|right| *right))
    }

    /// The figures.
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = self.classes();
        metrics.extend(self.performance());
        metrics.extend(self.power());
        metrics.extend(self.compute());
        metrics.extend(self.further());
        metrics.extend(self.forms());
        metrics.extend(self.strange());
        metrics
    }

    fn classes(&self) -> Vec<Metric> {
        let alone = &self.study.alone;
        let count = |holds: &dyn Fn(usize, &Alone) -> bool| {
            alone.iter().enumerate().filter(|(index, alone)| holds(*index, alone)).count() as f64
        };
        let seen = count(&|index, _| self.told_right(index).is_some());
        let right = count(&|index, _| self.told_right(index) == Some(true));
        let mixes_right = self.mixes.iter().filter(|mix| self.is_right(mix)).count() as f64;
        let all = pairs(alone.len()).count() as f64;
        let model_right = |index: usize| alone[index].modelled == Some(alone[index].truth);
        let mixes_by_model =
            pairs(alone.len()).filter(|[a, b]| model_right(*a) && model_right(*b)).count() as f64;
        let (threshold, wrong) = wrong_by_dram(alone);
        let as_in_table = |index: usize, alone: &Alone| {
            (alone.truth == Class::Memory) == self.workloads[index].memory_in_paper
        };
        let tried = self.mixes.len() as f64;
        let mut metrics = vec![
            Metric::plain(
                "applications, memory-intensive",
                count(&|_, alone| alone.truth == Class::Memory),
                "",
            ),
            Metric::plain("classes as in the paper's table", count(&as_in_table), ""),
            Metric::at_least(
                "applications told right by the bandwidth model",
                count(&|index, _| model_right(index)),
                "",
                alone.len() as f64,
            ),
            with_paper(
                Metric::at_least(
                    "mixes told right by the bandwidth model",
                    mixes_by_model,
                    "",
                    all,
                ),
                91.0,
            ),
            with_paper(
                Metric::plain("mixes told wrong by DRAM utilisation", wrong as f64, ""),
                36.0,
            ),
            Metric::plain("its best threshold", 100.0 * threshold, "%"),
        ];
        if !self.mixes.is_empty() {
            metrics.push(Metric::at_least(
                "applications told right by the policy",
                right,
                "",
                seen,
            ));
            metrics.push(Metric::at_least(
                "mixes told right by the policy",
                mixes_right,
                "",
                tried,
            ));
        }
        metrics
    }

    fn of_kind(&self, kind: Kind) -> Vec<&Mix> {
        self.mixes.iter().filter(|mix| mix.kind == kind).collect()
    }

    fn performance(&self) -> Vec<Metric> {
        let mixes = self.of_kind(Kind::Mixed);
        if mixes.is_empty() {
            return Vec::new();
        }
        let of = |f: &dyn Fn(&Mix) -> Option<f64>| -> Vec<f64> {
            mixes.iter().filter_map(|mix| f(mix)).collect()
        };
        let stp = of(&|mix| Some(percent(mix.searched.stp(), mix.even.stp())));
        let after = of(&|mix| Some(percent(mix.after.as_ref()?.stp(), mix.even.stp())));
        let cold = of(&|mix| Some(percent(mix.cold.as_ref()?.stp(), mix.even.stp())));
        let antt = of(&|mix| Some(percent(mix.searched.antt(), mix.even.antt())));
        let mps = of(&|mix| Some(percent(mix.searched.stp(), mix.mps.as_ref()?.stp())));
        let slices = of(&|mix| Some(percent(mix.searched.stp(), mix.slices.as_ref()?.stp())));
        let oracle = of(&|mix| Some(-percent(mix.searched.stp(), mix.oracle.as_ref()?.1.stp())));
        let settled =
            of(&|mix| Some(-percent(mix.after.as_ref()?.stp(), mix.oracle.as_ref()?.1.stp())));
        let search = of(&|mix| Some(mix.search? as f64 / 1e6));
        let name = |what: &str| format!("performance mode: {what}");
        let mut metrics = vec![
            Metric::plain(name("mixes"), mixes.len() as f64, ""),
            with_paper(Metric::plain(name("STP against even, mean"), mean(&stp), "%"), 10.4),
            with_paper(Metric::plain(name("best"), most(&stp), "%"), 62.9),
            with_paper(Metric::at_least(name("worst"), least(&stp), "%", -2.0), -2.1),
            Metric::plain(name("STP against even, after the search"), mean(&after), "%"),
            with_paper(Metric::plain(name("ANTT against even, mean"), mean(&antt), "%"), -22.0),
        ];
        for (what, values) in [
            ("STP against even without known profiles, mean", &cold),
            ("STP against MPS-like, mean", &mps),
            ("STP against time slices, mean", &slices),
        ] {
            if !values.is_empty() {
                metrics.push(Metric::plain(name(what), mean(values), "%"));
            }
        }
        if !oracle.is_empty() {
            let distance =
                Metric::at_most(name("STP under the oracle's, mean"), mean(&oracle), "%", 1.0);
            metrics.push(with_paper(distance, 0.92));
            metrics.push(Metric::plain(
                name("STP under the oracle's, after the search"),
                mean(&settled),
                "%",
            ));
        }
        if !search.is_empty() {
            metrics.push(Metric::plain(name("search, mean"), mean(&search), "ms"));
        }
        let best = of(&|mix| Some(percent(mix.oracle.as_ref()?.1.stp(), mix.even.stp())));
        if !best.is_empty() {
            metrics.push(Metric::plain(name("the oracle's STP against even"), mean(&best), "%"));
        }
        let paper = of(&|mix| Some(percent(mix.paper.as_ref()?.0.stp(), mix.even.stp())));
        let under =
            of(&|mix| Some(-percent(mix.paper.as_ref()?.0.stp(), mix.oracle.as_ref()?.1.stp())));
        if !paper.is_empty() {
            for (what, value, printed) in [
                ("as printed: STP against even, mean", mean(&paper), Some(10.4)),
                ("as printed: best", most(&paper), Some(62.9)),
                ("as printed: worst", least(&paper), Some(-2.1)),
                ("as printed: STP under the oracle's, mean", mean(&under), Some(0.92)),
            ] {
                metrics.push(Metric { paper: printed, ..Metric::plain(name(what), value, "%") });
            }
        }
        metrics
    }

    fn power(&self) -> Vec<Metric> {
        let mixes = self.of_kind(Kind::Memory);
        if mixes.is_empty() {
            return Vec::new();
        }
        let of = |f: &dyn Fn(&Mix) -> Option<f64>| -> Vec<f64> {
            mixes.iter().filter_map(|mix| f(mix)).collect()
        };
        let watts = of(&|mix| Some(percent(mix.searched.watts, mix.even.watts)));
        let stp = of(&|mix| Some(percent(mix.searched.stp(), mix.even.stp())));
        let oracle = of(&|mix| Some(-percent(mix.searched.stp(), mix.oracle.as_ref()?.1.stp())));
        let cold = of(&|mix| Some(percent(mix.cold.as_ref()?.stp(), mix.even.stp())));
        let least_watts = of(&|mix| Some(percent(mix.oracle.as_ref()?.1.watts, mix.even.watts)));
        let name = |what: &str| format!("power mode: {what}");
        let mut metrics = vec![
            Metric::plain(name("mixes"), mixes.len() as f64, ""),
            with_paper(Metric::plain(name("power against even, mean"), mean(&watts), "%"), -25.0),
            with_paper(Metric::plain(name("power, best"), least(&watts), "%"), -41.2),
            with_paper(Metric::plain(name("STP against even, mean"), mean(&stp), "%"), 2.2),
            with_paper(Metric::at_least(name("STP, worst"), least(&stp), "%", -6.0), -10.3),
        ];
        if !cold.is_empty() {
            let what = name("STP against even without known profiles, mean");
            metrics.push(Metric::plain(what, mean(&cold), "%"));
        }
        if !oracle.is_empty() {
            let distance =
                Metric::at_most(name("STP under the oracle's, mean"), mean(&oracle), "%", 3.0);
            metrics.push(with_paper(distance, 2.5));
            metrics.push(Metric::plain(
                name("the oracle's power against even"),
                mean(&least_watts),
                "%",
            ));
        }
        let paper = |f: &dyn Fn(&Outcome, &Outcome) -> f64| -> Vec<f64> {
            mixes.iter().filter_map(|mix| Some(f(&mix.paper.as_ref()?.0, &mix.even))).collect()
        };
        let stp = paper(&|paper, even| percent(paper.stp(), even.stp()));
        let watts = paper(&|paper, even| percent(paper.watts, even.watts));
        if !stp.is_empty() {
            for (what, value, printed) in [
                ("as printed: power against even, mean", mean(&watts), -25.0),
                ("as printed: STP against even, mean", mean(&stp), 2.2),
                ("as printed: STP, worst", least(&stp), -10.3),
            ] {
                metrics.push(with_paper(Metric::plain(name(what), value, "%"), printed));
            }
        }
        metrics
    }

    fn compute(&self) -> Vec<Metric> {
        let stp: Vec<f64> = self
            .of_kind(Kind::Compute)
            .iter()
            .map(|mix| percent(mix.searched.stp(), mix.even.stp()))
            .collect();
        if stp.is_empty() {
            return Vec::new();
        }
        vec![
            Metric::plain("compute-intensive mixes: mixes", stp.len() as f64, ""),
            Metric::plain("compute-intensive mixes: STP against even, mean", mean(&stp), "%"),
            Metric::plain("compute-intensive mixes: worst", least(&stp), "%"),
        ]
    }

    /// Four applications, and other GPUs.
    fn further(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        let stp = |mixes: &[Mix], kind: Kind| -> Vec<f64> {
            let of_kind = mixes.iter().filter(|mix| mix.kind == kind);
            of_kind.map(|mix| percent(mix.searched.stp(), mix.even.stp())).collect()
        };
        let watts = |mixes: &[Mix]| -> Vec<f64> {
            let of_kind = mixes.iter().filter(|mix| mix.kind == Kind::Memory);
            of_kind.map(|mix| percent(mix.searched.watts, mix.even.watts)).collect()
        };
        let fours = stp(&self.fours, Kind::Mixed);
        if !fours.is_empty() {
            let antt: Vec<f64> = self
                .fours
                .iter()
                .filter(|mix| mix.kind == Kind::Mixed)
                .map(|mix| percent(mix.searched.antt(), mix.even.antt()))
                .collect();
            let name = |what: &str| format!("four applications: {what}");
            metrics.push(with_paper(
                Metric::plain(name("STP against even, mean"), mean(&fours), "%"),
                6.2,
            ));
            metrics.push(with_paper(Metric::plain(name("best"), most(&fours), "%"), 42.3));
            metrics.push(with_paper(
                Metric::plain(name("ANTT against even, mean"), mean(&antt), "%"),
                -14.2,
            ));
            let mixed = self.fours.iter().filter(|mix| mix.kind == Kind::Mixed);
            let paper: Vec<f64> = mixed
                .filter_map(|mix| Some(percent(mix.paper.as_ref()?.0.stp(), mix.even.stp())))
                .collect();
            if !paper.is_empty() {
                let what = name("as printed: STP against even, mean");
                metrics.push(with_paper(Metric::plain(what, mean(&paper), "%"), 6.2));
            }
        }
        for (name, paper, mixes) in &self.variants {
            let values = stp(mixes, Kind::Mixed);
            if !values.is_empty() {
                let metric =
                    Metric::plain(format!("{name}: STP against even, mean"), mean(&values), "%");
                metrics.push(Metric { paper: *paper, ..metric });
            }
            let values = watts(mixes);
            if !values.is_empty() {
                metrics.push(Metric::plain(
                    format!("{name}: power against even, mean"),
                    mean(&values),
                    "%",
                ));
            }
        }
        metrics
    }

    /// Workers against the kernels as they are.
    fn forms(&self) -> Vec<Metric> {
        let slower: Vec<f64> =
            self.study.alone.iter().map(|alone| percent(1.0, alone.worker)).collect();
        vec![
            Metric::at_most(
                "workers alone: slower than the originals, mean",
                mean(&slower),
                "%",
                3.0,
            ),
            Metric::plain("workers alone: slowest", most(&slower), "%"),
            with_paper(Metric::plain("workers alone: fastest", -least(&slower), "%"), 28.0),
        ]
    }

    fn strange(&self) -> Vec<Metric> {
        if self.strangers.is_empty() {
            return Vec::new();
        }
        let all = self.strangers.len() as f64;
        let right = |class: &dyn Fn(&Stranger) -> Option<Class>| {
            self.strangers
                .iter()
                .filter(|stranger| class(stranger) == Some(stranger.alone.truth))
                .count() as f64
        };
        let memory = |stranger: &&Stranger| stranger.alone.truth == Class::Memory;
        vec![
            Metric::at_least("strangers' kernels", all, "", STRANGERS),
            Metric::plain(
                "of them memory-intensive",
                self.strangers.iter().filter(memory).count() as f64,
                "",
            ),
            Metric::at_least(
                "strangers told right by the policy",
                right(&|s| s.found),
                "",
                STRANGERS_RIGHT * all,
            ),
            Metric::at_least(
                "strangers told right by the bandwidth model",
                right(&|s| s.alone.modelled),
                "",
                STRANGERS_RIGHT * all,
            ),
        ]
    }

    fn strangers_table(&self, counts: &[u16]) -> String {
        let mut table =
            Table::new(&["KERNEL", "TRUTH", "MODEL", "POLICY", "GAIN", "DRAM %", "WORKER %"]);
        for Stranger { name, alone, found } in &self.strangers {
            let sms = counts.last().copied().unwrap_or(self.study.spec.sms);
            table.row([
                name.chars().take(64).collect(),
                letter(Some(alone.truth)).to_owned(),
                letter(alone.modelled).to_owned(),
                letter(*found).to_owned(),
                format!("{:.2}", alone.gain(sms)),
                format!("{:.0}", 100.0 * alone.dram),
                format!("{:+.1}", percent(1.0, alone.worker)),
            ]);
        }
        if self.strangers.is_empty() { String::new() } else { format!("\n{}", table.render()) }
    }

    /// Each application and each mix.
    pub fn tables(&self) -> String {
        let counts: Vec<u16> =
            self.study.alone.first().map_or(Vec::new(), |a| a.curve.keys().copied().collect());
        let mut heading: Vec<String> =
            ["APPLICATION", "TRUTH", "PAPER", "MODEL", "POLICY", "GAIN", "DRAM %", "WORKER %"]
                .map(str::to_owned)
                .to_vec();
        heading.extend(counts.iter().map(|count| format!("{count} SMs")));
        let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
        let mut table = Table::new(&heading);
        for (index, alone) in self.study.alone.iter().enumerate() {
            let told =
                self.told_right(index).map_or("", |right| if right { "right" } else { "WRONG" });
            let paper = if self.workloads[index].memory_in_paper { "M" } else { "C" };
            let mut row = vec![
                self.study.applications[index].name.clone(),
                letter(Some(alone.truth)).to_owned(),
                paper.to_owned(),
                letter(alone.modelled).to_owned(),
                told.to_owned(),
                format!("{:.2}", alone.gain(self.study.spec.sms)),
                format!("{:.0}", 100.0 * alone.dram),
                format!("{:+.1}", percent(1.0, alone.worker)),
            ];
            row.extend(alone.curve.values().map(|speed| format!("{speed:.2}")));
            table.row(row);
        }
        let mut mixes = Table::new(&MIX_HEADING);
        for mix in self.mixes.iter().chain(&self.fours) {
            mixes.row(self.row(mix));
        }
        format!("\n{}\n{}{}", table.render(), mixes.render(), self.strangers_table(&counts))
    }

    /// What the policy decided in each mix, a paragraph for each decision.
    pub fn decisions(&self) -> String {
        let of = |mix: &Mix| {
            format!("\n{}\n\n{}\n", self.names(&mix.members), mix.decisions.join("\n\n"))
        };
        self.mixes.iter().chain(&self.fours).map(of).collect()
    }

    fn row(&self, mix: &Mix) -> [String; MIX_HEADING.len()] {
        let letters =
            |classes: Vec<Option<Class>>| classes.into_iter().map(letter).collect::<String>();
        let numbers =
            |counts: &[u16]| counts.iter().map(u16::to_string).collect::<Vec<_>>().join("+");
        let stp =
            |outcome: Option<f64>| outcome.map_or_else(String::new, |stp| format!("{stp:.3}"));
        [
            self.names(&mix.members),
            letters(self.truths(&mix.members).into_iter().map(Some).collect()),
            letters(mix.found.clone()),
            numbers(&mix.sms),
            stp(Some(mix.searched.stp())),
            stp(mix.after.as_ref().map(Outcome::stp)),
            stp(mix.cold.as_ref().map(Outcome::stp)),
            stp(mix.paper.as_ref().map(|(outcome, _)| outcome.stp())),
            mix.paper.as_ref().map_or_else(String::new, |(_, sms)| numbers(sms)),
            stp(Some(mix.even.stp())),
            stp(mix.mps.as_ref().map(Outcome::stp)),
            stp(mix.slices.as_ref().map(Outcome::stp)),
            stp(mix.oracle.as_ref().map(|(_, outcome)| outcome.stp())),
            mix.oracle.as_ref().map_or_else(String::new, |(counts, _)| numbers(counts)),
            format!("{:.3}", mix.searched.antt()),
            format!("{:.3}", mix.even.antt()),
            format!("{:.1}", mix.searched.watts),
            format!("{:.1}", mix.even.watts),
            mix.search.map_or_else(String::new, |nanos| format!("{:.2}", nanos as f64 / 1e6)),
            mix.again.to_string(),
        ]
    }

    /// The mixes as CSV.
    pub fn csv(&self) -> String {
        let mut text =
            MIX_HEADING.map(|name| name.to_lowercase().replace(' ', "_")).join(",") + "\n";
        for mix in self.mixes.iter().chain(&self.fours) {
            text.push_str(&self.row(mix).join(","));
            text.push('\n');
        }
        text
    }
}

const MIX_HEADING: [&str; 20] = [
    "MIX",
    "TRUTH",
    "POLICY",
    "SMS",
    "STP",
    "AFTER",
    "COLD",
    "PAPER",
    "PAPER SMS",
    "EVEN",
    "MPS",
    "SLICES",
    "ORACLE",
    "ITS SMS",
    "ANTT",
    "EVEN ANTT",
    "WATTS",
    "EVEN WATTS",
    "SEARCH MS",
    "AGAIN",
];
