//! Writing of records.

use super::{
    ACCESSES, CLUSTER_BITS, CLUSTER_MASK, CLUSTER_SHIFT, CONDITIONS, COOPERATIVE, MAX_CHUNK,
    MAX_PARAMS, RawCopy, RawEventCreate, RawFill, RawLaunch, RawMap, RawModuleBegin,
    RawModuleChunk, RawOne, RawOpenEvent, RawSecret, RawSetAccess, RawStreamCreate, RawSynchronize,
    RawTwo, RawWaitWord, Record, kind,
};
use crate::{tensor_map, texture};
use partita_model::request::{Launch, Request, StreamKind};
use partita_model::{AddressRange, AwaitedWord, Dim3, ImagePart, MemoryAccess};
use zerocopy::{Immutable, IntoBytes};

impl<B: AsRef<[u8]>> Record for Request<B> {
    fn kind(&self) -> u16 {
        match self {
            Request::MemAlloc { .. } => kind::MEM_ALLOC,
            Request::MemFree { .. } => kind::MEM_FREE,
            Request::Reserve { .. } => kind::RESERVE,
            Request::Unreserve { .. } => kind::UNRESERVE,
            Request::Map { .. } => kind::MAP,
            Request::Unmap { .. } => kind::UNMAP,
            Request::SetAccess { .. } => kind::SET_ACCESS,
            Request::ExportMemory { .. } => kind::EXPORT_MEMORY,
            Request::OpenMemory { .. } => kind::OPEN_MEMORY,
            Request::CloseMemory { .. } => kind::CLOSE_MEMORY,
            Request::MemInfo => kind::MEM_INFO,
            Request::ArrayCreate { .. } => kind::ARRAY_CREATE,
            Request::ArrayDestroy { .. } => kind::ARRAY_DESTROY,
            Request::TextureCreate { .. } => kind::TEXTURE_CREATE,
            Request::TextureDestroy { .. } => kind::TEXTURE_DESTROY,
            Request::TensorMap { .. } => kind::TENSOR_MAP,
            Request::TensorMapMove { .. } => kind::TENSOR_MAP_MOVE,
            Request::ModuleLoad { .. } => kind::MODULE_LOAD,
            Request::ModuleUnload { .. } => kind::MODULE_UNLOAD,
            Request::StreamCreate { .. } => kind::STREAM_CREATE,
            Request::StreamDestroy { .. } => kind::STREAM_DESTROY,
            Request::StreamQuery { .. } => kind::STREAM_QUERY,
            Request::EventCreate { .. } => kind::EVENT_CREATE,
            Request::EventDestroy { .. } => kind::EVENT_DESTROY,
            Request::ExportEvent { .. } => kind::EXPORT_EVENT,
            Request::OpenEvent { .. } => kind::OPEN_EVENT,
            Request::EventQuery { .. } => kind::EVENT_QUERY,
            Request::EventSynchronize { .. } => kind::EVENT_SYNCHRONIZE,
            Request::EventRecord { .. } => kind::EVENT_RECORD,
            Request::StreamWait { .. } => kind::STREAM_WAIT,
            Request::Launch(_) => kind::LAUNCH,
            Request::CopyToDevice { .. } => kind::COPY_TO_DEVICE,
            Request::CopyToHost { .. } => kind::COPY_TO_HOST,
            Request::CopyOnDevice { .. } => kind::COPY_ON_DEVICE,
            Request::Fill { .. } => kind::FILL,
            Request::WaitWord { .. } => kind::WAIT_WORD,
            Request::Synchronize { .. } => kind::SYNCHRONIZE,
            Request::Gate { .. } => kind::GATE,
            Request::OpenGate { .. } => kind::OPEN_GATE,
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Request::MemAlloc { bytes } => put_one(into, *bytes),
            Request::MemFree { address }
            | Request::Unreserve { address }
            | Request::Unmap { address }
            | Request::ExportMemory { address }
            | Request::CloseMemory { address }
            | Request::ArrayDestroy { array: address } => put_one(into, address.0),
            Request::Reserve { bytes, alignment } => put_two(into, *bytes, *alignment),
            Request::Map { home, range: AddressRange { start, bytes } } => {
                put(into, &RawMap { home: home.0, to: start.0, bytes: *bytes });
            }
            Request::SetAccess { range, access } => encode_access(*range, *access, into),
            Request::OpenMemory { secret } => {
                put(into, &RawSecret { secret: secret.0.to_le_bytes() });
            }
            Request::MemInfo => {}
            Request::ArrayCreate { shape } => texture::encode_array(shape, into),
            Request::TextureCreate { spec } => texture::encode_texture(spec, into),
            Request::TextureDestroy { texture } => put_one(into, *texture),
            Request::TensorMap { spec } => tensor_map::encode(spec, into),
            Request::TensorMapMove { map, address } => {
                tensor_map::encode_move(map, *address, into);
            }
            Request::ModuleLoad { module, image } => {
                assert_eq!(module.0, image.0, "an image has its module's number on the wire");
                put_one(into, module.0);
            }
            Request::ModuleUnload { module } => put_one(into, module.0),
            Request::StreamCreate { stream, kind, priority } => {
                let non_blocking = u32::from(*kind == StreamKind::NonBlocking);
                let raw = RawStreamCreate { stream: stream.0, priority: *priority, non_blocking };
                put(into, &raw);
            }
            Request::StreamDestroy { stream }
            | Request::StreamQuery { stream }
            | Request::Gate { stream } => put_one(into, stream.0),
            Request::EventCreate { event, slot } => {
                put(into, &RawEventCreate { event: event.0, slot: *slot, reserved: 0 });
            }
            Request::EventDestroy { event }
            | Request::ExportEvent { event }
            | Request::EventQuery { event }
            | Request::EventSynchronize { event } => put_one(into, event.0),
            Request::OpenEvent { event, secret } => {
                put(into, &RawOpenEvent { event: event.0, secret: secret.0.to_le_bytes() });
            }
            Request::EventRecord { event, stream } | Request::StreamWait { stream, event } => {
                put_two(into, event.0, stream.0);
            }
            Request::Launch(launch) => encode_launch(launch, into),
            Request::CopyToDevice { stream, to, from } => {
                put_copy(into, [stream.0, to.0, from.offset, from.bytes]);
            }
            Request::CopyToHost { stream, to, from } => {
                put_copy(into, [stream.0, to.offset, from.0, to.bytes]);
            }
            Request::CopyOnDevice { stream, to, from, bytes } => {
                put_copy(into, [stream.0, to.0, from.0, *bytes]);
            }
            Request::Fill { stream, to, value, width, count } => {
                let (stream, to, width) = (stream.0, to.0, u32::from(*width));
                put(into, &RawFill { stream, to, count: *count, value: *value, width });
            }
            Request::WaitWord { stream, address, word } => {
                encode_wait(stream.0, address.0, *word, into);
            }
            Request::Synchronize { stream } => {
                let all = u32::from(stream.is_none());
                let stream = stream.map_or(0, |stream| stream.0);
                put(into, &RawSynchronize { stream, all, reserved: 0 });
            }
            Request::OpenGate { gate } => put_one(into, gate.0),
        }
    }
}

impl<B: AsRef<[u8]>> Record for ImagePart<B> {
    fn kind(&self) -> u16 {
        match self {
            ImagePart::Begin { .. } => kind::MODULE_BEGIN,
            ImagePart::Chunk { .. } => kind::MODULE_CHUNK,
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        match self {
            ImagePart::Begin { image, kind, bytes, unpacked_bytes } => {
                let raw = RawModuleBegin {
                    module: image.0,
                    bytes: *bytes,
                    unpacked_bytes: *unpacked_bytes,
                    kind: kind.to_raw(),
                    reserved: 0,
                };
                put(into, &raw);
            }
            ImagePart::Chunk { image, offset, data } => {
                let bytes = length(data.as_ref(), MAX_CHUNK);
                let raw = RawModuleChunk { module: image.0, offset: *offset, bytes, reserved: 0 };
                put(into, &raw);
                into.extend_from_slice(data.as_ref());
            }
        }
    }
}

/// The flags of a launch. A cluster along an axis has 16 CTAs at most.
fn flags(cooperative: bool, cluster: Dim3) -> u32 {
    let cooperative = if cooperative { COOPERATIVE } else { 0 };
    if cluster.count() == 1 {
        return cooperative;
    }
    let axis =
        |ctas: u32, index: u32| ctas.min(CLUSTER_MASK) << (CLUSTER_SHIFT + index * CLUSTER_BITS);
    cooperative | axis(cluster.x, 0) | axis(cluster.y, 1) | axis(cluster.z, 2)
}

fn encode_launch<B: AsRef<[u8]>>(launch: &Launch<B>, into: &mut Vec<u8>) {
    let (grid, block, params) = (launch.grid, launch.block, launch.params.as_ref());
    let raw = RawLaunch {
        module: launch.module.0,
        stream: launch.stream.0,
        kernel: launch.kernel,
        flags: flags(launch.cooperative, launch.cluster),
        grid: [grid.x, grid.y, grid.z],
        block: [block.x, block.y, block.z],
        dynamic_shared: launch.dynamic_shared,
        param_bytes: length(params, MAX_PARAMS),
    };
    put(into, &raw);
    into.extend_from_slice(params);
}

fn encode_access(range: AddressRange, access: MemoryAccess, into: &mut Vec<u8>) {
    let number = ACCESSES.iter().position(|one| *one == access);
    let number = number.and_then(|number| u32::try_from(number).ok());
    let access = number.expect("the table has every access");
    put(into, &RawSetAccess { start: range.start.0, bytes: range.bytes, access, reserved: 0 });
}

fn encode_wait(stream: u64, address: u64, word: AwaitedWord, into: &mut Vec<u8>) {
    let number = CONDITIONS.iter().position(|one| *one == word.condition);
    let number = number.and_then(|number| u32::try_from(number).ok());
    let condition = number.expect("the table has every condition");
    let (value, width) = (word.value, u32::from(word.width));
    put(into, &RawWaitWord { stream, address, value, width, condition });
}

fn put(into: &mut Vec<u8>, raw: &(impl IntoBytes + Immutable)) {
    into.extend_from_slice(raw.as_bytes());
}

fn put_one(into: &mut Vec<u8>, value: u64) {
    put(into, &RawOne { value });
}

fn put_two(into: &mut Vec<u8>, first: u64, second: u64) {
    put(into, &RawTwo { first, second });
}

fn put_copy(into: &mut Vec<u8>, [stream, to, from, bytes]: [u64; 4]) {
    put(into, &RawCopy { stream, to, from, bytes });
}

fn length(data: &[u8], limit: usize) -> u32 {
    assert!(
        data.len() <= limit,
        "a variable part of {} bytes is beyond its bound of {limit}",
        data.len()
    );
    u32::try_from(data.len()).expect("bounds are far below 2^32")
}
