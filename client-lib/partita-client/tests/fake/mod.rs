//! A data plane without a device: memory is a vector, streams finish at once, kernels do what the
//! test says.

use partita_model::request::{ArenaRange, Launch, Request, Sequence, StreamHandle};
use partita_model::{
    Bytes, ComputeCapability, Console, DeviceAddress, DeviceFacts, DeviceKind, ImagePart,
    SessionId, Timekeeping,
};
use partita_wire::message;
use partita_wire::{
    Answer, BellState, CallError, Hello, Incoming, KernelReply, ModuleReply, PROTOCOL, ParamLayout,
    Received, Reply, SOCKET_NAME, ServerSession, Sizes, VariableReply, Welcome, Window, code,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::Path;

pub const BASE: u64 = 1 << 40;
pub const MEMORY: usize = 80 << 20;
/// Launching it prints [`LAST_WORDS`] on standard error and makes the session's sticky error.
pub const FAULTING: u32 = 13;
pub const LAST_WORDS: &str = "a.cu:7: failed";
/// Launching it ends the data plane's process at once.
pub const DEADLY: u32 = 14;

pub fn facts() -> DeviceFacts {
    DeviceFacts {
        kind: DeviceKind::Emulated,
        timekeeping: Timekeeping::Real,
        name: "Fake GPU".to_owned(),
        uuid: [7; 16],
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        sm_count: 4,
        sm_clock_khz: 1_000_000,
        memory_clock_khz: 1_000_000,
        memory_bus_bits: 256,
        memory: Bytes(MEMORY as u64),
        llc: Bytes(1 << 20),
        threads_per_sm: 2048,
        ctas_per_sm: 32,
        registers_per_sm: 65_536,
        shared_per_sm: Bytes(233_472),
        shared_per_cta: Bytes(49_152),
        shared_per_cta_optin: Bytes(232_448),
        threads_per_cta: 1024,
        register_parts: 4,
        shared_reserved: Bytes(1024),
        absent_sms: partita_model::SmSet::EMPTY,
    }
}

pub fn listen(dir: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(dir.join(SOCKET_NAME)).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    socket
}

/// Serves clients until the process ends, each on a thread of its own.
pub fn serve(socket: &OwnedFd, sizes: Sizes) {
    loop {
        let Ok(connection) = rustix::net::accept_with(socket, SocketFlags::CLOEXEC) else { return };
        std::thread::spawn(move || {
            if let Some(session) = welcome(&connection, sizes) {
                drop(connection);
                Plane::new(session).run();
            }
        });
    }
}

pub fn welcome(connection: &OwnedFd, sizes: Sizes) -> Option<ServerSession> {
    let hello = message::receive(connection, 4096).ok()?;
    if let Err(error) = Hello::decode(&hello.bytes) {
        message::send(connection, &Answer::Refused(error.into()).encode(), &[]).ok()?;
        return None;
    }
    let mut session = ServerSession::create(sizes).unwrap();
    message::send(connection, &welcome_message(&session).encode(), &session.client_fds().unwrap())
        .ok()?;
    session.sent_fds();
    Some(session)
}

pub fn welcome_message(session: &ServerSession) -> Answer {
    Answer::Welcome(Box::new(Welcome {
        protocol: PROTOCOL,
        features: 0,
        session: SessionId(1),
        facts: facts(),
        window: Window { base: DeviceAddress(BASE), bytes: MEMORY as u64 },
        layout: session.layout(),
        host: None,
    }))
}

pub struct Plane {
    session: ServerSession,
    memory: Vec<u8>,
    next: u64,
    image: Vec<u8>,
    slots: std::collections::HashMap<u64, u32>,
    now_ns: u64,
}

impl Plane {
    pub fn new(session: ServerSession) -> Self {
        let slots = std::collections::HashMap::new();
        Plane { session, memory: vec![0; MEMORY], next: 256, image: Vec::new(), slots, now_ns: 0 }
    }

    pub fn run(mut self) {
        loop {
            while let Some(incoming) = self.session.poll_request().unwrap() {
                self.serve(incoming);
            }
            if !self.session.prepare_to_sleep().unwrap() {
                continue;
            }
            let bell = self.session.bell();
            let mut polled = [PollFd::new(&bell, PollFlags::IN)];
            while poll(&mut polled, None).is_err() {}
            if self.session.woken() == BellState::Gone {
                return;
            }
        }
    }

    fn serve(&mut self, incoming: Incoming) {
        let Incoming { sequence, wants_reply, request } = incoming;
        let outcome = match self.session.sticky() {
            Some(error) => Err(CallError::new(error.code, "sticky")),
            None => self.execute(sequence, request),
        };
        if wants_reply {
            self.session.reply(sequence, outcome.as_ref()).unwrap();
        } else if let Err(error) = outcome {
            self.session.set_sticky(sequence, &error).unwrap();
        }
    }

    fn receive(&mut self, part: ImagePart) {
        match part {
            ImagePart::Begin { .. } => self.image.clear(),
            ImagePart::Chunk { offset, data, .. } => {
                assert_eq!(offset, self.image.len() as u64);
                self.image.extend(data);
            }
        }
    }

    fn execute(&mut self, sequence: Sequence, received: Received) -> Result<Reply, CallError> {
        let request = match received {
            Received::Request(request) => request,
            Received::Image(part) => {
                self.receive(part);
                return Ok(Reply::Done);
            }
        };
        let arena = self.session.arena();
        self.now_ns += 1000;
        match request {
            Request::MemAlloc { bytes } => {
                let end = self.next.saturating_add(bytes);
                if end > MEMORY as u64 {
                    return Err(CallError::new(code::OUT_OF_MEMORY, "full"));
                }
                let address = DeviceAddress(BASE + self.next);
                self.next = end.next_multiple_of(256);
                return Ok(Reply::Address(address));
            }
            Request::MemInfo => return Ok(Reply::Memory { free: 1, total: MEMORY as u64 }),
            Request::ModuleLoad { .. } => return Ok(Reply::Module(self.module())),
            Request::EventCreate { event, slot } => {
                self.slots.insert(event.0, slot);
            }
            Request::EventRecord { event, .. } => {
                self.session.set_event(self.slots[&event.0], sequence, self.now_ns);
            }
            Request::Launch(Launch { kernel: FAULTING, .. }) => {
                self.session.output(Console::Error, LAST_WORDS.as_bytes()).expect("there is room");
                return Err(CallError::new(code::ILLEGAL_ADDRESS, "fault"));
            }
            Request::Launch(Launch { kernel: DEADLY, .. }) => std::process::abort(),
            Request::CopyToDevice { to, from: ArenaRange { offset, bytes }, .. } => {
                let range = self.range(to, bytes)?;
                arena.read(offset, &mut self.memory[range]);
            }
            Request::CopyToHost { from, to: ArenaRange { offset, bytes }, .. } => {
                let range = self.range(from, bytes)?;
                arena.write(offset, &self.memory[range]);
            }
            Request::CopyOnDevice { to, from, bytes, .. } => {
                let (to, from) = (self.range(to, bytes)?, self.range(from, bytes)?);
                self.memory.copy_within(from, to.start);
            }
            Request::Fill { to, value, width, count, .. } => {
                let width = usize::from(width);
                let range = self.range(to, count * width as u64)?;
                for element in self.memory[range].chunks_mut(width) {
                    element.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            Request::StreamQuery { stream } if stream != StreamHandle::LEGACY => {
                return Err(CallError::new(code::NOT_READY, "busy"));
            }
            _ => {}
        }
        Ok(Reply::Done)
    }

    /// A kernel named as the image, and a variable whose size is the image's.
    fn module(&self) -> ModuleReply {
        let kernel = KernelReply {
            name: String::from_utf8_lossy(&self.image[..self.image.len().min(100)]).into_owned(),
            params: vec![ParamLayout { offset: 0, bytes: 8 }],
            registers: 1,
            static_shared: 0,
            local: 0,
            max_threads: 1024,
            form: "worker".to_owned(),
            place: 0,
            launches: false,
            hidden_shared: 0,
        };
        let bytes = self.image.len() as u64;
        let variable =
            VariableReply { name: "size".to_owned(), address: DeviceAddress(BASE), bytes };
        ModuleReply { kernels: vec![kernel], refused: Vec::new(), variables: vec![variable] }
    }

    /// Only what was allocated is live.
    fn range(
        &self,
        address: DeviceAddress,
        bytes: u64,
    ) -> Result<std::ops::Range<usize>, CallError> {
        let start = address.0 - BASE;
        if start < 256 || start + bytes > self.next {
            return Err(CallError::new(code::INVALID_VALUE, format!("{address} is not live")));
        }
        Ok(usize::try_from(start).unwrap()..usize::try_from(start + bytes).unwrap())
    }
}
