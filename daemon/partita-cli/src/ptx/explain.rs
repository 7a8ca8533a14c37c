//! `partita ptx explain`: the form in which each kernel of a file would run, and why it is that one.

use super::{load, summarise};
use crate::failure::Failure;
use crate::files;
use clap::Args;
use partita_ptx::{Blocks, Kernel, KernelReport, Module, Refusal, WorkerOptions};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita ptx explain vecAdd.ptx
      the form of every kernel, and the line that stands in the way of a better one
  partita ptx explain --json vecAdd.ptx | jq '.kernels[] | select(.form == \"original\").name'
      the kernels whose SMs cannot be changed while they run";

/// Say in which form each kernel runs, and if it cannot be resized, why and at which line.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The PTX file; `-` is stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What is said of a file. The field names are those of the JSON.
#[derive(Serialize)]
struct Explanation {
    file: String,
    module: String,
    kernels: Vec<KernelExplanation>,
}

#[derive(Serialize)]
struct KernelExplanation {
    name: String,
    /// `worker`, or `original` where no pass applies.
    form: &'static str,
    parameters: usize,
    parameter_bytes: u64,
    static_shared_bytes: u64,
    dynamic_shared: bool,
    worker: WorkerExplanation,
}

#[derive(Serialize)]
struct WorkerExplanation {
    applies: bool,
    shared_added_bytes: Option<u64>,
    control_offset: Option<u64>,
    /// `any`, or `full_rows`: one-dimensional blocks and those whose x extent is a multiple of 32.
    blocks: Option<&'static str>,
    refusals: Vec<RefusalExplanation>,
}

#[derive(Serialize)]
struct RefusalExplanation {
    /// `null` where the reason is no single place.
    line: Option<u32>,
    reason: String,
}

impl ExplainArgs {
    /// Explains.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let module = load(&self.file)?;
        let explanation = explain(files::shown(&self.file), &module);
        if self.json {
            let mut text = serde_json::to_string_pretty(&explanation)?;
            text.push('\n');
            return Ok(text.into_bytes());
        }
        Ok(render(&explanation).into_bytes())
    }
}

fn explain(file: String, module: &Module) -> Explanation {
    let reports = partita_ptx::worker(module, &WorkerOptions::default()).reports;
    let kernels = module.kernels();
    let kernels =
        kernels.iter().zip(&reports).map(|(kernel, report)| explain_kernel(kernel, report)).collect();
    Explanation { file, module: summarise(module), kernels }
}

fn explain_kernel(kernel: &Kernel, report: &KernelReport) -> KernelExplanation {
    let worker = match report.rewritten() {
        Some(rewrite) => WorkerExplanation {
            applies: true,
            shared_added_bytes: Some(rewrite.shared_added),
            control_offset: Some(rewrite.control_offset),
            blocks: Some(match rewrite.blocks {
                Blocks::Any => "any",
                Blocks::FullRows => "full_rows",
            }),
            refusals: Vec::new(),
        },
        None => WorkerExplanation {
            applies: false,
            shared_added_bytes: None,
            control_offset: None,
            blocks: None,
            refusals: report.refusals().iter().map(explain_refusal).collect(),
        },
    };
    KernelExplanation {
        name: kernel.name.clone(),
        form: if worker.applies { "worker" } else { "original" },
        parameters: kernel.params.len(),
        parameter_bytes: kernel.param_bytes,
        static_shared_bytes: kernel.static_shared,
        dynamic_shared: kernel.dynamic_shared,
        worker,
    }
}

fn explain_refusal(refusal: &Refusal) -> RefusalExplanation {
    let line = Some(refusal.pos.line).filter(|line| *line > 0);
    RefusalExplanation { line, reason: refusal.reason.to_string() }
}

fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}: {}", explanation.file, explanation.module);
    for kernel in &explanation.kernels {
        let dynamic = if kernel.dynamic_shared { " and dynamic" } else { "" };
        let _ = writeln!(
            text,
            "\n{}\n  form        {}\n  parameters  {} ({} bytes)\n  shared      {} bytes{dynamic}",
            kernel.name, kernel.form, kernel.parameters, kernel.parameter_bytes, kernel.static_shared_bytes
        );
        render_worker(&mut text, &kernel.worker);
    }
    text
}

fn render_worker(text: &mut String, worker: &WorkerExplanation) {
    if let Some(added) = worker.shared_added_bytes {
        let blocks = match worker.blocks {
            Some("full_rows") => {
                ", for 1-D blocks and those whose x extent is a multiple of 32; others run the original, alone"
            }
            _ => "",
        };
        let _ = writeln!(text, "  worker      applies: adds {added} bytes of shared memory{blocks}");
    }
    for refusal in &worker.refusals {
        let line = refusal.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let _ = writeln!(text, "  worker      refused: {line}{}", refusal.reason);
    }
}
