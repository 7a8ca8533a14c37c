//! Telling whoever started the daemon how it is: systemd over its socket, others over a file
//! descriptor.
//!
//! systemd is told by sd_notify(3): the socket is the one that `NOTIFY_SOCKET` names. A message
//! that cannot be sent is logged and never ends the daemon.

use sd_notify::NotifyState;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// Signs of life that fit into the time after which systemd takes the daemon for hung.
const SIGNS: u32 = 3;

/// The receivers of messages about this daemon.
#[derive(Debug)]
pub struct Readiness {
    ready_fd: Option<u32>,
}

impl Readiness {
    /// systemd, where it listens, and the descriptor of `--ready-fd`.
    #[must_use]
    pub fn new(ready_fd: Option<u32>) -> Self {
        Readiness { ready_fd }
    }

    /// Clients can connect.
    pub fn ready(&self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
        if let Some(fd) = self.ready_fd
            && let Err(error) = write_line(fd)
        {
            tracing::warn!(fd, %error, "cannot tell readiness on the file descriptor of \
                --ready-fd");
        }
    }

    /// A line for `systemctl status`.
    pub fn status(&self, status: &str) {
        notify(&[NotifyState::Status(status)]);
    }

    /// Gives systemd the signs of life that it wants, from the thread that does everything else.
    pub async fn keep_alive(&self) {
        let Some(limit) = sd_notify::watchdog_enabled() else {
            return std::future::pending().await;
        };
        loop {
            notify(&[NotifyState::Watchdog]);
            tokio::time::sleep(limit / SIGNS).await;
        }
    }

    /// The daemon is about to end.
    pub fn stopping(&self) {
        notify(&[NotifyState::Stopping]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell systemd over NOTIFY_SOCKET");
    }
}

fn write_line(fd: u32) -> io::Result<()> {
    // The name in /proc serves because safe code may not take over a bare number.
    OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"))?.write_all(b"READY\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_nobody_takes_is_no_failure() {
        Readiness::new(None).ready("");
        Readiness::new(Some(u32::MAX)).ready("");
    }
}
