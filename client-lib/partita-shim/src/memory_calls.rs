//! Exports: memory (CUDA Driver API, "Memory Management").

use crate::abi::{Memory, OptionalOut, Out};
use crate::attributes::{MAX_PITCH, PITCH_ALIGNMENT};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::runtime;
use std::ffi::c_void;

exports! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (left, all) = runtime::current()?.session.mem_info()?;
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| CuError::UNKNOWN);
        free.set(size(left)?);
        total.set(size(all)?);
        Ok(())
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        address.set(allocate(bytes as u64)?);
        Ok(())
    }

    fn cuMemAllocPitch_v2(
        address: Out<u64>, pitch: Out<usize>, width_bytes: usize, height: usize, element_bytes: u32,
    ) {
        if !matches!(element_bytes, 4 | 8 | 16) || width_bytes == 0 || height == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let row = (width_bytes as u64).checked_next_multiple_of(PITCH_ALIGNMENT);
        let row = row
            .filter(|row| *row <= MAX_PITCH.unsigned_abs().into())
            .ok_or(CuError::INVALID_VALUE)?;
        let bytes = row.checked_mul(height as u64).ok_or(CuError::OUT_OF_MEMORY)?;
        address.set(allocate(bytes)?);
        pitch.set(usize::try_from(row).map_err(|_| CuError::INVALID_VALUE)?);
        Ok(())
    }

    fn cuMemFree_v2(address: u64) { free(address) }

    fn cuMemGetAddressRange_v2(base: OptionalOut<u64>, bytes: OptionalOut<usize>, address: u64) {
        runtime::current()?;
        let runtime = runtime::of_address(address)?;
        let range = runtime.managed_range(address).or_else(|| runtime.device_range(address));
        let range = range.ok_or(CuError::NOT_FOUND)?;
        base.set(range.start);
        bytes.set(usize::try_from(range.bytes).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuMemAllocHost_v2(address: Out<*mut c_void>, bytes: usize) {
        let runtime = runtime::current()?;
        address.set(runtime.host.allocate(&runtime.session, bytes, 0)?);
        Ok(())
    }

    fn cuMemHostAlloc(address: Out<*mut c_void>, bytes: usize, flags: u32) {
        const KNOWN_FLAGS: u32 = 7;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let runtime = runtime::current()?;
        address.set(runtime.host.allocate(&runtime.session, bytes, flags)?);
        Ok(())
    }

    fn cuMemFreeHost(address: Memory) {
        if address.is_null() {
            return Ok(());
        }
        let runtime = runtime::of_host_memory(address.address())?;
        runtime.host.free(&runtime.session, address.address())
    }

    fn cuMemHostGetFlags(flags: Out<u32>, address: Memory) {
        runtime::current()?;
        let runtime = runtime::of_host_memory(address.address())?;
        let (_, found) = runtime.host.find(address.address()).ok_or(CuError::INVALID_VALUE)?;
        flags.set(found);
        Ok(())
    }

    fn cuMemHostRegister(address: Memory, bytes: usize, flags: u32) {
        register(address, bytes, flags)
    }

    fn cuMemHostRegister_v2(address: Memory, bytes: usize, flags: u32) {
        register(address, bytes, flags)
    }

    fn cuMemHostUnregister(address: Memory) {
        runtime::current()?;
        let runtime = runtime::of_host_memory(address.address())?;
        runtime.host.unregister(&runtime.session, address.address())
    }
}

fn allocate(bytes: u64) -> CuResult<u64> {
    if bytes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let runtime = runtime::current()?;
    runtime.allocations.allocate(&runtime.session, bytes)
}

/// `cuMemFree`: of whichever device it is.
pub fn free(address: u64) -> CuResult {
    let runtime = runtime::of_address(address)?;
    if address == 0 {
        return Ok(());
    }
    if runtime.graphs.owns(address) {
        return Ok(());
    }
    if runtime.host.free_managed(&runtime.session, address)? {
        runtime.managed.forget(address);
        return Ok(());
    }
    if runtime.pools.close(runtime, address)? {
        return Ok(());
    }
    if !runtime.is_device_address(address) || runtime.pools.is_kept(address) {
        return Err(CuError::INVALID_VALUE);
    }
    runtime.allocations.free(&runtime.session, address)?;
    runtime.pools.forget(address);
    Ok(())
}

fn register(address: Memory, bytes: usize, flags: u32) -> CuResult {
    const KNOWN_FLAGS: u32 = 15;
    const FOR_DEVICE: u32 = 2;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let runtime = runtime::current()?;
    runtime.host.register(address.address(), bytes as u64, flags)?;
    if flags & FOR_DEVICE != 0 {
        // If lending fails, copies still work. A query for the device's address reports the error.
        let _ = runtime.host.lend(&runtime.session, address.address());
    }
    Ok(())
}
