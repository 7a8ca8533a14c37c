//! `partita bench gpu`: the behaviour of a GPU, and whether Partita's assumptions hold on it. Each
//! part runs on any device: on the emulated GPU its figures are those of a specification. Each part
//! is measured in a process of its own ([`each`]), because some may end the GPU's context.

mod conformance;
mod each;
mod hardware;
mod parts;
mod probe;
mod programs;
mod resize;
mod sharing;

use crate::rig::RigError;
use clap::{Args, ValueEnum};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_cli::run::locate::SELF;
use partita_device::Device;
use partita_model::DeviceKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  partita bench gpu --probe
      check the most important assumptions, within a minute
  partita bench gpu --archive gpu.tar.gz
      measure every part; keep the figures, messages and facts of the machine in one file
  partita bench gpu --json --out results
      measure every part; print JSON, and write a file for each part to `results`
  partita bench gpu --part launch --part copies --limit 60
      measure only these parts, each for at most 60 s
  partita bench gpu --probe --device emu:cd-search-24
      try the probe on an emulated GPU

Each part runs in a process of its own. A part that fails, or outlasts its limit, is reported,
and the next part begins.

Exit codes: 0 success, 1 there is no GPU, or a part failed.";

/// How much is done: more makes it more exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effort {
    /// What an emulator does within seconds.
    Little,
    /// Some milliseconds of a GPU for each number.
    Full,
}

impl Effort {
    fn of(device: &dyn Device, quick: bool) -> Effort {
        match device.facts().kind {
            DeviceKind::Cuda if !quick => Effort::Full,
            DeviceKind::Cuda | DeviceKind::Emulated => Effort::Little,
        }
    }
}

/// The calibration kernels.
const CALIBRATE: &str = include_str!("../../../../../kernels-ptx/device/calibrate.ptx");

/// The kernels.
const KERNELS: &str = include_str!("kernels.ptx");

/// What the driver reads when it is loaded: kernels are loaded with their modules, and work of 32
/// streams goes at once.
const ENVIRONMENT: [(&str, &str); 2] =
    [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")];

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// The most important assumptions: confinement, placement, signals, helper grids, loading
    /// beside running kernels.
    Probe,
    /// The figures that policies use.
    Calibration,
    /// Latency of launches, and empty kernels one after the other.
    Launch,
    /// Bandwidth of copies.
    Copies,
    /// The cost of forms for compute-bound and memory-bound kernels.
    Overhead,
    /// Whether kernels leave the same memory in every form as on the emulated GPU.
    Conformance,
    /// The time in which borders move under running kernels, through the engine.
    Resize,
    /// Speed by the number of SMs.
    Curves,
    /// The gain of two workloads from sharing.
    Pairs,
    /// The loss of unmodified programs alone and their gain together: without Partita, under MPS,
    /// and with Partita.
    Programs,
}

const ALL: [Part; 10] = [
    Part::Probe,
    Part::Calibration,
    Part::Launch,
    Part::Copies,
    Part::Overhead,
    Part::Conformance,
    Part::Resize,
    Part::Curves,
    Part::Pairs,
    Part::Programs,
];

/// Measure a GPU, and whether Partita's assumptions hold on it.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct GpuArgs {
    /// Only the probe: `--part probe`.
    #[arg(long, conflicts_with = "part")]
    probe: bool,

    /// Measure only this part; the option may be repeated.
    #[arg(long, value_name = "PART")]
    part: Vec<Part>,

    /// The device: `cuda`, `cuda:NUMBER`, or an emulated one.
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    device: String,

    /// Measure less, as on an emulated GPU.
    #[arg(long)]
    quick: bool,

    /// End a part after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// Write the report of each part to this folder, too.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Write all reports, the messages of each part and facts of the machine to one .tar.gz file.
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,

    /// Print JSON, a line for each part.
    #[arg(long)]
    json: bool,

    /// Measure the part in this process, and print JSON.
    #[arg(long, hide = true)]
    here: bool,
}

impl GpuArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if self.device.starts_with("cuda") {
            become_ready()?;
        }
        let parts = if self.probe {
            vec![Part::Probe]
        } else if self.part.is_empty() {
            ALL.to_vec()
        } else {
            self.part.clone()
        };
        if self.here {
            return self.here(&parts);
        }
        let each = each::Each {
            device: self.device,
            quick: self.quick,
            limit: Duration::from_secs(self.limit),
            out: self.out,
            archive: self.archive,
            json: self.json,
        };
        each.measure(&parts.iter().map(|part| part.name()).collect::<Vec<_>>())
    }

    /// Measures in this process.
    fn here(&self, parts: &[Part]) -> Result<Vec<u8>, Failure> {
        let ordinal = partita_cuda_device::Options::parse(&self.device)
            .ok()
            .and_then(|options| options.ordinal);
        let mut text = String::new();
        for part in parts {
            let device = open(&self.device)?;
            let report = part.measure(device, &self.device, ordinal.unwrap_or(0), self.quick)?;
            text += &serde_json::to_string(&report)?;
            text.push('\n');
        }
        Ok(text.into_bytes())
    }
}

impl Part {
    /// The name on the command line.
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Measures; the device is the engine's where that takes part.
    fn measure(
        self,
        device: Box<dyn Device>,
        text: &str,
        ordinal: u32,
        quick: bool,
    ) -> Result<Report, Failure> {
        let on = match device.facts().kind {
            DeviceKind::Cuda => device.identity(),
            DeviceKind::Emulated => device.facts().name.clone(),
        };
        let report = |bench: &str, metrics| Report {
            bench: bench.into(),
            device: on.clone(),
            seed: 0,
            metrics,
        };
        if self == Part::Resize {
            let effort = Effort::of(device.as_ref(), quick);
            let (metrics, _) = resize::metrics(device, effort)?;
            return Ok(report("gpu-resize", metrics));
        }
        if self == Part::Programs {
            let (facts, effort) = (device.facts().clone(), Effort::of(device.as_ref(), quick));
            // The programs are to have the GPU for themselves.
            drop(device);
            let metrics = programs::metrics(text, &facts, ordinal, effort)?;
            return Ok(report("gpu-programs", metrics));
        }
        let mut device = device;
        let (name, metrics) = self.by_rig(device.as_mut(), ordinal, quick)?;
        Ok(report(name, metrics))
    }

    fn by_rig(
        self,
        device: &mut dyn Device,
        ordinal: u32,
        quick: bool,
    ) -> Result<(&'static str, Vec<Metric>), RigError> {
        let effort = Effort::of(device, quick);
        Ok(match self {
            Part::Probe => {
                let mut metrics = probe::metrics(device, effort)?;
                if device.facts().kind == DeviceKind::Cuda {
                    metrics.extend(hardware::metrics(device.facts(), ordinal)?);
                }
                ("gpu-probe", metrics)
            }
            Part::Calibration => ("gpu-calibration", parts::calibration(device)?),
            Part::Launch => ("gpu-launch", parts::launch(device, effort)?),
            Part::Copies => ("gpu-copies", parts::copies(device, effort)?),
            Part::Overhead => ("gpu-overhead", parts::overhead(device, effort)?),
            Part::Conformance => ("gpu-conformance", conformance::metrics(device)?),
            Part::Curves => ("gpu-curves", sharing::curves(device, effort)?),
            Part::Pairs => ("gpu-pairs", sharing::pairs(device, effort)?),
            Part::Resize | Part::Programs => {
                return Err(RigError::Work("not a part of the rig's".to_owned()));
            }
        })
    }
}

fn open(text: &str) -> Result<Box<dyn Device>, Failure> {
    partita_gpu::device::open(text, None).map_err(|error| {
        let remedy = "`--device emu:cd-search-24` tries the benchmark on an emulated GPU";
        Failure::new(format!("no GPU: {error}; {remedy}"))
    })
}

/// The driver reads its environment when it is loaded: this process starts anew with the right one.
fn become_ready() -> Result<(), Failure> {
    let is_set =
        |(name, value): &(&str, &str)| std::env::var(name).is_ok_and(|found| found == *value);
    if ENVIRONMENT.iter().all(is_set) {
        return Ok(());
    }
    let error =
        std::process::Command::new(SELF).args(std::env::args_os().skip(1)).envs(ENVIRONMENT).exec();
    Err(Failure::new(format!("cannot start anew: {error}")))
}

/// Whether something was so, as a figure that should be 1.
fn holds(name: &str, is_so: bool) -> Metric {
    Metric::at_least(name, if is_so { 1.0 } else { 0.0 }, "of 1", 1.0)
}
