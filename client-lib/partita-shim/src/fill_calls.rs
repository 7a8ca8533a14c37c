//! Exports: memsets (CUDA Driver API, "Memory Management").
//!
//! All of them return when the fill is submitted; CUDA's synchronous ones are asynchronous to the host as well.

use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::runtime;
use crate::stream::DefaultStream;
use partita_model::DeviceAddress;

exports_by_default_stream! {
    fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(default; to: u64, value: u8, count: usize) {
        fill(to, u32::from(value), 1, count, 0, default)
    }

    fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(default; to: u64, value: u16, count: usize) {
        fill(to, u32::from(value), 2, count, 0, default)
    }

    fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(default; to: u64, value: u32, count: usize) {
        fill(to, value, 4, count, 0, default)
    }

    fn cuMemsetD8Async | cuMemsetD8Async_ptsz(default; to: u64, value: u8, count: usize, stream: u64) {
        fill(to, u32::from(value), 1, count, stream, default)
    }

    fn cuMemsetD16Async | cuMemsetD16Async_ptsz(default; to: u64, value: u16, count: usize, stream: u64) {
        fill(to, u32::from(value), 2, count, stream, default)
    }

    fn cuMemsetD32Async | cuMemsetD32Async_ptsz(default; to: u64, value: u32, count: usize, stream: u64) {
        fill(to, value, 4, count, stream, default)
    }

    fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(
        default; to: u64, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        fill_rows(&Rows { to, pitch, width, height }, u32::from(value), 1, 0, default)
    }

    fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(
        default; to: u64, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        fill_rows(&Rows { to, pitch, width, height }, u32::from(value), 2, 0, default)
    }

    fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(
        default; to: u64, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        fill_rows(&Rows { to, pitch, width, height }, value, 4, 0, default)
    }

    fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(
        default; to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64,
    ) {
        fill_rows(&Rows { to, pitch, width, height }, u32::from(value), 1, stream, default)
    }

    fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(
        default; to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: u64,
    ) {
        fill_rows(&Rows { to, pitch, width, height }, u32::from(value), 2, stream, default)
    }

    fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(
        default; to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64,
    ) {
        fill_rows(&Rows { to, pitch, width, height }, value, 4, stream, default)
    }
}

/// Rows of `width` elements, `pitch` bytes apart.
struct Rows {
    to: u64,
    pitch: usize,
    width: usize,
    height: usize,
}

fn fill(to: u64, value: u32, width: u8, count: usize, stream: u64, default: DefaultStream) -> CuResult {
    let runtime = runtime::current()?;
    let stream = runtime.streams.resolve(&runtime.session, stream, default)?;
    if count == 0 {
        return Ok(());
    }
    Ok(runtime.session.fill(stream, DeviceAddress(to), value, width, count as u64)?)
}

fn fill_rows(rows: &Rows, value: u32, width: u8, stream: u64, default: DefaultStream) -> CuResult {
    let row_bytes = rows.width.checked_mul(usize::from(width)).ok_or(CuError::INVALID_VALUE)?;
    if rows.height > 1 && rows.pitch < row_bytes {
        return Err(CuError::INVALID_VALUE);
    }
    if rows.pitch == row_bytes {
        let count = rows.width.checked_mul(rows.height).ok_or(CuError::INVALID_VALUE)?;
        return fill(rows.to, value, width, count, stream, default);
    }
    for row in 0..rows.height as u64 {
        let offset = row.checked_mul(rows.pitch as u64).ok_or(CuError::INVALID_VALUE)?;
        let to = rows.to.checked_add(offset).ok_or(CuError::INVALID_VALUE)?;
        fill(to, value, width, rows.width, stream, default)?;
    }
    Ok(())
}
