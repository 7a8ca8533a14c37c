//! Exports: copies (CUDA Driver API, "Memory Management"). Those from and to arrays are refused.

use crate::abi::{In, Memory, Plain};
use crate::copy::{Extent, Place, Rows, Until, copy, copy_rows};
use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Side2D {
    x_bytes: usize,
    y: usize,
    kind: u32,
    host: Memory,
    device: u64,
    array: u64,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy2D {
    from: Side2D,
    to: Side2D,
    width_bytes: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Side3D {
    x_bytes: usize,
    y: usize,
    z: usize,
    lod: usize,
    kind: u32,
    host: Memory,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`; `CUDA_MEMCPY3D_PEER` differs in what is reserved here.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy3D {
    from: Side3D,
    to: Side3D,
    width_bytes: usize,
    height: usize,
    depth: usize,
}

// SAFETY: integers and pointers.
unsafe impl Plain for Copy2D {}
// SAFETY: integers and pointers.
unsafe impl Plain for Copy3D {}

const _: () = assert!(size_of::<Copy2D>() == 128 && size_of::<Copy3D>() == 200);

exports_by_default_stream! {
    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(default; to: u64, from: Memory, bytes: usize) {
        one(0, default, Until::Done, bytes, |_| (Place::Device(to), Place::Host(from)))
    }

    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(default; to: Memory, from: u64, bytes: usize) {
        one(0, default, Until::Done, bytes, |_| (Place::Host(to), Place::Device(from)))
    }

    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(default; to: u64, from: u64, bytes: usize) {
        one(0, default, Until::Done, bytes, |_| (Place::Device(to), Place::Device(from)))
    }

    fn cuMemcpy | cuMemcpy_ptds(default; to: u64, from: u64, bytes: usize) {
        one(0, default, Until::Done, bytes, |runtime| (Place::of(runtime, to), Place::of(runtime, from)))
    }

    fn cuMemcpyPeer | cuMemcpyPeer_ptds(
        default; to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize,
    ) {
        one(0, default, Until::Done, bytes, |_| (Place::Device(to), Place::Device(from)))
    }

    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(
        default; to: u64, from: Memory, bytes: usize, stream: u64,
    ) {
        one(stream, default, Until::Submitted, bytes, |_| (Place::Device(to), Place::Host(from)))
    }

    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(
        default; to: Memory, from: u64, bytes: usize, stream: u64,
    ) {
        one(stream, default, Until::Submitted, bytes, |_| (Place::Host(to), Place::Device(from)))
    }

    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(
        default; to: u64, from: u64, bytes: usize, stream: u64,
    ) {
        one(stream, default, Until::Submitted, bytes, |_| (Place::Device(to), Place::Device(from)))
    }

    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(default; to: u64, from: u64, bytes: usize, stream: u64) {
        one(stream, default, Until::Submitted, bytes, |runtime| {
            (Place::of(runtime, to), Place::of(runtime, from))
        })
    }

    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(
        default; to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize, stream: u64,
    ) {
        one(stream, default, Until::Submitted, bytes, |_| (Place::Device(to), Place::Device(from)))
    }

    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(default; request: In<Copy2D>) {
        two_dimensions(&request.get(), 0, default, Until::Done)
    }

    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(default; request: In<Copy2D>) {
        two_dimensions(&request.get(), 0, default, Until::Done)
    }

    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(default; request: In<Copy2D>, stream: u64) {
        two_dimensions(&request.get(), stream, default, Until::Submitted)
    }

    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(default; request: In<Copy3D>) {
        three_dimensions(&request.get(), 0, default, Until::Done)
    }

    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(default; request: In<Copy3D>, stream: u64) {
        three_dimensions(&request.get(), stream, default, Until::Submitted)
    }
}

fn one(
    stream: u64,
    default: DefaultStream,
    until: Until,
    bytes: usize,
    places: impl FnOnce(&Runtime) -> (Place, Place),
) -> CuResult {
    let runtime = runtime::current()?;
    let stream = runtime.streams.resolve(&runtime.session, stream, default)?;
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = places(runtime);
    copy(runtime, stream, to, from, bytes as u64, until)
}

fn two_dimensions(request: &Copy2D, stream: u64, default: DefaultStream, until: Until) -> CuResult {
    let runtime = runtime::current()?;
    let stream = runtime.streams.resolve(&runtime.session, stream, default)?;
    let rows = |side: &Side2D| rows(runtime, side, [side.x_bytes, side.y, 0], [side.pitch, 0]);
    let extent = Extent { row_bytes: request.width_bytes as u64, rows: request.height as u64, planes: 1 };
    copy_rows(runtime, stream, &rows(&request.to)?, &rows(&request.from)?, &extent, until)
}

fn three_dimensions(request: &Copy3D, stream: u64, default: DefaultStream, until: Until) -> CuResult {
    let runtime = runtime::current()?;
    let stream = runtime.streams.resolve(&runtime.session, stream, default)?;
    let rows = |side: &Side3D| {
        let flat = Side2D {
            x_bytes: side.x_bytes,
            y: side.y,
            kind: side.kind,
            host: side.host,
            device: side.device,
            array: side.array,
            pitch: side.pitch,
        };
        rows(runtime, &flat, [side.x_bytes, side.y, side.z], [side.pitch, side.height])
    };
    let extent = Extent {
        row_bytes: request.width_bytes as u64,
        rows: request.height as u64,
        planes: request.depth as u64,
    };
    copy_rows(runtime, stream, &rows(&request.to)?, &rows(&request.from)?, &extent, until)
}

/// Where the rows of one side begin: at row y of plane z, x bytes from the left.
fn rows(runtime: &Runtime, side: &Side2D, at: [usize; 3], [pitch, height]: [usize; 2]) -> CuResult<Rows> {
    const HOST: u32 = 1;
    const DEVICE: u32 = 2;
    const ARRAY: u32 = 3;
    const UNIFIED: u32 = 4;
    let plane_pitch = pitch.checked_mul(height).ok_or(CuError::INVALID_VALUE)?;
    let [x, y, z] = at;
    let row = y.checked_mul(pitch).ok_or(CuError::INVALID_VALUE)?;
    let plane = z.checked_mul(plane_pitch).ok_or(CuError::INVALID_VALUE)?;
    let offset = x.checked_add(row).and_then(|offset| offset.checked_add(plane));
    let offset = offset.ok_or(CuError::INVALID_VALUE)? as u64;
    let place = match side.kind {
        HOST => Place::Host(side.host.offset(offset)),
        DEVICE => Place::Device(side.device.checked_add(offset).ok_or(CuError::INVALID_VALUE)?),
        UNIFIED => Place::of(runtime, side.device.checked_add(offset).ok_or(CuError::INVALID_VALUE)?),
        ARRAY => return Err(CuError::NOT_SUPPORTED),
        _ => return Err(CuError::INVALID_VALUE),
    };
    Ok(Rows { place, pitch: pitch as u64, plane_pitch: plane_pitch as u64 })
}
