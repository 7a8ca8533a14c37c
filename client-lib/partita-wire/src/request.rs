//! What a client asks for: one record of the command ring each.
//!
//! Fixed parts are `Raw…` structures without padding; at most one variable part follows, whose
//! length the fixed part states. A record with an unknown kind or flag, a wrong length or a field
//! out of its bounds does not parse.

use crate::{EventHandle, ModuleHandle, Sequence, StreamHandle, texture};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{AwaitedWord, DeviceAddress, Dim3, MemoryAccess, WaitCondition};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The longest record, with its header.
pub const MAX_RECORD: usize = 64 << 10;
/// The largest parameter space of a kernel (PTX ISA 8.1, "Kernel function parameters").
pub const MAX_PARAMS: usize = 32_764;
/// How much of a module fits in one record.
pub const MAX_CHUNK: usize = 32 << 10;
/// The largest module image, as sent and as unpacked.
pub const MAX_MODULE: u64 = 256 << 20;
/// A record's flag: its sender waits for an answer.
pub const WANTS_REPLY: u16 = 1;

/// How a module's image is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageKind {
    /// PTX text.
    Ptx,
    /// PTX text in a zstd frame.
    PtxZstd,
    /// PTX text as one LZ4 block.
    PtxLz4,
    /// An ELF file of machine code.
    Cubin,
    /// One in a zstd frame.
    CubinZstd,
    /// One as one LZ4 block.
    CubinLz4,
    /// Several images that are to be linked, each behind a header: `u32` how it is packed, `u32`
    /// zero, `u64` size, `u64` size when unpacked.
    Bundle,
}

impl ImageKind {
    const ALL: [ImageKind; 7] = [
        ImageKind::Ptx,
        ImageKind::PtxZstd,
        ImageKind::PtxLz4,
        ImageKind::Cubin,
        ImageKind::Bundle,
        ImageKind::CubinZstd,
        ImageKind::CubinLz4,
    ];

    /// Whether it is machine code.
    #[must_use]
    pub fn is_machine_code(self) -> bool {
        matches!(self, ImageKind::Cubin | ImageKind::CubinZstd | ImageKind::CubinLz4)
    }

    /// The kind of a number.
    #[must_use]
    pub fn from_raw(number: u32) -> Option<ImageKind> {
        ImageKind::ALL.into_iter().find(|kind| kind.to_raw() == number)
    }

    /// The kind's number, for records and bundles.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        match self {
            ImageKind::Ptx => 1,
            ImageKind::PtxZstd => 2,
            ImageKind::PtxLz4 => 3,
            ImageKind::Cubin => 4,
            ImageKind::Bundle => 5,
            ImageKind::CubinZstd => 6,
            ImageKind::CubinLz4 => 7,
        }
    }
}

/// What is special about a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaunchFlags {
    /// All CTAs of the grid must be resident at once (`cuLaunchCooperativeKernel`).
    pub cooperative: bool,
}

const COOPERATIVE: u32 = 1;

/// Conditions by their numbers.
const CONDITIONS: [WaitCondition; 4] =
    [WaitCondition::AtLeast, WaitCondition::Equal, WaitCondition::AnyBit, WaitCondition::AnyZero];

/// Access rights by their numbers.
const ACCESSES: [MemoryAccess; 3] =
    [MemoryAccess::None, MemoryAccess::Read, MemoryAccess::ReadWrite];

/// One request. `B` holds a variable part: the client's is borrowed, the daemon's is its private
/// copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<B = Vec<u8>> {
    /// Allocates device memory. Replies [`crate::Reply::Address`].
    MemAlloc {
        /// How much.
        bytes: u64,
    },
    /// Frees what was allocated at an address, when all work that was submitted before is done.
    MemFree {
        /// Where.
        address: DeviceAddress,
    },
    /// Takes addresses for memory to come. Replies [`crate::Reply::Address`].
    Reserve {
        /// How many.
        bytes: u64,
        /// A power of two.
        alignment: u64,
    },
    /// Gives reserved addresses back, in which nothing is.
    Unreserve {
        /// Where they begin.
        address: DeviceAddress,
    },
    /// Maps the first bytes of an allocation into reserved addresses, where nothing may be done to
    /// them yet.
    Map {
        /// Where it was allocated.
        home: DeviceAddress,
        /// Where to.
        to: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Ends a mapping, when all work that was submitted before is done.
    Unmap {
        /// Where it begins.
        address: DeviceAddress,
    },
    /// Says what may be done to whole mappings: less than before, when all work that was submitted
    /// before is done.
    SetAccess {
        /// Where the first begins.
        start: DeviceAddress,
        /// How much they are together.
        bytes: u64,
        /// What may be done.
        access: MemoryAccess,
    },
    /// Asks for free and total memory. Replies [`crate::Reply::Memory`].
    MemInfo,
    /// Makes an array. Replies [`crate::Reply::Address`]: not a kernel's, but copies take it as
    /// they take memory's.
    ArrayCreate {
        /// What it holds.
        shape: ArrayShape,
    },
    /// Ends an array, when all work that was submitted before is done.
    ArrayDestroy {
        /// Its address.
        array: DeviceAddress,
    },
    /// Makes a texture or surface object. Replies [`crate::Reply::Texture`].
    TextureCreate {
        /// Of what, and how it is sampled.
        spec: TextureSpec,
    },
    /// Ends a texture or surface object, when all work that was submitted before is done.
    TextureDestroy {
        /// What kernels are given for it.
        texture: u64,
    },
    /// Announces a module's image, which follows in chunks.
    ModuleBegin {
        /// The module's new name.
        module: ModuleHandle,
        /// How it is packed.
        kind: ImageKind,
        /// Bytes to come.
        bytes: u64,
        /// Bytes after unpacking; equal to `bytes` where it is not packed.
        unpacked_bytes: u64,
    },
    /// A part of an image.
    ModuleChunk {
        /// Whose.
        module: ModuleHandle,
        /// Where in the image.
        offset: u64,
        /// The part, at most [`MAX_CHUNK`] bytes and at least one.
        data: B,
    },
    /// Loads the module whose image is complete. Replies [`crate::Reply::Module`].
    ModuleLoad {
        /// Which.
        module: ModuleHandle,
    },
    /// Unloads a module.
    ModuleUnload {
        /// Which.
        module: ModuleHandle,
    },
    /// Creates a stream.
    StreamCreate {
        /// Its new name.
        stream: StreamHandle,
        /// Whether it ignores the legacy default stream (`CU_STREAM_NON_BLOCKING`).
        non_blocking: bool,
        /// CUDA's priority: lower numbers go first.
        priority: i32,
    },
    /// Destroys a stream; what is in it still runs.
    StreamDestroy {
        /// Which.
        stream: StreamHandle,
    },
    /// Creates an event.
    EventCreate {
        /// Its new name.
        event: EventHandle,
        /// Its slot in the session's memory, which no other live event of the session uses.
        slot: u32,
    },
    /// Destroys an event.
    EventDestroy {
        /// Which.
        event: EventHandle,
    },
    /// Records an event in a stream: when all earlier work of the stream is done, the event's slot
    /// gets this record's sequence number and the device's time.
    EventRecord {
        /// Which.
        event: EventHandle,
        /// Where.
        stream: StreamHandle,
    },
    /// Later work of a stream waits for the latest record of an event.
    StreamWaitEvent {
        /// Who waits.
        stream: StreamHandle,
        /// For what.
        event: EventHandle,
    },
    /// Asks whether all earlier work of a stream is done. Answered at once: [`crate::Reply::Done`],
    /// or the error [`crate::code::NOT_READY`].
    StreamQuery {
        /// Which.
        stream: StreamHandle,
    },
    /// Launches a kernel.
    Launch {
        /// Its module.
        module: ModuleHandle,
        /// Its index in the module's reply.
        kernel: u32,
        /// Extent of the grid in CTAs.
        grid: Dim3,
        /// Extent of a CTA in threads.
        block: Dim3,
        /// Dynamic shared memory per CTA in bytes.
        dynamic_shared: u32,
        /// Where.
        stream: StreamHandle,
        /// What is special about it.
        flags: LaunchFlags,
        /// Its parameter space, laid out as the module's reply says; at most [`MAX_PARAMS`] bytes.
        params: B,
    },
    /// Copies from the staging arena to the device.
    CopyToDevice {
        /// Where in the order of things.
        stream: StreamHandle,
        /// Where to.
        to: DeviceAddress,
        /// Where from, in the arena.
        staging: u64,
        /// How much.
        bytes: u64,
    },
    /// Copies from the device to the staging arena.
    CopyToHost {
        /// Where in the order of things.
        stream: StreamHandle,
        /// Where from.
        from: DeviceAddress,
        /// Where to, in the arena.
        staging: u64,
        /// How much.
        bytes: u64,
    },
    /// Copies inside the device; the ranges may overlap.
    CopyOnDevice {
        /// Where in the order of things.
        stream: StreamHandle,
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Writes `count` copies of the lowest `width` bytes of `value`.
    Fill {
        /// Where in the order of things.
        stream: StreamHandle,
        /// Where to.
        to: DeviceAddress,
        /// What, little-endian.
        value: u32,
        /// 1, 2 or 4.
        width: u8,
        /// How many elements.
        count: u64,
    },
    /// Makes later work of a stream wait until a word of memory is what is wanted.
    WaitWord {
        /// Which stream.
        stream: StreamHandle,
        /// Where the word is, a multiple of its width.
        address: DeviceAddress,
        /// What is wanted.
        word: AwaitedWord,
    },
    /// Is done when all earlier work of a stream, or of the whole session, is done.
    Synchronize {
        /// Which stream; `None` for all.
        stream: Option<StreamHandle>,
    },
    /// Is done when all earlier work of a stream is; later work of the stream waits until the gate
    /// is opened. So a stream waits for something that the program does (`cuLaunchHostFunc`).
    Gate {
        /// Where.
        stream: StreamHandle,
    },
    /// Opens a gate that has been answered.
    OpenGate {
        /// The gate: the number of its record.
        gate: Sequence,
    },
}

/// Why a record does not parse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// A number that names no request.
    #[error("{0} names no kind of request")]
    Kind(u16),
    /// Flags that mean nothing.
    #[error("flags {flags:#x} of a {kind} mean nothing")]
    Flags {
        /// The request's kind.
        kind: &'static str,
        /// All flags.
        flags: u16,
    },
    /// Too short, too long, or not as long as it says.
    #[error("a {kind} has {got} bytes where it needs {expected}")]
    Length {
        /// The request's kind.
        kind: &'static str,
        /// Needed.
        expected: usize,
        /// Found.
        got: usize,
    },
    /// A field out of its bounds.
    #[error("{field} of a {kind} is {value}, which it cannot be")]
    Field {
        /// The request's kind.
        kind: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

macro_rules! raw {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        struct $name { $($field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

raw! {
    /// Requests that name one thing: an address, a size, a module, a stream, an event.
    RawOne[8] { value: u64 }
    /// Requests that name two things.
    RawTwo[16] { first: u64, second: u64 }
    RawMap[24] { home: u64, to: u64, bytes: u64 }
    RawSetAccess[24] { start: u64, bytes: u64, access: u32, reserved: u32 }
    RawModuleBegin[32] { module: u64, bytes: u64, unpacked_bytes: u64, kind: u32, reserved: u32 }
    RawModuleChunk[24] { module: u64, offset: u64, bytes: u32, reserved: u32 }
    RawStreamCreate[16] { stream: u64, priority: i32, non_blocking: u32 }
    RawEventCreate[16] { event: u64, slot: u32, reserved: u32 }
    RawLaunch[56] {
        module: u64, stream: u64, kernel: u32, flags: u32, grid: [u32; 3], block: [u32; 3],
        dynamic_shared: u32, param_bytes: u32,
    }
    /// A stream, two places, a length.
    RawCopy[32] { stream: u64, to: u64, from: u64, bytes: u64 }
    RawFill[32] { stream: u64, to: u64, count: u64, value: u32, width: u32 }
    RawWaitWord[32] { stream: u64, address: u64, value: u64, width: u32, condition: u32 }
    RawSynchronize[16] { stream: u64, all: u32, reserved: u32 }
}

/// Numbers of the kinds. Numbers are never used again for something else.
mod kind {
    pub(super) const MEM_ALLOC: u16 = 1;
    pub(super) const MEM_FREE: u16 = 2;
    pub(super) const MEM_INFO: u16 = 3;
    pub(super) const RESERVE: u16 = 4;
    pub(super) const UNRESERVE: u16 = 5;
    pub(super) const UNMAP: u16 = 8;
    pub(super) const MAP: u16 = 9;
    pub(super) const SET_ACCESS: u16 = 10;
    pub(super) const MODULE_BEGIN: u16 = 16;
    pub(super) const MODULE_CHUNK: u16 = 17;
    pub(super) const MODULE_LOAD: u16 = 18;
    pub(super) const MODULE_UNLOAD: u16 = 19;
    pub(super) const STREAM_CREATE: u16 = 32;
    pub(super) const STREAM_DESTROY: u16 = 33;
    pub(super) const EVENT_CREATE: u16 = 34;
    pub(super) const EVENT_DESTROY: u16 = 35;
    pub(super) const EVENT_RECORD: u16 = 36;
    pub(super) const STREAM_WAIT_EVENT: u16 = 37;
    pub(super) const STREAM_QUERY: u16 = 38;
    pub(super) const LAUNCH: u16 = 48;
    pub(super) const COPY_TO_DEVICE: u16 = 49;
    pub(super) const COPY_TO_HOST: u16 = 50;
    pub(super) const COPY_ON_DEVICE: u16 = 51;
    pub(super) const FILL: u16 = 52;
    pub(super) const WAIT_WORD: u16 = 53;
    pub(super) const SYNCHRONIZE: u16 = 64;
    pub(super) const GATE: u16 = 65;
    pub(super) const OPEN_GATE: u16 = 66;
    pub(super) const ARRAY_CREATE: u16 = 80;
    pub(super) const ARRAY_DESTROY: u16 = 81;
    pub(super) const TEXTURE_CREATE: u16 = 82;
    pub(super) const TEXTURE_DESTROY: u16 = 83;
}

impl<B: AsRef<[u8]>> Request<B> {
    /// The request's name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        kind_name(self.kind()).expect("every request has a named kind")
    }

    /// The number of its kind.
    #[must_use]
    pub fn kind(&self) -> u16 {
        match self {
            Request::MemAlloc { .. } => kind::MEM_ALLOC,
            Request::MemFree { .. } => kind::MEM_FREE,
            Request::Reserve { .. } => kind::RESERVE,
            Request::Unreserve { .. } => kind::UNRESERVE,
            Request::Map { .. } => kind::MAP,
            Request::Unmap { .. } => kind::UNMAP,
            Request::SetAccess { .. } => kind::SET_ACCESS,
            Request::MemInfo => kind::MEM_INFO,
            Request::ModuleBegin { .. } => kind::MODULE_BEGIN,
            Request::ModuleChunk { .. } => kind::MODULE_CHUNK,
            Request::ModuleLoad { .. } => kind::MODULE_LOAD,
            Request::ModuleUnload { .. } => kind::MODULE_UNLOAD,
            Request::StreamCreate { .. } => kind::STREAM_CREATE,
            Request::StreamDestroy { .. } => kind::STREAM_DESTROY,
            Request::EventCreate { .. } => kind::EVENT_CREATE,
            Request::EventDestroy { .. } => kind::EVENT_DESTROY,
            Request::EventRecord { .. } => kind::EVENT_RECORD,
            Request::StreamWaitEvent { .. } => kind::STREAM_WAIT_EVENT,
            Request::StreamQuery { .. } => kind::STREAM_QUERY,
            Request::Launch { .. } => kind::LAUNCH,
            Request::CopyToDevice { .. } => kind::COPY_TO_DEVICE,
            Request::CopyToHost { .. } => kind::COPY_TO_HOST,
            Request::CopyOnDevice { .. } => kind::COPY_ON_DEVICE,
            Request::Fill { .. } => kind::FILL,
            Request::WaitWord { .. } => kind::WAIT_WORD,
            Request::Synchronize { .. } => kind::SYNCHRONIZE,
            Request::Gate { .. } => kind::GATE,
            Request::OpenGate { .. } => kind::OPEN_GATE,
            Request::ArrayCreate { .. } => kind::ARRAY_CREATE,
            Request::ArrayDestroy { .. } => kind::ARRAY_DESTROY,
            Request::TextureCreate { .. } => kind::TEXTURE_CREATE,
            Request::TextureDestroy { .. } => kind::TEXTURE_DESTROY,
        }
    }

    /// Appends the record's body, without its header.
    ///
    /// # Panics
    /// Where a variable part is beyond its bound: callers check that first and tell their user.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let mut put = |raw: &[u8]| into.extend_from_slice(raw);
        match self {
            Request::MemAlloc { bytes } => put(RawOne { value: *bytes }.as_bytes()),
            Request::MemFree { address } => put(RawOne { value: address.0 }.as_bytes()),
            Request::Reserve { bytes, alignment } => {
                put(RawTwo { first: *bytes, second: *alignment }.as_bytes());
            }
            Request::Unreserve { address } | Request::Unmap { address } => {
                put(RawOne { value: address.0 }.as_bytes());
            }
            Request::Map { home, to, bytes } => {
                put(RawMap { home: home.0, to: to.0, bytes: *bytes }.as_bytes());
            }
            Request::SetAccess { start, bytes, access } => {
                let number = ACCESSES.iter().position(|one| one == access);
                let access = number.and_then(|number| u32::try_from(number).ok());
                let access = access.expect("the table has every access");
                put(RawSetAccess { start: start.0, bytes: *bytes, access, reserved: 0 }.as_bytes());
            }
            Request::MemInfo => {}
            Request::ArrayCreate { shape } => texture::encode_array(shape, into),
            Request::ArrayDestroy { array } => put(RawOne { value: array.0 }.as_bytes()),
            Request::TextureCreate { spec } => texture::encode_texture(spec, into),
            Request::TextureDestroy { texture } => put(RawOne { value: *texture }.as_bytes()),
            Request::ModuleBegin { module, kind, bytes, unpacked_bytes } => put(RawModuleBegin {
                module: module.0,
                bytes: *bytes,
                unpacked_bytes: *unpacked_bytes,
                kind: kind.to_raw(),
                reserved: 0,
            }
            .as_bytes()),
            Request::ModuleChunk { module, offset, data } => {
                let bytes = variable(data.as_ref(), MAX_CHUNK);
                let raw = RawModuleChunk { module: module.0, offset: *offset, bytes, reserved: 0 };
                put(raw.as_bytes());
                put(data.as_ref());
            }
            Request::ModuleLoad { module } | Request::ModuleUnload { module } => {
                put(RawOne { value: module.0 }.as_bytes());
            }
            Request::StreamCreate { stream, non_blocking, priority } => put(RawStreamCreate {
                stream: stream.0,
                priority: *priority,
                non_blocking: u32::from(*non_blocking),
            }
            .as_bytes()),
            Request::StreamDestroy { stream } | Request::StreamQuery { stream } => {
                put(RawOne { value: stream.0 }.as_bytes())
            }
            Request::EventCreate { event, slot } => {
                put(RawEventCreate { event: event.0, slot: *slot, reserved: 0 }.as_bytes());
            }
            Request::EventDestroy { event } => put(RawOne { value: event.0 }.as_bytes()),
            Request::EventRecord { event, stream } | Request::StreamWaitEvent { event, stream } => {
                put(RawTwo { first: event.0, second: stream.0 }.as_bytes());
            }
            Request::Launch {
                module,
                kernel,
                grid,
                block,
                dynamic_shared,
                stream,
                flags,
                params,
            } => {
                let raw = RawLaunch {
                    module: module.0,
                    stream: stream.0,
                    kernel: *kernel,
                    flags: if flags.cooperative { COOPERATIVE } else { 0 },
                    grid: [grid.x, grid.y, grid.z],
                    block: [block.x, block.y, block.z],
                    dynamic_shared: *dynamic_shared,
                    param_bytes: variable(params.as_ref(), MAX_PARAMS),
                };
                put(raw.as_bytes());
                put(params.as_ref());
            }
            Request::CopyToDevice { stream, to, staging, bytes } => {
                put(RawCopy { stream: stream.0, to: to.0, from: *staging, bytes: *bytes }
                    .as_bytes());
            }
            Request::CopyToHost { stream, from, staging, bytes } => {
                put(RawCopy { stream: stream.0, to: *staging, from: from.0, bytes: *bytes }
                    .as_bytes());
            }
            Request::CopyOnDevice { stream, to, from, bytes } => {
                put(RawCopy { stream: stream.0, to: to.0, from: from.0, bytes: *bytes }.as_bytes());
            }
            Request::Fill { stream, to, value, width, count } => put(RawFill {
                stream: stream.0,
                to: to.0,
                count: *count,
                value: *value,
                width: u32::from(*width),
            }
            .as_bytes()),
            Request::WaitWord { stream, address, word } => {
                let condition = CONDITIONS.iter().position(|one| *one == word.condition);
                let condition = condition.and_then(|number| u32::try_from(number).ok());
                put(RawWaitWord {
                    stream: stream.0,
                    address: address.0,
                    value: word.value,
                    width: u32::from(word.width),
                    condition: condition.expect("the table has every condition"),
                }
                .as_bytes());
            }
            Request::Gate { stream } => put(RawOne { value: stream.0 }.as_bytes()),
            Request::OpenGate { gate } => put(RawOne { value: gate.0 }.as_bytes()),
            Request::Synchronize { stream } => put(RawSynchronize {
                stream: stream.map_or(0, |stream| stream.0),
                all: u32::from(stream.is_none()),
                reserved: 0,
            }
            .as_bytes()),
        }
    }
}

fn variable(data: &[u8], limit: usize) -> u32 {
    assert!(
        data.len() <= limit,
        "a variable part of {} bytes is beyond its bound of {limit}",
        data.len()
    );
    u32::try_from(data.len()).expect("bounds are far below 2^32")
}

fn kind_name(number: u16) -> Option<&'static str> {
    Some(match number {
        kind::MEM_ALLOC => "memory allocation",
        kind::MEM_FREE => "memory release",
        kind::MEM_INFO => "memory query",
        kind::RESERVE => "reservation of addresses",
        kind::UNRESERVE => "return of addresses",
        kind::MAP => "mapping into reserved addresses",
        kind::UNMAP => "end of a mapping",
        kind::SET_ACCESS => "access to mapped memory",
        kind::MODULE_BEGIN => "module announcement",
        kind::MODULE_CHUNK => "module chunk",
        kind::MODULE_LOAD => "module load",
        kind::MODULE_UNLOAD => "module unload",
        kind::STREAM_CREATE => "stream creation",
        kind::STREAM_DESTROY => "stream destruction",
        kind::EVENT_CREATE => "event creation",
        kind::EVENT_DESTROY => "event destruction",
        kind::EVENT_RECORD => "event record",
        kind::STREAM_WAIT_EVENT => "stream wait",
        kind::STREAM_QUERY => "stream query",
        kind::LAUNCH => "launch",
        kind::COPY_TO_DEVICE => "copy to the device",
        kind::COPY_TO_HOST => "copy to the host",
        kind::COPY_ON_DEVICE => "copy on the device",
        kind::FILL => "fill",
        kind::WAIT_WORD => "wait for a word",
        kind::SYNCHRONIZE => "synchronisation",
        kind::GATE => "gate",
        kind::OPEN_GATE => "opening of a gate",
        kind::ARRAY_CREATE => "array creation",
        kind::ARRAY_DESTROY => "array destruction",
        kind::TEXTURE_CREATE => "texture creation",
        kind::TEXTURE_DESTROY => "texture destruction",
        _ => return None,
    })
}

impl Request {
    /// Reads a record's body from a private copy.
    ///
    /// # Errors
    /// Where it does not parse.
    pub fn decode(number: u16, flags: u16, body: &[u8]) -> Result<Request, Malformed> {
        let name = kind_name(number).ok_or(Malformed::Kind(number))?;
        if flags & !WANTS_REPLY != 0 {
            return Err(Malformed::Flags { kind: name, flags });
        }
        let body = Body { name, bytes: body };
        let one = || body.fixed::<RawOne>().map(|raw| raw.value);
        Ok(match number {
            kind::MEM_ALLOC => Request::MemAlloc { bytes: one()? },
            kind::MEM_FREE => Request::MemFree { address: DeviceAddress(one()?) },
            kind::MEM_INFO => {
                body.fixed::<[u8; 0]>()?;
                Request::MemInfo
            }
            kind::RESERVE => {
                let raw = body.fixed::<RawTwo>()?;
                if !raw.second.is_power_of_two() {
                    return Err(body.field("alignment", raw.second));
                }
                Request::Reserve { bytes: raw.first, alignment: raw.second }
            }
            kind::UNRESERVE => Request::Unreserve { address: DeviceAddress(one()?) },
            kind::MAP => {
                let raw = body.fixed::<RawMap>()?;
                Request::Map {
                    home: DeviceAddress(raw.home),
                    to: DeviceAddress(raw.to),
                    bytes: raw.bytes,
                }
            }
            kind::UNMAP => Request::Unmap { address: DeviceAddress(one()?) },
            kind::SET_ACCESS => {
                let raw = body.fixed::<RawSetAccess>()?;
                body.zero("reserved", raw.reserved)?;
                let access =
                    ACCESSES.get(usize::try_from(raw.access).unwrap_or(usize::MAX)).copied();
                Request::SetAccess {
                    start: DeviceAddress(raw.start),
                    bytes: raw.bytes,
                    access: access.ok_or_else(|| body.field("access", u64::from(raw.access)))?,
                }
            }
            kind::MODULE_BEGIN => body.module_begin()?,
            kind::MODULE_CHUNK => body.module_chunk()?,
            kind::MODULE_LOAD => Request::ModuleLoad { module: ModuleHandle(one()?) },
            kind::MODULE_UNLOAD => Request::ModuleUnload { module: ModuleHandle(one()?) },
            kind::STREAM_CREATE => body.stream_create()?,
            kind::STREAM_DESTROY => Request::StreamDestroy { stream: StreamHandle(one()?) },
            kind::EVENT_CREATE => {
                let raw = body.fixed::<RawEventCreate>()?;
                body.zero("reserved", raw.reserved)?;
                Request::EventCreate { event: EventHandle(raw.event), slot: raw.slot }
            }
            kind::EVENT_DESTROY => Request::EventDestroy { event: EventHandle(one()?) },
            kind::EVENT_RECORD => {
                let raw = body.fixed::<RawTwo>()?;
                Request::EventRecord {
                    event: EventHandle(raw.first),
                    stream: StreamHandle(raw.second),
                }
            }
            kind::STREAM_WAIT_EVENT => {
                let raw = body.fixed::<RawTwo>()?;
                Request::StreamWaitEvent {
                    event: EventHandle(raw.first),
                    stream: StreamHandle(raw.second),
                }
            }
            kind::STREAM_QUERY => Request::StreamQuery { stream: StreamHandle(one()?) },
            kind::LAUNCH => body.launch()?,
            kind::COPY_TO_DEVICE => {
                let RawCopy { stream, to, from, bytes } = body.fixed()?;
                let (stream, to) = (StreamHandle(stream), DeviceAddress(to));
                Request::CopyToDevice { stream, to, staging: from, bytes }
            }
            kind::COPY_TO_HOST => {
                let RawCopy { stream, to, from, bytes } = body.fixed()?;
                let (stream, from) = (StreamHandle(stream), DeviceAddress(from));
                Request::CopyToHost { stream, from, staging: to, bytes }
            }
            kind::COPY_ON_DEVICE => {
                let RawCopy { stream, to, from, bytes } = body.fixed()?;
                let stream = StreamHandle(stream);
                Request::CopyOnDevice {
                    stream,
                    to: DeviceAddress(to),
                    from: DeviceAddress(from),
                    bytes,
                }
            }
            kind::FILL => body.fill()?,
            kind::WAIT_WORD => body.wait_word()?,
            kind::SYNCHRONIZE => body.synchronize()?,
            kind::GATE => Request::Gate { stream: StreamHandle(one()?) },
            kind::OPEN_GATE => Request::OpenGate { gate: Sequence(one()?) },
            kind::ARRAY_CREATE => Request::ArrayCreate { shape: texture::decode_array(body)? },
            kind::ARRAY_DESTROY => Request::ArrayDestroy { array: DeviceAddress(one()?) },
            kind::TEXTURE_CREATE => Request::TextureCreate { spec: texture::decode_texture(body)? },
            kind::TEXTURE_DESTROY => Request::TextureDestroy { texture: one()? },
            _ => return Err(Malformed::Kind(number)),
        })
    }
}

/// A record's body while it is parsed.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a> {
    name: &'static str,
    bytes: &'a [u8],
}

impl<'a> Body<'a> {
    /// A body that is exactly one raw structure.
    pub(crate) fn fixed<T: FromBytes>(self) -> Result<T, Malformed> {
        T::read_from_bytes(self.bytes).map_err(|_| self.length(size_of::<T>()))
    }

    /// A body that is a raw structure and a variable part of the length that `bytes` reads from it.
    fn variable<T: FromBytes>(self, bytes: impl Fn(&T) -> u32) -> Result<(T, &'a [u8]), Malformed> {
        let (raw, rest) =
            T::read_from_prefix(self.bytes).map_err(|_| self.length(size_of::<T>()))?;
        let announced = usize::try_from(bytes(&raw)).unwrap_or(usize::MAX);
        if rest.len() != announced {
            return Err(self.length(size_of::<T>().saturating_add(announced)));
        }
        Ok((raw, rest))
    }

    fn length(self, expected: usize) -> Malformed {
        Malformed::Length { kind: self.name, expected, got: self.bytes.len() }
    }

    pub(crate) fn field(self, field: &'static str, value: u64) -> Malformed {
        Malformed::Field { kind: self.name, field, value }
    }

    pub(crate) fn zero(self, field: &'static str, value: u32) -> Result<(), Malformed> {
        if value == 0 { Ok(()) } else { Err(self.field(field, u64::from(value))) }
    }

    pub(crate) fn truth(self, field: &'static str, value: u32) -> Result<bool, Malformed> {
        match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.field(field, u64::from(value))),
        }
    }

    fn module_begin(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawModuleBegin>()?;
        self.zero("reserved", raw.reserved)?;
        let kind = ImageKind::from_raw(raw.kind);
        let kind = kind.ok_or_else(|| self.field("image kind", u64::from(raw.kind)))?;
        for (field, bytes) in [("size", raw.bytes), ("unpacked size", raw.unpacked_bytes)] {
            if bytes == 0 || bytes > MAX_MODULE {
                return Err(self.field(field, bytes));
            }
        }
        let module = ModuleHandle(raw.module);
        Ok(Request::ModuleBegin {
            module,
            kind,
            bytes: raw.bytes,
            unpacked_bytes: raw.unpacked_bytes,
        })
    }

    fn module_chunk(self) -> Result<Request, Malformed> {
        let (raw, data) = self.variable(|raw: &RawModuleChunk| raw.bytes)?;
        self.zero("reserved", raw.reserved)?;
        if data.is_empty() || data.len() > MAX_CHUNK {
            return Err(self.field("size", data.len() as u64));
        }
        if raw.offset > MAX_MODULE {
            return Err(self.field("offset", raw.offset));
        }
        let module = ModuleHandle(raw.module);
        Ok(Request::ModuleChunk { module, offset: raw.offset, data: data.to_vec() })
    }

    fn stream_create(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawStreamCreate>()?;
        let non_blocking = self.truth("non-blocking", raw.non_blocking)?;
        if raw.stream == StreamHandle::LEGACY.0 {
            return Err(self.field("stream", raw.stream));
        }
        Ok(Request::StreamCreate {
            stream: StreamHandle(raw.stream),
            non_blocking,
            priority: raw.priority,
        })
    }

    fn launch(self) -> Result<Request, Malformed> {
        let (raw, params) = self.variable(|raw: &RawLaunch| raw.param_bytes)?;
        if params.len() > MAX_PARAMS {
            return Err(self.field("parameter size", params.len() as u64));
        }
        if raw.flags & !COOPERATIVE != 0 {
            return Err(self.field("flags", u64::from(raw.flags)));
        }
        let dim = |[x, y, z]: [u32; 3]| Dim3::new(x, y, z);
        Ok(Request::Launch {
            module: ModuleHandle(raw.module),
            kernel: raw.kernel,
            grid: dim(raw.grid),
            block: dim(raw.block),
            dynamic_shared: raw.dynamic_shared,
            stream: StreamHandle(raw.stream),
            flags: LaunchFlags { cooperative: raw.flags & COOPERATIVE != 0 },
            params: params.to_vec(),
        })
    }

    fn fill(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawFill>()?;
        let width = match raw.width {
            1 => 1,
            2 => 2,
            4 => 4,
            other => return Err(self.field("width", u64::from(other))),
        };
        let (stream, to) = (StreamHandle(raw.stream), DeviceAddress(raw.to));
        Ok(Request::Fill { stream, to, value: raw.value, width, count: raw.count })
    }

    fn wait_word(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawWaitWord>()?;
        let width = match raw.width {
            4 => 4,
            8 => 8,
            other => return Err(self.field("width", u64::from(other))),
        };
        let condition =
            CONDITIONS.get(usize::try_from(raw.condition).unwrap_or(usize::MAX)).copied();
        let condition =
            condition.ok_or_else(|| self.field("condition", u64::from(raw.condition)))?;
        Ok(Request::WaitWord {
            stream: StreamHandle(raw.stream),
            address: DeviceAddress(raw.address),
            word: AwaitedWord { width, value: raw.value, condition },
        })
    }

    fn synchronize(self) -> Result<Request, Malformed> {
        let raw = self.fixed::<RawSynchronize>()?;
        self.zero("reserved", raw.reserved)?;
        let all = self.truth("all", raw.all)?;
        if all && raw.stream != 0 {
            return Err(self.field("stream", raw.stream));
        }
        Ok(Request::Synchronize { stream: (!all).then_some(StreamHandle(raw.stream)) })
    }
}
