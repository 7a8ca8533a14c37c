//! Memory that two windows map.

mod fake;

use fake::{Fake, WINDOW, World, module_of};
use partita_cuda_device::{Guarding, Options};
use partita_device::{AddressRange, Aliasing, Device, DeviceError, Lending, Relocation};
use partita_model::{DeviceAddress, MemoryAccess, ModuleId, WindowId};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 << 20;
const OTHER: WindowId = WindowId(2);

fn shared() -> Fake {
    let fake = Fake::new();
    fake.tell("set shared on");
    fake
}

/// The second window's first address.
fn other(world: &mut World<'_>) -> DeviceAddress {
    world.device.reserve(OTHER, 64 << 20).expect("there is room")
}

fn plus(start: DeviceAddress, offset: u64) -> DeviceAddress {
    DeviceAddress(start.0 + offset)
}

/// Lends an allocation to the second window, `offset` bytes behind its beginning.
fn lend(
    world: &mut World<'_>,
    home: DeviceAddress,
    base: DeviceAddress,
    offset: u64,
) -> DeviceAddress {
    let shape = world.device.lent_shape(home).expect("it can be lent");
    assert!(shape.alignment == PAGE && shape.bytes.is_multiple_of(PAGE));
    let to = plus(base, offset + shape.before);
    world.device.lend(home, to).expect("it is free");
    to
}

/// Allocates as the engine does: again after each phase.
fn allocate(world: &mut World<'_>, window: WindowId, range: AddressRange) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = world.device.allocate(window, range) {
        assert!(error == DeviceError::Busy && Instant::now() < end, "{error}");
        world.poll();
    }
}

fn until_unmapped(world: &mut World<'_>) {
    let end = Instant::now() + Duration::from_secs(60);
    while world.fake.calls("cuMemUnmap") == 0 {
        world.poll();
        assert!(Instant::now() < end, "it stays mapped");
    }
}

fn store(world: &mut World<'_>, at: DeviceAddress, value: u64) {
    let stored = world.launch(0, "store_it", [at.0, value]);
    world.finish(&[stored]);
}

#[test]
fn both_windows_reach_the_same_bytes_until_the_last_address_ends() {
    let fake = shared();
    let mut world = fake.world();
    let base = other(&mut world);
    world.load(1, &module_of(&["store_it"])).unwrap();
    // A page of two allocations, and pieces that were made one after the other.
    let before = world.allocate(512, 512);
    let home = world.allocate(1024, 3 * PAGE);
    store(&mut world, plus(home, 8), 41);
    store(&mut world, plus(home, 3 * PAGE - 8), 42);
    let shape = world.device.lent_shape(home).unwrap();
    assert_eq!((shape.before, shape.bytes), (1024, 4 * PAGE));
    fake.tell("clear");
    let to = lend(&mut world, home, base, 8 * PAGE);
    let again = lend(&mut world, home, base, 16 * PAGE);
    assert_eq!(fake.calls("cuMemCreate"), 0, "no further memory");
    assert_eq!(fake.calls("cuMemRetainAllocationHandle"), fake.calls("cuMemRelease"));
    for at in [to, again] {
        let ends = [8, 3 * PAGE - 8].map(|offset| world.peek(plus(at, offset)));
        assert_eq!(ends, [41, 42]);
    }
    store(&mut world, plus(to, 16), 43);
    assert_eq!((world.peek(plus(home, 16)), world.peek(plus(again, 16))), (43, 43));
    world.device.free(home).unwrap();
    world.device.free(again).unwrap();
    assert_eq!(world.peek(plus(to, 16)), 43, "it has outlived its first address");
    // The window of the first address goes, and another comes to lie in the second.
    world.device.release(WINDOW).unwrap();
    assert_eq!(world.peek(plus(to, 16)), 43);
    world.device.free(to).unwrap();
    assert!(world.device.free(to).is_err() && world.device.lent_shape(before).is_err());
}

#[test]
fn lent_memory_is_never_given_to_another_allocation() {
    let fake = shared();
    let mut world = fake.world();
    let base = other(&mut world);
    world.load(1, &module_of(&["store_it"])).unwrap();
    let home = world.allocate(0, 2 * PAGE);
    store(&mut world, home, 7);
    let to = lend(&mut world, home, base, 0);
    world.device.free(home).unwrap();
    // The first window's next allocation there has memory of its own.
    let next = world.base;
    allocate(&mut world, WINDOW, AddressRange { start: next, bytes: PAGE });
    store(&mut world, next, 8);
    assert_eq!((world.peek(to), world.peek(next)), (7, 8));
    // So has the second window's, while the first keeps the memory.
    let home = world.allocate(4 * PAGE, PAGE);
    let lent = lend(&mut world, home, base, 4 * PAGE);
    world.device.free(lent).unwrap();
    allocate(&mut world, OTHER, AddressRange { start: lent, bytes: 512 });
    store(&mut world, lent, 9);
    assert_eq!((world.peek(home), world.peek(lent)), (0, 9));
}

#[test]
fn what_has_ended_is_unmapped_when_the_device_is_idle() {
    let fake = shared();
    let mut world = fake.world();
    let base = other(&mut world);
    world.load(1, &module_of(&["await_it", "store_it"])).unwrap();
    let (home, word) = (world.allocate(0, PAGE), world.allocate(8 * PAGE, 8));
    let to = lend(&mut world, home, base, 0);
    let waits = world.launch(0, "await_it", [word.0, 5]);
    world.until_logged("runs: await_it");
    fake.tell("clear");
    world.device.free(to).unwrap();
    let range = AddressRange { start: to, bytes: 512 };
    assert_eq!(world.device.allocate(OTHER, range), Err(DeviceError::Busy), "a grid runs");
    assert_eq!(fake.calls("cuMemUnmap"), 0);
    world.device.poke(word, &5_u64.to_le_bytes()).unwrap();
    world.finish(&[waits]);
    until_unmapped(&mut world);
    allocate(&mut world, OTHER, range);
    assert_eq!(world.peek(home), 0);
}

/// A kernel may be on its way to memory that is closed. Where every address has memory, this one
/// has some, too.
#[test]
fn addresses_of_what_has_ended_get_other_memory() {
    let fake = shared();
    let options = Options { guards: Guarding::Strict, ..fake.options() };
    let mut world = fake.world_with(&options);
    let base = other(&mut world);
    let module = ModuleId(1);
    world.device.load_module(module, OTHER, module_of(&["store_it"])).unwrap();
    world.until(|world| world.modules.iter().any(|(id, _)| *id == module));
    let home = world.allocate(0, PAGE);
    let to = lend(&mut world, home, base, 8 * PAGE);
    store(&mut world, to, 7);
    assert_eq!(fake.memory(to.0, 8), 7_u64.to_le_bytes());
    fake.tell("clear");
    world.device.free(to).unwrap();
    until_unmapped(&mut world);
    assert_ne!(fake.memory(to.0, 8), 7_u64.to_le_bytes(), "it is mapped, and other memory");
}

#[test]
fn memory_of_its_own_is_mapped_by_both_where_they_like() {
    let fake = shared();
    let mut world = fake.world();
    let base = other(&mut world);
    world.load(1, &module_of(&["store_it"])).unwrap();
    let home = world.allocate(512, 2 * PAGE);
    let map = |world: &mut World<'_>, home, start: DeviceAddress, bytes| {
        world.device.alias(home, AddressRange { start, bytes }).unwrap();
        world.device.protect(home, MemoryAccess::None).unwrap();
        world.device.protect(start, MemoryAccess::ReadWrite).unwrap();
    };
    let first = plus(world.base, 8 * PAGE);
    map(&mut world, home, first, 2 * PAGE);
    store(&mut world, plus(first, 8), 3);
    let shape = world.device.lent_shape(home).unwrap();
    assert_eq!((shape.before, shape.bytes), (0, 2 * PAGE), "by itself");
    let name = lend(&mut world, home, base, 0);
    let (second, third) = (plus(base, 8 * PAGE), plus(base, 12 * PAGE));
    map(&mut world, name, second, 2 * PAGE);
    map(&mut world, name, third, PAGE);
    assert_eq!((world.peek(plus(second, 8)), world.peek(plus(third, 8))), (3, 3));
    world.device.protect(third, MemoryAccess::None).unwrap();
    world.device.free(first).unwrap();
    world.device.free(home).unwrap();
    store(&mut world, plus(second, 16), 4);
    assert_eq!(world.peek(plus(second, 16)), 4, "the first window has let it go");
    for address in [second, third, name] {
        world.device.free(address).unwrap();
    }
    // Another allocation at the name's address is other memory.
    allocate(&mut world, OTHER, AddressRange { start: name, bytes: 512 });
    assert_eq!(world.peek(plus(name, 8)), 0);
}

#[test]
fn what_cannot_be_lent_is_refused_and_changes_nothing() {
    let fake = shared();
    let mut world = fake.world();
    let base = other(&mut world);
    let home = world.allocate(512, PAGE);
    let bad = |result| assert!(matches!(result, Err(DeviceError::BadRange { .. })), "{result:?}");
    bad(world.device.lend(plus(home, 512), plus(base, 512)));
    bad(world.device.lend(home, base));
    bad(world.device.lend(home, plus(base, 512 + PAGE / 2)));
    let own = plus(world.base, 8 * PAGE + 512);
    bad(world.device.lend(home, own));
    bad(world.device.lend(home, plus(base, (64 << 20) - PAGE + 512)));
    bad(world.device.lend(home, DeviceAddress(u64::MAX - 511)));
    allocate(&mut world, OTHER, AddressRange { start: plus(base, PAGE), bytes: 8 });
    bad(world.device.lend(home, plus(base, 512)));
    // What the driver refuses leaves nothing behind.
    fake.tell("fail cuMemSetAccess 1");
    let to = plus(base, 4 * PAGE + 512);
    assert!(matches!(world.device.lend(home, to), Err(DeviceError::Unsupported(_))));
    world.device.lend(home, to).unwrap();
    bad(world.device.lend(home, to));
    // Copies would part the processes.
    let elsewhere = plus(world.base, 12 * PAGE);
    let range = AddressRange { start: elsewhere, bytes: PAGE };
    assert!(matches!(world.device.alias(home, range), Err(DeviceError::Unsupported(_))));
    let moved = world.device.relocate(home, elsewhere);
    assert!(matches!(moved, Err(DeviceError::Unsupported(_))));
    assert_eq!(world.peek(to), 0);
}
