//! The figures of `partita demo latency`.

use super::traffic::{Seen, different_words, percentile};
use crate::demo::track::float;
use crate::report::{Metric, Report};
use crate::table::{Table, nanos, printable};

/// The figures of one way to run the server.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    name: &'static str,
    /// Latencies in nanoseconds: the median, and the 99th percentile.
    median: u64,
    tail: u64,
    /// The 99th percentile ÷ that alone.
    against_alone: f64,
    /// The median of device times of a request without waiting for earlier ones, in nanoseconds.
    took: u64,
    /// The speed of the batch program ÷ its speed alone.
    batch: f64,
    /// Words of results that differ from those alone.
    different: usize,
    /// The client's longest delay in nanoseconds.
    latest: u64,
}

impl Row {
    /// The figures of what was seen. `batch` is the speed of the batch program ÷ its speed alone.
    pub fn new(name: &'static str, seen: &Seen, alone: &Seen, batch: f64) -> Row {
        let tail = percentile(&seen.latencies, 99);
        Row {
            name,
            median: seen.median_latency(),
            tail,
            against_alone: float(tail) / float(percentile(&alone.latencies, 99).max(1)),
            took: percentile(&seen.took, 50),
            batch,
            different: different_words(&seen.results, &alone.results),
            latest: seen.latest,
        }
    }
}

/// All of them.
pub struct Comparison {
    /// The GPU's name.
    pub device: String,
    /// The seed of the traffic.
    pub seed: u64,
    /// Requests of each run.
    pub requests: u16,
    /// The part of what the server can do alone that arrives.
    pub load: f64,
    /// The latency of a request that finds an idle server, in nanoseconds.
    pub service_nanos: u64,
    /// The server alone, and each way to share.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// The figures as text.
    pub fn text(&self) -> String {
        let mut table = Table::new(&[
            "SHARING",
            "P50",
            "P99",
            "P99 ÷ ALONE",
            "ONE REQUEST",
            "TRAIN, OF ITS SPEED ALONE",
            "DIFFERENT WORDS",
        ]);
        for (index, row) in self.rows.iter().enumerate() {
            let batch = match index {
                0 => "none beside it".to_owned(),
                _ => format!("{:.1} %", row.batch * 100.0),
            };
            table.row([
                row.name.to_owned(),
                nanos(row.median),
                nanos(row.tail),
                format!("{:.2}", row.against_alone),
                nanos(row.took),
                batch,
                row.different.to_string(),
            ]);
        }
        let latest = self.rows.iter().map(|row| row.latest).max().unwrap_or(0);
        let mut text = format!(
            "\n{}: {} HTTP requests, Poisson arrivals at {} of what serve can do alone \
             (seed {})\n\n{}\n",
            printable(&self.device),
            self.requests,
            self.load,
            self.seed,
            table.render()
        );
        let mut line = |name: &str, value: String| text.push_str(&format!("{name:<9} {value}\n"));
        line(
            "time",
            "device time, by the emulated GPU's clock; from a request's arrival, waiting".into(),
        );
        line("", "included, until its result had been copied to the host".into());
        line(
            "load",
            format!("a request that finds an idle server takes {}", nanos(self.service_nanos)),
        );
        let rank = usize::from(self.requests) - (usize::from(self.requests) * 99).div_ceil(100);
        let name = match rank {
            0 => "the longest latency".to_owned(),
            1 => "the second longest latency".to_owned(),
            _ => format!("exceeded by {rank} latencies"),
        };
        line("P99", format!("{name} of {} requests", self.requests));
        line("client", format!("noticed arrivals at most {} late", nanos(latest)));
        text
    }

    /// The figures in the form of benchmarks.
    pub fn report(&self) -> Report {
        let time = |name, value| Metric::plain(name, float(value), "ns of device time");
        let mut metrics = vec![time("alone: one request".to_owned(), self.service_nanos)];
        for (index, row) in self.rows.iter().enumerate() {
            let of = |what: &str| format!("{}: {what}", row.name);
            metrics.push(time(of("P50"), row.median));
            metrics.push(time(of("P99"), row.tail));
            metrics.push(Metric::plain(of("P99 against alone"), row.against_alone, ""));
            metrics.push(time(of("device time of a request, median"), row.took));
            if index > 0 {
                metrics.push(Metric::plain(of("train: speed against alone"), row.batch, ""));
            }
            metrics.push(Metric::plain(
                of("different words"),
                float(row.different as u64),
                "words",
            ));
            metrics.push(time(of("client: longest delay"), row.latest));
        }
        Report {
            bench: "demo latency".into(),
            device: self.device.clone(),
            seed: self.seed,
            metrics,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(latencies: Vec<u64>, result: &str) -> Seen {
        let results = vec![result.to_owned(); latencies.len()];
        let took = latencies.clone();
        Seen { latencies, took, results, latest: 30, to: 1, ..Seen::default() }
    }

    #[test]
    fn figures_are_against_those_alone() {
        let alone = seen(vec![1_000, 2_000, 4_000], "00000000");
        let beside = seen(vec![3_000, 2_000, 5_000], "00000001");
        let row = Row::new("Partita", &beside, &alone, 0.25);
        assert_eq!((row.median, row.tail, row.different), (3_000, 5_000, 3));
        assert!((row.against_alone - 1.25).abs() < 1e-12);
        let rows = vec![Row::new("alone", &alone, &alone, 1.0), row];
        let comparison = Comparison {
            device: "emu".into(),
            seed: 1,
            requests: 3,
            load: 0.5,
            service_nanos: 900,
            rows,
        };
        let text = comparison.text();
        let line = text.lines().find(|line| line.starts_with("Partita")).unwrap();
        let cells: Vec<&str> =
            line.split("  ").map(str::trim).filter(|it| !it.is_empty()).collect();
        assert_eq!(cells, ["Partita", "3.0 us", "5.0 us", "1.25", "3.0 us", "25.0 %", "3"]);
        let report = comparison.report();
        let value = |name: &str| report.metrics.iter().find(|it| it.name == name).unwrap().value;
        assert!((value("Partita: train: speed against alone") - 0.25).abs() < 1e-12);
        assert!((value("Partita: different words") - 3.0).abs() < 1e-12);
    }
}
