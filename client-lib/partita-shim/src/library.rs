//! Libraries, which belong to no context. A library is loaded on the device where the program loads
//! it (its home), and on another device when a kernel or a variable of the library is first used
//! there.
//!
//! Programs hold the home's kernel handles. On another device, the kernel of that device's own
//! module takes the place of the home's kernel. Variables, attributes and machine code are
//! therefore separate for each device.

use crate::devices;
use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, device_of};
use crate::image::Image;
use crate::module::{Function, Module, Owner};
use crate::runtime::{self, Runtime};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A loaded library.
pub struct Library {
    /// Its module's handle at its home.
    pub module: u64,
    owner: Owner,
    /// The image to load on other devices; `None` where there is no other device.
    image: Option<OwnedImage>,
    /// Handles of its modules on other devices.
    elsewhere: Mutex<BTreeMap<u8, u64>>,
}

enum OwnedImage {
    Ptx(Vec<u8>),
    Fatbin(Vec<Vec<u8>>),
    Elf(Vec<u8>),
}

impl OwnedImage {
    fn of(image: &Image<'_>) -> Self {
        match image {
            Image::Ptx(bytes) => OwnedImage::Ptx(bytes.to_vec()),
            Image::Fatbin(parts) => {
                OwnedImage::Fatbin(parts.iter().map(|part| part.to_vec()).collect())
            }
            Image::Elf(bytes) => OwnedImage::Elf(bytes.to_vec()),
        }
    }

    fn get(&self) -> Image<'_> {
        match self {
            OwnedImage::Ptx(bytes) => Image::Ptx(bytes),
            OwnedImage::Fatbin(parts) => Image::Fatbin(parts.iter().map(Vec::as_slice).collect()),
            OwnedImage::Elf(bytes) => Image::Elf(bytes),
        }
    }
}

impl Library {
    /// A library whose module has been loaded from an image.
    pub fn new(module: u64, owner: Owner, image: &Image<'_>) -> CuResult<Self> {
        let image = (devices::all()?.len() > 1).then(|| OwnedImage::of(image));
        Ok(Library { module, owner, image, elsewhere: Mutex::default() })
    }

    /// Its module on a device.
    pub fn module_on(&self, runtime: &Runtime) -> CuResult<Arc<Module>> {
        if device_of(self.module) == runtime.index {
            return runtime.modules.modules.get(self.module);
        }
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = match elsewhere.get(&runtime.index.0) {
            Some(handle) => *handle,
            None => {
                let image = self.image.as_ref().ok_or(CuError::INVALID_HANDLE)?;
                let loaded = runtime.modules.load(
                    &runtime.session,
                    &image.get(),
                    self.owner,
                    &mut |_| {},
                )?;
                elsewhere.insert(runtime.index.0, loaded);
                loaded
            }
        };
        runtime.modules.modules.get(handle)
    }

    /// Unloads it everywhere.
    pub fn unload(&self) -> CuResult {
        let elsewhere =
            std::mem::take(&mut *self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner));
        for (device, module) in elsewhere {
            let index = DeviceIndex(device);
            if let Some(runtime) =
                devices::get(index.ordinal()).ok().and_then(devices::Device::opened)
            {
                // A failed device does not affect the others.
                runtime.nested.settle(&runtime.session, module);
                let _ = runtime.modules.unload(&runtime.session, module);
            }
        }
        // A reused handle must not find a stale kernel.
        for runtime in devices::opened() {
            runtime.modules.forget_foreign(self.module);
        }
        let home = runtime::of(self.module)?;
        home.nested.settle(&home.session, self.module);
        home.modules.unload(&home.session, self.module)
    }
}

/// The library of a handle.
pub fn library(handle: u64) -> CuResult<Arc<Library>> {
    runtime::of(handle)?.modules.libraries.get(handle)
}

/// A kernel as its own device has it: what does not depend on where it runs.
pub fn function(handle: u64) -> CuResult<Arc<Function>> {
    runtime::of(handle)?.modules.functions.get(handle)
}

/// The kernel that a `CUfunction` or `CUkernel` means on a device.
pub fn function_on(runtime: &Runtime, handle: u64) -> CuResult<Arc<Function>> {
    if device_of(handle) == runtime.index {
        return runtime.modules.functions.get(handle);
    }
    if let Some(found) = runtime.modules.foreign(handle) {
        return Ok(found);
    }
    let home = runtime::of(handle)?;
    let named = home.modules.functions.get(handle)?;
    // A module belongs to one context; only a library's kernels belong to all contexts.
    let library =
        home.modules.libraries.all().into_iter().find(|library| library.module == named.module);
    let module = library.ok_or(CuError::INVALID_HANDLE)?.module_on(runtime)?;
    let found = runtime.modules.functions.get(module.function(&named.facts.name)?)?;
    runtime.modules.remember_foreign(handle, named.module, &found);
    Ok(found)
}
