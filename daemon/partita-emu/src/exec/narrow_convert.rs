//! Conversions from and to several narrow floating-point numbers in one register (PTX ISA, "cvt"):
//! formats of four, six and eight bits, powers of two, and stochastic rounding.
//!
//! The ISA's random bits of `.rs` are fewer than the bits that some formats drop. They are added
//! to the highest of the dropped bits, and a carry rounds away from zero.

use super::narrow::{E2M1, E2M3, E3M2, Narrow, ue8m0};
use super::packed::{E4M3, E5M2, Tiny};
use half::{bf16, f16};

/// The format of a narrow number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX type of that name")]
#[repr(u32)]
pub enum Format {
    E4m3,
    E5m2,
    E3m2,
    E2m3,
    E2m1,
    Ue8m0,
    F16,
    Bf16,
}

const FORMATS: [Format; 8] = [
    Format::E4m3,
    Format::E5m2,
    Format::E3m2,
    Format::E2m3,
    Format::E2m1,
    Format::Ue8m0,
    Format::F16,
    Format::Bf16,
];

/// Where the numbers of a conversion come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum From {
    /// Registers of single precision.
    Singles,
    /// A pair of `f16`.
    Halves,
    /// A pair of `bf16`.
    Bfloats,
}

/// Negative results become 0.
pub const RELU: u32 = 1 << 8;
/// Numbers beyond the largest become the largest.
pub const FINITE: u32 = 1 << 9;
/// Powers of two round up.
pub const UP: u32 = 1 << 10;

/// The parameter of a lane function.
#[must_use]
pub const fn how(format: Format, from: From, flags: u32) -> u32 {
    format as u32 | (from as u32) << 4 | flags
}

fn format_of(how: u32) -> Format {
    FORMATS[(how & 7) as usize]
}

impl Format {
    /// Bits of a number in its register.
    const fn container(self) -> u32 {
        match self {
            Format::E2m1 => 4,
            Format::F16 | Format::Bf16 => 16,
            _ => 8,
        }
    }

    const fn narrow(self) -> Option<Narrow> {
        match self {
            Format::E2m1 => Some(E2M1),
            Format::E2m3 => Some(E2M3),
            Format::E3m2 => Some(E3M2),
            _ => None,
        }
    }

    const fn tiny(self) -> Tiny {
        if matches!(self, Format::E5m2) { E5M2 } else { E4M3 }
    }

    /// The nearest number. Beyond the largest it is the largest.
    fn round(self, value: f64, how: u32) -> u64 {
        if how & RELU != 0 && value.is_sign_negative() && !value.is_nan() {
            return 0;
        }
        match (self, self.narrow()) {
            (_, Some(narrow)) => u64::from(narrow.round(value)),
            (Format::Ue8m0, _) => power(value, how),
            _ => u64::from(self.tiny().round(value)),
        }
    }

    fn value(self, bits: u64) -> f64 {
        match (self, self.narrow()) {
            (_, Some(narrow)) => narrow.value(bits as u8),
            (Format::Ue8m0, _) => ue8m0(bits as u8),
            _ => self.tiny().value(bits as u8),
        }
    }

    /// Mantissa bits, the exponent of the smallest normal number, the largest finite encoding, and
    /// the encoding that follows it or a NaN.
    const fn shape(self) -> (i32, i32, u64, u64) {
        match self {
            Format::E4m3 => (3, -6, 0x7e, 0x7f),
            Format::E5m2 => (2, -14, 0x7b, 0x7f),
            Format::E3m2 => (2, -2, 0x1f, 0x1f),
            Format::E2m3 => (3, 0, 0x1f, 0x1f),
            Format::E2m1 => (1, 0, 7, 7),
            Format::Bf16 => (7, -126, 0x7f7f, 0x7fff),
            Format::F16 | Format::Ue8m0 => (10, -14, 0x7bff, 0x7fff),
        }
    }

    /// Rounds by chance: `random` has `count` bits.
    fn round_by_chance(self, value: f64, (random, count): (u64, i32), how: u32) -> u64 {
        let (mantissa, lowest, largest, none) = self.shape();
        if value.is_nan() {
            return none;
        }
        let negative = value.is_sign_negative();
        if how & RELU != 0 && negative {
            return 0;
        }
        // Far beyond the largest number of every format, so that the integers below hold it.
        let size = value.abs().min(f64::exp2(128.0));
        let exponent = (((size.to_bits() >> 52) as i32) - 1023).max(lowest);
        let scaled = size * f64::from(mantissa - exponent).exp2();
        let whole = scaled.trunc();
        let dropped = ((scaled - whole) * f64::from(count).exp2()) as u64;
        let carry = u64::from(dropped + random >= 1 << count);
        let bits = (((exponent - lowest) as u64) << mantissa) + whole as u64 + carry;
        let infinite = matches!(self, Format::F16 | Format::Bf16) && how & FINITE == 0;
        let bits = bits.min(if infinite { largest + 1 } else { largest });
        let width =
            if let Some(narrow) = self.narrow() { narrow.width() } else { self.container() };
        bits | u64::from(negative) << (width - 1)
    }
}

/// The power of two at or, with [`UP`], above the size of a value.
fn power(value: f64, how: u32) -> u64 {
    if value.is_nan() {
        return 0xff;
    }
    let bits = value.abs().to_bits();
    let (exponent, fraction) = ((bits >> 52) as i64 - 1023, bits & ((1 << 52) - 1));
    let above = i64::from(how & UP != 0 && fraction != 0);
    let most = if how & FINITE != 0 { 0xfe } else { 0xff };
    // Less than the smallest power of two is that power.
    let code = if exponent < -127 { 0 } else { exponent + 127 + above };
    code.min(most) as u64
}

fn singles(x: [u64; 2]) -> [f64; 2] {
    x.map(|bits| f64::from(f32::from_bits(bits as u32)))
}

/// `cvt` to a pair of narrow numbers: the first number goes into the upper half.
pub fn to_pair(x: [u64; 3], how: u32) -> u64 {
    let halves = [(x[0] >> 16) as u16, x[0] as u16];
    let numbers = match how >> 4 & 3 {
        0 => singles([x[0], x[1]]),
        1 => halves.map(|bits| f16::from_bits(bits).to_f64()),
        _ => halves.map(|bits| bf16::from_bits(bits).to_f64()),
    };
    let format = format_of(how);
    let [high, low] = numbers.map(|value| format.round(value, how));
    high << format.container() | low
}

/// `cvt` from a pair of narrow numbers to a pair of halves. Each narrow number has an exact half,
/// save for numbers beyond the range of `f16`.
pub fn from_pair(x: [u64; 3], how: u32) -> u64 {
    let format = format_of(how);
    let width = format.container();
    let half = |bits: u64| {
        let value = format.value(bits & ((1 << width) - 1));
        if value.is_nan() {
            return 0x7fff;
        }
        let value = if how & RELU != 0 && value.is_sign_negative() { 0.0 } else { value };
        u64::from(if how >> 4 & 3 == From::Bfloats as u32 {
            bf16::from_f64(value).to_bits()
        } else {
            f16::from_f64(value).to_bits()
        })
    };
    half(x[0] >> width) << 16 | half(x[0])
}

/// `cvt.rs` to a pair of halves; the third operand has the random bits.
pub fn pair_by_chance(x: [u64; 3], how: u32) -> u64 {
    let format = format_of(how);
    let count = if format == Format::F16 { 13 } else { 16 };
    let random = [x[2] >> 16, x[2]].map(|bits| bits & ((1 << count) - 1));
    let [a, b] = singles([x[0], x[1]]);
    let round = |value, random| format.round_by_chance(value, (random, count), how);
    round(a, random[0]) << 16 | round(b, random[1])
}

/// `cvt.rs` to four narrow numbers. The first operand has a in its lower half and b in its upper
/// half, the second e and f.
pub fn four_by_chance(x: [u64; 3], how: u32) -> u64 {
    let format = format_of(how);
    let [a, b] = singles([x[0], x[0] >> 32]);
    let [e, f] = singles([x[1], x[1] >> 32]);
    let random = x[2];
    let (count, random) = if format == Format::E2m1 {
        // The upper bytes of both halves are for a and b, the lower bytes for e and f.
        (8, [random >> 24, random >> 8, random >> 16, random].map(|bits| bits & 0xff))
    } else {
        let (high, low) = (random >> 16 & 0xffff, random & 0xffff);
        (16, [high, high, low, low])
    };
    [a, b, e, f].into_iter().zip(random).fold(0, |all, (value, random)| {
        all << format.container() | format.round_by_chance(value, (random, count), how)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two() {
        let check = |value: f32, flags, wanted| {
            assert_eq!(power(f64::from(value), flags), wanted, "{value:e} {flags:#x}");
        };
        check(1.0, 0, 127);
        check(1.5, 0, 127);
        check(1.5, UP, 128);
        check(-1.5, UP, 128);
        check(0.0, UP, 0);
        check(f32::from_bits(1), UP, 0);
        check(f32::from_bits(0x0060_0000), 0, 0);
        check(f32::from_bits(0x0060_0000), UP, 1);
        check(f32::MAX, UP, 0xff);
        check(f32::MAX, UP | FINITE, 0xfe);
        check(f32::INFINITY, 0, 0xff);
        check(f32::NAN, FINITE, 0xff);
    }

    #[test]
    fn chance_rounds_up_as_often_as_its_bits_say() {
        // 1.25 lies in the middle of 1 and 1.5; 2.25 a quarter of the way from 2 to 3.
        for (value, ups) in [(1.25, 128), (2.25, 64), (2.0, 0), (0.125, 64)] {
            let low = Format::E2m1.round_by_chance(value, (0, 8), 0);
            let up = (0..256)
                .filter(|&bits| Format::E2m1.round_by_chance(value, (bits, 8), 0) != low)
                .count();
            assert_eq!(up, ups, "{value}");
        }
        assert_eq!(Format::E2m1.round_by_chance(-1e30, (255, 8), 0), 15);
        assert_eq!(Format::F16.round_by_chance(65535.0, (8191, 13), 0), 0x7c00);
        assert_eq!(Format::F16.round_by_chance(65535.0, (8191, 13), FINITE), 0x7bff);
    }
}
