//! The keeper of a private daemon: starts `partitad` in a temporary folder, ends it when the
//! program has ended, and removes the folder. Then it may start the next one ([`super::spare`]).
//!
//! Invariants: the daemon does not outlive the keeper, however the keeper ends
//! (`--end-with-parent`). Neither outlives the program by more than [`STOP_PATIENCE`], except
//! a spare and its keeper; a pidfd reports the program's end. The keeper leads a session of its
//! own: Ctrl-C in the program's terminal reaches the program and not the daemon.

use super::is_set;
use super::locate::SELF;
use super::spare::{self, Place, Spare};
use crate::failure::{Failure, complain};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The hidden subcommand of the keeper.
pub const KEEPER_COMMAND: &str = "keep-private-daemon";

/// The longest time until the daemon is ready.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// The longest time until the daemon ends after SIGTERM.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// The longest time until the daemon's last output arrives.
const LOG_PATIENCE: Duration = Duration::from_secs(1);
/// Lines of the daemon's stderr that are kept for the error message of a failed start.
const TAIL_LINES: usize = 20;
/// The longest folder that leaves room for the socket's name in a `sockaddr_un` (unix(7): 108
/// bytes).
const LONGEST_FOLDER: usize = 80;

/// Internal: keep a private daemon while the process behind the pidfd on stdin lives.
#[derive(Args, Debug)]
pub struct KeeperArgs {
    #[arg(long)]
    partitad: PathBuf,
    #[arg(long = "device", required = true)]
    devices: Vec<String>,
    /// The session's leader, the key and the seconds of a spare.
    #[arg(long, num_args = 3)]
    spare: Vec<u64>,
    /// This is the keeper itself and not its launcher.
    #[arg(long)]
    detached: bool,
}

impl KeeperArgs {
    /// Launches the keeper, or acts as the keeper.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        if self.detached {
            self.keep();
        } else {
            self.launch()?;
        }
        Ok(Vec::new())
    }

    fn launch(&self) -> io::Result<()> {
        Command::new(SELF)
            .arg0("partita")
            .arg(KEEPER_COMMAND)
            .arg("--partitad")
            .arg(&self.partitad)
            .args(keeper_options(&self.devices, spare::place_of(&self.spare).as_ref()))
            .arg("--detached")
            .spawn()
            .map(drop)
    }

    fn keep(&self) {
        // This fails only for the leader of a process group, which is apart already.
        let _ = setsid();
        let stdin = io::stdin();
        let runner = stdin.as_fd();
        let started = Daemon::start(&self.partitad, &self.devices, runner);
        let mut daemon = match started {
            Ok(daemon) => daemon,
            Err(message) => return answer(b'-', message.as_bytes()),
        };
        daemon.log.pass_on();
        answer(b'+', daemon.folder.path().as_os_str().as_bytes());
        daemon.serve(runner);
        drop(daemon);
        if let Some(place) = spare::place_of(&self.spare) {
            while self.keep_spare(&place).is_some() {}
        }
    }

    /// Keeps a spare and serves the run that wants it; `None` where none did.
    fn keep_spare(&self, place: &Place) -> Option<()> {
        // Else this process would keep the pipes of the last run open.
        let null = File::options().read(true).write(true).open("/dev/null").ok()?;
        dup2_stdin(&null)
            .and_then(|()| dup2_stdout(&null))
            .and_then(|()| dup2_stderr(&null))
            .ok()?;
        let spare = Spare::open(place)?;
        let mut daemon = Daemon::start(&self.partitad, &self.devices, spare.leader()).ok()?;
        let pidfd = pidfd_open(Pid::from_child(&daemon.child), PidfdFlags::empty()).ok();
        let caller = pidfd.and_then(|pidfd| spare.wait(pidfd.as_fd(), daemon.folder.path()));
        let Some(caller) = caller.filter(|caller| dup2_stderr(&caller.stderr).is_ok()) else {
            drop(stop(&mut daemon.child));
            return None;
        };
        daemon.log.pass_on();
        daemon.serve(caller.runner.as_fd());
        Some(())
    }
}

/// Options of the keeper's command line.
pub(super) fn keeper_options(
    devices: &[String],
    place: Option<&Place>,
) -> impl Iterator<Item = String> {
    let place = place.map(|place| {
        let leader = place.leader.as_raw_nonzero().to_string();
        ["--spare".to_owned(), leader, place.key.to_string(), place.seconds.to_string()]
    });
    device_options(devices).map(str::to_owned).chain(place.into_iter().flatten())
}

fn device_options(devices: &[String]) -> impl Iterator<Item = &str> {
    devices.iter().flat_map(|device| ["--device", device])
}

/// Sends one message to the runner. The pidfd reports a runner that has gone.
fn answer(kind: u8, text: &[u8]) {
    let mut message = vec![kind];
    message.extend(text.iter().filter(|byte| **byte != 0));
    message.push(0);
    let mut stdout = io::stdout().lock();
    drop(stdout.write_all(&message).and_then(|()| stdout.flush()));
}

struct Daemon {
    child: Child,
    log: Log,
    folder: TempDir,
    /// Open, so that the daemon may write to its stdout.
    _stdout: std::process::ChildStdout,
}

impl Daemon {
    fn start(
        partitad: &Path,
        devices: &[String],
        runner: BorrowedFd<'_>,
    ) -> Result<Daemon, String> {
        let folder =
            temporary_folder().map_err(|error| format!("no folder for its sockets: {error}"))?;
        let mut command = Command::new(partitad);
        command
            .args(device_options(devices))
            .args(["--ready-fd", "1", "--end-with-parent", "--socket-dir"])
            .arg(folder.path())
            // The runner's supervisor expects no message from the daemon.
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !is_set("PARTITA_STATE_DIR")
            && !is_set("XDG_STATE_HOME")
            && let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty())
        {
            // The state of a private daemon is the user's own, for root, too.
            command.env("PARTITA_STATE_DIR", Path::new(&home).join(".local/state/partita"));
        }
        if !is_set("PARTITA_LOG") && !is_set("RUST_LOG") {
            command.env("PARTITA_LOG", "warn");
        }
        let mut child =
            command.spawn().map_err(|error| format!("{}: {error}", partitad.display()))?;
        let stderr = child.stderr.take().ok_or("its stderr is not a pipe")?;
        let mut stdout = child.stdout.take().ok_or("its stdout is not a pipe")?;
        let log = Log::follow(stderr);
        match wait_until_ready(&mut stdout, runner) {
            Ok(Readiness::Ready) => Ok(Daemon { child, log, folder, _stdout: stdout }),
            Ok(Readiness::Ended) => {
                let status = stop(&mut child).map_err(|error| error.to_string())?;
                Err(format!("partitad ended with {status}{}", log.tail()))
            }
            Ok(Readiness::RunnerGone) => {
                drop(stop(&mut child));
                Err("nobody waits for it any more".into())
            }
            Ok(Readiness::Late) => {
                drop(stop(&mut child));
                Err(format!(
                    "partitad was not ready within {} s{}",
                    START_PATIENCE.as_secs(),
                    log.tail()
                ))
            }
            Err(error) => {
                drop(stop(&mut child));
                Err(format!("cannot wait for partitad: {error}"))
            }
        }
    }

    /// Waits for the program or the daemon to end, and leaves nothing behind.
    fn serve(&mut self, runner: BorrowedFd<'_>) {
        let Ok(pidfd) = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) else {
            // A daemon that has no pidfd has ended: nothing is left to wait for.
            drop(stop(&mut self.child));
            return;
        };
        let daemon_ended = loop {
            match wait(&[runner, pidfd.as_fd()], None) {
                Ok(ready) => break !ready[0],
                Err(Errno::INTR) => {}
                Err(_) => break false,
            }
        };
        match stop(&mut self.child) {
            Ok(status) if daemon_ended => complain(&format!(
                "the private daemon ended with {status}; CUDA calls of the program fail from now on"
            )),
            _ => {}
        }
        self.log.drain();
    }
}

fn temporary_folder() -> io::Result<TempDir> {
    let parent = std::env::temp_dir();
    let parent =
        if parent.as_os_str().len() > LONGEST_FOLDER { Path::new("/tmp") } else { &parent };
    tempfile::Builder::new().prefix("partita-").tempdir_in(std::path::absolute(parent)?)
}

enum Readiness {
    Ready,
    Ended,
    RunnerGone,
    Late,
}

fn wait_until_ready(
    stdout: &mut std::process::ChildStdout,
    runner: BorrowedFd<'_>,
) -> io::Result<Readiness> {
    let deadline = Instant::now() + START_PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ready = match wait(&[runner, stdout.as_fd()], Some(left)) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if ready[0] {
            return Ok(Readiness::RunnerGone);
        }
        if !ready[1] {
            return Ok(Readiness::Late);
        }
        let mut bytes = [0; 64];
        let count = stdout.read(&mut bytes)?;
        if count == 0 {
            return Ok(Readiness::Ended);
        }
        if bytes[..count].contains(&b'\n') {
            return Ok(Readiness::Ready);
        }
    }
}

/// Waits until one of two descriptors is readable or at its end; returns the state of each.
fn wait(fds: &[BorrowedFd<'_>; 2], patience: Option<Duration>) -> Result<[bool; 2], Errno> {
    let mut polled = [
        PollFd::from_borrowed_fd(fds[0], PollFlags::IN),
        PollFd::from_borrowed_fd(fds[1], PollFlags::IN),
    ];
    let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
    poll(&mut polled, timeout.as_ref())?;
    Ok([!polled[0].revents().is_empty(), !polled[1].revents().is_empty()])
}

/// Ends the daemon: SIGTERM, a pause, SIGKILL.
fn stop(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    if child.try_wait()?.is_none() {
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    child.wait()
}

/// The daemon's stderr: kept while it starts, passed on afterwards.
struct Log {
    lines: Arc<Mutex<Lines>>,
    ended: Receiver<()>,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<Vec<u8>>,
    pass_on: bool,
}

impl Lines {
    fn add(&mut self, line: Vec<u8>) {
        if self.pass_on {
            drop(io::stderr().write_all(&line));
            return;
        }
        if self.kept.len() == TAIL_LINES {
            self.kept.pop_front();
        }
        self.kept.push_back(line);
    }
}

impl Log {
    fn follow(stderr: ChildStderr) -> Log {
        let lines = Arc::new(Mutex::new(Lines::default()));
        let (sender, ended) = channel();
        let writer = Arc::clone(&lines);
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            // An endless line is cut: it takes no more memory than a long line.
            while matches!((&mut reader).take(64 << 10).read_until(b'\n', &mut line), Ok(1..)) {
                let whole = std::mem::take(&mut line);
                writer.lock().unwrap_or_else(PoisonError::into_inner).add(whole);
            }
            drop(sender);
        });
        Log { lines, ended }
    }

    /// Sends the kept lines, and from now on every line, to this process's stderr.
    fn pass_on(&self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.pass_on = true;
        for line in std::mem::take(&mut lines.kept) {
            lines.add(line);
        }
    }

    /// The last lines, each indented.
    fn tail(&self) -> String {
        self.drain();
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let show = |line: &Vec<u8>| format!("\n  {}", String::from_utf8_lossy(line).trim_end());
        lines.kept.iter().map(show).collect()
    }

    /// Waits until all output has arrived.
    fn drain(&self) {
        let _ = self.ended.recv_timeout(LOG_PATIENCE);
    }
}
