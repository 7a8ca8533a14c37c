//! Calls of threads that must not wait for running grids.
//!
//! A thread that calls `emulated_driver_watch` promises two things for its later calls: none may
//! wait for grids, and none for another call that may. `emulated_driver_waits` names the calls that
//! broke the promise. With the switch `watch=on` the process's first thread is watched, too: each
//! of its calls that does wait is told on standard error. While a daemon opens a GPU, it measures,
//! and so waits.

use crate::abi::put_text;
use crate::driver::Driver;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// How a thread is watched.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watch {
    /// Not at all.
    Off,
    /// For calls that wait.
    Waits,
    /// For calls that may wait.
    MayWait,
}

thread_local! {
    static CALL: Cell<&'static str> = const { Cell::new("") };
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

static FOUND: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// Calls of watched threads that waited for what was in a stream.
static AWAITED: AtomicU64 = AtomicU64::new(0);

/// A call begins on this thread.
pub fn enter(name: &'static str) {
    CALL.set(name);
}

impl Driver {
    /// How the calling thread is watched.
    pub fn watch(&self) -> Watch {
        if IS_WATCHED.get() {
            return Watch::MayWait;
        }
        // SAFETY: it takes nothing.
        let thread = || unsafe { libc::gettid() }.cast_unsigned();
        if self.settings.watch && thread() == std::process::id() {
            Watch::Waits
        } else {
            Watch::Off
        }
    }

    /// This thread waits for what is in a stream, if only for copies.
    pub fn awaits_stream(&self) {
        if self.watch() != Watch::Off {
            AWAITED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The call of this thread waits, or may wait where `does` is false.
    pub fn waits(&self, does: bool, why: &str) {
        let watch = self.watch();
        if watch == Watch::Off || (watch == Watch::Waits && !does) {
            return;
        }
        let text = format!("{}: {why}", CALL.get());
        if watch == Watch::Waits {
            eprintln!("the emulated driver: the first thread waits in {text}");
        }
        FOUND.lock().unwrap_or_else(PoisonError::into_inner).insert(text);
    }
}

/// Watches the calling thread from now on, and forgets what was found.
#[unsafe(no_mangle)]
pub extern "C" fn emulated_driver_watch() {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).clear();
    IS_WATCHED.set(true);
}

/// Calls of watched threads that have waited for what was in a stream.
#[unsafe(no_mangle)]
pub extern "C" fn emulated_driver_awaited() -> u64 {
    AWAITED.load(Ordering::Relaxed)
}

/// Writes the calls that were found, one a line, as far as they fit into `room` bytes. Returns
/// their number.
#[unsafe(no_mangle)]
pub extern "C" fn emulated_driver_waits(into: *mut c_char, room: usize) -> c_int {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<&str> = found.iter().map(String::as_str).collect();
    put_text(into, room, &lines.join("\n"));
    c_int::try_from(lines.len()).unwrap_or(c_int::MAX)
}
