//! Every export by name, and every name and version that `cuGetProcAddress` knows.
//!
//! A name has had several meanings in CUDA's history. Each meaning is a symbol of its own
//! (`cuMemAlloc`, `cuMemAlloc_v2`). A query names the toolkit's version and receives the newest
//! symbol that is not newer than the toolkit. With the flag for per-thread default streams, symbols
//! that end in `_ptds` or `_ptsz` come first. `api.table` holds these facts as data.

use crate::runtime::DRIVER_VERSION;
use crate::stream::DefaultStream;
use partita_model::coverage::Answer;
use std::ffi::c_void;

/// One export.
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// The kind of answer.
    pub answer: Answer,
    /// The function's address.
    pub address: Address,
}

/// The address of a function.
#[derive(Clone, Copy)]
pub struct Address(pub *const c_void);

// SAFETY: the address of a function is a constant.
unsafe impl Sync for Address {}

/// One name and version.
pub struct Query {
    name: &'static str,
    per_thread: bool,
    version: i32,
    symbol: usize,
}

include!(concat!(env!("OUT_DIR"), "/names.rs"));

/// Why a name leads nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// No version of CUDA has this name.
    Name,
    /// The name is newer than the version in the query.
    Version,
}

/// The symbol for a name in a version.
pub fn find(name: &str, version: i32, stream: DefaultStream) -> Result<&'static Symbol, Missing> {
    let newest = |per_thread: bool| {
        let version = version.min(DRIVER_VERSION);
        let after = QUERIES.partition_point(|query| {
            (query.name, query.per_thread, query.version) <= (name, per_thread, version)
        });
        let query = QUERIES.get(after.checked_sub(1)?)?;
        (query.name == name && query.per_thread == per_thread).then(|| &SYMBOLS[query.symbol])
    };
    let per_thread = if stream == DefaultStream::PerThread { newest(true) } else { None };
    per_thread.or_else(|| newest(false)).ok_or_else(|| {
        let known = QUERIES.binary_search_by_key(&name, |query| query.name).is_ok();
        if known { Missing::Version } else { Missing::Name }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions() {
        let check = |name, version, stream, expect: Result<&str, Missing>| {
            assert_eq!(
                find(name, version, stream).map(|symbol| symbol.name),
                expect,
                "{name} {version}"
            );
        };
        let (legacy, per_thread) = (DefaultStream::Legacy, DefaultStream::PerThread);
        check("cuInit", 2000, legacy, Ok("cuInit"));
        check("cuInit", 1000, legacy, Err(Missing::Version));
        check("cuNothing", 13000, legacy, Err(Missing::Name));
        check("", 0, legacy, Err(Missing::Name));
        check("cuMemAlloc", 3010, legacy, Ok("cuMemAlloc"));
        check("cuMemAlloc", 3020, legacy, Ok("cuMemAlloc_v2"));
        check("cuMemAlloc", 99999, per_thread, Ok("cuMemAlloc_v2"));
        check("cuCtxGetDevice", 12090, legacy, Ok("cuCtxGetDevice"));
        check("cuCtxGetDevice", 13000, legacy, Ok("cuCtxGetDevice_v2"));
        check("cuCtxSynchronize", 13050, legacy, Ok("cuCtxSynchronize_v2"));
        check("cuEventElapsedTime", 12080, legacy, Ok("cuEventElapsedTime_v2"));
        check("cuGetProcAddress", 12000, legacy, Ok("cuGetProcAddress_v2"));
        check("cuGetProcAddress", 11030, legacy, Ok("cuGetProcAddress"));
        check("cuLaunchKernel", 13000, legacy, Ok("cuLaunchKernel"));
        check("cuLaunchKernel", 13000, per_thread, Ok("cuLaunchKernel_ptsz"));
        check("cuMemcpyHtoD", 13000, per_thread, Ok("cuMemcpyHtoD_v2_ptds"));
        check("cuMemcpyHtoD", 6000, per_thread, Ok("cuMemcpyHtoD_v2"));
        check("cuStreamGetCaptureInfo", 12030, per_thread, Ok("cuStreamGetCaptureInfo_v3_ptsz"));
        check("cuDevicePrimaryCtxRelease", 11000, legacy, Ok("cuDevicePrimaryCtxRelease_v2"));
        check("cuDevicePrimaryCtxRelease", 10000, legacy, Ok("cuDevicePrimaryCtxRelease"));
    }

    #[test]
    fn the_table_is_sorted_and_whole() {
        assert!(SYMBOLS.is_sorted_by(|a, b| a.name < b.name));
        assert!(QUERIES.is_sorted_by(|a, b| {
            (a.name, a.per_thread, a.version) < (b.name, b.per_thread, b.version)
        }));
        assert!(SYMBOLS.len() > 700);
    }

    /// The functions without which a program cannot start, found by hiding each in turn.
    #[test]
    fn what_every_program_needs_is_there() {
        for name in [
            "cuInit",
            "cuGetProcAddress",
            "cuGetExportTable",
            "cuDeviceGet",
            "cuDeviceGetCount",
            "cuDeviceGetName",
            "cuDeviceTotalMem",
            "cuDeviceGetAttribute",
            "cuDeviceGetUuid",
            "cuDevicePrimaryCtxRetain",
            "cuCtxSetCurrent",
            "cuCtxGetCurrent",
            "cuCtxGetDevice",
            "cuCtxSynchronize",
            "cuLibraryLoadData",
            "cuLibraryGetKernel",
            "cuMemAlloc",
            "cuMemFree",
            "cuMemcpyHtoD",
            "cuMemcpyDtoH",
            "cuLaunchKernel",
            "cuDriverGetVersion",
            "cuCtxPushCurrent",
            "cuCtxPopCurrent",
            "cuLibraryGetModule",
            "cuModuleGetFunction",
        ] {
            for version in [12000, 12090, 13000, 13050] {
                let symbol = find(name, version, DefaultStream::Legacy).unwrap();
                assert_ne!(symbol.answer, Answer::Refused, "{name} {version}");
            }
        }
    }
}
