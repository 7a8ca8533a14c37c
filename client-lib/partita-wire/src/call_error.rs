//! How a call fails: a number that CUDA programs know, and words for people.

/// Results of the CUDA driver API (`CUresult`) that cross the border, by their documented numbers.
pub mod code {
    /// `CUDA_SUCCESS`.
    pub const SUCCESS: i32 = 0;
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: i32 = 1;
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub const NOT_INITIALIZED: i32 = 3;
    /// `CUDA_ERROR_INVALID_IMAGE`.
    pub const INVALID_IMAGE: i32 = 200;
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    pub const INVALID_CONTEXT: i32 = 201;
    /// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
    pub const NO_BINARY_FOR_GPU: i32 = 209;
    /// `CUDA_ERROR_INVALID_PTX`.
    pub const INVALID_PTX: i32 = 218;
    /// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
    pub const UNSUPPORTED_PTX_VERSION: i32 = 222;
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub const INVALID_HANDLE: i32 = 400;
    /// `CUDA_ERROR_NOT_FOUND`.
    pub const NOT_FOUND: i32 = 500;
    /// `CUDA_ERROR_NOT_READY`.
    pub const NOT_READY: i32 = 600;
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`.
    pub const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
    /// `CUDA_ERROR_ASSERT`.
    pub const ASSERT: i32 = 710;
    /// `CUDA_ERROR_HARDWARE_STACK_ERROR`.
    pub const HARDWARE_STACK_ERROR: i32 = 714;
    /// `CUDA_ERROR_ILLEGAL_INSTRUCTION`.
    pub const ILLEGAL_INSTRUCTION: i32 = 715;
    /// `CUDA_ERROR_MISALIGNED_ADDRESS`.
    pub const MISALIGNED_ADDRESS: i32 = 716;
    /// `CUDA_ERROR_INVALID_ADDRESS_SPACE`.
    pub const INVALID_ADDRESS_SPACE: i32 = 717;
    /// `CUDA_ERROR_INVALID_PC`.
    pub const INVALID_PC: i32 = 718;
    /// `CUDA_ERROR_LAUNCH_FAILED`.
    pub const LAUNCH_FAILED: i32 = 719;
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: i32 = 801;
    /// `CUDA_ERROR_MPS_RPC_FAILURE`: what a program gets when the data plane is gone. It is the
    /// number that the vendor's own sharing service uses for the same thing.
    pub const PEER_GONE: i32 = 806;
    /// `CUDA_ERROR_UNKNOWN`.
    pub const UNKNOWN: i32 = 999;
}

/// A call that failed, or asynchronous work that did.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text} (CUDA error {code})")]
pub struct CallError {
    /// A `CUresult`; never 0.
    pub code: i32,
    /// What is wrong, for the log.
    pub text: String,
}

impl CallError {
    /// An error from its number and its words.
    pub fn new(code: i32, text: impl Into<String>) -> Self {
        CallError { code, text: text.into() }
    }
}
