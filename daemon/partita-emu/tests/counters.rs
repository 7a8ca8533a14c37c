//! Counters: windows of grids in flight, energy, power, occupancy.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::{
    AddressRange, Counting, Device, Event, Gating, GridSpec, Horizon, ResidencyTrace, Work,
};
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::{Dim3, ModuleId, Nanos, OperationId, SmSet, StreamId, WindowId};

const PTX: &str = "
.version 8.0
.target sm_75
.address_size 64
.visible .entry sum(.param .u64 buffer, .param .u32 rounds)
{
	.reg .pred %p<2>;
	.reg .b32 %r<8>;
	.reg .b64 %rd<4>;
	ld.param.u64 %rd1, [buffer];
	ld.param.u32 %r1, [rounds];
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %tid.x;
	mad.lo.u32 %r5, %r2, %r3, %r4;
	mul.wide.u32 %rd2, %r5, 4;
	add.u64 %rd3, %rd1, %rd2;
	mov.u32 %r6, 0;
$loop:
	ld.global.cg.u32 %r7, [%rd3];
	add.u32 %r6, %r6, 1;
	add.u32 %r6, %r6, %r7;
	setp.lt.u32 %p1, %r6, %r1;
	@%p1 bra $loop;
	ret;
}
";
const STREAM: StreamId = StreamId(1);
const BUFFER: u64 = 1 << 20;

struct World {
    gpu: EmulatedGpu,
    buffer: AddressRange,
    operations: u64,
}

impl World {
    fn new(timing: Timing) -> World {
        let spec = Spec::named("cd-search-24").unwrap();
        let mut gpu = EmulatedGpu::new(spec, Options { timing, ..Options::default() });
        let start = gpu.reserve(WindowId(1), 16 << 20).unwrap();
        let buffer = AddressRange { start, bytes: BUFFER };
        gpu.allocate(WindowId(1), buffer).unwrap();
        gpu.load_module(ModuleId(1), WindowId(1), PTX.into()).unwrap();
        gpu.create_stream(STREAM).unwrap();
        gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut Vec::new());
        World { gpu, buffer, operations: 0 }
    }

    fn launch(&mut self, ctas: u32, rounds: u32) -> OperationId {
        self.operations += 1;
        let operation = OperationId(self.operations);
        let mut params = self.buffer.start.0.to_le_bytes().to_vec();
        params.extend_from_slice(&rounds.to_le_bytes());
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: ModuleId(1),
            kernel: "sum".into(),
            grid: Dim3::linear(ctas),
            block: Dim3::linear(128),
            dynamic_shared: 0,
            params,
            access: vec![self.buffer],
        };
        self.gpu.enqueue(STREAM, operation, Work::Launch(launch)).unwrap();
        operation
    }

    fn finish(&mut self, operation: OperationId) {
        let mut events = Vec::new();
        while !events
            .iter()
            .any(|event| matches!(event, Event::Done { operation: id, .. } if *id == operation))
        {
            events.clear();
            self.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
            assert!(!events.is_empty(), "the grid has not ended and nothing happens");
        }
    }
}

#[test]
fn two_samples_of_a_grid_in_flight_bound_a_window() {
    let mut world = World::new(Timing::On);
    let grid = world.launch(240, 2_000);
    assert!(world.gpu.grid_counters(grid).is_none(), "it has not begun");
    let sample = |world: &mut World, micros: u64| {
        let until = Nanos(micros * 1_000);
        while world.gpu.now() < until {
            world
                .gpu
                .poll(Horizon { until: Some(until), warp_instructions: u64::MAX }, &mut Vec::new());
        }
        (world.gpu.grid_counters(grid).unwrap(), world.gpu.counters())
    };
    let samples: Vec<_> =
        [20, 40, 60].into_iter().map(|micros| sample(&mut world, micros)).collect();
    let windows: Vec<_> = samples.windows(2).map(|pair| pair[1].0.since(&pair[0].0)).collect();
    for window in &windows {
        assert!(window.cycles.abs_diff(14_000) < 20, "20 us at 700 MHz, not {}", window.cycles);
        assert!(window.llc_accesses > 0 && window.nanojoules > 0, "{window:?}");
        assert_eq!(window.crossbar_bytes, window.llc_accesses * 32);
    }
    let ratio = windows[0].warp_instructions as f64 / windows[1].warp_instructions as f64;
    assert!((0.9..1.1).contains(&ratio), "it runs steadily: {windows:?}");
    let device = samples[1].1.since(&samples[0].1);
    assert_eq!(device.work.warp_instructions, windows[0].warp_instructions);
    assert!(device.powered_sm_cycles.abs_diff(24 * device.cycles) <= 24, "{device:?}");
    world.finish(grid);
    let all = world.gpu.grid_counters(grid).expect("it is remembered");
    assert!(all.warp_instructions > samples[2].0.warp_instructions);
    assert_eq!(all.llc_hits + 4 * 240 * 4, all.llc_accesses, "each sector misses once: {all:?}");
}

#[test]
fn occupancy_is_that_of_the_resident_warps() {
    let mut world = World::new(Timing::On);
    let threads = world.gpu.spec().threads_per_sm;
    // One CTA of four warps on each SM.
    let grid = world.launch(24, 500);
    world.finish(grid);
    let occupancy = world.gpu.grid_counters(grid).unwrap().achieved_occupancy(threads);
    let expected = 4.0 / f64::from(threads / 32);
    assert!((occupancy / expected - 1.0).abs() < 0.01, "{occupancy}, not {expected}");
}

#[test]
fn sms_without_power_get_no_ctas_and_cost_nothing() {
    let mut world = World::new(Timing::On);
    world.gpu.trace_residency(true).unwrap();
    world.gpu.gate(SmSet::range(4, 20)).unwrap();
    let grid = world.launch(240, 100);
    let mut events = Vec::new();
    while !events.iter().any(|event| matches!(event, Event::Done { .. })) {
        world.gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
    }
    for event in &events {
        if let Event::Residency(change) = event {
            assert!(change.sm.0 < 4, "{change:?}");
        }
    }
    let device = world.gpu.counters();
    assert!(device.powered_sm_cycles.abs_diff(4 * device.cycles) <= 4, "{device:?}");
    let spec = world.gpu.spec();
    let seconds = device.cycles as f64 / (f64::from(spec.sm_clock_khz) * 1e3);
    let static_joules = 4.0 * seconds * spec.sm_static_watts;
    let work = world.gpu.grid_counters(grid).unwrap();
    let dynamic = (work.warp_instructions as f64 * spec.warp_instruction_picojoules
        + work.crossbar_bytes as f64 * spec.llc_byte_picojoules
        + work.dram_bytes as f64 * spec.dram_byte_picojoules)
        * 1e-12;
    let joules = device.nanojoules as f64 * 1e-9;
    assert!((joules / (static_joules + dynamic) - 1.0).abs() < 0.001, "{joules}");
}

#[test]
fn an_sm_keeps_its_power_until_its_last_cta_has_left() {
    let mut world = World::new(Timing::On);
    let grid = world.launch(24, 400);
    world
        .gpu
        .poll(Horizon { until: Some(Nanos(10_000)), warp_instructions: u64::MAX }, &mut Vec::new());
    world.gpu.gate(SmSet::range(0, 24)).unwrap();
    world.finish(grid);
    let (device, work) = (world.gpu.counters(), world.gpu.grid_counters(grid).unwrap());
    let late = device.powered_sm_cycles - 24 * 7_000;
    let stayed = work.sm_cycles - 24 * (7_000 - (device.cycles - work.cycles));
    // The device stops at the end of a turn, the grid a moment before.
    assert!(
        late.abs_diff(stayed) <= 24 * 300,
        "{late} cycles with power after the gate, {stayed} with CTAs"
    );
}

#[test]
fn nothing_is_counted_where_no_time_is_kept() {
    let mut world = World::new(Timing::Off);
    let grid = world.launch(24, 10);
    world.finish(grid);
    assert!(world.gpu.counting().is_none() && world.gpu.grid_counters(grid).is_none());
}
