//! The command line, and the defaults of its options.

use crate::acts::Act;
use clap::builder::RangedI64ValueParser;
use clap::{Args, Parser, Subcommand};
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita-hostile
      play ten seeds: two and a half minutes
  partita-hostile --seeds 17
      repeat one
  partita-hostile --seeds 0-59 --seconds 10
      a quarter of an hour
  partita-hostile --acts endless,originals --hostile 2 --seeds 0-2
      these acts, all at once, in three seeds
  partita-hostile --device emu:cd-search-24,timing=off
      an emulated GPU that keeps no time; speeds are of the data plane's processor time
  partita-hostile --seeds 3 --json | jq '.[0].healthy'
      what the healthy programs of a seed did, as JSON
  partita-hostile --list
      the acts in one line each

Run the tool as root to give every healthy program and the hostile ones users of their own. Without
root all are one user, and acts that use up the limits of a user are left out.

Exit codes: 0 every healthy program kept its results and its speed, 1 one did not, 2 wrong usage, or
the tool could not do its work.";

/// Plays seeds: hostile clients beside healthy programs that check their results, on a daemon of
/// its own with the emulated GPU.
#[derive(Parser, Debug)]
#[command(version, about, after_help = EXAMPLES, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What the tool starts itself as.
    #[command(subcommand)]
    pub part: Option<Part>,
    /// What to play.
    #[command(flatten)]
    pub play: Play,
}

/// What to play, and on what.
#[derive(Args, Clone, Debug)]
pub struct Play {
    /// A seed, or the first and the last of several. A seed decides the acts, their choices and the
    /// data of the healthy programs, but not how the host schedules them
    #[arg(long, value_name = "N[-M]", value_parser = seeds, default_value = "0-9")]
    pub seeds: RangeInclusive<u64>,

    /// Seconds of host time for which the hostile clients act in each seed. The baseline before
    /// takes half of it
    #[arg(long, value_name = "SECONDS", default_value_t = 8.0, value_parser = seconds)]
    pub seconds: f64,

    /// The acts that a seed chooses from, separated by commas [default: all]
    #[arg(long, value_name = "ACT,…", value_delimiter = ',', hide_possible_values = true)]
    pub acts: Vec<Act>,

    /// Hostile processes at once, each with an act of its own
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = few())]
    pub hostile: u16,

    /// Healthy programs at once
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = few())]
    pub healthy: u16,

    /// The part of its speed in the baseline that each healthy program must keep, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 80.0, value_parser = percent)]
    pub least: f64,

    /// The emulated GPU, as `partitad --device` takes it
    #[arg(long, value_name = "DEVICE", default_value = "emu:cd-search-24")]
    pub device: String,

    /// The policy, as `partitad --policy` takes it. A policy that measures moves borders in the
    /// baseline, too
    #[arg(long, value_name = "POLICY", default_value = "even")]
    pub policy: String,

    /// Memory of the machine in MiB that all programs may make the daemon hold; each user may have
    /// half of it
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub host_memory_mib: u32,

    /// The folder with `partitad` and `partita-gpu` [default: the folder of this tool]
    #[arg(long, value_name = "DIR")]
    pub binaries: Option<PathBuf>,

    /// Keep the daemon's log of each seed in this folder, as `SEED.log`
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,

    /// Print one JSON array of the seeds instead of tables
    #[arg(long)]
    pub json: bool,

    /// Print the acts and end
    #[arg(long)]
    pub list: bool,
}

/// What the tool starts itself as.
#[derive(Subcommand, Debug)]
pub enum Part {
    /// A healthy program.
    #[command(hide = true)]
    Healthy(Process),
    /// A well-behaved tenant that keeps its SMs busy.
    #[command(hide = true)]
    Busy(Process),
    /// A hostile client.
    #[command(hide = true)]
    Act {
        /// What it does.
        act: Act,
        /// Where and as whom.
        #[command(flatten)]
        process: Process,
    },
}

/// What each process of the tool is told.
#[derive(Args, Clone, Debug)]
pub struct Process {
    /// The folder of the daemon's sockets
    #[arg(long)]
    pub sockets: PathBuf,
    /// The process's own seed
    #[arg(long)]
    pub seed: u64,
    /// The user that the process becomes
    #[arg(long)]
    pub user: Option<u32>,
    /// Whether the process takes only the processor time that the others leave
    #[arg(long)]
    pub background: bool,
}

/// As many processes as a small machine can bear.
fn few() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=16)
}

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |text: &str| {
        let give = "give one seed, or a range such as 0-9";
        text.parse::<u64>().map_err(|error: ParseIntError| format!("{text:?}: {error}; {give}"))
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    if first > last {
        Err(format!("{first} comes after {last}; give the lower one first"))
    } else {
        Ok(first..=last)
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
    let fits = (0.5..=3600.0).contains(&seconds);
    fits.then_some(seconds).ok_or_else(|| "give 0.5 to 3600 seconds".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|error| format!("{text:?}: {error}"))?;
    let fits = (0.0..=100.0).contains(&percent);
    fits.then_some(percent).ok_or_else(|| "give 0 to 100 percent".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seeds_are_one_or_several() {
        assert_eq!(seeds("7"), Ok(7..=7));
        assert_eq!(seeds("3-5"), Ok(3..=5));
        assert!(seeds("5-3").is_err() && seeds("x").is_err());
    }
}
