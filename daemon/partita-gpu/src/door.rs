//! The socket on which `partita-gpu` listens for `partitad`.
//!
//! `partita-gpu` outlives its `partitad`: a `partitad` that was restarted calls again. Only the
//! process's own user and root are answered.
//!
//! Invariant: one call holds up the owner thread for at most [`CALL_TIMEOUT`]; `partitad` sends its
//! call with the connection.

use partita_wire::call::{Call, CallAnswer, CallMismatch, MAX_CALL_BYTES};
use partita_wire::message::{self, MessageError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_type};
use rustix::net::{SocketAddrUnix, SocketFlags, SocketType, accept_with, getsockname};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// The longest time from a connection to its call.
const CALL_TIMEOUT: Duration = Duration::from_millis(100);

/// The listening socket.
pub struct Door {
    listener: OwnedFd,
}

/// A `partitad` that has called and waits for its answer.
pub struct Caller {
    socket: OwnedFd,
    /// Its call, or why there is none that this version understands.
    pub call: Result<Call, CallMismatch>,
    line: Option<[OwnedFd; 2]>,
}

impl Door {
    /// Listens on this socket.
    ///
    /// # Errors
    /// Where it is no `SEQPACKET` socket.
    pub fn new(listener: OwnedFd) -> io::Result<Door> {
        if socket_type(&listener)? != SocketType::SEQPACKET {
            return Err(Errno::PROTOTYPE.into());
        }
        rustix::io::ioctl_fionbio(&listener, true)?;
        Ok(Door { listener })
    }

    /// The number of the GPU, by the name of the socket: `NUMBER.sock`.
    pub fn gpu(&self) -> Option<u16> {
        let name = SocketAddrUnix::try_from(getsockname(&self.listener).ok()?).ok()?;
        let path = Path::new(OsStr::from_bytes(name.path_bytes()?));
        path.file_name()?.to_str()?.strip_suffix(".sock")?.parse().ok()
    }

    /// Readable while somebody calls.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Waits up to `patience` for somebody to call; false where nobody did.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self, patience: Duration) -> io::Result<bool> {
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&patience)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The next caller, if there is one. A stranger, or a connection without a call, is none.
    pub fn next_caller(&self) -> Option<Caller> {
        match self.receive() {
            Ok(caller) => Some(caller),
            Err(MessageError::System { source: Errno::AGAIN, .. } | MessageError::Closed) => None,
            Err(error) => {
                tracing::warn!(%error, "a call on the control socket failed");
                None
            }
        }
    }

    fn receive(&self) -> Result<Caller, MessageError> {
        let system = |step| move |source| MessageError::System { step, source };
        let socket = accept_with(&self.listener, SocketFlags::CLOEXEC).map_err(system("accept"))?;
        let peer = message::peer_user(&socket).map_err(system("tell the peer of"))?;
        if peer != 0 && peer != rustix::process::geteuid().as_raw() {
            return Err(MessageError::System { step: "accept a stranger on", source: Errno::PERM });
        }
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(CALL_TIMEOUT)).map_err(system("bound"))?;
        }
        let mut packet = message::receive(&socket, MAX_CALL_BYTES)?;
        let call = Call::decode(&packet.bytes);
        Ok(Caller { socket, call, line: packet.take_fds().ok() })
    }
}

impl Caller {
    /// Answers the call.
    pub fn answer(&self, answer: &CallAnswer) {
        let sent = answer.encode().map_err(|error| error.to_string()).and_then(|bytes| {
            message::send(&self.socket, &bytes, &[]).map_err(|error| error.to_string())
        });
        if let Err(error) = sent {
            tracing::warn!(error, "a call was not answered");
        }
    }

    /// The line that the call brought: control and sessions.
    pub fn take_line(&mut self) -> Option<[OwnedFd; 2]> {
        self.line.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_wire::call::Want;
    use rustix::net::{AddressFamily, bind, connect, listen, socket_with};

    fn door(folder: &tempfile::TempDir) -> (Door, SocketAddrUnix) {
        let address = SocketAddrUnix::new(folder.path().join("0.sock")).unwrap();
        let socket = seqpacket();
        bind(&socket, &address).unwrap();
        listen(&socket, 4).unwrap();
        (Door::new(socket).unwrap(), address)
    }

    fn seqpacket() -> OwnedFd {
        let kind = SocketType::SEQPACKET;
        socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_call_is_answered_on_its_connection() {
        let folder = tempfile::tempdir().unwrap();
        let (door, address) = door(&folder);
        assert_eq!(door.gpu(), Some(0));
        assert!(!door.wait(Duration::ZERO).unwrap());
        assert!(door.next_caller().is_none());
        let caller = seqpacket();
        connect(&caller, &address).unwrap();
        let call = Call::new(Want::Count);
        message::send(&caller, &call.encode().unwrap(), &[]).unwrap();
        assert!(door.wait(Duration::from_secs(10)).unwrap());
        let mut found = door.next_caller().unwrap();
        assert_eq!(found.call.as_ref().unwrap(), &call);
        assert!(found.take_line().is_none());
        found.answer(&CallAnswer::Count(2));
        let answer = message::receive(&caller, MAX_CALL_BYTES).unwrap();
        assert_eq!(CallAnswer::decode(&answer.bytes).unwrap(), CallAnswer::Count(2));
    }

    #[test]
    fn a_silent_connection_holds_nothing_up() {
        let folder = tempfile::tempdir().unwrap();
        let (door, address) = door(&folder);
        let silent = seqpacket();
        connect(&silent, &address).unwrap();
        let start = std::time::Instant::now();
        assert!(door.next_caller().is_none());
        assert!(start.elapsed() < Duration::from_secs(5));
        assert!(Door::new(std::fs::File::open("/dev/null").unwrap().into()).is_err());
    }
}
