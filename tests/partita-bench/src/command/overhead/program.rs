//! What Partita costs one program: a run on a private daemon with partitions, and the same run as
//! it was written.
//!
//! On an emulated GPU the run as written has a daemon too, whose device is not partitioned
//! (`sharing=mps`). The device time of a run is the device's at its end: the clock of an idle
//! device stands still. On other devices the program runs as written on the driver, without
//! Partita, and its time on the host stands for device time.
//!
//! A program may refuse to run while it is recorded, because a recording permits no host memory for
//! kernels; then there is no table of kernels.

use super::beside;
use super::costs::{KernelCost, costs};
use super::neighbour::Neighbour;
use super::recorded::Launches;
use partita_cli::api::Target as Api;
use partita_cli::failure::Failure;
use partita_cli::progress::Bar;
use partita_cli::report::Metric;
use partita_cli::run::child::{self, ChildDaemon, Parts};
use partita_model::{Sharing, StatusReport};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The characters of a failed program's last words that are shown.
const LAST_WORDS: usize = 500;

/// What a program costs.
pub struct Found {
    /// The figures.
    pub metrics: Vec<Metric>,
    /// Kernels, those with most lost time first.
    pub kernels: Vec<KernelCost>,
    /// What limits the figures.
    pub notes: Vec<String>,
}

/// The way in which a program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// As it was written.
    Written,
    /// On a daemon with partitions.
    Partitions,
}

impl Way {
    const BOTH: [Way; 2] = [Way::Written, Way::Partitions];

    const fn sharing(self) -> Sharing {
        match self {
            Way::Written => Sharing::Mps,
            Way::Partitions => Sharing::Spatial,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Way::Written => "as written",
            Way::Partitions => "with partitions",
        }
    }
}

/// One run of the program.
pub struct Ran {
    /// Device time, or time on the host where the device does not tell.
    nanos: u64,
    /// How often patience with a program ran out while device time passed.
    pub late: u64,
    /// Whether the neighbour, if there is one, has outlived the program.
    pub neighbour_stayed: bool,
}

/// Runs of one way.
#[derive(Default)]
struct Runs {
    nanos: Vec<f64>,
    late: u64,
}

impl Runs {
    fn mean_micros(&self) -> f64 {
        self.nanos.iter().sum::<f64>() / self.nanos.len().max(1) as f64 / 1e3
    }
}

/// The figures by kernel of a recorded pair of runs.
struct ByKernel {
    kernels: Vec<KernelCost>,
    launches: usize,
    late: u64,
}

/// Runs a program `repeat` times each way.
pub fn measure(
    device: &str,
    program: &[OsString],
    beside: Option<&Neighbour>,
    repeat: usize,
) -> Result<Found, Failure> {
    let is_emulated = is_emulated(device);
    if beside.is_some() && !is_emulated {
        return Err(Failure::new(
            "--beside compares device time, which only an emulated GPU tells: leave it away, or \
             take `--device emu`",
        )
        .with_code(2));
    }
    let parts = Parts::find(device.to_owned())?;
    let mut bar = Bar::new("overhead", "runs");
    let further = if beside.is_some() { beside::RUNS } else { 0 };
    let (total, mut done) = (2 * repeat + 2 * usize::from(is_emulated) + further, 0);
    let mut step = |name: &str| {
        done += 1;
        bar.step(done, total, name);
    };
    let mut runs = [Runs::default(), Runs::default()];
    for _ in 0..repeat {
        for (runs, way) in runs.iter_mut().zip(Way::BOTH) {
            let ran = run(&parts, way, program, None).map_err(Failure::new)?;
            runs.nanos.push(ran.nanos as f64);
            runs.late += ran.late;
            step(way.name());
        }
    }
    let mut notes = Vec::new();
    let mut by_kernel = None;
    if is_emulated {
        let found = by_kernels(&parts, program, &mut step);
        let launches = found
            .as_ref()
            .map_or(usize::from(runs[0].mean_micros() > 0.0), |by_kernel| by_kernel.launches);
        if launches == 0 {
            return Err(uses_no_gpu(program));
        }
        match found {
            Ok(found) => by_kernel = Some(found),
            Err(error) => notes.push(format!("no figures by kernel: {error}")),
        }
    } else {
        notes.push("times are those of the program on the host; kernels are not told apart".into());
    }
    let mut late = runs[0].late + runs[1].late;
    let mut metrics = whole_program(&runs);
    let mut kernels = Vec::new();
    if let Some(found) = by_kernel {
        late += found.late;
        metrics.extend(marked(kernel_sums(&found.kernels), found.late));
        if found.late > 0 {
            notes.push("* holds for the table of kernels too".to_owned());
        }
        kernels = found.kernels;
    }
    if let Some(neighbour) = beside {
        let found = beside::measure(&parts, program, neighbour, &mut step).map_err(Failure::new)?;
        late += found.late;
        metrics.extend(marked(found.metrics, found.late));
        notes.extend(found.notes);
    }
    bar.end();
    if late > 0 {
        notes.insert(0, format!(
            "* depends on the speed of the host: the patience with a program ran out {late} times \
             while device time passed; set a longer one with --device emu,patience=MILLISECONDS"
        ));
    }
    Ok(Found { metrics, kernels, notes })
}

/// The figures with a mark where patience ran out in the runs behind them.
fn marked(metrics: Vec<Metric>, late: u64) -> Vec<Metric> {
    let mark = if late == 0 { "" } else { " *" };
    let mark = |metric: Metric| Metric { name: format!("{}{mark}", metric.name), ..metric };
    metrics.into_iter().map(mark).collect()
}

/// The times of the program alone.
fn whole_program(runs: &[Runs; 2]) -> Vec<Metric> {
    let [written, shared] = runs;
    let pairs = written.nanos.iter().zip(&shared.nanos);
    let more: Vec<f64> =
        pairs.map(|(written, shared)| (shared / written.max(1.0) - 1.0) * 100.0).collect();
    let mean = more.iter().sum::<f64>() / more.len().max(1) as f64;
    let spread = (more.len() > 1).then(|| {
        let squares: f64 = more.iter().map(|more| (more - mean).powi(2)).sum();
        (squares / (more.len() - 1) as f64).sqrt()
    });
    let micros = |way: Way, runs: &Runs| Metric::plain(way.name(), runs.mean_micros(), "us");
    let cost = Metric::at_most("cost of partitions", mean, "% more time", 5.0);
    [
        marked(vec![micros(Way::Written, written)], written.late),
        marked(vec![micros(Way::Partitions, shared)], shared.late),
        marked(vec![Metric { spread, ..cost }], written.late + shared.late),
    ]
    .concat()
}

fn kernel_sums(kernels: &[KernelCost]) -> Vec<Metric> {
    let sum = |of: &dyn Fn(&KernelCost) -> u64| kernels.iter().map(of).sum::<u64>() as f64;
    vec![
        Metric::plain("kernels as written", sum(&|kernel| kernel.original), "cycles"),
        Metric::plain("kernels with partitions", sum(&|kernel| kernel.run), "cycles"),
    ]
}

fn uses_no_gpu(program: &[OsString]) -> Failure {
    let path = program.first().map(|path| path.to_string_lossy()).unwrap_or_default();
    Failure::new(format!(
        "`{path}` has launched no kernel, so there is nothing to compare: name a CUDA program, and \
         arguments with which it uses the GPU"
    ))
}

/// Whether a device's text names an emulated GPU.
fn is_emulated(device: &str) -> bool {
    device.split([':', ',']).next() == Some("emu")
}

/// The arguments of a daemon on which a program runs this way; `None` where it needs no daemon.
fn daemon_arguments(device: &str, way: Way) -> Option<Vec<&'static str>> {
    match (is_emulated(device), way) {
        (true, _) => Some(vec!["--policy", "even", "--sharing", way.sharing().name()]),
        (false, Way::Partitions) => Some(vec!["--policy", "even"]),
        (false, Way::Written) => None,
    }
}

/// One run, on a daemon of its own where it needs one.
pub fn run(
    parts: &Parts,
    way: Way,
    program: &[OsString],
    neighbour: Option<&Neighbour>,
) -> Result<Ran, String> {
    let Some((path, arguments)) = program.split_first() else {
        return Err("name a program after `--`".to_owned());
    };
    let Some(options) = daemon_arguments(&parts.device, way) else {
        let (_, took) = output(Command::new(path).args(arguments), &path.to_string_lossy(), way)?;
        return Ok(Ran { nanos: nanos(took), late: 0, neighbour_stayed: true });
    };
    let daemon = ChildDaemon::start(parts, &options).map_err(|error| error.to_string())?;
    let mut neighbour = neighbour.map(|neighbour| neighbour.start(&daemon)).transpose()?;
    let mut command = daemon.program(Path::new(path));
    let ran = output(command.args(arguments), &path.to_string_lossy(), way);
    let is_there = |child: &mut std::process::Child| matches!(child.try_wait(), Ok(None));
    let neighbour_stayed = neighbour.as_mut().is_none_or(is_there);
    if let Some(mut child) = neighbour {
        child::end(&mut child);
    }
    let (_, took) = ran?;
    let status = Api::folder(daemon.folder()).get::<StatusReport>("/v1/status");
    let gpu = status.map_err(|error| error.to_string())?.gpu;
    let nanos = if is_emulated(&parts.device) { gpu.device_time_ns } else { nanos(took) };
    Ok(Ran { nanos, late: gpu.patience_exceeded, neighbour_stayed })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Runs a program to its end, which must be a good one.
fn output(command: &mut Command, path: &str, way: Way) -> Result<(Output, Duration), String> {
    let begin = Instant::now();
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        format!(
            "`{path}` cannot be started: {error}; give the path of a program, or a command that \
             PATH has"
        )
    })?;
    if output.status.success() {
        return Ok((output, begin.elapsed()));
    }
    let said = String::from_utf8_lossy(if output.stderr.trim_ascii().is_empty() {
        &output.stdout
    } else {
        &output.stderr
    });
    let last = said.trim().char_indices().rev().nth(LAST_WORDS).map_or(0, |(at, _)| at);
    Err(format!(
        "`{path}` ended with {} {}: run it by itself with `partita run`, and measure it once it \
         succeeds. Its last words: {}",
        output.status,
        way.name(),
        &said.trim()[last..]
    ))
}

/// Kernels of a recorded run each way.
fn by_kernels(
    parts: &Parts,
    program: &[OsString],
    mut done: impl FnMut(&str),
) -> Result<ByKernel, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut late = 0;
    let mut read = |way: Way| {
        let path = folder.path().join(way.sharing().name());
        let device = format!("{},record={}", parts.device, path.display());
        let ran = run(&Parts { device, ..parts.clone() }, way, program, None);
        done("recorded");
        late += ran?.late;
        Launches::read(&path, 0).map_err(|error| error.to_string())
    };
    let (written, shared) = (read(Way::Written)?, read(Way::Partitions)?);
    Ok(ByKernel { kernels: costs(&written, &shared), launches: written.all.len(), late })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_figures_whose_runs_were_late_are_marked() {
        let runs = |nanos: f64, late| Runs { nanos: vec![nanos], late };
        let names = |runs: &[Runs; 2]| {
            let names = whole_program(runs).into_iter().map(|metric| metric.name);
            names.collect::<Vec<_>>()
        };
        let first = [runs(1e3, 0), runs(2e3, 3)];
        assert_eq!(names(&first), ["as written", "with partitions *", "cost of partitions *"]);
        let none = [runs(1e3, 0), runs(2e3, 0)];
        assert_eq!(names(&none), ["as written", "with partitions", "cost of partitions"]);
        assert!((whole_program(&none)[2].value - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_real_gpu_runs_the_program_without_partita_as_written() {
        assert_eq!(daemon_arguments("cuda:1", Way::Written), None);
        assert_eq!(daemon_arguments("cuda:1", Way::Partitions), Some(vec!["--policy", "even"]));
        let arguments = daemon_arguments("emu:h200,patience=9", Way::Written).unwrap();
        assert_eq!(arguments, ["--policy", "even", "--sharing", "mps"]);
    }
}
