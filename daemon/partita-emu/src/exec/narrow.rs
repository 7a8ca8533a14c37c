//! Floating-point numbers of four and six bits, and scale factors of eight (PTX ISA, "Alternate
//! Floating-Point Data Formats", "Block Scaling"). Pure functions.

use super::packed::E4M3;

/// A format without infinities and NaNs: a sign, an exponent, a mantissa.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Narrow {
    exponent: u32,
    mantissa: u32,
}

/// Four bits, two of them exponent.
pub const E2M1: Narrow = Narrow { exponent: 2, mantissa: 1 };
/// Six bits, two of them exponent.
pub const E2M3: Narrow = Narrow { exponent: 2, mantissa: 3 };
/// Six bits, three of them exponent.
pub const E3M2: Narrow = Narrow { exponent: 3, mantissa: 2 };

impl Narrow {
    /// Bits of a number.
    #[must_use]
    pub const fn width(self) -> u32 {
        1 + self.exponent + self.mantissa
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The value of an encoding. Higher bits do not count.
    #[must_use]
    pub fn value(self, bits: u8) -> f64 {
        let bits = i32::from(bits);
        let fraction = bits & ((1 << self.mantissa) - 1);
        let field = bits >> self.mantissa & ((1 << self.exponent) - 1);
        // A field of zero has the exponent of a field of one, without the leading one.
        let count = if field == 0 { fraction } else { fraction + (1 << self.mantissa) };
        let exponent = field.max(1) - self.bias() - self.mantissa as i32;
        let size = f64::from(count) * f64::from(exponent).exp2();
        if bits >> (self.width() - 1) & 1 == 1 { -size } else { size }
    }

    /// The nearest number, the even one of two, and the largest where the value is larger. A NaN
    /// becomes the largest positive number (PTX ISA, "cvt": `.satfinite`).
    #[must_use]
    pub fn round(self, value: f64) -> u8 {
        let largest = (1 << (self.exponent + self.mantissa)) - 1;
        if value.is_nan() {
            return largest as u8;
        }
        let size = value.abs().min(1e6);
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let unit = f64::from(self.mantissa as i32 - exponent).exp2();
        let count = (size * unit).round_ties_even() as i32;
        let bits = ((exponent + self.bias() - 1) << self.mantissa) + count;
        let sign = u8::from(value.is_sign_negative()) << (self.width() - 1);
        sign | bits.min(largest) as u8
    }
}

/// The value of a `ue8m0`: a power of two, or NaN.
#[must_use]
pub fn ue8m0(bits: u8) -> f64 {
    if bits == 0xff { f64::NAN } else { f64::from(i32::from(bits) - 127).exp2() }
}

/// The value of a `ue4m3`, whose highest bit does not count.
#[must_use]
pub fn ue4m3(bits: u8) -> f64 {
    E4M3.value(bits & 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_have_the_values_of_the_tables() {
        let fours = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (bits, value) in fours.into_iter().enumerate() {
            assert_eq!(E2M1.value(bits as u8), value);
            assert_eq!(E2M1.value(bits as u8 | 8), -value);
        }
        let check = |format: Narrow, cases: &[(u8, f64)]| {
            for &(bits, value) in cases {
                assert_eq!(format.value(bits), value, "{format:?} {bits:#x}");
            }
        };
        check(E2M3, &[(0, 0.0), (1, 0.125), (8, 1.0), (15, 1.875), (0x1f, 7.5), (0x3f, -7.5)]);
        check(E3M2, &[(0, 0.0), (1, 0.0625), (4, 0.25), (12, 1.0), (0x1f, 28.0), (0x3f, -28.0)]);
        assert_eq!((ue8m0(0), ue8m0(127), ue8m0(254)), (f64::exp2(-127.0), 1.0, f64::exp2(127.0)));
        assert!(ue8m0(255).is_nan() && ue4m3(0x7f).is_nan() && ue4m3(0xff).is_nan());
        assert_eq!((ue4m3(0x38), ue4m3(0x7e), ue4m3(1)), (1.0, 448.0, f64::exp2(-9.0)));
    }

    #[test]
    fn rounding_finds_the_nearest_number() {
        for format in [E2M1, E2M3, E3M2] {
            let half = 1_u8 << (format.width() - 1);
            for bits in 0..2 * half {
                assert_eq!(format.round(format.value(bits)), bits, "{format:?}");
            }
            for bits in 0..half - 1 {
                let (low, high) = (format.value(bits), format.value(bits + 1));
                let even = bits + bits % 2;
                assert_eq!(format.round(f64::midpoint(low, high)), even, "{format:?} {bits}");
                assert_eq!(format.round(low + (high - low) * 0.49), bits);
                assert_eq!(format.round(low + (high - low) * 0.51), bits + 1);
            }
            assert_eq!(format.round(1e9), half - 1);
            assert_eq!(format.round(f64::NEG_INFINITY), 2 * half - 1);
            assert_eq!(format.round(f64::NAN), half - 1);
        }
    }
}
