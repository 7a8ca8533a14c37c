//! NVRTC's two functions for machine code, placed in front of NVRTC's own: a program that links
//! NVRTC receives PTX from them.
//!
//! A partition needs a kernel's PTX, and programs that compile at run time for `sm_XX` load the
//! output of `nvrtcGetCUBIN`. NVRTC (11.2 and later) also keeps the PTX of each such program, and
//! the driver loads PTX and machine code alike. The dynamic linker finds this library's functions
//! first, because the library is preloaded. A program that looks the functions up in NVRTC's own
//! handle gets NVRTC's functions (`docs/guide/frameworks.md` has the remedy).

use libc::{RTLD_LAZY, RTLD_NEXT, RTLD_NOLOAD, c_char, c_int, c_void, dl_phdr_info, size_t};
use std::ffi::{CStr, CString};

/// `NVRTC_ERROR_INTERNAL_ERROR`.
const INTERNAL_ERROR: c_int = 11;
/// The PTX of a program without any is its end of text.
const EMPTY_BYTES: size_t = 1;

type GetSize = unsafe extern "C" fn(*mut c_void, *mut size_t) -> c_int;
type GetImage = unsafe extern "C" fn(*mut c_void, *mut c_char) -> c_int;

/// Bytes of the image that [`nvrtcGetCUBIN`] gives: of the PTX where the program has some, of
/// machine code else.
///
/// # Safety
/// As NVRTC demands: `program` is one of its programs, `size` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBINSize(program: *mut c_void, size: *mut size_t) -> c_int {
    // SAFETY: the caller's promise is NVRTC's own.
    if let Some(bytes) = unsafe { ptx_bytes(program) }
        && !size.is_null()
    {
        // SAFETY: the caller promises that what is not null can be written to.
        unsafe { size.write(bytes) };
        return 0;
    }
    // SAFETY: NVRTC has a function of this name and type.
    match unsafe { find::<GetSize>(c"nvrtcGetCUBINSize") } {
        // SAFETY: called as we were.
        Some(size_of) => unsafe { size_of(program, size) },
        None => INTERNAL_ERROR,
    }
}

/// The PTX of a program that has some, the machine code of others.
///
/// # Safety
/// As NVRTC demands: `program` is one of its programs, `image` has the bytes that
/// [`nvrtcGetCUBINSize`] says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetCUBIN(program: *mut c_void, image: *mut c_char) -> c_int {
    // SAFETY: the caller's promise is NVRTC's own.
    let name = match unsafe { ptx_bytes(program) } {
        Some(_) => c"nvrtcGetPTX",
        None => c"nvrtcGetCUBIN",
    };
    // SAFETY: both have this type.
    match unsafe { find::<GetImage>(name) } {
        // SAFETY: the buffer has the bytes of what was chosen by the same rule in
        // `nvrtcGetCUBINSize`.
        Some(get) => unsafe { get(program, image) },
        None => INTERNAL_ERROR,
    }
}

/// Bytes of a program's PTX with its end of text. None where it has no machine code, which the
/// caller is to learn: it was compiled for `compute_XX`, or for the linker (`-dlto`).
///
/// # Safety
/// `program` is one of NVRTC's.
unsafe fn ptx_bytes(program: *mut c_void) -> Option<size_t> {
    let (mut machine_code, mut ptx) = (0, 0);
    for (name, bytes) in
        [(c"nvrtcGetCUBINSize", &raw mut machine_code), (c"nvrtcGetPTXSize", &raw mut ptx)]
    {
        // SAFETY: NVRTC has functions of these names and of this type.
        let size = unsafe { find::<GetSize>(name) }?;
        // SAFETY: the caller's program, and a variable of ours.
        if unsafe { size(program, bytes) } != 0 {
            return None;
        }
    }
    (machine_code > 0 && ptx > EMPTY_BYTES).then_some(ptx)
}

/// One of NVRTC's functions, wherever it was loaded from.
///
/// # Safety
/// The function has the type `F`, a function pointer.
unsafe fn find<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the name ends in a zero.
    let mut symbol = unsafe { libc::dlsym(RTLD_NEXT, name.as_ptr()) };
    if symbol.is_null() {
        // A library that was opened for itself alone brought NVRTC with it: it comes after nobody.
        let loaded = loaded()?;
        // SAFETY: nothing is loaded that is not there, and the handle is dropped only as a count of
        // users.
        let library = unsafe { libc::dlopen(loaded.as_ptr(), RTLD_LAZY | RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the library is loaded.
        symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: closed once for once opened; its other users keep it loaded.
        unsafe { libc::dlclose(library) };
    }
    // SAFETY: the caller knows the type, which is a pointer's size.
    (!symbol.is_null()).then(|| unsafe { std::mem::transmute_copy(&symbol) })
}

/// The file of the NVRTC that this process has loaded.
fn loaded() -> Option<CString> {
    let mut found: Option<CString> = None;
    // SAFETY: `visit` gets the pointer back while `found` lives.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

unsafe extern "C" fn visit(object: *mut dl_phdr_info, _bytes: size_t, found: *mut c_void) -> c_int {
    // SAFETY: the linker lends a description whose name is a string, or null.
    let name = unsafe { (*object).dlpi_name };
    if name.is_null() {
        return 0;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    if !file.starts_with(b"libnvrtc.so") {
        return 0;
    }
    // SAFETY: `loaded` lends its variable.
    unsafe { *found.cast::<Option<CString>>() = Some(name.to_owned()) };
    1
}
