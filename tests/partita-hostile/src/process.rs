//! Processes of the tool itself: healthy programs, and clients that act.
//!
//! A process is this executable once more. It becomes its user before it does anything else, and
//! ends when its parent ends.

use crate::options::Process;
use crate::tool_error::ToolError;
use rustix::process::{Pid, Signal, Uid, kill_process, nice, set_parent_process_death_signal};
use rustix::thread::set_thread_res_uid;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Becomes what the parent has said. Called while the process has one thread.
///
/// # Errors
/// Where the system refuses.
pub fn become_what_was_said(process: &Process) -> Result<(), ToolError> {
    let system = |what| move |error: rustix::io::Errno| ToolError::io(what, error.into());
    if process.background {
        nice(19).map_err(system("lowering the priority"))?;
    }
    if let Some(user) = process.user {
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user).map_err(system("becoming another user"))?;
    }
    // After the user: a change of the user forgets the signal.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(system("ending with the parent"))
}

/// A process of the tool, killed when it is dropped.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    /// Starts this executable as `part`.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn start(part: &[&str], process: &Process) -> Result<Running, ToolError> {
        // This executable, even after its file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.args(part).arg("--sockets").arg(&process.sockets);
        command.args(["--seed", &process.seed.to_string()]);
        if let Some(user) = process.user {
            command.args(["--user", &user.to_string()]);
        }
        if process.background {
            command.arg("--background");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child =
            command.spawn().map_err(|error| ToolError::io("starting a process", error))?;
        let output = child.stdout.take().expect("its stdout is a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Running { child, lines })
    }

    /// Writes a line to its stdin. A process that has gone shows by its silence.
    pub fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    /// Its next line; `None` where it says nothing for that long, or has ended.
    pub fn hear(&self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // It may have ended a moment ago; nobody has waited for it, so its number is its own.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Kills it. Its last line, with what it printed before.
    pub fn kill(mut self) -> Option<String> {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        // The thread that reads ends with the pipe.
        self.lines.iter().last()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
