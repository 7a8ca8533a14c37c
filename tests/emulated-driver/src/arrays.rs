//! Arrays, and texture and surface objects.
//!
//! An array exists on the GPU while memory is mapped to it. The driver allocates the memory of an
//! array whose mapping is not deferred, which waits for running grids. An array's bytes lie in
//! canonical order ([`partita_model::texture`]).

use crate::abi::{exports, get, narrow, put, wide};
use crate::channels::{Op, Place, Row};
use crate::driver::{Driver, Tables};
use crate::owner::WINDOW;
use crate::status::{self, Status};
use cudarc::driver::sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC,
    CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray_format, CUarrayMapInfo, CUmemOperationType,
    CUmemorytype, CUresourcetype,
};
use partita_device::{DeviceError, Textures};
use partita_model::DeviceAddress;
use partita_model::texture::{
    AddressMode, ArrayKind, ArrayShape, ChannelType, FilterMode, Sampler, TexelFormat, TexelSource,
    TextureSpec,
};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};

/// `CUDA_ARRAY3D_…`
const LAYERED: c_uint = 0x01;
const CUBEMAP: c_uint = 0x04;
const GATHER: c_uint = 0x08;
const DEFERRED: c_uint = 0x80;

/// `CU_TRSF_…`
const READ_AS_INTEGER: c_uint = 1;
const NORMALIZED_COORDINATES: c_uint = 2;
const SRGB: c_uint = 0x10;

/// An array.
struct Array {
    shape: ArrayShape,
    is_mipmapped: bool,
    /// The address of its bytes.
    address: Option<u64>,
    memory: Memory,
}

/// An array's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// The driver's.
    Own,
    /// It comes later.
    Deferred,
    /// What was mapped, by its handle.
    Mapped(u64),
}

/// Arrays, their levels, and objects.
#[derive(Default)]
pub struct Arrays {
    arrays: BTreeMap<u64, Array>,
    /// Handles of levels: the array, and which level.
    levels: BTreeMap<u64, (u64, u32)>,
}

fn failure(error: &DeviceError) -> Status {
    match error {
        DeviceError::OutOfMemory { .. } => status::OUT_OF_MEMORY,
        DeviceError::Unsupported(_) => status::NOT_SUPPORTED,
        _ => status::INVALID_VALUE,
    }
}

fn format_of(format: CUarray_format, channels: c_uint) -> Result<TexelFormat, Status> {
    let channel = ChannelType::from_number(format as u32).ok_or(status::INVALID_VALUE)?;
    TexelFormat::new(channel, channels).ok_or(status::INVALID_VALUE)
}

fn small(size: usize) -> Result<u32, Status> {
    u32::try_from(size).map_err(|_| status::INVALID_VALUE)
}

/// The shape that a description means (CUDA Driver API, `cuArray3DCreate`). Memory can come later
/// to arrays of two and three dimensions and to layers of two (`cuMemMapArrayAsync`).
fn shape_of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, levels: u32) -> Result<ArrayShape, Status> {
    let flags = descriptor.Flags;
    let (width, height, depth) =
        (small(descriptor.Width)?, small(descriptor.Height)?, small(descriptor.Depth)?);
    let has = |flag| flags & flag != 0;
    let (kind, extent) = match (height, depth) {
        (_, 0) if has(LAYERED | CUBEMAP) => return Err(status::INVALID_VALUE),
        (0, _) if has(CUBEMAP) => return Err(status::INVALID_VALUE),
        (_, faces) if has(CUBEMAP) && has(LAYERED) => (ArrayKind::CubeLayers, [height, faces]),
        (_, faces) if has(CUBEMAP) => (ArrayKind::Cube, [height, faces]),
        (0, layers) if has(LAYERED) => (ArrayKind::LineLayers, [1, layers]),
        (_, layers) if has(LAYERED) => (ArrayKind::PlaneLayers, [height, layers]),
        (0, 0) => (ArrayKind::Line, [1, 1]),
        (0, _) => return Err(status::INVALID_VALUE),
        (_, 0) => (ArrayKind::Plane, [height, 1]),
        (_, depth) => (ArrayKind::Volume, [height, depth]),
    };
    let can_defer = matches!(kind, ArrayKind::Plane | ArrayKind::Volume | ArrayKind::PlaneLayers);
    if has(DEFERRED) && !can_defer {
        return Err(status::INVALID_VALUE);
    }
    if flags & GATHER != 0 && (kind != ArrayKind::Plane || levels > 1) {
        return Err(status::INVALID_VALUE);
    }
    let format = format_of(descriptor.Format, descriptor.NumChannels)?;
    let shape = ArrayShape::new(kind, format, [width, extent[0], extent[1]], levels);
    shape.ok_or(status::INVALID_VALUE)
}

impl Driver {
    fn create_array(
        &self,
        descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
        levels: Option<u32>,
    ) -> Result<u64, Status> {
        let descriptor = get(descriptor);
        let shape = shape_of(&descriptor, levels.unwrap_or(1))?;
        let (address, memory) = if descriptor.Flags & DEFERRED == 0 {
            self.wait_for_grids()?;
            (Some(self.make(shape)?), Memory::Own)
        } else {
            (None, Memory::Deferred)
        };
        let handle = self.handle();
        let array = Array { shape, is_mipmapped: levels.is_some(), address, memory };
        self.tables().arrays.arrays.insert(handle, array);
        Ok(handle)
    }

    fn destroy_array(&self, array: u64) -> Result<(), Status> {
        let mut tables = self.tables();
        let gone = tables.arrays.arrays.remove(&array).ok_or(status::INVALID_HANDLE)?;
        tables.arrays.levels.retain(|_, (of, _)| *of != array);
        if let Memory::Mapped(memory) = gone.memory {
            tables.memory.release(memory)?;
        }
        gone.address.map_or(Ok(()), |address| self.unmake(address))
    }

    /// Makes the bytes of an array.
    fn make(&self, shape: ArrayShape) -> Result<u64, Status> {
        let made = self.gpu.call(move |owner| owner.gpu.create_array(WINDOW, &shape))?;
        Ok(made.map_err(|error| failure(&error))?.0)
    }

    fn unmake(&self, address: u64) -> Result<(), Status> {
        let address = DeviceAddress(address);
        let result = self.gpu.call(move |owner| owner.gpu.destroy_array(address))?;
        result.map_err(|error| failure(&error))
    }

    /// Maps memory to an array, or unmaps it.
    fn map_array(&self, info: &CUarrayMapInfo) -> Result<(), Status> {
        // SAFETY: the structure's kind says which part of the union is set; both are handles.
        let array = unsafe { info.resource.array }.addr() as u64;
        let mut tables = self.tables();
        let found = tables.arrays.arrays.get(&array).ok_or(status::INVALID_HANDLE)?;
        let is_known = match info.resourceType {
            CUresourcetype::CU_RESOURCE_TYPE_ARRAY => !found.is_mipmapped,
            CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => found.is_mipmapped,
            _ => false,
        };
        if !is_known || info.flags != 0 || info.offset != 0 || info.deviceBitMask != 1 {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: numbers; the only kind of handle.
        let memory = unsafe { info.memHandle.memHandle };
        let (shape, address, now) = (found.shape, found.address, found.memory);
        let (address, memory) = match (info.memOperationType, now) {
            (CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP, Memory::Deferred) => {
                if !tables.memory.is_for_arrays(memory, shape.bytes()) {
                    return Err(status::INVALID_VALUE);
                }
                let made = self.make(shape)?;
                tables.memory.hold(memory);
                (Some(made), Memory::Mapped(memory))
            }
            (CUmemOperationType::CU_MEM_OPERATION_TYPE_UNMAP, Memory::Mapped(memory)) => {
                tables.memory.release(memory)?;
                address.map_or(Ok(()), |address| self.unmake(address))?;
                (None, Memory::Deferred)
            }
            _ => return Err(status::INVALID_VALUE),
        };
        if let Some(found) = tables.arrays.arrays.get_mut(&array) {
            (found.address, found.memory) = (address, memory);
        }
        Ok(())
    }

    fn create_object(&self, spec: TextureSpec) -> Result<u64, Status> {
        let made = self.gpu.call(move |owner| owner.gpu.create_texture(WINDOW, &spec))?;
        made.map_err(|error| failure(&error))
    }

    fn destroy_object(&self, object: u64) -> Result<(), Status> {
        let result = self.gpu.call(move |owner| owner.gpu.destroy_texture(WINDOW, object))?;
        result.map_err(|_| status::INVALID_VALUE)
    }
}

impl Tables {
    fn requirements(&self, array: u64) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, Status> {
        let found = self.arrays.arrays.get(&array).ok_or(status::INVALID_HANDLE)?;
        if found.memory == Memory::Own {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: a structure of numbers, in which CUDA writes zeros.
        let mut wanted: CUDA_ARRAY_MEMORY_REQUIREMENTS = unsafe { std::mem::zeroed() };
        wanted.alignment = 64 << 10;
        wanted.size = narrow(found.shape.bytes().next_multiple_of(64 << 10).min(u64::MAX >> 1));
        Ok(wanted)
    }

    /// An array, or a level of one, by its handle: the array's shape, its address, the level.
    fn level(&self, handle: u64) -> Result<(ArrayShape, u64, u32), Status> {
        let (array, level) = self.arrays.levels.get(&handle).copied().unwrap_or((handle, 0));
        let found = self.arrays.arrays.get(&array).ok_or(status::INVALID_HANDLE)?;
        let address = found.address.ok_or(status::INVALID_VALUE)?;
        Ok((found.shape, address, level))
    }

    /// The texels that a description means; part of the levels where there is a view.
    fn source(
        &self,
        resource: &CUDA_RESOURCE_DESC,
        view: Option<CUDA_RESOURCE_VIEW_DESC>,
    ) -> Result<TexelSource, Status> {
        if resource.flags != 0 {
            return Err(status::INVALID_VALUE);
        }
        let texels = |address: u64, bytes: u64| {
            // CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT
            let good = address.is_multiple_of(512) && self.is_live(address, bytes);
            if good { Ok(DeviceAddress(address)) } else { Err(status::INVALID_VALUE) }
        };
        match resource.resType {
            CUresourcetype::CU_RESOURCE_TYPE_ARRAY => {
                // SAFETY: the kind says which part of the union is set.
                let handle = unsafe { resource.res.array }.hArray.addr() as u64;
                let (_, array, level) = self.level(handle)?;
                let array = DeviceAddress(array);
                Ok(TexelSource::Array { array, first_level: level, levels: 1 })
            }
            CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
                // SAFETY: as above.
                let handle = unsafe { resource.res.mipmap }.hMipmappedArray.addr() as u64;
                let (shape, array, _) = self.level(handle)?;
                let (first, last) = view.map_or((0, shape.levels.saturating_sub(1)), |view| {
                    (view.firstMipmapLevel, view.lastMipmapLevel)
                });
                let levels = last.checked_sub(first).ok_or(status::INVALID_VALUE)? + 1;
                Ok(TexelSource::Array { array: DeviceAddress(array), first_level: first, levels })
            }
            CUresourcetype::CU_RESOURCE_TYPE_LINEAR => {
                // SAFETY: as above.
                let linear = unsafe { resource.res.linear };
                let format = format_of(linear.format, linear.numChannels)?;
                let address = texels(linear.devPtr, wide(linear.sizeInBytes))?;
                let width = small(linear.sizeInBytes / format.bytes() as usize)?;
                Ok(TexelSource::Linear { address, format, width })
            }
            CUresourcetype::CU_RESOURCE_TYPE_PITCH2D => {
                // SAFETY: as above.
                let pitched = unsafe { resource.res.pitch2D };
                let format = format_of(pitched.format, pitched.numChannels)?;
                let extent = [small(pitched.width)?, small(pitched.height)?];
                let pitch = wide(pitched.pitchInBytes);
                // CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT
                if !pitch.is_multiple_of(32) {
                    return Err(status::INVALID_VALUE);
                }
                let address = DeviceAddress(pitched.devPtr);
                let source = TexelSource::Pitched { address, format, extent, pitch };
                let bytes = source.range().map_or(0, |(_, bytes)| bytes);
                texels(pitched.devPtr, bytes).map(|_| source)
            }
        }
    }

    /// The rows of one end of a copy between boxes.
    fn rows(&self, end: &End, [width, height, depth]: [u64; 3]) -> Result<Vec<Place>, Status> {
        let [x, y, z] = end.at;
        let planes = || (0..depth).flat_map(move |k| (0..height).map(move |j| (j, k)));
        if end.kind == CUmemorytype::CU_MEMORYTYPE_ARRAY {
            let (shape, address, level) = self.level(end.array)?;
            let texel = u64::from(shape.format.bytes());
            let [columns, lines, all] = shape.level_extent(level).map(u64::from);
            let row = columns * texel;
            let is_whole = [x, width].iter().all(|bytes| bytes.is_multiple_of(texel));
            if !is_whole || x + width > row || y + height > lines || z + depth > all {
                return Err(status::INVALID_VALUE);
            }
            let start = address + shape.level_offset(level);
            let place = |(j, k)| Place::Device(start + ((z + k) * lines + y + j) * row + x);
            return Ok(planes().map(place).collect());
        }
        if end.pitch < x + width || end.height < y + height {
            return Err(status::INVALID_VALUE);
        }
        let at = |(j, k): (u64, u64)| end.start + ((z + k) * end.height + y + j) * end.pitch + x;
        let place = |at| match end.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST if self.memory.is_locked(at, width) => {
                crate::host::span(narrow(at), width).map(Place::Host).ok_or(status::INVALID_VALUE)
            }
            CUmemorytype::CU_MEMORYTYPE_DEVICE if self.is_live(at, width) => Ok(Place::Device(at)),
            _ => Err(status::INVALID_VALUE),
        };
        planes().map(at).map(place).collect()
    }
}

/// One end of a copy between boxes.
struct End {
    at: [u64; 3],
    kind: CUmemorytype,
    start: u64,
    array: u64,
    pitch: u64,
    height: u64,
}

/// The two ends of a copy between boxes: from, to.
fn ends(copy: &CUDA_MEMCPY3D) -> [End; 2] {
    let start = |kind, host: usize, device: u64| {
        if kind == CUmemorytype::CU_MEMORYTYPE_HOST { wide(host) } else { device }
    };
    [
        End {
            at: [copy.srcXInBytes, copy.srcY, copy.srcZ].map(wide),
            kind: copy.srcMemoryType,
            start: start(copy.srcMemoryType, copy.srcHost.expose_provenance(), copy.srcDevice),
            array: copy.srcArray.addr() as u64,
            pitch: wide(copy.srcPitch),
            height: wide(copy.srcHeight),
        },
        End {
            at: [copy.dstXInBytes, copy.dstY, copy.dstZ].map(wide),
            kind: copy.dstMemoryType,
            start: start(copy.dstMemoryType, copy.dstHost.expose_provenance(), copy.dstDevice),
            array: copy.dstArray.addr() as u64,
            pitch: wide(copy.dstPitch),
            height: wide(copy.dstHeight),
        },
    ]
}

/// The sampling that a description means.
fn sampler_of(description: &CUDA_TEXTURE_DESC) -> Result<Sampler, Status> {
    let mode = |mode| AddressMode::from_number(mode as u32).ok_or(status::INVALID_VALUE);
    let filter = |mode| FilterMode::from_number(mode as u32).ok_or(status::INVALID_VALUE);
    let has = |flag| description.flags & flag != 0;
    let [x, y, z] = description.addressMode;
    Ok(Sampler {
        address: [mode(x)?, mode(y)?, mode(z)?],
        filter: filter(description.filterMode)?,
        level_filter: filter(description.mipmapFilterMode)?,
        integers: has(READ_AS_INTEGER),
        normalized: has(NORMALIZED_COORDINATES),
        srgb: has(SRGB),
        level_bias: description.mipmapLevelBias.into(),
        level_min: description.minMipmapLevelClamp.into(),
        level_max: description.maxMipmapLevelClamp.into(),
        border: description.borderColor.map(Into::into),
    })
}

exports! {
    cuArray3DCreate_v2(array: *mut u64, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR) |driver| {
        put(array, driver.create_array(descriptor, None)?);
        Ok(())
    }
    cuArrayDestroy(array: u64) frees |driver| { driver.destroy_array(array) }
    cuArrayGetMemoryRequirements(wanted: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: u64,
        _device: c_int) |driver| {
        put(wanted, driver.tables().requirements(array)?);
        Ok(())
    }
    cuMipmappedArrayCreate(array: *mut u64, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR,
        levels: c_uint) |driver| {
        put(array, driver.create_array(descriptor, Some(levels))?);
        Ok(())
    }
    cuMipmappedArrayDestroy(array: u64) frees |driver| { driver.destroy_array(array) }
    cuMipmappedArrayGetLevel(level: *mut u64, array: u64, number: c_uint) |driver| {
        let handle = driver.handle();
        let mut tables = driver.tables();
        let found = tables.arrays.arrays.get(&array).ok_or(status::INVALID_HANDLE)?;
        if number >= found.shape.levels {
            return Err(status::INVALID_VALUE);
        }
        tables.arrays.levels.insert(handle, (array, number));
        put(level, handle);
        Ok(())
    }
    cuMipmappedArrayGetMemoryRequirements(wanted: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: u64,
        _device: c_int) |driver| {
        put(wanted, driver.tables().requirements(array)?);
        Ok(())
    }
    cuMemMapArrayAsync(list: *mut CUarrayMapInfo, count: c_uint, _stream: u64) |driver| {
        // Nothing of the stream can use the array before, so the change need not wait for it.
        let mut infos = (0..count as usize).map(|at| get(list.cast_const().wrapping_add(at)));
        infos.try_for_each(|info| driver.map_array(&info))
    }
    cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: u64) |driver| {
        let copy = get(copy);
        let extent = [copy.WidthInBytes, copy.Height, copy.Depth].map(wide);
        let [from, to] = ends(&copy);
        let tables = driver.tables();
        let (from, to) = (tables.rows(&from, extent)?, tables.rows(&to, extent)?);
        drop(tables);
        let rows = to.into_iter().zip(from).map(|(to, from)| Row { to, from, bytes: extent[0] });
        driver.submit(stream, Op::Rows(rows.collect()))
    }
    cuTexObjectCreate(object: *mut u64, resource: *const CUDA_RESOURCE_DESC,
        sampler: *const CUDA_TEXTURE_DESC, view: *const CUDA_RESOURCE_VIEW_DESC) |driver| {
        let view = if view.is_null() { None } else { Some(get(view)) };
        let source = driver.tables().source(&get(resource), view)?;
        if view.is_some() && !matches!(source, TexelSource::Array { .. }) {
            return Err(status::INVALID_VALUE);
        }
        let sampler = Some(sampler_of(&get(sampler))?);
        put(object, driver.create_object(TextureSpec { source, sampler })?);
        Ok(())
    }
    cuTexObjectDestroy(object: u64) |driver| { driver.destroy_object(object) }
    cuSurfObjectCreate(object: *mut u64, resource: *const CUDA_RESOURCE_DESC) |driver| {
        let source = driver.tables().source(&get(resource), None)?;
        if !matches!(source, TexelSource::Array { .. }) {
            return Err(status::INVALID_VALUE);
        }
        put(object, driver.create_object(TextureSpec { source, sampler: None })?);
        Ok(())
    }
    cuSurfObjectDestroy(object: u64) |driver| { driver.destroy_object(object) }
}
