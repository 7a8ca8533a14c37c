//! The functions of `libcuda.so.1` that this crate calls, by name, and the consequence of a missing
//! one.

#![allow(non_snake_case, reason = "the functions have the names that CUDA gave them")]

use super::{Failure, LoadError, NOT_READY};
use cudarc::driver::sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC,
    CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarrayMapInfo, CUdevResource, CUlaunchConfig,
    CUmemAccessDesc, CUmemAllocationProp,
};
use libloading::Library;
use partita_model::tensor_map::TensorMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

/// A `CUresult`, as a number, because newer drivers have further codes.
pub(super) type Status = c_uint;
/// An opaque handle (`CUcontext`, `CUstream`, …). The process never follows this pointer.
pub(super) type Handle = usize;

/// A `CUtensorMap`, which the driver wants at a multiple of 64.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct TensorMapBytes(pub(super) TensorMap);

macro_rules! table {
    (
        required { $($name:ident($($arg:ty),*);)* }
        optional { $($maybe:ident($($maybe_arg:ty),*);)* }
    ) => {
        /// Addresses of the driver's functions. Signatures follow the CUDA Driver API, with handles
        /// as numbers and structures from `cudarc`'s bindings.
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Status,)*
            $(pub(super) $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) -> Status>,)*
        }

        impl Table {
            /// Looks up all functions.
            ///
            /// # Errors
            /// [`LoadError::Incomplete`], with the names of all missing functions.
            pub(super) fn find(library: &Library, path: &Path) -> Result<Table, LoadError> {
                let mut missing = Vec::new();
                $(
                    let $name = {
                        // SAFETY: the driver's function of this name has this signature.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0")) };
                        let found: Option<libloading::Symbol<'_, unsafe extern "C"
                            fn($($arg),*) -> Status>> = found.ok();
                        if found.is_none() {
                            missing.push(stringify!($name));
                        }
                        found.map(|symbol| *symbol)
                    };
                )*
                $(
                    let $maybe = {
                        // SAFETY: the driver's function of this name has this signature.
                        let found = unsafe { library.get(concat!(stringify!($maybe), "\0")) };
                        let found: Option<libloading::Symbol<'_, unsafe extern "C"
                            fn($($maybe_arg),*) -> Status>> =
                            found.ok();
                        found.map(|symbol| *symbol)
                    };
                )*
                let incomplete = || LoadError::Incomplete { path: PathBuf::from(path),
                    missing: missing.join(", ") };
                Ok(Table { $($name: $name.ok_or_else(incomplete)?,)* $($maybe,)* })
            }
        }
    };
}

table! {
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
        cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
        cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
        cuDevicePrimaryCtxSetFlags_v2(c_int, c_uint);
        cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        cuDevicePrimaryCtxRelease_v2(c_int);
        cuCtxSetCurrent(Handle);
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
        cuModuleGetLoadingMode(*mut c_uint);
        cuGetErrorName(Status, *mut *const c_char);

        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
        cuMemAddressFree(u64, usize);
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, c_uint);
        cuMemCreate(*mut u64, usize, *const CUmemAllocationProp, u64);
        cuMemRelease(u64);
        cuMemMap(u64, usize, usize, u64, u64);
        cuMemSetAccess(u64, usize, *const CUmemAccessDesc, usize);
        cuMemUnmap(u64, usize);
        cuMemRetainAllocationHandle(*mut u64, *mut c_void);
        cuMemHostAlloc(*mut *mut u8, usize, c_uint);
        cuMemHostRegister_v2(*mut u8, usize, c_uint);
        cuMemHostUnregister(*mut u8);
        cuMemHostGetDevicePointer_v2(*mut u64, *mut u8, c_uint);

        cuStreamCreateWithPriority(*mut Handle, c_uint, c_int);
        cuStreamDestroy_v2(Handle);
        cuStreamSynchronize(Handle);
        cuStreamWaitEvent(Handle, Handle, c_uint);
        cuMemcpyHtoDAsync_v2(u64, *const u8, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut u8, u64, usize, Handle);
        cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
        cuMemsetD8Async(u64, u8, usize, Handle);
        cuMemsetD16Async(u64, u16, usize, Handle);
        cuMemsetD32Async(u64, u32, usize, Handle);
        cuLaunchHostFunc(Handle, extern "C" fn(*mut c_void), *mut c_void);
        cuLaunchKernelEx(*const CUlaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
        cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
            *mut *mut c_void,
            *mut *mut c_void);

        cuArray3DCreate_v2(*mut Handle, *const CUDA_ARRAY3D_DESCRIPTOR);
        cuArrayDestroy(Handle);
        cuArrayGetMemoryRequirements(*mut CUDA_ARRAY_MEMORY_REQUIREMENTS, Handle, c_int);
        cuMipmappedArrayCreate(*mut Handle, *const CUDA_ARRAY3D_DESCRIPTOR, c_uint);
        cuMipmappedArrayDestroy(Handle);
        cuMipmappedArrayGetLevel(*mut Handle, Handle, c_uint);
        cuMipmappedArrayGetMemoryRequirements(*mut CUDA_ARRAY_MEMORY_REQUIREMENTS, Handle, c_int);
        cuMemMapArrayAsync(*mut CUarrayMapInfo, c_uint, Handle);
        cuMemcpy3DAsync_v2(*const CUDA_MEMCPY3D, Handle);
        cuTexObjectCreate(*mut u64, *const CUDA_RESOURCE_DESC, *const CUDA_TEXTURE_DESC,
            *const CUDA_RESOURCE_VIEW_DESC);
        cuTexObjectDestroy(u64);
        cuSurfObjectCreate(*mut u64, *const CUDA_RESOURCE_DESC);
        cuSurfObjectDestroy(u64);

        cuEventCreate(*mut Handle, c_uint);
        cuEventDestroy_v2(Handle);
        cuEventRecord(Handle, Handle);
        cuEventQuery(Handle);
        cuEventSynchronize(Handle);
        cuEventElapsedTime(*mut f32, Handle, Handle);

        cuLinkCreate_v2(c_uint, *mut c_uint, *mut usize, *mut Handle);
        cuLinkAddData_v2(Handle, c_uint, *const c_void, usize, *const c_char, c_uint, *mut c_uint,
            *mut usize);
        cuLinkComplete(Handle, *mut *const u8, *mut usize);
        cuLinkDestroy(Handle);
        cuModuleLoadDataEx(*mut Handle, *const u8, c_uint, *mut c_uint, *mut usize);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuModuleGetGlobal_v2(*mut u64, *mut usize, Handle, *const c_char);
        cuFuncGetAttribute(*mut c_int, c_uint, Handle);
        cuFuncSetAttribute(Handle, c_uint, c_int);
    }
    optional {
        cuDeviceGetDevResource(c_int, *mut CUdevResource, c_uint);
        cuDevSmResourceSplitByCount(*mut CUdevResource, *mut c_uint, *const CUdevResource,
            *mut CUdevResource, c_uint,
            c_uint);
        cuDevResourceGenerateDesc(*mut Handle, *mut CUdevResource, c_uint);
        cuGreenCtxCreate(*mut Handle, Handle, c_int, c_uint);
        cuGreenCtxDestroy(Handle);
        cuLibraryLoadData(*mut Handle, *const u8, *mut c_uint, *mut *mut c_void, c_uint,
            *mut c_uint, *mut *mut c_void,
            c_uint);
        cuLibraryUnload(Handle);
        cuLibraryGetKernel(*mut Handle, Handle, *const c_char);
        cuLibraryGetGlobal(*mut u64, *mut usize, Handle, *const c_char);
        cuKernelGetAttribute(*mut c_int, c_uint, Handle, c_int);
        cuKernelSetAttribute(c_uint, c_int, Handle, c_int);
        cuGreenCtxStreamCreate(*mut Handle, Handle, c_uint, c_int);
        cuTensorMapEncodeTiled(*mut TensorMapBytes, c_uint, c_uint, *mut c_void, *const u64,
            *const u64, *const u32, *const u32, c_uint, c_uint, c_uint, c_uint);
        cuTensorMapEncodeIm2col(*mut TensorMapBytes, c_uint, c_uint, *mut c_void, *const u64,
            *const u64, *const c_int, *const c_int, c_uint, c_uint, *const u32, c_uint, c_uint,
            c_uint, c_uint);
        cuTensorMapEncodeIm2colWide(*mut TensorMapBytes, c_uint, c_uint, *mut c_void, *const u64,
            *const u64, c_int, c_int, c_uint, c_uint, *const u32, c_uint, c_uint, c_uint, c_uint,
            c_uint);
        cuTensorMapReplaceAddress(*mut TensorMapBytes, *mut c_void);
    }
}

/// Converts the status of a function call to a result.
pub(super) fn check(table: &Table, function: &'static str, status: Status) -> Result<(), Failure> {
    if status == 0 {
        return Ok(());
    }
    // Each poll asks for events, and most are not reached.
    if status == NOT_READY {
        return Err(Failure { function, code: status, name: "CUDA_ERROR_NOT_READY".into() });
    }
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the place for the answer is a local.
    let known = unsafe { (table.cuGetErrorName)(status, &raw mut name) } == 0 && !name.is_null();
    let name = if known {
        // SAFETY: the driver gives a string that lives as long as it.
        unsafe { std::ffi::CStr::from_ptr(name) }.to_string_lossy().into_owned()
    } else {
        format!("error {status}")
    };
    Err(Failure { function, code: status, name: name.into() })
}
