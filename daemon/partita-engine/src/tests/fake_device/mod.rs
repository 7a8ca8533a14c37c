//! A device for tests: streams (`streams`), a block scheduler (`scheduler`), workers and tickets
//! (`protocol`) behind the contract of every device (`contract`), in steps of a microsecond.
//!
//! Kernels are described, not executed. The "PTX" of a module is a list of lines `NAME MICROSECONDS
//! [REGISTERS]`: each CTA of the kernel takes so long. A name that begins with `fault` faults in
//! its first CTA. CTAs of one that begins with `spin` never end by themselves; those of `spin-some`
//! end on SMs below [`SPINS_FROM`]. CTAs of one that begins with `shared` share a bandwidth that is
//! enough for [`protocol::SHARED_AT_ONCE`] of them. A name with `ticket` anywhere in it makes
//! tickets of its CTAs, and one that ends with `-counting` counts. What must never happen is
//! asserted here, where it would be seen on a real device too: tasks of two sessions on one SM at
//! once, a CTA executed twice, a window given back while it is
//! in use.

mod contract;
mod protocol;
mod scheduler;
mod streams;

use partita_device::{
    AddressRange, Device as _, DeviceError, Event, GridSpec, Outcome, Phase, VariableFacts, Work,
};
use partita_model::control::{ABORT, EXHAUSTED, FAULT, FAULT_TO, NEXT, QUOTA};
use partita_model::{
    ApplicationId, Bytes, ComputeCapability, DeviceAddress, DeviceFacts, DeviceKind, GridCounters,
    ModuleId, Nanos, OperationId, ResidencyChange, ResidencyKind, SmId, SmSet, StreamId,
    Timekeeping, WindowId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const STEP: u64 = 1_000;

pub(crate) fn facts(sm_count: u16) -> DeviceFacts {
    DeviceFacts {
        kind: DeviceKind::Emulated,
        timekeeping: Timekeeping::Simulated,
        name: "fake".to_owned(),
        uuid: [7; 16],
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        sm_count,
        sm_clock_khz: 1_000_000,
        memory_clock_khz: 1_000_000,
        memory_bus_bits: 256,
        memory: Bytes(1 << 30),
        llc: Bytes(1 << 20),
        threads_per_sm: 2048,
        ctas_per_sm: 32,
        registers_per_sm: 65_536,
        shared_per_sm: Bytes(100 << 10),
        shared_per_cta: Bytes(48 << 10),
        shared_per_cta_optin: Bytes(99 << 10),
        threads_per_cta: 1024,
        register_parts: 4,
        shared_reserved: Bytes(1024),
        absent_sms: SmSet::EMPTY,
    }
}

struct Kernel {
    nanos: u64,
    registers: u32,
    traits: Traits,
}

/// What a kernel's name says of it.
#[derive(Clone, Copy)]
struct Traits {
    faults: bool,
    shares: bool,
    is_ticket: bool,
    /// From which SM on its CTAs never end.
    spins_from: Option<u16>,
}

/// The first SM on which CTAs of `spin-some` never end.
const SPINS_FROM: u16 = 4;

struct Grid {
    operation: OperationId,
    stream: StreamId,
    launch: GridSpec,
    nanos: u64,
    traits: Traits,
    /// The control block and the grid's number, for workers.
    block: Option<(DeviceAddress, u32)>,
    /// The SMs that it is kept to.
    sms: Option<SmSet>,
    /// The control block of one that looks at the abort flag besides.
    abort: Option<u64>,
    next_cta: u64,
    ctas: Vec<Cta>,
    cancelled: bool,
}

struct Cta {
    index: u64,
    sm: u16,
    state: State,
    /// A worker that stays until its launch is complete.
    stays: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    Starting,
    Border,
    /// Executes CTAs `first .. first + count` until then.
    Busy {
        until: u64,
        first: u64,
        count: u64,
    },
    Parked,
    Gone,
}

/// Calls of a device that are messages to a real GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Messages {
    pub(crate) pokes: usize,
    pub(crate) peeks: usize,
    pub(crate) operations: usize,
}

pub(crate) struct FakeDevice {
    facts: DeviceFacts,
    pub(crate) now: u64,
    windows: BTreeMap<WindowId, AddressRange>,
    memory: BTreeMap<u64, Vec<u8>>,
    modules: BTreeMap<ModuleId, BTreeMap<String, Kernel>>,
    streams: BTreeMap<StreamId, VecDeque<(OperationId, Work)>>,
    closing: BTreeSet<StreamId>,
    pending: BTreeSet<OperationId>,
    grids: Vec<Grid>,
    events: VecDeque<Event>,
    trace: bool,
    next_base: u64,
    arrays: BTreeMap<u64, WindowId>,
    next_array: u64,
    textures: BTreeMap<u64, WindowId>,
    /// Operations in the order in which they ended.
    pub(crate) finished: Vec<OperationId>,
    /// Copies between host and device: the device's address, and bytes.
    pub(crate) copied: Vec<(u64, u64)>,
    /// Whose a window is, by its first address.
    pub(crate) applications: BTreeMap<u64, ApplicationId>,
    /// Per SM, the applications whose workers are registered there, and how many.
    registered: Vec<BTreeMap<ApplicationId, u32>>,
    /// Two applications may work on one SM.
    pub(crate) is_shared: bool,
    /// CTAs executed per block address since it was last zeroed by the host.
    executed: BTreeMap<u64, BTreeSet<u64>>,
    pub(crate) grids_started: u64,
    /// The entry of each grid.
    pub(crate) launched: Vec<Arc<str>>,
    /// The CTAs of each slice: the first, and the one behind the last.
    pub(crate) slices: Vec<(u64, u64)>,
    /// The workspaces of grids that have the parameter.
    pub(crate) workspaces: Vec<u64>,
    /// What grids did, where it counts: a task's worth when the task ends.
    pub(crate) counted: Option<BTreeMap<OperationId, GridCounters>>,
    pub(crate) gated: SmSet,
    /// Whether it can end grids; kernels look at the abort flag where not.
    pub(crate) can_cancel: bool,
    /// How long a look at memory takes, in nanoseconds, where looks take time.
    pub(crate) look_time: Option<u64>,
    /// Whether it has host memory that kernels write, and what of it is live.
    pub(crate) has_words: bool,
    words: Option<AddressRange>,
    /// Looks by address: when they are over, and what was there when they began.
    pub(crate) looks: BTreeMap<u64, (u64, Vec<u8>)>,
    /// The LLC's hit rate that it tells of every window, and those that have ended.
    pub(crate) hit_rate: Option<f64>,
    pub(crate) traffic: (Option<u64>, Vec<u64>),
    /// Whether modules are loaded only when nothing runs.
    pub(crate) loading_waits: bool,
    pub(crate) may_leave: bool,
    /// Variables of the modules that are loaded from now on.
    pub(crate) variables: Vec<VariableFacts>,
    /// Bytes of the pieces in which it gives memory; 0: as much as is asked for.
    pub(crate) piece: u64,
    pub(crate) phase: Phase,
    /// Groups of SMs that grids can be kept to, the sets that were made ready, and why no more are.
    pub(crate) groups: Vec<SmSet>,
    /// Streams that can have grids on one set of SMs at a time.
    pub(crate) confined_streams: usize,
    pub(crate) confined: BTreeSet<SmSet>,
    pub(crate) confines_none: Option<String>,
    /// The SMs of each grid that was kept to some, in order.
    pub(crate) kept_to: Vec<SmSet>,
    /// Grids with clusters: their CTAs, and those of a cluster.
    pub(crate) clusters: Vec<(u128, u128)>,
    /// Messages that it was sent.
    pub(crate) messages: Messages,
    /// Modules that wait for that.
    held_loads: Vec<Event>,
}

impl FakeDevice {
    /// The live ranges of a window: start and end.
    fn live(&self, window: WindowId) -> Vec<(u64, u64)> {
        let of = &self.windows[&window];
        let live = self.memory.iter().filter(|(at, _)| of.contains(DeviceAddress(**at), 1));
        live.map(|(&at, bytes)| (at, at + (bytes.len() as u64).next_multiple_of(512))).collect()
    }

    /// The pieces that ranges lie in.
    fn pieces(&self, live: &[(u64, u64)]) -> BTreeSet<u64> {
        let of = |&(at, end): &(u64, u64)| at / self.piece..=(end - 1) / self.piece;
        if self.piece == 0 { BTreeSet::new() } else { live.iter().flat_map(of).collect() }
    }

    /// From now on CTAs of a kernel take another time.
    pub(crate) fn set_time(&mut self, kernel: &str, micros: u64) {
        for kernels in self.modules.values_mut() {
            kernels.get_mut(kernel).unwrap().nanos = micros * 1_000;
        }
    }

    /// Has no more memory than so much beside what is in use.
    pub(crate) fn leave_free(&mut self, bytes: u64) {
        let used: usize = self.memory.values().map(Vec::len).sum();
        self.facts.memory = Bytes(bytes + u64::try_from(used).unwrap());
    }

    pub(crate) fn new(sm_count: u16) -> Self {
        FakeDevice {
            facts: facts(sm_count),
            now: 0,
            windows: BTreeMap::new(),
            memory: BTreeMap::new(),
            modules: BTreeMap::new(),
            streams: BTreeMap::new(),
            closing: BTreeSet::new(),
            pending: BTreeSet::new(),
            grids: Vec::new(),
            events: VecDeque::new(),
            trace: false,
            next_base: 1 << 40,
            arrays: BTreeMap::new(),
            next_array: 1 << 47,
            textures: BTreeMap::new(),
            finished: Vec::new(),
            copied: Vec::new(),
            applications: BTreeMap::new(),
            registered: vec![BTreeMap::new(); sm_count.into()],
            is_shared: false,
            executed: BTreeMap::new(),
            grids_started: 0,
            launched: Vec::new(),
            slices: Vec::new(),
            workspaces: Vec::new(),
            counted: None,
            gated: SmSet::EMPTY,
            can_cancel: true,
            look_time: None,
            has_words: false,
            words: None,
            looks: BTreeMap::new(),
            loading_waits: false,
            may_leave: false,
            variables: Vec::new(),
            piece: 0,
            phase: Phase::Open,
            hit_rate: None,
            traffic: (None, Vec::new()),
            groups: Vec::new(),
            confined_streams: 4,
            confined: BTreeSet::new(),
            confines_none: None,
            kept_to: Vec::new(),
            clusters: Vec::new(),
            messages: Messages::default(),
            held_loads: Vec::new(),
        }
    }

    /// The parameters of a kernel that is on the device.
    pub(crate) fn params_of(&self, kernel: &str) -> Vec<u8> {
        self.grids.iter().find(|grid| *grid.launch.kernel == *kernel).unwrap().launch.params.clone()
    }

    /// The dynamic shared memory of a kernel that is on the device.
    pub(crate) fn dynamic_shared_of(&self, kernel: &str) -> u32 {
        let grid = self.grids.iter().find(|grid| *grid.launch.kernel == *kernel).unwrap();
        grid.launch.dynamic_shared
    }

    /// Whether a kernel is on the device.
    pub(crate) fn is_running(&self, kernel: &str) -> bool {
        self.grids.iter().any(|grid| *grid.launch.kernel == *kernel)
    }

    /// A CTA of a running kernel meets with a fault, and says so where the control block has a
    /// place for it.
    pub(crate) fn give_up(&mut self, kernel: &str, fault: u64) {
        let params = self.params_of(kernel);
        let block = u64::from_le_bytes(*params.last_chunk().unwrap()) & !1;
        self.put(block + FAULT, 4, fault);
        self.put(block + ABORT, 4, 1);
        self.put(block + NEXT, 8, EXHAUSTED);
        let word = self.get(block + FAULT_TO, 8);
        if word != 0 {
            self.put(word, 4, fault);
        }
    }

    /// A look at memory: whether it has come.
    fn look(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<bool, DeviceError> {
        let Some(time) = self.look_time else { return self.peek(address, into).map(|()| true) };
        match self.looks.get(&address.0) {
            Some((over, _)) if *over > self.now => return Ok(false),
            Some((_, seen)) => {
                into.copy_from_slice(seen);
                self.looks.remove(&address.0);
                return Ok(true);
            }
            None => {}
        }
        self.peek(address, into)?;
        self.looks.insert(address.0, (self.now + time, into.to_vec()));
        Ok(false)
    }

    /// Workers of a running kernel on one SM, at most, by its control block; 0: no limit.
    pub(crate) fn quota(&mut self, kernel: &str) -> u64 {
        let params = self.params_of(kernel);
        let block = u64::from_le_bytes(*params.last_chunk().unwrap()) & !31;
        self.get(block + QUOTA, 4)
    }

    /// Windows, allocations, modules, streams: what is left.
    pub(crate) fn leftovers(&self) -> [usize; 4] {
        [self.windows.len(), self.memory.len(), self.modules.len(), self.streams.len()]
    }

    /// Workers of each SM that are registered.
    pub(crate) fn workers(&self, sm: u16) -> u32 {
        self.registered[usize::from(sm)].values().sum()
    }

    /// Those of an application.
    pub(crate) fn workers_of(&self, sm: u16, application: ApplicationId) -> u32 {
        self.registered[usize::from(sm)].get(&application).copied().unwrap_or(0)
    }

    fn unregister(&mut self, sm: u16, grid: usize) {
        let application = self.applications[&self.grids[grid].launch.access[0].start.0];
        let here = &mut self.registered[usize::from(sm)];
        let count = here.get_mut(&application).unwrap();
        *count -= 1;
        here.retain(|_, count| *count > 0);
    }

    /// CTAs of running grids that have found no room yet.
    pub(crate) fn unplaced(&self) -> u64 {
        self.grids.iter().map(|grid| u64::from(grid.launch.grid.x) - grid.next_cta).sum()
    }

    fn span(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let (start, memory) = self.memory.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        memory.get_mut(offset..offset.checked_add(bytes)?)
    }

    fn get(&mut self, address: u64, bytes: usize) -> u64 {
        let span = self.span(address, bytes).expect("workers touch live memory");
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(span);
        u64::from_le_bytes(value)
    }

    fn put(&mut self, address: u64, bytes: usize, value: u64) {
        let span = self.span(address, bytes).expect("workers touch live memory");
        span.copy_from_slice(&value.to_le_bytes()[..bytes]);
    }

    fn add(&mut self, address: u64, bytes: usize, amount: u64) -> u64 {
        let old = self.get(address, bytes);
        self.put(address, bytes, old + amount);
        old
    }

    fn done(&mut self, operation: OperationId, outcome: Outcome) {
        assert!(self.pending.remove(&operation), "{operation} ended twice");
        self.finished.push(operation);
        self.events.push_back(Event::Done { operation, time: Nanos(self.now), outcome });
    }

    fn residency(&mut self, grid: OperationId, cta: u64, sm: u16, kind: ResidencyKind) {
        if self.trace {
            let change = ResidencyChange { time: Nanos(self.now), sm: SmId(sm), grid, cta, kind };
            self.events.push_back(Event::Residency(change));
        }
    }
}
