//! What the runs of `partita bench slate` say.

use super::OTHERS;
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
    pub slate: f64,
    /// Of the other policies, in the order of [`OTHERS`].
    pub others: Vec<f64>,
    /// The best static split, or one after the other.
    pub oracle: f64,
    /// The policy's decisions.
    pub decisions: Vec<String>,
}

/// What the funnel costs an application, in per cent of its time.
#[derive(Debug)]
pub struct Funnel {
    pub name: String,
    pub communication: f64,
    pub injection: f64,
    pub compilation: f64,
    /// Of a launch, from its call to the end of a kernel that does nothing.
    pub launch_micros: f64,
    /// Of loading all modules, rewritten.
    pub load_millis: f64,
}

/// Everything that was measured with one seed.
pub struct Figures<'a> {
    pub pairing: &'a Pairing<'a>,
    pub pairs: Vec<Pair>,
    /// The parts of each application where they were measured.
    pub funnel: Vec<Funnel>,
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
    fn gains(&self, of: impl Fn(&Pair) -> f64, over: Makespan) -> Gains {
        let all = self.pairs.iter().map(|pair| 100.0 * gain(of(pair), over(pair)));
        Gains {
            mean: all.clone().sum::<f64>() / self.pairs.len().max(1) as f64,
            best: all.clone().fold(f64::NEG_INFINITY, f64::max),
            worst: all.fold(f64::INFINITY, f64::min),
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
        let mut beside = |name: &str, gains: Gains| {
            metrics.push(Metric::plain(format!("{name}: mean gain over MPS"), gains.mean, "%"));
            metrics.push(Metric::plain(format!("{name}: worst gain over MPS"), gains.worst, "%"));
        };
        for (index, (name, _)) in OTHERS.iter().enumerate() {
            beside(name, self.gains(|pair| pair.others[index], |pair| pair.mps));
        }
        beside("oracle", self.gains(|pair| pair.oracle, |pair| pair.mps));
        let mps = self.gains(|pair| pair.mps, |pair| pair.slices);
        metrics.push(paper(Metric::plain("MPS: mean gain over time slices", mps.mean, "%"), 6.0));
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
        metrics.extend(self.funnel_metrics());
        metrics
    }

    fn funnel_metrics(&self) -> Vec<Metric> {
        if self.funnel.is_empty() {
            return Vec::new();
        }
        let mean = |of: fn(&Funnel) -> f64| {
            self.funnel.iter().map(of).sum::<f64>() / self.funnel.len() as f64
        };
        let communication = mean(|part| part.communication);
        let loads = mean(|part| part.injection + part.compilation);
        let paper = |name: &str, value: f64, paper: f64| Metric {
            paper: Some(paper),
            ..Metric::plain(format!("funnel: {name}, mean"), value, "% of time")
        };
        let sum =
            Metric::at_most("funnel: all of it, mean", communication + loads, "% of time", 2.0);
        let mut metrics = vec![
            paper("communication", communication, 4.0),
            paper("injection and compilation", loads, 1.5),
            Metric { paper: Some(5.5), ..sum },
        ];
        for part in &self.funnel {
            let mut row = |what: &str, value: f64, unit: &str| {
                let name = format!("funnel: {} {what}", part.name);
                metrics.push(Metric::plain(name, value, unit));
            };
            row("communication", part.communication, "% of time");
            row("injection", part.injection, "% of time");
            row("compilation", part.compilation, "% of time");
            row("per launch", part.launch_micros, "us");
            row("load", part.load_millis, "ms");
        }
        metrics
    }

    fn title(&self, pair: &Pair) -> String {
        pair.members.map(|index| self.pairing.applications[index].name.as_str()).join("-")
    }

    /// Gains of every pair.
    pub fn table(&self) -> String {
        let mut columns = vec!["PAIR", "MPS", "SLATE"];
        columns.extend(OTHERS.iter().map(|(name, _)| *name));
        columns.extend(["ORACLE", "SLATE/MPS"]);
        let mut table = Table::new(&columns);
        for pair in &self.pairs {
            let over = |makespan: f64| format!("{:+.1} %", 100.0 * gain(makespan, pair.slices));
            let mut row = vec![self.title(pair), over(pair.mps), over(pair.slate)];
            row.extend(pair.others.iter().map(|makespan| over(*makespan)));
            row.extend([
                over(pair.oracle),
                format!("{:+.1} %", 100.0 * gain(pair.slate, pair.mps)),
            ]);
            table.row(row);
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
        let mut text = "first,second,time_slices_ns,mps_ns,slate_ns".to_owned();
        for (name, _) in &OTHERS {
            let _ = write!(text, ",{}_ns", name.replace(['+', '-'], "_"));
        }
        text.push_str(",oracle_ns\n");
        for pair in &self.pairs {
            let [first, second] = pair.members.map(|index| &*self.pairing.applications[index].name);
            let _ = write!(text, "{first},{second}");
            let Pair { slices, mps, slate, others, oracle, .. } = pair;
            for makespan in [slices, mps, slate].into_iter().chain(others).chain([oracle]) {
                let _ = write!(text, ",{makespan:.0}");
            }
            text.push('\n');
        }
        text
    }

    pub fn plot(&self) -> String {
        let over = |of: &dyn Fn(&Pair) -> f64| -> Vec<f64> {
            self.pairs.iter().map(|pair| 100.0 * gain(of(pair), pair.mps)).collect()
        };
        let mut kinds = vec![("Slate".to_owned(), over(&|pair| pair.slate))];
        for (index, (name, _)) in OTHERS.iter().enumerate() {
            kinds.push(((*name).to_owned(), over(&|pair| pair.others[index])));
        }
        kinds.push(("oracle".to_owned(), over(&|pair| pair.oracle)));
        let names = self.pairs.iter().map(|pair| self.title(pair)).collect();
        sorted_bars("Pairs: change against MPS", "per cent", &Bars { names, kinds })
    }
}
