//! `partita bench latency`: the latency of a server's requests beside batch programs.

mod left_behind;
mod rows;
mod ways;

use crate::cd_search::seeds::combined;
use crate::evaluation::{Evaluation, Studied, write_files};
use clap::{Args, ValueEnum as _};
use left_behind::Alone;
use partita_bench::percentiles::percentile;
use partita_bench::requests::{Process, Traffic, server};
use partita_bench::{
    Application, Arrangement, Cell, Cells, RunError, Shared, transformer, workloads,
};
use partita_cli::failure::Failure;
use partita_cli::progress::Bar;
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_model::{LatencyTarget, Nanos};
use rows::{Measured, Row, TARGET, best, compare_targets, csv, metrics, plot, table};
use ways::Way;

const EXAMPLES: &str = "\
Examples:
  partita bench latency --quick
      requests at half of what the server can do alone, beside three batch programs in turn
  partita bench latency --loads 0.1,0.5,0.9 --requests 2000
      more requests, at three loads
  partita bench latency --quick --ways mps,latency-and-batch --neighbours lbm
      two ways to share, beside one batch program
  partita bench latency --quick --server transformer --ways latency-and-batch,oracle
      requests of 35 launches of a transformer's kernels, beside the best fixed split
  partita bench latency --quick --ways latency-and-batch,latency-target
      SMs that a latency target saves, and the speed that the batch program gains by it
  partita bench latency --arrivals bursty --out plots
      requests that come eight at a time, and the distribution of their latency as plots
  partita bench latency --json | jq '.metrics[] | {name, value}'
      the same, as JSON

After each way the server's and the batch program's device buffers are compared with those of the
same launches alone, as they were written. A difference is a failure with the buffer's name.
Programs that add floating-point numbers by atomics are left out: their sums depend on the order of
CTAs.

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

    /// The ways to share [default: all; all but the oracle with --quick].
    #[arg(long, value_enum, value_name = "WAY", value_delimiter = ',')]
    ways: Vec<Way>,

    /// The batch programs, each beside the server in a run of its own: workloads of `partita bench
    /// cd-search`.
    #[arg(long, value_name = "PROGRAM", value_delimiter = ',', default_values = NEIGHBOURS)]
    neighbours: Vec<String>,

    /// What a request is.
    #[arg(long, value_enum, value_name = "SERVER", default_value = "chain")]
    server: Server,

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

/// What a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Server {
    /// 12 small launches, each after the one before: products, element-wise, transpositions.
    Chain,
    /// One pass of a small transformer: 35 launches, each after the one before, of kernels that
    /// Triton made.
    Transformer,
}

impl Server {
    fn application(self, seed: u64) -> Application {
        match self {
            Server::Chain => server(seed),
            Server::Transformer => transformer(seed),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Server::Chain => "chain",
            Server::Transformer => "transformer",
        }
    }
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

impl LatencyArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let loads = self.loads();
        if let Some(wrong) = loads.iter().find(|load| !(0.01..=2.0).contains(*load)) {
            let text = format!("--loads {wrong}: a load is a part of 1, from 0.01 to 2");
            return Err(Failure::new(text).with_code(2));
        }
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let (mut studied, mut failures) = (Vec::new(), Vec::new());
        for &seed in &self.seeds {
            let (one, different) = self.study(&spec, &loads, seed)?;
            studied.push(one);
            failures.extend(different.into_iter().map(|line| format!("seed {seed}, {line}")));
        }
        let report = Report {
            bench: "latency".into(),
            device: format!(
                "{}, {} requests of {}",
                spec.name,
                self.requests(),
                self.server.name()
            ),
            seed: self.seeds[0],
            metrics: combined(studied.iter().map(|studied| &*studied.metrics)),
        };
        let shown = self.common.shown(&report, &self.seeds, &studied)?;
        match &*failures {
            [] => Ok(shown),
            _ => Err(Failure::new(failures.join("\n")).after(shown)),
        }
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

    /// Ways in the order of the list of all, each once.
    fn ways(&self) -> Vec<Way> {
        let is_usual = |way: &Way| !self.common.quick || *way != Way::Oracle;
        let is_wanted = |way: &&Way| match &*self.ways {
            [] => is_usual(way),
            named => named.contains(way),
        };
        Way::value_variants().iter().filter(is_wanted).copied().collect()
    }

    /// The batch programs, each once.
    fn neighbours<'a>(&self, all: &'a [Application]) -> Result<Vec<&'a Application>, Failure> {
        let mut found: Vec<&Application> = Vec::new();
        for name in &self.neighbours {
            let Some(one) = all.iter().find(|one| one.name == *name) else {
                let names: Vec<&str> = all.iter().map(|one| &*one.name).collect();
                let names = names.join(", ");
                let text = format!("--neighbours {name}: no such program; there are {names}");
                return Err(Failure::new(text).with_code(2));
            };
            if found.iter().all(|known| known.name != one.name) {
                found.push(one);
            }
        }
        Ok(found)
    }

    /// Measures with one seed. What applications left otherwise than alone comes beside it.
    fn study(
        &self,
        spec: &Spec,
        loads: &[f64],
        seed: u64,
    ) -> Result<(Studied, Vec<String>), Failure> {
        let server = self.server.application(seed);
        let all: Vec<Application> =
            workloads(seed).into_iter().map(|one| one.application).collect();
        let neighbours = self.neighbours(&all)?;
        let mut cells = Evaluation::cells(seed)?.with_outputs();
        let original = Arrangement::Original(spec.sms);
        let sparse = Traffic::new(Process::Poisson, SPARSE, PAUSE, seed);
        let first = cell(spec, &server, &sparse, (None, original.clone()));
        self.common.compute("a request", &mut cells, std::slice::from_ref(&first))?;
        let single = percentile(&latencies(&sparse, &cells.get(&first)?), 0.5);
        let (mut rows, mut different) = (Vec::new(), Vec::new());
        for &load in loads {
            let traffic =
                Traffic::new(self.arrivals.process(), self.requests(), single / load, seed);
            let here =
                |neighbour, arrangement| cell(spec, &server, &traffic, (neighbour, arrangement));
            let alone = here(None, original.clone());
            self.common.compute("alone", &mut cells, std::slice::from_ref(&alone))?;
            let unshared = latencies(&traffic, &cells.get(&alone)?);
            let target = target(&unshared);
            let arrangements = |way: Way| way.arrangements(spec.sms, self.common.quick, target);
            let mut wanted = vec![alone.clone()];
            wanted.extend(neighbours.iter().map(|one| batch_alone(spec, one, &traffic)));
            for &neighbour in &neighbours {
                let all = self.ways().into_iter().flat_map(arrangements);
                wanted.extend(all.map(|arrangement| here(Some(neighbour), arrangement)));
            }
            self.common.compute("requests", &mut cells, &wanted)?;
            let outputs = left_alone(spec, &mut cells, &wanted)?;
            let alone = cells.get(&alone)?;
            let left = left(&alone);
            for &neighbour in &neighbours {
                let speed =
                    batch(&batch_alone(spec, neighbour, &traffic), &mut cells, 0, &traffic)?;
                for way in self.ways() {
                    let mut tried = Vec::new();
                    for arrangement in arrangements(way) {
                        let cell = here(Some(neighbour), arrangement);
                        let batch = batch(&cell, &mut cells, 1, &traffic)? / speed.max(1e-9);
                        let shared = cells.get(&cell)?;
                        tried.push(Row::new(Measured {
                            load,
                            neighbour: &neighbour.name,
                            way,
                            arrangement: &cell.arrangement,
                            latencies: latencies(&traffic, &shared),
                            alone: &unshared,
                            batch,
                            left,
                            held: held(&shared),
                            target: shared.shares.first().and_then(|share| share.target),
                            outputs: outputs.compare(&cell.applications, &shared),
                        }));
                    }
                    different.extend(tried.iter().flat_map(Row::failures));
                    rows.extend(best(tried));
                }
            }
        }
        compare_targets(&mut rows);
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{seed}"));
            let folder = if self.seeds.len() > 1 { &of_seed } else { folder };
            write_files(folder, &[("requests.csv", csv(&rows))])?;
            for &load in loads {
                for neighbour in &neighbours {
                    let name = format!("latency-{load}-{}.svg", neighbour.name);
                    write_files(folder, &[(&name, plot(&rows, load, &neighbour.name))])?;
                }
            }
        }
        Ok((Studied { metrics: metrics(&rows, single), text: table(&rows) }, different))
    }
}

/// What the programs of these runs leave alone. It takes about as long as the runs, so a bar shows
/// how far that has got.
fn left_alone(spec: &Spec, cells: &mut Cells, runs: &[Cell<'_>]) -> Result<Alone, RunError> {
    let mut bar = Bar::new("compared with alone", "launches");
    let alone = Alone::new(spec, cells, runs, &mut |done, of, title| bar.step(done, of, title));
    bar.end();
    alone
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

fn latencies(traffic: &Traffic, shared: &Shared) -> Vec<f64> {
    shared.shares.first().map(|share| traffic.latencies(share)).unwrap_or_default()
}

/// The server's latency target: a multiple of its 99th percentile alone.
fn target(alone: &[f64]) -> Option<LatencyTarget> {
    let nanos = TARGET * percentile(alone, 0.99);
    let nanos = std::time::Duration::try_from_secs_f64(nanos / 1e9).ok()?;
    LatencyTarget::of(Nanos(u64::try_from(nanos.as_nanos()).ok()?))
}

/// SMs that the server held in the mean over the run.
fn held(shared: &Shared) -> f64 {
    let nanos = shared.shares.first().map_or(0, |share| share.sm_nanos);
    nanos as f64 / (shared.nanos as f64).max(1.0)
}

/// The part of the SM-time that the server leaves alone. An SM is used while it holds a CTA.
fn left(alone: &Shared) -> f64 {
    let used = alone.counters.work.sm_cycles as f64;
    (1.0 - used / (alone.counters.powered_sm_cycles as f64).max(1.0)).max(0.0)
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
