//! Starts `partita-gpu`, watches it, starts it again.
//!
//! A process that ends is started again. So is one that hangs: it gets heartbeats, which the thread
//! that owns engine and device answers. Several missed heartbeats, each waited for separately, make
//! it hung. A `partitad` that was itself suspended misses one at most.
//!
//! Invariants: at most one `partita-gpu` lives for a GPU; the published state names a process only
//! between its being ready and its end; when the supervisor ends, however it does, the process ends
//! too (its control socket closes, and the kernel kills it with its parent).
//!
//! The control socket is the process's standard input and the sessions socket its standard output,
//! because those two can be handed to a child, and taken by it, without touching bare descriptor
//! numbers. Its standard error is ours: one log.

use crate::link::{AskError, GpuState, GreetError, Link};
use partita_model::{GpuConfig, GpuNumber, HungAfter};
use partita_wire::supervise::{Answer, Ask};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
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

/// The variables that `partita-gpu` keeps. Everything else, `LD_PRELOAD` and `NOTIFY_SOCKET` among
/// it, is not its business.
const VARIABLES: [&str; 12] = [
    "PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "PARTITA_LOG",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "PARTITA_LIBCUDA",
    "PARTITA_LIBNVIDIA_ML",
];

/// What NVIDIA's driver reads when it is loaded. Kernels are loaded with their modules, because
/// loading one at its first launch would wait for the whole device; work of 32 streams goes at
/// once.
const DRIVER_SETTINGS: [(&str, &str); 2] =
    [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")];

/// What to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuProgram {
    /// The executable.
    pub path: PathBuf,
    /// What `--state-dir` gets.
    pub state_dir: Option<PathBuf>,
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
    /// It came up wrong for the first time.
    #[error("partita-gpu did not come up: {0}")]
    Greet(#[from] GreetError),
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
            _ => 1,
        }
    }
}

impl GpuProgram {
    /// Finds the executable: `PARTITA_GPU`, else beside this process's own, else in `PATH`.
    ///
    /// # Errors
    /// [`SupervisionError::NotFound`].
    pub fn find(state_dir: Option<PathBuf>) -> Result<Self, SupervisionError> {
        let named =
            std::env::var_os("PARTITA_GPU").filter(|path| !path.is_empty()).map(PathBuf::from);
        let beside =
            || std::env::current_exe().ok()?.parent().map(|folder| folder.join("partita-gpu"));
        let in_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path)
                .map(|folder| folder.join("partita-gpu"))
                .find(|path| path.is_file())
        };
        let path = named.or_else(|| beside().filter(|path| path.is_file())).or_else(in_path);
        Ok(GpuProgram { path: path.ok_or(SupervisionError::NotFound)?, state_dir })
    }

    /// How many GPUs the driver shows, by its word; none where it says none.
    #[must_use]
    pub fn count_gpus(&self) -> usize {
        let output = std::process::Command::new(&self.path)
            .arg("--count")
            .env_clear()
            .envs(kept_variables())
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn start(&self, device: &str) -> Result<Running, SupervisionError> {
        let start_error = |source| SupervisionError::Start { path: self.path.clone(), source };
        let pair = |kind, flags| {
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | flags, None)
                .map_err(|error| start_error(error.into()))
        };
        let (control, gpu_control) = pair(SocketType::STREAM, SocketFlags::NONBLOCK)?;
        let (sessions, gpu_sessions) = pair(SocketType::SEQPACKET, SocketFlags::NONBLOCK)?;
        let child = Command::new(&self.path)
            .args([OsString::from("--device"), OsString::from(device)])
            .args(
                self.state_dir
                    .iter()
                    .flat_map(|folder| ["--state-dir".as_ref(), folder.as_os_str()]),
            )
            .env_clear()
            .envs(kept_variables())
            .envs(DRIVER_SETTINGS)
            .stdin(Stdio::from(gpu_control))
            .stdout(Stdio::from(gpu_sessions))
            // A Ctrl-C at the terminal is for partitad, which then ends this one in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(start_error)?;
        let pid = child.id().unwrap_or_default();
        let control = UnixStream::from_std(control.into()).map_err(start_error)?;
        Ok(Running { child, pid, control, sessions })
    }
}

fn kept_variables() -> impl Iterator<Item = (&'static str, OsString)> {
    VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)))
}

struct Running {
    child: Child,
    pid: u32,
    control: UnixStream,
    sessions: OwnedFd,
}

/// The supervisor. [`Supervisor::start`] brings the first process up, [`Supervisor::run`] keeps one
/// up.
#[derive(Debug)]
pub struct Supervisor {
    program: GpuProgram,
    number: GpuNumber,
    /// What `--device` gets.
    device: String,
    /// What every process after the first is told to decide by.
    policy: watch::Receiver<Option<GpuConfig>>,
    state: watch::Sender<GpuState>,
    child: Child,
    started: Instant,
}

impl Supervisor {
    /// Starts the first process and waits until it is ready. Those after it are told the `policy`;
    /// whoever starts the first tells it to that. A device that cannot be served shows here, and is
    /// an error and not a reason to try again.
    ///
    /// # Errors
    /// [`SupervisionError`].
    pub async fn start(
        program: GpuProgram,
        number: GpuNumber,
        device: String,
        policy: watch::Receiver<Option<GpuConfig>>,
    ) -> Result<(Self, watch::Receiver<GpuState>), SupervisionError> {
        let started = Instant::now();
        let (child, link) = bring_up(&program, &device).await?;
        let facts = Some(link.facts().clone());
        let (state, receiver) =
            watch::channel(GpuState { link: Some(link), facts, ..GpuState::default() });
        Ok((Supervisor { program, number, device, policy, state, child, started }, receiver))
    }

    /// Keeps a process up until `stop` ends; then ends it.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = self.keep_up() => {}
            () = stop => {}
        }
        self.end().await;
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
                match bring_up(&self.program, &self.device).await {
                    Ok((child, link)) => {
                        self.child = child;
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
        let hung = tokio::select! {
            status = self.child.wait() => {
                let how = status.map_or_else(|error| error.to_string(), |how| how.to_string());
                return format!("ended ({how})");
            }
            hung = watch_over(link, self.policy.clone()) => hung,
        };
        let seconds = hung.as_secs();
        let reason = format!("was stopped or hung: it answered no heartbeat for {seconds} s");
        tracing::error!(gpu = self.number.0, "partita-gpu {reason}; killing it");
        if let Err(error) = self.child.kill().await {
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
        // The last link closes the control socket, which tells the process to end.
        self.state.send_modify(|state| state.link = None);
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            tracing::warn!("partita-gpu does not end; killing it");
            if let Err(error) = self.child.kill().await {
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

async fn bring_up(
    program: &GpuProgram,
    device: &str,
) -> Result<(Child, Arc<Link>), SupervisionError> {
    let Running { mut child, pid, control, sessions } = program.start(device)?;
    match tokio::time::timeout(START_TIMEOUT, Link::greet(control, sessions, pid)).await {
        Ok(Ok(link)) => Ok((child, link)),
        Ok(Err(GreetError::Ended)) => {
            match tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
                Ok(Ok(status)) => Err(SupervisionError::Refused { status }),
                _ => Err(GreetError::Ended.into()),
            }
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(SupervisionError::Timeout),
    }
}
