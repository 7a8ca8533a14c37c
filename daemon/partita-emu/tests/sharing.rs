//! What GPUs do where nobody shares out SMs: contexts that take turns, and contexts side by side.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::{
    AddressRange, Device, Event, GridSpec, Horizon, Outcome, ResidencyTrace, Work,
};
use partita_emu::{EmulatedGpu, Options, Setup, Spec};
use partita_model::{
    Dim3, ModuleId, Nanos, OperationId, ResidencyChange, ResidencyKind, Sharing, SmSet, StreamId,
    WindowId,
};
use std::collections::BTreeMap;

/// Counts its rounds in a register, meets its CTA at a barrier and adds to one word.
const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry work(.param .u64 total, .param .u32 rounds)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [total];
	ld.param.u32 %r1, [rounds];
	mov.u32 %r2, 0;
$loop:
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $loop;
	bar.sync 0;
	red.global.add.u32 [%rd1], %r2;
	ret;
}
.visible .entry mark(.param .u64 marks, .param .u32 rounds)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<3>;
	ld.param.u64 %rd1, [marks];
	ld.param.u32 %r1, [rounds];
	mov.u32 %r3, %smid;
	mul.wide.u32 %rd2, %r3, 4;
	add.u64 %rd1, %rd1, %rd2;
	st.global.u32 [%rd1], 1;
	mov.u32 %r2, 0;
$loop:
	add.u32 %r2, %r2, 1;
	setp.lt.u32 %p1, %r2, %r1;
	@%p1 bra $loop;
	ret;
}
";
const SLICE: u64 = 20_000;
const SMS: u32 = 24;
/// Bytes of a word for each SM.
const ROOM: usize = 4 * 24;

struct World {
    gpu: EmulatedGpu,
    totals: Vec<AddressRange>,
    events: Vec<Event>,
}

impl World {
    /// As many contexts, each with a module and a stream.
    fn new(contexts: u64, options: Options) -> World {
        let spec = Spec { time_slice_nanoseconds: SLICE, ..Spec::named("cd-search-24").unwrap() };
        let mut gpu = EmulatedGpu::new(spec, options);
        gpu.trace_residency(true).unwrap();
        let mut totals = Vec::new();
        for id in 1..=contexts {
            let start = gpu.reserve(WindowId(id), 4 << 20).unwrap();
            let total = AddressRange { start, bytes: (4 * SMS).into() };
            gpu.allocate(WindowId(id), total).unwrap();
            gpu.poke(start, &[0; ROOM]).unwrap();
            gpu.load_module(ModuleId(id), WindowId(id), PTX.into()).unwrap();
            gpu.create_stream(StreamId(id)).unwrap();
            totals.push(total);
        }
        gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut Vec::new());
        World { gpu, totals, events: Vec::new() }
    }

    /// Launches in context `id`, counted from 1; the operation has the same number.
    fn launch(&mut self, id: u64, ctas: u32, rounds: u32) {
        self.start("work", id, (ctas, rounds));
    }

    fn start(&mut self, kernel: &str, id: u64, (ctas, rounds): (u32, u32)) {
        let total = self.totals[usize::try_from(id).unwrap() - 1];
        let mut params = total.start.0.to_le_bytes().to_vec();
        params.extend_from_slice(&rounds.to_le_bytes());
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: ModuleId(id),
            kernel: kernel.into(),
            grid: Dim3::linear(ctas),
            block: Dim3::linear(256),
            dynamic_shared: 0,
            params,
            access: vec![total],
        };
        self.gpu.enqueue(StreamId(id), OperationId(id), Work::Launch(launch)).unwrap();
    }

    fn run(&mut self, until: Option<u64>, done: usize) {
        let ended = |events: &[Event]| {
            events.iter().filter(|event| matches!(event, Event::Done { .. })).count()
        };
        while ended(&self.events) < done && until.is_none_or(|until| self.gpu.now().0 < until) {
            let horizon = Horizon { until: until.map(Nanos), warp_instructions: u64::MAX };
            let before = (self.events.len(), self.gpu.now());
            self.gpu.poll(horizon, &mut self.events);
            assert_ne!((self.events.len(), self.gpu.now()), before, "nothing happens any more");
        }
    }

    fn total(&mut self, id: usize) -> u32 {
        let mut bytes = [0; 4];
        self.gpu.peek(self.totals[id - 1].start, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    fn changes(&self) -> impl Iterator<Item = &ResidencyChange> {
        self.events.iter().filter_map(|event| match event {
            Event::Residency(change) => Some(change),
            _ => None,
        })
    }

    fn ends(&self) -> BTreeMap<u64, (u64, bool)> {
        let ends = self.events.iter().filter_map(|event| match event {
            Event::Done { operation, time, outcome } => {
                Some((operation.0, (time.0, *outcome == Outcome::Complete)))
            }
            _ => None,
        });
        ends.collect()
    }

    /// SMs that grids of an operation have been on.
    fn sms_of(&self, operation: u64) -> SmSet {
        self.changes().filter(|change| change.grid.0 == operation).map(|change| change.sm).collect()
    }
}

fn options(sharing: Sharing) -> Options {
    Options { sharing, ..Options::default() }
}

/// How long a launch takes alone.
fn alone(ctas: u32, rounds: u32) -> u64 {
    let mut world = World::new(1, options(Sharing::Spatial));
    world.launch(1, ctas, rounds);
    world.run(None, 1);
    world.ends()[&1].0
}

#[test]
fn contexts_take_turns() {
    let mut world = World::new(3, options(Sharing::TimeSlice));
    for id in 1..=3 {
        world.launch(id, 240, 1_500);
    }
    world.run(None, 3);
    for id in 1..=3 {
        assert_eq!(world.total(id), 240 * 256 * 1_500);
    }
    // Never two contexts at once on the GPU, and several turns each.
    let (mut here, mut turns, mut last) = (BTreeMap::new(), BTreeMap::<u64, u32>::new(), 0);
    for change in world.changes() {
        let ctas = here.entry(change.grid.0).or_insert(0_i64);
        *ctas += if change.kind == ResidencyKind::Start { 1 } else { -1 };
        assert!(here.values().filter(|ctas| **ctas > 0).count() <= 1, "{change:?}: {here:?}");
        if change.kind == ResidencyKind::Start && change.grid.0 != last {
            last = change.grid.0;
            *turns.entry(last).or_default() += 1;
        }
    }
    assert!(turns.values().all(|&turns| turns >= 2), "{turns:?}");
    // Together they take the sum, and what the switches take.
    let (sum, last) =
        (3 * alone(240, 1_500), world.ends().values().map(|(time, _)| *time).max().unwrap());
    let switches = u64::from(turns.values().sum::<u32>());
    let each = last.saturating_sub(sum) / switches;
    assert!(last > sum && each < 150_000, "{last} ns for {sum} ns of work and {switches} switches");
    let counters: Vec<_> =
        (1..=3).map(|id| world.gpu.counters_of(OperationId(id)).unwrap()).collect();
    for counters in &counters {
        let there = counters.sm_cycles as f64 / (24.0 * alone(240, 1_500) as f64 * 0.7);
        assert!((0.8..1.2).contains(&there), "waiting is no stay: {counters:?}");
    }
}

#[test]
fn a_context_alone_keeps_the_gpu() {
    let mut world = World::new(2, options(Sharing::TimeSlice));
    world.launch(1, 240, 1_500);
    world.run(None, 1);
    assert_eq!(world.ends()[&1].0, alone(240, 1_500));
    assert_eq!(world.changes().filter(|change| change.kind == ResidencyKind::Start).count(), 240);
}

#[test]
fn what_waits_for_its_turn_can_be_cancelled() {
    let mut world = World::new(2, options(Sharing::TimeSlice));
    world.launch(1, 240, 6_000);
    world.launch(2, 240, 6_000);
    // One is in its turn, the other has had one.
    world.run(Some(4 * SLICE + 100_000), 2);
    assert!(!world.sms_of(1).is_empty() && !world.sms_of(2).is_empty());
    for id in [1, 2] {
        world.gpu.cancel(OperationId(id)).unwrap();
    }
    world.run(None, 2);
    assert!(world.ends().values().all(|(_, complete)| !complete));
    world.launch(1, 24, 10);
    world.run(None, 3);
    assert_eq!(world.total(1), 24 * 256 * 10);
}

#[test]
fn under_mps_a_grid_gets_what_the_one_before_leaves() {
    let mut world = World::new(2, options(Sharing::Mps));
    // The first leaves room on every SM, the second takes it.
    world.launch(1, 24, 500);
    world.launch(2, 24, 500);
    world.run(None, 2);
    let first_of_second = world.changes().find(|change| change.grid.0 == 2).unwrap().time.0;
    assert!(first_of_second < world.ends()[&1].0 / 2, "{first_of_second} ns");
    assert_eq!((world.sms_of(1), world.sms_of(2)), (SmSet::range(0, 24), SmSet::range(0, 24)));

    // The first has more CTAs than fit: the second comes last, though it is small.
    let mut world = World::new(2, options(Sharing::Mps));
    world.launch(1, 960, 300);
    world.launch(2, 1, 10);
    world.run(None, 2);
    let ends = world.ends();
    assert!(ends[&2].0 > ends[&1].0 / 2, "head-of-line blocking: {ends:?}");
}

/// As CUDA has it: CTAs of streams with lower numbers are placed first, and CTAs that run stay.
#[test]
fn a_grid_of_higher_priority_is_placed_first_and_preempts_nothing() {
    let ends_with = |priority| {
        let mut world = World::new(2, options(Sharing::Mps));
        world.gpu.set_stream_priority(StreamId(2), priority).unwrap();
        world.launch(1, 960, 300);
        world.run(Some(30_000), 2);
        assert!(!world.sms_of(1).is_empty() && world.ends().is_empty());
        world.launch(2, 1, 10);
        world.run(None, 2);
        assert_eq!(world.total(1), 960 * 256 * 300);
        world
    };
    let started = |world: &World, grid, kind| {
        let of_kind = |change: &&ResidencyChange| change.grid.0 == grid && change.kind == kind;
        world.changes().filter(of_kind).map(|change| change.time.0).collect::<Vec<_>>()
    };
    for (priority, comes_first) in [(-1, true), (0, false), (1, false)] {
        let world = ends_with(priority);
        let ends = world.ends();
        assert_eq!(ends[&2].0 < ends[&1].0 / 2, comes_first, "{priority}: {ends:?}");
        // Every CTA started once: none was taken away.
        for kind in [ResidencyKind::Start, ResidencyKind::Exit] {
            assert_eq!(started(&world, 1, kind).len(), 960, "{priority}");
        }
        let first_exit = started(&world, 1, ResidencyKind::Exit)[0];
        let first_start = started(&world, 2, ResidencyKind::Start)[0];
        assert!(first_start >= first_exit, "{priority}: room comes when a CTA has left");
    }
    let mut world = World::new(1, options(Sharing::Mps));
    assert!(world.gpu.set_stream_priority(StreamId(9), 1).is_err());
    assert_eq!(world.gpu.streams().collect::<Vec<_>>(), [StreamId(1)]);
}

/// A launch takes a while to reach the scheduler. Until then its priority holds nothing up.
#[test]
fn a_grid_that_has_not_started_keeps_no_room_from_lower_priorities() {
    let first_start = |priority| {
        let mut world = World::new(2, options(Sharing::Mps));
        world.gpu.set_stream_priority(StreamId(2), priority).unwrap();
        world.launch(1, 24, 10);
        world.run(Some(world.gpu.spec().launch_nanoseconds / 2), 2);
        world.launch(2, 24, 10);
        world.run(None, 2);
        world.changes().find(|change| change.grid.0 == 1).unwrap().time
    };
    assert_eq!(first_start(-1), first_start(0));
}

#[test]
fn a_thread_percentage_keeps_contexts_on_a_part_of_the_sms() {
    let percentage = Options { thread_percentage: Some(50), ..options(Sharing::Mps) };
    let mut world = World::new(3, percentage);
    for id in 1..=3 {
        world.launch(id, 240, 500);
    }
    world.run(None, 3);
    let sets = [1, 2, 3].map(|id| world.sms_of(id));
    assert_eq!(sets[0], SmSet::range(0, 12));
    assert_eq!(sets[1], SmSet::range(12, 12));
    assert_eq!(sets[2], SmSet::range(0, 12), "a third shares with the first");
}

#[test]
fn turns_are_the_same_each_time() {
    let run = || {
        let mut world = World::new(2, options(Sharing::TimeSlice));
        world.launch(1, 240, 1_500);
        world.launch(2, 100, 2_000);
        world.run(None, 2);
        world.events
    };
    assert_eq!(run(), run());
}

/// Without time a run of an SM ends after a part of a millisecond, and so does a poll: a call does
/// not wait until all SMs have run. The next poll goes on with the next SM.
#[test]
fn a_poll_without_time_ends_before_all_sms_have_run() {
    // A pause of this process makes a poll longer.
    assert!((0..5).any(|_| most_sms_that_begin_in_a_poll() < 20));
}

fn most_sms_that_begin_in_a_poll() -> usize {
    let setup = Setup::parse("emu:cd-search-24,timing=off").unwrap();
    let mut world = World::new(1, setup.options);
    world.start("mark", 1, (8 * SMS, u32::MAX));
    let mut most = 0;
    let mut before = 0;
    for _ in 0..10_000 {
        world.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut world.events);
        let mut marks = [0; ROOM];
        world.gpu.peek(world.totals[0].start, &mut marks).unwrap();
        let now = marks.iter().filter(|&&byte| byte == 1).count();
        most = most.max(now - before);
        before = now;
        if 4 * now == ROOM {
            return most;
        }
    }
    panic!("{before} of {SMS} SMs have run");
}
