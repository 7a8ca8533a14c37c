//! Records about tensor maps: fixed structures in which every field that a variant has no use for
//! is 0.

use crate::request::{Body, Malformed};
use partita_model::DeviceAddress;
use partita_model::tensor_map::{MAX_RANK, TENSOR_MAP_BYTES, TensorMap, TensorMapSpec, TensorPart};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSpec {
    address: u64,
    extents: [u64; MAX_RANK],
    strides: [u64; MAX_RANK - 1],
    element_strides: [u32; MAX_RANK],
    part: u32,
    /// Of tiles.
    tile: [u32; MAX_RANK],
    lower: [i32; MAX_RANK - 2],
    upper: [i32; MAX_RANK - 2],
    channels: u32,
    pixels: u32,
    mode: u32,
    data_type: u32,
    rank: u32,
    interleave: u32,
    swizzle: u32,
    promotion: u32,
    fill: u32,
}
const _: () = assert!(size_of::<RawSpec>() == 184);

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawMove {
    address: u64,
    map: TensorMap,
}
const _: () = assert!(size_of::<RawMove>() == 8 + TENSOR_MAP_BYTES);

const TILED: u32 = 0;
const COLUMNS: u32 = 1;
const WIDE: u32 = 2;

pub(crate) fn encode(spec: &TensorMapSpec, into: &mut Vec<u8>) {
    let mut raw = RawSpec {
        address: spec.address.0,
        extents: spec.extents,
        strides: spec.strides,
        element_strides: spec.element_strides,
        data_type: spec.data_type,
        rank: spec.rank,
        interleave: spec.interleave,
        swizzle: spec.swizzle,
        promotion: spec.promotion,
        fill: spec.fill,
        ..RawSpec::default()
    };
    match spec.part {
        TensorPart::Tiled { extents } => (raw.part, raw.tile) = (TILED, extents),
        TensorPart::Columns { lower, upper, channels, pixels } => {
            (raw.part, raw.lower, raw.upper) = (COLUMNS, lower, upper);
            (raw.channels, raw.pixels) = (channels, pixels);
        }
        TensorPart::Wide { lower, upper, channels, pixels, mode } => {
            (raw.part, raw.lower[0], raw.upper[0]) = (WIDE, lower, upper);
            (raw.channels, raw.pixels, raw.mode) = (channels, pixels, mode);
        }
    }
    into.extend_from_slice(raw.as_bytes());
}

pub(crate) fn decode(body: Body<'_>) -> Result<Box<TensorMapSpec>, Malformed> {
    let raw = body.fixed::<RawSpec>()?;
    if !(1..=MAX_RANK).contains(&usize::try_from(raw.rank).unwrap_or(0)) {
        return Err(body.field("rank", raw.rank.into()));
    }
    let part = match raw.part {
        TILED => TensorPart::Tiled { extents: raw.tile },
        COLUMNS => TensorPart::Columns {
            lower: raw.lower,
            upper: raw.upper,
            channels: raw.channels,
            pixels: raw.pixels,
        },
        WIDE => TensorPart::Wide {
            lower: raw.lower[0],
            upper: raw.upper[0],
            channels: raw.channels,
            pixels: raw.pixels,
            mode: raw.mode,
        },
        other => return Err(body.field("part", other.into())),
    };
    let spec = TensorMapSpec {
        data_type: raw.data_type,
        rank: raw.rank,
        address: DeviceAddress(raw.address),
        extents: raw.extents,
        strides: raw.strides,
        element_strides: raw.element_strides,
        part,
        interleave: raw.interleave,
        swizzle: raw.swizzle,
        promotion: raw.promotion,
        fill: raw.fill,
    };
    let mut again = Vec::new();
    encode(&spec, &mut again);
    // Another text of the same map would be a second way to say it.
    if again == raw.as_bytes() { Ok(Box::new(spec)) } else { Err(body.field("unused field", 1)) }
}

pub(crate) fn encode_move(map: &TensorMap, address: DeviceAddress, into: &mut Vec<u8>) {
    into.extend_from_slice(RawMove { address: address.0, map: *map }.as_bytes());
}

pub(crate) fn decode_move(body: Body<'_>) -> Result<(Box<TensorMap>, DeviceAddress), Malformed> {
    let raw = body.fixed::<RawMove>()?;
    Ok((Box::new(raw.map), DeviceAddress(raw.address)))
}
