//! Host memory in the window: mapped and managed memory.

#![expect(unsafe_code, reason = "maps memory as a session does")]
#![expect(clippy::unwrap_used, reason = "only tests use it")]

mod fake;

use fake::{Fake, WINDOW, World, module_of};
use partita_device::{
    Activity, AddressRange, Device, DeviceError, HostMapping, HostMemory, HostSpan, Work,
};
use partita_model::{AwaitedWord, DeviceAddress, WindowId};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 8 * MIB;
const VARIABLES: u64 = 2 * MIB;

/// A mapping of a file.
struct Mapped {
    start: usize,
    bytes: usize,
}

impl Mapped {
    fn new(file: &OwnedFd, offset: u64, bytes: u64, address: Option<u64>) -> io::Result<Mapped> {
        let bytes = usize::try_from(bytes).unwrap();
        let wanted =
            std::ptr::without_provenance_mut(usize::try_from(address.unwrap_or(0)).unwrap());
        let fixed = if address.is_some() { MapFlags::FIXED_NOREPLACE } else { MapFlags::empty() };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: nothing that is there is replaced.
        let start = unsafe { mmap(wanted, bytes, access, MapFlags::SHARED | fixed, file, offset) }?;
        Ok(Mapped { start: start.expose_provenance(), bytes })
    }

    fn at(&self, offset: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start + usize::try_from(offset).unwrap())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made.
        unsafe { munmap(self.at(0).cast(), self.bytes) }.unwrap();
    }
}

/// A session's memory.
struct Shared {
    file: OwnedFd,
    mapped: Mapped,
    bytes: u64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let file = memfd_create("shared", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES).unwrap();
        let mapped = Mapped::new(&file, 0, BYTES, None).unwrap();
        Arc::new(Shared { file, mapped, bytes: BYTES })
    }

    fn word(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl HostMemory for Shared {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        // SAFETY: the range was checked against the size.
        unsafe { self.mapped.at(offset).copy_to(into.as_mut_ptr(), into.len()) };
    }

    fn write(&self, offset: u64, from: &[u8]) {
        // SAFETY: as above.
        unsafe { self.mapped.at(offset).copy_from(from.as_ptr(), from.len()) };
    }

    fn kept(&self) -> Option<(usize, u64)> {
        Some((self.mapped.start, MIB))
    }

    fn map_again(
        &self,
        offset: u64,
        bytes: u64,
        address: u64,
    ) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(Mapped::new(&self.file, offset, bytes, Some(address))?))
    }
}

/// Host memory in the middle of the window.
fn map(world: &mut World<'_>) -> (Arc<Shared>, DeviceAddress) {
    let shared = Shared::new();
    let start = DeviceAddress(world.base.0 + 32 * MIB);
    let span = HostSpan::new(shared.clone(), 0, BYTES).unwrap();
    world.device.map_host(WINDOW, start, span, VARIABLES).unwrap();
    (shared, start)
}

#[test]
fn kernels_copies_and_fills_reach_it() {
    let fake = Fake::new();
    let mut world = fake.world();
    let (shared, start) = map(&mut world);
    world.load(1, &module_of(&["store_it"])).unwrap();
    // On both sides of it there is room for other memory, and in it none.
    let (before, after) = (world.allocate(32 * MIB - 4096, 4096), world.allocate(40 * MIB, 4096));
    for at in [start.0, start.0 + BYTES - 1, start.0 - 1] {
        let range = AddressRange { start: DeviceAddress(at), bytes: 2 };
        assert!(
            matches!(world.device.allocate(WINDOW, range), Err(DeviceError::BadRange { .. })),
            "{at:#x}"
        );
    }
    let stored = world.launch(0, "store_it", [start.0 + 64, 77]);
    world.finish(&[stored]);
    assert_eq!((shared.word(64), world.peek(DeviceAddress(start.0 + 64))), (77, 77));

    let fill = world.enqueue(0, Work::Fill { to: start, value: 0x0201, width: 2, count: 500_000 });
    let down = world.enqueue(0, Work::CopyOnDevice { to: before, from: start, bytes: 4096 });
    let across = world.enqueue(0, Work::CopyOnDevice { to: after, from: before, bytes: 4096 });
    let up = world.enqueue(
        0,
        Work::CopyOnDevice { to: DeviceAddress(start.0 + MIB), from: after, bytes: 4096 },
    );
    world.finish(&[fill, down, across, up]);
    assert_eq!(
        [0, 999_992, 1_000_000, MIB].map(|at| shared.word(at)),
        [0x0201_0201_0201_0201, 0x0201_0201_0201_0201, 0, 0x0201_0201_0201_0201]
    );
    // Both ends may overlap.
    let bytes: Vec<u8> = (0..600_000_u32).flat_map(|at| at.to_le_bytes()).collect();
    shared.write(0, &bytes);
    let (low, high) = (start, DeviceAddress(start.0 + 4096));
    let length = bytes.len() as u64;
    let up = world.enqueue(0, Work::CopyOnDevice { to: high, from: low, bytes: length });
    world.finish(&[up]);
    let mut found = vec![0; bytes.len()];
    shared.read(4096, &mut found);
    assert_eq!(found, bytes);
    let down = world.enqueue(0, Work::CopyOnDevice { to: low, from: high, bytes: length });
    world.finish(&[down]);
    shared.read(0, &mut found);
    assert_eq!(found, bytes);

    let other = Shared::new();
    other.write(0, &[9; 100]);
    let span = |at| HostSpan::new(other.clone(), at, 100).unwrap();
    let copies = [
        world.enqueue(1, Work::CopyToDevice { to: start, from: span(0) }),
        world.enqueue(1, Work::CopyToHost { to: span(4096), from: start }),
    ];
    world.finish(&copies);
    assert_eq!((other.word(4096), shared.word(0)), (0x0909_0909_0909_0909, 0x0909_0909_0909_0909));
    // What lies half in it is nowhere.
    let half = Work::Fill { to: DeviceAddress(start.0 - 4), value: 0, width: 4, count: 2 };
    assert!(
        world
            .device
            .enqueue(partita_model::StreamId(0), partita_model::OperationId(999), half)
            .is_err()
    );
    world.device.poke(DeviceAddress(start.0 + 8), &5_u64.to_le_bytes()).unwrap();
    assert_eq!(shared.word(8), 5);
}

#[test]
fn streams_wait_for_its_words() {
    let fake = Fake::new();
    let mut world = fake.world();
    let (shared, start) = map(&mut world);
    let waits =
        world.enqueue(0, Work::WaitValue { address: start, word: AwaitedWord::at_least(3) });
    let later = world.enqueue(1, Work::Wait { on: waits });
    for _ in 0..100 {
        assert_eq!(world.poll(), Activity::Watching);
    }
    assert!(!world.is_done(waits) && !world.is_done(later));
    shared.write(0, &3_u64.to_le_bytes());
    world.finish(&[waits, later]);
    assert_eq!(fake.calls("cuStreamWaitValue64_v2"), 0);
}

#[test]
fn managed_variables_lie_in_it() {
    let fake = Fake::new();
    let mut world = fake.world();
    let text = module_of(&["kernel"]).replace(
        ".address_size 64\n",
        ".address_size 64\n.visible .global .attribute(.managed) .align 8 .u64 shared_word = 11;\n\
         .visible .global .u64 own = 12;\n",
    );
    let reason = world.load(1, &text).unwrap_err();
    assert!(reason.contains("managed"), "{reason}");
    let (shared, start) = map(&mut world);
    let facts = world.load(2, &text).unwrap();
    let address = |name: &str| facts.variables.iter().find(|v| v.name == name).unwrap().address;
    assert_eq!(address("shared_word").0, start.0 + BYTES - VARIABLES);
    assert_eq!((shared.word(BYTES - VARIABLES), world.peek(address("own"))), (11, 12));
    let header = fake.memory(fake.variable("pw_header") + 8, 8);
    assert_eq!(header, address("shared_word").0.to_le_bytes());
    let second = world.load(3, &text).unwrap();
    assert!(second.variables.iter().all(|variable| variable.address != address("shared_word")));
    world.device.unload_module(partita_model::ModuleId(2)).unwrap();
    // Its place is free again.
    let third = world.load(4, &text).unwrap();
    assert!(third.variables.iter().any(|variable| variable.address == address("shared_word")));
}

#[test]
fn it_needs_a_gpu_that_reads_the_hosts_page_tables() {
    let fake = Fake::new();
    fake.tell("set pageable 0");
    let mut world = fake.world();
    assert!(world.device.host_mapping().is_none());
}

#[test]
fn windows_come_and_go_with_it() {
    let fake = Fake::new();
    let mut world = fake.world();
    let (shared, start) = map(&mut world);
    let span = HostSpan::new(shared.clone(), 0, BYTES).unwrap();
    assert!(world.device.map_host(WINDOW, start, span.clone(), 0).is_err());
    world.device.release(WINDOW).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while Arc::strong_count(&shared) > 2 {
        world.poll();
        assert!(std::time::Instant::now() < end, "host memory stays mapped");
    }
    let base = world.device.reserve(WindowId(2), 64 * MIB).unwrap();
    let range = AddressRange { start: base, bytes: 4096 };
    world.device.allocate(WindowId(2), range).unwrap();
    // Something is in the window: its addresses are not given back.
    let late = world.device.map_host(WindowId(2), DeviceAddress(base.0 + 32 * MIB), span, 0);
    assert!(matches!(late, Err(DeviceError::BadRange { .. })));
}

/// Until the stand-in has been called so often.
fn until_called(world: &mut World<'_>, function: &str, times: usize) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while world.fake.calls(function) < times {
        world.poll();
        assert!(std::time::Instant::now() < end, "{function} is not called");
    }
}

/// Memory that stays is locked when that may wait, and copies go straight from then on.
#[test]
fn copies_go_straight_once_memory_is_locked() {
    let fake = Fake::new();
    fake.tell("set strict on");
    let mut world = fake.world();
    world.load(1, &module_of(&["spin"])).unwrap();
    let shared = Shared::new();
    let span = |at, bytes| HostSpan::new(shared.clone(), at, bytes).unwrap();
    let bytes: Vec<u8> = (0..50_000_u32).flat_map(|at| at.to_le_bytes()).collect();
    let length = bytes.len() as u64;
    shared.write(4096, &bytes);
    let there = world.allocate(0, length);
    let stalled = world.launch(0, "spin", [0; 2]);
    world.until_logged("runs: spin");
    let staged = world.enqueue(1, Work::CopyToDevice { to: there, from: span(4096, length) });
    world.finish(&[staged]);
    world.poll();
    assert_eq!((fake.calls("cuMemHostRegister_v2"), fake.logged("blocked").len()), (0, 0));
    fake.tell("release spin");
    world.finish(&[stalled]);
    until_called(&mut world, "cuMemHostRegister_v2", 1);
    fake.tell("clear");
    // What is told of it arrives a moment later.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        let before = fake.calls("cuLaunchHostFunc");
        let straight =
            world.enqueue(1, Work::CopyToHost { to: span(400_000, length), from: there });
        world.finish(&[straight]);
        if fake.calls("cuLaunchHostFunc") == before {
            break;
        }
        assert!(std::time::Instant::now() < end, "copies take two steps");
    }
    let mut found = vec![0; bytes.len()];
    shared.read(400_000, &mut found);
    assert!(found == bytes);
    // Beyond what stays, copies take two steps.
    let before = fake.calls("cuLaunchHostFunc");
    let staged = world.enqueue(1, Work::CopyToHost { to: span(MIB - 8, 16), from: there });
    world.finish(&[staged]);
    assert_eq!(
        (fake.calls("cuLaunchHostFunc"), fake.calls("cuMemHostRegister_v2")),
        (before + 1, 0)
    );
    assert_eq!(shared.word(MIB), 0x3_0000_0002);
    drop(shared);
    until_called(&mut world, "cuMemHostUnregister", 1);
}

#[test]
fn memory_that_is_not_locked_is_copied_in_two_steps() {
    let fake = Fake::new();
    fake.tell("fail cuMemHostRegister_v2 2");
    let mut world = fake.world();
    let shared = Shared::new();
    let there = world.allocate(0, 8);
    shared.write(0, &9_u64.to_le_bytes());
    for round in 1..=3 {
        let from = HostSpan::new(shared.clone(), 0, 8).unwrap();
        let copied = world.enqueue(0, Work::CopyToDevice { to: there, from });
        world.finish(&[copied]);
        assert_eq!((fake.calls("cuLaunchHostFunc"), world.peek(there)), (round, 9));
        until_called(&mut world, "cuMemHostRegister_v2", 1);
    }
    assert_eq!(fake.calls("cuMemHostRegister_v2"), 1);
}
