//! Stand-ins for what a node has beside the driver: the kubelet, the API server, a container
//! runtime.
//!
//! The kubelet finds the driver by its registration socket, as a real one does. The API server
//! keeps objects by path. The container runtime applies a CDI specification in a mount namespace.

pub mod api_server;
pub mod container;
pub mod disk;
pub mod kubelet;
pub mod tls;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take on an overloaded host.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The driver's name.
pub const DRIVER: &str = "gpu.partita.dev";
/// The node's name.
pub const NODE: &str = "gpu01";

/// A running driver; dropping it kills it.
pub struct Driver {
    child: Child,
    command: Command,
    folder: PathBuf,
}

impl Driver {
    /// Starts the driver with all its folders in `folder`, for this daemon and this API server.
    pub fn start(folder: &Path, sockets: &Path, server: &str, options: &[&str]) -> Driver {
        Driver::start_by(&[], folder, sockets, server, options)
    }

    /// The same by another program, such as `nsenter`, with these arguments before its own.
    pub fn start_by(
        by: &[String],
        folder: &Path,
        sockets: &Path,
        server: &str,
        options: &[&str],
    ) -> Driver {
        let words = [by, &[env!("CARGO_BIN_EXE_partita-dra").to_owned()]].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let log = std::fs::File::create(folder.join("driver.log")).expect("a file can be made");
        command
            .args(["--node-name", NODE, "--kube-api", server])
            .arg("--kubelet-dir")
            .arg(folder.join("kubelet"))
            .arg("--cdi-dir")
            .arg(folder.join("cdi"))
            .arg("--lib-dir")
            .arg(folder.join("lib"))
            .arg("--socket-dir")
            .arg(sockets)
            .args(options)
            .stdin(Stdio::null())
            .stderr(log);
        let child = command.spawn().expect("the driver can be started");
        Driver { child, command, folder: folder.to_owned() }
    }

    /// Kills it and starts it again.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.child = self.command.spawn().expect("the driver can be started");
    }

    /// Kills it.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        self.child.wait().expect("the driver can be waited for");
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("driver.log")).unwrap_or_default()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the driver's log ---\n{}", self.log());
        }
    }
}

/// Looks again and again until it is so.
pub async fn wait_for(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
