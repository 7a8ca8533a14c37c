//! Arrays, texture and surface objects of windows.
//!
//! An array's address is a number above all memory. Copies count its bytes in canonical order
//! ([`partita_model::texture`]). The driver stores the bytes in a layout of its own, so a run of
//! bytes is copied as boxes ([`boxes`]): parts of rows, whole rows, whole planes.
//!
//! Where the driver itself allocates an array's memory ([`MemoryBy::Driver`]), the array is made by
//! the loading thread in a phase, and the request is tried again when the array is there.
//!
//! An object keeps its array alive: after the program destroys the array, a kernel still reads the
//! array's last contents through the object.

use crate::driver::{Array, BoxEnd, Context, Failure, MemoryBy, Object, Place3, Stream};
use partita_device::DeviceError;
use partita_model::texture::{ArrayKind, ArrayShape, TexelSource, TextureSpec};
use partita_model::{DeviceAddress, WindowId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Arrays have numbers from here on, above all addresses of a GPU.
pub(crate) const FIRST: u64 = 1 << 60;
const ALIGNMENT: u64 = 512;

/// An array and its shape, for copies.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) array: Array,
    pub(crate) shape: ArrayShape,
    window: WindowId,
}

/// Bytes of an array in canonical order.
#[derive(Clone, Debug)]
pub(crate) struct Texels {
    pub(crate) stored: Arc<Stored>,
    pub(crate) offset: u64,
}

impl Texels {
    /// The boxes that make up a part of these bytes.
    pub(crate) fn boxes(&self, at: u64, bytes: u64) -> Vec<Part> {
        boxes(&self.stored.shape, self.offset + at, bytes)
    }

    /// The end of a copy, from a place in the array on.
    pub(crate) fn end(&self, place: Place3) -> BoxEnd<'_> {
        BoxEnd::Array(&self.stored.array, place)
    }
}

/// An object that awaits its destruction by the driver, which may wait.
#[derive(Debug)]
pub(crate) enum Ended {
    Array(Arc<Stored>),
    Object(Object, Option<Arc<Stored>>),
}

impl Ended {
    /// Destroys the object. An array is destroyed with its last owner.
    pub(crate) fn destroy(self, stream: &Stream) -> Result<(), Failure> {
        let array = match self {
            Ended::Array(array) => Some(array),
            Ended::Object(object, array) => {
                object.destroy()?;
                array
            }
        };
        match array.and_then(Arc::into_inner) {
            Some(stored) => stored.array.destroy(stream),
            None => Ok(()),
        }
    }
}

struct Texture {
    object: Object,
    window: WindowId,
    array: Option<Arc<Stored>>,
}

pub(crate) struct Arrays {
    context: Arc<Context>,
    /// Whether the driver supports arrays whose memory comes later.
    can_defer: bool,
    next: u64,
    arrays: BTreeMap<u64, Arc<Stored>>,
    textures: BTreeMap<u64, Texture>,
    /// Arrays that the loading thread makes, each shape of a window once.
    asked: Vec<(WindowId, ArrayShape)>,
    /// Arrays that it has made.
    made: Vec<(WindowId, ArrayShape, Result<Array, Failure>)>,
}

fn refused(failure: &Failure) -> DeviceError {
    DeviceError::Unsupported(failure.to_string())
}

impl Arrays {
    pub(crate) fn new(context: &Arc<Context>, can_defer: bool) -> Arrays {
        Arrays {
            context: Arc::clone(context),
            can_defer,
            next: FIRST,
            arrays: BTreeMap::new(),
            textures: BTreeMap::new(),
            asked: Vec::new(),
            made: Vec::new(),
        }
    }

    fn memory_by(&self, kind: ArrayKind) -> MemoryBy {
        if self.can_defer { MemoryBy::of(kind) } else { MemoryBy::Driver }
    }

    fn made_at(&self, window: WindowId, shape: &ArrayShape) -> Option<usize> {
        self.made.iter().position(|(of, made, _)| (of, made) == (&window, shape))
    }

    /// Whether the loading thread must make an array first. Notes that it is asked to.
    pub(crate) fn must_ask(&mut self, window: WindowId, shape: &ArrayShape) -> bool {
        let is_made = self.made_at(window, shape).is_some();
        if self.memory_by(shape.kind) == MemoryBy::Stream || is_made {
            return false;
        }
        let asked = (window, *shape);
        let is_new = !self.asked.contains(&asked);
        if is_new {
            self.asked.push(asked);
        }
        is_new
    }

    /// Takes an array that the loading thread has made. What nobody awaits any more is returned.
    pub(crate) fn enter(
        &mut self,
        window: WindowId,
        shape: ArrayShape,
        result: Result<Array, Failure>,
    ) -> Option<Ended> {
        let asked = self.asked.iter().position(|asked| *asked == (window, shape));
        match (asked, result) {
            (Some(asked), result) => {
                self.asked.swap_remove(asked);
                self.made.push((window, shape, result));
                None
            }
            (None, Ok(array)) => Some(Ended::Array(Arc::new(Stored { array, shape, window }))),
            (None, Err(_)) => None,
        }
    }

    /// Creates an array. Returns its address and the bytes to zero. [`DeviceError::Busy`] while
    /// the loading thread makes it.
    pub(crate) fn create(
        &mut self,
        window: WindowId,
        shape: &ArrayShape,
        stream: &Stream,
    ) -> Result<(DeviceAddress, Arc<Stored>), DeviceError> {
        let made = match self.memory_by(shape.kind) {
            MemoryBy::Stream => Array::new(&self.context, shape, stream, MemoryBy::Stream),
            MemoryBy::Driver => {
                let at = self.made_at(window, shape).ok_or(DeviceError::Busy)?;
                self.made.swap_remove(at).2
            }
        };
        let array = made.map_err(|failure| {
            let available = self.context.memory().map_or(0, |(free, _)| free);
            let out = DeviceError::OutOfMemory { wanted: shape.bytes(), available };
            if failure.is_out_of_memory() { out } else { refused(&failure) }
        })?;
        let stored = Arc::new(Stored { array, shape: *shape, window });
        let start = self.next;
        self.next = (start + shape.bytes() + 1).next_multiple_of(ALIGNMENT);
        self.arrays.insert(start, Arc::clone(&stored));
        Ok((DeviceAddress(start), stored))
    }

    pub(crate) fn destroy(&mut self, array: DeviceAddress) -> Result<Ended, DeviceError> {
        let found = self.arrays.remove(&array.0);
        found.map(Ended::Array).ok_or(DeviceError::BadRange { address: array, bytes: 0 })
    }

    pub(crate) fn create_object(
        &mut self,
        window: WindowId,
        spec: &TextureSpec,
    ) -> Result<u64, DeviceError> {
        let array = match spec.source {
            TexelSource::Array { array, first_level, levels } => {
                let bad = DeviceError::BadRange { address: array, bytes: 0 };
                let found = self.arrays.get(&array.0).filter(|found| found.window == window);
                let found = found.ok_or_else(|| bad.clone())?;
                let end = first_level.checked_add(levels);
                if levels == 0 || end.is_none_or(|end| end > found.shape.levels) {
                    return Err(bad);
                }
                Some(Arc::clone(found))
            }
            _ => None,
        };
        let parts = array.as_ref().map(|stored| (&stored.array, &stored.shape));
        let object = Object::new(&self.context, &spec.source, parts, spec.sampler.as_ref())
            .map_err(|failure| refused(&failure))?;
        let number = object.number();
        self.textures.insert(number, Texture { object, window, array });
        Ok(number)
    }

    pub(crate) fn destroy_object(
        &mut self,
        window: WindowId,
        number: u64,
    ) -> Result<Ended, DeviceError> {
        let is_own = self.textures.get(&number).is_some_and(|texture| texture.window == window);
        let texture = is_own.then(|| self.textures.remove(&number)).flatten();
        let Texture { object, array, .. } =
            texture.ok_or_else(|| DeviceError::BadId(format!("texture {number:#x}")))?;
        Ok(Ended::Object(object, array))
    }

    /// Removes all arrays and objects of a window.
    pub(crate) fn release(&mut self, window: WindowId) -> Vec<Ended> {
        let textures = std::mem::take(&mut self.textures).into_iter();
        let (objects, others): (BTreeMap<u64, Texture>, _) =
            textures.partition(|(_, texture)| texture.window == window);
        self.textures = others;
        let arrays = std::mem::take(&mut self.arrays).into_iter();
        let (arrays, others): (BTreeMap<u64, Arc<Stored>>, _) =
            arrays.partition(|(_, stored)| stored.window == window);
        self.arrays = others;
        let mut ended: Vec<Ended> = objects
            .into_values()
            .map(|texture| Ended::Object(texture.object, texture.array))
            .collect();
        ended.extend(arrays.into_values().map(Ended::Array));
        // The loading thread may still be making some: nobody awaits them any more.
        self.asked.retain(|(of, _)| *of != window);
        let (made, others): (Vec<_>, _) =
            std::mem::take(&mut self.made).into_iter().partition(|(of, ..)| *of == window);
        self.made = others;
        ended.extend(made.into_iter().filter_map(|(window, shape, result)| {
            let stored = result.ok().map(|array| Stored { array, shape, window });
            stored.map(|stored| Ended::Array(Arc::new(stored)))
        }));
        ended
    }

    /// The array that holds a range of bytes. `None` unless the range is inside one array and
    /// covers whole texels.
    pub(crate) fn at(&self, address: DeviceAddress, bytes: u64) -> Option<Texels> {
        let (start, stored) = self.arrays.range(..=address.0).next_back()?;
        let offset = address.0 - start;
        let texel = u64::from(stored.shape.format.bytes());
        let end = offset.checked_add(bytes)?;
        let whole = offset.is_multiple_of(texel) && bytes.is_multiple_of(texel);
        (whole && end <= stored.shape.bytes())
            .then(|| Texels { stored: Arc::clone(stored), offset })
    }
}

/// A box of an array's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) place: Place3,
    /// Bytes a row, rows, planes.
    pub(crate) extent: [u64; 3],
    /// The offset of the box's bytes in the run.
    pub(crate) at: u64,
}

impl Part {
    pub(crate) fn bytes(&self) -> u64 {
        self.extent.iter().product()
    }
}

/// Splits a run of bytes in canonical order into consecutive boxes.
pub(crate) fn boxes(shape: &ArrayShape, offset: u64, bytes: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut at, end) = (offset, offset + bytes);
    for level in 0..shape.levels {
        let first = shape.level_offset(level);
        let last = first + shape.level_bytes(level);
        while at < end.min(last) && at >= first {
            let [width, height, _] = shape.level_extent(level).map(u64::from);
            let row = width * u64::from(shape.format.bytes());
            let plane = row * height;
            let inside = at - first;
            let rest = end.min(last) - at;
            let place = [inside % row, inside % plane / row, inside / plane];
            let extent = if place[0] != 0 || rest < row {
                [rest.min(row - place[0]), 1, 1]
            } else if place[1] != 0 || rest < plane {
                [row, (rest / row).min(height - place[1]), 1]
            } else {
                [row, height, rest / plane]
            };
            let part = Part { place: Place3 { level, at: place }, extent, at: at - offset };
            at += part.bytes();
            parts.push(part);
        }
    }
    parts
}

/// Splits a run of bytes in two arrays into boxes. Where rows and planes agree, both arrays have
/// the same boxes; elsewhere boxes are parts of rows.
pub(crate) fn common_boxes(to: &Texels, from: &Texels, bytes: u64) -> Vec<(Part, Part)> {
    let (there, here) = (to.boxes(0, bytes), from.boxes(0, bytes));
    if there.len() == here.len()
        && there.iter().zip(&here).all(|(to, from)| to.extent == from.extent)
    {
        return there.into_iter().zip(here).collect();
    }
    let mut common = Vec::new();
    let mut at = 0;
    while at < bytes {
        let row =
            |texels: &Texels| texels.boxes(at, bytes - at).first().map_or(0, |part| part.extent[0]);
        let length = row(to).min(row(from));
        let one = |texels: &Texels| texels.boxes(at, length).into_iter().next();
        let (Some(there), Some(here)) = (one(to), one(from)) else { break };
        common.push((there, here));
        at += length;
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::texture::{ChannelType, TexelFormat};

    /// The boxes of every run cover it in order.
    #[test]
    fn runs_are_boxes() {
        let format = TexelFormat::new(ChannelType::U8, 4).unwrap();
        let shape = ArrayShape::new(ArrayKind::Volume, format, [5, 3, 4], 3).unwrap();
        let mut order = Vec::new();
        for level in 0..3 {
            let [width, height, depth] = shape.level_extent(level).map(u64::from);
            for (z, y, x) in (0..depth)
                .flat_map(|z| (0..height).map(move |y| (z, y)))
                .flat_map(|(z, y)| (0..width * 4).map(move |x| (z, y, x)))
            {
                order.push((level, [x, y, z]));
            }
        }
        assert_eq!(order.len() as u64, shape.bytes());
        for offset in (0..shape.bytes()).step_by(4) {
            for bytes in (4..=shape.bytes() - offset).step_by(4) {
                let parts = boxes(&shape, offset, bytes);
                let mut found = Vec::new();
                for part in &parts {
                    assert_eq!(part.at, found.len() as u64);
                    let [width, height, depth] = part.extent;
                    let [x, y, z] = part.place.at;
                    for (k, j, i) in (0..depth)
                        .flat_map(|k| (0..height).map(move |j| (k, j)))
                        .flat_map(|(k, j)| (0..width).map(move |i| (k, j, i)))
                    {
                        found.push((part.place.level, [x + i, y + j, z + k]));
                    }
                }
                let start = usize::try_from(offset).unwrap();
                assert_eq!(
                    found,
                    order[start..start + usize::try_from(bytes).unwrap()],
                    "{offset} {bytes}"
                );
                assert!(parts.len() <= 5 * 3, "{}", parts.len());
            }
        }
    }
}
