//! The 8-bit floating-point formats, and integers packed into one register (PTX ISA, "Alternate
//! Floating-Point Data Formats", "cvt.pack").

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
    #[must_use]
    pub fn round(self, value: f64) -> u8 {
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
