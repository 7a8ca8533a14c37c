//! A device for tests: streams, a block scheduler and the worker protocol, in steps of a microsecond.
//!
//! Kernels are described, not executed. The "PTX" of a module is a list of lines `NAME MICROSECONDS [REGISTERS]`: each
//! CTA of the kernel takes so long. A name that begins with `fault` faults in its first CTA; CTAs of one that begins with
//! `shared` share a bandwidth that is enough for [`SHARED_AT_ONCE`] of them. What must never happen is
//! asserted here, where it would be seen on a real device too: tasks of two sessions on one SM at once, a CTA executed
//! twice, a window given back while it is in use.

use partita_device::{
    Activity, AddressRange, Device, DeviceError, Event, Fault, FaultKind, Horizon, KernelFacts, Launch,
    ModuleFacts, Outcome, ThreadPosition, Work,
};
use partita_model::control::{
    ABORT, ALLOWED, COMPLETED, DEPARTED, MAIN_CTAS, NEXT, SLOT_BYTES, SLOT_LEFT, SLOT_REGISTERED, STALLED,
    TASK, TELEMETRY, TOTAL,
};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    ApplicationId, Bytes, ComputeCapability, DeviceAddress, DeviceCounters, DeviceFacts, DeviceKind, Dim3,
    GridCounters, ModuleId, Nanos, OperationId, ResidencyChange, ResidencyKind, SmId, SmSet, StreamId,
    Timekeeping, WindowId,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const STEP: u64 = 1_000;
const SHARED_AT_ONCE: u64 = 48;

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
    }
}

struct Kernel {
    nanos: u64,
    registers: u32,
    faults: bool,
    shares: bool,
}

struct Grid {
    operation: OperationId,
    stream: StreamId,
    launch: Launch,
    nanos: u64,
    faults: bool,
    shares: bool,
    /// The control block and whether this is a helper, for workers.
    block: Option<(DeviceAddress, bool)>,
    next_cta: u64,
    ctas: Vec<Cta>,
    cancelled: bool,
}

struct Cta {
    index: u64,
    sm: u16,
    state: State,
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
    /// Whose a window is, by its first address.
    pub(crate) applications: BTreeMap<u64, ApplicationId>,
    /// Per SM, the application whose workers are registered there, and how many.
    registered: Vec<(ApplicationId, u32)>,
    /// CTAs executed per block address since it was last zeroed by the host.
    executed: BTreeMap<u64, BTreeSet<u64>>,
    pub(crate) grids_started: u64,
    /// The entry of each grid.
    pub(crate) launched: Vec<Arc<str>>,
    /// The workspaces of grids that have the parameter.
    pub(crate) workspaces: Vec<u64>,
    /// What grids did, where it counts: a task's worth when the task ends.
    pub(crate) counted: Option<BTreeMap<OperationId, GridCounters>>,
    pub(crate) gated: SmSet,
}

impl FakeDevice {
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
            applications: BTreeMap::new(),
            registered: vec![(ApplicationId(0), 0); sm_count.into()],
            executed: BTreeMap::new(),
            grids_started: 0,
            launched: Vec::new(),
            workspaces: Vec::new(),
            counted: None,
            gated: SmSet::EMPTY,
        }
    }

    /// Windows, allocations, modules, streams: what is left.
    pub(crate) fn leftovers(&self) -> [usize; 4] {
        [self.windows.len(), self.memory.len(), self.modules.len(), self.streams.len()]
    }

    /// Workers of each SM that are registered.
    pub(crate) fn workers(&self, sm: u16) -> u32 {
        self.registered[usize::from(sm)].1
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

    fn bit(&mut self, address: u64, sm: u16) -> bool {
        self.get(address + u64::from(sm / 32) * 4, 4) >> (sm % 32) & 1 == 1
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

    /// Starts what is at the head of a stream.
    fn start_heads(&mut self) {
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            while let Some((operation, work)) =
                self.streams.get(&stream).and_then(|queue| queue.front()).cloned()
            {
                if self.grids.iter().any(|grid| grid.operation == operation) {
                    break;
                }
                match work {
                    Work::Launch(launch) => {
                        self.start_grid(stream, operation, launch);
                        break;
                    }
                    Work::Wait { on } if self.pending.contains(&on) => break,
                    Work::CopyOnDevice { to, from, bytes } => {
                        let bytes = usize::try_from(bytes).unwrap();
                        let data = self.span(from.0, bytes).expect("use after free").to_vec();
                        self.span(to.0, bytes).expect("use after free").copy_from_slice(&data);
                    }
                    Work::Fill { to, value, width, count } => {
                        let bytes = usize::try_from(u64::from(width) * count).unwrap();
                        let span = self.span(to.0, bytes).expect("use after free");
                        for element in span.chunks_exact_mut(width.into()) {
                            element.copy_from_slice(&value.to_le_bytes()[..width.into()]);
                        }
                    }
                    Work::CopyToDevice { to, from } => {
                        let mut data = vec![0; usize::try_from(from.bytes()).unwrap()];
                        from.read(0, &mut data);
                        self.span(to.0, data.len()).expect("use after free").copy_from_slice(&data);
                    }
                    Work::CopyToHost { to, from } => {
                        let bytes = usize::try_from(to.bytes()).unwrap();
                        let data = self.span(from.0, bytes).expect("use after free").to_vec();
                        to.write(0, &data);
                    }
                    Work::Marker | Work::Wait { .. } => {}
                }
                self.pop(stream);
                self.done(operation, Outcome::Complete);
            }
        }
    }

    fn pop(&mut self, stream: StreamId) {
        let queue = self.streams.get_mut(&stream).unwrap();
        queue.pop_front();
        if queue.is_empty() && self.closing.remove(&stream) {
            self.streams.remove(&stream);
        }
    }

    fn start_grid(&mut self, stream: StreamId, operation: OperationId, launch: Launch) {
        let kernel = &self.modules[&launch.module][&*launch.kernel];
        let pointer = || u64::from_le_bytes(launch.params[launch.params.len() - 8..].try_into().unwrap());
        let is_worker = launch.access.len() == 2 && !launch.kernel.ends_with("alone");
        self.workspaces.extend((&*launch.kernel == "grid-alone").then(pointer));
        let block = is_worker.then(|| {
            let pointer = pointer();
            (DeviceAddress(pointer & !1), pointer & 1 == 1)
        });
        self.grids_started += 1;
        self.launched.push(launch.kernel.clone());
        self.grids.push(Grid {
            operation,
            stream,
            nanos: kernel.nanos,
            faults: kernel.faults,
            shares: kernel.shares,
            block,
            next_cta: 0,
            ctas: Vec::new(),
            cancelled: false,
            launch,
        });
    }

    /// Places CTAs: grids in order of their start, each on the SM with most room; the first that finds none blocks all
    /// behind it.
    fn place(&mut self) {
        if self.grids.iter().all(|grid| u128::from(grid.next_cta) == grid.launch.grid.count()) {
            return;
        }
        let mut used = vec![(0_u32, 0_u32); self.facts.sm_count.into()];
        for grid in &self.grids {
            let threads = u32::try_from(grid.launch.block.count()).unwrap();
            for cta in &grid.ctas {
                let (slots, sum) = &mut used[usize::from(cta.sm)];
                (*slots, *sum) = (*slots + 1, *sum + threads);
            }
        }
        for i in 0..self.grids.len() {
            let threads = u32::try_from(self.grids[i].launch.block.count()).unwrap();
            while u128::from(self.grids[i].next_cta) < self.grids[i].launch.grid.count() {
                let free = |sm: u16| {
                    let (slots, sum) = used[usize::from(sm)];
                    let fits = slots < self.facts.ctas_per_sm && sum + threads <= self.facts.threads_per_sm;
                    fits.then_some((self.facts.threads_per_sm - sum, std::cmp::Reverse(sm)))
                };
                let Some((_, std::cmp::Reverse(sm))) = (0..self.facts.sm_count).filter_map(free).max() else {
                    return;
                };
                let (slots, sum) = &mut used[usize::from(sm)];
                (*slots, *sum) = (*slots + 1, *sum + threads);
                let grid = &mut self.grids[i];
                let index = grid.next_cta;
                grid.next_cta += 1;
                grid.ctas.push(Cta { index, sm, state: State::Starting });
                let operation = grid.operation;
                self.residency(operation, index, sm, ResidencyKind::Start);
            }
        }
    }

    fn step_ctas(&mut self) {
        for i in 0..self.grids.len() {
            for j in 0..self.grids[i].ctas.len() {
                self.step_cta(i, j);
            }
        }
        for grid in &mut self.grids {
            grid.ctas.retain(|cta| cta.state != State::Gone);
        }
        let ended: Vec<usize> = (0..self.grids.len())
            .filter(|&i| {
                let grid = &self.grids[i];
                let all = !grid.cancelled && u128::from(grid.next_cta) == grid.launch.grid.count();
                all && grid.ctas.is_empty()
            })
            .collect();
        for i in ended.into_iter().rev() {
            let grid = self.grids.remove(i);
            self.pop(grid.stream);
            self.done(grid.operation, Outcome::Complete);
        }
    }

    fn step_cta(&mut self, i: usize, j: usize) {
        let state = self.grids[i].ctas[j].state;
        if state == State::Gone {
            return;
        }
        let next = match self.grids[i].block {
            None => self.step_original(i, state),
            Some((block, helper)) => self.step_worker(i, j, state, block.0, helper),
        };
        let Some(next) = next else { return };
        let grid = &mut self.grids[i];
        grid.ctas[j].state = next;
        if next == State::Gone {
            let (operation, index, sm) = (grid.operation, grid.ctas[j].index, grid.ctas[j].sm);
            self.residency(operation, index, sm, ResidencyKind::Exit);
        }
    }

    fn step_original(&mut self, i: usize, state: State) -> Option<State> {
        match state {
            State::Starting if self.grids[i].faults => {
                self.fault(i);
                None
            }
            State::Starting => {
                Some(State::Busy { until: self.now + self.grids[i].nanos, first: 0, count: 1 })
            }
            State::Busy { until, .. } if until > self.now => None,
            _ => Some(State::Gone),
        }
    }

    /// The worker protocol.
    fn step_worker(&mut self, i: usize, j: usize, state: State, block: u64, helper: bool) -> Option<State> {
        let sm = self.grids[i].ctas[j].sm;
        let slot = block + TELEMETRY + u64::from(sm) * SLOT_BYTES;
        let window = self.grids[i].launch.access[0].start.0;
        match state {
            State::Gone => None,
            State::Starting => {
                if self.get(block + ABORT, 4) != 0 || !self.bit(block + ALLOWED, sm) {
                    return self.leave(block, helper);
                }
                self.add(slot + SLOT_REGISTERED, 4, 1);
                self.register(sm, window);
                Some(State::Border)
            }
            State::Border => {
                if self.get(block + ABORT, 4) != 0 || !self.bit(block + ALLOWED, sm) {
                    return self.unregister_and_leave(block, helper, sm, slot);
                }
                let empty = self.get(block + NEXT, 8) >= self.get(block + TOTAL, 8);
                if self.bit(block + STALLED, sm) && !empty {
                    return None;
                }
                let (task, total) = (self.get(block + TASK, 4), self.get(block + TOTAL, 8));
                let first = self.add(block + NEXT, 8, task);
                if first >= total {
                    return self.unregister_and_leave(block, helper, sm, slot);
                }
                if self.grids[i].faults {
                    self.fault(i);
                    return None;
                }
                let count = task.min(total - first);
                Some(State::Busy { until: self.now + count * self.cta_nanos(i), first, count })
            }
            State::Busy { until, .. } if until > self.now => None,
            State::Busy { first, count, .. } => {
                for cta in first..first + count {
                    assert!(self.executed.entry(block).or_default().insert(cta), "CTA {cta} ran twice");
                }
                self.add(block + COMPLETED, 8, count);
                self.count(i, count);
                Some(State::Border)
            }
            State::Parked => {
                let (done, total) = (self.get(block + COMPLETED, 8), self.get(block + TOTAL, 8));
                if done == total || self.get(block + ABORT, 4) != 0 {
                    return Some(State::Gone);
                }
                let may = self.bit(block + ALLOWED, sm) && !self.bit(block + STALLED, sm);
                if may && self.get(block + NEXT, 8) < total {
                    self.add(slot + SLOT_REGISTERED, 4, 1);
                    self.register(sm, window);
                    return Some(State::Border);
                }
                None
            }
        }
    }

    fn count(&mut self, i: usize, ctas: u64) {
        let (operation, shares) = (self.grids[i].operation, self.grids[i].shares);
        if let Some(counted) = &mut self.counted {
            let counters = counted.entry(operation).or_default();
            counters.warp_instructions += ctas * 10_000;
            counters.llc_accesses += ctas * if shares { 1_000 } else { 10 };
        }
    }

    /// What a CTA takes that starts now.
    fn cta_nanos(&self, i: usize) -> u64 {
        let grid = &self.grids[i];
        if !grid.shares {
            return grid.nanos;
        }
        let busy =
            |grid: &Grid| grid.ctas.iter().filter(|cta| matches!(cta.state, State::Busy { .. })).count();
        let busy: usize = self.grids.iter().filter(|grid| grid.shares).map(busy).sum();
        grid.nanos * u64::try_from(busy + 1).unwrap().max(SHARED_AT_ONCE) / SHARED_AT_ONCE
    }

    fn unregister_and_leave(&mut self, block: u64, helper: bool, sm: u16, slot: u64) -> Option<State> {
        self.add(slot + SLOT_LEFT, 4, 1);
        self.registered[usize::from(sm)].1 -= 1;
        self.leave(block, helper)
    }

    fn leave(&mut self, block: u64, helper: bool) -> Option<State> {
        if helper {
            return Some(State::Gone);
        }
        // The last of the main grid departs once, however often it claims again.
        if self.get(block + DEPARTED, 4) == self.get(block + MAIN_CTAS, 4) {
            return Some(State::Parked);
        }
        let departed = self.add(block + DEPARTED, 4, 1) + 1;
        if departed < self.get(block + MAIN_CTAS, 4) {
            return Some(State::Gone);
        }
        Some(State::Parked)
    }

    fn register(&mut self, sm: u16, window: u64) {
        let application = self.applications[&window];
        let (owner, count) = &mut self.registered[usize::from(sm)];
        assert!(*count == 0 || *owner == application, "SM {sm}: workers of two applications at once");
        *owner = application;
        *count += 1;
    }

    fn fault(&mut self, i: usize) {
        let fault = Fault {
            kind: FaultKind::IllegalAddress,
            kernel: self.grids[i].launch.kernel.to_string(),
            position: Some(ThreadPosition { cta: Dim3::new(1, 0, 0), thread: Dim3::new(3, 0, 0) }),
            line: Some(2),
            address: Some(DeviceAddress(0xdead_0000)),
            detail: String::new(),
            assertion: None,
            values: vec![("%x".to_owned(), 41), ("%y".to_owned(), 5), ("%z".to_owned(), 0)],
        };
        self.end_grid(i, Outcome::Fault(Box::new(fault)));
    }

    /// Takes a grid away with all its CTAs.
    fn end_grid(&mut self, i: usize, outcome: Outcome) {
        let block = self.grids[i].block;
        let gone: Vec<(u64, u16, State)> = self.grids[i]
            .ctas
            .iter_mut()
            .map(|cta| (cta.index, cta.sm, std::mem::replace(&mut cta.state, State::Gone)))
            .filter(|(_, _, state)| *state != State::Gone)
            .collect();
        let operation = self.grids[i].operation;
        for (index, sm, state) in gone {
            if block.is_some() && matches!(state, State::Border | State::Busy { .. }) {
                self.registered[usize::from(sm)].1 -= 1;
            }
            self.residency(operation, index, sm, ResidencyKind::Exit);
        }
        let grid = &mut self.grids[i];
        grid.next_cta = u64::try_from(grid.launch.grid.count()).unwrap();
        grid.cancelled = true;
        let stream = grid.stream;
        self.pop(stream);
        self.done(operation, outcome);
    }

    fn advance(&mut self) {
        self.now += STEP;
        self.start_heads();
        self.place();
        self.step_ctas();
        self.grids.retain(|grid| !grid.cancelled);
    }
}

impl Device for FakeDevice {
    fn calibration(&self) -> partita_model::Calibration {
        partita_model::Calibration {
            sms: self.facts.sm_count,
            sm_clock_khz: self.facts.sm_clock_khz,
            warp_instructions_per_cycle: 2.0,
            access_bytes: 32,
            noc_bytes_per_second: 200e9,
            llc_bytes_per_second: 200e9,
            dram_bytes_per_second: 100e9,
            dram_utilisation: 0.5,
        }
    }

    fn gate(&mut self, sms: SmSet) -> Result<(), DeviceError> {
        self.gated = sms;
        Ok(())
    }

    fn grid_counters(&self, operation: OperationId) -> Option<GridCounters> {
        self.counted.as_ref()?.get(&operation).copied()
    }

    fn counters(&self) -> Option<DeviceCounters> {
        self.counted.as_ref().map(|_| DeviceCounters::default())
    }

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError> {
        let start = DeviceAddress(self.next_base);
        self.next_base += bytes.next_multiple_of(2 << 20);
        assert!(self.windows.insert(window, AddressRange { start, bytes }).is_none());
        Ok(start)
    }

    fn release(&mut self, window: WindowId) -> Result<(), DeviceError> {
        let range = self.windows.remove(&window).ok_or(DeviceError::BadId(window.to_string()))?;
        let uses = |grid: &Grid| grid.launch.access.contains(&range);
        assert!(!self.grids.iter().any(uses), "{window} is in use");
        self.memory.retain(|start, _| !range.contains(DeviceAddress(*start), 1));
        let (memory, arrays) = (&mut self.memory, &mut self.arrays);
        arrays.retain(|array, owner| *owner != window || memory.remove(array).is_none());
        self.textures.retain(|_, owner| *owner != window);
        Ok(())
    }

    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError> {
        assert!(self.windows[&window].contains(range.start, range.bytes));
        let used: usize = self.memory.values().map(Vec::len).sum();
        let available = self.facts.memory.0 - u64::try_from(used).unwrap();
        if range.bytes > available {
            return Err(DeviceError::OutOfMemory { wanted: range.bytes, available });
        }
        self.memory.insert(range.start.0, vec![0; usize::try_from(range.bytes).unwrap()]);
        Ok(())
    }

    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError> {
        match self.memory.remove(&address.0) {
            Some(_) => Ok(()),
            None => Err(DeviceError::BadRange { address, bytes: 0 }),
        }
    }

    fn create_array(&mut self, window: WindowId, shape: &ArrayShape) -> Result<DeviceAddress, DeviceError> {
        assert!(self.windows.contains_key(&window));
        let start = self.next_array;
        self.next_array += shape.bytes() + 1;
        self.arrays.insert(start, window);
        self.memory.insert(start, vec![0; usize::try_from(shape.bytes()).unwrap()]);
        Ok(DeviceAddress(start))
    }

    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        assert!(self.arrays.remove(&array.0).is_some(), "no array at {array}");
        self.free(array)
    }

    fn create_texture(&mut self, window: WindowId, _: &TextureSpec) -> Result<u64, DeviceError> {
        assert!(self.windows.contains_key(&window));
        let texture = u64::try_from(self.textures.len()).unwrap() + 1;
        self.textures.insert(texture, window);
        Ok(texture)
    }

    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        assert_eq!(self.textures.remove(&texture), Some(window));
        Ok(())
    }

    fn load_module(&mut self, module: ModuleId, _: WindowId, ptx: Arc<str>) -> Result<(), DeviceError> {
        let mut kernels = BTreeMap::new();
        let mut facts = ModuleFacts::default();
        for line in ptx.lines() {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap().to_owned();
            let Some(micros) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
                self.events
                    .push_back(Event::ModuleRefused { module, reason: "line 1: malformed".to_owned() });
                return Ok(());
            };
            let registers = words.next().map_or(16, |word| word.parse().unwrap());
            facts.kernels.push(KernelFacts {
                name: name.clone(),
                registers,
                static_shared: Bytes(0),
                local: Bytes(0),
                max_threads: (65_536 / registers / 32 * 32).min(1024),
            });
            let faults = name.starts_with("fault");
            let shares = name.starts_with("shared");
            kernels.insert(name, Kernel { nanos: micros * 1_000, registers, faults, shares });
        }
        self.modules.insert(module, kernels);
        self.events.push_back(Event::ModuleLoaded { module, facts });
        Ok(())
    }

    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError> {
        assert!(!self.grids.iter().any(|grid| grid.launch.module == module), "{module} is in use");
        self.modules.remove(&module).map(|_| ()).ok_or(DeviceError::BadId(module.to_string()))
    }

    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        assert!(self.streams.insert(stream, VecDeque::new()).is_none());
        Ok(())
    }

    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError> {
        match self.streams.get(&stream) {
            None => return Err(DeviceError::BadId(stream.to_string())),
            Some(queue) if queue.is_empty() => drop(self.streams.remove(&stream)),
            Some(_) => drop(self.closing.insert(stream)),
        }
        Ok(())
    }

    fn enqueue(&mut self, stream: StreamId, operation: OperationId, work: Work) -> Result<(), DeviceError> {
        if let Work::Launch(launch) = &work {
            let kernel = &self.modules[&launch.module][&*launch.kernel];
            if kernel.registers > 255 {
                return Err(DeviceError::BadLaunch("too many registers".to_owned()));
            }
            assert!(!launch.grid.is_empty());
        }
        self.streams
            .get_mut(&stream)
            .ok_or(DeviceError::BadId(stream.to_string()))?
            .push_back((operation, work));
        assert!(self.pending.insert(operation));
        Ok(())
    }

    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError> {
        if let Some(i) = self.grids.iter().position(|grid| grid.operation == operation && !grid.cancelled) {
            self.end_grid(i, Outcome::Cancelled);
            self.grids.retain(|grid| !grid.cancelled);
            return Ok(());
        }
        for queue in self.streams.values_mut() {
            if let Some(at) = queue.iter().position(|(queued, _)| *queued == operation) {
                queue.remove(at);
                self.done(operation, Outcome::Cancelled);
                return Ok(());
            }
        }
        Ok(())
    }

    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError> {
        let bytes = into.len();
        let error = DeviceError::BadRange { address, bytes: u64::try_from(bytes).unwrap() };
        into.copy_from_slice(self.span(address.0, bytes).ok_or(error)?);
        Ok(())
    }

    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError> {
        let error = DeviceError::BadRange { address, bytes: u64::try_from(bytes.len()).unwrap() };
        self.span(address.0, bytes.len()).ok_or(error)?.copy_from_slice(bytes);
        if u64::try_from(bytes.len()).unwrap() > TOTAL {
            assert!(
                !self.grids.iter().any(|grid| grid.block.is_some_and(|(block, _)| block == address)),
                "a control block is reused while a grid uses it"
            );
            self.executed.remove(&address.0);
        }
        Ok(())
    }

    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError> {
        self.trace = on;
        Ok(())
    }

    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity {
        loop {
            if !self.events.is_empty() {
                events.extend(self.events.drain(..));
                return Activity::Busy;
            }
            if self.pending.is_empty() {
                return Activity::Idle;
            }
            if horizon.until.is_some_and(|until| self.now >= until.0) {
                return Activity::Busy;
            }
            self.advance();
        }
    }
}
