//! NVML, as far as the daemon asks (NVML API Reference). `PARTITA_LIBNVIDIA_ML` names this library,
//! too. The GPU counts energy where it keeps time, and no traffic (GPM).

use crate::abi::{put, put_text};
use crate::device::PCI_BUS_ID;
use crate::driver::Driver;
use partita_device::Device;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};

/// `NVML_ERROR_…`
const UNINITIALIZED: c_uint = 1;
const INVALID_ARGUMENT: c_uint = 2;
const NOT_SUPPORTED: c_uint = 3;
const NOT_FOUND: c_uint = 6;
const UNKNOWN: c_uint = 999;

/// The handle of the only GPU.
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

fn check(device: usize) -> Result<(), c_uint> {
    if device == GPU { Ok(()) } else { Err(INVALID_ARGUMENT) }
}

exports! {
    nvmlInit_v2() |_driver| { Ok(()) }
    nvmlShutdown() |_driver| { Ok(()) }
    nvmlSystemGetDriverVersion(version: *mut c_char, room: c_uint) |_driver| {
        put_text(version, room as usize, RELEASE);
        Ok(())
    }
    nvmlDeviceGetCount_v2(count: *mut c_uint) |_driver| {
        put(count, 1);
        Ok(())
    }
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut usize) |_driver| {
        if index != 0 {
            return Err(INVALID_ARGUMENT);
        }
        put(device, GPU);
        Ok(())
    }
    nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut usize) |_driver| {
        // The domain may have four or eight digits.
        if !crate::abi::text(id).ends_with(&PCI_BUS_ID[5..]) {
            return Err(NOT_FOUND);
        }
        put(device, GPU);
        Ok(())
    }
    nvmlDeviceGetName(device: usize, name: *mut c_char, room: c_uint) |driver| {
        check(device)?;
        put_text(name, room as usize, &driver.facts.name);
        Ok(())
    }
    nvmlDeviceGetMigMode(device: usize, current: *mut c_uint, pending: *mut c_uint) |_driver| {
        check(device)?;
        put(current, 0);
        put(pending, 0);
        Ok(())
    }
    nvmlDeviceGetComputeMode(device: usize, mode: *mut c_uint) |_driver| {
        check(device)?;
        put(mode, 0);
        Ok(())
    }
    nvmlDeviceGetCudaComputeCapability(device: usize, major: *mut c_int,
        minor: *mut c_int) |driver| {
        check(device)?;
        put(major, driver.facts.compute_capability.major.into());
        put(minor, driver.facts.compute_capability.minor.into());
        Ok(())
    }
    nvmlDeviceGetMemoryInfo(device: usize, memory: *mut [c_ulonglong; 3]) |driver| {
        check(device)?;
        let used = driver.gpu.call(|owner| owner.gpu.memory_used()).map_err(|_| UNKNOWN)?.0;
        let total = driver.facts.memory.0;
        put(memory, [total, total.saturating_sub(used), used]);
        Ok(())
    }
    nvmlDeviceGetClockInfo(device: usize, kind: c_uint, megahertz: *mut c_uint) |driver| {
        check(device)?;
        let facts = &driver.facts;
        // NVML_CLOCK_MEM
        put(megahertz, if kind == 2 { facts.memory_clock_khz } else { facts.sm_clock_khz } / 1000);
        Ok(())
    }
    nvmlDeviceGetTotalEnergyConsumption(device: usize, millijoules: *mut c_ulonglong) |driver| {
        check(device)?;
        let ask = driver.gpu.call(|owner| owner.gpu.nanojoules()).map_err(|_| UNKNOWN)?;
        put(millijoules, ask.ok_or(NOT_SUPPORTED)? / 1_000_000);
        Ok(())
    }
    nvmlGpmQueryDeviceSupport(device: usize, support: *mut [c_uint; 2]) |_driver| {
        check(device)?;
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
