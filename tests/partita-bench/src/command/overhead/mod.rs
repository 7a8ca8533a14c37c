//! `partita bench overhead`: what it costs to be resizable, by the shape of launches, or for one
//! program.

mod beside;
mod costs;
mod matrix;
mod neighbour;
mod program;
mod recorded;
mod shapes;

use clap::Args;
use costs::KernelCost;
use matrix::Cell;
use neighbour::Neighbour;
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_emu::setup::DEFAULT_SPEC;
use serde::Serialize;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita bench overhead --quick
      compare launches of some shapes as workers and as tickets with the originals
  partita bench overhead --cells
      the whole matrix, each shape in each form with its cycles
  partita bench overhead --only 'long first' --cells
      only the shapes with these words in their names
  partita bench overhead --json | jq '.cells[] | select(.cycles - .original > .allowance)'
      the shapes outside the goal
  partita bench overhead -- ./scan 100000
      what partitions cost this program, and which of its kernels pay
  partita bench overhead --device emu,patience=60000 --repeat 3 -- ./scan 100000
      the same with a spread, and with patience for a slow host
  partita bench overhead --beside -- ./scan 100000
      the same, and beside the built-in neighbour, which keeps its half of the SMs busy
  partita bench overhead --beside='./saxpy 1000000' -- ./scan 100000
      the same beside another program
  partita bench overhead --json -- ./scan 100000 | jq '.kernels[0], .notes'
      the kernel that loses most time, and what limits the figures

Times are the emulated GPU's: a slow host changes nothing.";

/// Measure what it costs to be resizable, by the shape of launches
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct OverheadArgs {
    /// Measure a part of the matrix, in less than a minute.
    #[arg(long)]
    quick: bool,

    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SPEC)]
    spec: String,

    /// The seed that scatters long CTAs.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// List each shape in each form.
    #[arg(long)]
    cells: bool,

    /// Measure only the shapes whose name contains this text, such as `264 x 256`.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Print JSON, with all cells or kernels.
    #[arg(long)]
    json: bool,

    /// The GPU on which the program runs.
    #[arg(long, value_name = "DEVICE", default_value = "emu", requires = "program")]
    device: String,

    /// The number of runs of the program each way.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "program",
          value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,

    /// Measure the program beside a neighbour too: the one that is built in, or a program with its
    /// arguments between spaces.
    #[arg(long, value_name = "PROGRAM ARGS", requires = "program", num_args = 0..=1,
          require_equals = true, default_missing_value = "", value_parser = Neighbour::parse)]
    beside: Option<Neighbour>,

    /// Be the built-in neighbour on the daemon with its sockets in this folder.
    #[arg(long, value_name = "DIR", hide = true)]
    be_neighbour: Option<PathBuf>,

    /// The program to measure in place of the matrix, with its arguments.
    #[arg(last = true, value_name = "PROGRAM", conflicts_with_all = ["quick", "cells", "only"])]
    program: Vec<OsString>,
}

/// The report with its cells.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    report: &'a Report,
    cells: &'a [Cell],
}

/// The report of a program with its kernels.
#[derive(Serialize)]
struct OfProgram<'a> {
    #[serde(flatten)]
    report: &'a Report,
    kernels: &'a [KernelCost],
    notes: &'a [String],
}

impl OverheadArgs {
    /// Measures.
    pub fn execute(&self) -> Result<Vec<u8>, Failure> {
        match &self.be_neighbour {
            Some(folder) => neighbour::run(folder),
            None if self.program.is_empty() => self.shapes(),
            None => self.one_program(),
        }
    }

    fn one_program(&self) -> Result<Vec<u8>, Failure> {
        let found = program::measure(
            &self.device,
            &self.program,
            self.beside.as_ref(),
            self.repeat.into(),
        )?;
        let device = self.device.clone();
        let report = Report { bench: "overhead".into(), device, seed: 0, metrics: found.metrics };
        if self.json {
            let (kernels, notes) = (&found.kernels, &found.notes);
            let whole = OfProgram { report: &report, kernels, notes };
            return Ok((serde_json::to_string(&whole)? + "\n").into_bytes());
        }
        let mut text = report.table();
        if !found.kernels.is_empty() {
            text.push_str(&costs::table(&found.kernels));
        }
        for note in &found.notes {
            text.push_str(&format!("\n{note}\n"));
        }
        Ok(text.into_bytes())
    }

    fn shapes(&self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(&self.spec)?;
        let found = matrix::measure(&spec, self.quick, self.only.as_deref(), self.seed)?;
        let report = Report {
            bench: "overhead".into(),
            device: spec.name,
            seed: self.seed,
            metrics: found.metrics,
        };
        if self.json {
            let whole = Whole { report: &report, cells: &found.cells };
            return Ok((serde_json::to_string(&whole)? + "\n").into_bytes());
        }
        let mut text = report.table();
        if self.cells {
            text.push_str(&table(&found.cells));
        }
        Ok(text.into_bytes())
    }
}

fn table(cells: &[Cell]) -> String {
    let mut text = String::from(
        "\nshape: form, cycles as written, in the form, above the goal; first launches\n",
    );
    for cell in cells {
        let Cell { shape, form, original, cycles, first_original, first, allowance } = cell;
        let over = (cycles - original - allowance).max(0.0);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{shape}: {form:?}, {original:.0}, {cycles:.0}, {over:.0}; {first_original:.0}, \
             {first:.0}"
        );
    }
    text
}
