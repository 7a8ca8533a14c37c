//! Arrays, texture and surface objects.
//!
//! An array of two or three dimensions, or of layers of two, is made without memory
//! (`CUDA_ARRAY3D_DEFERRED_MAPPING`), and an operation of a stream gives it memory. The driver
//! itself allocates nothing, because its allocation might wait for the device. Arrays of one
//! dimension and cubes get no memory this way (CUDA Driver API, `cuMemMapArrayAsync`): the driver
//! allocates theirs ([`MemoryBy`]).

use super::context::size;
use super::table::Handle;
use super::{Context, Failure, Physical, Pinned, Stream, call};
use cudarc::driver::sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEMCPY3D, CUDA_RESOURCE_DESC,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC,
    CUaddress_mode, CUarray_format, CUarrayMapInfo, CUarrayMapInfo_st__bindgen_ty_1,
    CUarrayMapInfo_st__bindgen_ty_3, CUarraySparseSubresourceType, CUfilter_mode, CUmemHandleType,
    CUmemOperationType, CUmemorytype, CUresourcetype,
};
use partita_model::texture::{
    AddressMode, ArrayKind, ArrayShape, ChannelType, FilterMode, Sampler, TexelSource,
};
use std::ffi::c_uint;
use std::sync::Arc;

/// `CUDA_ARRAY3D_…`
const LAYERED: c_uint = 0x01;
const SURFACE: c_uint = 0x02;
const CUBEMAP: c_uint = 0x04;
const GATHER: c_uint = 0x08;
const DEFERRED: c_uint = 0x80;

/// `CU_TRSF_…`
const READ_AS_INTEGER: c_uint = 1;
const NORMALIZED_COORDINATES: c_uint = 2;
const SRGB: c_uint = 0x10;

/// An array with its memory. It is kept until [`Array::destroy`].
#[derive(Debug)]
pub struct Array {
    context: Arc<Context>,
    raw: Handle,
    /// The array of each level. An array without a mip chain is its own only level.
    levels: Vec<Handle>,
    is_mipmapped: bool,
    /// `None` where the driver has allocated it.
    memory: Option<Physical>,
}

/// What gives an array its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryBy {
    /// An operation of a stream, for which nothing waits.
    Stream,
    /// The driver, when the array is made. The call may wait for the device.
    Driver,
}

impl MemoryBy {
    /// What gives arrays of a kind their memory, where the driver supports both.
    #[must_use]
    pub const fn of(kind: ArrayKind) -> MemoryBy {
        match kind {
            ArrayKind::Plane | ArrayKind::Volume | ArrayKind::PlaneLayers => MemoryBy::Stream,
            ArrayKind::Line | ArrayKind::LineLayers | ArrayKind::Cube | ArrayKind::CubeLayers => {
                MemoryBy::Driver
            }
        }
    }
}

/// Texels of an array: the level, and the byte in a row, row, and plane or layer that come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place3 {
    /// The level.
    pub level: u32,
    /// Byte, row, plane.
    pub at: [u64; 3],
}

/// One end of a copy of a box of bytes. In linear memory its rows follow one another without gaps.
#[derive(Clone, Copy, Debug)]
pub enum BoxEnd<'a> {
    /// Page-locked memory, from this byte on.
    Host(&'a Pinned, usize),
    /// Device memory.
    Memory(u64),
    /// An array.
    Array(&'a Array, Place3),
}

const fn format_of(channel: ChannelType) -> CUarray_format {
    match channel {
        ChannelType::U8 => CUarray_format::CU_AD_FORMAT_UNSIGNED_INT8,
        ChannelType::U16 => CUarray_format::CU_AD_FORMAT_UNSIGNED_INT16,
        ChannelType::U32 => CUarray_format::CU_AD_FORMAT_UNSIGNED_INT32,
        ChannelType::S8 => CUarray_format::CU_AD_FORMAT_SIGNED_INT8,
        ChannelType::S16 => CUarray_format::CU_AD_FORMAT_SIGNED_INT16,
        ChannelType::S32 => CUarray_format::CU_AD_FORMAT_SIGNED_INT32,
        ChannelType::F16 => CUarray_format::CU_AD_FORMAT_HALF,
        ChannelType::F32 => CUarray_format::CU_AD_FORMAT_FLOAT,
    }
}

impl Array {
    /// Makes one with memory. What it holds may have been anybody's.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        context: &Arc<Context>,
        shape: &ArrayShape,
        stream: &Stream,
        memory: MemoryBy,
    ) -> Result<Array, Failure> {
        let [width, height, depth] = shape.extent;
        let (height, depth, kind) = match shape.kind {
            ArrayKind::Line => (0, 0, 0),
            ArrayKind::Plane => (height, 0, 0),
            ArrayKind::Volume => (height, depth, 0),
            ArrayKind::LineLayers => (0, depth, LAYERED),
            ArrayKind::PlaneLayers => (height, depth, LAYERED),
            ArrayKind::Cube => (height, depth, CUBEMAP),
            ArrayKind::CubeLayers => (height, depth, CUBEMAP | LAYERED),
        };
        let gather = if shape.kind == ArrayKind::Plane { GATHER } else { 0 };
        let later = if memory == MemoryBy::Stream { DEFERRED } else { 0 };
        let mut descriptor = CUDA_ARRAY3D_DESCRIPTOR {
            Width: width as usize,
            Height: height as usize,
            Depth: depth as usize,
            Format: format_of(shape.format.channel()),
            NumChannels: shape.format.channels(),
            Flags: 0,
        };
        let is_mipmapped = shape.levels > 1;
        // Some sizes allow no gathering or no writes by kernels (CUDA Driver API,
        // `cuArray3DCreate`).
        let mut made = Ok(0);
        for more in [SURFACE | gather, SURFACE, 0] {
            descriptor.Flags = kind | later | more;
            let (driver, mut raw) = (&context.driver, 0);
            let result = if is_mipmapped {
                call!(
                    driver,
                    cuMipmappedArrayCreate(&raw mut raw, &raw const descriptor, shape.levels)
                )
            } else {
                call!(driver, cuArray3DCreate_v2(&raw mut raw, &raw const descriptor))
            };
            let again = result.as_ref().is_err_and(Failure::means_never);
            made = result.map(|()| raw);
            if !again {
                break;
            }
        }
        let raw = made?;
        let fill = || {
            let memory = match memory {
                MemoryBy::Driver => None,
                MemoryBy::Stream => {
                    let memory = Array::memory_of(context, raw, is_mipmapped)?;
                    map(stream, raw, is_mipmapped, Some(&memory))?;
                    Some(memory)
                }
            };
            Ok((memory, Array::levels_of(context, raw, is_mipmapped, shape.levels)?))
        };
        match fill() {
            Ok((memory, levels)) => {
                Ok(Array { context: Arc::clone(context), raw, levels, is_mipmapped, memory })
            }
            Err(failure) => {
                end(context, raw, is_mipmapped)?;
                Err(failure)
            }
        }
    }

    fn memory_of(context: &Context, raw: Handle, is_mipmapped: bool) -> Result<Physical, Failure> {
        // SAFETY: a structure of numbers, which the driver fills.
        let mut wanted: CUDA_ARRAY_MEMORY_REQUIREMENTS = unsafe { std::mem::zeroed() };
        let (driver, device) = (&context.driver, context.device);
        if is_mipmapped {
            call!(driver, cuMipmappedArrayGetMemoryRequirements(&raw mut wanted, raw, device))?;
        } else {
            call!(driver, cuArrayGetMemoryRequirements(&raw mut wanted, raw, device))?;
        }
        let alignment = context.granularity()?.max(wanted.alignment as u64);
        let bytes = (wanted.size as u64).max(1).next_multiple_of(alignment);
        context.create_for_arrays(bytes)
    }

    fn levels_of(
        context: &Context,
        raw: Handle,
        is_mipmapped: bool,
        count: u32,
    ) -> Result<Vec<Handle>, Failure> {
        if !is_mipmapped {
            return Ok(vec![raw]);
        }
        (0..count)
            .map(|level| {
                let mut found = 0;
                call!(context.driver, cuMipmappedArrayGetLevel(&raw mut found, raw, level))?;
                Ok(found)
            })
            .collect()
    }

    /// Ends it. May wait for the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn destroy(self, stream: &Stream) -> Result<(), Failure> {
        let unmap =
            || map(stream, self.raw, self.is_mipmapped, None).and_then(|()| stream.synchronize());
        let unmapped = if self.memory.is_some() { unmap() } else { Ok(()) };
        end(&self.context, self.raw, self.is_mipmapped)?;
        drop(self.memory);
        unmapped
    }

    fn level(&self, level: u32) -> Handle {
        self.levels.get(level as usize).copied().unwrap_or(self.raw)
    }
}

fn end(context: &Context, raw: Handle, is_mipmapped: bool) -> Result<(), Failure> {
    if is_mipmapped {
        call!(context.driver, cuMipmappedArrayDestroy(raw))
    } else {
        call!(context.driver, cuArrayDestroy(raw))
    }
}

/// Maps an array's memory, or unmaps it.
fn map(
    stream: &Stream,
    raw: Handle,
    is_mipmapped: bool,
    memory: Option<&Physical>,
) -> Result<(), Failure> {
    let context = stream.context();
    let array = std::ptr::with_exposed_provenance_mut::<()>(raw);
    let (kind, resource) = if is_mipmapped {
        let resource = CUarrayMapInfo_st__bindgen_ty_1 { mipmap: array.cast() };
        (CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, resource)
    } else {
        let resource = CUarrayMapInfo_st__bindgen_ty_1 { array: array.cast() };
        (CUresourcetype::CU_RESOURCE_TYPE_ARRAY, resource)
    };
    let mut info = CUarrayMapInfo {
        resourceType: kind,
        resource,
        subresourceType:
            CUarraySparseSubresourceType::CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL,
        // SAFETY: numbers; the driver does not look at them.
        subresource: unsafe { std::mem::zeroed() },
        memOperationType: match memory {
            Some(_) => CUmemOperationType::CU_MEM_OPERATION_TYPE_MAP,
            None => CUmemOperationType::CU_MEM_OPERATION_TYPE_UNMAP,
        },
        memHandleType: CUmemHandleType::CU_MEM_HANDLE_TYPE_GENERIC,
        memHandle: CUarrayMapInfo_st__bindgen_ty_3 { memHandle: memory.map_or(0, Physical::raw) },
        offset: 0,
        deviceBitMask: 1_u32.checked_shl(context.device.cast_unsigned()).unwrap_or(0),
        flags: 0,
        reserved: [0; 2],
    };
    call!(context.driver, cuMemMapArrayAsync(&raw mut info, 1, stream.raw()))
}

impl Stream {
    /// Copies a box: bytes in a row, rows, and planes or layers. Host memory may be at one end
    /// only.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the page-locked memory is shorter than the box.
    pub fn copy_box(
        &self,
        to: BoxEnd<'_>,
        from: BoxEnd<'_>,
        [width, height, depth]: [u64; 3],
    ) -> Result<(), Failure> {
        let (bytes, pitch, height) = (size(width * height * depth), size(width), size(height));
        let mut copy = CUDA_MEMCPY3D {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            reserved0: std::ptr::null_mut(),
            srcPitch: pitch,
            srcHeight: height,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: 0,
            dstArray: std::ptr::null_mut(),
            reserved1: std::ptr::null_mut(),
            dstPitch: pitch,
            dstHeight: height,
            WidthInBytes: pitch,
            Height: height,
            Depth: size(depth),
        };
        match from {
            BoxEnd::Host(memory, at) => {
                memory.check(at, bytes);
                copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
                copy.srcHost = memory.address(at).cast_const().cast();
            }
            BoxEnd::Memory(address) => {
                copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
                copy.srcDevice = address;
            }
            BoxEnd::Array(array, Place3 { level, at: [x, y, z] }) => {
                copy.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
                copy.srcArray = std::ptr::with_exposed_provenance_mut(array.level(level));
                (copy.srcXInBytes, copy.srcY, copy.srcZ) = (size(x), size(y), size(z));
            }
        }
        match to {
            BoxEnd::Host(memory, at) => {
                memory.check(at, bytes);
                copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_HOST;
                copy.dstHost = memory.address(at).cast();
            }
            BoxEnd::Memory(address) => {
                copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
                copy.dstDevice = address;
            }
            BoxEnd::Array(array, Place3 { level, at: [x, y, z] }) => {
                copy.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_ARRAY;
                copy.dstArray = std::ptr::with_exposed_provenance_mut(array.level(level));
                (copy.dstXInBytes, copy.dstY, copy.dstZ) = (size(x), size(y), size(z));
            }
        }
        call!(self.context().driver, cuMemcpy3DAsync_v2(&raw const copy, self.raw()))
    }
}

/// A texture object, or a surface object. It is kept until [`Object::destroy`].
#[derive(Debug)]
pub struct Object {
    context: Arc<Context>,
    raw: u64,
    is_surface: bool,
}

const fn mode(mode: AddressMode) -> CUaddress_mode {
    match mode {
        AddressMode::Wrap => CUaddress_mode::CU_TR_ADDRESS_MODE_WRAP,
        AddressMode::Clamp => CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP,
        AddressMode::Mirror => CUaddress_mode::CU_TR_ADDRESS_MODE_MIRROR,
        AddressMode::Border => CUaddress_mode::CU_TR_ADDRESS_MODE_BORDER,
    }
}

const fn filter(mode: FilterMode) -> CUfilter_mode {
    match mode {
        FilterMode::Point => CUfilter_mode::CU_TR_FILTER_MODE_POINT,
        FilterMode::Linear => CUfilter_mode::CU_TR_FILTER_MODE_LINEAR,
    }
}

fn description(sampler: &Sampler) -> CUDA_TEXTURE_DESC {
    let flag = |on: bool, flag| if on { flag } else { 0 };
    CUDA_TEXTURE_DESC {
        addressMode: sampler.address.map(mode),
        filterMode: filter(sampler.filter),
        flags: flag(sampler.integers, READ_AS_INTEGER)
            | flag(sampler.normalized, NORMALIZED_COORDINATES)
            | flag(sampler.srgb, SRGB),
        maxAnisotropy: 0,
        mipmapFilterMode: filter(sampler.level_filter),
        mipmapLevelBias: sampler.level_bias.get(),
        minMipmapLevelClamp: sampler.level_min.get(),
        maxMipmapLevelClamp: sampler.level_max.get(),
        borderColor: sampler.border.map(|part| part.get()),
        reserved: [0; 12],
    }
}

impl Object {
    /// Makes a texture object of these texels, or a surface object where there is no sampler. An
    /// array is given where they are one's.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        context: &Arc<Context>,
        source: &TexelSource,
        array: Option<(&Array, &ArrayShape)>,
        sampler: Option<&Sampler>,
    ) -> Result<Object, Failure> {
        // SAFETY: a structure of numbers and handles, in which CUDA wants zeros.
        let mut resource: CUDA_RESOURCE_DESC = unsafe { std::mem::zeroed() };
        let mut view: Option<CUDA_RESOURCE_VIEW_DESC> = None;
        match (source, array) {
            (TexelSource::Array { first_level, levels, .. }, Some((array, shape))) => {
                if array.is_mipmapped && sampler.is_some() {
                    resource.resType = CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
                    resource.res.mipmap.hMipmappedArray =
                        std::ptr::with_exposed_provenance_mut(array.raw);
                    view = Some(part_of(shape, *first_level, *levels));
                } else {
                    resource.resType = CUresourcetype::CU_RESOURCE_TYPE_ARRAY;
                    resource.res.array.hArray =
                        std::ptr::with_exposed_provenance_mut(array.level(*first_level));
                }
            }
            (TexelSource::Pitched { address, format, extent: [width, height], pitch }, _) => {
                resource.resType = CUresourcetype::CU_RESOURCE_TYPE_PITCH2D;
                resource.res.pitch2D = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 {
                    devPtr: address.0,
                    format: format_of(format.channel()),
                    numChannels: format.channels(),
                    width: *width as usize,
                    height: *height as usize,
                    pitchInBytes: size(*pitch),
                };
            }
            (TexelSource::Linear { address, format, .. }, _) => {
                resource.resType = CUresourcetype::CU_RESOURCE_TYPE_LINEAR;
                resource.res.linear = CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_3 {
                    devPtr: address.0,
                    format: format_of(format.channel()),
                    numChannels: format.channels(),
                    sizeInBytes: source.range().map_or(0, |(_, bytes)| size(bytes)),
                };
            }
            (TexelSource::Array { .. }, None) => {
                return Err(Failure::unsupported("cuTexObjectCreate"));
            }
        }
        let (driver, mut raw) = (&context.driver, 0);
        match sampler {
            None => call!(driver, cuSurfObjectCreate(&raw mut raw, &raw const resource))?,
            Some(sampler) => {
                let description = description(sampler);
                let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                call!(
                    driver,
                    cuTexObjectCreate(
                        &raw mut raw,
                        &raw const resource,
                        &raw const description,
                        view
                    )
                )?;
            }
        }
        Ok(Object { context: Arc::clone(context), raw, is_surface: sampler.is_none() })
    }

    /// The value that kernels receive for the object.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.raw
    }

    /// Ends it.
    ///
    /// # Errors
    /// The driver's.
    pub fn destroy(self) -> Result<(), Failure> {
        if self.is_surface {
            call!(self.context.driver, cuSurfObjectDestroy(self.raw))
        } else {
            call!(self.context.driver, cuTexObjectDestroy(self.raw))
        }
    }
}

/// A view of some levels and all layers of an array.
fn part_of(shape: &ArrayShape, first: u32, levels: u32) -> CUDA_RESOURCE_VIEW_DESC {
    let [width, height, depth] = shape.level_extent(first).map(|extent| extent as usize);
    let layers = match shape.kind {
        ArrayKind::LineLayers | ArrayKind::PlaneLayers | ArrayKind::CubeLayers => shape.extent[2],
        ArrayKind::Line | ArrayKind::Plane | ArrayKind::Volume | ArrayKind::Cube => 1,
    };
    let is_line = matches!(shape.kind, ArrayKind::Line | ArrayKind::LineLayers);
    // SAFETY: a structure of numbers, in which CUDA wants zeros.
    let mut view: CUDA_RESOURCE_VIEW_DESC = unsafe { std::mem::zeroed() };
    // The view keeps the array's own format.
    (view.width, view.height) = (width, if is_line { 0 } else { height });
    view.depth = if shape.kind == ArrayKind::Volume { depth } else { 0 };
    view.firstMipmapLevel = first;
    view.lastMipmapLevel = first + levels - 1;
    view.lastLayer = layers - 1;
    view
}
