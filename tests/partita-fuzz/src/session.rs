//! The memory of a session, while a peer writes into it what it likes.
//!
//! An input is a list of steps. A step is a byte and what the byte asks for; the remaining bytes of
//! the input are zero.
//!
//! | byte modulo 10 | step |
//! | --- | --- |
//! | 0 | the client appends a record: kind, flags, steps from the due number, length, body |
//! | 1 | a peer sets a word of the memory |
//! | 2 | a peer writes bytes into the command ring |
//! | 3 | a peer writes bytes into the reply ring |
//! | 4 | the daemon reads all records, and answers or keeps the answers open |
//! | 5 | the daemon answers everything that is open |
//! | 6 | the daemon goes to sleep and wakes |
//! | 7 | the daemon publishes an event, what is completed, or a failure |
//! | 8 | the client reads all answers |
//! | 9 | the daemon prints |

use crate::bytes::Bytes;
use partita_gpu::uploads::Uploads;
use partita_model::request::{ArenaRange, Request, Sequence};
use partita_model::{
    Bytes as Size, ComputeCapability, Console, DeviceAddress, DeviceFacts, DeviceKind, SessionId,
    Timekeeping,
};
use partita_wire::mapping::Mapping;
use partita_wire::ring::{HEADER_BYTES, Header, Memory, RingSpec};
use partita_wire::{
    CallError, ClientEnd, Incoming, Layout, PROTOCOL, Received, Reply, ServerSession, Sizes,
    Welcome, Window,
};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SIZES: Sizes = Sizes {
    command_bytes: 1 << 17,
    reply_bytes: 1 << 17,
    event_slots: 4,
    staging_bytes: 1 << 16,
    host_bytes: 0,
};

/// Shared words that a peer can reach, beside the four of the rings: 128 bytes a line.
const WORDS: std::ops::Range<usize> = 4096..8192;

/// Steps of an input, at most.
const MOST_STEPS: usize = 256;

/// Plays an input.
///
/// # Panics
/// Where an end of the session takes what it must refuse.
pub(crate) fn play(mut bytes: Bytes<'_>) {
    let mut play = Play::new();
    for _ in 0..MOST_STEPS {
        if bytes.0.is_empty() {
            return;
        }
        // A fault ends the session.
        if play.step(&mut bytes).is_err() {
            return;
        }
    }
}

/// The other side broke the protocol.
struct Ended;

struct Play {
    server: ServerSession,
    client: ClientEnd,
    /// The memory as a peer sees it that keeps no rules.
    raw: Arc<Mapping>,
    layout: Layout,
    /// Bytes that the peer has appended to the command ring, and records.
    tail: u64,
    sent: u64,
    /// Records that were read, and those that wait for an answer.
    read: u64,
    open: Vec<Sequence>,
    uploads: Uploads,
}

impl Play {
    fn new() -> Play {
        let mut server = ServerSession::create(SIZES).expect("small sizes fit");
        let welcome = welcome(&server);
        let fds = server.client_fds().expect("nothing was sent yet");
        let [memory, bell] = fds.map(|fd| fd.try_clone_to_owned().expect("a descriptor is left"));
        server.sent_fds();
        let client = ClientEnd::attach(&welcome, &memory, bell).expect("the daemon's own memory");
        let raw = Mapping::new(memory.as_fd(), welcome.layout.total()).expect("the same memory");
        Play {
            server,
            client,
            raw: Arc::new(raw),
            layout: welcome.layout,
            tail: 0,
            sent: 0,
            read: 0,
            open: Vec::new(),
            uploads: Uploads::default(),
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) -> Result<(), Ended> {
        match bytes.byte() % 10 {
            0 => self.append(bytes),
            1 => self.set_word(bytes),
            2 => self.scribble(self.layout.command_ring(), bytes),
            3 => self.scribble(self.layout.reply_ring(), bytes),
            4 => self.read_records(bytes.byte() & 1 == 1)?,
            5 => {
                for sequence in std::mem::take(&mut self.open) {
                    self.answer(sequence)?;
                }
            }
            6 => {
                self.server.prepare_to_sleep().map_err(|_| Ended)?;
                let _ = (self.server.client_sleeps(), self.server.is_blocked());
                let _ = self.server.woken();
            }
            7 => self.publish(bytes)?,
            8 => {
                while self.client.replies.poll().map_err(|_| Ended)?.is_some() {}
                self.client.replies.publish();
                let _ = (self.client.shared.sticky(), self.client.shared.event(0));
            }
            _ => {
                let text = vec![b'x'; usize::from(bytes.u16())];
                self.server.output(Console::Output, &text).map_err(|_| Ended)?;
            }
        }
        Ok(())
    }

    /// Appends a record with a header that is true of its length.
    fn append(&mut self, bytes: &mut Bytes<'_>) {
        let (kind, flags, skip) = (bytes.u16(), bytes.u16(), bytes.byte());
        let length = bytes.u16().into();
        let body = bytes.up_to(length);
        self.sent = self.sent.wrapping_add(1 + u64::from(skip));
        let length = HEADER_BYTES + body.len();
        let ring = self.layout.command_ring();
        let header = Header {
            length: u32::try_from(length).expect("a body of 16 bits"),
            kind,
            flags,
            sequence: self.sent,
        };
        let mut record = header.length.to_le_bytes().to_vec();
        record.extend_from_slice(&header.kind.to_le_bytes());
        record.extend_from_slice(&header.flags.to_le_bytes());
        record.extend_from_slice(&header.sequence.to_le_bytes());
        record.extend_from_slice(body);
        for (at, byte) in (self.tail..).zip(record) {
            let place = usize::try_from(at % ring.capacity).expect("a small ring");
            self.raw.write(ring.data + place, &[byte]);
        }
        self.tail += length.next_multiple_of(8) as u64;
        self.raw.store(ring.tail, self.tail, Ordering::Release);
    }

    fn set_word(&mut self, bytes: &mut Bytes<'_>) {
        let (commands, replies) = (self.layout.command_ring(), self.layout.reply_ring());
        let at = match bytes.byte() {
            0 => commands.tail,
            1 => commands.head,
            2 => replies.tail,
            3 => replies.head,
            other => WORDS.start + usize::from(other) * 8,
        };
        assert!(WORDS.contains(&at));
        self.raw.store(at, bytes.u64(), Ordering::Release);
    }

    fn scribble(&mut self, ring: RingSpec, bytes: &mut Bytes<'_>) {
        let place = u64::from(bytes.u32()) % (ring.capacity - 256);
        let length = bytes.byte().into();
        let place = usize::try_from(place).expect("a small ring");
        self.raw.write(ring.data + place, bytes.up_to(length));
    }

    fn read_records(&mut self, answers: bool) -> Result<(), Ended> {
        // What a ring holds when it is full; a peer that writes on while the daemon reads is not
        // played.
        let most = 2 * SIZES.command_bytes / HEADER_BYTES as u64;
        let mut records = 0;
        let _ = self.server.has_request();
        while let Some(incoming) = self.server.poll_request().map_err(|_| Ended)? {
            records += 1;
            assert!(records <= most, "{records} records in a ring of {}", SIZES.command_bytes);
            self.take(&incoming);
            if incoming.wants_reply {
                match answers {
                    true => self.answer(incoming.sequence)?,
                    false => self.open.push(incoming.sequence),
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, incoming: &Incoming) {
        self.read += 1;
        assert_eq!(incoming.sequence.0, self.read, "numbers have no gap");
        match &incoming.request {
            Received::Image(part) => {
                let _ = self.uploads.take(part.clone());
            }
            Received::Request(
                Request::CopyToDevice { from: ArenaRange { offset, bytes }, .. }
                | Request::CopyToHost { to: ArenaRange { offset, bytes }, .. },
            ) => {
                let end = offset.checked_add(*bytes).expect("a range that does not wrap");
                assert!(end <= self.layout.arena_bytes(), "a range outside of the arena");
            }
            Received::Request(Request::EventCreate { slot, .. }) => {
                assert!(u64::from(*slot) < self.layout.event_slots(), "no slot {slot}");
                self.server.set_event(*slot, incoming.sequence, 1);
            }
            Received::Request(Request::ModuleLoad { image, .. }) => {
                let _ = self.uploads.finish(*image);
            }
            Received::Request(_) => {}
        }
    }

    fn answer(&mut self, sequence: Sequence) -> Result<(), Ended> {
        // A long text makes an answer of several parts.
        let failed =
            CallError::new(1, "no ".repeat(1 + 4096 * usize::from(sequence.0.is_multiple_of(5))));
        let done = Reply::Done;
        let outcome = if sequence.0.is_multiple_of(2) { Ok(&done) } else { Err(&failed) };
        self.server.reply(sequence, outcome).map_err(|_| Ended)
    }

    fn publish(&mut self, bytes: &mut Bytes<'_>) -> Result<(), Ended> {
        let sequence = Sequence(self.read);
        match bytes.byte() % 3 {
            0 => self.server.set_event(0, sequence, 7),
            1 => self.server.set_completed(sequence),
            _ => {
                let text = "w".repeat(usize::from(bytes.byte()) << 8);
                let set = self.server.set_sticky(sequence, &CallError::new(700, text));
                set.map_err(|_| Ended)?;
            }
        }
        Ok(())
    }
}

fn welcome(server: &ServerSession) -> Welcome {
    Welcome {
        protocol: PROTOCOL,
        features: 0,
        session: SessionId(5),
        facts: facts(),
        window: Window { base: DeviceAddress(1 << 40), bytes: 1 << 36 },
        layout: server.layout(),
        host: None,
    }
}

/// A small GPU.
pub(crate) fn facts() -> DeviceFacts {
    DeviceFacts {
        kind: DeviceKind::Emulated,
        timekeeping: Timekeeping::Simulated,
        name: "small".into(),
        uuid: [7; 16],
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        sm_count: 24,
        sm_clock_khz: 1_000_000,
        memory_clock_khz: 1_000_000,
        memory_bus_bits: 512,
        memory: Size(1 << 30),
        llc: Size(1 << 20),
        threads_per_sm: 2048,
        ctas_per_sm: 32,
        registers_per_sm: 65536,
        shared_per_sm: Size(65536),
        shared_per_cta: Size(49152),
        shared_per_cta_optin: Size(65536),
        threads_per_cta: 1024,
        register_parts: 4,
        shared_reserved: partita_model::Bytes(1024),
        absent_sms: partita_model::SmSet::EMPTY,
    }
}
