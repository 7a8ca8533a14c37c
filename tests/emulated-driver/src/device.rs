//! The driver, the GPU and its context.

use crate::abi::{exports, put, put_text};
use crate::driver::{CONTEXT, Driver};
use crate::settings::Settings;
use crate::status::{self, Status};
use crate::streams::GREATEST_PRIORITY;
use partita_model::DeviceFacts;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;

/// A GPU's place on the bus.
pub fn pci_bus_id(ordinal: u8) -> String {
    format!("0000:{:02x}:00.0", ordinal + 1)
}

/// `CUdevice_attribute`
fn attribute(device: &DeviceFacts, settings: &Settings, number: c_uint) -> u64 {
    match number {
        1 => device.threads_per_cta.into(),
        2..=4 => [1024, 1024, 64][number as usize - 2],
        5..=7 => [0x7fff_ffff, 65_535, 65_535][number as usize - 5],
        8 => device.shared_per_cta.0,
        9 => 64 << 10,
        10 => 32,
        12 | 82 => device.registers_per_sm.into(),
        13 => device.sm_clock_khz.into(),
        16 => device.sm_count.into(),
        36 => device.memory_clock_khz.into(),
        37 => device.memory_bus_bits.into(),
        38 => device.llc.0,
        39 => device.threads_per_sm.into(),
        40 => 2,
        // Unified addresses, stream priorities, cooperative launches, virtual memory, waits for
        // words of 64 bits, arrays that get memory later.
        41 | 78 | 95 | 102 | 121 | 122 => 1,
        75 => device.compute_capability.major.into(),
        76 => device.compute_capability.minor.into(),
        81 => device.shared_per_sm.0,
        88 => u64::from(!settings.habits.no_pageable_access),
        // Registered memory has the same address for kernels.
        91 => 1,
        97 => device.shared_per_cta_optin.0,
        106 => device.ctas_per_sm.into(),
        111 => device.shared_reserved.0,
        _ => 0,
    }
}

/// The number of a GPU that the driver shows.
fn check(driver: &Driver, device: c_int) -> Result<u8, Status> {
    let known = u8::try_from(device).ok().filter(|ordinal| *ordinal < driver.settings.gpus);
    known.ok_or(status::INVALID_DEVICE)
}

/// The GPU whose context the process has, and no other.
static USED: OnceLock<u8> = OnceLock::new();

fn using(driver: &Driver, device: c_int) -> Result<(), Status> {
    let ordinal = check(driver, device)?;
    let used = *USED.get_or_init(|| ordinal);
    if used != ordinal {
        eprintln!("the emulated driver: a process that uses GPU {used} cannot use GPU {ordinal}");
        return Err(status::NOT_SUPPORTED);
    }
    Ok(())
}

exports! {
    cuDeviceGetCount(count: *mut c_int) |driver| {
        put(count, driver.settings.gpus.into());
        Ok(())
    }
    cuDeviceGet(device: *mut c_int, ordinal: c_int) |driver| {
        check(driver, ordinal)?;
        put(device, ordinal);
        Ok(())
    }
    cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int) |driver| {
        check(driver, device)?;
        put_text(name, usize::try_from(room).unwrap_or(0), &driver.facts.name);
        Ok(())
    }
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |driver| {
        let [start @ .., last] = driver.facts.uuid;
        let mut own = driver.facts.uuid;
        own[start.len()] = last ^ check(driver, device)?;
        put(uuid, own);
        Ok(())
    }
    cuDeviceGetAttribute(value: *mut c_int, number: c_uint, device: c_int) |driver| {
        check(driver, device)?;
        let found = attribute(&driver.facts, &driver.settings, number);
        put(value, c_int::try_from(found).unwrap_or(c_int::MAX));
        Ok(())
    }
    cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int) |driver| {
        let id_text = pci_bus_id(check(driver, device)?);
        put_text(id, usize::try_from(room).unwrap_or(0), &id_text);
        Ok(())
    }
    cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) |driver| {
        check(driver, device).map(|_| ())
    }
    cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) |driver| {
        using(driver, device)?;
        put(context, CONTEXT);
        Ok(())
    }
    cuDevicePrimaryCtxRelease_v2(device: c_int) |driver| { using(driver, device) }
    cuCtxSetCurrent(_context: u64) |_driver| { Ok(()) }
    cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) |_driver| {
        put(least, 0);
        put(greatest, GREATEST_PRIORITY);
        Ok(())
    }
    cuModuleGetLoadingMode(mode: *mut c_uint) |driver| {
        let is_asked = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
        put(mode, if is_asked || !driver.settings.habits.lazy_loading { 1 } else { 2 });
        Ok(())
    }
}

/// `cuInit` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Status {
    if flags != 0 {
        return status::INVALID_VALUE;
    }
    Driver::init().err().unwrap_or(0)
}

/// Sets the switches for this copy of the library, in place of the environment's. To be called
/// before `cuInit`, by a process that loads several copies. 0, or 1 where the driver has started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn emulated_driver_switches(switches: *const c_char) -> c_int {
    c_int::from(!Driver::choose(crate::abi::text(switches)))
}

/// `cuDriverGetVersion` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    let Ok(driver) = Driver::init() else { return status::NOT_INITIALIZED };
    put(version, c_int::try_from(driver.settings.cuda).unwrap_or(0));
    0
}

/// `cuGetErrorName` of the CUDA Driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Status, name: *mut *const c_char) -> Status {
    match status::name(error) {
        Some(found) => {
            put(name, found.as_ptr());
            0
        }
        None => status::INVALID_VALUE,
    }
}
