//! The context's lock, and calls that wait for running grids.
//!
//! Loading and unloading, page-locking, and making and ending green contexts wait for everything
//! that was submitted, and hold the context's lock meanwhile: every call that needs the context
//! waits, too. Unmapping waits for the grids that run, without the lock. Both are habits
//! ([`crate::settings::Habits`]).

use crate::driver::Driver;
use crate::status::Status;
use std::sync::{PoisonError, RwLockWriteGuard, TryLockError};

/// How a call meets the context's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It needs the lock for a moment.
    Passes,
    /// It does not need the lock.
    Beside,
    /// It takes the lock, waits for what was submitted, and keeps the lock to its end.
    Drains,
    /// It needs the lock for a moment, and waits for the grids that run.
    Frees,
}

impl Mode {
    /// The mode of an export by the word in its declaration; no word stands for
    /// [`Mode::Passes`].
    pub const fn of(word: &str) -> Mode {
        match word.as_bytes() {
            b"" => Mode::Passes,
            b"beside" => Mode::Beside,
            b"drains" => Mode::Drains,
            b"frees" => Mode::Frees,
            _ => panic!("no mode of a call"),
        }
    }
}

impl Driver {
    /// Begins a call of a mode. The call ends when the lock is dropped.
    ///
    /// # Errors
    /// The status of the fault that ended the context meanwhile.
    pub fn begin(
        &self,
        name: &'static str,
        mode: Mode,
    ) -> Result<Option<RwLockWriteGuard<'_, ()>>, Status> {
        crate::waits::enter(name);
        let habits = self.settings.habits;
        if matches!(mode, Mode::Drains | Mode::Frees) {
            self.tell_of_grids();
        }
        match mode {
            Mode::Drains if habits.context_lock => {
                let guard = self.lock.write().unwrap_or_else(PoisonError::into_inner);
                self.drain_streams()?;
                Ok(Some(guard))
            }
            Mode::Beside => Ok(None),
            Mode::Passes | Mode::Drains | Mode::Frees => {
                if habits.context_lock {
                    self.pass();
                }
                if mode == Mode::Frees && habits.unmap_waits {
                    self.drain()?;
                }
                Ok(None)
            }
        }
    }

    /// Waits for the calls that keep the lock. Calls that pass do not hold up one another: their
    /// threads may lose the processor at any point, and that is no wait for grids.
    fn pass(&self) {
        if let Err(TryLockError::WouldBlock) = self.lock.try_read() {
            self.waits(true, "another call has the context's lock");
            drop(self.lock.read());
        }
    }

    fn tell_of_grids(&self) {
        self.waits(self.has_grids(), "it waits for the grids that run");
    }

    /// In the middle of a call that passes: waits for the grids that run, as one that frees does.
    pub fn wait_for_grids(&self) -> Result<(), Status> {
        self.tell_of_grids();
        if self.settings.habits.unmap_waits { self.drain() } else { Ok(()) }
    }

    /// Waits for the grids that have begun.
    pub fn drain(&self) -> Result<(), Status> {
        self.gpu.drain()?;
        self.live()
    }
}
