//! `partita-bench`, which `partita bench …` starts: Partita's benchmarks.
//!
//! Every benchmark prints a [`partita_cli::report::Report`], as a table or as JSON. Scripts read
//! the figures by their names: names stay.
//!
//! | module | subject |
//! | --- | --- |
//! | `api` | the API: requests beside launches, readers of events, metrics |
//! | `cd_search` | CD-search against even shares, MPS, time slices and an oracle |
//! | `copies` | transfer time that kernels hide |
//! | `emulator` | the emulated GPU: its speed, its start, its timing model |
//! | `evaluation` | what the benchmarks of policies have in common |
//! | `forms` | whether kernels do the same in every form |
//! | `gpu` | a real GPU, and what Partita takes for granted of it |
//! | `kernelet` | Kernelet's model and plans against measured pairs and an oracle |
//! | `live` | borders under running kernels; launches through the engine |
//! | `masola` | Masola's predictions of times on part of the SMs, alone and in groups |
//! | `nodes` | what a cluster of many nodes asks of one daemon's API |
//! | `overhead` | what it costs to be resizable: kernels by shape, whole programs |
//! | `latency` | a server's requests beside batch programs |
//! | `policies` | every policy on the same mixes |
//! | `ptx` | the PTX compiler |
//! | `punyala` | Punyala's matching and SMRA against even shares, by queues |
//! | `recordings` | recordings that a command line names |
//! | `rig` | a device by itself, for `gpu` |
//! | `shares` | SMs and speed that applications get, against what their terms ask for |
//! | `slate` | Slate's table against MPS, time slices, even shares and an oracle |
//! | `wire` | the border between processes |

mod api;
mod cd_search;
mod copies;
mod emulator;
mod evaluation;
mod forms;
mod gpu;
mod kernelet;
mod latency;
mod live;
mod masola;
mod nodes;
mod overhead;
mod policies;
mod ptx;
mod punyala;
mod recordings;
mod rig;
mod shares;
mod slate;
mod wire;

use clap::{Parser, Subcommand};
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use std::process::ExitCode;

/// Measure Partita. Every benchmark prints a table, or with --json one object of the same form.
#[derive(Parser, Debug)]
#[command(name = "partita bench", bin_name = "partita bench", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Api(api::ApiArgs),
    CdSearch(cd_search::CdSearchArgs),
    Copies(copies::CopiesArgs),
    Emu(emulator::EmuArgs),
    Engine(live::EngineArgs),
    Forms(forms::FormsArgs),
    Gpu(gpu::GpuArgs),
    Kernelet(kernelet::KerneletArgs),
    Masola(masola::MasolaArgs),
    Nodes(nodes::NodesArgs),
    Overhead(overhead::OverheadArgs),
    Policies(policies::PoliciesArgs),
    Latency(latency::LatencyArgs),
    Ptx(ptx::PtxArgs),
    Punyala(punyala::PunyalaArgs),
    Resize(live::ResizeArgs),
    Shares(shares::SharesArgs),
    Slate(slate::SlateArgs),
    Wire(wire::WireArgs),
}

fn main() -> ExitCode {
    partita_cli::end(match partita_args::parse::<Cli>().command {
        Command::Api(args) => args.report().and_then(|report| shown(&report, args.json)),
        Command::CdSearch(args) => args.execute(),
        Command::Copies(args) => args.execute(),
        Command::Emu(args) => args.execute(),
        Command::Engine(args) => args.execute(),
        Command::Forms(args) => args.execute(),
        Command::Gpu(args) => args.execute(),
        Command::Kernelet(args) => args.execute(),
        Command::Masola(args) => args.execute(),
        Command::Nodes(args) => args.report().and_then(|report| shown(&report, args.json)),
        Command::Overhead(args) => args.execute(),
        Command::Policies(args) => args.execute(),
        Command::Latency(args) => args.execute(),
        Command::Ptx(args) => args.report().and_then(|report| shown(&report, args.json)),
        Command::Punyala(args) => args.execute(),
        Command::Resize(args) => args.execute(),
        Command::Shares(args) => args.execute(),
        Command::Slate(args) => args.execute(),
        Command::Wire(args) => args.report().and_then(|report| shown(&report, args.json)),
    })
}

/// A report as JSON or as a table.
fn shown(report: &Report, json: bool) -> Result<Vec<u8>, Failure> {
    let mut text = if json { serde_json::to_string(report)? } else { report.table() };
    if json {
        text.push('\n');
    }
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn every_option_says_in_which_form_it_wants_a_number() {
        assert_eq!(partita_args::unexplained(&Cli::command()), [""; 0]);
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_benchmark_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "`{}` has no examples", command.get_name());
        }
    }
}
