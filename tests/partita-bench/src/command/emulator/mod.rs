//! `partita bench emu`: how fast the emulated GPU emulates, what it costs before a kernel runs, and
//! how near its time is to the references'.

mod curves;
mod interference;
mod references;
mod speed;
mod start;

use crate::shown;
use clap::{Args, ValueEnum};
use partita_cli::failure::Failure;
use partita_cli::report::{Metric, Report};
use partita_emu::dispatch::{Units, use_at_most};
use partita_emu::setup::DEFAULT_SPEC;
use partita_emu::{Options, Spec, Timing};
use speed::Speed;
use std::path::PathBuf;
use std::time::Duration;

const EMU_EXAMPLES: &str = "\
Examples:
  partita bench emu
      measure every part: --speed, --start and --curves
  partita bench emu --speed
      million thread instructions per second of five workloads on one core, without timing
  partita bench emu --speed --timing --json | jq '.metrics[] | {name, value}'
      the same with timing, as JSON
  partita bench emu --speed --vectors avx2
      what AVX-512 gains, beside the same without the option
  partita bench emu --speed --threads 4
      what four threads of the host gain over one, by the clock on the wall
  partita bench emu --start
      time to start the device and to load a module of 1 MB of PTX, and the memory of both
  partita bench emu --curves
      the timing model beside the references: curves over SM counts, bandwidths, launch latency

To compare different hosts, divide the figures by the calibration loop of the same run.";

/// With timing the geometric mean over the workloads should reach this many million thread
/// instructions per second.
const TIMED_GOAL: f64 = 1000.0;
/// The device should start within so many milliseconds.
const START_GOAL: f64 = 20.0;
/// A module of 1 MB of PTX should load within so many milliseconds.
const LOAD_GOAL: f64 = 100.0;
/// Device and module should take no more than so many megabytes beside the programs' device memory.
const MEMORY_GOAL: f64 = 200.0;

/// Measure the emulated GPU: its speed, its start, and its timing against references
#[derive(Args, Debug)]
#[command(after_help = EMU_EXAMPLES)]
pub struct EmuArgs {
    /// Measure thread instructions per second.
    #[arg(long)]
    speed: bool,

    /// Measure the time to start the device and to load a module, and their memory.
    #[arg(long, conflicts_with = "speed")]
    start: bool,

    /// With --start: the module to load, instead of a generated one of 1 MB.
    #[arg(long, value_name = "FILE", requires = "start")]
    ptx: Option<PathBuf>,

    /// Compare simulated time with the references' figures, on the specifications of their GPUs.
    #[arg(long, conflicts_with_all = ["speed", "start", "timing", "spec"])]
    curves: bool,

    /// Keep simulated time while measuring.
    #[arg(long)]
    timing: bool,

    /// The widest vector units of the processor to use [default: all that it has].
    #[arg(long, value_name = "UNITS", value_enum, conflicts_with = "curves")]
    vectors: Option<Vectors>,

    /// With --speed: let N threads of the host execute kernels, and compare them with one.
    #[arg(long, value_name = "N", requires = "speed", conflicts_with = "timing",
        value_parser = clap::value_parser!(u16).range(2..=256))]
    threads: Option<u16>,

    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SPEC)]
    spec: String,

    /// Divide the work by this; the figures are only good at 1.
    #[arg(long, value_name = "N", default_value_t = 1, hide = true,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    scale: u32,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Vector units of processors.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Vectors {
    /// Those of every processor of the architecture.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512.
    Avx512,
}

impl EmuArgs {
    /// Measures the parts that are named, or all of them.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if let Some(vectors) = self.vectors {
            use_at_most(match vectors {
                Vectors::Baseline => Units::Baseline,
                Vectors::Avx2 => Units::Avx2,
                Vectors::Avx512 => Units::Avx512,
            });
        }
        let all = !(self.speed || self.start || self.curves);
        let mut reports = Vec::new();
        if all || self.speed {
            reports.push(self.speed()?);
        }
        if all || self.start {
            reports.push(self.start()?);
        }
        if all || self.curves {
            reports.push(references::report(self.scale)?);
        }
        let mut output = Vec::new();
        for (index, report) in reports.iter().enumerate() {
            if index > 0 && !self.json {
                output.push(b'\n');
            }
            output.extend(shown(report, self.json)?);
        }
        Ok(output)
    }

    fn mode(&self) -> Timing {
        if self.timing { Timing::On } else { Timing::Off }
    }

    fn start(&self) -> Result<Report, Failure> {
        let text = match &self.ptx {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?,
            None => start::generated_module(start::MODULE_BYTES / self.scale as usize),
        };
        let (spec, timing) = (Spec::find(&self.spec)?, self.mode());
        let options = Options { timing, ..Options::default() };
        let found = start::measure(&self.spec, options, &text)?;
        let module = match &self.ptx {
            Some(path) => format!("{}, {} bytes", path.display(), text.len()),
            None => format!("{} bytes generated", text.len()),
        };
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let mut metrics = vec![
            Metric::plain("calibration loop", speed::calibration(), "M steps/s"),
            Metric::at_most("start of the device", milliseconds(found.device), "ms", START_GOAL),
            Metric::at_most("load of the module", milliseconds(found.load), "ms", LOAD_GOAL),
            Metric::plain("kernels of the module", found.kernels as f64, "kernels"),
        ];
        if let Some(bytes) = found.resident {
            let megabytes = bytes as f64 / 1e6;
            metrics.push(Metric::at_most(
                "memory, less the programs' own",
                megabytes,
                "MB",
                MEMORY_GOAL,
            ));
        }
        Ok(Report {
            bench: "emu-start".into(),
            device: format!("{}, {}, module of {module}", spec.name, kept(timing)),
            seed: 0,
            metrics,
        })
    }

    fn speed(&self) -> Result<Report, Failure> {
        let spec = Spec::find(&self.spec)?;
        let timing = self.mode();
        let calibration = speed::calibration();
        if let Some(threads) = self.threads {
            let pairs = speed::pairs(&spec, threads, self.scale)?;
            return Ok(threads_report(&spec, threads, calibration, &pairs));
        }
        let speeds = speed::measure(&spec, timing, self.scale, None)?;
        Ok(emu_report(&spec, timing, calibration, &speeds))
    }
}

/// What several threads gain: each workload on one and on all.
fn threads_report(spec: &Spec, threads: u16, calibration: f64, pairs: &[(Speed, Speed)]) -> Report {
    let mut metrics = vec![Metric::plain("calibration loop", calibration, "M steps/s")];
    for (one, all) in pairs {
        let (before, now) = (one.millions_per_second(), all.millions_per_second());
        metrics.push(Metric::plain(one.name, now, "M thread instructions/s"));
        metrics.push(Metric::plain(format!("{}, gain", one.name), now / before, "times"));
    }
    Report {
        bench: "emu-threads".into(),
        device: format!("{}, timing off, {threads} threads beside one", spec.name),
        seed: 0,
        metrics,
    }
}

fn emu_report(spec: &Spec, timing: Timing, calibration: f64, speeds: &[Speed]) -> Report {
    let unit = "M thread instructions/s";
    let mut metrics = vec![Metric::plain("calibration loop", calibration, "M steps/s")];
    metrics.extend(speeds.iter().map(|speed| {
        let value = speed.millions_per_second();
        match speed.goal {
            Some(goal) => Metric::at_least(speed.name, value, unit, goal),
            None => Metric::plain(speed.name, value, unit),
        }
    }));
    if timing == Timing::On && !speeds.is_empty() {
        let logarithms: f64 = speeds.iter().map(|speed| speed.millions_per_second().ln()).sum();
        let count = f64::from(u32::try_from(speeds.len()).unwrap_or(u32::MAX));
        metrics.push(Metric::at_least(
            "geometric mean",
            (logarithms / count).exp(),
            unit,
            TIMED_GOAL,
        ));
    }
    Report {
        bench: "emu-speed".into(),
        device: format!("{}, {}", spec.name, kept(timing)),
        seed: 0,
        metrics,
    }
}

fn kept(timing: Timing) -> &'static str {
    match timing {
        Timing::On => "timing on",
        Timing::Off => "timing off",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(name: &'static str, seconds: f64, goal: Option<f64>) -> Speed {
        Speed { name, thread_instructions: 1_000_000_000, seconds, cycles: 1, goal }
    }

    #[test]
    fn goals_are_per_workload_or_in_the_mean() {
        let spec = Spec::find(DEFAULT_SPEC).unwrap();
        let summary = |timing, speeds: &[Speed]| {
            let metrics = emu_report(&spec, timing, 900.0, speeds).metrics;
            metrics
                .iter()
                .map(|metric| (metric.name.clone(), metric.value.round(), metric.met))
                .collect::<Vec<_>>()
        };
        let expected = [
            ("calibration loop", 900.0, None),
            ("chain", 2000.0, Some(true)),
            ("saxpy", 1000.0, Some(false)),
        ];
        let untimed = [speed("chain", 0.5, Some(2000.0)), speed("saxpy", 1.0, Some(1001.0))];
        assert_eq!(
            summary(Timing::Off, &untimed),
            expected.map(|(name, value, met)| (name.to_owned(), value, met))
        );

        for (seconds, mean, met) in [(0.5, 1414.0, true), (2.5, 632.0, false)] {
            let timed = [speed("chain", seconds, None), speed("saxpy", 1.0, None)];
            assert_eq!(
                summary(Timing::On, &timed).last(),
                Some(&("geometric mean".to_owned(), mean, Some(met)))
            );
        }
    }
}
