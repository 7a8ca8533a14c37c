//! The state of this process: one session with the daemon, and the tables of everything that handles stand for.
//!
//! Nothing happens when the library is loaded, because `LD_PRELOAD` loads it into every shell and compiler that a
//! program starts. [`initialize`], i.e. `cuInit`, connects; a failed attempt may be repeated.
//!
//! The state is never taken down: cudart calls in after this library's destructors would have run, and the daemon
//! cleans up when it sees the end of the connection. A child of `fork` has inherited a connection that is its parent's;
//! it gets `CUDA_ERROR_NOT_INITIALIZED` for everything, as with NVIDIA's driver, and never touches the connection.

use crate::array::Arrays;
use crate::context::Contexts;
use crate::device_memory::{Allocations, Range};
use crate::error::{CuError, CuResult};
use crate::event::Events;
use crate::graph::Graphs;
use crate::graph::capture::{Captures, Target};
use crate::handles::{Handles, Kind};
use crate::host_calls::HostCalls;
use crate::host_memory::HostAllocations;
use crate::link::Link;
use crate::log;
use crate::managed::Managed;
use crate::memory_pool::Pools;
use crate::module::Modules;
use crate::output;
use crate::storage::Storage;
use crate::stream::{DefaultStream, Streams};
use crate::texture::Textures;
use crate::vmm::Vmm;
use partita_client::{CallError, Session, StreamHandle, find_socket_dir};
use partita_model::{DeviceAddress, DeviceFacts};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What `cuDriverGetVersion` says: the version whose names `api.table` has.
pub const DRIVER_VERSION: i32 = 13050;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
/// Set in a child whose parent was initialised.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Everything that this process has.
pub struct Runtime {
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
    /// What was advised of managed memory.
    pub managed: Managed,
    /// Memory that is mapped into reserved addresses.
    pub vmm: Vmm,
    /// Graphs.
    pub graphs: Graphs,
    /// Streams that capture.
    pub captures: Captures,
    /// Functions of the program in streams.
    pub host_calls: HostCalls,
}

impl Runtime {
    /// The device.
    pub fn facts(&self) -> &DeviceFacts {
        self.session.facts()
    }

    /// Whether an address is in the session's window of device memory, and not where the host's is in it.
    pub fn is_device_address(&self, address: u64) -> bool {
        self.session.window().contains(DeviceAddress(address)) && !self.is_shared_address(address)
    }

    /// Whether an address is in memory that the program and kernels reach under the same addresses.
    pub fn is_shared_address(&self, address: u64) -> bool {
        self.session.shared_window().is_some_and(|window| window.contains(DeviceAddress(address)))
    }

    /// The managed allocation or variable that an address is inside of.
    pub fn managed_range(&self, address: u64) -> Option<Range> {
        if !self.is_shared_address(address) {
            return None;
        }
        self.host.find_managed(address).or_else(|| self.modules.find_variable(address))
    }

    /// Where work for a stream goes: to the device, or into a graph.
    pub fn target(&self, stream: u64, default: DefaultStream) -> CuResult<Target> {
        self.captures.target(self.streams.resolve(&self.session, stream, default)?)
    }

    /// The stream, for calls that no graph can hold.
    pub fn outside_capture(&self, stream: u64, default: DefaultStream) -> CuResult<StreamHandle> {
        self.captures.outside(self.streams.resolve(&self.session, stream, default)?)
    }

    /// Ends all that the program has made: what is left of a destroyed primary context.
    pub fn reset(&self) {
        // A session with a sticky error cannot wait; everything is thrown away either way.
        let _ = self.session.synchronize(None);
        self.storage.clear();
        self.captures.clear();
        for executable in self.graphs.clear() {
            executable.release(&self.session);
        }
        self.events.clear(&self.session);
        self.streams.clear(&self.session);
        self.links.remove_where(|_| true);
        self.modules.clear(&self.session);
        self.textures.clear(&self.session);
        self.arrays.clear(&self.session);
        self.pools.clear();
        self.allocations.clear(&self.session);
        self.host.clear_managed(&self.session);
        self.vmm.clear(&self.session);
    }
}

/// The state, if `cuInit` has succeeded in this very process.
pub fn get() -> CuResult<&'static Runtime> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuError::NOT_INITIALIZED);
    }
    RUNTIME.get().ok_or(CuError::NOT_INITIALIZED)
}

/// The state, if the calling thread has a current context as well.
pub fn current() -> CuResult<&'static Runtime> {
    let runtime = get()?;
    runtime.contexts.current()?;
    Ok(runtime)
}

/// `cuInit`.
pub fn initialize() -> CuResult {
    static CONNECTING: Mutex<()> = Mutex::new(());
    if FORKED.load(Ordering::Relaxed) {
        return Err(CuError::NOT_INITIALIZED);
    }
    if RUNTIME.get().is_some() {
        return Ok(());
    }
    let _guard = CONNECTING.lock().unwrap_or_else(PoisonError::into_inner);
    if RUNTIME.get().is_some() {
        return Ok(());
    }
    let session = connect()?;
    watch_forks()?;
    let runtime = Runtime {
        session,
        contexts: Contexts::new()?,
        storage: Storage::new(),
        modules: Modules::new(),
        links: Handles::new(Kind::Link),
        streams: Streams::new(),
        events: Events::new(),
        allocations: Allocations::new(),
        arrays: Arrays::new(),
        textures: Textures::new(),
        pools: Pools::new()?,
        host: HostAllocations::new(),
        managed: Managed::new(),
        vmm: Vmm::new(),
        graphs: Graphs::new(),
        captures: Captures::new(),
        host_calls: HostCalls::new(),
    };
    RUNTIME.get_or_init(|| runtime);
    Ok(())
}

fn connect() -> CuResult<Session> {
    static SAID: AtomicBool = AtomicBool::new(false);
    Session::connect_with_output(&find_socket_dir(), output::write).map_err(|error| {
        if !SAID.swap(true, Ordering::Relaxed) {
            log::say(format_args!("{error}"));
        }
        // The code that makes runtimes say "no CUDA-capable device is detected" and go on if they can do without.
        CuError::NO_DEVICE
    })
}

fn watch_forks() -> CuResult {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only stores to an atomic, and the library is linked to stay loaded (`-z nodelete`).
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if failed == 0 { Ok(()) } else { Err(CuError::OPERATING_SYSTEM) }
}

/// The daemon's errors are CUDA's by number; their texts are the log's.
impl From<CallError> for CuError {
    fn from(error: CallError) -> Self {
        if log::is_wanted() {
            log::say(format_args!("{error}"));
        }
        CuError(error.code)
    }
}
