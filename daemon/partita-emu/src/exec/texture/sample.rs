//! Fetching, addressing and filtering (CUDA C++ Programming Guide, appendix "Texture Fetching").
//!
//! With N the texture's size, T its texels and x a coordinate (times N where it is normalised):
//!
//! - point: T\[floor(x)\];
//! - linear: (1−α) T\[i\] + α T\[i+1\], i = floor(x−0.5), α = frac(x−0.5) with 8 bits of fraction;
//!   so in each dimension.
//!
//! x−0.5 is rounded to 8 bits of fraction, ties to even, before it is taken apart: α = 1 at i is α
//! = 0 at i+1. The weighted sum is exact but for one rounding to `f32`. An address mode changes the
//! index of a texel, not the coordinate.

use super::format::{self, Colour};
use super::{Ask, Detail, Geometry, TextureKind};
use crate::memory::{Level, TextureObject};
use partita_model::texture::{AddressMode, FilterMode, Sampler};

/// A texture whose bytes are at hand.
pub struct Texels<'a> {
    /// The texture.
    pub object: &'a TextureObject,
    /// How it is sampled.
    pub sampler: &'a Sampler,
    /// The bytes of its range.
    pub bytes: &'a [u8],
}

/// The point at which a texture is sampled.
#[derive(Clone, Copy)]
struct Point {
    /// Coordinates, normalised or in texels.
    at: [f64; 3],
    normalized: bool,
    /// Layer of a layered texture, or index of a face.
    layer: Option<u32>,
    /// Number of dimensions in `at`.
    dimensions: usize,
}

/// The two texels around a coordinate, and the second one's weight in 256ths. `None` is the border.
#[derive(Clone, Copy)]
struct Between {
    texels: [Option<u32>; 2],
    weight: u32,
}

impl Texels<'_> {
    /// `tex`.
    pub fn sample(&self, ask: &Ask<'_>, touched: &mut Vec<(u64, u32)>) -> Colour {
        let TextureKind::Sample { integer, detail, .. } = ask.op.kind else { return [0; 4] };
        if integer {
            return self.fetch(ask, detail, touched);
        }
        let point = self.point(ask);
        let last = self.object.levels.len() as u32 - 1;
        let floats = format::reads_floats(self.object.format, self.sampler);
        let smooth = floats && self.sampler.level_filter == FilterMode::Linear;
        let detail = self.detail(ask, detail, &point);
        let (low, weight) = if smooth {
            let fixed = (detail * 256.0).round_ties_even() as u32;
            (fixed >> 8, fixed & 255)
        } else {
            ((detail + 0.5).floor() as u32, 0)
        };
        let near = self.filter(low.min(last), &point, touched);
        if weight == 0 || low >= last {
            return near;
        }
        let far = self.filter(low + 1, &point, touched);
        let mix = |index: usize| {
            let (near, far) = (f32::from_bits(near[index]), f32::from_bits(far[index]));
            let sum =
                f64::from(256 - weight) * f64::from(near) + f64::from(weight) * f64::from(far);
            ((sum / 256.0) as f32).to_bits()
        };
        [0, 1, 2, 3].map(mix)
    }

    /// `tld4`: a component of the four texels that a bilinear filter would read, counterclockwise
    /// from the lower left.
    pub fn gather(&self, ask: &Ask<'_>, component: usize, touched: &mut Vec<(u64, u32)>) -> Colour {
        let point = self.point(ask);
        let level = &self.object.levels[0];
        let [x, y] = [0, 1].map(|axis| self.between(axis, &point, level.extent[axis]));
        [(0, 1), (1, 1), (1, 0), (0, 0)].map(|(right, upper)| {
            let texel = [x.texels[right], y.texels[upper], Some(self.layer(&point, level))];
            self.texel(level, texel, touched)[component]
        })
    }

    /// Fetches the texel at integer coordinates.
    fn fetch(&self, ask: &Ask<'_>, detail: Detail, touched: &mut Vec<(u64, u32)>) -> Colour {
        let asked = if detail == Detail::Level { ask.further[0] as u32 } else { 0 };
        let level = &self.object.levels[asked.min(self.object.levels.len() as u32 - 1) as usize];
        let dimensions = dimensions(ask.op.geometry);
        let layer = ask.op.geometry.has_layer().then_some(ask.layer);
        let point = Point { at: [0.0; 3], normalized: false, layer, dimensions };
        let mut texel = [Some(0), Some(0), Some(self.layer(&point, level))];
        for (axis, place) in texel.iter_mut().enumerate().take(dimensions) {
            let index = i64::from(ask.coordinates[axis].cast_signed());
            *place = if self.object.linear {
                u32::try_from(index).ok().filter(|&index| index < level.extent[axis])
            } else {
                resolve(index, level.extent[axis], self.mode(axis, false))
            };
        }
        // Linear memory reads as zero outside, whatever the border mode.
        if self.object.linear && texel.contains(&None) {
            return [0; 4];
        }
        self.texel(level, texel, touched)
    }

    fn point(&self, ask: &Ask<'_>) -> Point {
        let coordinates = ask.coordinates.map(|bits| {
            let number = f64::from(f32::from_bits(bits));
            if number.is_nan() { 0.0 } else { number }
        });
        let geometry = ask.op.geometry;
        if geometry.is_cube() {
            let (face, at) = face(coordinates);
            let layer = if geometry.has_layer() { ask.layer.saturating_mul(6) } else { 0 };
            // A layer beyond the last selects the last cube.
            let most = self.object.levels[0].extent[2].saturating_sub(6);
            let layer = Some(layer.min(most) + face);
            return Point { at: [at[0], at[1], 0.0], normalized: true, layer, dimensions: 2 };
        }
        Point {
            at: coordinates,
            normalized: self.sampler.normalized,
            layer: geometry.has_layer().then_some(ask.layer),
            dimensions: dimensions(geometry),
        }
    }

    /// The level of detail, from 0 to the last level.
    fn detail(&self, ask: &Ask<'_>, detail: Detail, point: &Point) -> f64 {
        let last = self.object.levels.len() - 1;
        if last == 0 {
            return 0.0;
        }
        let number = |index: usize| f64::from(f32::from_bits(ask.further[index] as u32));
        let asked = match detail {
            Detail::Base => 0.0,
            Detail::Level => number(0),
            Detail::Gradients => {
                let count = ask.further.len() / 2;
                let length = |first: usize| {
                    let step = |axis: usize| {
                        let size =
                            if point.normalized { self.object.levels[0].extent[axis] } else { 1 };
                        number(first + axis) * f64::from(size)
                    };
                    (0..count.min(point.dimensions))
                        .map(|axis| step(axis).powi(2))
                        .sum::<f64>()
                        .sqrt()
                };
                length(0).max(length(count)).log2()
            }
        };
        let sampler = self.sampler;
        let (low, high) = (f64::from(sampler.level_min.get()), f64::from(sampler.level_max.get()));
        let biased = asked + f64::from(sampler.level_bias.get());
        // `max` and `min` of a number and a NaN give the number.
        biased.max(low).min(high).max(0.0).min(last as f64)
    }

    /// The colour at a point of a level.
    fn filter(&self, level: u32, point: &Point, touched: &mut Vec<(u64, u32)>) -> Colour {
        let level = &self.object.levels[level as usize];
        let floats = format::reads_floats(self.object.format, self.sampler);
        let layer = self.layer(point, level);
        if !floats || self.sampler.filter == FilterMode::Point {
            let mut texel = [Some(0), Some(0), Some(layer)];
            for (axis, place) in texel.iter_mut().enumerate().take(point.dimensions) {
                let size = level.extent[axis];
                let index = texels(point, axis, size).floor() as i64;
                *place = resolve(index, size, self.mode(axis, point.normalized));
            }
            return self.texel(level, texel, touched);
        }
        let mut axes = [Between { texels: [Some(0); 2], weight: 0 }; 3];
        axes[2].texels = [Some(layer); 2];
        for (axis, between) in axes.iter_mut().enumerate().take(point.dimensions) {
            *between = self.between(axis, point, level.extent[axis]);
        }
        let mut sum = [0.0_f64; 4];
        for corner in 0..1_usize << point.dimensions {
            let mut weight = 1.0;
            let mut texel = [None; 3];
            for (axis, place) in texel.iter_mut().enumerate() {
                let second = corner >> axis & 1;
                *place = axes[axis].texels[second];
                if axis < point.dimensions {
                    let share = axes[axis].weight;
                    weight *= f64::from(if second == 1 { share } else { 256 - share }) / 256.0;
                }
            }
            let colour = self.texel(level, texel, touched);
            for (sum, component) in sum.iter_mut().zip(colour) {
                *sum += weight * f64::from(f32::from_bits(component));
            }
        }
        sum.map(|component| (component as f32).to_bits())
    }

    fn between(&self, axis: usize, point: &Point, size: u32) -> Between {
        let fixed = (texels(point, axis, size) * 256.0 - 128.0).round_ties_even() as i64;
        let mode = self.mode(axis, point.normalized);
        let first = fixed >> 8;
        let texels = [first, first.saturating_add(1)].map(|index| resolve(index, size, mode));
        Between { texels, weight: (fixed & 255) as u32 }
    }

    fn mode(&self, axis: usize, normalized: bool) -> AddressMode {
        match self.sampler.address[axis] {
            AddressMode::Wrap | AddressMode::Mirror if !normalized => AddressMode::Clamp,
            mode => mode,
        }
    }

    fn layer(&self, point: &Point, level: &Level) -> u32 {
        point.layer.unwrap_or(0).min(level.extent[2] - 1)
    }

    fn texel(
        &self,
        level: &Level,
        texel: [Option<u32>; 3],
        touched: &mut Vec<(u64, u32)>,
    ) -> Colour {
        let (format, sampler) = (self.object.format, self.sampler);
        let [Some(x), Some(y), Some(z)] = texel else {
            return format::border(format::reads_floats(format, sampler), sampler);
        };
        let size = format.bytes();
        let at = level.start
            + u64::from(x) * u64::from(size)
            + u64::from(y) * level.row
            + u64::from(z) * level.plane;
        touched.push((at, size));
        let offset = (at - self.object.range.start.0) as usize;
        match self.bytes.get(offset..offset + size as usize) {
            Some(bytes) => format::colour(format, sampler, bytes),
            None => [0; 4],
        }
    }
}

const fn dimensions(geometry: Geometry) -> usize {
    if geometry.is_cube() { 2 } else { geometry.coordinates() }
}

/// A coordinate, converted to texels.
fn texels(point: &Point, axis: usize, size: u32) -> f64 {
    if point.normalized { point.at[axis] * f64::from(size) } else { point.at[axis] }
}

/// The texel that an index selects; `None` is the border.
fn resolve(index: i64, size: u32, mode: AddressMode) -> Option<u32> {
    let size = i64::from(size);
    let inside = match mode {
        AddressMode::Clamp => index.clamp(0, size - 1),
        AddressMode::Wrap => index.rem_euclid(size),
        AddressMode::Mirror => {
            let place = index.rem_euclid(2 * size);
            if place < size { place } else { 2 * size - 1 - place }
        }
        AddressMode::Border if (0..size).contains(&index) => index,
        AddressMode::Border => return None,
    };
    Some(inside as u32)
}

/// The face of a cube that a direction meets, and the normalised coordinates on that face. CUDA C++
/// Programming Guide, "Cubemap Textures", has the table of faces, m, s and t.
fn face([x, y, z]: [f64; 3]) -> (u32, [f64; 2]) {
    let (face, m, s, t) = if x.abs() >= y.abs() && x.abs() >= z.abs() {
        if x >= 0.0 { (0, x, -z, -y) } else { (1, -x, z, -y) }
    } else if y.abs() >= z.abs() {
        if y >= 0.0 { (2, y, x, z) } else { (3, -y, x, -z) }
    } else if z >= 0.0 {
        (4, z, x, -y)
    } else {
        (5, -z, -x, -y)
    };
    if m == 0.0 {
        return (face, [0.5; 2]);
    }
    (face, [(s / m + 1.0) / 2.0, (t / m + 1.0) / 2.0])
}
