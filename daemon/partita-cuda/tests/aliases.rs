//! Memory at several addresses, and the accesses that it permits.

mod fake;

use fake::{Fake, WINDOW, World, module_of};
use partita_device::{AddressRange, Aliasing, Device, DeviceError, Relocation, Work};
use partita_model::{DeviceAddress, MemoryAccess};

const PAGE: u64 = 2 << 20;

fn shared() -> Fake {
    let fake = Fake::new();
    fake.tell("set shared on");
    fake
}

fn at(world: &World<'_>, offset: u64, bytes: u64) -> AddressRange {
    AddressRange { start: DeviceAddress(world.base.0 + offset), bytes }
}

/// As the engine maps: no access at first.
fn map(world: &mut World<'_>, home: DeviceAddress, range: AddressRange) -> Result<(), DeviceError> {
    world.device.alias(home, range)?;
    world.device.protect(home, MemoryAccess::None)?;
    world.device.protect(range.start, MemoryAccess::None)
}

#[test]
fn the_same_bytes_are_everywhere_and_go_with_the_last_address() {
    let fake = shared();
    let mut world = fake.world();
    world.load(1, &module_of(&["store_it"])).unwrap();
    // Its pages are its neighbours', too.
    let (neighbour, home) = (world.allocate(0, 512), world.allocate(512, 2 * PAGE));
    let stored = [
        world.launch(0, "store_it", [home.0 + 8, 41]),
        world.launch(0, "store_it", [neighbour.0, 42]),
    ];
    world.finish(&stored);
    let (first, second) = (at(&world, 16 * PAGE, 2 * PAGE), at(&world, 20 * PAGE, PAGE));
    fake.tell("clear");
    map(&mut world, home, first).unwrap();
    map(&mut world, home, second).unwrap();
    assert_eq!(fake.calls("cuMemCreate"), 1, "no further memory for the second");
    for range in [first, second] {
        world.device.protect(range.start, MemoryAccess::ReadWrite).unwrap();
    }
    let word = |range: AddressRange, at: u64| DeviceAddress(range.start.0 + at);
    assert_eq!((world.peek(word(first, 8)), world.peek(word(second, 8))), (41, 41));
    let stored = world.launch(0, "store_it", [word(second, 16).0, 43]);
    world.finish(&[stored]);
    assert_eq!((world.peek(word(first, 16)), world.peek(neighbour)), (43, 42));
    // Neighbours in addresses are one piece to copies.
    let third = at(&world, 22 * PAGE - PAGE, PAGE);
    map(&mut world, home, third).unwrap();
    world.device.protect(third.start, MemoryAccess::ReadWrite).unwrap();
    let fill =
        world.enqueue(0, Work::Fill { to: second.start, value: 7, width: 4, count: 2 * PAGE / 4 });
    world.finish(&[fill]);
    assert_eq!(world.peek(first.start), 0x7_0000_0007);

    for range in [first, second, third] {
        world.device.free(range.start).unwrap();
    }
    // The name is still there, and what it stands for.
    map(&mut world, home, first).unwrap();
    world.device.protect(first.start, MemoryAccess::ReadWrite).unwrap();
    assert_eq!(world.peek(first.start), 0x7_0000_0007);
    world.device.free(first.start).unwrap();
    world.device.free(home).unwrap();
    assert!(world.device.free(home).is_err());
    // What comes there is other memory.
    world.device.allocate(WINDOW, first).unwrap();
    assert_eq!(world.peek(first.start), 0);
    assert_eq!(world.peek(neighbour), 42);
}

#[test]
fn access_is_what_was_given() {
    let fake = shared();
    fake.tell("set read-only 1");
    let mut world = fake.world();
    let home = world.allocate(0, PAGE);
    let range = at(&world, 8 * PAGE, PAGE);
    map(&mut world, home, range).unwrap();
    let mut word = [0; 8];
    assert!(world.device.peek(range.start, &mut word).is_err(), "no access before it is given");
    fake.tell("clear");
    for access in [MemoryAccess::ReadWrite, MemoryAccess::ReadWrite, MemoryAccess::Read] {
        world.device.protect(range.start, access).unwrap();
        world.device.peek(range.start, &mut word).unwrap();
    }
    assert_eq!(fake.calls("cuMemSetAccess"), 2, "what is so already is not set again");
    world.device.protect(range.start, MemoryAccess::None).unwrap();
    assert!(world.device.peek(range.start, &mut word).is_err());
    // A driver without read-only memory lets kernels write; the engine keeps copies from it.
    fake.tell("set read-only 0");
    world.device.protect(range.start, MemoryAccess::Read).unwrap();
    world.device.peek(range.start, &mut word).unwrap();
    let plain = world.allocate(12 * PAGE, PAGE);
    assert!(matches!(
        world.device.protect(plain, MemoryAccess::Read),
        Err(DeviceError::Unsupported(_))
    ));
    let inside = DeviceAddress(plain.0 + 512);
    assert!(matches!(
        world.device.protect(inside, MemoryAccess::Read),
        Err(DeviceError::BadRange { .. })
    ));
}

#[test]
fn what_cannot_be_mapped_is_refused_and_changes_nothing() {
    let fake = shared();
    let mut world = fake.world();
    let home = world.allocate(0, 2 * PAGE);
    let taken = world.allocate(8 * PAGE, 512);
    let nowhere = DeviceAddress(world.base.0 + 30 * PAGE);
    let refused = |world: &mut World<'_>, home, range: AddressRange| {
        world.device.alias(home, range).unwrap_err()
    };
    let range = at(&world, 8 * PAGE, PAGE);
    assert!(matches!(refused(&mut world, home, range), DeviceError::BadRange { .. }));
    let range = at(&world, 4 * PAGE, 3 * PAGE);
    assert!(matches!(refused(&mut world, home, range), DeviceError::BadRange { .. }));
    let range = at(&world, 4 * PAGE, PAGE);
    assert!(matches!(refused(&mut world, nowhere, range), DeviceError::BadRange { .. }));
    let range = at(&world, 4 * PAGE + 512, PAGE);
    assert!(matches!(refused(&mut world, home, range), DeviceError::Unsupported(_)));
    // The page has room, and another's memory in it.
    let range = at(&world, 7 * PAGE, PAGE);
    world.device.alias(home, range).unwrap();
    let range = at(&world, 8 * PAGE, PAGE);
    assert!(world.device.alias(home, range).is_err());
    assert!(matches!(world.device.relocate(home, nowhere), Err(DeviceError::Unsupported(_))));
    assert_eq!(world.peek(taken), 0);
    // A driver that maps no parts says so at the second address.
    fake.tell("set parts 0");
    let range = at(&world, 20 * PAGE, PAGE);
    assert!(matches!(refused(&mut world, home, range), DeviceError::Unsupported(_)));
    let range = at(&world, 20 * PAGE, 2 * PAGE);
    world.device.alias(home, range).unwrap();
}

#[test]
fn memory_that_cannot_be_filled_stays_where_it_was() {
    let fake = shared();
    let mut world = fake.world();
    world.load(1, &module_of(&["store_it"])).unwrap();
    let home = world.allocate(0, PAGE);
    let stored = world.launch(0, "store_it", [home.0, 5]);
    world.finish(&[stored]);
    fake.tell("fail cuMemcpyDtoDAsync_v2 999");
    let range = at(&world, 8 * PAGE, PAGE);
    assert!(world.device.alias(home, range).is_err());
    assert_eq!(world.peek(home), 5);
    world.device.alias(home, range).unwrap();
    world.device.protect(range.start, MemoryAccess::ReadWrite).unwrap();
    assert_eq!(world.peek(range.start), 5);
}
