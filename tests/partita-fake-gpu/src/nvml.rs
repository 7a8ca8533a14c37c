//! The exports of `libnvidia-ml.so.1` that Partita uses. NVML's API reference describes each.

use crate::state::{State, lock};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

const SUCCESS: c_uint = 0;
const NOT_SUPPORTED: c_uint = 3;

fn put<T>(into: *mut T, value: T) {
    if !into.is_null() {
        // SAFETY: exports are given pointers to places for their answers.
        unsafe { into.write(value) };
    }
}

fn put_text(into: *mut c_char, room: c_uint, value: &str) {
    let count = value.len().min((room as usize).saturating_sub(1));
    // SAFETY: exports are given room for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr().cast(), into, count) };
    // SAFETY: as above; the last byte is free.
    unsafe { into.wrapping_add(count).write(0) };
}

fn called(name: &str) -> Result<std::sync::MutexGuard<'static, State>, c_uint> {
    let mut state = lock();
    state.log.push(name.to_owned());
    match state.failure(name) {
        Some(code) => Err(code),
        None => Ok(state),
    }
}

fn number(state: &State, name: &str, default: u64) -> c_uint {
    c_uint::try_from(state.setting(name, default)).unwrap_or(c_uint::MAX)
}

macro_rules! exports {
    ($($name:ident($($arg:ident: $type:ty),*) |$state:ident| $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of NVML.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> c_uint {
            match called(stringify!($name)) {
                Ok($state) => $body,
                Err(code) => code,
            }
        }
    )*};
}

exports! {
    nvmlInit_v2() |state| { drop(state); SUCCESS }
    nvmlShutdown() |state| { drop(state); SUCCESS }
    nvmlSystemGetDriverVersion(version: *mut c_char, room: c_uint) |state| {
        put_text(version, room, state.settings.get("driver-release").map_or("550.54.15",
            String::as_str));
        SUCCESS
    }
    nvmlDeviceGetCount_v2(count: *mut c_uint) |state| {
        put(count, number(&state, "gpus", 1));
        SUCCESS
    }
    nvmlDeviceGetHandleByIndex_v2(_index: c_uint, device: *mut usize) |state| {
        drop(state);
        put(device, 0xd0);
        SUCCESS
    }
    nvmlDeviceGetHandleByUUID(_uuid: *const c_char, device: *mut usize) |state| {
        drop(state);
        put(device, 0xd0);
        SUCCESS
    }
    nvmlDeviceGetHandleByPciBusId_v2(_id: *const c_char, device: *mut usize) |state| {
        drop(state);
        put(device, 0xd0);
        SUCCESS
    }
    nvmlDeviceGetName(_device: usize, name: *mut c_char, room: c_uint) |state| {
        put_text(name, room, state.settings.get("name").map_or("Fake GPU", String::as_str));
        SUCCESS
    }
    nvmlDeviceGetUUID(_device: usize, uuid: *mut c_char, room: c_uint) |state| {
        drop(state);
        put_text(uuid, room, "GPU-66616b65-2d67-7075-2d75-7569642d3030");
        SUCCESS
    }
    nvmlDeviceGetMigMode(_device: usize, current: *mut c_uint, pending: *mut c_uint) |state| {
        let mode = number(&state, "mig", 0);
        put(current, mode);
        put(pending, mode);
        SUCCESS
    }
    nvmlDeviceGetComputeMode(_device: usize, mode: *mut c_uint) |state| {
        put(mode, number(&state, "compute-mode", 0));
        SUCCESS
    }
    nvmlDeviceGetCudaComputeCapability(_device: usize, major: *mut c_int,
        minor: *mut c_int) |state| {
        put(major, number(&state, "major", 9).cast_signed());
        put(minor, number(&state, "minor", 0).cast_signed());
        SUCCESS
    }
    nvmlDeviceGetUtilizationRates(_device: usize, rates: *mut [c_uint; 2]) |state| {
        drop(state);
        put(rates, [42, 17]);
        SUCCESS
    }
    nvmlDeviceGetMemoryInfo(_device: usize, memory: *mut [c_ulonglong; 3]) |state| {
        let total = crate::memory::capacity(&state);
        put(memory, [total, total - state.used, state.used]);
        SUCCESS
    }
    nvmlDeviceGetClockInfo(_device: usize, kind: c_uint, mhz: *mut c_uint) |state| {
        drop(state);
        put(mhz, if kind == 2 { 2619 } else { 1755 });
        SUCCESS
    }
    nvmlDeviceGetPowerUsage(_device: usize, milliwatts: *mut c_uint) |state| {
        drop(state);
        put(milliwatts, 123_456);
        SUCCESS
    }
    nvmlDeviceGetTotalEnergyConsumption(_device: usize, millijoules: *mut c_ulonglong) |state| {
        put(millijoules, state.setting("millijoules", 7_000_001));
        SUCCESS
    }
    nvmlDeviceGetComputeRunningProcesses_v3(_device: usize, count: *mut c_uint,
        _infos: *mut c_void) |state| {
        drop(state);
        put(count, 0);
        SUCCESS
    }
    nvmlGpmQueryDeviceSupport(_device: usize, support: *mut [c_uint; 2]) |state| {
        put(support, [1, number(&state, "gpm", 1)]);
        SUCCESS
    }
    nvmlGpmSampleAlloc(sample: *mut usize) |state| {
        let mut state = state;
        put(sample, usize::try_from(state.handle()).unwrap_or(1));
        SUCCESS
    }
    nvmlGpmSampleFree(_sample: usize) |state| { drop(state); SUCCESS }
    nvmlGpmSampleGet(_device: usize, _sample: usize) |state| {
        if state.setting("gpm", 1) == 1 { SUCCESS } else { NOT_SUPPORTED }
    }
    nvmlGpmMetricsGet(metrics: *mut GpmMetrics) |state| {
        let count_of = |name, default| f64::from(number(&state, name, default));
        let (hits, misses) = (count_of("llc-hits", 300), count_of("llc-misses", 100));
        // SAFETY: NVML is given its own structure.
        let metrics = unsafe { &mut *metrics };
        let count = metrics.count as usize;
        for metric in metrics.metrics.iter_mut().take(count) {
            metric.result = SUCCESS;
            metric.value = match metric.id {
                164 => hits,
                165 => misses,
                _ => 12.5,
            };
        }
        SUCCESS
    }
}

/// `nvmlGpmMetricsGet_t`.
#[repr(C)]
pub struct GpmMetrics {
    version: c_uint,
    count: c_uint,
    samples: [usize; 2],
    metrics: [GpmMetric; 210],
}

/// `nvmlGpmMetric_t`.
#[repr(C)]
struct GpmMetric {
    id: c_uint,
    result: c_uint,
    value: f64,
    names: [*const c_char; 3],
}

/// `nvmlErrorString` of NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(_code: c_uint) -> *const c_char {
    c"an error of the fake".as_ptr()
}
