//! The control plane's shell: the handshake with clients, the supervision of `partita-gpu`, and the API.
//!
//! `partitad` never touches a GPU, and nothing about sharing is decided here: clients are handed to `partita-gpu` with
//! their sockets, and questions of the API are passed on. So it can go on answering when `partita-gpu` dies, and start it
//! again. It has one thread.
//!
//! | module | what |
//! | --- | --- |
//! | [`options`] | the command line |
//! | [`sockets`] | the folder of the sockets, claimed by one daemon at a time |
//! | [`supervisor`] | the process `partita-gpu` |
//! | [`link`] | the line to it |
//! | [`front_desk`] | the handshake with clients |
//! | [`api`], [`problem`] | HTTP for administrators and schedulers |
//! | [`policy`] | which policy the data plane decides by |
//! | [`readiness`] | systemd, and whoever else waits for the start |

pub mod api;
pub mod front_desk;
pub mod link;
pub mod options;
pub mod policy;
pub mod problem;
pub mod readiness;
pub mod sockets;
pub mod supervisor;

use link::GpuHandle;
use options::Options;
use partita_model::PolicyConfig;
use policy::{PolicyError, PolicySource};
use readiness::Readiness;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sockets::SocketFolder;
use std::io;
use supervisor::{GpuProgram, SupervisionError, Supervisor};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// No folder is known.
    #[error(transparent)]
    NoSocketDir(#[from] options::NoSocketDir),
    /// The folder cannot be served.
    #[error(transparent)]
    Sockets(#[from] sockets::SocketError),
    /// There is no data plane.
    #[error(transparent)]
    Supervision(#[from] SupervisionError),
    /// The policy cannot hold.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The system's word.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl DaemonError {
    /// What the process exits with: 2 where the command line is at fault, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            DaemonError::NoSocketDir(_) | DaemonError::Policy(_) => 2,
            DaemonError::Supervision(error) => error.exit_code(),
            DaemonError::Sockets(_) | DaemonError::Io { .. } => 1,
        }
    }
}

/// Serves until a signal asks for the end.
///
/// # Errors
/// [`DaemonError`] where it cannot start, or cannot go on.
pub async fn run(options: Options, readiness: Readiness) -> Result<(), DaemonError> {
    let io_error = |what| move |source| DaemonError::Io { what, source };
    let mut terminate = signal(SignalKind::terminate()).map_err(io_error("cannot wait for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("cannot wait for SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(io_error("cannot wait for SIGHUP"))?;
    raise_descriptor_limit();

    let folder = SocketFolder::claim(&options.socket_dir()?, options.socket_mode)?;
    let (chosen, policy) = watch::channel(None);
    let (supervisor, state) =
        Supervisor::start(GpuProgram::find(options.device_text(), options.state_dir())?, policy).await?;
    let gpu = GpuHandle::new(state);
    let source = PolicySource { file: options.config, partitioner: options.policy };
    source.apply(&gpu, &chosen).await?;
    let clients = folder.listen_for_clients()?;
    let clients = UnixListener::from_std(clients).map_err(io_error("cannot wait for clients"))?;
    let http = folder.listen_for_http()?;
    let http = UnixListener::from_std(http).map_err(io_error("cannot wait for the API's callers"))?;

    let device = gpu.state().facts.map_or_else(String::new, |facts| facts.name);
    let status = format!("serving {device} in {}", folder.path().display());
    tracing::info!("{status}");
    readiness.ready(&status);

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let supervision = tokio::spawn(supervisor.run(async move { drop(stopped.await) }));
    let result = tokio::select! {
        () = front_desk::serve(clients, gpu.clone()) => Ok(()),
        () = reload(&mut hangup, &source, gpu.clone(), &chosen) => Ok(()),
        result = api::serve(http, gpu.clone()) => result.map_err(io_error("cannot serve the API")),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    tracing::info!("ending");
    readiness.stopping();
    drop(folder);
    drop(stop);
    supervision
        .await
        .map_err(|error| DaemonError::Io { what: "supervision failed", source: error.into() })?;
    result
}

/// Reads the configuration again at every SIGHUP.
async fn reload(
    hangup: &mut Signal,
    source: &PolicySource,
    gpu: GpuHandle,
    chosen: &watch::Sender<Option<PolicyConfig>>,
) {
    while hangup.recv().await.is_some() {
        match source.apply(&gpu, chosen).await {
            Ok(config) => tracing::info!(policy = ?config.partitioner, "the configuration was read again"),
            Err(error) => tracing::error!("{error}; the policy in force stays"),
        }
    }
    std::future::pending().await
}

/// Every session needs descriptors here and in `partita-gpu`, which inherits the limit.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the limit of file descriptors stays as it is");
    }
}
