//! `partita emu run`: one kernel of a PTX file on the emulated GPU, with buffers from and to files.
//!
//! Input files are read before the run. Output files are written after a run without a fault.

use super::{DEFAULT_SPEC, argument, dims};
use crate::failure::Failure;
use crate::files;
use crate::table::Table;
use argument::Argument;
use clap::{Args, ValueEnum};
use partita_emu::direct::{self, DirectError, Form, Ran, Run};
use partita_emu::{MemoryOrder, Options, Spec, Timing};
use partita_model::{Dim3, GridCounters};
use serde::Serialize;
use std::path::PathBuf;

/// CTAs of a worker's task, at most: what the engine allows while it does not know how long a CTA
/// takes.
const MOST_TASK_CTAS: u32 = 10;

const EXAMPLES: &str = "\
Examples:
  partita emu run vecAdd.ptx --kernel _Z6vecAddPKfS0_Pfi --grid 4 --block 256 \\
      --arg in:a.bin --arg in:b.bin --arg out:4096:c.bin --arg s32:1024
      add two vectors of 1,024 floats and write the sum to c.bin
  partita emu run scale.ptx --kernel scale --grid 8,8,1 --block 32,4,1 --shared 1024 \\
      --form worker --spec cd-search-24 --json --arg inout:x.bin:y.bin --arg f32:1.5
      run a kernel as persistent workers on another GPU, and print its counters as JSON

Arguments stand in the order of the kernel's parameters. An argument is TYPE:VALUE:
  u8 u16 u32 u64 s8 s16 s32 s64 b8 b16 b32 b64   an integer, decimal or 0x…
  f16 f32 f64                                    a number, or its bits as 0x…
  in:FILE                                        a device buffer filled from the file
  out:BYTES:FILE                                 a zeroed buffer, written to the file at the end
  inout:FILE:FILE                                both

Exit codes: 0 success, 1 the PTX, an argument or the kernel is at fault, 2 wrong usage.";

/// Run one kernel directly on the emulated GPU.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// The PTX file; `-` is stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The kernel's name as the PTX spells it.
    #[arg(long, value_name = "NAME")]
    kernel: String,

    /// CTAs of the grid; Y and Z may be omitted.
    #[arg(long, value_name = "X,Y,Z", value_parser = dims::parse)]
    grid: Dim3,

    /// Threads of a CTA; Y and Z may be omitted.
    #[arg(long, value_name = "X,Y,Z", value_parser = dims::parse)]
    block: Dim3,

    /// Dynamic shared memory per CTA in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u32,

    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_SPEC)]
    spec: String,

    /// The form in which the kernel runs.
    #[arg(long, value_enum, default_value_t = FormName::Original)]
    form: FormName,

    /// Execute without keeping time. The run is faster; of the memory counters only the accesses
    /// count.
    #[arg(long)]
    no_timing: bool,

    /// With --no-timing: how many threads of the host execute the kernel's CTAs [default: 1].
    /// Results are the same where CTAs do not race.
    #[arg(long, value_name = "NUMBER", requires = "no_timing", conflicts_with = "weak",
        value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Weak memory: stores arrive late and loads may find older values, as PTX's memory model
    /// allows. A missing fence then shows.
    #[arg(long)]
    weak: bool,

    /// The seed of every choice that a GPU leaves open: the SM that begins, and all effects of
    /// `--weak`.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// An argument of the kernel; once for each parameter.
    #[arg(long = "arg", value_name = "ARG", value_parser = argument::parse)]
    arguments: Vec<Argument>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum FormName {
    /// The kernel as written.
    Original,
    /// Persistent workers that claim the kernel's CTAs.
    Worker,
    /// CTAs that claim one CTA of the kernel each, launched in waves.
    Ticket,
    /// The kernel with the code that `guards=strict` adds on a real GPU. A fault ends only the
    /// launch.
    Contained,
}

/// What the command tells of a run. The field names are those of the JSON.
#[derive(Serialize)]
struct Told<'a> {
    kernel: &'a str,
    spec: &'a str,
    form: FormName,
    grid: [u32; 3],
    block: [u32; 3],
    #[serde(flatten)]
    counters: GridCounters,
    /// Resident warps by those that its SMs could hold, from 0 to 1.
    occupancy: f64,
    /// What the kernel printed.
    output: String,
}

impl RunArgs {
    /// Runs it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(&self.spec)?;
        // For its errors, which have places; the device parses for itself.
        let ptx = files::read_text(&self.file)?;
        crate::ptx::check(&self.file, &ptx)?;
        let run = self.prepare(ptx, spec)?;
        let ran = direct::run(&run).map_err(|error| self.explain(&error))?;
        self.write_buffers(&ran)?;
        self.tell(&ran, &run.spec)
    }

    fn prepare(&self, ptx: String, spec: Spec) -> Result<Run, Failure> {
        let arguments = self
            .arguments
            .iter()
            .enumerate()
            .map(|(index, argument)| {
                load(argument, &spec)
                    .map_err(|reason| Failure::new(format!("argument {}: {reason}", index + 1)))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let form = match self.form {
            FormName::Original => Form::Original,
            FormName::Worker => Form::Worker { task: MOST_TASK_CTAS },
            FormName::Ticket => Form::Ticket,
            FormName::Contained => Form::Contained,
        };
        let timing = if self.no_timing { Timing::Off } else { Timing::On };
        let memory = if self.weak { MemoryOrder::Weak } else { MemoryOrder::InOrder };
        Ok(Run {
            ptx: ptx.into(),
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.shared,
            arguments,
            form,
            spec,
            options: Options {
                seed: self.seed,
                timing,
                memory,
                helpers: self.threads.map_or(0, |threads| threads - 1),
                ..Options::default()
            },
        })
    }

    fn explain(&self, error: &DirectError) -> Failure {
        match error {
            DirectError::Module(message) => {
                // A message about the whole module names no line.
                let names_line = message.starts_with(|first: char| first.is_ascii_digit());
                let gap = if names_line { "" } else { " " };
                Failure::located(format!("{}:{gap}{message}", files::shown(&self.file)))
            }
            DirectError::Fault(fault) if self.form != FormName::Original => {
                let text = match self.form {
                    FormName::Worker => "`partita ptx rewrite --pass worker`",
                    FormName::Ticket => "`partita ptx rewrite --pass ticket`",
                    FormName::Contained | FormName::Original => "the kernel with its guards",
                };
                Failure::new(format!("{fault} (lines are those of {text})"))
            }
            error => Failure::new(error.to_string()),
        }
    }

    fn write_buffers(&self, ran: &Ran) -> Result<(), Failure> {
        let is_buffer = |argument: &&Argument| !matches!(argument, Argument::Value(_));
        for (argument, contents) in self.arguments.iter().filter(is_buffer).zip(&ran.buffers) {
            if let Argument::Out(_, path) | Argument::InOut(_, path) = argument {
                files::write_file(path, contents)?;
            }
        }
        Ok(())
    }

    fn tell(&self, ran: &Ran, spec: &Spec) -> Result<Vec<u8>, Failure> {
        if self.json {
            let told = Told {
                kernel: &self.kernel,
                spec: &self.spec,
                form: self.form,
                grid: [self.grid.x, self.grid.y, self.grid.z],
                block: [self.block.x, self.block.y, self.block.z],
                counters: ran.counters,
                occupancy: ran.counters.achieved_occupancy(spec.threads_per_sm),
                output: String::from_utf8_lossy(&ran.output).into_owned(),
            };
            let mut text = serde_json::to_string_pretty(&told)?;
            text.push('\n');
            return Ok(text.into_bytes());
        }
        let mut told = ran.output.clone();
        told.extend(counter_table(&ran.counters)?.into_bytes());
        Ok(told)
    }
}

/// Every counter by its name, so that none is forgotten.
fn counter_table(counters: &GridCounters) -> Result<String, serde_json::Error> {
    let mut table = Table::new(&["COUNTER", "VALUE"]);
    if let serde_json::Value::Object(fields) = serde_json::to_value(counters)? {
        for (name, value) in fields {
            table.row([name.replace('_', " "), value.to_string()]);
        }
    }
    Ok(table.render())
}

/// The argument with its file read.
fn load(argument: &Argument, spec: &Spec) -> Result<direct::Argument, String> {
    let room = |bytes: u64| {
        if bytes > spec.memory_bytes {
            return Err(format!(
                "{bytes} bytes are more than the {} of {}",
                spec.memory_bytes, spec.name
            ));
        }
        Ok(())
    };
    let read = |path: &PathBuf| {
        let contents = files::read(path).map_err(|error| error.to_string())?;
        room(contents.len() as u64).map(|()| direct::Argument::Buffer(contents))
    };
    match argument {
        Argument::Value(bytes) => Ok(direct::Argument::Value(bytes.clone())),
        Argument::In(path) | Argument::InOut(path, _) => read(path),
        Argument::Out(bytes, _) => {
            room(*bytes)?;
            let count = usize::try_from(*bytes).map_err(|error| error.to_string())?;
            let mut contents = Vec::new();
            contents
                .try_reserve_exact(count)
                .map_err(|_| format!("this machine has no memory for {count} bytes"))?;
            contents.resize(count, 0);
            Ok(direct::Argument::Buffer(contents))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_bounds() {
        let spec = Spec::find(DEFAULT_SPEC).unwrap();
        let error = load(&Argument::Out(u64::MAX, "x".into()), &spec).unwrap_err();
        assert!(error.contains("18446744073709551615 bytes are more than"), "{error}");
        assert_eq!(
            load(&Argument::Out(3, "x".into()), &spec),
            Ok(direct::Argument::Buffer(vec![0, 0, 0]))
        );
    }
}
