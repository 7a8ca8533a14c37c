//! A daemon of the test's own, in a temporary directory, with its log kept.

use crate::binaries;
use partita_model::{ApplicationId, SmSet, StatusReport, TraceReport};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a start, an end or an answer may take on an overloaded host.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The log is complete where it does not grow for so long.
const LOG_PAUSE: Duration = Duration::from_millis(200);

/// A running `partitad`; dropping it ends it.
pub struct Daemon {
    child: Child,
    command: Command,
    folder: tempfile::TempDir,
}

impl Daemon {
    /// Starts `partitad --device emu[:spec]`, which shares SMs out evenly, and waits until it
    /// answers.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn start(device: &str) -> Daemon {
        Daemon::with_policy(device, "even")
    }

    /// The same with another policy.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn with_policy(device: &str, policy: &str) -> Daemon {
        Daemon::with_config(device, &format!("[policy]\npartitioner = \"{policy}\"\n"))
    }

    /// The same with a configuration file of this text.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn with_config(device: &str, text: &str) -> Daemon {
        Daemon::with_devices(&[device], text)
    }

    /// The same with several GPUs.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn with_devices(devices: &[&str], text: &str) -> Daemon {
        Daemon::with_environment(devices, text, &[])
    }

    /// The same on one GPU, for programs of every user.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn for_every_user(device: &str, text: &str) -> Daemon {
        let daemon = Daemon::with_options(&[device], text, &[], &["--socket-mode", "0666"]);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(daemon.folder.path(), mode).expect("the folder can be opened");
        daemon
    }

    /// The same for members of a group: the sockets belong to this user and this group, as those
    /// that systemd makes belong to Partita's own. Only root can make it.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn for_group(device: &str, text: &str, user: u32, group: u32) -> Daemon {
        let daemon = Daemon::with_options(&[device], text, &[], &["--socket-mode", "0660"]);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(daemon.folder.path(), mode).expect("the folder can be opened");
        for socket in ["partitad.sock", "api.sock"] {
            let socket = daemon.socket_dir().join(socket);
            std::os::unix::fs::chown(socket, Some(user), Some(group)).expect("root may");
        }
        daemon
    }

    /// Kills `partitad`, starts it again and waits until it answers. Its data plane goes on.
    ///
    /// # Panics
    /// Where it does not come up.
    pub fn kill_and_restart(&mut self) {
        self.child.kill().expect("partitad can be killed");
        self.child.wait().expect("partitad can be waited for");
        self.child = self.command.spawn().expect("partitad can be started");
        self.wait_until_it_answers();
    }

    /// The real backend on the emulated driver, whose switches are a list such as `timing=off`.
    /// `PARTITA_EMULATED_DRIVER_DEVICE` sets another device than `cuda`, such as
    /// `cuda,guards=strict`.
    ///
    /// # Panics
    /// Where it does not come up.
    #[must_use]
    pub fn on_emulated_driver(switches: &str, text: &str) -> Daemon {
        let device = std::env::var("PARTITA_EMULATED_DRIVER_DEVICE");
        let device = device.as_deref().unwrap_or("cuda");
        Daemon::with_emulated_driver(&[device], switches, text)
    }

    /// The same for these of the driver's GPUs.
    ///
    /// # Panics
    /// As [`Daemon::on_emulated_driver`].
    #[must_use]
    pub fn with_emulated_driver(devices: &[&str], switches: &str, text: &str) -> Daemon {
        let library = binaries::binary("libpartita_emulated_driver.so");
        let environment = [
            ("PARTITA_LIBCUDA", library.as_os_str()),
            ("PARTITA_LIBNVIDIA_ML", library.as_os_str()),
            ("PARTITA_EMULATED_DRIVER", OsStr::new(switches)),
        ];
        Daemon::with_environment(devices, text, &environment)
    }

    fn with_environment(devices: &[&str], text: &str, environment: &[(&str, &OsStr)]) -> Daemon {
        Daemon::with_options(devices, text, environment, &[])
    }

    fn with_options(
        devices: &[&str],
        text: &str,
        environment: &[(&str, &OsStr)],
        options: &[&str],
    ) -> Daemon {
        let folder = tempfile::tempdir().expect("a temporary directory can be created");
        let config = folder.path().join("partitad.toml");
        std::fs::write(&config, text).expect("the configuration can be written");
        let log = File::create(folder.path().join("log")).expect("the log can be created");
        let mut command = Command::new(binaries::binary("partitad"));
        command
            .args(devices.iter().flat_map(|device| ["--device", device]))
            .args(options)
            .arg("--config")
            .arg(config)
            .arg("--socket-dir")
            .arg(folder.path().join("sockets"))
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().expect("partitad can be started");
        let mut daemon = Daemon { child, command, folder };
        daemon.wait_until_it_answers();
        daemon
    }

    fn wait_until_it_answers(&mut self) {
        let start = Instant::now();
        while self.get("/v1/status").is_none() {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("partitad ended with {status}:\n{}", self.log());
            }
            assert!(start.elapsed() < PATIENCE, "partitad does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The folder with its sockets.
    #[must_use]
    pub fn socket_dir(&self) -> PathBuf {
        self.folder.path().join("sockets")
    }

    /// What it has logged so far.
    ///
    /// # Panics
    /// Where the log cannot be read.
    #[must_use]
    pub fn log(&self) -> String {
        let path = self.folder.path().join("log");
        let read = || std::fs::read(&path).expect("the log can be read");
        // A thread writes the lines: they come a moment after what they tell of.
        let mut bytes = read();
        loop {
            std::thread::sleep(LOG_PAUSE);
            let before = std::mem::replace(&mut bytes, read());
            if before == bytes {
                return String::from_utf8_lossy(&bytes).into_owned();
            }
        }
    }

    /// `partita run PROGRAM` on this daemon.
    #[must_use]
    pub fn run(&self, program: &Path) -> Command {
        let mut command = self.partita(&["run", "--"]);
        command.arg(program);
        command
    }

    /// `partita ARGS…` on this daemon.
    #[must_use]
    pub fn partita<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(binaries::binary("partita"));
        command.args(arguments).env("PARTITA_SOCKET_DIR", self.socket_dir()).stdin(Stdio::null());
        command
    }

    /// `GET /v1/status`.
    ///
    /// # Panics
    /// Where it is not answered.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        let body = self.get("/v1/status").expect("the status is answered");
        serde_json::from_value(body).expect("the status is a StatusReport")
    }

    /// `GET /v1/trace`.
    ///
    /// # Panics
    /// Where it is not answered.
    #[must_use]
    pub fn trace(&self) -> TraceReport {
        let body = self.get("/v1/trace").expect("the trace is answered");
        serde_json::from_value(body).expect("the trace is a TraceReport")
    }

    /// `PUT /v1/plan`: gives applications these SMs, as `partita resize` does. Whether the daemon
    /// took the plan: it refuses one for an application that has ended.
    ///
    /// # Panics
    /// Where it is not answered.
    pub fn resize(&self, plan: &[(ApplicationId, SmSet)]) -> bool {
        let parts: Vec<Value> = plan
            .iter()
            .map(|(application, sms)| json!({"application": application, "sms": sms}))
            .collect();
        let body = json!({ "partitions": parts }).to_string();
        let headers = format!("Content-Type: application/json\r\nContent-Length: {}", body.len());
        let answer = self.exchange("PUT /v1/plan", &headers, &body);
        let answer = answer.expect("a plan is answered");
        answer.lines().next().is_some_and(|status| status.contains(" 20"))
    }

    /// Looks at the status until `enough` is true of it.
    ///
    /// # Panics
    /// Where that takes longer than [`PATIENCE`].
    pub fn wait_for(&self, what: &str, enough: impl Fn(&StatusReport) -> bool) -> StatusReport {
        let start = Instant::now();
        loop {
            let status = self.status();
            if enough(&status) {
                return status;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "waited in vain for {what}: {status:#?}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The ids of all reservations.
    ///
    /// # Panics
    /// Where they are not answered.
    #[must_use]
    pub fn reservations(&self) -> Vec<String> {
        let body = self.get("/v1/reservations").expect("reservations are answered");
        let all = body.as_array().cloned().unwrap_or_default();
        all.iter().filter_map(|one| one["id"].as_str().map(str::to_owned)).collect()
    }

    /// Sends one GET to the API socket; `None` for any answer but 200.
    fn get(&self, path: &str) -> Option<Value> {
        let answer = self.exchange(&format!("GET {path}"), "Cache-Control: no-cache", "")?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.lines().next()?.contains(" 200 ").then(|| serde_json::from_str(body).ok())?
    }

    /// Sends one request to the API socket. The answer's head and body; `None` where none comes.
    fn exchange(&self, question: &str, headers: &str, body: &str) -> Option<String> {
        let mut stream = UnixStream::connect(self.socket_dir().join("api.sock")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "{question} HTTP/1.0\r\nHost: partita\r\n{headers}\r\n\r\n{body}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                drop(self.child.kill());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if std::thread::panicking() {
            eprintln!("--- partitad's log ---\n{}", self.log());
        }
    }
}
