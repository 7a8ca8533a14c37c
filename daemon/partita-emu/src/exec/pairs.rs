//! Arithmetic on two numbers of single precision in one register of 64 bits (PTX ISA, "Floating
//! Point Instructions", `.f32x2`).

use super::float;
use super::lane::LaneFn;

/// An operation on each of the two numbers.
fn each(once: LaneFn, x: [u64; 3], how: u32) -> u64 {
    let low = once(x.map(|bits| bits & 0xffff_ffff), how);
    let high = once(x.map(|bits| bits >> 32), how);
    low & 0xffff_ffff | high << 32
}

/// `add.f32x2`
pub fn add(x: [u64; 3], how: u32) -> u64 {
    each(float::add_f32, x, how)
}

/// `sub.f32x2`
pub fn sub(x: [u64; 3], how: u32) -> u64 {
    each(float::sub_f32, x, how)
}

/// `mul.f32x2`
pub fn mul(x: [u64; 3], how: u32) -> u64 {
    each(float::mul_f32, x, how)
}

/// `fma.f32x2`
pub fn fma(x: [u64; 3], how: u32) -> u64 {
    each(float::fma_f32, x, how)
}
