//! Copies between any two places, in one, two or three dimensions.
//!
//! A place is the program's memory or the device's. Where CUDA leaves the kind open ("unified"),
//! the address decides: the session's window is reserved, so nothing of the program lies there. A
//! copy of several rows is one copy where the rows lie without gaps on both sides, and otherwise
//! one copy a row.
//!
//! A copy from or to the session's host memory ([`crate::host_memory`]) is asynchronous. No other
//! copy keeps a pointer to the program's memory after its call returns; copies between devices
//! ([`crate::across`]) have taken the bytes by then. Such memory is pageable to the device, and
//! CUDA allows the asynchronous calls to be synchronous for it (CUDA Driver API, "API
//! synchronization behavior").

use crate::abi::Memory;
use crate::across;
use crate::devices;
use crate::error::{CuError, CuResult};
use crate::runtime::Runtime;
use partita_client::StreamHandle;
use partita_model::{DeviceAddress, MemoryAccess};

/// One end of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The program's memory.
    Host(Memory),
    /// The device's.
    Device(u64),
}

impl Place {
    /// The place that an address means by itself.
    pub fn of(runtime: &Runtime, address: u64) -> Place {
        let elsewhere = || {
            let of = devices::holding(address).filter(|_| devices::several_are_open());
            of.is_some_and(|of| of.is_device_address(address))
        };
        if runtime.is_device_address(address) || elsewhere() {
            Place::Device(address)
        } else {
            Place::Host(Memory::at(address))
        }
    }

    fn offset(self, bytes: u64) -> CuResult<Place> {
        let moved = |address: u64| address.checked_add(bytes).ok_or(CuError::INVALID_VALUE);
        Ok(match self {
            Place::Host(memory) => Place::Host(Memory::at(moved(memory.address())?)),
            Place::Device(address) => Place::Device(moved(address)?),
        })
    }
}

/// Whether the program goes on before the copy is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The call returns when the copy is complete: `cuMemcpy…`.
    Done,
    /// The call returns when the copy is submitted, where that is possible: `cuMemcpy…Async`.
    Submitted,
}

/// Copies `bytes` bytes.
pub fn copy(
    runtime: &Runtime,
    stream: StreamHandle,
    to: Place,
    from: Place,
    bytes: u64,
    until: Until,
) -> CuResult {
    if across::concerns(runtime, to, from) {
        return across::copy(runtime, stream, to, from, bytes, until);
    }
    let size = usize::try_from(bytes).map_err(|_| CuError::INVALID_VALUE)?;
    let session = &runtime.session;
    let permits = |place: Place, access: MemoryAccess| match place {
        Place::Device(address) => runtime.vmm.permits(address, bytes, access),
        Place::Host(_) => true,
    };
    if !permits(to, MemoryAccess::ReadWrite) || !permits(from, MemoryAccess::Read) {
        return Err(CuError::INVALID_VALUE);
    }
    let direct = |memory: Memory| session.host_range(memory.pointer().cast(), bytes);
    match (to, from) {
        (Place::Device(to), Place::Host(from)) => {
            let to = DeviceAddress(to);
            match (until, direct(from)) {
                (Until::Submitted, Some(range)) => {
                    session.copy_from_host_memory(stream, to, range)?
                }
                (Until::Submitted, None) => {
                    session.copy_to_device_async(stream, to, from.bytes(size)?)?
                }
                (Until::Done, _) => session.copy_to_device(stream, to, from.bytes(size)?)?,
            }
        }
        (Place::Host(to), Place::Device(from)) => {
            let from = DeviceAddress(from);
            match (until, direct(to)) {
                (Until::Submitted, Some(range)) => {
                    session.copy_to_host_memory(stream, range, from)?
                }
                _ => session.copy_to_host(stream, to.bytes_mut(size)?, from)?,
            }
        }
        (Place::Device(to), Place::Device(from)) => {
            session.copy_on_device(stream, DeviceAddress(to), DeviceAddress(from), bytes)?;
        }
        (Place::Host(to), Place::Host(from)) => {
            session.synchronize(Some(stream))?;
            to.copy_from(from, size)?;
        }
    }
    Ok(())
}

/// Rows of `row_bytes` bytes, `rows` in a plane, `planes` of them.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Bytes in a row.
    pub row_bytes: u64,
    /// Rows in a plane.
    pub rows: u64,
    /// Planes.
    pub planes: u64,
}

/// The place of rows.
#[derive(Clone, Copy)]
pub struct Rows {
    /// The first row.
    pub place: Place,
    /// From one row to the next.
    pub pitch: u64,
    /// From one plane to the next.
    pub plane_pitch: u64,
}

impl Rows {
    fn check(&self, extent: &Extent) -> CuResult {
        let rows_overlap = extent.rows > 1 && self.pitch < extent.row_bytes;
        let plane_bytes = self.pitch.checked_mul(extent.rows).ok_or(CuError::INVALID_VALUE)?;
        let planes_overlap = extent.planes > 1 && self.plane_pitch < plane_bytes;
        if rows_overlap || planes_overlap { Err(CuError::INVALID_VALUE) } else { Ok(()) }
    }

    fn row(&self, row: u64, plane: u64) -> CuResult<Place> {
        let offset =
            |count: u64, pitch: u64| count.checked_mul(pitch).ok_or(CuError::INVALID_VALUE);
        self.place.offset(offset(row, self.pitch)?)?.offset(offset(plane, self.plane_pitch)?)
    }

    /// Whether the rows of a plane are contiguous.
    fn is_dense(&self, extent: &Extent) -> bool {
        extent.rows <= 1 || self.pitch == extent.row_bytes
    }
}

/// Copies rows.
pub fn copy_rows(
    runtime: &Runtime,
    stream: StreamHandle,
    to: &Rows,
    from: &Rows,
    extent: &Extent,
    until: Until,
) -> CuResult {
    to.check(extent)?;
    from.check(extent)?;
    if extent.row_bytes == 0 {
        return Ok(());
    }
    let (rows, bytes) = if to.is_dense(extent) && from.is_dense(extent) {
        (
            extent.rows.min(1),
            extent.row_bytes.checked_mul(extent.rows).ok_or(CuError::INVALID_VALUE)?,
        )
    } else {
        (extent.rows, extent.row_bytes)
    };
    for plane in 0..extent.planes {
        for row in 0..rows {
            copy(runtime, stream, to.row(row, plane)?, from.row(row, plane)?, bytes, until)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_overlap_are_refused() {
        let check = |pitch, plane_pitch, rows, planes, expect: bool| {
            let extent = Extent { row_bytes: 8, rows, planes };
            let rows = Rows { place: Place::Device(0x1000), pitch, plane_pitch };
            assert_eq!(rows.check(&extent).is_ok(), expect, "{pitch} {plane_pitch}");
        };
        check(8, 0, 4, 1, true);
        check(7, 0, 4, 1, false);
        check(0, 0, 1, 1, true);
        check(16, 64, 4, 2, true);
        check(16, 63, 4, 2, false);
        check(u64::MAX, 0, 2, 1, false);
    }

    #[test]
    fn rows_lie_where_their_pitches_say() {
        let rows = Rows { place: Place::Device(0x1000), pitch: 0x10, plane_pitch: 0x100 };
        assert!(rows.row(3, 2) == Ok(Place::Device(0x1230)));
        assert!(rows.row(u64::MAX, 0) == Err(CuError::INVALID_VALUE));
    }
}
