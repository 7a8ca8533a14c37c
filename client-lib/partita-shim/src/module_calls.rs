//! Exports: modules, libraries, kernels (CUDA Driver API, "Module Management", "Library
//! Management").

use crate::abi::{Array, Memory, OptionalOut, Out, Text};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::image::Image;
use crate::jit::Logs;
use crate::library::{Library, function, function_on, library};
use crate::module::{Module, Owner};
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
        runtime::current()?;
        let runtime = runtime::of(module)?;
        runtime.nested.settle(&runtime.session, module);
        runtime.modules.unload(&runtime.session, module)
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: Text) {
        let module = module_of(module)?;
        function.set(module.function(name.utf8()?)?);
        Ok(())
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: u64) {
        let module = module_of(module)?;
        count.set(kernel_count(&module)?);
        Ok(())
    }

    fn cuModuleEnumerateFunctions(functions: Out<u64>, count: u32, module: u64) {
        let module = module_of(module)?;
        functions.set_all(first(&module.functions, count));
        Ok(())
    }

    fn cuModuleGetGlobal_v2(
        address: OptionalOut<u64>, bytes: OptionalOut<usize>, module: u64, name: Text,
    ) {
        let module = module_of(module)?;
        find_variable(&module, &name, &address, &bytes)
    }

    fn cuLibraryLoadData(
        library: Out<u64>, image: Memory, options: Array<i32>, values: Array<Memory>, count: u32,
        _library_options: Array<i32>, _library_values: Array<Memory>, _library_count: u32,
    ) {
        let runtime = runtime::get()?;
        let logs = Logs::read(count as usize, options, values)?;
        // Only the runtime uses wrappers.
        let owner = if Image::is_wrapper(image) { Owner::Runtime } else { Owner::Library };
        library.set(load_library(runtime, &Image::at(image)?, owner, &logs)?);
        Ok(())
    }

    fn cuLibraryLoadFromFile(
        library: Out<u64>, path: Text, options: Array<i32>, values: Array<Memory>, count: u32,
        _library_options: Array<i32>, _library_values: Array<Memory>, _library_count: u32,
    ) {
        let runtime = runtime::get()?;
        let logs = Logs::read(count as usize, options, values)?;
        let content = read_file(path.get())?;
        library.set(load_library(runtime, &Image::in_file(&content)?, Owner::Library, &logs)?);
        Ok(())
    }

    fn cuLibraryUnload(library: u64) {
        runtime::of(library)?.modules.libraries.remove(library)?.unload()
    }

    fn cuLibraryGetModule(module: Out<u64>, library: u64) {
        module.set(library_module(library)?.handle);
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) {
        kernel.set(home_module(library)?.function(name.utf8()?)?);
        Ok(())
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: u64) {
        count.set(kernel_count(&*home_module(library)?)?);
        Ok(())
    }

    fn cuLibraryEnumerateKernels(kernels: Out<u64>, count: u32, library: u64) {
        kernels.set_all(first(&home_module(library)?.functions, count));
        Ok(())
    }

    fn cuLibraryGetGlobal(
        address: OptionalOut<u64>, bytes: OptionalOut<usize>, library: u64, name: Text,
    ) {
        find_variable(&*library_module(library)?, &name, &address, &bytes)
    }

    fn cuKernelGetFunction(function: Out<u64>, kernel: u64) {
        function.set(match runtime::current() {
            Ok(runtime) => function_on(runtime, kernel)?.handle,
            Err(_) => self::function(kernel)?.handle,
        });
        Ok(())
    }

    fn cuKernelGetLibrary(library: Out<u64>, kernel: u64) {
        let module = function(kernel)?.module;
        let found = runtime::of(kernel)?.modules.libraries.find(|library| library.module == module);
        library.set(found.ok_or(CuError::INVALID_HANDLE)?);
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

    fn cuKernelGetParamInfo(
        kernel: u64, index: usize, offset: Out<usize>, bytes: OptionalOut<usize>,
    ) {
        param_info(kernel, index, &offset, &bytes)
    }

    fn cuFuncGetParamInfo(
        function: u64, index: usize, offset: Out<usize>, bytes: OptionalOut<usize>,
    ) {
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

/// The module of a handle, for a thread that has a context.
fn module_of(handle: u64) -> CuResult<Arc<Module>> {
    runtime::current()?;
    runtime::of(handle)?.modules.modules.get(handle)
}

/// Loads the image at an address, and writes what is wrong with it to the logs.
fn load(runtime: &Runtime, image: Memory, owner: Owner, logs: &Logs) -> CuResult<u64> {
    load_image(runtime, &Image::at(image)?, owner, logs)
}

fn load_file(runtime: &Runtime, path: &CStr, owner: Owner, logs: &Logs) -> CuResult<u64> {
    load_image(runtime, &Image::in_file(&read_file(path)?)?, owner, logs)
}

fn read_file(path: &CStr) -> CuResult<Vec<u8>> {
    fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|_| CuError::FILE_NOT_FOUND)
}

fn load_library(runtime: &Runtime, image: &Image<'_>, owner: Owner, logs: &Logs) -> CuResult<u64> {
    let module = load_image(runtime, image, owner, logs)?;
    runtime.modules.libraries.insert(Library::new(module, owner, image)?)
}

fn load_image(runtime: &Runtime, image: &Image<'_>, owner: Owner, logs: &Logs) -> CuResult<u64> {
    runtime.modules.load(&runtime.session, image, owner, &mut |text| {
        // The call returns the load's own error.
        let _ = logs.write_error(text);
    })
}

/// A library's module on the device where it was loaded.
fn home_module(handle: u64) -> CuResult<Arc<Module>> {
    let library = library(handle)?;
    library.module_on(runtime::of(library.module)?)
}

/// A library's module on the device of the current context; without one, where it was loaded.
pub fn library_module(handle: u64) -> CuResult<Arc<Module>> {
    match runtime::current() {
        Ok(runtime) => library(handle)?.module_on(runtime),
        Err(_) => home_module(handle),
    }
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
    let variable = module.variable(&runtime::of(module.handle)?.session, name.utf8()?)?;
    address.set(variable.address.0);
    bytes.set(usize::try_from(variable.bytes).map_err(|_| CuError::UNKNOWN)?);
    Ok(())
}

fn param_info(
    handle: u64,
    index: usize,
    offset: &Out<usize>,
    bytes: &OptionalOut<usize>,
) -> CuResult {
    let function = function(handle)?;
    let param = function.facts.params.get(index).ok_or(CuError::INVALID_VALUE)?;
    offset.set(param.offset as usize);
    bytes.set(param.bytes as usize);
    Ok(())
}
