//! `partita ptx`: PTX files checked, printed, rewritten, explained.
//!
//! An error in a file is reported as `FILE:LINE:COL: error: …`, as compilers report it.

mod assemble;
mod explain;
mod machine_code;
pub mod registers;

pub use assemble::execute as assemble;

use crate::failure::Failure;
use crate::files;
use clap::{Args, Subcommand, ValueEnum};
use partita_ptx::{FunctionKind, KernelReport, Module, Version, WorkerOptions};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const CHECK_EXAMPLES: &str = "\
Examples:
  partita ptx check vecAdd.ptx poly.ptx
  nvcc --ptx -o - vecAdd.cu | partita ptx check -

Exit codes: 0 every file is valid, 1 a file is not, 2 wrong usage.";

const PRINT_EXAMPLES: &str = "\
Examples:
  partita ptx print vecAdd.ptx -o printed.ptx
  partita ptx print vecAdd.ptx -o - | diff vecAdd.ptx -";

const REWRITE_EXAMPLES: &str = "\
Examples:
  partita ptx rewrite --pass worker vecAdd.ptx -o vecAdd.worker.ptx
  partita ptx rewrite --pass fence,worker,ticket,cancel --strict vecAdd.ptx -o - | ptxas \
  -arch=sm_90 -o /dev/null -
  partita ptx rewrite --max-version 8.4 vecAdd.ptx -o vecAdd.84.ptx
      for a driver that knows PTX up to 8.4; fails where the file uses a newer feature

A kernel that a pass cannot rewrite stays unchanged; stderr names the kernel, the reason and its \
line.

Exit codes: 0 success, 1 the input is at fault (with --strict also: a pass cannot rewrite a kernel),
2 wrong usage.";

/// Work with PTX files: check, print, rewrite, explain.
#[derive(Args, Debug)]
pub struct PtxArgs {
    #[command(subcommand)]
    command: PtxCommand,
}

#[derive(Subcommand, Debug)]
enum PtxCommand {
    Check(CheckArgs),
    Print(PrintArgs),
    Rewrite(RewriteArgs),
    Explain(explain::ExplainArgs),
}

/// Check PTX files; report each error with its place.
#[derive(Args, Debug)]
#[command(after_help = CHECK_EXAMPLES)]
struct CheckArgs {
    /// PTX files; `-` is stdin.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Parse a PTX file and print it again.
#[derive(Args, Debug)]
#[command(after_help = PRINT_EXAMPLES)]
struct PrintArgs {
    /// The PTX file; `-` is stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The output file; `-` is stdout.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

/// Rewrite the kernels of a PTX file into another form.
#[derive(Args, Debug)]
#[command(after_help = REWRITE_EXAMPLES)]
struct RewriteArgs {
    /// The passes for each kernel. They apply in the order of the list below, whatever the order
    /// here.
    #[arg(
        long = "pass",
        value_name = "PASS",
        required_unless_present = "max_version",
        value_delimiter = ','
    )]
    passes: Vec<Pass>,

    /// The newest PTX version that the output may have.
    #[arg(long, value_name = "MAJOR.MINOR", value_parser = version)]
    max_version: Option<Version>,

    /// End with exit code 1 where a pass cannot rewrite a kernel.
    #[arg(long)]
    strict: bool,

    /// The PTX file; `-` is stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The output file; `-` is stdout.
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

/// A rewriting pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pass {
    /// Let `vprintf` write to a ring in the module's memory.
    Output,
    /// Keep every global access inside the window that two added parameters name.
    Fence,
    /// Accesses that the hardware would refuse end their launch only.
    Contain,
    /// Count instructions and global accesses of the launch in a block that an added parameter
    /// names.
    Count,
    /// Make workers: persistent CTAs claim the original's CTAs and leave their SM at a task border.
    Worker,
    /// Make tickets: each CTA claims one CTA of the original, runs it and exits. With `worker`:
    /// only for kernels that cannot be workers.
    Ticket,
    /// Make slices: a launch covers a range of the CTAs. With `worker` or `ticket`: only for
    /// kernels that can be neither.
    Slice,
    /// Let loops that wait for memory check the abort flag; `trap` and failed assertions stop the
    /// launch.
    Cancel,
}

impl From<Pass> for partita_ptx::Pass {
    fn from(pass: Pass) -> Self {
        match pass {
            Pass::Output => Self::Output,
            Pass::Fence => Self::Fence,
            Pass::Contain => Self::Contain,
            Pass::Count => Self::Count,
            Pass::Worker => Self::Worker,
            Pass::Ticket => Self::Ticket,
            Pass::Slice => Self::Slice,
            Pass::Cancel => Self::Cancel,
        }
    }
}

/// A PTX version, as `.version` has it.
fn version(text: &str) -> Result<Version, String> {
    let parsed = text.split_once('.').and_then(|(major, minor)| {
        Some(Version { major: major.parse().ok()?, minor: minor.parse().ok()? })
    });
    parsed.ok_or_else(|| "write the version as `.version` does, for example 8.4".to_owned())
}

impl PtxArgs {
    /// Does it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        match self.command {
            PtxCommand::Check(args) => args.execute(),
            PtxCommand::Print(args) => args.execute(),
            PtxCommand::Rewrite(args) => args.execute(),
            PtxCommand::Explain(args) => args.execute(),
        }
    }
}

/// Reads, parses and verifies a file.
pub fn load(path: &Path) -> Result<Module, Failure> {
    check(path, &files::read_text(path)?)
}

/// Parses and verifies the text of a file.
pub fn check(path: &Path, text: &str) -> Result<Module, Failure> {
    let located = |errors: partita_ptx::Errors| {
        Failure::located(errors.with_source(text).in_file(&files::shown(path)).to_string())
    };
    let module = partita_ptx::parse(text).map_err(located)?;
    partita_ptx::verify(&module).map_err(located)?;
    Ok(module)
}

impl CheckArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let mut wrong = Vec::new();
        let mut right = String::new();
        for path in &self.files {
            match load(path) {
                // Writing to a string cannot fail.
                Ok(module) => {
                    let _ = writeln!(right, "{}: ok, {}", files::shown(path), summarise(&module));
                }
                Err(failure) => wrong.push(failure.text()),
            }
        }
        if wrong.is_empty() {
            Ok(right.into_bytes())
        } else {
            Err(Failure::located(wrong.join("\n")).after(right.into_bytes()))
        }
    }
}

/// A module in one line.
fn summarise(module: &Module) -> String {
    let count = |kind: FunctionKind, noun: &str| {
        let defined =
            |function: &&partita_ptx::Function| function.kind == kind && function.body.is_some();
        match module.funcs.iter().filter(defined).count() {
            1 => format!("1 {noun}"),
            count => format!("{count} {noun}s"),
        }
    };
    let target: Vec<&str> = module.target.iter().map(|name| module.text(*name)).collect();
    format!(
        "PTX {}.{} for {}, {}, {}",
        module.version.major,
        module.version.minor,
        target.join(","),
        count(FunctionKind::Entry, "kernel"),
        count(FunctionKind::Func, "function")
    )
}

impl PrintArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let module = load(&self.file)?;
        Ok(files::write(&self.output, partita_ptx::print(&module).into_bytes())?)
    }
}

impl RewriteArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        let mut module = load(&self.file)?;
        if let Some(most) = self.max_version {
            module = lowered(&self.file, &module, most)?;
        }
        let wanted: Vec<partita_ptx::Pass> = self.passes.iter().map(|&pass| pass.into()).collect();
        let applied = partita_ptx::passes::apply(&module, &wanted, &WorkerOptions::default());
        let reports = applied.steps.iter().flat_map(|(_, reports)| reports);
        let refused: Vec<String> =
            reports.flat_map(|report| refusals(&self.file, report)).collect();
        let output = files::write(&self.output, partita_ptx::print(&applied.module).into_bytes())?;
        if refused.is_empty() {
            return Ok(output);
        }
        let refused = refused.join("\n");
        if self.strict {
            return Err(Failure::located(refused).after(output));
        }
        crate::failure::say(&refused);
        Ok(output)
    }
}

/// The module under an older version; each feature that is too new has a line of the failure.
fn lowered(file: &Path, module: &Module, most: Version) -> Result<Module, Failure> {
    let said = |found: &partita_ptx::TooNew| {
        let place = match found.pos.line {
            0 => String::new(),
            line => format!("{line}:{}:", found.pos.col),
        };
        format!(
            "{}:{place} error: {found}, and {}.{} is the limit",
            files::shown(file),
            most.major,
            most.minor
        )
    };
    partita_ptx::lower(module, most)
        .map_err(|found| Failure::located(found.iter().map(said).collect::<Vec<_>>().join("\n")))
}

/// Each reason why a kernel stayed as it was, with its place in the file.
fn refusals(file: &Path, report: &KernelReport) -> Vec<String> {
    let line = |refusal: &partita_ptx::Refusal| {
        let place = match refusal.pos.line {
            0 => String::new(),
            line => format!("{line}:{}:", refusal.pos.col),
        };
        let (file, kernel) = (files::shown(file), &report.name);
        format!("{file}:{place} kernel `{kernel}` stays unchanged: {}", refusal.reason)
    };
    report.refusals().iter().map(line).collect()
}
