//! A stage: a daemon with an emulated GPU, and unmodified programs on it. Dropping it ends all of them.

use super::{Cast, Way};
use crate::api::{ApiError, Target};
use crate::run::locate;
use crate::sockets::SOCKET_DIR;
use partita_model::{ApplicationReport, StatusReport, TraceReport};
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// More launches than any demo lasts for.
const LAUNCHES: &str = "20000";
/// How long nothing may happen at all. A loaded host is slow, but never so slow.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a stage failed.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// The system's word.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The daemon did not come up.
    #[error("the daemon did not start:\n{0}")]
    Daemon(String),
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
    /// Nothing goes on.
    #[error("nothing has happened on the emulated GPU for {} s", PATIENCE.as_secs())]
    Stuck,
    /// A program did too little for a speed.
    #[error("a program completed too little to measure its speed: use a smaller GPU with --spec")]
    Unmeasured,
}

/// What is started.
#[derive(Clone, Debug)]
pub struct Parts {
    /// `partitad`.
    pub daemon: PathBuf,
    /// What programs take for CUDA's driver.
    pub shim: PathBuf,
    /// The GPU.
    pub device: String,
}

/// A daemon and programs.
pub struct Stage {
    daemon: Child,
    shim: PathBuf,
    programs: Vec<(&'static str, Child)>,
    target: Target,
    folder: TempDir,
    /// The last device time, and since when it has been that.
    last: (u64, Instant),
}

impl Stage {
    /// Starts a daemon that shares its GPU this way.
    pub fn open(parts: &Parts, way: Way) -> Result<Stage, StageError> {
        let system = |what| move |source| StageError::System { what, source };
        let folder = tempfile::Builder::new().prefix("partita-demo-").tempdir();
        let folder = folder.map_err(system("cannot create a folder for the daemon's sockets"))?;
        let mut daemon = Command::new(&parts.daemon)
            .args(["--device", &parts.device, "--policy", way.policy(), "--sharing", way.sharing().name()])
            .args(["--ready-fd", "1", "--end-with-parent"])
            .arg("--socket-dir")
            .arg(folder.path())
            // Every way of sharing finds the same: nothing that another has measured.
            .arg("--state-dir")
            .arg(folder.path())
            .env_remove("NOTIFY_SOCKET")
            .env("PARTITA_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(system("cannot start partitad"))?;
        wait_until_ready(&mut daemon)?;
        Ok(Stage {
            daemon,
            shim: parts.shim.clone(),
            programs: Vec::new(),
            target: Target::folder(folder.path()),
            folder,
            last: (0, Instant::now()),
        })
    }

    /// Starts the programs, which launch kernels for as long as they are let.
    pub fn start(&mut self, cast: &[Cast]) -> Result<(), StageError> {
        for member in cast {
            let program = self.program(member, LAUNCHES).spawn();
            let program =
                program.map_err(|source| StageError::System { what: "cannot start a program", source })?;
            self.programs.push((member.name, program));
        }
        Ok(())
    }

    /// Runs a program to its end, which checks its own result.
    pub fn check(&mut self, member: &Cast) -> Result<(), StageError> {
        let output = self.program(member, "1").output();
        let output =
            output.map_err(|source| StageError::System { what: "cannot start a program", source })?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() && said == "RIGHT" {
            return Ok(());
        }
        let said = format!("{said} {}", String::from_utf8_lossy(&output.stderr).trim());
        Err(StageError::Program { program: member.name, status: output.status, output: said })
    }

    fn program(&self, member: &Cast, launches: &str) -> Command {
        let mut command = Command::new(&member.path);
        command
            .arg(launches)
            .env("LD_PRELOAD", locate::preload(&self.shim, None).unwrap_or_default())
            .env(SOCKET_DIR, self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// The state after a moment; an error where a program has ended or nothing goes on any more.
    pub fn look(&mut self) -> Result<StatusReport, StageError> {
        std::thread::sleep(PAUSE);
        for (program, child) in &mut self.programs {
            let ended =
                child.try_wait().map_err(|source| StageError::System { what: "cannot wait", source })?;
            if let Some(status) = ended {
                return Err(StageError::Program { program, status, output: said(child) });
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

    /// Which CTAs were where.
    pub fn trace(&self) -> Result<TraceReport, StageError> {
        Ok(self.target.get("/v1/trace")?)
    }

    /// The programs as the daemon knows them, in their order on the stage.
    pub fn members<'a>(&self, status: &'a StatusReport) -> Vec<Option<&'a ApplicationReport>> {
        let known = |pid: u32| status.applications.iter().find(|application| application.pids.contains(&pid));
        self.programs.iter().map(|(_, child)| known(child.id())).collect()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What they do from here on is of no interest; a failure means that one has ended already.
        for child in self.programs.iter_mut().map(|(_, child)| child).chain([&mut self.daemon]) {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn wait_until_ready(daemon: &mut Child) -> Result<(), StageError> {
    let stdout = daemon.stdout.take().ok_or_else(|| StageError::Daemon("its stdout is no pipe".into()))?;
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    if read.is_ok() && line == "READY\n" {
        return Ok(());
    }
    let output = said(daemon);
    drop(daemon.kill());
    drop(daemon.wait());
    Err(StageError::Daemon(output))
}

/// What a process that has ended wrote.
fn said(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stdout) = &mut child.stdout {
        drop(stdout.read_to_string(&mut text));
    }
    if let Some(stderr) = &mut child.stderr {
        drop(stderr.read_to_string(&mut text));
    }
    text.trim().to_owned()
}
