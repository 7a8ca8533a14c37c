//! Clients that say what they like: the handshake and the session's memory as bytes.

use super::{Attack, Outcome, Refused};
use partita_model::Terms;
use partita_model::request::Request;
use partita_wire::{
    Answer, FEATURES, GpuWish, Hello, MAX_MESSAGE, PROTOCOL, Record as _, SOCKET_NAME, WANTS_REPLY,
    Welcome, message,
};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt,
};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that has not said anything.
pub fn call(sockets: &Path) -> Outcome<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(PATIENCE))?;
    }
    connect(&socket, &SocketAddrUnix::new(sockets.join(SOCKET_NAME))?)?;
    Ok(socket)
}

/// What a client of this version says.
fn hello() -> Hello {
    Hello {
        protocol: PROTOCOL,
        features: FEATURES,
        pid: std::process::id(),
        program: "hostile".to_owned(),
        application: String::new(),
        gpu: GpuWish::First,
        terms: Terms::default(),
    }
}

/// A session with its memory and its bell.
struct Raw {
    welcome: Box<Welcome>,
    memory: File,
    bell: OwnedFd,
}

impl Raw {
    fn connect(attack: &mut Attack) -> Outcome<Raw> {
        let socket = attack.tally.count(call(&attack.sockets))?;
        message::send(&socket, &hello().encode(), &[])?;
        let mut answer = message::receive(&socket, MAX_MESSAGE)?;
        match Answer::decode(&answer.bytes)? {
            Answer::Welcome(welcome) => {
                let [memory, bell] = answer.take_fds()?;
                Ok(Raw { welcome, memory: memory.into(), bell })
            }
            Answer::Refused(refusal) => Err(Refused(refusal.text)),
            Answer::Offer(_) => Err(Refused("the daemon offers several GPUs".to_owned())),
        }
    }

    fn load(&self, at: usize) -> Outcome<u64> {
        let mut word = [0; 8];
        self.memory.read_exact_at(&mut word, at as u64)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store(&self, at: usize, value: u64) -> Outcome {
        Ok(self.memory.write_at(&value.to_le_bytes(), at as u64).map(drop)?)
    }

    /// Rings the daemon's bell. Whether the daemon has hung up.
    fn ring(&self, bytes: &[u8]) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::send(&self.bell, bytes, flags);
        // A full bell rings already.
        sent.is_err_and(|error| error != rustix::io::Errno::AGAIN)
    }

    /// Appends a record without looking whether there is room, and rings. Whether the daemon has
    /// hung up.
    fn push(&self, kind: u16, flags: u16, length: usize, body: &[u8]) -> Outcome<bool> {
        let ring = self.welcome.layout.command_ring();
        let tail = self.load(ring.tail)?;
        let mut record = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes().to_vec();
        record.extend(kind.to_le_bytes());
        record.extend(flags.to_le_bytes());
        record.extend(1_u64.to_le_bytes());
        record.extend(body);
        let place = ring.data as u64 + (tail & (ring.capacity - 1));
        self.memory.write_at(&record, place)?;
        self.store(ring.tail, tail.wrapping_add((record.len() as u64).next_multiple_of(8)))?;
        Ok(self.ring(&[1]))
    }
}

pub fn handshakes(attack: &mut Attack) -> Outcome {
    let socket = attack.tally.count(call(&attack.sockets))?;
    let mut hello = hello().encode();
    match attack.random.below(5) {
        0 => return Ok(()),
        1 => {
            let bytes = attack.random.below(hello.len() as u64);
            hello.truncate(usize::try_from(bytes).expect("a length"));
        }
        2 => {
            let at = usize::try_from(attack.random.below(hello.len() as u64)).expect("an index");
            hello[at] ^= 0xff;
        }
        _ => {}
    }
    message::send(&socket, &hello, &[])?;
    if attack.random.below(2) == 0 {
        return Ok(());
    }
    let answer = message::receive(&socket, MAX_MESSAGE)?;
    match Answer::decode(&answer.bytes)? {
        Answer::Refused(refusal) => Err(Refused(refusal.text)),
        _ => Ok(()),
    }
}

pub fn garbage(attack: &mut Attack) -> Outcome {
    let raw = Raw::connect(attack)?;
    let ring = raw.welcome.layout.command_ring();
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..512).flat_map(|_| attack.random.bits().to_le_bytes()).collect();
        let at = attack.random.below(ring.capacity - bytes.len() as u64);
        raw.memory.write_at(&bytes, ring.data as u64 + at)?;
        match attack.random.below(4) {
            0 => raw.store(ring.tail, attack.random.bits())?,
            1 => raw.store(raw.welcome.layout.reply_ring().head, attack.random.bits())?,
            _ => {
                let tail = raw.load(ring.tail)?;
                raw.store(ring.tail, tail.wrapping_add(8 + 8 * attack.random.below(64)))?;
            }
        }
        attack.tally.count(Outcome::Ok(()))?;
        if raw.ring(&bytes[..64]) {
            return Err(Refused("the daemon has hung up".to_owned()));
        }
    }
    Ok(())
}

pub fn torn_records(attack: &mut Attack) -> Outcome {
    let raw = Raw::connect(attack)?;
    let ring = raw.welcome.layout.command_ring();
    for _ in 0..200 {
        let kind = u16::try_from(attack.random.below(48)).expect("a small number");
        let body = vec![0x11; usize::try_from(attack.random.below(200)).expect("a small number")];
        // Right, too short, too long, and without an end.
        let length = *attack.random.one_of(&[16 + body.len(), body.len(), 4096, 0]);
        let outcome = raw.push(kind, WANTS_REPLY, length, &body);
        let hung_up = attack.tally.count(outcome)?;
        for _ in 0..20 {
            let at = attack.random.below(ring.capacity - 8);
            raw.store(ring.data + usize::try_from(at).expect("an offset"), attack.random.bits())?;
        }
        if hung_up {
            return Err(Refused("the daemon has hung up".to_owned()));
        }
    }
    Ok(())
}

pub fn never_reads(attack: &mut Attack) -> Outcome {
    let raw = Raw::connect(attack)?;
    let request = Request::<&[u8]>::MemInfo;
    let mut body = Vec::new();
    request.encode(&mut body);
    for _ in 0..20_000 {
        let ring = raw.welcome.layout.command_ring();
        while raw.load(ring.tail)?.wrapping_sub(raw.load(ring.head)?) + 4096 > ring.capacity {
            if raw.ring(&[1]) {
                return Err(Refused("the daemon has hung up".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let outcome = raw.push(request.kind(), WANTS_REPLY, 16 + body.len(), &body);
        if attack.tally.count(outcome)? {
            return Err(Refused("the daemon has hung up".to_owned()));
        }
    }
    Ok(())
}
