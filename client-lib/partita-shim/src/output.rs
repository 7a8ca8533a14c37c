//! What kernels print, on the program's own standard output.
//!
//! It goes through C's `stdout`, as the driver's does, so that it keeps its place among the program's own `printf`s.

unsafe extern "C" {
    static mut stdout: *mut libc::FILE;
}

/// Writes what kernels have printed.
pub fn write(text: &[u8]) {
    // SAFETY: C's library sets `stdout` before any code of the program runs; a program that changes it meanwhile
    // breaks its own `printf` as well.
    let stream = unsafe { stdout };
    // SAFETY: the pointer is good for `len` bytes, and `stream` is C's own.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream) };
    if written < text.len() {
        crate::log::say(format_args!("standard output does not take what a kernel printed"));
    }
}
