//! Records about arrays and texture objects: fixed structures in which every field that a variant
//! has no use for is 0.

use crate::request::{Body, Malformed};
use partita_model::DeviceAddress;
use partita_model::texture::{
    AddressMode, ArrayKind, ArrayShape, ChannelType, FilterMode, FloatBits, Sampler, TexelFormat,
    TexelSource, TextureSpec,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawArray {
    kind: u32,
    channel: u32,
    channels: u32,
    levels: u32,
    extent: [u32; 3],
    reserved: u32,
}
const _: () = assert!(size_of::<RawArray>() == 32);

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawTexture {
    address: u64,
    pitch: u64,
    source: u32,
    /// Not of arrays.
    channel: u32,
    channels: u32,
    /// Extents, or first level and number of levels.
    extent: [u32; 2],
    /// 0 for a surface.
    sampled: u32,
    address_modes: [u32; 3],
    filter: u32,
    level_filter: u32,
    flags: u32,
    level_bias: u32,
    level_min: u32,
    level_max: u32,
    border: [u32; 4],
    reserved: u32,
}
const _: () = assert!(size_of::<RawTexture>() == 96);

const ARRAY: u32 = 0;
const LINEAR: u32 = 1;
const PITCHED: u32 = 2;

const INTEGERS: u32 = 1;
const NORMALIZED: u32 = 2;
const SRGB: u32 = 4;

pub(crate) fn encode_array(shape: &ArrayShape, into: &mut Vec<u8>) {
    let raw = RawArray {
        kind: shape.kind as u32,
        channel: shape.format.channel().number(),
        channels: shape.format.channels(),
        levels: shape.levels,
        extent: shape.extent,
        reserved: 0,
    };
    into.extend_from_slice(raw.as_bytes());
}

pub(crate) fn decode_array(body: Body<'_>) -> Result<ArrayShape, Malformed> {
    let raw = body.fixed::<RawArray>()?;
    body.zero("reserved", raw.reserved)?;
    let kind = ArrayKind::from_number(raw.kind);
    let kind = kind.ok_or_else(|| body.field("array kind", u64::from(raw.kind)))?;
    let format = decode_format(body, raw.channel, raw.channels)?;
    let shape = ArrayShape::new(kind, format, raw.extent, raw.levels);
    shape.ok_or_else(|| body.field("width", u64::from(raw.extent[0])))
}

fn decode_format(body: Body<'_>, channel: u32, channels: u32) -> Result<TexelFormat, Malformed> {
    let kind = ChannelType::from_number(channel);
    let kind = kind.ok_or_else(|| body.field("channel type", u64::from(channel)))?;
    TexelFormat::new(kind, channels).ok_or_else(|| body.field("channels", u64::from(channels)))
}

pub(crate) fn encode_texture(spec: &TextureSpec, into: &mut Vec<u8>) {
    let mut raw = RawTexture::default();
    match spec.source {
        TexelSource::Array { array, first_level, levels } => {
            raw.source = ARRAY;
            raw.address = array.0;
            raw.extent = [first_level, levels];
        }
        TexelSource::Linear { address, format, width } => {
            raw.source = LINEAR;
            raw.address = address.0;
            (raw.channel, raw.channels) = (format.channel().number(), format.channels());
            raw.extent = [width, 0];
        }
        TexelSource::Pitched { address, format, extent, pitch } => {
            raw.source = PITCHED;
            raw.address = address.0;
            (raw.channel, raw.channels) = (format.channel().number(), format.channels());
            raw.extent = extent;
            raw.pitch = pitch;
        }
    }
    if let Some(sampler) = &spec.sampler {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        raw.sampled = 1;
        raw.address_modes = sampler.address.map(|mode| mode as u32);
        raw.filter = sampler.filter as u32;
        raw.level_filter = sampler.level_filter as u32;
        raw.flags = flag(sampler.integers, INTEGERS)
            | flag(sampler.normalized, NORMALIZED)
            | flag(sampler.srgb, SRGB);
        raw.level_bias = sampler.level_bias.0;
        raw.level_min = sampler.level_min.0;
        raw.level_max = sampler.level_max.0;
        raw.border = sampler.border.map(|component| component.0);
    }
    into.extend_from_slice(raw.as_bytes());
}

pub(crate) fn decode_texture(body: Body<'_>) -> Result<TextureSpec, Malformed> {
    let raw = body.fixed::<RawTexture>()?;
    body.zero("reserved", raw.reserved)?;
    let address = DeviceAddress(raw.address);
    let [first, second] = raw.extent;
    if raw.source != PITCHED && raw.pitch != 0 {
        return Err(body.field("pitch", raw.pitch));
    }
    let source = match raw.source {
        ARRAY => {
            body.zero("channel type", raw.channel)?;
            body.zero("channels", raw.channels)?;
            TexelSource::Array { array: address, first_level: first, levels: second }
        }
        LINEAR => {
            body.zero("height", second)?;
            within(body, "width", first, TexelSource::LINEAR_LIMIT)?;
            let format = decode_format(body, raw.channel, raw.channels)?;
            TexelSource::Linear { address, format, width: first }
        }
        PITCHED => {
            let format = decode_format(body, raw.channel, raw.channels)?;
            within(body, "width", first, TexelSource::PITCHED_LIMITS[0])?;
            within(body, "height", second, TexelSource::PITCHED_LIMITS[1])?;
            if raw.pitch < u64::from(first) * u64::from(format.bytes()) {
                return Err(body.field("pitch", raw.pitch));
            }
            TexelSource::Pitched { address, format, extent: raw.extent, pitch: raw.pitch }
        }
        other => return Err(body.field("source", u64::from(other))),
    };
    Ok(TextureSpec { source, sampler: decode_sampler(body, &raw)? })
}

fn within(body: Body<'_>, field: &'static str, value: u32, limit: u32) -> Result<(), Malformed> {
    if (1..=limit).contains(&value) { Ok(()) } else { Err(body.field(field, u64::from(value))) }
}

fn decode_sampler(body: Body<'_>, raw: &RawTexture) -> Result<Option<Sampler>, Malformed> {
    if !body.truth("sampled", raw.sampled)? {
        let numbers =
            [raw.filter, raw.level_filter, raw.flags, raw.level_bias, raw.level_min, raw.level_max];
        for number in numbers.into_iter().chain(raw.address_modes).chain(raw.border) {
            body.zero("sampler of a surface", number)?;
        }
        return Ok(None);
    }
    if raw.flags & !(INTEGERS | NORMALIZED | SRGB) != 0 {
        return Err(body.field("sampler flags", u64::from(raw.flags)));
    }
    let mut address = [AddressMode::Wrap; 3];
    for (mode, number) in address.iter_mut().zip(raw.address_modes) {
        let known = AddressMode::from_number(number);
        *mode = known.ok_or_else(|| body.field("address mode", u64::from(number)))?;
    }
    let filter = |number: u32| {
        FilterMode::from_number(number).ok_or_else(|| body.field("filter mode", u64::from(number)))
    };
    Ok(Some(Sampler {
        address,
        filter: filter(raw.filter)?,
        level_filter: filter(raw.level_filter)?,
        integers: raw.flags & INTEGERS != 0,
        normalized: raw.flags & NORMALIZED != 0,
        srgb: raw.flags & SRGB != 0,
        level_bias: FloatBits(raw.level_bias),
        level_min: FloatBits(raw.level_min),
        level_max: FloatBits(raw.level_max),
        border: raw.border.map(FloatBits),
    }))
}
