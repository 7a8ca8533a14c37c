//! The one contract with a GPU: commands in, events and counters out.
//!
//! `partita-emu` implements [`Device`] in software, `partita-cuda` on NVIDIA's driver. The engine
//! and the data plane are the same for both: they ask for facts ([`partita_model::DeviceFacts`])
//! and abilities, never for the device's kind. An ability is a trait that a device returns where it
//! has it ([`Device::aliasing`] and the like).
//!
//! # What the contract says
//!
//! - **Memory.** A *window* is one contiguous range of reserved addresses. Inside it the caller
//!   says which ranges are live ([`Device::allocate`], [`Device::free`]); where they lie is the
//!   caller's choice. A grid may touch only the ranges of its [`GridSpec::access`].
//! - **Order.** Operations of one stream run in the order of their submission; each begins when the
//!   one before it has ended. Streams do not order one another except by [`Work::Wait`]. There is
//!   no legacy default stream here.
//! - **Arrays and textures.** An array belongs to a window and lies where no kernel's loads and
//!   stores reach. The address that the device gives it stands for its bytes in canonical order
//!   ([`partita_model::texture`]): copies take it as they take memory's, nothing else does. A
//!   texture or surface object is a number that kernels of its window use.
//! - **Ids** are the caller's, never reused.
//! - **Signals.** [`Device::peek`] and [`Device::poke`] reach memory at once, beside all streams,
//!   while kernels run, and so does [`Device::peek_lately`], which never waits; a running kernel's
//!   volatile loads see a poke. Words of up to 8 bytes that are naturally aligned are never torn.
//! - **Progress.** The device advances only inside [`Device::poll`] as far as the caller can tell.
//! - **Counters** of a grid or of the device only grow; two samples bound a window.
//! - **Faults** of a grid end that grid; [`Outcome::Fault`] says what happened. [`Event::Lost`]
//!   says that everything on the device is gone.

mod ability;
mod command;
mod event;
mod host_memory;

pub use ability::{
    Aliasing, Confining, Counting, Gating, HostMapping, Lending, LentShape, MachineCode, Reading,
    Relocation, ResidencyTrace, TensorMaps, Textures, TrafficSampling,
};
pub use command::{GridSpec, Work};
pub use event::{
    Assertion, Event, Fault, FaultKind, KernelFacts, ModuleFacts, Outcome, RefusedKernel,
    ThreadPosition, VariableFacts,
};
pub use host_memory::{HostMemory, HostSpan};
pub use partita_model::AddressRange;

use partita_model::{
    CacheShape, Calibration, DeviceAddress, DeviceFacts, HostTime, ModuleId, Nanos, OperationId,
    Sharing, SmSet, StreamId, WindowId,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The bounds of one [`Device::poll`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Horizon {
    /// Device time in nanoseconds that must not be passed.
    pub until: Option<Nanos>,
    /// Warp instructions, about, that an emulated device may execute, so that it returns to its
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
    /// Waits for words of memory are in flight. Nothing tells of their change: poll again in a
    /// while, or when [`Device::news`] is readable.
    Watching,
    /// Work is in flight, and no event comes before [`Device::news`] is readable.
    Waiting,
}

/// Whether a device takes new launches, and calls.
///
/// Calls that wait for running grids, and hold up all others meanwhile, are made in a *phase*: no
/// new launch begins, the running ones end, and a thread of the device makes the calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// It takes both.
    #[default]
    Open,
    /// It waits for the running launches to end. No new launch may begin; the running ones may have
    /// whatever they need, and may leave ([`Device::launches_may_leave`]). [`Event::Reopened`]
    /// follows, at the latest after the device's limit.
    Draining,
    /// A thread of the device makes calls that hold up others. Any call but [`Device::poll`],
    /// [`Device::phase`] and the facts may wait for them; [`Device::news`] tells of their end, and
    /// [`Event::Reopened`] follows.
    Closed,
}

/// Whether grids can be kept to SMs that were asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Confinement {
    /// They can.
    Ready,
    /// Not yet: [`Event::Confined`] follows. It may take as long as loading a module, and waits for
    /// the same things ([`Device::loading_waits_for_grids`]).
    Pending,
}

/// Guards that kernels must carry in their own code, because the device has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Guards {
    /// Accesses of global memory must be forced into their window's cell, which has so many address
    /// bits. `None`: the device holds every access to [`GridSpec::access`].
    pub cell_bits: Option<u32>,
    /// `trap` and failed assertions must end their launch in the kernel's own code: in the device's
    /// they would end everything.
    pub ends: bool,
    /// `vprintf` must write to memory, in the kernel's own code (`partita_ptx::output`): in the
    /// device's it would write to this process's standard output.
    pub prints: bool,
    /// Every other fault of a kernel must end its launch in the kernel's own code, too
    /// (`partita_ptx::contain`), and so must a launch that goes on for ever.
    pub contains: bool,
}

/// A window that takes few addresses ([`Device::reserve_small`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallWindow {
    /// Its addresses.
    pub range: AddressRange,
    /// What kernels must carry there.
    pub guards: Guards,
}

/// The reason why a call was refused. A refusal changes nothing.
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
    /// It can be done when the device has been idle: the caller asks again after
    /// [`Event::Reopened`].
    #[error("this can be done when no kernel runs")]
    Busy,
    /// A value that cannot be.
    #[error("{0}")]
    BadValue(String),
    /// An id that the caller uses does not exist (any more), or exists already.
    #[error("the device does not know {0}, or has it already")]
    BadId(String),
    /// The launch cannot run on this device at all.
    #[error("launch refused: {0}")]
    BadLaunch(String),
    /// This device cannot do that.
    #[error("not supported by this device: {0}")]
    Unsupported(String),
}

/// A GPU. See the crate's page for what every implementation promises.
pub trait Device: Textures {
    /// Its fixed properties.
    fn facts(&self) -> &DeviceFacts;

    /// Its bandwidths, for policies: measured or known from its specification.
    fn calibration(&self) -> Calibration;

    /// The data cache of each SM, where it is known; else the smallest that any GPU with caches for
    /// global loads has.
    fn l1(&self) -> CacheShape {
        CacheShape::sectored(16 << 10, 4)
    }

    /// A text that differs wherever measurements on two devices may differ: a GPU's name, driver
    /// and clocks, or an emulated GPU's specification. Measurements on disk are kept under it.
    fn identity(&self) -> String {
        format!("{:?}", self.facts())
    }

    /// How grids of several windows share it. Where not [`Sharing::Spatial`], kernels run in their
    /// original form.
    fn sharing(&self) -> Sharing {
        Sharing::Spatial
    }

    /// The guards that its kernels must carry.
    fn guards(&self) -> Guards {
        Guards::default()
    }

    /// The worth of host time between a program's calls, in device time. `None` where the device's
    /// clock runs beside the host's.
    fn host_time(&self) -> Option<HostTime> {
        None
    }

    /// The groups of SMs that grids can be kept to ([`Work::LaunchOn`]): disjoint, in order of
    /// their first SMs. SMs of no group may exist. Empty where the device keeps no grid to any SMs.
    fn sm_groups(&self) -> &[SmSet] {
        &[]
    }

    /// The SMs of each graphics processing cluster (GPC): all CTAs of a cluster run on SMs of one.
    /// Empty where that is unknown.
    fn gpcs(&self) -> &[SmSet] {
        &[]
    }

    /// Device time.
    fn now(&self) -> Nanos;

    /// Whether nothing is in flight but waits for words of memory: only a command, or a write of
    /// the host, can lead to an event. `false` where the device's clock runs beside the host's.
    fn is_at_rest(&self) -> bool {
        false
    }

    /// A descriptor that becomes readable when there may be something to poll for. A device that
    /// says [`Activity::Waiting`] has one.
    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether loading a module may wait for every running grid, and hold other calls meanwhile.
    /// Then no worker may be told to wait while a module is loaded.
    fn loading_waits_for_grids(&self) -> bool {
        false
    }

    /// Whether long launches shall leave the device while it drains ([`Phase::Draining`]), and come
    /// back when it has opened again.
    fn launches_may_leave(&self) -> bool {
        false
    }

    /// Launches leave the device while it drains: it may drain for longer than with launches that
    /// stay.
    fn launches_leave(&mut self) {}

    /// What its users do without because of this GPU or its driver, and why.
    fn limits(&self) -> &[String] {
        &[]
    }

    /// Whether it takes new launches, and calls.
    fn phase(&self) -> Phase {
        Phase::Open
    }

    /// Reserves a window of at least `bytes` and returns its base, aligned to at least 2 MiB. The
    /// window lies in a cell of the address space that no other window shares, with margins in
    /// which nothing lies, so that fenced kernels stay among what is their tenant's
    /// (`partita_ptx::fence`, `margin_bytes` and `cell_bits`). A real GPU reserves the cell by
    /// `cuMemAddressReserve` and maps nothing into the margins, or one scratch allocation over and
    /// over.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where addresses are used up, [`DeviceError::BadId`] where the
    /// id is taken.
    fn reserve(&mut self, window: WindowId, bytes: u64) -> Result<DeviceAddress, DeviceError>;

    /// The number of windows of `bytes` bytes for which [`Device::reserve`] has addresses when no
    /// window is reserved. Further sessions may get windows of [`Device::reserve_small`].
    fn full_windows(&self, bytes: u64) -> usize {
        let _ = bytes;
        usize::MAX
    }

    /// Reserves a window that takes few addresses, so that thousands can be had. Its kernels carry
    /// the guards that come with it.
    ///
    /// # Errors
    /// As [`Device::reserve`]; [`DeviceError::Unsupported`] where all windows are full ones.
    fn reserve_small(&mut self, window: WindowId) -> Result<SmallWindow, DeviceError> {
        let _ = window;
        Err(DeviceError::Unsupported("small windows".to_owned()))
    }

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

    /// Makes a range live in host memory that kernels write and the host reads without a wait for
    /// the device: [`Device::peek`] there sees what grids that have ended have written. The range
    /// is zeroed. `false`: the device has no such memory, and nothing is live.
    ///
    /// # Errors
    /// As [`Device::allocate`].
    fn allocate_words(
        &mut self,
        window: WindowId,
        range: AddressRange,
    ) -> Result<bool, DeviceError> {
        let _ = (window, range);
        Ok(false)
    }

    /// Bytes of device memory that the live ranges of `window` keep beyond their own sizes, which
    /// count as multiples of 512: a device may give memory in pieces that ranges share.
    fn memory_slack(&self, window: WindowId) -> u64 {
        let _ = window;
        0
    }

    /// Bytes of device memory that `window` would keep more, if `range` were allocated.
    fn memory_needed(&self, window: WindowId, range: AddressRange) -> u64 {
        let _ = window;
        range.bytes.next_multiple_of(512)
    }

    /// Ends the life of the range that was allocated at `address`.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`] where none was.
    fn free(&mut self, address: DeviceAddress) -> Result<(), DeviceError>;

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

    /// The ability to read texts on other threads before [`Device::load_module`] gets them, where
    /// the device has it.
    fn reading(&self) -> Option<Arc<dyn Reading>> {
        None
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

    /// Reads live memory as [`Device::peek`] does, without a wait for the device. `false`: `into`
    /// holds nothing, and a later call may succeed. What is read was there after the last poke to
    /// it, and after the last call that succeeded.
    ///
    /// # Errors
    /// As [`Device::peek`].
    fn peek_lately(
        &mut self,
        address: DeviceAddress,
        into: &mut [u8],
    ) -> Result<bool, DeviceError> {
        self.peek(address, into).map(|()| true)
    }

    /// Writes live memory beside all streams.
    ///
    /// # Errors
    /// [`DeviceError::BadRange`].
    fn poke(&mut self, address: DeviceAddress, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Accesses of kernels past an allocation, inside pages that their program has mapped, since
    /// the device was opened; 0 where the device does not count them.
    fn stray_accesses(&self) -> u64 {
        0
    }

    /// Bytes of this process's memory behind what is live in a window; 0 where the GPU has it.
    fn host_bytes(&self, window: WindowId) -> u64 {
        let _ = window;
        0
    }

    /// Energy since it was opened, where it is known.
    fn nanojoules(&self) -> Option<u64> {
        self.counting().map(|counting| counting.counters().nanojoules)
    }

    /// The ability to move allocations, where the device has it.
    fn relocation(&mut self) -> Option<&mut dyn Relocation> {
        None
    }

    /// The ability to reach memory at several addresses, where the device has it.
    fn aliasing(&mut self) -> Option<&mut dyn Aliasing> {
        None
    }

    /// The ability to let several windows reach one allocation, where the device has it.
    fn lending(&mut self) -> Option<&mut dyn Lending> {
        None
    }

    /// The ability to let kernels reach host memory, where the device has it.
    fn host_mapping(&mut self) -> Option<&mut dyn HostMapping> {
        None
    }

    /// The ability to make tensor maps, where the device has it.
    fn tensor_maps(&self) -> Option<&dyn TensorMaps> {
        None
    }

    /// The ability to run machine code, where the device has it.
    fn machine_code(&mut self) -> Option<&mut dyn MachineCode> {
        None
    }

    /// The ability to keep grids to SMs, where the device has it.
    fn confining(&mut self) -> Option<&mut dyn Confining> {
        None
    }

    /// The ability to take power from SMs, where the device has it.
    fn gating(&mut self) -> Option<&mut dyn Gating> {
        None
    }

    /// The ability to tell where each CTA is, where the device has it.
    fn residency_trace(&mut self) -> Option<&mut dyn ResidencyTrace> {
        None
    }

    /// The ability to count what grids do, where the device has it.
    fn counting(&self) -> Option<&dyn Counting> {
        None
    }

    /// The ability to sample the LLC's traffic, where the device has it.
    fn traffic_sampling(&mut self) -> Option<&mut dyn TrafficSampling> {
        None
    }

    /// Lets the device advance, and appends what happened to `events` in order of device time.
    /// Returns at the horizon, or earlier when there are events.
    fn poll(&mut self, horizon: Horizon, events: &mut Vec<Event>) -> Activity;
}
