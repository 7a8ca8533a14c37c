//! NVML, as far as the daemon asks (NVML API Reference). `PARTITA_LIBNVIDIA_ML` names this library,
//! too. The GPU counts energy where it keeps time, and no traffic (GPM).

use crate::abi::{put, put_text};
use crate::device::pci_bus_id;
use crate::driver::Driver;
use partita_device::Device;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

/// `NVML_ERROR_…`
const UNINITIALIZED: c_uint = 1;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
const UNKNOWN: c_uint = 999;

/// The handle of the first GPU. Further GPUs have the next numbers.
const GPU: usize = 0xd0;

/// The release that brought the driver's CUDA version.
const RELEASE: &str = "580.65.06";

macro_rules! exports {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) |$driver:ident| $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of NVML.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_uint {
            let run = |$driver: &'static Driver| -> Result<(), c_uint> { $body };
            match Driver::init() {
                Ok(driver) => run(driver).err().unwrap_or(0),
                Err(_) => UNINITIALIZED,
            }
        }
    )*};
}

fn check(driver: &Driver, device: usize) -> Result<(), c_uint> {
    let known = GPU..GPU + usize::from(driver.settings.gpus);
    if known.contains(&device) { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

exports! {
    nvmlInit_v2() |_driver| { Ok(()) }
    nvmlShutdown() |_driver| { Ok(()) }
    nvmlSystemGetDriverVersion(version: *mut c_char, room: c_uint) |_driver| {
        put_text(version, room as usize, RELEASE);
        Ok(())
    }
    nvmlDeviceGetCount_v2(count: *mut c_uint) |driver| {
        put(count, driver.settings.gpus.into());
        Ok(())
    }
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) |driver| {
        let handle = GPU + index as usize;
        check(driver, handle)?;
        put(device, handle);
        Ok(())
    }
    nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut usize) |driver| {
        let id = crate::abi::text(id);
        // The domain may have four or eight digits.
        let is_it = |ordinal: &u8| id.ends_with(&pci_bus_id(*ordinal)[5..]);
        let ordinal = (0..driver.settings.gpus).find(is_it).ok_or(NOT_FOUND)?;
        put(device, GPU + usize::from(ordinal));
        Ok(())
    }
    nvmlDeviceGetName(device: usize, name: *mut c_char, room: c_uint) |driver| {
        check(driver, device)?;
        put_text(name, room as usize, &driver.facts.name);
        Ok(())
    }
    nvmlDeviceGetMigMode(device: usize, current: *mut c_uint, pending: *mut c_uint) |driver| {
        check(driver, device)?;
        put(current, 0);
        put(pending, 0);
        Ok(())
    }
    nvmlDeviceGetComputeMode(device: usize, mode: *mut c_uint) |driver| {
        check(driver, device)?;
        put(mode, 0);
        Ok(())
    }
    nvmlDeviceGetCudaComputeCapability(device: usize, major: *mut c_int,
        minor: *mut c_int) |driver| {
        check(driver, device)?;
        put(major, driver.facts.compute_capability.major.into());
        put(minor, driver.facts.compute_capability.minor.into());
        Ok(())
    }
    nvmlDeviceGetMemoryInfo(device: usize, memory: *mut [c_ulonglong; 3]) |driver| {
        check(driver, device)?;
        let used = driver.gpu.call(|owner| owner.gpu.memory_used()).map_err(|_| UNKNOWN)?.0;
        let total = driver.facts.memory.0;
        put(memory, [total, total.saturating_sub(used), used]);
        Ok(())
    }
    nvmlDeviceGetClockInfo(device: usize, kind: c_uint, megahertz: *mut c_uint) |driver| {
        check(driver, device)?;
        let facts = &driver.facts;
        // NVML_CLOCK_MEM
        put(megahertz, if kind == 2 { facts.memory_clock_khz } else { facts.sm_clock_khz } / 1000);
        Ok(())
    }
    nvmlDeviceGetTotalEnergyConsumption(device: usize, millijoules: *mut c_ulonglong) |driver| {
        check(driver, device)?;
        let ask = driver.gpu.call(|owner| owner.gpu.nanojoules()).map_err(|_| UNKNOWN)?;
        put(millijoules, ask.ok_or(NOT_SUPPORTED)? / 1_000_000);
        Ok(())
    }
    nvmlGpmQueryDeviceSupport(device: usize, support: *mut [c_uint; 2]) |driver| {
        check(driver, device)?;
        // The structure's version, and whether it is supported.
        put(support, [1, 0]);
        Ok(())
    }
}

/// `nvmlErrorString` of NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    let text: &CStr = match code {
        0 => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
