//! A limit on the size of files: `ulimit -f`, `LimitFSIZE=`, `RLIMIT_FSIZE`.
//!
//! A write past the limit raises SIGXFSZ, whose default action ends the process. After
//! [`survive`] only the write fails, with `EFBIG`, and the process goes on as with a full disk.
//!
//! The signal is handled and not ignored: a program that the process starts would inherit an
//! ignored signal, and gets the default action in place of a handler.

use rustix::process::Signal;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The remedy where a write has met the limit, for messages.
pub const REMEDY: &str =
    "raise the limit on the size of files (`LimitFSIZE=` of the service, `ulimit -f` of a shell)";

/// Lets writes past the limit fail instead of ending this process.
///
/// # Errors
/// Where the system refuses.
pub fn survive() -> io::Result<()> {
    // Nobody reads the flag: the write itself reports the limit.
    signal_hook::flag::register(Signal::XFSZ.as_raw(), Arc::new(AtomicBool::new(false))).map(drop)
}

/// What to do about a file that cannot be written, where the cause is a full disk or a limit.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::FileTooLarge => Some(REMEDY),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some("make room on the disk"),
        _ => None,
    }
}
