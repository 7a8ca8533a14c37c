//! Page-locked memory of the host that other code allocated.

use super::{Context, Failure, Stream, call};
use crate::driver::context::size;
use partita_device::HostMemory;
use std::fmt;
use std::sync::Arc;

/// `CU_MEMHOSTREGISTER_PORTABLE`
const PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`
const DEVICE_MAP: u32 = 2;

/// The part of some host memory whose pages stay, page-locked. It stays so until
/// [`Registered::end`].
pub struct Registered {
    memory: Arc<dyn HostMemory>,
    start: usize,
    bytes: u64,
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registered").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Registered {
    /// Locks it. May wait for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Context, memory: Arc<dyn HostMemory>) -> Result<Registered, Failure> {
        let (start, bytes) =
            memory.kept().ok_or_else(|| Failure::unsupported("cuMemHostRegister_v2"))?;
        let address = std::ptr::with_exposed_provenance_mut(start);
        call!(context.driver, cuMemHostRegister_v2(address, size(bytes), PORTABLE))?;
        Ok(Registered { memory, start, bytes })
    }

    /// Unlocks it. Waits for the device.
    ///
    /// # Errors
    /// The driver's; then its pages stay where they are, and so does the memory.
    pub fn end(self, context: &Context) -> Result<(), Failure> {
        let address = std::ptr::with_exposed_provenance_mut(self.start);
        let result = call!(context.driver, cuMemHostUnregister(address));
        if result.is_err() {
            std::mem::forget(Arc::clone(&self.memory));
        }
        result
    }

    fn address(&self, at: u64, bytes: u64) -> *mut u8 {
        let end = at.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "beyond the page-locked memory");
        std::ptr::with_exposed_provenance_mut(self.start + size(at))
    }
}

impl Context {
    /// Page-locks memory of the host that is mapped in this process, for kernels at the same
    /// address. May wait for the device.
    ///
    /// # Errors
    /// The driver's; `CUDA_ERROR_NOT_SUPPORTED` where kernels would have it at another address.
    pub fn register(&self, start: u64, bytes: u64) -> Result<(), Failure> {
        let address = std::ptr::with_exposed_provenance_mut(size(start));
        let flags = PORTABLE | DEVICE_MAP;
        call!(self.driver, cuMemHostRegister_v2(address, size(bytes), flags))?;
        let mut seen = 0;
        let found = call!(self.driver, cuMemHostGetDevicePointer_v2(&raw mut seen, address, 0));
        match found {
            Ok(()) if seen == start => Ok(()),
            result => {
                self.unregister(start)?;
                result?;
                Err(Failure::unsupported("page-locked memory at its own address"))
            }
        }
    }

    /// Unlocks memory of [`Context::register`]. Waits for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn unregister(&self, start: u64) -> Result<(), Failure> {
        let address = std::ptr::with_exposed_provenance_mut(size(start));
        call!(self.driver, cuMemHostUnregister(address))
    }
}

impl Stream {
    /// Copies from page-locked memory of others.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn copy_from_registered(
        &self,
        to: u64,
        from: &Registered,
        at: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let start = from.address(at, bytes).cast_const();
        call!(self.context().driver, cuMemcpyHtoDAsync_v2(to, start, size(bytes), self.raw()))
    }

    /// Copies to page-locked memory of others.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    pub fn copy_to_registered(
        &self,
        to: &Registered,
        at: u64,
        from: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        let start = to.address(at, bytes);
        call!(self.context().driver, cuMemcpyDtoHAsync_v2(start, from, size(bytes), self.raw()))
    }
}
