//! The client's end of a session: rings, words and bell. It knows nothing of threads.

use crate::arena::Arena;
use crate::layout::{self, word};
use crate::mapping::{MapError, Mapping};
use crate::ring::{Consumer, HEADER_BYTES, Memory, Producer, RingFault, Sleeper, Waker};
use crate::{
    CallError, MAX_RECORD, MAX_REPLY, MalformedReply, PROTOCOL, Protocol, Record, Reply,
    WANTS_REPLY, Welcome, reply,
};
use partita_model::request::Sequence;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The reason why a session's memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The system refuses to give forked children the program's host memory.
    #[error("cannot let forked children have host memory: {0}")]
    Inherit(Errno),
    /// The process has no descriptor left.
    #[error(
        "cannot create the descriptor that wakes threads of this process (raise `ulimit -n`): {0}"
    )]
    Nudge(Errno),
    /// The descriptor is of another kind.
    #[error(
        "the descriptor that the daemon sent is not a session's memory: daemon and library are of \
         different versions; restart partitad"
    )]
    Foreign,
}

/// A breach of the protocol by the daemon. It ends the session.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PeerFault {
    /// A ring is corrupt.
    #[error("the daemon's {ring} ring: {fault}")]
    Ring {
        /// The ring.
        ring: &'static str,
        /// The fault.
        fault: RingFault,
    },
    /// An answer does not parse.
    #[error("the daemon's answer to {sequence}: {malformed}")]
    Reply {
        /// The number of the record.
        sequence: Sequence,
        /// The reason.
        malformed: MalformedReply,
    },
    /// An answer passes the bound.
    #[error("the daemon's answer to {sequence} is longer than {MAX_REPLY} bytes")]
    Endless {
        /// The number of the record.
        sequence: Sequence,
    },
}

/// The event that ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rung {
    /// There may be news.
    News,
    /// The data plane is gone.
    Gone,
}

/// The content of an event's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventSlot {
    /// The number of the latest record of the event that has happened.
    pub sequence: Sequence,
    /// Device time of that record in nanoseconds.
    pub time_ns: u64,
}

/// The parts of the client's end, for callers that lock them separately.
#[derive(Debug)]
pub struct ClientEnd {
    /// The part that many threads may use at once.
    pub shared: SharedEnd,
    /// The part of the thread that writes requests.
    pub requests: RequestWriter,
    /// The part of the thread that reads answers.
    pub replies: ReplyReader,
}

impl ClientEnd {
    /// Maps the memory that came with a welcome.
    ///
    /// # Errors
    /// Where the memory is not what the welcome says.
    pub fn attach(
        welcome: &Welcome,
        memfd: &OwnedFd,
        bell: OwnedFd,
    ) -> Result<ClientEnd, AttachError> {
        let layout = welcome.layout;
        let memory = Arc::new(Mapping::new(memfd.as_fd(), layout.total())?);
        let Protocol { major, .. } = PROTOCOL;
        let magic = memory.load(0, Ordering::Relaxed);
        let version = memory.load(layout::VERSION, Ordering::Relaxed);
        let total = memory.load(layout::TOTAL, Ordering::Relaxed);
        if magic != layout::MAGIC
            || version & 0xffff_ffff != u64::from(major)
            || total != layout.total()
        {
            return Err(AttachError::Foreign);
        }
        memory.let_children_inherit(layout.host()).map_err(AttachError::Inherit)?;
        let arena = Arena::new(memory.clone(), &layout);
        // Without it the host memory is private to the program: copies reach it, kernels do not.
        let twin = welcome
            .host
            .and_then(|host| memory.map_again(memfd.as_fd(), layout.host(), host.0).ok());
        let arena = match twin {
            Some(twin) => arena.with_twin(&layout, twin),
            None => arena,
        };
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(AttachError::Nudge)?;
        Ok(ClientEnd {
            requests: RequestWriter {
                ring: Producer::new(memory.clone(), layout.command_ring()),
                sequence: 0,
                body: Vec::new(),
            },
            replies: ReplyReader {
                ring: Consumer::new(
                    memory.clone(),
                    layout.reply_ring(),
                    reply::PART_BYTES + HEADER_BYTES,
                ),
                body: Vec::new(),
                partial: HashMap::new(),
                printed: Printed::default(),
                failure: None,
            },
            shared: SharedEnd {
                daemon_sleep: Waker::new(memory.clone(), word::DAEMON_SLEEPS),
                own_sleep: Sleeper::new(memory.clone(), word::CLIENT_SLEEPS),
                room_wanted: Sleeper::new(memory.clone(), word::COMMAND_ROOM_WANTED),
                daemon_room_wanted: Waker::new(memory.clone(), word::REPLY_ROOM_WANTED),
                arena,
                memory,
                layout,
                bell,
                nudge,
            },
        })
    }
}

/// Words, bell and arena.
#[derive(Debug)]
pub struct SharedEnd {
    memory: Arc<Mapping>,
    layout: crate::Layout,
    bell: OwnedFd,
    /// Readable while a nudge has not been taken.
    nudge: OwnedFd,
    daemon_sleep: Waker<Arc<Mapping>>,
    own_sleep: Sleeper<Arc<Mapping>>,
    room_wanted: Sleeper<Arc<Mapping>>,
    daemon_room_wanted: Waker<Arc<Mapping>>,
    arena: Arena,
}

impl SharedEnd {
    /// The layout of the memory.
    #[must_use]
    pub fn layout(&self) -> &crate::Layout {
        &self.layout
    }

    /// The arena.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Whether this process attached. A forked child did not: the session's memory does not exist
    /// there.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.memory.is_owner()
    }

    /// Rings the data plane's bell if the data plane sleeps. Called after requests were written.
    /// [`Rung::Gone`] where the bell shows that the data plane is gone.
    pub fn requests_written(&self) -> Rung {
        if self.daemon_sleep.take() { self.ring() } else { Rung::News }
    }

    /// Rings the data plane's bell if the data plane waits for room. Called after answers were read
    /// and [`ReplyReader::publish`] was true. A data plane that only sleeps is left asleep.
    pub fn answers_read(&self) -> Rung {
        if self.daemon_room_wanted.take() { self.ring() } else { Rung::News }
    }

    fn ring(&self) -> Rung {
        loop {
            match send(&self.bell, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                // A full bell rings already.
                Ok(_) | Err(Errno::AGAIN) => return Rung::News,
                Err(Errno::INTR) => {}
                Err(_) => return Rung::Gone,
            }
        }
    }

    /// The number of news so far. A caller takes it before it looks for news, and passes it to
    /// [`Self::prepare_to_sleep`].
    #[must_use]
    pub fn news(&self) -> u64 {
        self.memory.load(word::NEWS, Ordering::Acquire)
    }

    /// Announces a sleep: from now on answers, events and the sticky error ring the bell. The
    /// caller looks for news once more before it sleeps. `saw` is the number of news before the
    /// previous look; a client that has not seen all news does not count as asleep.
    pub fn prepare_to_sleep(&self, saw: u64) {
        self.memory.store(word::CLIENT_SAW, saw, Ordering::Relaxed);
        self.own_sleep.raise();
    }

    /// Takes back an announced sleep, where no other thread sleeps. Otherwise the data plane counts
    /// the client as asleep.
    pub fn stay_awake(&self) {
        self.own_sleep.lower();
    }

    /// Announces a wait for room in the command ring: from now on room rings the bell. The caller
    /// looks for room once more before it sleeps.
    pub fn prepare_to_sleep_for_room(&self) {
        self.room_wanted.raise();
    }

    /// Sleeps until the bell rings. One thread at a time may call it.
    pub fn sleep(&self) -> Rung {
        loop {
            match recv(&self.bell, &mut [0; 64], RecvFlags::empty()) {
                Ok((_, 0)) => return Rung::Gone,
                Ok(_) => return Rung::News,
                Err(Errno::INTR) => {}
                Err(_) => return Rung::Gone,
            }
        }
    }

    /// Sleeps until the bell rings or another thread calls [`SharedEnd::nudge`]. It makes two
    /// system calls more than [`SharedEnd::sleep`].
    pub fn sleep_or_nudge(&self) -> Rung {
        let mut polled =
            [PollFd::new(&self.bell, PollFlags::IN), PollFd::new(&self.nudge, PollFlags::IN)];
        while let Err(Errno::INTR) = poll(&mut polled, None) {}
        if !polled[1].revents().is_empty() {
            // A thread checks for news even if another has taken the nudge.
            let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        }
        if polled[0].revents().is_empty() { Rung::News } else { self.sleep() }
    }

    /// Wakes the thread that sleeps in [`SharedEnd::sleep_or_nudge`], or the next one that does.
    pub fn nudge(&self) {
        // A full counter is readable, too.
        let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
    }

    /// Shuts both directions of the bell. A sleeping thread wakes and finds the data plane gone;
    /// the data plane finds the client gone.
    pub fn hang_up(&self) {
        // The call fails only where the peer is gone already.
        let _ = shutdown(&self.bell, Shutdown::Both);
    }

    /// Whether the data plane is gone. Makes a system call that takes nothing out of the bell.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let mut polled = [PollFd::new(&self.bell, PollFlags::empty())];
        let hung_up = PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(hung_up)
    }

    /// The number up to which every record is finished.
    #[must_use]
    pub fn completed(&self) -> Sequence {
        Sequence(self.memory.load(word::COMPLETED, Ordering::Acquire))
    }

    /// The session's sticky error, and the record that failed.
    #[must_use]
    pub fn sticky(&self) -> Option<(i32, Sequence)> {
        let raw = self.memory.load(word::STICKY_CODE, Ordering::Acquire);
        if raw == 0 {
            return None;
        }
        let low = u32::try_from(raw & 0xffff_ffff).expect("masked to 32 bits");
        let code = low.cast_signed();
        Some((code, Sequence(self.memory.load(word::STICKY_SEQUENCE, Ordering::Relaxed))))
    }

    /// The content of a slot.
    ///
    /// # Panics
    /// Where there is no such slot.
    #[must_use]
    pub fn event(&self, slot: u32) -> EventSlot {
        let at = self.layout.event_slot(slot);
        let sequence = Sequence(self.memory.load(at, Ordering::Acquire));
        EventSlot { sequence, time_ns: self.memory.load(at + 8, Ordering::Relaxed) }
    }
}

/// Writes requests.
#[derive(Debug)]
pub struct RequestWriter {
    ring: Producer<Arc<Mapping>>,
    sequence: u64,
    /// The encoded record; the buffer is reused.
    body: Vec<u8>,
}

impl RequestWriter {
    /// The number that the next request will have.
    #[must_use]
    pub fn next(&self) -> Sequence {
        Sequence(self.sequence + 1)
    }

    /// Writes a record; `None` where the ring has no room now. The caller has checked the bounds of
    /// variable parts, and wakes the daemon.
    ///
    /// # Errors
    /// A breach by the daemon.
    pub fn push(
        &mut self,
        request: &impl Record,
        wants_reply: bool,
    ) -> Result<Option<Sequence>, PeerFault> {
        self.body.clear();
        request.encode(&mut self.body);
        let flags = if wants_reply { WANTS_REPLY } else { 0 };
        let next = self.sequence + 1;
        let fault = |fault| PeerFault::Ring { ring: "command", fault };
        debug_assert!(
            self.body.len() + HEADER_BYTES <= MAX_RECORD,
            "bounds of the parts make a record fit"
        );
        if !self.ring.push(request.kind(), flags, next, &self.body).map_err(fault)? {
            return Ok(None);
        }
        self.sequence = next;
        Ok(Some(Sequence(next)))
    }
}

/// The answer to one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// The number of the record.
    pub sequence: Sequence,
    /// The result or the error.
    pub outcome: Result<Reply, CallError>,
}

/// Output of kernels, by console.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Printed {
    /// For standard output.
    pub output: Vec<u8>,
    /// For standard error.
    pub error: Vec<u8>,
}

/// Reads answers.
#[derive(Debug)]
pub struct ReplyReader {
    ring: Consumer<Arc<Mapping>>,
    body: Vec<u8>,
    /// Answers with parts still to come.
    partial: HashMap<u64, Vec<u8>>,
    /// Output of kernels that no thread has taken.
    printed: Printed,
    /// Why the session has failed.
    failure: Option<CallError>,
}

impl ReplyReader {
    /// The next answer; `None` where there is none now. After the last one the caller wakes the
    /// daemon if [`ReplyReader::publish`] says so.
    ///
    /// # Errors
    /// A breach by the daemon.
    pub fn poll(&mut self) -> Result<Option<Answered>, PeerFault> {
        let fault = |fault| PeerFault::Ring { ring: "reply", fault };
        while let Some(header) = self.ring.pop(&mut self.body).map_err(fault)? {
            if header.kind == reply::OUTPUT {
                let error = header.flags & reply::ERROR != 0;
                let text = if error { &mut self.printed.error } else { &mut self.printed.output };
                if text.len() + self.body.len() <= reply::MAX_OUTPUT {
                    text.extend_from_slice(&self.body);
                }
                continue;
            }
            let sequence = Sequence(header.sequence);
            let more = header.flags & reply::MORE != 0;
            if more || self.partial.contains_key(&sequence.0) {
                let partial = self.partial.entry(sequence.0).or_default();
                partial.extend_from_slice(&self.body);
                if partial.len() > MAX_REPLY {
                    return Err(PeerFault::Endless { sequence });
                }
                if more {
                    continue;
                }
            }
            let whole = self.partial.remove(&sequence.0);
            let bytes = whole.as_deref().unwrap_or(&self.body);
            let outcome = reply::decode(bytes)
                .map_err(|malformed| PeerFault::Reply { sequence, malformed })?;
            if sequence == reply::NOBODYS {
                self.failure = self.failure.take().or(outcome.err());
                continue;
            }
            return Ok(Some(Answered { sequence, outcome }));
        }
        Ok(None)
    }

    /// Why the session has failed, as soon as the answers before are read. It may not come at all
    /// ([`SharedEnd::sticky`] has the code in any case).
    #[must_use]
    pub fn failure(&self) -> Option<&CallError> {
        self.failure.as_ref()
    }

    /// Output of kernels since the last call.
    pub fn take_output(&mut self) -> Printed {
        std::mem::take(&mut self.printed)
    }

    /// Tells the daemon how far the ring was read; true where that is news.
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::offer;
    use crate::{ServerSession, Sizes, Window};
    use partita_model::{DeviceAddress, SessionId};
    use rustix::io::{FdFlags, fcntl_getfd, read};

    #[test]
    fn a_nudge_is_taken_and_its_descriptor_stays_in_the_program() {
        let server = ServerSession::create(Sizes::default()).unwrap();
        let [memfd, bell] = server.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
        let welcome = Welcome {
            protocol: PROTOCOL,
            features: 0,
            session: SessionId(1),
            facts: offer(0).facts,
            window: Window { base: DeviceAddress(0), bytes: 0 },
            layout: server.layout(),
            host: None,
        };
        let shared = ClientEnd::attach(&welcome, &memfd, bell).unwrap().shared;
        assert!(fcntl_getfd(&shared.nudge).unwrap().contains(FdFlags::CLOEXEC));
        shared.nudge();
        assert_eq!(shared.sleep_or_nudge(), Rung::News);
        assert_eq!(read(&shared.nudge, &mut [0; 8]), Err(Errno::AGAIN), "nobody waits for another");
    }
}
