//! `partita demo latency`: an unmodified HTTP server beside an unmodified batch program.
//!
//! The server answers requests by chains of small kernels ([`toolkit::SERVE`]). An open-loop client
//! in this process sends it the same requests alone, beside the batch program as under MPS, and
//! beside the batch program under Partita with priorities.
//!
//! All times are device time. The client looks at the GPU's clock in the daemon's status and sends
//! a request when the clock has reached the request's arrival. The server reads the same clock in
//! its last kernel (`%globaltimer`) and adds the time that the copy of the result took. The latency
//! is the time from the arrival to that moment, so waiting in the server's socket counts. The time
//! from the read of the clock to that kernel's end does not count. Network and host code take host
//! time, which is no device time: they add to the latency as much device time as the emulated GPU
//! gets through meanwhile.
//!
//! | module | what |
//! | --- | --- |
//! | [`client`] | sends requests over HTTP and reads answers |
//! | [`traffic`] | when requests arrive, what they ask, and how they are paced |
//! | [`table`] | the figures, as text and as JSON |

mod client;
mod table;
mod traffic;

use super::screen::Screen;
use super::stage::{Stage, StageError};
use super::toolkit::{self, Compiler};
use super::track::Track;
use crate::failure::Failure;
use crate::run::child::Parts;
use clap::Args;
use client::Client;
use partita_emu::Spec;
use partita_model::{Priority, Sharing};
use std::path::PathBuf;
use table::{Comparison, Row};
use traffic::{Pacing, Seen, Traffic};

const EXAMPLES: &str = "\
Examples:
  partita demo latency
      run the server at half of what it can do alone, beside a batch program
  partita demo latency --load 0.2 --requests 100
      run it with rarer requests, and more of them
  partita demo latency --json | jq '.metrics[] | {name, value}'
      print only the figures, as JSON in the form of `partita bench`

All times are device time: the clock of the emulated GPU, which is far slower than the GPU that it
models. The client sends a request when this clock has reached its arrival, whether or not earlier
ones are answered. A latency goes from the arrival to the moment at which the result has been
copied; waiting in the server's socket counts. The time of host code and of the network counts only
as far as the clock went on meanwhile: the output tells the longest delay of the client. While only
the server runs and has no request, the clock stands still, and the client sends the next request at
once.

The first run needs NVIDIA's compiler, as `partita demo` does.";

/// The time in milliseconds of the host for which the GPU waits for a program that has not called.
/// The server calls within this time while it has a request, and the GPU goes on soon after.
const PATIENCE_MS: u32 = 20;
/// Device time over which the speed of the batch program alone is measured, in nanoseconds.
const ALONE_NANOS: u64 = 600_000;
/// Requests that tell how long one takes where none waits.
const SPARSE: usize = 4;
/// Launches that the batch program completes before the first request arrives.
const BEFORE: u64 = 3;

/// Show what a neighbour costs a server: the latency of HTTP requests beside a batch program.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct LatencyArgs {
    /// The number of requests.
    #[arg(long, value_name = "N", default_value_t = 40,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    requests: u16,

    /// The part of what the server can do alone that arrives, from 0.05 to 0.95.
    #[arg(long, value_name = "PART", default_value = "0.5", value_parser = load)]
    load: f64,

    /// The seed of the arrivals (a Poisson process) and of what the requests ask.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// The GPU to emulate: a name that `partita emu specs` lists, or a file's path with a slash.
    #[arg(long, value_name = "SPEC", default_value = "cd-search-24")]
    spec: String,

    /// Print only the figures, as JSON.
    #[arg(long)]
    json: bool,
}

/// A load from an argument.
fn load(text: &str) -> Result<f64, String> {
    let load: f64 = text
        .parse()
        .map_err(|_| "give a part of 1, from 0.05 to 0.95, for example 0.5".to_owned())?;
    if (0.05..=0.95).contains(&load) {
        return Ok(load);
    }
    Err("a load is a part of 1, from 0.05 to 0.95: with more, requests wait ever longer".to_owned())
}

/// The unmodified programs.
struct Programs {
    serve: PathBuf,
    train: PathBuf,
}

/// How a GPU is shared between server and batch program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Mps,
    Partita,
}

impl Way {
    const ALL: [Way; 2] = [Way::Mps, Way::Partita];

    fn name(self) -> &'static str {
        match self {
            Way::Mps => "MPS-like",
            Way::Partita => "Partita",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Way::Mps => "beside train, the hardware's block scheduler puts CTAs anywhere",
            Way::Partita => "beside train, with --priority latency and --priority batch",
        }
    }

    fn open(self, parts: &Parts) -> Result<Stage, StageError> {
        match self {
            Way::Mps => Stage::open(parts, "even", Sharing::Mps),
            Way::Partita => Stage::open(parts, "cd-search", Sharing::Spatial),
        }
    }

    /// The terms of server and batch program.
    fn priorities(self) -> [Option<Priority>; 2] {
        match self {
            Way::Mps => [None, None],
            Way::Partita => [Some(Priority::Latency), Some(Priority::Batch)],
        }
    }
}

impl LatencyArgs {
    /// Runs the demo.
    ///
    /// # Errors
    /// Where a part, the compiler or the spec is missing, and where a program fails.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(&self.spec).map_err(|error| Failure::from(error).with_code(2))?;
        let device = format!("emu:{},patience={PATIENCE_MS},budget=off", self.spec);
        let parts = Parts::find(device)?;
        let mut screen = if self.json { Screen::silent() } else { Screen::on_stdout() };
        let compiler = Compiler::find(&mut |text| screen.say(text))?;
        let programs = Programs {
            serve: compiler.build(&toolkit::SERVE)?,
            train: compiler.build(&toolkit::TRAIN)?,
        };
        let comparison = self.play(&parts, &programs, &mut screen, &spec)?;
        if self.json {
            return Ok((serde_json::to_string(&comparison.report())? + "\n").into_bytes());
        }
        Ok(comparison.text().into_bytes())
    }

    /// Every stage, one after the other, each on a new daemon.
    fn play(
        &self,
        parts: &Parts,
        programs: &Programs,
        screen: &mut Screen,
        spec: &Spec,
    ) -> Result<Comparison, StageError> {
        screen.begin("train alone on all SMs, its result checked first", &[]);
        let batch_alone = batch_alone(parts, programs)?;

        screen.begin("serve alone on all SMs", &[]);
        let mut stage = Way::Mps.open(parts)?;
        let client = Client::new(start_server(&mut stage, programs, None)?);
        let sparse = Traffic::sparse(SPARSE, self.seed);
        let probed = traffic::run(&mut stage, &client, &sparse, Pacing::Alone, screen)?;
        let service = probed.median_latency();
        let traffic = Traffic::poisson(self.requests.into(), service, self.load, self.seed);
        let alone = traffic::run(&mut stage, &client, &traffic, Pacing::Alone, screen)?;
        drop(stage);

        let mut rows = vec![Row::new("alone", &alone, &alone, 1.0)];
        for way in Way::ALL {
            screen.begin(way.title(), &[]);
            let mut stage = way.open(parts)?;
            let seen = beside(&mut stage, way, programs, &traffic, screen)?;
            let speed = seen.batch.speed(0, seen.from, seen.to).ok_or(StageError::Unmeasured)?;
            rows.push(Row::new(way.name(), &seen, &alone, speed / batch_alone));
        }
        Ok(Comparison {
            device: spec.name.clone(),
            seed: self.seed,
            requests: self.requests,
            load: self.load,
            service_nanos: service,
            rows,
        })
    }
}

/// Starts the server and tells its port.
fn start_server(
    stage: &mut Stage,
    programs: &Programs,
    priority: Option<Priority>,
) -> Result<u16, StageError> {
    stage.start_server(toolkit::SERVE.name, &programs.serve, priority)
}

/// The speed of the batch program alone, in CTAs per nanosecond.
fn batch_alone(parts: &Parts, programs: &Programs) -> Result<f64, StageError> {
    let mut stage = Way::Mps.open(parts)?;
    stage.check(toolkit::TRAIN.name, &programs.train)?;
    stage.start_batch(toolkit::TRAIN.name, &programs.train, None)?;
    let mut track = Track::default();
    let mut from = None;
    loop {
        let status = stage.look_after(traffic::PAUSE)?;
        let time = status.gpu.device_time_ns;
        let Some(batch) = stage.members(&status).first().copied().flatten() else { continue };
        track.add(time, vec![batch.ctas_completed]);
        if batch.launches_completed < BEFORE {
            continue;
        }
        let from = *from.get_or_insert(time);
        if time >= from + ALONE_NANOS {
            return track.speed(0, from, time).ok_or(StageError::Unmeasured);
        }
    }
}

/// The traffic beside the batch program.
fn beside(
    stage: &mut Stage,
    way: Way,
    programs: &Programs,
    traffic: &Traffic,
    screen: &mut Screen,
) -> Result<Seen, StageError> {
    let [of_server, of_batch] = way.priorities();
    let client = Client::new(start_server(stage, programs, of_server)?);
    stage.start_batch(toolkit::TRAIN.name, &programs.train, of_batch)?;
    loop {
        let status = stage.look()?;
        let members = stage.members(&status);
        if members.get(1).copied().flatten().is_some_and(|it| it.launches_completed >= BEFORE) {
            break;
        }
    }
    traffic::run(stage, &client, traffic, Pacing::Beside, screen)
}
