//! The state that the whole library shares: one lock, one condition.

use crate::arrays::Array;
use crate::memory::{Mapping, Physical};
use crate::modules::Module;
use crate::stream::StreamState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

/// `CUDA_SUCCESS`.
pub const SUCCESS: u32 = 0;
/// `CUDA_ERROR_INVALID_VALUE`.
pub const INVALID_VALUE: u32 = 1;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_INVALID_HANDLE`.
pub const INVALID_HANDLE: u32 = 400;
/// `CUDA_ERROR_NOT_FOUND`.
pub const NOT_FOUND: u32 = 500;
/// `CUDA_ERROR_NOT_READY`.
pub const NOT_READY: u32 = 600;
/// `CUDA_ERROR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: u32 = 801;
/// `CUDA_ERROR_LAUNCH_TIMEOUT`: what a wait that would never end is given in its place.
pub const TIMEOUT: u32 = 702;

/// The limit of waits that are endless in a real driver.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A call that is to fail.
pub struct Failure {
    pub function: String,
    pub code: u32,
    /// Calls that pass before it.
    pub after: u32,
    pub times: u32,
}

#[derive(Default)]
pub struct State {
    pub log: Vec<String>,
    /// The one thread whose calls are recorded.
    pub only: Option<ThreadId>,
    pub failures: Vec<Failure>,
    pub settings: BTreeMap<String, String>,
    pub next_handle: u64,
    pub streams: BTreeMap<u64, StreamState>,
    /// Events by handle: how often recorded, how often reached, and when last, in nanoseconds.
    pub events: BTreeMap<u64, EventState>,
    pub modules: BTreeMap<u64, Module>,
    pub functions: BTreeMap<u64, (u64, String)>,
    /// SMs of resources by the number in them, of descriptions, of green contexts, and of streams
    /// that are in one.
    pub resources: BTreeMap<u64, Vec<u32>>,
    pub descriptions: BTreeMap<u64, Vec<u32>>,
    pub contexts: BTreeMap<u64, Vec<u32>>,
    pub stream_sms: BTreeMap<u64, Vec<u32>>,
    pub links: BTreeMap<u64, (Vec<u8>, u64)>,
    /// Reserved addresses: length.
    pub reserved: BTreeMap<u64, u64>,
    pub mapped: BTreeMap<u64, Mapping>,
    pub physical: BTreeMap<u64, Physical>,
    pub used: u64,
    /// Arrays, and levels of such by handle: of which array, and which.
    pub arrays: BTreeMap<u64, Array>,
    pub levels: BTreeMap<u64, (u64, u32)>,
    /// Texture and surface objects.
    pub objects: BTreeSet<u64>,
    /// Host memory that the device reaches: length.
    pub pinned: BTreeMap<u64, u64>,
    pub running: BTreeSet<String>,
    pub released: BTreeSet<String>,
    pub synchronising: u32,
    pub sticky: u32,
    pub linked_texts: VecDeque<String>,
}

#[derive(Clone, Copy, Default)]
pub struct EventState {
    pub recorded: u64,
    pub reached: u64,
    pub time: u64,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(|| Mutex::new(State::from_environment()));
/// Told of every change.
pub static CHANGED: Condvar = Condvar::new();

/// The state, whatever panicked before.
pub fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits until `done`, at most [`PATIENCE`]; whether it came.
pub fn wait(
    state: MutexGuard<'static, State>,
    mut done: impl FnMut(&State) -> bool,
) -> (MutexGuard<'static, State>, bool) {
    let (state, timeout) = CHANGED
        .wait_timeout_while(state, PATIENCE, |state| !done(state))
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    (state, !timeout.timed_out())
}

impl State {
    /// `FAKE_GPU` holds commands of [`crate::control`], parted by semicolons.
    fn from_environment() -> State {
        let mut state = State { next_handle: 0x1000, ..State::default() };
        for command in std::env::var("FAKE_GPU").unwrap_or_default().split(';') {
            state.obey(command.trim());
        }
        state
    }

    pub fn handle(&mut self) -> u64 {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// A number that a test may have set.
    pub fn setting(&self, name: &str, default: u64) -> u64 {
        self.settings.get(name).and_then(|value| value.parse().ok()).unwrap_or(default)
    }

    /// Does what a test says; whether it was understood.
    pub fn obey(&mut self, command: &str) -> bool {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["fail", function, code, ref rest @ ..] => {
                let number = |at: usize, default| {
                    rest.get(at).and_then(|n: &&str| n.parse().ok()).unwrap_or(default)
                };
                let Ok(code) = code.parse() else { return false };
                let (times, after) = (number(0, 1), number(1, 0));
                self.failures.push(Failure { function: function.to_owned(), code, after, times });
            }
            ["release", kernel] => {
                self.released.insert(kernel.to_owned());
            }
            ["sticky", code] => match code.parse() {
                Ok(code) => self.sticky = code,
                Err(_) => return false,
            },
            ["set", name, ref value @ ..] => {
                self.settings.insert(name.to_owned(), value.join(" "));
            }
            ["clear"] => self.log.clear(),
            ["only-this-thread"] => self.only = Some(std::thread::current().id()),
            _ => return false,
        }
        true
    }

    /// The error that a call is to give.
    pub fn failure(&mut self, function: &str) -> Option<u32> {
        let at = self.failures.iter().position(|failure| failure.function == function)?;
        let failure = &mut self.failures[at];
        if failure.after > 0 {
            failure.after -= 1;
            return None;
        }
        failure.times -= 1;
        let code = failure.code;
        if failure.times == 0 {
            self.failures.remove(at);
        }
        Some(code)
    }
}

/// The ordering of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// The call runs beside running kernels.
    Beside,
    /// The call waits for every running kernel.
    ForAll,
}

/// Begins a call: records it, lets it fail where it shall, lets it wait where it must.
///
/// # Errors
/// The code that the call is to give.
pub fn begin(
    function: &str,
    arguments: &str,
    waits: Waits,
) -> Result<MutexGuard<'static, State>, u32> {
    let mut state = lock();
    // Asked over and over by whoever looks for ends.
    let is_recorded = state.only.is_none_or(|thread| thread == std::thread::current().id());
    if function != "cuEventQuery" && is_recorded {
        state.log.push(format!("{function}({arguments})"));
    }
    if let Some(code) = state.failure(function) {
        state.log.push(format!("{function} fails with {code}"));
        return Err(code);
    }
    if state.sticky != 0 {
        return Err(state.sticky);
    }
    if waits == Waits::ForAll && !state.running.is_empty() {
        let names: Vec<&str> = state.running.iter().map(String::as_str).collect();
        let names = names.join(" ");
        state.log.push(format!("blocked: {function} by {names}"));
        state.synchronising += 1;
        let (mut waited, done) = wait(state, |state| state.running.is_empty() || state.sticky != 0);
        waited.synchronising -= 1;
        CHANGED.notify_all();
        if !done {
            waited.log.push(format!("deadlock: {function}"));
            return Err(TIMEOUT);
        }
        state = waited;
    } else if state.synchronising > 0 && state.settings.get("strict").is_some_and(|on| on == "on") {
        state.log.push(format!("held: {function}"));
        let (waited, done) = wait(state, |state| state.synchronising == 0);
        state = waited;
        if !done {
            state.log.push(format!("deadlock: {function}"));
            return Err(TIMEOUT);
        }
    }
    Ok(state)
}
