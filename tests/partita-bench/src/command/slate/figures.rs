//! What the runs of `partita bench slate` say.

use partita_bench::pairing::{Pairing, gain};
use partita_bench::plot::{Bars, sorted_bars};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use std::fmt::Write as _;

/// Makespans of one pair in nanoseconds.
#[derive(Debug)]
pub struct Pair {
    pub members: [usize; 2],
    pub slices: f64,
    pub mps: f64,
    pub even: f64,
    pub slate: f64,
    pub slate_cd: f64,
    /// The best static split, or one after the other.
    pub oracle: f64,
    /// The policy's decisions.
    pub decisions: Vec<String>,
}

/// Everything that was measured.
pub struct Figures<'a> {
    pub pairing: &'a Pairing<'a>,
    pub pairs: Vec<Pair>,
}

/// A makespan of a pair.
type Makespan = fn(&Pair) -> f64;

/// Mean, best and worst in per cent.
struct Gains {
    mean: f64,
    best: f64,
    worst: f64,
}

impl Figures<'_> {
    fn gains(&self, of: Makespan, over: Makespan) -> Gains {
        let all: Vec<f64> =
            self.pairs.iter().map(|pair| 100.0 * gain(of(pair), over(pair))).collect();
        Gains {
            mean: all.iter().sum::<f64>() / all.len().max(1) as f64,
            best: all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            worst: all.iter().copied().fold(f64::INFINITY, f64::min),
        }
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let paper = |metric: Metric, paper: f64| Metric { paper: Some(paper), ..metric };
        let mut metrics = Vec::new();
        let over: [(&str, Makespan, [Option<f64>; 3]); 2] = [
            ("MPS", |pair| pair.mps, [Some(11.0), Some(35.0), Some(-2.0)]),
            ("time slices", |pair| pair.slices, [Some(18.0), None, None]),
        ];
        for (name, baseline, papers) in over {
            let slate = self.gains(|pair| pair.slate, baseline);
            let named = |what: &str| format!("slate: {what} gain over {name}");
            let of_paper = |metric: Metric, index: usize| Metric { paper: papers[index], ..metric };
            metrics.push(of_paper(Metric::at_least(named("mean"), slate.mean, "%", 20.0), 0));
            metrics.push(of_paper(Metric::plain(named("best"), slate.best, "%"), 1));
            metrics.push(of_paper(Metric::at_least(named("worst"), slate.worst, "%", -2.0), 2));
        }
        let others: [(&str, Makespan); 3] = [
            ("slate with cd-search", |pair| pair.slate_cd),
            ("even", |pair| pair.even),
            ("oracle", |pair| pair.oracle),
        ];
        for (name, of) in others {
            let gains = self.gains(of, |pair| pair.mps);
            metrics.push(Metric::plain(format!("{name}: mean gain over MPS"), gains.mean, "%"));
            metrics.push(Metric::plain(format!("{name}: worst gain over MPS"), gains.worst, "%"));
        }
        let mps = self.gains(|pair| pair.mps, |pair| pair.slices);
        let metric = Metric::plain("MPS: mean gain over time slices", mps.mean, "%");
        metrics.push(paper(metric, 6.0));
        let solos = &self.pairing.solos;
        let added: Vec<f64> = solos.iter().map(|solo| 100.0 * (solo.instructions - 1.0)).collect();
        let mean = added.iter().sum::<f64>() / added.len().max(1) as f64;
        metrics.push(paper(Metric::plain("alone: instructions added", mean, "%"), 3.0));
        for (application, solo) in self.pairing.applications.iter().zip(solos) {
            let name = format!("alone: {} against the hardware's scheduling", application.name);
            let metric = Metric::plain(name, 100.0 * gain(solo.shared, solo.original), "%");
            metrics.push(match application.name.as_str() {
                "gaussian" => paper(metric, 28.0),
                _ => metric,
            });
        }
        metrics
    }

    fn title(&self, pair: &Pair) -> String {
        pair.members.map(|index| self.pairing.applications[index].name.as_str()).join("-")
    }

    /// Gains of every pair.
    pub fn table(&self) -> String {
        let mut table =
            Table::new(&["PAIR", "MPS", "EVEN", "SLATE", "SLATE+CD", "ORACLE", "SLATE/MPS"]);
        for pair in &self.pairs {
            let over = |makespan: f64| format!("{:+.1} %", 100.0 * gain(makespan, pair.slices));
            table.row(vec![
                self.title(pair),
                over(pair.mps),
                over(pair.even),
                over(pair.slate),
                over(pair.slate_cd),
                over(pair.oracle),
                format!("{:+.1} %", 100.0 * gain(pair.slate, pair.mps)),
            ]);
        }
        format!("\ngains over time slices\n\n{}", table.render())
    }

    /// The policy's decisions.
    pub fn decisions(&self) -> String {
        let mut text = String::new();
        for pair in &self.pairs {
            let _ = write!(text, "\n{}\n", self.title(pair));
            for decision in &pair.decisions {
                let _ = writeln!(text, "  {decision}");
            }
        }
        text
    }

    pub fn csv(&self) -> String {
        let mut text = "first,second,time_slices_ns,mps_ns,even_ns,slate_ns,slate_cd_search_ns,\
                        oracle_ns\n"
            .to_owned();
        for pair in &self.pairs {
            let [first, second] = pair.members.map(|index| &*self.pairing.applications[index].name);
            let Pair { slices, mps, even, slate, slate_cd, oracle, .. } = pair;
            let _ = writeln!(
                text,
                "{first},{second},{slices:.0},{mps:.0},{even:.0},{slate:.0},{slate_cd:.0},\
                 {oracle:.0}"
            );
        }
        text
    }

    pub fn plot(&self) -> String {
        let over = |of: Makespan| {
            self.pairs.iter().map(|pair| 100.0 * gain(of(pair), pair.mps)).collect::<Vec<f64>>()
        };
        let bars = Bars {
            names: self.pairs.iter().map(|pair| self.title(pair)).collect(),
            kinds: vec![
                ("Slate".to_owned(), over(|pair| pair.slate)),
                ("Slate with CD-search".to_owned(), over(|pair| pair.slate_cd)),
                ("oracle".to_owned(), over(|pair| pair.oracle)),
            ],
        };
        sorted_bars("Pairs: change against MPS", "per cent", &bars)
    }
}
