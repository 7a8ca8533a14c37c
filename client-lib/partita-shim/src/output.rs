//! Output of kernels: `printf` on the program's own standard output, failed assertions on its
//! standard error.
//!
//! The output goes through C's streams, as the driver's does, so it keeps its place among the
//! program's own `printf`s.

use partita_client::Console;

unsafe extern "C" {
    static mut stdout: *mut libc::FILE;
    static mut stderr: *mut libc::FILE;
}

/// Writes what kernels have printed.
pub fn write(console: Console, text: &[u8]) {
    let (stream, name) = match console {
        // SAFETY: C's library sets `stdout` before any code of the program runs; a program that
        // changes it meanwhile breaks its own `printf` as well.
        Console::Output => (unsafe { stdout }, "output"),
        // SAFETY: as for `stdout`.
        Console::Error => (unsafe { stderr }, "error"),
    };
    // SAFETY: the pointer is good for `len` bytes, and `stream` is C's own.
    let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), stream) };
    if written < text.len() {
        crate::log::say(format_args!("standard {name} refuses a kernel's output"));
    }
}
