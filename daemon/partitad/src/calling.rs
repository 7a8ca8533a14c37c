//! Calling a `partita-gpu` on the socket on which it listens, and the process behind that socket.
//!
//! The process may be a child of this `partitad`, an orphan of one before, or systemd's.
//!
//! Invariant: a [`Process`] names its process by a pidfd, so that no signal hits a stranger that
//! got the same number.

use crate::link::{GreetError, Link};
use partita_wire::call::{Call, CallAnswer, MAX_CALL_BYTES, Want};
use partita_wire::message::{self, MessageError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::process::Child;

/// The pause between two looks at a process that ends.
const LOOK: Duration = Duration::from_millis(10);

/// Why a call brought no line.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens there.
    #[error("no partita-gpu listens on {0}")]
    Nobody(String),
    /// It hung up before it answered: it is ending.
    #[error("partita-gpu ended before it answered")]
    Ended,
    /// It serves another version or device until its sessions end.
    #[error("{0}")]
    Later(String),
    /// It cannot serve the device.
    #[error("{0}")]
    Never(String),
    /// The answer does not parse, or answers something else.
    #[error("partita-gpu does not answer as this version expects: {0}")]
    Unexpected(String),
    /// The process connected the line, but did not come up.
    #[error(transparent)]
    Greet(#[from] GreetError),
    /// The system's word.
    #[error("partita-gpu cannot be called: {0}")]
    Io(#[from] io::Error),
}

/// Calls for a line to the data plane of `device`, and waits until the device is ready.
///
/// # Errors
/// [`CallError`].
pub async fn call(socket: &Path, device: &str) -> Result<Arc<Link>, CallError> {
    let pair = |kind| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socketpair(AddressFamily::UNIX, kind, flags, None).map_err(io::Error::from)
    };
    let (control, gpu_control) = pair(SocketType::STREAM)?;
    let (sessions, gpu_sessions) = pair(SocketType::SEQPACKET)?;
    let want = Want::Serve { device: device.to_owned() };
    let answer = exchange(socket, want, &[gpu_control.as_fd(), gpu_sessions.as_fd()]).await?;
    // This side must not keep the other one's ends open.
    drop((gpu_control, gpu_sessions));
    match answer {
        CallAnswer::Connected => {
            let control = UnixStream::from_std(control.into())?;
            Ok(Link::greet(control, sessions).await?)
        }
        CallAnswer::Later { text } => Err(CallError::Later(text)),
        CallAnswer::Never { text } => Err(CallError::Never(text)),
        other => Err(CallError::Unexpected(format!("{other:?}"))),
    }
}

/// How many GPUs the driver shows to the process behind this socket.
///
/// # Errors
/// [`CallError`].
pub async fn count_gpus(socket: &Path) -> Result<usize, CallError> {
    match exchange(socket, Want::Count, &[]).await? {
        CallAnswer::Count(count) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        other => Err(CallError::Unexpected(format!("{other:?}"))),
    }
}

async fn exchange(
    socket: &Path,
    want: Want,
    fds: &[BorrowedFd<'_>],
) -> Result<CallAnswer, CallError> {
    let address = SocketAddrUnix::new(socket).map_err(io::Error::from)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(io::Error::from)?;
    match connect(&connection, &address) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::CONNREFUSED) => {
            return Err(CallError::Nobody(socket.display().to_string()));
        }
        Err(error) => return Err(io::Error::from(error).into()),
    }
    let call = Call::new(want).encode().map_err(io::Error::from)?;
    // The call goes out with the connection: partita-gpu waits for it a short time only.
    message::send(&connection, &call, fds).map_err(from_message)?;
    let connection = UnixStream::from_std(connection.into())?;
    let received = connection
        .async_io(Interest::READABLE, || match message::receive(&connection, MAX_CALL_BYTES) {
            Err(MessageError::System { source: Errno::AGAIN, .. }) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            other => Ok(other),
        })
        .await?;
    let answer = received.map_err(from_message)?;
    CallAnswer::decode(&answer.bytes).map_err(|error| CallError::Unexpected(error.to_string()))
}

fn from_message(error: MessageError) -> CallError {
    match error {
        MessageError::Closed => CallError::Ended,
        other => CallError::Io(io::Error::other(other)),
    }
}

/// The process of a data plane.
#[derive(Debug)]
pub enum Process {
    /// This `partitad` started it.
    Child(Child),
    /// It was there before.
    Found(OwnedFd),
}

impl Process {
    /// The process of this number, which was there before.
    ///
    /// # Errors
    /// The system's, for example because it has ended.
    pub fn found(pid: u32) -> io::Result<Process> {
        let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Process::Found(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Writes down in `file` which process serves there, for a `partitad` that comes later.
    ///
    /// # Errors
    /// The system's.
    pub fn note(pid: u32, file: &Path) -> io::Result<()> {
        let begun = begin_of(pid).ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(file, format!("{pid} {begun}\n"))
    }

    /// The process that was written down, where it still lives.
    #[must_use]
    pub fn noted(file: &Path) -> Option<Process> {
        let text = std::fs::read_to_string(file).ok()?;
        let (pid, begun) = text.trim_end().split_once(' ')?;
        let pid = pid.parse().ok()?;
        let process = Process::found(pid).ok()?;
        // Now that the process cannot be taken for another: is it the one that was meant?
        (begin_of(pid)?.to_string() == begun).then_some(process)
    }

    /// Waits for its end, and says how it ended where that can be known. Call it when the end is
    /// near: it looks again and again.
    pub async fn ended(&mut self) -> String {
        match self {
            Process::Child(child) => {
                let how = child.wait().await;
                how.map_or_else(|error| error.to_string(), |how| how.to_string())
            }
            Process::Found(pidfd) => {
                wait_for_end(pidfd).await;
                "its status went to another process".into()
            }
        }
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// The system's.
    pub async fn kill(&mut self) -> io::Result<()> {
        match self {
            Process::Child(child) => child.kill().await,
            Process::Found(pidfd) => {
                match pidfd_send_signal(&*pidfd, Signal::KILL) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(error.into()),
                }
                wait_for_end(pidfd).await;
                Ok(())
            }
        }
    }
}

/// When a process began, in clock ticks since the machine's start (proc(5), `/proc/PID/stat`, field
/// 22). With its number it names a process for as long as the machine runs.
fn begin_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name, which may have spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// A pidfd is readable once its process has ended.
async fn wait_for_end(pidfd: &OwnedFd) {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    while let Ok(0) = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)) {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_is_told_apart_from_trouble() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("0.sock");
        assert!(matches!(call(&missing, "emu").await, Err(CallError::Nobody(_))));
        let long = folder.path().join("x".repeat(200));
        assert!(matches!(count_gpus(&long).await, Err(CallError::Io(_))));
    }

    #[tokio::test]
    async fn a_process_that_was_written_down_is_told_from_its_successor() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("0.process");
        assert!(Process::noted(&file).is_none());
        let mut child = tokio::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id().unwrap();
        Process::note(pid, &file).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        // The number of another process, which began at another time.
        std::fs::write(&file, format!("{pid} 1\n")).unwrap();
        assert!(Process::noted(&file).is_none());
        std::fs::write(&file, text).unwrap();
        Process::noted(&file).unwrap().kill().await.unwrap();
        assert!(!child.wait().await.unwrap().success());
        assert!(Process::noted(&file).is_none());
    }

    #[tokio::test]
    async fn a_process_that_was_found_can_be_killed() {
        let mut child = tokio::process::Command::new("sleep").arg("600").spawn().unwrap();
        let mut found = Process::found(child.id().unwrap()).unwrap();
        found.kill().await.unwrap();
        assert!(!child.wait().await.unwrap().success());
        assert!(!found.ended().await.is_empty());
    }
}
