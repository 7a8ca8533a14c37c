//! The results that Partita gives to programs: numbers of CUDA's `CUresult`.
//!
//! Names and meanings are those of the CUDA Driver API, "Data types used by CUDA driver",
//! `CUresult`. Only those that Partita itself produces are listed; any other number can still be
//! carried.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A `CUresult`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CudaResult(pub u32);

macro_rules! results {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl CudaResult {
            $($(#[$doc])* pub const $name: CudaResult = CudaResult($number);)*

            /// The name without `CUDA_` in front, or `None` for a number that is not listed here.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

results! {
    /// Done as asked.
    SUCCESS = 0;
    /// An argument is outside what the call accepts.
    ERROR_INVALID_VALUE = 1;
    /// Not enough device memory.
    ERROR_OUT_OF_MEMORY = 2;
    /// `cuInit` has not been called, or failed.
    ERROR_NOT_INITIALIZED = 3;
    /// The driver is going away.
    ERROR_DEINITIALIZED = 4;
    /// The device cannot be used at present.
    ERROR_DEVICE_UNAVAILABLE = 46;
    /// There is no device.
    ERROR_NO_DEVICE = 100;
    /// No such device.
    ERROR_INVALID_DEVICE = 101;
    /// The module's image is not one.
    ERROR_INVALID_IMAGE = 200;
    /// No such context, or none is current.
    ERROR_INVALID_CONTEXT = 201;
    /// The module holds nothing that this device can run.
    ERROR_NO_BINARY_FOR_GPU = 209;
    /// The PTX is malformed.
    ERROR_INVALID_PTX = 218;
    /// The PTX needs something newer.
    ERROR_UNSUPPORTED_PTX_VERSION = 222;
    /// A handle names nothing.
    ERROR_INVALID_HANDLE = 400;
    /// A named symbol does not exist.
    ERROR_NOT_FOUND = 500;
    /// The work has not ended yet. This is no error.
    ERROR_NOT_READY = 600;
    /// A kernel touched memory that it may not.
    ERROR_ILLEGAL_ADDRESS = 700;
    /// The launch needs more than an SM has.
    ERROR_LAUNCH_OUT_OF_RESOURCES = 701;
    /// A launch took too long.
    ERROR_LAUNCH_TIMEOUT = 702;
    /// A device-side assertion failed.
    ERROR_ASSERT = 710;
    /// The device's call stack broke.
    ERROR_HARDWARE_STACK_ERROR = 714;
    /// A kernel met an illegal instruction.
    ERROR_ILLEGAL_INSTRUCTION = 715;
    /// A kernel made a misaligned access.
    ERROR_MISALIGNED_ADDRESS = 716;
    /// An instruction met an address of a state space that it cannot use.
    ERROR_INVALID_ADDRESS_SPACE = 717;
    /// A kernel's program counter left its code.
    ERROR_INVALID_PC = 718;
    /// A kernel ended in an unspecified fault.
    ERROR_LAUNCH_FAILED = 719;
    /// Not permitted.
    ERROR_NOT_PERMITTED = 800;
    /// Not supported.
    ERROR_NOT_SUPPORTED = 801;
    /// The clusters of a launch do not fit its grid or the GPU.
    ERROR_INVALID_CLUSTER_SIZE = 912;
    /// Something else went wrong.
    ERROR_UNKNOWN = 999;
}

impl CudaResult {
    /// Whether it is [`CudaResult::SUCCESS`].
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }
}

/// Prints as `cuda.h` spells it: `CUDA_ERROR_INVALID_VALUE`.
impl fmt::Display for CudaResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "CUDA_{name}"),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(CudaResult::ERROR_ILLEGAL_ADDRESS.to_string(), "CUDA_ERROR_ILLEGAL_ADDRESS");
        assert_eq!(CudaResult(12345).to_string(), "CUresult 12345");
        assert!(CudaResult(0).is_success() && !CudaResult::ERROR_NOT_READY.is_success());
    }
}
