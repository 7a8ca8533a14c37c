//! The video instructions on one number, each a whole register or a part of one (PTX ISA, "Scalar
//! Video Instructions"). Operands arrive extended to 64 bits by their own sign.

/// The operation on two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX operation of that name")]
#[repr(u32)]
pub enum Kind {
    Add,
    Sub,
    Absdiff,
    Min,
    Max,
    /// Shift counts above 32 act as 32.
    ShlClamp,
    /// Shift counts are taken modulo 32.
    ShlWrap,
    ShrClamp,
    ShrWrap,
}

/// What becomes of the result and the third operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each is the PTX operation of that name")]
#[repr(u32)]
pub enum Second {
    None,
    Add,
    Min,
    Max,
    /// The result replaces a part of the third operand.
    Merge,
}

/// Signedness bit of a part or a result; the low byte of the parameter is the width, the next one
/// the offset in bits.
pub const SIGNED: u32 = 1 << 16;
/// Saturation bit.
pub const SATURATE: u32 = 1 << 17;

/// A part of a register, extended.
pub fn part(x: [u64; 3], how: u32) -> u64 {
    let (bits, offset) = (how & 0xff, how >> 8 & 0xff);
    let value = (x[0] & 0xffff_ffff) >> offset;
    if how & SIGNED != 0 {
        super::sign_extend(value, bits)
    } else {
        super::zero_extend(value, bits)
    }
}

fn limit(value: i128, how: u32) -> i128 {
    if how & SATURATE == 0 {
        return value;
    }
    let bits = how & 0xff;
    let (low, high) = if how & SIGNED != 0 {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    };
    value.clamp(low, high)
}

/// The primary operation: its [`Kind`] in bits 24–31 of the parameter, the result's width and sign
/// in the others.
pub fn primary(x: [u64; 3], how: u32) -> u64 {
    let (a, b) = (i128::from(x[0] as i64), i128::from(x[1] as i64));
    let count = x[1] & 0xffff_ffff;
    let (clamped, wrapped) = (count.min(32) as u32, count as u32 & 31);
    let is = |kind: Kind| how >> 24 == kind as u32;
    let value = if is(Kind::Add) {
        a + b
    } else if is(Kind::Sub) {
        a - b
    } else if is(Kind::Absdiff) {
        (a - b).abs()
    } else if is(Kind::Min) {
        a.min(b)
    } else if is(Kind::Max) {
        a.max(b)
    } else if is(Kind::ShlClamp) {
        a << clamped
    } else if is(Kind::ShlWrap) {
        a << wrapped
    } else if is(Kind::ShrClamp) {
        a >> clamped
    } else {
        a >> wrapped
    };
    limit(value, how) as u64
}

/// The secondary operation on the result and c: its [`Second`] in bits 24–31 of the parameter.
pub fn secondary(x: [u64; 3], how: u32) -> u64 {
    let (value, c) = (x[0] as u32, x[1] as u32);
    let number =
        |bits: u32| if how & SIGNED != 0 { i64::from(bits as i32) } else { i64::from(bits) };
    let is = |second: Second| how >> 24 == second as u32;
    let result = if is(Second::Add) {
        value.wrapping_add(c)
    } else if is(Second::Min) {
        number(value).min(number(c)) as u32
    } else if is(Second::Max) {
        number(value).max(number(c)) as u32
    } else if is(Second::Merge) {
        let (bits, offset) = (how & 0xff, how >> 8 & 0xff);
        let mask = super::zero_extend(u64::MAX, bits) as u32;
        c & !(mask << offset) | (value & mask) << offset
    } else {
        value
    };
    u64::from(result)
}

/// `vmad`: negates the product.
pub const NEGATE_PRODUCT: u32 = 1;
/// `vmad`: negates c.
pub const NEGATE_ADDEND: u32 = 1 << 1;
/// `vmad.po`: adds one more.
pub const PLUS_ONE: u32 = 1 << 2;
/// `vmad.shr7`
pub const SHIFT_7: u32 = 1 << 3;
/// `vmad.shr15`
pub const SHIFT_15: u32 = 1 << 4;

/// `vmad`; [`SIGNED`] says whether the sum is one of signed numbers.
pub fn multiply_add(x: [u64; 3], how: u32) -> u64 {
    let [a, b, _] = x.map(|value| i128::from(value as i64));
    let signed = how & SIGNED != 0;
    let mut c = if signed { i128::from(x[2] as u32 as i32) } else { i128::from(x[2] as u32) };
    let mut product = a * b;
    if how & PLUS_ONE != 0 {
        product += 1;
    } else if how & NEGATE_PRODUCT != 0 {
        product = -product;
    } else if how & NEGATE_ADDEND != 0 {
        c = -c;
    }
    let shift = match how & (SHIFT_7 | SHIFT_15) {
        SHIFT_7 => 7,
        SHIFT_15 => 15,
        _ => 0,
    };
    limit((product + c) >> shift, how & (SIGNED | SATURATE) | 32) as u64
}
