//! A stage: a daemon with an emulated GPU, and unmodified programs on it. Dropping the stage ends
//! all of them.

use super::Cast;
use crate::api::{ApiError, Target};
use crate::run::child::{self, ChildDaemon, ChildError, Parts};
use partita_model::{ApplicationReport, Priority, Sharing, StatusReport, TraceReport};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// More launches than any demo needs.
const LAUNCHES: &str = "20000";
/// The longest time without any progress. A loaded host is slow, but not as slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a stage failed.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The daemon did not come up, or a program.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// It does not answer.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// A program ended before its time.
    #[error("{program} ended early with {status}: {output}")]
    Program {
        /// Which.
        program: &'static str,
        /// How.
        status: ExitStatus,
        /// What it said.
        output: String,
    },
    /// The server does not do what it should.
    #[error("{program} did not answer request {number}: {reason}")]
    Server {
        /// Which.
        program: &'static str,
        /// The request, by its number from 0.
        number: usize,
        /// What happened.
        reason: String,
    },
    /// Nothing goes on.
    #[error("the emulated GPU has made no progress for {} s: try again on a less busy machine",
        PATIENCE.as_secs())]
    Stuck,
    /// A program did too little for a speed.
    #[error("a program completed too few CTAs to measure its speed: use a smaller GPU with --spec")]
    Unmeasured,
}

/// A daemon and programs.
pub struct Stage {
    daemon: ChildDaemon,
    programs: Vec<(&'static str, Child)>,
    target: Target,
    /// The last device time, and the moment at which it was seen first.
    last: (u64, Instant),
}

impl Stage {
    /// Starts a daemon with this policy that shares its GPU this way.
    pub fn open(parts: &Parts, policy: &str, sharing: Sharing) -> Result<Stage, StageError> {
        let daemon = ChildDaemon::start(parts, &["--policy", policy, "--sharing", sharing.name()])?;
        let target = Target::folder(daemon.folder());
        Ok(Stage { daemon, programs: Vec::new(), target, last: (0, Instant::now()) })
    }

    /// Starts the programs, which launch kernels until they are ended.
    pub fn start(&mut self, cast: &[Cast]) -> Result<(), StageError> {
        cast.iter().try_for_each(|member| self.start_batch(member.name, &member.path, None))
    }

    /// Starts a program that launches kernels until it is ended, with this priority.
    pub fn start_batch(
        &mut self,
        name: &'static str,
        path: &Path,
        priority: Option<Priority>,
    ) -> Result<(), StageError> {
        let mut command = self.program(path, priority);
        let program = command.arg(LAUNCHES).spawn().map_err(system("cannot start a program"))?;
        self.programs.push((name, program));
        Ok(())
    }

    /// Starts a server that tells its port in its first line, `PORT n`, and serves until its
    /// standard input ends. The port.
    pub fn start_server(
        &mut self,
        name: &'static str,
        path: &Path,
        priority: Option<Priority>,
    ) -> Result<u16, StageError> {
        let mut command = self.program(path, priority);
        let mut server =
            command.stdin(Stdio::piped()).spawn().map_err(system("cannot start a program"))?;
        let mut line = String::new();
        if let Some(stdout) = server.stdout.take() {
            // A server that says nothing has ended, and its end is told below.
            drop(BufReader::new(stdout).read_line(&mut line));
        }
        if let Some(port) = line.trim_end().strip_prefix("PORT ").and_then(|it| it.parse().ok()) {
            self.programs.push((name, server));
            return Ok(port);
        }
        child::end(&mut server);
        let status = server.wait().map_err(system("cannot wait"))?;
        let output = format!("{line}{}", child::said(&mut server));
        Err(StageError::Program { program: name, status, output })
    }

    /// Runs a program to its end, which checks its own result.
    pub fn check(&mut self, name: &'static str, path: &Path) -> Result<(), StageError> {
        let mut command = self.program(path, None);
        let output = command.arg("1").output().map_err(system("cannot start a program"))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && said == "RIGHT" {
            return Ok(());
        }
        let said = format!("{said} {}", String::from_utf8_lossy(&output.stderr).trim());
        Err(StageError::Program { program: name, status: output.status, output: said })
    }

    /// The command of a program, as `partita run --priority` starts it.
    fn program(&self, path: &Path, priority: Option<Priority>) -> Command {
        let mut command = self.daemon.program(path);
        command.envs(priority.map(|priority| ("PARTITA_PRIORITY", priority.name())));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The state after a pause; an error where a program has ended or the GPU makes no progress.
    pub fn look(&mut self) -> Result<StatusReport, StageError> {
        self.look_after(PAUSE)
    }

    /// The same after a pause of another length.
    pub fn look_after(&mut self, pause: Duration) -> Result<StatusReport, StageError> {
        std::thread::sleep(pause);
        for (program, child) in &mut self.programs {
            let ended = child.try_wait().map_err(system("cannot wait"))?;
            if let Some(status) = ended {
                return Err(StageError::Program { program, status, output: child::said(child) });
            }
        }
        let status: StatusReport = self.target.get("/v1/status")?;
        if status.gpu.device_time_ns != self.last.0 {
            self.last = (status.gpu.device_time_ns, Instant::now());
        }
        if self.last.1.elapsed() > PATIENCE {
            return Err(StageError::Stuck);
        }
        Ok(status)
    }

    /// The trace of CTAs.
    pub fn trace(&self) -> Result<TraceReport, StageError> {
        Ok(self.target.get("/v1/trace")?)
    }

    /// The programs as the daemon knows them, in their order on the stage.
    pub fn members<'a>(&self, status: &'a StatusReport) -> Vec<Option<&'a ApplicationReport>> {
        let known = |pid: u32| {
            status.applications.iter().find(|application| application.pids.contains(&pid))
        };
        self.programs.iter().map(|(_, child)| known(child.id())).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The programs' output is of no interest from here on.
        self.programs.iter_mut().for_each(|(_, child)| child::end(child));
    }
}

fn system(what: &'static str) -> impl Fn(io::Error) -> StageError {
    move |source| StageError::Child(ChildError::System { what, source })
}
