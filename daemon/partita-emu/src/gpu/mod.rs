//! The device, and the loop in which simulated time advances.
//!
//! All SMs advance together in turns of [`QUANTUM_CYCLES`]. Inside a turn the SMs run one after the
//! other, and the first SM rotates. Between turns, stream fronts begin and end, and the block
//! scheduler places CTAs breadth-first over the SMs that have room. Inside a turn a CTA that leaves
//! gives its room to the next CTA at once. Nothing depends on the host's clock or threads: a seed
//! and a sequence of calls give the same events, to the bit. The one exception is a device without
//! timing that serves programs ([`host_shares`]). On several threads ([`ahead`]) that holds for
//! kernels whose CTAs do not race.
//!
//! A command given at device time `t` takes effect no earlier than `t`.

mod account;
mod admit;
mod ahead;
mod clusters;
mod contract;
mod for_drivers;
mod grid;
mod hardware;
mod host_shares;
mod pieces;
mod placement;
mod reader;
mod sharing;
mod sm;
mod stream;
mod target;
mod transfers;

pub use grid::{Footprint, Grid};
pub use hardware::Hardware;
pub use sm::tape::Tape;
pub use transfers::{Transfer, Way};

use crate::exec::program::Program;
use crate::memory::weak::Weak;
use crate::memory::{Memory, MemoryCheck};
use crate::spec::Spec;
use crate::timing::memory::SharedMemorySystem;
use ahead::Helpers;
use host_shares::HostShares;
use partita_device::{Activity, AddressRange, DeviceError, Event, Guards, Outcome, Work};
use partita_model::{
    AddressPart, Bytes, DeviceAddress, DeviceFacts, GridCounters, HostTime, ModuleId, Nanos,
    OperationId, ResidencyChange, ResidencyKind, Sharing, SmId, SmSet, StreamId, Timekeeping,
    WindowId,
};
use serde::{Deserialize, Serialize};
use sharing::Contexts;
use sm::{News, Sm, Surroundings};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stream::{Front, Queued, Streams, Task};

/// Cycles for which an SM runs before the others have their turn.
pub const QUANTUM_CYCLES: u64 = 256;
/// The quantum where time is not kept. Longer turns keep each SM's data in the host's caches.
const UNTIMED_QUANTUM_CYCLES: u64 = 2048;
/// The duration in picoseconds of copies, fills and markers where time is not kept. It makes the
/// times of two events differ.
const UNTIMED_OPERATION: u64 = 100_000;

/// Whether time is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Timing {
    /// Caches, bandwidth and latencies as the spec says.
    #[default]
    On,
    /// An instruction takes an issue slot, other operations a fixed time, and memory no time.
    /// Clocks and events increase and mean nothing else.
    Off,
}

/// Whether kernels are executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Kernels {
    /// Kernels are executed.
    #[default]
    Run,
    /// Each grid is checked and ends without effect when it would begin. This measures the cost of
    /// everything else.
    Skip,
}

/// How an emulated GPU is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Options {
    /// Decides what a GPU leaves open: the first SM of a turn, and the order of weak memory.
    pub seed: u64,
    /// Whether time is kept.
    pub timing: Timing,
    /// Whether kernels are executed.
    pub kernels: Kernels,
    /// What order other threads see of a thread's accesses.
    pub memory: MemoryOrder,
    /// How grids of several windows, the contexts, share the GPU. Spatial and MPS are the same
    /// here: CTAs go where there is room.
    pub sharing: Sharing,
    /// The part of the SMs that a context may use under MPS, in per cent; all where it is not said.
    pub thread_percentage: Option<u8>,
    /// Whether grids can be ended from outside.
    pub cancel: Cancel,
    /// What accesses of global memory are held to.
    #[serde(default)]
    pub memcheck: MemoryCheck,
    /// Whether kernels must be rewritten as for a GPU that checks nothing.
    #[serde(default)]
    pub guarded: bool,
    /// The host's threads beyond the first that execute kernels, where no time is kept.
    #[serde(default)]
    pub helpers: u16,
    /// What host time is worth; where it is not said, simulated time goes on as fast as it can.
    pub host_time: Option<HostTime>,
    /// Where its windows lie, and which of several GPUs it is.
    #[serde(default)]
    pub part: AddressPart,
}

/// Whether grids can be ended from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Cancel {
    /// Grids can be ended at any instruction.
    #[default]
    Always,
    /// Grids end by themselves or look at a flag, as on a GPU.
    Never,
}

/// The order in which global memory takes what threads do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum MemoryOrder {
    /// Other threads see the accesses in program order: sequential consistency.
    #[default]
    InOrder,
    /// Memory is as weak as [`crate::memory::weak`] says; the seed chooses.
    Weak,
}

struct LoadedModule {
    window: WindowId,
    variables: Option<DeviceAddress>,
    managed: Option<DeviceAddress>,
    constants: Option<AddressRange>,
    programs: BTreeMap<String, Arc<Program>>,
    refused: BTreeMap<String, String>,
}

/// A GPU in software. See [`partita_device::Device`].
pub struct EmulatedGpu {
    spec: Spec,
    facts: DeviceFacts,
    options: Options,
    memory: Memory,
    weak: Option<Weak>,
    modules: BTreeMap<ModuleId, LoadedModule>,
    reader: Arc<reader::Reader>,
    /// Whether a piece of a long copy or fill was done in this poll. The host may take a
    /// millisecond for it, so the poll returns.
    did_piece: bool,
    streams: Streams,
    grids: BTreeMap<OperationId, Grid>,
    /// Grids with CTAs left to place, in order of priority and then of arrival.
    order: Vec<OperationId>,
    sms: Vec<Sm>,
    system: SharedMemorySystem,
    now: u64,
    turns: u64,
    sequence: u64,
    grid_ids: u64,
    copy_engines: [u64; 2],
    /// What the copy engines have done, where that is written down.
    transfers: Option<Vec<Transfer>>,
    residency: bool,
    events: VecDeque<Event>,
    ended: VecDeque<(OperationId, GridCounters)>,
    /// Sums over all grids that have ended.
    ended_sum: GridCounters,
    /// The SMs that a stream's grids may use, for streams that may not use all.
    confined: BTreeMap<StreamId, SmSet>,
    /// The groups of SMs that grids can be kept to.
    groups: Vec<SmSet>,
    gpcs: Vec<SmSet>,
    gated: SmSet,
    contexts: Contexts,
    /// Shares of the host's time, where programs are served and no device time is kept.
    shares: Option<HostShares>,
    /// The host's threads that run CTAs ahead of their turn.
    helpers: Option<Helpers>,
}

/// The guards that rewritten kernels need where the GPU checks as little as a real one does.
fn guards(spec: &Spec, options: &Options) -> Guards {
    /// The smallest window of a session.
    const WINDOW_BYTES: u64 = 64 << 30;
    if !options.guarded {
        return Guards::default();
    }
    let bits = partita_ptx::fence::cell_bits(spec.memory_bytes.max(WINDOW_BYTES));
    Guards { cell_bits: Some(bits), ends: true, prints: false, contains: false }
}

/// Whether programs share the host's time, because the device keeps none.
fn shares_host_time(options: &Options) -> bool {
    options.timing == Timing::Off
        && options.memory == MemoryOrder::InOrder
        && options.host_time.is_some()
}

/// The windows whose CTAs have run ahead pay for it.
fn pay_for_batches(helpers: &mut Option<Helpers>, shares: Option<&mut HostShares>) {
    let owed = helpers.as_mut().map(Helpers::take_owed).unwrap_or_default();
    if let Some(shares) = shares {
        for (window, time) in owed {
            shares.took(window, time, None);
        }
    }
}

impl EmulatedGpu {
    /// A GPU as the spec says, with nothing on it.
    #[must_use]
    pub fn new(spec: Spec, options: Options) -> Self {
        let timed = options.timing == Timing::On;
        let timekeeping = if timed { Timekeeping::Simulated } else { Timekeeping::Off };
        let mut memory = Memory::new(spec.memory_bytes);
        memory.set_cells(options.part, guards(&spec, &options).cell_bits.unwrap_or(0));
        memory.set_check(options.memcheck);
        let mut facts = DeviceFacts { timekeeping, ..spec.facts() };
        // Two GPUs of one specification have different UUIDs.
        let [high, low] = options.part.index().to_be_bytes();
        facts.uuid[14] ^= high;
        facts.uuid[15] ^= low;
        EmulatedGpu {
            facts,
            memory,
            weak: (options.memory == MemoryOrder::Weak).then(|| Weak::new(options.seed)),
            modules: BTreeMap::new(),
            reader: Arc::default(),
            did_piece: false,
            streams: Streams::default(),
            grids: BTreeMap::new(),
            order: Vec::new(),
            sms: (0..u32::from(spec.sms)).map(|id| Sm::new(id, &spec, timed)).collect(),
            system: SharedMemorySystem::new(&spec),
            now: 0,
            turns: options.seed,
            sequence: 0,
            grid_ids: 0,
            copy_engines: [0; 2],
            transfers: None,
            residency: false,
            events: VecDeque::new(),
            ended: VecDeque::new(),
            ended_sum: GridCounters::default(),
            confined: BTreeMap::new(),
            groups: spec.sm_groups(),
            gpcs: spec.gpcs(),
            gated: SmSet::EMPTY,
            contexts: Contexts::default(),
            helpers: Helpers::of(&spec, &options),
            shares: shares_host_time(&options).then(|| HostShares::new(sm::UNTIMED_BUDGET)),
            options,
            spec,
        }
    }

    /// The modelled GPU.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// How it is set up.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Device time in picoseconds.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now
    }

    /// A digest of the live memory of a window, of all where none is named: addresses and contents,
    /// arrays left out.
    #[must_use]
    pub fn memory_digest(&self, window: Option<WindowId>) -> u64 {
        self.memory.live(window).fold(0, |before, (start, bytes)| {
            crate::record::digest(crate::record::digest(before, &start.to_le_bytes()), bytes)
        })
    }

    /// Sets the SMs of a stream's later grids, as a partition in hardware would. Grids that have
    /// begun keep their SMs. SMs that the GPU lacks are ignored; a stream without SMs waits.
    pub fn confine_stream(&mut self, stream: StreamId, sms: SmSet) {
        self.confined.insert(stream, sms.intersection(&SmSet::range(0, self.spec.sms)));
    }

    /// Sets the priority of a stream's later grids, as `cuStreamCreateWithPriority` does: CTAs of
    /// lower numbers are placed first, and CTAs that run are not preempted. Copies have none. A
    /// stream has the priority 0 where nothing else is said.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] where there is no such stream.
    pub fn set_stream_priority(
        &mut self,
        stream: StreamId,
        priority: i32,
    ) -> Result<(), DeviceError> {
        let found = self.streams.streams.get_mut(&stream);
        found.ok_or_else(|| DeviceError::BadId(stream.to_string()))?.priority = priority;
        Ok(())
    }

    /// The streams that take work, in order.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        let open = self.streams.streams.iter().filter(|(_, stream)| !stream.destroyed);
        open.map(|(id, _)| *id)
    }

    fn grid_task(&self, grid: Grid) -> Task {
        match self.options.kernels {
            Kernels::Run => Task::Grid(Box::new(grid)),
            Kernels::Skip => Task::Work(Work::Marker),
        }
    }

    /// Bytes in live allocations.
    #[must_use]
    pub fn memory_used(&self) -> Bytes {
        Bytes(self.memory.used())
    }

    /// A kernel of a loaded module.
    #[must_use]
    pub fn program(&self, module: ModuleId, kernel: &str) -> Option<&Program> {
        self.modules.get(&module)?.programs.get(kernel).map(Arc::as_ref)
    }

    /// The time at which work that begins now ends.
    fn duration_end(&mut self, work: &Work) -> u64 {
        let now = self.now;
        if self.options.timing == Timing::Off {
            return match work {
                Work::Launch(_)
                | Work::LaunchOn { .. }
                | Work::Wait { .. }
                | Work::WaitValue { .. } => now,
                _ => now + UNTIMED_OPERATION,
            };
        }
        let picoseconds = |bytes: u64, gigabytes_per_second: f64| {
            (bytes as f64 * 1000.0 / gigabytes_per_second) as u64
        };
        let dram = self.spec.dram_gigabytes_per_second * self.spec.dram_efficiency;
        let launch = self.spec.launch_nanoseconds * 1000;
        match work {
            Work::CopyToDevice { from, .. } => self.transfer(Way::ToDevice, from.bytes()),
            Work::CopyToHost { to, .. } => self.transfer(Way::ToHost, to.bytes()),
            Work::CopyOnDevice { bytes, .. } => now + launch + picoseconds(2 * bytes, dram),
            Work::Fill { width, count, .. } => {
                now + launch + picoseconds(count * u64::from(*width), dram)
            }
            Work::Launch(_)
            | Work::LaunchOn { .. }
            | Work::Marker
            | Work::Wait { .. }
            | Work::WaitValue { .. } => now,
        }
    }

    /// The window that pays for a copy or fill, where windows share the host's time.
    fn payer(&self, work: &Work) -> Option<WindowId> {
        self.shares.as_ref()?;
        self.memory.window_of(pieces::memory_of(work)?)
    }

    /// What began then is over, and a window pays for it.
    fn charge(&mut self, payer: Option<WindowId>, began: Option<Instant>) {
        if let (Some(shares), Some(payer), Some(began)) = (&mut self.shares, payer, began) {
            shares.took(payer, began.elapsed(), None);
        }
    }

    /// Carries out the memory operation of a front that has ended.
    fn carry_out(&mut self, work: &Work) -> Result<(), DeviceError> {
        match work {
            Work::CopyToDevice { to, from } => {
                self.memory.write_with(*to, from.bytes(), |at, piece| from.read(at, piece))
            }
            Work::CopyToHost { to, from } => {
                self.memory.read_with(*from, to.bytes(), |at, piece| to.write(at, piece))
            }
            Work::CopyOnDevice { to, from, bytes } => self.memory.copy(*to, *from, *bytes),
            Work::Fill { to, value, width, count } => {
                self.memory.fill(*to, &value.to_le_bytes()[..usize::from(*width)], *count)
            }
            Work::Launch(_)
            | Work::LaunchOn { .. }
            | Work::Marker
            | Work::Wait { .. }
            | Work::WaitValue { .. } => Ok(()),
        }
    }

    fn done(&mut self, operation: OperationId, time: u64, outcome: Outcome) {
        self.streams.pending.remove(&operation);
        self.events.push_back(Event::Done { operation, time: Nanos(time / 1000), outcome });
    }

    /// Begins and ends all fronts that can now, repeatedly, because one may enable another.
    fn serve_streams(&mut self) {
        loop {
            let mut any = false;
            let ids: Vec<StreamId> = self.streams.with_work().collect();
            for id in ids {
                any |= self.serve_stream(id);
            }
            if !any {
                break;
            }
        }
        self.streams.sweep();
    }

    fn serve_stream(&mut self, id: StreamId) -> bool {
        let Some(stream) = self.streams.streams.get_mut(&id) else { return false };
        match stream.front.take() {
            Some((operation, Front::Until(time, work))) if time <= self.now => {
                let payer = self.payer(&work);
                if !self.shares.as_ref().zip(payer).is_none_or(|(all, one)| all.may_copy(one)) {
                    if let Some(stream) = self.streams.streams.get_mut(&id) {
                        stream.front = Some((operation, Front::Until(time, work)));
                    }
                    return false;
                }
                let (work, rest) = match self.options.timing {
                    Timing::Off => pieces::first(work),
                    Timing::On => (work, None),
                };
                let began = payer.map(|_| Instant::now());
                let carried_out = self.carry_out(&work);
                self.charge(payer, began);
                let outcome = match (carried_out, rest) {
                    (Ok(()), Some(rest)) => {
                        self.did_piece = true;
                        let next = Front::Until(self.now + UNTIMED_OPERATION, rest);
                        if let Some(stream) = self.streams.streams.get_mut(&id) {
                            stream.front = Some((operation, next));
                        }
                        return true;
                    }
                    (Ok(()), None) => Outcome::Complete,
                    // The work's memory was freed in the meantime.
                    (Err(error), _) => Outcome::Fault(Box::new(partita_device::Fault {
                        kind: partita_device::FaultKind::IllegalAddress,
                        kernel: "(copy)".to_owned(),
                        position: None,
                        line: None,
                        address: None,
                        detail: error.to_string(),
                        assertion: None,
                        values: Vec::new(),
                    })),
                };
                if let Some(stream) = self.streams.streams.get_mut(&id) {
                    stream.free_at = time;
                }
                self.done(operation, time, outcome);
                true
            }
            Some((operation, Front::Waiting(on))) if !self.streams.pending.contains(&on) => {
                let now = self.now;
                self.done(operation, now, Outcome::Complete);
                true
            }
            Some((operation, Front::Value(address, awaited))) => {
                let mut word = [0; 8];
                let found = self.memory.read(address, &mut word[..usize::from(awaited.width)]);
                // Memory that was freed in the meantime holds up no stream.
                let waits = found.is_ok() && !awaited.holds(u64::from_le_bytes(word));
                if waits {
                    stream.front = Some((operation, Front::Value(address, awaited)));
                } else {
                    let now = self.now;
                    stream.free_at = now;
                    self.done(operation, now, Outcome::Complete);
                }
                !waits
            }
            None => match stream.queue.pop_front() {
                Some(queued) => {
                    self.begin(id, queued);
                    true
                }
                None => false,
            },
            front => {
                stream.front = front;
                false
            }
        }
    }

    fn begin(&mut self, id: StreamId, queued: Queued) {
        let operation = queued.operation;
        let front = match queued.what {
            Task::Grid(mut grid) => {
                let latency = if self.options.timing == Timing::On {
                    self.spec.launch_nanoseconds * 1000
                } else {
                    0
                };
                // The previous operation may have ended inside the last turn.
                let stream = self.streams.streams.get(&id);
                let (free_at, priority) =
                    stream.map_or((0, 0), |stream| (stream.free_at, stream.priority));
                let begin = free_at.max(queued.since).min(self.now);
                grid.priority = priority;
                grid.start = (begin + latency).max(self.now);
                grid.end = grid.start;
                let confined = self.confined.get(&id).copied();
                let open = confined.unwrap_or_else(|| self.sms_of_context(grid.window));
                grid.sms = grid.sms.intersection(&open);
                let ctas = grid.cluster_ctas();
                if ctas > 1 && !clusters::can_hold(&self.spec, &grid.sms, &grid.footprint, ctas) {
                    let fault = Box::new(grid.no_room_for_clusters());
                    self.done(operation, self.now, Outcome::Fault(fault));
                    return;
                }
                let yields = |other: &OperationId| {
                    self.grids.get(other).is_some_and(|other| other.priority > priority)
                };
                let place = self.order.iter().position(yields).unwrap_or(self.order.len());
                self.order.insert(place, operation);
                self.grids.insert(operation, *grid);
                self.streams.of_grid.insert(operation, id);
                Front::Running
            }
            Task::Work(Work::Wait { on }) => Front::Waiting(on),
            Task::Work(Work::WaitValue { address, word }) => Front::Value(address, word),
            Task::Work(work) => {
                let end = self.duration_end(&work);
                Front::Until(end, work)
            }
        };
        if let Some(stream) = self.streams.streams.get_mut(&id) {
            stream.front = Some((operation, front));
        }
    }

    /// Runs one turn of all SMs that have work in it. Returns the warp instructions executed.
    fn turn(&mut self, until: u64, news: &mut Vec<News>) -> u64 {
        let mut executed = 0;
        let count = self.sms.len();
        self.turns += 1;
        let first = self.turns as usize % count;
        self.system.advance(self.now);
        if let Some(weak) = &mut self.weak {
            weak.tick(&mut self.memory);
        }
        let order = self.order_of_context();
        let mut shares = self.shares.take();
        let with_work = |sm: &usize| self.sms[*sm].has_work(until);
        let rotated = (first..count).chain(0..first).filter(with_work);
        let plan: Vec<(usize, bool)> = match &mut shares {
            None => rotated.map(|sm| (sm, false)).collect(),
            Some(shares) => {
                let (owned, others): (Vec<_>, Vec<_>) = rotated
                    .map(|sm| (sm, self.sms[sm].window(&self.grids)))
                    .partition(|(_, window)| window.is_some());
                let owned: Vec<_> =
                    owned.into_iter().filter_map(|(sm, window)| Some((sm, window?))).collect();
                let others = others.into_iter().map(|(sm, _)| (sm, true));
                others.chain(shares.begin_turn(&owned)).collect()
            }
        };
        if let (Some(helpers), Some(shares)) = (&mut self.helpers, &shares) {
            helpers.end_at(shares.poll_ends());
        }
        let mut ran = 0;
        for (at, &(number, _)) in plan.iter().enumerate() {
            if let (Some(shares), 1..) = (&mut shares, ran)
                && shares.is_poll_over()
            {
                // SMs that have not run are late, as those of a window that waits.
                let window = |sm: usize| self.sms[sm].window(&self.grids);
                let may_run = |sm| window(sm).is_none_or(|window| shares.may_run(window));
                let left = plan[at..].iter().filter(|&&(sm, _)| may_run(sm)).count();
                shares.cut_turn(ran, left);
                break;
            }
            let sm = &mut self.sms[number];
            let run = shares.as_ref().zip(sm.window(&self.grids));
            if run.is_some_and(|(shares, window)| !shares.may_run(window)) {
                continue;
            }
            ran += 1;
            let run = run.map(|(shares, window)| (window, shares.run(window)));
            let mut around = Surroundings {
                spec: &self.spec,
                timed: self.options.timing == Timing::On,
                memory: &mut self.memory,
                weak: &mut self.weak,
                system: &mut self.system,
                grids: &mut self.grids,
                order: &order,
                sequence: &mut self.sequence,
                news,
                residency: self.residency,
                executed: &mut executed,
                pace: run.map(|(_, run)| run.pace),
                helpers: self.helpers.as_mut(),
                ahead: None,
            };
            sm.run(self.now, until, &mut around);
            let pace = around.pace;
            if let Some(shares) = &mut shares {
                shares.runs(number);
            }
            if let (Some(shares), Some((window, run)), Some(pace)) = (&mut shares, run, pace) {
                let batches = self.helpers.as_ref().map_or(Duration::ZERO, Helpers::owed);
                let took = run.began.elapsed().saturating_sub(batches);
                shares.took(window, took, Some(pace.budget));
            }
            pay_for_batches(&mut self.helpers, shares.as_mut());
        }
        self.shares = shares;
        executed
    }

    /// Turns reports of SMs into events, and ends grids.
    fn digest(&mut self, mut news: Vec<News>) {
        // A grid reports the earliest fault of a turn; of equally early ones, the fault of the
        // lowest CTA.
        let mut faults: Vec<(u64, OperationId, Box<partita_device::Fault>)> = Vec::new();
        news.retain_mut(|item| match item {
            News::Faulted { time, grid, fault } => {
                faults.push((*time, *grid, fault.clone()));
                false
            }
            _ => true,
        });
        faults.sort_by_key(|(time, _, fault)| {
            (*time, fault.position.map(|position| (position.cta.z, position.cta.y, position.cta.x)))
        });
        let mut seen = Vec::new();
        faults.retain(|(_, grid, _)| {
            !seen.contains(grid) && {
                seen.push(*grid);
                true
            }
        });
        for (time, grid, _) in &faults {
            self.evict(*grid, *time, &mut news);
        }
        news.sort_by_key(|news| match news {
            News::Started { time, .. } | News::Left { time, .. } | News::Faulted { time, .. } => {
                *time
            }
        });
        if self.residency {
            for item in &news {
                let (time, sm, grid, cta, kind) = match *item {
                    News::Started { time, sm, grid, cta } => {
                        (time, sm, grid, cta, ResidencyKind::Start)
                    }
                    News::Left { time, sm, grid, cta } => {
                        (time, sm, grid, cta, ResidencyKind::Exit)
                    }
                    News::Faulted { .. } => continue,
                };
                let sm = SmId(u16::try_from(sm).expect("a spec has at most 256 SMs"));
                let change = ResidencyChange { time: Nanos(time / 1000), sm, grid, cta, kind };
                self.events.push_back(Event::Residency(change));
            }
        }
        for (time, grid, fault) in faults {
            self.end_grid(grid, time, Outcome::Fault(fault));
        }
        let complete: Vec<(u64, OperationId)> = self
            .grids
            .values()
            .filter(|grid| grid.next >= grid.total && grid.resident == 0)
            .map(|grid| (grid.end, grid.operation))
            .collect();
        for (time, operation) in complete {
            self.end_grid(operation, time, Outcome::Complete);
        }
    }

    fn end_grid(&mut self, operation: OperationId, time: u64, outcome: Outcome) {
        let Some(mut grid) = self.grids.remove(&operation) else { return };
        self.order.retain(|id| *id != operation);
        if let Some(weak) = &mut self.weak {
            weak.end_grid(&mut self.memory, operation.0);
        }
        if !grid.output.is_empty() {
            let text = std::mem::take(&mut grid.output);
            self.events.push_back(Event::Output { operation, text });
        }
        if let Some(text) = self.memory.take_notice(grid.window) {
            self.events.push_back(Event::Notice { operation, text });
        }
        self.keep_counters(&grid, time);
        if let Some(stream) = self.streams.of_grid.remove(&operation)
            && let Some(stream) = self.streams.streams.get_mut(&stream)
        {
            stream.front = None;
            stream.free_at = time;
        }
        self.done(operation, time.max(grid.start), outcome);
    }

    /// The time of the next change, at or after the present.
    fn next_time(&self) -> Option<u64> {
        // Without a grid no SM has work.
        let sms = if self.grids.is_empty() {
            None
        } else {
            self.sms.iter().filter_map(Sm::next_event).min()
        };
        let grids = self
            .order
            .iter()
            .filter_map(|id| self.grids.get(id))
            .map(|grid| grid.start)
            .filter(|&start| start > self.now)
            .min();
        [sms, grids, self.streams.next_end(), self.next_switch()].into_iter().flatten().min()
    }

    /// Whether nothing is in flight but waits for words of memory.
    fn rests(&self) -> bool {
        self.grids.is_empty()
            && self.streams.next_end().is_none()
            && !self.streams.has_ready_front()
            && self.events.is_empty()
    }

    /// Whether the device is busy. A stream that waits for a word of memory may wait for the host,
    /// until the time that the host names.
    fn activity(&self, until: Option<Nanos>) -> Activity {
        let waits = until.is_some() && self.streams.awaited().next().is_some();
        if !self.rests() || waits {
            Activity::Busy
        } else if self.streams.awaited().any(|address| self.memory.is_host(address)) {
            Activity::Watching
        } else {
            Activity::Idle
        }
    }
}
