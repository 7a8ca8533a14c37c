//! The data plane's end of a session.
//!
//! A [`ServerSession`] never waits. Its owner polls requests, and answers that find no room are
//! kept until there is room. A client that never reads its answers is first slowed down: no further
//! request is taken from it. Its session ends when the kept answers pass a bound.

use crate::arena::Arena;
use crate::handshake::{PROTOCOL, Protocol};
use crate::layout::{self, Layout, LayoutError, Sizes, word};
use crate::mapping::{MapError, Mapping, sealed_memory};
use crate::ring::{Consumer, Memory, Producer, RingFault, Sleeper, Waker};
use crate::{
    CallError, MAX_RECORD, MAX_REPLY, Malformed, Received, Reply, WANTS_REPLY, code, reply,
};
use partita_model::Console;
use partita_model::request::{ArenaRange, Request, Sequence};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of kept answers from which on no further request is taken.
const KEPT_SOFT: usize = 1 << 20;
/// Bytes of kept answers from which on the session ends.
const KEPT_HARD: usize = 2 * MAX_REPLY;
/// Unanswered requests from which on no further request is taken.
const MAX_OUTSTANDING: usize = 1 << 16;
/// Bytes of the command ring that are read before the client is told.
const PUBLISH_BYTES: u64 = 1 << 14;

/// A breach of the protocol by a client. It ends the session.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// A ring is corrupt.
    #[error("the client's {ring} ring: {fault}")]
    Ring {
        /// The ring.
        ring: &'static str,
        /// The fault.
        fault: RingFault,
    },
    /// A record is out of order.
    #[error("the client sent record {found} where {expected} was due")]
    Sequence {
        /// The value that was due.
        expected: u64,
        /// The value found.
        found: u64,
    },
    /// A record does not parse.
    #[error("the client's {sequence}: {malformed}")]
    Record {
        /// The number of the record.
        sequence: Sequence,
        /// The reason.
        malformed: Malformed,
    },
    /// A range lies outside the arena.
    #[error("the client's {sequence} names {bytes} bytes at {offset} of an arena of {arena}")]
    Staging {
        /// The number of the record.
        sequence: Sequence,
        /// First byte of the range.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Size of the arena in bytes.
        arena: u64,
    },
    /// An event slot does not exist.
    #[error("the client's {sequence} names event slot {slot} of {slots}")]
    EventSlot {
        /// The number of the record.
        sequence: Sequence,
        /// The slot.
        slot: u32,
        /// Number of slots.
        slots: u64,
    },
    /// The client asks and does not read its answers.
    #[error("the client left {bytes} bytes of answers unread")]
    AnswersUnread {
        /// Bytes of kept answers.
        bytes: usize,
    },
}

/// The reason why a session's memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// The sizes are out of bounds.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The memory cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The process may not make files of this size.
    #[error(
        "cannot create a session's memory: a file of {} KiB exceeds the limit on the size of \
         files of partita-gpu (RLIMIT_FSIZE): raise `LimitFSIZE=` of its service, or `ulimit -f` \
         where the daemon is started, to that or more",
        .bytes / 1024
    )]
    FileLimit {
        /// The size of the memory, in bytes.
        bytes: u64,
    },
    /// The system has no descriptors or memory left.
    #[error(
        "cannot create a session's {what} (raise the limit of open files or free memory): {source}"
    )]
    System {
        /// The thing that could not be created.
        what: &'static str,
        /// The system's error.
        source: Errno,
    },
}

/// A record as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// Its number.
    pub sequence: Sequence,
    /// Whether exactly one [`ServerSession::reply`] must follow when the work is done.
    pub wants_reply: bool,
    /// The parsed record.
    pub request: Received,
}

/// Whether the client still holds its end of the bell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BellState {
    /// The client lives.
    Alive,
    /// The client, and every process that inherited its end, is gone.
    Gone,
}

/// The data plane's end of a session.
#[derive(Debug)]
pub struct ServerSession {
    memory: Arc<Mapping>,
    layout: Layout,
    memfd: Arc<OwnedFd>,
    bell: OwnedFd,
    /// `None` once it was sent to the client.
    client_bell: Option<OwnedFd>,
    commands: Consumer<Arc<Mapping>>,
    replies: Producer<Arc<Mapping>>,
    own_sleep: Sleeper<Arc<Mapping>>,
    client_sleep: Waker<Arc<Mapping>>,
    room_wanted: Sleeper<Arc<Mapping>>,
    client_room_wanted: Waker<Arc<Mapping>>,
    /// Number of the last record that was read.
    sequence: u64,
    /// Private copy of the current record's body; the buffer is reused.
    body: Vec<u8>,
    /// Numbers of the requests that wait for an answer.
    outstanding: HashSet<u64>,
    kept: VecDeque<Part>,
    kept_bytes: usize,
    sticky: Option<CallError>,
    completed: u64,
    /// The value of [`word::NEWS`].
    news: u64,
    /// The sequence in each slot that was ever used.
    slots: Vec<u64>,
}

/// A part of an answer that waits for room.
#[derive(Debug)]
struct Part {
    kind: u16,
    sequence: u64,
    flags: u16,
    bytes: Vec<u8>,
}

impl ServerSession {
    /// Makes a session's memory and bell.
    ///
    /// # Errors
    /// Where sizes are out of bounds or the system has no room.
    pub fn create(sizes: Sizes) -> Result<ServerSession, CreateError> {
        let system = |what| move |source| CreateError::System { what, source };
        let layout = Layout::new(sizes)?;
        let memfd = sealed_memory(layout.total()).map_err(|source| match source {
            Errno::FBIG => CreateError::FileLimit { bytes: layout.total() },
            source => CreateError::System { what: "memory", source },
        })?;
        let memory = Arc::new(Mapping::new(memfd.as_fd(), layout.total())?);
        let Protocol { major, minor } = PROTOCOL;
        memory.store(0, layout::MAGIC, Ordering::Relaxed);
        memory.store(layout::VERSION, u64::from(major) | u64::from(minor) << 32, Ordering::Relaxed);
        memory.store(layout::TOTAL, layout.total(), Ordering::Relaxed);
        let flags = SocketFlags::CLOEXEC;
        let (bell, client_bell) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(system("bell"))?;
        let own_sleep = Sleeper::new(memory.clone(), word::DAEMON_SLEEPS);
        // The client may ring before anybody has served the session for the first time.
        own_sleep.raise();
        Ok(ServerSession {
            commands: Consumer::new(memory.clone(), layout.command_ring(), MAX_RECORD),
            replies: Producer::new(memory.clone(), layout.reply_ring()),
            own_sleep,
            client_sleep: Waker::new(memory.clone(), word::CLIENT_SLEEPS),
            room_wanted: Sleeper::new(memory.clone(), word::REPLY_ROOM_WANTED),
            client_room_wanted: Waker::new(memory.clone(), word::COMMAND_ROOM_WANTED),
            layout,
            memory,
            memfd: Arc::new(memfd),
            bell,
            client_bell: Some(client_bell),
            sequence: 0,
            body: Vec::new(),
            outstanding: HashSet::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            sticky: None,
            completed: 0,
            news: 0,
            slots: Vec::new(),
        })
    }

    /// The layout of the memory, for the [`crate::Welcome`].
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The descriptors that belong to the [`crate::Welcome`]: memory, bell. `None` once
    /// [`Self::sent_fds`] was called.
    #[must_use]
    pub fn client_fds(&self) -> Option<[BorrowedFd<'_>; 2]> {
        Some([self.memfd.as_fd(), self.client_bell.as_ref()?.as_fd()])
    }

    /// Closes this process's copy of the client's end of the bell. The caller calls it when the
    /// descriptors were sent: a copy that stays open hides the client's death. Every process that
    /// hands the descriptors on closes its copies too.
    pub fn sent_fds(&mut self) {
        self.client_bell = None;
    }

    /// The bell, to be polled for readability while the session sleeps.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The session's memory, for [`Arena::map_host_again`].
    #[must_use]
    pub fn memory_file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.memfd)
    }

    /// The arena.
    #[must_use]
    pub fn arena(&self) -> Arena {
        Arena::new(self.memory.clone(), &self.layout)
    }

    /// The next record. `None` where there is none now, and where the client must read its answers
    /// first.
    ///
    /// # Errors
    /// A breach by the client; the session cannot go on.
    pub fn poll_request(&mut self) -> Result<Option<Incoming>, Violation> {
        self.send_kept()?;
        if self.kept_bytes > KEPT_SOFT || self.outstanding.len() >= MAX_OUTSTANDING {
            return Ok(None);
        }
        let fault = |fault| Violation::Ring { ring: "command", fault };
        let Some(header) = self.commands.pop(&mut self.body).map_err(fault)? else {
            self.publish_commands();
            return Ok(None);
        };
        if self.commands.unpublished() > PUBLISH_BYTES {
            self.publish_commands();
        }
        if header.sequence != self.sequence + 1 {
            return Err(Violation::Sequence {
                expected: self.sequence + 1,
                found: header.sequence,
            });
        }
        self.sequence = header.sequence;
        let sequence = Sequence(header.sequence);
        let request = Received::decode(header.kind, header.flags, &self.body)
            .map_err(|malformed| Violation::Record { sequence, malformed })?;
        self.check_places(sequence, &request)?;
        let wants_reply = header.flags & WANTS_REPLY != 0;
        if wants_reply {
            self.outstanding.insert(sequence.0);
        }
        Ok(Some(Incoming { sequence, wants_reply, request }))
    }

    /// Whether [`Self::poll_request`] would find something: a record or a breach.
    #[must_use]
    pub fn has_request(&mut self) -> bool {
        let full = self.kept_bytes > KEPT_SOFT || self.outstanding.len() >= MAX_OUTSTANDING;
        !full && self.commands.has_news().unwrap_or(true)
    }

    /// Whether offsets and slots are inside this session's memory.
    fn check_places(&self, sequence: Sequence, request: &Received) -> Result<(), Violation> {
        let Received::Request(request) = request else { return Ok(()) };
        match *request {
            Request::CopyToDevice { from: ArenaRange { offset, bytes }, .. }
            | Request::CopyToHost { to: ArenaRange { offset, bytes }, .. } => {
                let arena = self.layout.arena_bytes();
                if offset > arena || bytes > arena - offset {
                    return Err(Violation::Staging { sequence, offset, bytes, arena });
                }
            }
            Request::EventCreate { slot, .. } => {
                let slots = self.layout.event_slots();
                if u64::from(slot) >= slots {
                    return Err(Violation::EventSlot { sequence, slot, slots });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn publish_commands(&mut self) {
        // A flag of its own, because a client that sleeps for an answer must not be woken when its
        // request is read.
        if self.commands.publish() && self.client_room_wanted.take() {
            self.ring();
        }
    }

    /// Answers a request whose work is done or has failed. An error's code must not be 0.
    ///
    /// # Errors
    /// Where the client leaves too many answers unread.
    ///
    /// # Panics
    /// Where nobody waits for that answer (any more): answering twice is a fault of the data plane.
    pub fn reply(
        &mut self,
        sequence: Sequence,
        outcome: Result<&Reply, &CallError>,
    ) -> Result<(), Violation> {
        assert!(self.outstanding.remove(&sequence.0), "{sequence} waits for no answer");
        self.send_answer(sequence, outcome)
    }

    fn send_answer(
        &mut self,
        sequence: Sequence,
        outcome: Result<&Reply, &CallError>,
    ) -> Result<(), Violation> {
        let mut bytes = Vec::new();
        reply::encode(outcome, &mut bytes);
        if bytes.len() > MAX_REPLY {
            bytes.clear();
            let text = format!("the answer is longer than {MAX_REPLY} bytes: split the module");
            reply::encode(Err(&CallError::new(code::OUT_OF_MEMORY, text)), &mut bytes);
        }
        self.send_kept()?;
        let mut parts = bytes.chunks(reply::PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_some() { reply::MORE } else { 0 };
            self.send(Part {
                kind: reply::KIND,
                sequence: sequence.0,
                flags,
                bytes: part.to_vec(),
            })?;
        }
        self.wake_client();
        if self.kept_bytes > KEPT_HARD {
            return Err(Violation::AnswersUnread { bytes: self.kept_bytes });
        }
        Ok(())
    }

    /// Sends what a kernel printed; the client finds it before the answers that come after. Where
    /// the client leaves too much unread it is dropped, as CUDA drops what its buffer of `printf`
    /// cannot hold.
    ///
    /// # Errors
    /// What the client did wrong.
    pub fn output(&mut self, console: Console, text: &[u8]) -> Result<(), Violation> {
        self.send_kept()?;
        if self.kept_bytes + text.len() > KEPT_SOFT {
            return Ok(());
        }
        let flags = if console == Console::Error { reply::ERROR } else { 0 };
        for part in text.chunks(reply::PART_BYTES) {
            self.send(Part { kind: reply::OUTPUT, sequence: 0, flags, bytes: part.to_vec() })?;
        }
        self.wake_client();
        Ok(())
    }

    /// Sends a part, or keeps it where the ring is full or earlier parts wait.
    fn send(&mut self, part: Part) -> Result<(), Violation> {
        if !self.kept.is_empty() || !self.push(&part)? {
            self.kept_bytes += part.bytes.len();
            self.kept.push_back(part);
        }
        Ok(())
    }

    fn push(&mut self, part: &Part) -> Result<bool, Violation> {
        let fault = |fault| Violation::Ring { ring: "reply", fault };
        self.replies.push(part.kind, part.flags, part.sequence, &part.bytes).map_err(fault)
    }

    /// Sends kept parts while the ring has room.
    fn send_kept(&mut self) -> Result<(), Violation> {
        let mut sent = false;
        while let Some(part) = self.kept.pop_front() {
            if !self.push(&part)? {
                self.kept.push_front(part);
                break;
            }
            self.kept_bytes -= part.bytes.len();
            sent = true;
        }
        if sent {
            self.wake_client();
        }
        Ok(())
    }

    /// Whether answers wait for the client to read others. It rings when it has: poll requests
    /// again then.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Makes an asynchronous failure the session's own: every later call of the client fails with
    /// it. The first one stays. Whether this is the first one.
    ///
    /// The client finds the words before the code ([`reply::NOBODYS`]); it gets none where it
    /// leaves too much unread.
    ///
    /// # Errors
    /// What the client did wrong.
    ///
    /// # Panics
    /// Where the code is 0.
    pub fn set_sticky(&mut self, sequence: Sequence, error: &CallError) -> Result<bool, Violation> {
        let code = error.code;
        assert!(code != code::SUCCESS, "success is no error");
        if self.sticky.is_some() {
            return Ok(false);
        }
        self.sticky = Some(error.clone());
        if !error.text.is_empty() && self.kept_bytes <= KEPT_SOFT {
            self.send_answer(reply::NOBODYS, Err(error))?;
        }
        self.memory.store(word::STICKY_SEQUENCE, sequence.0, Ordering::Relaxed);
        self.memory.store(word::STICKY_CODE, u64::from(code.cast_unsigned()), Ordering::Release);
        self.wake_client();
        Ok(true)
    }

    /// The session's sticky error.
    #[must_use]
    pub fn sticky(&self) -> Option<&CallError> {
        self.sticky.as_ref()
    }

    /// Publishes that an event's record has happened. Older records than the slot shows already are
    /// left out, so that a slot's sequence only grows.
    ///
    /// # Panics
    /// Where there is no such slot: requests that name one do not get through.
    pub fn set_event(&mut self, slot: u32, sequence: Sequence, time_ns: u64) {
        let at = self.layout.event_slot(slot);
        let index = usize::try_from(slot).expect("slots are few");
        if self.slots.len() <= index {
            self.slots.resize(index + 1, 0);
        }
        if self.slots[index] >= sequence.0 {
            return;
        }
        self.slots[index] = sequence.0;
        self.memory.store(at + 8, time_ns, Ordering::Relaxed);
        self.memory.store(at, sequence.0, Ordering::Release);
        self.wake_client();
    }

    /// Publishes that every record up to this one is finished, so that a client that synchronises
    /// need not ask. Nobody sleeps for that word, so nobody is woken. Smaller numbers than before
    /// are left out.
    pub fn set_completed(&mut self, sequence: Sequence) {
        if sequence.0 > self.completed {
            self.completed = sequence.0;
            self.memory.store(word::COMPLETED, sequence.0, Ordering::Release);
        }
    }

    /// Whether a thread of the client sleeps for news that have not been rung for, and has seen all
    /// there are. The client says so: it harms nobody but itself where that is wrong.
    #[must_use]
    pub fn client_sleeps(&self) -> bool {
        self.client_sleep.is_due()
            && self.memory.load(word::CLIENT_SAW, Ordering::Relaxed) == self.news
    }

    /// How many times something was published that the client may wait for.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.news
    }

    /// Before sleeping on the bell: false where there is work after all. Until [`Self::woken`], the
    /// client rings. A session of which 65,536 requests wait for answers may sleep with more in its
    /// ring: whoever answers polls requests again.
    ///
    /// # Errors
    /// What the client did wrong.
    pub fn prepare_to_sleep(&mut self) -> Result<bool, Violation> {
        self.publish_commands();
        self.own_sleep.raise();
        let fault = |fault| Violation::Ring { ring: "command", fault };
        if !self.kept.is_empty() {
            self.room_wanted.raise();
            self.send_kept()?;
        }
        let full = self.kept_bytes > KEPT_SOFT || self.outstanding.len() >= MAX_OUTSTANDING;
        let news = !full && self.commands.has_news().map_err(fault)?;
        if news {
            self.own_sleep.lower();
        }
        Ok(!news)
    }

    /// After sleeping, or when the bell is readable: empties it.
    pub fn woken(&mut self) -> BellState {
        self.own_sleep.lower();
        loop {
            match recv(&self.bell, &mut [0; 64], RecvFlags::DONTWAIT) {
                Ok((_, 64)) | Err(Errno::INTR) => {}
                Ok((_, 0)) => return BellState::Gone,
                Ok(_) | Err(Errno::AGAIN) => return BellState::Alive,
                Err(_) => return BellState::Gone,
            }
        }
    }

    fn wake_client(&mut self) {
        self.news += 1;
        self.memory.store(word::NEWS, self.news, Ordering::Release);
        if self.client_sleep.take() {
            self.ring();
        }
    }

    /// Rings the client's bell. A full bell already rings, and a dead client is detected elsewhere.
    fn ring(&self) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while let Err(Errno::INTR) = send(&self.bell, &[1], flags) {}
    }
}
