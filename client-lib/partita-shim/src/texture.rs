//! Texture and surface objects: the translation of CUDA's descriptors into requests to the daemon.
//!
//! The daemon decides what kernels receive. This side keeps the descriptors, because a program may
//! query them.

use crate::abi::Plain;
use crate::array::format;
use crate::attributes::{TEXTURE_ALIGNMENT, TEXTURE_PITCH_ALIGNMENT};
use crate::error::{CuError, CuResult};
use crate::runtime::Runtime;
use partita_model::DeviceAddress;
use partita_model::texture::{
    AddressMode, ArrayKind, FilterMode, FloatBits, Sampler, TexelSource, TextureSpec,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// `CUDA_RESOURCE_DESC`: its union is an array's handle, or address, format, channels, and up to
/// three sizes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ResourceDescriptor {
    kind: u32,
    padding: u32,
    /// `CUarray`, `CUmipmappedArray`, `CUdeviceptr`.
    what: u64,
    format: u32,
    channels: u32,
    /// Bytes of linear memory, or width, height and pitch.
    sizes: [usize; 3],
    reserved: [u64; 11],
    flags: u32,
    end: u32,
}

/// `CUDA_TEXTURE_DESC`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TextureDescriptor {
    address_modes: [u32; 3],
    filter: u32,
    flags: u32,
    max_anisotropy: u32,
    level_filter: u32,
    level_bias: f32,
    level_min: f32,
    level_max: f32,
    border: [f32; 4],
    reserved: [u32; 12],
}

// SAFETY: integers.
unsafe impl Plain for ResourceDescriptor {}
// SAFETY: integers and floats.
unsafe impl Plain for TextureDescriptor {}

const _: () =
    assert!(size_of::<ResourceDescriptor>() == 144 && size_of::<TextureDescriptor>() == 104);

const ARRAY: u32 = 0;
const MIPMAPPED: u32 = 1;
const LINEAR: u32 = 2;
const PITCH_2D: u32 = 3;

/// `CU_TRSF_…`.
const READ_AS_INTEGER: u32 = 0x01;
const NORMALIZED_COORDINATES: u32 = 0x02;
const SRGB: u32 = 0x10;
/// Only a hint.
const DISABLE_TRILINEAR_OPTIMIZATION: u32 = 0x20;
const SEAMLESS_CUBEMAP: u32 = 0x40;

impl TextureDescriptor {
    fn sampler(&self, source: Option<ArrayKind>) -> CuResult<Sampler> {
        const KNOWN: u32 = READ_AS_INTEGER
            | NORMALIZED_COORDINATES
            | SRGB
            | DISABLE_TRILINEAR_OPTIMIZATION
            | SEAMLESS_CUBEMAP;
        if self.flags & !KNOWN != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let mut address = [AddressMode::Clamp; 3];
        for (mode, number) in address.iter_mut().zip(self.address_modes) {
            *mode = AddressMode::from_number(number).ok_or(CuError::INVALID_VALUE)?;
        }
        let filter = |number| FilterMode::from_number(number).ok_or(CuError::INVALID_VALUE);
        let filter_mode = filter(self.filter)?;
        let is_cube = matches!(source, Some(ArrayKind::Cube | ArrayKind::CubeLayers));
        if is_cube && self.flags & SEAMLESS_CUBEMAP != 0 && filter_mode == FilterMode::Linear {
            return Err(CuError::NOT_SUPPORTED);
        }
        Ok(Sampler {
            address,
            filter: filter_mode,
            level_filter: filter(self.level_filter)?,
            integers: self.flags & READ_AS_INTEGER != 0,
            normalized: self.flags & NORMALIZED_COORDINATES != 0,
            srgb: self.flags & SRGB != 0,
            level_bias: self.level_bias.into(),
            level_min: self.level_min.into(),
            level_max: self.level_max.into(),
            border: self.border.map(FloatBits::from),
        })
    }
}

fn pitched(what: &ResourceDescriptor) -> CuResult<TexelSource> {
    let format = format(what.format, what.channels)?;
    let [width, height, pitch] = what.sizes;
    let extent = [width, height].map(|size| u32::try_from(size).unwrap_or(u32::MAX));
    let pitch = pitch as u64;
    let fits = extent
        .iter()
        .zip(TexelSource::PITCHED_LIMITS)
        .all(|(&size, most)| (1..=most).contains(&size));
    let row = u64::from(extent[0]) * u64::from(format.bytes());
    let aligned = what.what.is_multiple_of(TEXTURE_ALIGNMENT)
        && pitch.is_multiple_of(TEXTURE_PITCH_ALIGNMENT);
    if !fits || !aligned || pitch < row {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(TexelSource::Pitched { address: DeviceAddress(what.what), format, extent, pitch })
}

fn linear(what: &ResourceDescriptor) -> CuResult<TexelSource> {
    let format = format(what.format, what.channels)?;
    let texels = what.sizes[0] as u64 / u64::from(format.bytes());
    let width =
        u32::try_from(texels).ok().filter(|width| (1..=TexelSource::LINEAR_LIMIT).contains(width));
    if !what.what.is_multiple_of(TEXTURE_ALIGNMENT) {
        return Err(CuError::INVALID_VALUE);
    }
    let width = width.ok_or(CuError::INVALID_VALUE)?;
    Ok(TexelSource::Linear { address: DeviceAddress(what.what), format, width })
}

/// A texture object, or a surface object if it has no texture descriptor.
#[derive(Clone, Copy)]
struct Object {
    resource: ResourceDescriptor,
    texture: Option<TextureDescriptor>,
}

/// Which of the two an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// `CUtexObject`.
    Texture,
    /// `CUsurfObject`.
    Surface,
}

/// All texture and surface objects, by what kernels are given.
pub struct Textures {
    live: Mutex<BTreeMap<u64, Object>>,
}

impl Textures {
    /// None.
    pub const fn new() -> Self {
        Textures { live: Mutex::new(BTreeMap::new()) }
    }

    /// `cuTexObjectCreate`.
    pub fn create_texture(
        &self,
        runtime: &Runtime,
        resource: &ResourceDescriptor,
        texture: &TextureDescriptor,
    ) -> CuResult<u64> {
        if resource.flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let (source, kind) = match resource.kind {
            ARRAY => {
                let array = runtime.arrays.get(resource.what)?;
                let source = TexelSource::Array {
                    array: array.base,
                    first_level: array.level.unwrap_or(0),
                    levels: 1,
                };
                (source, Some(array.shape.kind))
            }
            MIPMAPPED => {
                let whole = runtime.arrays.get_mipmapped(resource.what)?;
                let levels = whole.shape.levels;
                (
                    TexelSource::Array { array: whole.base, first_level: 0, levels },
                    Some(whole.shape.kind),
                )
            }
            LINEAR => (linear(resource)?, None),
            PITCH_2D => (pitched(resource)?, None),
            _ => return Err(CuError::INVALID_VALUE),
        };
        let sampler = Some(texture.sampler(kind)?);
        let handle = runtime.session.create_texture(&TextureSpec { source, sampler })?;
        self.lock().insert(handle, Object { resource: *resource, texture: Some(*texture) });
        Ok(handle)
    }

    /// `cuSurfObjectCreate`.
    pub fn create_surface(
        &self,
        runtime: &Runtime,
        resource: &ResourceDescriptor,
    ) -> CuResult<u64> {
        if resource.kind != ARRAY || resource.flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let array = runtime.arrays.get(resource.what)?;
        if !array.has_surfaces() {
            return Err(CuError::INVALID_VALUE);
        }
        let source = TexelSource::Array {
            array: array.base,
            first_level: array.level.unwrap_or(0),
            levels: 1,
        };
        let handle = runtime.session.create_texture(&TextureSpec { source, sampler: None })?;
        self.lock().insert(handle, Object { resource: *resource, texture: None });
        Ok(handle)
    }

    /// `cuTexObjectDestroy`, `cuSurfObjectDestroy`.
    pub fn destroy(&self, runtime: &Runtime, handle: u64, kind: ObjectKind) -> CuResult {
        self.get(handle, kind)?;
        self.lock().remove(&handle);
        Ok(runtime.session.destroy_texture(handle)?)
    }

    /// The descriptors of an object.
    fn get(&self, handle: u64, kind: ObjectKind) -> CuResult<Object> {
        let found = self.lock().get(&handle).copied();
        let wanted = kind == ObjectKind::Texture;
        // CUDA reports an unknown object as an invalid value, not as an invalid handle.
        found.filter(|object| object.texture.is_some() == wanted).ok_or(CuError::INVALID_VALUE)
    }

    /// The resource of an object.
    pub fn resource(&self, handle: u64, kind: ObjectKind) -> CuResult<ResourceDescriptor> {
        Ok(self.get(handle, kind)?.resource)
    }

    /// The descriptor of a texture object.
    pub fn texture(&self, handle: u64) -> CuResult<TextureDescriptor> {
        self.get(handle, ObjectKind::Texture)?.texture.ok_or(CuError::INVALID_VALUE)
    }

    /// Destroys all objects.
    pub fn clear(&self, session: &partita_client::Session) {
        for handle in std::mem::take(&mut *self.lock()).into_keys() {
            // An object that cannot be destroyed any more ends with the session.
            let _ = session.destroy_texture(handle);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Object>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: TextureDescriptor = TextureDescriptor {
        address_modes: [0, 1, 3],
        filter: 1,
        flags: 0,
        max_anisotropy: 0,
        level_filter: 0,
        level_bias: 0.0,
        level_min: 0.0,
        level_max: 0.0,
        border: [0.0; 4],
        reserved: [0; 12],
    };

    #[test]
    fn samplers() {
        let sampler = TextureDescriptor { flags: 0x13, ..PLAIN }.sampler(None).unwrap();
        assert_eq!(sampler.address, [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Border]);
        assert!(sampler.integers && sampler.normalized && sampler.srgb);
        let check = |texture: TextureDescriptor, kind, expect| {
            assert_eq!(texture.sampler(kind).map(|_| ()), expect);
        };
        check(TextureDescriptor { flags: 4, ..PLAIN }, None, Err(CuError::INVALID_VALUE));
        check(TextureDescriptor { filter: 2, ..PLAIN }, None, Err(CuError::INVALID_VALUE));
        check(
            TextureDescriptor { address_modes: [0, 0, 4], ..PLAIN },
            None,
            Err(CuError::INVALID_VALUE),
        );
        let seamless = TextureDescriptor { flags: SEAMLESS_CUBEMAP, ..PLAIN };
        check(seamless, Some(ArrayKind::Plane), Ok(()));
        check(seamless, Some(ArrayKind::Cube), Err(CuError::NOT_SUPPORTED));
    }

    #[test]
    fn memory_that_textures_read_is_aligned_and_within_limits() {
        let resource = |what, sizes| ResourceDescriptor {
            kind: PITCH_2D,
            padding: 0,
            what,
            format: 0x20,
            channels: 2,
            sizes,
            reserved: [0; 11],
            flags: 0,
            end: 0,
        };
        for (what, sizes, expect) in [
            (512, [10, 3, 96], true),
            (256, [10, 3, 96], false),
            (512, [10, 3, 80], false),
            (512, [13, 3, 96], false),
            (512, [0, 3, 96], false),
            (512, [10, 65_001, 96], false),
            (512, [usize::MAX, 3, 96], false),
        ] {
            assert_eq!(pitched(&resource(what, sizes)).is_ok(), expect, "{what} {sizes:?}");
        }
        for (what, bytes, expect) in [
            (1024, 17, true),
            (1024, 7, false),
            (8, 64, false),
            (0, usize::MAX, false),
            (0, 1 << 31, true),
        ] {
            assert_eq!(linear(&resource(what, [bytes, 0, 0])).is_ok(), expect, "{what} {bytes}");
        }
    }
}
