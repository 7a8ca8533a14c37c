//! `cvt`, in all combinations of integer and floating-point types (PTX ISA, "Data Movement and
//! Conversion: cvt").

use super::float::{Rounding, flush, round_f32, round_half, to_odd};
use super::lane::{sign_extend, zero_extend};
use half::{bf16, f16};

/// A type that `cvt` converts from or to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX type of that name")]
#[repr(u32)]
pub enum Number {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

const NUMBERS: [Number; 12] = [
    Number::U8,
    Number::S8,
    Number::U16,
    Number::S16,
    Number::U32,
    Number::S32,
    Number::U64,
    Number::S64,
    Number::F16,
    Number::Bf16,
    Number::F32,
    Number::F64,
];

impl Number {
    /// Width in bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Number::U8 | Number::S8 => 8,
            Number::U16 | Number::S16 | Number::F16 | Number::Bf16 => 16,
            Number::U32 | Number::S32 | Number::F32 => 32,
            Number::U64 | Number::S64 | Number::F64 => 64,
        }
    }

    /// Whether it is a signed integer.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Number::S8 | Number::S16 | Number::S32 | Number::S64)
    }

    /// Whether it is a floating-point type.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Number::F16 | Number::Bf16 | Number::F32 | Number::F64)
    }
}

/// A conversion, packed into a lane function's parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conversion {
    /// From.
    pub from: Number,
    /// To.
    pub to: Number,
    /// Rounding of a floating-point result, or to an integer.
    pub rounding: Rounding,
    /// Round to an integral value (`.rni` and the like).
    pub integral: bool,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.relu`
    pub relu: bool,
    /// `.satfinite`
    pub finite: bool,
}

impl Conversion {
    /// To the nearest, without any modifier.
    #[must_use]
    pub const fn plain(from: Number, to: Number) -> Self {
        let rounding = Rounding::Nearest;
        let (integral, ftz, sat, relu, finite) = (false, false, false, false, false);
        Conversion { from, to, rounding, integral, ftz, sat, relu, finite }
    }

    /// As a lane function's parameter.
    #[must_use]
    pub fn pack(self) -> u32 {
        self.from as u32
            | (self.to as u32) << 4
            | self.rounding.bits() << 8
            | u32::from(self.integral) << 10
            | u32::from(self.ftz) << 11
            | u32::from(self.sat) << 12
            | u32::from(self.relu) << 13
            | u32::from(self.finite) << 14
    }

    fn unpack(how: u32) -> Self {
        let number = |index: u32| NUMBERS[(index & 15).min(11) as usize];
        Conversion {
            from: number(how),
            to: number(how >> 4),
            rounding: Rounding::from_bits(how >> 8),
            integral: how >> 10 & 1 == 1,
            ftz: how >> 11 & 1 == 1,
            sat: how >> 12 & 1 == 1,
            relu: how >> 13 & 1 == 1,
            finite: how >> 14 & 1 == 1,
        }
    }
}

/// `cvt` as a lane function; the parameter is a packed [`Conversion`].
pub fn convert(x: [u64; 3], how: u32) -> u64 {
    let c = Conversion::unpack(how);
    match (c.from.is_float(), c.to.is_float()) {
        (false, false) => integer_to_integer(x[0], c),
        (false, true) => integer_to_float(x[0], c),
        (true, false) => float_to_integer(x[0], c),
        (true, true) => float_to_float(x[0], c),
    }
}

fn integer(value: u64, ty: Number) -> i128 {
    if ty.is_signed() {
        i128::from(sign_extend(value, ty.bits()) as i64)
    } else {
        i128::from(zero_extend(value, ty.bits()))
    }
}

fn limits(ty: Number) -> (i128, i128) {
    if ty.is_signed() {
        (-(1 << (ty.bits() - 1)), (1 << (ty.bits() - 1)) - 1)
    } else {
        (0, (1 << ty.bits()) - 1)
    }
}

fn integer_to_integer(value: u64, c: Conversion) -> u64 {
    let mut value = integer(value, c.from);
    if c.sat {
        let (low, high) = limits(c.to);
        value = value.clamp(low, high);
    }
    value as u64
}

fn float(value: u64, ty: Number) -> f64 {
    match ty {
        Number::F16 => f16::from_bits(value as u16).to_f64(),
        Number::Bf16 => bf16::from_bits(value as u16).to_f64(),
        Number::F32 => f64::from(f32::from_bits(value as u32)),
        _ => f64::from_bits(value),
    }
}

fn round_integral(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

fn float_to_integer(bits: u64, c: Conversion) -> u64 {
    let mut value = float(bits, c.from);
    if c.ftz && c.from == Number::F32 {
        value = f64::from(flush(value as f32));
    }
    if value.is_nan() {
        let wide = c.from == Number::F64 || c.to.bits() == 64;
        return if wide { 1 << (c.to.bits() - 1) } else { 0 };
    }
    let (low, high) = limits(c.to);
    // The cast to i128 saturates far beyond the limits of every type.
    (round_integral(value, c.rounding) as i128).clamp(low, high) as u64
}

fn integer_to_float(bits: u64, c: Conversion) -> u64 {
    let mut value = integer(bits, c.from);
    if c.sat {
        value = value.clamp(0, 1);
    }
    let nearest = value as f64;
    let rest = (value - nearest as i128) as f64;
    let result = narrow(nearest, rest, c);
    finish(result, c)
}

fn float_to_float(bits: u64, c: Conversion) -> u64 {
    let mut value = float(bits, c.from);
    if c.ftz && c.from == Number::F32 {
        value = f64::from(flush(value as f32));
    }
    if c.integral {
        value = round_integral(value, c.rounding);
    }
    if c.sat {
        value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
    }
    if c.relu && !value.is_nan() {
        value = if value > 0.0 { value } else { 0.0 };
    }
    let mut value = narrow(value, 0.0, c);
    if c.finite && value.is_infinite() {
        value = largest(c.to).copysign(value);
    }
    finish(value, c)
}

/// Rounds `high + low` to the target's precision; the result is exact in `f64`.
fn narrow(high: f64, low: f64, c: Conversion) -> f64 {
    let rounding = if c.integral { Rounding::Nearest } else { c.rounding };
    match c.to {
        Number::F32 => f64::from(round_f32(high, low, rounding)),
        Number::F64 => {
            let error = low;
            match rounding {
                Rounding::Nearest => high,
                Rounding::Down if error < 0.0 => high.next_down(),
                Rounding::Up if error > 0.0 => high.next_up(),
                Rounding::Zero if error < 0.0 && high > 0.0 => high.next_down(),
                Rounding::Zero if error > 0.0 && high < 0.0 => high.next_up(),
                _ => high,
            }
        }
        Number::F16 => f16::from_bits(round_half(to_odd(high, low), 10, rounding)).to_f64(),
        _ => bf16::from_bits(round_half(to_odd(high, low), 7, rounding)).to_f64(),
    }
}

/// The largest finite number of a type.
fn largest(ty: Number) -> f64 {
    match ty {
        Number::F16 => f16::MAX.to_f64(),
        Number::Bf16 => bf16::MAX.to_f64(),
        Number::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

fn finish(value: f64, c: Conversion) -> u64 {
    if value.is_nan() {
        return match c.to {
            Number::F16 | Number::Bf16 => 0x7fff,
            Number::F32 => u64::from(super::float::NAN_F32),
            _ => 0x7fff_ffff_ffff_ffff,
        };
    }
    match c.to {
        Number::F16 => u64::from(round_half(value, 10, Rounding::Nearest)),
        Number::Bf16 => u64::from(round_half(value, 7, Rounding::Nearest)),
        Number::F32 => {
            let value = value as f32;
            u64::from(if c.ftz { flush(value) } else { value }.to_bits())
        }
        _ => value.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Number::*;

    fn check(
        from: Number,
        to: Number,
        rounding: Rounding,
        integral: bool,
        value: u64,
        expect: u64,
    ) {
        let c = Conversion {
            from,
            to,
            rounding,
            integral,
            ftz: false,
            sat: false,
            relu: false,
            finite: false,
        };
        let result = zero_extend(convert([value, 0, 0], c.pack()), to.bits());
        assert_eq!(result, expect, "{c:?} of {value:#x} gave {result:#x}");
    }

    #[test]
    fn table() {
        let f = |x: f32| u64::from(x.to_bits());
        let d = |x: f64| x.to_bits();
        let n = Rounding::Nearest;
        check(S8, S32, n, false, 0xff, 0xffff_ffff);
        check(U8, S32, n, false, 0x1ff, 0xff);
        check(S32, S64, n, false, 0x8000_0000, 0xffff_ffff_8000_0000);
        check(F32, S32, Rounding::Zero, true, f(-1.9), 0xffff_ffff);
        check(F32, S32, n, true, f(2.5), 2);
        check(F32, S32, Rounding::Up, true, f(2.1), 3);
        check(F32, U32, Rounding::Zero, true, f(-5.0), 0);
        check(F32, S32, Rounding::Zero, true, f(1e20), 0x7fff_ffff);
        check(F32, S32, Rounding::Zero, true, f(f32::NAN), 0);
        check(F64, S32, Rounding::Zero, true, d(f64::NAN), 0x8000_0000);
        check(F32, U64, Rounding::Zero, true, f(f32::NAN), 1 << 63);
        check(S64, F32, n, false, 16_777_217, f(16_777_216.0));
        check(S64, F32, Rounding::Up, false, 16_777_217, f(16_777_218.0));
        check(U64, F64, n, false, u64::MAX, d(18_446_744_073_709_551_616.0));
        check(U64, F64, Rounding::Zero, false, u64::MAX, d(18_446_744_073_709_549_568.0));
        check(F64, F32, Rounding::Zero, false, d(1.0 - 1e-12), f(1.0_f32.next_down()));
        check(F32, F16, n, false, f(1.0 / 3.0), u64::from(f16::from_f32(1.0 / 3.0).to_bits()));
        check(F32, F16, n, false, f(1e6), 0x7c00);
        check(F32, F16, Rounding::Zero, false, f(1e6), 0x7bff);
        check(F32, Bf16, n, false, f(3.125), u64::from(bf16::from_f32(3.125).to_bits()));
        check(F16, F32, n, false, 0x3c00, f(1.0));
        check(F32, F32, Rounding::Down, true, f(-1.5), f(-2.0));
    }
}
