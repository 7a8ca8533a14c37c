//! `partita demo`: unmodified CUDA programs share an emulated GPU, and CD-search moves the border
//! between them while their kernels run.
//!
//! Every figure of the summary is measured in this run: each program alone first, then all programs
//! under each way of sharing, each time on a new daemon. Times are device time: a busy host makes
//! the demo slower and changes no figure. The command writes to stdout while it runs.
//!
//! | module | what |
//! | --- | --- |
//! | [`toolkit`] | NVIDIA's compiler, and the programs made with it |
//! | [`stage`] | a daemon and programs on it |
//! | [`track`] | speeds, STP, ANTT, latencies of resizes |
//! | [`screen`] | the display while the demo runs |
//! | [`summary`] | the summary at the end |
//! | [`latency`] | `partita demo latency`: an HTTP server beside a batch program |

mod latency;
mod screen;
mod stage;
mod summary;
pub mod toolkit;
mod track;

use crate::failure::Failure;
use crate::run::child::Parts;
use clap::{Args, Subcommand, ValueEnum};
use latency::LatencyArgs;
use partita_emu::Spec;
use partita_model::{ApplicationReport, Sharing};
use screen::Screen;
use stage::{Stage, StageError};
use std::path::PathBuf;
use summary::{Outcome, Summary};
use track::Track;

const EXAMPLES: &str = "\
Examples:
  partita demo
      run a memory-intensive and a compute-intensive program on the 24-SM GPU of CD-search
  partita demo --mix memory --spec cd-search-24
      run two memory-intensive programs: SMs that neither needs stay empty
  partita demo --apps 4 --json | jq '.metrics[] | {name, value}'
      run four programs; print only the summary, as JSON in the form of `partita bench`
  partita demo latency
      send requests to an HTTP server beside a batch program, with and without priorities

The first run needs NVIDIA's compiler: PARTITA_NVCC, else nvcc in PATH or /usr/local/cuda, else
the demo installs it from PyPI (130 MB, once) into $PARTITA_CACHE_DIR, else
$XDG_CACHE_HOME/partita. The installation needs g++ and python3-venv (Debian).";

/// Device time over which the speed of a program alone is measured, in nanoseconds.
const ALONE_NANOS: u64 = 700_000;
/// Device time over which the speeds of programs together are measured, in nanoseconds.
const SHARED_NANOS: u64 = 1_500_000;
/// The longest device time for which the demo waits until every program completed a launch.
const LONGEST_ROUND_NANOS: u64 = 40_000_000;

/// Show the main job: unmodified CUDA programs share a GPU, and the border between them moves while
/// their kernels run.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct DemoArgs {
    #[command(subcommand)]
    part: Option<Part>,

    /// The kind of the programs: memory-intensive, compute-intensive, or both in turn.
    #[arg(long, value_enum, default_value = "mixed")]
    mix: Mix,

    /// The number of programs.
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(2..=8))]
    apps: u16,

    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "SPEC", default_value = "cd-search-24")]
    spec: String,

    /// Print only the summary, as JSON.
    #[arg(long)]
    json: bool,
}

/// Another thing to show.
#[derive(Subcommand, Debug)]
enum Part {
    Latency(LatencyArgs),
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
enum Way {
    TimeSlice,
    Mps,
    Even,
    CdSearch,
}

impl Way {
    const ALL: [Way; 4] = [Way::TimeSlice, Way::Mps, Way::Even, Way::CdSearch];

    fn name(self) -> &'static str {
        match self {
            Way::TimeSlice => "time-sliced",
            Way::Mps => "MPS-like",
            Way::Even => "even",
            Way::CdSearch => "CD-search",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Way::TimeSlice => "all at once, the hardware gives the GPU to one after the other",
            Way::Mps => "all at once, the hardware's block scheduler puts CTAs anywhere",
            Way::Even => "all at once, SMs shared out evenly",
            Way::CdSearch => "all at once, CD-search moves the borders",
        }
    }

    fn sharing(self) -> Sharing {
        match self {
            Way::TimeSlice => Sharing::TimeSlice,
            Way::Mps => Sharing::Mps,
            Way::Even | Way::CdSearch => Sharing::Spatial,
        }
    }

    fn policy(self) -> &'static str {
        match self {
            Way::CdSearch => "cd-search",
            Way::TimeSlice | Way::Mps | Way::Even => "even",
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
        if let Some(Part::Latency(latency)) = self.part {
            return latency.execute();
        }
        let device = format!("emu:{}", self.spec);
        let spec = Spec::find(&self.spec).map_err(|error| Failure::from(error).with_code(2))?;
        let parts = Parts::find(device)?;
        let mut screen = if self.json { Screen::silent() } else { Screen::on_stdout() };
        let compiler = toolkit::Compiler::find(&mut |text| screen.say(text))?;
        let mut cast = Vec::new();
        for (letter, program) in ('a'..).zip(self.mix.programs(self.apps)) {
            cast.push(Cast { letter, name: program.name, path: compiler.build(program)? });
        }
        let summary = play(&parts, &cast, &mut screen, &spec)?;
        if self.json {
            return Ok((serde_json::to_string(&summary.report())? + "\n").into_bytes());
        }
        Ok(summary.text().into_bytes())
    }
}

/// Every stage, one after the other.
fn play(
    parts: &Parts,
    cast: &[Cast],
    screen: &mut Screen,
    spec: &Spec,
) -> Result<Summary, StageError> {
    let mut alone: Vec<f64> = Vec::new();
    for (index, member) in cast.iter().enumerate() {
        // The speed of this program is known already.
        if let Some(before) = cast[..index].iter().position(|other| other.path == member.path) {
            alone.push(alone[before]);
            continue;
        }
        screen.begin(&format!("{} alone on all SMs, its result checked first", member.name), &[]);
        // All ways of sharing are compared with the original kernels.
        let mut stage = Stage::open(parts, Way::Mps.policy(), Way::Mps.sharing())?;
        stage.check(member.name, &member.path)?;
        stage.start(std::slice::from_ref(member))?;
        let seen = follow(&mut stage, screen, Way::Mps, ALONE_NANOS)?;
        let speed =
            speeds(&mut stage, &seen, Way::Mps, 1)?.first().copied().filter(|speed| *speed > 0.0);
        alone.push(speed.ok_or(StageError::Unmeasured)?);
    }
    let mut outcomes = Vec::new();
    for way in Way::ALL {
        screen.begin(way.title(), &alone);
        let mut stage = Stage::open(parts, way.policy(), way.sharing())?;
        stage.start(cast)?;
        let nanos = match way {
            // One turn of every program, wherever the measurement begins.
            Way::TimeSlice => spec.time_slice_nanoseconds * u64::try_from(cast.len()).unwrap_or(1),
            Way::Mps | Way::Even | Way::CdSearch => SHARED_NANOS,
        };
        let seen = follow(&mut stage, screen, way, nanos)?;
        outcomes.push(outcome(way, &mut stage, &seen, &alone)?);
    }
    let names = cast.iter().map(|member| (member.letter, member.name)).collect();
    Ok(Summary { device: spec.name.clone(), names, outcomes })
}

/// What was seen of a stage.
struct Seen {
    track: Track,
    /// Device time, in nanoseconds, at which all programs ran and the policy had decided.
    since: u64,
    /// Energy used from `since` on, in nanojoules, where the device counts it.
    energy: Option<u64>,
}

/// Watches a stage until all programs run, the policy has decided, and `nanos` of device time have
/// passed since.
fn follow(
    stage: &mut Stage,
    screen: &mut Screen,
    way: Way,
    nanos: u64,
) -> Result<Seen, StageError> {
    let mut track = Track::default();
    let mut settled: Option<(u64, Option<u64>)> = None;
    let mut round = Vec::new();
    loop {
        let status = stage.look()?;
        let time = status.gpu.device_time_ns;
        let members = stage.members(&status);
        screen.show(&status, &members, &track);
        let queued =
            |member: &ApplicationReport| member.kernels.iter().any(|kernel| kernel.launches > 0);
        if !members.iter().all(|member| member.is_some_and(queued)) {
            continue;
        }
        track.add(time, members.iter().flatten().map(|member| member.ctas_completed).collect());
        // A grid waits until all CTAs of earlier grids have been placed: a round of all programs
        // takes a launch of each.
        let in_rounds = way == Way::Mps && members.len() > 1;
        let launches: Vec<u64> =
            members.iter().flatten().map(|member| member.launches_completed).collect();
        let decided = match way {
            Way::CdSearch => matches!(status.policy.stage.as_str(), "watch" | "alone"),
            _ => !in_rounds || launches.iter().all(|&completed| completed > 0),
        };
        if decided && settled.is_none() {
            settled = Some((time, status.gpu.energy_nj));
            round.clone_from(&launches);
        }
        let rounds = !in_rounds || launches.iter().zip(&round).all(|(now, before)| now > before);
        let done =
            |since: u64| time >= since + nanos && rounds || time >= since + LONGEST_ROUND_NANOS;
        if let Some((since, before)) = settled.filter(|(since, _)| done(*since)) {
            let energy =
                status.gpu.energy_nj.zip(before).map(|(now, before)| now.saturating_sub(before));
            return Ok(Seen { track, since, energy });
        }
    }
}

/// The speeds of the programs after the stage settled, in CTAs per nanosecond.
fn speeds(
    stage: &mut Stage,
    seen: &Seen,
    way: Way,
    programs: usize,
) -> Result<Vec<f64>, StageError> {
    let (from, to) = (seen.since, seen.track.end());
    if way.sharing() == Sharing::Spatial {
        let speeds = (0..programs).map(|index| seen.track.speed(index, from, to));
        return speeds.collect::<Option<_>>().ok_or(StageError::Unmeasured);
    }
    // An original kernel reports its CTAs only at its end; the trace has every CTA that left.
    let status = stage.look()?;
    let trace = stage.trace()?;
    let speed =
        |member: Option<&ApplicationReport>| track::leaving_speed(&trace, member?.id, from, to);
    stage
        .members(&status)
        .into_iter()
        .map(speed)
        .collect::<Option<_>>()
        .ok_or(StageError::Unmeasured)
}

fn outcome(way: Way, stage: &mut Stage, seen: &Seen, alone: &[f64]) -> Result<Outcome, StageError> {
    let against_alone =
        |speeds: Vec<f64>| speeds.iter().zip(alone).map(|(speed, alone)| speed / alone).collect();
    let relative = against_alone(speeds(stage, seen, way, alone.len())?);
    let status = stage.look()?;
    let members = stage.members(&status);
    let sms = members.iter().map(|member| {
        let partition =
            member.and_then(|m| status.partitions.iter().find(|p| p.application == m.id));
        partition.map_or(0, |partition| partition.sms.len())
    });
    let search = track::search_time(&status.policy.decisions);
    let during =
        |(from, to)| (0..alone.len()).map(|index| seen.track.speed(index, from, to)).collect();
    let nanos = track::float(seen.track.end() - seen.since);
    Ok(Outcome {
        way,
        relative,
        searching: search.and_then(during).map(against_alone),
        search_nanos: search.map(|(from, to)| to - from),
        watts: seen.energy.map(|energy| track::float(energy) / nanos),
        sms: sms.collect(),
        classes: members.iter().map(|member| member.and_then(|m| m.class)).collect(),
        gated: status.policy.gated.len(),
        why: status.policy.why.clone(),
        resizes: track::resize_latencies(&stage.trace()?),
    })
}
