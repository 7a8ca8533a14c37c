//! What became of the runs: as figures, as a table, as CSV, and as plots.

use super::left_behind::LeftBehind;
use super::ways::Way;
use partita_bench::Arrangement;
use partita_bench::percentiles::{interval, percentile};
use partita_bench::plot::{Line, curves};
use partita_cli::report::Metric;
use partita_cli::table::Table;
use partita_model::TargetReport;
use std::fmt::Write as _;

/// A target is met within this many times the 99th percentile alone.
pub const TARGET: f64 = 1.5;
/// An oracle's 99th percentile is at most this many times that alone, where it can be.
const WITHIN: f64 = 1.05;
/// The percentiles that are told, and their names.
const PARTS: [(f64, &str); 3] = [(0.5, "P50"), (0.99, "P99"), (0.999, "P99.9")];

/// What became of one run.
pub struct Row {
    pub load: f64,
    pub neighbour: String,
    pub way: Way,
    /// SMs of the server, where the way is to choose them.
    sms: Option<u16>,
    /// Percentiles in nanoseconds: 50, 99, 99.9.
    latency: [f64; 3],
    /// Where they lie at a confidence of 95 %, in nanoseconds, if there are enough requests.
    intervals: [Option<[f64; 2]>; 3],
    /// The percentiles of the server alone.
    alone: [f64; 3],
    /// The part of requests within the target.
    attained: f64,
    /// CTAs of the batch program in the time of the traffic, as a part of those alone.
    batch: f64,
    /// The same as a part of the SM-time that the server leaves alone.
    of_left: f64,
    /// SMs that the server held in the mean.
    held: f64,
    /// What became of the server's latency target, where it has one.
    target: Option<TargetReport>,
    /// By how much the batch program is faster than beside the same server without a target, as a
    /// part of that, where both were measured.
    gained: Option<f64>,
    /// What programs left in their memory.
    outputs: LeftBehind,
    /// All latencies in nanoseconds.
    all: Vec<f64>,
}

/// A run of the server beside a batch program.
pub struct Measured<'a> {
    pub load: f64,
    pub neighbour: &'a str,
    pub way: Way,
    pub arrangement: &'a Arrangement,
    /// The latencies of the server's requests in nanoseconds.
    pub latencies: Vec<f64>,
    /// The same without a batch program.
    pub alone: &'a [f64],
    /// CTAs of the batch program in the time of the traffic, as a part of those alone.
    pub batch: f64,
    /// The part of the SM-time that the server leaves alone.
    pub left: f64,
    /// SMs that the server held in the mean over the run.
    pub held: f64,
    /// What became of the server's latency target, where it has one.
    pub target: Option<TargetReport>,
    /// What programs left in their memory.
    pub outputs: LeftBehind,
}

impl Row {
    pub fn new(measured: Measured<'_>) -> Row {
        let Measured { load, neighbour, way, arrangement, latencies, alone, batch, .. } = measured;
        let limit = TARGET * percentile(alone, 0.99);
        let within = latencies.iter().filter(|latency| **latency <= limit).count();
        let sms = match arrangement {
            Arrangement::Static(counts) if way == Way::Oracle => counts.first().copied(),
            _ => None,
        };
        Row {
            load,
            neighbour: neighbour.to_owned(),
            way,
            sms,
            latency: PARTS.map(|(part, _)| percentile(&latencies, part)),
            intervals: PARTS.map(|(part, _)| interval(&latencies, part)),
            alone: PARTS.map(|(part, _)| percentile(alone, part)),
            attained: within as f64 / latencies.len().max(1) as f64,
            batch,
            of_left: batch / measured.left.max(1e-9),
            held: measured.held,
            target: measured.target,
            gained: None,
            outputs: measured.outputs,
            all: latencies,
        }
    }

    /// Buffers that hold other words than alone, each in a line.
    pub fn failures(&self) -> Vec<String> {
        let Row { load, neighbour, way, outputs, .. } = self;
        let line = |buffer: &String| {
            format!(
                "load {load}, beside {neighbour}, {}: {buffer} holds other words than after the \
                 same launches alone",
                way.name()
            )
        };
        outputs.different.iter().map(line).collect()
    }

    fn over_alone(&self) -> f64 {
        self.latency[1] / self.alone[1].max(1e-9)
    }
}

/// Notes what the batch programs gained by a latency target of the server.
pub fn compare_targets(rows: &mut [Row]) {
    let of = |row: &Row| (row.load.to_bits(), row.neighbour.clone());
    let without = rows.iter().filter(|row| row.way == Way::LatencyAndBatch);
    let without: Vec<_> = without.map(|row| (of(row), row.batch)).collect();
    for row in rows.iter_mut().filter(|row| row.way == Way::LatencyTarget) {
        let known = without.iter().find(|(place, _)| *place == of(row));
        row.gained = known.map(|(_, batch)| row.batch / batch.max(1e-9) - 1.0);
    }
}

/// The run of a way that counts: of those whose 99th percentile is within [`WITHIN`], the one with
/// the most work of the batch program; where there is none, the one with the lowest percentile.
pub fn best(rows: impl IntoIterator<Item = Row>) -> Option<Row> {
    rows.into_iter().reduce(|one, other| {
        let [one_holds, other_holds] = [&one, &other].map(|row| row.over_alone() <= WITHIN);
        let is_better = match (one_holds, other_holds) {
            (true, true) => other.batch > one.batch,
            (false, false) => other.latency[1] < one.latency[1],
            (_, other_holds) => other_holds,
        };
        if is_better { other } else { one }
    })
}

/// The part of requests that took at most so long, beside one batch program under each way.
pub fn plot(rows: &[Row], load: f64, neighbour: &str) -> String {
    let here =
        rows.iter().filter(|row| row.neighbour == neighbour && (row.load - load).abs() < 1e-9);
    let line = |row: &Row| {
        // Decades of latency, so that queues of milliseconds and requests of 100 µs both show.
        let at = |percent: i32| {
            let part = f64::from(percent) / 100.0;
            ((percentile(&row.all, part) / 1e3).max(1.0).log10(), f64::from(percent))
        };
        let points = (1..=100).map(at).collect();
        Line { name: row.way.name().into(), points, dashed: false }
    };
    let lines: Vec<Line> = here.map(line).collect();
    let title = format!("Latency beside {neighbour}, load {load}");
    curves(&title, "log10 of the latency in µs", "per cent of requests", &lines)
}

/// The figures of all runs; `single` is the median of a request alone, in nanoseconds.
pub fn metrics(rows: &[Row], single: f64) -> Vec<Metric> {
    let mut metrics = vec![Metric::plain("a request alone, median", single / 1e3, "µs")];
    for row in rows {
        let Row { load, neighbour, way, .. } = row;
        let way = way.name();
        let name = |what: &str| format!("load {load}, {neighbour}, {way}: {what}");
        for (place, (_, what)) in PARTS.into_iter().enumerate() {
            let over = row.latency[place] / row.alone[place].max(1e-9);
            metrics.push(Metric::plain(name(&format!("{what} over alone")), over, ""));
            let ends = row.intervals[place].into_iter().flatten().zip(["from", "to"]);
            metrics.extend(ends.map(|(end, side)| {
                Metric::plain(name(&format!("{what}, 95 % {side}")), end / 1e3, "µs")
            }));
        }
        metrics.extend(row.sms.map(|sms| Metric::plain(name("SMs of the server"), sms.into(), "")));
        metrics.push(Metric::plain(name("within the target"), 100.0 * row.attained, "%"));
        metrics.push(Metric::plain(name("batch program"), 100.0 * row.batch, "%"));
        let of_left = name("batch program, of the SM-time left");
        metrics.push(Metric::plain(of_left, 100.0 * row.of_left, "%"));
        if let Some(TargetReport { seen, missed, sms, .. }) = row.target {
            let kept = 100.0 * (seen.saturating_sub(missed)) as f64 / (seen as f64).max(1.0);
            metrics.push(Metric::plain(name("kept its target, as the engine tells"), kept, "%"));
            let sms = sms.map(|sms| Metric::plain(name("SMs for the target"), sms.into(), ""));
            metrics.extend(sms);
        }
        if row.held > 0.0 {
            metrics.push(Metric::plain(name("SMs held by the server, mean"), row.held, ""));
        }
        metrics.extend(row.gained.map(|gained| {
            Metric::plain(name("batch program, gained by the target"), 100.0 * gained, "%")
        }));
        let different = row.outputs.different.len();
        metrics.push(Metric {
            goal: Some(0.0),
            met: Some(different == 0),
            ..Metric::plain(name("buffers that differ from the run alone"), different as f64, "")
        });
    }
    metrics
}

/// All runs, as people read them.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "LOAD",
        "BESIDE",
        "SHARED BY",
        "P50",
        "95 %",
        "P99",
        "95 %",
        "P99.9",
        "95 %",
        "P99 OVER ALONE",
        "IN TIME",
        "BATCH",
        "OF LEFT",
        "SMS HELD",
        "GAINED",
        "BUFFERS",
    ]);
    for row in rows {
        let way = match row.sms.or(row.target.and_then(|target| target.sms)) {
            Some(sms) => format!("{}, {sms} SMs", row.way.name()),
            None => row.way.name().to_owned(),
        };
        let mut cells = vec![row.load.to_string(), row.neighbour.clone(), way];
        for (latency, ends) in row.latency.iter().zip(row.intervals) {
            cells.push(format!("{:.0} µs", latency / 1e3));
            cells.push(match ends {
                Some([low, high]) => format!("{:.0}–{:.0}", low / 1e3, high / 1e3),
                None => "-".to_owned(),
            });
        }
        cells.push(format!("{:.2}", row.over_alone()));
        cells.push(format!("{:.1} %", 100.0 * row.attained));
        cells.push(format!("{:.1} %", 100.0 * row.batch));
        cells.push(format!("{:.1} %", 100.0 * row.of_left));
        cells.push(match row.held {
            held if held > 0.0 => format!("{held:.1}"),
            _ => "-".to_owned(),
        });
        let gained = row.gained.map(|gained| format!("{:+.1} %", 100.0 * gained));
        cells.push(gained.unwrap_or_else(|| "-".to_owned()));
        cells.push(row.outputs.told());
        table.row(cells);
    }
    format!(
        "\noracle: the best fixed split, with SMs of the server; 95 %: where the percentile lies \
         at that confidence, if requests are independent; - where there are too few; IN TIME: \
         requests within {TARGET} × the 99th percentile alone; BATCH: CTAs of the batch program \
         against a run without the server; OF LEFT: BATCH by the part of the SM-time that the \
         server leaves alone; SMS HELD: the server's, in the mean; GAINED: BATCH against that \
         beside the server without a target; latency target: with the SMs that were found to be \
         enough; \
         BUFFERS: device memory of both programs, against the same launches \
         alone\n\n{}",
        table.render()
    )
}

/// All runs, as programs read them. What is not known or not chosen is `-`.
pub fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "load,neighbour,way,p50_ns,p99_ns,p999_ns,alone_p50_ns,alone_p99_ns,alone_p999_ns,\
         attained,batch,batch_of_left,p50_from_ns,p50_to_ns,p99_from_ns,p99_to_ns,p999_from_ns,\
         p999_to_ns,server_sms,sms_held,target_sms,gained,\
         buffers_that_differ\n",
    );
    for row in rows {
        let _ = write!(text, "{},{},{}", row.load, row.neighbour, row.way.name());
        for value in row.latency.iter().chain(&row.alone) {
            let _ = write!(text, ",{value:.0}");
        }
        let _ = write!(text, ",{:.4},{:.4},{:.4}", row.attained, row.batch, row.of_left);
        for ends in row.intervals {
            let _ = match ends {
                Some([low, high]) => write!(text, ",{low:.0},{high:.0}"),
                None => write!(text, ",-,-"),
            };
        }
        let _ = match row.sms {
            Some(sms) => write!(text, ",{sms}"),
            None => write!(text, ",-"),
        };
        let _ = write!(text, ",{:.2}", row.held);
        let _ = match row.target.and_then(|target| target.sms) {
            Some(sms) => write!(text, ",{sms}"),
            None => write!(text, ",-"),
        };
        let _ = match row.gained {
            Some(gained) => write!(text, ",{gained:.4}"),
            None => write!(text, ",-"),
        };
        let _ = writeln!(text, ",{}", row.outputs.different.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{LatencyTarget, Nanos};

    fn row(requests: u32) -> Row {
        let latencies: Vec<f64> = (1..=requests).map(|number| 1e3 * f64::from(number)).collect();
        let alone = [10_000.0];
        Row::new(Measured {
            load: 0.5,
            neighbour: "cp",
            way: Way::Mps,
            arrangement: &Arrangement::Mps,
            latencies,
            alone: &alone,
            batch: 0.4,
            left: 0.5,
            held: 0.0,
            target: None,
            outputs: LeftBehind::default(),
        })
    }

    #[test]
    fn a_percentile_of_few_requests_has_no_interval() {
        let rows = [row(100)];
        let text = table(&rows);
        assert!(text.lines().last().unwrap().contains("50 µs  40–61  99 µs  -     100 µs  -"));
        assert!(text.trim_end().ends_with("same"));
        let csv = csv(&rows);
        let [head, values] = [0, 1].map(|line| csv.lines().nth(line).unwrap().split(','));
        assert_eq!(head.clone().count(), values.clone().count());
        let figures: Vec<(&str, &str)> = head.zip(values).skip(9).collect();
        let expected = [
            ("attained", "0.1500"),
            ("batch", "0.4000"),
            ("batch_of_left", "0.8000"),
            ("p50_from_ns", "40000"),
            ("p50_to_ns", "61000"),
            ("p99_from_ns", "-"),
            ("p99_to_ns", "-"),
            ("p999_from_ns", "-"),
            ("p999_to_ns", "-"),
            ("server_sms", "-"),
            ("sms_held", "0.00"),
            ("target_sms", "-"),
            ("gained", "-"),
            ("buffers_that_differ", "0"),
        ];
        assert_eq!(figures, expected);
        let told = |rows: &[Row]| {
            metrics(rows, 1.0).iter().filter(|metric| metric.name.contains("95 %")).count()
        };
        assert_eq!((told(&rows), told(&[row(400)]), told(&[row(4_000)])), (2, 4, 6));
    }

    #[test]
    fn a_target_tells_what_the_batch_program_gained() {
        let of = |way, batch| Row { way, batch, ..row(20) };
        let mut rows = [of(Way::LatencyAndBatch, 0.4), of(Way::LatencyTarget, 0.5)];
        rows[1].target = LatencyTarget::of(Nanos(330_000)).map(|target| TargetReport {
            target,
            seen: 20,
            missed: 1,
            sms: Some(9),
        });
        compare_targets(&mut rows);
        assert!(rows[0].gained.is_none());
        assert!(table(&rows).contains("latency target, 9 SMs"), "{}", table(&rows));
        assert!(table(&rows).contains("+25.0 %"));
        let told = metrics(&rows, 1.0);
        let value = |name: &str| told.iter().find(|metric| metric.name.ends_with(name));
        let value = |name: &str| value(name).map(|metric| metric.value.round());
        assert_eq!(value("gained by the target"), Some(25.0));
        assert_eq!(value("as the engine tells"), Some(95.0));
    }

    #[test]
    fn the_best_split_keeps_the_percentile_and_then_gives_the_most() {
        // SMs of the server, its 99th percentile over alone, the batch program's work.
        let chosen = |splits: &[(u16, f64, f64)]| {
            let rows = splits.iter().map(|&(sms, over, batch)| {
                Row::new(Measured {
                    load: 0.5,
                    neighbour: "cp",
                    way: Way::Oracle,
                    arrangement: &Arrangement::Static(vec![sms, 24 - sms]),
                    latencies: vec![10_000.0 * over],
                    alone: &[10_000.0],
                    batch,
                    left: 0.5,
                    held: 0.0,
                    target: None,
                    outputs: LeftBehind::default(),
                })
            });
            best(rows).and_then(|row| row.sms)
        };
        let four = [(4, 3.0, 0.9), (8, 1.04, 0.6), (12, 1.02, 0.5), (16, 1.2, 0.3)];
        assert_eq!(chosen(&four), Some(8));
        assert_eq!(chosen(&[four[3], four[2], four[1], four[0]]), Some(8));
        assert_eq!(chosen(&[four[0], four[3]]), Some(16));
        assert_eq!(chosen(&[]), None);
    }
}
