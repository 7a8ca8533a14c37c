//! The meaning of a texel's bytes: four words, which are floating-point unless the texture is read
//! as integers.

use half::f16;
use partita_model::texture::{ChannelType, Sampler, TexelFormat};

/// Red, green, blue, alpha.
pub type Colour = [u32; 4];

/// Whether reading gives `f32` (CUDA Driver API, `cuTexObjectCreate`: `CU_TRSF_READ_AS_INTEGER` has
/// no effect on 32-bit integers).
pub fn reads_floats(format: TexelFormat, sampler: &Sampler) -> bool {
    let channel = format.channel();
    channel.is_float() || channel.bytes() < 4 && !sampler.integers
}

/// The colour of a texel. Channels that the format has not are 0, and alpha is 1.
pub fn colour(format: TexelFormat, sampler: &Sampler, texel: &[u8]) -> Colour {
    let floats = reads_floats(format, sampler);
    let one = if floats { 1.0_f32.to_bits() } else { 1 };
    let mut colour = [0, 0, 0, one];
    let size = format.channel().bytes() as usize;
    for (index, bytes) in texel.chunks_exact(size).take(format.channels() as usize).enumerate() {
        colour[index] = channel(format.channel(), floats, bytes);
        // Alpha is always linear.
        if sampler.srgb && floats && format.channel() == ChannelType::U8 && index < 3 {
            colour[index] = linear(f32::from_bits(colour[index])).to_bits();
        }
    }
    colour
}

fn channel(channel: ChannelType, floats: bool, bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u32::from_le_bytes(word);
    let (byte, short) = (word as u8, word as u16);
    if !floats {
        return match channel {
            ChannelType::S8 => i32::from(byte.cast_signed()).cast_unsigned(),
            ChannelType::S16 => i32::from(short.cast_signed()).cast_unsigned(),
            _ => word,
        };
    }
    let number = match channel {
        ChannelType::F32 => return word,
        ChannelType::F16 => f16::from_bits(short).to_f32(),
        ChannelType::U8 => f32::from(byte) / 255.0,
        ChannelType::U16 => f32::from(short) / 65_535.0,
        // The two lowest values both mean −1.
        ChannelType::S8 => (f32::from(byte.cast_signed()) / 127.0).max(-1.0),
        ChannelType::S16 => (f32::from(short.cast_signed()) / 32_767.0).max(-1.0),
        ChannelType::U32 | ChannelType::S32 => return word,
    };
    number.to_bits()
}

/// Converts an sRGB component to linear (IEC 61966-2-1).
fn linear(component: f32) -> f32 {
    let c = f64::from(component);
    let linear = if c <= 0.040_45 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
    linear as f32
}

/// Four `f32` as two pairs of `f16`.
pub fn pack(colour: Colour) -> Colour {
    let half = |index: usize| u32::from(f16::from_f32(f32::from_bits(colour[index])).to_bits());
    [half(0) | half(1) << 16, half(2) | half(3) << 16, 0, 0]
}

/// The border's colour.
pub fn border(floats: bool, sampler: &Sampler) -> Colour {
    sampler.border.map(
        |component| {
            if floats { component.0 } else { (component.get() as i32).cast_unsigned() }
        },
    )
}
