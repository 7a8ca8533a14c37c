//! CUDA's error codes: numbers, names and texts (CUDA Driver API, "Data types used by CUDA driver",
//! `CUresult`).
//!
//! A program learns only a code from a call. The explanation and the remedy go to standard error,
//! through [`crate::log`].

use std::ffi::CStr;

/// A `CUresult` other than `CUDA_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CuError(pub i32);

/// The result of an entry point's body.
pub type CuResult<T = ()> = Result<T, CuError>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl CuError {
            $(#[allow(dead_code, reason = "the list is CUDA's; not every code is answered yet")]
            pub const $name: CuError = CuError($code);)*
        }

        /// Code, name, text; sorted by code.
        const CODES: &[(i32, &CStr, &CStr)] = &[
            (0, c"CUDA_SUCCESS", c"no error"),
            $(($code, name(concat!("CUDA_ERROR_", stringify!($name), "\0")), name(concat!($text,
                "\0"))),)*
        ];
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a text of the table holds a NUL"),
    }
}

codes! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEINITIALIZED = 4, "driver shutting down";
    PROFILER_DISABLED = 5, "profiler disabled while using external profiling tool";
    PROFILER_NOT_INITIALIZED = 6, "profiler not initialized: call cudaProfilerInitialize()";
    PROFILER_ALREADY_STARTED = 7, "profiler already started";
    PROFILER_ALREADY_STOPPED = 8, "profiler already stopped";
    STUB_LIBRARY = 34, "CUDA driver is a stub library";
    CALL_REQUIRES_NEWER_DRIVER = 36, "API call is not supported in the installed CUDA driver";
    DEVICE_UNAVAILABLE = 46, "CUDA-capable device(s) is/are busy or unavailable";
    MULTICAST_RESOURCE_FULL = 47, "multicast resources exhausted";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    DEVICE_NOT_LICENSED = 102, "device doesn't have valid Grid license";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    CONTEXT_ALREADY_CURRENT = 202, "context already current";
    MAP_FAILED = 205, "mapping of buffer object failed";
    UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ARRAY_IS_MAPPED = 207, "array is mapped";
    ALREADY_MAPPED = 208, "resource already mapped";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    ALREADY_ACQUIRED = 210, "resource already acquired";
    NOT_MAPPED = 211, "resource not mapped";
    NOT_MAPPED_AS_ARRAY = 212, "resource not mapped as array";
    NOT_MAPPED_AS_POINTER = 213, "resource not mapped as pointer";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    UNSUPPORTED_LIMIT = 215, "limit is not supported on this architecture";
    CONTEXT_ALREADY_IN_USE = 216, "exclusive-thread device already in use by a different thread";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    INVALID_GRAPHICS_CONTEXT = 219, "invalid OpenGL or DirectX context";
    NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error detected during the execution";
    JIT_COMPILER_NOT_FOUND = 221, "PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, "the provided PTX was compiled with an unsupported toolchain.";
    JIT_COMPILATION_DISABLED = 223, "PTX JIT compilation was disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224, "the provided execution affinity is not supported";
    UNSUPPORTED_DEVSIDE_SYNC = 225, "the provided PTX contains unsupported call to \
        cudaDeviceSynchronize";
    CONTAINED = 226, "the process must be restarted because of a contained error";
    INSUFFICIENT_LOADER_VERSION = 227, "the image needs a newer loader";
    INVALID_SOURCE = 300, "device kernel image is invalid";
    FILE_NOT_FOUND = 301, "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, "shared object symbol not found";
    SHARED_OBJECT_INIT_FAILED = 303, "shared object initialization failed";
    OPERATING_SYSTEM = 304, "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    LOSSY_QUERY = 402, "the query would lose information";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, "launch uses incompatible texturing mode";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ASSERT = 710, "device-side assert triggered";
    TOO_MANY_PEERS = 711, "peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already \
        mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "operation not supported on global/shared address space";
    INVALID_PC = 718, "invalid program counter";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "too many blocks in cooperative launch";
    TENSOR_MEMORY_LEAK = 721, "tensor memory was not freed before the kernel ended";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    SYSTEM_NOT_READY = 802, "system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, "system has unsupported display driver / cuda driver combination";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, "forward compatibility was attempted on non supported HW";
    MPS_CONNECTION_FAILED = 805, "MPS client failed to connect to the MPS control daemon or the \
        MPS server";
    MPS_RPC_FAILURE = 806, "the remote procedural call between the MPS server and the MPS client \
        failed";
    MPS_SERVER_NOT_READY = 807, "MPS server is not ready to accept new MPS client requests";
    MPS_MAX_CLIENTS_REACHED = 808, "hardware resources required to create MPS client have been \
        exhausted";
    MPS_MAX_CONNECTIONS_REACHED = 809, "hardware resources required to support device connections \
        have been exhausted";
    MPS_CLIENT_TERMINATED = 810, "the MPS client has been terminated by the server";
    CDP_NOT_SUPPORTED = 811, "CUDA dynamic parallelism is not supported here";
    CDP_VERSION_MISMATCH = 812, "versions of CUDA dynamic parallelism do not match";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing \
        blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from \
        another thread";
    TIMEOUT = 909, "wait operation timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "the graph update was not performed because it included \
        unsupported changes";
    EXTERNAL_DEVICE = 911, "an async error has occurred in external entity outside of CUDA";
    INVALID_CLUSTER_SIZE = 912, "a kernel launch error has occurred due to cluster \
        misconfiguration";
    FUNCTION_NOT_LOADED = 913, "the function handle is not loaded when calling an API that \
        requires a loaded function";
    INVALID_RESOURCE_TYPE = 914, "resource of the wrong type";
    INVALID_RESOURCE_CONFIGURATION = 915, "resource of an invalid configuration";
    KEY_ROTATION = 916, "an error has occurred in a key rotation";
    STREAM_DETACHED = 917, "the stream is detached";
    GRAPH_RECAPTURE_FAILURE = 918, "the graph could not be captured again";
    FABRIC_NOT_READY = 919, "the fabric is not ready";
    UNKNOWN = 999, "unknown error";
}

/// CUDA's name of a code.
#[must_use]
pub fn name_of(code: i32) -> Option<&'static CStr> {
    find(code).map(|(name, _)| name)
}

/// CUDA's text for a code.
#[must_use]
pub fn text_of(code: i32) -> Option<&'static CStr> {
    find(code).map(|(_, text)| text)
}

fn find(code: i32) -> Option<(&'static CStr, &'static CStr)> {
    let at = CODES.binary_search_by_key(&code, |(code, ..)| *code).ok()?;
    let (_, name, text) = CODES[at];
    Some((name, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_sorted_so_that_the_search_finds_each() {
        assert!(CODES.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn names_and_texts() {
        let check = |code, name: Option<&CStr>, text: Option<&CStr>| {
            assert_eq!((name_of(code), text_of(code)), (name, text), "{code}");
        };
        check(0, Some(c"CUDA_SUCCESS"), Some(c"no error"));
        check(209, Some(c"CUDA_ERROR_NO_BINARY_FOR_GPU"), text_of(209));
        check(999, Some(c"CUDA_ERROR_UNKNOWN"), Some(c"unknown error"));
        check(998, None, None);
        check(-1, None, None);
    }
}
