//! Links, modules, libraries and functions.
//!
//! The driver's compiler checks a text and puts a mark before it: that is its machine code. Machine
//! code of NVIDIA's compilers cannot be executed, and is refused as code for another GPU.

use crate::abi::{bytes, exports, get, narrow, put, put_text, text};
use crate::driver::{Driver, Tables};
use crate::owner::Owner;
use crate::status::{self, Status};
use partita_device::{Device, ModuleFacts};
use partita_model::{Dim3, ModuleId};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

/// The mark before the text in machine code.
const MARK: &str = "\x7fELF of the emulated driver\n";

/// The newest `.version` of a text that the compiler of a CUDA version takes (PTX ISA, "Release
/// Notes"): 8.5 with 12.5 and 12.6, one more with each later release, and 9.0 with 13.0.
fn newest_ptx(cuda: u32) -> (u32, u32) {
    match (cuda / 1000, cuda % 1000 / 10) {
        (..=12, minor @ ..=5) => (8, minor),
        (..=12, minor) => (8, minor - 1),
        (major, minor) => (major - 4, minor),
    }
}

/// `CUjit_option`
const ERROR_LOG_BUFFER: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;
/// `CU_JIT_INPUT_PTX`
const INPUT_PTX: c_uint = 1;

/// Static plus dynamic shared memory of a CTA in bytes that needs no permission.
const DEFAULT_SHARED: u32 = 48 << 10;

/// A text that is being linked.
#[derive(Default)]
struct Link {
    image: Vec<u8>,
    /// The caller's buffer for errors: address and bytes.
    errors: (usize, usize),
}

/// A kernel of a loaded module.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: Arc<str>,
    /// Offset and size of each parameter.
    pub params: Vec<(usize, usize)>,
    /// Bytes of all parameters.
    pub param_bytes: usize,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of static shared memory.
    pub static_shared: u32,
    /// Bytes of local memory of a thread.
    pub local: u32,
    /// The most threads of a CTA.
    pub max_threads: u32,
    /// CTAs of a cluster along each axis, where its code fixes them.
    pub required_cluster: Option<Dim3>,
}

struct Loaded {
    id: ModuleId,
    kernels: BTreeMap<String, Arc<Kernel>>,
    /// Address and bytes of each variable.
    variables: BTreeMap<String, (u64, u64)>,
    is_library: bool,
}

/// A function handle.
#[derive(Clone, Debug)]
pub struct Function {
    /// The module.
    pub module: ModuleId,
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Bytes of dynamic shared memory that it may have.
    pub max_dynamic_shared: u32,
    /// Whether its clusters may have more CTAs than every GPU takes.
    pub has_large_clusters: bool,
    /// Whether it is of a library, so every context can launch it.
    pub is_library: bool,
}

/// Everything that is loaded.
#[derive(Default)]
pub struct Modules {
    links: BTreeMap<u64, Link>,
    loaded: BTreeMap<u64, Loaded>,
    functions: BTreeMap<u64, Function>,
}

impl Tables {
    /// A function by its handle.
    pub fn function(&self, function: u64) -> Result<Function, Status> {
        self.modules.functions.get(&function).cloned().ok_or(status::INVALID_HANDLE)
    }
}

/// What the compiler says of a text, as an error.
fn compile(source: &str, cuda: u32) -> Result<(), (Status, String)> {
    let module = partita_ptx::parse(source)
        .map_err(|errors| (status::INVALID_PTX, format!("ptxas fatal   : {errors}")))?;
    let version = (module.version.major, module.version.minor);
    if version > newest_ptx(cuda) {
        let words = format!("ptxas fatal   : Unsupported .version {}.{}", version.0, version.1);
        return Err((status::UNSUPPORTED_PTX_VERSION, words));
    }
    Ok(())
}

/// The text in an image.
fn source_of(image: &str, cuda: u32) -> Result<&str, Status> {
    match image.strip_prefix(MARK) {
        Some(source) => Ok(source),
        None if image.starts_with("\x7fELF") => Err(status::NO_BINARY_FOR_GPU),
        None if image.contains(".version") => {
            compile(image, cuda).map_or_else(|error| Err(error.0), |()| Ok(image))
        }
        None => Err(status::INVALID_IMAGE),
    }
}

/// Kernels by name. The GPU states the numbers of each kernel that it can execute. Any other kernel
/// has the numbers of a small one, and faults when it runs.
fn kernels_of(source: &str, facts: &ModuleFacts) -> BTreeMap<String, Arc<Kernel>> {
    let Ok(module) = partita_ptx::parse(source) else { return BTreeMap::new() };
    let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    let kernels = module.kernels().into_iter().map(|kernel| {
        let known = facts.kernels.iter().find(|known| known.name == kernel.name);
        let params = kernel.params.iter().map(|param| (narrow(param.offset), narrow(param.size)));
        let found = Kernel {
            name: kernel.name.as_str().into(),
            params: params.collect(),
            param_bytes: narrow(kernel.param_bytes),
            registers: known.map_or(32, |known| known.registers),
            static_shared: known
                .map_or(small(kernel.static_shared), |known| small(known.static_shared.0)),
            local: known.map_or(0, |known| small(known.local.0)),
            max_threads: known.map_or(1024, |known| known.max_threads),
            required_cluster: known.and_then(|known| known.required_cluster),
        };
        (kernel.name, Arc::new(found))
    });
    kernels.collect()
}

impl Driver {
    /// Loads an image. Returns its handle.
    fn load(&'static self, image: *const c_char, is_library: bool) -> Result<u64, Status> {
        let image = text(image);
        let source: Arc<str> = source_of(&image, self.settings.cuda)?.into();
        let (handle, asked) = (self.handle(), Arc::clone(&source));
        let id = ModuleId(handle);
        self.gpu.read(&source);
        let result = self.gpu.call(move |owner: &mut Owner| owner.load(id, asked))?;
        let facts = result.map_err(|reason| {
            eprintln!("the emulated driver cannot load a module: {reason}");
            status::INVALID_IMAGE
        })?;
        let variables = facts.variables.iter();
        let variables: BTreeMap<String, (u64, u64)> = variables
            .map(|variable| (variable.name.clone(), (variable.address.0, variable.size.0)))
            .collect();
        let mut tables = self.tables();
        tables.memory.variables.extend(variables.values().copied().filter(|(_, bytes)| *bytes > 0));
        let kernels = kernels_of(&source, &facts);
        tables.modules.loaded.insert(handle, Loaded { id, kernels, variables, is_library });
        Ok(handle)
    }

    fn unload(&self, module: u64) -> Result<(), Status> {
        let mut tables = self.tables();
        let loaded = tables.modules.loaded.remove(&module).ok_or(status::INVALID_HANDLE)?;
        tables.modules.functions.retain(|_, function| function.module != loaded.id);
        for (start, _) in loaded.variables.values() {
            tables.memory.variables.remove(start);
        }
        drop(tables);
        let id = loaded.id;
        let result = self.gpu.call(move |owner| owner.gpu.unload_module(id))?;
        result.map_err(|_| status::INVALID_HANDLE)
    }

    fn find_function(&self, module: u64, name: *const c_char) -> Result<u64, Status> {
        let (handle, name) = (self.handle(), text(name));
        let mut tables = self.tables();
        let loaded = tables.modules.loaded.get(&module).ok_or(status::INVALID_HANDLE)?;
        let kernel = Arc::clone(loaded.kernels.get(&name).ok_or(status::NOT_FOUND)?);
        let function = Function {
            module: loaded.id,
            max_dynamic_shared: DEFAULT_SHARED.saturating_sub(kernel.static_shared),
            kernel,
            has_large_clusters: false,
            is_library: loaded.is_library,
        };
        tables.modules.functions.insert(handle, function);
        Ok(handle)
    }

    fn find_variable(&self, module: u64, name: *const c_char) -> Result<(u64, u64), Status> {
        let tables = self.tables();
        let loaded = tables.modules.loaded.get(&module).ok_or(status::INVALID_HANDLE)?;
        loaded.variables.get(&text(name)).copied().ok_or(status::NOT_FOUND)
    }

    /// `CUfunction_attribute`
    fn attribute(&self, function: u64, number: c_uint) -> Result<c_int, Status> {
        let function = self.tables().function(function)?;
        let kernel = &function.kernel;
        let value = match number {
            0 => kernel.max_threads,
            1 => kernel.static_shared,
            2 | 7 => 0,
            3 => kernel.local,
            4 => kernel.registers,
            5 | 6 => u32::from(self.facts.compute_capability.major) * 10,
            8 => function.max_dynamic_shared,
            11 => kernel.required_cluster.map_or(0, |cluster| cluster.x),
            12 => kernel.required_cluster.map_or(0, |cluster| cluster.y),
            13 => kernel.required_cluster.map_or(0, |cluster| cluster.z),
            14 => u32::from(function.has_large_clusters),
            _ => return Err(status::INVALID_VALUE),
        };
        Ok(c_int::try_from(value).unwrap_or(c_int::MAX))
    }

    fn set_attribute(&self, function: u64, number: c_uint, value: c_int) -> Result<(), Status> {
        let most = self.facts.shared_per_cta_optin.0;
        let mut tables = self.tables();
        let found = tables.modules.functions.get_mut(&function).ok_or(status::INVALID_HANDLE)?;
        match number {
            // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            8 => {
                let bytes = u32::try_from(value).map_err(|_| status::INVALID_VALUE)?;
                if u64::from(bytes) + u64::from(found.kernel.static_shared) > most {
                    return Err(status::INVALID_VALUE);
                }
                found.max_dynamic_shared = bytes;
                Ok(())
            }
            // CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            9 if (-1..=100).contains(&value) => Ok(()),
            // CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            14 => {
                found.has_large_clusters = value != 0;
                Ok(())
            }
            _ => Err(status::INVALID_VALUE),
        }
    }
}

exports! {
    cuLinkCreate_v2(count: c_uint, options: *const c_uint, values: *const usize,
        link: *mut u64) |driver| {
        let mut made = Link::default();
        for at in 0..count as usize {
            let value = get(values.wrapping_add(at));
            match get(options.wrapping_add(at)) {
                ERROR_LOG_BUFFER => made.errors.0 = value,
                ERROR_LOG_BYTES => made.errors.1 = value,
                _ => {}
            }
        }
        let handle = driver.handle();
        driver.tables().modules.links.insert(handle, made);
        put(link, handle);
        Ok(())
    }
    cuLinkAddData_v2(link: u64, kind: c_uint, data: *const c_void, size: usize,
        _name: *const c_char, _count: c_uint, _options: *const c_uint,
        _values: *const *mut c_void) |driver| {
        let source = String::from_utf8_lossy(&bytes(data, size)).trim_end_matches('\0').to_owned();
        // The text is checked without the tables, because that takes long.
        let checked = if kind == INPUT_PTX { compile(&source, driver.settings.cuda) } else {
            Err((status::NOT_SUPPORTED, "only PTX can be linked".to_owned()))
        };
        let mut tables = driver.tables();
        let link = tables.modules.links.get_mut(&link).ok_or(status::INVALID_HANDLE)?;
        match checked {
            Ok(()) => {
                link.image = [MARK.as_bytes(), source.as_bytes()].concat();
                Ok(())
            }
            Err((status, words)) => {
                let (buffer, room) = link.errors;
                put_text(std::ptr::with_exposed_provenance_mut(buffer), room, &words);
                Err(status)
            }
        }
    }
    cuLinkComplete(link: u64, image: *mut *const u8, size: *mut usize) |driver| {
        let tables = driver.tables();
        let link = tables.modules.links.get(&link).ok_or(status::INVALID_HANDLE)?;
        put(image, link.image.as_ptr());
        put(size, link.image.len());
        Ok(())
    }
    cuLinkDestroy(link: u64) |driver| {
        driver.tables().modules.links.remove(&link).map(|_| ()).ok_or(status::INVALID_HANDLE)
    }
    cuModuleLoadDataEx(module: *mut u64, image: *const c_char, _count: c_uint,
        _options: *const c_uint, _values: *const usize) drains |driver| {
        put(module, driver.load(image, false)?);
        Ok(())
    }
    cuModuleUnload(module: u64) drains |driver| { driver.unload(module) }
    cuModuleGetFunction(function: *mut u64, module: u64, name: *const c_char) |driver| {
        put(function, driver.find_function(module, name)?);
        Ok(())
    }
    cuModuleGetGlobal_v2(address: *mut u64, size: *mut usize, module: u64,
        name: *const c_char) |driver| {
        let (start, bytes) = driver.find_variable(module, name)?;
        put(address, start);
        put(size, narrow(bytes));
        Ok(())
    }
    cuFuncGetAttribute(value: *mut c_int, number: c_uint, function: u64) |driver| {
        put(value, driver.attribute(function, number)?);
        Ok(())
    }
    cuFuncSetAttribute(function: u64, number: c_uint, value: c_int) |driver| {
        driver.set_attribute(function, number, value)
    }
    cuLibraryLoadData(library: *mut u64, image: *const c_char, _options: *const c_uint,
        _values: *const *mut c_void, _count: c_uint, _library_options: *const c_uint,
        _library_values: *const *mut c_void, _library_count: c_uint) drains |driver| {
        put(library, driver.load(image, true)?);
        Ok(())
    }
    cuLibraryUnload(library: u64) drains |driver| { driver.unload(library) }
    cuLibraryGetKernel(kernel: *mut u64, library: u64, name: *const c_char) |driver| {
        put(kernel, driver.find_function(library, name)?);
        Ok(())
    }
    cuLibraryGetGlobal(address: *mut u64, size: *mut usize, library: u64,
        name: *const c_char) |driver| {
        let (start, bytes) = driver.find_variable(library, name)?;
        put(address, start);
        put(size, narrow(bytes));
        Ok(())
    }
    cuKernelGetAttribute(value: *mut c_int, number: c_uint, kernel: u64,
        _device: c_int) |driver| {
        put(value, driver.attribute(kernel, number)?);
        Ok(())
    }
    cuKernelSetAttribute(number: c_uint, value: c_int, kernel: u64, _device: c_int) |driver| {
        driver.set_attribute(kernel, number, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_ptx_of_drivers() {
        let check = |cuda, expected| assert_eq!(newest_ptx(cuda), expected, "{cuda}");
        check(12_040, (8, 4));
        check(12_060, (8, 5));
        check(12_080, (8, 7));
        check(13_000, (9, 0));
        check(13_050, (9, 5));
    }

    #[test]
    fn machine_code_of_others_is_refused() {
        let text = ".version 9.5\n.target sm_75\n.address_size 64\n";
        assert_eq!(source_of(text, 13_050), Ok(text));
        assert_eq!(source_of(text, 13_000), Err(status::UNSUPPORTED_PTX_VERSION));
        assert_eq!(source_of(&format!("{MARK}{text}"), 13_000), Ok(text), "it is compiled");
        assert_eq!(source_of("\x7fELF\x02", 13_000), Err(status::NO_BINARY_FOR_GPU));
        assert_eq!(source_of("text", 13_000), Err(status::INVALID_IMAGE));
    }
}
