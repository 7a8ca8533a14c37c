//! The border to Slurm: `spank.h`, declared by hand, and the symbols that Slurm looks for.
//!
//! All unsafe code of the crate lies here and in [`release`]. Everything that the rest of the crate
//! sees of Slurm is [`Spank`], a handle that lives as long as one call.
//!
//! Slurm's own programs (`srun`, `sbatch`, `salloc`, `slurmd`, `slurmstepd`) load this library and
//! export the functions that it calls, so nothing of Slurm is needed for the build. The declared
//! part of `spank.h` is the same from Slurm 20.11 to 26.05.
//!
//! Invariants: no panic crosses the border. A hook that fails answers 0: a failure of Partita is
//! told, and never ends a job or drains a node. Only wrong options at a job's submission are
//! refused.

#![expect(unsafe_code, reason = "Slurm's interface is C")]

mod release;

use crate::options::{OPTIONS, Place};
use crate::{hooks, settings::Settings};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;

/// The name of the plugin. Slurm reads it, as all names in this block, as data.
// SAFETY: the name is Slurm's, and no other symbol of this library has it.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 8] = *b"partita\0";
/// The kind of the plugin.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";
/// The release of Slurm that this library fits. [`release`] sets it when the library is loaded.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub static plugin_version: AtomicU32 = AtomicU32::new(release::DEBIAN_12);
/// The version of the plugin itself, which Slurm only prints.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub static spank_plugin_version: c_uint = 1;

/// `spank_t`, opaque.
#[repr(C)]
struct RawSpank {
    _private: [u8; 0],
}

/// `struct spank_option`.
#[repr(C)]
struct RawOption {
    name: *const c_char,
    argument: *const c_char,
    usage: *const c_char,
    has_argument: c_int,
    value: c_int,
    callback: Option<extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

const SUCCESS: c_int = 0;
const FAILURE: c_int = -1;
/// `S_JOB_UID`, `S_JOB_ID`, `S_JOB_STEPID` of `enum spank_item`.
const ITEM_UID: c_int = 0;
const ITEM_JOB: c_int = 2;
const ITEM_STEP: c_int = 3;
/// `SLURM_BATCH_SCRIPT`, the number of the step that runs a job's script.
const BATCH_STEP: u32 = 0xffff_fffb;
/// `S_CTX_…` of `enum spank_context`.
const CONTEXT_LOCAL: c_int = 1;
const CONTEXT_REMOTE: c_int = 2;
const CONTEXT_ALLOCATOR: c_int = 3;

// SAFETY: the declarations are those of `slurm/spank.h`, which every program that loads this
// library exports.
unsafe extern "C" {
    fn spank_context() -> c_int;
    fn spank_option_register(spank: *mut RawSpank, option: *mut RawOption) -> c_int;
    fn spank_option_getopt(
        spank: *mut RawSpank,
        option: *mut RawOption,
        argument: *mut *mut c_char,
    ) -> c_int;
    fn spank_get_item(spank: *mut RawSpank, item: c_int, ...) -> c_int;
    fn spank_getenv(
        spank: *mut RawSpank,
        name: *const c_char,
        buffer: *mut c_char,
        length: c_int,
    ) -> c_int;
    fn spank_setenv(
        spank: *mut RawSpank,
        name: *const c_char,
        value: *const c_char,
        overwrite: c_int,
    ) -> c_int;
    fn slurm_error(format: *const c_char, ...);
    fn slurm_spank_log(format: *const c_char, ...);
    fn slurm_info(format: *const c_char, ...);
}

/// Slurm's handle, for the length of one call.
pub(crate) struct Spank<'a> {
    raw: *mut RawSpank,
    lifetime: PhantomData<&'a ()>,
}

impl Spank<'_> {
    /// Announces the options of [`OPTIONS`].
    pub(crate) fn register_options(&self) {
        for (number, option) in OPTIONS.iter().enumerate() {
            // Slurm keeps the pointers as long as it runs.
            let raw = Box::leak(Box::new(raw_option(number, option)));
            // SAFETY: `self.raw` is Slurm's own handle, and the option lives as long as the
            // process.
            if unsafe { spank_option_register(self.raw, raw) } != SUCCESS {
                error(&format!("the option --{} cannot be registered", text(option.name)));
            }
        }
    }

    /// What the job's submission gave for an option, in a prolog or an epilog.
    pub(crate) fn option(&self, number: usize) -> Option<String> {
        let mut raw = raw_option(number, OPTIONS.get(number)?);
        let mut argument: *mut c_char = std::ptr::null_mut();
        // SAFETY: `self.raw` is Slurm's own handle; both pointers are valid for the call, in which
        // Slurm reads the one and writes the other.
        let found = unsafe { spank_option_getopt(self.raw, &raw mut raw, &raw mut argument) };
        if found != SUCCESS || argument.is_null() {
            return None;
        }
        // SAFETY: Slurm has set it to a string that ends with 0 and lives as long as the option.
        let argument = unsafe { CStr::from_ptr(argument) };
        Some(argument.to_string_lossy().into_owned())
    }

    /// The number of the job.
    pub(crate) fn job(&self) -> Option<u32> {
        self.number(ITEM_JOB)
    }

    /// Whether the step runs the job's script.
    pub(crate) fn is_script(&self) -> bool {
        self.number(ITEM_STEP) == Some(BATCH_STEP)
    }

    /// The user whose job it is.
    pub(crate) fn user(&self) -> Option<u32> {
        self.number(ITEM_UID)
    }

    fn number(&self, item: c_int) -> Option<u32> {
        let mut number = 0_u32;
        // SAFETY: `self.raw` is Slurm's own handle, and Slurm writes a number of 32 bits for the
        // items that this module names.
        let found = unsafe { spank_get_item(self.raw, item, &raw mut number) };
        (found == SUCCESS).then_some(number)
    }

    /// A variable of the job's environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        let mut buffer = vec![0_u8; LONGEST_VARIABLE];
        let length = c_int::try_from(buffer.len()).ok()?;
        // SAFETY: `self.raw` is Slurm's own handle, the name ends with 0, and Slurm writes at most
        // `length` bytes.
        let found =
            unsafe { spank_getenv(self.raw, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
        if found != SUCCESS {
            return None;
        }
        let value = CStr::from_bytes_until_nul(&buffer).ok()?;
        Some(value.to_string_lossy().into_owned())
    }

    /// Sets a variable of the job's environment.
    pub(crate) fn set_variable(&self, name: &str, value: &str) {
        let (Ok(key), Ok(content)) = (CString::new(name), CString::new(value)) else { return };
        // SAFETY: `self.raw` is Slurm's own handle; Slurm copies both strings.
        if unsafe { spank_setenv(self.raw, key.as_ptr(), content.as_ptr(), 1) } != SUCCESS {
            error(&format!("{name} cannot be set in the job's environment"));
        }
    }
}

/// Sets a variable of this process, for Slurm to read.
pub(crate) fn set_own_variable(name: &str, value: &str) {
    // SAFETY: Slurm calls `slurm_spank_init` before it starts threads that read the environment.
    unsafe { std::env::set_var(name, value) };
}

/// The longest variable that is read: the system's limit for one string of an environment.
const LONGEST_VARIABLE: usize = 128 << 10;

fn raw_option(number: usize, option: &crate::options::Known) -> RawOption {
    RawOption {
        name: option.name.as_ptr(),
        argument: option.argument.as_ptr(),
        usage: option.usage.as_ptr(),
        has_argument: 1,
        value: c_int::try_from(number).unwrap_or(c_int::MAX),
        callback: Some(take_option),
    }
}

/// Slurm has read an option.
extern "C" fn take_option(number: c_int, argument: *const c_char, remote: c_int) -> c_int {
    guarded(FAILURE, || {
        let Ok(number) = usize::try_from(number) else { return FAILURE };
        if argument.is_null() {
            return FAILURE;
        }
        // SAFETY: Slurm gives a string that ends with 0 and lives as long as the call.
        let argument = unsafe { CStr::from_ptr(argument) };
        match crate::options::take(number, &argument.to_string_lossy()) {
            Ok(()) => SUCCESS,
            // A job that runs already is not ended for an option that its submission let pass.
            Err(why) => {
                error(&why);
                if remote == 0 { FAILURE } else { SUCCESS }
            }
        }
    })
}

/// Where the library is loaded.
pub(crate) fn place() -> Place {
    // SAFETY: the function takes nothing and only reads.
    match unsafe { spank_context() } {
        CONTEXT_LOCAL | CONTEXT_ALLOCATOR => Place::Submission,
        CONTEXT_REMOTE => Place::Step,
        _ => Place::Node,
    }
}

fn say(log: unsafe extern "C" fn(*const c_char, ...), message: &str) {
    let Ok(message) = CString::new(format!("partita: {message}")) else { return };
    // SAFETY: the format takes one string that ends with 0, and there is one.
    unsafe { log(c"%s".as_ptr(), message.as_ptr()) };
}

/// An error, in the log of a daemon or on the standard error of a command.
pub(crate) fn error(message: &str) {
    say(slurm_error, message);
}

/// A line for the job's user, on the standard error of the step.
pub(crate) fn tell(message: &str) {
    say(slurm_spank_log, message);
}

/// A line for the log.
pub(crate) fn info(message: &str) {
    say(slurm_info, message);
}

fn text(name: &CStr) -> std::borrow::Cow<'_, str> {
    name.to_string_lossy()
}

/// Calls `hook`. No panic gets into Slurm.
fn guarded(otherwise: c_int, hook: impl FnOnce() -> c_int) -> c_int {
    catch_unwind(AssertUnwindSafe(hook)).unwrap_or_else(|_| {
        error("an error of Partita's own: please report it with the lines above");
        otherwise
    })
}

/// The plugin's arguments in `plugstack.conf`.
fn arguments(count: c_int, values: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    let argument = |index| {
        // SAFETY: Slurm gives as many pointers as it says.
        let value = unsafe { values.add(index) };
        // SAFETY: as above.
        let value = unsafe { *value };
        // SAFETY: each is a string that ends with 0 and lives as long as the call.
        let value = unsafe { CStr::from_ptr(value) };
        value.to_string_lossy().into_owned()
    };
    if values.is_null() { Vec::new() } else { (0..count).map(argument).collect() }
}

/// Exports a function of `spank_f`'s type for a hook.
macro_rules! export {
    ($($name:ident => $hook:path),* $(,)?) => {$(
        /// A hook that Slurm calls, see [`crate::hooks`].
        // SAFETY: the name is Slurm's, and no other symbol of this library has it.
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            spank: *mut c_void,
            count: c_int,
            values: *const *const c_char,
        ) -> c_int {
            guarded(SUCCESS, || {
                let settings = Settings::read(&arguments(count, values));
                let spank = Spank { raw: spank.cast(), lifetime: PhantomData };
                $hook(&spank, settings);
                SUCCESS
            })
        }
    )*};
}

export! {
    slurm_spank_init => hooks::init,
    slurm_spank_user_init => hooks::user_init,
    slurm_spank_task_init => hooks::task_init,
    slurm_spank_exit => hooks::exit,
    slurm_spank_job_prolog => hooks::prolog,
    slurm_spank_job_epilog => hooks::epilog,
}
