//! Arrays, texture objects and surface objects: the words of the CUDA Driver API's "Texture Object
//! Management" that several rooms share, and the order of an array's bytes.
//!
//! Copies see an array in its **canonical order**: level by level, in a level layer by layer (or
//! plane by plane), row by row, without gaps. A device may store it in another order.

use serde::{Deserialize, Serialize};

/// Type of a texel's channel. The numbers are those of CUDA's `CUarray_format`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u32)]
#[expect(missing_docs, reason = "each is the type of that name and size in bits")]
pub enum ChannelType {
    U8 = 0x01,
    U16 = 0x02,
    U32 = 0x03,
    S8 = 0x08,
    S16 = 0x09,
    S32 = 0x0a,
    F16 = 0x10,
    F32 = 0x20,
}

impl ChannelType {
    const ALL: [ChannelType; 8] = [
        ChannelType::U8,
        ChannelType::U16,
        ChannelType::U32,
        ChannelType::S8,
        ChannelType::S16,
        ChannelType::S32,
        ChannelType::F16,
        ChannelType::F32,
    ];

    /// The type of a `CUarray_format`, where it is one of these.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|channel| channel.number() == number)
    }

    /// Its `CUarray_format`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            ChannelType::U8 | ChannelType::S8 => 1,
            ChannelType::U16 | ChannelType::S16 | ChannelType::F16 => 2,
            ChannelType::U32 | ChannelType::S32 | ChannelType::F32 => 4,
        }
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, ChannelType::F16 | ChannelType::F32)
    }
}

/// Format of a texel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TexelFormat {
    channel: ChannelType,
    channels: u8,
}

impl TexelFormat {
    /// `channels` of 1, 2 or 4.
    #[must_use]
    pub fn new(channel: ChannelType, channels: u32) -> Option<Self> {
        let count = u8::try_from(channels).ok().filter(|count| matches!(count, 1 | 2 | 4))?;
        Some(TexelFormat { channel, channels: count })
    }

    /// Type of each channel.
    #[must_use]
    pub const fn channel(self) -> ChannelType {
        self.channel
    }

    /// Channels: 1, 2 or 4.
    #[must_use]
    pub const fn channels(self) -> u32 {
        self.channels as u32
    }

    /// Size in bytes: a power of two up to 16.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.channel.bytes() * self.channels as u32
    }
}

/// The meaning of an array's extents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[repr(u32)]
pub enum ArrayKind {
    /// One dimension.
    Line = 0,
    /// Two dimensions.
    Plane = 1,
    /// Three dimensions: the depth counts planes.
    Volume = 2,
    /// Layers of one dimension: the depth counts them.
    LineLayers = 3,
    /// Layers of two dimensions: the depth counts them.
    PlaneLayers = 4,
    /// Six square faces.
    Cube = 5,
    /// Layers of six faces: the depth counts faces.
    CubeLayers = 6,
}

impl ArrayKind {
    const ALL: [ArrayKind; 7] = [
        ArrayKind::Line,
        ArrayKind::Plane,
        ArrayKind::Volume,
        ArrayKind::LineLayers,
        ArrayKind::PlaneLayers,
        ArrayKind::Cube,
        ArrayKind::CubeLayers,
    ];

    /// The kind of a number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }

    /// Largest width, height and depth (CUDA C++ Programming Guide, "Technical Specifications per
    /// Compute Capability", 9.0).
    #[must_use]
    pub const fn limits(self) -> [u32; 3] {
        match self {
            ArrayKind::Line => [131_072, 1, 1],
            ArrayKind::Plane => [131_072, 65_536, 1],
            ArrayKind::Volume => [16_384, 16_384, 16_384],
            ArrayKind::LineLayers => [32_768, 1, 2048],
            ArrayKind::PlaneLayers => [32_768, 32_768, 2048],
            ArrayKind::Cube => [32_768, 32_768, 6],
            ArrayKind::CubeLayers => [32_768, 32_768, 2046],
        }
    }
}

/// The shape of an array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ArrayShape {
    /// The meaning of the extents.
    pub kind: ArrayKind,
    /// Format of every texel.
    pub format: TexelFormat,
    /// Texels in a row, rows in a plane, planes or layers or faces. Those that the kind has not are
    /// 1.
    pub extent: [u32; 3],
    /// Mipmap levels, at least 1.
    pub levels: u32,
}

impl ArrayShape {
    /// The shape, where its extents are within the kind's limits and its levels are no more than
    /// halving gives.
    #[must_use]
    pub fn new(
        kind: ArrayKind,
        format: TexelFormat,
        extent: [u32; 3],
        levels: u32,
    ) -> Option<Self> {
        let [width, height, depth] = extent;
        let within =
            extent.iter().zip(kind.limits()).all(|(&size, limit)| (1..=limit).contains(&size));
        let faces = match kind {
            ArrayKind::Cube => width == height && depth == 6,
            ArrayKind::CubeLayers => width == height && depth.is_multiple_of(6),
            _ => true,
        };
        let halved = if kind == ArrayKind::Volume {
            width.max(height).max(depth)
        } else {
            width.max(height)
        };
        let most = u32::BITS - halved.leading_zeros();
        (within && faces && (1..=most).contains(&levels)).then_some(ArrayShape {
            kind,
            format,
            extent,
            levels,
        })
    }

    /// Extents of a level: each halving rounds down, to no less than 1; layers stay.
    #[must_use]
    pub fn level_extent(&self, level: u32) -> [u32; 3] {
        let halved = |size: u32| size.checked_shr(level).unwrap_or(0).max(1);
        let [width, height, depth] = self.extent;
        let depth = if self.kind == ArrayKind::Volume { halved(depth) } else { depth };
        [halved(width), halved(height), depth]
    }

    /// Size of a level.
    #[must_use]
    pub fn level_bytes(&self, level: u32) -> u64 {
        self.level_extent(level).iter().map(|&size| u64::from(size)).product::<u64>()
            * u64::from(self.format.bytes())
    }

    /// Offset in bytes of a level in the canonical order. For the number of levels it is the size
    /// of the array.
    #[must_use]
    pub fn level_offset(&self, level: u32) -> u64 {
        (0..level).map(|level| self.level_bytes(level)).sum()
    }

    /// Size of all levels. Extents within the limits stay far below 2^64.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.level_offset(self.levels)
    }
}

/// An `f32` by its bits, so that its owners can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FloatBits(pub u32);

impl FloatBits {
    /// The number.
    #[must_use]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl From<f32> for FloatBits {
    fn from(number: f32) -> Self {
        FloatBits(number.to_bits())
    }
}

/// The meaning of a coordinate outside of the texture. The numbers are those of CUDA's
/// `CUaddress_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(u32)]
pub enum AddressMode {
    /// The texture repeats. Of normalised coordinates only; others clamp.
    Wrap = 0,
    /// The texel at the edge.
    #[default]
    Clamp = 1,
    /// The texture repeats, every other time mirrored. Of normalised coordinates only; others
    /// clamp.
    Mirror = 2,
    /// The border's colour.
    Border = 3,
}

impl AddressMode {
    /// The mode of a `CUaddress_mode`.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [AddressMode::Wrap, AddressMode::Clamp, AddressMode::Mirror, AddressMode::Border]
            .into_iter()
            .find(|mode| *mode as u32 == number)
    }
}

/// The value between texels or levels. The numbers are those of CUDA's `CUfilter_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(u32)]
pub enum FilterMode {
    /// The nearest texel or level.
    #[default]
    Point = 0,
    /// The weighted mean of the neighbours.
    Linear = 1,
}

impl FilterMode {
    /// The mode of a `CUfilter_mode`.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [FilterMode::Point, FilterMode::Linear].into_iter().find(|mode| *mode as u32 == number)
    }
}

/// The sampling of a texture (`CUDA_TEXTURE_DESC`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Sampler {
    /// Address mode of each dimension.
    pub address: [AddressMode; 3],
    /// Filter between texels.
    pub filter: FilterMode,
    /// Filter between levels.
    pub level_filter: FilterMode,
    /// Integers are read as such, not as numbers from 0 or −1 to 1 (`CU_TRSF_READ_AS_INTEGER`).
    pub integers: bool,
    /// Coordinates go from 0 to 1 (`CU_TRSF_NORMALIZED_COORDINATES`).
    pub normalized: bool,
    /// 8-bit colours are made linear (`CU_TRSF_SRGB`).
    pub srgb: bool,
    /// Added to the level of detail.
    pub level_bias: FloatBits,
    /// Least level of detail.
    pub level_min: FloatBits,
    /// Greatest level of detail.
    pub level_max: FloatBits,
    /// The colour outside of the texture under [`AddressMode::Border`].
    pub border: [FloatBits; 4],
}

/// The place of a texture's or surface's texels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum TexelSource {
    /// Levels of an array.
    Array {
        /// The array.
        array: crate::DeviceAddress,
        /// First level.
        first_level: u32,
        /// Number of levels, at least 1.
        levels: u32,
    },
    /// A row in linear memory.
    Linear {
        /// First texel.
        address: crate::DeviceAddress,
        /// Format of every texel.
        format: TexelFormat,
        /// Texels.
        width: u32,
    },
    /// Rows in linear memory.
    Pitched {
        /// First texel.
        address: crate::DeviceAddress,
        /// Format of every texel.
        format: TexelFormat,
        /// Texels in a row, and rows.
        extent: [u32; 2],
        /// Bytes from one row to the next.
        pitch: u64,
    },
}

impl TexelSource {
    /// Most texels of [`TexelSource::Linear`] (CUDA C++ Programming Guide, "Technical
    /// Specifications per Compute Capability", 9.0).
    pub const LINEAR_LIMIT: u32 = 1 << 28;
    /// Largest width and height of [`TexelSource::Pitched`].
    pub const PITCHED_LIMITS: [u32; 2] = [131_072, 65_000];

    /// First byte and size in bytes of the linear memory that it covers; `None` for arrays.
    #[must_use]
    pub fn range(&self) -> Option<(crate::DeviceAddress, u64)> {
        match *self {
            TexelSource::Array { .. } => None,
            TexelSource::Linear { address, format, width } => {
                Some((address, u64::from(width) * u64::from(format.bytes())))
            }
            TexelSource::Pitched { address, format, extent: [width, height], pitch } => {
                let last = pitch.saturating_mul(u64::from(height).saturating_sub(1));
                Some((address, last.saturating_add(u64::from(width) * u64::from(format.bytes()))))
            }
        }
    }
}

/// A texture object, or a surface object where there is no sampler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TextureSpec {
    /// Its texels.
    pub source: TexelSource,
    /// Their sampling.
    pub sampler: Option<Sampler>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_limits() {
        let format = TexelFormat::new(ChannelType::F32, 2).unwrap();
        let check = |kind, extent, levels, expect: bool| {
            assert_eq!(
                ArrayShape::new(kind, format, extent, levels).is_some(),
                expect,
                "{kind:?} {extent:?} {levels}"
            );
        };
        check(ArrayKind::Plane, [5, 3, 1], 3, true);
        check(ArrayKind::Plane, [5, 3, 1], 4, false);
        check(ArrayKind::Plane, [5, 3, 2], 1, false);
        check(ArrayKind::Plane, [5, 0, 1], 1, false);
        check(ArrayKind::Plane, [131_073, 1, 1], 1, false);
        check(ArrayKind::Volume, [1, 1, 9], 4, true);
        check(ArrayKind::PlaneLayers, [1, 1, 9], 2, false);
        check(ArrayKind::Cube, [4, 4, 6], 1, true);
        check(ArrayKind::Cube, [4, 3, 6], 1, false);
        check(ArrayKind::CubeLayers, [4, 4, 13], 1, false);
        for channels in [0, 3, 5, 256] {
            assert_eq!(TexelFormat::new(ChannelType::U8, channels), None);
        }
    }

    #[test]
    fn levels_follow_one_another() {
        let format = TexelFormat::new(ChannelType::U8, 4).unwrap();
        let shape = ArrayShape::new(ArrayKind::Volume, format, [8, 5, 3], 4).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|level| shape.level_extent(level)),
            [[8, 5, 3], [4, 2, 1], [2, 1, 1], [1, 1, 1]]
        );
        assert_eq!([0, 1, 2, 3].map(|level| shape.level_offset(level)), [0, 480, 512, 520]);
        assert_eq!(shape.bytes(), 524);
    }

    #[test]
    fn the_last_row_of_pitched_memory_ends_with_its_texels() {
        let format = TexelFormat::new(ChannelType::U16, 1).unwrap();
        let source = TexelSource::Pitched {
            address: crate::DeviceAddress(64),
            format,
            extent: [10, 3],
            pitch: 512,
        };
        assert_eq!(source.range(), Some((crate::DeviceAddress(64), 1044)));
    }
}
