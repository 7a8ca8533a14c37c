//! One client's session as the shell sees it: its end of the wire, and what the engine need not
//! know.
//!
//! The engine knows requests and outcomes; the wire knows records and answers. In between lies what
//! belongs to neither: which records want an answer, which event has which slot, module images
//! while they arrive, and which index of a kernel in the answer is which in the engine.

use crate::prepare::KernelShape;
use crate::uploads::{Image, UploadError, Uploads};
use partita_device::{AddressRange, HostMemory, HostSpan};
use partita_engine as engine;
use partita_engine::{
    EventHandle, ImageId, LaunchRequest, LoadedModule, ModuleHandle, Payload, StreamHandle,
    StreamKind,
};
use partita_model::{Console, CudaResult, Nanos};
use partita_wire::{
    Arena, CallError, Incoming, KernelReply, ModuleReply, ParamLayout, Reply, Request, Sequence,
    ServerSession, VariableReply, Violation,
};
use std::any::Any;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The arena, for the device.
struct ArenaMemory {
    arena: Arena,
    file: Arc<OwnedFd>,
    /// Of the staging part.
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

    /// The staging part. Host memory's pages go when the program frees it.
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
    /// On the wire.
    #[error(transparent)]
    Wire(#[from] Violation),
    /// In the images that it sends.
    #[error(transparent)]
    Upload(#[from] UploadError),
}

/// A module that is being loaded.
struct Load {
    module: ModuleHandle,
    image: Image,
}

/// What a record comes to.
#[derive(Debug)]
pub enum Taken {
    /// A request for the engine, under its record's number.
    Request(u64, engine::Request),
    /// It is dealt with.
    Settled,
}

/// How a module's kernels are called in the engine, for those that the client has been told of.
#[derive(Default)]
struct KnownModule {
    /// In the engine's order.
    shapes: Vec<KernelShape>,
    /// The engine's index of each kernel that can be launched.
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
    staging: Arc<dyn HostMemory>,
    /// Records that the engine has and whose senders wait for an answer.
    awaited: HashSet<u64>,
    /// The last record that was read.
    last: Sequence,
    /// Gates that their streams have not reached.
    gates: HashSet<u64>,
    /// Gates that have been answered and not been opened: the program is at work.
    reached: HashSet<u64>,
    /// Gates of which no answer is wanted, until they are opened.
    silent: HashSet<u64>,
    event_slots: HashMap<EventHandle, u32>,
    uploads: Uploads,
    modules: BTreeMap<ModuleHandle, KnownModule>,
    /// The loads that have no outcome yet, by their records.
    loads: HashMap<u64, Load>,
}

impl ClientSession {
    /// A session that has just been welcomed.
    #[must_use]
    pub fn new(end: ServerSession) -> Self {
        ClientSession {
            staging: arena_memory(&end),
            end,
            awaited: HashSet::new(),
            last: Sequence(0),
            gates: HashSet::new(),
            reached: HashSet::new(),
            silent: HashSet::new(),
            event_slots: HashMap::new(),
            uploads: Uploads::default(),
            modules: BTreeMap::new(),
            loads: HashMap::new(),
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
        !self.reached.is_empty() || !self.silent.is_empty()
    }

    /// Whether a module of it is being loaded.
    #[must_use]
    pub fn loads(&self) -> bool {
        !self.loads.is_empty()
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
        if matches!(request, Request::Gate { .. }) {
            // Who wants no answer is at no work when the stream gets there.
            let set = if wants_reply { &mut self.gates } else { &mut self.silent };
            set.insert(sequence.0);
        }
        let request = match request {
            Request::ModuleBegin { module, kind, bytes, unpacked_bytes } => {
                self.uploads.begin(ModuleHandle(module.0), kind, bytes, unpacked_bytes)?;
                return self.settle(sequence);
            }
            Request::ModuleChunk { module, offset, data } => {
                self.uploads.append(ModuleHandle(module.0), offset, &data)?;
                return self.settle(sequence);
            }
            Request::ModuleLoad { module } => {
                let module = ModuleHandle(module.0);
                let image = self.uploads.finish(module)?;
                self.loads.insert(sequence.0, Load { module, image });
                engine::Request::LoadModule { module, image: ImageId(sequence.0) }
            }
            request => self.translate(request),
        };
        Ok(Taken::Request(sequence.0, request))
    }

    /// What a request is called in the engine. Images never get here.
    fn translate(&mut self, request: Request) -> engine::Request {
        let stream_of = |stream: partita_wire::StreamHandle| StreamHandle(stream.0);
        let event_of = |event: partita_wire::EventHandle| EventHandle(event.0);
        match request {
            Request::MemAlloc { bytes } => engine::Request::MemAlloc { bytes },
            Request::MemFree { address } => engine::Request::MemFree { address },
            Request::Reserve { bytes, alignment } => engine::Request::Reserve { bytes, alignment },
            Request::Unreserve { address } => engine::Request::Unreserve { address },
            Request::Map { home, to, bytes } => {
                engine::Request::Map { home, range: AddressRange { start: to, bytes } }
            }
            Request::Unmap { address } => engine::Request::Unmap { address },
            Request::SetAccess { start, bytes, access } => {
                engine::Request::SetAccess { range: AddressRange { start, bytes }, access }
            }
            Request::MemInfo => engine::Request::MemInfo,
            Request::ArrayCreate { shape } => engine::Request::ArrayCreate { shape },
            Request::ArrayDestroy { array } => engine::Request::ArrayDestroy { array },
            Request::TextureCreate { spec } => {
                engine::Request::TextureCreate { spec: Box::new(spec) }
            }
            Request::TextureDestroy { texture } => engine::Request::TextureDestroy { texture },
            Request::ModuleUnload { module } => {
                let module = ModuleHandle(module.0);
                self.modules.remove(&module);
                engine::Request::UnloadModule { module }
            }
            // Priorities would order streams of one session only; the device has none so far.
            Request::StreamCreate { stream, non_blocking, priority: _ } => {
                engine::Request::StreamCreate {
                    stream: stream_of(stream),
                    kind: if non_blocking { StreamKind::NonBlocking } else { StreamKind::Blocking },
                }
            }
            Request::StreamDestroy { stream } => {
                engine::Request::StreamDestroy { stream: stream_of(stream) }
            }
            Request::StreamQuery { stream } => {
                engine::Request::StreamQuery { stream: stream_of(stream) }
            }
            Request::EventCreate { event, slot } => {
                self.event_slots.insert(event_of(event), slot);
                engine::Request::EventCreate { event: event_of(event) }
            }
            Request::EventDestroy { event } => {
                self.event_slots.remove(&event_of(event));
                engine::Request::EventDestroy { event: event_of(event) }
            }
            Request::EventRecord { event, stream } => {
                engine::Request::EventRecord { event: event_of(event), stream: stream_of(stream) }
            }
            Request::StreamWaitEvent { event, stream } => {
                engine::Request::StreamWait { stream: stream_of(stream), event: event_of(event) }
            }
            Request::Launch {
                module,
                kernel,
                grid,
                block,
                dynamic_shared,
                stream,
                flags,
                params,
            } => {
                let module = ModuleHandle(module.0);
                engine::Request::Launch(Box::new(LaunchRequest {
                    stream: stream_of(stream),
                    module,
                    kernel: self.engine_kernel(module, kernel).unwrap_or(u32::MAX),
                    grid,
                    block,
                    dynamic_shared,
                    cooperative: flags.cooperative,
                    params,
                }))
            }
            Request::CopyToDevice { stream, to, staging, bytes } => engine::Request::CopyToDevice {
                stream: stream_of(stream),
                to,
                from: self.span(staging, bytes),
            },
            Request::CopyToHost { stream, from, staging, bytes } => engine::Request::CopyToHost {
                stream: stream_of(stream),
                to: self.span(staging, bytes),
                from,
            },
            Request::CopyOnDevice { stream, to, from, bytes } => {
                engine::Request::CopyOnDevice { stream: stream_of(stream), to, from, bytes }
            }
            Request::Fill { stream, to, value, width, count } => {
                engine::Request::Fill { stream: stream_of(stream), to, value, width, count }
            }
            Request::WaitWord { stream, address, word } => {
                engine::Request::WaitWord { stream: stream_of(stream), address, word }
            }
            Request::Synchronize { stream } => {
                engine::Request::Synchronize { stream: stream.map(stream_of) }
            }
            Request::Gate { stream } => engine::Request::Gate { stream: stream_of(stream) },
            Request::OpenGate { gate } => {
                self.gates.remove(&gate.0);
                self.reached.remove(&gate.0);
                self.silent.remove(&gate.0);
                engine::Request::OpenGate { gate: gate.0 }
            }
            Request::ModuleBegin { .. }
            | Request::ModuleChunk { .. }
            | Request::ModuleLoad { .. } => {
                unreachable!("images are taken before")
            }
        }
    }

    fn span(&self, offset: u64, bytes: u64) -> HostSpan {
        HostSpan::new(Arc::clone(&self.staging), offset, bytes)
            .expect("the wire lets no range outside the arena through")
    }

    /// The engine's index of a kernel. A module without kernels that cannot run has the same
    /// indices on both sides.
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
        Some(self.loads.get(&image.0)?.image.clone())
    }

    /// Remembers how a module's kernels were prepared.
    pub fn prepared(&mut self, module: ModuleHandle, shapes: Vec<KernelShape>) {
        self.modules.insert(module, KnownModule { shapes, launchable: Vec::new() });
    }

    /// The outcome of a record. Its sender gets it as an answer; where none waits, a failure
    /// becomes the session's.
    ///
    /// # Errors
    /// [`Violation`]; the session cannot go on.
    pub fn finish(
        &mut self,
        sequence: u64,
        code: CudaResult,
        payload: Payload,
    ) -> Result<(), Violation> {
        // Launches, which are most, are in none of these sets and need no hash.
        let waits = !self.awaited.is_empty() && self.awaited.remove(&sequence);
        if !self.gates.is_empty() && self.gates.remove(&sequence) && code.is_success() {
            self.reached.insert(sequence);
        }
        let load = if self.loads.is_empty() { None } else { self.loads.remove(&sequence) };
        let module = load.map(|load| load.module);
        if code.is_success() {
            let reply = match (payload, module) {
                (Payload::Module(loaded), Some(module)) => {
                    Reply::Module(self.module_reply(module, &loaded))
                }
                (Payload::Address(address), _) => Reply::Address(address),
                (Payload::Texture(texture), _) => Reply::Texture(texture),
                (Payload::Memory { free, total }, _) => Reply::Memory { free, total },
                _ => Reply::Done,
            };
            return if waits { self.end.reply(Sequence(sequence), Ok(&reply)) } else { Ok(()) };
        }
        if let Some(module) = module {
            self.modules.remove(&module);
        }
        let text = match payload {
            Payload::Explanation(text) => text,
            _ => String::new(),
        };
        if waits {
            self.end.reply(Sequence(sequence), Err(&CallError::new(code_number(code), text)))
        } else {
            self.end.set_sticky(Sequence(sequence), code_number(code));
            Ok(())
        }
    }

    fn module_reply(&mut self, handle: ModuleHandle, module: &LoadedModule) -> ModuleReply {
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
            known.launchable.push(u32::try_from(index).expect("kernels are far fewer than 2^32"));
            reply.kernels.push(KernelReply {
                name: kernel.name.to_string(),
                params: kernel
                    .params
                    .iter()
                    .map(|param| ParamLayout { offset: param.offset, bytes: param.size })
                    .collect(),
                registers: facts.registers,
                // The program must not see what the form adds.
                static_shared: facts.static_shared.0.saturating_sub(shape.shared_added),
                local: facts.local.0,
                max_threads: facts.max_threads,
                form: shape.form.into(),
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
    pub fn fail(&mut self, code: CudaResult) {
        self.end.set_sticky(self.last, code_number(code));
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
