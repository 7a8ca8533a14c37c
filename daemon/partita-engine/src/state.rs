//! The engine's records: sessions, streams, operations, launches, applications.
//!
//! An **operation** is one entry of a stream. It is *queued* while it waits in the engine, *in
//! flight* once the device has it, and gone once the device has said that it is done: an id that is
//! in no record counts as done everywhere. Ids rise in order of arrival, so they also serve as
//! tickets.

use crate::ahead::Ahead;
use crate::arrivals::Arrivals;
use crate::control_block::Telemetry;
use crate::helpers::Helper;
use crate::ledger::Usage;
use crate::profiling::{CountGroup, ProfileKey};
use crate::tasks::Since;
use crate::watchdog::Watch;
use crate::window::Window;
use crate::{
    EventHandle, Fence, ImageId, KernelForm, LoadedModule, ModuleHandle, ParamLayout,
    PreparedModule, Purpose, SessionIdentity, StreamHandle, StreamKind,
};
use partita_device::{AddressRange, HostMemory, KernelFacts, Work};
use partita_model::texture::ArrayShape;
use partita_model::{
    ApplicationId, AwaitedWord, CudaResult, DeviceAddress, Dim3, KernelReport, LaunchId,
    MemoryAccess, ModuleId, Nanos, OperationId, SessionId, SmSet, StreamId, TenantId, Traffic,
    WindowId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// One connected client.
pub(crate) struct Session {
    pub(crate) identity: SessionIdentity,
    pub(crate) application: ApplicationId,
    pub(crate) window_id: WindowId,
    pub(crate) window: Window,
    pub(crate) memory_used: u64,
    /// The memory that it shares with the daemon.
    pub(crate) arena: Option<Arc<dyn HostMemory>>,
    pub(crate) state: SessionState,
    pub(crate) streams: BTreeMap<StreamId, Stream>,
    pub(crate) handles: BTreeMap<StreamHandle, StreamId>,
    pub(crate) legacy: StreamId,
    /// Streams with something queued.
    pub(crate) backlog: BTreeSet<StreamId>,
    /// Streams for helper grids: all of them, and those without one at present.
    pub(crate) side_streams: BTreeSet<StreamId>,
    pub(crate) idle_side_streams: BTreeSet<StreamId>,
    /// Each with the operation of its latest record, which may be done.
    pub(crate) events: BTreeMap<EventHandle, Option<OperationId>>,
    pub(crate) modules: BTreeMap<ModuleHandle, Module>,
    /// By their addresses.
    pub(crate) arrays: BTreeMap<u64, ArrayRecord>,
    /// Texture and surface objects that are not being destroyed.
    pub(crate) textures: BTreeSet<u64>,
    pub(crate) waiters: Vec<Waiter>,
    /// Closed gates by the requests that made them.
    pub(crate) gates: BTreeMap<u64, OperationId>,
    /// Waits for words of memory that have not ended.
    pub(crate) word_waits: BTreeMap<OperationId, (DeviceAddress, AwaitedWord)>,
    /// Operations queued or in flight, helper grids included.
    pub(crate) operations: usize,
    /// Modules that the device is loading.
    pub(crate) loading: usize,
    /// Modules whose unloading was cut short by the session's failure or end.
    pub(crate) orphans: Vec<ModuleId>,
}

impl Session {
    /// Takes the waiters away; the modules that some of them were to unload stay to be unloaded at
    /// the end.
    pub(crate) fn take_waiters(&mut self) -> Vec<Waiter> {
        let waiters = std::mem::take(&mut self.waiters);
        self.orphans.extend(waiters.iter().filter_map(|waiter| match &waiter.then {
            WaiterThen::Unload(instance) => Some(instance.id),
            WaiterThen::Reply
            | WaiterThen::Free(_)
            | WaiterThen::Unmap(_)
            | WaiterThen::Protect(..)
            | WaiterThen::DestroyArray(_)
            | WaiterThen::DestroyTexture(_) => None,
        }));
        waiters
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
    pub(crate) kind: StreamKind,
    pub(crate) queue: VecDeque<OperationId>,
    pub(crate) in_flight: VecDeque<OperationId>,
    pub(crate) ahead: Ahead,
    /// The operation appended last; it may be done.
    pub(crate) last: Option<OperationId>,
    /// The legacy stream's operation that this stream was last made to wait for.
    pub(crate) waited_legacy: Option<OperationId>,
    /// Destroyed by the client; goes when it is empty.
    pub(crate) destroyed: bool,
}

impl Stream {
    pub(crate) fn new(kind: StreamKind) -> Self {
        Stream {
            kind,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            ahead: Ahead::default(),
            last: None,
            waited_legacy: None,
            destroyed: false,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }
}

/// A module that is not there yet.
#[derive(Clone)]
pub(crate) struct Load {
    /// Of the request.
    pub(crate) sequence: u64,
    pub(crate) image: ImageId,
    pub(crate) purpose: Purpose,
}

/// One module of a session.
pub(crate) enum Module {
    /// The shell is at work on its image.
    Preparing(Load),
    /// The device is loading it.
    Loading { load: Load, prepared: PreparedModule },
    /// It can be used.
    Loaded(LoadedInstance),
}

/// A module that the device has.
pub(crate) struct LoadedInstance {
    pub(crate) id: ModuleId,
    pub(crate) loaded: Arc<LoadedModule>,
    pub(crate) kernels: Vec<Arc<Kernel>>,
    pub(crate) lines: Option<Arc<[u32]>>,
}

/// One kernel of a loaded module.
pub(crate) struct Kernel {
    pub(crate) name: Arc<str>,
    pub(crate) entry: Arc<str>,
    pub(crate) params: Vec<ParamLayout>,
    pub(crate) param_bytes: u32,
    pub(crate) form: KernelForm,
    pub(crate) fence: Fence,
    /// Nobody has rewritten it, whatever its form.
    pub(crate) is_machine_code: bool,
    pub(crate) facts: Result<KernelFacts, String>,
    /// Of the form's fallback, if it has one.
    pub(crate) fallback_facts: Option<Result<KernelFacts, String>>,
    /// Whether it may wait for what others write.
    pub(crate) awaits: bool,
    /// Whether a task of it is to be one CTA ([`crate::PreparedKernel::follows`]).
    pub(crate) follows: bool,
    /// A name for its code.
    pub(crate) hash: Option<Arc<str>>,
    /// The entry that counts, and what the device says of it.
    pub(crate) counting: Option<Arc<str>>,
    pub(crate) counting_facts: Option<Result<KernelFacts, String>>,
}

/// A request that is answered when some operations are done.
pub(crate) struct Waiter {
    pub(crate) sequence: u64,
    pub(crate) pending: Vec<OperationId>,
    pub(crate) then: WaiterThen,
}

/// What is done before a waiter is answered.
pub(crate) enum WaiterThen {
    /// Nothing.
    Reply,
    /// This memory is freed.
    Free(DeviceAddress),
    /// The mapping at this reserved address ends.
    Unmap(DeviceAddress),
    /// This may be done to mappings.
    Protect(AddressRange, MemoryAccess),
    /// This module is unloaded.
    Unload(LoadedInstance),
    /// This array is destroyed.
    DestroyArray(DeviceAddress),
    /// This texture or surface object is destroyed.
    DestroyTexture(u64),
}

/// One array of a session.
pub(crate) struct ArrayRecord {
    pub(crate) shape: ArrayShape,
    /// Its end has been asked for.
    pub(crate) ending: bool,
}

/// One entry of a stream.
pub(crate) struct Operation {
    pub(crate) session: SessionId,
    pub(crate) stream: StreamId,
    /// What it waits for besides its predecessor in the stream.
    pub(crate) after: Vec<OperationId>,
    /// What to submit; `None` once it is in flight.
    pub(crate) queued: Option<Queued>,
    pub(crate) then: Then,
}

/// What an operation will ask of the device.
pub(crate) enum Queued {
    /// This.
    Plain(Work),
    /// Nothing yet: the session opens it first.
    Gate,
    /// Grids, as many as there is room for.
    Launch(Box<LaunchSpec>),
}

/// What follows when an operation is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// Nothing.
    Nothing,
    /// A request is answered.
    Reply { sequence: u64 },
    /// An event has been reached.
    Record { event: EventHandle, sequence: u64 },
    /// A launch's main grid is done.
    Main(LaunchId),
    /// One of its helper grids is.
    Helper(LaunchId),
}

/// What a program wants launched, or a part of it.
#[derive(Clone)]
pub(crate) struct LaunchSpec {
    pub(crate) launch: LaunchId,
    pub(crate) module: ModuleId,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) lines: Option<Arc<[u32]>>,
    pub(crate) grid: Dim3,
    /// The CTAs of the grid that it runs: from this one to the one before `end`.
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) block: Dim3,
    pub(crate) dynamic_shared: u32,
    pub(crate) params: Vec<u8>,
    /// Whether it may wait for what its program writes into host memory without a call.
    pub(crate) awaits_host: bool,
    /// Where parts of the program's launch count.
    pub(crate) count: Option<Count>,
    /// Where its kernel's profile is found.
    pub(crate) profile: Option<ProfileKey>,
    /// What one CTA takes up on an SM.
    pub(crate) cta: Usage,
    /// All CTAs must be resident at once.
    pub(crate) cooperative: bool,
    /// Why it runs in the kernel's fallback form.
    pub(crate) fallback: Option<String>,
}

/// A part of a launch of which some parts count ([`crate::profiling`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) group: CountGroup,
    /// Whether this one does, or shall.
    pub(crate) counting: bool,
    /// Whether it is the last that does.
    pub(crate) last: bool,
}

impl LaunchSpec {
    /// CTAs that are complete when it is.
    pub(crate) fn total(&self) -> u64 {
        self.end
    }

    /// CTAs of the program's launch.
    pub(crate) fn grid_ctas(&self) -> u64 {
        u64::try_from(self.grid.count()).expect("grid limits were checked")
    }

    /// Whether the program's launch is complete when it is.
    pub(crate) fn is_last(&self) -> bool {
        self.end == self.grid_ctas()
    }

    /// The form in which it runs.
    pub(crate) fn form(&self) -> LaunchForm {
        match &self.kernel.form {
            _ if self.fallback.is_some() => LaunchForm::Original,
            KernelForm::Worker { .. } => LaunchForm::Worker,
            KernelForm::Ticket { .. } => LaunchForm::Ticket,
            KernelForm::MachineCode => LaunchForm::MachineCode,
            KernelForm::Original { .. } => LaunchForm::Original,
        }
    }

    /// Whether it keeps to its application's partition.
    pub(crate) fn is_confined(&self) -> bool {
        self.form() != LaunchForm::Original
    }

    /// The entry to launch.
    pub(crate) fn entry(&self) -> Arc<str> {
        match self.kernel.form.fallback() {
            Some(fallback) if self.fallback.is_some() => fallback.entry.clone(),
            _ if self.count.is_some_and(|count| count.counting) => {
                self.kernel.counting.clone().unwrap_or_else(|| self.kernel.entry.clone())
            }
            _ => self.kernel.entry.clone(),
        }
    }

    /// Why it has no better form; `None` for workers.
    pub(crate) fn reason(&self) -> Option<&String> {
        self.fallback.as_ref().or(match &self.kernel.form {
            KernelForm::Worker { .. } | KernelForm::MachineCode => None,
            KernelForm::Ticket { reason, .. } | KernelForm::Original { reason, .. } => Some(reason),
        })
    }
}

/// The form in which a launch runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LaunchForm {
    Worker,
    Ticket,
    /// As it is, on whole groups of SMs.
    MachineCode,
    Original,
}

impl LaunchForm {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            LaunchForm::Worker => "worker",
            LaunchForm::Ticket => "ticket",
            LaunchForm::MachineCode => "machine code, green context",
            LaunchForm::Original => "original",
        }
    }
}

/// A launch whose main grid has been submitted.
pub(crate) struct Launch {
    pub(crate) session: SessionId,
    pub(crate) application: ApplicationId,
    pub(crate) stream: StreamId,
    pub(crate) main: OperationId,
    pub(crate) main_done: bool,
    pub(crate) spec: Box<LaunchSpec>,
    /// Helper grids, or waves of tickets, in flight.
    pub(crate) helpers: BTreeMap<OperationId, Helper>,
    /// The block of a kernel in its original form, if it has one: its first bytes are the workspace
    /// of a cooperative launch, and it may look at the abort flag.
    pub(crate) workspace: Option<DeviceAddress>,
    /// The barrier of a cooperative launch, where it has to lie in the session's window.
    pub(crate) barrier: Option<DeviceAddress>,
    pub(crate) watch: Watch,
    /// The SMs that machine code is kept to.
    pub(crate) sms: SmSet,
    /// `None` for a kernel in its original form, and for machine code.
    pub(crate) worker: Option<Worker>,
}

/// What a launch of workers or tickets has besides.
pub(crate) struct Worker {
    pub(crate) block: DeviceAddress,
    pub(crate) task: u32,
    pub(crate) seen: Telemetry,
    /// When it became the first of its stream.
    pub(crate) begun: Option<Nanos>,
    /// From when on it is watched for the time of its CTAs.
    pub(crate) since: Option<Since>,
    /// CTAs that the application's account already has.
    pub(crate) counted: u64,
    /// Where it counts what it does, if it does.
    pub(crate) count_block: Option<DeviceAddress>,
    /// Workers on their way.
    pub(crate) arrivals: Arrivals,
    /// When the last helper grid was sent.
    pub(crate) helper_sent: Nanos,
    /// Waves sent without the missing tickets having come.
    pub(crate) attempts: u32,
    /// Before that no further one is sent.
    pub(crate) next_wave: Nanos,
    /// Numbers of retired helper grids, one bit each.
    pub(crate) retired: u32,
    /// Until then workers that are seen may be leaving: they came to an SM before it was granted,
    /// or are retired.
    pub(crate) unsure_until: Nanos,
}

/// What gets a partition.
pub(crate) struct Application {
    pub(crate) name: String,
    pub(crate) tenant: TenantId,
    pub(crate) tag: Option<String>,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// All its sessions are closing.
    pub(crate) leaving: bool,
    /// Launches of workers and tickets queued or in flight.
    pub(crate) demand: usize,
    pub(crate) workers_in_flight: usize,
    pub(crate) originals_in_flight: usize,
    /// Whether it has launched machine code, which needs whole groups of SMs.
    pub(crate) needs_groups: bool,
    /// Whether it counts as working; the grace time is over otherwise.
    pub(crate) active: bool,
    pub(crate) idle_since: Nanos,
    /// Since when it has had worker launches, if it has, and for how long before that.
    pub(crate) busy_since: Nanos,
    pub(crate) busy_before: Nanos,
    /// SMs that it shall have.
    pub(crate) target: SmSet,
    /// SMs on which its workers may be: what its control blocks say.
    pub(crate) granted: SmSet,
    pub(crate) launches_completed: u64,
    pub(crate) ctas_completed: u64,
    /// Where its kernels' profiles are found, by their names: of the shape that was launched last.
    pub(crate) profile_keys: BTreeMap<Arc<str>, ProfileKey>,
    /// Of its completed CTAs whose kernels have a profile.
    pub(crate) profiled: Traffic,
    /// The LLC's hit rate while it ran alone, as the device counted.
    pub(crate) hit_rate: Option<f64>,
    /// Of its grids that have ended, where the device counts.
    pub(crate) traffic_ended: Traffic,
    pub(crate) kernels: Vec<KernelReport>,
    /// Where among them a kernel is, by name and form.
    pub(crate) kernel_index: BTreeMap<(Arc<str>, LaunchForm), usize>,
}
