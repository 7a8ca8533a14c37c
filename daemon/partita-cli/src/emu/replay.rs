//! `partita emu replay`: a recorded run again, without the daemon and the programs.

use crate::failure::Failure;
use crate::table::nanos;
use clap::Args;
use partita_emu::record::replay::{Comparison, replay};
use std::fmt::Write;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita run --device emu:cd-search-24,record=run.rec,sharing=spatial -- ./vecAdd
      record all requests to the GPU, under Partita's policy; without `sharing=spatial`, as \
      under MPS
  partita emu replay run.rec
      replay the requests, and compare memory, completion times and counters
  partita emu replay run.rec --json | jq .differences";

/// Replay a recorded run on the emulated GPU, and compare: completion times, outcomes and counters
/// of all operations, copies to the host, memory.
///
/// Exit codes: 0 no difference, 1 a difference, 2 the file is no complete recording.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// The recording, made with `--device emu,record=FILE`.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl ReplayArgs {
    /// Does it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let file = self.file.display();
        let found = replay(&self.file)
            .map_err(|error| Failure::new(format!("{file}: {error}")).with_code(2))?;
        let text = if self.json { serde_json::to_string(&found)? + "\n" } else { text(&found) };
        if found.different == 0 {
            return Ok(text.into_bytes());
        }
        let message =
            format!("{file}: the replay differs from the run in {} things", found.different);
        Err(Failure::new(message).after(text.into_bytes()))
    }
}

fn text(found: &Comparison) -> String {
    let Comparison { device, recorded_by, steps, launches, copies, writes, .. } = found;
    let mut text = format!("{device}: {steps} steps, recorded by Partita {recorded_by}\n");
    let _ = writeln!(
        text,
        "replayed   {launches} grids, {copies} copies and fills, {writes} writes beside them, {} \
         of device time",
        nanos(found.device_time_ns)
    );
    let _ = writeln!(
        text,
        "compared   {} completions with times and counters, {} other events, {} contents of memory",
        found.completions, found.events, found.memories
    );
    if !found.complete {
        text.push_str(
            "The recording has no end: its process was killed. What there is was compared.\n",
        );
    }
    if found.different == 0 {
        text.push_str("Everything is the same.\n");
        return text;
    }
    let _ = writeln!(text, "different  {}", found.different);
    for line in &found.differences {
        let _ = writeln!(text, "  {line}");
    }
    text
}
