//! Telling whoever started the daemon how it is: systemd over its socket, others over a file
//! descriptor.
//!
//! The protocol is that of sd_notify(3): datagrams of `KEY=VALUE` lines to the socket that
//! `NOTIFY_SOCKET` names, where `@` at the start stands for the abstract namespace. Nothing here
//! can fail the daemon: who does not listen is not told.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Whom to tell.
#[derive(Debug)]
pub struct Readiness {
    socket: Option<SocketAddr>,
    ready_fd: Option<u32>,
}

impl Readiness {
    /// Whom the environment's `NOTIFY_SOCKET` and the command line's `--ready-fd` name.
    #[must_use]
    pub fn new(notify_socket: Option<&OsStr>, ready_fd: Option<u32>) -> Self {
        let socket = notify_socket.filter(|name| !name.is_empty()).and_then(|name| {
            address(name)
                .inspect_err(|error| tracing::warn!(%error, "NOTIFY_SOCKET cannot be used"))
                .ok()
        });
        Readiness { socket, ready_fd }
    }

    /// Clients can connect.
    pub fn ready(&self, status: &str) {
        self.notify(&format!("READY=1\nSTATUS={status}\n"));
        if let Some(fd) = self.ready_fd
            && let Err(error) = write_line(fd)
        {
            tracing::warn!(fd, %error, "cannot tell readiness on the file descriptor of \
                --ready-fd");
        }
    }

    /// A line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.notify(&format!("STATUS={status}\n"));
    }

    /// The daemon is about to end.
    pub fn stopping(&self) {
        self.notify("STOPPING=1\n");
    }

    fn notify(&self, message: &str) {
        let Some(address) = &self.socket else { return };
        let sent = UnixDatagram::unbound()
            .and_then(|socket| socket.send_to_addr(message.as_bytes(), address));
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot tell systemd");
        }
    }
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

fn write_line(fd: u32) -> io::Result<()> {
    // By its name in /proc, because to take over a bare number is beyond what safe code may
    // promise.
    OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"))?.write_all(b"READY\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let readiness = Readiness::new(Some(path.as_os_str()), None);
        let mut buffer = [0; 64];
        let mut check = |expected: &str| {
            let bytes = socket.recv(&mut buffer).unwrap();
            assert_eq!(std::str::from_utf8(&buffer[..bytes]).unwrap(), expected);
        };
        readiness.ready("serving");
        check("READY=1\nSTATUS=serving\n");
        readiness.status("restarting");
        check("STATUS=restarting\n");
        readiness.stopping();
        check("STOPPING=1\n");
    }

    #[test]
    fn nobody_listening_is_no_failure() {
        Readiness::new(None, None).ready("");
        Readiness::new(Some(OsStr::new("")), Some(u32::MAX)).ready("");
        Readiness::new(Some(OsStr::new("/nowhere/at/all")), None).ready("");
    }
}
