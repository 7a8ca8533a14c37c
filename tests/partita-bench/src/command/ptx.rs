//! `partita bench ptx`: the speed of the PTX compiler, and the cost of its forms.
//!
//! Instructions are PTX instructions, executed on the emulated GPU. Registers are ptxas's counts,
//! where ptxas is installed.

use clap::Args;
use partita_cli::failure::Failure;
use partita_cli::files;
use partita_cli::ptx::check;
use partita_cli::ptx::registers::{Registers, Source, ptxas};
use partita_cli::report::{Metric, Report};
use partita_emu::direct::{self, Argument, Form, Run};
use partita_emu::{Options, Spec, Timing};
use partita_model::Dim3;
use partita_ptx::{Module, Pass, WorkerOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  partita bench ptx
      measure on kernels that come with Partita
  PARTITA_PTXAS=/usr/local/cuda/bin/ptxas partita bench ptx --json kernels/*.ptx
      measure speed and added registers on these modules, beside the time of ptxas

tests/ptx-syntax, which is built separately, compares our parser with the crate ptx-syntax.";

const BLACK_SCHOLES: &str = include_str!("black_scholes.ptx");
const CALIBRATE: &str = include_str!("../../../../kernels-ptx/device/calibrate.ptx");
/// Of parsing and printing.
const MEGABYTES_PER_SECOND: f64 = 60.0;
/// Parsing, rewriting and printing, in percent of the time that `ptxas -O3` takes.
const PERCENT_OF_PTXAS: f64 = 1.0;
/// Slate's figure, in percent.
const WORKER_PERCENT: f64 = 3.0;
const FENCE_PERCENT: f64 = 4.0;
const REGISTERS: f64 = 4.0;

/// Measure the PTX compiler: its speed, and the cost of the forms.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PtxArgs {
    /// PTX files for speed and registers, instead of Partita's own.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Divide the work by this; the figures are only good at 1.
    #[arg(long, value_name = "N", default_value_t = 1, hide = true,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    scale: u32,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl PtxArgs {
    /// Measures.
    pub fn report(&self) -> Result<Report, Failure> {
        let modules = self.modules()?;
        let mut metrics = speed(&modules, self.scale)?;
        let scholes = black_scholes(self.scale);
        let worker = added(&scholes, &worker_of(&scholes))?;
        let name = "worker, 10 CTAs a task: thread instructions of Black-Scholes";
        metrics.push(Metric {
            paper: Some(WORKER_PERCENT),
            ..Metric::at_most(name, worker, "% more", WORKER_PERCENT)
        });
        let mut fences = Vec::new();
        for run in [scholes].into_iter().chain(calibration(self.scale)) {
            let percent = added(&run, &Run { form: Form::Fenced, ..run.clone() })?;
            metrics.push(Metric::plain(
                format!("fence: thread instructions of {}", run.kernel),
                percent,
                "% more",
            ));
            fences.push(percent);
        }
        let mean = fences.iter().sum::<f64>() / f64::from(u32::try_from(fences.len())?);
        metrics.push(Metric::at_most(
            "fence: thread instructions, mean",
            mean,
            "% more",
            FENCE_PERCENT,
        ));
        let source = registers(&modules, &mut metrics)?;
        let by = match source {
            Source::Ptxas => "ptxas",
            Source::Estimate => "estimate",
        };
        let device = format!("{} files, registers by {by}", modules.len());
        Ok(Report { bench: "ptx".into(), device, seed: 0, metrics })
    }

    fn modules(&self) -> Result<Vec<(String, Module)>, Failure> {
        if self.files.is_empty() {
            let module =
                |text: &str| check(Path::new("-"), text).map(|module| (text.to_owned(), module));
            return [BLACK_SCHOLES, CALIBRATE].into_iter().map(module).collect();
        }
        let module = |file: &PathBuf| {
            let text = files::read_text(file)?;
            let module = check(file, &text)?;
            Ok((text, module))
        };
        self.files.iter().map(module).collect()
    }
}

/// The shortest of some runs.
fn shortest(times: u32, mut work: impl FnMut()) -> Duration {
    let once = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    (0..times).map(once).min().unwrap_or_default()
}

fn speed(modules: &[(String, Module)], scale: u32) -> Result<Vec<Metric>, Failure> {
    let bytes: usize = modules.iter().map(|(text, _)| text.len()).sum();
    // Small sets are gone through as often as makes 16 MB.
    let rounds = ((16 << 20) / bytes.max(1) / scale as usize).max(1);
    let took = shortest(3, || {
        for _ in 0..rounds {
            for (text, _) in modules {
                if let Ok(module) = partita_ptx::parse(text) {
                    std::hint::black_box(partita_ptx::print(&module));
                }
            }
        }
    });
    #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
    let megabytes = (bytes * rounds) as f64 / 1e6;
    let rate = megabytes / took.as_secs_f64().max(1e-9);
    let mut metrics =
        vec![Metric::at_least("parse and print, one core", rate, "MB/s", MEGABYTES_PER_SECOND)];
    let Some(ptxas) = ptxas() else { return Ok(metrics) };
    let mut theirs = Duration::ZERO;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("module.ptx");
    let mut ours = Duration::ZERO;
    for (text, module) in modules {
        std::fs::write(&file, text)?;
        let architecture = module.target.first().map_or("sm_90", |&name| module.text(name));
        let start = Instant::now();
        let output = Command::new(&ptxas)
            .args(["-O3", &format!("-arch={architecture}"), "-o"])
            .arg(folder.path().join("module.cubin"))
            .arg(&file)
            .output()?;
        let took = start.elapsed();
        if !output.status.success() {
            continue;
        }
        theirs += took;
        ours += shortest(3, || {
            if let Ok(module) = partita_ptx::parse(text)
                && partita_ptx::verify(&module).is_ok()
            {
                let rewritten = partita_ptx::worker(&module, &WorkerOptions::default());
                std::hint::black_box(partita_ptx::print(&rewritten.module));
            }
        });
    }
    if !theirs.is_zero() {
        let percent = 100.0 * ours.as_secs_f64() / theirs.as_secs_f64();
        let name = "parse, verify, worker and print, of the time of ptxas -O3";
        metrics.push(Metric::at_most(name, percent, "%", PERCENT_OF_PTXAS));
    }
    Ok(metrics)
}

fn run(ptx: &str, kernel: &str, ctas: u32, threads: u32, arguments: Vec<Argument>) -> Run {
    Run {
        ptx: ptx.into(),
        kernel: kernel.to_owned(),
        grid: Dim3::linear(ctas),
        block: Dim3::linear(threads),
        dynamic_shared: 0,
        arguments,
        form: Form::Original,
        spec: Spec::named(partita_emu::setup::DEFAULT_SPEC).expect("the default is embedded"),
        options: Options { timing: Timing::Off, ..Options::default() },
    }
}

fn word(value: u32) -> Argument {
    Argument::Value(value.to_le_bytes().to_vec())
}

fn floats(count: u32, value: f32) -> Argument {
    Argument::Buffer(value.to_le_bytes().repeat(count as usize))
}

/// 128 threads a CTA, two options a thread.
fn black_scholes(scale: u32) -> Run {
    let ctas = (24_000 / scale).max(64);
    let options = ctas * 256;
    let arguments = vec![
        floats(options, 20.0),
        floats(options, 25.0),
        floats(options, 2.0),
        floats(options, 0.0),
        floats(options, 0.0),
        word(0.02_f32.to_bits()),
        word(0.3_f32.to_bits()),
        word(ctas * 128),
    ];
    run(BLACK_SCHOLES, "black_scholes", ctas, 128, arguments)
}

/// The calibration kernels.
fn calibration(scale: u32) -> [Run; 3] {
    let ctas = (640 / scale).max(8);
    let sink = || floats(1, 0.0);
    let (set, pieces) = (64 << 10, ctas * 256 * 16);
    let set_words = || floats(set / 4, 0.0);
    [
        run(
            CALIBRATE,
            "partita_read_llc",
            ctas,
            256,
            vec![set_words(), sink(), word(set - 1), word(16)],
        ),
        run(
            CALIBRATE,
            "partita_stream",
            ctas,
            256,
            vec![
                floats(pieces * 4, 0.0),
                sink(),
                Argument::Value(u64::from(pieces).to_le_bytes().to_vec()),
            ],
        ),
        run(CALIBRATE, "partita_arithmetic", ctas, 256, vec![sink(), word(8)]),
    ]
}

fn worker_of(run: &Run) -> Run {
    Run { form: Form::Worker { task: 10 }, ..run.clone() }
}

/// Thread instructions of `after` beyond those of `before`, in percent. Both must leave the same
/// memory.
fn added(before: &Run, after: &Run) -> Result<f64, Failure> {
    let (original, changed) = (direct::run(before)?, direct::run(after)?);
    if original.buffers != changed.buffers {
        return Err(Failure::new(format!(
            "the forms of kernel `{}` leave different memory",
            before.kernel
        )));
    }
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    let [original, changed] =
        [original, changed].map(|ran| ran.counters.thread_instructions as f64);
    Ok(100.0 * (changed - original) / original)
}

/// Registers that passes add, over the kernels that take them.
fn registers(modules: &[(String, Module)], metrics: &mut Vec<Metric>) -> Result<Source, Failure> {
    let mut source = Source::Ptxas;
    for pass in [Pass::Worker, Pass::Fence] {
        let mut differences = Vec::new();
        for (_, module) in modules {
            let before = Registers::of(module)?;
            let rewritten = pass.apply(module, &WorkerOptions::default());
            let after = Registers::by(before.source(), &rewritten.module)?;
            if before.source() == Source::Estimate {
                source = Source::Estimate;
            }
            let taken = rewritten.reports.iter().filter(|report| report.refusals().is_empty());
            differences.extend(taken.filter_map(|report| {
                let (before, after) = (before.get(&report.name)?, after.get(&report.name)?);
                Some(f64::from(after) - f64::from(before))
            }));
        }
        differences.sort_by(f64::total_cmp);
        let Some(&median) = differences.get(differences.len() / 2) else { continue };
        let name = format!("{}: registers, median of {} kernels", pass.name(), differences.len());
        metrics.push(match pass {
            Pass::Worker => Metric::at_most(name, median, "more", REGISTERS),
            _ => Metric::plain(name, median, "more"),
        });
    }
    Ok(source)
}
