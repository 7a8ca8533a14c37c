//! Products of matrices, as tensor cores make them. Pure functions.
//!
//! Sums are made in double precision, where products of narrower elements are exact, and rounded
//! once to nearest; sums of integers are exact until C is added. The ISA leaves order and precision
//! of the sums of reals open.
//!
//! A product is most of what a kernel of today does, so its loops are over plain numbers in
//! fixed blocks, and [`crate::dispatch`] has them compiled for the host's vector units.

use super::float::NAN_F32;
use super::matrix::Element;
use super::packed::{E4M3, E5M2};
use half::f16;
use std::sync::LazyLock;

/// How products and sums are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Integer results wrap around.
    Plain,
    /// Integer results saturate.
    Saturate,
    /// The product of two bits is their exclusive or.
    Xor,
}

/// The numbers and types of a product.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Elements of A, B and C.
    pub elements: [Element; 3],
    /// Elements of D.
    pub of_d: Element,
    /// Columns of B, C and D.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// The rule for sums.
    pub rule: Rule,
    /// `C - A * B` instead of `C + A * B`.
    pub negated: bool,
}

/// `D = A * B + C` over matrices given row after row.
#[must_use]
pub fn multiply(factors: [&[u64]; 3], kind: &Kind) -> Vec<u64> {
    crate::dispatch::multiply(factors, kind)
}

/// The body of [`multiply`], to be compiled for several instruction sets.
#[inline(always)]
pub fn multiply_here([a, b, c]: [&[u64]; 3], kind: &Kind) -> Vec<u64> {
    let [of_a, of_b, of_c] = kind.elements;
    if of_a.is_integer() {
        let (a, b) = (integers(of_a, a), integers(of_b, b));
        let mut sums = vec![0_i32; c.len()];
        // A sum of at most 256 products of 8 bits is far from 32 bits.
        match kind.rule {
            Rule::Xor => add_products(&mut sums, &a, &b, kind, |sum, a, b| sum + (a ^ b)),
            _ => add_products(&mut sums, &a, &b, kind, |sum, a, b| sum + a * b),
        }
        let sums = sums.into_iter().zip(integers(of_c, c));
        return sums
            .map(|(sum, start)| match kind.rule {
                Rule::Saturate => start.saturating_add(sum),
                _ => start.wrapping_add(sum),
            })
            .map(|sum| u64::from(sum.cast_unsigned()))
            .collect();
    }
    let (mut a, b, mut sums) = (reals(of_a, a), reals(of_b, b), reals(of_c, c));
    if kind.negated {
        a.iter_mut().for_each(|a| *a = -*a);
    }
    // Products of narrower elements are exact, so two operations round once, too.
    match of_a {
        Element::F64 => add_products(&mut sums, &a, &b, kind, |sum, a, b| a.mul_add(b, sum)),
        _ => add_products(&mut sums, &a, &b, kind, |sum, a, b| sum + a * b),
    }
    all_rounded(kind.of_d, &sums)
}

/// Adds the products of rows and columns, in the order of K.
#[inline(always)]
fn add_products<T: Copy>(
    sums: &mut [T],
    a: &[T],
    b: &[T],
    kind: &Kind,
    add: impl Fn(T, T, T) -> T + Copy,
) {
    for (sums, a) in sums.chunks_exact_mut(kind.n).zip(a.chunks_exact(kind.k)) {
        let (wide, narrow) = sums.as_chunks_mut::<16>();
        for (block, sums) in wide.iter_mut().enumerate() {
            add_block(sums, a, &b[16 * block..], kind.n, add);
        }
        // A product has a multiple of 8 columns.
        let done = 16 * wide.len();
        for (block, sums) in narrow.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            add_block(sums, a, &b[done + 8 * block..], kind.n, add);
        }
    }
}

/// Adds the products of a row and neighbouring columns; a row of `b` has `n` elements.
#[inline(always)]
fn add_block<T: Copy, const COLUMNS: usize>(
    sums: &mut [T; COLUMNS],
    a: &[T],
    b: &[T],
    n: usize,
    add: impl Fn(T, T, T) -> T,
) {
    let mut held = *sums;
    for (&a, b) in a.iter().zip(b.chunks(n)) {
        let Some(b) = b.first_chunk::<COLUMNS>() else { return };
        for (sum, &b) in held.iter_mut().zip(b) {
            *sum = add(*sum, a, b);
        }
    }
    *sums = held;
}

/// The values of integer elements.
#[inline(always)]
fn integers(element: Element, bits: &[u64]) -> Vec<i32> {
    let all = |value: fn(u64) -> i32| bits.iter().map(|&bits| value(bits)).collect();
    match element {
        Element::B1 => all(|bits| i32::from(bits as u8 & 1)),
        Element::S4 => all(|bits| i32::from(((bits as u8) << 4) as i8 >> 4)),
        Element::U4 => all(|bits| i32::from(bits as u8 & 15)),
        Element::S8 => all(|bits| i32::from(bits as u8 as i8)),
        Element::U8 => all(|bits| i32::from(bits as u8)),
        _ => all(|bits| bits as u32 as i32),
    }
}

static OF_E4M3: LazyLock<[f64; 256]> =
    LazyLock::new(|| std::array::from_fn(|bits| E4M3.value(bits as u8)));
static OF_E5M2: LazyLock<[f64; 256]> =
    LazyLock::new(|| std::array::from_fn(|bits| E5M2.value(bits as u8)));

/// The values of real elements. The compiler makes a loop for each type.
#[inline(always)]
fn reals(element: Element, bits: &[u64]) -> Vec<f64> {
    use Element::{Bf16, E4m3, E5m2, F16, F64, Tf32};
    if let Some((narrow, shift)) = element.narrow() {
        return bits.iter().map(|&bits| narrow.value((bits >> shift) as u8)).collect();
    }
    match element {
        E4m3 => bits.iter().map(|&bits| real(E4m3, bits)).collect(),
        E5m2 => bits.iter().map(|&bits| real(E5m2, bits)).collect(),
        F16 => bits.iter().map(|&bits| real(F16, bits)).collect(),
        Bf16 => bits.iter().map(|&bits| real(Bf16, bits)).collect(),
        Tf32 => bits.iter().map(|&bits| real(Tf32, bits)).collect(),
        F64 => bits.iter().map(|&bits| real(F64, bits)).collect(),
        other => bits.iter().map(|&bits| real(other, bits)).collect(),
    }
}

/// The value of a real element.
#[must_use]
#[inline(always)]
pub fn real(element: Element, bits: u64) -> f64 {
    match element {
        Element::E4m3 => OF_E4M3[usize::from(bits as u8)],
        Element::E5m2 => OF_E5M2[usize::from(bits as u8)],
        Element::F16 => of_half(bits as u16),
        Element::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
        // PTX ISA, "Alternate Floating-Point Data Formats": the low 13 bits are ignored.
        Element::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        Element::F64 => f64::from_bits(bits),
        _ => f64::from(f32::from_bits(bits as u32)),
    }
}

/// The value of an element of 16 bits. Its exponent and fraction moved to their places in 32 bits
/// are the value divided by 2^112; infinities and NaNs have an exponent of ones.
#[inline(always)]
fn of_half(bits: u16) -> f64 {
    const SCALE: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(bits);
    let size = (f32::from_bits((bits & 0x7fff) << 13) * SCALE).to_bits();
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f64::from(f32::from_bits(size | special | (bits & 0x8000) << 16))
}

/// Values rounded to elements.
#[inline(always)]
fn all_rounded(element: Element, values: &[f64]) -> Vec<u64> {
    match element {
        Element::F64 => values.iter().map(|&value| rounded(Element::F64, value)).collect(),
        Element::F16 => values.iter().map(|&value| rounded(Element::F16, value)).collect(),
        other => values.iter().map(|&value| rounded(other, value)).collect(),
    }
}

/// A value rounded to an element.
#[must_use]
#[inline(always)]
pub fn rounded(element: Element, value: f64) -> u64 {
    match element {
        Element::F64 => value.to_bits(),
        Element::F16 if value.is_nan() => 0x7fff,
        Element::F16 => u64::from(f16::from_f64(value).to_bits()),
        _ if value.is_nan() => u64::from(NAN_F32),
        _ => u64::from((value as f32).to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_or_saturate() {
        let kind = |rule| Kind {
            elements: [Element::U8, Element::S8, Element::S32],
            of_d: Element::S32,
            n: 8,
            k: 16,
            rule,
            negated: false,
        };
        let (a, b, c) = (vec![255; 128], vec![127; 128], vec![i32::MAX as u64; 64]);
        let product = |rule| multiply([&a, &b, &c], &kind(rule));
        let wrapped = i32::MAX.wrapping_add(16 * 255 * 127);
        assert_eq!(product(Rule::Plain), vec![u64::from(wrapped.cast_unsigned()); 64]);
        assert_eq!(product(Rule::Saturate), vec![i32::MAX as u64; 64]);
    }

    #[test]
    fn halves_have_their_values() {
        for bits in 0..=u16::MAX {
            let (found, wanted) = (of_half(bits), f16::from_bits(bits).to_f64());
            assert!(
                found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                "{bits:#x}: {found} for {wanted}"
            );
        }
    }

    /// Each element of D against a sum written out, with blocks of 16 and of 8 columns.
    #[test]
    fn blocks_of_columns_add_up() {
        for n in [8, 16, 24, 40] {
            let (rows, k) = (3, 5);
            let numbers = |count: usize| -> Vec<u64> {
                (0..count).map(|i| u64::from((i as f32 % 7.0 - 3.0).to_bits())).collect()
            };
            let (a, b, c) = (numbers(rows * k), numbers(k * n), numbers(rows * n));
            let kind = Kind {
                elements: [Element::F32; 3],
                of_d: Element::F32,
                n,
                k,
                rule: Rule::Plain,
                negated: true,
            };
            let value = |bits: u64| f32::from_bits(bits as u32);
            let found = multiply([&a, &b, &c], &kind);
            for (at, found) in found.iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let products = (0..k).map(|i| value(a[row * k + i]) * value(b[i * n + column]));
                assert_eq!(value(*found), value(c[at]) - products.sum::<f32>(), "{n}: {at}");
            }
        }
    }
}
