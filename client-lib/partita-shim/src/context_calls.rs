//! Exports: contexts (CUDA Driver API, "Primary Context Management" and "Context Management").

use crate::abi::{Memory, OptionalOut, Out};
use crate::context::{self, current_handle};
use crate::devices;
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::runtime::{self, Runtime};
use std::sync::atomic::{AtomicU64, Ordering};

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) {
        let runtime = devices::get(device)?.open()?;
        context.set(runtime.contexts.retain_primary());
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease(device: i32) { release_primary(device) }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) { release_primary(device) }

    fn cuDevicePrimaryCtxReset(device: i32) { reset_primary(device) }

    fn cuDevicePrimaryCtxReset_v2(device: i32) { reset_primary(device) }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) { set_primary_flags(device, flags) }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        // A query of a device does not open it.
        let Some(runtime) = devices::get(device)?.opened() else {
            flags.set(0);
            active.set(0);
            return Ok(());
        };
        let primary = runtime.contexts.get(runtime.contexts.primary())?;
        flags.set(primary.flags.load(Ordering::Relaxed));
        active.set(i32::from(runtime.contexts.primary_is_active()));
        Ok(())
    }

    fn cuCtxCreate(context: Out<u64>, flags: u32, device: i32) { create(&context, flags, device) }

    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: i32) {
        create(&context, flags, device)
    }

    fn cuCtxCreate_v3(context: Out<u64>, affinity: Memory, count: i32, flags: u32, device: i32) {
        if count != 0 && !affinity.is_null() {
            return Err(CuError::UNSUPPORTED_EXEC_AFFINITY);
        }
        create(&context, flags, device)
    }

    fn cuCtxCreate_v4(context: Out<u64>, parameters: Memory, flags: u32, device: i32) {
        if !parameters.is_null() {
            let affinity: u64 = parameters.read()?;
            let graphics: u64 = parameters.offset(16).read()?;
            if affinity != 0 || graphics != 0 {
                return Err(CuError::NOT_SUPPORTED);
            }
        }
        create(&context, flags, device)
    }

    fn cuCtxDestroy(context: u64) { destroy(context) }

    /// The predecessor of `cuCtxDestroy`, from before contexts could be popped.
    fn cuCtxDetach(context: u64) { destroy(context) }

    fn cuCtxDestroy_v2(context: u64) { destroy(context) }

    fn cuCtxPushCurrent(context: u64) { push(context) }

    fn cuCtxPushCurrent_v2(context: u64) { push(context) }

    fn cuCtxPopCurrent(context: OptionalOut<u64>) { pop(&context) }

    fn cuCtxPopCurrent_v2(context: OptionalOut<u64>) { pop(&context) }

    fn cuCtxSetCurrent(context: u64) {
        if context == 0 {
            devices::all()?;
            // If no context is current, the thread is already in the wanted state.
            let _ = context::pop();
            return Ok(());
        }
        runtime::of_context(context)?.contexts.set_current(context)
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        devices::all()?;
        context.set(current_handle());
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.set(runtime::current()?.index.ordinal());
        Ok(())
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: u64) {
        let runtime = runtime::of_context(context)?;
        runtime.contexts.get(context)?;
        device.set(runtime.index.ordinal());
        Ok(())
    }

    fn cuCtxGetId(context: u64, id: Out<u64>) {
        id.set(runtime::of_context(context)?.contexts.get(context)?.id);
        Ok(())
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        let runtime = runtime::current()?;
        flags.set(runtime.contexts.get(0)?.flags.load(Ordering::Relaxed));
        Ok(())
    }

    fn cuCtxSetFlags(flags: u32) {
        let runtime = runtime::current()?;
        runtime.contexts.get(0)?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxSynchronize() { synchronize(runtime::current()?) }

    fn cuCtxSynchronize_v2(context: u64) {
        let runtime = runtime::of_context(context)?;
        runtime.contexts.get(context)?;
        synchronize(runtime)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        runtime::of_context(context)?.contexts.get(context)?;
        version.set(3020);
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(least: OptionalOut<i32>, greatest: OptionalOut<i32>) {
        runtime::current()?;
        least.set(0);
        greatest.set(crate::stream::GREATEST_PRIORITY);
        Ok(())
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        runtime::current()?;
        let stored = LIMITS.get(limit as usize).ok_or(CuError::INVALID_VALUE)?;
        stored.store(value as u64, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        runtime::current()?;
        let stored = LIMITS.get(limit as usize).ok_or(CuError::UNSUPPORTED_LIMIT)?;
        value.set(usize::try_from(stored.load(Ordering::Relaxed)).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: Out<i32>) {
        runtime::current()?;
        config.set(0);
        Ok(())
    }

    /// A preference; devices may ignore it.
    fn cuCtxSetCacheConfig(_config: i32) { runtime::current().map(drop) }

    /// Banks of four bytes, as on every device of compute capability 5.0 and later.
    fn cuCtxGetSharedMemConfig(config: Out<i32>) {
        runtime::current()?;
        config.set(1);
        Ok(())
    }

    fn cuCtxSetSharedMemConfig(_config: i32) { runtime::current().map(drop) }

    /// Memory of another device is reached by copies only.
    fn cuCtxEnablePeerAccess(context: u64, flags: u32) {
        let peer = devices::of(context)?.filter(|_| context != 0).ok_or(CuError::INVALID_CONTEXT)?;
        peer.contexts.get(context)?;
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let own = runtime::current()?.index == peer.index;
        Err(if own { CuError::INVALID_CONTEXT } else { CuError::PEER_ACCESS_UNSUPPORTED })
    }

    fn cuCtxDisablePeerAccess(context: u64) {
        let peer = devices::of(context)?.filter(|_| context != 0).ok_or(CuError::INVALID_CONTEXT)?;
        peer.contexts.get(context)?;
        runtime::current()?;
        Err(CuError::PEER_ACCESS_NOT_ENABLED)
    }

    fn cuCtxResetPersistingL2Cache() { runtime::current().map(drop) }
}

/// Values of `CUlimit` 0 to 6 as new contexts of NVIDIA's driver have them. They are kept, and only
/// [`pending_launches`] changes anything yet.
static LIMITS: [AtomicU64; 7] = [
    AtomicU64::new(1024),
    AtomicU64::new(1 << 20),
    AtomicU64::new(8 << 20),
    AtomicU64::new(2),
    AtomicU64::new(2048),
    AtomicU64::new(64),
    AtomicU64::new(0),
];

/// Launches by one launch's kernel for which memory is kept at least
/// (`CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT`).
pub fn pending_launches() -> u64 {
    LIMITS[4].load(Ordering::Relaxed)
}

fn synchronize(runtime: &Runtime) -> CuResult {
    runtime.captures.outside_all()?;
    Ok(runtime.session.synchronize(None)?)
}

fn release_primary(device: i32) -> CuResult {
    let runtime = devices::get(device)?.opened().ok_or(CuError::INVALID_CONTEXT)?;
    if runtime.contexts.release_primary()? {
        runtime.reset();
    }
    Ok(())
}

fn reset_primary(device: i32) -> CuResult {
    let Some(runtime) = devices::get(device)?.opened() else { return Ok(()) };
    runtime.contexts.forget_retained();
    runtime.reset();
    Ok(())
}

fn set_primary_flags(device: i32, flags: u32) -> CuResult {
    let runtime = devices::get(device)?.open()?;
    let primary = runtime.contexts.get(runtime.contexts.primary())?;
    primary.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

fn create(context: &Out<u64>, flags: u32, device: i32) -> CuResult {
    let runtime = devices::get(device)?.open()?;
    context.set(runtime.contexts.create(flags)?);
    Ok(())
}

fn push(context: u64) -> CuResult {
    if context == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    runtime::of_context(context)?.contexts.push(context)
}

fn destroy(context: u64) -> CuResult {
    let runtime = devices::of(context)?.ok_or(CuError::INVALID_CONTEXT)?;
    runtime.contexts.destroy(context)?;
    runtime.storage.clear_context(context);
    Ok(())
}

fn pop(popped: &OptionalOut<u64>) -> CuResult {
    devices::all()?;
    popped.set(context::pop()?);
    Ok(())
}
