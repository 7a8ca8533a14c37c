//! A client that says what it likes: the handshake and the session's memory as bytes.

use super::Daemon;
use partita_model::Terms;
use partita_wire::{
    Answer, FEATURES, GpuWish, Hello, MAX_MESSAGE, PROTOCOL, Refusal, SOCKET_NAME, Welcome, message,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A session with its memory and its bell.
pub(super) struct Raw {
    pub(super) welcome: Box<Welcome>,
    pub(super) memory: File,
    pub(super) bell: OwnedFd,
}

/// A connection that has not said anything.
pub(super) fn call(daemon: &Daemon) -> OwnedFd {
    call_in(&daemon.sockets())
}

/// The same, to the daemon with its sockets in this folder.
pub(super) fn call_in(sockets: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let address = SocketAddrUnix::new(sockets.join(SOCKET_NAME)).unwrap();
    connect(&socket, &address).unwrap();
    socket
}

/// What a client of this version says.
pub(super) fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        features: FEATURES,
        pid: std::process::id(),
        program: "raw".to_owned(),
        application: String::new(),
        gpu: GpuWish::First,
        terms: Terms::default(),
    }
}

/// The daemon's refusal of a first message.
pub(super) fn refusal(daemon: &Daemon, first: &[u8]) -> Refusal {
    let socket = call(daemon);
    message::send(&socket, first, &[]).unwrap();
    let answer = message::receive(&socket, MAX_MESSAGE).unwrap();
    match Answer::decode(&answer.bytes).unwrap() {
        Answer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

impl Raw {
    pub(super) fn connect(daemon: &Daemon) -> Raw {
        let socket = call(daemon);
        message::send(&socket, &hello().encode(), &[]).unwrap();
        Raw::welcomed(&socket)
    }

    /// The session that a connection is answered with.
    pub(super) fn welcomed(socket: &OwnedFd) -> Raw {
        let mut answer = message::receive(socket, MAX_MESSAGE).unwrap();
        let Answer::Welcome(welcome) = Answer::decode(&answer.bytes).unwrap() else {
            panic!("no session")
        };
        let [memory, bell] = answer.take_fds().unwrap();
        Raw { welcome, memory: memory.into(), bell }
    }

    /// Writes a word of the memory.
    pub(super) fn store(&self, at: usize, value: u64) {
        self.memory.write_at(&value.to_le_bytes(), at as u64).unwrap();
    }

    pub(super) fn load(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, at as u64).unwrap();
        u64::from_le_bytes(word)
    }

    /// Rings the daemon's bell.
    pub(super) fn ring(&self) {
        // A full bell rings already, and the daemon may have hung up.
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.bell, &[1], flags);
    }

    /// Appends a record with this header, and `body` after it, and rings.
    pub(super) fn push(&self, length: u32, kind: u16, flags: u16, body: &[u8]) {
        let ring = self.welcome.layout.command_ring();
        let tail = self.load(ring.tail);
        let mut record = length.to_le_bytes().to_vec();
        record.extend(kind.to_le_bytes());
        record.extend(flags.to_le_bytes());
        record.extend(1_u64.to_le_bytes());
        record.extend(body);
        let place = ring.data as u64 + (tail & (ring.capacity - 1));
        self.memory.write_at(&record, place).unwrap();
        self.store(ring.tail, tail + (record.len() as u64).next_multiple_of(8));
        self.ring();
    }
}
