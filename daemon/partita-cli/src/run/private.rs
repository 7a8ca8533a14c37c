//! The runner's side of a private daemon: starting the keeper, and waiting for its answer.
//!
//! The keeper must not be a child of the program: a program that waits for *any* child would find a
//! child that it never made. A launcher therefore starts the keeper and ends at once. The keeper
//! inherits a pidfd of the runner as its stdin. It answers on its stdout with one message, which
//! ends with a zero byte: `+` and the folder of the sockets, or `-` and an error.

use super::keeper::{KEEPER_COMMAND, keeper_options};
use super::locate::SELF;
use super::spare::Place;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why there is no private daemon.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// The keeper cannot be started.
    #[error("cannot start the keeper of a private daemon: {0}")]
    Keeper(io::Error),
    /// The keeper ended without an answer.
    #[error("the keeper of the private daemon ended early")]
    KeeperLost,
    /// The daemon did not come up.
    #[error("a private daemon cannot start: {0}")]
    Daemon(String),
}

/// Starts `partitad` at `daemon` with `devices` for the life of this process, or takes the one that
/// the session keeps; returns the folder of its sockets.
pub fn start(daemon: &Path, devices: &[String]) -> Result<PathBuf, PrivateError> {
    let place = Place::find(daemon, devices);
    if let Some(folder) = place.as_ref().and_then(Place::take) {
        return Ok(folder);
    }
    let runner = pidfd_open(getpid(), PidfdFlags::empty())
        .map_err(|error| PrivateError::Keeper(error.into()))?;
    let mut launcher = Command::new(SELF)
        .arg0("partita")
        .arg(KEEPER_COMMAND)
        .arg("--partitad")
        .arg(daemon)
        .args(keeper_options(devices, place.as_ref()))
        .stdin(Stdio::from(runner))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(PrivateError::Keeper)?;
    let stdout = launcher.stdout.take().ok_or(PrivateError::KeeperLost)?;
    let mut answer = Vec::new();
    let read = BufReader::new(stdout).read_until(0, &mut answer);
    launcher.wait().map_err(PrivateError::Keeper)?;
    read.map_err(PrivateError::Keeper)?;
    match answer.as_slice() {
        [b'+', folder @ .., 0] => Ok(OsString::from_vec(folder.to_vec()).into()),
        [b'-', message @ .., 0] => {
            Err(PrivateError::Daemon(String::from_utf8_lossy(message).into_owned()))
        }
        _ => Err(PrivateError::KeeperLost),
    }
}
