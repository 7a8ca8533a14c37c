//! Exports: what a pointer is (CUDA Driver API, "Unified Addressing").

use crate::abi::{Array, Memory};
use crate::device_memory::Range;
use crate::devices;
use crate::entry::exports;
use crate::error::{CuError, CuResult};
use crate::runtime::{self, Runtime};

exports! {
    fn cuPointerGetAttribute(answer: Memory, attribute: i32, pointer: u64) {
        runtime::current()?;
        let subject = Subject::find(pointer).ok_or(CuError::INVALID_VALUE)?;
        if answer.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        subject.write(attribute, answer)
    }

    /// For memory that is not CUDA's, this form succeeds with empty answers. The singular form
    /// fails.
    fn cuPointerGetAttributes(
        count: u32, attributes: Array<i32>, answers: Array<Memory>, pointer: u64,
    ) {
        runtime::current()?;
        let subject = Subject::find(pointer);
        for index in 0..count as usize {
            let attribute = attributes.get(index).ok_or(CuError::INVALID_VALUE)?;
            let answer = answers.get(index).ok_or(CuError::INVALID_VALUE)?;
            if answer.is_null() {
                return Err(CuError::INVALID_VALUE);
            }
            subject.unwrap_or(Subject::FOREIGN).write(attribute, answer)?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(value: Memory, attribute: i32, pointer: u64) {
        const SYNC_MEMOPS: i32 = 6;
        runtime::current()?;
        let is_device = devices::holding(pointer).is_some_and(|of| of.is_device_address(pointer));
        if value.is_null() || attribute != SYNC_MEMOPS || !is_device {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(())
    }
}

/// Memory that somebody asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Subject {
    /// `CUmemorytype`: 0 not CUDA's, 1 host, 2 device.
    kind: u32,
    /// `CUdevice`; `CU_DEVICE_INVALID` for memory that is not CUDA's.
    device: i32,
    context: u64,
    pointer: u64,
    start: u64,
    bytes: u64,
    sides: Sides,
    /// Whether `cuIpcGetMemHandle` takes it.
    has_handle: bool,
}

/// The sides that can access memory at its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sides {
    Host,
    Device,
    Both,
    /// Both, as managed memory.
    Managed,
    /// Both, each by an address of its own.
    Apart {
        host: u64,
        on_device: u64,
    },
}

impl Subject {
    const FOREIGN: Subject = Subject {
        kind: 0,
        device: -2,
        context: 0,
        pointer: 0,
        start: 0,
        bytes: 0,
        sides: Sides::Host,
        has_handle: false,
    };

    fn find(pointer: u64) -> Option<Subject> {
        devices::opened().find_map(|runtime| Subject::of(runtime, pointer))
    }

    fn of(runtime: &Runtime, pointer: u64) -> Option<Subject> {
        let device = runtime.index.ordinal();
        let context = runtime.contexts.primary();
        if let Some(Range { start, bytes }) = runtime.managed_range(pointer) {
            return Some(Subject {
                kind: 2,
                device,
                context,
                pointer,
                start,
                bytes,
                sides: Sides::Managed,
                has_handle: false,
            });
        }
        if let Some((Range { start, bytes }, _)) = runtime.host.find(pointer) {
            let sides = match runtime.host.lent_at(pointer) {
                Some(on_device) => Sides::Apart { host: pointer, on_device },
                None if runtime.is_shared_address(pointer) => Sides::Both,
                None => Sides::Host,
            };
            let host = Subject { kind: 1, device, context, pointer, ..Subject::FOREIGN };
            return Some(Subject { start, bytes, sides, ..host });
        }
        if let Some(host) = runtime.host.lender_of(pointer) {
            let (Range { start, bytes }, _) = runtime.host.find(host)?;
            let start = pointer - (host - start);
            let sides = Sides::Apart { host, on_device: pointer };
            let host = Subject { kind: 1, device, context, pointer, ..Subject::FOREIGN };
            return Some(Subject { start, bytes, sides, ..host });
        }
        if !runtime.is_device_address(pointer) {
            return None;
        }
        // Variables of modules are in the window without having been allocated.
        let (start, bytes) =
            runtime.device_range(pointer).map_or((pointer, 0), |range| (range.start, range.bytes));
        let has_handle = runtime.allocations.find(pointer).is_some();
        let sides = Sides::Device;
        Some(Subject { kind: 2, device, context, pointer, start, bytes, sides, has_handle })
    }

    /// Writes the value of a `CUpointer_attribute` in that attribute's own size.
    fn write(self, attribute: i32, answer: Memory) -> CuResult {
        let for_device = self.kind != 0 && self.sides != Sides::Host;
        let for_host = self.kind != 0 && self.sides != Sides::Device;
        let (host, on_device) = match self.sides {
            Sides::Apart { host, on_device } => (host, on_device),
            _ => (self.pointer, self.pointer),
        };
        match attribute {
            1 => answer.write(self.context),
            2 => answer.write(self.kind),
            3 => answer.write(if for_device { on_device } else { 0 }),
            4 => answer.write(if for_host { host } else { 0 }),
            // IS_MANAGED
            8 => answer.write(u32::from(self.sides == Sides::Managed)),
            // IS_LEGACY_CUDA_IPC_CAPABLE
            10 => answer.write(u32::from(self.has_handle)),
            // SYNC_MEMOPS, IS_GPU_DIRECT_RDMA_CAPABLE, IS_HW_DECOMPRESS_CAPABLE
            6 | 15 | 21 => answer.write(0u32),
            7 | 20 => answer.write(self.start),
            // DEVICE_ORDINAL
            9 => answer.write(self.device),
            11 | 19 => answer.write(self.start),
            12 | 18 => answer.write(self.bytes),
            // MAPPED, ACCESS_FLAGS (read and write)
            13 => answer.write(u32::from(for_device)),
            16 => answer.write(if for_device { 3u32 } else { 0 }),
            // ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE
            14 | 17 => answer.write(0u64),
            // LOCALITY_DOMAIN_ORDINAL: none
            22 => answer.write(-1i32),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_their_own_sizes() {
        let subject = Subject {
            kind: 2,
            device: 3,
            context: 0x11,
            pointer: 0x1234,
            start: 0x1000,
            bytes: 0x800,
            sides: Sides::Device,
            has_handle: true,
        };
        let check = |subject: Subject, attribute, expect: [u8; 8]| {
            let mut answer = [0xee_u8; 8];
            subject.write(attribute, Memory::at(answer.as_mut_ptr() as u64)).unwrap();
            assert_eq!(answer, expect, "{attribute}");
        };
        check(subject, 1, [0x11, 0, 0, 0, 0, 0, 0, 0]);
        check(subject, 2, [2, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
        check(subject, 3, [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        check(subject, 4, [0; 8]);
        check(subject, 9, [3, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
        check(subject, 10, [1, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
        check(Subject::FOREIGN, 10, [0, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
        check(subject, 11, [0, 0x10, 0, 0, 0, 0, 0, 0]);
        check(Subject::FOREIGN, 2, [0, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
        check(Subject::FOREIGN, 9, [0xfe, 0xff, 0xff, 0xff, 0xee, 0xee, 0xee, 0xee]);
        let mut answer = 0u64;
        let answer = Memory::at(std::ptr::from_mut(&mut answer) as u64);
        assert_eq!(subject.write(99, answer), Err(CuError::INVALID_VALUE));
    }
}
