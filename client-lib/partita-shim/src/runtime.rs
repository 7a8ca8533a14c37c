//! The state of one device in this process: a session with the daemon, and the tables of everything
//! behind handles.
//!
//! Loading the library does nothing, because `LD_PRELOAD` loads it into every shell and compiler
//! that a program starts. `cuInit` finds the devices ([`crate::devices`]), and a device gets its
//! state when it is used. A failed attempt may be repeated.
//!
//! A call's handles and addresses name its device: a handle contains its device ([`of`]), and
//! device addresses of different devices never overlap ([`of_address`]). For every other call, the
//! calling thread's current context decides ([`current`]).
//!
//! The state is never taken down: the runtime calls in after this library's destructors would have
//! run, and the daemon cleans up at the end of the connection. A child of `fork` inherits its
//! parent's connection. Every call of the child answers `CUDA_ERROR_NOT_INITIALIZED`, as with
//! NVIDIA's driver, and never touches the connection.

use crate::array::Arrays;
use crate::context::{Contexts, current_handle};
use crate::device_memory::{Allocations, Range};
use crate::devices;
use crate::error::{CuError, CuResult, name_of};
use crate::event::Events;
use crate::graph::Graphs;
use crate::graph::capture::{Captures, Target};
use crate::handles::{DeviceIndex, Handles, Kind, device_of};
use crate::host_calls::HostCalls;
use crate::host_memory::HostAllocations;
use crate::link::Link;
use crate::log;
use crate::managed::Managed;
use crate::memory_pool::Pools;
use crate::module::Modules;
use crate::nested::Nested;
use crate::processes::OpenedMemory;
use crate::storage::Storage;
use crate::stream::{DefaultStream, Streams, is_default};
use crate::texture::Textures;
use crate::vmm::Vmm;
use partita_client::{CallError, Session, StreamHandle};
use partita_model::{DeviceAddress, DeviceFacts};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The result of `cuDriverGetVersion`: the version whose names `api.table` has.
pub const DRIVER_VERSION: i32 = 13050;

/// Everything that this process has on a device.
pub struct Runtime {
    /// The device.
    pub index: DeviceIndex,
    /// The connection.
    pub session: Session,
    /// Contexts.
    pub contexts: Contexts,
    /// cudart's storage by context.
    pub storage: Storage,
    /// Modules, libraries, kernels.
    pub modules: Modules,
    /// JIT links.
    pub links: Handles<Link>,
    /// Streams.
    pub streams: Streams,
    /// Events.
    pub events: Events,
    /// Device memory.
    pub allocations: Allocations,
    /// Arrays.
    pub arrays: Arrays,
    /// Texture and surface objects.
    pub textures: Textures,
    /// Memory pools.
    pub pools: Pools,
    /// Page-locked memory.
    pub host: HostAllocations,
    /// The program's advice about managed memory.
    pub managed: Managed,
    /// Memory that is mapped into reserved addresses.
    pub vmm: Vmm,
    /// Memory of other processes.
    pub opened: OpenedMemory,
    /// Graphs.
    pub graphs: Graphs,
    /// Streams that capture.
    pub captures: Captures,
    /// Functions of the program in streams.
    pub host_calls: HostCalls,
    /// Launches of kernels that launch kernels.
    pub nested: Nested,
}

impl Runtime {
    /// The state of a device behind a new session.
    pub fn new(device: DeviceIndex, session: Session) -> CuResult<Self> {
        Ok(Runtime {
            index: device,
            session,
            contexts: Contexts::new(device)?,
            storage: Storage::new(),
            modules: Modules::new(device),
            links: Handles::new(Kind::Link, device),
            streams: Streams::new(device),
            events: Events::new(device),
            allocations: Allocations::new(),
            arrays: Arrays::new(device),
            textures: Textures::new(),
            pools: Pools::new(device)?,
            host: HostAllocations::new(),
            managed: Managed::new(),
            vmm: Vmm::new(device),
            opened: OpenedMemory::new(),
            graphs: Graphs::new(device),
            captures: Captures::new(),
            host_calls: HostCalls::new(device),
            nested: Nested::new(device),
        })
    }

    /// The device.
    pub fn facts(&self) -> &DeviceFacts {
        self.session.facts()
    }

    /// Whether an address is in the session's window of device memory, and not where the host's is
    /// in it.
    pub fn is_device_address(&self, address: u64) -> bool {
        self.session.window().contains(DeviceAddress(address)) && !self.is_shared_address(address)
    }

    /// Whether an address is in memory that the program and kernels reach under the same addresses.
    pub fn is_shared_address(&self, address: u64) -> bool {
        self.session.shared_window().is_some_and(|window| window.contains(DeviceAddress(address)))
    }

    /// Tells the user of a failure behind the program's back, and fails the next synchronisation.
    pub fn fail_later(&self, what: &str, error: CuError) {
        let name = name_of(error.0).map_or_else(Default::default, CStr::to_string_lossy);
        let text = format!("{what}: {name}");
        log::say(format_args!("{text}"));
        self.session.fail_next_synchronization(CallError::new(error.0, text));
    }

    /// The managed allocation or variable that an address is inside of.
    pub fn managed_range(&self, address: u64) -> Option<Range> {
        if !self.is_shared_address(address) {
            return None;
        }
        self.host.find_managed(address).or_else(|| self.modules.find_variable(address))
    }

    /// The device memory that an address is inside of, as one piece of the program's.
    pub fn device_range(&self, address: u64) -> Option<Range> {
        let own = self.allocations.find(address).or_else(|| self.vmm.find(address));
        own.or_else(|| self.opened.find(address))
    }

    /// The target of a stream's work: the device, or a graph.
    pub fn target(&self, stream: u64, default: DefaultStream) -> CuResult<Target> {
        self.captures.target(self.streams.resolve(&self.session, stream, default)?)
    }

    /// The stream, for calls that no graph can hold.
    pub fn outside_capture(&self, stream: u64, default: DefaultStream) -> CuResult<StreamHandle> {
        self.captures.outside(self.streams.resolve(&self.session, stream, default)?)
    }

    /// Ends all that the program has made on the device: what is left of a destroyed primary
    /// context.
    pub fn reset(&self) {
        // A session with a sticky error cannot wait. The reset discards everything in either case.
        let _ = self.session.synchronize(None);
        self.storage.clear();
        self.captures.clear();
        for executable in self.graphs.clear() {
            executable.release(&self.session);
        }
        self.events.clear(&self.session);
        self.streams.clear(&self.session);
        self.links.remove_where(|_| true);
        self.nested.clear(&self.session);
        self.modules.clear(&self.session);
        self.textures.clear(&self.session);
        self.arrays.clear(&self.session);
        self.pools.clear();
        self.allocations.clear(&self.session);
        self.host.clear_managed(&self.session);
        self.vmm.clear(&self.session);
        self.opened.clear(&self.session);
    }
}

/// A state for what belongs to no device in particular: that of the current context, if there is
/// one.
pub fn get() -> CuResult<&'static Runtime> {
    devices::any()
}

/// The state that a handle is of.
pub fn of(handle: u64) -> CuResult<&'static Runtime> {
    devices::of(handle)?.ok_or(CuError::INVALID_HANDLE)
}

/// The state that a context is of; null stands for the current one.
pub fn of_context(handle: u64) -> CuResult<&'static Runtime> {
    if handle == 0 { current() } else { devices::of_context(handle) }
}

/// The state of the device whose memory an address is in; where it is in none's, as [`get`].
pub fn of_address(address: u64) -> CuResult<&'static Runtime> {
    devices::holding(address).map_or_else(get, Ok)
}

/// The state that knows an address as page-locked memory of the host; where none does, as [`get`].
pub fn of_host_memory(address: u64) -> CuResult<&'static Runtime> {
    devices::opened().find(|runtime| runtime.host.find(address).is_some()).map_or_else(get, Ok)
}

/// The state of the calling thread's current context.
pub fn current() -> CuResult<&'static Runtime> {
    let handle = current_handle();
    // The check for initialisation comes first.
    let runtime = devices::of(handle)?.filter(|_| handle != 0).ok_or(CuError::INVALID_CONTEXT)?;
    runtime.contexts.current()?;
    Ok(runtime)
}

/// The state that a stream is of: of a default stream the current context's. There must be one in
/// any case.
pub fn of_stream(stream: u64) -> CuResult<&'static Runtime> {
    let current = current()?;
    if is_default(stream) || device_of(stream) == current.index { Ok(current) } else { of(stream) }
}

/// The daemon's errors have CUDA's numbers; their texts go to the log. The first time that the
/// program may not do something, its user hears of it in any case: an administrator can allow it.
impl From<CallError> for CuError {
    fn from(error: CallError) -> Self {
        static SAID: AtomicBool = AtomicBool::new(false);
        let is_refusal = error.code == CuError::NOT_PERMITTED.0;
        let first = is_refusal && !SAID.swap(true, Ordering::Relaxed);
        if first || log::is_wanted() {
            log::say(format_args!("{error}"));
        }
        CuError(error.code)
    }
}
