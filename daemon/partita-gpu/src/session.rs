//! One client's session as the shell sees it: its end of the wire, and what the engine need not
//! know.
//!
//! The wire parses records into requests, and the engine takes requests. In between lies what
//! belongs to neither: which records want an answer, which event has which slot, module images
//! while they arrive, and which index of a kernel in the answer is which in the engine.

use crate::prepare::KernelShape;
use crate::uploads::{Image, UploadError, Uploads};
use partita_device::HostMemory;
use partita_engine::{LoadedModule, Payload};
use partita_model::request::{EventHandle, ImageId, ModuleHandle, Request, Sequence};
use partita_model::{Console, CudaResult, Nanos};
use partita_wire::{
    Arena, CallError, HIDDEN_SHARED, Incoming, KernelReply, ModuleReply, NESTED, Received, Reply,
    ServerSession, VariableReply, Violation,
};
use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The session's arena as the device's host memory.
struct ArenaMemory {
    arena: Arena,
    file: Arc<OwnedFd>,
    /// Bytes of the staging memory.
    staging_bytes: u64,
}

impl HostMemory for ArenaMemory {
    fn size(&self) -> u64 {
        self.arena.size()
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.arena.read(offset, into);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        self.arena.write(offset, from);
    }

    fn compare_exchange(&self, offset: u64, old: &[u8], new: &[u8]) -> bool {
        self.arena.compare_exchange(offset, old, new)
    }

    /// Only the staging memory is kept. The pages of host memory go when the program frees them.
    fn kept(&self) -> Option<(usize, u64)> {
        Some((self.arena.address(0).addr(), self.staging_bytes))
    }

    fn map_again(
        &self,
        offset: u64,
        bytes: u64,
        address: u64,
    ) -> io::Result<Box<dyn Any + Send + Sync>> {
        if bytes != self.size() - offset {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Box::new(self.arena.map_host_again(self.file.as_fd(), offset, address)?))
    }

    fn can_exchange(&self, bytes: usize) -> bool {
        Arena::can_exchange(bytes)
    }
}

/// A session's arena, as devices see host memory.
pub fn arena_memory(end: &ServerSession) -> Arc<dyn HostMemory> {
    Arc::new(ArenaMemory {
        arena: end.arena(),
        file: end.memory_file(),
        staging_bytes: end.layout().staging_bytes(),
    })
}

/// Why a session has to end.
#[derive(Debug, thiserror::Error)]
pub enum Breach {
    /// A violation on the wire.
    #[error(transparent)]
    Wire(#[from] Violation),
    /// A violation in uploaded images.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

/// A module that is being loaded.
struct Load {
    module: ModuleHandle,
    image: ImageId,
}

/// What a record comes to.
#[derive(Debug)]
pub enum Taken {
    /// A request for the engine, with its record's number.
    Request(u64, Request),
    /// The session has dealt with the record itself.
    Settled,
}

/// The kernels of a module that the client knows, under the engine's numbers.
#[derive(Default)]
struct KnownModule {
    /// The kernels' shapes, in the engine's order.
    shapes: Vec<KernelShape>,
    /// The engine's index of each launchable kernel.
    launchable: Vec<u32>,
}

impl KnownModule {
    fn index(&self, kernel: u32) -> Option<u32> {
        self.launchable.get(usize::try_from(kernel).ok()?).copied()
    }
}

/// One client's session.
pub struct ClientSession {
    end: ServerSession,
    /// The client's optional features.
    features: u64,
    /// Records whose clients wait for the engine's answer.
    awaited: HashSet<u64>,
    /// The last record that was read.
    last: Sequence,
    /// Gates that their streams have not reached.
    gates: HashSet<u64>,
    /// Gates that were answered and not yet opened, while the program works.
    reached: HashSet<u64>,
    /// Gates whose client wants no answer, and that their streams have not reached.
    silent: HashSet<u64>,
    /// The same that their streams have reached. They are not open yet.
    standing: HashSet<u64>,
    event_slots: HashMap<EventHandle, u32>,
    uploads: Uploads,
    modules: BTreeMap<ModuleHandle, KnownModule>,
    /// Loads without an outcome, by their records.
    loads: HashMap<u64, Load>,
    /// Images of these loads.
    images: HashMap<ImageId, Image>,
    /// Unpacked bytes of each module that is loaded or being loaded.
    module_bytes: BTreeMap<ModuleHandle, u64>,
}

impl ClientSession {
    /// A session that has just been welcomed.
    #[must_use]
    pub fn new(end: ServerSession, features: u64) -> Self {
        ClientSession {
            end,
            features,
            awaited: HashSet::new(),
            last: Sequence(0),
            gates: HashSet::new(),
            reached: HashSet::new(),
            silent: HashSet::new(),
            standing: HashSet::new(),
            event_slots: HashMap::new(),
            uploads: Uploads::default(),
            modules: BTreeMap::new(),
            loads: HashMap::new(),
            images: HashMap::new(),
            module_bytes: BTreeMap::new(),
        }
    }

    /// Its end of the wire.
    pub fn end(&mut self) -> &mut ServerSession {
        &mut self.end
    }

    /// Whether one of the client's threads waits for the device: it says so. That an answer is owed
    /// does not mean it, for copies go on while their first chunks are on their way. Where a module
    /// is being prepared it waits for the host, and where a stream has come to a gate the device
    /// waits for it.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.loads.is_empty() && self.reached.is_empty() && self.end.client_sleeps()
    }

    /// Whether one of its streams stands at a gate that the program is to open, or may.
    #[must_use]
    pub fn is_at_gate(&self) -> bool {
        !self.reached.is_empty() || !self.standing.is_empty()
    }

    /// Whether a module of it is being loaded.
    #[must_use]
    pub fn loads(&self) -> bool {
        !self.loads.is_empty()
    }

    /// Bytes of its modules and of images that are on the way.
    #[must_use]
    pub fn module_bytes(&self) -> u64 {
        let modules = self.module_bytes.values().copied().fold(0, u64::saturating_add);
        modules.saturating_add(self.uploads.bytes())
    }

    /// The next record, if there is one now.
    ///
    /// # Errors
    /// [`Breach`]; the session cannot go on.
    pub fn poll(&mut self) -> Result<Option<Taken>, Breach> {
        let Some(incoming) = self.end.poll_request()? else { return Ok(None) };
        self.take(incoming).map(Some)
    }

    fn take(&mut self, incoming: Incoming) -> Result<Taken, Breach> {
        let Incoming { sequence, wants_reply, request } = incoming;
        self.last = sequence;
        if wants_reply {
            self.awaited.insert(sequence.0);
        }
        let mut request = match request {
            Received::Request(request) => request,
            Received::Image(part) => {
                self.uploads.take(part)?;
                return self.settle(sequence);
            }
        };
        if matches!(request, Request::Gate { .. }) {
            // If the client wants no answer, it does no work when the stream reaches the gate.
            let set = if wants_reply { &mut self.gates } else { &mut self.silent };
            set.insert(sequence.0);
        }
        self.note(sequence, &mut request)?;
        Ok(Taken::Request(sequence.0, request))
    }

    /// Keeps the shell's part of a request, and translates its kernel's index to the engine's.
    fn note(&mut self, sequence: Sequence, request: &mut Request) -> Result<(), Breach> {
        match request {
            Request::ModuleLoad { module, image } => {
                let finished = self.uploads.finish(*image)?;
                let bytes = finished.unpacked_bytes.max(finished.bytes.len() as u64);
                self.module_bytes.insert(*module, bytes);
                self.images.insert(*image, finished);
                self.loads.insert(sequence.0, Load { module: *module, image: *image });
            }
            Request::ModuleUnload { module } => {
                self.modules.remove(module);
                self.module_bytes.remove(module);
            }
            Request::EventCreate { event, slot } => {
                self.event_slots.insert(*event, *slot);
            }
            Request::EventDestroy { event } => {
                self.event_slots.remove(event);
            }
            Request::Launch(launch) => {
                let kernel = self.engine_kernel(launch.module, launch.kernel);
                launch.kernel = kernel.unwrap_or(u32::MAX);
            }
            Request::OpenGate { gate } => {
                self.gates.remove(&gate.0);
                self.reached.remove(&gate.0);
                self.silent.remove(&gate.0);
                self.standing.remove(&gate.0);
            }
            _ => {}
        }
        Ok(())
    }

    /// The engine's index of a kernel. Both sides have the same indices unless the module has
    /// kernels that cannot run.
    fn engine_kernel(&self, module: ModuleHandle, kernel: u32) -> Option<u32> {
        self.modules.get(&module)?.index(kernel)
    }

    fn settle(&mut self, sequence: Sequence) -> Result<Taken, Breach> {
        self.finish(sequence.0, CudaResult::SUCCESS, Payload::None)?;
        Ok(Taken::Settled)
    }

    /// The image of a module that is being loaded.
    #[must_use]
    pub fn image(&self, image: ImageId) -> Option<Image> {
        self.images.get(&image).cloned()
    }

    /// Remembers how a module's kernels were prepared.
    pub fn prepared(&mut self, module: ModuleHandle, shapes: Vec<KernelShape>) {
        self.modules.insert(module, KnownModule { shapes, launchable: Vec::new() });
    }

    /// The outcome of a record. Its sender gets it as an answer; where none waits, a failure
    /// becomes the session's. The failure, where it is the session's first.
    ///
    /// # Errors
    /// [`Violation`]; the session cannot go on.
    pub fn finish(
        &mut self,
        sequence: u64,
        code: CudaResult,
        payload: Payload,
    ) -> Result<Option<CallError>, Violation> {
        // Most records are launches, which are in none of these sets, so the check avoids hashing.
        let waits = !self.awaited.is_empty() && self.awaited.remove(&sequence);
        if !self.gates.is_empty() && self.gates.remove(&sequence) && code.is_success() {
            self.reached.insert(sequence);
        }
        if !self.silent.is_empty() && self.silent.remove(&sequence) && code.is_success() {
            self.standing.insert(sequence);
        }
        let load = if self.loads.is_empty() { None } else { self.loads.remove(&sequence) };
        let module = load.map(|Load { module, image }| {
            self.images.remove(&image);
            module
        });
        if code.is_success() {
            let reply = match (payload, module) {
                (Payload::Module(loaded), Some(module)) => {
                    Reply::Module(self.module_reply(module, &loaded))
                }
                (Payload::Address(address), _) => Reply::Address(address),
                (Payload::Secret(secret), _) => Reply::Secret(secret),
                (Payload::Opened(range), _) => Reply::Opened(range),
                (Payload::Texture(texture), _) => Reply::Texture(texture),
                (Payload::TensorMap(map), _) => Reply::TensorMap(map),
                (Payload::Memory { free, total }, _) => Reply::Memory { free, total },
                _ => Reply::Done,
            };
            if waits {
                self.end.reply(Sequence(sequence), Ok(&reply))?;
            }
            return Ok(None);
        }
        if let Some(module) = module {
            self.modules.remove(&module);
            self.module_bytes.remove(&module);
        }
        let code = code_number(code);
        let text = match payload {
            Payload::Explanation(text) => text,
            // The session's failure is the reason.
            _ => match self.end.sticky().filter(|error| error.code == code) {
                Some(error) => error.text.clone(),
                None => String::new(),
            },
        };
        let (sequence, error) = (Sequence(sequence), CallError::new(code, text));
        if waits {
            self.end.reply(sequence, Err(&error))?;
            return Ok(None);
        }
        Ok(self.end.set_sticky(sequence, &error)?.then_some(error))
    }

    fn module_reply(&mut self, handle: ModuleHandle, module: &LoadedModule) -> ModuleReply {
        // An older client takes more CTAs to fit, and hears at the launch that they do not.
        let knows_hidden = self.features & HIDDEN_SHARED != 0;
        let known = self.modules.entry(handle).or_default();
        let mut reply = ModuleReply::default();
        for (index, kernel) in module.kernels.iter().enumerate() {
            let facts = match &kernel.facts {
                Ok(facts) => facts,
                Err(reason) => {
                    reply.refused.push((kernel.name.to_string(), reason.clone()));
                    continue;
                }
            };
            let shape = known.shapes.get(index).copied().unwrap_or_default();
            if shape.launches && self.features & NESTED == 0 {
                let reason = "it launches kernels, and the program's client library is older than \
                              the daemon: give the program the library of this version";
                reply.refused.push((kernel.name.to_string(), reason.to_owned()));
                continue;
            }
            known.launchable.push(u32::try_from(index).expect("kernels are far fewer than 2^32"));
            reply.kernels.push(KernelReply {
                name: kernel.name.to_string(),
                params: kernel.params.clone(),
                registers: facts.registers,
                // The shared memory that the form adds stays hidden from the program.
                static_shared: facts.static_shared.0.saturating_sub(shape.shared_added),
                local: facts.local.0,
                max_threads: facts.max_threads,
                form: shape.form.into(),
                place: u32::try_from(index).expect("as above"),
                launches: shape.launches,
                hidden_shared: if knows_hidden { shape.hidden_shared } else { 0 },
            });
        }
        reply.variables = module
            .variables
            .iter()
            .map(|variable| VariableReply {
                name: variable.name.clone(),
                address: variable.address,
                bytes: variable.size.0,
            })
            .collect();
        reply
    }

    /// All of the session's work has failed.
    ///
    /// # Errors
    /// What the client did wrong.
    pub fn fail(&mut self, code: CudaResult, text: String) -> Result<(), Violation> {
        let error = CallError::new(code_number(code), text);
        self.end.set_sticky(self.last, &error).map(drop)
    }

    /// One of its kernels has printed something.
    ///
    /// # Errors
    /// What the client did wrong.
    pub fn output(&mut self, console: Console, text: &[u8]) -> Result<(), Violation> {
        self.end.output(console, text)
    }

    /// A stream has reached an event's record. An event that is gone by now has no slot to show it
    /// in.
    pub fn event_reached(&mut self, event: EventHandle, sequence: u64, time: Nanos) {
        if let Some(slot) = self.event_slots.get(&event) {
            self.end.set_event(*slot, Sequence(sequence), time.0);
        }
    }
}

fn code_number(code: CudaResult) -> i32 {
    code.0.cast_signed()
}
