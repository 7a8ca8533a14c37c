//! Exports: memsets (CUDA Driver API, "Memory Management").
//!
//! Every call returns when its fill is submitted. CUDA's synchronous memsets are asynchronous to
//! the host as well, except for memory that the program can access (CUDA Driver API, "API
//! synchronization behavior").

use crate::copy::Until;
use crate::devices;
use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::capture::Target;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use partita_client::StreamHandle;
use partita_model::{DeviceAddress, MemoryAccess};

exports_by_default_stream! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(default; to: u64, value: u8, count: usize) {
        fill(to, u32::from(value), 1, count, 0, default, Until::Done)
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(default; to: u64, value: u16, count: usize) {
        fill(to, u32::from(value), 2, count, 0, default, Until::Done)
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(default; to: u64, value: u32, count: usize) {
        fill(to, value, 4, count, 0, default, Until::Done)
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(
        default; to: u64, value: u8, count: usize, stream: u64,
    ) {
        fill(to, u32::from(value), 1, count, stream, default, Until::Submitted)
    }

    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(
        default; to: u64, value: u16, count: usize, stream: u64,
    ) {
        fill(to, u32::from(value), 2, count, stream, default, Until::Submitted)
    }

    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(
        default; to: u64, value: u32, count: usize, stream: u64,
    ) {
        fill(to, value, 4, count, stream, default, Until::Submitted)
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        default; to: u64, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        submit(Fill { to, pitch, value: u32::from(value), element: 1, width, height }, 0, default,
            Until::Done)
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        default; to: u64, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        submit(Fill { to, pitch, value: u32::from(value), element: 2, width, height }, 0, default,
            Until::Done)
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        default; to: u64, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        submit(Fill { to, pitch, value, element: 4, width, height }, 0, default, Until::Done)
    }

    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        default; to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64,
    ) {
        submit(Fill { to, pitch, value: u32::from(value), element: 1, width, height }, stream,
            default, Until::Submitted)
    }

    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        default; to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64,
    ) {
        submit(Fill { to, pitch, value: u32::from(value), element: 2, width, height }, stream,
            default, Until::Submitted)
    }

    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        default; to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64,
    ) {
        submit(Fill { to, pitch, value, element: 4, width, height }, stream, default,
            Until::Submitted)
    }
}

/// A fill: rows of `width` elements, `pitch` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill {
    /// The destination.
    pub to: u64,
    /// The distance between rows in bytes.
    pub pitch: usize,
    /// What, in its lowest bytes.
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u8,
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

fn fill(
    to: u64,
    value: u32,
    element: u8,
    count: usize,
    stream: u64,
    default: DefaultStream,
    until: Until,
) -> CuResult {
    submit(Fill { to, pitch: 0, value, element, width: count, height: 1 }, stream, default, until)
}

fn submit(fill: Fill, stream: u64, default: DefaultStream, until: Until) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    match runtime.target(stream, default)? {
        Target::Stream(stream) => {
            fill_rows(runtime, &fill, stream)?;
            if until == Until::Done && runtime.is_shared_address(fill.to) {
                runtime.session.synchronize(Some(stream))?;
            }
            Ok(())
        }
        Target::Capture(stream) => {
            fill.check()?;
            runtime.captures.add(&runtime.graphs, stream, Action::Fill(fill))
        }
    }
}

impl Fill {
    /// CUDA's checks; returns the bytes of a row.
    pub fn check(&self) -> CuResult<usize> {
        let row_bytes =
            self.width.checked_mul(usize::from(self.element)).ok_or(CuError::INVALID_VALUE)?;
        if self.height > 1 && self.pitch < row_bytes {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(row_bytes)
    }
}

/// Fills rows.
pub fn fill_rows(runtime: &Runtime, rows: &Fill, stream: StreamHandle) -> CuResult {
    let row_bytes = rows.check()?;
    if devices::several_are_open()
        && let Some(of) = devices::holding(rows.to).filter(|of| of.index != runtime.index)
    {
        // Another device's memory: when this stream is done, and before anything that comes later.
        runtime.session.synchronize(Some(stream))?;
        fill_rows(of, rows, StreamHandle::LEGACY)?;
        return Ok(of.session.synchronize(Some(StreamHandle::LEGACY))?);
    }
    let fill = |to: u64, count: usize| -> CuResult {
        if count == 0 {
            return Ok(());
        }
        let bytes = (count as u64).saturating_mul(rows.element.into());
        if !runtime.vmm.permits(to, bytes, MemoryAccess::ReadWrite) {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(runtime.session.fill(
            stream,
            DeviceAddress(to),
            rows.value,
            rows.element,
            count as u64,
        )?)
    };
    if rows.pitch == row_bytes {
        return fill(rows.to, rows.width.checked_mul(rows.height).ok_or(CuError::INVALID_VALUE)?);
    }
    for row in 0..rows.height as u64 {
        let offset = row.checked_mul(rows.pitch as u64).ok_or(CuError::INVALID_VALUE)?;
        fill(rows.to.checked_add(offset).ok_or(CuError::INVALID_VALUE)?, rows.width)?;
    }
    Ok(())
}
