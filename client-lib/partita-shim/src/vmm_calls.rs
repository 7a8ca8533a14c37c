//! Exports: virtual memory management (CUDA Driver API, "Virtual Memory Management").
//!
//! Memory is shared with other processes by files, whose bytes name a secret of the daemon. The
//! file keeps no memory alive: the exporting process keeps it until another one has imported it.
//! Programs may ask for other kinds of handles, which are never made.

use crate::abi::{Array, In, Memory, Out, Plain};
use crate::devices::{self, Device};
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::processes::{Shared, file_of, secret_in};
use crate::runtime;
use crate::vmm::GRANULARITY;
use partita_model::MemoryAccess;

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Properties {
    kind: i32,
    handle_types: i32,
    location: Location,
    others: [u64; 2],
}

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    kind: i32,
    id: i32,
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Access {
    location: Location,
    flags: i32,
}

// SAFETY: integers.
unsafe impl Plain for Properties {}
// SAFETY: integers.
unsafe impl Plain for Location {}
// SAFETY: integers.
unsafe impl Plain for Access {}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

exports! {
    /// The address that a program wishes for is a hint.
    fn cuMemAddressReserve(
        address: Out<u64>, bytes: usize, alignment: usize, _hint: u64, flags: u64,
    ) {
        let runtime = runtime::get()?;
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        address.set(runtime.vmm.reserve(&runtime.session, bytes as u64, alignment as u64)?);
        Ok(())
    }

    fn cuMemAddressFree(address: u64, bytes: usize) {
        let runtime = runtime::of_address(address)?;
        runtime.vmm.unreserve(&runtime.session, address, bytes as u64)
    }

    fn cuMemCreate(handle: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) {
        let properties = properties.get();
        let runtime = properties.check()?.open()?;
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        handle.set(runtime.vmm.create(&runtime.session, bytes as u64, properties.words())?);
        Ok(())
    }

    fn cuMemRelease(handle: u64) {
        let runtime = runtime::of(handle)?;
        runtime.vmm.release(&runtime.session, handle)
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: Memory) {
        handle.set(runtime::of_address(address.address())?.vmm.retain(address.address())?);
        Ok(())
    }

    /// Parts are the first bytes: CUDA takes no other offset than 0 either.
    fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        // Memory is mapped among the addresses of its own device only.
        let runtime = runtime::of(handle)?;
        if offset != 0 || flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        runtime.vmm.map(&runtime.session, address, bytes as u64, handle)
    }

    fn cuMemUnmap(address: u64, bytes: usize) {
        let runtime = runtime::of_address(address)?;
        runtime.vmm.unmap(&runtime.session, address, bytes as u64)
    }

    fn cuMemSetAccess(address: u64, bytes: usize, accesses: Array<Access>, count: usize) {
        let runtime = runtime::of_address(address)?;
        for index in 0..count.min(64) {
            let Access { location, flags } = accesses.get(index).ok_or(CuError::INVALID_VALUE)?;
            let access = ACCESSES.into_iter().find(|(number, _)| *number == flags);
            let (_, access) = access.ok_or(CuError::INVALID_VALUE)?;
            match (location.kind, location.id) {
                (ON_DEVICE, id) if id == runtime.index.ordinal() => {
                    runtime.vmm.set_access(&runtime.session, address, bytes as u64, access)?;
                }
                // No device reaches another's memory.
                (ON_DEVICE, id) => {
                    devices::get(id)?;
                    return Err(CuError::NOT_SUPPORTED);
                }
                _ => return Err(CuError::NOT_SUPPORTED),
            }
        }
        if count == 0 { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) {
        let runtime = runtime::of_address(address)?;
        let location = location.get();
        if location.kind != ON_DEVICE || location.id != runtime.index.ordinal() {
            return Err(CuError::INVALID_VALUE);
        }
        let found = runtime.vmm.access(address)?;
        let number = ACCESSES.into_iter().find(|(_, access)| *access == found).map(|(number,
            _)| number);
        flags.set(number.and_then(|number| u64::try_from(number).ok()).ok_or(CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuMemGetAllocationGranularity(
        granularity: Out<usize>, properties: In<Properties>, option: i32,
    ) {
        properties.get().check()?;
        if !matches!(option, 0 | 1) {
            return Err(CuError::INVALID_VALUE);
        }
        granularity.set(usize::try_from(GRANULARITY).map_err(|_| CuError::UNKNOWN)?);
        Ok(())
    }

    fn cuMemExportToShareableHandle(shareable: Out<i32>, handle: u64, kind: i32, flags: u64) {
        let runtime = runtime::of(handle)?;
        let [kinds, ..] = runtime.vmm.get(handle)?.properties;
        if flags != 0 || (kinds >> 32) & u64::from(kind.cast_unsigned()) == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        if kind != POSIX_FILE {
            return Err(CuError::NOT_SUPPORTED);
        }
        let secret = runtime.vmm.export(&runtime.session, handle)?;
        let file = file_of(&Shared::Physical.handle(secret));
        shareable.set(file.map_err(|_| CuError::OUT_OF_MEMORY)?);
        Ok(())
    }

    /// The file itself stands where other kinds of handles have a pointer. It stays the program's.
    fn cuMemImportFromShareableHandle(handle: Out<u64>, shareable: u64, kind: i32) {
        let runtime = runtime::current()?;
        if kind != POSIX_FILE {
            return Err(CuError::NOT_SUPPORTED);
        }
        let file = i32::try_from(shareable).map_err(|_| CuError::INVALID_VALUE)?;
        let secret = secret_in(file, Shared::Physical).ok_or(CuError::INVALID_VALUE)?;
        let location = Location { kind: ON_DEVICE, id: runtime.index.ordinal() };
        let properties =
            Properties { kind: PINNED, handle_types: POSIX_FILE, location, others: [0; 2] };
        handle.set(runtime.vmm.import(&runtime.session, secret, properties.words())?);
        Ok(())
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<[u64; 4]>, handle: u64) {
        properties.set(runtime::of(handle)?.vmm.get(handle)?.properties);
        Ok(())
    }
}

const ON_DEVICE: i32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: i32 = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FILE: i32 = 1;

/// `CUmemAccess_flags`.
const ACCESSES: [(i32, MemoryAccess); 3] =
    [(0, MemoryAccess::None), (1, MemoryAccess::Read), (3, MemoryAccess::ReadWrite)];

impl Properties {
    /// The device on which memory is asked for.
    fn check(&self) -> CuResult<&'static Device> {
        if self.kind != PINNED || !(0..=15).contains(&self.handle_types) {
            return Err(CuError::INVALID_VALUE);
        }
        match (self.location.kind, self.location.id) {
            (ON_DEVICE, id) => devices::get(id),
            // The host, or a NUMA node of it.
            (2..=4, _) => Err(CuError::NOT_SUPPORTED),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    /// As they lie in memory.
    fn words(&self) -> [u64; 4] {
        let pair = |low: i32, high: i32| {
            u64::from(low.cast_unsigned()) | u64::from(high.cast_unsigned()) << 32
        };
        let [first, second] = self.others;
        [
            pair(self.kind, self.handle_types),
            pair(self.location.kind, self.location.id),
            first,
            second,
        ]
    }
}
