//! `partita emu`: the emulated GPU by itself, without a daemon.

mod argument;
mod dims;
mod replay;
mod run;

use crate::failure::Failure;
use crate::table::{Table, bytes};
use clap::{Args, Subcommand};
pub use partita_emu::setup::DEFAULT_SPEC;
use partita_emu::{Spec, SpecError};

const SPECS_EXAMPLES: &str = "\
Examples:
  partita emu specs
      list the specifications that come with Partita
  partita emu specs h200
      print all numbers of one specification, each with its source
  partita run --device emu:cd-search-24 ./vecAdd
      use a specification; a name with a slash is a file: --device emu:./mine.toml";

/// Use the emulated GPU without a daemon: run a kernel, replay a recorded run, list specifications.
#[derive(Args, Debug)]
pub struct EmuArgs {
    #[command(subcommand)]
    command: EmuCommand,
}

#[derive(Subcommand, Debug)]
enum EmuCommand {
    Run(run::RunArgs),
    Replay(replay::ReplayArgs),
    Specs(SpecsArgs),
}

/// List the specifications of GPUs that can be emulated.
#[derive(Args, Debug)]
#[command(after_help = SPECS_EXAMPLES)]
struct SpecsArgs {
    /// Print this specification with the source of each number, as a file for `--device
    /// emu:./FILE`.
    #[arg(value_name = "SPEC")]
    spec: Option<String>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl EmuArgs {
    /// Does it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        match self.command {
            EmuCommand::Run(args) => args.execute(),
            EmuCommand::Replay(args) => args.execute(),
            EmuCommand::Specs(args) => args.execute(),
        }
    }
}

impl SpecsArgs {
    fn execute(self) -> Result<Vec<u8>, Failure> {
        if let Some(name) = &self.spec
            && !self.json
        {
            let unknown = SpecError::Unknown { name: name.clone() };
            return Ok(Spec::text(name).ok_or(unknown)?.as_bytes().to_vec());
        }
        let names = match &self.spec {
            Some(name) => vec![name.as_str()],
            None => Spec::names(),
        };
        let specs: Vec<(&str, Spec)> = names
            .into_iter()
            .map(|name| Ok((name, Spec::named(name)?)))
            .collect::<Result<_, SpecError>>()?;
        if self.json {
            let map: serde_json::Map<String, serde_json::Value> = specs
                .into_iter()
                .map(|(name, spec)| Ok((name.to_owned(), serde_json::to_value(spec)?)))
                .collect::<Result<_, serde_json::Error>>()?;
            let mut text = serde_json::to_string_pretty(&map)?;
            text.push('\n');
            return Ok(text.into_bytes());
        }
        let mut table = Table::new(&["SPEC", "GPU", "CC", "SMS", "CLOCK", "MEMORY", "LLC", "DRAM"]);
        for (name, spec) in specs {
            let default = if name == DEFAULT_SPEC { " (default)" } else { "" };
            table.row([
                format!("{name}{default}"),
                spec.name.clone(),
                format!("{}.{}", spec.compute_capability[0], spec.compute_capability[1]),
                spec.sms.to_string(),
                format!("{} MHz", spec.sm_clock_khz / 1000),
                bytes(spec.memory_bytes),
                bytes(spec.llc_bytes),
                format!("{:.0} GB/s", spec.dram_gigabytes_per_second),
            ]);
        }
        Ok(table.render().into_bytes())
    }
}
