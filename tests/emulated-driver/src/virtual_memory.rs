//! Functions of virtual memory, and of the host's memory.

use crate::abi::{exports, get, narrow, put, wide};
use crate::driver::Driver;
use crate::host::SharedFile;
use crate::memory::{Access, Change, GRANULARITY, Physical};
use crate::owner::{Owner, WINDOW};
use crate::status::{self, Status};
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType, CUmemLocationType,
};
use partita_device::{Aliasing, Device, DeviceError, HostMapping};
use partita_model::{AddressRange, DeviceAddress, MemoryAccess};
use std::ffi::c_uint;

/// Memory that the context itself takes, in bytes: code, stacks, the heap of kernels.
const CONTEXT_BYTES: u64 = 512 << 20;

/// The largest alignment of reserved addresses in bytes, where larger ones are refused.
const MOST_ALIGNMENT: u64 = 1 << 30;

impl Owner {
    /// Makes changes. Stops at the first that fails.
    fn change(&mut self, changes: Vec<Change>) -> Result<(), Status> {
        for change in changes {
            self.make(change).map_err(|error| match error {
                DeviceError::OutOfMemory { .. } => status::OUT_OF_MEMORY,
                _ => status::INVALID_VALUE,
            })?;
        }
        Ok(())
    }

    fn make(&mut self, change: Change) -> Result<(), DeviceError> {
        let range = |at, bytes| AddressRange { start: DeviceAddress(at), bytes };
        match change {
            Change::Create { home, bytes } => {
                self.gpu.allocate(WINDOW, range(home, bytes))?;
                self.gpu.protect(DeviceAddress(home), MemoryAccess::None)
            }
            Change::Alias { home, at, bytes } => {
                self.gpu.alias(DeviceAddress(home), range(at, bytes))
            }
            Change::Host { at, bytes } => {
                let memory = crate::host::span(narrow(at), bytes);
                let bad = DeviceError::BadRange { address: DeviceAddress(at), bytes };
                self.gpu.map_host(WINDOW, DeviceAddress(at), memory.ok_or(bad)?, 0)
            }
            Change::Protect { at, access } => {
                let access = match access {
                    Access::None => MemoryAccess::None,
                    Access::Read => MemoryAccess::Read,
                    Access::ReadWrite => MemoryAccess::ReadWrite,
                };
                self.gpu.protect(DeviceAddress(at), access)
            }
            Change::Free { at } => self.gpu.free(DeviceAddress(at)),
            Change::ForgetHost { at } => {
                self.gpu.unmap_host(DeviceAddress(at));
                Ok(())
            }
        }
    }
}

impl Driver {
    fn change(&self, changes: Vec<Change>) -> Result<(), Status> {
        if changes.is_empty() {
            return Ok(());
        }
        self.gpu.call(move |owner| owner.change(changes))?
    }
}

/// What the device may do, of a list of descriptions; the last for the device counts.
fn access_of(descriptions: *const CUmemAccessDesc, count: usize) -> Result<Access, Status> {
    let all = (0..count).map(|at| get(descriptions.wrapping_add(at)));
    let mut own =
        all.filter(|found| found.location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE);
    match own.next_back().ok_or(status::INVALID_VALUE)?.flags {
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Ok(Access::None),
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Ok(Access::Read),
        CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Ok(Access::ReadWrite),
        _ => Err(status::INVALID_VALUE),
    }
}

exports! {
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |driver| {
        let used = driver.gpu.call(|owner| owner.gpu.memory_used())?.0;
        let all = driver.facts.memory.0;
        put(free, narrow(all.saturating_sub(used.saturating_add(CONTEXT_BYTES.min(all / 16)))));
        put(total, narrow(all));
        Ok(())
    }
    cuMemAddressReserve(start: *mut u64, size: usize, alignment: usize, hint: u64,
        flags: u64) |driver| {
        let refused = driver.settings.habits.small_alignment && wide(alignment) > MOST_ALIGNMENT;
        if flags != 0 || refused {
            return Err(status::INVALID_VALUE);
        }
        put(start, driver.tables().memory.reserve(wide(size), wide(alignment), hint)?);
        Ok(())
    }
    cuMemAddressFree(start: u64, size: usize) |driver| {
        driver.tables().memory.unreserve(start, wide(size))
    }
    cuMemGetAllocationGranularity(granularity: *mut usize, _properties: *const CUmemAllocationProp,
        _option: c_uint) |_driver| {
        put(granularity, narrow(GRANULARITY));
        Ok(())
    }
    cuMemCreate(handle: *mut u64, size: usize, properties: *const CUmemAllocationProp,
        flags: u64) |driver| {
        let (bytes, properties) = (wide(size), get(properties));
        let is_pinned = properties.type_ == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) || flags != 0 || !is_pinned {
            return Err(status::INVALID_VALUE);
        }
        let is_on_device = match properties.location.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => true,
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => false,
            _ => return Err(status::INVALID_VALUE),
        };
        let mut tables = driver.tables();
        // CU_MEM_CREATE_USAGE_TILE_POOL
        let physical = if properties.allocFlags.usage & 1 != 0 {
            Physical::ForArrays
        } else if is_on_device {
            let home = tables.memory.take_home(bytes)?;
            let made = driver.change(vec![Change::Create { home, bytes }]);
            if made.is_err() {
                tables.memory.give_home_back(home);
            }
            made?;
            Physical::Device(home)
        } else {
            Physical::Host(SharedFile::new(bytes).ok_or(status::OUT_OF_MEMORY)?)
        };
        let new = driver.handle();
        tables.memory.enter(new, physical, bytes);
        put(handle, new);
        Ok(())
    }
    cuMemRelease(handle: u64) |driver| {
        let mut tables = driver.tables();
        driver.change(tables.memory.release(handle)?)
    }
    cuMemMap(start: u64, size: usize, offset: usize, handle: u64, flags: u64) |driver| {
        // Offsets are not supported, as by drivers so far (CUDA Driver API, `cuMemMap`).
        if offset != 0 || flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        driver.tables().memory.map(start, wide(size), handle)
    }
    cuMemSetAccess(start: u64, size: usize, descriptions: *const CUmemAccessDesc,
        count: usize) |driver| {
        let access = access_of(descriptions, count)?;
        let mut tables = driver.tables();
        driver.change(tables.memory.set_access(start, wide(size), access)?)
    }
    cuMemUnmap(start: u64, size: usize) frees |driver| {
        let mut tables = driver.tables();
        driver.change(tables.memory.unmap(start, wide(size))?)
    }
    cuMemRetainAllocationHandle(handle: *mut u64, address: u64) |driver| {
        let found = driver.tables().memory.retain(address)?;
        put(handle, found);
        Ok(())
    }
    cuMemHostAlloc(start: *mut *mut u8, size: usize, _flags: c_uint) drains |driver| {
        let mut tables = driver.tables();
        let at = tables.memory.pin(wide(size))?;
        driver.change(vec![Change::Host { at, bytes: wide(size.max(1)) }])?;
        put(start, std::ptr::with_exposed_provenance_mut(narrow(at)));
        Ok(())
    }
    cuMemHostRegister_v2(start: *mut u8, size: usize, flags: c_uint) drains |driver| {
        let at = start.expose_provenance() as u64;
        driver.tables().memory.register(at, wide(size))?;
        // CU_MEMHOSTREGISTER_DEVICEMAP
        if flags & 2 != 0 {
            driver.mapped().insert(at, wide(size));
        }
        Ok(())
    }
    cuMemHostUnregister(start: *mut u8) drains |driver| {
        driver.mapped().remove(&(start.addr() as u64));
        driver.tables().memory.unregister(start.addr() as u64)
    }
    cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut u8, flags: c_uint) |driver| {
        let address = host.addr() as u64;
        if flags != 0 || !driver.tables().memory.is_locked(address, 1) {
            return Err(status::INVALID_VALUE);
        }
        put(device, address);
        Ok(())
    }
}
