//! What systemd hears of this process, where it is the one that started it: that it is ready, what
//! it does, and that the owner thread still turns.
//!
//! A message that cannot be sent is logged and never ends the process.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// Signs of life that fit into the time after which systemd takes the process for hung.
const SIGNS: u32 = 3;

/// The line to systemd.
#[derive(Debug)]
pub struct Systemd {
    /// How often systemd wants a sign of life.
    every: Option<Duration>,
    last: Instant,
}

impl Systemd {
    /// Reads what systemd has written into the environment.
    #[must_use]
    pub fn from_environment() -> Self {
        let every = sd_notify::watchdog_enabled().map(|limit| limit / SIGNS);
        Systemd { every, last: Instant::now() }
    }

    /// Tells that calls are answered, or what the process does now.
    pub fn tell(&self, status: &str) {
        notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Gives the sign of life that is due.
    pub fn turn(&mut self) {
        let Some(every) = self.every else { return };
        let now = Instant::now();
        if now.duration_since(self.last) >= every {
            self.last = now;
            notify(&[NotifyState::Watchdog]);
        }
    }

    /// The longest sleep between two turns.
    #[must_use]
    pub fn longest_sleep(&self) -> Option<Duration> {
        self.every
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot tell systemd over NOTIFY_SOCKET");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_systemd_there_is_nothing_to_wake_for() {
        let mut systemd = Systemd { every: None, last: Instant::now() };
        systemd.tell("waiting");
        systemd.turn();
        assert_eq!(systemd.longest_sleep(), None);
    }
}
