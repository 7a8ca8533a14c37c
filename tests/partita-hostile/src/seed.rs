//! One seed: a baseline, then the same healthy programs among hostile clients.

use crate::acts::Act;
use crate::daemon::{Daemon, peak_mib};
use crate::healthy::{Counted, Line, Order};
use crate::hostile::{Acted, Acting};
use crate::options::{Play, Process};
use crate::process::Running;
use crate::processor;
use crate::random::Random;
use crate::tool_error::ToolError;
use clap::ValueEnum as _;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Users of the healthy programs, from this one on.
const FIRST_HEALTHY_USER: u32 = 64_100;
/// The user of hostile clients, and of the busy tenants of the baseline.
const HOSTILE_USER: u32 = 64_001;
/// The user of the newcomer.
const NEWCOMER: u32 = 64_002;
/// How long a program may take to start, and a round may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Host time between the start of the others and the begin of a measurement.
const SETTLE: Duration = Duration::from_millis(500);
/// How long the daemon may take to forget killed clients.
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(60);

/// What a healthy program did.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Healthy {
    /// Among well-behaved busy tenants.
    pub baseline: Counted,
    /// Among hostile clients; absent where it died or failed.
    pub beside: Option<Counted>,
    /// Rounds a second of device time, as a part of the baseline; absent where the device keeps no
    /// time.
    pub device_ratio: Option<f64>,
    /// Rounds of all healthy programs a second of the data plane's processor time, as a part of the
    /// baseline; absent where nothing of it was counted. The host's scheduler decides which of the
    /// programs gets how many of them.
    pub served_ratio: Option<f64>,
    /// Rounds a second of host time, as a part of the baseline.
    pub host_ratio: Option<f64>,
    /// What it said when it failed, or how it died.
    pub failure: Option<String>,
}

impl Healthy {
    /// The speed that counts: of device time where the device keeps it, else of the data plane's
    /// processor time.
    pub fn ratio(&self) -> Option<f64> {
        self.device_ratio.or(self.served_ratio)
    }
}

/// What became of a seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Played {
    /// The seed.
    pub seed: u64,
    /// The healthy programs.
    pub healthy: Vec<Healthy>,
    /// What the hostile clients did.
    pub acts: Vec<Acted>,
    /// Seconds that a newcomer waited for its first checked round among the hostile clients; absent
    /// where it had none.
    pub newcomer_s: Option<f64>,
    /// Restarts of `partita-gpu`.
    pub restarts: u32,
    /// The most memory that `partita-gpu` had, in MiB.
    pub peak_mib: u64,
    /// The size of the daemon's log in bytes.
    pub log_bytes: u64,
    /// What the healthy programs lost, in sentences; empty where all is well.
    pub losses: Vec<String>,
}

/// Who plays, and on what.
struct Stage<'a> {
    play: &'a Play,
    daemon: Daemon,
    separate: bool,
    random: Random,
}

/// Plays a seed.
///
/// # Errors
/// Where the tool cannot do its work.
pub fn play(play: &Play, seed: u64) -> Result<Played, ToolError> {
    let separate = rustix::process::geteuid().is_root();
    let mut random = Random::new(seed);
    let acts = chosen(play, separate, &mut random)?;
    let mut stage = Stage { play, daemon: Daemon::start(play)?, separate, random };
    let played = stage.play(seed, &acts);
    if let Some(folder) = &play.logs {
        std::fs::create_dir_all(folder)
            .and_then(|()| {
                std::fs::copy(stage.daemon.log(), folder.join(format!("{seed}.log"))).map(drop)
            })
            .map_err(|error| ToolError::io("keeping the log", error))?;
    }
    played
}

/// The acts of a seed.
fn chosen(play: &Play, separate: bool, random: &mut Random) -> Result<Vec<Act>, ToolError> {
    let asked = if play.acts.is_empty() { Act::value_variants() } else { &play.acts[..] };
    let possible: Vec<Act> =
        asked.iter().copied().filter(|act| separate || !act.needs_other_user()).collect();
    if possible.is_empty() {
        return Err(ToolError::NoActs);
    }
    Ok(random.some_of(&possible, play.hostile.into()))
}

impl Stage<'_> {
    fn play(&mut self, seed: u64, acts: &[Act]) -> Result<Played, ToolError> {
        let mut programs = Vec::new();
        for number in 0..self.play.healthy {
            programs.push(self.start(FIRST_HEALTHY_USER + u32::from(number))?);
        }
        programs.iter().try_for_each(ready)?;
        let mut busy = Vec::new();
        for _ in acts {
            let process = self.process(HOSTILE_USER, true);
            busy.push(Running::start(&["busy"], &process)?);
        }
        self.wait_for_applications(programs.len() + busy.len())?;
        let time = Duration::from_secs_f64(self.play.seconds);
        let gpu = self.daemon.status()?.gpu.pid;
        let before = measure(&mut programs, gpu, time / 2);
        let mut baseline = Vec::new();
        for program in &mut programs {
            let counted = report(program, gpu, before);
            baseline.push(counted.map_err(|reason| ToolError::NoBaseline { reason })?);
        }
        let sharing = self.daemon.status()?.applications.len();
        if sharing < programs.len() + acts.len() {
            let reason = format!("{sharing} applications were left of those that shared");
            return Err(ToolError::NoBaseline { reason });
        }
        drop(busy);

        let hostile = self.process(HOSTILE_USER, true);
        let acting = Acting::start(acts, &hostile, &mut self.random);
        let before = measure(&mut programs, gpu, time);
        let beside: Vec<_> =
            programs.iter_mut().map(|program| report(program, gpu, before)).collect();
        let newcomer_s = self.newcomer()?;
        let acts = acting.end();

        let mut losses = Vec::new();
        let status = self.forgotten(programs.len(), &mut losses);
        let mut healthy: Vec<_> = baseline
            .into_iter()
            .zip(beside)
            .map(|(baseline, beside)| compare(baseline, beside))
            .collect();
        let together = served_ratio(&healthy);
        healthy.iter_mut().for_each(|healthy| healthy.served_ratio = together);
        let log = std::fs::metadata(self.daemon.log());
        let mut played = Played {
            seed,
            healthy,
            acts,
            newcomer_s,
            restarts: status.as_ref().map_or(0, |status| status.gpu.restarts),
            peak_mib: status.map_or(0, |status| peak_mib(status.gpu.pid)),
            log_bytes: log.map_or(0, |log| log.len()),
            losses,
        };
        played.judge(self.play.least / 100.0);
        Ok(played)
    }

    fn process(&mut self, user: u32, background: bool) -> Process {
        Process {
            sockets: self.daemon.sockets(),
            seed: self.random.bits(),
            user: self.separate.then_some(user),
            background,
        }
    }

    /// Starts a program that checks its results.
    fn start(&mut self, user: u32) -> Result<Running, ToolError> {
        let process = self.process(user, false);
        Running::start(&["healthy"], &process)
    }

    /// Starts another program among the hostile clients. Seconds until its first checked round.
    fn newcomer(&mut self) -> Result<Option<f64>, ToolError> {
        let begun = Instant::now();
        let program = self.start(NEWCOMER)?;
        let line = program.hear(PATIENCE).and_then(|line| serde_json::from_str(&line).ok());
        Ok(matches!(line, Some(Line::Ready)).then(|| begun.elapsed().as_secs_f64()))
    }

    /// Waits until so many applications have launched something.
    fn wait_for_applications(&self, count: usize) -> Result<(), ToolError> {
        let begun = Instant::now();
        loop {
            let applications = self.daemon.status()?.applications;
            let working = applications.iter().filter(|one| one.launches_completed > 0).count();
            if working >= count {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                let reason = format!("{working} of {count} applications have completed a launch");
                return Err(ToolError::NoBaseline { reason });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until only the healthy programs are known, and says what of that is missing.
    fn forgotten(
        &self,
        healthy: usize,
        losses: &mut Vec<String>,
    ) -> Option<partita_model::StatusReport> {
        let begun = Instant::now();
        loop {
            let status = match self.daemon.status() {
                Ok(status) => status,
                Err(error) => {
                    losses.push(error.to_string());
                    return None;
                }
            };
            if status.applications.len() <= healthy {
                return Some(status);
            }
            if begun.elapsed() > FORGOTTEN_WITHIN {
                losses.push(format!(
                    "{} applications of killed clients are still there after {} s",
                    status.applications.len() - healthy,
                    FORGOTTEN_WITHIN.as_secs()
                ));
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn ready(program: &Running) -> Result<(), ToolError> {
    let reason = match program.hear(PATIENCE).as_deref().map(serde_json::from_str) {
        Some(Ok(Line::Ready)) => return Ok(()),
        Some(Ok(Line::Failed(reason))) => reason,
        _ => "it said nothing".to_owned(),
    };
    Err(ToolError::NoBaseline { reason })
}

/// Lets the programs count for so long. The processor time of the data plane's first thread
/// before.
fn measure(programs: &mut [Running], gpu: u32, time: Duration) -> f64 {
    std::thread::sleep(SETTLE);
    let before = processor::of_first_thread(gpu);
    programs.iter_mut().for_each(|program| program.tell(Order::Measure.word()));
    std::thread::sleep(time);
    before
}

/// What a program has counted, or why it says nothing.
fn report(program: &mut Running, gpu: u32, before: f64) -> Result<Counted, String> {
    program.tell(Order::Report.word());
    match program.hear(PATIENCE).as_deref().map(serde_json::from_str) {
        Some(Ok(Line::Counted(mut counted))) => {
            counted.served_s = processor::of_first_thread(gpu) - before;
            Ok(counted)
        }
        Some(Ok(Line::Failed(reason))) => Err(reason),
        Some(_) => Err("it said something else".to_owned()),
        None if program.has_ended() => Err("it died".to_owned()),
        None => Err(format!("its round takes more than {} s", PATIENCE.as_secs())),
    }
}

fn compare(baseline: Counted, beside: Result<Counted, String>) -> Healthy {
    let (beside, failure) = match beside {
        Ok(counted) => (Some(counted), None),
        Err(failure) => (None, Some(failure)),
    };
    let host = |counted: &Counted| counted.rounds as f64 / counted.host_s;
    let device = |counted: &Counted| Some(counted.rounds as f64 / counted.device_s?);
    let host_ratio = beside.as_ref().map(|beside| host(beside) / host(&baseline));
    let device_ratio =
        beside.as_ref().and_then(|beside| Some(device(beside)? / device(&baseline)?));
    Healthy { baseline, beside, device_ratio, served_ratio: None, host_ratio, failure }
}

/// The rounds of programs a second of the data plane's processor time, as a part of the baseline.
/// Programs that failed count nowhere.
fn served_ratio(healthy: &[Healthy]) -> Option<f64> {
    let rate = |counted: &Counted| {
        (counted.served_s > 0.0).then(|| counted.rounds as f64 / counted.served_s)
    };
    let (mut before, mut now) = (0.0, 0.0);
    for healthy in healthy {
        let Some(beside) = &healthy.beside else { continue };
        before += rate(&healthy.baseline)?;
        now += rate(beside)?;
    }
    (before > 0.0).then_some(now / before)
}

impl Played {
    /// Writes down what the healthy programs lost.
    fn judge(&mut self, least: f64) {
        for (number, healthy) in self.healthy.iter().enumerate() {
            let mut lost = |what: String| self.losses.push(format!("program {number}: {what}"));
            if let Some(failure) = &healthy.failure {
                lost(failure.clone());
            }
            for counted in [Some(&healthy.baseline), healthy.beside.as_ref()].into_iter().flatten()
            {
                if counted.wrong > 0 {
                    let first = counted.first_wrong.as_deref().unwrap_or_default();
                    lost(format!("{} rounds have wrong results: {first}", counted.wrong));
                }
            }
            if let Some(ratio) = healthy.ratio().filter(|ratio| *ratio < least) {
                let (has, needs) = (ratio * 100.0, least * 100.0);
                lost(format!("it has {has:.0} % of the speed of its share, not {needs:.0} %"));
            }
        }
        if self.newcomer_s.is_none() {
            self.losses.push("a newcomer had no result".to_owned());
        }
        if self.restarts > 0 {
            self.losses.push(format!("partita-gpu was started again {} times", self.restarts));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(rounds: u64, device_s: Option<f64>) -> Counted {
        Counted { rounds, host_s: 2.0, served_s: 1.0, device_s, ..Counted::default() }
    }

    fn played(mut healthy: Healthy) -> Played {
        healthy.served_ratio = served_ratio(std::slice::from_ref(&healthy));
        let mut played = Played {
            seed: 0,
            healthy: vec![healthy],
            acts: Vec::new(),
            newcomer_s: Some(1.0),
            restarts: 0,
            peak_mib: 0,
            log_bytes: 0,
            losses: Vec::new(),
        };
        played.judge(0.8);
        played
    }

    #[test]
    fn device_time_counts_where_there_is_one() {
        let slow_host = compare(counted(100, Some(1.0)), Ok(counted(50, Some(0.5))));
        assert_eq!(slow_host.device_ratio, Some(1.0));
        assert!(played(slow_host).losses.is_empty());
        let slow = compare(counted(100, Some(1.0)), Ok(counted(50, Some(1.0))));
        assert_eq!(played(slow).losses.len(), 1);
        let no_time = compare(counted(100, None), Ok(counted(79, None)));
        assert_eq!(played(no_time).losses.len(), 1);
    }

    #[test]
    fn a_wrong_result_and_a_death_are_losses() {
        let wrong = Counted { wrong: 1, ..counted(100, None) };
        assert_eq!(played(compare(counted(100, None), Ok(wrong))).losses.len(), 1);
        let died = compare(counted(100, None), Err("it died".to_owned()));
        assert_eq!(played(died).losses, ["program 0: it died"]);
    }
}
