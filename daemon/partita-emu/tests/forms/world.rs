//! A device with one rewritten module, whose launches a test makes and disturbs by hand.

use partita_device::{
    Activity, AddressRange, Device, Event, GridSpec, Horizon, Outcome, VariableFacts, Work,
};
use partita_emu::direct::open_gates;
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::control::{self, Gates, Shape, Telemetry};
use partita_model::{
    DeviceAddress, Dim3, ModuleId, Nanos, OperationId, SmId, SmSet, StreamId, WindowId,
};
use partita_ptx::fence::{LEAST_CELL_BITS, SMALL_CELL_BITS, margin_bytes};
use partita_ptx::passes::{self, Applied};
use partita_ptx::{Pass, WorkerOptions};
use std::collections::BTreeMap;

const WINDOW: WindowId = WindowId(1);
const MODULE: ModuleId = ModuleId(1);
const WINDOW_BYTES: u64 = 64 << 20;
/// Another tenant's.
const OTHER: WindowId = WindowId(2);

pub struct World {
    pub gpu: EmulatedGpu,
    pub base: u64,
    /// Another tenant's window.
    pub other: u64,
    cell_bits: u32,
    next: u64,
    operations: u64,
    pub done: Vec<(OperationId, Outcome)>,
    variables: Vec<VariableFacts>,
    /// Of each control block.
    gates: BTreeMap<u64, Gates>,
}

/// A module after passes; every kernel must have taken every one.
pub fn rewritten(ptx: &str, wanted: &[Pass]) -> Applied {
    let module = partita_ptx::parse(ptx).unwrap_or_else(|errors| panic!("{errors}"));
    partita_ptx::verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    let applied = passes::apply(&module, wanted, &WorkerOptions::default());
    for (pass, reports) in &applied.steps {
        for report in reports {
            assert!(
                report.refusals().is_empty(),
                "{}: {}: {:?}",
                pass.name(),
                report.name,
                report.refusals()
            );
        }
    }
    applied
}

impl World {
    pub fn new(applied: &Applied, timing: Timing, seed: u64) -> Self {
        World::of(
            &partita_ptx::print(&applied.module),
            Options { seed, timing, ..Options::default() },
        )
    }

    /// With a text as it stands.
    pub fn of(text: &str, options: Options) -> Self {
        World::with(text, options, |gpu| {
            let base = gpu.reserve(WINDOW, WINDOW_BYTES).unwrap().0;
            (base, gpu.reserve(OTHER, WINDOW_BYTES).unwrap().0, LEAST_CELL_BITS)
        })
    }

    /// A world whose tenant has a small cell. The other tenant's cell lies `distance` cells behind.
    pub fn in_small_cell(applied: &Applied, distance: u64) -> Self {
        let options = Options { timing: Timing::Off, ..Options::default() };
        World::with(&partita_ptx::print(&applied.module), options, |gpu| {
            let base = gpu.reserve_small(WINDOW).unwrap().range.start.0;
            let between = |index| gpu.reserve_small(WindowId(100 + index)).unwrap();
            (1..distance).map(between).for_each(drop);
            (base, gpu.reserve_small(OTHER).unwrap().range.start.0, SMALL_CELL_BITS)
        })
    }

    fn with(
        text: &str,
        options: Options,
        reserve: impl FnOnce(&mut EmulatedGpu) -> (u64, u64, u32),
    ) -> Self {
        let mut gpu = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), options);
        let (base, other, cell_bits) = reserve(&mut gpu);
        gpu.load_module(MODULE, WINDOW, text.into()).unwrap();
        for stream in 0..4 {
            gpu.create_stream(StreamId(stream)).unwrap();
        }
        let mut world = World {
            gpu,
            base,
            other,
            cell_bits,
            next: base,
            operations: 0,
            done: Vec::new(),
            variables: Vec::new(),
            gates: BTreeMap::new(),
        };
        let mut events = Vec::new();
        world.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
        let [Event::ModuleLoaded { facts, .. }] = &mut events[..] else {
            panic!("{events:?}\n{text}")
        };
        world.variables = std::mem::take(&mut facts.variables);
        world
    }

    /// Live memory with these contents.
    pub fn buffer(&mut self, contents: &[u8]) -> u64 {
        let start = DeviceAddress(self.next);
        self.gpu.allocate(WINDOW, AddressRange { start, bytes: contents.len() as u64 }).unwrap();
        self.gpu.poke(start, contents).unwrap();
        self.next += (contents.len() as u64).next_multiple_of(256) + 256;
        start.0
    }

    /// Live memory of the other tenant, at the beginning of its window.
    pub fn others(&mut self, contents: &[u8]) -> u64 {
        let start = DeviceAddress(self.other);
        self.gpu.allocate(OTHER, AddressRange { start, bytes: contents.len() as u64 }).unwrap();
        self.gpu.poke(start, contents).unwrap();
        start.0
    }

    /// Where a variable of the module lies.
    pub fn variable(&self, name: &str) -> u64 {
        let found = self.variables.iter().find(|variable| variable.name == name);
        found.unwrap_or_else(|| panic!("no variable {name}: {:?}", self.variables)).address.0
    }

    /// Where the cell of the kernels' window begins.
    pub fn cell(&self) -> u64 {
        self.base - margin_bytes(self.cell_bits)
    }

    pub fn bytes(&mut self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.gpu.peek(DeviceAddress(at), &mut bytes).unwrap();
        bytes
    }

    pub fn words(&mut self, at: u64, count: usize) -> Vec<u32> {
        let bytes = self.bytes(at, count * 4);
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    pub fn long(&mut self, at: u64) -> u64 {
        u64::from_le_bytes(self.bytes(at, 8).try_into().unwrap())
    }

    pub fn poke(&mut self, at: u64, word: u32) {
        self.gpu.poke(DeviceAddress(at), &word.to_le_bytes()).unwrap();
    }

    /// A control block for that grid with open gates and without tasks by place.
    pub fn control(&mut self, grid: Dim3, task: u32, main_ctas: u32) -> u64 {
        let gates = open_gates(grid, task, main_ctas, self.gpu.spec().sms, false);
        self.with_gates(grid, main_ctas, gates)
    }

    /// The same, where as many workers of the main grid on each SM have their first tasks by place.
    pub fn by_place(&mut self, grid: Dim3, task: u32, main_ctas: u32, workers: &[u16]) -> u64 {
        let gates = open_gates(grid, task, main_ctas, self.gpu.spec().sms, false);
        self.with_gates(grid, main_ctas, gates.by_place_for(workers, grid.count() as u64))
    }

    fn with_gates(&mut self, grid: Dim3, main_ctas: u32, gates: Gates) -> u64 {
        let end = grid.count() as u64;
        let mut contents = vec![0; control::block_bytes(self.gpu.spec().sms) as usize];
        let shape =
            Shape { grid, cluster: Dim3::linear(1), first: 0, end, main_ctas, gates: &gates };
        control::initial(&shape, &mut contents);
        let block = self.buffer(&contents);
        self.gates.insert(block, gates);
        block
    }

    /// Which SMs may claim, and which of them wait, of the first 32.
    pub fn permit(&mut self, block: u64, allowed: u32, stalled: u32) {
        let gates = self.gates.get_mut(&block).expect("a control block");
        let changed = gates.permit(&sms(allowed), &sms(stalled));
        let words: Vec<_> = changed.into_iter().map(|sm| (sm, gates.word(sm))).collect();
        for (sm, word) in words {
            self.poke(block + control::gate_at(sm), word);
        }
    }

    /// How many may stay on an SM from the next permission on.
    pub fn share(&mut self, block: u64, quota: Option<u32>) {
        let gates = self.gates.get_mut(&block).expect("a control block");
        gates.set_quota(quota.map(|quota| quota as u16));
        let word = gates.quota_word();
        self.poke(block + control::QUOTA, word);
    }

    /// Ends a launch of workers or tickets as the host does.
    pub fn abort(&mut self, block: u64) {
        self.poke(block + control::ABORT, 1);
        let next = DeviceAddress(block + control::NEXT);
        self.gpu.poke(next, &control::EXHAUSTED.to_le_bytes()).unwrap();
    }

    /// Workers or tickets that have registered on each SM, and those that have left it.
    pub fn slots(&mut self, block: u64) -> Vec<[u32; 2]> {
        let sms = usize::from(self.gpu.spec().sms);
        let slots = self.words(block + control::SLOTS, 4 * sms);
        slots.as_chunks::<4>().0.iter().map(|&[came, _, left, _]| [came, left]).collect()
    }

    /// What the host reads of a launch.
    pub fn telemetry(&mut self, block: u64) -> Telemetry {
        let sms = self.gpu.spec().sms;
        Telemetry::of(&self.bytes(block, control::block_bytes(sms) as usize), sms)
    }

    pub fn launch(
        &mut self,
        stream: u64,
        kernel: &str,
        grid: Dim3,
        block: u32,
        params: &[u64],
    ) -> OperationId {
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: MODULE,
            kernel: kernel.into(),
            grid,
            block: Dim3::linear(block),
            dynamic_shared: 0,
            params: params.iter().flat_map(|word| word.to_le_bytes()).collect(),
            // Both windows: nothing but the pass keeps a kernel in its own.
            access: [self.base, self.other]
                .map(|start| AddressRange { start: DeviceAddress(start), bytes: WINDOW_BYTES })
                .to_vec(),
        };
        self.operations += 1;
        let operation = OperationId(self.operations);
        self.gpu.enqueue(StreamId(stream), operation, Work::Launch(launch)).unwrap();
        operation
    }

    /// Lets so much device time pass.
    pub fn advance(&mut self, nanos: u64) -> Activity {
        let until = Nanos(self.gpu.now().0 + nanos);
        self.poll(Horizon { until: Some(until), warp_instructions: u64::MAX })
    }

    fn poll(&mut self, horizon: Horizon) -> Activity {
        let mut events = Vec::new();
        let activity = self.gpu.poll(horizon, &mut events);
        for event in events {
            if let Event::Done { operation, outcome, .. } = event {
                self.done.push((operation, outcome));
            }
        }
        activity
    }

    /// Runs until nothing is left to do.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.poll(Horizon { until: None, warp_instructions: u64::MAX }) == Activity::Idle {
                return;
            }
        }
        panic!("the device never becomes idle");
    }

    /// How many launches have faulted.
    pub fn faults(&self) -> usize {
        self.done.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Fault(_))).count()
    }

    /// Nothing may have faulted.
    pub fn check_outcomes(&self) {
        for (operation, outcome) in &self.done {
            assert!(!matches!(outcome, Outcome::Fault(_)), "{operation:?}: {outcome:?}");
        }
    }
}

/// The SMs of a mask.
fn sms(mask: u32) -> SmSet {
    let mut sms = SmSet::EMPTY;
    for sm in (0..32).filter(|sm| mask >> sm & 1 == 1) {
        sms.insert(SmId(sm));
    }
    sms
}

/// A seeded source of numbers (Steele, Lea and Flood 2014, SplitMix64).
pub fn mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
