//! A daemon as a child of this process, for commands that measure several daemons one after the
//! other. The daemon ends with this process.
//!
//! The daemon's state lies in the folder of its sockets, which is removed at the end: every daemon
//! begins with the same state.

use super::locate;
use crate::sockets::SOCKET_DIR;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Why there is no daemon.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
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
}

/// Paths and device of a daemon.
#[derive(Clone, Debug)]
pub struct Parts {
    /// `partitad`.
    pub daemon: PathBuf,
    /// The shim.
    pub shim: PathBuf,
    /// The GPU.
    pub device: String,
}

impl Parts {
    /// The parts beside this executable, or in the folder that `PARTITA_LIB_DIR` names.
    pub fn find(device: String) -> Result<Parts, crate::failure::Failure> {
        let own = std::env::current_exe()?;
        let folders = locate::part_folders(&own, std::env::var_os(locate::LIB_DIR));
        let daemon = locate::part(locate::DAEMON, &folders)?;
        Ok(Parts { daemon, shim: locate::part(locate::SHIM, &folders)?, device })
    }
}

/// The daemon. Dropping it ends it.
pub struct ChildDaemon {
    child: Child,
    shim: PathBuf,
    folder: TempDir,
}

impl ChildDaemon {
    /// Starts the daemon with further arguments, and waits until it serves.
    pub fn start(parts: &Parts, arguments: &[&str]) -> Result<ChildDaemon, ChildError> {
        let system = |what| move |source| ChildError::System { what, source };
        let folder = tempfile::Builder::new().prefix("partita-demo-").tempdir();
        let folder = folder.map_err(system("cannot create a folder for the daemon's sockets"))?;
        let mut child = Command::new(&parts.daemon)
            .args(["--device", &parts.device])
            .args(arguments)
            .args(["--ready-fd", "1", "--end-with-parent"])
            .arg("--socket-dir")
            .arg(folder.path())
            .arg("--state-dir")
            .arg(folder.path())
            .env_remove("NOTIFY_SOCKET")
            .env("PARTITA_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(system("cannot start partitad"))?;
        wait_until_ready(&mut child)?;
        Ok(ChildDaemon { child, shim: parts.shim.clone(), folder })
    }

    /// The folder of its sockets.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The command of a program that uses this daemon.
    pub fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command
            .env("LD_PRELOAD", locate::preload(&self.shim, None).unwrap_or_default())
            .env(SOCKET_DIR, self.folder());
        command
    }
}

impl Drop for ChildDaemon {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Ends a process, if it has not ended.
pub fn end(child: &mut Child) {
    // A failure means that the process has ended.
    drop(child.kill());
    drop(child.wait());
}

fn wait_until_ready(daemon: &mut Child) -> Result<(), ChildError> {
    let stdout =
        daemon.stdout.take().ok_or_else(|| ChildError::Daemon("its stdout is no pipe".into()))?;
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    if read.is_ok() && line == "READY\n" {
        return Ok(());
    }
    let output = said(daemon);
    end(daemon);
    Err(ChildError::Daemon(output))
}

/// The output of a process that has ended.
pub fn said(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stdout) = &mut child.stdout {
        drop(stdout.read_to_string(&mut text));
    }
    if let Some(stderr) = &mut child.stderr {
        drop(stderr.read_to_string(&mut text));
    }
    text.trim().to_owned()
}
