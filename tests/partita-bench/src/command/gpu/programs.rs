//! What unmodified programs lose by Partita where they are alone, and gain where they share a GPU:
//! by themselves, under MPS's own service, and through a daemon of this command's own, under each
//! of its ways.
//!
//! One program, `pace`, repeats a launch and says by CUDA's events how far it has got, so its pace
//! means the same everywhere. On an emulated GPU there is no "by themselves"; its own time slices
//! and MPS-like sharing stand for that. Who measures must not have the GPU open meanwhile.

use super::Effort;
use partita_cli::api::Target;
use partita_cli::demo::toolkit::{Compiler, Program};
use partita_cli::failure::{Failure, say};
use partita_cli::report::Metric;
use partita_cli::run::child::{self, ChildDaemon, ChildError, Parts};
use partita_model::{DeviceFacts, DeviceKind, Sharing, StatusReport};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PACE: Program = Program { name: "pace", source: include_str!("programs/pace.cu") };

/// How long nobody may get on at all.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// The exit code of `pace` where there is no cuBLAS.
const NO_BLAS: i32 = 3;
/// The service's command.
const MPS_CONTROL: &str = "nvidia-cuda-mps-control";

/// Pairs of kinds of programs; of the first three, the two are of different needs.
const PAIRS: [[&str; 2]; 5] = [
    ["compute", "memory"],
    ["compute", "short"],
    ["memory", "short"],
    ["memory", "memory"],
    ["compute", "compute"],
];
const HETEROGENEOUS: usize = 3;

/// Where programs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Without Partita: the GPU gives each its turn. On an emulated GPU as the same there.
    Slices,
    /// Under MPS: its own service, or what is like it on an emulated GPU.
    Mps,
    /// Through Partita, kernels as they are.
    Funnel,
    /// Through Partita, as workers on even shares.
    Even,
    /// Through Partita; CD-search moves the borders.
    CdSearch,
    /// Through Partita without PTX: machine code on green contexts, on even shares.
    Green,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Slices => "time slices",
            Place::Mps => "MPS",
            Place::Funnel => "kernels as they are",
            Place::Even => "even",
            Place::CdSearch => "CD-search",
            Place::Green => "green contexts",
        }
    }

    /// The daemon's policy and way of sharing.
    fn daemon(self) -> (&'static str, Sharing) {
        match self {
            Place::Slices => ("even", Sharing::TimeSlice),
            Place::Mps | Place::Funnel => ("even", Sharing::Mps),
            Place::Even | Place::Green => ("even", Sharing::Spatial),
            Place::CdSearch => ("cd-search", Sharing::Spatial),
        }
    }
}

/// Why there is no pace.
#[derive(Debug, thiserror::Error)]
enum Missing {
    /// It cannot be had here; the others can.
    #[error("{0}")]
    Here(String),
    /// Something broke.
    #[error("{0}")]
    Broken(String),
}

impl From<ChildError> for Missing {
    fn from(error: ChildError) -> Self {
        Missing::Broken(error.to_string())
    }
}

/// Where everything is measured.
struct Bench<'a> {
    parts: Parts,
    facts: &'a DeviceFacts,
    effort: Effort,
    /// What programs of their own see as their GPUs.
    visible: String,
    pace: PathBuf,
    /// The same without PTX.
    machine_code: Option<PathBuf>,
}

/// Everything of it.
pub fn metrics(
    device: &str,
    facts: &DeviceFacts,
    ordinal: u32,
    effort: Effort,
) -> Result<Vec<Metric>, Failure> {
    let real = facts.kind == DeviceKind::Cuda;
    let (pace, machine_code) = programs(facts)?;
    let bench = Bench {
        parts: Parts::find(device.to_owned())?,
        facts,
        effort,
        visible: visible(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(), ordinal),
        pace,
        machine_code,
    };
    let mut metrics = Vec::new();
    let kinds: &[&str] =
        if real { &["compute", "memory", "short"] } else { &["compute", "memory"] };
    let mut alone = Vec::new();
    for kind in kinds {
        let plain = bench.alone(kind, if real { Place::Slices } else { Place::Mps })?;
        metrics.push(Metric::plain(format!("{kind} alone"), plain * 1e9, "launches/s"));
        let mut beside = |name: &str, place: Place, goal: f64| {
            let more = (plain / bench.alone(kind, place)? - 1.0) * 100.0;
            metrics.push(Metric::at_most(
                format!("{kind} alone, {name}"),
                more,
                "% more time",
                goal,
            ));
            Ok::<(), Failure>(())
        };
        if real {
            beside("through Partita as it is", Place::Funnel, 2.0)?;
        }
        beside("through Partita as workers", Place::Even, 3.0)?;
        alone.push((*kind, plain));
    }
    let pairs = if real { PAIRS.len() } else { 1 };
    let mut against_mps = Vec::new();
    for (index, pair) in PAIRS[..pairs].iter().enumerate() {
        let speeds =
            pair.map(|kind| alone.iter().find(|(name, _)| *name == kind).map_or(1.0, |(_, s)| *s));
        let found = bench.pair(*pair, speeds, &mut metrics)?;
        if index < HETEROGENEOUS {
            against_mps.extend(found);
        }
    }
    if !against_mps.is_empty() {
        let mean = against_mps.iter().sum::<f64>() / against_mps.len() as f64;
        let name = "CD-search ÷ MPS, pairs of different needs: STP, mean";
        metrics.push(Metric::at_least(name, mean, "", 1.10));
    }
    if real {
        bench.blas(&mut metrics)?;
    }
    Ok(metrics)
}

/// The program, and on a real GPU the same without PTX. They lie in `programs` beside this
/// executable (`tests/gpu-bundle.sh`), or are compiled.
fn programs(facts: &DeviceFacts) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let real = facts.kind == DeviceKind::Cuda;
    let own = std::env::current_exe()?;
    let beside = own.parent().unwrap_or(Path::new("/")).join("programs");
    if beside.is_dir() {
        let code = real.then(|| beside.join("pace-machine-code"));
        return Ok((beside.join(PACE.name), code));
    }
    let compiler = Compiler::find(&mut |text| say(text))?;
    let own = facts.compute_capability;
    let code = format!("arch=compute_{0}{1},code=sm_{0}{1}", own.major, own.minor);
    let code = real.then(|| compiler.build_with(&PACE, &["-gencode", &code])).transpose()?;
    Ok((compiler.build(&PACE)?, code))
}

/// The GPU with this number among those that `list` shows.
fn visible(list: Option<&str>, ordinal: u32) -> String {
    let index = usize::try_from(ordinal).unwrap_or(usize::MAX);
    let named = list.and_then(|list| list.split(',').nth(index)).map(str::trim);
    named.filter(|name| !name.is_empty()).map_or_else(|| ordinal.to_string(), str::to_owned)
}

impl Bench<'_> {
    fn is_real(&self) -> bool {
        self.facts.kind == DeviceKind::Cuda
    }

    fn alone(&self, kind: &str, place: Place) -> Result<f64, Failure> {
        let paces = self.paces(&[kind], place).map_err(|error| Failure::new(error.to_string()))?;
        paces.first().copied().ok_or_else(|| Failure::new("a program without a pace"))
    }

    /// A pair in each place; the throughput under CD-search as a multiple of that under MPS.
    fn pair(
        &self,
        pair: [&str; 2],
        alone: [f64; 2],
        metrics: &mut Vec<Metric>,
    ) -> Result<Option<f64>, Failure> {
        let mut throughput = Vec::new();
        for place in [Place::Slices, Place::Mps, Place::Green, Place::Even, Place::CdSearch] {
            if place == Place::Green && !self.is_real() {
                continue;
            }
            let name = format!("{}+{}, {}", pair[0], pair[1], place.name());
            let paces = match self.paces(&pair, place) {
                Ok(paces) => paces,
                Err(Missing::Here(reason)) => {
                    metrics.push(Metric::plain(format!("{name}: not here: {reason}"), 0.0, "of 1"));
                    continue;
                }
                Err(error @ Missing::Broken(_)) => {
                    return Err(Failure::new(format!("{name}: {error}")));
                }
            };
            let speeds: Vec<f64> =
                paces.iter().zip(alone).map(|(pace, alone)| pace / alone).collect();
            let sum: f64 = speeds.iter().sum();
            let turnaround =
                speeds.iter().map(|speed| 1.0 / speed).sum::<f64>() / speeds.len() as f64;
            metrics.push(Metric::plain(format!("{name}: STP"), sum, ""));
            metrics.push(Metric::plain(format!("{name}: ANTT"), turnaround, ""));
            throughput.push((place, sum));
        }
        let of = |wanted: Place| {
            throughput.iter().find(|(place, _)| *place == wanted).map(|(_, sum)| *sum)
        };
        Ok(of(Place::CdSearch).zip(of(Place::Mps)).map(|(ours, theirs)| ours / theirs))
    }

    /// A program of which there is no PTX.
    fn blas(&self, metrics: &mut Vec<Metric>) -> Result<(), Failure> {
        let plain = match self.paces(&["gemm"], Place::Slices) {
            Ok(paces) => paces.first().copied().unwrap_or_default(),
            Err(Missing::Here(reason)) => {
                metrics.push(Metric::plain(format!("cuBLAS: not here: {reason}"), 0.0, "of 1"));
                return Ok(());
            }
            Err(error @ Missing::Broken(_)) => return Err(Failure::new(error.to_string())),
        };
        metrics.push(Metric::plain("cuBLAS alone", plain * 1e9, "launches/s"));
        let ours = self.alone("gemm", Place::Even)?;
        metrics.push(Metric::plain(
            "cuBLAS alone, through Partita on green contexts",
            (plain / ours - 1.0) * 100.0,
            "% more time",
        ));
        let memory = self.alone("memory", Place::Slices)?;
        self.pair(["gemm", "memory"], [plain, memory], metrics).map(drop)
    }

    /// A daemon that makes every launch resizable, those of programs alone too, and the folder of
    /// its configuration.
    fn daemon(&self, place: Place) -> Result<(ChildDaemon, TempDir), Missing> {
        let broken = |error: std::io::Error| Missing::Broken(error.to_string());
        let folder = TempDir::new().map_err(broken)?;
        let config = folder.path().join("partitad.toml");
        std::fs::write(&config, "[policy]\noriginals = \"never\"\n").map_err(broken)?;
        let (policy, sharing) = place.daemon();
        let config = config.to_string_lossy();
        let arguments =
            ["--policy", policy, "--sharing", sharing.name(), "--config", config.as_ref()];
        Ok((ChildDaemon::start(&self.parts, &arguments)?, folder))
    }

    /// Launches per nanosecond of programs that run at the same time.
    fn paces(&self, kinds: &[&str], place: Place) -> Result<Vec<f64>, Missing> {
        let by_itself = self.is_real() && matches!(place, Place::Slices | Place::Mps);
        let service = match place {
            Place::Mps if self.is_real() => Some(MpsService::start(&self.visible)?),
            _ => None,
        };
        let daemon = match by_itself {
            true => None,
            false => Some(self.daemon(place)?),
        };
        let path = match place {
            Place::Green => self.machine_code.as_deref().unwrap_or(&self.pace),
            _ => &self.pace,
        };
        let command = || match &daemon {
            Some((daemon, _)) => {
                let mut command = daemon.program(path);
                // The daemon's one GPU is the first.
                command.env_remove("CUDA_VISIBLE_DEVICES");
                command
            }
            None => {
                let mut command = Command::new(path);
                command.env("CUDA_VISIBLE_DEVICES", &self.visible);
                if let Some(service) = &service {
                    command.envs(service.environment());
                }
                command
            }
        };
        let (batch_micros, window) = match (self.effort, place) {
            (Effort::Full, _) => (2000, 1e9),
            // Everybody's turn.
            (Effort::Little, Place::Slices) => (100, 5e6),
            (Effort::Little, _) => (100, 1e6),
        };
        let mut runners = Vec::new();
        for kind in kinds {
            runners.push(Runner::start(command(), kind, batch_micros)?);
        }
        let came = |runners: &mut [Runner]| runners.iter().all(|runner| runner.seen().launches > 0);
        wait_for(&mut runners, came)?;
        if place == Place::CdSearch
            && kinds.len() > 1
            && let Some((daemon, _)) = &daemon
        {
            let target = Target::folder(daemon.folder());
            let settled = |_: &mut [Runner]| {
                let status = target.get::<StatusReport>("/v1/status");
                status.is_ok_and(|status| status.policy.stage == "watch")
            };
            wait_for(&mut runners, settled)?;
        }
        let before: Vec<Seen> = runners.iter().map(Runner::seen).collect();
        let passed = |runners: &mut [Runner]| {
            runners
                .iter()
                .zip(&before)
                .all(|(runner, before)| runner.seen().nanos - before.nanos >= window)
        };
        wait_for(&mut runners, passed)?;
        let pace = |(runner, before): (&Runner, &Seen)| {
            let now = runner.seen();
            (now.launches - before.launches) as f64 / (now.nanos - before.nanos)
        };
        Ok(runners.iter().zip(&before).map(pace).collect())
    }
}

/// Waits until something is so, while the programs get on.
fn wait_for(
    runners: &mut [Runner],
    mut is_so: impl FnMut(&mut [Runner]) -> bool,
) -> Result<(), Missing> {
    let all = |runners: &[Runner]| runners.iter().map(|runner| runner.seen().launches).sum::<u64>();
    let mut last = (all(runners), Instant::now());
    while !is_so(runners) {
        for runner in runners.iter_mut() {
            runner.must_run()?;
        }
        let now = all(runners);
        if now != last.0 {
            last = (now, Instant::now());
        }
        if last.1.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            return Err(Missing::Broken(format!("no program has got on for {seconds} s")));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// How far a program says that it has got.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Seen {
    launches: u64,
    nanos: f64,
}

impl Seen {
    /// Of one of its lines.
    fn parse(line: &str) -> Option<Seen> {
        let (launches, nanos) = line.trim().split_once(' ')?;
        Some(Seen { launches: launches.parse().ok()?, nanos: nanos.parse().ok()? })
    }
}

/// A program that runs. Dropping it ends it.
struct Runner {
    kind: String,
    child: Child,
    seen: Arc<Mutex<Seen>>,
}

impl Runner {
    fn start(mut command: Command, kind: &str, batch_micros: u32) -> Result<Runner, Missing> {
        let child = command
            .args([kind, &batch_micros.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child =
            child.map_err(|error| Missing::Broken(format!("cannot start pace: {error}")))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        if let Some(stdout) = child.stdout.take() {
            let seen = Arc::clone(&seen);
            // It ends with the program.
            std::thread::spawn(move || listen(stdout, &seen));
        }
        Ok(Runner { kind: kind.to_owned(), child, seen })
    }

    fn seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn must_run(&mut self) -> Result<(), Missing> {
        let Ok(None) = self.child.try_wait() else {
            let status = self.child.wait().map_err(|error| Missing::Broken(error.to_string()))?;
            let said = child::said(&mut self.child);
            return Err(match status.code() {
                Some(NO_BLAS) => Missing::Here(said),
                _ => Missing::Broken(format!("`pace {}` ended with {status}: {said}", self.kind)),
            });
        };
        Ok(())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // It may end by itself, which is gentler to a real GPU's other programs.
        drop(self.child.stdin.take());
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        child::end(&mut self.child);
    }
}

fn listen(stdout: ChildStdout, seen: &Mutex<Seen>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        if let Some(now) = Seen::parse(&line) {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        }
    }
}

/// MPS's own service, started for this command. Dropping it ends it.
struct MpsService {
    folder: TempDir,
}

impl MpsService {
    fn start(visible: &str) -> Result<MpsService, Missing> {
        let here =
            |reason: String| Missing::Here(format!("MPS's service cannot be started: {reason}"));
        let folder = tempfile::Builder::new().prefix("partita-mps-").tempdir();
        let service = MpsService { folder: folder.map_err(|error| here(error.to_string()))? };
        let mut command = Command::new(MPS_CONTROL);
        command.arg("-d").env("CUDA_VISIBLE_DEVICES", visible).stdin(Stdio::null());
        command.envs(service.environment());
        let output = command.output().map_err(|error| here(format!("{MPS_CONTROL}: {error}")))?;
        if output.status.success() {
            return Ok(service);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(here(format!("{MPS_CONTROL} ended with {}: {said}", output.status)))
    }

    fn environment(&self) -> [(&'static str, &Path); 2] {
        ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"].map(|name| (name, self.folder.path()))
    }
}

impl Drop for MpsService {
    fn drop(&mut self) {
        let mut command = Command::new(MPS_CONTROL);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.envs(self.environment());
        // Where it was never started there is nothing to end.
        let Ok(mut child) = command.spawn() else { return };
        if let Some(mut stdin) = child.stdin.take() {
            drop(stdin.write_all(b"quit\n"));
        }
        drop(child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gpu_is_the_one_with_its_number_among_the_visible() {
        assert_eq!(visible(None, 2), "2");
        assert_eq!(visible(Some("3, GPU-5ab1"), 1), "GPU-5ab1");
        assert_eq!(visible(Some("3"), 1), "1");
        assert_eq!(visible(Some(""), 0), "0");
    }

    #[test]
    fn lines_of_programs_are_read_and_others_left_out() {
        assert_eq!(Seen::parse("12 3456\n"), Some(Seen { launches: 12, nanos: 3456.0 }));
        assert_eq!(Seen::parse("warning: something"), None);
    }
}
