//! Arrays, and texture and surface objects.
//!
//! Arrays lie above every window, in canonical order without gaps, so no launch's grants reach
//! them. An object belongs to a window; kernels of other windows do not find it.

use super::Memory;
use partita_device::{AddressRange, DeviceError};
use partita_model::texture::{
    ArrayKind, ArrayShape, Sampler, TexelFormat, TexelSource, TextureSpec,
};
use partita_model::{DeviceAddress, WindowId};
use std::collections::BTreeMap;

/// Arrays have addresses above the last window.
const ARRAY_BASE: u64 = super::cells::ADDRESS_END;
const ARRAY_ALIGNMENT: u64 = 512;

/// One level of a texture: where its texels are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    /// Address of the first texel.
    pub start: u64,
    /// Texels, rows, planes or layers.
    pub extent: [u32; 3],
    /// Bytes from one row to the next.
    pub row: u64,
    /// Bytes from one plane or layer to the next.
    pub plane: u64,
}

/// A texture object, or a surface object where it has no sampler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TextureObject {
    window: WindowId,
    /// Everything that it may touch lies here.
    pub range: AddressRange,
    /// Of its texels.
    pub format: TexelFormat,
    /// What its extents mean.
    pub kind: ArrayKind,
    /// Whether it is a row in linear memory, outside of which texels are zero.
    pub linear: bool,
    /// Its levels, at least one.
    pub levels: Vec<Level>,
    /// How it is sampled.
    pub sampler: Option<Sampler>,
}

#[derive(Debug)]
struct Array {
    window: WindowId,
    shape: ArrayShape,
}

/// All arrays and objects of the device.
#[derive(Debug)]
pub(super) struct Textures {
    arrays: BTreeMap<u64, Array>,
    objects: BTreeMap<u64, TextureObject>,
    next_array: u64,
    next_object: u64,
}

impl Default for Textures {
    fn default() -> Self {
        Textures {
            arrays: BTreeMap::new(),
            objects: BTreeMap::new(),
            next_array: ARRAY_BASE,
            next_object: 1,
        }
    }
}

impl Memory {
    /// See [`partita_device::Textures::create_array`].
    ///
    /// # Errors
    /// As there.
    pub fn create_array(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
    ) -> Result<DeviceAddress, DeviceError> {
        if !self.windows.contains_key(&window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        let start = self.textures.next_array;
        self.insert(AddressRange { start: DeviceAddress(start), bytes: shape.bytes() })?;
        self.textures.next_array = (start + shape.bytes() + 1).next_multiple_of(ARRAY_ALIGNMENT);
        self.textures.arrays.insert(start, Array { window, shape: *shape });
        Ok(DeviceAddress(start))
    }

    /// See [`partita_device::Textures::destroy_array`].
    ///
    /// # Errors
    /// As there.
    pub fn destroy_array(&mut self, array: DeviceAddress) -> Result<(), DeviceError> {
        match self.textures.arrays.remove(&array.0) {
            Some(_) => {
                self.remove(array.0);
                Ok(())
            }
            None => Err(DeviceError::BadRange { address: array, bytes: 0 }),
        }
    }

    /// See [`partita_device::Textures::create_texture`].
    ///
    /// # Errors
    /// As there.
    pub fn create_texture(
        &mut self,
        window: WindowId,
        spec: &TextureSpec,
    ) -> Result<u64, DeviceError> {
        if !self.windows.contains_key(&window) {
            return Err(DeviceError::BadId(window.to_string()));
        }
        let object = match spec.source {
            TexelSource::Array { array, first_level, levels } => {
                let bad = DeviceError::BadRange { address: array, bytes: 0 };
                let found =
                    self.textures.arrays.get(&array.0).filter(|found| found.window == window);
                let shape = found.ok_or(bad.clone())?.shape;
                let end = first_level
                    .checked_add(levels)
                    .filter(|end| *end <= shape.levels && levels > 0);
                let level = |level| {
                    let extent = shape.level_extent(level);
                    let row = u64::from(extent[0]) * u64::from(shape.format.bytes());
                    let start = array.0 + shape.level_offset(level);
                    Level { start, extent, row, plane: row * u64::from(extent[1]) }
                };
                TextureObject {
                    window,
                    range: AddressRange { start: array, bytes: shape.bytes() },
                    format: shape.format,
                    kind: shape.kind,
                    linear: false,
                    levels: (first_level..end.ok_or(bad)?).map(level).collect(),
                    sampler: spec.sampler,
                }
            }
            TexelSource::Linear { format, width, .. } => {
                Self::flat(window, spec, ArrayKind::Line, format, [width, 1, 1], 0)
            }
            TexelSource::Pitched { format, extent: [width, height], pitch, .. } => {
                Self::flat(window, spec, ArrayKind::Plane, format, [width, height, 1], pitch)
            }
        };
        let handle = self.textures.next_object;
        self.textures.next_object += 1;
        self.textures.objects.insert(handle, object);
        Ok(handle)
    }

    fn flat(
        window: WindowId,
        spec: &TextureSpec,
        kind: ArrayKind,
        format: TexelFormat,
        extent: [u32; 3],
        row: u64,
    ) -> TextureObject {
        let (start, bytes) = spec.source.range().expect("only arrays have none");
        TextureObject {
            window,
            range: AddressRange { start, bytes },
            format,
            kind,
            linear: kind == ArrayKind::Line,
            levels: vec![Level { start: start.0, extent, row, plane: 0 }],
            sampler: spec.sampler,
        }
    }

    /// See [`partita_device::Textures::destroy_texture`].
    ///
    /// # Errors
    /// As there.
    pub fn destroy_texture(&mut self, window: WindowId, texture: u64) -> Result<(), DeviceError> {
        if self.texture(window, texture).is_none() {
            return Err(DeviceError::BadId(format!("texture {texture:#x}")));
        }
        self.textures.objects.remove(&texture);
        Ok(())
    }

    /// A texture or surface object of a window.
    #[must_use]
    pub fn texture(&self, window: WindowId, handle: u64) -> Option<&TextureObject> {
        self.textures.objects.get(&handle).filter(|object| object.window == window)
    }

    /// Forgets the arrays and objects of a window.
    pub(super) fn release_textures(&mut self, window: WindowId) {
        self.textures.objects.retain(|_, object| object.window != window);
        let own = self.textures.arrays.iter().filter(|(_, array)| array.window == window);
        for start in own.map(|(&start, _)| start).collect::<Vec<_>>() {
            self.textures.arrays.remove(&start);
            self.remove(start);
        }
    }

    /// The bytes of a range that one live allocation holds.
    #[must_use]
    pub fn bytes(&self, range: AddressRange) -> Option<&[u8]> {
        let (start, view) =
            self.find(range.start.0).filter(|(start, view)| start + view.bytes >= range.end())?;
        let offset = (range.start.0 - start) as usize;
        self.allocation(view.slot).data.get(offset..offset + range.bytes as usize)
    }

    /// As [`Memory::bytes`], for writing.
    pub fn bytes_mut(&mut self, range: AddressRange) -> Option<&mut [u8]> {
        let (start, view) =
            self.find(range.start.0).filter(|(start, view)| start + view.bytes >= range.end())?;
        let offset = (range.start.0 - start) as usize;
        self.slots[view.slot].as_mut()?.data.get_mut(offset..offset + range.bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::texture::ChannelType;

    const OWN: WindowId = WindowId(1);
    const OTHER: WindowId = WindowId(2);

    #[test]
    fn objects_are_their_windows() {
        let mut memory = Memory::new(1 << 30);
        for window in [OWN, OTHER] {
            memory.reserve(window, 1 << 24).unwrap();
        }
        let format = TexelFormat::new(ChannelType::F32, 1).unwrap();
        let shape = ArrayShape::new(ArrayKind::Plane, format, [5, 3, 1], 2).unwrap();
        let array = memory.create_array(OWN, &shape).unwrap();
        assert_eq!(memory.used(), 4 * (15 + 2));
        let spec = |first_level, levels| TextureSpec {
            source: TexelSource::Array { array, first_level, levels },
            sampler: None,
        };
        for (window, first, levels) in [(OTHER, 0, 1), (OWN, 0, 0), (OWN, 1, 2), (OWN, u32::MAX, 2)]
        {
            assert!(
                memory.create_texture(window, &spec(first, levels)).is_err(),
                "{first} {levels}"
            );
        }
        let handle = memory.create_texture(OWN, &spec(1, 1)).unwrap();
        assert!(memory.texture(OTHER, handle).is_none());
        assert!(memory.destroy_texture(OTHER, handle).is_err());
        let object = memory.texture(OWN, handle).unwrap();
        assert_eq!(
            object.levels,
            [Level { start: array.0 + 60, extent: [2, 1, 1], row: 8, plane: 8 }]
        );
        let range = object.range;
        assert_eq!(memory.bytes(range).unwrap().len(), 68);
        memory.destroy_array(array).unwrap();
        assert!(memory.destroy_array(array).is_err() && memory.bytes(range).is_none());

        memory.create_array(OWN, &shape).unwrap();
        memory.release(OWN).unwrap();
        assert_eq!(memory.used(), 0);
        assert!(memory.texture(OWN, handle).is_none());
    }
}
