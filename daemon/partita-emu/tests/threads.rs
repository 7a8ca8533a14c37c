//! Kernels on several threads of the host: results, counts and simulated times are those of one.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use partita_device::{
    Activity, AddressRange, Device as _, Event, GridSpec, Horizon, Outcome, Work,
};
use partita_emu::direct::{Argument, DirectError, Form, Prepared, Run, prepare};
use partita_emu::{EmulatedGpu, MemoryCheck, Options, Spec, Timing};
use partita_model::{
    DeviceAddress, Dim3, GridCounters, ModuleId, OperationId, SmSet, StreamId, WindowId,
};

const THREADS: [u16; 2] = [2, 5];

fn job(ptx: &str, kernel: &str, grid: u32, block: u32, arguments: Vec<Argument>) -> Run {
    Run {
        ptx: ptx.into(),
        kernel: kernel.to_owned(),
        grid: Dim3::linear(grid),
        block: Dim3::linear(block),
        dynamic_shared: 0,
        arguments,
        form: Form::Original,
        spec: Spec::named("cd-search-24").unwrap(),
        options: Options { timing: Timing::Off, seed: 5, ..Options::default() },
    }
}

fn words(values: impl Iterator<Item = u32>) -> Argument {
    Argument::Buffer(values.flat_map(u32::to_le_bytes).collect())
}

fn word(value: u32) -> Argument {
    Argument::Value(value.to_le_bytes().to_vec())
}

/// What two launches leave, and how many CTAs ran ahead.
fn outcome(run: &Run) -> (Result<(GridCounters, GridCounters, u64), String>, u64) {
    let mut prepared: Prepared<'_> = prepare(run).unwrap();
    let launch = |prepared: &mut Prepared<'_>, sms: SmSet| prepared.again(sms);
    let first = launch(&mut prepared, SmSet::range(0, 24));
    let second = first.and_then(|first| {
        let second = launch(&mut prepared, SmSet::range(3, 7))?;
        Ok((first, second, prepared.gpu().memory_digest(None)))
    });
    let text = |error: DirectError| error.to_string();
    (second.map_err(text), prepared.gpu().ctas_ahead())
}

/// Compares several threads with one; `ahead` says whether CTAs run ahead.
fn compare(what: &str, run: &Run, ahead: bool) {
    let (wanted, none) = outcome(run);
    assert_eq!(none, 0, "{what}: one thread runs nothing ahead");
    for threads in THREADS {
        let options = Options { helpers: threads - 1, ..run.options };
        let (found, ran) = outcome(&Run { options, ..run.clone() });
        assert_eq!(found, wanted, "{what} on {threads} threads");
        // One CTA says whether further ones are worth it.
        assert_eq!(ran > 1, ahead, "{what} on {threads} threads: {ran} CTAs ran ahead");
    }
}

const SAXPY: &str = include_str!("ptx/saxpy.ptx");

#[test]
fn short_ctas_stay_in_their_turns() {
    for n in [1000_u32, 5000, 50_000] {
        let arguments = vec![
            Argument::Value(2.0_f32.to_le_bytes().to_vec()),
            words((0..n).map(|i| (i as f32).to_bits())),
            words((0..n).map(|i| (1.5 * i as f32).to_bits())),
            word(n),
        ];
        // A CTA is too short to gain.
        compare("saxpy", &job(SAXPY, "saxpy", n.div_ceil(256), 256, arguments), false);
    }
}

/// Each thread stores two words, reads its neighbour's after a barrier, and some go round a loop.
const TALK: &str = "
.version 8.0
.target sm_90
.address_size 64
.visible .entry talk(.param .u64 out, .param .u64 scratch)
{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %d<8>;
    .shared .align 4 .b8 box[4096];
    ld.param.u64 %d1, [out];
    ld.param.u64 %d2, [scratch];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %d3, %r4, 8;
    add.s64 %d4, %d2, %d3;
    mul.lo.s32 %r5, %r4, 7;
    xor.b32 %r6, %r4, %r2;
    st.global.v2.b32 [%d4], {%r5, %r6};
    shl.b32 %r7, %r1, 2;
    mov.u32 %r8, box;
    add.s32 %r8, %r8, %r7;
    st.shared.b32 [%r8], %r6;
    and.b32 %r9, %r4, 63;
    xor.b32 %r9, %r9, 63;
again:
    setp.eq.u32 %p1, %r9, 0;
    @%p1 bra out_of_it;
    sub.u32 %r9, %r9, 1;
    add.u32 %r5, %r5, %r9;
    st.global.b32 [%d4], %r5;
    bra again;
out_of_it:
    bar.sync 0;
    add.u32 %r10, %r1, 1;
    setp.ge.u32 %p2, %r10, %r3;
    @%p2 mov.u32 %r10, 0;
    shl.b32 %r11, %r10, 2;
    mov.u32 %r12, box;
    add.s32 %r12, %r12, %r11;
    ld.shared.b32 %r13, [%r12];
    mad.lo.s32 %r14, %r2, %r3, %r10;
    mul.wide.u32 %d5, %r14, 8;
    add.s64 %d6, %d2, %d5;
    ld.global.v2.b32 {%r5, %r6}, [%d6];
    ld.global.b32 %r7, [%d6+4];
    add.u32 %r5, %r5, %r13;
    add.u32 %r5, %r5, %r6;
    sub.u32 %r5, %r5, %r7;
    bar.sync 0;
    st.global.b32 [%d6], %r5;
    mul.wide.u32 %d7, %r4, 4;
    add.s64 %d7, %d1, %d7;
    st.global.b32 [%d7], %r5;
    setp.lt.u32 %p3, %r1, 17;
    @%p3 exit;
    bar.sync 0;
    ret;
}";

#[test]
fn threads_of_a_cta_see_each_others_stores() {
    for block in [1_u32, 33, 256, 257, 512, 1000, 1024] {
        let ctas = if block < 256 { 900 } else { 70 };
        let threads = block * ctas;
        let arguments =
            vec![words((0..threads).map(|_| 0)), words((0..2 * threads).map(|i| i * 3))];
        compare(&format!("{block} threads"), &job(TALK, "talk", ctas, block, arguments), true);
    }
}

const COLLATZ: &str = include_str!("ptx/collatz.ptx");

#[test]
fn threads_that_part_and_leave_early() {
    for (n, block) in [(30_000_u32, 96), (70_000, 256), (20_001, 640)] {
        let arguments = vec![words((0..n).map(|_| 0)), word(n)];
        let run = job(COLLATZ, "collatz", n.div_ceil(block), block, arguments);
        compare(&format!("{n} numbers"), &run, true);
    }
}

#[test]
fn a_fault_is_that_of_one_thread() {
    // The last CTA stores beyond the second buffer.
    let arguments = vec![words(0..256 * 90), words(0..256 * 179)];
    let run = job(TALK, "talk", 90, 256, arguments);
    let options = Options { memcheck: MemoryCheck::Exact, ..run.options };
    let run = Run { options, ..run };
    let (found, _) = outcome(&run);
    assert!(found.is_err(), "{found:?}");
    compare("beyond the buffer", &run, true);
}

/// Counts threads by the last four bits of a hash of their words, and finds each CTA's last thread.
/// With `again` threads read the counts, too.
fn count(again: bool) -> String {
    let again = if again { "ld.global.b32 %r9, [%d4]; st.global.b32 [%d5], %r9;" } else { "" };
    format!(
        "
.version 8.0
.target sm_90
.address_size 64
.visible .entry count(.param .u64 in, .param .u64 counts, .param .u64 own)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %d<9>;
    ld.param.u64 %d1, [in];
    ld.param.u64 %d2, [counts];
    ld.param.u64 %d3, [own];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    mul.wide.u32 %d5, %r4, 4;
    add.s64 %d5, %d1, %d5;
    mul.wide.u32 %d6, %r2, 4;
    add.s64 %d6, %d3, %d6;
    mov.u32 %r6, 0;
    ld.global.b32 %r5, [%d5];
more:
    mad.lo.u32 %r5, %r5, 5, %r6;
    add.u32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, 200;
    @%p1 bra more;
    and.b32 %r5, %r5, 15;
    mul.wide.u32 %d4, %r5, 4;
    add.s64 %d4, %d2, %d4;
    red.global.add.u32 [%d4], 1;
    red.global.max.s32 [%d6], %r4;
    {again}
    ret;
}}"
    )
}

#[test]
fn reductions_of_whole_numbers_come_in_any_order() {
    for block in [64_u32, 512] {
        let ctas = 200;
        let arguments = vec![
            words((0..block * ctas).map(|i| i.wrapping_mul(2_654_435_761) >> 7)),
            words((0..16).map(|_| 0)),
            words((0..ctas).map(|_| 0)),
        ];
        let run = job(&count(false), "count", ctas, block, arguments.clone());
        compare("reductions", &run, true);
    }
}

#[test]
fn a_cta_that_reads_what_it_reduces_stays_in_its_turn() {
    let arguments = vec![words(0..64 * 100), words((0..16).map(|_| 0)), words((0..100).map(|_| 0))];
    // The words that are read race, but no CTA runs ahead, so nothing changes.
    compare("reads", &job(&count(true), "count", 100, 64, arguments), false);
}

const REDUCE: &str = include_str!("ptx/reduce.ptx");

#[test]
fn what_ctas_say_to_each_other_keeps_them_in_their_turns() {
    let arguments = vec![words(0..10_000), words([0, 0].into_iter()), word(10_000)];
    compare("global atomics", &job(REDUCE, "reduce", 37, 256, arguments), false);
}

const BYTES: u64 = 8 << 20;

/// A device with windows that have a stream each, and one buffer of [`BYTES`].
struct Served {
    gpu: EmulatedGpu,
    operations: u64,
    faults: u64,
}

impl Served {
    fn new(helpers: u16) -> Served {
        let options = Options { timing: Timing::Off, seed: 5, helpers, ..Options::default() };
        let options = Options { memcheck: MemoryCheck::Exact, ..options };
        let gpu = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), options);
        Served { gpu, operations: 0, faults: 0 }
    }

    /// A window, and where its buffer begins.
    fn window(&mut self, window: u64) -> u64 {
        let base = self.gpu.reserve(WindowId(window), BYTES).unwrap();
        let buffer = AddressRange { start: base, bytes: BYTES };
        self.gpu.allocate(WindowId(window), buffer).unwrap();
        let words = (0..u32::try_from(BYTES / 4).unwrap()).map(|i| i.wrapping_mul(2_654_435_761));
        let bytes: Vec<u8> = words.flat_map(|word| (word >> 9).to_le_bytes()).collect();
        self.gpu.poke(base, &bytes).unwrap();
        self.gpu.create_stream(StreamId(window)).unwrap();
        base.0
    }

    fn launch(&mut self, window: u64, base: u64, kernel: &str, params: &[u64]) {
        self.operations += 1;
        let launch = GridSpec {
            cooperative: false,
            cluster: Dim3::linear(1),
            module: ModuleId(window),
            kernel: kernel.into(),
            grid: Dim3::linear(90),
            block: Dim3::linear(256),
            dynamic_shared: 0,
            params: params.iter().flat_map(|word| word.to_le_bytes()).collect(),
            access: vec![AddressRange { start: DeviceAddress(base), bytes: BYTES }],
        };
        let operation = OperationId(self.operations);
        self.gpu.enqueue(StreamId(window), operation, Work::Launch(launch)).unwrap();
    }

    fn settle(&mut self) {
        let far = Horizon { until: None, warp_instructions: u64::MAX };
        let mut events = Vec::new();
        while self.gpu.poll(far, &mut events) != Activity::Idle {}
        let faults =
            |event: &&Event| matches!(event, Event::Done { outcome: Outcome::Fault(_), .. });
        self.faults += events.iter().filter(faults).count() as u64;
    }

    fn load(&mut self, window: u64, ptx: &str) {
        self.gpu.load_module(ModuleId(window), WindowId(window), ptx.into()).unwrap();
        self.settle();
    }

    /// What is in memory, and how many launches failed.
    fn left(&self) -> (u64, u64) {
        (self.gpu.memory_digest(None), self.faults)
    }
}

/// Plays on one thread and on several; returns how many CTAs ran ahead on the most threads.
fn compare_served(play: impl Fn(&mut Served)) -> u64 {
    let mut one = Served::new(0);
    play(&mut one);
    let mut ahead = 0;
    for threads in THREADS {
        let mut several = Served::new(threads - 1);
        play(&mut several);
        assert_eq!(several.left(), one.left(), "{threads} threads");
        ahead = several.gpu.ctas_ahead();
    }
    ahead
}

#[test]
fn a_module_takes_the_place_of_another() {
    let ahead = compare_served(|served| {
        let base = served.window(1);
        for round in 0..4 {
            // Only the first of two may run ahead. They have one name, and lie where the other lay.
            served.load(1, &count(round % 2 == 1));
            for _ in 0..2 {
                served.launch(1, base, "count", &[base, base + (4 << 20), base + (5 << 20)]);
                served.settle();
            }
            served.gpu.unload_module(ModuleId(1)).unwrap();
        }
    });
    assert!(ahead > 1, "{ahead} CTAs ran ahead");
}

#[test]
fn windows_are_served_at_once() {
    let ahead = compare_served(|served| {
        let bases = [1, 2, 3].map(|window| served.window(window));
        for (window, ptx) in [(1, TALK), (2, COLLATZ), (3, &count(false))] {
            served.load(window, ptx);
        }
        let [talk, collatz, counts] = bases;
        for _ in 0..3 {
            served.launch(1, talk, "talk", &[talk, talk + (1 << 20)]);
            served.launch(2, collatz, "collatz", &[collatz, 23_000]);
            served.launch(3, counts, "count", &[counts, counts + (4 << 20), counts + (5 << 20)]);
        }
        served.settle();
    });
    assert!(ahead > 1, "{ahead} CTAs ran ahead");
}

/// What a launch stored before its fault may differ from thread number to thread number, and what
/// comes after it may not: the memory of others, and of launches after that.
#[test]
fn memory_after_a_fault() {
    compare_served(|served| {
        let (own, other) = (served.window(1), served.window(2));
        served.load(1, TALK);
        served.load(2, TALK);
        served.launch(2, other, "talk", &[other, other + (1 << 20)]);
        // Its last CTAs reach beyond the buffer.
        served.launch(1, own, "talk", &[own, own + BYTES - 256 * 80 * 8]);
        served.settle();
        assert_eq!(served.faults, 1);
        // All that the launch may have stored is stored anew.
        served.gpu.poke(DeviceAddress(own), &vec![7; usize::try_from(BYTES).unwrap()]).unwrap();
        served.launch(1, own, "talk", &[own, own + (1 << 20)]);
        served.launch(2, other, "talk", &[other, other + (2 << 20)]);
        served.settle();
    });
}
