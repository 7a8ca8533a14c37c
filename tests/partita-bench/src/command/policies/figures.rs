//! What the runs of `partita bench policies` say.

use partita_bench::comparison::Outcome;
use partita_bench::plot::{Bars, sorted_bars};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use std::fmt::Write as _;

/// A mix that loses so much of even shares' throughput counts as one that loses.
const LOSES: f64 = 0.02;

/// One mix under every policy.
pub struct Mix {
    pub title: String,
    /// In the order of [`Figures::names`].
    pub outcomes: Vec<Outcome>,
}

/// All mixes of one seed. The first name is that of even shares.
pub struct Figures {
    pub names: Vec<String>,
    pub mixes: Vec<Mix>,
}

/// What a policy does with all mixes.
struct Summary {
    stp: f64,
    /// Of STP over even shares, as a part.
    gain: f64,
    least: f64,
    losing: usize,
    antt: f64,
    /// The mean over the mixes of the worst slowdown in each.
    worst: f64,
    makespan: f64,
}

impl Figures {
    fn summary(&self, policy: usize) -> Summary {
        let mean = |of: &dyn Fn(&Mix) -> f64| {
            self.mixes.iter().map(of).sum::<f64>() / self.mixes.len().max(1) as f64
        };
        let gain = |mix: &Mix| mix.outcomes[policy].stp() / mix.outcomes[0].stp() - 1.0;
        Summary {
            stp: mean(&|mix| mix.outcomes[policy].stp()),
            gain: mean(&gain),
            least: self.mixes.iter().map(gain).fold(f64::INFINITY, f64::min),
            losing: self.mixes.iter().filter(|mix| gain(mix) < -LOSES).count(),
            antt: mean(&|mix| mix.outcomes[policy].antt()),
            worst: mean(&|mix| mix.outcomes[policy].worst()),
            makespan: mean(&|mix| mix.outcomes[0].makespan / mix.outcomes[policy].makespan - 1.0),
        }
    }

    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for (policy, name) in self.names.iter().enumerate() {
            let found = self.summary(policy);
            let losing = 100.0 * found.losing as f64 / self.mixes.len().max(1) as f64;
            let rows = [
                ("STP, mean", found.stp, ""),
                ("STP over even, mean", 100.0 * found.gain, "%"),
                ("STP over even, worst mix", 100.0 * found.least, "%"),
                ("mixes more than 2 % under even", losing, "%"),
                ("ANTT, mean", found.antt, ""),
                ("worst slowdown of a mix, mean", found.worst, ""),
                ("makespan over even, mean", 100.0 * found.makespan, "%"),
            ];
            // Even shares over themselves say nothing.
            let rows = rows.iter().filter(|(what, ..)| policy > 0 || !what.contains("even"));
            metrics.extend(rows.map(|(what, value, unit)| {
                Metric::plain(format!("{name}: {what}"), *value, *unit)
            }));
        }
        metrics
    }

    /// One row for each policy.
    pub fn table(&self) -> String {
        let mut table = Table::new(&[
            "POLICY",
            "STP",
            "OVER EVEN",
            "WORST MIX",
            "LOSING",
            "ANTT",
            "WORST SLOWDOWN",
            "MAKESPAN",
        ]);
        for (policy, name) in self.names.iter().enumerate() {
            let found = self.summary(policy);
            let percent = |part: f64| format!("{:+.1} %", 100.0 * part);
            table.row(vec![
                name.clone(),
                format!("{:.3}", found.stp),
                percent(found.gain),
                percent(found.least),
                format!("{} of {}", found.losing, self.mixes.len()),
                format!("{:.2}", found.antt),
                format!("{:.2}", found.worst),
                percent(found.makespan),
            ]);
        }
        format!(
            "\n{} mixes; LOSING: mixes with more than 2 % less STP than even shares; MAKESPAN: how \
             much sooner all is done than with even shares\n\n{}",
            self.mixes.len(),
            table.render()
        )
    }

    pub fn csv(&self) -> String {
        let mut text = "mix,policy,stp,antt,worst_slowdown,makespan_ns\n".to_owned();
        for mix in &self.mixes {
            for (name, outcome) in self.names.iter().zip(&mix.outcomes) {
                let _ = writeln!(
                    text,
                    "{},{name},{:.4},{:.4},{:.4},{:.0}",
                    mix.title,
                    outcome.stp(),
                    outcome.antt(),
                    outcome.worst(),
                    outcome.makespan
                );
            }
        }
        text
    }

    pub fn plot(&self) -> String {
        let over = |policy: usize| {
            let gain =
                |mix: &Mix| 100.0 * (mix.outcomes[policy].stp() / mix.outcomes[0].stp() - 1.0);
            self.mixes.iter().map(gain).collect::<Vec<f64>>()
        };
        let kinds = self.names.iter().enumerate().skip(1);
        let bars = Bars {
            names: self.mixes.iter().map(|mix| mix.title.clone()).collect(),
            kinds: kinds.map(|(policy, name)| (name.clone(), over(policy))).collect(),
        };
        sorted_bars("Mixes: STP against even shares", "per cent", &bars)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_judged_against_even_shares() {
        let mix = |speeds: [[f64; 2]; 2]| Mix {
            title: "a b".to_owned(),
            outcomes: speeds
                .map(|speeds| Outcome { speeds: speeds.to_vec(), makespan: 1.0 / speeds[0] })
                .to_vec(),
        };
        let mixes = vec![mix([[0.5, 0.5], [0.6, 0.6]]), mix([[0.5, 0.5], [0.25, 0.65]])];
        let figures = Figures { names: vec!["even".to_owned(), "other".to_owned()], mixes };
        let found = figures.summary(1);
        assert!((found.gain - 0.05).abs() < 1e-9, "{}", found.gain);
        assert!((found.least + 0.1).abs() < 1e-9, "{}", found.least);
        assert_eq!(found.losing, 1);
        assert!((found.worst - (1.0 / 0.6 + 4.0) / 2.0).abs() < 1e-9, "{}", found.worst);
        assert!((found.makespan - (0.2 - 0.5) / 2.0).abs() < 1e-9, "{}", found.makespan);
        // Nothing is said of even shares against themselves.
        let of_even = |metric: &Metric| metric.name.starts_with("even: ");
        assert_eq!(figures.metrics().iter().filter(|metric| of_even(metric)).count(), 3);
    }
}
