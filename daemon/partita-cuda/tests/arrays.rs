//! Arrays, texture and surface objects.

#![expect(clippy::unwrap_used, reason = "only tests use it")]

mod fake;

use fake::{Fake, WINDOW, World, buffer};
use partita_device::{Activity, Device, DeviceError, Textures, Work};
use partita_model::texture::{
    ArrayKind, ArrayShape, ChannelType, Sampler, TexelFormat, TexelSource, TextureSpec,
};
use partita_model::{DeviceAddress, OperationId, StreamId, WindowId};
use std::time::{Duration, Instant};

fn shape(kind: ArrayKind, extent: [u32; 3], levels: u32) -> ArrayShape {
    ArrayShape::new(kind, TexelFormat::new(ChannelType::F32, 2).unwrap(), extent, levels).unwrap()
}

/// Bytes in which every word is another.
fn pattern(bytes: u64) -> Vec<u8> {
    (0..u32::try_from(bytes / 4).unwrap())
        .flat_map(|word| (word.wrapping_mul(0x9e37_79b9)).to_le_bytes())
        .collect()
}

/// What bytes of device memory or an array are.
fn read(world: &mut World<'_>, from: DeviceAddress, bytes: u64) -> Vec<u8> {
    let (into, span) = buffer(vec![0; usize::try_from(bytes).unwrap()]);
    let copied = world.enqueue(1, Work::CopyToHost { to: span, from });
    world.finish(&[copied]);
    into.0.lock().unwrap().clone()
}

fn write(world: &mut World<'_>, to: DeviceAddress, bytes: &[u8]) {
    let (_, from) = buffer(bytes.to_vec());
    let copied = world.enqueue(1, Work::CopyToDevice { to, from });
    world.finish(&[copied]);
}

#[test]
fn copies_take_them_in_canonical_order() {
    let fake = Fake::new();
    let mut world = fake.world();
    for shape in [
        shape(ArrayKind::Plane, [13, 7, 1], 1),
        shape(ArrayKind::Volume, [13, 7, 5], 3),
        shape(ArrayKind::PlaneLayers, [6, 4, 3], 3),
        // More than goes through staging memory at a time.
        shape(ArrayKind::Plane, [1500, 900, 1], 2),
    ] {
        let array = world.device.create_array(WINDOW, &shape).unwrap();
        let bytes = shape.bytes();
        assert_eq!(
            read(&mut world, array, bytes),
            vec![0; usize::try_from(bytes).unwrap()],
            "{shape:?}"
        );
        let mut expected = pattern(bytes);
        write(&mut world, array, &expected);
        assert!(read(&mut world, array, bytes) == expected, "{shape:?}");
        // A part, from in the middle of a row to in the middle of another.
        let (first, last) = (16, (bytes - bytes / 3) / 8 * 8);
        let part = vec![7; usize::try_from(last - first).unwrap()];
        write(&mut world, DeviceAddress(array.0 + first), &part);
        expected[usize::try_from(first).unwrap()..usize::try_from(last).unwrap()]
            .copy_from_slice(&part);
        assert!(read(&mut world, array, bytes) == expected, "{shape:?}");
        // Through memory, and into an array with other rows.
        let linear = world.allocate(0, bytes);
        let other = ArrayShape {
            extent: [shape.extent[0] + 3, shape.extent[1] + 2, shape.extent[2]],
            ..shape
        };
        let twin = world.device.create_array(WINDOW, &shape).unwrap();
        let odd = world.device.create_array(WINDOW, &other).unwrap();
        let copies = [
            world.enqueue(0, Work::CopyOnDevice { to: linear, from: array, bytes }),
            world.enqueue(0, Work::CopyOnDevice { to: twin, from: linear, bytes }),
            world.enqueue(0, Work::CopyOnDevice { to: odd, from: twin, bytes }),
        ];
        world.finish(&copies);
        for from in [linear, twin, odd] {
            assert!(read(&mut world, from, bytes) == expected, "{shape:?}");
        }
        for array in [array, twin, odd] {
            world.device.destroy_array(array).unwrap();
        }
        world.device.free(linear).unwrap();
    }
    // Nothing of it was allocated by the driver, and nothing was waited for.
    assert_eq!(fake.logged("an array takes memory"), Vec::<String>::new());
    while world.poll() != Activity::Idle {}
    let end = Instant::now() + Duration::from_secs(60);
    while fake.calls("cuArrayDestroy") + fake.calls("cuMipmappedArrayDestroy") < 12 {
        world.poll();
        assert!(Instant::now() < end, "{:#?}", fake.logged("cuArrayDestroy"));
    }
    assert_eq!(fake.logged("an array goes that"), Vec::<String>::new());
}

#[test]
fn objects_are_made_of_what_they_name() {
    let fake = Fake::new();
    let mut world = fake.world();
    world.device.reserve(WindowId(2), 1 << 20).unwrap();
    let plane = world.device.create_array(WINDOW, &shape(ArrayKind::Plane, [8, 8, 1], 4)).unwrap();
    let linear = world.allocate(0, 8192);
    let format = TexelFormat::new(ChannelType::U8, 4).unwrap();
    let sources = [
        TexelSource::Array { array: plane, first_level: 0, levels: 4 },
        TexelSource::Array { array: plane, first_level: 2, levels: 1 },
        TexelSource::Linear { address: linear, format, width: 1024 },
        TexelSource::Pitched { address: linear, format, extent: [10, 8], pitch: 64 },
    ];
    let sampler = Some(Sampler::default());
    let objects = sources.map(|source| {
        world.device.create_texture(WINDOW, &TextureSpec { source, sampler }).unwrap()
    });
    let surface = TextureSpec { source: sources[1], sampler: None };
    let surface = world.device.create_texture(WINDOW, &surface).unwrap();
    assert!(objects.iter().all(|object| *object != 0 && *object != surface));
    assert_eq!((fake.calls("cuTexObjectCreate"), fake.calls("cuSurfObjectCreate")), (4, 1));
    // Others have no part in them.
    let foreign = TextureSpec { source: sources[0], sampler };
    assert!(matches!(
        world.device.create_texture(WindowId(2), &foreign),
        Err(DeviceError::BadRange { .. })
    ));
    assert!(matches!(
        world.device.destroy_texture(WindowId(2), surface),
        Err(DeviceError::BadId(_))
    ));
    let beyond = TexelSource::Array { array: plane, first_level: 2, levels: 3 };
    let beyond = TextureSpec { source: beyond, sampler };
    assert!(matches!(
        world.device.create_texture(WINDOW, &beyond),
        Err(DeviceError::BadRange { .. })
    ));
    let crooked = TexelSource::Linear { address: DeviceAddress(linear.0 + 4), format, width: 4 };
    let crooked = TextureSpec { source: crooked, sampler };
    assert!(matches!(
        world.device.create_texture(WINDOW, &crooked),
        Err(DeviceError::Unsupported(_))
    ));
    // An array stays as long as an object of it does.
    world.device.destroy_array(plane).unwrap();
    assert!(world.device.destroy_array(plane).is_err());
    world.device.destroy_texture(WINDOW, objects[0]).unwrap();
    world.device.release(WINDOW).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while fake.calls("cuMipmappedArrayDestroy") == 0 {
        world.poll();
        assert!(Instant::now() < end, "the array stays");
    }
    assert_eq!((fake.calls("cuTexObjectDestroy"), fake.calls("cuSurfObjectDestroy")), (4, 1));
}

/// Creates an array that the driver gives memory, after a phase.
fn create_in_phase(
    world: &mut World<'_>,
    shape: &ArrayShape,
) -> Result<DeviceAddress, DeviceError> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match world.device.create_array(WINDOW, shape) {
            Err(DeviceError::Busy) => assert!(Instant::now() < end, "{shape:?} is never made"),
            result => return result,
        }
        world.poll();
    }
}

#[test]
fn the_driver_gives_lines_and_cubes_memory() {
    let fake = Fake::new();
    let mut world = fake.world();
    let shapes = [
        shape(ArrayKind::Line, [37, 1, 1], 1),
        shape(ArrayKind::Line, [37, 1, 1], 4),
        shape(ArrayKind::LineLayers, [13, 1, 5], 2),
        shape(ArrayKind::Cube, [8, 8, 6], 3),
        shape(ArrayKind::CubeLayers, [4, 4, 12], 1),
    ];
    for (number, shape) in shapes.into_iter().enumerate() {
        assert_eq!(world.device.create_array(WINDOW, &shape), Err(DeviceError::Busy));
        let array = create_in_phase(&mut world, &shape).unwrap();
        assert_eq!(fake.logged("an array takes memory").len(), number + 1);
        let bytes = shape.bytes();
        let zeros = vec![0; usize::try_from(bytes).unwrap()];
        assert_eq!(read(&mut world, array, bytes), zeros, "{shape:?}");
        let expected = pattern(bytes);
        write(&mut world, array, &expected);
        assert!(read(&mut world, array, bytes) == expected, "{shape:?}");
        let source = TexelSource::Array { array, first_level: 0, levels: shape.levels };
        let texture = TextureSpec { source, sampler: Some(Sampler::default()) };
        world.device.create_texture(WINDOW, &texture).unwrap();
    }
    // The driver says no.
    fake.tell("fail cuArray3DCreate_v2 2");
    let refused = create_in_phase(&mut world, &shapes[0]);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    // Nobody fetches what is made after the window's end.
    assert_eq!(world.device.create_array(WINDOW, &shapes[3]), Err(DeviceError::Busy));
    world.device.release(WINDOW).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while fake.calls("cuArrayDestroy") + fake.calls("cuMipmappedArrayDestroy") < 6 {
        world.poll();
        assert!(Instant::now() < end, "{:#?}", fake.logged("cuArrayDestroy"));
    }
    assert_eq!(fake.logged("an array goes that"), Vec::<String>::new());
}

#[test]
fn what_the_driver_does_not_make_is_refused_by_name() {
    let fake = Fake::new();
    let mut world = fake.world();
    let create = |world: &mut World<'_>, kind, extent| {
        world.device.create_array(WINDOW, &shape(kind, extent, 1))
    };
    let huge = create(&mut world, ArrayKind::Volume, [1024, 1024, 1024]);
    assert!(matches!(huge, Err(DeviceError::OutOfMemory { .. })), "{huge:?}");
    let unknown = world.device.create_array(WindowId(9), &shape(ArrayKind::Plane, [8, 8, 1], 1));
    assert!(matches!(unknown, Err(DeviceError::BadId(_))));
    let array = create(&mut world, ArrayKind::Plane, [8, 8, 1]).unwrap();
    for (offset, bytes) in [(4, 8), (0, 4), (0, 520), (512, 8)] {
        let (_, from) = buffer(vec![0; bytes]);
        let copy = Work::CopyToDevice { to: DeviceAddress(array.0 + offset), from };
        let refused = world.device.enqueue(StreamId(0), OperationId(99), copy);
        assert!(
            matches!(refused, Err(DeviceError::BadRange { .. })),
            "{offset} {bytes}: {refused:?}"
        );
    }
    // Gathering is not for every size: the array is made without.
    fake.tell("fail cuArray3DCreate_v2 1 2");
    create(&mut world, ArrayKind::Plane, [16, 16, 1]).unwrap();
    fake.tell("fail cuMemMapArrayAsync 1");
    assert!(matches!(
        create(&mut world, ArrayKind::Plane, [8, 8, 1]),
        Err(DeviceError::Unsupported(_))
    ));
    fake.tell("fail cuMemcpy3DAsync_v2 999");
    assert!(create(&mut world, ArrayKind::Plane, [8, 8, 1]).is_err());
}

#[test]
fn the_driver_gives_all_arrays_memory_where_none_can_come_later() {
    let fake = Fake::new();
    fake.tell("set deferred 0");
    let mut world = fake.world();
    let plane = shape(ArrayKind::Plane, [8, 8, 1], 1);
    assert_eq!(world.device.create_array(WINDOW, &plane), Err(DeviceError::Busy));
    create_in_phase(&mut world, &plane).unwrap();
    assert_eq!((fake.calls("cuMemMapArrayAsync"), fake.calls("cuArray3DCreate_v2")), (0, 1));
}
