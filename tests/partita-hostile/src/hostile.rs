//! The hostile processes of a seed, each with a thread that starts it, stops it, kills it and
//! starts it again.

use crate::acts::{Act, Handling, Told};
use crate::options::Process;
use crate::process::Running;
use crate::random::Random;
use rustix::process::Signal;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(5);

/// What one act did in a seed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Acted {
    /// The act.
    pub act: Act,
    /// Processes that were started for it.
    pub processes: u64,
    /// Requests that were counted.
    pub done: u64,
    /// Those that the daemon refused.
    pub refused: u64,
    /// The last refusal in words.
    pub last_refusal: Option<String>,
}

/// Acts that go on until they are ended.
pub struct Acting {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Acted>>,
}

impl Acting {
    /// Starts the acts.
    pub fn start(acts: &[Act], process: &Process, random: &mut Random) -> Acting {
        let end = Arc::new(AtomicBool::new(false));
        let threads = acts
            .iter()
            .map(|act| {
                let process = process.clone();
                let (act, random) = (*act, Random::new(random.bits()));
                let end = Arc::clone(&end);
                std::thread::spawn(move || Keeper { act, process, random, end }.keep())
            })
            .collect();
        Acting { end, threads }
    }

    /// Kills the processes. What they did.
    pub fn end(self) -> Vec<Acted> {
        self.end.store(true, Ordering::Relaxed);
        let join = |thread: JoinHandle<Acted>| thread.join().expect("a keeper does not panic");
        self.threads.into_iter().map(join).collect()
    }
}

/// Keeps one act going.
struct Keeper {
    act: Act,
    process: Process,
    random: Random,
    end: Arc<AtomicBool>,
}

impl Keeper {
    fn keep(mut self) -> Acted {
        let mut acted =
            Acted { act: self.act, processes: 0, done: 0, refused: 0, last_refusal: None };
        while !self.end.load(Ordering::Relaxed) {
            self.process.seed = self.random.bits();
            let Ok(mut running) = Running::start(&["act", &self.act.name()], &self.process) else {
                // The machine has no process left for the moment.
                self.pause(Duration::from_millis(50));
                continue;
            };
            acted.processes += 1;
            match self.act.handling() {
                Handling::Left => while !running.has_ended() && !self.pause(LOOK) {},
                Handling::Killed => {
                    let life = self.random.millis(5, 600);
                    self.pause(life);
                }
                Handling::Stopped => {
                    while !running.has_ended() && !self.end.load(Ordering::Relaxed) {
                        let (runs, stands) =
                            (self.random.millis(10, 300), self.random.millis(50, 1500));
                        self.pause(runs);
                        running.signal(Signal::STOP);
                        self.pause(stands);
                        running.signal(Signal::CONT);
                    }
                }
            }
            let told = running.kill().and_then(|line| serde_json::from_str::<Told>(&line).ok());
            if let Some(told) = told {
                acted.done += told.done;
                acted.refused += told.refused;
                acted.last_refusal = told.last.or(acted.last_refusal);
            }
        }
        acted
    }

    /// Waits, and whether the end has come meanwhile.
    fn pause(&self, time: Duration) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < time && !self.end.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK.min(time));
        }
        self.end.load(Ordering::Relaxed)
    }
}
