//! `partita ptx explain`: the form of each kernel, the cost of each pass, and the reason and line
//! where a pass does not apply.

use super::registers::{Registers, Source};
use super::{load, machine_code, summarise};
use crate::failure::Failure;
use crate::files;
use clap::Args;
use partita_ptx::analysis::trips::{self, FormTrips, Trips};
use partita_ptx::contain::Rights;
use partita_ptx::{
    Blocks, Calls, Kernel, KernelForm, KernelReport, Module, Pass, Refusal, WorkerOptions,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita ptx explain vecAdd.ptx
      show the form of every kernel, the cost of each pass, and the line that prevents a pass
  partita ptx explain --json vecAdd.ptx | jq '.kernels[] | select(.form == \"original\").name'
      list the kernels whose SMs cannot change while they run
  partita ptx explain vecAdd.ptx | grep '^  contain'
      list what each kernel costs with `--device cuda,guards=strict`, or why it needs a right
  partita ptx explain --json vecAdd.ptx | jq '.kernels[].passes[] | {pass, round_trips}'
      count the round trips to memory that the control block costs a launch

Register counts come from ptxas where PARTITA_PTXAS names it or PATH has it, else from an \
estimate.
Round trips are those that the leader of a CTA waits for, on its cheapest path: loads and atomic
operations that depend on one another, and fences.";

/// The passes that a kernel is explained for, in the order of the output.
const PASSES: [Pass; 7] = [
    Pass::Worker,
    Pass::Ticket,
    Pass::Slice,
    Pass::Count,
    Pass::Fence,
    Pass::Contain,
    Pass::Cancel,
];

/// Show the form of each kernel and the cost of each pass; where a pass does not apply, its reason
/// and line.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The PTX file, or a cubin; `-` is PTX from stdin.
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
    /// Who says how many registers a kernel takes: `ptxas` or `estimate`.
    registers_by: Source,
    kernels: Vec<KernelExplanation>,
}

#[derive(Serialize)]
struct KernelExplanation {
    name: String,
    /// `worker`, `ticket`, or `original` where neither applies.
    form: &'static str,
    parameters: usize,
    parameter_bytes: u64,
    static_shared_bytes: u64,
    dynamic_shared: bool,
    /// `null` where nobody can say.
    registers: Option<u32>,
    passes: Vec<PassExplanation>,
}

#[derive(Serialize)]
struct PassExplanation {
    pass: &'static str,
    applies: bool,
    parameters_added_bytes: u64,
    shared_added_bytes: u64,
    registers_added: Option<i64>,
    /// `any`, or `full_rows`: one-dimensional blocks and those whose x extent is a multiple of 32.
    blocks: Option<&'static str>,
    /// `null` for passes without a control block, and where they cannot be counted.
    round_trips: Option<RoundTrips>,
    refusals: Vec<RefusalExplanation>,
}

impl PassExplanation {
    /// Makes it one of a pass that does not apply, for a reason that has no single place.
    fn refuse(&mut self, reason: String) {
        self.applies = false;
        (self.shared_added_bytes, self.registers_added) = (0, None);
        self.refusals.push(RefusalExplanation { line: None, reason });
    }
}

/// What the leader of a CTA waits for.
#[derive(Serialize)]
struct RoundTrips {
    before_body: Waits,
    /// `null` where a CTA runs one body.
    between_tasks: Option<Waits>,
    at_end: Option<Waits>,
}

#[derive(Serialize)]
struct Waits {
    round_trips: u32,
    fences: u32,
}

impl From<FormTrips> for RoundTrips {
    fn from(trips: FormTrips) -> RoundTrips {
        let waits = |Trips { trips, fences }| Waits { round_trips: trips, fences };
        RoundTrips {
            before_body: waits(trips.before),
            between_tasks: trips.between.map(waits),
            at_end: trips.after.map(waits),
        }
    }
}

impl Waits {
    fn text(&self) -> String {
        let count = |count: u32, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        format!("{} and {}", count(self.round_trips, "round trip"), count(self.fences, "fence"))
    }
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
        if self.file.as_os_str() != "-" {
            let bytes = files::read(&self.file)?;
            if bytes.starts_with(machine_code::START) {
                return machine_code::explain(&files::shown(&self.file), &bytes, self.json);
            }
        }
        let module = load(&self.file)?;
        let explanation = explain(files::shown(&self.file), &module)?;
        if self.json {
            let mut text = serde_json::to_string_pretty(&explanation)?;
            text.push('\n');
            return Ok(text.into_bytes());
        }
        Ok(render(&explanation).into_bytes())
    }
}

fn explain(file: String, module: &Module) -> Result<Explanation, Failure> {
    let options = WorkerOptions::default();
    let chosen = partita_ptx::choose(module, &options).reports;
    let registers = Registers::of(module)?;
    let mut kernels: Vec<KernelExplanation> = module
        .kernels()
        .iter()
        .zip(&chosen)
        .map(|(kernel, report)| explain_kernel(kernel, report, registers.get(&kernel.name)))
        .collect();
    let places: BTreeMap<String, usize> =
        kernels.iter().enumerate().map(|(place, kernel)| (kernel.name.clone(), place)).collect();
    // A daemon asks this of the module with fences.
    let fenced = Pass::Fence.apply(module, &options).module;
    let (mut rights, mut calls) = (Rights::new(&fenced), Calls::new(&fenced));
    for pass in PASSES {
        let rewritten = pass.apply(module, &options);
        let after = Registers::by(registers.source(), &rewritten.module)?;
        for report in &rewritten.reports {
            if let Some(kernel) = places.get(&report.name).and_then(|place| kernels.get_mut(*place))
            {
                let counts = kernel.registers.zip(after.get(&report.name));
                let trips = report.rewritten().and_then(|rewrite| {
                    trips::form_trips(&rewritten.module, report.func, rewrite.control)
                });
                let mut explanation = explain_pass(pass, report, counts);
                explanation.round_trips = trips.map(RoundTrips::from);
                if pass == Pass::Contain {
                    let reached = calls.reach(report.func).funcs;
                    if let Some(reason) = rights.uncontained(&reached) {
                        explanation.refuse(reason.to_string());
                    }
                }
                kernel.passes.push(explanation);
            }
        }
    }
    Ok(Explanation { file, module: summarise(module), registers_by: registers.source(), kernels })
}

fn explain_kernel(
    kernel: &Kernel,
    chosen: &KernelReport,
    registers: Option<u32>,
) -> KernelExplanation {
    let form = match chosen.rewritten().map(|rewrite| rewrite.form) {
        Some(KernelForm::Worker) => "worker",
        Some(KernelForm::Ticket) => "ticket",
        None => "original",
    };
    KernelExplanation {
        name: kernel.name.clone(),
        form,
        parameters: kernel.params.len(),
        parameter_bytes: kernel.param_bytes,
        static_shared_bytes: kernel.static_shared,
        dynamic_shared: kernel.dynamic_shared,
        registers,
        passes: Vec::new(),
    }
}

/// `registers` are those before and after.
fn explain_pass(
    pass: Pass,
    report: &KernelReport,
    registers: Option<(u32, u32)>,
) -> PassExplanation {
    let rewrite = report.rewritten();
    let applies = report.refusals().is_empty();
    let control = if rewrite.is_some() { 8 } else { 0 };
    PassExplanation {
        pass: pass.name(),
        applies,
        parameters_added_bytes: control + report.added.iter().map(|param| param.size).sum::<u64>(),
        shared_added_bytes: rewrite
            .map_or(report.hidden_shared.into(), |rewrite| rewrite.shared_added),
        registers_added: registers
            .filter(|_| applies)
            .map(|(before, after)| i64::from(after) - i64::from(before)),
        blocks: rewrite.map(|rewrite| match rewrite.blocks {
            Blocks::Any => "any",
            Blocks::FullRows => "full_rows",
        }),
        round_trips: None,
        refusals: report.refusals().iter().map(explain_refusal).collect(),
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
            kernel.name,
            kernel.form,
            kernel.parameters,
            kernel.parameter_bytes,
            kernel.static_shared_bytes
        );
        if let Some(registers) = kernel.registers {
            let by = match explanation.registers_by {
                Source::Ptxas => "by ptxas",
                Source::Estimate => "estimated",
            };
            let _ = writeln!(text, "  registers   {registers} ({by})");
        }
        for pass in &kernel.passes {
            render_pass(&mut text, pass);
        }
    }
    text
}

fn render_pass(text: &mut String, pass: &PassExplanation) {
    let name = pass.pass;
    if pass.applies {
        let mut added = vec![format!("{} bytes of parameters", pass.parameters_added_bytes)];
        if pass.shared_added_bytes > 0 {
            added.push(format!("{} of shared memory", pass.shared_added_bytes));
        }
        if let Some(registers) = pass.registers_added {
            added.push(format!("{registers} registers"));
        }
        let blocks = match pass.blocks {
            Some("full_rows") => {
                "; for 1-D blocks and those whose x extent is a multiple of 32; others run the \
                 original, alone"
            }
            _ => "",
        };
        let _ = writeln!(text, "  {name:<11} applies: adds {}{blocks}", added.join(", "));
    }
    if let Some(trips) = &pass.round_trips {
        let places = [
            ("before the body", Some(&trips.before_body)),
            ("between tasks", trips.between_tasks.as_ref()),
            ("at the end", trips.at_end.as_ref()),
        ];
        for (place, waits) in places.iter().filter_map(|(place, waits)| Some((place, (*waits)?))) {
            let _ = writeln!(text, "              waits {place}: {}", waits.text());
        }
    }
    for refusal in &pass.refusals {
        let line = refusal.line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let what = if name == Pass::Contain.name() { "needs a right" } else { "refused" };
        let _ = writeln!(text, "  {name:<11} {what}: {line}{}", refusal.reason);
    }
}
