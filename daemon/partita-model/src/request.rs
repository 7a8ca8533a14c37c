//! What a session asks for.
//!
//! These are the nouns of a request in every room: a client builds one, the wire encodes it, and
//! the engine takes what the wire parsed. A module's image arrives before the request that loads
//! it; its parts are records of their own ([`crate::ImagePart`]).
//!
//! A client chooses its handles itself, so that creating a stream or an event needs no round trip.
//! A handle means something inside its session only. Nothing in a request is trusted: parsing
//! bounds every length, the engine checks everything else.
//!
//! Every request gets at most one answer. Each variant says when: *at once* means that the request
//! was checked and accepted or refused, *when done* that its effects are visible.

use crate::tensor_map::{TensorMap, TensorMapSpec};
use crate::texture::{ArrayShape, TextureSpec};
use crate::{AddressRange, AwaitedWord, DeviceAddress, Dim3, MemoryAccess};
use std::fmt;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

handle! {
    /// A CUDA stream of a session. [`StreamHandle::LEGACY`] exists without being created.
    StreamHandle, "stream "
}
handle! {
    /// A CUDA event of a session.
    EventHandle, "event "
}
handle! {
    /// A module of a session.
    ModuleHandle, "module "
}
handle! {
    /// A module's image that a session has sent: PTX text, machine code or a bundle of both.
    ImageId, "image "
}
handle! {
    /// The number of a record in its session, from 1 on without gaps.
    Sequence, "record "
}

impl StreamHandle {
    /// The legacy default stream. It exists from the start and is ordered with every blocking
    /// stream of its session (CUDA Driver API, "Stream synchronization behavior").
    pub const LEGACY: StreamHandle = StreamHandle(0);
}

/// Whether a stream is ordered with the legacy default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamKind {
    /// `CU_STREAM_DEFAULT`: it is.
    Blocking,
    /// `CU_STREAM_NON_BLOCKING`: it is not.
    NonBlocking,
}

/// A range of the memory that a session shares with the daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaRange {
    /// First byte, counted from the arena's start.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// One `cuLaunchKernel`. `B` holds the parameters: a client lends them, the daemon owns a private
/// copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch<B = Vec<u8>> {
    /// The stream.
    pub stream: StreamHandle,
    /// A loaded module.
    pub module: ModuleHandle,
    /// The kernel's index in the module.
    pub kernel: u32,
    /// Extent of the grid in CTAs.
    pub grid: Dim3,
    /// Extent of a CTA in threads.
    pub block: Dim3,
    /// Dynamic shared memory per CTA in bytes.
    pub dynamic_shared: u32,
    /// Whether all CTAs must be resident at once (`cuLaunchCooperativeKernel`).
    pub cooperative: bool,
    /// CTAs of a cluster along each axis; 1 everywhere for a launch without clusters
    /// (`CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`).
    pub cluster: Dim3,
    /// The kernel's parameter space as its declaration lays it out.
    pub params: B,
}

/// Where a parameter lies in a kernel's parameter space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParamLayout {
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub bytes: u32,
}

/// What a process shows to open the memory or event of another process of its user. The daemon
/// draws it at random, so that nobody guesses one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Secret(pub u128);

impl fmt::Debug for Secret {
    /// Secrets stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// One request of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request<B = Vec<u8>> {
    /// Allocates device memory. Answered at once with the address.
    MemAlloc {
        /// Length in bytes, at least 1.
        bytes: u64,
    },
    /// Frees device memory. Answered when everything that the session enqueued before has ended,
    /// as `cuMemFree` synchronises.
    MemFree {
        /// The address that `MemAlloc` gave.
        address: DeviceAddress,
    },
    /// Reserves addresses for memory to come. Answered at once with the first address.
    Reserve {
        /// Length in bytes.
        bytes: u64,
        /// Alignment in bytes, a power of two.
        alignment: u64,
    },
    /// Gives reserved addresses back. Nothing may be mapped there. Answered at once.
    Unreserve {
        /// The address that `Reserve` gave.
        address: DeviceAddress,
    },
    /// Maps the first bytes of an allocation into reserved addresses, without access. Answered at
    /// once.
    Map {
        /// The address that `MemAlloc` gave.
        home: DeviceAddress,
        /// The reserved addresses.
        range: AddressRange,
    },
    /// Ends a mapping. Answered when everything that the session enqueued before has ended.
    Unmap {
        /// The mapping's first address.
        address: DeviceAddress,
    },
    /// Sets the access to whole mappings. Answered at once; where access shrinks, answered when
    /// everything that the session enqueued before has ended.
    SetAccess {
        /// The addresses of the mappings, without gaps.
        range: AddressRange,
        /// The new access.
        access: MemoryAccess,
    },
    /// Lets other processes of the same user open an allocation. Answered at once with a secret:
    /// always the same for one allocation.
    ExportMemory {
        /// The address that `MemAlloc` gave.
        address: DeviceAddress,
    },
    /// Maps memory that another process has exported. Answered at once with its addresses.
    OpenMemory {
        /// What the other process was answered.
        secret: Secret,
    },
    /// Ends a mapping of another process's memory. Answered when everything that the session
    /// enqueued before has ended.
    CloseMemory {
        /// The address that `OpenMemory` gave.
        address: DeviceAddress,
    },
    /// `cuMemGetInfo`. Answered at once with free and total memory.
    MemInfo,
    /// Makes an array. Answered at once with its address: copies take it as they take memory's,
    /// kernels do not.
    ArrayCreate {
        /// The array's extents and texels.
        shape: ArrayShape,
    },
    /// Destroys an array. Answered when everything that the session enqueued before has ended.
    ArrayDestroy {
        /// The address that `ArrayCreate` gave.
        array: DeviceAddress,
    },
    /// Makes a texture or surface object. Answered at once with the number that kernels use.
    TextureCreate {
        /// The texels and how they are sampled.
        spec: TextureSpec,
    },
    /// Destroys a texture or surface object. Answered when everything that the session enqueued
    /// before has ended.
    TextureDestroy {
        /// The number that `TextureCreate` gave.
        texture: u64,
    },
    /// Makes a tensor map. Answered at once with its bytes.
    TensorMap {
        /// The parameters of the call.
        spec: Box<TensorMapSpec>,
    },
    /// Gives a tensor map another address. Answered at once with its bytes.
    TensorMapMove {
        /// The map.
        map: Box<TensorMap>,
        /// The new address of the first element.
        address: DeviceAddress,
    },
    /// Loads a module from a complete image. Answered when done with the module's contents.
    ModuleLoad {
        /// The module's new handle.
        module: ModuleHandle,
        /// The image.
        image: ImageId,
    },
    /// Unloads a module. Answered when everything that the session enqueued before has ended.
    ModuleUnload {
        /// The module.
        module: ModuleHandle,
    },
    /// Creates a stream. Answered at once.
    StreamCreate {
        /// The stream's new handle.
        stream: StreamHandle,
        /// Whether the stream is ordered with the legacy default stream.
        kind: StreamKind,
        /// CUDA's priority: lower numbers go first.
        priority: i32,
    },
    /// Destroys a stream; its queued work still runs. Answered at once.
    StreamDestroy {
        /// The stream.
        stream: StreamHandle,
    },
    /// `cuStreamQuery`: whether all earlier work of a stream is done. Answered at once: success or
    /// `NOT_READY`.
    StreamQuery {
        /// The stream.
        stream: StreamHandle,
    },
    /// Creates an event. Answered at once.
    EventCreate {
        /// The event's new handle.
        event: EventHandle,
        /// The event's slot in the session's memory, where its records show. No other live event of
        /// the session uses the slot.
        slot: u32,
    },
    /// Destroys an event; a queued record of it still runs. Answered at once.
    EventDestroy {
        /// The event.
        event: EventHandle,
    },
    /// Lets other processes of the same user open an event. Answered at once with a secret: always
    /// the same for one event.
    ExportEvent {
        /// The event.
        event: EventHandle,
    },
    /// Opens an event that another process has exported. Answered at once.
    OpenEvent {
        /// The new handle in this session.
        event: EventHandle,
        /// What the other process was answered.
        secret: Secret,
    },
    /// Whether the latest record of an event, by whichever process, has happened. Answered at once:
    /// success or `NOT_READY`.
    EventQuery {
        /// The event.
        event: EventHandle,
    },
    /// Waits for the latest record of an event, by whichever process. Answered when it has
    /// happened.
    EventSynchronize {
        /// The event.
        event: EventHandle,
    },
    /// Records an event in a stream. Answered at once. When the stream reaches the record, the
    /// event's slot gets the record's number and the device's time.
    EventRecord {
        /// The event.
        event: EventHandle,
        /// The stream.
        stream: StreamHandle,
    },
    /// Makes a stream's later work wait for an event's latest record. Answered at once.
    StreamWait {
        /// The stream that waits.
        stream: StreamHandle,
        /// The event.
        event: EventHandle,
    },
    /// Launches a kernel. Answered at once.
    Launch(Launch<B>),
    /// Copies from the arena to the device. Answered when done: the arena's range is free then.
    CopyToDevice {
        /// The stream.
        stream: StreamHandle,
        /// Destination.
        to: DeviceAddress,
        /// Source.
        from: ArenaRange,
    },
    /// Copies from the device to the arena. Answered when done.
    CopyToHost {
        /// The stream.
        stream: StreamHandle,
        /// Destination.
        to: ArenaRange,
        /// Source.
        from: DeviceAddress,
    },
    /// Copies inside the device; the ranges may overlap. Answered when done.
    CopyOnDevice {
        /// The stream.
        stream: StreamHandle,
        /// Destination.
        to: DeviceAddress,
        /// Source.
        from: DeviceAddress,
        /// Length in bytes.
        bytes: u64,
    },
    /// Writes `count` copies of the lowest `width` bytes of `value`. Answered when done.
    Fill {
        /// The stream.
        stream: StreamHandle,
        /// Destination, a multiple of `width`.
        to: DeviceAddress,
        /// The value, little-endian.
        value: u32,
        /// Width of an element in bytes: 1, 2 or 4.
        width: u8,
        /// Number of elements.
        count: u64,
    },
    /// Makes a stream's later work wait for the value of a word of memory (`cuStreamWaitValue32`,
    /// `64`). Answered when done.
    WaitWord {
        /// The stream.
        stream: StreamHandle,
        /// The word's address, a multiple of its width.
        address: DeviceAddress,
        /// The value and the comparison.
        word: AwaitedWord,
    },
    /// Waits for all earlier work. Answered when done.
    Synchronize {
        /// The stream; `None` for all of the session's.
        stream: Option<StreamHandle>,
    },
    /// Makes a stream's later work wait until the gate is opened, so that a stream waits for
    /// something that the program does (`cuLaunchHostFunc`). Answered when the stream reaches it.
    Gate {
        /// The stream.
        stream: StreamHandle,
    },
    /// Opens a gate. Answered at once.
    OpenGate {
        /// The number of the gate's record, which has been answered.
        gate: Sequence,
    },
}
