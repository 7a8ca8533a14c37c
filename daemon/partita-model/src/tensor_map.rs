//! Tensor maps: what the hardware copies boxes of tensors by (CUDA Driver API, "Tensor Map Object
//! Management"; PTX ISA, "Tensor-map").
//!
//! Only a real GPU and its driver know what is in one of theirs, so a program's wish travels as the
//! call has it, and the answer comes back as bytes. Emulated GPUs have a form of their own
//! ([`TensorMapSpec::packed`]).

use crate::DeviceAddress;

/// Bytes of a tensor map (`CUtensorMap`).
pub const TENSOR_MAP_BYTES: usize = 128;

/// The most dimensions of a tensor.
pub const MAX_RANK: usize = 5;

/// A tensor map, as kernels get it.
pub type TensorMap = [u8; TENSOR_MAP_BYTES];

/// The parameters of a call that makes a tensor map. Numbers are those of the CUDA Driver API's
/// enumerations; whether they fit each other, the GPU's driver says. What the tensor's rank does
/// not use is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorMapSpec {
    /// `CUtensorMapDataType`
    pub data_type: u32,
    /// The number of dimensions, 1 to [`MAX_RANK`].
    pub rank: u32,
    /// The first element.
    pub address: DeviceAddress,
    /// Elements of each dimension, the innermost first.
    pub extents: [u64; MAX_RANK],
    /// Bytes from one element to the next, of every dimension but the innermost.
    pub strides: [u64; MAX_RANK - 1],
    /// Elements of which one is taken, of each dimension.
    pub element_strides: [u32; MAX_RANK],
    /// What one copy takes.
    pub part: TensorPart,
    /// `CUtensorMapInterleave`
    pub interleave: u32,
    /// `CUtensorMapSwizzle`
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`
    pub promotion: u32,
    /// `CUtensorMapFloatOOBfill`
    pub fill: u32,
}

/// The elements that one copy takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorPart {
    /// A box (`cuTensorMapEncodeTiled`): elements of each dimension.
    Tiled {
        /// The box's extents, the innermost first.
        extents: [u32; MAX_RANK],
    },
    /// Columns of an image (`cuTensorMapEncodeIm2col`).
    Columns {
        /// Corners of the box of pixels, of the dimensions between the first and the last.
        lower: [i32; MAX_RANK - 2],
        /// As `lower`.
        upper: [i32; MAX_RANK - 2],
        /// Channels of a pixel.
        channels: u32,
        /// Pixels of a column.
        pixels: u32,
    },
    /// Columns along the width (`cuTensorMapEncodeIm2colWide`).
    Wide {
        /// Where the box of pixels begins along the width.
        lower: i32,
        /// Where it ends.
        upper: i32,
        /// Channels of a pixel.
        channels: u32,
        /// Pixels of a column.
        pixels: u32,
        /// `CUtensorMapIm2ColWideMode`
        mode: u32,
    },
}

/// The reason why a tensor map cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is {value}: {rule}")]
pub struct TensorMapError {
    /// The parameter.
    pub what: &'static str,
    /// Its value.
    pub value: i64,
    /// What it must be.
    pub rule: &'static str,
}

/// Bytes of an element, by `CUtensorMapDataType`; packed types count as 0.
const ELEMENT_BYTES: [u64; 16] = [1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 0, 0, 0];
/// `CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B` and `…_16U6_ALIGN16B`
const ALIGNED_TYPES: [u32; 2] = [14, 15];
/// Bytes along the innermost dimension of a box that each `CUtensorMapSwizzle` takes at most.
const SWIZZLE_BYTES: [u64; 7] = [u64::MAX, 32, 64, 128, 128, 128, 128];

impl TensorMapSpec {
    /// Whether the parameters fit each other, by the rules of `cuTensorMapEncodeTiled` and
    /// `cuTensorMapEncodeIm2col`.
    ///
    /// # Errors
    /// [`TensorMapError`], for the first parameter that does not.
    pub fn check(&self) -> Result<(), TensorMapError> {
        let rule = |holds: bool, what, value: u64, rule| match holds {
            true => Ok(()),
            false => Err(TensorMapError { what, value: value.cast_signed(), rule }),
        };
        let rank = usize::try_from(self.rank).unwrap_or(usize::MAX);
        rule((1..=MAX_RANK).contains(&rank), "rank", self.rank.into(), "1 to 5")?;
        let known = ELEMENT_BYTES.get(self.data_type as usize).copied();
        rule(known.is_some(), "data type", self.data_type.into(), "0 to 15")?;
        let element = known.unwrap_or(0);
        rule(self.interleave <= 2, "interleave", self.interleave.into(), "0 to 2")?;
        rule(self.swizzle <= 6, "swizzle", self.swizzle.into(), "0 to 6")?;
        rule(self.promotion <= 3, "L2 promotion", self.promotion.into(), "0 to 3")?;
        let floats = [6, 7, 8, 9, 10, 11, 12].contains(&self.data_type);
        let fill = self.fill == 0 || self.fill == 1 && floats;
        rule(fill, "fill", self.fill.into(), "0, or 1 with a type of floating point")?;
        let interleaved = self.interleave != 0;
        rule(!interleaved || rank >= 3, "rank", self.rank.into(), "at least 3 with interleave")?;
        let wide = self.interleave == 2 || ALIGNED_TYPES.contains(&self.data_type);
        let alignment = if wide { 32 } else { 16 };
        let aligned = |value: u64| value.is_multiple_of(alignment);
        rule(aligned(self.address.0), "address", self.address.0, "a multiple of 16, or of 32")?;
        for extent in &self.extents[..rank] {
            let holds = (1..=1 << 32).contains(extent);
            rule(holds, "extent of the tensor", *extent, "1 to 2^32")?;
        }
        for stride in &self.strides[..rank - 1] {
            let holds = aligned(*stride) && *stride < 1 << 40;
            rule(holds, "stride", *stride, "a multiple of 16, or of 32, below 2^40")?;
        }
        for (at, stride) in self.element_strides[..rank].iter().enumerate() {
            // The innermost one is not used without interleave.
            let holds = (1..=8).contains(stride) || at == 0 && !interleaved;
            rule(holds, "element stride", (*stride).into(), "1 to 8")?;
        }
        self.check_part(rank, element)
    }

    fn check_part(&self, rank: usize, element: u64) -> Result<(), TensorMapError> {
        let rule = |holds: bool, what, value: i64, rule| match holds {
            true => Ok(()),
            false => Err(TensorMapError { what, value, rule }),
        };
        let columns = |channels: u32, pixels: u32| {
            rule(rank >= 3, "rank", self.rank.into(), "at least 3 for columns")?;
            rule(channels <= 256, "channels", channels.into(), "at most 256")?;
            rule(pixels <= 1024, "pixels", pixels.into(), "at most 1024")
        };
        let swizzled = |what, bytes: u64| {
            let holds = self.interleave != 0 || bytes <= SWIZZLE_BYTES[self.swizzle as usize];
            rule(holds, what, bytes.cast_signed(), "at most those of the swizzle")
        };
        match self.part {
            TensorPart::Tiled { extents } => {
                for extent in &extents[..rank] {
                    let holds = (1..=256).contains(extent);
                    rule(holds, "extent of the box", (*extent).into(), "1 to 256")?;
                }
                let inner = u64::from(extents[0]) * element;
                if self.interleave == 0 {
                    let bytes = "bytes of the box's first dimension";
                    rule(inner.is_multiple_of(16), bytes, inner.cast_signed(), "a multiple of 16")?;
                    swizzled(bytes, inner)?;
                }
            }
            TensorPart::Columns { lower, upper, channels, pixels } => {
                columns(channels, pixels)?;
                swizzled("bytes of a pixel", u64::from(channels) * element)?;
                // Corners share 32 bits: 16, 8 or 5 for each.
                let limit = [1 << 15, 1 << 7, 1 << 4][rank - 3];
                for corner in lower[..rank - 2].iter().chain(&upper[..rank - 2]) {
                    let holds = (-limit..limit).contains(corner);
                    rule(holds, "corner", (*corner).into(), "within 16, 8 or 5 bits")?;
                }
            }
            TensorPart::Wide { lower, upper, channels, pixels, mode } => {
                columns(channels, pixels)?;
                rule(mode <= 1, "mode", mode.into(), "0 or 1")?;
                for corner in [lower, upper] {
                    let holds = (-(1 << 15)..1 << 15).contains(&corner);
                    rule(holds, "corner", corner.into(), "within 16 bits")?;
                }
            }
        }
        Ok(())
    }
}

/// The first bytes of a map of an emulated GPU.
const MARK: [u8; 4] = *b"PTmp";
/// Where its first element's address is.
const ADDRESS: usize = 8;

impl TensorMapSpec {
    /// The map of an emulated GPU. The parameters must fit each other ([`TensorMapSpec::check`]).
    #[must_use]
    pub fn packed(&self) -> TensorMap {
        let mut bytes = Vec::with_capacity(TENSOR_MAP_BYTES);
        let small = |value: u32| value.to_le_bytes()[0];
        let short = |value: u32| [value.to_le_bytes()[0], value.to_le_bytes()[1]];
        let signed = |value: i32| [value.to_le_bytes()[0], value.to_le_bytes()[1]];
        bytes.extend(MARK);
        bytes.extend([small(self.data_type), small(self.rank), 0, 0]);
        bytes.extend(self.address.0.to_le_bytes());
        for extent in self.extents {
            // Up to 2^32: one less fits.
            bytes.extend(&extent.wrapping_sub(1).to_le_bytes()[..4]);
        }
        bytes.extend(self.strides.iter().flat_map(|stride| stride.to_le_bytes()));
        bytes.extend(self.element_strides.iter().map(|stride| small(*stride)));
        bytes.extend([self.interleave, self.swizzle, self.promotion, self.fill].map(small));
        match self.part {
            TensorPart::Tiled { extents } => {
                bytes.push(0);
                bytes.extend(extents.iter().flat_map(|extent| short(*extent)));
            }
            TensorPart::Columns { lower, upper, channels, pixels } => {
                bytes.push(1);
                bytes.extend(lower.iter().chain(&upper).flat_map(|corner| signed(*corner)));
                bytes.extend([channels, pixels].map(short).concat());
            }
            TensorPart::Wide { lower, upper, channels, pixels, mode } => {
                bytes.push(2);
                bytes.extend([lower, upper].map(signed).concat());
                bytes.extend([channels, pixels, mode].map(short).concat());
            }
        }
        let mut map = [0; TENSOR_MAP_BYTES];
        map[..bytes.len()].copy_from_slice(&bytes);
        map
    }

    /// The parameters of a map of an emulated GPU, which need not fit each other; `None` for bytes
    /// that are none. Zeros are a map whose fields kernels are to set.
    #[must_use]
    pub fn unpacked(map: &TensorMap) -> Option<Self> {
        let (mark, rest) = map.split_first_chunk()?;
        let known = *mark == MARK || *map == [0; TENSOR_MAP_BYTES];
        let mut bytes = Bytes { rest };
        let [data_type, rank, _, _] = bytes.take()?;
        let address = DeviceAddress(u64::from_le_bytes(bytes.take()?));
        let mut extents = [0; MAX_RANK];
        for (dimension, extent) in extents.iter_mut().enumerate() {
            let less = u64::from(u32::from_le_bytes(bytes.take()?));
            // A kernel may set extents before the rank.
            *extent = if rank == 0 || dimension < usize::from(rank) { less + 1 } else { 0 };
        }
        let mut strides = [0; MAX_RANK - 1];
        for stride in &mut strides {
            *stride = u64::from_le_bytes(bytes.take()?);
        }
        let element_strides = bytes.take::<MAX_RANK>()?.map(u32::from);
        let [interleave, swizzle, promotion, fill, part] = bytes.take()?;
        let part = match part {
            0 => TensorPart::Tiled { extents: [(); MAX_RANK].map(|()| bytes.short()) },
            1 => TensorPart::Columns {
                lower: [(); MAX_RANK - 2].map(|()| bytes.signed()),
                upper: [(); MAX_RANK - 2].map(|()| bytes.signed()),
                channels: bytes.short(),
                pixels: bytes.short(),
            },
            2 => TensorPart::Wide {
                lower: bytes.signed(),
                upper: bytes.signed(),
                channels: bytes.short(),
                pixels: bytes.short(),
                mode: bytes.short(),
            },
            _ => return None,
        };
        let [data_type, rank, interleave, swizzle, promotion, fill] =
            [data_type, rank, interleave, swizzle, promotion, fill].map(u32::from);
        known.then_some(Self {
            data_type,
            rank,
            address,
            extents,
            strides,
            element_strides,
            part,
            interleave,
            swizzle,
            promotion,
            fill,
        })
    }

    /// Bytes of an element; 0 for packed types and for unknown types.
    #[must_use]
    pub fn element_bytes(&self) -> u64 {
        ELEMENT_BYTES.get(self.data_type as usize).copied().unwrap_or(0)
    }

    /// A map of an emulated GPU with another address; `None` for bytes that are none.
    #[must_use]
    pub fn moved(map: &TensorMap, address: DeviceAddress) -> Option<TensorMap> {
        let mut map = *map;
        map[ADDRESS..ADDRESS + 8].copy_from_slice(&address.0.to_le_bytes());
        map.starts_with(&MARK).then_some(map)
    }
}

/// The bytes of a map that are still to be read.
struct Bytes<'a> {
    rest: &'a [u8],
}

impl Bytes<'_> {
    fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    /// 0 past the end.
    fn short(&mut self) -> u32 {
        self.take().map_or(0, |bytes| u16::from_le_bytes(bytes).into())
    }

    fn signed(&mut self) -> i32 {
        self.take().map_or(0, |bytes| i16::from_le_bytes(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles() -> TensorMapSpec {
        TensorMapSpec {
            data_type: 6,
            rank: 2,
            address: DeviceAddress(0x1000),
            extents: [1024, 1 << 32, 0, 0, 0],
            strides: [2048, 0, 0, 0],
            element_strides: [1, 1, 0, 0, 0],
            part: TensorPart::Tiled { extents: [64, 128, 0, 0, 0] },
            interleave: 0,
            swizzle: 3,
            promotion: 2,
            fill: 1,
        }
    }

    fn columns() -> TensorMapSpec {
        let corners = ([-1, -2, 0], [127, 3, 0]);
        TensorMapSpec {
            rank: 4,
            extents: [64, 32, 32, 8, 0],
            strides: [128, 4096, 131_072, 0],
            element_strides: [1, 1, 2, 1, 0],
            part: TensorPart::Columns {
                lower: corners.0,
                upper: corners.1,
                channels: 64,
                pixels: 128,
            },
            ..tiles()
        }
    }

    #[test]
    fn parameters_that_do_not_fit_are_named() {
        assert_eq!((tiles().check(), columns().check()), (Ok(()), Ok(())));
        let check = |what: &str, change: &dyn Fn(&mut TensorMapSpec)| {
            let mut spec = tiles();
            change(&mut spec);
            assert_eq!(spec.check().map_err(|error| error.what), Err(what), "{spec:?}");
        };
        check("rank", &|spec| spec.rank = 0);
        check("rank", &|spec| spec.rank = 6);
        check("rank", &|spec| spec.interleave = 1);
        check("rank", &|spec| spec.part = columns().part);
        check("data type", &|spec| spec.data_type = 16);
        check("swizzle", &|spec| spec.swizzle = 7);
        check("fill", &|spec| spec.data_type = 1);
        check("address", &|spec| spec.address.0 += 8);
        check("extent of the tensor", &|spec| spec.extents[1] = 0);
        check("extent of the tensor", &|spec| spec.extents[1] += 1);
        check("stride", &|spec| spec.strides[0] += 8);
        check("stride", &|spec| spec.strides[0] = 1 << 40);
        check("element stride", &|spec| spec.element_strides[1] = 9);
        check("extent of the box", &|spec| {
            spec.part = TensorPart::Tiled { extents: [64, 257, 0, 0, 0] };
        });
        let bytes = "bytes of the box's first dimension";
        check(bytes, &|spec| spec.part = TensorPart::Tiled { extents: [65, 1, 0, 0, 0] });
        check(bytes, &|spec| spec.swizzle = 2);
        let wide = |mode| TensorMapSpec {
            part: TensorPart::Wide { lower: -5, upper: 5, channels: 16, pixels: 8, mode },
            ..columns()
        };
        assert_eq!(wide(1).check(), Ok(()));
        assert_eq!(wide(2).check().map_err(|error| error.what), Err("mode"));
        let mut far = columns();
        far.part =
            TensorPart::Columns { lower: [0; 3], upper: [128, 0, 0], channels: 1, pixels: 1 };
        let text = far.check().unwrap_err().to_string();
        assert_eq!(text, "corner is 128: within 16, 8 or 5 bits");
    }

    #[test]
    fn a_map_begins_as_zeros_and_gets_its_fields_in_any_order() {
        let mut map = TensorMapSpec::unpacked(&[0; TENSOR_MAP_BYTES]).unwrap();
        assert_eq!(map.check().unwrap_err().what, "rank");
        let set = |map: &mut TensorMapSpec, change: &dyn Fn(&mut TensorMapSpec)| {
            change(map);
            *map = TensorMapSpec::unpacked(&map.packed()).unwrap();
        };
        set(&mut map, &|map| map.extents[1] = 1 << 32);
        set(&mut map, &|map| map.part = tiles().part);
        set(&mut map, &|map| map.rank = 2);
        assert_eq!((map.extents, map.part), ([1, 1 << 32, 0, 0, 0], tiles().part));
    }

    #[test]
    fn maps_differ_where_their_parameters_do_and_take_another_address() {
        let map = tiles().packed();
        assert_ne!(map, columns().packed());
        assert_ne!(map, TensorMapSpec { swizzle: 2, ..tiles() }.packed());
        let there = TensorMapSpec { address: DeviceAddress(0x2000), ..tiles() }.packed();
        assert_eq!(TensorMapSpec::moved(&map, DeviceAddress(0x2000)), Some(there));
        assert_eq!(TensorMapSpec::moved(&[0; TENSOR_MAP_BYTES], DeviceAddress(0)), None);
        let part = TensorPart::Wide { lower: -5, upper: 5, channels: 16, pixels: 8, mode: 1 };
        for spec in [tiles(), columns(), TensorMapSpec { part, ..columns() }] {
            assert_eq!(TensorMapSpec::unpacked(&spec.packed()), Some(spec));
        }
        assert_eq!(TensorMapSpec::unpacked(&[1; TENSOR_MAP_BYTES]), None);
    }
}
