//! `partita bench forms`: whether kernels of recorded programs leave the same memory in every form.

mod assemble;
mod check;
mod drive;
mod lane;

use crate::recordings;
use assemble::Assembler;
use check::{Check, Effort, Kernel, LANES};
use clap::Args;
use partita_cli::failure::{Failure, complain};
use partita_cli::progress::Bar;
use partita_cli::report::{Metric, Report};
use partita_emu::record::Entry;
use partita_emu::{MemoryOrder, Spec};
use partita_ptx::Pass;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  partita run --device emu,timing=off,record=scan.rec -- ./scan
  partita bench forms scan.rec
      run each launch again as original, workers, tickets, slices, fenced and counted, while the
      partition changes at random, and compare the memory
  partita bench forms --ptxas ptxas --architectures 75,80,90,100,120 *.rec
      also assemble each rewritten module with ptxas, for the architectures that its target permits

Exit codes: 0 the memory is the same in every form, 1 it differs, 2 wrong usage.";

/// The spec of the recordings and, but for the number of SMs, of what they are tried on.
const SPEC: &str = "h200";

/// Kernels that a set should have, and the share of them that should be workers or tickets
/// (percent).
const KERNELS_GOAL: f64 = 80.0;
const FORMS_GOAL: f64 = 90.0;

/// Check that kernels of recorded programs leave the same memory in every form
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct FormsArgs {
    /// Whole recordings; `partita run --device emu,timing=off,record=FILE` makes one.
    #[arg(value_name = "RECORDING", required = true)]
    recordings: Vec<PathBuf>,

    /// The seed of tasks, partitions and the moments at which partitions change.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// The number of launches of each kernel, each with another grid or block.
    #[arg(long, value_name = "N", default_value_t = 4)]
    launches: u64,

    /// The number of runs of each launch in each form.
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u32,

    /// Run the forms in weak memory, where a missing fence shows.
    #[arg(long)]
    weak: bool,

    /// Assemble every module in every form with this ptxas.
    #[arg(long, value_name = "PTXAS")]
    ptxas: Option<PathBuf>,

    /// Assemble for these architectures, as far as a module's target permits [default: the target].
    #[arg(long, value_name = "NN", value_delimiter = ',', requires = "ptxas")]
    architectures: Vec<u32>,

    /// List each kernel with its runs.
    #[arg(long)]
    kernels: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Found {
    kernels: BTreeMap<(String, String), Kernel>,
    failures: Vec<String>,
    assembled: u64,
}

impl FormsArgs {
    /// Tries all recordings.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(SPEC)?;
        let memory = if self.weak { MemoryOrder::Weak } else { MemoryOrder::InOrder };
        let effort = Effort { launches: self.launches, runs: self.runs, seed: self.seed, memory };
        let mut assembler =
            self.ptxas.map(|path| Assembler::new(path, self.architectures)).transpose()?;
        let mut found = Found::default();
        for path in &self.recordings {
            let fault = |error: &dyn std::fmt::Display| {
                Failure::new(format!("{}: {error}", path.display()))
            };
            let entries = recordings::entries(path)?;
            let mut check = Check::new(&spec, effort).map_err(|error| fault(&error))?;
            found.follow(path, &entries, &mut check, assembler.as_mut());
        }
        found.assembled = assembler.map_or(0, |assembler| assembler.taken);
        let report = found.report(&spec, self.seed);
        let mut text =
            if self.json { serde_json::to_string(&report)? + "\n" } else { report.table() };
        if self.kernels && !self.json {
            text.push_str(&found.table());
        }
        if found.failures.is_empty() {
            return Ok(text.into_bytes());
        }
        Err(Failure::new(found.failures.join("\n")).after(text.into_bytes()))
    }
}

impl Found {
    fn follow(
        &mut self,
        path: &Path,
        entries: &[Entry],
        check: &mut Check,
        mut assembler: Option<&mut Assembler>,
    ) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let mut bar = Bar::new(&name, "entries of the recording");
        for (index, entry) in entries.iter().enumerate() {
            bar.step(index + 1, entries.len(), "");
            if let (Some(assembler), Entry::Load { ptx, .. }) = (assembler.as_deref_mut(), entry)
                && let Err(refusals) = assembler.assemble(ptx)
            {
                self.failures.extend(
                    refusals.iter().map(|refusal| format!("{}: {refusal}", path.display())),
                );
            }
            if let Err(reason) = check.entry(entry) {
                complain(&format!("{}: followed only in part: {reason}", path.display()));
                break;
            }
        }
        bar.end();
        for (name, kernel) in std::mem::take(&mut check.kernels) {
            let failures = kernel.failures.iter();
            self.failures.extend(
                failures.map(|failure| format!("{}: {}: {failure}", path.display(), name.0)),
            );
            let known = self
                .kernels
                .entry(name)
                .or_insert_with(|| Kernel { form: kernel.form, ..Kernel::default() });
            known.merge(kernel);
        }
    }

    fn report(&self, spec: &Spec, seed: u64) -> Report {
        let number = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let tried: Vec<&Kernel> =
            self.kernels.values().filter(|kernel| kernel.launches > 0).collect();
        let count = |holds: &dyn Fn(&Kernel) -> bool| {
            number(tried.iter().filter(|kernel| holds(kernel)).count() as u64)
        };
        let formed = count(&|kernel| kernel.form != "original");
        let failed = number(self.failures.len() as u64);
        let kernels = number(tried.len() as u64);
        let all = number(self.kernels.len() as u64);
        let mut metrics = vec![
            Metric::at_least("kernels", kernels, "", KERNELS_GOAL),
            Metric::at_least(
                "workers and tickets",
                100.0 * formed / kernels.max(1.0),
                "%",
                FORMS_GOAL,
            ),
            Metric::plain("workers", count(&|kernel| kernel.form == "worker"), ""),
            Metric::plain("tickets", count(&|kernel| kernel.form == "ticket"), ""),
            Metric::plain("left by order", count(&|kernel| kernel.depends_on_order), ""),
            Metric::plain("not tried", all - kernels, ""),
            Metric::plain("launches", number(tried.iter().map(|k| k.launches).sum()), ""),
            Metric::plain("grids", number(tried.iter().map(|k| k.grids.len() as u64).sum()), ""),
        ];
        for (index, passes) in LANES.iter().enumerate() {
            let runs = tried.iter().map(|kernel| kernel.runs[index]).sum();
            metrics.push(Metric::plain(format!("runs {}", names(passes)), number(runs), ""));
        }
        metrics.push(Metric::plain("texts that ptxas took", number(self.assembled), ""));
        metrics.push(Metric {
            goal: Some(0.0),
            met: Some(failed == 0.0),
            ..Metric::plain("failures", failed, "")
        });
        Report { bench: "forms".into(), device: spec.name.clone(), seed, metrics }
    }

    fn table(&self) -> String {
        let mut text = String::new();
        for ((name, target), kernel) in &self.kernels {
            let grids = kernel.grids.len();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{name} ({target}): {}, {} launches, {grids} grids, runs {:?}",
                kernel.form, kernel.launches, kernel.runs
            );
            for (form, refusal) in &kernel.refusals {
                let _ = writeln!(text, "    {}: {refusal}", names(LANES[*form]));
            }
            for reason in &kernel.untried {
                let _ = writeln!(text, "    not tried: {reason}");
            }
        }
        text
    }
}

impl Kernel {
    fn merge(&mut self, other: Kernel) {
        self.launches += other.launches;
        self.grids.extend(other.grids);
        for (mine, theirs) in self.runs.iter_mut().zip(other.runs) {
            *mine += theirs;
        }
        self.refusals.extend(other.refusals);
        self.depends_on_order |= other.depends_on_order;
        self.untried.extend(other.untried);
        self.failures.extend(other.failures);
    }
}

fn names(passes: &[Pass]) -> String {
    passes.iter().map(|pass| pass.name()).collect::<Vec<_>>().join(", ")
}
