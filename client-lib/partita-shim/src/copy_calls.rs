//! Exports: copies (CUDA Driver API, "Memory Management").
//!
//! The bytes of a side that is an array lie in the array's canonical order: rows without gaps.

use crate::abi::{In, Memory, Plain};
use crate::array::Array;
use crate::copy::{Extent, Place, Rows, Until, copy, copy_rows};
use crate::entry::exports_by_default_stream;
use crate::error::{CuError, CuResult};
use crate::graph::action::Action;
use crate::graph::capture::Target;
use crate::runtime::{self, Runtime};
use crate::stream::DefaultStream;
use partita_client::StreamHandle;

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
    /// The address, if the side is in the program's memory.
    pub host: Memory,
    /// The address, if the side is in device memory or the address decides.
    pub device: u64,
    /// Which it is, if it is an array.
    pub array: u64,
    reserved: u64,
    /// From one row to the next, in bytes.
    pub pitch: usize,
    /// Rows from one plane to the next.
    pub height: usize,
}

/// `CUDA_MEMCPY3D`; `CUDA_MEMCPY3D_PEER` differs in what is reserved here.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy3D {
    /// The source.
    pub from: Side3D,
    /// The target.
    pub to: Side3D,
    /// Bytes of a row.
    pub width_bytes: usize,
    /// Rows of a plane.
    pub height: usize,
    /// Planes.
    pub depth: usize,
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
        one(0, default, Until::Done, bytes, |runtime| (Place::of(runtime, to), Place::of(runtime,
            from)))
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
        default; to: u64, _to_context: u64, from: u64, _from_context: u64, bytes: usize,
        stream: u64,
    ) {
        one(stream, default, Until::Submitted, bytes, |_| (Place::Device(to), Place::Device(from)))
    }

    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(
        default; to: u64, to_offset: usize, from: Memory, bytes: usize,
    ) {
        let to = line(to, to_offset, bytes)?;
        one(0, default, Until::Done, bytes, |_| (to, Place::Host(from)))
    }

    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(
        default; to: Memory, from: u64, from_offset: usize, bytes: usize,
    ) {
        let from = line(from, from_offset, bytes)?;
        one(0, default, Until::Done, bytes, |_| (Place::Host(to), from))
    }

    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(
        default; to: u64, to_offset: usize, from: u64, bytes: usize,
    ) {
        let to = line(to, to_offset, bytes)?;
        one(0, default, Until::Done, bytes, |_| (to, Place::Device(from)))
    }

    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(
        default; to: u64, from: u64, from_offset: usize, bytes: usize,
    ) {
        let from = line(from, from_offset, bytes)?;
        one(0, default, Until::Done, bytes, |_| (Place::Device(to), from))
    }

    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(
        default; to: u64, to_offset: usize, from: u64, from_offset: usize, bytes: usize,
    ) {
        let (to, from) = (line(to, to_offset, bytes)?, line(from, from_offset, bytes)?);
        one(0, default, Until::Done, bytes, |_| (to, from))
    }

    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(
        default; to: u64, to_offset: usize, from: Memory, bytes: usize, stream: u64,
    ) {
        let to = line(to, to_offset, bytes)?;
        one(stream, default, Until::Submitted, bytes, |_| (to, Place::Host(from)))
    }

    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(
        default; to: Memory, from: u64, from_offset: usize, bytes: usize, stream: u64,
    ) {
        let from = line(from, from_offset, bytes)?;
        one(stream, default, Until::Submitted, bytes, |_| (Place::Host(to), from))
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

    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(default; request: In<Copy3D>) {
        three_dimensions(&request.get(), 0, default, Until::Done)
    }

    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(default; request: In<Copy3D>, stream: u64) {
        three_dimensions(&request.get(), stream, default, Until::Submitted)
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
    let runtime = runtime::of_stream(stream)?;
    let target = target(runtime, stream, default, until)?;
    if bytes == 0 {
        return Ok(());
    }
    let (to, from) = places(runtime);
    match target {
        Target::Stream(stream) => copy(runtime, stream, to, from, bytes as u64, until),
        Target::Capture(stream) => {
            let request = Copy3D::line(to, from, bytes);
            runtime.captures.add(&runtime.graphs, stream, Action::Copy(request))
        }
    }
}

/// The target of a copy. A synchronous copy cannot be captured.
fn target(
    runtime: &Runtime,
    stream: u64,
    default: DefaultStream,
    until: Until,
) -> CuResult<Target> {
    match until {
        Until::Done => runtime.outside_capture(stream, default).map(Target::Stream),
        Until::Submitted => runtime.target(stream, default),
    }
}

/// A place in an array of one dimension, `offset` bytes from its start.
fn line(array: u64, offset: usize, bytes: usize) -> CuResult<Place> {
    let array = runtime::of(array)?.arrays.get(array)?;
    let (offset, end) = (offset as u64, (offset as u64).checked_add(bytes as u64));
    if end.is_none_or(|end| end > array.shape.bytes()) {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(Place::Device(array.address + offset))
}

fn two_dimensions(request: &Copy2D, stream: u64, default: DefaultStream, until: Until) -> CuResult {
    let side = |side: &Side2D| Side3D {
        x_bytes: side.x_bytes,
        y: side.y,
        z: 0,
        lod: 0,
        kind: side.kind,
        host: side.host,
        device: side.device,
        array: side.array,
        reserved: 0,
        pitch: side.pitch,
        height: 0,
    };
    let (from, to) = (side(&request.from), side(&request.to));
    let request =
        Copy3D { from, to, width_bytes: request.width_bytes, height: request.height, depth: 1 };
    three_dimensions(&request, stream, default, until)
}

fn three_dimensions(
    request: &Copy3D,
    stream: u64,
    default: DefaultStream,
    until: Until,
) -> CuResult {
    let runtime = runtime::of_stream(stream)?;
    match target(runtime, stream, default, until)? {
        Target::Stream(stream) => copy_3d(runtime, request, stream, until),
        Target::Capture(stream) => {
            request.check(runtime)?;
            runtime.captures.add(&runtime.graphs, stream, Action::Copy(*request))
        }
    }
}

/// Copies a box.
pub fn copy_3d(
    runtime: &Runtime,
    request: &Copy3D,
    stream: StreamHandle,
    until: Until,
) -> CuResult {
    let extent = request.extent();
    let [to, from] = request.check(runtime)?;
    copy_rows(runtime, stream, &to, &from, &extent, until)
}

impl Copy3D {
    /// A copy of `bytes` bytes without gaps.
    pub fn line(to: Place, from: Place, bytes: usize) -> Self {
        let side = |place: Place| match place {
            Place::Host(host) => Side3D { host, ..Side3D::at(HOST, [0; 3], [bytes, 1]) },
            Place::Device(device) => Side3D { device, ..Side3D::at(DEVICE, [0; 3], [bytes, 1]) },
        };
        Copy3D { from: side(from), to: side(to), width_bytes: bytes, height: 1, depth: 1 }
    }

    fn extent(&self) -> Extent {
        Extent {
            row_bytes: self.width_bytes as u64,
            rows: self.height as u64,
            planes: self.depth as u64,
        }
    }

    /// The begins of the rows on both sides: destination, source.
    pub fn check(&self, runtime: &Runtime) -> CuResult<[Rows; 2]> {
        let extent = self.extent();
        Ok([rows(runtime, &self.to, &extent)?, rows(runtime, &self.from, &extent)?])
    }
}

impl Side3D {
    /// A side of a kind that begins x bytes, y rows and z planes from the start, with a pitch in
    /// bytes and a height in rows.
    pub fn at(kind: u32, [x_bytes, y, z]: [usize; 3], [pitch, height]: [usize; 2]) -> Self {
        let (host, device, array) = (Memory::at(0), 0, 0);
        Side3D { x_bytes, y, z, lod: 0, kind, host, device, array, reserved: 0, pitch, height }
    }
}

const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// `CU_MEMORYTYPE_ARRAY`.
pub const ARRAY: u32 = 3;
/// `CU_MEMORYTYPE_UNIFIED`: the address decides.
pub const UNIFIED: u32 = 4;

/// The first bytes of one side's rows: row y of plane z, `x_bytes` bytes from the left.
fn rows(runtime: &Runtime, side: &Side3D, extent: &Extent) -> CuResult<Rows> {
    let (at, [pitch, height]) = ([side.x_bytes, side.y, side.z], [side.pitch, side.height]);
    if side.kind == ARRAY {
        return rows_of_array(&*runtime.arrays.get(side.array)?, at, extent);
    }
    let plane_pitch = pitch.checked_mul(height).ok_or(CuError::INVALID_VALUE)?;
    let [x, y, z] = at;
    let row = y.checked_mul(pitch).ok_or(CuError::INVALID_VALUE)?;
    let plane = z.checked_mul(plane_pitch).ok_or(CuError::INVALID_VALUE)?;
    let offset = x.checked_add(row).and_then(|offset| offset.checked_add(plane));
    let offset = offset.ok_or(CuError::INVALID_VALUE)? as u64;
    let place = match side.kind {
        HOST => Place::Host(side.host.offset(offset)),
        DEVICE => Place::Device(side.device.checked_add(offset).ok_or(CuError::INVALID_VALUE)?),
        UNIFIED => {
            Place::of(runtime, side.device.checked_add(offset).ok_or(CuError::INVALID_VALUE)?)
        }
        _ => return Err(CuError::INVALID_VALUE),
    };
    Ok(Rows { place, pitch: pitch as u64, plane_pitch: plane_pitch as u64 })
}

/// The first bytes of the rows of a box in an array. The box must lie inside the array.
fn rows_of_array(array: &Array, at: [usize; 3], extent: &Extent) -> CuResult<Rows> {
    let [x, y, z] = at.map(|number| number as u64);
    let [_, height, depth] = array.shape.extent.map(u64::from);
    let pitch = array.row_bytes();
    let inside =
        |from: u64, count: u64, all: u64| from.checked_add(count).is_some_and(|end| end <= all);
    let within = inside(x, extent.row_bytes, pitch)
        && inside(y, extent.rows, height)
        && inside(z, extent.planes, depth);
    if !within {
        return Err(CuError::INVALID_VALUE);
    }
    let plane_pitch = pitch * height;
    let place = Place::Device(array.address + x + y * pitch + z * plane_pitch);
    Ok(Rows { place, pitch, plane_pitch })
}
