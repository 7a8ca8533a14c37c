//! The clients and their behaviour.
//!
//! A healthy client keeps a copy of the contents that each of its regions must have after
//! everything that it asked for is done. The order of its streams and the events between them leave
//! no choice. A faulty client may get any answer. It may not change a healthy client's memory,
//! prevent a healthy client's end, or leave anything behind.

use crate::images::{GOOD_IMAGE, KERNELS};
use crate::random::Random;
use crate::world::{Arena, Reply, World};
use partita_device::AddressRange;
use partita_engine::{CloseReason, Payload, SessionGrant, SessionIdentity};
use partita_model::request::{
    ArenaRange, EventHandle, ImageId, Launch, ModuleHandle, Request, Secret, Sequence,
    StreamHandle, StreamKind,
};
use partita_model::{ApplicationId, CudaResult, DeviceAddress, Dim3, SessionId, TenantId, Terms};
use std::collections::BTreeMap;
use std::sync::Arc;

const MODULE: ModuleHandle = ModuleHandle(1);
const STREAMS: u64 = 4;
/// Threads of a CTA of `mirror`, and what regions are a multiple of.
const MIRROR: u32 = 64;

/// The character of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Character {
    /// Does nothing wrong, and everything it asks for must be done.
    Healthy,
    /// Dies, with whatever is in flight.
    Dies,
    /// Launches kernels that fault, and goes on.
    Faults,
    /// Asks for what cannot be and for what is others'.
    Lies,
    /// Asks for much and waits for nothing.
    Floods,
    /// Launches kernels that never end.
    Spins,
    /// Begins, and is never heard of again.
    Stalls,
}

impl Character {
    /// Every character but the healthy one.
    pub const FAULTY: [Character; 6] = [
        Character::Dies,
        Character::Faults,
        Character::Lies,
        Character::Floods,
        Character::Spins,
        Character::Stalls,
    ];
}

/// The expected answer.
enum Expect {
    Anything,
    Success,
    Status,
    Region(usize),
    Module,
    /// Perhaps memory of another client.
    Opened,
    /// A gate, which is opened as soon as it has been answered.
    Gate(u64),
    Words {
        range: ArenaRange,
        words: Vec<u32>,
    },
}

/// Device memory of a client, used in the order of one stream.
struct Region {
    address: Option<DeviceAddress>,
    words: Vec<u32>,
}

/// A client.
pub struct Client {
    /// Its session.
    pub session: SessionId,
    /// Whose application it belongs to.
    pub application: ApplicationId,
    /// The client's character.
    pub character: Character,
    /// Whether its application is its own.
    pub alone: bool,
    /// Launches that were accepted.
    pub launches: u64,
    window: AddressRange,
    arena: Arc<Arena>,
    loaded: bool,
    regions: Vec<Region>,
    /// Memory of other clients that it was given.
    opened: Vec<DeviceAddress>,
    pending: BTreeMap<u64, Expect>,
    acts: u32,
}

impl Client {
    /// Opens a session, creates streams and events, loads a module, takes memory.
    ///
    /// # Errors
    /// The engine's error.
    pub fn connect(
        world: &mut World,
        random: &mut Random,
        character: Character,
        tag: Option<&str>,
    ) -> Result<Client, String> {
        let identity = |session: SessionId| SessionIdentity {
            session,
            tenant: TenantId(1000),
            pid: 4000,
            program: format!("{character:?}").to_lowercase(),
            tag: tag.map(str::to_owned),
            asked: Terms::default(),
        };
        let (session, SessionGrant { window, application }) = world.open(identity)?;
        let mut client = Client {
            session,
            application,
            character,
            alone: tag.is_none(),
            launches: 0,
            window,
            arena: Arc::default(),
            loaded: false,
            regions: Vec::new(),
            opened: Vec::new(),
            pending: BTreeMap::new(),
            acts: 0,
        };
        world.engine.set_arena(session, client.arena.clone());
        client.send(
            world,
            Request::ModuleLoad { module: MODULE, image: GOOD_IMAGE },
            Expect::Module,
        );
        for stream in 0..STREAMS {
            if stream > 0 {
                let kind = if stream == 3 { StreamKind::NonBlocking } else { StreamKind::Blocking };
                let request =
                    Request::StreamCreate { stream: StreamHandle(stream), kind, priority: 0 };
                client.send(world, request, Expect::Success);
            }
            client.send(
                world,
                Request::EventCreate { event: EventHandle(stream), slot: 0 },
                Expect::Success,
            );
            let words = vec![0; (random.between(1, 24) * MIRROR) as usize];
            client.regions.push(Region { address: None, words });
            client.allocate(world, client.regions.len() - 1);
        }
        client.collect(world);
        Ok(client)
    }

    /// Takes the answers that have come.
    pub fn collect(&mut self, world: &mut World) {
        let sequences: Vec<u64> = self.pending.keys().copied().collect();
        for sequence in sequences {
            let Some(reply) = world.take_reply(self.session, sequence) else { continue };
            let Some(expect) = self.pending.remove(&sequence) else { continue };
            if let Err(what) = self.answered(world, &reply, expect)
                && self.character == Character::Healthy
            {
                world.breaks(format!("{}: request {sequence}: {what}", self.session));
            }
        }
    }

    /// Whether every answer has come.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.pending.is_empty()
    }

    /// The unanswered requests, in words.
    #[must_use]
    pub fn unanswered(&self) -> String {
        format!(
            "{} ({:?}): requests {:?}",
            self.session,
            self.character,
            self.pending.keys().collect::<Vec<_>>()
        )
    }

    fn answered(
        &mut self,
        world: &mut World,
        (code, payload): &Reply,
        expect: Expect,
    ) -> Result<(), String> {
        let success = || match *code {
            CudaResult::SUCCESS => Ok(()),
            code => Err(format!("{code}: {payload:?}")),
        };
        match expect {
            Expect::Anything => Ok(()),
            Expect::Success => success(),
            Expect::Opened => {
                if let Payload::Opened(range) = payload {
                    self.opened.push(range.start);
                }
                Ok(())
            }
            Expect::Status => match *code {
                CudaResult::ERROR_NOT_READY => Ok(()),
                _ => success(),
            },
            Expect::Module => {
                success()?;
                self.loaded = true;
                Ok(())
            }
            Expect::Gate(gate) => {
                success()?;
                self.send(world, Request::OpenGate { gate: Sequence(gate) }, Expect::Success);
                Ok(())
            }
            Expect::Region(index) => {
                success()?;
                let Payload::Address(address) = *payload else {
                    return Err(format!("no address: {payload:?}"));
                };
                self.regions[index].address = Some(address);
                let words: Vec<u32> = (0..).take(self.regions[index].words.len()).collect();
                self.upload(world, index, words);
                Ok(())
            }
            Expect::Words { range, words } => {
                success()?;
                let found = self.arena.words(range);
                match found.iter().zip(&words).position(|(a, b)| a != b) {
                    None => Ok(()),
                    Some(at) => Err(format!(
                        "word {at} of {} is {:#x} and must be {:#x}",
                        words.len(),
                        found[at],
                        words[at]
                    )),
                }
            }
        }
    }

    fn send(&mut self, world: &mut World, request: Request, expect: Expect) {
        let expect = if self.character == Character::Healthy { expect } else { loosen(expect) };
        let sequence = world.send(self.session, request);
        self.pending.insert(sequence, expect);
    }

    fn allocate(&mut self, world: &mut World, index: usize) {
        let bytes = self.regions[index].words.len() as u64 * 4;
        self.send(world, Request::MemAlloc { bytes }, Expect::Region(index));
    }

    fn upload(&mut self, world: &mut World, index: usize, words: Vec<u32>) {
        let Some(to) = self.regions[index].address else { return };
        let from = self.arena.append(&words);
        self.regions[index].words = words;
        self.send(
            world,
            Request::CopyToDevice { stream: stream_of(index), to, from },
            Expect::Success,
        );
    }

    /// Asks for a region's content.
    fn download(&mut self, world: &mut World, index: usize) {
        let Some(from) = self.regions[index].address else { return };
        let words = self.regions[index].words.clone();
        let to = self.arena.append(&vec![0xdead_beef; words.len()]);
        let request = Request::CopyToHost { stream: stream_of(index), to, from };
        self.send(world, request, Expect::Words { range: to, words });
    }

    /// Asks for every region's content.
    pub fn download_all(&mut self, world: &mut World) {
        for index in 0..self.regions.len() {
            self.download(world, index);
        }
    }

    /// The addresses of the client's regions.
    pub fn addresses(&self) -> impl Iterator<Item = DeviceAddress> {
        self.regions.iter().filter_map(|region| region.address)
    }

    /// Does something. `victims` are addresses of others. False: it is dead.
    pub fn act(
        &mut self,
        world: &mut World,
        random: &mut Random,
        victims: &[DeviceAddress],
    ) -> bool {
        self.collect(world);
        if world.was_ended(self.session) {
            return false;
        }
        self.acts += 1;
        match self.character {
            Character::Dies if self.acts > 4 && random.once_in(12) => {
                world.close(self.session, CloseReason::Died);
                return false;
            }
            Character::Faults if self.acts > 6 && random.once_in(3) => self.fault(world, random),
            Character::Lies if random.once_in(2) => self.lie(world, random, victims),
            Character::Floods if random.once_in(3) => {
                for _ in 0..random.between(50, 400) {
                    self.work(world, random);
                }
            }
            Character::Spins if self.acts > 4 && random.once_in(4) => {
                let index = region_index(random);
                self.launch(world, "spin", index, 64, random.between(1, 200), [0; 8]);
            }
            Character::Stalls if self.acts > 4 => {}
            _ => self.work(world, random),
        }
        true
    }

    /// Honest work.
    fn work(&mut self, world: &mut World, random: &mut Random) {
        let index = region_index(random);
        let stream = stream_of(index);
        let event = EventHandle(stream.0);
        match random.below(25) {
            0..=9 => self.compute(world, random, index),
            10 | 11 => self.gather(world, random, index),
            12 => self.fill(world, random, index),
            13 => self.shift(world, random, index),
            14 => {
                let words =
                    self.regions[index].words.iter().map(|_| random.between(0, u32::MAX)).collect();
                self.upload(world, index, words);
            }
            15 | 16 => self.download(world, index),
            17 => self.send(world, Request::Synchronize { stream: Some(stream) }, Expect::Success),
            18 => self.send(world, Request::EventRecord { event, stream }, Expect::Success),
            19 => self.send(world, Request::StreamWait { stream, event }, Expect::Success),
            20 | 21 => self.send(world, Request::StreamQuery { stream }, Expect::Status),
            22 => self.send(world, Request::MemInfo, Expect::Success),
            23 => {
                let gate = world.send(self.session, Request::Gate { stream });
                self.pending.insert(gate, Expect::Gate(gate));
            }
            _ => {
                if let Some(address) = self.regions[index].address.take() {
                    self.send(world, Request::MemFree { address }, Expect::Success);
                    self.allocate(world, index);
                }
            }
        }
    }

    fn compute(&mut self, world: &mut World, random: &mut Random, index: usize) {
        let length = u32::try_from(self.regions[index].words.len()).unwrap_or(u32::MAX);
        let count = random.between(1, length);
        let k = random.between(0, 1000);
        let rounds = random.between(0, 200);
        let names = ["step", "step", "step", "long", "mirror", "early", "alone", "leaving"];
        let name = *random.pick(&names);
        let block = if name == "mirror" { MIRROR } else { *random.pick(&[32, 64, 96, 256]) };
        let most = if name == "leaving" { 600 } else { 40 };
        let spare = if random.once_in(4) { random.between(1, most) } else { 0 };
        let ctas = if name == "mirror" { length / MIRROR } else { count.div_ceil(block) + spare };
        let is_long = matches!(name, "long" | "leaving");
        let argument = if is_long { rounds } else { k };
        if !self.launch(world, name, index, block, ctas, arguments(count, argument)) {
            return;
        }
        let words = &mut self.regions[index].words;
        let some = words.iter_mut().take(count as usize);
        match name {
            "mirror" => words.chunks_exact_mut(MIRROR as usize).for_each(|chunk| {
                chunk.reverse();
                chunk.iter_mut().for_each(|word| *word = word.wrapping_add(k));
            }),
            _ if is_long => some.for_each(|word| {
                for _ in 0..rounds {
                    *word = word.wrapping_mul(3).wrapping_add(1);
                }
            }),
            _ => some.for_each(|word| *word = word.wrapping_mul(3).wrapping_add(k)),
        }
    }

    /// One stream uses what another has made; events keep both from going on too early.
    fn gather(&mut self, world: &mut World, random: &mut Random, index: usize) {
        let other =
            (index + 1 + region_index(random) % (self.regions.len() - 1)) % self.regions.len();
        let (Some(_), Some(from)) = (self.regions[index].address, self.regions[other].address)
        else {
            return;
        };
        let (mine, theirs) = (stream_of(index), stream_of(other));
        let count = self.regions[index].words.len().min(self.regions[other].words.len());
        let record =
            |stream: StreamHandle| Request::EventRecord { event: EventHandle(stream.0), stream };
        let wait =
            |stream, on: StreamHandle| Request::StreamWait { stream, event: EventHandle(on.0) };
        self.send(world, record(theirs), Expect::Success);
        self.send(world, wait(mine, theirs), Expect::Success);
        let small = u32::try_from(count).unwrap_or(0);
        let mut tail = [0; 8];
        tail.copy_from_slice(&from.0.to_le_bytes());
        if self.launch_with(world, "gather", index, 128, small.div_ceil(128), small, &tail) {
            let added = self.regions[other].words.clone();
            for (word, other) in self.regions[index].words.iter_mut().zip(added) {
                *word = word.wrapping_add(other);
            }
        }
        self.send(world, record(mine), Expect::Success);
        self.send(world, wait(theirs, mine), Expect::Success);
    }

    fn fill(&mut self, world: &mut World, random: &mut Random, index: usize) {
        let Some(to) = self.regions[index].address else { return };
        let value = random.between(0, u32::MAX);
        let count = random.below(self.regions[index].words.len() as u64 + 1);
        let request = Request::Fill { stream: stream_of(index), to, value, width: 4, count };
        self.send(world, request, Expect::Success);
        self.regions[index].words.iter_mut().zip(0..count).for_each(|(word, _)| *word = value);
    }

    /// Copies within a region, ranges overlapping.
    fn shift(&mut self, world: &mut World, random: &mut Random, index: usize) {
        let Some(from) = self.regions[index].address else { return };
        let words = &mut self.regions[index].words;
        let by = usize::try_from(random.below(words.len() as u64)).unwrap_or(0);
        let count = words.len() - by;
        words.copy_within(..count, by);
        let to = DeviceAddress(from.0 + by as u64 * 4);
        let request =
            Request::CopyOnDevice { stream: stream_of(index), to, from, bytes: count as u64 * 4 };
        self.send(world, request, Expect::Success);
    }

    fn launch(
        &mut self,
        world: &mut World,
        name: &str,
        index: usize,
        block: u32,
        ctas: u32,
        tail: [u8; 8],
    ) -> bool {
        let (count, k) = tail.split_at(4);
        let count = u32::from_le_bytes([count[0], count[1], count[2], count[3]]);
        self.launch_with(world, name, index, block, ctas, count, k)
    }

    /// Whether it was asked for: a module or memory that has not come yet keeps it from that.
    #[expect(clippy::too_many_arguments, reason = "a launch has them")]
    fn launch_with(
        &mut self,
        world: &mut World,
        name: &str,
        index: usize,
        block: u32,
        ctas: u32,
        count: u32,
        last: &[u8],
    ) -> bool {
        let (true, Some(address)) = (self.loaded, self.regions[index].address) else {
            return false;
        };
        let mut params = address.0.to_le_bytes().to_vec();
        params.extend(count.to_le_bytes());
        if last.len() == 8 {
            params.extend([0; 4]);
        }
        params.extend(last);
        let launch = Launch {
            stream: stream_of(index),
            module: MODULE,
            kernel: kernel_index(name),
            grid: Dim3::linear(ctas),
            block: Dim3::linear(block),
            dynamic_shared: 0,
            cooperative: false,
            cluster: Dim3::linear(1),
            params,
        };
        self.send(world, Request::Launch(launch), Expect::Success);
        self.launches += 1;
        true
    }

    fn fault(&mut self, world: &mut World, random: &mut Random) {
        let index = region_index(random);
        if random.once_in(2) {
            self.launch(world, "trapping", index, 32, 20, arguments(0, random.between(0, 19)));
            return;
        }
        let beyond = *random.pick(&[0, self.window.end(), self.window.end() - 4, u64::MAX - 3]);
        let honest = self.regions[index].address.replace(DeviceAddress(beyond));
        self.launch(world, "step", index, 64, 4, arguments(256, 1));
        self.regions[index].address = honest;
    }

    fn lie(&mut self, world: &mut World, random: &mut Random, victims: &[DeviceAddress]) {
        let anywhere = DeviceAddress(random.next());
        let theirs = if victims.is_empty() { anywhere } else { *random.pick(victims) };
        let mine = self.regions[0].address.unwrap_or(anywhere);
        let opened = if self.opened.is_empty() { anywhere } else { *random.pick(&self.opened) };
        let stream = StreamHandle(*random.pick(&[0, 1, 99, u64::MAX]));
        let event = EventHandle(*random.pick(&[0, 2, 77, u64::MAX]));
        let bytes = *random.pick(&[0, 1, 4096, u64::MAX, u64::MAX - 7, 1 << 40]);
        let from = self.arena.append(&[7; 1024]);
        let to = ArenaRange { offset: from.offset, bytes };
        // Only liars export anything, and others' secrets are the next numbers.
        let secret = Secret(u128::from(random.below(12)));
        let request = match random.below(25) {
            0 => Request::CopyToDevice { stream, to: theirs, from },
            1 => Request::CopyToHost { stream, to, from: theirs },
            2 => Request::CopyOnDevice { stream, to: theirs, from: mine, bytes },
            3 => Request::Fill { stream, to: theirs, value: 1, width: 4, count: bytes },
            4 => Request::Fill { stream, to: mine, value: 1, width: 3, count: 9 },
            5 => Request::MemFree { address: theirs },
            6 => Request::MemFree { address: anywhere },
            7 => Request::MemAlloc { bytes },
            8 => Request::ModuleLoad { module: ModuleHandle(random.below(4)), image: ImageId(2) },
            9 => Request::ModuleUnload { module: ModuleHandle(2 + random.below(4)) },
            10 => Request::EventRecord { event, stream },
            11 => Request::StreamWait { stream, event },
            12 => Request::StreamDestroy { stream },
            13 => Request::EventDestroy { event },
            14 => Request::Gate { stream },
            15 => Request::ExportMemory { address: *random.pick(&[mine, theirs, anywhere]) },
            16 | 17 => Request::OpenMemory { secret },
            18 => Request::CloseMemory { address: *random.pick(&[opened, opened, mine, theirs]) },
            19 => Request::ExportEvent { event },
            20 => Request::OpenEvent { event, secret },
            21 => Request::EventQuery { event },
            22 => Request::EventSynchronize { event },
            23 => Request::Fill { stream, to: opened, value: 1, width: 1, count: bytes },
            _ => {
                let extent = |random: &mut Random| *random.pick(&[0, 1, 33, 1025, u32::MAX]);
                let mut params = theirs.0.to_le_bytes().to_vec();
                params.resize(usize::try_from(random.below(24)).unwrap_or(0), 1);
                Request::Launch(Launch {
                    stream,
                    module: ModuleHandle(1 + random.below(2)),
                    kernel: random.between(0, 12),
                    grid: Dim3 { x: extent(random), y: 1, z: random.between(0, 1) },
                    block: Dim3 { x: extent(random), y: 1, z: 1 },
                    dynamic_shared: extent(random),
                    cooperative: random.once_in(4),
                    cluster: Dim3::linear(*random.pick(&[1, 1, 2, 0])),
                    params,
                })
            }
        };
        let expect = match request {
            Request::OpenMemory { .. } => Expect::Opened,
            _ => Expect::Anything,
        };
        self.send(world, request, expect);
    }
}

/// Faulty clients need not get what they ask for, but take memory and modules as they come.
fn loosen(expect: Expect) -> Expect {
    match expect {
        Expect::Region(_) | Expect::Module | Expect::Gate(_) | Expect::Opened => expect,
        _ => Expect::Anything,
    }
}

fn region_index(random: &mut Random) -> usize {
    usize::try_from(random.below(STREAMS)).unwrap_or(0)
}

fn stream_of(region: usize) -> StreamHandle {
    StreamHandle(region as u64)
}

fn arguments(count: u32, k: u32) -> [u8; 8] {
    let mut tail = [0; 8];
    tail[..4].copy_from_slice(&count.to_le_bytes());
    tail[4..].copy_from_slice(&k.to_le_bytes());
    tail
}

/// A kernel's index in the module, which keeps the text's order.
fn kernel_index(name: &str) -> u32 {
    let names = KERNELS.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
    let index = names.map(|rest| rest.split('(').next()).position(|found| found == Some(name));
    index.and_then(|index| u32::try_from(index).ok()).expect("a kernel of the text")
}
