//! What Partita costs one program: a run on a private daemon with partitions, and the same run on
//! one without, where kernels run as they were written.
//!
//! The device time of a run is the emulated GPU's at its end: the clock of an idle device stands
//! still. On other devices the program's time on the host stands for it. Kernels are compared by
//! recordings of both runs, which only emulated GPUs make: the n-th launch of a kernel in one run
//! is the n-th launch of that kernel in the other. A program may refuse to run while it is
//! recorded, because a recording permits no host memory for kernels; then there is no table of
//! kernels.

use crate::live::stage::image_of;
use crate::progress::Bar;
use partita_cli::api::Target as Api;
use partita_cli::failure::Failure;
use partita_cli::report::Metric;
use partita_cli::run::child::{self, ChildDaemon, Parts};
use partita_cli::table::Table;
use partita_emu::record::{Entry, Recording, RecordingError, Seen, Step};
use partita_engine::{KernelForm, Purpose};
use partita_gpu::prepare::{Target, prepare};
use partita_model::{ModuleId, Nanos, OperationId, Sharing, StatusReport, StreamId, WindowId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long a neighbour may take until it has connected.
const NEIGHBOUR_PATIENCE: Duration = Duration::from_secs(60);

/// The bits of a control block's address that number a helper grid (`partita_model::control`).
const HELPER_BITS: u64 = 31;

/// What a kernel costs in a form.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KernelCost {
    /// Its name.
    pub kernel: String,
    /// Its form with partitions.
    pub form: String,
    /// Its launches.
    pub launches: usize,
    /// Cycles of all its launches as written.
    pub original: u64,
    /// Cycles of all its launches with partitions.
    pub run: u64,
    /// Cycles that a launch costs more, whatever its CTAs.
    pub fixed: Option<f64>,
    /// Cycles that each CTA costs more. Both are `None` where all launches have as many CTAs.
    pub per_cta: Option<f64>,
}

impl KernelCost {
    fn lost(&self) -> i64 {
        self.run.cast_signed() - self.original.cast_signed()
    }
}

/// What a program costs.
pub struct Found {
    /// The figures.
    pub metrics: Vec<Metric>,
    /// Kernels, those with most lost time first.
    pub kernels: Vec<KernelCost>,
    /// What limits the figures.
    pub notes: Vec<String>,
}

/// One run of the program.
struct Ran {
    nanos: u64,
    patience_exceeded: u64,
    /// Whether the neighbour, if there is one, has outlived the program.
    neighbour_stayed: bool,
}

/// Runs a program `repeat` times each way.
pub fn measure(
    device: &str,
    program: &[OsString],
    beside: Option<&str>,
    repeat: usize,
) -> Result<Found, Failure> {
    let is_emulated = is_emulated(device);
    let parts = Parts::find(device.to_owned())?;
    let beside_runs = if beside.is_some() { 3 } else { 0 };
    let runs = 2 * repeat + 2 * usize::from(is_emulated) + beside_runs;
    let mut bar = Bar::new("overhead", "runs");
    let (mut ratios, mut done) = (Vec::new(), 0);
    let (mut written, mut shared, mut exceeded) = (0.0, 0.0, 0);
    for _ in 0..repeat {
        let mut pair = [0.0; 2];
        for (nanos, sharing) in pair.iter_mut().zip([Sharing::Mps, Sharing::Spatial]) {
            let ran = run(&parts, sharing, program, None).map_err(Failure::new)?;
            *nanos = ran.nanos as f64;
            exceeded += ran.patience_exceeded;
            done += 1;
            bar.step(done, runs, sharing.name());
        }
        written += pair[0] / repeat as f64;
        shared += pair[1] / repeat as f64;
        ratios.push((pair[1] / pair[0].max(1.0) - 1.0) * 100.0);
    }
    let mut notes = Vec::new();
    let mut kernels = Vec::new();
    if is_emulated {
        match recorded(&parts, program) {
            Ok((found, late)) => {
                kernels = found;
                exceeded += late;
            }
            Err(error) => notes.push(format!("no figures by kernel: {error}")),
        }
        done += 2;
        bar.step(done, runs, "recorded");
    } else {
        notes.push("times are those of the program on the host; kernels are not told apart".into());
    }
    let mut beside_metrics = Vec::new();
    if let Some(neighbour) = beside {
        let found = beside_neighbour(&parts, program, neighbour).map_err(Failure::new)?;
        exceeded += found.patience_exceeded;
        beside_metrics = found.metrics;
        notes.extend(found.note);
        bar.step(runs, runs, "beside the neighbour");
    }
    bar.end();
    let mark = if exceeded == 0 { "" } else { " *" };
    if exceeded > 0 {
        notes.push(format!(
            "* the patience with the program ran out {exceeded} times while device time passed: \
             these figures depend on the host; set a longer one with --device emu,patience=MS"
        ));
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let spread = (ratios.len() > 1).then(|| {
        let squares: f64 = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        (squares / (ratios.len() - 1) as f64).sqrt()
    });
    let mut metrics = vec![
        Metric::plain(format!("as written{mark}"), written / 1e3, "us"),
        Metric::plain(format!("with partitions{mark}"), shared / 1e3, "us"),
        Metric {
            spread,
            ..Metric::at_most(format!("cost of partitions{mark}"), mean, "% more time", 5.0)
        },
    ];
    if !kernels.is_empty() {
        let sum = |of: &dyn Fn(&KernelCost) -> u64| kernels.iter().map(of).sum::<u64>() as f64;
        let (original, run) = (sum(&|kernel| kernel.original), sum(&|kernel| kernel.run));
        metrics.push(Metric::plain(format!("kernels as written{mark}"), original, "cycles"));
        metrics.push(Metric::plain(format!("kernels with partitions{mark}"), run, "cycles"));
    }
    metrics.extend(
        beside_metrics
            .into_iter()
            .map(|metric: Metric| Metric { name: format!("{}{mark}", metric.name), ..metric }),
    );
    Ok(Found { metrics, kernels, notes })
}

/// Whether a device's text names an emulated GPU.
fn is_emulated(device: &str) -> bool {
    device.split([':', ',']).next() == Some("emu")
}

/// What a program loses beside a neighbour.
struct Beside {
    metrics: Vec<Metric>,
    patience_exceeded: u64,
    note: Option<String>,
}

/// The program as written alone, as written beside a neighbour, and beside it with partitions.
fn beside_neighbour(
    parts: &Parts,
    program: &[OsString],
    neighbour: &str,
) -> Result<Beside, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (mut patience_exceeded, mut stayed) = (0, true);
    let mut span = |sharing: Sharing, neighbour: Option<&str>| {
        let path = folder.path().join(format!("{}-{}", sharing.name(), neighbour.is_some()));
        let emulated = is_emulated(&parts.device);
        let together = if neighbour.is_some() { ",together=2" } else { "" };
        let device = match emulated {
            true => format!("{}{together},record={}", parts.device, path.display()),
            false => parts.device.clone(),
        };
        let ran = run(&Parts { device, ..parts.clone() }, sharing, program, neighbour)?;
        patience_exceeded += ran.patience_exceeded;
        stayed &= ran.neighbour_stayed;
        if !emulated {
            return Ok(ran.nanos as f64);
        }
        let skipped = usize::from(neighbour.is_some());
        let launches = Launches::read(&path, skipped).map_err(|error| error.to_string())?;
        Ok::<f64, String>(launches.span.0 as f64)
    };
    let alone = span(Sharing::Mps, None)?;
    let written = span(Sharing::Mps, Some(neighbour))?;
    let shared = span(Sharing::Spatial, Some(neighbour))?;
    let metrics = vec![
        Metric::plain("alone as written, first to last operation", alone / 1e3, "us"),
        Metric::plain("beside the neighbour as written", written / alone.max(1.0), "times alone"),
        Metric::plain(
            "beside the neighbour with partitions",
            shared / alone.max(1.0),
            "times alone",
        ),
    ];
    let note = (!stayed).then(|| {
        "the neighbour ended before the program: figures beside it are those of a part of the run"
            .to_owned()
    });
    Ok(Beside { metrics, patience_exceeded, note })
}

/// Starts a neighbour, and waits until the daemon serves it.
fn start_neighbour(daemon: &ChildDaemon, neighbour: &str) -> Result<Child, String> {
    let mut words = neighbour.split_whitespace();
    let path = words.next().ok_or("name a neighbour: --beside \"PROGRAM ARGS\"")?;
    let mut command = daemon.program(Path::new(path));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{path}: {error}"))?;
    let api = Api::folder(daemon.folder());
    let begin = Instant::now();
    loop {
        let status = api.get::<StatusReport>("/v1/status").map_err(|error| error.to_string())?;
        if !status.applications.is_empty() {
            return Ok(child);
        }
        if begin.elapsed() > NEIGHBOUR_PATIENCE || !matches!(child.try_wait(), Ok(None)) {
            child::end(&mut child);
            return Err(format!("the neighbour `{neighbour}` did not connect to the daemon"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One run on a daemon of its own.
fn run(
    parts: &Parts,
    sharing: Sharing,
    program: &[OsString],
    neighbour: Option<&str>,
) -> Result<Ran, String> {
    let daemon = ChildDaemon::start(parts, &["--policy", "even", "--sharing", sharing.name()])
        .map_err(|error| error.to_string())?;
    let Some((path, arguments)) = program.split_first() else {
        return Err("name a program after `--`".to_owned());
    };
    let mut neighbour = match neighbour {
        Some(neighbour) => Some(start_neighbour(&daemon, neighbour)?),
        None => None,
    };
    let begin = Instant::now();
    let output = daemon.program(Path::new(path)).args(arguments).stdin(Stdio::null()).output();
    let took = begin.elapsed();
    let neighbour_stayed =
        neighbour.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(None)));
    if let Some(mut child) = neighbour {
        child::end(&mut child);
    }
    let output = output.map_err(|error| format!("{}: {error}", path.to_string_lossy()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let (path, status) = (path.to_string_lossy(), output.status);
        return Err(format!("{path} ended with {status}: {}", said.trim()));
    }
    let status = Api::folder(daemon.folder()).get::<StatusReport>("/v1/status");
    let status = status.map_err(|error| error.to_string())?;
    let device = status.gpu.device_time_ns;
    let host = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let nanos = if is_emulated(&parts.device) { device } else { host };
    Ok(Ran { nanos, patience_exceeded: status.gpu.patience_exceeded, neighbour_stayed })
}

/// Kernels of a recorded run each way, and how often patience ran out.
fn recorded(parts: &Parts, program: &[OsString]) -> Result<(Vec<KernelCost>, u64), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut late = 0;
    let mut read = |sharing: Sharing| {
        let path = folder.path().join(sharing.name());
        let device = format!("{},record={}", parts.device, path.display());
        let ran = run(&Parts { device, ..parts.clone() }, sharing, program, None)?;
        late += ran.patience_exceeded;
        Launches::read(&path, 0).map_err(|error| error.to_string())
    };
    let (written, shared) = (read(Sharing::Mps)?, read(Sharing::Spatial)?);
    Ok((costs(&written, &shared), late))
}

/// A launch as a recording has it.
#[derive(Clone, PartialEq, Debug)]
struct Launched {
    kernel: String,
    ctas: u64,
    params: Vec<u8>,
    cycles: u64,
}

/// The launches of a recorded run, in the order of the program.
#[derive(Default)]
struct Launches {
    all: Vec<Launched>,
    /// The form that each kernel takes with partitions.
    forms: BTreeMap<String, &'static str>,
    /// From the first launch to the end of the last operation in a stream that has launches.
    span: Nanos,
}

/// Who is whose in a recording.
#[derive(Default)]
struct Owners {
    windows: Vec<WindowId>,
    modules: BTreeMap<ModuleId, WindowId>,
    streams: BTreeSet<StreamId>,
    operations: BTreeMap<OperationId, StreamId>,
}

impl Owners {
    /// Whether a module belongs to the program: its window came after the engine's own, and after
    /// so many sessions of others.
    fn has(&self, module: ModuleId, skipped: usize) -> bool {
        let window = self.modules.get(&module);
        let place = self.windows.iter().position(|known| Some(known) == window);
        place.is_some_and(|place| place > skipped)
    }
}

impl Launches {
    /// Reads the launches of the sessions behind the first `skipped`.
    fn read(path: &Path, skipped: usize) -> Result<Launches, RecordingError> {
        let mut recording = Recording::open(path)?;
        let mut launches = Launches::default();
        let mut open: BTreeMap<OperationId, usize> = BTreeMap::new();
        let mut owners = Owners::default();
        let (mut now, mut first) = (Nanos(0), None);
        loop {
            let step = match recording.step() {
                // The daemon is ended while it records.
                Ok(None) | Err(RecordingError::Truncated { .. }) => return Ok(launches),
                step => step?,
            };
            if let Some(Step::Entry { queued: Some((stream, operation)), .. }) = &step {
                owners.operations.insert(*operation, *stream);
            }
            match step {
                Some(Step::Entry { entry: Entry::Reserve { window, .. }, .. }) => {
                    owners.windows.push(window);
                }
                Some(Step::Entry { entry: Entry::Load { ptx, module, window }, .. }) => {
                    owners.modules.insert(module, window);
                    launches.learn_forms(&ptx);
                }
                Some(Step::Entry {
                    entry: Entry::Launch { module, kernel, grid, params, .. },
                    queued: Some((stream, operation)),
                }) if owners.has(module, skipped) => {
                    owners.streams.insert(stream);
                    first = first.or(Some(now));
                    open.insert(operation, launches.all.len());
                    let ctas = u64::try_from(grid.count()).unwrap_or(u64::MAX);
                    launches.all.push(Launched { kernel, ctas, params, cycles: 0 });
                }
                Some(Step::Advance { seen, now_ps, .. }) => {
                    now = Nanos(now_ps / 1000);
                    for seen in seen {
                        let Seen::Done { operation, counters, time, .. } = seen else { continue };
                        let stream = owners.operations.remove(&operation);
                        if stream.is_some_and(|stream| owners.streams.contains(&stream)) {
                            launches.span = time.saturating_sub(first.unwrap_or(time));
                        }
                        let index = open.remove(&operation);
                        if let Some((index, counters)) = index.zip(counters) {
                            launches.all[index].cycles = counters.cycles;
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn learn_forms(&mut self, ptx: &str) {
        let target = Target::from(Sharing::Spatial);
        let Ok(prepared) = prepare(&image_of(ptx), target, &Purpose::Run) else { return };
        for kernel in prepared.module.kernels {
            let form = match kernel.form {
                KernelForm::Worker { .. } => "worker",
                KernelForm::Ticket { .. } => "ticket",
                KernelForm::Original { .. } | KernelForm::MachineCode => "original",
            };
            self.forms.insert(kernel.name.to_string(), form);
        }
    }
}

/// The costs by kernel, those with most lost time first.
fn costs(written: &Launches, shared: &Launches) -> Vec<KernelCost> {
    let mut kernels: BTreeMap<&str, Vec<&Launched>> = BTreeMap::new();
    for launch in &written.all {
        kernels.entry(&launch.kernel).or_default().push(launch);
    }
    // Partita's own entries have a kernel's name and an ending.
    let owner = |entry: &str| {
        let names = kernels.keys().filter(|name| entry.starts_with(**name));
        names.max_by_key(|name| name.len()).copied()
    };
    let mut runs: BTreeMap<&str, Vec<(u64, bool)>> = BTreeMap::new();
    let mut beside: BTreeMap<&str, u64> = BTreeMap::new();
    for launch in &shared.all {
        let Some(name) = owner(&launch.kernel) else { continue };
        let before = kernels[name][0].params.len().next_multiple_of(8);
        let control = launch.params.get(before..before + 8).and_then(|bytes| bytes.try_into().ok());
        let control = control.map(u64::from_le_bytes);
        let is_helper = control.is_some_and(|address| address & HELPER_BITS != 0);
        if is_helper {
            continue;
        }
        if launch.kernel == name || control.is_none() {
            runs.entry(name).or_default().push((launch.cycles, launch.kernel == name));
        } else {
            // A counting launch, ahead of the others.
            *beside.entry(name).or_default() += launch.cycles;
        }
    }
    let mut costs: Vec<KernelCost> = kernels
        .iter()
        .map(|(name, launches)| {
            let ran = runs.get(name).map(Vec::as_slice).unwrap_or_default();
            let pairs = launches.iter().zip(ran).map(|(launch, (cycles, _))| {
                (launch.ctas as f64, *cycles as f64 - launch.cycles as f64)
            });
            let line = (ran.len() == launches.len()).then(|| fit(&pairs.collect::<Vec<_>>()));
            let line = line.flatten();
            let as_form = ran.iter().filter(|(_, is_form)| *is_form).count();
            let form = written.forms.get(*name).copied().unwrap_or("original");
            KernelCost {
                kernel: (*name).to_owned(),
                form: if as_form > 0 { form } else { "original" }.to_owned(),
                launches: launches.len(),
                original: launches.iter().map(|launch| launch.cycles).sum(),
                run: ran.iter().map(|(cycles, _)| cycles).sum::<u64>()
                    + beside.get(name).copied().unwrap_or_default(),
                fixed: line.map(|(fixed, _)| fixed),
                per_cta: line.map(|(_, slope)| slope),
            }
        })
        .collect();
    costs.sort_by_key(|cost| -cost.lost());
    costs
}

/// The line of least squares through points: its value at 0, and its slope. `None` where all
/// points have the same abscissa.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|point| point.0), mean(&|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if points.len() < 2 || spread < 0.5 {
        return None;
    }
    let slope = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum::<f64>() / spread;
    Some((y - slope * x, slope))
}

/// Kernels as text.
pub fn table(kernels: &[KernelCost]) -> String {
    let heading =
        ["KERNEL", "FORM", "LAUNCHES", "AS WRITTEN", "AS RUN", "LOST", "A LAUNCH", "A CTA"];
    let mut table = Table::new(&heading);
    let lost: i64 = kernels.iter().map(|kernel| kernel.lost().max(0)).sum();
    for kernel in kernels {
        let share = 100.0 * kernel.lost().max(0) as f64 / lost.max(1) as f64;
        let part = |part: Option<f64>| part.map(|cycles| format!("{cycles:.1}"));
        table.row([
            partita_cli::table::printable(&kernel.kernel),
            kernel.form.clone(),
            kernel.launches.to_string(),
            kernel.original.to_string(),
            kernel.run.to_string(),
            format!("{} ({share:.0} %)", kernel.lost()),
            part(kernel.fixed).unwrap_or_default(),
            part(kernel.per_cta).unwrap_or_default(),
        ]);
    }
    format!("\nCycles by kernel, those with most lost time first:\n\n{}", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(kernel: &str, ctas: u64, cycles: u64, params: &[u64]) -> Launched {
        let params = params.iter().flat_map(|word| word.to_le_bytes()).collect();
        Launched { kernel: kernel.to_owned(), ctas, params, cycles }
    }

    #[test]
    fn lost_time_is_told_by_kernel() {
        let written = Launches {
            all: vec![
                launched("a", 10, 1_000, &[1]),
                launched("b", 5, 100, &[]),
                launched("a", 30, 2_000, &[1]),
            ],
            forms: [("a".to_owned(), "worker"), ("b".to_owned(), "ticket")].into(),
            ..Launches::default()
        };
        let shared = Launches {
            all: vec![
                launched("a", 4, 1_120, &[1, 4096]),
                launched("a", 2, 700, &[1, 4096 + 3]),
                launched("b$kept", 5, 110, &[]),
                launched("a", 4, 2_160, &[1, 8192]),
            ],
            ..Launches::default()
        };
        let costs = costs(&written, &shared);
        let told: Vec<_> = costs
            .iter()
            .map(|cost| (cost.kernel.as_str(), cost.form.as_str(), cost.launches, cost.lost()))
            .collect();
        assert_eq!(told, [("a", "worker", 2, 280), ("b", "original", 1, 10)]);
        // 100 cycles a launch, and 2 a CTA.
        assert!((costs[0].fixed.unwrap() - 100.0).abs() < 1e-6);
        assert!((costs[0].per_cta.unwrap() - 2.0).abs() < 1e-6);
        assert_eq!(costs[1].fixed, None);
    }
}
