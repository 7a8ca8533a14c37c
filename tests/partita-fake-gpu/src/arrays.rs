//! Arrays, texture and surface objects. An array's bytes lie in canonical order, in the memory that
//! was mapped to the array, or in memory that the driver has allocated.

use crate::driver::{answer, exports, get, put};
use crate::memory;
use crate::state::{INVALID_HANDLE, INVALID_VALUE, SUCCESS, State, Waits, begin};
use crate::stream::{self, Op};
use std::ffi::{c_int, c_uint, c_void};

/// `CUDA_ARRAY3D_…`
const LAYERED: c_uint = 0x01;
const CUBEMAP: c_uint = 0x04;
const GATHER: c_uint = 0x08;
const DEFERRED: c_uint = 0x80;

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Descriptor {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// An array.
pub struct Array {
    descriptor: Descriptor,
    mipmap_levels: u32,
    /// The address of the array's bytes, and the handle of their memory: 0 where the driver has
    /// allocated it.
    memory: Option<(u64, u64)>,
}

impl Array {
    fn texel(&self) -> u64 {
        let bytes = match self.descriptor.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            _ => 4,
        };
        bytes * u64::from(self.descriptor.channels)
    }

    /// Texels, rows, planes or layers of a level.
    fn extent(&self, level: u32) -> [u64; 3] {
        let halved = |size: usize| (size.max(1) as u64 >> level).max(1);
        let Descriptor { width, height, depth, flags, .. } = self.descriptor;
        let planes =
            if flags & (LAYERED | CUBEMAP) != 0 { depth.max(1) as u64 } else { halved(depth) };
        [halved(width), halved(height), planes]
    }

    fn bytes_of(&self, level: u32) -> u64 {
        self.extent(level).iter().product::<u64>() * self.texel()
    }

    fn bytes(&self) -> u64 {
        (0..self.mipmap_levels.max(1)).map(|level| self.bytes_of(level)).sum()
    }
}

fn make(state: &mut State, descriptor: Descriptor, mipmap_levels: u32) -> Result<u64, u32> {
    let Descriptor { width, height, depth, format, channels, flags } = descriptor;
    let (is_layered, is_cube) = (flags & LAYERED != 0, flags & CUBEMAP != 0);
    let has_depth = match (is_layered, is_cube) {
        (_, true) => width == height && depth > 0 && (depth == 6 || is_layered && depth % 6 == 0),
        (true, false) => depth > 0,
        (false, false) => height > 0 || depth == 0,
    };
    let fits = width > 0
        && has_depth
        && matches!(channels, 1 | 2 | 4)
        && matches!(format, 1..=3 | 8..=10 | 0x10 | 0x20)
        // Memory comes later to these only (`cuMemMapArrayAsync`).
        && (flags & DEFERRED == 0 || height > 0 && !is_cube)
        && (flags & GATHER == 0 || depth == 0 && height > 0 && mipmap_levels == 0);
    if !fits {
        return Err(INVALID_VALUE);
    }
    let mut array = Array { descriptor, mipmap_levels, memory: None };
    if flags & DEFERRED == 0 {
        state.log.push("an array takes memory by itself".into());
        let bytes = array.bytes();
        let start = memory::pin(state, bytes)?;
        memory::set(start, 0x5a, 1, bytes);
        array.memory = Some((start, 0));
    }
    let handle = state.handle();
    state.arrays.insert(handle, array);
    Ok(handle)
}

fn required(state: &State, array: u64) -> Result<[usize; 4], u32> {
    let array = state.arrays.get(&array).ok_or(INVALID_HANDLE)?;
    if array.descriptor.flags & DEFERRED == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = usize::try_from(array.bytes()).unwrap_or(usize::MAX);
    Ok([bytes.next_multiple_of(64 << 10), 64 << 10, 0, 0])
}

fn unmake(state: &mut State, array: u64) -> u32 {
    match state.arrays.remove(&array) {
        Some(Array { memory, .. }) => {
            if let Some((start, physical)) = memory {
                if physical != 0 {
                    state.log.push("an array goes that has its memory yet".into());
                }
                memory::unpin(state, start);
            }
            state.levels.retain(|_, (of, _)| *of != array);
            SUCCESS
        }
        None => INVALID_HANDLE,
    }
}

/// `CUarrayMapInfo`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MapInfo {
    resource_kind: c_uint,
    resource: u64,
    part: [u64; 5],
    operation: c_uint,
    handle_kind: c_uint,
    memory: u64,
    offset: u64,
    devices: c_uint,
    flags: c_uint,
    reserved: [c_uint; 2],
}

fn map(state: &mut State, info: MapInfo) -> Result<u32, u32> {
    let is_mipmapped = info.resource_kind == 1;
    let array = state.arrays.get(&info.resource).ok_or(INVALID_HANDLE)?;
    let known = info.resource_kind <= 1 && is_mipmapped == (array.mipmap_levels > 0);
    if !known
        || info.devices != 1
        || info.flags != 0
        || info.reserved != [0; 2]
        || info.handle_kind != 0
    {
        return Err(INVALID_VALUE);
    }
    match (info.operation, array.memory) {
        (1, None) => {
            let wanted = required(state, info.resource)?[0] as u64;
            let bytes = array.bytes();
            match state.physical.get_mut(&info.memory) {
                Some(physical) if physical.for_arrays && physical.bytes >= info.offset + wanted => {
                    physical.holders += 1;
                }
                _ => return Err(INVALID_VALUE),
            }
            let start = memory::pin(state, bytes)?;
            // The memory may have held another array's data.
            memory::set(start, 0x5a, 1, bytes);
            if let Some(array) = state.arrays.get_mut(&info.resource) {
                array.memory = Some((start, info.memory));
            }
            Ok(SUCCESS)
        }
        (2, Some((start, physical))) if info.memory == 0 && physical != 0 => {
            memory::unpin(state, start);
            if let Some(array) = state.arrays.get_mut(&info.resource) {
                array.memory = None;
            }
            Ok(memory::release(state, physical))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// One side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Side {
    at: [usize; 3],
    level: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Box3 {
    from: Side,
    to: Side,
    extent: [usize; 3],
}

/// The begin of each row of a side.
fn rows(state: &State, side: Side, [width, height, depth]: [u64; 3]) -> Result<Vec<u64>, u32> {
    let [x, y, z] = side.at.map(|at| at as u64);
    let planes = || (0..depth).flat_map(move |k| (0..height).map(move |j| (j, k)));
    if side.kind == 3 {
        let (array, level) = state.levels.get(&side.array).copied().unwrap_or((side.array, 0));
        let array = state.arrays.get(&array).ok_or(INVALID_HANDLE)?;
        let (start, _) = array.memory.ok_or(INVALID_VALUE)?;
        let [columns, lines, all] = array.extent(level);
        let row = columns * array.texel();
        let whole = [x, width].iter().all(|bytes| bytes.is_multiple_of(array.texel()));
        if !whole || x + width > row || y + height > lines || z + depth > all {
            return Err(INVALID_VALUE);
        }
        let level_start = start + (0..level).map(|level| array.bytes_of(level)).sum::<u64>();
        return Ok(planes()
            .map(|(j, k)| level_start + ((z + k) * lines + y + j) * row + x)
            .collect());
    }
    let (pitch, lines) = (side.pitch as u64, side.height as u64);
    let start = match side.kind {
        1 => side.host,
        2 => side.device,
        _ => return Err(INVALID_VALUE),
    };
    if pitch < x + width || lines < y + height {
        return Err(INVALID_VALUE);
    }
    let found: Vec<u64> =
        planes().map(|(j, k)| start + ((z + k) * lines + y + j) * pitch + x).collect();
    // Pageable memory would make the call wait.
    let live = found.iter().all(|&row| memory::is_live(state, row, width));
    if live { Ok(found) } else { Err(INVALID_VALUE) }
}

/// `CUDA_RESOURCE_DESC`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Resource {
    kind: c_uint,
    /// An array; or address, format and channels, bytes or width, height, pitch.
    words: [u64; 16],
    flags: c_uint,
}

/// Whether texels are where a resource says.
fn check(state: &State, resource: Resource) -> Result<(), u32> {
    let [first, _, bytes, height, pitch, ..] = resource.words;
    let live = |bytes| first.is_multiple_of(512) && memory::is_live(state, first, bytes);
    let good = match resource.kind {
        0 => {
            state.levels.contains_key(&first)
                || state.arrays.get(&first).is_some_and(|array| array.mipmap_levels == 0)
        }
        1 => state.arrays.get(&first).is_some_and(|array| array.mipmap_levels > 0),
        2 => live(bytes),
        3 => pitch.is_multiple_of(32) && live(pitch * (height - 1)),
        _ => false,
    };
    if good && resource.flags == 0 { Ok(()) } else { Err(INVALID_VALUE) }
}

exports! {
    cuArray3DCreate_v2(array: *mut u64, descriptor: *const Descriptor) Beside |state| {
        let mut state = state;
        put(array, make(&mut state, get(descriptor), 0)?);
        Ok(SUCCESS)
    }
    cuMipmappedArrayCreate(array: *mut u64, descriptor: *const Descriptor,
        levels: c_uint) Beside |state| {
        let mut state = state;
        if levels == 0 {
            return Err(INVALID_VALUE);
        }
        put(array, make(&mut state, get(descriptor), levels)?);
        Ok(SUCCESS)
    }
    cuMipmappedArrayGetLevel(level: *mut u64, array: u64, number: c_uint) Beside |state| {
        let mut state = state;
        if state.arrays.get(&array).ok_or(INVALID_HANDLE)?.mipmap_levels <= number {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.levels.insert(handle, (array, number));
        put(level, handle);
        Ok(SUCCESS)
    }
    cuArrayGetMemoryRequirements(wanted: *mut [usize; 4], array: u64,
        _device: c_int) Beside |state| {
        put(wanted, required(&state, array)?);
        Ok(SUCCESS)
    }
    cuMipmappedArrayGetMemoryRequirements(wanted: *mut [usize; 4], array: u64,
        _device: c_int) Beside |state| {
        put(wanted, required(&state, array)?);
        Ok(SUCCESS)
    }
    cuArrayDestroy(array: u64) ForAll |state| {
        let mut state = state;
        Ok(unmake(&mut state, array))
    }
    cuMipmappedArrayDestroy(array: u64) ForAll |state| {
        let mut state = state;
        Ok(unmake(&mut state, array))
    }
    cuMemMapArrayAsync(list: *mut MapInfo, count: c_uint, stream: u64) Beside |state| {
        let mut state = state;
        if !state.streams.contains_key(&stream) {
            return Err(INVALID_HANDLE);
        }
        for at in 0..count as usize {
            map(&mut state, get(list.wrapping_add(at)))?;
        }
        Ok(SUCCESS)
    }
    cuMemcpy3DAsync_v2(copy: *const Box3, stream: u64) Beside |state| {
        let Box3 { from, to, extent } = get(copy);
        let extent = extent.map(|size| size as u64);
        let (from, to) = (rows(&state, from, extent)?, rows(&state, to, extent)?);
        let rows = to.into_iter().zip(from).map(|(to, from)| (to, from, extent[0])).collect();
        Ok(stream::submit(state, stream, Op::Rows(rows)))
    }
    cuTexObjectCreate(object: *mut u64, resource: *const Resource, sampler: *const c_void,
        view: *const c_void) Beside |state| {
        let mut state = state;
        check(&state, get(resource))?;
        // A view is of arrays only.
        if sampler.is_null() || (!view.is_null() && get(resource).kind > 1) {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.objects.insert(handle);
        put(object, handle);
        Ok(SUCCESS)
    }
    cuTexObjectDestroy(object: u64) Beside |state| {
        let mut state = state;
        if state.objects.remove(&object) { Ok(SUCCESS) } else { Err(INVALID_VALUE) }
    }
    cuSurfObjectCreate(object: *mut u64, resource: *const Resource) Beside |state| {
        let mut state = state;
        check(&state, get(resource))?;
        if get(resource).kind != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.objects.insert(handle);
        put(object, handle);
        Ok(SUCCESS)
    }
    cuSurfObjectDestroy(object: u64) Beside |state| {
        let mut state = state;
        if state.objects.remove(&object) { Ok(SUCCESS) } else { Err(INVALID_VALUE) }
    }
}

const _: () = assert!(size_of::<MapInfo>() == 96 && size_of::<Box3>() == 200);
