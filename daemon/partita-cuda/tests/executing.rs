//! The contract's promises, on a driver that executes kernels (`tests/emulated-driver`).
//!
//! The driver has its habits, so a call that waits for running grids waits here, too.

#![expect(unsafe_code, reason = "the driver is a C library")]
#![expect(clippy::unwrap_used, reason = "only tests use it")]

use partita_cuda_device::{CudaDevice, Guarding, Options, SignalPath};
use partita_device::{
    Activity, AddressRange, Aliasing, Confinement, Confining, Device, DeviceError, Event,
    FaultKind, GridSpec, Horizon, HostMemory, HostSpan, Outcome, Phase, Textures, Work,
};
use partita_model::texture::{ArrayKind, ArrayShape, ChannelType, TexelFormat};
use partita_model::{
    DeviceAddress, Dim3, MemoryAccess, ModuleId, OperationId, SmSet, StreamId, WindowId,
};
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use partita_emulated_driver as _;

/// Far above what anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const WINDOW: WindowId = WindowId(1);
const MODULE: ModuleId = ModuleId(1);

/// `store` writes its second parameter where the first points; `await` waits for a word to become
/// 1, and then stores 2 behind it; `place` writes the number of its SM plus one at its CTA's place.
const PTX: &str = "
.version 7.0
.target sm_75
.address_size 64
.global .u64 word = 5;
.visible .entry store(.param .u64 to, .param .u64 value)
{
	.reg .b64 %to, %value;
	ld.param.u64 %to, [to];
	ld.param.u64 %value, [value];
	st.global.u64 [%to], %value;
	ret;
}
.visible .entry await(.param .u64 at, .param .u64 none)
{
	.reg .pred %more;
	.reg .b64 %at, %found;
	ld.param.u64 %at, [at];
$AGAIN:
	ld.volatile.global.u64 %found, [%at];
	setp.ne.u64 %more, %found, 1;
	@%more bra $AGAIN;
	st.volatile.global.u64 [%at+8], 2;
	ret;
}
.visible .entry place(.param .u64 to, .param .u64 none)
{
	.reg .b32 %sm, %cta;
	.reg .b64 %to, %offset;
	ld.param.u64 %to, [to];
	mov.u32 %cta, %ctaid.x;
	mul.wide.u32 %offset, %cta, 8;
	add.u64 %to, %to, %offset;
	mov.u32 %sm, %smid;
	add.u32 %sm, %sm, 1;
	cvt.u64.u32 %offset, %sm;
	st.global.u64 [%to], %offset;
	ret;
}
.visible .entry deep(.param .u64 to, .param .u64 value)
{
	.local .align 8 .b8 room[3000];
	.reg .b64 %to, %value, %at;
	ld.param.u64 %to, [to];
	ld.param.u64 %value, [value];
	mov.u64 %at, room;
	add.u64 %at, %at, %value;
	st.local.u64 [%at], %value;
	ld.local.u64 %value, [%at];
	st.global.u64 [%to], %value;
	ret;
}
.visible .entry fail(.param .u64 none, .param .u64 other) { trap; }
.visible .entry variable(.param .u64 to, .param .u64 none)
{
	.reg .b64 %to, %value;
	ld.param.u64 %to, [to];
	ld.global.u64 %value, [word];
	st.global.u64 [%to], %value;
	ret;
}
";

/// `say` prints its CTA's number as often as asked.
const PRINTS: &str = r"
.version 7.0
.target sm_75
.address_size 64
.extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);
.global .align 1 .b8 format[10] = {37, 100, 32, 111, 102, 32, 37, 115, 10, 0};
.global .align 1 .b8 name[4] = {116, 101, 110, 0};
.visible .entry say(.param .u64 times, .param .u64 none)
{
	.local .align 8 .b8 depot[16];
	.reg .pred %more;
	.reg .b32 %cta, %printed;
	.reg .b64 %left, %depot, %arguments, %format, %name;
	ld.param.u64 %left, [times];
	mov.u32 %cta, %ctaid.x;
	mov.u64 %depot, depot;
	cvta.local.u64 %arguments, %depot;
	mov.u64 %format, format;
	cvta.global.u64 %format, %format;
	mov.u64 %name, name;
	cvta.global.u64 %name, %name;
	st.local.u32 [%depot], %cta;
	st.local.u64 [%depot+8], %name;
	setp.eq.u64 %more, %left, 0;
	@%more ret;
$AGAIN:
	{
	.param .b64 p;
	.param .b64 q;
	.param .b32 s;
	st.param.b64 [p], %format;
	st.param.b64 [q], %arguments;
	call.uni (s), vprintf, (p, q);
	ld.param.b32 %printed, [s];
	}
	add.u64 %left, %left, -1;
	setp.ne.u64 %more, %left, 0;
	@%more bra $AGAIN;
	ret;
}
";

/// The daemon asks for eager loading in its environment, which tests share.
const SWITCHES: &CStr = c"timing=off,lazy-loading=off";

/// A process has one driver, and a driver one context.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A device on a driver of its own.
struct World {
    library: libloading::Library,
    device: CudaDevice,
    base: DeviceAddress,
    next: u64,
    done: Vec<(OperationId, Outcome)>,
    events: Vec<Event>,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> World {
        World::with(Guarding::On)
    }

    fn with(guards: Guarding) -> World {
        World::opened(Options { guards, ..Options::default() })
    }

    fn opened(options: Options) -> World {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let built = std::env::current_exe().unwrap();
        let built = built.parent().unwrap().join("libpartita_emulated_driver.so");
        // A file of its own is a driver of its own, which no fault of another test has ended.
        let path = folder.path().join("libcuda.so.1");
        std::fs::copy(&built, &path).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        // SAFETY: our own library, without constructors.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        // SAFETY: the library's own function.
        let choose: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char) -> c_int> =
            unsafe { library.get("emulated_driver_switches") }.unwrap();
        // SAFETY: a string.
        assert_eq!(unsafe { choose(SWITCHES.as_ptr()) }, 0);
        let options = Options { library: Some(path.clone()), nvml: Some(path), ..options };
        let mut device = CudaDevice::open(&options).unwrap();
        let base = device.reserve(WINDOW, 64 << 20).unwrap();
        for stream in 0..4 {
            device.create_stream(StreamId(stream)).unwrap();
        }
        let mut world = World {
            library,
            device,
            base,
            next: 0,
            done: Vec::new(),
            events: Vec::new(),
            _folder: folder,
            _turn: turn,
        };
        world.device.load_module(MODULE, WINDOW, PTX.into()).unwrap();
        world.until(|world| !world.events.is_empty());
        assert!(matches!(world.events.pop(), Some(Event::ModuleLoaded { .. })));
        world
    }

    /// Watches this thread: it may not wait for grids.
    fn watch(&self) {
        // SAFETY: the library's own function.
        let watch: libloading::Symbol<'_, extern "C" fn()> =
            unsafe { self.library.get("emulated_driver_watch") }.unwrap();
        watch();
    }

    /// Calls of this thread that have waited for what was in a stream.
    fn awaited(&self) -> u64 {
        // SAFETY: the library's own function.
        let awaited: libloading::Symbol<'_, extern "C" fn() -> u64> =
            unsafe { self.library.get("emulated_driver_awaited") }.unwrap();
        awaited()
    }

    /// Calls of this thread that might have waited for grids.
    fn waits(&self) -> String {
        let mut text = vec![0_u8; 4096];
        // SAFETY: the library's own function.
        let waits: libloading::Symbol<'_, unsafe extern "C" fn(*mut c_char, usize) -> c_int> =
            unsafe { self.library.get("emulated_driver_waits") }.unwrap();
        // SAFETY: a buffer and its size.
        unsafe { waits(text.as_mut_ptr().cast(), text.len()) };
        CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
    }

    fn allocate(&mut self, offset: u64, bytes: u64) -> DeviceAddress {
        let start = DeviceAddress(self.base.0 + offset);
        let range = AddressRange { start, bytes };
        self.when_free(|device| device.allocate(WINDOW, range));
        start
    }

    /// Tries again until the addresses are free.
    fn when_free(&mut self, mut act: impl FnMut(&mut CudaDevice) -> Result<(), DeviceError>) {
        let end = Instant::now() + PATIENCE;
        loop {
            match act(&mut self.device) {
                Err(DeviceError::Busy) => assert!(Instant::now() < end, "they never get free"),
                done => return done.unwrap(),
            }
            self.step();
        }
    }

    fn enqueue(&mut self, stream: u64, work: Work) -> OperationId {
        self.next += 1;
        let operation = OperationId(self.next);
        self.device.enqueue(StreamId(stream), operation, work).unwrap();
        operation
    }

    fn launch(&mut self, stream: u64, kernel: &str, params: [u64; 2]) -> OperationId {
        self.enqueue(stream, Work::Launch(grid(kernel, 1, params)))
    }

    fn poll(&mut self) -> Activity {
        let mut events = Vec::new();
        let horizon = Horizon { until: None, warp_instructions: 0 };
        let activity = self.device.poll(horizon, &mut events);
        for event in events {
            match event {
                Event::Done { operation, outcome, .. } => self.done.push((operation, outcome)),
                Event::Reopened => {}
                other => self.events.push(other),
            }
        }
        activity
    }

    fn until(&mut self, mut reached: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !reached(self) {
            assert!(Instant::now() < end, "it never came");
            let activity = self.poll();
            assert!(activity != Activity::Idle || reached(self), "idle, and it has not come");
        }
        self.open();
    }

    /// While the device is closed, other calls may wait.
    fn open(&mut self) {
        while self.device.phase() == Phase::Closed {
            self.poll();
        }
    }

    /// One look at the device.
    fn step(&mut self) {
        self.poll();
        self.open();
    }

    fn is_done(&self, operation: OperationId) -> bool {
        self.done.iter().any(|(id, _)| *id == operation)
    }

    fn finish(&mut self, operation: OperationId) -> Outcome {
        self.until(|world| world.is_done(operation));
        self.done.iter().find(|(id, _)| *id == operation).unwrap().1.clone()
    }

    fn peek(&mut self, address: DeviceAddress) -> u64 {
        let mut word = [0; 8];
        self.device.peek(address, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    fn poke(&mut self, address: DeviceAddress, word: u64) {
        self.device.poke(address, &word.to_le_bytes()).unwrap();
    }
}

fn grid(kernel: &str, ctas: u32, params: [u64; 2]) -> GridSpec {
    GridSpec {
        cooperative: false,
        cluster: Dim3::linear(1),
        module: MODULE,
        kernel: kernel.into(),
        grid: Dim3::linear(ctas),
        block: Dim3::linear(1),
        dynamic_shared: 0,
        params: params.iter().flat_map(|word| word.to_le_bytes()).collect(),
        access: Vec::new(),
    }
}

struct Bytes(Mutex<Vec<u8>>);

impl HostMemory for Bytes {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let at = usize::try_from(offset).unwrap();
        into.copy_from_slice(&self.0.lock().unwrap()[at..at + into.len()]);
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let at = usize::try_from(offset).unwrap();
        self.0.lock().unwrap()[at..at + from.len()].copy_from_slice(from);
    }
}

/// Opening a device takes seconds, so these share one.
#[test]
fn the_contract_holds_with_kernels() {
    let mut world = World::new();
    world.watch();
    kernels_execute_between_copies(&mut world);
    a_running_kernel_sees_a_poke(&mut world);
    a_module_is_loaded_while_a_kernel_waits_for_the_host(&mut world);
    others_memory_is_zeroed_beside_a_copy(&mut world);
    memory_has_several_addresses(&mut world);
    a_grid_keeps_to_the_sms_of_a_green_context(&mut world);
    a_full_stream_holds_up_nobody(&mut world);
    assert_eq!(world.waits(), "", "the owner's thread never waits for grids");
}

fn kernels_execute_between_copies(world: &mut World) {
    let word = world.allocate(40 << 20, 64);
    let host: Arc<Bytes> = Arc::new(Bytes(Mutex::new(vec![9; 24])));
    let span = |at| HostSpan::new(host.clone(), at, 8).unwrap();
    world.enqueue(0, Work::CopyToDevice { to: DeviceAddress(word.0 + 8), from: span(0) });
    world.launch(0, "store", [word.0, 77]);
    world.launch(0, "variable", [word.0 + 16, 0]);
    world.enqueue(0, Work::CopyToHost { to: span(0), from: word });
    world.enqueue(0, Work::CopyToHost { to: span(8), from: DeviceAddress(word.0 + 8) });
    let last =
        world.enqueue(0, Work::CopyToHost { to: span(16), from: DeviceAddress(word.0 + 16) });
    assert_eq!(world.finish(last), Outcome::Complete);
    let words: Vec<u64> = host
        .0
        .lock()
        .unwrap()
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    assert_eq!(words, [77, 0x0909_0909_0909_0909, 5]);
    assert_eq!(world.peek(word), 77);
    assert_eq!(world.peek(DeviceAddress(word.0 + 24)), 0, "new memory is zero");
}

fn a_running_kernel_sees_a_poke(world: &mut World) {
    let word = world.allocate(42 << 20, 16);
    let beside = world.allocate(44 << 20, 16);
    let waiting = world.launch(0, "await", [word.0, 0]);
    // Another stream's kernel runs beside it.
    let stored = world.launch(1, "store", [beside.0, 3]);
    // A kernel with much local memory begins, too.
    let deep = world.launch(2, "deep", [beside.0 + 8, 16]);
    assert_eq!(world.finish(stored), Outcome::Complete);
    assert_eq!(world.finish(deep), Outcome::Complete);
    assert!(!world.is_done(waiting));
    world.poke(word, 1);
    assert_eq!(world.finish(waiting), Outcome::Complete);
    assert_eq!(world.peek(DeviceAddress(word.0 + 8)), 2);
}

/// The driver loads only when nothing runs, and holds up every call meanwhile.
fn a_module_is_loaded_while_a_kernel_waits_for_the_host(world: &mut World) {
    let word = world.allocate(48 << 20, 16);
    let waiting = world.launch(0, "await", [word.0, 0]);
    world.device.load_module(ModuleId(2), WINDOW, PTX.into()).unwrap();
    world.until(|world| world.device.phase() == Phase::Draining);
    // A copy stays here for a while: the kernel may wait for it.
    let host: Arc<Bytes> = Arc::new(Bytes(Mutex::new(vec![1, 0, 0, 0, 0, 0, 0, 0])));
    let from = HostSpan::new(host, 0, 8).unwrap();
    let copied = world.enqueue(1, Work::CopyToDevice { to: word, from });
    assert_eq!(world.finish(copied), Outcome::Complete);
    assert_eq!(world.finish(waiting), Outcome::Complete);
    world.until(|world| !world.events.is_empty());
    assert!(matches!(world.events.pop(), Some(Event::ModuleLoaded { .. })));
    world.device.unload_module(ModuleId(2)).unwrap();
}

/// Large memory is zeroed by a kernel of the driver, which waits for room on an SM.
fn others_memory_is_zeroed_beside_a_copy(world: &mut World) {
    const CTAS_PER_SM: u32 = 32;
    let word = world.allocate(50 << 20, 16);
    let sms = u32::from(world.device.facts().sm_count);
    let full = world.enqueue(0, Work::Launch(grid("await", sms * CTAS_PER_SM, [word.0, 0])));
    let other = WindowId(2);
    let start = world.device.reserve(other, 64 << 20).unwrap();
    world.device.allocate(other, AddressRange { start, bytes: 48 << 20 }).unwrap();
    let host: Arc<Bytes> = Arc::new(Bytes(Mutex::new(vec![7; 8])));
    let from = HostSpan::new(host, 0, 8).unwrap();
    let to = DeviceAddress(word.0 + 8);
    let copied = world.enqueue(1, Work::CopyToDevice { to, from });
    assert_eq!(world.finish(copied), Outcome::Complete);
    assert!(!world.is_done(full));
    world.poke(word, 1);
    assert_eq!(world.finish(full), Outcome::Complete);
    world.device.release(other).unwrap();
}

fn memory_has_several_addresses(world: &mut World) {
    const PAGE: u64 = 2 << 20;
    let home = world.allocate(0, PAGE);
    let other = AddressRange { start: DeviceAddress(world.base.0 + 8 * PAGE), bytes: PAGE };
    world.when_free(|device| device.alias(home, other));
    world.device.protect(other.start, MemoryAccess::ReadWrite).unwrap();
    let more = AddressRange { start: DeviceAddress(world.base.0 + 16 * PAGE), bytes: PAGE };
    world.when_free(|device| device.alias(home, more));
    world.device.protect(more.start, MemoryAccess::ReadWrite).unwrap();
    let stored = world.launch(0, "store", [other.start.0, 41]);
    assert_eq!(world.finish(stored), Outcome::Complete);
    assert_eq!(world.peek(more.start), 41);
}

fn a_grid_keeps_to_the_sms_of_a_green_context(world: &mut World) {
    let groups = world.device.sm_groups().to_vec();
    assert_eq!(groups.len(), 16, "groups of 8 leave 4 of 132 SMs out");
    let sms = groups[3].union(&groups[7]);
    assert_eq!(world.device.confine(sms).unwrap(), Confinement::Pending);
    world.until(|world| !world.events.is_empty());
    assert_eq!(world.events.pop(), Some(Event::Confined { sms, result: Ok(()) }));
    let words = world.allocate(46 << 20, 64 * 8);
    let launch = grid("place", 64, [words.0, 0]);
    let placed = world.enqueue(0, Work::LaunchOn { launch, sms });
    assert_eq!(world.finish(placed), Outcome::Complete);
    let seen: SmSet = (0..64)
        .map(|cta| world.peek(DeviceAddress(words.0 + cta * 8)) - 1)
        .map(|sm| partita_model::SmId(u16::try_from(sm).unwrap()))
        .collect();
    assert!(seen.difference(&sms).is_empty(), "{seen} of {sms}");
    assert_eq!(seen.len(), 16);
}

/// A stream of the driver takes 1,024 calls, and the next one waits.
fn a_full_stream_holds_up_nobody(world: &mut World) {
    let word = world.allocate(30 << 20, 16);
    let waiting = world.launch(0, "await", [word.0, 0]);
    let launches: Vec<OperationId> =
        (0..1_200).map(|value| world.launch(0, "store", [word.0 + 8, value])).collect();
    let beside = world.launch(1, "place", [word.0 + 8, 0]);
    assert_eq!(world.finish(beside), Outcome::Complete);
    assert!(!world.is_done(waiting));
    world.poke(word, 1);
    for launch in &launches {
        assert_eq!(world.finish(*launch), Outcome::Complete);
    }
    assert_eq!(world.peek(DeviceAddress(word.0 + 8)), 1_199);
}

#[test]
fn what_kernels_print_is_told() {
    let mut world = World::new();
    let module = ModuleId(3);
    let prints = partita_ptx::output(&partita_ptx::parse(PRINTS).unwrap()).module;
    world.device.load_module(module, WINDOW, partita_ptx::print(&prints).into()).unwrap();
    world.until(|world| !world.events.is_empty());
    assert!(matches!(world.events.pop(), Some(Event::ModuleLoaded { .. })));
    let mut say = |ctas, times| {
        let launch = GridSpec { module, ..grid("say", ctas, [times, 0]) };
        let operation = world.enqueue(0, Work::Launch(launch));
        assert_eq!(world.finish(operation), Outcome::Complete);
        let (mut lines, mut notices) = (Vec::new(), 0);
        for event in std::mem::take(&mut world.events) {
            match event {
                Event::Output { operation: of, text } => {
                    assert_eq!(of, operation);
                    let text = String::from_utf8(text).unwrap();
                    lines.extend(text.lines().map(str::to_owned));
                }
                Event::Notice { text, .. } => notices += usize::from(text.contains("lost")),
                other => panic!("{other:?}"),
            }
        }
        lines.sort();
        (lines, notices)
    };
    let of = |ctas: &[u32]| ctas.iter().map(|cta| format!("{cta} of ten")).collect::<Vec<_>>();
    assert_eq!(say(3, 2), (of(&[0, 0, 1, 1, 2, 2]), 0));
    let (lines, notices) = say(1, 5_000);
    assert_eq!((lines.len(), notices), (4_096, 1), "the ring has 4,096 slots");
    assert_eq!(say(2, 1), (of(&[0, 1]), 0));
    world.watch();
    let before = world.awaited();
    for _ in 0..3 {
        let launch = GridSpec { module, ..grid("say", 4, [0, 0]) };
        let silent = world.enqueue(0, Work::Launch(launch));
        assert_eq!(world.finish(silent), Outcome::Complete);
    }
    assert_eq!(world.awaited(), before, "the owner waits for no copy");
}

#[test]
fn a_strict_device_has_memory_at_all_addresses_of_a_cell() {
    let mut world = World::with(Guarding::Strict);
    world.watch();
    stray_stores_end_no_context(&mut world);
    an_allocation_waits_for_grids(&mut world);
    memory_without_rights_ends_no_context(&mut world);
    // Scratch memory makes room on the owner's thread, where nothing is on the device: that call
    // may wait, and has nothing to wait for.
    let unmaps = "cuMemUnmap: it waits for the grids that run";
    assert!(["", unmaps].contains(&&*world.waits()), "{}", world.waits());
}

/// A kernel may reach every address of its cell, and all of them have memory.
fn stray_stores_end_no_context(world: &mut World) {
    const MARGIN: u64 = 64 << 30;
    let base = world.base.0;
    for stray in [base - 8, base + (58 << 20), base + (60 << 20), base + MARGIN, base - MARGIN] {
        let stored = world.launch(0, "store", [stray, 99]);
        assert_eq!(world.finish(stored), Outcome::Complete, "a store at {stray:#x}");
    }
    // Memory that is allocated there is new.
    let word = world.allocate(58 << 20, 16);
    assert_eq!(world.peek(word), 0);
}

/// Scratch memory makes room where memory is allocated. That waits until nothing runs, and the
/// owner does not.
fn an_allocation_waits_for_grids(world: &mut World) {
    let word = world.allocate(54 << 20, 16);
    let waiting = world.launch(0, "await", [word.0, 0]);
    let range = AddressRange { start: DeviceAddress(world.base.0 + (60 << 20)), bytes: 2 << 20 };
    assert_eq!(world.device.allocate(WINDOW, range), Err(DeviceError::Busy));
    world.poke(word, 1);
    assert_eq!(world.finish(waiting), Outcome::Complete);
    world.when_free(|device| device.allocate(WINDOW, range));
    let stored = world.launch(0, "store", [range.start.0, 7]);
    assert_eq!(world.finish(stored), Outcome::Complete);
    assert_eq!(world.peek(range.start), 7);
}

/// A program may make its memory inaccessible, and access it all the same.
fn memory_without_rights_ends_no_context(world: &mut World) {
    const PAGE: u64 = 2 << 20;
    let home = world.allocate(0, PAGE);
    let other = AddressRange { start: DeviceAddress(world.base.0 + 8 * PAGE), bytes: PAGE };
    world.when_free(|device| device.alias(home, other));
    for (value, access) in [(3, MemoryAccess::None), (4, MemoryAccess::Read)] {
        world.device.protect(other.start, access).unwrap();
        let stored = world.launch(0, "store", [other.start.0, value]);
        assert_eq!(world.finish(stored), Outcome::Complete, "{access:?}");
        assert_eq!(world.peek(other.start), value);
    }
}

#[test]
fn the_host_reads_words_that_kernels_write() {
    let mut world = World::opened(Options { signals: SignalPath::Mapped, ..Options::default() });
    let (start, bytes) = (DeviceAddress(world.base.0 + (32 << 20)), 64 << 10);
    let made = world.device.allocate_words(WINDOW, AddressRange { start, bytes });
    assert_eq!(made, Ok(true));
    world.watch();
    let word = DeviceAddress(start.0 + bytes - 8);
    assert_eq!(world.peek(word), 0, "it is zeroed");
    let stored = world.launch(0, "store", [word.0, 7]);
    assert_eq!(world.finish(stored), Outcome::Complete);
    assert_eq!(world.peek(word), 7);
    world.poke(word, 3);
    assert_eq!(world.peek(word), 3);
    let never = world.allocate(48 << 20, 16);
    let waiting = world.launch(1, "await", [never.0, 0]);
    world.step();
    assert_eq!(world.peek(word), 3);
    world.poke(never, 1);
    assert_eq!(world.finish(waiting), Outcome::Complete);
    assert_eq!(world.waits(), "");
}

/// The driver allocates their memory, which waits until nothing runs, and the owner does not.
#[test]
fn lines_and_cubes_wait_for_grids() {
    let mut world = World::new();
    world.watch();
    let word = world.allocate(0, 16);
    let waiting = world.launch(0, "await", [word.0, 0]);
    let format = TexelFormat::new(ChannelType::F32, 1).unwrap();
    let shapes = [
        (ArrayKind::Line, [8, 1, 1]),
        (ArrayKind::LineLayers, [8, 1, 3]),
        (ArrayKind::Cube, [4, 4, 6]),
        (ArrayKind::CubeLayers, [4, 4, 12]),
    ]
    .map(|(kind, extent)| ArrayShape::new(kind, format, extent, 2).unwrap());
    for shape in shapes {
        assert_eq!(world.device.create_array(WINDOW, &shape), Err(DeviceError::Busy));
    }
    for _ in 0..1000 {
        world.poll();
    }
    assert_eq!(world.device.create_array(WINDOW, &shapes[0]), Err(DeviceError::Busy));
    world.poke(word, 1);
    assert_eq!(world.finish(waiting), Outcome::Complete);
    for shape in shapes {
        world.when_free(|device| device.create_array(WINDOW, &shape).map(|_| ()));
    }
    world.device.release(WINDOW).unwrap();
    for _ in 0..1000 {
        world.poll();
    }
    assert_eq!(world.waits(), "");
}

#[test]
fn a_trap_ends_the_context() {
    let mut world = World::new();
    let failing = world.launch(0, "fail", [0, 0]);
    world.until(|world| world.events.iter().any(|event| matches!(event, Event::Lost { .. })));
    let Outcome::Fault(fault) = world.finish(failing) else { panic!("{:?}", world.done) };
    assert_eq!((fault.kind, fault.kernel.as_str()), (FaultKind::LaunchFailed, "fail"));
}
