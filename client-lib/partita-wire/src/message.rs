//! Messages with descriptors over Unix sockets that keep messages apart (`SOCK_SEQPACKET`).
//!
//! Received descriptors are closed on every path that does not hand them out, and never survive an
//! `exec`. A message that was cut, or that carries another number of descriptors than expected, is
//! an error.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The most descriptors that a message can carry.
pub const MAX_FDS: usize = 8;

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The system refused. A send or receive timeout of the socket shows as `EAGAIN`.
    #[error("cannot {step} a message: {source}")]
    System {
        /// The attempted operation.
        step: &'static str,
        /// The system's reason.
        source: Errno,
    },
    /// The peer has closed the socket.
    #[error("the other side closed the connection")]
    Closed,
    /// The message is longer than the receiver's buffer.
    #[error("a message is longer than {limit} bytes")]
    Long {
        /// The buffer's size.
        limit: usize,
    },
    /// It has more or fewer descriptors than its receiver expects, or the system could not deliver
    /// all of them.
    #[error("a message carries {found} descriptors instead of {expected}")]
    Descriptors {
        /// Expected.
        expected: usize,
        /// Found; the system may have dropped further ones.
        found: usize,
    },
}

/// The user of the process that connected a socket, or that made it as one of a pair.
///
/// # Errors
/// The system's, for what is no Unix socket.
pub fn peer_user(socket: impl AsFd) -> Result<u32, Errno> {
    // rustix has no value for the process id 0, which the system tells of a process of a PID
    // namespace that this one does not see.
    match getsockopt(&socket, PeerCredentials) {
        Ok(peer) => Ok(peer.uid()),
        Err(error) => Err(Errno::from_raw_os_error(error as i32)),
    }
}

/// What arrived.
#[derive(Debug)]
pub struct Message {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The descriptors, where there are exactly `N`.
    ///
    /// # Errors
    /// Where there are more or fewer; they are closed then.
    pub fn take_fds<const N: usize>(&mut self) -> Result<[OwnedFd; N], MessageError> {
        let fds = std::mem::take(&mut self.fds);
        fds.try_into().map_err(|fds: Vec<OwnedFd>| MessageError::Descriptors {
            expected: N,
            found: fds.len(),
        })
    }
}

/// Sends a message with descriptors, which stay open here. Never raises `SIGPIPE`.
///
/// # Errors
/// Where the peer is gone, or the system refuses.
///
/// # Panics
/// Where there are more than [`MAX_FDS`] descriptors or no bytes, which is a fault of the caller.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), MessageError> {
    assert!(fds.len() <= MAX_FDS, "{} descriptors in one message", fds.len());
    assert!(!bytes.is_empty(), "an empty message looks like the end of the connection");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "the buffer was made for as many descriptors");
    }
    let sent = loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    match sent {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(MessageError::Closed),
        Err(source) => Err(MessageError::System { step: "send", source }),
    }
}

/// Receives one message of at most `limit` bytes. Waits as the socket's mode and timeouts say.
///
/// # Errors
/// Where the peer is gone, the message was cut, or the system refuses.
pub fn receive(socket: impl AsFd, limit: usize) -> Result<Message, MessageError> {
    let mut bytes = vec![0; limit];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut buffers, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Err(MessageError::Closed),
            Err(source) => return Err(MessageError::System { step: "receive", source }),
            Ok(received) => break received,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(MessageError::Descriptors { expected: MAX_FDS, found: fds.len() });
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(MessageError::Long { limit });
    }
    if received.bytes == 0 {
        return Err(MessageError::Closed);
    }
    bytes.truncate(received.bytes);
    Ok(Message { bytes, fds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn the_user_of_a_peer_is_known_in_every_pid_namespace() {
        const INSIDE: &str = "PARTITA_TEST_INSIDE";
        let own = Ok(rustix::process::geteuid().as_raw());
        if std::env::var_os(INSIDE).is_some() {
            assert_eq!(peer_user(std::io::stdin()), own);
            return;
        }
        let (a, b) = pair();
        assert_eq!(peer_user(&a), own);
        assert_eq!(peer_user(rustix::pipe::pipe().unwrap().0), Err(Errno::NOTSOCK));
        let apart = |program: &std::ffi::OsStr| {
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork"]).arg(program).stdout(Stdio::null());
            command
        };
        if !apart("true".as_ref()).status().is_ok_and(|status| status.success()) {
            let line = "SKIPPED: PID namespaces of the test need root and `unshare`\n";
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return;
        }
        let name = "the_user_of_a_peer_is_known_in_every_pid_namespace";
        let mut inside = apart(std::env::current_exe().unwrap().as_os_str());
        let status = inside.arg(name).env(INSIDE, "1").stdin(b).status().unwrap();
        assert!(status.success(), "{status}");
    }

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (a, b) = pair();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&a, b"hello", &[write.as_fd()]).unwrap();
        drop(write);
        let mut message = receive(&b, 100).unwrap();
        assert_eq!(message.bytes, b"hello");
        let [write] = message.take_fds().unwrap();
        let flags = rustix::io::fcntl_getfd(&write).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 1);
    }

    #[test]
    fn a_wrong_number_of_descriptors_is_an_error_and_closes_them() {
        let (a, b) = pair();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&a, b"x", &[write.as_fd(), write.as_fd()]).unwrap();
        drop(write);
        let error = receive(&b, 100).unwrap().take_fds::<1>().unwrap_err();
        assert!(matches!(error, MessageError::Descriptors { expected: 1, found: 2 }), "{error}");
        assert_eq!(rustix::io::read(&read, &mut [0; 4]).unwrap(), 0, "every write end is closed");
    }

    #[test]
    fn cut_messages_and_closed_sockets_are_errors() {
        let (a, b) = pair();
        send(&a, &[7; 50], &[]).unwrap();
        assert!(matches!(receive(&b, 49), Err(MessageError::Long { limit: 49 })));
        drop(a);
        assert!(matches!(receive(&b, 49), Err(MessageError::Closed)));
        assert!(matches!(send(&b, b"x", &[]), Err(MessageError::Closed)));
    }
}
