//! The one shape of every benchmark's result, as a table and as JSON.

use crate::table::Table;
use serde::{Deserialize, Serialize};

/// The result of a benchmark.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The benchmark's name.
    pub bench: String,
    /// The device under test.
    pub device: String,
    /// The seed of all random choices.
    pub seed: u64,
    /// The figures.
    pub metrics: Vec<Metric>,
}

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Metric {
    /// The name of the quantity.
    pub name: String,
    /// The measured value; with several seeds the mean over them.
    pub value: f64,
    /// The sample standard deviation over seeds, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// The unit of the values.
    pub unit: String,
    /// Partita's goal for the value.
    pub goal: Option<f64>,
    /// The value that a paper reports.
    pub paper: Option<f64>,
    /// Whether the goal is met.
    pub met: Option<bool>,
}

impl Metric {
    /// A figure without a goal.
    pub fn plain(name: impl Into<String>, value: f64, unit: impl Into<String>) -> Metric {
        Metric {
            name: name.into(),
            value,
            spread: None,
            unit: unit.into(),
            goal: None,
            paper: None,
            met: None,
        }
    }

    /// A figure that should be at least `goal`.
    pub fn at_least(
        name: impl Into<String>,
        value: f64,
        unit: impl Into<String>,
        goal: f64,
    ) -> Metric {
        Metric { goal: Some(goal), met: Some(value >= goal), ..Metric::plain(name, value, unit) }
    }

    /// A figure that should be at most `goal`.
    pub fn at_most(
        name: impl Into<String>,
        value: f64,
        unit: impl Into<String>,
        goal: f64,
    ) -> Metric {
        Metric { goal: Some(goal), met: Some(value <= goal), ..Metric::plain(name, value, unit) }
    }

    /// A figure whose goal is a reference's value, within the relative `tolerance`.
    pub fn near(
        name: impl Into<String>,
        value: f64,
        unit: impl Into<String>,
        paper: f64,
        tolerance: f64,
    ) -> Metric {
        let met = (value - paper).abs() <= paper.abs() * tolerance;
        Metric {
            goal: Some(paper),
            paper: Some(paper),
            met: Some(met),
            ..Metric::plain(name, value, unit)
        }
    }
}

impl Report {
    /// The report as text.
    pub fn table(&self) -> String {
        let spread = self.metrics.iter().any(|metric| metric.spread.is_some());
        let mut heading = vec!["METRIC", "VALUE", "UNIT", "GOAL", "PAPER", "MET"];
        if spread {
            heading.insert(2, "SPREAD");
        }
        let mut table = Table::new(&heading);
        for metric in &self.metrics {
            let met = match metric.met {
                None => "",
                Some(true) => "yes",
                Some(false) => "NO",
            };
            let mut row = vec![
                metric.name.clone(),
                number(metric.value),
                metric.unit.clone(),
                metric.goal.map(number).unwrap_or_default(),
                metric.paper.map(number).unwrap_or_default(),
                met.into(),
            ];
            if spread {
                row.insert(2, metric.spread.map(number).unwrap_or_default());
            }
            table.row(row);
        }
        format!("{} on {}, seed {}\n\n{}", self.bench, self.device, self.seed, table.render())
    }
}

/// Three significant decimals for small numbers, none for large ones.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let metrics = vec![
            Metric::at_least("arithmetic chain", 9123.4, "M thread instructions/s", 8000.0),
            Metric::at_least("saxpy", 15.25, "GB/s", 20.0),
            Metric { paper: Some(7.6), ..Metric::plain("ratio", 0.5, "") },
        ];
        Report { bench: "emu-speed".into(), device: "emu".into(), seed: 1, metrics }
    }

    #[test]
    fn as_a_table() {
        let expected = "\
emu-speed on emu, seed 1

METRIC            VALUE   UNIT                     GOAL   PAPER  MET
arithmetic chain  9123    M thread instructions/s  8000          yes
saxpy             15.25   GB/s                     20.00         NO
ratio             0.5000                                  7.60
";
        assert_eq!(report().table(), expected);
    }

    #[test]
    fn a_spread_has_a_column() {
        let mut report = report();
        report.metrics.truncate(2);
        report.metrics[0].spread = Some(12.5);
        let expected = "\
emu-speed on emu, seed 1

METRIC            VALUE  SPREAD  UNIT                     GOAL   PAPER  MET
arithmetic chain  9123   12.50   M thread instructions/s  8000          yes
saxpy             15.25          GB/s                     20.00         NO
";
        assert_eq!(report.table(), expected);
    }

    #[test]
    fn as_json() {
        let mut report = report();
        report.metrics.truncate(1);
        let expected = [
            r#"{"bench":"emu-speed","device":"emu","seed":1,"metrics":["#,
            r#"{"name":"arithmetic chain","value":9123.4,"unit":"M thread instructions/s","#,
            r#""goal":8000.0,"paper":null,"met":true}]}"#,
        ]
        .concat();
        assert_eq!(serde_json::to_string(&report).unwrap(), expected);
    }
}
