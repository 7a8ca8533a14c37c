//! The records of sessions: streams, operations, events, modules, waiters.
//!
//! An **operation** is one entry of a stream. It is *queued* while it waits in the engine, *in
//! flight* once the device has it, and gone once the device has said that it is done. An id without
//! a record counts as done everywhere. Ids rise in order of arrival, so they also serve as tickets.

use super::ahead::Ahead;
use super::forms::Forms;
use super::window::Window;
use crate::kernel::Kernel;
use crate::launches::Pending;
use crate::turn::Turn;
use crate::{
    EventHandle, FormsOf, ImageId, LoadedModule, ModuleHandle, PreparedModule, Purpose,
    SessionIdentity, StreamHandle, StreamKind,
};
use partita_device::{AddressRange, Guards, HostMemory, Work};
use partita_model::request::Secret;
use partita_model::texture::ArrayShape;
use partita_model::{
    ApplicationId, AwaitedWord, CudaResult, DeviceAddress, LaunchId, MemoryAccess, ModuleId, Nanos,
    OperationId, SessionId, StreamId, WindowId, request,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A request and whose it is: what a reply names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) session: SessionId,
    pub(crate) sequence: u64,
}

/// One connected client.
pub(crate) struct Session {
    pub(super) identity: SessionIdentity,
    pub(super) application: ApplicationId,
    /// The memory that the session shares with the daemon.
    pub(super) arena: Option<Arc<dyn HostMemory>>,
    /// Where the part of the arena ends through which blocking copies go, in bytes; behind it is
    /// page-locked memory. Until that is told, all is the first part.
    pub(super) staging_bytes: u64,
    pub(super) window_id: WindowId,
    pub(super) window: Window,
    /// What its kernels must carry.
    pub(super) guards: Guards,
    /// Its window does not hold all of the device's memory.
    pub(super) is_small: bool,
    pub(super) memory_used: u64,
    /// What the device keeps beyond that ([`partita_device::Device::memory_slack`]).
    pub(super) memory_slack: u64,
    pub(super) state: SessionState,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    pub(super) handles: BTreeMap<StreamHandle, StreamId>,
    pub(super) legacy: StreamId,
    /// Streams that have operations queued, are not parked and do not await a turn.
    pub(super) backlog: BTreeSet<StreamId>,
    /// Streams whose head waits for its turn among those of others.
    pub(super) awaiting_turn: BTreeSet<StreamId>,
    /// Streams whose head depends on an operation that has not been submitted, by that operation.
    /// Nothing else can let them go on, so nobody looks at them before.
    pub(super) parked: BTreeMap<OperationId, BTreeSet<StreamId>>,
    pub(super) events: BTreeMap<EventHandle, EventState>,
    pub(super) modules: BTreeMap<ModuleHandle, Module>,
    /// Arrays by their addresses.
    pub(super) arrays: BTreeMap<u64, ArrayRecord>,
    /// Texture and surface objects that are not being destroyed.
    pub(super) textures: BTreeSet<u64>,
    pub(super) waiters: Vec<Waiter>,
    /// Closed gates by the requests that made them.
    pub(super) gates: BTreeMap<u64, OperationId>,
    /// Waits for words of memory that have not ended.
    pub(super) word_waits: BTreeMap<OperationId, (DeviceAddress, AwaitedWord)>,
    /// Operations queued or in flight, helper grids included.
    pub(super) operations: usize,
    /// Modules that the device is loading.
    pub(super) loading: usize,
    /// Modules whose unloading was cut short by the session's failure or end.
    pub(super) orphans: Vec<ModuleId>,
}

impl Session {
    /// Takes the waiters away. Modules that some of them were to unload stay to be unloaded at the
    /// end.
    pub(super) fn take_waiters(&mut self) -> Vec<Waiter> {
        let waiters = std::mem::take(&mut self.waiters);
        let instances = waiters.iter().filter_map(|waiter| match &waiter.then {
            WaiterThen::Unload(instance) => Some(instance),
            WaiterThen::Reply
            | WaiterThen::Free(_)
            | WaiterThen::Unmap(_)
            | WaiterThen::Close(_)
            | WaiterThen::Protect(..)
            | WaiterThen::DestroyArray(_)
            | WaiterThen::DestroyTexture(_) => None,
        });
        self.orphans.extend(instances.flat_map(LoadedInstance::ids));
        waiters
    }

    /// Lets the streams go on that depend on an operation.
    pub(super) fn unpark(&mut self, on: OperationId) {
        self.backlog.extend(self.parked.remove(&on).unwrap_or_default());
    }

    /// The head of a stream does not wait for its turn any more.
    pub(super) fn goes_on(&mut self, stream: StreamId) {
        if self.awaiting_turn.remove(&stream) {
            self.backlog.insert(stream);
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == SessionState::Open
    }

    pub(crate) fn application(&self) -> ApplicationId {
        self.application
    }

    /// The priority of a stream.
    pub(crate) fn priority_of(&self, stream: StreamId) -> Option<i32> {
        self.streams.get(&stream).map(|stream| stream.priority)
    }

    pub(crate) fn identity(&self) -> &SessionIdentity {
        &self.identity
    }

    /// What its kernels must carry.
    pub(crate) fn guards(&self) -> Guards {
        self.guards
    }

    /// Whether the number is a texture or surface object that is not being destroyed.
    pub(crate) fn has_texture(&self, handle: u64) -> bool {
        self.textures.contains(&handle)
    }

    /// Device addresses of the session.
    pub(crate) fn range(&self) -> AddressRange {
        self.window.range()
    }

    /// Bytes of device memory that the session holds.
    pub(crate) fn memory_used(&self) -> u64 {
        self.memory_used + self.memory_slack
    }

    /// Reads anew what the device keeps beyond the session's memory.
    pub(super) fn settle_slack(&mut self, turn: &Turn<'_>) {
        self.memory_slack = turn.device.memory_slack(self.window_id);
    }

    /// Operations queued or in flight.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Streams that have something queued and wait for no other stream of the session.
    pub(crate) fn queued_streams(&self) -> usize {
        self.backlog.len() + self.awaiting_turn.len()
    }

    /// Whether one of a kernel's parameters is an address in host memory.
    pub(crate) fn names_host(&self, params: &[u8]) -> bool {
        self.window.names_host(params)
    }

    /// Whether a stream of the session waits for a word of host memory.
    pub(crate) fn awaits_host_word(&self) -> bool {
        self.word_waits.values().any(|(address, _)| self.window.is_host(*address))
    }
}

/// Whether a session still works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionState {
    /// It does.
    Open,
    /// A fault ended its work; every request gets this code.
    Failed(CudaResult),
    /// It is going away.
    Closing,
}

/// One stream of a session.
pub(crate) struct Stream {
    pub(super) kind: StreamKind,
    /// As CUDA has it: launches of streams with lower numbers go first.
    pub(super) priority: i32,
    pub(super) queue: VecDeque<OperationId>,
    pub(super) in_flight: VecDeque<OperationId>,
    /// Device time at which the last operation ended.
    pub(super) last_end: Nanos,
    pub(super) ahead: Ahead,
    /// The operation appended last; it may be done.
    pub(super) last: Option<OperationId>,
    /// The launch appended last; it may be done.
    pub(super) last_launch: Option<OperationId>,
    /// The last operation for which another stream or the host waits; it may be done.
    pub(super) awaited: Option<OperationId>,
    /// The legacy stream's operation that this stream was last made to wait for.
    pub(super) waited_legacy: Option<OperationId>,
    /// The client has destroyed the stream. It goes when it is empty.
    pub(super) destroyed: bool,
}

impl Stream {
    pub(super) fn new(kind: StreamKind) -> Self {
        Stream {
            kind,
            priority: 0,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            last_end: Nanos(0),
            ahead: Ahead::default(),
            last: None,
            last_launch: None,
            awaited: None,
            waited_legacy: None,
            destroyed: false,
        }
    }

    /// Whether a launch, another stream or the host waits for an operation.
    pub(super) fn is_awaited(&self, id: OperationId) -> bool {
        self.last_launch > Some(id) || self.awaited >= Some(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }
}

/// A module that is not there yet.
#[derive(Clone)]
pub(crate) struct Load {
    /// Sequence number of the request.
    pub(super) sequence: u64,
    pub(super) image: ImageId,
    pub(super) purpose: Purpose,
}

/// One module of a session.
pub(crate) enum Module {
    /// The shell is at work on its image.
    Preparing(Load),
    /// The device is loading it.
    Loading { load: Load, prepared: PreparedModule },
    /// Launches can use it.
    Loaded(LoadedInstance),
}

/// A module that the device has.
pub(crate) struct LoadedInstance {
    pub(crate) id: ModuleId,
    pub(crate) kernels: Vec<Arc<Kernel>>,
    pub(super) loaded: Arc<LoadedModule>,
    pub(super) forms: Option<Forms>,
}

impl LoadedInstance {
    /// All that the device has of the module.
    pub(super) fn ids(&self) -> impl Iterator<Item = ModuleId> + '_ {
        let forms = self.forms.iter().flat_map(Forms::ids);
        std::iter::once(self.id).chain(forms)
    }
}

/// What the device loads.
#[derive(Clone, Copy)]
pub(crate) enum Loads {
    /// A module of a session.
    Module(SessionId, ModuleHandle),
    /// Forms of a kernel of a session's module.
    Forms(SessionId, FormsOf),
}

/// A request that is answered when some operations are done.
pub(crate) struct Waiter {
    pub(super) sequence: u64,
    pub(super) pending: Vec<OperationId>,
    pub(super) then: WaiterThen,
}

/// What is done before a waiter is answered.
pub(crate) enum WaiterThen {
    /// Nothing.
    Reply,
    /// This memory is freed.
    Free(DeviceAddress),
    /// The mapping at this reserved address ends.
    Unmap(DeviceAddress),
    /// The mapping of another process's memory at this address ends.
    Close(DeviceAddress),
    /// Mappings get this access.
    Protect(AddressRange, MemoryAccess),
    /// This module is unloaded.
    Unload(LoadedInstance),
    /// This array is destroyed.
    DestroyArray(DeviceAddress),
    /// This texture or surface object is destroyed.
    DestroyTexture(u64),
}

/// One event of a session.
#[derive(Clone, Copy)]
pub(crate) enum EventState {
    /// The operation of its latest record, which may be done.
    Own(Option<OperationId>),
    /// Other sessions may know the event ([`super::shared_events`]).
    Shared(Secret),
}

/// One array of a session.
pub(crate) struct ArrayRecord {
    pub(super) shape: ArrayShape,
    /// The program has asked for the array's end.
    pub(super) ending: bool,
}

/// One entry of a stream.
pub(crate) struct Operation {
    pub(super) session: SessionId,
    pub(super) stream: StreamId,
    /// What the operation waits for besides its predecessor in the stream.
    pub(super) after: Vec<OperationId>,
    pub(super) stage: Stage,
    pub(super) then: Then,
}

/// Where an operation is.
pub(crate) enum Stage {
    /// It waits in the engine.
    Queued(Queued),
    /// A launch that is being started, or whose session fails because it could not start.
    Starting,
    /// The device has it.
    InFlight,
}

/// What an operation will ask of the device.
pub(crate) enum Queued {
    /// This.
    Plain(Work),
    /// Nothing yet: the session opens it first.
    Gate,
    /// Grids, as many as there is room for.
    Launch(Box<Pending>),
    /// A launch whose kernel's form is being prepared.
    Forming(Box<Forming>),
}

/// A launch whose kernel's form is being prepared.
pub(crate) struct Forming {
    pub(crate) request: request::Launch,
    /// The launch without the form.
    pub(crate) as_written: Box<Pending>,
}

/// What follows when an operation is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Nothing.
    Nothing,
    /// A request is answered. The host waits for the answer where that is `awaited`.
    Reply { sequence: u64, awaited: bool },
    /// An event has been reached.
    Record { event: EventHandle, sequence: u64 },
    /// A launch's main grid is done.
    Main(LaunchId),
    /// One of its helper grids is.
    Helper(LaunchId),
}
