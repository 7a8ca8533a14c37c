//! Operations that run lane by lane: functions of up to three operands and a parameter.
//!
//! Operands are the bits of their rows, zero-extended to 64. The caller cuts the result to the
//! width of its target.

pub mod scalar_video;
pub mod video;

use crate::memory::{SHARED_BASE, SPACE_BYTES};

/// A lane-by-lane operation: sources and a parameter whose meaning is the function's own.
pub type LaneFn = fn([u64; 3], u32) -> u64;

/// Sign-extends the lowest `bits` bits.
#[must_use]
pub const fn sign_extend(value: u64, bits: u32) -> u64 {
    let shift = 64 - bits;
    (((value << shift) as i64) >> shift) as u64
}

/// Keeps the lowest `bits` bits.
#[must_use]
pub const fn zero_extend(value: u64, bits: u32) -> u64 {
    if bits >= 64 { value } else { value & ((1 << bits) - 1) }
}

/// Signedness flag of an integer operation; the low byte of the parameter is the width in bits.
pub const SIGNED: u32 = 1 << 8;
/// Saturation flag.
pub const SATURATE: u32 = 1 << 9;

fn operand(value: u64, how: u32) -> i128 {
    let bits = how & 0xff;
    if how & SIGNED != 0 {
        i128::from(sign_extend(value, bits) as i64)
    } else {
        i128::from(zero_extend(value, bits))
    }
}

fn cut(value: i128, how: u32) -> u64 {
    if how & SATURATE != 0 {
        return value.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64;
    }
    value as u64
}

macro_rules! integer {
    ($($(#[$doc:meta])* $name:ident: |$a:ident, $b:ident, $c:ident, $how:ident| $value:expr;)*) => {
        $($(#[$doc])*
        pub fn $name(x: [u64; 3], $how: u32) -> u64 {
            let [$a, $b, $c] = x.map(|value| operand(value, $how));
            cut($value, $how)
        })*
    };
}

integer! {
    /// `add`, any width.
    add: |a, b, _c, how| a + b;
    /// `sub`, any width.
    sub: |a, b, _c, how| a - b;
    /// `mul.lo`, any width.
    mul_lo: |a, b, _c, how| a.wrapping_mul(b);
    /// `mul.hi`, any width.
    mul_hi: |a, b, _c, how| a.wrapping_mul(b) >> (how & 0xff);
    /// `mad.lo`, any width.
    mad_lo: |a, b, c, how| a.wrapping_mul(b).wrapping_add(c);
    /// `mad.hi`, any width, `.sat` included.
    mad_hi: |a, b, c, how| (a.wrapping_mul(b) >> (how & 0xff)) + c;
    /// `mul24.lo`.
    mul24_lo: |a, b, _c, how| low24(a, how) * low24(b, how);
    /// `mul24.hi`.
    mul24_hi: |a, b, _c, how| (low24(a, how) * low24(b, how)) >> 16;
    /// `mad24.lo`.
    mad24_lo: |a, b, c, how| low24(a, how) * low24(b, how) + c;
    /// `mad24.hi`.
    mad24_hi: |a, b, c, how| ((low24(a, how) * low24(b, how)) >> 16) + c;
    /// `div`. A division by zero gives all ones, as the hardware does.
    div: |a, b, _c, how| if b == 0 { -1 } else { a / b };
    /// `rem`. A division by zero gives the dividend.
    rem: |a, b, _c, how| if b == 0 { a } else { a % b };
    /// `min`.
    min: |a, b, _c, how| a.min(b);
    /// `max`.
    max: |a, b, _c, how| a.max(b);
    /// `min.relu`.
    min_relu: |a, b, _c, how| a.min(b).max(0);
    /// `max.relu`.
    max_relu: |a, b, _c, how| a.max(b).max(0);
    /// `abs`.
    abs: |a, _b, _c, how| a.abs();
    /// `neg`.
    neg: |a, _b, _c, how| -a;
    /// `sad`: c + |a − b|.
    sad: |a, b, c, how| c + (a - b).abs();
    /// `and`.
    and: |a, b, _c, how| a & b;
    /// `or`.
    or: |a, b, _c, how| a | b;
    /// `xor`.
    xor: |a, b, _c, how| a ^ b;
    /// `not`.
    not: |a, _b, _c, how| !a;
    /// `cnot`.
    cnot: |a, _b, _c, how| i128::from(a == 0);
    /// `slct` on the sign of an integer c; a and b are carried as bits.
    slct_s32: |a, b, c, how| if (c as i32) >= 0 { a } else { b };
}

fn low24(value: i128, how: u32) -> i128 {
    if how & SIGNED != 0 {
        i128::from(sign_extend(value as u64, 24) as i64)
    } else {
        value & 0xff_ffff
    }
}

/// Carry out of `a + b + carry` in `how` bits.
pub fn carry_add(x: [u64; 3], how: u32) -> u64 {
    let sum = u128::from(zero_extend(x[0], how))
        + u128::from(zero_extend(x[1], how))
        + u128::from(x[2] & 1);
    (sum >> how & 1) as u64
}

/// `a + b + carry`.
pub fn add_carry(x: [u64; 3], _how: u32) -> u64 {
    x[0].wrapping_add(x[1]).wrapping_add(x[2] & 1)
}

/// Carry out of `a + ~b + carry` in `how` bits: 1 where `a − b` needs no borrow.
pub fn carry_sub(x: [u64; 3], how: u32) -> u64 {
    carry_add([x[0], !x[1], x[2]], how)
}

/// `a + ~b + carry`, which is `a − b` where the carry is 1.
pub fn sub_carry(x: [u64; 3], how: u32) -> u64 {
    add_carry([x[0], !x[1], x[2]], how)
}

/// `shl`: counts beyond the width give 0.
pub fn shl(x: [u64; 3], how: u32) -> u64 {
    let count = x[1] as u32;
    if count >= how & 0xff { 0 } else { x[0] << count }
}

/// `shr`: counts beyond the width act as the width.
pub fn shr(x: [u64; 3], how: u32) -> u64 {
    let bits = how & 0xff;
    let count = (x[1] as u32).min(bits);
    if how & SIGNED != 0 {
        ((sign_extend(x[0], bits) as i64) >> count.min(63)) as u64
    } else if count >= bits {
        0
    } else {
        zero_extend(x[0], bits) >> count
    }
}

/// `shf.l` and `shf.r`: bit 0 of the parameter is right, bit 1 is clamp.
pub fn shf(x: [u64; 3], how: u32) -> u64 {
    let both = (x[1] & 0xffff_ffff) << 32 | (x[0] & 0xffff_ffff);
    let count = x[2] as u32;
    let count = if how & 2 != 0 { count.min(32) } else { count & 31 };
    if how & 1 != 0 { both >> count } else { (both << count) >> 32 }
}

/// `bfe`.
pub fn bfe(x: [u64; 3], how: u32) -> u64 {
    let bits = how & 0xff;
    let (start, length) = (x[1] as u32 & 0xff, x[2] as u32 & 0xff);
    let value = zero_extend(x[0], bits);
    let top = bits - 1;
    let sign = if how & SIGNED == 0 || length == 0 {
        0
    } else {
        value >> (start + length - 1).min(top) & 1
    };
    let mut result = 0;
    for index in 0..bits {
        let from = start + index;
        let bit = if index < length && from <= top { value >> from & 1 } else { sign };
        result |= bit << index;
    }
    result
}

/// `bfi` with a (the field), b (the rest), and c holding the start; the length is in c's upper
/// half.
pub fn bfi(x: [u64; 3], how: u32) -> u64 {
    let bits = how & 0xff;
    let (start, length) = (x[2] as u32 & 0xff, (x[2] >> 32) as u32 & 0xff);
    let end = (start + length).min(bits);
    let mut result = zero_extend(x[1], bits);
    for index in start..end {
        result = result & !(1 << index) | (x[0] >> (index - start) & 1) << index;
    }
    result
}

/// Packs a start and a length for [`bfi`].
pub fn pack_field(x: [u64; 3], _how: u32) -> u64 {
    x[0] & 0xff | (x[1] & 0xff) << 32
}

/// `bfind`; bit 10 of the parameter is `.shiftamt`.
pub fn bfind(x: [u64; 3], how: u32) -> u64 {
    let bits = how & 0xff;
    let mut value = zero_extend(x[0], bits);
    if how & SIGNED != 0 && value >> (bits - 1) & 1 == 1 {
        value = zero_extend(!value, bits);
    }
    if value == 0 {
        return 0xffff_ffff;
    }
    let position = 63 - value.leading_zeros();
    u64::from(if how & 1 << 10 != 0 { bits - 1 - position } else { position })
}

/// `brev`.
pub fn brev(x: [u64; 3], how: u32) -> u64 {
    zero_extend(x[0], how).reverse_bits() >> (64 - how)
}

/// `clz`.
pub fn clz(x: [u64; 3], how: u32) -> u64 {
    u64::from(zero_extend(x[0], how).leading_zeros() - (64 - how))
}

/// `popc`.
pub fn popc(x: [u64; 3], how: u32) -> u64 {
    u64::from(zero_extend(x[0], how).count_ones())
}

/// `bmsk`: bit 0 of the parameter is clamp, else wrap.
pub fn bmsk(x: [u64; 3], how: u32) -> u64 {
    let (start, width) = (x[0] as u32, x[1] as u32);
    let (start, width) =
        if how & 1 != 0 { (start.min(32), width.min(32)) } else { (start & 31, width & 31) };
    (((1_u64 << width) - 1) << start) & 0xffff_ffff
}

/// `szext`: bits 0–7 width 32, [`SIGNED`]; bit 10 is clamp, else wrap.
pub fn szext(x: [u64; 3], how: u32) -> u64 {
    let count = x[1] as u32;
    let count = if how & 1 << 10 != 0 { count.min(32) } else { count & 31 };
    if count == 0 {
        0
    } else if how & SIGNED != 0 {
        sign_extend(x[0], count)
    } else {
        zero_extend(x[0], count)
    }
}

/// `fns`: finds the n-th set bit.
pub fn fns(x: [u64; 3], _how: u32) -> u64 {
    let (mask, base, offset) = (x[0] as u32, x[1] as i64 & 31, x[2] as u32 as i32);
    let set = |position: i64| (0..32).contains(&position) && mask >> position & 1 == 1;
    if offset == 0 {
        return if set(base) { base as u64 } else { 0xffff_ffff };
    }
    let (step, mut left) =
        if offset > 0 { (1, i64::from(offset)) } else { (-1, -i64::from(offset)) };
    let mut position = base;
    while (0..32).contains(&position) {
        if set(position) {
            left -= 1;
            if left == 0 {
                return position as u64;
            }
        }
        position += step;
    }
    0xffff_ffff
}

/// `prmt`: the parameter is the mode: 0 default, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16.
pub fn prmt(x: [u64; 3], how: u32) -> u64 {
    let bytes = (x[0] & 0xffff_ffff) | (x[1] & 0xffff_ffff) << 32;
    let byte = |index: u32| bytes >> (8 * index) & 0xff;
    let control = x[2] as u32;
    let start = control & 3;
    let select = |position: u32| -> u64 {
        match how {
            0 => {
                let nibble = control >> (4 * position) & 15;
                let value = byte(nibble & 7);
                if nibble & 8 == 0 {
                    value
                } else if value & 0x80 != 0 {
                    0xff
                } else {
                    0
                }
            }
            1 => byte((start + position) & 7),
            2 => byte(start.wrapping_sub(position) & 7),
            3 => byte(start),
            4 => byte(position.max(start)),
            5 => byte(position.min(start)),
            _ => byte((start & 1) * 2 + (position & 1)),
        }
    };
    (0..4).map(|position| select(position) << (8 * position)).sum()
}

/// `lop3`: the parameter is the look-up table.
pub fn lop3(x: [u64; 3], how: u32) -> u64 {
    let [a, b, c] = x;
    (0..8_u32)
        .filter(|index| how >> index & 1 == 1)
        .map(|index| {
            let pick = |value: u64, bit: u32| if index >> bit & 1 == 1 { value } else { !value };
            pick(a, 2) & pick(b, 1) & pick(c, 0)
        })
        .fold(0, |all, term| all | term)
}

/// `dp4a`: bit 0 of the parameter: a is signed, bit 1: b is signed.
pub fn dp4a(x: [u64; 3], how: u32) -> u64 {
    let part = |value: u64, index: u32, signed: bool| {
        let byte = value >> (8 * index) & 0xff;
        if signed { i64::from(byte as u8 as i8) } else { byte as i64 }
    };
    let sum: i64 = (0..4).map(|i| part(x[0], i, how & 1 != 0) * part(x[1], i, how & 2 != 0)).sum();
    x[2].wrapping_add(sum as u64)
}

/// `dp2a`: as [`dp4a`]; bit 2 of the parameter is `.hi`.
pub fn dp2a(x: [u64; 3], how: u32) -> u64 {
    let half = |index: u32| {
        let value = (x[0] >> (16 * index)) as u16;
        if how & 1 != 0 { i64::from(value as i16) } else { i64::from(value) }
    };
    let byte = |index: u32| {
        let value = (x[1] >> (8 * (index + if how & 4 != 0 { 2 } else { 0 }))) as u8;
        if how & 2 != 0 { i64::from(value as i8) } else { i64::from(value) }
    };
    let sum: i64 = (0..2).map(|i| half(i) * byte(i)).sum();
    x[2].wrapping_add(sum as u64)
}

/// `min` and `max` of two 16-bit integers each: bit 0 of the parameter is max, bit 1 signed, bit 2
/// add.
pub fn pair16(x: [u64; 3], how: u32) -> u64 {
    let once = |shift: u32| {
        let (a, b) = ((x[0] >> shift) as u16, (x[1] >> shift) as u16);
        let result = match (how & 4 != 0, how & 2 != 0, how & 1 != 0) {
            (true, ..) => a.wrapping_add(b),
            (_, true, true) => (a as i16).max(b as i16) as u16,
            (_, true, false) => (a as i16).min(b as i16) as u16,
            (_, false, true) => a.max(b),
            (_, false, false) => a.min(b),
        };
        // `.relu`
        let result = if how & 8 != 0 && (result as i16) < 0 { 0 } else { result };
        u64::from(result) << shift
    };
    once(0) | once(16)
}

/// `a` if c else `b`.
pub fn select(x: [u64; 3], _how: u32) -> u64 {
    if x[2] & 1 != 0 { x[0] } else { x[1] }
}

/// `slct` on the sign of an `f32` c; NaN selects b, −0 selects a; a parameter of 1 flushes c.
pub fn slct_f32(x: [u64; 3], how: u32) -> u64 {
    let c = f32::from_bits(x[2] as u32);
    if if how == 1 { super::float::flush(c) } else { c } >= 0.0 { x[0] } else { x[1] }
}

/// `copysign`: the sign of a on b; the parameter is the width.
pub fn copysign(x: [u64; 3], how: u32) -> u64 {
    let sign = 1_u64 << (how - 1);
    x[0] & sign | x[1] & !sign
}

/// `neg.f32` with `.ftz`.
pub fn neg_f32(x: [u64; 3], how: u32) -> u64 {
    let value = f32::from_bits(x[0] as u32);
    let value = if how & super::float::FTZ != 0 { super::float::flush(value) } else { value };
    u64::from((-value).to_bits())
}

/// `abs.f32` with `.ftz`.
pub fn abs_f32(x: [u64; 3], how: u32) -> u64 {
    neg_f32(x, how) & 0x7fff_ffff
}

/// `testp`: the parameter is the width in the low byte, above it the property.
pub fn testp(x: [u64; 3], how: u32) -> u64 {
    let value = if how & 0xff == 32 {
        f64::from(f32::from_bits(x[0] as u32))
    } else {
        f64::from_bits(x[0])
    };
    let normal =
        if how & 0xff == 32 { f32::from_bits(x[0] as u32).is_normal() } else { value.is_normal() };
    let subnormal = if how & 0xff == 32 {
        f32::from_bits(x[0] as u32).is_subnormal()
    } else {
        value.is_subnormal()
    };
    u64::from(match how >> 8 {
        0 => value.is_finite(),
        1 => value.is_infinite(),
        2 => !value.is_nan(),
        3 => value.is_nan(),
        4 => normal,
        _ => subnormal,
    })
}

/// A piece of a wider value: shifts right by the parameter.
pub fn piece(x: [u64; 3], how: u32) -> u64 {
    x[0] >> how
}

/// Joins: a, and b shifted left by the parameter.
pub fn join(x: [u64; 3], how: u32) -> u64 {
    zero_extend(x[0], how) | x[1] << how
}

/// Comparison of anything: the low byte is the kind (0 integer, 1 `f32`, 2 `f64`, 3 `f16`, 4
/// `bf16`), then the comparison; bits 16–23 the width, bit 24 signed, bit 25 ftz.
pub fn compare(x: [u64; 3], how: u32) -> u64 {
    use std::cmp::Ordering;
    let comparison = how >> 8 & 0xff;
    let bits = how >> 16 & 0xff;
    let order = match how & 0xff {
        0 => {
            let signed = if how >> 24 & 1 != 0 { SIGNED } else { 0 };
            Some(operand(x[0], bits | signed).cmp(&operand(x[1], bits | signed)))
        }
        1 => {
            let of = |bits: u64| {
                let value = f32::from_bits(bits as u32);
                if how >> 25 & 1 != 0 { super::float::flush(value) } else { value }
            };
            of(x[0]).partial_cmp(&of(x[1]))
        }
        2 => f64::from_bits(x[0]).partial_cmp(&f64::from_bits(x[1])),
        3 => {
            let of = |bits: u64| {
                let flushed = how >> 25 & 1 != 0 && bits & 0x7c00 == 0;
                half::f16::from_bits(if flushed { bits & 0x8000 } else { bits } as u16)
            };
            of(x[0]).partial_cmp(&of(x[1]))
        }
        _ => half::bf16::from_bits(x[0] as u16).partial_cmp(&half::bf16::from_bits(x[1] as u16)),
    };
    let unordered = order.is_none();
    u64::from(match comparison {
        0 => order == Some(Ordering::Equal),
        1 => !unordered && order != Some(Ordering::Equal),
        2 => order == Some(Ordering::Less),
        3 => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        4 => order == Some(Ordering::Greater),
        5 => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        6 => unordered || order == Some(Ordering::Equal),
        7 => order != Some(Ordering::Equal),
        8 => unordered || order == Some(Ordering::Less),
        9 => order != Some(Ordering::Greater),
        10 => unordered || order == Some(Ordering::Greater),
        11 => order != Some(Ordering::Less),
        12 => !unordered,
        _ => unordered,
    })
}

/// `isspacep`: b and c are first address and first beyond, of the space; the parameter is 1 for
/// global, which is what lies in no other window. What lies between windows is global, too.
pub fn is_in_window(x: [u64; 3], how: u32) -> u64 {
    // Windows begin at multiples of the first one's address.
    let inside = x[0] >= x[1] && x[0] < x[2] && x[0] % SHARED_BASE < SPACE_BYTES;
    u64::from(inside != (how == 1))
}
