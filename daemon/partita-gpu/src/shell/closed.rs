//! The owner while the device takes no calls ([`Phase::Closed`]): it serves nobody, and answers
//! what needs no device.

use super::{Shell, ShellError, system};
use partita_device::Phase;
use partita_wire::supervise::{Ask, FromGpu, ToGpu};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The longest sleep, in nanoseconds. The end of the phase and a question wake the owner at once.
const SLEEP_NANOS: i64 = 10_000_000;

impl Shell {
    /// Sleeps until the device has news or `partitad` asks something.
    pub(super) fn wait_for_device(&mut self) -> Result<(), ShellError> {
        let soon = Timespec { tv_sec: 0, tv_nsec: SLEEP_NANOS };
        let line = self.line.as_ref().map(|line| line.control.socket());
        let news = self.device.news();
        let mut fds: Vec<PollFd<'_>> =
            line.into_iter().map(|line| PollFd::from_borrowed_fd(line, PollFlags::IN)).collect();
        fds.extend(news.map(|news| PollFd::from_borrowed_fd(news, PollFlags::IN)));
        match poll(&mut fds, Some(&soon)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("cannot wait")(error)),
        }
        self.read_control();
        self.poll_device(None)?;
        self.obey_deferred();
        Ok(())
    }

    /// Answers a question, or keeps an order for later that the device cannot take now.
    pub(super) fn take_question(&mut self, question: ToGpu) {
        let is_order = !matches!(
            question.ask,
            Ask::Heartbeat
                | Ask::Status
                | Ask::Accounts
                | Ask::Events { .. }
                | Ask::Trace(_)
                | Ask::End
                | Ask::EndWhenIdle
        );
        if is_order && self.device.phase() == Phase::Closed {
            self.deferred.push_back(question);
            return;
        }
        let ToGpu { id, ask } = question;
        let answer = self.answer(ask);
        self.tell(FromGpu::Answer { id, answer });
    }

    /// Carries out the orders that were kept, once the device takes calls.
    pub(super) fn obey_deferred(&mut self) {
        while self.device.phase() != Phase::Closed {
            let Some(question) = self.deferred.pop_front() else { return };
            self.take_question(question);
        }
    }
}
