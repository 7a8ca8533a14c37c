//! Arrays: the meaning of their handles, and the shapes that their descriptors name.
//!
//! A level of a mipmapped array is an array of its own, whose bytes lie inside those of the
//! mipmapped array.

use crate::abi::Plain;
use crate::error::{CuError, CuResult};
use crate::handles::{DeviceIndex, Handles, Kind};
use partita_client::Session;
use partita_model::DeviceAddress;
use partita_model::texture::{ArrayKind, ArrayShape, ChannelType, TexelFormat};
use std::sync::{Arc, Mutex, PoisonError};

/// `CUDA_ARRAY3D_LAYERED`.
const LAYERED: u32 = 0x01;
/// `CUDA_ARRAY3D_SURFACE_LDST`.
pub const SURFACE: u32 = 0x02;
/// `CUDA_ARRAY3D_CUBEMAP`.
const CUBEMAP: u32 = 0x04;
/// `CUDA_ARRAY3D_TEXTURE_GATHER` and `CUDA_ARRAY3D_COLOR_ATTACHMENT`: nothing depends on them here.
const IGNORED: u32 = 0x08 | 0x20;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Descriptor2D {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Descriptor3D {
    width: usize,
    height: usize,
    depth: usize,
    format: u32,
    channels: u32,
    flags: u32,
    padding: u32,
}

// SAFETY: integers.
unsafe impl Plain for Descriptor2D {}
// SAFETY: integers.
unsafe impl Plain for Descriptor3D {}

const _: () = assert!(size_of::<Descriptor2D>() == 24 && size_of::<Descriptor3D>() == 40);

impl From<Descriptor2D> for Descriptor3D {
    fn from(two: Descriptor2D) -> Self {
        let Descriptor2D { width, height, format, channels } = two;
        Descriptor3D { width, height, depth: 0, format, channels, flags: 0, padding: 0 }
    }
}

impl Descriptor3D {
    /// The shape that it means (CUDA Driver API, `cuArray3DCreate`: which extents are 0 tells the
    /// dimensions).
    pub fn shape(&self, levels: u32) -> CuResult<ArrayShape> {
        if self.flags & !(LAYERED | SURFACE | CUBEMAP | IGNORED) != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        let extents = [self.width, self.height, self.depth].map(u32::try_from);
        let [Ok(width), Ok(height), Ok(depth)] = extents else {
            return Err(CuError::INVALID_VALUE);
        };
        let kind = match (self.flags & LAYERED != 0, self.flags & CUBEMAP != 0) {
            (true, true) => ArrayKind::CubeLayers,
            (false, true) => ArrayKind::Cube,
            (true, false) if height == 0 => ArrayKind::LineLayers,
            (true, false) => ArrayKind::PlaneLayers,
            (false, false) if depth != 0 => ArrayKind::Volume,
            (false, false) if height != 0 => ArrayKind::Plane,
            (false, false) => ArrayKind::Line,
        };
        let height =
            if matches!(kind, ArrayKind::Line | ArrayKind::LineLayers) { 1 } else { height };
        let depth = if matches!(kind, ArrayKind::Line | ArrayKind::Plane) { 1 } else { depth };
        let format = format(self.format, self.channels)?;
        ArrayShape::new(kind, format, [width, height, depth], levels).ok_or(CuError::INVALID_VALUE)
    }
}

/// The format of a `CUarray_format` and a number of channels.
pub fn format(number: u32, channels: u32) -> CuResult<TexelFormat> {
    // Block-compressed, planar and packed formats.
    let unknown = if number == 0 { CuError::INVALID_VALUE } else { CuError::NOT_SUPPORTED };
    TexelFormat::new(ChannelType::from_number(number).ok_or(unknown)?, channels)
        .ok_or(CuError::INVALID_VALUE)
}

/// The object behind a `CUarray`.
pub struct Array {
    /// The address of the whole array; of a level, the address of its mipmapped array.
    pub base: DeviceAddress,
    /// Which level of a mipmapped array it is.
    pub level: Option<u32>,
    /// First byte of it for copies.
    pub address: u64,
    /// Its own shape, of one level.
    pub shape: ArrayShape,
    /// The program's flags.
    flags: u32,
}

impl Array {
    /// Its descriptor: extents that the program gave as 0 are 0.
    pub fn descriptor(&self) -> Descriptor3D {
        let [width, height, depth] = self.shape.extent.map(|size| size as usize);
        let kind = self.shape.kind;
        Descriptor3D {
            width,
            height: if matches!(kind, ArrayKind::Line | ArrayKind::LineLayers) {
                0
            } else {
                height
            },
            depth: if matches!(kind, ArrayKind::Line | ArrayKind::Plane) { 0 } else { depth },
            format: self.shape.format.channel().number(),
            channels: self.shape.format.channels(),
            flags: self.flags,
            padding: 0,
        }
    }

    /// Its descriptor in two dimensions.
    pub fn descriptor_2d(&self) -> Descriptor2D {
        let Descriptor3D { width, height, format, channels, .. } = self.descriptor();
        Descriptor2D { width, height, format, channels }
    }

    /// Whether surfaces of it may be made.
    pub fn has_surfaces(&self) -> bool {
        self.flags & SURFACE != 0
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        u64::from(self.shape.extent[0]) * u64::from(self.shape.format.bytes())
    }
}

/// The object behind a `CUmipmappedArray`.
pub struct Mipmapped {
    /// Its address.
    pub base: DeviceAddress,
    /// The shape of all levels.
    pub shape: ArrayShape,
    flags: u32,
    /// Handles of the requested levels.
    levels: Mutex<Vec<Option<u64>>>,
}

/// All arrays.
pub struct Arrays {
    plain: Handles<Array>,
    mipmapped: Handles<Mipmapped>,
}

impl Arrays {
    /// None.
    pub const fn new(device: DeviceIndex) -> Self {
        Arrays {
            plain: Handles::new(Kind::Array, device),
            mipmapped: Handles::new(Kind::MipmappedArray, device),
        }
    }

    /// `cuArray3DCreate`.
    pub fn create(&self, session: &Session, descriptor: &Descriptor3D) -> CuResult<u64> {
        let shape = descriptor.shape(1)?;
        let base = session.create_array(&shape)?;
        let flags = descriptor.flags;
        self.plain.insert(Array { base, level: None, address: base.0, shape, flags })
    }

    /// `cuArrayDestroy`. Levels of mipmapped arrays go with these.
    pub fn destroy(&self, session: &Session, handle: u64) -> CuResult {
        if self.get(handle)?.level.is_some() {
            return Err(CuError::INVALID_VALUE);
        }
        let array = self.plain.remove(handle)?;
        Ok(session.destroy_array(array.base)?)
    }

    /// The array of a handle.
    pub fn get(&self, handle: u64) -> CuResult<Arc<Array>> {
        self.plain.get(handle)
    }

    /// `cuMipmappedArrayCreate`: no more levels than halving gives.
    pub fn create_mipmapped(
        &self,
        session: &Session,
        descriptor: &Descriptor3D,
        levels: u32,
    ) -> CuResult<u64> {
        let [width, height, depth] = descriptor.shape(1)?.extent;
        let depth = if descriptor.flags & (LAYERED | CUBEMAP) == 0 { depth } else { 1 };
        let most = u32::BITS - width.max(height).max(depth).leading_zeros();
        let shape = descriptor.shape(levels.min(most))?;
        let base = session.create_array(&shape)?;
        let handles = vec![None; shape.levels as usize];
        let flags = descriptor.flags;
        self.mipmapped.insert(Mipmapped { base, shape, flags, levels: Mutex::new(handles) })
    }

    /// The mipmapped array of a handle.
    pub fn get_mipmapped(&self, handle: u64) -> CuResult<Arc<Mipmapped>> {
        self.mipmapped.get(handle)
    }

    /// `cuMipmappedArrayGetLevel`.
    pub fn level(&self, handle: u64, level: u32) -> CuResult<u64> {
        let whole = self.mipmapped.get(handle)?;
        let mut handles = whole.levels.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = handles.get_mut(level as usize).ok_or(CuError::INVALID_VALUE)?;
        if let Some(known) = *slot {
            return Ok(known);
        }
        let shape =
            ArrayShape { extent: whole.shape.level_extent(level), levels: 1, ..whole.shape };
        let address = whole.base.0 + whole.shape.level_offset(level);
        let array = self.plain.insert(Array {
            base: whole.base,
            level: Some(level),
            address,
            shape,
            flags: whole.flags,
        })?;
        *slot = Some(array);
        Ok(array)
    }

    /// `cuMipmappedArrayDestroy`: its levels' handles go with it.
    pub fn destroy_mipmapped(&self, session: &Session, handle: u64) -> CuResult {
        let whole = self.mipmapped.remove(handle)?;
        self.plain.remove_where(|array| array.base == whole.base);
        Ok(session.destroy_array(whole.base)?)
    }

    /// Destroys all arrays.
    pub fn clear(&self, session: &Session) {
        for whole in self.mipmapped.remove_where(|_| true) {
            self.plain.remove_where(|array| array.base == whole.base);
            // An array that cannot be destroyed any more ends with the session.
            let _ = session.destroy_array(whole.base);
        }
        for array in self.plain.remove_where(|_| true) {
            let _ = session.destroy_array(array.base);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_extents_are_zero_tells_the_kind() {
        let check = |[width, height, depth]: [usize; 3],
                     flags,
                     expect: Result<ArrayKind, CuError>| {
            let descriptor =
                Descriptor3D { width, height, depth, format: 0x20, channels: 1, flags, padding: 0 };
            let shape = descriptor.shape(1);
            assert_eq!(shape.map(|shape| shape.kind), expect, "{descriptor:?}");
            if let Ok(shape) = shape {
                let array = Array { base: DeviceAddress(1), level: None, address: 1, shape, flags };
                assert_eq!(array.descriptor(), descriptor, "the descriptor comes back");
            }
        };
        check([7, 0, 0], 0, Ok(ArrayKind::Line));
        check([7, 3, 0], SURFACE, Ok(ArrayKind::Plane));
        check([7, 3, 2], 0, Ok(ArrayKind::Volume));
        check([7, 0, 2], LAYERED, Ok(ArrayKind::LineLayers));
        check([7, 3, 2], LAYERED, Ok(ArrayKind::PlaneLayers));
        check([7, 7, 6], CUBEMAP, Ok(ArrayKind::Cube));
        check([7, 7, 12], CUBEMAP | LAYERED, Ok(ArrayKind::CubeLayers));
        check([7, 6, 6], CUBEMAP, Err(CuError::INVALID_VALUE));
        check([0, 0, 0], 0, Err(CuError::INVALID_VALUE));
        check([7, 0, 2], 0, Err(CuError::INVALID_VALUE));
        check([1 << 33, 0, 0], 0, Err(CuError::INVALID_VALUE));
        check([7, 0, 0], 0x40, Err(CuError::NOT_SUPPORTED));
    }

    #[test]
    fn formats() {
        assert_eq!(format(0, 1), Err(CuError::INVALID_VALUE));
        assert_eq!(format(0xb0, 3), Err(CuError::NOT_SUPPORTED));
        assert_eq!(format(1, 3), Err(CuError::INVALID_VALUE));
        assert_eq!(format(0x10, 4).map(TexelFormat::bytes), Ok(8));
    }
}
