//! The release of Slurm that has loaded this library.
//!
//! Slurm loads a plugin only where `plugin_version` names Slurm's own release (`YY.MM`). It reads
//! the number after the library has been loaded, and the constructor here runs while it is loaded:
//! the constructor copies the number from one of Slurm's own plugins. So one build of the library
//! fits every release. Where no plugin can be found, the number stays that of Debian 12.
//!
//! Slurm's plugins lie in the folder of the library that exports `spank_getenv`.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Slurm 22.05, as Debian 12 has it.
pub(super) const DEBIAN_12: u32 = 0x0016_0500;

/// Plugins of every Slurm; the first ones are loaded in any case.
const PLUGINS: [&str; 4] =
    ["auth_munge.so", "auth_slurm.so", "select_cons_tres.so", "sched_builtin.so"];

/// The dynamic linker calls what stands in this section when it has loaded the library.
// SAFETY: the section holds pointers to functions of this type, and this is one.
#[unsafe(link_section = ".init_array")]
#[used]
static WHEN_LOADED: extern "C" fn() = take_release;

extern "C" fn take_release() {
    if let Some(release) = found() {
        super::plugin_version.store(release, Ordering::Relaxed);
    }
}

/// The number of the running Slurm.
fn found() -> Option<u32> {
    let folder = folder()?;
    PLUGINS.iter().find_map(|plugin| version_of(&folder.join(plugin)))
}

/// The folder of Slurm's own library, and of its plugins.
fn folder() -> Option<PathBuf> {
    // SAFETY: both arguments are valid, and the function only looks a name up.
    let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"spank_getenv".as_ptr()) };
    let mut place = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address may be anything, and the result is written to our own memory.
    let is_found = unsafe { libc::dladdr(known, place.as_mut_ptr()) } != 0;
    // SAFETY: zeroes are a valid value of the structure, which has pointers and numbers only.
    let place = unsafe { place.assume_init() };
    if !is_found || place.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker's name of a loaded library ends with 0 and stays.
    let library = unsafe { CStr::from_ptr(place.dli_fname) };
    let library = PathBuf::from(std::ffi::OsString::from_vec(library.to_bytes().to_vec()));
    // A link of another folder may lead to the library, and its plugins lie beside the library.
    Some(library.canonicalize().ok()?.parent()?.to_owned())
}

/// `plugin_version` of a plugin.
fn version_of(plugin: &Path) -> Option<u32> {
    let path = CString::new(plugin.as_os_str().as_bytes()).ok()?;
    // SAFETY: the path ends with 0. The library is one of the plugins of this very program, which
    // do nothing when they are loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded, and the name ends with 0.
    let version: *mut c_void = unsafe { libc::dlsym(library, c"plugin_version".as_ptr()) };
    // SAFETY: every plugin of Slurm has it as a constant of 32 bits.
    let release = (!version.is_null()).then(|| unsafe { version.cast::<u32>().read() });
    // SAFETY: the library was opened above, and nothing of it is used from here on.
    unsafe { libc::dlclose(library) };
    release
}
