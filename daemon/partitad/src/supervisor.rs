//! Finds or starts `partita-gpu`, watches it, and brings it back.
//!
//! A process that ends is started again. So is one that hangs: it gets heartbeats, which the thread
//! that owns engine and device answers. Several missed heartbeats, each waited for separately, make
//! it hung. A `partitad` that was itself suspended misses one at most.
//!
//! A process that an earlier `partitad` has left is adopted: its sessions have gone on meanwhile.
//! Where systemd starts the processes ([`Starter::Systemd`]), a call starts one.
//!
//! Invariants: at most one `partita-gpu` is used for a GPU; the published state names a process
//! only between its being ready and its end. When the supervisor ends in order, a process that this
//! `partitad` started or adopted ends too; systemd's goes on. A start that is given up ends only
//! what it has started.

use crate::calling::{CallError, Process, call};
use crate::gpu_program::GpuProgram;
use crate::link::{AskError, GpuState, GreetError, Link};
use crate::sockets::{SocketError, listen_for_calls};
use partita_model::{GpuConfig, GpuNumber, HungAfter};
use partita_wire::supervise::{Answer, Ask};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::process::Child;
use tokio::sync::watch;

/// How long a device may take to come up. A real GPU's driver needs some seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long `partita-gpu` may take to end when asked.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause before the first restart; it doubles with each that follows soon, up to
/// [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A process that lived so long was healthy: the next restart is a first one again.
const HEALTHY: Duration = Duration::from_secs(10);

/// Heartbeats missed in a row after which a process is hung. Each is waited for for this part of
/// the configured time.
const HEARTBEATS: u32 = 6;

/// The pause before a `partita-gpu` of another version or device is called again.
const LATER_PAUSE: Duration = Duration::from_millis(250);

/// The pause before a `partita-gpu` that was ending is called again.
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Who starts `partita-gpu`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Starter {
    /// This `partitad`.
    Partitad(GpuProgram),
    /// systemd, at a call.
    Systemd,
}

/// Where a `partita-gpu` listens, and who starts it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The socket.
    pub socket: PathBuf,
    /// Who starts it.
    pub starter: Starter,
}

/// Why there is no data plane.
#[derive(Debug, thiserror::Error)]
pub enum SupervisionError {
    /// The executable was not found.
    #[error(
        "partita-gpu is neither beside partitad nor in PATH; install it there, or name it in \
         PARTITA_GPU"
    )]
    NotFound,
    /// The executable cannot be started.
    #[error("cannot start {path}: {source}")]
    Start {
        /// The executable.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// It ended before it was ready for the first time: it cannot serve this device.
    #[error("partita-gpu cannot serve the device ({status}); see its message above")]
    Refused {
        /// How it ended.
        status: ExitStatus,
    },
    /// Its socket cannot be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// It says that it cannot serve this device.
    #[error("partita-gpu cannot serve the device: {0}")]
    Never(String),
    /// It came up wrong for the first time.
    #[error("partita-gpu did not come up: {0}")]
    Call(#[from] CallError),
    /// It was not ready in time for the first time.
    #[error("partita-gpu was not ready within {} s: see its log", START_TIMEOUT.as_secs())]
    Timeout,
}

impl SupervisionError {
    /// What `partitad` exits with: 2 where the command line is at fault, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            SupervisionError::Refused { status } if status.code() == Some(2) => 2,
            SupervisionError::Never(_) => 2,
            _ => 1,
        }
    }
}

/// The supervisor. [`Supervisor::start`] brings the first process up, [`Supervisor::run`] keeps one
/// up.
#[derive(Debug)]
pub struct Supervisor {
    place: Place,
    number: GpuNumber,
    /// What `--device` gets.
    device: String,
    /// What every process after the first is told to decide by.
    policy: watch::Receiver<Option<GpuConfig>>,
    state: watch::Sender<GpuState>,
    process: Process,
    started: Instant,
}

impl Supervisor {
    /// Finds or starts the first process and waits until it is ready. Those after it are told the
    /// `policy`; whoever starts the first tells it to that. A device that cannot be served shows
    /// here, and is an error and not a reason to try again.
    ///
    /// # Errors
    /// [`SupervisionError`].
    pub async fn start(
        place: Place,
        number: GpuNumber,
        device: String,
        policy: watch::Receiver<Option<GpuConfig>>,
    ) -> Result<(Self, watch::Receiver<GpuState>), SupervisionError> {
        let started = Instant::now();
        let (process, link) = bring_up(&place, number, &device).await?;
        let facts = Some(link.facts().clone());
        let (state, receiver) =
            watch::channel(GpuState { link: Some(link), facts, ..GpuState::default() });
        Ok((Supervisor { place, number, device, policy, state, process, started }, receiver))
    }

    /// Keeps a process up until `stop` ends; then ends it.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = self.keep_up() => {}
            () = stop => {}
        }
        self.end().await;
    }

    /// Ends the process where this `partitad` has started it: it will serve nobody. One that was
    /// found goes on, with its sessions, and the next `partitad` finds it again.
    pub async fn give_up(self) {
        if matches!(self.process, Process::Child(_)) {
            self.end().await;
        }
    }

    async fn keep_up(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = self.failure().await;
            self.state.send_modify(|state| state.link = None);
            tracing::error!(
                gpu = self.number.0,
                "partita-gpu {reason}; its sessions are lost; starting it again"
            );
            if self.started.elapsed() >= HEALTHY {
                pause = FIRST_PAUSE;
            }
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                self.started = Instant::now();
                match bring_up(&self.place, self.number, &self.device).await {
                    Ok((process, link)) => {
                        self.process = process;
                        self.tell_policy(&link).await;
                        self.publish(link, &reason);
                        break;
                    }
                    Err(error) => {
                        tracing::error!(gpu = self.number.0, "{error}; trying again in {pause:?}")
                    }
                }
            }
        }
    }

    async fn tell_policy(&self, link: &Link) {
        let policy = self.policy.borrow().clone();
        let Some(policy) = policy else { return };
        match link.ask(Ask::Configure(policy)).await {
            Ok(Answer::Done) => {}
            Ok(other) => tracing::error!(?other, "the new partita-gpu does not take the policy"),
            Err(error) => tracing::error!(%error, "the new partita-gpu cannot be told the policy"),
        }
    }

    /// Waits until the process has ended, by itself or because it hung, and says why.
    async fn failure(&mut self) -> String {
        let link = self.state.borrow().link.clone();
        // A process without a link is ending.
        let closed = async {
            if let Some(link) = &link {
                link.closed().await;
            }
        };
        let hung = tokio::select! {
            () = closed => {
                return match tokio::time::timeout(STOP_TIMEOUT, self.process.ended()).await {
                    Ok(how) => format!("ended ({how})"),
                    Err(_) => "has closed its control socket".into(),
                };
            }
            hung = watch_over(link.clone(), self.policy.clone()) => hung,
        };
        let seconds = hung.as_secs();
        let reason = format!("was stopped or hung: it answered no heartbeat for {seconds} s");
        tracing::error!(gpu = self.number.0, "partita-gpu {reason}; killing it");
        if let Err(error) = self.process.kill().await {
            tracing::error!(gpu = self.number.0, %error, "partita-gpu cannot be killed");
        }
        reason
    }

    fn publish(&self, link: Arc<Link>, reason: &str) {
        self.state.send_modify(|state| {
            state.facts = Some(link.facts().clone());
            state.link = Some(link);
            state.restarts += 1;
            state.last_restart = Some(format!("partita-gpu {reason}"));
        });
        tracing::info!(gpu = self.number.0, "partita-gpu serves again");
    }

    async fn end(mut self) {
        let link = self.state.borrow().link.clone();
        self.state.send_modify(|state| state.link = None);
        if self.place.starter == Starter::Systemd {
            return;
        }
        let ended = async {
            if let Some(link) = link {
                // The end of the process comes before its answer, or after.
                drop(link.ask(Ask::End).await);
            }
            self.process.ended().await
        };
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("partita-gpu does not end; killing it");
            if let Err(error) = self.process.kill().await {
                tracing::error!(%error, "partita-gpu cannot be killed");
            }
        }
    }
}

/// Ends when the process has missed [`HEARTBEATS`] in a row, and says how long that was.
async fn watch_over(
    link: Option<Arc<Link>>,
    policy: watch::Receiver<Option<GpuConfig>>,
) -> Duration {
    // A process without a link is ending.
    let Some(link) = link else { return std::future::pending().await };
    let mut since = Instant::now();
    let mut missed = 0;
    while missed < HEARTBEATS {
        // A configuration that was read again holds from the next heartbeat on.
        let HungAfter(limit_ms) =
            policy.borrow().as_ref().map_or_else(HungAfter::default, |config| config.hung_after);
        let wait = Duration::from_millis(limit_ms.into()) / HEARTBEATS;
        let sent = tokio::time::Instant::now();
        match link.beat(wait).await {
            Ok(()) => {
                tokio::time::sleep_until(sent + wait).await;
                (missed, since) = (0, Instant::now());
            }
            Err(AskError::Gone) => return std::future::pending().await,
            Err(error) => {
                missed += 1;
                tracing::debug!(pid = link.pid(), missed, %error, "a heartbeat was missed");
            }
        }
    }
    since.elapsed()
}

/// Finds the process, or starts one. Sessions of another version or device are waited for: they go
/// on until their programs end.
async fn bring_up(
    place: &Place,
    number: GpuNumber,
    device: &str,
) -> Result<(Process, Arc<Link>), SupervisionError> {
    let mut start = Instant::now();
    let mut last_reason = String::new();
    loop {
        let left = START_TIMEOUT.saturating_sub(start.elapsed());
        let called = tokio::time::timeout(left, call(&place.socket, device)).await;
        let pause = match (called, &place.starter) {
            (Ok(Ok(link)), _) => {
                tracing::info!(gpu = number.0, pid = link.pid(), "partita-gpu was found");
                let process = Process::found(link.pid()).map_err(CallError::Io)?;
                replace_when_idle(&link, number).await;
                return Ok((process, link));
            }
            (Ok(Err(CallError::Later(reason))), _) => {
                if reason != last_reason {
                    tracing::warn!(gpu = number.0, "waiting for partita-gpu: {reason}");
                    last_reason = reason;
                }
                start = Instant::now();
                LATER_PAUSE
            }
            (Ok(Err(CallError::Ended | CallError::Greet(GreetError::Ended))), _) => ENDING_PAUSE,
            (Ok(Err(CallError::Never(text))), _) => return Err(SupervisionError::Never(text)),
            (Ok(Err(CallError::Nobody(_))), Starter::Partitad(program)) => {
                return spawn(program, &place.socket, device).await;
            }
            (Ok(Err(error)), _) => return Err(error.into()),
            (Err(_), Starter::Partitad(program)) => {
                end_hung(&note_beside(&place.socket), number).await;
                return spawn(program, &place.socket, device).await;
            }
            (Err(_), Starter::Systemd) => return Err(SupervisionError::Timeout),
        };
        tokio::time::sleep(pause).await;
    }
}

/// Lets a process of another version end once its sessions have ended; then one of the installed
/// version follows.
async fn replace_when_idle(link: &Link, number: GpuNumber) {
    let own = env!("CARGO_PKG_VERSION");
    if link.version() == own {
        return;
    }
    tracing::info!(
        gpu = number.0,
        "partita-gpu is of version {}, and ends when its sessions have ended; {own} follows",
        link.version()
    );
    if let Err(error) = link.ask(Ask::EndWhenIdle).await {
        tracing::warn!(gpu = number.0, %error, "partita-gpu of another version goes on");
    }
}

/// Kills a process that an earlier `partitad` has started and that answers no call. systemd's has a
/// watchdog.
async fn end_hung(note: &Path, number: GpuNumber) {
    let seconds = START_TIMEOUT.as_secs();
    let Some(mut process) = Process::noted(note) else {
        tracing::error!(
            gpu = number.0,
            "a partita-gpu that is not known has answered no call for {seconds} s; starting another"
        );
        return;
    };
    tracing::error!(
        gpu = number.0,
        "the partita-gpu of an earlier partitad has answered no call for {seconds} s; killing it"
    );
    match tokio::time::timeout(STOP_TIMEOUT, process.kill()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(gpu = number.0, %error, "partita-gpu cannot be killed"),
        // It waits in the driver, as a rule.
        Err(_) => tracing::error!(gpu = number.0, "partita-gpu does not end; starting another"),
    }
}

/// The file beside a control socket that says which process serves there.
fn note_beside(socket: &Path) -> PathBuf {
    socket.with_extension("process")
}

async fn spawn(
    program: &GpuProgram,
    socket: &Path,
    device: &str,
) -> Result<(Process, Arc<Link>), SupervisionError> {
    let mut child = program.start(device, listen_for_calls(socket)?)?;
    let noted = child.id().map(|pid| Process::note(pid, &note_beside(socket)));
    if let Some(Err(error)) = noted {
        tracing::warn!(%error, "a later partitad could not kill this partita-gpu if it hung");
    }
    let mut unready = Unready { child: &mut child, is_up: false };
    let link = first_line(unready.child, socket, device).await?;
    unready.is_up = true;
    drop(unready);
    Ok((Process::Child(child), link))
}

/// A process that was started and is not up. It ends where nobody waits for that any more.
struct Unready<'a> {
    child: &'a mut Child,
    is_up: bool,
}

impl Drop for Unready<'_> {
    fn drop(&mut self) {
        if !self.is_up {
            // It may have ended by itself.
            drop(self.child.start_kill());
        }
    }
}

/// The line to a process that has just been started, once its device is ready.
async fn first_line(
    child: &mut Child,
    socket: &Path,
    device: &str,
) -> Result<Arc<Link>, SupervisionError> {
    let failure = match tokio::time::timeout(START_TIMEOUT, call(socket, device)).await {
        Ok(Ok(link)) => return Ok(link),
        Ok(Err(error)) => SupervisionError::Call(error),
        Err(_) => SupervisionError::Timeout,
    };
    match tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
        Ok(Ok(status)) => Err(SupervisionError::Refused { status }),
        _ => {
            if let Err(error) = child.kill().await {
                tracing::error!(%error, "partita-gpu cannot be killed");
            }
            Err(failure)
        }
    }
}
