//! Copies and fills.

use crate::abi::{exports, wide};
use crate::channels::Op;
use crate::driver::Driver;
use crate::status::{self, Status};

impl Driver {
    /// Whether memory of the host is page-locked. A copy from or to other memory is carried out
    /// before the function returns.
    pub fn is_locked(&self, start: u64, bytes: u64) -> bool {
        self.tables().memory.is_locked(start, bytes)
    }

    /// Whether the device may use all of a range.
    pub fn check_device(&self, start: u64, bytes: u64) -> Result<(), Status> {
        let is_live = self.tables().is_live(start, bytes);
        if is_live { Ok(()) } else { Err(status::INVALID_VALUE) }
    }

    fn fill(
        &self,
        to: u64,
        value: u32,
        width: u8,
        count: usize,
        stream: u64,
    ) -> Result<(), Status> {
        let bytes = wide(count).checked_mul(width.into()).ok_or(status::INVALID_VALUE)?;
        if !to.is_multiple_of(width.into()) {
            return Err(status::INVALID_VALUE);
        }
        self.check_device(to, bytes)?;
        self.submit(stream, Op::Fill { to, value, width, count: wide(count) })
    }
}

exports! {
    cuMemcpyHtoDAsync_v2(to: u64, from: *const u8, size: usize, stream: u64) |driver| {
        driver.check_device(to, wide(size))?;
        let start = from.expose_provenance();
        let from = crate::host::span(start, wide(size)).ok_or(status::INVALID_VALUE)?;
        driver.submit(stream, Op::ToDevice { to, from })?;
        if driver.is_locked(wide(start), wide(size)) { Ok(()) } else { driver.synchronize(stream) }
    }
    cuMemcpyDtoHAsync_v2(to: *mut u8, from: u64, size: usize, stream: u64) |driver| {
        driver.check_device(from, wide(size))?;
        let start = to.expose_provenance();
        let to = crate::host::span(start, wide(size)).ok_or(status::INVALID_VALUE)?;
        driver.submit(stream, Op::ToHost { to, from })?;
        if driver.is_locked(wide(start), wide(size)) { Ok(()) } else { driver.synchronize(stream) }
    }
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, size: usize, stream: u64) |driver| {
        let bytes = wide(size);
        driver.check_device(to, bytes)?;
        driver.check_device(from, bytes)?;
        driver.submit(stream, Op::OnDevice { to, from, bytes })
    }
    cuMemsetD8Async(to: u64, value: u8, count: usize, stream: u64) |driver| {
        driver.fill(to, value.into(), 1, count, stream)
    }
    cuMemsetD16Async(to: u64, value: u16, count: usize, stream: u64) |driver| {
        driver.fill(to, value.into(), 2, count, stream)
    }
    cuMemsetD32Async(to: u64, value: u32, count: usize, stream: u64) |driver| {
        driver.fill(to, value, 4, count, stream)
    }
}
