//! JIT linking (CUDA Driver API, "Module Management", `cuLink…`): one PTX input, whose "linked" output is that PTX.
//!
//! The daemon rewrites PTX, so nothing may be compiled before it gets there. Programs (numba, for one) hand what
//! `cuLinkComplete` returns to `cuLibraryLoadData` or `cuModuleLoadData` without looking into it. Several inputs would
//! have to be linked as PTX; they are refused.

use crate::abi::{Array, Memory, OptionalOut, Out};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::image::Image;
use crate::jit::Logs;
use crate::log;
use crate::runtime::{self, Runtime};
use std::ffi::{OsStr, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

const INPUT_PTX: i32 = 1;
const INPUT_FATBIN: i32 = 2;

/// A link under way.
pub struct Link {
    /// The input: PTX with a NUL at its end, or a fatbin. It does not move any more once the program has seen it.
    input: Mutex<Option<Box<[u8]>>>,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Option<Box<[u8]>>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

exports! {
    fn cuLinkCreate_v2(count: u32, options: Array<i32>, values: Array<Memory>, state: Out<u64>) {
        let runtime = runtime::current()?;
        Logs::read(count as usize, options, values)?;
        state.set(runtime.links.insert(Link { input: Mutex::new(None) })?);
        Ok(())
    }

    fn cuLinkAddData_v2(
        state: u64, kind: i32, data: Memory, bytes: usize, _name: Memory, count: u32, options: Array<i32>,
        values: Array<Memory>,
    ) {
        Logs::read(count as usize, options, values)?;
        add(runtime::current()?, state, kind, data.bytes(bytes)?)
    }

    fn cuLinkAddFile_v2(
        state: u64, kind: i32, path: crate::abi::Text, count: u32, options: Array<i32>, values: Array<Memory>,
    ) {
        Logs::read(count as usize, options, values)?;
        let content =
            fs::read(OsStr::from_bytes(path.get().to_bytes())).map_err(|_| CuError::FILE_NOT_FOUND)?;
        add(runtime::current()?, state, kind, &content)
    }

    fn cuLinkComplete(state: u64, image: Out<*const c_void>, bytes: OptionalOut<usize>) {
        let link = runtime::current()?.links.get(state)?;
        let input = link.lock();
        let output = input.as_deref().ok_or(CuError::INVALID_VALUE)?;
        image.set(output.as_ptr().cast());
        bytes.set(output.len());
        Ok(())
    }

    fn cuLinkDestroy(state: u64) { runtime::get()?.links.remove(state).map(drop) }
}

fn add(runtime: &Runtime, state: u64, kind: i32, input: &[u8]) -> CuResult {
    let link = runtime.links.get(state)?;
    let mut place = link.lock();
    let refuse = |what: &str| {
        log::say(format_args!("cannot link {what}: only a single PTX or fatbin input is supported"));
        Err(CuError::NOT_SUPPORTED)
    };
    if place.is_some() {
        return refuse("several inputs");
    }
    let output = match (kind, Image::in_file(input)?) {
        (INPUT_PTX, Image::Ptx(text)) => [text, b"\0"].concat(),
        (INPUT_FATBIN, Image::Fatbin(containers)) => containers.concat(),
        _ => return refuse("an input that is machine code, an object or a library"),
    };
    *place = Some(output.into_boxed_slice());
    Ok(())
}
