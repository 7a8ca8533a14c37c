//! `partita bench latency`: the latency of a server's requests beside batch programs.

use crate::cd_search::seeds::combined;
use crate::evaluation::{Evaluation, Studied, write_files};
use clap::Args;
use partita_bench::plot::{Line, curves};
use partita_bench::requests::{Process, Traffic, percentile, server};
use partita_bench::{Application, Arrangement, Cell, Cells, RunError, Shared, workloads};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_cli::table::Table;
use partita_emu::Spec;
use partita_model::{Priority, Terms};
use std::fmt::Write as _;

const EXAMPLES: &str = "\
Examples:
  partita bench latency --quick
      requests at half of what the server can do alone, beside three batch programs in turn
  partita bench latency --loads 0.1,0.5,0.9 --requests 2000
      more requests, at three loads
  partita bench latency --arrivals bursty --out plots
      requests that come eight at a time, and the distribution of their latency as plots
  partita bench latency --json | jq '.metrics[] | {name, value}'
      the same, as JSON

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The modelled GPU where none is named.
const SPEC: &str = "gpgpu-sim-24";
/// Requests of a run.
const REQUESTS: usize = 1_000;
const QUICK_REQUESTS: usize = 80;
/// Batch programs beside the server: bound by computing, by DRAM, and by the LLC.
const NEIGHBOURS: [&str; 3] = ["cp", "lbm", "leu"];
/// Requests that tell how long one takes where none waits.
const SPARSE: usize = 40;
/// Nanoseconds between them.
const PAUSE: f64 = 2e6;
/// A target is met within so many times the 99th percentile alone.
const TARGET: f64 = 1.5;
/// Requests of a burst.
const BURST: usize = 8;
/// A run ends so many times the traffic's length after its start, at the latest.
const PATIENCE: u64 = 3;

/// Measure the latency of a server's requests beside batch programs, under all ways to share.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LatencyArgs {
    #[command(flatten)]
    common: Evaluation,

    /// The parts of what the server can do alone that arrive [default: 0.1, 0.5, 0.9; 0.5 with
    /// --quick].
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    loads: Vec<f64>,

    /// How requests follow each other.
    #[arg(long, value_enum, value_name = "PROCESS", default_value = "poisson")]
    arrivals: Arrivals,

    /// Requests of a run [default: 1,000; 80 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(20..=1_000_000))]
    requests: Option<u32>,

    /// The seeds of the arrivals, of the programs' data and of the choices that a GPU leaves open.
    /// With several seeds a figure is their mean, and its spread is their standard deviation.
    #[arg(long, alias = "seed", value_name = "SEED", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
}

/// How requests arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Arrivals {
    /// Independent of each other.
    Poisson,
    /// All as far apart.
    Uniform,
    /// Eight at once, bursts independent of each other.
    Bursty,
}

impl Arrivals {
    fn process(self) -> Process {
        match self {
            Arrivals::Poisson => Process::Poisson,
            Arrivals::Uniform => Process::Uniform,
            Arrivals::Bursty => Process::Bursts(BURST),
        }
    }
}

/// A way to share, by its name.
struct Way {
    name: &'static str,
    arrangement: Arrangement,
}

/// All ways. Shares are fixed halves, even shares, and those of terms.
fn ways(sms: u16) -> Vec<Way> {
    let priority = |priority| Terms { priority: Some(priority), ..Terms::default() };
    let urgent = vec![priority(Priority::Latency), priority(Priority::Batch)];
    let way = |name, arrangement| Way { name, arrangement };
    vec![
        way("time slices", Arrangement::TimeSlice),
        way("MPS", Arrangement::Mps),
        way("static halves", Arrangement::Static(vec![sms / 2, sms - sms / 2])),
        way("even", Arrangement::Even),
        way("cd-search", Arrangement::CdSearch),
        way("latency and batch", Arrangement::Terms(urgent)),
    ]
}

/// What became of one run.
struct Row {
    load: f64,
    neighbour: &'static str,
    way: &'static str,
    /// Percentiles in nanoseconds: 50, 99, 99.9.
    latency: [f64; 3],
    /// The same alone.
    alone: [f64; 3],
    /// The part of requests within the target.
    attained: f64,
    /// CTAs of the batch program in the time of the traffic, as a part of those alone.
    batch: f64,
    /// The same as a part of the SM-time that the server leaves alone.
    of_left: f64,
    /// All latencies in nanoseconds.
    all: Vec<f64>,
}

const PARTS: [f64; 3] = [0.5, 0.99, 0.999];

impl LatencyArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let loads = self.loads();
        if let Some(wrong) = loads.iter().find(|load| !(0.01..=2.0).contains(*load)) {
            let text = format!("--loads {wrong}: a load is a part of 1, from 0.01 to 2");
            return Err(Failure::new(text).with_code(2));
        }
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let mut studied = Vec::new();
        for &seed in &self.seeds {
            studied.push(self.study(&spec, &loads, seed)?);
        }
        let report = Report {
            bench: "latency".into(),
            device: format!("{}, {} requests", spec.name, self.requests()),
            seed: self.seeds[0],
            metrics: combined(studied.iter().map(|studied| &*studied.metrics)),
        };
        self.common.shown(&report, &self.seeds, &studied)
    }

    fn loads(&self) -> Vec<f64> {
        match (self.loads.is_empty(), self.common.quick) {
            (false, _) => self.loads.clone(),
            (true, true) => vec![0.5],
            (true, false) => vec![0.1, 0.5, 0.9],
        }
    }

    fn requests(&self) -> usize {
        let usual = if self.common.quick { QUICK_REQUESTS } else { REQUESTS };
        self.requests.map_or(usual, |requests| requests as usize)
    }

    fn study(&self, spec: &Spec, loads: &[f64], seed: u64) -> Result<Studied, Failure> {
        let server = server(seed);
        let all = workloads(seed);
        let neighbours: Vec<&Application> = NEIGHBOURS
            .iter()
            .filter_map(|name| all.iter().find(|one| one.application.name == *name))
            .map(|one| &one.application)
            .collect();
        let mut cells = Evaluation::cells(seed)?;
        let original = Arrangement::Original(spec.sms);
        let sparse = Traffic::new(Process::Poisson, SPARSE, PAUSE, seed);
        let first = cell(spec, &server, &sparse, (None, original.clone()));
        self.common.compute("a request", &mut cells, std::slice::from_ref(&first))?;
        let single = percentile(&latencies(&server, &sparse, &cells.get(&first)?), 0.5);
        let mut rows = Vec::new();
        for &load in loads {
            let traffic =
                Traffic::new(self.arrivals.process(), self.requests(), single / load, seed);
            let here =
                |neighbour, arrangement| cell(spec, &server, &traffic, (neighbour, arrangement));
            let alone = here(None, original.clone());
            let mut wanted = vec![alone.clone()];
            wanted.extend(neighbours.iter().map(|one| batch_alone(spec, one, &traffic)));
            for &neighbour in &neighbours {
                wanted.extend(
                    ways(spec.sms).into_iter().map(|w| here(Some(neighbour), w.arrangement)),
                );
            }
            self.common.compute("requests", &mut cells, &wanted)?;
            let alone = cells.get(&alone)?;
            let left = left(&alone);
            let unshared = latencies(&server, &traffic, &alone);
            for (&name, &neighbour) in NEIGHBOURS.iter().zip(&neighbours) {
                let speed =
                    batch(&batch_alone(spec, neighbour, &traffic), &mut cells, 0, &traffic)?;
                for Way { name: way, arrangement } in ways(spec.sms) {
                    let cell = here(Some(neighbour), arrangement);
                    let found = latencies(&server, &traffic, &cells.get(&cell)?);
                    let target = TARGET * percentile(&unshared, 0.99);
                    let within = found.iter().filter(|latency| **latency <= target).count();
                    let batch = batch(&cell, &mut cells, 1, &traffic)? / speed.max(1e-9);
                    rows.push(Row {
                        load,
                        neighbour: name,
                        way,
                        latency: PARTS.map(|part| percentile(&found, part)),
                        alone: PARTS.map(|part| percentile(&unshared, part)),
                        attained: within as f64 / found.len().max(1) as f64,
                        batch,
                        of_left: batch / left.max(1e-9),
                        all: found,
                    });
                }
            }
        }
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{seed}"));
            let folder = if self.seeds.len() > 1 { &of_seed } else { folder };
            write_files(folder, &[("requests.csv", csv(&rows))])?;
            for &load in loads {
                for neighbour in NEIGHBOURS {
                    let name = format!("latency-{load}-{neighbour}.svg");
                    write_files(folder, &[(&name, plot(&rows, load, neighbour))])?;
                }
            }
        }
        Ok(Studied { metrics: metrics(&rows, single), text: table(&rows) })
    }
}

/// The run of the server and perhaps a batch program.
fn cell<'a>(
    spec: &'a Spec,
    server: &'a Application,
    traffic: &Traffic,
    (neighbour, arrangement): (Option<&'a Application>, Arrangement),
) -> Cell<'a> {
    let launches = traffic.launches(server);
    Cell {
        applications: std::iter::once(server).chain(neighbour).collect(),
        spec,
        arrangement,
        cycles: cycles(spec, PATIENCE * traffic.end()),
        launches: vec![launches.len() as u64],
        arrivals: vec![launches],
    }
}

/// The run of a batch program without the server.
fn batch_alone<'a>(spec: &'a Spec, one: &'a Application, traffic: &Traffic) -> Cell<'a> {
    Cell {
        applications: vec![one],
        spec,
        arrangement: Arrangement::Original(spec.sms),
        cycles: cycles(spec, traffic.end()),
        launches: Vec::new(),
        arrivals: Vec::new(),
    }
}

fn cycles(spec: &Spec, nanos: u64) -> u64 {
    (nanos.saturating_mul(u64::from(spec.sm_clock_khz)) / 1_000_000).max(1)
}

fn latencies(server: &Application, traffic: &Traffic, shared: &Shared) -> Vec<f64> {
    shared.shares.first().map(|share| traffic.latencies(server, &share.track)).unwrap_or_default()
}

/// The part of the SM-time that the server leaves alone. An SM is used while it holds a CTA.
fn left(alone: &Shared) -> f64 {
    let used = alone.counters.work.sm_cycles as f64;
    (1.0 - used / (alone.counters.powered_sm_cycles as f64).max(1.0)).max(0.0)
}

/// The part of requests that took at most so long, beside one batch program under each way.
fn plot(rows: &[Row], load: f64, neighbour: &str) -> String {
    let here =
        rows.iter().filter(|row| row.neighbour == neighbour && (row.load - load).abs() < 1e-9);
    let line = |row: &Row| {
        // Decades of latency, so that queues of milliseconds and requests of 100 µs both show.
        let at = |percent: i32| {
            let part = f64::from(percent) / 100.0;
            ((percentile(&row.all, part) / 1e3).max(1.0).log10(), f64::from(percent))
        };
        Line { name: row.way.into(), points: (1..=100).map(at).collect(), dashed: false }
    };
    let lines: Vec<Line> = here.map(line).collect();
    let title = format!("Latency beside {neighbour}, load {load}");
    curves(&title, "log10 of the latency in µs", "per cent of requests", &lines)
}

/// CTAs of a batch program by the end of the traffic.
fn batch(
    cell: &Cell<'_>,
    cells: &mut Cells,
    place: usize,
    traffic: &Traffic,
) -> Result<f64, RunError> {
    let shared = cells.get(cell)?;
    Ok(shared.shares.get(place).map_or(0.0, |share| share.track.ctas_at(traffic.end() as f64)))
}

fn metrics(rows: &[Row], single: f64) -> Vec<Metric> {
    let mut metrics = vec![Metric::plain("a request alone, median", single / 1e3, "µs")];
    for row in rows {
        let Row { load, neighbour, way, .. } = row;
        let name = |what: &str| format!("load {load}, {neighbour}, {way}: {what}");
        for (place, what) in ["P50", "P99", "P99.9"].into_iter().enumerate() {
            let over = row.latency[place] / row.alone[place].max(1e-9);
            metrics.push(Metric::plain(name(&format!("{what} over alone")), over, ""));
        }
        metrics.push(Metric::plain(name("within the target"), 100.0 * row.attained, "%"));
        metrics.push(Metric::plain(name("batch program"), 100.0 * row.batch, "%"));
        let of_left = name("batch program, of the SM-time left");
        metrics.push(Metric::plain(of_left, 100.0 * row.of_left, "%"));
    }
    metrics
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "LOAD",
        "BESIDE",
        "SHARED BY",
        "P50",
        "P99",
        "P99.9",
        "P99 OVER ALONE",
        "IN TIME",
        "BATCH",
        "OF LEFT",
    ]);
    let micros = |nanos: f64| format!("{:.0} µs", nanos / 1e3);
    for row in rows {
        let mut cells = vec![row.load.to_string(), row.neighbour.into(), row.way.into()];
        cells.extend(row.latency.map(micros));
        cells.push(format!("{:.2}", row.latency[1] / row.alone[1].max(1e-9)));
        cells.push(format!("{:.1} %", 100.0 * row.attained));
        cells.push(format!("{:.1} %", 100.0 * row.batch));
        cells.push(format!("{:.1} %", 100.0 * row.of_left));
        table.row(cells);
    }
    format!(
        "\nIN TIME: requests within {TARGET} × the 99th percentile alone; BATCH: CTAs of the batch \
         program against a run without the server; OF LEFT: BATCH by the part of the SM-time that \
         the server leaves alone\n\n{}",
        table.render()
    )
}

fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "load,neighbour,way,p50_ns,p99_ns,p999_ns,alone_p50_ns,alone_p99_ns,alone_p999_ns,\
         attained,batch,batch_of_left\n",
    );
    for row in rows {
        let _ = write!(text, "{},{},{}", row.load, row.neighbour, row.way);
        for value in row.latency.iter().chain(&row.alone) {
            let _ = write!(text, ",{value:.0}");
        }
        let _ = writeln!(text, ",{:.4},{:.4},{:.4}", row.attained, row.batch, row.of_left);
    }
    text
}
