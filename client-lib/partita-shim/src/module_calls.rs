//! Exports: modules, libraries, kernels (CUDA Driver API, "Module Management", "Library Management").

use crate::abi::{Array, Memory, OptionalOut, Out, Text};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::image::Image;
use crate::jit::Logs;
use crate::module::{Function, Library, Module, Owner};
use crate::runtime::{self, Runtime};
use std::ffi::{CStr, OsStr, c_char};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

exports! {
    fn cuModuleLoad(module: Out<u64>, path: Text) {
        let runtime = runtime::current()?;
        module.set(load_file(runtime, path.get(), Owner::Context, &Logs::default())?);
        Ok(())
    }

    fn cuModuleLoadData(module: Out<u64>, image: Memory) {
        let runtime = runtime::current()?;
        module.set(load(runtime, image, Owner::Context, &Logs::default())?);
        Ok(())
    }

    fn cuModuleLoadDataEx(
        module: Out<u64>, image: Memory, count: u32, options: Array<i32>, values: Array<Memory>,
    ) {
        let runtime = runtime::current()?;
        let logs = Logs::read(count as usize, options, values)?;
        module.set(load(runtime, image, Owner::Context, &logs)?);
        Ok(())
    }

    fn cuModuleLoadFatBinary(module: Out<u64>, image: Memory) {
        let runtime = runtime::current()?;
        module.set(load(runtime, image, Owner::Context, &Logs::default())?);
        Ok(())
    }

    fn cuModuleUnload(module: u64) {
        let runtime = runtime::current()?;
        runtime.modules.unload(&runtime.session, module)
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let runtime = runtime::current()?;
        let module = runtime.modules.modules.get(module)?;
        function.set(module.function(name.utf8()?)?);
        Ok(())
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: u64) {
        let module = runtime::current()?.modules.modules.get(module)?;
        count.set(kernel_count(&module)?);
        Ok(())
    }

    fn cuModuleEnumerateFunctions(functions: Out<u64>, count: u32, module: u64) {
        let module = runtime::current()?.modules.modules.get(module)?;
        functions.set_all(first(&module.functions, count));
        Ok(())
    }

    fn cuModuleGetGlobal_v2(address: OptionalOut<u64>, bytes: OptionalOut<usize>, module: u64, name: Text) {
        let module = runtime::current()?.modules.modules.get(module)?;
        find_variable(&module, &name, &address, &bytes)
    }

    fn cuLibraryLoadData(
        library: Out<u64>, image: Memory, options: Array<i32>, values: Array<Memory>, count: u32,
        _library_options: Array<i32>, _library_values: Array<Memory>, _library_count: u32,
    ) {
        let runtime = runtime::get()?;
        let logs = Logs::read(count as usize, options, values)?;
        // Nobody but the runtime has wrappers.
        let owner = if Image::is_wrapper(image) { Owner::Runtime } else { Owner::Library };
        let module = load(runtime, image, owner, &logs)?;
        library.set(runtime.modules.libraries.insert(Library { module })?);
        Ok(())
    }

    fn cuLibraryLoadFromFile(
        library: Out<u64>, path: Text, options: Array<i32>, values: Array<Memory>, count: u32,
        _library_options: Array<i32>, _library_values: Array<Memory>, _library_count: u32,
    ) {
        let runtime = runtime::get()?;
        let logs = Logs::read(count as usize, options, values)?;
        let module = load_file(runtime, path.get(), Owner::Library, &logs)?;
        library.set(runtime.modules.libraries.insert(Library { module })?);
        Ok(())
    }

    fn cuLibraryUnload(library: u64) {
        let runtime = runtime::get()?;
        let library = runtime.modules.libraries.remove(library)?;
        runtime.modules.unload(&runtime.session, library.module)
    }

    fn cuLibraryGetModule(module: Out<u64>, library: u64) {
        module.set(runtime::get()?.modules.libraries.get(library)?.module);
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) {
        kernel.set(library_module(library)?.function(name.utf8()?)?);
        Ok(())
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: u64) {
        count.set(kernel_count(&*library_module(library)?)?);
        Ok(())
    }

    fn cuLibraryEnumerateKernels(kernels: Out<u64>, count: u32, library: u64) {
        kernels.set_all(first(&library_module(library)?.functions, count));
        Ok(())
    }

    fn cuLibraryGetGlobal(address: OptionalOut<u64>, bytes: OptionalOut<usize>, library: u64, name: Text) {
        find_variable(&*library_module(library)?, &name, &address, &bytes)
    }

    fn cuKernelGetFunction(function: Out<u64>, kernel: u64) {
        function.set(self::function(kernel)?.handle);
        Ok(())
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: u64) {
        name.set(function(kernel)?.name.as_ptr());
        Ok(())
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: u64) {
        name.set(self::function(function)?.name.as_ptr());
        Ok(())
    }

    fn cuFuncGetModule(module: Out<u64>, function: u64) {
        module.set(self::function(function)?.module);
        Ok(())
    }

    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, bytes: OptionalOut<usize>) {
        param_info(kernel, index, &offset, &bytes)
    }

    fn cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, bytes: OptionalOut<usize>) {
        param_info(function, index, &offset, &bytes)
    }

    fn cuKernelGetParamCount(kernel: u64, count: Out<usize>) {
        count.set(function(kernel)?.facts.params.len());
        Ok(())
    }

    fn cuFuncGetParamCount(function: u64, count: Out<usize>) {
        count.set(self::function(function)?.facts.params.len());
        Ok(())
    }

    fn cuFuncIsLoaded(state: Out<i32>, function: u64) {
        const LOADED: i32 = 1;
        self::function(function)?;
        state.set(LOADED);
        Ok(())
    }

    fn cuFuncLoad(function: u64) { self::function(function).map(drop) }
}

/// The kernel of a `CUfunction` or `CUkernel`.
pub fn function(handle: u64) -> CuResult<Arc<Function>> {
    runtime::get()?.modules.functions.get(handle)
}

/// Loads the image at an address, and writes what is wrong with it to the logs.
fn load(runtime: &Runtime, image: Memory, owner: Owner, logs: &Logs) -> CuResult<u64> {
    load_image(runtime, &Image::at(image)?, owner, logs)
}

fn load_file(runtime: &Runtime, path: &CStr, owner: Owner, logs: &Logs) -> CuResult<u64> {
    let content = fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|_| CuError::FILE_NOT_FOUND)?;
    load_image(runtime, &Image::in_file(&content)?, owner, logs)
}

fn load_image(runtime: &Runtime, image: &Image<'_>, owner: Owner, logs: &Logs) -> CuResult<u64> {
    runtime.modules.load(&runtime.session, image, owner, &mut |text| {
        // The load's own error is the answer.
        let _ = logs.write_error(text);
    })
}

fn library_module(library: u64) -> CuResult<Arc<Module>> {
    let modules = &runtime::get()?.modules;
    modules.modules.get(modules.libraries.get(library)?.module)
}

fn kernel_count(module: &Module) -> CuResult<u32> {
    u32::try_from(module.functions.len()).map_err(|_| CuError::UNKNOWN)
}

fn first(functions: &[u64], count: u32) -> &[u64] {
    &functions[..functions.len().min(count as usize)]
}

fn find_variable(
    module: &Module,
    name: &Text,
    address: &OptionalOut<u64>,
    bytes: &OptionalOut<usize>,
) -> CuResult {
    let variable = module.variable(&runtime::get()?.session, name.utf8()?)?;
    address.set(variable.address.0);
    bytes.set(usize::try_from(variable.bytes).map_err(|_| CuError::UNKNOWN)?);
    Ok(())
}

fn param_info(handle: u64, index: usize, offset: &Out<usize>, bytes: &OptionalOut<usize>) -> CuResult {
    let function = function(handle)?;
    let param = function.facts.params.get(index).ok_or(CuError::INVALID_VALUE)?;
    offset.set(param.offset as usize);
    bytes.set(param.bytes as usize);
    Ok(())
}
