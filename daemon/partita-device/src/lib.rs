//! The one contract with a GPU: commands in, events and counters out.
//!
//! [`Device`] is implemented in software by `partita-emu` and, on NVIDIA's driver, by
//! `partita-cuda`. Everything above it (the engine, the data plane) is the same for both and never
//! asks which one it has, except through [`partita_model::DeviceFacts`].
//!
//! # What the contract says
//!
//! - **Memory.** A *window* is one contiguous range of reserved addresses. Inside it the caller
//!   says which ranges are live ([`Device::allocate`], [`Device::free`]); where they lie is the
//!   caller's choice. A grid may touch only the ranges that its launch names in [`Launch::access`].
//! - **Order.** Operations of one stream run in the order of their submission; each begins when the
//!   one before it has ended. Streams do not order one another except by [`Work::Wait`]. There is
//!   no legacy default stream here.
//! - **Arrays and textures.** An array belongs to a window and lies where no kernel's loads and
//!   stores reach. The address that the device gives it stands for its bytes in canonical order
//!   ([`partita_model::texture`]): copies take it as they take memory's, nothing else does. A
//!   texture or surface object is a number that kernels of its window use.
//! - **Ids** are the caller's, never reused.
//! - **Signals.** [`Device::peek`] and [`Device::poke`] reach memory at once, beside all streams,
//!   while kernels run; a running kernel's volatile loads see a poke. Words of up to 8 bytes that
//!   are naturally aligned are never torn.
//! - **Progress.** The device advances only inside [`Device::poll`] as far as the caller can tell.
//! - **Counters** of a grid or of the device only grow; two samples bound a window.
//! - **Faults** of a grid end that grid; [`Outcome::Fault`] says what happened. [`Event::Lost`]
//!   says that everything on the device is gone.

mod command;
mod event;
mod host_memory;

pub use command::{Launch, Work};
pub use event::{
    Assertion, Event, Fault, FaultKind, KernelFacts, ModuleFacts, Outcome, RefusedKernel,
    ThreadPosition, VariableFacts,
};
pub use host_memory::{HostMemory, HostSpan};
pub use partita_model::AddressRange;

use partita_model::texture::{ArrayShape, TextureSpec};
use partita_model::{
    CacheShape, Calibration, DeviceAddress, DeviceCounters, DeviceFacts, GridCounters, HostTime,
    MemoryAccess, ModuleId, Nanos, OperationId, Sharing, SmSet, StreamId, WindowId,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// How far [`Device::poll`] may go before it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// Device time that must not be passed, where the caller has something to do then.
    pub until: Option<Nanos>,
    /// About how many warp instructions an emulated device may execute, so that it returns to its
    /// caller in time.
    pub warp_instructions: u64,
}

/// Whether a device has something left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// Nothing is in flight: only a new command can lead to an event.
    Idle,
    /// Work is in flight: poll again.
    Busy,
    /// Nothing is in flight but what waits for a word of host memory, which tells nobody when it
    /// changes: poll again in a while.
    Watching,
    /// Work is in flight, and nothing is to be seen of it until [`Device::news`] is readable.
    Waiting,
}

/// Whether grids can be kept to SMs that were asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confinement {
    /// They can.
    Ready,
    /// Not yet: [`Event::Confined`] follows. It may take as long as loading a module, and wait for
    /// what that waits for ([`Device::loading_waits_for_grids`]).
    Pending,
}

/// What kernels must be rewritten for, because the device does not see to it by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Guards {
    /// Accesses of global memory must be forced into their window's cell, which has so many address
    /// bits. `None`: the device holds every access to [`Launch::access`].
    pub cell_bits: Option<u32>,
    /// `trap` and failed assertions must end their launch in the kernel's own code: in the device's
    /// they would end everything.
    pub ends: bool,
}

/// Why a call was refused. A refusal changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DeviceError {
    /// There is no room for it.
    #[error("out of device memory: {wanted} bytes wanted, {available} available")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes left.
        available: u64,
    },
    /// The range is not (entirely) live memory that the caller may use this way.
    #[error("{bytes} bytes at {address} are not live device memory")]
    BadRange {
        /// First byte.
        address: DeviceAddress,
        /// Length.
        bytes: u64,
    },
    /// An id that the caller uses does not exist (any more), or exists already.
    #[error("{0} is not known to the device, or is taken")]
    BadId(String),
    /// The launch cannot run on this device at all.
    #[error("launch refused: {0}")]
    BadLaunch(String),
    /// This device cannot do that.
    #[error("not supported by this device: {0}")]
    Unsupported(String),
}

/// A GPU. See the crate's page for what every implementation promises.
pub trait Device {
    /// Its fixed properties.
    fn facts(&self) -> &DeviceFacts;

    /// Its bandwidths, for policies: measured or known from its specification.
    fn calibration(&self) -> Calibration;

    /// The data cache of each SM, where it is known; else the smallest that any GPU with caches for
    /// global loads has.
    fn l1(&self) -> CacheShape {
        CacheShape { bytes: 16 << 10, ways: 4 }
    }

    /// A text that differs wherever measurements on two devices may differ: a GPU's name, driver
    /// and clocks, or an emulated GPU's specification. What is kept on disk of a device's speed is
    /// kept under it.
    fn identity(&self) -> String {
        format!("{:?}", self.facts())
    }

    /// How grids of several windows share it. Where not [`Sharing::Spatial`], kernels run in their
    /// original form.
    fn sharing(&self) -> Sharing {
        Sharing::Spatial
    }

    /// What its kernels must be rewritten for.
    fn guards(&self) -> Guards {
        Guards::default()
    }

    /// What host time between the calls of a program is worth; `None` where a clock runs beside the
    /// host's.
    fn host_time(&self) -> Option<HostTime> {
        None
    }

    /// Device time.
    fn now(&self) -> Nanos;

    /// A descriptor that becomes readable when there may be something to poll for, where time
    /// passes beside the host's: what says [`Activity::Waiting`] has one.
    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether loading a module may wait for every grid that runs, and hold other calls meanwhile.
    /// Then no worker may be told to wait while one is loaded.
    fn loading_waits_for_grids(&self) -> bool {
        false
    }

    /// Reserves a window of at least `bytes` and returns its base, aligned to at least 2 MiB. The
    /// window lies in a cell of the address space that no other window shares, with margins in
    /// which nothing lies, so that fenced kernels stay among what is their tenant's
    /// (`partita_ptx::fence`, `MARGIN_BYTES` and `cell_bits`). A real GPU reserves the cell by
    /// `cuMemAddressReserve` and maps nothing into the margins, or one scratch allocation over and
    /// over.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where addresses are used up, [`DeviceError::BadId`] where the
    /// id is taken.
    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError>;

    /// Gives a window back with everything that is live in it, and its arrays and texture objects.
    /// Nothing that uses it may be in flight.
    ///
    /// # Errors
    /// [`DeviceError::BadId`].
    fn release(&mut self, window: WindowId) -> Result<(), DeviceError>;

    /// Makes `range` live. The contents are undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`]; [`DeviceError::BadRange`] where it is not inside `window` or
    /// overlaps a live range.
    fn allocate(&mut self, window: WindowId, range: AddressRange) -> Result<(), DeviceError>;

    /// Makes a range live that is for signals: small, peeked and poked often while kernels poll it.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    fn allocate_signals(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<(), DeviceError> {
        self.allocate(window, range)
    }

    /// Ends the life of the range that was allocated at `address`.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where none was.
    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError>;

    /// Moves an allocation with its contents to another address of the same window, where nothing
    /// is. Nothing in flight may use it.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where nothing was allocated at `from`, or something lies in the
    /// way; else [`DeviceError::Unsupported`].
    fn relocate(&mut self, _from: DeviceAddress, _to: DeviceAddress) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("moving memory to other addresses".to_owned()))
    }

    /// Lets the first bytes of the allocation at `home` be reached at `range`, too, which lies in
    /// the same window, where nothing is. Both are equals from then on: each ends by
    /// [`Device::free`], and the bytes with the last of them. Counts as no further memory.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where nothing was allocated at `home`, or not so much, or
    /// something lies in the way; else [`DeviceError::Unsupported`].
    fn alias(&mut self, _home: DeviceAddress, _range: AddressRange) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("memory at several addresses".to_owned()))
    }

    /// Says what kernels may do to what begins at `address`, an allocation or an alias of one;
    /// everything, before it is said.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where none begins there; else [`DeviceError::Unsupported`].
    fn protect(
        &mut self,
        _address: DeviceAddress,
        _access: MemoryAccess,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("access rights of memory".to_owned()))
    }

    /// Lets kernels and copies reach host memory at `start`, inside the window, where nothing is
    /// allocated. Both sides see what the other wrote when a grid begins and when it has ended, at
    /// the latest. The last `variables` bytes are the device's, for variables that modules declare
    /// managed. It ends with the window.
    ///
    /// # Errors
    /// [`DeviceError::BadId`], [`DeviceError::BadRange`], [`DeviceError::Unsupported`].
    fn map_host(
        &mut self,
        _window: WindowId,
        _start: DeviceAddress,
        _memory: HostSpan,
        _variables: u64,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("host memory for kernels".to_owned()))
    }

    /// Starts to load a module from PTX text. Its variables become live in `window`.
    /// [`Event::ModuleLoaded`] or [`Event::ModuleRefused`] follows.
    ///
    /// # Errors
    /// [`DeviceError::BadId`].
    fn load_module(
        &mut self,
        module: ModuleId,
        window: WindowId,
        ptx: Arc<str>,
    ) -> Result<(), DeviceError>;

    /// Whether it runs machine code that nobody has rewritten ([`Device::load_code`]).
    fn runs_machine_code(&self) -> bool {
        false
    }

    /// Starts to load a module from an image of machine code, whose tables were checked
    /// (`partita_cubin::read`). Its variables may lie in no window; copies and fills reach them.
    /// Else as [`Device::load_module`].
    ///
    /// # Errors
    /// [`DeviceError::BadId`]; [`DeviceError::Unsupported`] where the device runs none.
    fn load_code(
        &mut self,
        _module: ModuleId,
        _window: WindowId,
        _image: Arc<[u8]>,
    ) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("machine code: compile with PTX".to_owned()))
    }

    /// The groups of SMs that grids can be kept to as they are ([`Work::LaunchOn`]), disjoint, in
    /// order of their first SMs. SMs of no group may exist. Empty where the device keeps no grid
    /// that is not rewritten to any SMs.
    fn sm_groups(&self) -> &[SmSet] {
        &[]
    }

    /// Makes ready for launches on these SMs, a union of groups.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where they are none.
    fn confine(&mut self, _sms: SmSet) -> Result<Confinement, DeviceError> {
        Err(DeviceError::Unsupported("keeping grids to SMs as they are".to_owned()))
    }

    /// Unloads a module. None of its grids may be in flight.
    ///
    /// # Errors
    /// [`DeviceError::BadId`].
    fn unload_module(&mut self, module: ModuleId) -> Result<(), DeviceError>;

    /// Creates a stream.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] where the id is taken.
    fn create_stream(&mut self, stream: StreamId) -> Result<(), DeviceError>;

    /// Destroys a stream. What is in it still runs to its end.
    ///
    /// # Errors
    /// [`DeviceError::BadId`].
    fn destroy_stream(&mut self, stream: StreamId) -> Result<(), DeviceError>;

    /// Appends an operation to a stream. [`Event::Done`] follows for every one that was accepted.
    ///
    /// # Errors
    /// Whatever can be known at once: bad ids, launches that no SM can hold.
    fn enqueue(
        &mut self,
        stream: StreamId,
        operation: OperationId,
        work: Work,
    ) -> Result<(), DeviceError>;

    /// Ends a grid or a [`Work::WaitValue`] that is queued or running, as soon as the device can;
    /// its `Done` says [`Outcome::Cancelled`]. An operation that has ended is left alone.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device can't: its kernels must look at an abort flag
    /// then.
    fn cancel(&mut self, operation: OperationId) -> Result<(), DeviceError>;

    /// Reads live memory beside all streams.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    fn peek(&mut self, address: DeviceAddress, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes live memory beside all streams.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Makes an array. Its address is no kernel's; copies may use it. The contents are undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`]; [`DeviceError::BadId`] for the window;
    /// [`DeviceError::Unsupported`].
    fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError>;

    /// Ends the life of an array. Textures and surfaces of it fault from now on.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where there is none.
    fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError>;

    /// Makes a texture or surface object, and returns what kernels are given for it: never 0.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] for the window; [`DeviceError::BadRange`] where there is no such
    /// array of the window, or it has no such levels; [`DeviceError::Unsupported`].
    fn create_texture(&mut self, window: WindowId, spec: &TextureSpec) -> Result<u64, DeviceError>;

    /// Ends the life of a texture or surface object.
    ///
    /// # Errors
    /// [`DeviceError::BadId`] where the window has none of that number.
    fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError>;

    /// Whether every CTA's coming and going is told as [`Event::Residency`]. Off at the start.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device can't tell.
    fn trace_residency(&mut self, on: bool) -> Result<(), DeviceError>;

    /// Takes power from these SMs, from each when its last CTA has left, and gives it to all
    /// others. No new CTA comes to an SM without power: whoever gates SMs leaves some to everything
    /// that is to run.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] where the device cannot gate SMs.
    fn gate(&mut self, _sms: SmSet) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("gating SMs".to_owned()))
    }

    /// What a grid has done, so far or in all. Counters of a grid that has ended are kept for a
    /// while: until thousands more have ended. `None` where the device does not count, or has not
    /// begun the grid, or knows it no longer.
    fn grid_counters(&self, _operation: OperationId) -> Option<GridCounters> {
        None
    }

    /// What the device has done since its start; `None` where it does not count.
    fn counters(&self) -> Option<DeviceCounters> {
        None
    }

    /// Starts to look at the traffic of the whole device's LLC, under this number; the one before
    /// it ends without a result.
    fn begin_traffic(&mut self, _window: u64) {}

    /// Ends what [`Device::begin_traffic`] started. Its result comes later, if it comes.
    fn end_traffic(&mut self, _window: u64) {}

    /// The LLC's hit rates, from 0 to 1, in windows that have ended: each once. None where the
    /// device does not count.
    fn hit_rates(&mut self) -> Vec<(u64, f64)> {
        Vec::new()
    }

    /// Accesses of kernels past an allocation, inside pages that their program has mapped, since
    /// the device was opened; 0 where the device does not count them.
    fn stray_accesses(&self) -> u64 {
        0
    }

    /// Energy since it was opened, where it is known.
    fn nanojoules(&self) -> Option<u64> {
        self.counters().map(|counters| counters.nanojoules)
    }

    /// Lets the device advance, and appends what happened to `events` in order of device time.
    /// Returns at the horizon, or earlier when there are events.
    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity;
}
