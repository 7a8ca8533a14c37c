//! Conversions to and from several small numbers in one register: `cvt.pack`, and the 8-bit
//! floating-point formats in pairs (PTX ISA, "cvt.pack", "cvt", "Alternate Floating-Point Data
//! Formats").

use half::f16;

/// An 8-bit floating-point format: mantissa bits, exponent bias, and its largest number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiny {
    mantissa: i32,
    bias: i32,
    largest: u8,
}

/// Four bits of exponent, three of mantissa; no infinity, one NaN of each sign.
pub const E4M3: Tiny = Tiny { mantissa: 3, bias: 7, largest: 0x7e };
/// Five bits of exponent, two of mantissa.
pub const E5M2: Tiny = Tiny { mantissa: 2, bias: 15, largest: 0x7b };

const NAN: u8 = 0x7f;

impl Tiny {
    /// Rounds to nearest even, at most to the largest number. `value` has at most 40 significant
    /// bits.
    fn round(self, value: f64) -> u8 {
        if value.is_nan() {
            return NAN;
        }
        let size = value.abs().min(1e6);
        let exponent = (((size.to_bits() >> 52) as i32) - 1023).max(1 - self.bias);
        let count = (size * f64::from(self.mantissa - exponent).exp2()).round_ties_even() as i32;
        let bits = ((exponent + self.bias - 1) << self.mantissa) + count;
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        sign | bits.min(i32::from(self.largest)) as u8
    }

    /// The value of an encoding.
    #[must_use]
    pub fn value(self, bits: u8) -> f64 {
        let magnitude = i32::from(bits & 0x7f);
        let (field, fraction) =
            (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let size = if magnitude > i32::from(self.largest) {
            if self == E5M2 && fraction == 0 { f64::INFINITY } else { f64::NAN }
        } else if field == 0 {
            f64::from(fraction) * f64::from(1 - self.bias - self.mantissa).exp2()
        } else {
            f64::from(fraction + (1 << self.mantissa))
                * f64::from(field - self.bias - self.mantissa).exp2()
        };
        if bits & 0x80 != 0 { -size } else { size }
    }
}

/// The format is [`E5M2`], else [`E4M3`].
pub const IS_E5M2: u32 = 1;
/// Negative results become 0.
pub const RELU: u32 = 1 << 1;
/// The source is a pair of f16, else two of f32.
pub const FROM_PAIR: u32 = 1 << 2;

fn format(how: u32) -> Tiny {
    if how & IS_E5M2 != 0 { E5M2 } else { E4M3 }
}

/// `cvt.rn.satfinite.e4m3x2` and `.e5m2x2`: the first number goes into the upper half.
pub fn to_tiny_pair(x: [u64; 3], how: u32) -> u64 {
    let numbers = if how & FROM_PAIR != 0 {
        [(x[0] >> 16) as u16, x[0] as u16].map(|bits| f16::from_bits(bits).to_f64())
    } else {
        [x[0], x[1]].map(|bits| f64::from(f32::from_bits(bits as u32)))
    };
    let [high, low] = numbers.map(|value| {
        let cut = how & RELU != 0 && value.is_sign_negative() && !value.is_nan();
        u64::from(format(how).round(if cut { 0.0 } else { value }))
    });
    high << 8 | low
}

/// `cvt.rn.f16x2.e4m3x2` and `.e5m2x2`.
pub fn from_tiny_pair(x: [u64; 3], how: u32) -> u64 {
    let half = |bits: u64| {
        let value = format(how).value(bits as u8);
        let value = if how & RELU != 0 && value.is_sign_negative() && !value.is_nan() {
            0.0
        } else {
            value
        };
        if value.is_nan() { 0x7fff } else { u64::from(f16::from_f64(value).to_bits()) }
    };
    half(x[0] >> 8) << 16 | half(x[0])
}

/// Whether the results of `cvt.pack` are signed; the low byte of the parameter is their width.
pub const SIGNED: u32 = 1 << 8;

/// `cvt.pack.sat`: a above b, above them what c has.
pub fn pack(x: [u64; 3], how: u32) -> u64 {
    let bits = how & 0xff;
    let (low, high) = if how & SIGNED != 0 {
        (-(1_i64 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    };
    let cut =
        |value: u64| i64::from(value as u32 as i32).clamp(low, high) as u64 & ((1 << bits) - 1);
    x[2] << (2 * bits) | cut(x[0]) << bits | cut(x[1])
}
