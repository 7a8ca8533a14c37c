//! The line to `partitad`: it ends with a `partitad` that crashes or is upgraded, and the next one
//! calls again. Sessions go on meanwhile.
//!
//! Invariant: at most one line is open. A second call is refused while the other end of the line
//! lives.

use super::{CONTROL, NEW_SESSIONS, Shell, ShellError, system, watch};
use crate::control::{Control, ControlError};
use crate::door::Caller;
use partita_model::SessionId;
use partita_wire::call::{CallAnswer, Want};
use partita_wire::supervise::{FromGpu, Ready};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long the process stays without a `partitad` and without a session.
const IDLE_GRACE: Duration = Duration::from_secs(10);

/// The longest sleep while the process may have to end.
const LOOK_AROUND: Duration = Duration::from_millis(200);

/// How long sessions go on without a `partitad`; `None` is as long as they last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grace(pub Option<Duration>);

/// The two sockets of a `partitad`.
pub(super) struct Line {
    pub(super) control: Control,
    pub(super) sessions: OwnedFd,
}

/// When the process ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    grace: Grace,
    /// Since when there is no `partitad`.
    alone_since: Option<Instant>,
    /// Another version or device has to follow when the sessions have ended.
    draining: bool,
    /// `partitad` has said so.
    ordered: bool,
}

impl Ending {
    pub(super) fn new(grace: Grace) -> Self {
        Ending { grace, alone_since: None, draining: false, ordered: false }
    }

    pub(super) fn order(&mut self) {
        self.ordered = true;
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether the process ends now.
    fn due(&self, sessions: usize, now: Instant) -> bool {
        let alone = self.alone_since.map(|since| now.duration_since(since));
        let outstayed = |limit: Duration| alone.is_some_and(|alone| alone >= limit);
        match sessions {
            0 => self.ordered || self.draining || outstayed(IDLE_GRACE),
            _ => self.ordered || self.grace.0.is_some_and(outstayed),
        }
    }

    /// How long the owner may sleep at most.
    fn longest_sleep(&self) -> Option<Duration> {
        (self.alone_since.is_some() || self.draining).then_some(LOOK_AROUND)
    }
}

impl Shell {
    /// Whether the process ends now: at the word of `partitad`, or where nobody needs it any more.
    pub(super) fn ends(&self) -> bool {
        // Only a process that may end looks at the clock.
        self.ending.ordered
            || (self.ending.longest_sleep().is_some()
                && self.ending.due(self.seats.len(), Instant::now()))
    }

    /// The longest sleep of the owner.
    pub(super) fn longest_sleep(&self) -> Option<Duration> {
        [self.ending.longest_sleep(), self.systemd.longest_sleep()].into_iter().flatten().min()
    }

    /// Answers those who call.
    pub(super) fn answer_callers(&mut self) -> Result<(), ShellError> {
        while let Some(caller) = self.door.next_caller() {
            self.answer_call(caller)?;
        }
        Ok(())
    }

    fn answer_call(&mut self, mut caller: Caller) -> Result<(), ShellError> {
        let device = match &caller.call {
            Ok(call) => match &call.want {
                Want::Serve { device } => Ok(device.clone()),
                Want::Count => {
                    caller.answer(&CallAnswer::Count(crate::device::count_gpus()));
                    return Ok(());
                }
            },
            Err(mismatch) => Err(mismatch.to_string()),
        };
        let mismatch = match device {
            Ok(device) if device == self.text => None,
            Ok(device) => Some(format!("it serves `{}`, and not `{device}`", self.text)),
            Err(mismatch) => Some(mismatch),
        };
        if let Some(reason) = mismatch {
            self.ending.drain();
            let text = format!(
                "{reason}; partita-gpu (process {}, version {}) ends when its {} programs have \
                 ended, or when it is killed",
                std::process::id(),
                env!("CARGO_PKG_VERSION"),
                self.seats.len()
            );
            tracing::warn!("{text}");
            caller.answer(&CallAnswer::Later { text });
            return Ok(());
        }
        if self.line.as_ref().is_some_and(|line| lives(line.control.socket())) {
            let text = "another partitad is connected to partita-gpu: end it first".into();
            caller.answer(&CallAnswer::Later { text });
            return Ok(());
        }
        if let Some([control, sessions]) = caller.take_line() {
            caller.answer(&CallAnswer::Connected);
            self.lose_line(&ControlError::Closed);
            self.connect(control, sessions)?;
        }
        Ok(())
    }

    /// Opens a line, and says that sessions may come.
    pub(super) fn connect(
        &mut self,
        control: OwnedFd,
        sessions: OwnedFd,
    ) -> Result<(), ShellError> {
        rustix::io::ioctl_fionbio(&sessions, true)
            .map_err(system("cannot use the sessions socket"))?;
        let control = Control::new(control).map_err(system("cannot start the answering thread"))?;
        for (fd, token) in [(control.socket(), CONTROL), (sessions.as_fd(), NEW_SESSIONS)] {
            watch(&self.epoll, fd, token).map_err(system("cannot watch a socket"))?;
        }
        self.line = Some(Line { control, sessions });
        self.announce_after = None;
        self.ending.alone_since = None;
        let ready = Ready {
            facts: self.device.facts().clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            next_session: self.next_session,
            config: self.config.clone(),
        };
        self.tell(FromGpu::Ready(Box::new(ready)));
        Ok(())
    }

    /// Tells `partitad` something, where there is one.
    pub(super) fn tell(&mut self, message: FromGpu) {
        if let Some(Err(error)) = self.line.as_ref().map(|line| line.control.send(message)) {
            self.lose_line(&error);
        }
    }

    /// Goes on without `partitad`. Clients that it had handed over already are served.
    pub(super) fn lose_line(&mut self, reason: &ControlError) {
        let Some(line) = self.line.take() else { return };
        for fd in [line.control.socket(), line.sessions.as_fd()] {
            if let Err(error) = epoll::delete(&self.epoll, fd) {
                tracing::debug!(%error, "a socket of the line was not watched");
            }
        }
        self.ending.alone_since = Some(Instant::now());
        // The next partitad counts its questions anew: an answer would be taken for another's.
        self.deferred.clear();
        while let Ok(packet) = self.next_hand_over(&line.sessions) {
            self.receive_session(packet);
        }
        tracing::warn!(
            sessions = self.seats.len(),
            "{reason}; sessions go on, and the next partitad is awaited"
        );
    }

    /// Notes that a session was here.
    pub(super) fn count_session(&mut self, session: SessionId) {
        self.next_session = self.next_session.max(SessionId(session.0.saturating_add(1)));
    }
}

/// Whether the other end of a stream socket is open.
fn lives(socket: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut byte = [0];
    match recv(socket, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => bytes > 0,
        Err(error) => error == Errno::AGAIN || error == Errno::INTR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_ends_when_nobody_needs_it() {
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds));
        let bounded = Ending::new(Grace(Some(Duration::from_secs(60))));
        assert!(!bounded.due(0, now) && bounded.longest_sleep().is_none(), "partitad is there");
        let alone = |seconds| Ending { alone_since: ago(seconds), ..bounded };
        assert!(!alone(9).due(0, now) && alone(10).due(0, now));
        assert!(!alone(59).due(1, now) && alone(60).due(1, now));
        let endless = Ending { alone_since: ago(3600), ..Ending::new(Grace(None)) };
        assert!(!endless.due(1, now) && endless.due(0, now));
        let draining = Ending { draining: true, ..bounded };
        assert!(!draining.due(1, now) && draining.due(0, now));
        assert!(Ending { ordered: true, ..bounded }.due(1, now));
    }
}
