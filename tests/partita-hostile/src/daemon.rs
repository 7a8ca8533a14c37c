//! The daemon of one seed, in a temporary folder of its own.

use crate::options::Play;
use crate::tool_error::ToolError;
use partita_model::StatusReport;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of an answer of the API, and of the daemon's end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `partitad`, ended when it is dropped.
pub struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts one and waits until clients can connect.
    ///
    /// # Errors
    /// Where a binary is missing, the system refuses, or the daemon ends.
    pub fn start(play: &Play) -> Result<Daemon, ToolError> {
        let io = |what| move |error| ToolError::io(what, error);
        let folder = tempfile::tempdir().map_err(io("making a temporary folder"))?;
        let at = folder.path();
        // Other users look for the sockets here.
        std::fs::set_permissions(at, Permissions::from_mode(0o755))
            .map_err(io("opening the folder"))?;
        let config = at.join("partitad.toml");
        let memory = play.host_memory_mib;
        // The machine has other work: modules and users get a part of this memory.
        let text = format!(
            "[policy]\npartitioner = \"{}\"\nhost_memory_mib = {memory}\nprepare_mib = {}\n\n\
             [[policy.host_memory]]\nmib = {}\n",
            play.policy,
            memory / 3,
            memory / 2
        );
        std::fs::write(&config, text).map_err(io("writing the configuration"))?;
        let log = File::create(at.join("log")).map_err(io("creating the log"))?;
        let mut child = Command::new(binary(play, "partitad")?)
            .args(["--device", &play.device, "--ready-fd", "1", "--end-with-parent"])
            .args(["--socket-mode", "0666", "--config"])
            .arg(&config)
            .arg("--socket-dir")
            .arg(at.join("sockets"))
            .arg("--state-dir")
            .arg(at.join("state"))
            .env("PARTITA_GPU", binary(play, "partita-gpu")?)
            .env_remove("PARTITA_LOG")
            .env_remove("RUST_LOG")
            // No GPU of this machine decides anything.
            .env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(io("starting partitad"))?;
        let mut line = String::new();
        let output = child.stdout.take().expect("its stdout is a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        let daemon = Daemon { child, folder };
        match read {
            Ok(_) if line == "READY\n" => Ok(daemon),
            _ => Err(ToolError::NoDaemon { log: daemon.log_end() }),
        }
    }

    /// The folder of its sockets.
    pub fn sockets(&self) -> PathBuf {
        self.folder.path().join("sockets")
    }

    /// Its log.
    pub fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// What its API says now.
    ///
    /// # Errors
    /// Where it says something else, or nothing in time.
    pub fn status(&self) -> Result<StatusReport, ToolError> {
        let no_status = |reason: String| ToolError::NoStatus { reason };
        let answer = self.ask().map_err(|error| no_status(error.to_string()))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        if !head.lines().next().is_some_and(|line| line.contains(" 200 ")) {
            return Err(no_status(head.lines().next().unwrap_or("nothing").to_owned()));
        }
        serde_json::from_str(body).map_err(|error| no_status(error.to_string()))
    }

    fn ask(&self) -> std::io::Result<String> {
        let mut stream = UnixStream::connect(self.sockets().join("api.sock"))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /v1/status HTTP/1.0\r\nHost: partita\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn log_end(&self) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > PATIENCE {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn binary(play: &Play, name: &str) -> Result<PathBuf, ToolError> {
    let own =
        std::env::current_exe().map_err(|error| ToolError::io("finding this executable", error))?;
    let beside = own.parent().map(Path::to_path_buf).unwrap_or_default();
    let path = play.binaries.clone().unwrap_or(beside).join(name);
    if path.exists() { Ok(path) } else { Err(ToolError::NoBinary { path }) }
}

/// The most memory that a process has had, in MiB; 0 where the process has gone.
pub fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
