//! Records of the command ring: what a client asks for, as bytes.
//!
//! The nouns are [`partita_model::request`]'s and [`partita_model::ImagePart`]'s; here stands only
//! how they are written ([`Record`]) and read ([`Received::decode`]). Fixed parts are `Raw…`
//! structures without padding; at most one variable part follows, whose length the fixed part
//! states. A record with an unknown kind or flag, a wrong length or a field out of its bounds does
//! not parse.
//!
//! On the wire an image has the number of the module that it becomes.

mod decode;
mod encode;

pub(crate) use decode::Body;

use partita_model::request::Request;
use partita_model::{ImagePart, MemoryAccess, WaitCondition};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The longest record in bytes, with its header.
pub const MAX_RECORD: usize = 64 << 10;
/// The largest parameter space of a kernel in bytes (PTX ISA 8.1, "Kernel function parameters").
pub const MAX_PARAMS: usize = 32_764;
/// Bytes of an image in one record, at most.
pub const MAX_CHUNK: usize = 32 << 10;
/// The largest module image in bytes, as sent and as unpacked.
pub const MAX_MODULE: u64 = 256 << 20;
/// A record's flag: its sender waits for an answer.
pub const WANTS_REPLY: u16 = 1;

const COOPERATIVE: u32 = 1;
/// A launch's flags have the CTAs of a cluster along each axis from this bit on, all 0 where there
/// are no clusters.
const CLUSTER_SHIFT: u32 = 8;
const CLUSTER_BITS: u32 = 5;
const CLUSTER_MASK: u32 = (1 << CLUSTER_BITS) - 1;

/// Conditions by their numbers.
const CONDITIONS: [WaitCondition; 4] =
    [WaitCondition::AtLeast, WaitCondition::Equal, WaitCondition::AnyBit, WaitCondition::AnyZero];

/// Access rights by their numbers.
const ACCESSES: [MemoryAccess; 3] =
    [MemoryAccess::None, MemoryAccess::Read, MemoryAccess::ReadWrite];

/// What a client can write into the command ring.
pub trait Record {
    /// The number of its kind.
    fn kind(&self) -> u16;

    /// Appends the record's body, without its header.
    ///
    /// # Panics
    /// Where a variable part is beyond its bound: callers check that first and tell their user.
    fn encode(&self, into: &mut Vec<u8>);
}

/// What the daemon read from a record of the command ring: a private copy, with every length inside
/// its bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// A request.
    Request(Request),
    /// A part of a module's image.
    Image(ImagePart),
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
        /// The length found, in bytes.
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
    RawSecret[16] { secret: [u8; 16] }
    RawOpenEvent[24] { event: u64, secret: [u8; 16] }
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
    pub(super) const EXPORT_MEMORY: u16 = 11;
    pub(super) const OPEN_MEMORY: u16 = 12;
    pub(super) const CLOSE_MEMORY: u16 = 13;
    pub(super) const MODULE_BEGIN: u16 = 16;
    pub(super) const MODULE_CHUNK: u16 = 17;
    pub(super) const MODULE_LOAD: u16 = 18;
    pub(super) const MODULE_UNLOAD: u16 = 19;
    pub(super) const STREAM_CREATE: u16 = 32;
    pub(super) const STREAM_DESTROY: u16 = 33;
    pub(super) const EVENT_CREATE: u16 = 34;
    pub(super) const EVENT_DESTROY: u16 = 35;
    pub(super) const EVENT_RECORD: u16 = 36;
    pub(super) const STREAM_WAIT: u16 = 37;
    pub(super) const STREAM_QUERY: u16 = 38;
    pub(super) const EXPORT_EVENT: u16 = 39;
    pub(super) const OPEN_EVENT: u16 = 40;
    pub(super) const EVENT_QUERY: u16 = 41;
    pub(super) const EVENT_SYNCHRONIZE: u16 = 42;
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
    pub(super) const TENSOR_MAP: u16 = 84;
    pub(super) const TENSOR_MAP_MOVE: u16 = 85;
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
        kind::EXPORT_MEMORY => "export of memory",
        kind::OPEN_MEMORY => "opening of another process's memory",
        kind::CLOSE_MEMORY => "end of another process's memory",
        kind::MODULE_BEGIN => "module announcement",
        kind::MODULE_CHUNK => "module chunk",
        kind::MODULE_LOAD => "module load",
        kind::MODULE_UNLOAD => "module unload",
        kind::STREAM_CREATE => "stream creation",
        kind::STREAM_DESTROY => "stream destruction",
        kind::EVENT_CREATE => "event creation",
        kind::EVENT_DESTROY => "event destruction",
        kind::EVENT_RECORD => "event record",
        kind::STREAM_WAIT => "stream wait",
        kind::STREAM_QUERY => "stream query",
        kind::EXPORT_EVENT => "export of an event",
        kind::OPEN_EVENT => "opening of another process's event",
        kind::EVENT_QUERY => "event query",
        kind::EVENT_SYNCHRONIZE => "event synchronisation",
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
        kind::TENSOR_MAP => "tensor map",
        kind::TENSOR_MAP_MOVE => "tensor map's new address",
        _ => return None,
    })
}
