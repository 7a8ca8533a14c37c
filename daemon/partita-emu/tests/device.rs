//! The device contract: streams, signals, faults, the block scheduler, and workers whose SMs change
//! while they run.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::{
    Activity, AddressRange, Device, DeviceError, Event, Fault, FaultKind, GridSpec, Horizon,
    Outcome, ResidencyTrace, Work,
};
use partita_emu::direct::{control_block, open_gates};
use partita_emu::{EmulatedGpu, MemoryCheck, Options, Spec, Timing};
use partita_model::{
    AwaitedWord, DeviceAddress, Dim3, ModuleId, Nanos, OperationId, ResidencyChange, ResidencyKind,
    SmId, SmSet, StreamId, WindowId, control,
};

const WINDOW: WindowId = WindowId(1);
const MODULE: ModuleId = ModuleId(1);
const WINDOW_BYTES: u64 = 64 << 20;
const FAR: Horizon = Horizon { until: None, warp_instructions: u64::MAX };

struct World {
    gpu: EmulatedGpu,
    base: u64,
    next: u64,
    operations: u64,
    done: Vec<(OperationId, Outcome)>,
    residency: Vec<ResidencyChange>,
}

impl World {
    fn new(ptx: &str, timing: Timing) -> Self {
        let mut gpu = EmulatedGpu::new(
            Spec::named("cd-search-24").unwrap(),
            Options { seed: 5, timing, memcheck: MemoryCheck::Exact, ..Options::default() },
        );
        let base = gpu.reserve(WINDOW, WINDOW_BYTES).unwrap().0;
        gpu.load_module(MODULE, WINDOW, ptx.into()).unwrap();
        gpu.create_stream(StreamId(0)).unwrap();
        let mut world =
            World { gpu, base, next: base, operations: 0, done: Vec::new(), residency: Vec::new() };
        let mut events = Vec::new();
        world.gpu.poll(FAR, &mut events);
        assert!(matches!(events[..], [Event::ModuleLoaded { .. }]), "{events:?}");
        world
    }

    fn buffer(&mut self, contents: &[u32]) -> u64 {
        let bytes: Vec<u8> = contents.iter().flat_map(|word| word.to_le_bytes()).collect();
        let start = DeviceAddress(self.next);
        self.gpu.allocate(WINDOW, AddressRange { start, bytes: bytes.len() as u64 }).unwrap();
        self.gpu.poke(start, &bytes).unwrap();
        self.next += (bytes.len() as u64).next_multiple_of(256) + 256;
        start.0
    }

    fn words(&mut self, at: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.gpu.peek(DeviceAddress(at), &mut bytes).unwrap();
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    fn enqueue(&mut self, stream: u64, work: Work) -> OperationId {
        self.operations += 1;
        let operation = OperationId(self.operations);
        self.gpu.enqueue(StreamId(stream), operation, work).unwrap();
        operation
    }

    fn grid(&self, kernel: &str, grid: u32, block: u32, params: &[u64]) -> GridSpec {
        GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: MODULE,
            kernel: kernel.into(),
            grid: Dim3::linear(grid),
            block: Dim3::linear(block),
            dynamic_shared: 0,
            params: params.iter().flat_map(|word| word.to_le_bytes()).collect(),
            access: vec![AddressRange { start: DeviceAddress(self.base), bytes: WINDOW_BYTES }],
        }
    }

    fn launch(
        &mut self,
        stream: u64,
        kernel: &str,
        grid: u32,
        block: u32,
        params: &[u64],
    ) -> OperationId {
        let launch = self.grid(kernel, grid, block, params);
        self.enqueue(stream, Work::Launch(launch))
    }

    fn poll(&mut self, horizon: Horizon) -> Activity {
        let mut events = Vec::new();
        let activity = self.gpu.poll(horizon, &mut events);
        for event in events {
            match event {
                Event::Done { operation, outcome, .. } => self.done.push((operation, outcome)),
                Event::Residency(change) => self.residency.push(change),
                _ => {}
            }
        }
        activity
    }

    fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if self.poll(FAR) == Activity::Idle {
                return;
            }
        }
        panic!("the device never becomes idle");
    }

    fn outcome(&self, operation: OperationId) -> Option<&Outcome> {
        self.done.iter().find(|(id, _)| *id == operation).map(|(_, outcome)| outcome)
    }

    fn fault(&mut self, kernel: &str, grid: u32, block: u32, params: &[u64]) -> Fault {
        let operation = self.launch(0, kernel, grid, block, params);
        self.settle();
        match self.outcome(operation) {
            Some(Outcome::Fault(fault)) => (**fault).clone(),
            other => panic!("{kernel}: {other:?}"),
        }
    }
}

const FAULTS: &str = include_str!("ptx/faults.ptx");

#[test]
fn faults_say_what_and_where() {
    for timing in [Timing::On, Timing::Off] {
        let mut world = World::new(FAULTS, timing);
        let at = world.buffer(&[7; 64]);
        let check = |world: &mut World, kernel: &str, params: &[u64], expect: &str| {
            let fault = world.fault(kernel, 2, 64, params);
            assert_eq!(fault.to_string(), expect, "{timing:?}");
            fault
        };
        let end = at + 256;
        let fault = check(
            &mut world,
            "store_beyond",
            &[at],
            &format!(
                "illegal address in kernel `store_beyond`, CTA (1,0,0), thread (0,0,0), PTX line \
                 15, address {end:#x}: \
                 store of 4 bytes, 0 bytes beyond the allocation {at:#x}+256"
            ),
        );
        assert_eq!(
            fault.values.iter().find(|(name, _)| name == "%r4").map(|(_, value)| *value),
            Some(64)
        );
        assert_eq!(world.words(at, 2), [0, 1], "what CTA 0 stored stays");
        check(
            &mut world,
            "load_misaligned",
            &[at],
            &format!(
                "misaligned address in kernel `load_misaligned`, CTA (0,0,0), thread (0,0,0), PTX \
                 line 23, address \
                 {:#x}: load of 4 bytes at an address that is no multiple of it, at byte 2 of the \
                 allocation {at:#x}+256",
                at + 2
            ),
        );
        check(
            &mut world,
            "load_misaligned",
            &[14],
            "illegal address in kernel `load_misaligned`, CTA (0,0,0), thread (0,0,0), PTX line \
             23, address 0x10: load \
             of 4 bytes outside what the launch may touch, 16 bytes beyond a null pointer",
        );
        check(
            &mut world,
            "shared_beyond",
            &[at],
            "illegal address in kernel `shared_beyond`, CTA (0,0,0), thread (16,0,0), PTX line \
             34, address 0x40: store \
             of 4 bytes beyond the CTA's 64 bytes of shared memory",
        );
        check(
            &mut world,
            "trapped",
            &[at],
            "launch failure in kernel `trapped`, CTA (0,0,0), thread (5,0,0), PTX line 43: the \
             kernel executed `trap`",
        );
        let fault = check(
            &mut world,
            "stuck",
            &[at],
            "launch failure in kernel `stuck`, CTA (0,0,0), thread (0,0,0), PTX line 50: every \
             thread of the CTA \
             waits, and barrier 1 can never be passed",
        );
        assert_eq!(fault.kind, FaultKind::LaunchFailed);
        world.gpu.free(DeviceAddress(at)).unwrap();
        let fault = world.fault("store_beyond", 1, 32, &[at]);
        assert!(
            fault.detail.ends_with(&format!("inside the freed allocation {at:#x}+256")),
            "{}",
            fault.detail
        );
        // The device continues after the fault.
        let again = world.buffer(&[0; 128]);
        let operation = world.launch(0, "store_beyond", 2, 64, &[again]);
        world.settle();
        assert_eq!(world.outcome(operation), Some(&Outcome::Complete));
    }
}

#[test]
fn what_cannot_run_is_refused_by_line() {
    let text = format!(
        "{}\n.visible .entry odd(.param .u64 p) {{ .reg .b64 %rd<2>;\n ld.param.u64 %rd1, [p];\n \
         multimem.red.relaxed.gpu.global.add.u32 [%rd1], 1;\n ret; }}",
        include_str!("ptx/spin.ptx")
    );
    let mut gpu = EmulatedGpu::new(Spec::named("h200").unwrap(), Options::default());
    gpu.reserve(WINDOW, 1 << 20).unwrap();
    gpu.load_module(MODULE, WINDOW, text.into()).unwrap();
    let mut events = Vec::new();
    gpu.poll(FAR, &mut events);
    let [Event::ModuleLoaded { facts, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(facts.kernels.len(), 2);
    let reason = facts.refused[0].reason();
    assert_eq!(facts.refused[0].name, "odd");
    assert!(
        reason.contains("`multimem.red.relaxed.gpu.global.add.u32` is not supported"),
        "{reason}"
    );
    let launch = GridSpec {
        cooperative: false,
        cluster: Dim3::linear(1),
        module: MODULE,
        kernel: "odd".into(),
        grid: Dim3::linear(1),
        block: Dim3::linear(1),
        dynamic_shared: 0,
        params: vec![0; 8],
        access: Vec::new(),
    };
    gpu.create_stream(StreamId(1)).unwrap();
    let error = gpu.enqueue(StreamId(1), OperationId(1), Work::Launch(launch)).unwrap_err();
    assert!(matches!(error, DeviceError::BadLaunch(_)), "{error}");
}

#[test]
fn a_poke_reaches_a_running_kernel_and_cancel_ends_one() {
    for timing in [Timing::On, Timing::Off] {
        let mut world = World::new(include_str!("ptx/spin.ptx"), timing);
        let at = world.buffer(&[0, 5, 0]);
        // With only one CTA, no CTA produces.
        let waiting = world.launch(0, "producer_consumer", 1, 32, &[at]);
        let _ = waiting;
        let consumer = world.launch(0, "producer_consumer", 1, 32, &[at]);
        let mut horizon = Horizon { until: None, warp_instructions: 2000 };
        for _ in 0..20 {
            world.poll(horizon);
        }
        assert!(world.done.is_empty(), "{timing:?}: the consumer waits");
        world.gpu.poke(DeviceAddress(at), &1_u32.to_le_bytes()).unwrap();
        world.settle();
        assert_eq!(world.outcome(consumer), Some(&Outcome::Complete));
        assert_eq!(world.words(at + 8, 1), [5]);
        world.gpu.poke(DeviceAddress(at), &[0; 4]).unwrap();
        let endless = world.launch(0, "producer_consumer", 1, 32, &[at]);
        let behind = world.launch(0, "producer_consumer", 1, 32, &[at]);
        horizon.warp_instructions = 500;
        world.poll(horizon);
        world.gpu.cancel(endless).unwrap();
        world.gpu.poke(DeviceAddress(at), &1_u32.to_le_bytes()).unwrap();
        world.settle();
        assert_eq!(world.outcome(endless), Some(&Outcome::Cancelled));
        assert_eq!(world.outcome(behind), Some(&Outcome::Complete));
    }
}

#[test]
fn ctas_spread_over_the_sms_first() {
    let mut world = World::new(include_str!("ptx/spin.ptx"), Timing::On);
    world.gpu.trace_residency(true).unwrap();
    let at = world.buffer(&[0; 3]);
    world.launch(0, "locked_count", 30, 64, &[at]);
    world.settle();
    let first: Vec<u16> = world
        .residency
        .iter()
        .filter(|change| change.kind == ResidencyKind::Start)
        .map(|change| change.sm.0)
        .collect();
    let mut each: Vec<u16> = first[..24].to_vec();
    each.sort_unstable();
    assert_eq!(each, (0..24).collect::<Vec<_>>(), "one each before any gets a second");
    let starts =
        world.residency.iter().filter(|change| change.kind == ResidencyKind::Start).count();
    assert_eq!((starts, world.residency.len()), (30, 60));
}

#[test]
fn streams_keep_their_order_and_wait_for_others() {
    let mut world = World::new(include_str!("ptx/saxpy.ptx"), Timing::On);
    world.gpu.create_stream(StreamId(1)).unwrap();
    let at = world.buffer(&[1; 64]);
    let other = world.buffer(&[0; 64]);
    let fill = Work::Fill { to: DeviceAddress(at), value: 9, width: 4, count: 64 };
    let first = world.enqueue(0, fill);
    let waiting = world.enqueue(1, Work::Wait { on: first });
    let copy = Work::CopyOnDevice { to: DeviceAddress(other), from: DeviceAddress(at), bytes: 256 };
    let copied = world.enqueue(1, copy);
    let marker = world.enqueue(1, Work::Marker);
    world.settle();
    let order: Vec<OperationId> = world.done.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [first, waiting, copied, marker]);
    assert_eq!(world.words(other, 64), [9; 64]);
    let wrong = Work::Fill { to: DeviceAddress(at), value: 9, width: 4, count: 65 };
    assert!(world.gpu.enqueue(StreamId(0), OperationId(99), wrong).is_err());
    assert!(world.gpu.enqueue(StreamId(7), OperationId(99), Work::Marker).is_err());
}

/// Without time a fill of many megabytes would keep every other stream waiting.
#[test]
fn without_time_a_long_fill_lets_other_streams_go_on() {
    let mut world = World::new(include_str!("ptx/saxpy.ptx"), Timing::Off);
    world.gpu.create_stream(StreamId(1)).unwrap();
    let count = 4 << 20;
    let at = world.buffer(&vec![1; count]);
    let fill = |count| Work::Fill { to: DeviceAddress(at), value: 9, width: 4, count };
    let long = world.enqueue(0, fill(count as u64 - 1));
    let markers: Vec<_> = (0..3).map(|_| world.enqueue(1, Work::Marker)).collect();
    world.settle();
    let ends: Vec<_> = world.done.iter().map(|(operation, _)| *operation).collect();
    assert_eq!(ends, [&markers[..], &[long]].concat());
    let words = world.words(at, count);
    assert!(words[..count - 1].iter().all(|word| *word == 9));
    assert_eq!(words[count - 1], 1);
    // The host may clear memory for a piece, so the caller serves others after each.
    world.enqueue(0, fill(count as u64));
    let mut polls = 1;
    while world.poll(FAR) != Activity::Idle {
        polls += 1;
    }
    assert!(polls >= count * 4 / (256 << 10), "{polls} polls for {count} words");
}

#[test]
fn a_stream_waits_for_a_word_of_memory() {
    let mut world = World::new(include_str!("ptx/saxpy.ptx"), Timing::On);
    world.gpu.create_stream(StreamId(1)).unwrap();
    let at = world.buffer(&[0; 64]);
    let word = Work::WaitValue { address: DeviceAddress(at), word: AwaitedWord::at_least(3) };
    let waiting = world.enqueue(0, word.clone());
    let marker = world.enqueue(0, Work::Marker);
    world.settle();
    assert!(world.done.is_empty(), "nothing has been written");
    // Time advances only as far as the host lets it.
    let until = Horizon { until: Some(Nanos(5_000)), warp_instructions: u64::MAX };
    assert_eq!(world.gpu.poll(until, &mut Vec::new()), Activity::Busy);
    assert_eq!(world.gpu.now(), Nanos(5_000));
    world.gpu.poke(DeviceAddress(at), &2_u64.to_le_bytes()).unwrap();
    world.settle();
    assert!(world.done.is_empty(), "two are fewer than three");
    let fill = world.enqueue(1, Work::Fill { to: DeviceAddress(at), value: 4, width: 4, count: 1 });
    world.settle();
    let order: Vec<OperationId> = world.done.iter().map(|(id, _)| *id).collect();
    assert_eq!(order, [fill, waiting, marker]);

    world.gpu.poke(DeviceAddress(at), &[0; 8]).unwrap();
    let (first, second) = (world.enqueue(0, word.clone()), world.enqueue(0, word));
    world.settle();
    world.gpu.cancel(second).unwrap();
    world.gpu.cancel(first).unwrap();
    world.settle();
    let last: Vec<_> = world.done[3..].to_vec();
    assert_eq!(last, [(second, Outcome::Cancelled), (first, Outcome::Cancelled)]);
    for address in [at + 4, at - 8, at + 256] {
        let wrong =
            Work::WaitValue { address: DeviceAddress(address), word: AwaitedWord::at_least(1) };
        assert!(world.gpu.enqueue(StreamId(0), OperationId(99), wrong).is_err());
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn word(&mut self, sides: u32) -> u32 {
        u32::try_from(self.roll(u64::from(sides))).expect("below a number of 32 bits")
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

/// Workers lose and gain SMs, are stalled and resumed, and helper grids join. Memory ends as
/// without these moves.
#[test]
fn workers_survive_moving_borders() {
    let module = partita_ptx::parse(include_str!("ptx/collatz.ptx")).unwrap();
    let text = partita_ptx::print(
        &partita_ptx::worker(&module, &partita_ptx::WorkerOptions::default()).module,
    );
    for seed in 0..6_u64 {
        let timing = if seed % 2 == 0 { Timing::On } else { Timing::Off };
        let mut dice = Dice(seed);
        let mut world = World::new(&text, timing);
        world.gpu.trace_residency(true).unwrap();
        let n = 40_000 + dice.word(20_000);
        let ctas = n.div_ceil(128);
        let out = world.buffer(&vec![0; n as usize]);
        let task = 1 + dice.word(6);
        let workers = 24 * 4;
        let by_place = seed / 2 % 2 == 0;
        let grid = Dim3::linear(ctas);
        let mut gates = open_gates(grid, task, workers, 24, by_place);
        let block: Vec<u32> = control_block((grid, Dim3::linear(1)), task, workers, 24, by_place)
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        let at = world.buffer(&block);
        let mut permit = |world: &mut World, allowed: u32, stalled: u32| {
            for sm in gates.permit(&sms(allowed), &sms(stalled)) {
                let gate = DeviceAddress(at + control::gate_at(sm));
                world.gpu.poke(gate, &gates.word(sm).to_le_bytes()).unwrap();
            }
        };
        let (mut allowed, mut stalled) = (0x000f_ffff, 0);
        permit(&mut world, allowed, stalled);
        let params = [out, u64::from(n), at];
        let main = world.launch(0, "collatz", workers, 128, &params);
        let mut helpers = 0;
        let mut moved = 0;
        for _ in 0..200 {
            let until = Some(Nanos(world.gpu.now().0 + 1 + dice.roll(4000)));
            world.poll(Horizon { until, warp_instructions: u64::MAX });
            if world.outcome(main).is_some() {
                break;
            }
            moved += 1;
            match dice.roll(4) {
                0 => allowed = 1 << dice.roll(24) | dice.word(1 << 24),
                1 => stalled = dice.word(1 << 24),
                2 => stalled = 0,
                _ => {
                    helpers += 1;
                    let stream = StreamId(100 + helpers);
                    world.gpu.create_stream(stream).unwrap();
                    world.launch(stream.0, "collatz", workers, 128, &[out, u64::from(n), at | 1]);
                }
            }
            permit(&mut world, allowed, stalled);
        }
        assert!(moved >= 3, "seed {seed}: the grid was over before anything moved");
        permit(&mut world, 0x00ff_ffff, 0);
        // Each worker that left is replaced, as the engine does.
        world.gpu.create_stream(StreamId(99)).unwrap();
        world.launch(99, "collatz", workers, 128, &[out, u64::from(n), at | 1]);
        world.settle();
        assert_eq!(world.outcome(main), Some(&Outcome::Complete), "seed {seed}");
        assert!(world.done.iter().all(|(_, outcome)| *outcome == Outcome::Complete), "seed {seed}");
        let mut completed = [0; 8];
        world.gpu.peek(DeviceAddress(at + control::COMPLETED), &mut completed).unwrap();
        assert_eq!(u64::from_le_bytes(completed), u64::from(ctas), "seed {seed}: every CTA once");
        for (i, &steps) in world.words(out, n as usize).iter().enumerate() {
            let (mut value, mut expect) = (i as u64 + 1, 0);
            while value != 1 {
                value = if value % 2 == 0 { value / 2 } else { 3 * value + 1 };
                expect += 1;
            }
            assert_eq!(steps, expect, "seed {seed}, element {i}");
        }
    }
}

#[test]
fn addresses_of_windows_are_used_again() {
    let mut gpu = EmulatedGpu::new(Spec::named("h200").unwrap(), Options::default());
    let size = |window: u64| (1 << 30) * (1 + window % 300);
    let mut live = std::collections::BTreeMap::new();
    for window in 0..3_000 {
        let base = gpu.reserve(WindowId(window), size(window)).unwrap().0;
        assert!(live.iter().all(|(&other, &start): (&u64, &u64)| {
            base + size(window) <= start || start + size(other) <= base
        }));
        live.insert(window, base);
        // At most 40 windows exist at a time, and they are released in another order than they
        // came.
        if window >= 40 {
            let gone = *live.keys().nth((window % 7) as usize).unwrap();
            live.remove(&gone);
            gpu.release(WindowId(gone)).unwrap();
        }
    }
    let all = gpu.reserve(WindowId(9_000), 1 << 47).unwrap_err();
    assert!(matches!(all, DeviceError::OutOfMemory { available, .. } if available > 0), "{all}");
    assert!(gpu.reserve(WindowId(9_001), u64::MAX).is_err());
}
