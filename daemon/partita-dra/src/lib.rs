//! Kubernetes' DRA driver of Partita.
//!
//! The driver publishes each GPU of the node's `partitad` as a device whose SMs and memory claims
//! consume in parts. For a claim it makes reservations in `partitad`, and a CDI specification by
//! which the claim's containers find the shim and their reservation.
//!
//! Invariants: the driver decides nothing about SMs: the cluster's scheduler counts them and
//! `partitad` gives them. Nothing is lost where the driver, the daemon, the kubelet or the API
//! server is restarted at any moment.

pub mod cdi;
pub mod check;
pub mod claim;
pub mod driver;
pub mod files;
mod http;
pub mod kept;
pub mod kube;
pub mod options;
pub mod partitad;
pub mod proto;
pub mod quantity;
pub mod service;
pub mod slice;
pub mod user;
pub mod watch;

use driver::Driver;
use kube::Kube;
use options::Options;
use rustix::fs::{FlockOperation, flock};
use slice::Publisher;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

/// Why the driver cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The node has no name.
    #[error("which node? give --node-name or NODE_NAME: in a pod, spec.nodeName")]
    NoNode,
    /// The API server cannot be asked.
    #[error(transparent)]
    Kube(#[from] kube::SetupError),
    /// Another driver serves.
    #[error("another partita-dra serves this node: it holds {}; end it first", .0.display())]
    Taken(PathBuf),
    /// The driver's folder cannot be used.
    #[error(
        "{}: {source}; partita-dra runs as root, and its pod mounts the kubelet's folder and \
         that of CDI", .path.display()
    )]
    Folder {
        /// The path.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] files::FileError),
    /// A socket cannot be served.
    #[error("{0}; partita-dra runs as root, and its pod mounts the kubelet's folder")]
    Socket(io::Error),
}

impl RunError {
    /// The exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::NoNode | RunError::Kube(_) => 2,
            _ => 1,
        }
    }
}

/// Serves until SIGTERM or SIGINT. The ResourceSlice and what was prepared stay.
///
/// # Errors
/// Where it cannot serve.
pub async fn run(options: Options) -> Result<(), RunError> {
    let Options { places, node_name: node, .. } = &options;
    if node.is_empty() {
        return Err(RunError::NoNode);
    }
    let kube = Kube::new(options.kube_api.as_deref(), &options.kube_account)?;
    let _lock = lock(&places.plugin_dir())?;
    cdi::write_preload(places, &options.preload)?;
    let driver = Driver::new(places.clone(), node.clone(), options.days, kube.clone());
    let driver = Arc::new(driver);
    let (state, seen) = tokio::sync::watch::channel(watch::Node::new(node));
    let publisher = Publisher::new(kube, &places.driver_name, node);
    let mut term = signal(SignalKind::terminate()).map_err(RunError::Socket)?;
    let done = tokio::select! {
        () = watch::watch(driver.clone(), publisher, state) => Ok(()),
        done = service::serve_plugin(places, driver.clone(), seen) => done,
        done = service::serve_registration(places) => done,
        _ = term.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    // Without its socket the kubelet takes the driver for gone, and waits for the next one.
    drop(std::fs::remove_file(places.registration_socket()));
    done.map_err(RunError::Socket)
}

/// Two drivers would write one checkpoint.
fn lock(folder: &Path) -> Result<File, RunError> {
    let path = folder.join("lock");
    let failed = |source| RunError::Folder { path: path.clone(), source };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let file = File::create(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RunError::Taken(path)),
        Err(error) => Err(failed(error.into())),
    }
}
