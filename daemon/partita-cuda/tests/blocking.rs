//! No call of the owner's thread waits for running kernels: they may wait for that thread.

mod fake;

use fake::{Fake, WINDOW, module_of};
use partita_device::{
    Activity, AddressRange, Aliasing, Device, DeviceError, HostMemory, HostSpan, Phase, Textures,
    Work,
};
use partita_model::texture::{
    ArrayKind, ArrayShape, ChannelType, Sampler, TexelFormat, TexelSource, TextureSpec,
};
use partita_model::{DeviceAddress, MemoryAccess, ModuleId, StreamId, WindowId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer than the device drains while a launch stays.
const DRAINS: Duration = Duration::from_millis(500);

struct Zeros;

impl HostMemory for Zeros {
    fn size(&self) -> u64 {
        1 << 20
    }

    fn read(&self, _offset: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&self, _offset: u64, _from: &[u8]) {}
}

/// Whatever an engine may ask for while workers wait, without a call that waits for them.
#[test]
fn every_call_returns_while_a_worker_is_stalled() {
    let fake = Fake::new();
    let mut world = fake.world();
    fake.tell("set strict on");
    world.load(1, &module_of(&["spin", "kernel"])).unwrap();
    world.load(2, &module_of(&["other"])).unwrap();
    let word = world.allocate(0, 4096);
    world.device.reserve(WindowId(2), 1 << 20).unwrap();
    let stalled = world.launch(0, "spin", [0; 2]);
    world.until_logged("runs: spin");
    fake.tell("clear");

    world.device.poke(word, &[1; 8]).unwrap();
    assert_ne!(world.peek(word), 0);
    let more = world.allocate(8 << 20, 6 << 20);
    world.device.free(more).unwrap();
    world.allocate(8 << 20, 1 << 20);
    let third = world.device.reserve(WindowId(3), 1 << 20).unwrap();
    world.device.allocate(WindowId(3), AddressRange { start: third, bytes: 512 }).unwrap();
    for window in [2, 3] {
        world.device.release(WindowId(window)).unwrap();
    }
    let home = world.allocate(16 << 20, 2 << 20);
    let elsewhere =
        AddressRange { start: DeviceAddress(world.base.0 + (24 << 20)), bytes: 2 << 20 };
    world.device.alias(home, elsewhere).unwrap();
    world.device.protect(elsewhere.start, MemoryAccess::ReadWrite).unwrap();
    world.device.free(elsewhere.start).unwrap();
    // The ended mapping must go first.
    let again = world.device.allocate(WINDOW, elsewhere);
    assert_eq!(again, Err(DeviceError::Busy));
    assert_eq!(world.device.alias(home, elsewhere), Err(DeviceError::Busy));
    world.device.free(home).unwrap();
    let format = TexelFormat::new(ChannelType::F32, 1).unwrap();
    let shape = ArrayShape::new(ArrayKind::Plane, format, [64, 64, 1], 1).unwrap();
    let array = world.device.create_array(WINDOW, &shape).unwrap();
    let source = TexelSource::Array { array, first_level: 0, levels: 1 };
    let spec = TextureSpec { source, sampler: Some(Sampler::default()) };
    let texture = world.device.create_texture(WINDOW, &spec).unwrap();
    world.device.destroy_array(array).unwrap();
    world.device.destroy_texture(WINDOW, texture).unwrap();
    world.device.unload_module(ModuleId(2)).unwrap();
    world.device.create_stream(StreamId(50)).unwrap();
    let span = HostSpan::new(Arc::new(Zeros), 0, 1 << 20).unwrap();
    let to = DeviceAddress(world.base.0 + (8 << 20));
    let operations = [
        world.enqueue(50, Work::CopyToDevice { to, from: span.clone() }),
        world.enqueue(50, Work::Fill { to, value: 1, width: 4, count: 1000 }),
        world.enqueue(50, Work::CopyToHost { to: span, from: to }),
        world.launch(50, "kernel", [0; 2]),
    ];
    world.finish(&operations);
    world.device.destroy_stream(StreamId(50)).unwrap();
    assert!(world.device.cancel(stalled).is_err());
    let log = fake.log();
    let waits: Vec<_> =
        log.iter().filter(|line| line.starts_with("blocked") || line.starts_with("held")).collect();
    assert!(waits.is_empty(), "{waits:?}");
    assert!(!world.is_done(stalled));

    fake.tell("release spin");
    world.finish(&[stalled]);
    // What was put off comes when nothing runs.
    while world.poll() != Activity::Idle {}
    world.device.allocate(WINDOW, elsewhere).unwrap();
    // A window's addresses are in three parts, which are one for a moment when it is made; other
    // threads may be in between.
    let done = |world: &fake::World<'_>| {
        world.fake.calls("cuLibraryUnload") == 1 && world.fake.calls("cuMemAddressFree") > 2 * 3
    };
    let end = Instant::now() + Duration::from_secs(60);
    while !done(&world) {
        world.poll();
        assert!(Instant::now() < end, "{:#?}", fake.log());
    }
}

/// Loading may wait for all grids, and hold up all calls: it begins when there are none.
#[test]
fn loading_begins_when_no_grid_runs() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["await_it"])).unwrap();
    let word = world.allocate(0, 8);
    let running = world.launch(0, "await_it", [word.0, 1]);
    world.until_logged("runs: await_it");
    world.device.load_module(ModuleId(2), WINDOW, module_of(&["late"])).unwrap();
    world.until(|world| world.device.phase() == Phase::Draining);
    assert!(!world.is_done(running));
    assert!(world.device.loading_waits_for_grids());
    world.device.poke(word, &1_u64.to_le_bytes()).unwrap();
    world.finish(&[running]);
    world.until(|world| world.modules.len() == 1);
    assert_eq!(fake.logged("blocked"), Vec::<String>::new());
}

/// A launch that leaves may take longer for a task than others shall wait for one that stays.
#[test]
fn the_device_drains_for_longer_while_launches_leave() {
    let fake = Fake::new();
    let mut world = fake.world();
    assert!(world.device.launches_may_leave());
    world.load(1, &module_of(&["await_it"])).unwrap();
    let word = world.allocate(0, 8);
    let running = world.launch(0, "await_it", [word.0, 1]);
    world.until_logged("runs: await_it");
    world.device.load_module(ModuleId(2), WINDOW, module_of(&["late"])).unwrap();
    for leaves in [false, true] {
        world.until(|world| world.device.phase() == Phase::Draining);
        let start = Instant::now();
        while world.device.phase() == Phase::Draining && start.elapsed() < DRAINS {
            if leaves {
                world.device.launches_leave();
            }
            world.poll();
        }
        assert_eq!(world.device.phase() == Phase::Draining, leaves);
    }
    world.device.poke(word, &1_u64.to_le_bytes()).unwrap();
    world.finish(&[running]);
    world.until(|world| world.modules.len() == 1);
}

/// Somebody may always have something to load. Launches that left for it go on for as long as they
/// were away.
#[test]
fn launches_that_left_are_not_sent_away_at_once() {
    const AWAY: Duration = Duration::from_millis(300);
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["await_it"])).unwrap();
    let (word, other) = (world.allocate(0, 8), world.allocate(8, 8));
    let running = world.launch(0, "await_it", [word.0, 1]);
    world.until_logged("runs: await_it");
    world.device.load_module(ModuleId(2), WINDOW, module_of(&["late"])).unwrap();
    world.until(|world| world.device.phase() == Phase::Draining);
    let start = Instant::now();
    while start.elapsed() < AWAY {
        world.device.launches_leave();
        world.poll();
    }
    let gone = Instant::now();
    world.device.poke(word, &1_u64.to_le_bytes()).unwrap();
    world.finish(&[running]);
    world.until(|world| world.modules.len() == 1);
    let running = world.launch(0, "await_it", [other.0, 1]);
    world.device.load_module(ModuleId(3), WINDOW, module_of(&["later"])).unwrap();
    world.until(|world| world.device.phase() == Phase::Draining);
    assert!(gone.elapsed() >= AWAY, "{:?}", gone.elapsed());
    world.device.poke(other, &1_u64.to_le_bytes()).unwrap();
    world.finish(&[running]);
    world.until(|world| world.modules.len() == 2);
}

/// The owner sleeps while a kernel runs, and is woken by its end.
#[test]
fn waiting_needs_no_core() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.load(1, &module_of(&["spin"])).unwrap();
    let running = world.launch(0, "spin", [0; 2]);
    let mut waiting = 0;
    while waiting < 5 {
        match world.poll() {
            Activity::Waiting => {
                waiting += 1;
                let news = world.device.news().unwrap();
                let timeout = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let readable =
                    poll(&mut [PollFd::new(&news, PollFlags::IN)], Some(&timeout)).unwrap();
                assert_eq!(readable, 0, "silent while nothing happens");
            }
            Activity::Busy => {}
            Activity::Idle | Activity::Watching => panic!("a kernel runs"),
        }
    }
    assert_eq!(
        fake.calls("cuEventSynchronize"),
        2,
        "the clock's, and one that waits for the kernel"
    );
    fake.tell("release spin");
    let news = world.device.news().unwrap();
    let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&news, PollFlags::IN)], Some(&timeout)).unwrap(), 1);
    world.poll();
    assert!(world.is_done(running));
}
