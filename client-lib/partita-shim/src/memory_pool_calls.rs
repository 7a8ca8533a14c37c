//! Exports: memory pools (CUDA Driver API, "Stream Ordered Memory Allocator").

use crate::abi::{Array, In, Memory, Out, Plain};
use crate::devices;
use crate::entry::{exports, exports_by_default_stream};
use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::capture::Target;
use crate::handles::device_of;
use crate::memory_calls::free;
use crate::memory_pool::{Attribute, Pool};
use crate::processes::{HANDLE_BYTES, Shared, block, block_of, file_of, secret_in};
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use crate::stream_calls::synchronize;
use partita_client::Secret;
use partita_model::DeviceAddress;
use std::sync::Arc;

/// The start of `CUmemPoolProps`: kinds of memory and of handles to share it, and where it lies.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PoolProperties {
    allocation: i32,
    shared_handles: i32,
    location: Location,
}

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    kind: i32,
    id: i32,
}

// SAFETY: integers.
unsafe impl Plain for PoolProperties {}
// SAFETY: integers.
unsafe impl Plain for Location {}

const ON_DEVICE: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FILE: i32 = 1;

exports! {
    fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) {
        pool.set(devices::get(device)?.open()?.pools.default_pool());
        Ok(())
    }

    fn cuDeviceGetMemPool(pool: Out<u64>, device: i32) {
        pool.set(devices::get(device)?.open()?.pools.current());
        Ok(())
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) {
        devices::get(device)?.open()?.pools.set_current(pool)
    }

    fn cuMemGetDefaultMemPool(pool: Out<u64>, location: In<Location>, kind: i32) {
        pool.set(check_location(&location.get(), kind)?.pools.default_pool());
        Ok(())
    }

    fn cuMemGetMemPool(pool: Out<u64>, location: In<Location>, kind: i32) {
        pool.set(check_location(&location.get(), kind)?.pools.current());
        Ok(())
    }

    fn cuMemSetMemPool(location: In<Location>, kind: i32, pool: u64) {
        check_location(&location.get(), kind)?.pools.set_current(pool)
    }

    fn cuMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>) {
        const PINNED: i32 = 1;
        let properties = properties.get();
        if properties.allocation != PINNED || properties.location.kind != ON_DEVICE {
            return Err(CuError::INVALID_VALUE);
        }
        let device = devices::get(properties.location.id).map_err(|_| CuError::INVALID_VALUE)?;
        let runtime = device.open()?;
        if !matches!(properties.shared_handles, 0 | POSIX_FILE) {
            return Err(CuError::NOT_SUPPORTED);
        }
        pool.set(runtime.pools.create(properties.shared_handles == POSIX_FILE)?);
        Ok(())
    }

    fn cuMemPoolExportToShareableHandle(shareable: Out<i32>, pool: u64, kind: i32, flags: u64) {
        let name = find(pool)?.exported().filter(|_| flags == 0 && kind == POSIX_FILE);
        let name = name.ok_or(CuError::INVALID_VALUE)?;
        let file = file_of(&Shared::Pool.handle(Secret(name)));
        shareable.set(file.map_err(|_| CuError::OUT_OF_MEMORY)?);
        Ok(())
    }

    /// The file itself stands where other kinds of handles have a pointer. It stays the program's.
    fn cuMemPoolImportFromShareableHandle(
        pool: Out<u64>, shareable: u64, kind: i32, flags: u64,
    ) {
        let file = i32::try_from(shareable).ok().filter(|_| flags == 0 && kind == POSIX_FILE);
        let name = file.and_then(|file| secret_in(file, Shared::Pool));
        let Secret(name) = name.ok_or(CuError::INVALID_VALUE)?;
        pool.set(runtime::current()?.pools.import(name)?);
        Ok(())
    }

    fn cuMemPoolExportPointer(data: Out<[u8; HANDLE_BYTES]>, address: u64) {
        runtime::current()?;
        let runtime = runtime::of_address(address)?;
        let pool = runtime.pools.exported(address).ok_or(CuError::INVALID_VALUE)?;
        data.set(block(runtime.session.export_memory(DeviceAddress(address))?, pool));
        Ok(())
    }

    fn cuMemPoolImportPointer(address: Out<u64>, pool: u64, data: Out<[u8; HANDLE_BYTES]>) {
        let runtime = runtime::of(pool)?;
        let name = find(pool)?.imported();
        let found = block_of(data.read()).filter(|(_, pool)| Some(*pool) == name);
        let (secret, _) = found.ok_or(CuError::INVALID_VALUE)?;
        address.set(runtime.pools.open(runtime, secret)?);
        Ok(())
    }

    fn cuMemPoolDestroy(pool: u64) {
        let runtime = runtime::of(pool)?;
        runtime.pools.destroy(runtime, pool)
    }

    fn cuMemPoolTrimTo(pool: u64, bytes: usize) {
        let runtime = runtime::of(pool)?;
        runtime.pools.get(pool)?.trim(runtime, bytes as u64)
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: i32, value: Memory) {
        match find(pool)?.attribute(attribute)? {
            Attribute::Switch(switch) => value.write(switch),
            Attribute::Bytes(bytes) => value.write(bytes),
        }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: i32, value: Memory) {
        let value = match attribute {
            1..=3 => Attribute::Switch(value.read()?),
            _ => Attribute::Bytes(value.read()?),
        };
        find(pool)?.set_attribute(attribute, value)
    }

    /// The pool's own device always has access, and other devices never have.
    fn cuMemPoolSetAccess(pool: u64, _accesses: Array<u64>, _count: usize) { find(pool).map(drop) }

    fn cuMemPoolGetAccess(flags: Out<i32>, pool: u64, location: In<Location>) {
        const READ_AND_WRITE: i32 = 3;
        find(pool)?;
        let location = location.get();
        if location.kind != ON_DEVICE {
            return Err(CuError::INVALID_VALUE);
        }
        let device = devices::get(location.id).map_err(|_| CuError::INVALID_VALUE)?;
        let own = device.ordinal() == device_of(pool).ordinal();
        flags.set(if own { READ_AND_WRITE } else { 0 });
        Ok(())
    }
}

exports_by_default_stream! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(
        default; address: Out<u64>, bytes: usize, stream: u64,
    ) {
        let pool = runtime::of_stream(stream)?.pools.current();
        allocate(&address, bytes, pool, stream, default)
    }

    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(
        default; address: Out<u64>, bytes: usize, pool: u64, stream: u64,
    ) {
        allocate(&address, bytes, pool, stream, default)
    }

    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(default; address: u64, stream: u64) {
        let runtime = runtime::of_stream(stream)?;
        if devices::several_are_open()
            && devices::holding(address).is_some_and(|of| of.index != runtime.index) {
            return free_elsewhere(address, stream, default);
        }
        let stream = match runtime.target(stream, default)? {
            Target::Stream(stream) => stream,
            Target::Capture(stream) => {
                return runtime.captures.add(&runtime.graphs, stream, Action::Free(address));
            }
        };
        if address == 0 || runtime.graphs.owns(address) || runtime.pools.free(address, stream) {
            return Ok(());
        }
        if runtime.pools.is_kept(address) {
            return Err(CuError::INVALID_VALUE);
        }
        // As the free below, it waits for all work.
        if runtime.pools.close(runtime, address)? {
            return Ok(());
        }
        // Memory of cuMemAlloc: its free waits for all work, this stream's too.
        runtime.allocations.free(&runtime.session, address)
    }
}

/// Memory of another device than the stream's: when the stream is done with it.
fn free_elsewhere(address: u64, stream: u64, default: DefaultStream) -> CuResult {
    synchronize(runtime::of_stream(stream)?, stream, default)?;
    free(address)
}

/// Checks that a pool is in device memory. Pools of host or managed memory do not exist.
fn check_location(location: &Location, kind: i32) -> CuResult<&'static Runtime> {
    const PINNED: i32 = 1;
    const MANAGED: i32 = 2;
    match (location.kind, kind) {
        (ON_DEVICE, PINNED) => devices::get(location.id)?.open(),
        (0..=5, PINNED | MANAGED) => Err(CuError::NOT_SUPPORTED),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn find(pool: u64) -> CuResult<Arc<Pool>> {
    runtime::of(pool)?.pools.get(pool)
}

fn allocate(
    address: &Out<u64>,
    bytes: usize,
    pool: u64,
    stream: u64,
    default: DefaultStream,
) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    let pool = runtime.pools.get(pool)?;
    address.set(match runtime.target(stream, default)? {
        Target::Stream(stream) => pool.allocate(runtime, bytes as u64, stream)?,
        Target::Capture(stream) => {
            let memory = runtime.graphs.allocate(runtime, bytes as u64)?;
            let address = memory.address;
            runtime.captures.add(&runtime.graphs, stream, Action::Alloc(memory))?;
            address
        }
    });
    Ok(())
}
