//! The driver's state that functions of all subjects share.

use crate::arrays::Arrays;
use crate::events::EventCell;
use crate::green::GreenContexts;
use crate::host::Mapped;
use crate::memory::AddressSpace;
use crate::modules::Modules;
use crate::owner::Gpu;
use crate::settings::{Settings, VARIABLE};
use crate::status::{self, Status};
use crate::streams::StreamCell;
use partita_model::DeviceFacts;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// The handle of the only context.
pub const CONTEXT: u64 = 0x0c0e;

/// The driver.
pub struct Driver {
    /// The switches.
    pub settings: Settings,
    /// The thread that owns the emulated GPU.
    pub gpu: Gpu,
    /// What never changes of the GPU.
    pub facts: DeviceFacts,
    /// The context's lock ([`crate::context`]): calls that keep it write, calls that pass read.
    pub lock: RwLock<()>,
    /// Everything that has a handle or an address.
    tables: Mutex<Tables>,
    /// Page-locked memory of callers that kernels reach.
    pub mapped: Mapped,
    /// The status of the fault that ended the context; 0 while none has.
    fault: Arc<AtomicU32>,
    handles: AtomicU64,
    /// Bytes of local memory for which a thread has room.
    pub local_bytes: AtomicU32,
}

/// Bytes of local memory for which a thread has room at the start (CUDA Driver API,
/// `CU_LIMIT_STACK_SIZE`).
const STACK_BYTES: u32 = 1 << 10;

/// Objects by handle, and memory.
#[derive(Default)]
pub struct Tables {
    /// Addresses, physical memory, mappings, memory of the host.
    pub memory: AddressSpace,
    /// Streams.
    pub streams: BTreeMap<u64, Arc<StreamCell>>,
    /// Events.
    pub events: BTreeMap<u64, Arc<EventCell>>,
    /// Links, modules, libraries and functions.
    pub modules: Modules,
    /// Parts of the GPU, and contexts on them.
    pub green: GreenContexts,
    /// Arrays, and objects that kernels sample.
    pub arrays: Arrays,
}

/// Switches in place of the environment's.
static CHOSEN: OnceLock<String> = OnceLock::new();

static DRIVER: LazyLock<Result<Driver, String>> = LazyLock::new(|| {
    let named = || std::env::var(VARIABLE).unwrap_or_default();
    let settings = Settings::parse(CHOSEN.get_or_init(named)).map_err(|error| error.to_string())?;
    Driver::start(settings)
});

impl Driver {
    fn start(settings: Settings) -> Result<Driver, String> {
        let fault = Arc::new(AtomicU32::new(0));
        let mapped = Mapped::default();
        let (gpu, facts) = Gpu::start(&settings, Arc::clone(&fault), Arc::clone(&mapped))?;
        Ok(Driver {
            settings,
            gpu,
            facts,
            lock: RwLock::default(),
            tables: Mutex::default(),
            mapped,
            fault,
            handles: AtomicU64::new(0x1000),
            local_bytes: AtomicU32::new(STACK_BYTES),
        })
    }

    /// Sets the switches. False where the driver has started.
    pub fn choose(switches: String) -> bool {
        CHOSEN.set(switches).is_ok()
    }

    /// Starts the driver where it has not been started.
    ///
    /// # Errors
    /// [`status::INVALID_VALUE`] where the switches are wrong; standard error has the reason.
    pub fn init() -> Result<&'static Driver, Status> {
        DRIVER.as_ref().map_err(|reason| {
            eprintln!("the emulated driver does not start: {reason}");
            status::INVALID_VALUE
        })
    }

    /// The driver, for a function that needs the context.
    ///
    /// # Errors
    /// The status of the fault that ended the context; [`status::NOT_INITIALIZED`] where the driver
    /// does not start.
    pub fn get() -> Result<&'static Driver, Status> {
        let driver = DRIVER.as_ref().map_err(|_| status::NOT_INITIALIZED)?;
        driver.live().map(|()| driver)
    }

    /// Whether the context lives.
    ///
    /// # Errors
    /// The status of the fault that ended it.
    pub fn live(&self) -> Result<(), Status> {
        match self.fault.load(Ordering::Acquire) {
            0 => Ok(()),
            fault => Err(fault),
        }
    }

    /// The tables, whatever panicked before. The owner's thread never takes them, so a function may
    /// ask it meanwhile.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Page-locked memory that kernels reach, whatever panicked before.
    pub fn mapped(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new handle.
    pub fn handle(&self) -> u64 {
        self.handles.fetch_add(0x10, Ordering::Relaxed)
    }
}
