//! Results of the driver's functions (`CUresult`): numbers and names.

use partita_device::FaultKind;
use std::ffi::CStr;

/// A `CUresult`. Exports return 0 for `Ok`.
pub type Status = u32;

macro_rules! statuses {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`")]
            pub const $name: Status = $number;
        )*

        /// The name of a status (`cuGetErrorName`).
        pub fn name(status: Status) -> Option<&'static CStr> {
            let text = match status {
                0 => "CUDA_SUCCESS\0",
                $($number => concat!($text, "\0"),)*
                _ => return None,
            };
            CStr::from_bytes_with_nul(text.as_bytes()).ok()
        }
    };
}

statuses! {
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE";
    NO_BINARY_FOR_GPU = 209, "CUDA_ERROR_NO_BINARY_FOR_GPU";
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX";
    UNSUPPORTED_PTX_VERSION = 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS";
    LAUNCH_OUT_OF_RESOURCES = 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    ASSERT = 710, "CUDA_ERROR_ASSERT";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    HOST_MEMORY_NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    HARDWARE_STACK_ERROR = 714, "CUDA_ERROR_HARDWARE_STACK_ERROR";
    ILLEGAL_INSTRUCTION = 715, "CUDA_ERROR_ILLEGAL_INSTRUCTION";
    MISALIGNED_ADDRESS = 716, "CUDA_ERROR_MISALIGNED_ADDRESS";
    INVALID_ADDRESS_SPACE = 717, "CUDA_ERROR_INVALID_ADDRESS_SPACE";
    INVALID_PC = 718, "CUDA_ERROR_INVALID_PC";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED";
    INVALID_CLUSTER_SIZE = 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN";
}

/// The status in which a context ends by a fault.
pub const fn of_fault(kind: FaultKind) -> Status {
    match kind {
        FaultKind::IllegalAddress => ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => MISALIGNED_ADDRESS,
        FaultKind::InvalidAddressSpace => INVALID_ADDRESS_SPACE,
        FaultKind::IllegalInstruction => ILLEGAL_INSTRUCTION,
        FaultKind::InvalidPc => INVALID_PC,
        FaultKind::StackOverflow => HARDWARE_STACK_ERROR,
        FaultKind::Assert => ASSERT,
        FaultKind::LaunchFailed => LAUNCH_FAILED,
    }
}
