//! A data plane without a device, for the programs in `tests/cuda`. Memory is a vector, streams
//! finish at once, and the programs' kernels are functions of this file, found by name.

use partita_model::request::{ArenaRange, Launch, Request, Sequence};
use partita_model::{
    Bytes, ComputeCapability, DeviceAddress, DeviceFacts, DeviceKind, ImageKind, ImagePart,
    SessionId, Timekeeping,
};
use partita_wire::message;
use partita_wire::{
    Answer, BellState, CallError, Incoming, KernelReply, ModuleReply, PROTOCOL, ParamLayout,
    Received, Reply, SOCKET_NAME, ServerSession, Sizes, VariableReply, Welcome, Window, code,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

const BASE: u64 = 1 << 40;
const MEMORY: usize = 64 << 20;
const VARIABLE: u64 = BASE + 64;

/// What programs did, in the order of the data plane.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    /// All lines so far, which are forgotten.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Kernels by the names that nvcc gives them: sizes of parameters, and what they do.
type Body = fn(&mut Plane, u64, &[u8]);
const KERNELS: &[(&str, &[u32], Body)] = &[
    ("_Z6vecAddPKfS0_Pfi", &[8, 8, 8, 4], |plane, threads, params| {
        let count = u64::from(u32::from_le_bytes(params[24..28].try_into().unwrap())).min(threads);
        for i in 0..count {
            let [a, b, c] = [0, 8, 16].map(|at| pointer(params, at) + 4 * i);
            let sum = plane.float(a) + plane.float(b);
            plane.set_float(c, sum);
        }
    }),
    ("_Z5scalePfi", &[8, 4], |plane, threads, params| {
        let count = u64::from(u32::from_le_bytes(params[8..12].try_into().unwrap())).min(threads);
        for i in 0..count {
            let scaled = plane.float(pointer(params, 0) + 4 * i) * plane.float(VARIABLE);
            plane.set_float(pointer(params, 0) + 4 * i, scaled);
        }
    }),
    ("_Z5faultv", &[], |_, _, _| {}),
];

fn pointer(params: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(params[at..at + 8].try_into().unwrap())
}

/// Serves clients on the socket in `dir` until the test's process ends.
pub fn start(dir: &Path) -> Journal {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(dir.join(SOCKET_NAME)).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    let journal = Journal::default();
    let kept = journal.clone();
    std::thread::spawn(move || {
        while let Ok(connection) = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC) {
            let journal = journal.clone();
            std::thread::spawn(move || {
                let session = welcome(&connection);
                drop(connection);
                Plane::new(session, journal).run();
            });
        }
    });
    kept
}

fn welcome(connection: &OwnedFd) -> ServerSession {
    message::receive(connection, 4096).unwrap();
    let mut session = ServerSession::create(Sizes::default()).unwrap();
    let answer = Answer::Welcome(Box::new(Welcome {
        protocol: PROTOCOL,
        features: 0,
        session: SessionId(1),
        facts: facts(),
        window: Window { base: DeviceAddress(BASE), bytes: MEMORY as u64 },
        layout: session.layout(),
        host: None,
    }));
    message::send(connection, &answer.encode(), &session.client_fds().unwrap()).unwrap();
    session.sent_fds();
    session
}

fn facts() -> DeviceFacts {
    DeviceFacts {
        kind: DeviceKind::Emulated,
        timekeeping: Timekeeping::Simulated,
        name: "Fake GPU".to_owned(),
        uuid: [7; 16],
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        sm_count: 24,
        sm_clock_khz: 1_500_000,
        memory_clock_khz: 2_000_000,
        memory_bus_bits: 384,
        memory: Bytes(MEMORY as u64),
        llc: Bytes(4 << 20),
        threads_per_sm: 2048,
        ctas_per_sm: 32,
        registers_per_sm: 65_536,
        shared_per_sm: Bytes(228 << 10),
        shared_per_cta: Bytes(48 << 10),
        shared_per_cta_optin: Bytes(227 << 10),
        threads_per_cta: 1024,
        register_parts: 4,
        shared_reserved: Bytes(1024),
        absent_sms: partita_model::SmSet::EMPTY,
    }
}

struct Plane {
    session: ServerSession,
    journal: Journal,
    memory: Vec<u8>,
    next: u64,
    slots: HashMap<u64, u32>,
    now_ns: u64,
    is_malformed: bool,
    /// The gate that everything behind it waits for, as if there were one stream.
    gate: Option<Sequence>,
    held: VecDeque<Incoming>,
}

impl Plane {
    fn new(session: ServerSession, journal: Journal) -> Self {
        let (memory, slots) = (vec![0; MEMORY], HashMap::new());
        let (gate, held) = (None, VecDeque::new());
        Plane {
            session,
            journal,
            memory,
            next: 4096,
            slots,
            now_ns: 0,
            is_malformed: false,
            gate,
            held,
        }
    }

    fn run(mut self) {
        loop {
            while let Some(incoming) = self.session.poll_request().unwrap() {
                self.held.push_back(incoming);
            }
            let opens = |incoming: &Incoming| {
                matches!(incoming.request, Received::Request(Request::OpenGate { .. }))
            };
            while let Some(next) = match self.gate {
                None => self.held.pop_front(),
                Some(_) => self.held.iter().position(opens).and_then(|at| self.held.remove(at)),
            } {
                self.serve(next);
            }
            if !self.session.prepare_to_sleep().unwrap() {
                continue;
            }
            let bell = self.session.bell();
            let mut polled = [PollFd::new(&bell, PollFlags::IN)];
            while poll(&mut polled, None).is_err() {}
            if self.session.woken() == BellState::Gone {
                self.journal.add("gone".to_owned());
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
            ImagePart::Begin { kind, bytes, unpacked_bytes, .. } => {
                assert!(
                    bytes <= unpacked_bytes || matches!(kind, ImageKind::Ptx | ImageKind::Bundle)
                );
                self.journal.add(format!("module {kind:?}"));
            }
            ImagePart::Chunk { data, .. } => {
                self.is_malformed |= data.ends_with(b"malformed");
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
        self.now_ns += 1_000_000;
        match request {
            Request::MemAlloc { bytes } => {
                let address = DeviceAddress(BASE + self.next);
                let end = self.next.saturating_add(bytes);
                if end > MEMORY as u64 {
                    return Err(CallError::new(code::OUT_OF_MEMORY, "full"));
                }
                self.next = end.next_multiple_of(512);
                return Ok(Reply::Address(address));
            }
            Request::MemInfo => return Ok(Reply::Memory { free: 1 << 20, total: MEMORY as u64 }),
            Request::ModuleLoad { .. } if std::mem::take(&mut self.is_malformed) => {
                return Err(CallError::new(
                    code::INVALID_PTX,
                    "line 1, column 14: expected `.target`",
                ));
            }
            Request::ModuleLoad { .. } => return Ok(Reply::Module(module())),
            Request::ModuleUnload { .. } => self.journal.add("unload".to_owned()),
            Request::Gate { .. } => self.gate = Some(sequence),
            Request::OpenGate { gate } => assert_eq!(self.gate.take(), Some(gate)),
            Request::EventCreate { event, slot } => {
                self.slots.insert(event.0, slot);
            }
            Request::EventRecord { event, .. } => {
                self.session.set_event(self.slots[&event.0], sequence, self.now_ns);
            }
            Request::Launch(Launch { kernel, grid, block, params, stream, .. }) => {
                let (name, _, body) = KERNELS[kernel as usize];
                self.journal
                    .add(format!("launch {name} grid {grid} block {block} stream {}", stream.0));
                if name == "_Z5faultv" {
                    return Err(CallError::new(code::ILLEGAL_ADDRESS, "fault"));
                }
                let threads = u64::try_from(grid.count() * block.count()).unwrap();
                body(self, threads, &params);
            }
            Request::CopyToDevice { to, from: ArenaRange { offset, bytes }, .. } => {
                let range = range(to, bytes)?;
                arena.read(offset, &mut self.memory[range]);
            }
            Request::CopyToHost { from, to: ArenaRange { offset, bytes }, .. } => {
                arena.write(offset, &self.memory[range(from, bytes)?]);
            }
            Request::CopyOnDevice { to, from, bytes, .. } => {
                let (to, from) = (range(to, bytes)?, range(from, bytes)?);
                self.memory.copy_within(from, to.start);
            }
            Request::Fill { to, value, width, count, .. } => {
                let width = usize::from(width);
                let range = range(to, count * width as u64)?;
                for element in self.memory[range].chunks_mut(width) {
                    element.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            _ => {}
        }
        Ok(Reply::Done)
    }

    fn float(&self, address: u64) -> f32 {
        let bytes = &self.memory[range(DeviceAddress(address), 4).unwrap()];
        f32::from_le_bytes(bytes.try_into().unwrap())
    }

    fn set_float(&mut self, address: u64, value: f32) {
        let range = range(DeviceAddress(address), 4).unwrap();
        self.memory[range].copy_from_slice(&value.to_le_bytes());
    }
}

fn module() -> ModuleReply {
    let kernels = KERNELS.iter().map(|(name, sizes, _)| {
        let mut offset = 0;
        let params = sizes.iter().map(|&bytes| {
            offset = u32::next_multiple_of(offset, bytes) + bytes;
            ParamLayout { offset: offset - bytes, bytes }
        });
        KernelReply {
            name: (*name).to_owned(),
            params: params.collect(),
            registers: 32,
            static_shared: 0,
            local: 0,
            max_threads: 1024,
            form: "worker".to_owned(),
            place: 0,
            launches: false,
            hidden_shared: 0,
        }
    });
    let variable =
        VariableReply { name: "factor".to_owned(), address: DeviceAddress(VARIABLE), bytes: 4 };
    ModuleReply { kernels: kernels.collect(), refused: Vec::new(), variables: vec![variable] }
}

fn range(address: DeviceAddress, bytes: u64) -> Result<Range<usize>, CallError> {
    let start = address.0 - BASE;
    if start + bytes > MEMORY as u64 {
        return Err(CallError::new(code::INVALID_VALUE, format!("{address} is not live")));
    }
    Ok(usize::try_from(start).unwrap()..usize::try_from(start + bytes).unwrap())
}
