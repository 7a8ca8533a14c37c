//! Exports: `cuGetProcAddress` (CUDA Driver API, "Driver Entry Point Access"): functions by name
//! and version.

use crate::abi::{OptionalOut, Out, Text};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::log;
use crate::names::{Missing, find};
use crate::stream::DefaultStream;
use std::ffi::c_void;

exports! {
    fn cuGetProcAddress(name: Text, function: Out<*const c_void>, version: i32, flags: u64) {
        answer(&name, &function, version, flags).map_err(|_| CuError::NOT_FOUND)
    }

    fn cuGetProcAddress_v2(
        name: Text, function: Out<*const c_void>, version: i32, flags: u64,
        status: OptionalOut<i32>,
    ) {
        answer_with_status(&name, &function, version, flags, &status)
    }

    fn cuGetProcAddress_v2_ptsz(
        name: Text, function: Out<*const c_void>, version: i32, flags: u64,
        status: OptionalOut<i32>,
    ) {
        let flags = if flags == 0 { PER_THREAD } else { flags };
        answer_with_status(&name, &function, version, flags, &status)
    }
}

const PER_THREAD: u64 = 2;

fn answer(
    name: &Text,
    function: &Out<*const c_void>,
    version: i32,
    flags: u64,
) -> Result<(), Missing> {
    let stream =
        if flags & PER_THREAD != 0 { DefaultStream::PerThread } else { DefaultStream::Legacy };
    let found =
        name.get().to_str().map_err(|_| Missing::Name).and_then(|name| find(name, version, stream));
    function.set(found.map_or(std::ptr::null(), |symbol| symbol.address.0));
    if log::traces_calls() {
        let name = name.get().to_string_lossy();
        match found {
            Ok(symbol) => {
                log::say(format_args!("{name} {version} is {} ({:?})", symbol.name, symbol.answer))
            }
            Err(missing) => log::say(format_args!("{name} {version} is missing ({missing:?})")),
        }
    }
    found.map(drop)
}

fn answer_with_status(
    name: &Text,
    function: &Out<*const c_void>,
    version: i32,
    flags: u64,
    status: &OptionalOut<i32>,
) -> CuResult {
    let found = answer(name, function, version, flags);
    status.set(match found {
        Ok(()) => 0,
        Err(Missing::Name) => 1,
        Err(Missing::Version) => 2,
    });
    found.map_err(|_| CuError::NOT_FOUND)
}
