//! Every request survives the way, and every damaged record is refused with the right words.

use partita_model::request::{
    ArenaRange, EventHandle, ImageId, Launch, ModuleHandle, Request, Secret, Sequence,
    StreamHandle, StreamKind,
};
use partita_model::tensor_map::{TENSOR_MAP_BYTES, TensorMapSpec, TensorPart};
use partita_model::texture::{
    AddressMode, ArrayKind, ArrayShape, ChannelType, FilterMode, FloatBits, Sampler, TexelFormat,
    TexelSource, TextureSpec,
};
use partita_model::{
    AddressRange, AwaitedWord, DeviceAddress, Dim3, ImageKind, ImagePart, MemoryAccess,
    WaitCondition,
};
use partita_wire::{
    MAX_CHUNK, MAX_MODULE, MAX_PARAMS, MAX_RECORD, Malformed, Received, Record, WANTS_REPLY,
};

fn examples() -> Vec<Received> {
    let parts = parts().into_iter().map(Received::Image);
    requests().into_iter().map(Received::Request).chain(parts).collect()
}

fn parts() -> Vec<ImagePart> {
    let image = ImageId(7);
    let begin = |kind| ImagePart::Begin { image, kind, bytes: MAX_MODULE, unpacked_bytes: 1 };
    vec![
        begin(ImageKind::Ptx),
        begin(ImageKind::PtxZstd),
        begin(ImageKind::PtxLz4),
        begin(ImageKind::Cubin),
        begin(ImageKind::CubinZstd),
        begin(ImageKind::CubinLz4),
        ImagePart::Chunk { image, offset: MAX_MODULE, data: vec![1] },
        ImagePart::Chunk { image, offset: 0, data: vec![0xa5; MAX_CHUNK] },
    ]
}

fn requests() -> Vec<Request> {
    let (module, stream, event) = (ModuleHandle(7), StreamHandle(u64::MAX), EventHandle(9));
    let (to, from) = (DeviceAddress(0x7f00_0000_0000), DeviceAddress(u64::MAX));
    let launch = |cooperative, cluster, params| {
        Request::Launch(Launch {
            module,
            kernel: 3,
            grid: Dim3::new(2_147_483_647, 65_535, 65_535),
            block: Dim3::new(1024, 1, 1),
            dynamic_shared: 233_472,
            stream,
            cooperative,
            cluster,
            params,
        })
    };
    let format = TexelFormat::new(ChannelType::S16, 2).expect("two channels");
    let shape = ArrayShape::new(ArrayKind::CubeLayers, format, [8, 8, 12], 4).expect("two cubes");
    let pitched = TexelSource::Pitched { address: to, format, extent: [10, 3], pitch: 64 };
    let tight = TexelSource::Pitched { address: to, format, extent: [10, 3], pitch: 40 };
    let sampler = Sampler {
        address: [AddressMode::Mirror, AddressMode::Border, AddressMode::Wrap],
        filter: FilterMode::Linear,
        level_filter: FilterMode::Point,
        integers: true,
        normalized: true,
        srgb: false,
        level_bias: 0.5.into(),
        level_min: 1.0.into(),
        level_max: f32::NAN.into(),
        border: [1.0, 2.0, 3.0, 4.0].map(FloatBits::from),
    };
    let range = |start, bytes| AddressRange { start, bytes };
    let access = |access| Request::SetAccess { range: range(to, u64::MAX), access };
    let word = |width, condition| Request::WaitWord {
        stream,
        address: to,
        word: AwaitedWord { width, value: u64::MAX, condition },
    };
    let create = |stream, kind, priority| Request::StreamCreate { stream, kind, priority };
    let staged = ArenaRange { offset: 5, bytes: 6 };
    let texture = |source| TextureSpec { source, sampler: Some(sampler) };
    let tensor_map = |part| Request::TensorMap {
        spec: Box::new(TensorMapSpec {
            data_type: 15,
            rank: 5,
            address: to,
            extents: [1, 2, 3, 4, u64::MAX],
            strides: [5, 6, 7, u64::MAX],
            element_strides: [8, 9, 10, 11, u32::MAX],
            part,
            interleave: 2,
            swizzle: 6,
            promotion: 3,
            fill: 1,
        }),
    };
    vec![
        Request::MemAlloc { bytes: u64::MAX },
        Request::MemFree { address: to },
        Request::MemInfo,
        Request::Reserve { bytes: u64::MAX, alignment: 1 << 21 },
        Request::Unreserve { address: DeviceAddress(1 << 44) },
        Request::Map { home: to, range: range(from, 1 << 21) },
        Request::Unmap { address: DeviceAddress(3) },
        Request::ExportMemory { address: to },
        Request::OpenMemory { secret: Secret(u128::MAX - 1) },
        Request::CloseMemory { address: from },
        Request::ExportEvent { event },
        Request::OpenEvent { event, secret: Secret(1 << 64) },
        Request::EventQuery { event },
        Request::EventSynchronize { event },
        access(MemoryAccess::None),
        access(MemoryAccess::Read),
        access(MemoryAccess::ReadWrite),
        Request::ModuleLoad { module, image: ImageId(module.0) },
        Request::ModuleUnload { module },
        create(stream, StreamKind::NonBlocking, -5),
        create(StreamHandle(1), StreamKind::Blocking, i32::MAX),
        Request::StreamDestroy { stream },
        Request::StreamQuery { stream },
        Request::EventCreate { event, slot: u32::MAX },
        Request::EventDestroy { event },
        Request::EventRecord { event, stream },
        Request::StreamWait { stream, event },
        launch(false, Dim3::linear(16), Vec::new()),
        launch(true, Dim3::new(1, 2, 4), Vec::new()),
        launch(false, Dim3::linear(1), Vec::new()),
        launch(true, Dim3::linear(1), vec![1, 2, 3]),
        launch(false, Dim3::linear(1), vec![0x5a; MAX_PARAMS]),
        Request::CopyToDevice { stream, to, from: staged },
        Request::CopyToHost { stream, to: staged, from },
        Request::CopyOnDevice { stream, to, from, bytes: u64::MAX },
        Request::Fill { stream, to, value: u32::MAX, width: 1, count: 3 },
        Request::Fill { stream, to, value: 0, width: 4, count: u64::MAX },
        word(4, WaitCondition::AtLeast),
        word(8, WaitCondition::Equal),
        word(4, WaitCondition::AnyBit),
        word(8, WaitCondition::AnyZero),
        Request::Synchronize { stream: None },
        Request::Synchronize { stream: Some(StreamHandle::LEGACY) },
        Request::Synchronize { stream: Some(stream) },
        Request::Gate { stream },
        Request::OpenGate { gate: Sequence(u64::MAX) },
        Request::ArrayCreate { shape },
        Request::ArrayDestroy { array: to },
        Request::TextureCreate {
            spec: texture(TexelSource::Array { array: to, first_level: 1, levels: 2 }),
        },
        Request::TextureCreate {
            spec: texture(TexelSource::Linear { address: to, format, width: 1 << 28 }),
        },
        Request::TextureCreate { spec: texture(pitched) },
        Request::TextureCreate { spec: TextureSpec { source: pitched, sampler: None } },
        Request::TextureCreate { spec: texture(tight) },
        Request::TextureDestroy { texture: u64::MAX },
        tensor_map(TensorPart::Tiled { extents: [1, 2, 3, 4, 5] }),
        tensor_map(TensorPart::Columns {
            lower: [-1, 2, -3],
            upper: [4, -5, i32::MAX],
            channels: 6,
            pixels: 7,
        }),
        tensor_map(TensorPart::Wide { lower: -1, upper: 2, channels: 3, pixels: 4, mode: 1 }),
        Request::TensorMapMove { map: Box::new([7; TENSOR_MAP_BYTES]), address: to },
    ]
}

/// A field of a creation that cannot be, one after the other.
#[test]
fn textures_that_cannot_be_are_refused() {
    let bodies: Vec<(u16, Vec<u8>)> = requests()
        .iter()
        .filter(|request| {
            matches!(request, Request::ArrayCreate { .. } | Request::TextureCreate { .. })
        })
        .map(|request| (request.kind(), encode(request)))
        .collect();
    let check = |which: usize, at: usize, value: u32, field: &str| {
        let (kind, mut body) = bodies[which].clone();
        body[at..at + 4].copy_from_slice(&value.to_le_bytes());
        match Received::decode(kind, 0, &body) {
            Err(Malformed::Field { field: found, .. }) => assert_eq!(found, field, "{which} {at}"),
            other => panic!("{which} {at}: {other:?}"),
        }
    };
    for (at, value, field) in [
        (0, 7, "array kind"),
        (4, 4, "channel type"),
        (8, 3, "channels"),
        (12, 0, "width"),
        (16, 0, "width"),
        (28, 1, "reserved"),
    ] {
        check(0, at, value, field);
    }
    for (which, at, value, field) in [
        (1, 8, 1, "pitch"),
        (1, 16, 3, "source"),
        (1, 20, 1, "channel type"),
        (1, 40, 4, "address mode"),
        (1, 52, 2, "filter mode"),
        (1, 60, 8, "sampler flags"),
        (1, 92, 1, "reserved"),
        (2, 28, (1 << 28) + 1, "width"),
        (2, 32, 1, "height"),
        (3, 8, 39, "pitch"),
        (3, 32, 0, "height"),
        (4, 36, 2, "sampled"),
        (4, 88, 1, "sampler of a surface"),
    ] {
        check(which, at, value, field);
    }
}

fn encode(record: &impl Record) -> Vec<u8> {
    let mut body = Vec::new();
    record.encode(&mut body);
    body
}

/// Kind and body of what was received, as its sender wrote it.
fn written(received: &Received) -> (u16, Vec<u8>) {
    match received {
        Received::Request(request) => (request.kind(), encode(request)),
        Received::Image(part) => (part.kind(), encode(part)),
    }
}

#[test]
fn requests_survive_the_way() {
    for record in examples() {
        let (kind, body) = written(&record);
        assert!(body.len() + 16 <= MAX_RECORD, "a record of kind {kind} does not fit");
        for flags in [0, WANTS_REPLY] {
            assert_eq!(Received::decode(kind, flags, &body).as_ref(), Ok(&record));
        }
    }
}

#[test]
fn a_record_of_any_other_length_is_refused() {
    for record in examples() {
        let (kind, body) = written(&record);
        for cut in (0..body.len()).step_by(body.len() / 64 + 1) {
            let result = Received::decode(kind, 0, &body[..cut]);
            assert!(matches!(result, Err(Malformed::Length { .. })), "kind {kind} cut to {cut}");
        }
        let longer = [body.as_slice(), &[0]].concat();
        let result = Received::decode(kind, 0, &longer);
        assert!(matches!(result, Err(Malformed::Length { .. })), "kind {kind} and a byte");
    }
}

#[test]
fn unknown_kinds_and_flags_are_refused() {
    let known: Vec<u16> = examples().iter().map(|record| written(record).0).collect();
    for kind in (0..=u16::MAX).filter(|kind| !known.contains(kind)) {
        assert_eq!(Received::decode(kind, 0, &[0; 64]), Err(Malformed::Kind(kind)));
    }
    for bit in 1..16 {
        let flags = 1 << bit;
        let error =
            Received::decode(Record::kind(&Request::MemInfo::<Vec<u8>>), flags, &[]).unwrap_err();
        assert_eq!(error, Malformed::Flags { kind: "memory query", flags });
    }
}

#[test]
fn fields_out_of_bounds_are_refused() {
    let check_record = |record: Received, at: usize, byte: u8, field: &str| {
        let (kind, mut body) = written(&record);
        body[at] = byte;
        match Received::decode(kind, 0, &body) {
            Err(Malformed::Field { field: found, .. }) => assert_eq!(found, field, "{record:?}"),
            other => panic!("{record:?} with byte {at} = {byte}: {other:?}"),
        }
    };
    let check_part = |part, at, byte, field| check_record(Received::Image(part), at, byte, field);
    let check =
        |request, at, byte, field| check_record(Received::Request(request), at, byte, field);
    let (module, image, stream) = (ModuleHandle(1), ImageId(1), StreamHandle(1));
    let begin = ImagePart::Begin { image, kind: ImageKind::Ptx, bytes: 1, unpacked_bytes: 1 };
    check_part(begin.clone(), 24, 0, "image kind");
    check_part(begin.clone(), 24, 8, "image kind");
    check_part(begin.clone(), 28, 1, "reserved");
    check_part(begin.clone(), 8, 0, "size");
    check_part(begin.clone(), 12, 1, "size");
    check_part(begin.clone(), 16, 0, "unpacked size");
    check_part(begin, 23, 1, "unpacked size");
    let reserve = Request::Reserve { bytes: 1, alignment: 1 };
    check(reserve.clone(), 8, 3, "alignment");
    check(reserve, 8, 0, "alignment");
    let chunk = ImagePart::Chunk { image, offset: 0, data: vec![1] };
    check_part(chunk.clone(), 15, 1, "offset");
    check_part(chunk, 20, 1, "reserved");
    let create = Request::StreamCreate { stream, kind: StreamKind::Blocking, priority: 0 };
    check(create.clone(), 12, 2, "non-blocking");
    check(create, 0, 0, "stream");
    check(Request::EventCreate { event: EventHandle(1), slot: 0 }, 12, 1, "reserved");
    let (grid, to) = (Dim3::linear(1), DeviceAddress(0));
    let launch = Request::Launch(Launch {
        module,
        kernel: 0,
        grid,
        block: grid,
        dynamic_shared: 0,
        stream,
        cooperative: false,
        cluster: Dim3::linear(1),
        params: Vec::new(),
    });
    check(launch.clone(), 20, 2, "flags");
    // Clusters that have no CTA along some axis, and a bit above them.
    for (at, byte) in [(21, 2), (22, 1), (23, 0x80)] {
        check(launch.clone(), at, byte, "flags");
    }
    check(Request::Fill { stream, to, value: 0, width: 1, count: 1 }, 28, 3, "width");
    check(Request::Fill { stream, to, value: 0, width: 1, count: 1 }, 28, 0, "width");
    let range = AddressRange { start: to, bytes: 1 };
    let access = Request::SetAccess { range, access: MemoryAccess::Read };
    check(access.clone(), 16, 3, "access");
    check(access, 20, 1, "reserved");
    let word = AwaitedWord { width: 4, value: 0, condition: WaitCondition::Equal };
    let wait = Request::WaitWord { stream, address: to, word };
    check(wait.clone(), 24, 2, "width");
    check(wait, 28, 4, "condition");
    check(Request::Synchronize { stream: Some(stream) }, 8, 2, "all");
    check(Request::Synchronize { stream: Some(stream) }, 8, 1, "stream");
    check(Request::Synchronize { stream: None }, 12, 1, "reserved");
}

#[test]
fn variable_parts_over_their_bounds_are_refused() {
    let mut body = encode(&ImagePart::Chunk { image: ImageId(1), offset: 0, data: vec![1] });
    body.resize(24 + MAX_CHUNK + 1, 0);
    body[16..20].copy_from_slice(&u32::try_from(MAX_CHUNK + 1).unwrap().to_le_bytes());
    let error = Received::decode(17, 0, &body).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("size of a module chunk is {}, which it cannot be", MAX_CHUNK + 1)
    );
    body.truncate(24);
    body[16..20].copy_from_slice(&[0; 4]);
    assert!(matches!(
        Received::decode(17, 0, &body),
        Err(Malformed::Field { field: "size", value: 0, .. })
    ));
    body[16..20].copy_from_slice(&[0xff; 4]);
    assert!(matches!(Received::decode(17, 0, &body), Err(Malformed::Length { .. })));
}

/// Fuzzing, with every example as a seed: a record with bytes changed, taken out and put in either
/// is refused or says exactly what it means.
#[test]
fn damaged_records_are_refused_or_mean_what_they_say() {
    let seeds: Vec<(u16, Vec<u8>)> = examples().iter().map(written).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |end: usize| {
        // Marsaglia 2003, xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % (end.max(1) as u64)).expect("smaller than a usize")
    };
    let mut understood = 0;
    for _ in 0..20_000 {
        let (kind, mut body) = seeds[below(seeds.len())].clone();
        body.truncate(256);
        for _ in 0..=below(3) {
            let at = below(body.len());
            match below(5) {
                0 if !body.is_empty() => drop(body.remove(at)),
                1 => body.insert(at, 0xff),
                2 if !body.is_empty() => body[at] ^= 1 << below(8),
                3 if body.len() >= 8 => {
                    let at = at % (body.len() / 8) * 8;
                    let value = [0, 1, 3, u64::MAX, 1 << 63, 1 << 47][below(6)];
                    body[at..at + 8].copy_from_slice(&value.to_le_bytes());
                }
                _ => {}
            }
        }
        let kind = if below(8) == 0 { seeds[below(seeds.len())].0 } else { kind };
        if let Ok(record) = Received::decode(kind, 0, &body) {
            understood += 1;
            assert_eq!(written(&record), (kind, body), "{record:?}");
        }
    }
    assert!(understood > 1_000, "only {understood} were understood: nothing was tried");
}
