//! `partita demo`: unmodified CUDA programs share an emulated GPU, and CD-search moves the border between them while their
//! kernels run.
//!
//! Everything that the summary says is measured in this run: first each program alone, then all of them under each way of
//! sharing, each time on a daemon of its own. Time is the device's: how busy the host is decides how long one waits, and
//! nothing else. This command writes to stdout while it runs.
//!
//! | module | what |
//! | --- | --- |
//! | [`toolkit`] | NVIDIA's compiler, and the programs made with it |
//! | [`stage`] | a daemon and programs on it |
//! | [`track`] | speeds, STP, ANTT, latencies of resizes |
//! | [`screen`] | what is shown while it runs |
//! | [`summary`] | what is said at the end |

mod screen;
mod stage;
mod summary;
mod toolkit;
mod track;

use crate::failure::Failure;
use crate::run::locate;
use clap::{Args, ValueEnum};
use partita_emu::Spec;
use partita_model::Class;
use screen::Screen;
use stage::{Parts, Stage, StageError};
use std::path::PathBuf;
use summary::{Outcome, Summary};
use track::Track;

const EXAMPLES: &str = "\
Examples:
  partita demo
      a memory-intensive and a compute-intensive program on the 24-SM GPU of CD-search
  partita demo --mix memory --spec cd-search-24
      two memory-intensive ones: SMs that nobody needs stay empty
  partita demo --apps 4 --json | jq '.metrics[] | {name, value}'
      four programs; only the summary, in the shape of `partita bench`

The first run needs NVIDIA's compiler: PARTITA_NVCC, else nvcc in PATH or /usr/local/cuda, else it is installed from PyPI (130 MB,
once) into $PARTITA_CACHE_DIR, else $XDG_CACHE_HOME/partita. It needs g++ and python3-venv (Debian) for that.";

/// Device time over which a program's speed alone is measured.
const ALONE_NANOS: u64 = 1_500_000;
/// Device time over which speeds beside others are measured.
const SHARED_NANOS: u64 = 2_000_000;

/// Show the main job: unmodified CUDA programs share a GPU, and the border between them moves while their kernels run.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// What the programs need: bandwidth, arithmetic, or one of each.
    #[arg(long, value_enum, default_value = "mixed")]
    mix: Mix,

    /// How many programs.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=8))]
    apps: u16,

    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "SPEC", default_value = "cd-search-24")]
    spec: String,

    /// Print only the summary, as JSON.
    #[arg(long)]
    json: bool,
}

/// Which programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Mix {
    /// All compute-intensive.
    Compute,
    /// All memory-intensive.
    Memory,
    /// One memory-intensive program for each compute-intensive one.
    Mixed,
}

impl Mix {
    fn programs(self, count: u16) -> Vec<&'static toolkit::Program> {
        (0..count)
            .map(|index| match self {
                Mix::Compute => &toolkit::GENERATE,
                Mix::Memory => &toolkit::TRIAD,
                Mix::Mixed if index % 2 == 0 => &toolkit::GENERATE,
                Mix::Mixed => &toolkit::TRIAD,
            })
            .collect()
    }
}

/// A way of sharing the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sharing {
    Even,
    CdSearch,
}

impl Sharing {
    fn policy(self) -> &'static str {
        match self {
            Sharing::Even => "even",
            Sharing::CdSearch => "cd-search",
        }
    }
}

/// A program on the stage.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Cast {
    /// How it is called on the screen.
    letter: char,
    name: &'static str,
    path: PathBuf,
}

impl DemoArgs {
    /// Runs the demo.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let device = format!("emu:{}", self.spec);
        let gpu = Spec::find(&self.spec).map_err(|error| Failure::from(error).with_code(2))?.name;
        let own = std::env::current_exe()?;
        let folders = locate::part_folders(&own, std::env::var_os(locate::LIB_DIR));
        let parts = Parts {
            daemon: locate::part(locate::DAEMON, &folders)?,
            shim: locate::part(locate::SHIM, &folders)?,
            device,
        };
        let mut screen = if self.json { Screen::silent() } else { Screen::on_stdout() };
        let compiler = toolkit::Compiler::find(&mut |text| screen.say(text))?;
        let mut cast = Vec::new();
        for (letter, program) in ('a'..).zip(self.mix.programs(self.apps)) {
            cast.push(Cast { letter, name: program.name, path: compiler.build(program)? });
        }
        let summary = play(&parts, &cast, &mut screen, gpu)?;
        if self.json {
            return Ok((serde_json::to_string(&summary.report())? + "\n").into_bytes());
        }
        Ok(summary.text().into_bytes())
    }
}

/// Every stage, one after the other.
fn play(parts: &Parts, cast: &[Cast], screen: &mut Screen, device: String) -> Result<Summary, StageError> {
    let mut alone: Vec<f64> = Vec::new();
    for (index, member) in cast.iter().enumerate() {
        // The same program is as fast as before.
        if let Some(before) = cast[..index].iter().position(|other| other.path == member.path) {
            alone.push(alone[before]);
            continue;
        }
        screen.begin(&format!("{} alone on all SMs", member.name), &[]);
        let mut stage = Stage::open(parts, Sharing::Even.policy(), std::slice::from_ref(member))?;
        let (track, _) = follow(&mut stage, screen, Sharing::Even, ALONE_NANOS)?;
        alone.push(track.speed(0, track.begin(), track.end()).ok_or(StageError::Unmeasured)?);
    }
    let mut outcomes = Vec::new();
    for sharing in [Sharing::Even, Sharing::CdSearch] {
        let what = match sharing {
            Sharing::Even => "all at once, SMs shared out evenly",
            Sharing::CdSearch => "all at once, CD-search moves the borders",
        };
        screen.begin(what, &alone);
        let mut stage = Stage::open(parts, sharing.policy(), cast)?;
        let (track, settled) = follow(&mut stage, screen, sharing, SHARED_NANOS)?;
        outcomes.push(outcome(sharing, &mut stage, &track, settled, &alone)?);
    }
    let names = cast.iter().map(|member| (member.letter, member.name)).collect();
    Ok(Summary { device, names, outcomes })
}

/// When a stage had settled, and what it used from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Settled {
    /// Device time in nanoseconds.
    since: u64,
    /// In nanojoules, where the device counts.
    energy: Option<u64>,
}

/// Watches a stage until `nanos` of device time have passed after everybody has come and the policy has decided; says
/// when that was.
fn follow(
    stage: &mut Stage,
    screen: &mut Screen,
    sharing: Sharing,
    nanos: u64,
) -> Result<(Track, Settled), StageError> {
    let mut track = Track::default();
    let mut settled: Option<(u64, Option<u64>)> = None;
    loop {
        let status = stage.look()?;
        let time = status.gpu.device_time_ns;
        let members = stage.members(&status);
        screen.show(&status, &members, &track);
        let running = members.iter().all(|member| member.is_some_and(|m| m.launches_completed >= 2));
        if !running {
            // What was before does not count.
            track = Track::default();
            settled = None;
            continue;
        }
        track.add(time, members.iter().flatten().map(|member| member.ctas_completed).collect());
        let decided = match sharing {
            Sharing::Even => true,
            Sharing::CdSearch => matches!(status.policy.stage.as_str(), "watch" | "alone"),
        };
        if decided && settled.is_none() {
            settled = Some((time, status.gpu.energy_nj));
        }
        if let Some((since, before)) = settled.filter(|(since, _)| time >= since + nanos) {
            let energy = status.gpu.energy_nj.zip(before).map(|(now, before)| now.saturating_sub(before));
            return Ok((track, Settled { since, energy }));
        }
    }
}

fn outcome(
    sharing: Sharing,
    stage: &mut Stage,
    track: &Track,
    settled: Settled,
    alone: &[f64],
) -> Result<Outcome, StageError> {
    let status = stage.look()?;
    let members = stage.members(&status);
    let relative = |from: u64, to: u64| -> Option<Vec<f64>> {
        let speeds = alone.iter().enumerate();
        speeds.map(|(index, alone)| Some(track.speed(index, from, to)? / alone)).collect()
    };
    let sms = members.iter().map(|member| {
        let partition = member.and_then(|m| status.partitions.iter().find(|p| p.application == m.id));
        partition.map_or(0, |partition| partition.sms.len())
    });
    let class = |member: &Option<&partita_model::ApplicationReport>| member.and_then(|m| m.class);
    Ok(Outcome {
        sharing,
        relative: relative(settled.since, track.end()).ok_or(StageError::Unmeasured)?,
        searching: relative(track.begin(), settled.since),
        search_nanos: settled.since - track.begin(),
        watts: settled.energy.map(|energy| track::float(energy) / track::float(track.end() - settled.since)),
        sms: sms.collect(),
        classes: members.iter().map(class).collect::<Vec<Option<Class>>>(),
        gated: status.policy.gated.len(),
        why: status.policy.why.clone(),
        resizes: track::resize_latencies(&stage.trace()?),
    })
}
