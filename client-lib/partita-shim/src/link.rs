//! JIT linking (CUDA Driver API, "Module Management", `cuLink…`): the "linked" output of PTX is
//! that PTX.
//!
//! The daemon rewrites PTX, so nothing may be compiled before the daemon has it. Programs (numba,
//! for one) pass the result of `cuLinkComplete` to `cuLibraryLoadData` or `cuModuleLoadData`
//! without looking into it. A single input comes back unchanged. Several inputs come back as a
//! container whose parts the daemon links at load time. From objects and libraries of the host's
//! format, the PTX that nvcc has put into them is taken, of all members of a library.

use crate::abi::{Array, Memory, OptionalOut, Out, Text};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::image::{Image, embedded, ptx_architecture};
use crate::jit::Logs;
use crate::log;
use crate::runtime::{self, Runtime};
use partita_client::image;
use std::ffi::{OsStr, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

const INPUT_PTX: i32 = 1;
const INPUT_FATBIN: i32 = 2;
const INPUT_OBJECT: i32 = 3;
const INPUT_LIBRARY: i32 = 4;

/// A link under way.
pub struct Link {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    inputs: Vec<Input>,
    /// The output. It does not move after the program has its address.
    output: Option<Box<[u8]>>,
}

/// PTX with a NUL at its end, or a fatbin.
struct Input(Box<[u8]>);

impl Link {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

exports! {
    fn cuLinkCreate(count: u32, options: Array<i32>, values: Array<Memory>, state: Out<u64>) {
        create(&Options { count, options, values }, &state)
    }

    fn cuLinkCreate_v2(count: u32, options: Array<i32>, values: Array<Memory>, state: Out<u64>) {
        create(&Options { count, options, values }, &state)
    }

    fn cuLinkAddData(
        state: u64, kind: i32, data: Memory, bytes: usize, _name: Memory, count: u32,
        options: Array<i32>,
        values: Array<Memory>,
    ) {
        Options { count, options, values }.check()?;
        add(runtime::current()?, state, kind, data.bytes(bytes)?)
    }

    fn cuLinkAddData_v2(
        state: u64, kind: i32, data: Memory, bytes: usize, _name: Memory, count: u32,
        options: Array<i32>,
        values: Array<Memory>,
    ) {
        Options { count, options, values }.check()?;
        add(runtime::current()?, state, kind, data.bytes(bytes)?)
    }

    fn cuLinkAddFile(
        state: u64, kind: i32, path: Text, count: u32, options: Array<i32>, values: Array<Memory>,
    ) {
        add_file(state, kind, &path, &Options { count, options, values })
    }

    fn cuLinkAddFile_v2(
        state: u64, kind: i32, path: Text, count: u32, options: Array<i32>, values: Array<Memory>,
    ) {
        add_file(state, kind, &path, &Options { count, options, values })
    }

    fn cuLinkComplete(state: u64, image: Out<*const c_void>, bytes: OptionalOut<usize>) {
        let runtime = runtime::current()?;
        let link = runtime.links.get(state)?;
        let mut state = link.lock();
        if state.output.is_none() {
            let linked = join(runtime, &state.inputs)?;
            state.output = Some(linked);
        }
        let output = state.output.as_deref().ok_or(CuError::UNKNOWN)?;
        image.set(output.as_ptr().cast());
        bytes.set(output.len());
        Ok(())
    }

    fn cuLinkDestroy(state: u64) { runtime::of(state)?.links.remove(state).map(drop) }
}

/// Options of the linker, which are read for the sake of their logs.
struct Options {
    count: u32,
    options: Array<i32>,
    values: Array<Memory>,
}

impl Options {
    fn check(&self) -> CuResult {
        Logs::read(self.count as usize, self.options, self.values).map(drop)
    }
}

fn create(options: &Options, state: &Out<u64>) -> CuResult {
    let runtime = runtime::current()?;
    options.check()?;
    state.set(runtime.links.insert(Link { state: Mutex::default() })?);
    Ok(())
}

fn add_file(state: u64, kind: i32, path: &Text, options: &Options) -> CuResult {
    options.check()?;
    let content =
        fs::read(OsStr::from_bytes(path.get().to_bytes())).map_err(|_| CuError::FILE_NOT_FOUND)?;
    add(runtime::current()?, state, kind, &content)
}

fn add(runtime: &Runtime, state: u64, kind: i32, input: &[u8]) -> CuResult {
    let link = runtime.links.get(state)?;
    let mut state = link.lock();
    if state.output.is_some() {
        return Err(CuError::INVALID_VALUE);
    }
    if matches!(kind, INPUT_OBJECT | INPUT_LIBRARY)
        && let Some(containers) = embedded(input)
    {
        // Programs name the runtime for kernels that launch kernels, which has no PTX for every
        // device, whether they need it or not.
        let capability = runtime.facts().compute_capability;
        let is_usable = |container: &&[u8]| {
            kind == INPUT_OBJECT || image::select(container, capability).is_ok()
        };
        let containers: Vec<&[u8]> = containers.into_iter().filter(is_usable).collect();
        if containers.is_empty() && kind == INPUT_OBJECT {
            return Err(refused(
                "an object without PTX: compile it with `-dc -gencode \
                 arch=compute_XX,code=compute_XX`",
            ));
        }
        state.inputs.extend(containers.into_iter().map(|container| Input(container.into())));
        return Ok(());
    }
    let input = match (kind, Image::in_file(input)?) {
        (INPUT_PTX, Image::Ptx(text)) => [text, b"\0"].concat(),
        (INPUT_FATBIN, Image::Fatbin(containers)) => containers.concat(),
        _ => return Err(refused("an input without PTX")),
    };
    state.inputs.push(Input(input.into_boxed_slice()));
    Ok(())
}

fn refused(what: &str) -> CuError {
    log::say(format_args!("cannot link {what}"));
    CuError::NOT_SUPPORTED
}

/// The image of the linked program, for loading.
fn join(runtime: &Runtime, inputs: &[Input]) -> CuResult<Box<[u8]>> {
    match inputs {
        [] => Err(CuError::INVALID_VALUE),
        [Input(one)] => Ok(one.clone()),
        several => {
            let capability = runtime.facts().compute_capability;
            let device = u32::from(capability.major) * 10 + u32::from(capability.minor);
            let mut parts = Vec::new();
            for Input(bytes) in several {
                let image = image::select(bytes, capability).map_err(|error| {
                    log::say(format_args!("{error}"));
                    CuError(error.code())
                })?;
                parts.push((image, ptx_architecture(bytes, device).unwrap_or(device)));
            }
            Ok(image::fatbin::parts(&parts).into_boxed_slice())
        }
    }
}
