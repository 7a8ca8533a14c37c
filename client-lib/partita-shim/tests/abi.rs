//! The library as C sees it: loaded by `dlopen`, every name looked up, calls made with integers
//! only.

#![expect(unsafe_code, reason = "the test calls C functions that it looked up by name")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fake;

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::{env, fs};

/// The loaded library.
struct Library(*mut c_void);

/// Twelve registers and stack slots: more parameters than any function has.
type Call = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;

impl Library {
    fn open() -> Library {
        let test = env::current_exe().unwrap();
        let candidates = test.ancestors().skip(1).take(2).map(|dir| dir.join("libpartita_cuda.so"));
        let path = candidates.into_iter().find(|path| path.exists()).unwrap();
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the library has no constructors.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "the library cannot be loaded");
        Library(library)
    }

    fn find(&self, name: &str) -> Option<Call> {
        let name = CString::new(name).unwrap();
        // SAFETY: the library is loaded.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        // SAFETY: every symbol that the tests look up is a function that takes integers and returns
        // a CUresult; the calling convention lets it ignore further ones.
        (!symbol.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, Call>(symbol) })
    }

    fn call<const N: usize>(&self, name: &str, arguments: [u64; N]) -> i32 {
        let mut all = [0; 12];
        all[..N].copy_from_slice(&arguments);
        let [a, b, c, d, e, f, g, h, i, j, k, l] = all;
        let function = self.find(name).unwrap_or_else(|| panic!("{name} is not exported"));
        // SAFETY: what is no pointer to a living variable of the test is null.
        unsafe { function(a, b, c, d, e, f, g, h, i, j, k, l) }
    }
}

fn address<T>(value: &mut T) -> u64 {
    std::ptr::from_mut(value) as u64
}

fn names() -> Vec<String> {
    let table =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("api.table")).unwrap();
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
}

/// One test, because the state is the process's.
#[test]
fn calls_from_c() {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("PARTITA_SOCKET_DIR", dir.path()) };
    let cuda = Library::open();
    every_name_is_exported(&cuda);
    nothing_works_before_init(&cuda);
    assert_eq!(cuda.call("cuInit", [0]), 100, "no daemon");
    let journal = fake::start(dir.path());
    assert_eq!(cuda.call("cuInit", [0]), 0, "a failed attempt may be repeated");
    assert_eq!(cuda.call("cuInit", [1]), 1);
    nulls_are_refused(&cuda);
    memory_goes_there_and_back(&cuda);
    bad_handles_are_refused(&cuda);
    compiler_errors_reach_the_log(&cuda);
    journal.take();
    a_link_returns_its_input(&cuda);
    assert_eq!(journal.take(), ["module Ptx", "unload"]);
    several_inputs_are_linked_when_they_are_loaded(&cuda);
    assert_eq!(journal.take(), ["module Bundle", "unload"]);
    functions_are_found_by_version(&cuda);
}

/// The arguments of calls with garbage. One number is an invalid handle, a large count, an unknown
/// flag and the address of zeroes.
const GARBAGE: u64 = 0x20_0000;
/// Functions of the program that the library calls back: garbage is no function.
const CALL_BACK: [&str; 3] = ["cuLaunchHostFunc", "cuStreamAddCallback", "cuUserObject"];

/// Calls every function with garbage in every parameter, and then with each parameter null in turn.
/// The calls run in separate processes.
#[test]
fn garbage_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    for null in 0..=12 {
        let progress = dir.path().join(null.to_string());
        let output = std::process::Command::new(env::current_exe().unwrap())
            .args(["garbage_process", "--exact", "--nocapture"])
            .env("PARTITA_GARBAGE", &progress)
            .env("PARTITA_GARBAGE_NULL", null.to_string())
            .env_remove("PARTITA_LOG")
            .output()
            .unwrap();
        let last = fs::read_to_string(&progress).unwrap_or_default();
        assert!(
            output.status.success(),
            "parameter {null} null: {} in {last}\n{output:?}",
            output.status
        );
        assert_eq!(last, "done", "parameter {null} null");
    }
}

/// Makes the calls of [`garbage_is_answered`]; nothing where that did not ask for it.
#[test]
fn garbage_process() {
    let (Ok(progress), Ok(null)) = (env::var("PARTITA_GARBAGE"), env::var("PARTITA_GARBAGE_NULL"))
    else {
        return;
    };
    let null: usize = null.parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: no other thread runs yet.
    unsafe { env::set_var("PARTITA_SOCKET_DIR", dir.path()) };
    let _journal = fake::start(dir.path());
    let zeroes = usize::try_from(32 * GARBAGE).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is replaced; the range lies below everything that the system places by
    // itself.
    let mapped = unsafe { libc::mmap(GARBAGE as *mut c_void, zeroes, access, flags, -1, 0) };
    assert_eq!(mapped as u64, GARBAGE, "the addresses are free");
    let cuda = Library::open();
    assert_eq!(cuda.call("cuInit", [0]), 0);
    let mut context = 0u64;
    let mut arguments = [GARBAGE; 12];
    if let Some(argument) = arguments.get_mut(null) {
        *argument = 0;
    }
    for name in names() {
        if CALL_BACK.iter().any(|stem| name.starts_with(stem)) {
            continue;
        }
        fs::write(&progress, &name).unwrap();
        // Whatever the last call has done, this thread has a context.
        cuda.call("cuDevicePrimaryCtxRetain", [address(&mut context), 0]);
        cuda.call("cuCtxSetCurrent", [context]);
        // Zeroes again: answers of earlier calls are addresses and the like.
        // SAFETY: the mapping made above, which nobody refers to.
        unsafe { libc::madvise(mapped, zeroes, libc::MADV_DONTNEED) };
        let code = cuda.call(&name, arguments);
        assert!((0..1000).contains(&code), "{name}: {code}");
    }
    fs::write(&progress, "done").unwrap();
}

fn every_name_is_exported(cuda: &Library) {
    let missing: Vec<String> =
        names().into_iter().filter(|name| cuda.find(name).is_none()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

fn nothing_works_before_init(cuda: &Library) {
    let mut value = 0u64;
    let out = address(&mut value);
    assert_eq!(cuda.call("cuDeviceGetCount", [out]), 3);
    assert_eq!(cuda.call("cuMemAlloc_v2", [out, 16]), 3);
    assert_eq!(cuda.call("cuCtxSynchronize", []), 3);
    assert_eq!(cuda.call("cuDriverGetVersion", [out]), 0);
    assert_eq!(value, 13050);
}

/// A call with zeros in all parameters returns, with an error or because the zeros are valid.
fn nulls_are_refused(cuda: &Library) {
    let mut context = 0u64;
    assert_eq!(cuda.call("cuCtxSynchronize", []), 201);
    assert_eq!(cuda.call("cuDevicePrimaryCtxRetain", [address(&mut context), 0]), 0);
    for name in names() {
        assert_eq!(cuda.call("cuCtxSetCurrent", [context]), 0);
        let code = cuda.call(&name, []);
        assert!((0..1000).contains(&code), "{name}: {code}");
    }
    assert_eq!(cuda.call("cuDevicePrimaryCtxRetain", [address(&mut context), 0]), 0);
    assert_eq!(cuda.call("cuCtxSetCurrent", [context]), 0);
    // To the thread's own stream zeros have meant that it captures.
    let mut graph = 0u64;
    cuda.call("cuStreamEndCapture_ptsz", [0, address(&mut graph)]);
    for name in [
        "cuDeviceGetCount",
        "cuMemAlloc_v2",
        "cuModuleLoadData",
        "cuStreamCreate",
        "cuLaunchKernelEx",
        "cuGraphCreate",
    ] {
        assert_eq!(cuda.call(name, []), 1, "{name}");
    }
    assert_eq!(cuda.call("cuGraphAddExternalSemaphoresSignalNode", []), 801);
}

fn memory_goes_there_and_back(cuda: &Library) {
    let mut device = 0u64;
    assert_eq!(cuda.call("cuMemAlloc_v2", [address(&mut device), 0]), 1);
    assert_eq!(cuda.call("cuMemAlloc_v2", [address(&mut device), 1 << 60]), 2);
    assert_eq!(cuda.call("cuMemAlloc_v2", [address(&mut device), 8]), 0);
    let (mut there, mut back) = (0x1122_3344_5566_7788_u64, 0u64);
    assert_eq!(cuda.call("cuMemcpyHtoD_v2", [device, address(&mut there), 8]), 0);
    assert_eq!(cuda.call("cuMemsetD16_v2", [device, 0xabcd, 1]), 0);
    assert_eq!(cuda.call("cuMemcpyDtoH_v2", [address(&mut back), device, 8]), 0);
    assert_eq!(back, 0x1122_3344_5566_abcd);
    // Neither side may stand for the other.
    assert_eq!(cuda.call("cuMemcpyHtoD_v2", [address(&mut back), address(&mut there), 8]), 1);
    assert_eq!(cuda.call("cuMemcpyDtoH_v2", [address(&mut back), 0x1000, 8]), 1);
    let (mut base, mut bytes) = (0u64, 0u64);
    assert_eq!(
        cuda.call("cuMemGetAddressRange_v2", [address(&mut base), address(&mut bytes), device + 7]),
        0
    );
    assert_eq!((base, bytes), (device, 8));
    assert_eq!(cuda.call("cuMemFree_v2", [device]), 0);
    assert_eq!(cuda.call("cuMemFree_v2", [0x1000]), 1);
}

fn bad_handles_are_refused(cuda: &Library) {
    for bad in [3u64, 0x1000, 0x7fff_0000_1000, u64::MAX] {
        let mut value = 0u64;
        for name in [
            "cuStreamSynchronize",
            "cuStreamDestroy_v2",
            "cuEventQuery",
            "cuEventDestroy_v2",
            "cuModuleUnload",
        ] {
            assert_eq!(cuda.call(name, [bad]), 400, "{name} {bad:#x}");
        }
        assert_eq!(cuda.call("cuCtxSetCurrent", [bad]), 201);
        assert_eq!(cuda.call("cuLaunchKernel", [bad, 1, 1, 1, 1, 1, 1]), 400);
        assert_eq!(cuda.call("cuFuncGetAttribute", [address(&mut value), 0, bad]), 400);
    }
    let mut event = 0u64;
    assert_eq!(cuda.call("cuEventCreate", [address(&mut event), 0]), 0);
    assert_eq!(cuda.call("cuStreamSynchronize", [event]), 400, "an event is no stream");
    assert_eq!(cuda.call("cuEventDestroy_v2", [event]), 0);
    assert_eq!(cuda.call("cuEventDestroy_v2", [event]), 400, "once");
}

fn compiler_errors_reach_the_log(cuda: &Library) {
    let mut log = [0xffu8; 64];
    let mut module = 0u64;
    let mut options = [5u32, 6];
    let mut values = [address(&mut log), 64];
    let image = c".version 8.0 malformed".as_ptr() as u64;
    let arguments = [address(&mut module), image, 2, address(&mut options), address(&mut values)];
    assert_eq!(cuda.call("cuModuleLoadDataEx", arguments), 218);
    assert_eq!(CStr::from_bytes_until_nul(&log).unwrap(), c"line 1, column 14: expected `.target`");
    assert_eq!(values[1], 37);
    assert_eq!(
        cuda.call("cuModuleLoadData", [address(&mut module), c"\x01\x02\x03".as_ptr() as u64]),
        200
    );
}

fn a_link_returns_its_input(cuda: &Library) {
    let (mut state, mut image, mut bytes) = (0u64, 0u64, 0u64);
    let ptx = c".version 8.0 .target sm_75";
    assert_eq!(cuda.call("cuLinkCreate_v2", [0, 0, 0, address(&mut state)]), 0);
    assert_eq!(cuda.call("cuLinkComplete", [state, address(&mut image), address(&mut bytes)]), 1);
    let length = ptx.to_bytes().len() as u64;
    assert_eq!(cuda.call("cuLinkAddData_v2", [state, 1, ptx.as_ptr() as u64, length]), 0);
    assert_eq!(
        cuda.call("cuLinkAddData_v2", [state, 4, ptx.as_ptr() as u64, length]),
        801,
        "a library"
    );
    assert_eq!(cuda.call("cuLinkComplete", [state, address(&mut image), address(&mut bytes)]), 0);
    assert_eq!(
        cuda.call("cuLinkAddData_v2", [state, 1, ptx.as_ptr() as u64, length]),
        1,
        "it is complete"
    );
    let (mut library, mut kernel) = (0u64, 0u64);
    assert_eq!(cuda.call("cuLibraryLoadData", [address(&mut library), image]), 0);
    assert_eq!(cuda.call("cuLinkDestroy", [state]), 0);
    let name = c"_Z5scalePfi".as_ptr() as u64;
    assert_eq!(cuda.call("cuLibraryGetKernel", [address(&mut kernel), library, name]), 0);
    assert_eq!(
        cuda.call("cuLibraryGetKernel", [address(&mut kernel), library, c"other".as_ptr() as u64]),
        500
    );
    // A kernel is good where a function is asked for.
    let mut threads = 0i32;
    assert_eq!(cuda.call("cuFuncGetAttribute", [address(&mut threads), 0, kernel]), 0);
    assert_eq!(threads, 1024);
    assert_eq!(cuda.call("cuLibraryUnload", [library]), 0);
    assert_eq!(cuda.call("cuFuncGetAttribute", [address(&mut threads), 0, kernel]), 400);
}

fn several_inputs_are_linked_when_they_are_loaded(cuda: &Library) {
    let (mut state, mut image, mut bytes, mut module) = (0u64, 0u64, 0u64, 0u64);
    let ptx = c".version 8.0 .target sm_75";
    let length = ptx.to_bytes().len() as u64;
    assert_eq!(cuda.call("cuLinkCreate_v2", [0, 0, 0, address(&mut state)]), 0);
    for _ in 0..3 {
        assert_eq!(cuda.call("cuLinkAddData_v2", [state, 1, ptx.as_ptr() as u64, length]), 0);
    }
    assert_eq!(cuda.call("cuLinkComplete", [state, address(&mut image), address(&mut bytes)]), 0);
    assert_eq!(cuda.call("cuModuleLoadData", [address(&mut module), image]), 0);
    assert_eq!(cuda.call("cuLinkDestroy", [state]), 0);
    assert_eq!(cuda.call("cuModuleUnload", [module]), 0);
}

fn functions_are_found_by_version(cuda: &Library) {
    let (mut function, mut status) = (1u64, 9i32);
    let find = |name: &CStr, version, function: &mut u64, status: &mut i32| {
        let arguments = [name.as_ptr() as u64, address(function), version, 0, address(status)];
        cuda.call("cuGetProcAddress_v2", arguments)
    };
    let own = |name| cuda.find(name).unwrap() as usize as u64;
    assert_eq!(find(c"cuMemAlloc", 12000, &mut function, &mut status), 0);
    assert_eq!((function, status), (own("cuMemAlloc_v2"), 0));
    assert_eq!(find(c"cuMemAlloc", 1, &mut function, &mut status), 500);
    assert_eq!((function, status), (0, 2));
    assert_eq!(find(c"cuNothing", 13000, &mut function, &mut status), 500);
    assert_eq!((function, status), (0, 1));
}
