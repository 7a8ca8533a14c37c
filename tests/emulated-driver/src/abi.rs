//! The C border: reads and writes through pointers that callers give, and the form of an export.

use crate::status::Status;
use std::ffi::{CStr, c_char, c_void};

/// Writes an answer through a caller's pointer; nothing for a null pointer.
pub fn put<T>(into: *mut T, value: T) {
    if !into.is_null() {
        // SAFETY: exports are given pointers to places for their answers.
        unsafe { into.write_unaligned(value) };
    }
}

/// Reads through a caller's pointer.
pub fn get<T: Copy>(from: *const T) -> T {
    // SAFETY: exports are given pointers to their arguments.
    unsafe { from.read_unaligned() }
}

/// A caller's string.
pub fn text(from: *const c_char) -> String {
    // SAFETY: exports are given strings that end with a zero byte.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// A copy of a caller's bytes.
pub fn bytes(from: *const c_void, count: usize) -> Vec<u8> {
    if count == 0 || from.is_null() {
        return Vec::new();
    }
    // SAFETY: exports are given as many bytes as they say.
    unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count) }.to_vec()
}

/// Writes a string, with its zero byte, as far as it fits into `room` bytes.
pub fn put_text(into: *mut c_char, room: usize, value: &str) {
    let Some(most) = room.checked_sub(1).filter(|_| !into.is_null()) else { return };
    let count = value.len().min(most);
    // SAFETY: callers give room for `room` bytes, and `count` is less.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr().cast(), into, count) };
    // SAFETY: as above; the last byte is free.
    unsafe { into.wrapping_add(count).write(0) };
}

/// A size as the GPU counts: a process has 64-bit addresses.
pub fn wide(size: usize) -> u64 {
    size as u64
}

/// A size as C counts.
pub fn narrow(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// The status of a result.
pub fn answer(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(0)
}

/// Exports of the driver. They fail before `cuInit`, and after a fault with the fault's status. A
/// word before `|driver|` says how an export meets the context's lock
/// ([`crate::context::Mode`]).
macro_rules! exports {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) $($mode:ident)? |$driver:ident| $body:block)*)
        => {$(
        #[doc = concat!("`", stringify!($name), "` of the CUDA Driver API.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $crate::status::Status {
            const MODE: $crate::context::Mode =
                $crate::context::Mode::of(stringify!($($mode)?));
            let run = |$driver: &'static $crate::driver::Driver| {
                let _lock = $driver.begin(stringify!($name), MODE)?;
                $body
            };
            $crate::abi::answer($crate::driver::Driver::get().and_then(run))
        }
    )*};
}
pub(crate) use exports;
