//! NVIDIA's driver (`libcuda.so.1`, loaded on demand) and NVML, behind types that own their
//! objects.
//!
//! This is the crate's only module with unsafe code. It upholds three rules. Every handle that the
//! driver is given came from the driver and has not been given back. Every pointer is to a local,
//! or to page-locked memory that lives as long as the process. A device address is a number that
//! only the device follows.
//!
//! # Which calls wait
//!
//! No call here waits for the whole context, with three exceptions that may wait (the driver does
//! not say): [`Module::load`], [`Module::unload`] and [`Registered`]. Callers make these calls from
//! a thread that no other thread waits for. Functions that are known to wait are not in the table:
//! `cuMemAlloc`, `cuMemFree`, `cuMemFreeHost`, `cuCtxSynchronize`, and everything on the legacy
//! stream. Most arrays are made without memory and receive it in a stream ([`Array`]). Page-locked
//! memory is never given back ([`Pinned`]).

#![expect(unsafe_code, reason = "calls a C library and reads memory that a GPU writes")]

mod array;
mod context;
mod green;
mod library;
mod module;
mod nvml;
mod registered;
mod stream;
mod table;
mod tensor_map;

pub use array::{Array, BoxEnd, MemoryBy, Object, Place3};
pub use context::{Attribute, Context, Physical, Place};
pub use green::{Green, SmGroup};
pub use library::Library;
pub use module::{Function, FunctionAttribute, LinkError, Module};
pub use nvml::{GPM_INTERVAL, Monitor, NVML_VARIABLE, Reading, Traffic};
pub use registered::Registered;
pub use stream::{Event, Pinned, Stream};

use std::borrow::Cow;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use table::Table;

/// File names of the driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// The library that is loaded instead of NVIDIA's, where it lies at an unusual place.
pub const LIBRARY_VARIABLE: &str = "PARTITA_LIBCUDA";

/// The oldest driver that will do: 12.4, with the releases from 550 on.
pub const OLDEST_VERSION: u32 = 12_040;

/// Why there is no driver.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LoadError {
    /// The machine has no driver.
    #[error("NVIDIA's driver is not installed: {reason}")]
    Missing {
        /// The dynamic linker's message.
        reason: String,
    },
    /// The library is Partita's own shim.
    #[error(
        "{path} is Partita's own library for programs, not NVIDIA's driver: take its folder out \
         of the LD_LIBRARY_PATH of \
         partitad and partita-gpu, and let nothing preload it there; or name the driver's file in \
         {LIBRARY_VARIABLE}"
    )]
    Shim {
        /// The path that was loaded.
        path: PathBuf,
    },
    /// The library is not NVIDIA's driver, or is far too old.
    #[error("{path} lacks {missing}: it is not NVIDIA's driver, or older than 550")]
    Incomplete {
        /// The library.
        path: PathBuf,
        /// The functions that it lacks.
        missing: String,
    },
    /// The driver is too old.
    #[error("the driver knows CUDA {}.{} only: install release 550 (CUDA 12.4) or \
        newer", .version / 1000, .version % 1000 / 10)]
    Old {
        /// Its version, 1000 times major plus 10 times minor.
        version: u32,
    },
    /// The driver is installed but does not start.
    #[error("NVIDIA's driver does not start: {0}")]
    Start(Failure),
}

/// A call of the driver that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{function}: {name} ({code})")]
pub struct Failure {
    /// The function.
    pub function: &'static str,
    /// Its `CUresult`.
    pub code: u32,
    /// That, by name.
    pub name: Cow<'static, str>,
}

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;

impl Failure {
    /// The failure of a reservation when no addresses are left for this GPU.
    #[must_use]
    pub fn no_addresses() -> Failure {
        Failure {
            function: "cuMemAddressReserve",
            code: 2,
            name: "no addresses are left for this GPU".into(),
        }
    }

    /// Whether memory is used up.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.code == 2
    }

    /// Whether the driver or the GPU does not do such a thing at all (`CUDA_ERROR_NOT_SUPPORTED`),
    /// or knows no such value.
    #[must_use]
    pub fn means_never(&self) -> bool {
        matches!(self.code, 1 | 801)
    }

    /// Whether a value cannot be, or values do not fit each other (`CUDA_ERROR_INVALID_VALUE`).
    #[must_use]
    pub fn is_invalid_value(&self) -> bool {
        self.code == 1
    }

    /// Whether there is nothing of that name.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code == 500
    }

    /// Whether every later call will fail, too: the context is gone (CUDA Driver API, `CUresult`).
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        matches!(self.code, 46 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
    }

    /// Whether the device is of no use any more: the context is gone, or the end of what it has
    /// been given would not be seen.
    #[must_use]
    pub fn ends_the_device(&self) -> bool {
        self.is_sticky() || self.function == "cuEventRecord"
    }

    pub(crate) fn unsupported(function: &'static str) -> Failure {
        Failure { function, code: 801, name: "the driver has no such function".into() }
    }
}

/// The driver's library.
pub struct Driver {
    table: Table,
    version: u32,
    path: PathBuf,
    /// It stays loaded: a thread that has called it may end later, and then runs the library's
    /// destructors of the thread's own values.
    _library: ManuallyDrop<libloading::Library>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Calls a function of the table.
macro_rules! call {
    ($driver:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let table = &$driver.table;
        // SAFETY: see the module's page: handles are live, pointers are to locals or memory that
        // stays.
        let status = unsafe { (table.$name)($($arg),*) };
        $crate::driver::table::check(table, stringify!($name), status)
    }};
}
use call;

impl Driver {
    /// Loads and starts the driver: the library at `path`, else the one that the environment names,
    /// else NVIDIA's.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(path: Option<&Path>) -> Result<Arc<Driver>, LoadError> {
        let named =
            std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let names: Vec<PathBuf> = match path.map(PathBuf::from).or(named) {
            Some(path) => vec![path],
            None => NAMES.map(PathBuf::from).to_vec(),
        };
        let mut reason = String::new();
        for path in names {
            // SAFETY: NVIDIA's library, or one that the administrator names in its place.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => return Driver::start(library, path),
                Err(error) if reason.is_empty() => reason = words(&error),
                Err(_) => {}
            }
        }
        Err(LoadError::Missing { reason })
    }

    fn start(library: libloading::Library, path: PathBuf) -> Result<Arc<Driver>, LoadError> {
        if is_shim(&library) {
            return Err(LoadError::Shim { path });
        }
        let table = Table::find(&library, &path)?;
        let library = ManuallyDrop::new(library);
        let mut driver = Driver { table, version: 0, path, _library: library };
        let mut version = 0;
        call!(driver, cuDriverGetVersion(&raw mut version)).map_err(LoadError::Start)?;
        driver.version = u32::try_from(version).unwrap_or(0);
        if driver.version < OLDEST_VERSION {
            return Err(LoadError::Old { version: driver.version });
        }
        call!(driver, cuInit(0)).map_err(LoadError::Start)?;
        Ok(Arc::new(driver))
    }

    /// The CUDA version that it knows: 1000 times major plus 10 times minor.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The library's file, as it was asked for.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of GPUs that this process can see.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_count(&self) -> Result<u32, Failure> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&raw mut count))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// A GPU's handle, without a context.
    fn device(&self, ordinal: u32) -> Result<c_int, Failure> {
        let mut device = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        call!(self, cuDeviceGet(&raw mut device, number))?;
        Ok(device)
    }

    /// A property of a GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_attribute(&self, ordinal: u32, attribute: Attribute) -> Result<u32, Failure> {
        let (mut value, device) = (0, self.device(ordinal)?);
        call!(self, cuDeviceGetAttribute(&raw mut value, attribute as u32, device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// A GPU's name.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_name(&self, ordinal: u32) -> Result<String, Failure> {
        let (mut name, device) = ([0_i8; 256], self.device(ordinal)?);
        call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), 255, device))?;
        Ok(string(&name))
    }

    /// A GPU's place on the bus, as NVML takes it.
    ///
    /// # Errors
    /// The driver's.
    pub fn device_pci_bus_id(&self, ordinal: u32) -> Result<String, Failure> {
        let (mut id, device) = ([0_i8; 64], self.device(ordinal)?);
        call!(self, cuDeviceGetPCIBusId(id.as_mut_ptr().cast(), 63, device))?;
        Ok(string(&id))
    }
}

/// Whether the library is Partita's shim. The shim's calls would come back to this process.
fn is_shim(library: &libloading::Library) -> bool {
    // SAFETY: the shim's function of this name has this signature, and nobody else has one of this
    // name.
    let found = unsafe { library.get::<unsafe extern "C" fn() -> u32>("partita_is_shim\0") };
    // SAFETY: it takes nothing and touches nothing.
    found.is_ok_and(|is_shim| unsafe { is_shim() } != 0)
}

/// The string that the driver has written, up to its zero byte.
fn string(bytes: &[i8]) -> String {
    let text: Vec<u8> =
        bytes.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8_lossy(&text).into_owned()
}

/// The dynamic linker's message. The error's own text is too short.
fn words(error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
