//! Floating-point arithmetic beyond the host's own operations: directed rounding, flushing of
//! denormal numbers, NaN and minimum rules, half-precision formats.
//!
//! A directed result comes from the nearest result: the sign of the exact error selects the result
//! or its neighbour. Errors of `f32` are computed in `f64`, where sums are error-free pairs and
//! products are exact.

use half::{bf16, f16};

/// The NaN that PTX's single-precision operations give.
pub const NAN_F32: u32 = 0x7fff_ffff;

/// Rounding mode of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

/// Parameter of a floating-point lane function: rounding in bits 0–1, then flags.
pub const FTZ: u32 = 1 << 2;
/// Clamp to 0…1, NaN to 0.
pub const SAT: u32 = 1 << 3;
/// Propagate NaN in `min` and `max`.
pub const NAN: u32 = 1 << 4;
/// `min`/`max`: the sign is the exclusive or of the operands' signs.
pub const XORSIGN_ABS: u32 = 1 << 5;
/// Negative results become 0.
pub const RELU: u32 = 1 << 6;

impl Rounding {
    /// From a parameter's low bits.
    #[must_use]
    pub const fn from_bits(how: u32) -> Self {
        match how & 3 {
            0 => Rounding::Nearest,
            1 => Rounding::Zero,
            2 => Rounding::Down,
            _ => Rounding::Up,
        }
    }

    /// As a parameter's low bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Rounding::Nearest => 0,
            Rounding::Zero => 1,
            Rounding::Down => 2,
            Rounding::Up => 3,
        }
    }

    /// The step from a rounded result: −1 is down, 1 is up, 0 is none. `error` is the exact value
    /// minus the result.
    fn step(self, result_negative: bool, error: f64) -> i32 {
        let towards_down = match self {
            Rounding::Nearest => return 0,
            Rounding::Down => true,
            Rounding::Up => false,
            Rounding::Zero => !result_negative,
        };
        if towards_down && error < 0.0 {
            -1
        } else if !towards_down && error > 0.0 {
            1
        } else {
            0
        }
    }
}

/// Denormal numbers become zero of the same sign.
#[inline(always)]
pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

/// `high + low`, exactly `a + b`.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// Rounds `high + low` to `f32`, where `low` is below half an ulp of `high`.
#[must_use]
pub fn round_f32(high: f64, low: f64, rounding: Rounding) -> f32 {
    let mut nearest = high as f32;
    if low != 0.0 && !nearest.is_infinite() {
        // The low part decides a tie of the high part.
        let rest = high - f64::from(nearest);
        let neighbour = if rest > 0.0 { nearest.next_up() } else { nearest.next_down() };
        let half = (f64::from(neighbour) - f64::from(nearest)) / 2.0;
        if rest != 0.0 && rest == half && (low > 0.0) == (rest > 0.0) {
            nearest = neighbour;
        } else if rest == 0.0 {
            // `nearest` equals `high`, so there is no tie to decide.
        }
    }
    let rest = high - f64::from(nearest);
    let error = if nearest.is_infinite() && high.is_finite() {
        -f64::from(nearest)
    } else if rest != 0.0 {
        rest
    } else {
        low
    };
    match rounding.step(nearest.is_sign_negative(), error) {
        1 => nearest.next_up(),
        -1 => nearest.next_down(),
        _ => nearest,
    }
}

fn finish_f32(result: f32, how: u32) -> u64 {
    let mut result = if how & FTZ != 0 { flush(result) } else { result };
    if how & SAT != 0 {
        result = if result.is_nan() { 0.0 } else { result.clamp(0.0, 1.0) + 0.0 };
    }
    if result.is_nan() { u64::from(NAN_F32) } else { u64::from(result.to_bits()) }
}

fn input_f32(bits: u64, how: u32) -> f32 {
    let x = f32::from_bits(bits as u32);
    if how & FTZ != 0 { flush(x) } else { x }
}

/// The sign of an exact zero sum under directed rounding.
fn zero_sum(a: f64, b: f64, sum: f64, rounding: Rounding) -> f64 {
    if sum == 0.0
        && rounding == Rounding::Down
        && !(a == 0.0 && b == 0.0 && a.is_sign_positive() && b.is_sign_positive())
    {
        -0.0
    } else {
        sum
    }
}

/// `add.f32` with every modifier.
pub fn add_f32(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (input_f32(x[0], how), input_f32(x[1], how));
    let rounding = Rounding::from_bits(how);
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() {
        return finish_f32(a + b, how);
    }
    let (high, low) = two_sum(f64::from(a), f64::from(b));
    let high = zero_sum(f64::from(a), f64::from(b), high, rounding);
    finish_f32(round_f32(high, low, rounding), how)
}

/// `sub.f32` with every modifier.
pub fn sub_f32(x: [u64; 3], how: u32) -> u64 {
    let b = f32::from_bits(x[1] as u32);
    if b.is_nan() {
        return u64::from(if how & SAT != 0 { 0 } else { NAN_F32 });
    }
    add_f32([x[0], u64::from((-b).to_bits()), 0], how)
}

/// `mul.f32` with every modifier.
pub fn mul_f32(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (input_f32(x[0], how), input_f32(x[1], how));
    let rounding = Rounding::from_bits(how);
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() {
        return finish_f32(a * b, how);
    }
    finish_f32(round_f32(f64::from(a) * f64::from(b), 0.0, rounding), how)
}

/// `fma.f32` with every modifier.
pub fn fma_f32(x: [u64; 3], how: u32) -> u64 {
    let (a, b, c) = (input_f32(x[0], how), input_f32(x[1], how), input_f32(x[2], how));
    let rounding = Rounding::from_bits(how);
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() || !c.is_finite() {
        let result = a.mul_add(b, c);
        let result = if how & RELU != 0 && result < 0.0 { 0.0 } else { result };
        return finish_f32(result, how);
    }
    let product = f64::from(a) * f64::from(b);
    let (high, low) = two_sum(product, f64::from(c));
    let high = zero_sum(product, f64::from(c), high, rounding);
    finish_f32(round_f32(high, low, rounding), how)
}

/// `div.f32` with every modifier; `.approx` and `.full` are rounded to nearest.
pub fn div_f32(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (input_f32(x[0], how), input_f32(x[1], how));
    let rounding = Rounding::from_bits(how);
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() || b == 0.0 {
        return finish_f32(a / b, how);
    }
    let quotient = f64::from(a) / f64::from(b);
    let rest = (-quotient).mul_add(f64::from(b), f64::from(a));
    let low = if b > 0.0 { rest } else { -rest };
    finish_f32(round_f32(quotient, low, rounding), how)
}

/// `sqrt.f32` with every modifier.
pub fn sqrt_f32(x: [u64; 3], how: u32) -> u64 {
    let a = input_f32(x[0], how);
    let rounding = Rounding::from_bits(how);
    if rounding == Rounding::Nearest || !a.is_finite() || a < 0.0 {
        return finish_f32(a.sqrt(), how);
    }
    let root = f64::from(a).sqrt();
    let rest = (-root).mul_add(root, f64::from(a));
    finish_f32(round_f32(root, rest, rounding), how)
}

/// `rcp.f32` with every modifier.
pub fn rcp_f32(x: [u64; 3], how: u32) -> u64 {
    div_f32([u64::from(1.0_f32.to_bits()), x[0], 0], how)
}

macro_rules! approximate {
    ($($(#[$doc:meta])* $name:ident: |$x:ident| $value:expr;)*) => {
        $($(#[$doc])*
        pub fn $name(x: [u64; 3], how: u32) -> u64 {
            let $x = f64::from(input_f32(x[0], how));
            finish_f32($value as f32, how)
        })*
    };
}

approximate! {
    /// `rsqrt.approx.f32`.
    rsqrt_f32: |x| 1.0 / x.sqrt();
    /// `sin.approx.f32`.
    sin_f32: |x| x.sin();
    /// `cos.approx.f32`.
    cos_f32: |x| x.cos();
    /// `lg2.approx.f32`.
    lg2_f32: |x| x.log2();
    /// `ex2.approx.f32`.
    ex2_f32: |x| x.exp2();
    /// `tanh.approx.f32`.
    tanh_f32: |x| x.tanh();
}

/// `rcp.approx.ftz.f64`: 20 mantissa bits are enough for the ISA; the full value is given with its
/// low word cleared, as the hardware leaves it.
pub fn rcp_approx_f64(x: [u64; 3], _how: u32) -> u64 {
    (1.0 / flush_f64(x[0])).to_bits() & 0xffff_ffff_0000_0000
}

/// `rsqrt.approx.f64`; with `.ftz` the low word is cleared.
pub fn rsqrt_approx_f64(x: [u64; 3], how: u32) -> u64 {
    if how & FTZ == 0 {
        return (1.0 / f64::from_bits(x[0]).sqrt()).to_bits();
    }
    (1.0 / flush_f64(x[0]).sqrt()).to_bits() & 0xffff_ffff_0000_0000
}

fn flush_f64(bits: u64) -> f64 {
    let x = f64::from_bits(bits);
    if x.is_subnormal() { 0.0_f64.copysign(x) } else { x }
}

/// The sign of the exact sum of products of finite numbers: −1, 0 or 1.
///
/// All terms are added in a fixed-point number that is wide enough for any. A product of two
/// doubles is a multiple of 2⁻²¹⁴⁸ and below 2²⁰⁴⁸.
fn exact_sign(terms: &[(f64, f64)]) -> f64 {
    const WORDS: usize = 68;
    let parts = |x: f64| {
        let (exponent, fraction) =
            ((x.to_bits() >> 52 & 0x7ff) as usize, x.to_bits() & ((1 << 52) - 1));
        if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 52, exponent - 1) }
    };
    let mut sum = [0_u64; WORDS];
    for &(x, y) in terms {
        let ((m, e), (n, f)) = (parts(x), parts(y));
        let product = u128::from(m) * u128::from(n);
        let (word, shift) = ((e + f) / 64, (e + f) % 64);
        let low = product << shift;
        let high = if shift == 0 { 0 } else { (product >> (128 - shift)) as u64 };
        let term = [low as u64, (low >> 64) as u64, high];
        let negative = x.is_sign_negative() != y.is_sign_negative();
        let mut carry = negative;
        for (index, place) in sum.iter_mut().enumerate().skip(word) {
            let part = term.get(index - word).copied().unwrap_or(0);
            let part = if negative { !part } else { part };
            let (partial, first) = place.overflowing_add(part);
            let (total, second) = partial.overflowing_add(u64::from(carry));
            *place = total;
            carry = first || second;
        }
    }
    if sum[WORDS - 1] >> 63 == 1 {
        -1.0
    } else if sum.iter().all(|&word| word == 0) {
        0.0
    } else {
        1.0
    }
}

/// The result of directed rounding, given the nearest one. `error` has the sign of the exact value
/// minus `nearest`.
fn directed_f64(nearest: f64, error: f64, rounding: Rounding) -> f64 {
    match rounding.step(nearest.is_sign_negative(), error) {
        1 => nearest.next_up(),
        -1 => nearest.next_down(),
        _ => nearest,
    }
}

/// The sum of two products under directed rounding, given the nearest one.
fn directed_sum(terms: [(f64, f64); 2], nearest: f64, rounding: Rounding) -> u64 {
    let finite = terms.iter().all(|(x, y)| x.is_finite() && y.is_finite());
    if rounding == Rounding::Nearest || !finite {
        return nearest.to_bits();
    }
    if nearest.is_infinite() {
        return directed_f64(nearest, -nearest, rounding).to_bits();
    }
    let error = exact_sign(&[terms[0], terms[1], (-nearest, 1.0)]);
    if nearest == 0.0 && error == 0.0 {
        // Zeros of both signs, or terms that cancel, sum to −0 when rounding down.
        let negative = terms.map(|(x, y)| x.is_sign_negative() != y.is_sign_negative());
        let differ = negative[0] != negative[1];
        return if differ && rounding == Rounding::Down { -0.0 } else { nearest }.to_bits();
    }
    directed_f64(nearest, error, rounding).to_bits()
}

/// `add.f64` with rounding.
pub fn add_f64(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (f64::from_bits(x[0]), f64::from_bits(x[1]));
    directed_sum([(a, 1.0), (b, 1.0)], a + b, Rounding::from_bits(how))
}

/// `sub.f64` with rounding.
pub fn sub_f64(x: [u64; 3], how: u32) -> u64 {
    add_f64([x[0], (-f64::from_bits(x[1])).to_bits(), 0], how)
}

/// `mul.f64` with rounding.
pub fn mul_f64(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (f64::from_bits(x[0]), f64::from_bits(x[1]));
    let nearest = a * b;
    let zero = if nearest.is_sign_negative() { -0.0 } else { 0.0 };
    directed_sum([(a, b), (zero, 1.0)], nearest, Rounding::from_bits(how))
}

/// `fma.f64` with rounding.
pub fn fma_f64(x: [u64; 3], how: u32) -> u64 {
    let [a, b, c] = x.map(f64::from_bits);
    directed_sum([(a, b), (c, 1.0)], a.mul_add(b, c), Rounding::from_bits(how))
}

/// `div.f64` with rounding.
pub fn div_f64(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (f64::from_bits(x[0]), f64::from_bits(x[1]));
    let rounding = Rounding::from_bits(how);
    let quotient = a / b;
    if rounding == Rounding::Nearest || !a.is_finite() || !b.is_finite() || b == 0.0 {
        return quotient.to_bits();
    }
    let error = if quotient.is_infinite() {
        -quotient
    } else {
        exact_sign(&[(a, 1.0), (-quotient, b)]) * b.signum()
    };
    directed_f64(quotient, error, rounding).to_bits()
}

/// `rcp.f64` with rounding.
pub fn rcp_f64(x: [u64; 3], how: u32) -> u64 {
    div_f64([1.0_f64.to_bits(), x[0], 0], how)
}

/// `sqrt.f64` with rounding.
pub fn sqrt_f64(x: [u64; 3], how: u32) -> u64 {
    let a = f64::from_bits(x[0]);
    let root = a.sqrt();
    let rounding = Rounding::from_bits(how);
    if rounding == Rounding::Nearest || !root.is_finite() {
        return root.to_bits();
    }
    directed_f64(root, exact_sign(&[(a, 1.0), (-root, root)]), rounding).to_bits()
}

/// PTX's minimum: a NaN loses against a number unless `.NaN`; −0 is below +0.
pub fn min_max(a: f64, b: f64, maximum: bool, how: u32) -> f64 {
    if a.is_nan() || b.is_nan() {
        return if how & NAN != 0 || (a.is_nan() && b.is_nan()) {
            f64::NAN
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    let (x, y) = if how & XORSIGN_ABS != 0 { (a.abs(), b.abs()) } else { (a, b) };
    let first = match x.total_cmp(&y) {
        std::cmp::Ordering::Less | std::cmp::Ordering::Equal => !maximum,
        std::cmp::Ordering::Greater => maximum,
    };
    let chosen = if first { x } else { y };
    if how & XORSIGN_ABS != 0 {
        let negative = a.is_sign_negative() != b.is_sign_negative();
        return if negative { -chosen } else { chosen };
    }
    chosen
}

/// `min.f32` and `max.f32` with every modifier.
pub fn min_f32(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (input_f32(x[0], how), input_f32(x[1], how));
    finish_f32(min_max(f64::from(a), f64::from(b), false, how) as f32, how)
}

/// See [`min_f32`].
pub fn max_f32(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (input_f32(x[0], how), input_f32(x[1], how));
    finish_f32(min_max(f64::from(a), f64::from(b), true, how) as f32, how)
}

/// `min.f64`.
pub fn min_f64(x: [u64; 3], how: u32) -> u64 {
    min_max(f64::from_bits(x[0]), f64::from_bits(x[1]), false, how).to_bits()
}

/// `max.f64`.
pub fn max_f64(x: [u64; 3], how: u32) -> u64 {
    min_max(f64::from_bits(x[0]), f64::from_bits(x[1]), true, how).to_bits()
}

/// A half-precision format: what its arithmetic needs.
pub trait Half: Copy {
    /// Fraction bits.
    const FRACTION: u32;
    /// Converts exactly.
    fn widen(bits: u16) -> f64;
    /// Rounds to nearest, ties to even. Every NaN becomes PTX's NaN.
    fn narrow(value: f64) -> u16 {
        round_half(value, Self::FRACTION, Rounding::Nearest)
    }
    /// Denormal numbers become zeros of the same sign.
    fn flush(bits: u16) -> u16 {
        if (bits & 0x7fff) >> Self::FRACTION == 0 { bits & 0x8000 } else { bits }
    }
}

/// IEEE half precision.
#[derive(Clone, Copy)]
pub struct F16;
/// The upper half of an `f32`.
#[derive(Clone, Copy)]
pub struct Bf16;

impl Half for F16 {
    const FRACTION: u32 = 10;
    fn widen(bits: u16) -> f64 {
        f16::from_bits(bits).to_f64()
    }
}

impl Half for Bf16 {
    const FRACTION: u32 = 7;
    fn widen(bits: u16) -> f64 {
        bf16::from_bits(bits).to_f64()
    }
}

/// Rounds to a format of 16 bits with `fraction` bits after the point: 10 for `f16`, 7 for `bf16`.
#[must_use]
pub fn round_half(value: f64, fraction: u32, rounding: Rounding) -> u16 {
    if value.is_nan() {
        return 0x7fff;
    }
    let negative = value.is_sign_negative();
    let sign = u16::from(negative) << 15;
    let infinity = 0x7fff_u64 >> fraction << fraction;
    if value.is_infinite() {
        return sign | infinity as u16;
    }
    let lowest = 2 - (1_i32 << (14 - fraction));
    let bits = value.to_bits();
    let (field, low) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let (significand, exponent) =
        if field == 0 { (low, -1022) } else { (low | 1 << 52, field - 1023) };
    let held = exponent.max(lowest);
    // Bits that are shifted out entirely still decide a directed rounding.
    let shift = (52 - fraction as i32 + held - exponent).clamp(1, 60);
    let (mut quotient, rest) = (significand >> shift, significand & ((1 << shift) - 1));
    let half = 1_u64 << (shift - 1);
    let up = match rounding {
        Rounding::Nearest => rest > half || (rest == half && quotient & 1 == 1),
        Rounding::Zero => false,
        Rounding::Down => negative && rest != 0,
        Rounding::Up => !negative && rest != 0,
    };
    quotient += u64::from(up);
    let magnitude = ((held - lowest) as u64).wrapping_shl(fraction) + quotient;
    if magnitude < infinity {
        return sign | magnitude as u16;
    }
    let stays = match rounding {
        Rounding::Nearest => false,
        Rounding::Zero => true,
        Rounding::Down => !negative,
        Rounding::Up => negative,
    };
    sign | if stays { infinity - 1 } else { infinity } as u16
}

/// `high + low` rounded to odd: a later rounding to fewer bits gives what rounding the exact sum
/// would.
#[must_use]
pub fn to_odd(high: f64, low: f64) -> f64 {
    if low == 0.0 || !low.is_finite() || !high.is_finite() || high.to_bits() & 1 == 1 {
        high
    } else if (low > 0.0) == (high > 0.0) {
        f64::from_bits(high.to_bits() | 1)
    } else {
        f64::from_bits(high.to_bits() - 1)
    }
}

/// `a + b`, rounded to odd.
fn odd_sum(a: f64, b: f64) -> f64 {
    let (high, low) = two_sum(a, b);
    to_odd(high, low)
}

/// What is done with one or two halves. A result that `f64` does not hold exactly is rounded to
/// odd.
pub type HalfFunction = fn(f64, f64, f64, u32) -> f64;

fn half_once<H: Half>(f: HalfFunction, x: [u16; 3], how: u32) -> u16 {
    let x = if how & FTZ != 0 { x.map(H::flush) } else { x };
    let mut result = f(H::widen(x[0]), H::widen(x[1]), H::widen(x[2]), how);
    if how & SAT != 0 {
        result = if result.is_nan() { 0.0 } else { result.clamp(0.0, 1.0) + 0.0 };
    }
    if how & RELU != 0 && !result.is_nan() {
        result = if result > 0.0 { result } else { 0.0 };
    }
    let result = H::narrow(result);
    if how & FTZ != 0 { H::flush(result) } else { result }
}

macro_rules! half_operations {
    ($($name:ident $pair:ident: |$a:ident, $b:ident, $c:ident, $how:ident| $value:expr;)*) => {
        $(
        /// The operation of that name on one half.
        pub fn $name<H: Half>(x: [u64; 3], how: u32) -> u64 {
            let f: HalfFunction = |$a, $b, $c, $how| $value;
            u64::from(half_once::<H>(f, x.map(|bits| bits as u16), how))
        }
        /// The operation of that name on two halves.
        pub fn $pair<H: Half>(x: [u64; 3], how: u32) -> u64 {
            let f: HalfFunction = |$a, $b, $c, $how| $value;
            let low = half_once::<H>(f, x.map(|bits| bits as u16), how);
            let high = half_once::<H>(f, x.map(|bits| (bits >> 16) as u16), how);
            u64::from(low) | u64::from(high) << 16
        })*
    };
}

half_operations! {
    half_add half_add2: |a, b, _c, _how| odd_sum(a, b);
    half_sub half_sub2: |a, b, _c, _how| odd_sum(a, -b);
    half_mul half_mul2: |a, b, _c, _how| a * b;
    half_fma half_fma2: |a, b, c, _how| odd_sum(a * b, c);
    half_min half_min2: |a, b, _c, how| min_max(a, b, false, how);
    half_max half_max2: |a, b, _c, how| min_max(a, b, true, how);
    half_ex2 half_ex2_2: |a, _b, _c, _how| a.exp2();
    half_tanh half_tanh2: |a, _b, _c, _how| a.tanh();
}

/// One or two halves. With [`FTZ`] denormal numbers of `f16` are zero; `bf16` has no [`FTZ`].
fn flushed_halves(bits: u64, how: u32) -> u64 {
    if how & FTZ == 0 {
        return bits;
    }
    let half = |at: u32| u64::from(F16::flush((bits >> at) as u16)) << at;
    half(0) | half(16)
}

/// `neg` of a half: the sign bit.
pub fn half_neg(x: [u64; 3], how: u32) -> u64 {
    flushed_halves(x[0], how) ^ 0x8000
}
/// `neg` of two halves.
pub fn half_neg2(x: [u64; 3], how: u32) -> u64 {
    flushed_halves(x[0], how) ^ 0x8000_8000
}
/// `abs` of a half.
pub fn half_abs(x: [u64; 3], how: u32) -> u64 {
    flushed_halves(x[0], how) & 0x7fff
}
/// `abs` of two halves.
pub fn half_abs2(x: [u64; 3], how: u32) -> u64 {
    flushed_halves(x[0], how) & 0x7fff_7fff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32_of(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }

    #[test]
    fn directed_sums() {
        let one = u64::from(1.0_f32.to_bits());
        let tiny = u64::from(1e-20_f32.to_bits());
        let minus_tiny = u64::from((-1e-20_f32).to_bits());
        for (b, mode, expect) in [
            (tiny, Rounding::Nearest, 1.0),
            (tiny, Rounding::Zero, 1.0),
            (tiny, Rounding::Down, 1.0),
            (tiny, Rounding::Up, 1.0_f32.next_up()),
            (minus_tiny, Rounding::Zero, 1.0_f32.next_down()),
            (minus_tiny, Rounding::Down, 1.0_f32.next_down()),
            (minus_tiny, Rounding::Up, 1.0),
        ] {
            assert_eq!(
                f32_of(add_f32([one, b, 0], mode.bits())).to_bits(),
                expect.to_bits(),
                "{mode:?}"
            );
            let wide = [1.0_f64.to_bits(), f64::from(f32_of(b)).to_bits(), 0];
            let expect64 = match (f32_of(b) > 0.0, mode) {
                (true, Rounding::Up) => 1.0_f64.next_up(),
                (false, Rounding::Zero | Rounding::Down) => 1.0_f64.next_down(),
                _ => 1.0,
            };
            assert_eq!(add_f64(wide, mode.bits()), expect64.to_bits(), "{mode:?}");
        }
    }

    #[test]
    fn overflow_is_directed() {
        let max = u64::from(f32::MAX.to_bits());
        let two = u64::from(2.0_f32.to_bits());
        assert_eq!(f32_of(mul_f32([max, two, 0], Rounding::Zero.bits())), f32::MAX);
        assert_eq!(f32_of(mul_f32([max, two, 0], Rounding::Up.bits())), f32::INFINITY);
        assert_eq!(f32_of(mul_f32([max, two, 0], 0)), f32::INFINITY);
    }

    #[test]
    fn thirds_bracket_the_exact_value() {
        let (one, three) = (u64::from(1.0_f32.to_bits()), u64::from(3.0_f32.to_bits()));
        let down = f32_of(div_f32([one, three, 0], Rounding::Down.bits()));
        let up = f32_of(div_f32([one, three, 0], Rounding::Up.bits()));
        assert_eq!(down.next_up().to_bits(), up.to_bits());
        assert!(f64::from(down) * 3.0 < 1.0 && f64::from(up) * 3.0 > 1.0);
    }

    #[test]
    fn minimum_prefers_numbers_and_knows_signs() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(min_f32([bits(f32::NAN), bits(2.0), 0], 0), bits(2.0));
        assert_eq!(min_f32([bits(f32::NAN), bits(2.0), 0], NAN), u64::from(NAN_F32));
        assert_eq!(min_f32([bits(0.0), bits(-0.0), 0], 0), bits(-0.0));
        assert_eq!(max_f32([bits(-0.0), bits(0.0), 0], 0), bits(0.0));
    }

    #[test]
    fn saturation_and_flushing() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(add_f32([bits(0.75), bits(0.75), 0], SAT), bits(1.0));
        assert_eq!(add_f32([bits(f32::NAN), bits(0.75), 0], SAT), 0);
        assert_eq!(mul_f32([bits(1e-30), bits(1e-10), 0], FTZ), 0);
        assert_ne!(mul_f32([bits(1e-30), bits(1e-10), 0], 0), 0);
    }

    #[test]
    fn halves_round_once() {
        let bits = |x: f32| u64::from(f16::from_f32(x).to_bits());
        assert_eq!(half_add::<F16>([bits(1.5), bits(2.25), 0], 0), bits(3.75));
        let pair =
            half_mul2::<F16>([bits(2.0) << 16 | bits(3.0), bits(4.0) << 16 | bits(5.0), 0], 0);
        assert_eq!(pair, bits(8.0) << 16 | bits(15.0));
    }
}
