//! Exports: memory and events that processes share (CUDA Driver API, "Interprocess communication").

use crate::abi::{Bytes64, Out};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::processes::{HANDLE_BYTES, Shared};
use crate::runtime;
use partita_model::DeviceAddress;

exports! {
    /// A handle is the whole allocation's, wherever in it the address is.
    fn cuIpcGetMemHandle(handle: Out<[u8; HANDLE_BYTES]>, address: u64) {
        runtime::current()?;
        let runtime = runtime::of_address(address)?;
        let range = runtime.allocations.find(address).ok_or(CuError::INVALID_VALUE)?;
        if runtime.pools.is_kept(range.start) {
            return Err(CuError::INVALID_VALUE);
        }
        let secret = runtime.session.export_memory(DeviceAddress(range.start))?;
        handle.set(Shared::Memory.handle(secret));
        Ok(())
    }

    fn cuIpcOpenMemHandle(address: Out<u64>, handle: Bytes64, flags: u32) {
        open_memory(&address, &handle, flags)
    }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: Bytes64, flags: u32) {
        open_memory(&address, &handle, flags)
    }

    fn cuIpcCloseMemHandle(address: u64) {
        runtime::current()?;
        let runtime = runtime::of_address(address)?;
        runtime.opened.close(&runtime.session, address)
    }

    fn cuIpcGetEventHandle(handle: Out<[u8; HANDLE_BYTES]>, event: u64) {
        let runtime = runtime::of(event)?;
        let event = runtime.events.get(event)?;
        if !event.is_interprocess {
            return Err(CuError::INVALID_HANDLE);
        }
        handle.set(Shared::Event.handle(runtime.session.export_event(event.client)?));
        Ok(())
    }

    fn cuIpcOpenEventHandle(event: Out<u64>, handle: Bytes64) {
        let runtime = runtime::current()?;
        let secret = Shared::Event.secret(&handle.0).ok_or(CuError::INVALID_HANDLE)?;
        event.set(runtime.events.open(&runtime.session, secret)?);
        Ok(())
    }
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which programs must pass.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

fn open_memory(address: &Out<u64>, handle: &Bytes64, flags: u32) -> CuResult {
    let runtime = runtime::current()?;
    if flags != LAZY_ENABLE_PEER_ACCESS {
        return Err(CuError::INVALID_VALUE);
    }
    let secret = Shared::Memory.secret(&handle.0).ok_or(CuError::INVALID_VALUE)?;
    address.set(runtime.opened.open(&runtime.session, secret)?);
    Ok(())
}
