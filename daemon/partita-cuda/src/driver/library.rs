//! Libraries: code that belongs to no context. A library's kernels run in the context that they are
//! launched into (CUDA Driver API, "Library Management"; since CUDA 12.0).

use super::module::{Function, FunctionAttribute, LARGE_CLUSTERS};
use super::table::{Handle, check};
use super::{Context, Failure};
use std::ffi::{CString, c_int};
use std::sync::Arc;

/// A loaded library. It stays until [`Library::unload`].
#[derive(Debug)]
pub struct Library {
    context: Arc<Context>,
    raw: Handle,
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MAX_DYNAMIC_SHARED: u32 = 8;

impl Library {
    /// Loads machine code. May wait for every grid on the device.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_NOT_SUPPORTED` where it is older than 525.
    pub fn load(context: &Arc<Context>, image: &[u8]) -> Result<Library, Failure> {
        let table = &context.driver.table;
        let load =
            table.cuLibraryLoadData.ok_or_else(|| Failure::unsupported("cuLibraryLoadData"))?;
        // A text image must end with a zero. A zero after machine code has no effect.
        let image = [image, &[0]].concat();
        let mut raw = 0;
        let (no_words, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a pointer to a local, an image whose extent was checked, and no options.
        let status = unsafe {
            load(&raw mut raw, image.as_ptr(), no_words, no_values, 0, no_words, no_values, 0)
        };
        check(table, "cuLibraryLoadData", status)?;
        Ok(Library { context: Arc::clone(context), raw })
    }

    /// Ends it. May wait for every grid on the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn unload(self) -> Result<(), Failure> {
        let table = &self.context.driver.table;
        let unload =
            table.cuLibraryUnload.ok_or_else(|| Failure::unsupported("cuLibraryUnload"))?;
        // SAFETY: the library is live, and nothing of it is launched any more.
        let status = unsafe { unload(self.raw) };
        check(table, "cuLibraryUnload", status)
    }

    /// A kernel of it, for every context of its GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn kernel(&self, name: &str) -> Result<Function, Failure> {
        let table = &self.context.driver.table;
        let find =
            table.cuLibraryGetKernel.ok_or_else(|| Failure::unsupported("cuLibraryGetKernel"))?;
        let name = CString::new(name).unwrap_or_default();
        let mut raw = 0;
        // SAFETY: a pointer to a local, and a string.
        let status = unsafe { find(&raw mut raw, self.raw, name.as_ptr()) };
        check(table, "cuLibraryGetKernel", status)?;
        Ok(Function::of(raw))
    }

    /// Address and size of a variable, in the calling thread's context.
    ///
    /// # Errors
    /// The driver's.
    pub fn variable(&self, name: &str) -> Result<(u64, u64), Failure> {
        let table = &self.context.driver.table;
        let find =
            table.cuLibraryGetGlobal.ok_or_else(|| Failure::unsupported("cuLibraryGetGlobal"))?;
        let name = CString::new(name).unwrap_or_default();
        let (mut address, mut size) = (0, 0);
        // SAFETY: pointers to locals, and a string.
        let status = unsafe { find(&raw mut address, &raw mut size, self.raw, name.as_ptr()) };
        check(table, "cuLibraryGetGlobal", status)?;
        Ok((address, size as u64))
    }

    /// The driver's facts about a kernel of the library.
    ///
    /// # Errors
    /// The driver's.
    pub fn attribute(
        &self,
        kernel: Function,
        attribute: FunctionAttribute,
    ) -> Result<u32, Failure> {
        let table = &self.context.driver.table;
        let get = table
            .cuKernelGetAttribute
            .ok_or_else(|| Failure::unsupported("cuKernelGetAttribute"))?;
        let mut value: c_int = 0;
        // SAFETY: a pointer to a local; the kernel is of this library.
        let status =
            unsafe { get(&raw mut value, attribute as u32, kernel.raw(), self.context.device) };
        check(table, "cuKernelGetAttribute", status)?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Lets a kernel be launched with so many bytes of dynamic shared memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_shared(&self, kernel: Function, bytes: u32) -> Result<(), Failure> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.set(kernel, MAX_DYNAMIC_SHARED, bytes)
    }

    /// Lets a kernel be launched with clusters that not every GPU takes.
    ///
    /// # Errors
    /// The driver's.
    pub fn allow_large_clusters(&self, kernel: Function) -> Result<(), Failure> {
        self.set(kernel, LARGE_CLUSTERS, 1)
    }

    fn set(&self, kernel: Function, attribute: u32, value: c_int) -> Result<(), Failure> {
        let table = &self.context.driver.table;
        let set = table
            .cuKernelSetAttribute
            .ok_or_else(|| Failure::unsupported("cuKernelSetAttribute"))?;
        // SAFETY: the kernel is of this library.
        let status = unsafe { set(attribute, value, kernel.raw(), self.context.device) };
        check(table, "cuKernelSetAttribute", status)
    }
}
