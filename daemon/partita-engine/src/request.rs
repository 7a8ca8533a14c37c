//! What sessions ask of the engine, and what it answers.
//!
//! Handles are chosen by the client (creating a stream or an event needs no round trip); they mean
//! something only inside their session. Everything in a request is untrusted: the engine checks it
//! all.
//!
//! Every request gets exactly one [`crate::Action::Reply`]. When it comes is said at each variant:
//! *at once* means that it was checked and accepted (or refused), *when done* that its effects can
//! be seen.

use partita_device::{AddressRange, HostSpan, KernelFacts, VariableFacts};
use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{AwaitedWord, DeviceAddress, Dim3, MemoryAccess, Nanos};
use std::fmt;
use std::sync::Arc;

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
    /// A stream of one session.
    StreamHandle, "stream "
}
handle! {
    /// An event of one session.
    EventHandle, "event "
}
handle! {
    /// A module of one session.
    ModuleHandle, "module "
}
handle! {
    /// A module's image, which the shell keeps: a fatbin, PTX text or the like. The engine only
    /// passes it on.
    ImageId, "image "
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

/// One request of a session.
#[derive(Clone, Debug)]
pub enum Request {
    /// Allocates device memory. Replied at once with [`Payload::Address`].
    MemAlloc {
        /// How much, at least 1.
        bytes: u64,
    },
    /// Frees device memory. Replied when everything that the session had enqueued before has ended,
    /// as `cuMemFree` synchronises.
    MemFree {
        /// What `MemAlloc` gave.
        address: DeviceAddress,
    },
    /// Takes addresses for memory to come. Replied at once with [`Payload::Address`].
    Reserve {
        /// How many.
        bytes: u64,
        /// A power of two.
        alignment: u64,
    },
    /// Gives reserved addresses back, in which nothing is. Replied at once.
    Unreserve {
        /// What `Reserve` gave.
        address: DeviceAddress,
    },
    /// Maps the first bytes of what `MemAlloc` gave into reserved addresses, where nothing may be
    /// done to them yet. Replied at once.
    Map {
        /// What `MemAlloc` gave.
        home: DeviceAddress,
        /// Where to, and how much.
        range: AddressRange,
    },
    /// Ends a mapping. Replied when everything that the session had enqueued before has ended.
    Unmap {
        /// Where it begins.
        address: DeviceAddress,
    },
    /// Says what may be done to whole mappings. Replied at once; where something was allowed before
    /// that is not now, when everything that the session had enqueued before has ended.
    SetAccess {
        /// What the mappings make up, without gaps.
        range: AddressRange,
        /// What may be done.
        access: MemoryAccess,
    },
    /// `cuMemGetInfo`. Replied at once with [`Payload::Memory`].
    MemInfo,
    /// Makes an array. Replied at once with [`Payload::Address`], which copies take as they take
    /// memory's.
    ArrayCreate {
        /// What it holds.
        shape: ArrayShape,
    },
    /// Ends an array. Replied when everything that the session had enqueued before has ended.
    ArrayDestroy {
        /// What `ArrayCreate` gave.
        array: DeviceAddress,
    },
    /// Makes a texture or surface object. Replied at once with [`Payload::Texture`].
    TextureCreate {
        /// Of what, and how it is sampled.
        spec: Box<TextureSpec>,
    },
    /// Ends a texture or surface object. Replied when everything that the session had enqueued
    /// before has ended.
    TextureDestroy {
        /// What `TextureCreate` gave.
        texture: u64,
    },
    /// Loads a module. The engine asks the shell to prepare the image ([`crate::Action::Prepare`]),
    /// then has the device load it. Replied when done with [`Payload::Module`].
    LoadModule {
        /// Its handle, chosen by the client.
        module: ModuleHandle,
        /// What to load.
        image: ImageId,
    },
    /// Unloads a module. Replied when everything that the session had enqueued before has ended.
    UnloadModule {
        /// Which.
        module: ModuleHandle,
    },
    /// Creates a stream. Replied at once.
    StreamCreate {
        /// Its handle, chosen by the client.
        stream: StreamHandle,
        /// Whether it is ordered with the legacy default stream.
        kind: StreamKind,
    },
    /// Destroys a stream; what is in it still runs. Replied at once.
    StreamDestroy {
        /// Which.
        stream: StreamHandle,
    },
    /// Creates an event. Replied at once.
    EventCreate {
        /// Its handle, chosen by the client.
        event: EventHandle,
    },
    /// Destroys an event; a record of it that is in a stream still runs. Replied at once.
    EventDestroy {
        /// Which.
        event: EventHandle,
    },
    /// Records an event in a stream. Replied at once; [`crate::Action::EventRecorded`] follows when
    /// the stream gets there.
    EventRecord {
        /// Which.
        event: EventHandle,
        /// Where.
        stream: StreamHandle,
    },
    /// Lets a stream wait for an event's last record. Replied at once.
    StreamWait {
        /// Who waits.
        stream: StreamHandle,
        /// For what.
        event: EventHandle,
    },
    /// `cuEventQuery`. Replied at once: success with [`Payload::Time`] where the event was recorded
    /// and has been reached, success with [`Payload::None`] where it never was recorded,
    /// `NOT_READY` otherwise.
    EventQuery {
        /// Which.
        event: EventHandle,
    },
    /// `cuEventSynchronize`. Replied as `EventQuery`, when the event's last record is done.
    EventSynchronize {
        /// Which.
        event: EventHandle,
    },
    /// Launches a kernel. Replied at once.
    Launch(Box<LaunchRequest>),
    /// Copies from the host to the device. Replied when done: the host memory may be used again
    /// then.
    CopyToDevice {
        /// In which stream.
        stream: StreamHandle,
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: HostSpan,
    },
    /// Copies from the device to the host. Replied when done.
    CopyToHost {
        /// In which stream.
        stream: StreamHandle,
        /// Where to.
        to: HostSpan,
        /// Where from.
        from: DeviceAddress,
    },
    /// Copies inside the device. Replied when done.
    CopyOnDevice {
        /// In which stream.
        stream: StreamHandle,
        /// Where to.
        to: DeviceAddress,
        /// Where from.
        from: DeviceAddress,
        /// How much.
        bytes: u64,
    },
    /// Writes `count` copies of the lowest `width` bytes of `value`. Replied when done.
    Fill {
        /// In which stream.
        stream: StreamHandle,
        /// Where to.
        to: DeviceAddress,
        /// Little-endian.
        value: u32,
        /// 1, 2 or 4.
        width: u8,
        /// How many elements.
        count: u64,
    },
    /// Makes a stream's later work wait until a word of memory is what is wanted
    /// (`cuStreamWaitValue32`, `64`). Replied when done.
    WaitWord {
        /// In which stream.
        stream: StreamHandle,
        /// Where it is, a multiple of its width.
        address: DeviceAddress,
        /// What is wanted.
        word: AwaitedWord,
    },
    /// Waits for everything enqueued before. Replied when done.
    Synchronize {
        /// In this stream, or in all of the session's.
        stream: Option<StreamHandle>,
    },
    /// Makes a stream's later work wait until the gate is opened. Replied when the stream gets
    /// there.
    Gate {
        /// In which stream.
        stream: StreamHandle,
    },
    /// Opens a gate. Replied at once.
    OpenGate {
        /// Sequence number of the request that made it; it has been replied.
        gate: u64,
    },
    /// `cuStreamQuery`: replied at once, success or `NOT_READY`.
    StreamQuery {
        /// Which.
        stream: StreamHandle,
    },
}

/// One `cuLaunchKernel`.
#[derive(Clone, Debug)]
pub struct LaunchRequest {
    /// In which stream.
    pub stream: StreamHandle,
    /// A loaded module.
    pub module: ModuleHandle,
    /// The kernel's index in [`LoadedModule::kernels`].
    pub kernel: u32,
    /// Extent of the grid in CTAs.
    pub grid: Dim3,
    /// Extent of a CTA in threads.
    pub block: Dim3,
    /// Dynamic shared memory per CTA in bytes.
    pub dynamic_shared: u32,
    /// All CTAs must be resident at once (`cuLaunchCooperativeKernel`).
    pub cooperative: bool,
    /// The kernel's parameter space as its declaration lays it out; its size must be the
    /// declaration's.
    pub params: Vec<u8>,
}

/// What a reply carries besides its code.
#[derive(Clone, PartialEq, Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// Of `MemAlloc` and `ArrayCreate`.
    Address(DeviceAddress),
    /// Of `TextureCreate`: what kernels are given.
    Texture(u64),
    /// Of `MemInfo`.
    Memory {
        /// Bytes that can still be allocated.
        free: u64,
        /// Bytes that there are.
        total: u64,
    },
    /// Of `LoadModule`.
    Module(Arc<LoadedModule>),
    /// Of `EventQuery` and `EventSynchronize`: the device time at which the event was reached.
    Time(Nanos),
    /// Of anything that failed for a reason worth telling: a text for the program's user.
    Explanation(String),
}

/// What a session learns of its loaded module.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadedModule {
    /// Its kernels; launches name them by their index here.
    pub kernels: Vec<LoadedKernel>,
    /// Its global and constant variables.
    pub variables: Vec<VariableFacts>,
}

/// One kernel of a loaded module.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadedKernel {
    /// Its name in the program's module.
    pub name: Arc<str>,
    /// Its parameters.
    pub params: Vec<ParamLayout>,
    /// Size of its parameter space.
    pub param_bytes: u32,
    /// What the device knows of it, or why the device cannot run it.
    pub facts: Result<KernelFacts, String>,
}

/// Where a parameter lies in a kernel's parameter space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParamLayout {
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}
