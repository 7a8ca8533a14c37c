//! `cuGetExportTable`: the tables of unnamed functions through which the runtime and the libraries
//! built on it talk to the driver.
//!
//! Only slots that programs were seen to call do something; `start-up.md` lists them. Every other
//! slot answers `CUDA_ERROR_NOT_SUPPORTED`. Slot 0 holds the table's size in bytes, except in
//! `CTX_LOCAL_STORAGE`, which begins with functions and ends with 0.

use crate::abi::{Array, Memory, OptionalOut, Out};
use crate::context;
use crate::devices;
use crate::entry::{exports, run};
use crate::error::{CuError, CuResult};
use crate::integrity::{self, Device, Question};
use crate::log;
use crate::runtime::{self, DRIVER_VERSION};
use crate::storage::Destructor;
use std::ffi::c_void;

/// One slot: a function, or a number.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Slot(*const c_void);

// SAFETY: a slot is a constant: a function's address or a number.
unsafe impl Sync for Slot {}

const fn size_of_table(slots: usize) -> Slot {
    Slot(std::ptr::without_provenance(slots * size_of::<Slot>()))
}

const UNKNOWN: Slot = Slot(unknown_slot as *const c_void);
const END: Slot = Slot(std::ptr::null());

static CUDART_INTERFACE: [Slot; 13] = {
    let mut table = [UNKNOWN; 13];
    table[0] = size_of_table(13);
    table[2] = Slot(primary_context as *const c_void);
    table[12] = Slot(accept as *const c_void);
    table
};

static CALLBACK_HOOKS: [Slot; 7] = {
    let mut table = [UNKNOWN; 7];
    table[0] = size_of_table(7);
    table[2] = Slot(first_hook_buffer as *const c_void);
    table[6] = Slot(second_hook_buffer as *const c_void);
    table
};

static TOOLS_TLS: [Slot; 4] = {
    let mut table = [UNKNOWN; 4];
    table[0] = size_of_table(4);
    table[2] = Slot(current_context as *const c_void);
    table
};

static CONTEXT_IDENTITY: [Slot; 60] = {
    let mut table = [UNKNOWN; 60];
    table[0] = size_of_table(60);
    table[4] = Slot(context_id as *const c_void);
    table
};

static CONTEXT_STORAGE: [Slot; 4] = [
    Slot(storage_put as *const c_void),
    Slot(storage_delete as *const c_void),
    Slot(storage_get as *const c_void),
    END,
];

static CONTEXT_CHECKS: [Slot; 4] = {
    let mut table = [UNKNOWN; 4];
    table[0] = size_of_table(4);
    table[2] = Slot(check_context as *const c_void);
    table[3] = Slot(accept as *const c_void);
    table
};

static INTEGRITY: [Slot; 3] = [size_of_table(3), Slot(integrity_check as *const c_void), UNKNOWN];

/// cuBLASLt calls into this one without looking at errors; being refused there is enough for it.
static LIBRARY_PROBE: [Slot; 16] = {
    let mut table = [UNKNOWN; 16];
    table[0] = size_of_table(16);
    table
};

/// The table with an id (16 bytes in the order in which they lie in memory).
fn find(id: [u8; 16]) -> Option<&'static [Slot]> {
    Some(match u128::from_be_bytes(id) {
        0x6bd5fb6c_5bf4_e74a_8987_d93912fd9df9 => &CUDART_INTERFACE,
        0xa094798c_2e74_2e74_93f2_0800200c0a66 => &CALLBACK_HOOKS,
        0x42d85a81_23f6_cb47_8298_f6e78a3aecdc => &TOOLS_TLS,
        0x21318c60_9714_3248_8ca6_41ff7324c8f2 => &CONTEXT_IDENTITY,
        0xc693336e_1121_df11_a8c3_68f355d89593 => &CONTEXT_STORAGE,
        0x263e8860_7cd2_6143_92f6_bbd5006dfa7e => &CONTEXT_CHECKS,
        0xd4082055_bde6_704b_8d34_ba123c66e1f2 => &INTEGRITY,
        0x1734dc26_800d_4745_8726_c0f1e7dd8bca => &LIBRARY_PROBE,
        _ => return None,
    })
}

exports! {
    fn cuGetExportTable(table: Out<*const c_void>, id: Array<[u8; 16]>) {
        let id = id.get(0).ok_or(CuError::INVALID_VALUE)?;
        let found = find(id);
        table.set(found.map_or(std::ptr::null(), |slots| slots.as_ptr().cast()));
        if found.is_none() && log::is_wanted() {
            log::say(format_args!("export table {:032x} is not known", u128::from_be_bytes(id)));
        }
        found.map(drop).ok_or(CuError::NOT_FOUND)
    }
}

extern "C" fn unknown_slot() -> i32 {
    run("a slot of an export table", || Err(CuError::NOT_SUPPORTED))
}

extern "C" fn accept() -> i32 {
    0
}

/// The primary context's handle, without activating it.
extern "C" fn primary_context(handle: OptionalOut<u64>, device: i32) -> i32 {
    run("CUDART_INTERFACE[2]", || {
        handle.set(devices::get(device)?.primary_context());
        Ok(())
    })
}

/// Which calls of the runtime somebody wants to be told of: one `u32` for each of its functions,
/// all 0. cudart refuses a number that is smaller than its own number of functions (567 in 13.5),
/// and reads that far.
extern "C" fn first_hook_buffer(buffer: OptionalOut<*mut c_void>, count: OptionalOut<usize>) {
    static BUFFER: HookBuffer<1024> = HookBuffer::new();
    BUFFER.give(&buffer, &count);
}

extern "C" fn second_hook_buffer(buffer: OptionalOut<*mut c_void>, count: OptionalOut<usize>) {
    static BUFFER: HookBuffer<14> = HookBuffer::new();
    BUFFER.give(&buffer, &count);
}

/// Zeroed memory that the program may write to and this library never looks at. The elements are as
/// large as the largest that one could take them for.
struct HookBuffer<const COUNT: usize>(std::cell::UnsafeCell<[u64; COUNT]>);

// SAFETY: this library never reads or writes the elements.
unsafe impl<const COUNT: usize> Sync for HookBuffer<COUNT> {}

impl<const COUNT: usize> HookBuffer<COUNT> {
    const fn new() -> Self {
        HookBuffer(std::cell::UnsafeCell::new([0; COUNT]))
    }

    fn give(&'static self, buffer: &OptionalOut<*mut c_void>, count: &OptionalOut<usize>) {
        buffer.set(self.0.get().cast());
        count.set(COUNT);
    }
}

extern "C" fn current_context(handle: OptionalOut<u64>) -> i32 {
    run("TOOLS_TLS[2]", || {
        devices::all()?;
        handle.set(context::current_handle());
        Ok(())
    })
}

extern "C" fn context_id(context: u64, id: OptionalOut<u64>) -> i32 {
    run("CTX_IDENTITY[4]", || {
        id.set(runtime::of_context(context)?.contexts.get(context)?.id);
        Ok(())
    })
}

/// Null stands for the current context. A context that has not been used has nothing stored.
fn storage_context(context: u64) -> CuResult<(&'static runtime::Runtime, u64)> {
    if context == 0 {
        let runtime = runtime::current()?;
        return Ok((runtime, runtime.contexts.current()?));
    }
    Ok((runtime::of(context)?, context))
}

extern "C" fn storage_put(context: u64, key: Memory, value: Memory, destructor: Destructor) -> i32 {
    run("CTX_LOCAL_STORAGE[0]", || {
        let (runtime, context) = storage_context(context)?;
        runtime.storage.put(context, key.pointer(), value.pointer(), destructor);
        Ok(())
    })
}

extern "C" fn storage_delete(context: u64, key: Memory) -> i32 {
    run("CTX_LOCAL_STORAGE[1]", || {
        let (runtime, context) = storage_context(context)?;
        runtime.storage.delete(context, key.pointer())
    })
}

extern "C" fn storage_get(value: OptionalOut<*mut c_void>, context: u64, key: Memory) -> i32 {
    run("CTX_LOCAL_STORAGE[2]", || {
        let (runtime, context) = storage_context(context)?;
        value.set(runtime.storage.get(context, key.pointer())?);
        Ok(())
    })
}

extern "C" fn check_context(
    _context: u64,
    first: OptionalOut<u32>,
    _second: OptionalOut<u64>,
) -> i32 {
    first.set(0);
    0
}

extern "C" fn integrity_check(
    version: u32,
    unix_seconds: u64,
    answer: OptionalOut<[u64; 2]>,
) -> i32 {
    run("INTEGRITY_CHECK[1]", || {
        let devices = devices::all()?;
        // SAFETY: asks for the calling thread's own id.
        let thread = unsafe { libc::pthread_self() };
        let devices: Vec<Device> = devices
            .iter()
            .map(|device| Device { uuid: device.facts().uuid, pci: device.pci() })
            .collect();
        answer.set(integrity::answer(&Question {
            driver_version: DRIVER_VERSION.cast_unsigned(),
            version,
            pid: std::process::id(),
            thread: u32::try_from(thread & 0xffff_ffff).expect("masked to 32 bits"),
            cudart_table: CUDART_INTERFACE.as_ptr() as u64,
            integrity_table: INTEGRITY.as_ptr() as u64,
            function: integrity_check as *const c_void as u64,
            unix_seconds,
            devices: &devices,
        }));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_begin_with_their_size() {
        for table in [
            &CUDART_INTERFACE[..],
            &CALLBACK_HOOKS,
            &TOOLS_TLS,
            &CONTEXT_IDENTITY,
            &CONTEXT_CHECKS,
            &INTEGRITY,
            &LIBRARY_PROBE,
        ] {
            assert_eq!(table[0].0 as usize, size_of_val(table));
        }
        assert!(CONTEXT_STORAGE[3].0.is_null());
    }

    #[test]
    fn the_skip_init_probe_and_unknown_ids_have_no_table() {
        assert!(find([0; 16]).is_none());
        assert!(find(0xf8cff951_2146_8b4e_b9e2_fb469e7c0dd9_u128.to_be_bytes()).is_none());
        assert!(find(0xd4082055_bde6_704b_8d34_ba123c66e1f2_u128.to_be_bytes()).is_some());
    }
}
