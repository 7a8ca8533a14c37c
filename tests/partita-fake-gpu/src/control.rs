//! The tests' controls of the library, and its log of calls.

use crate::state::{CHANGED, lock};
use std::ffi::{CStr, c_char, c_int};

/// Obeys a command:
///
/// - `fail FUNCTION CODE [TIMES [AFTER]]`: so many calls, after so many others, give that code;
/// - `release KERNEL`: kernels of that name that wait for it end;
/// - `sticky CODE`: from now on every call gives that code, as after a fault; 0 ends it;
/// - `set NAME VALUE`: a property of the GPU or the driver, for example `driver 12040`, `strict
///   on`;
/// - `clear`: forgets the log;
/// - `only-this-thread`: from now on the log has calls of the calling thread only.
///
/// Returns 0, or 1 for a command that is none.
///
/// # Safety
/// `command` points to a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_gpu_control(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let command = unsafe { CStr::from_ptr(command) }.to_string_lossy();
    let understood = lock().obey(&command);
    CHANGED.notify_all();
    c_int::from(!understood)
}

/// Writes the log, a line for each call, as far as it fits, and returns its length.
///
/// # Safety
/// `into` points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_gpu_log(into: *mut u8, bytes: usize) -> usize {
    let log = lock().log.join("\n");
    let fits = log.len().min(bytes);
    if fits > 0 {
        // SAFETY: the caller's promise; the log is this function's own.
        unsafe { std::ptr::copy_nonoverlapping(log.as_ptr(), into, fits) };
    }
    log.len()
}

/// Whether it is to be taken for Partita's own library (`set shim 1`).
#[unsafe(no_mangle)]
pub extern "C" fn partita_is_shim() -> u32 {
    u32::from(lock().setting("shim", 0) != 0)
}

/// The address of a variable in the most recently loaded module; 0 if it has none.
///
/// # Safety
/// `name` points to a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_gpu_variable(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let state = lock();
    let found = state.modules.values().next_back().and_then(|module| module.variables.get(&*name));
    found.map_or(0, |(address, _)| *address)
}

/// Reads device memory; 0, or 1 where it is not mapped.
///
/// # Safety
/// `into` points to `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_gpu_read(address: u64, into: *mut u8, bytes: usize) -> c_int {
    if !crate::memory::is_live(&lock(), address, bytes as u64) {
        return 1;
    }
    crate::memory::copy(into as u64, address, bytes as u64);
    0
}
