//! Several small numbers in one register: `cvt.pack`, the 8-bit floating-point formats (PTX ISA,
//! "cvt.pack", "cvt", "Alternate Floating-Point Data Formats"); integer `.relu`, and `lop3` with a
//! predicate.

use crate::exact::F32;
use crate::harness::{Random, Table, Want, triples};
use half::f16;

/// The finite numbers of an 8-bit format from 0 on, with their encodings: the definition, written
/// out.
pub fn numbers(exponent_bits: i32, mantissa_bits: i32, count: u16) -> Vec<(f64, u64)> {
    let bias = (1 << (exponent_bits - 1)) - 1;
    (0..count)
        .map(|bits| {
            let (field, fraction) =
                (i32::from(bits) >> mantissa_bits, i32::from(bits) % (1 << mantissa_bits));
            let lead = if field == 0 { 0 } else { 1 << mantissa_bits };
            let scale = 2_f64.powi(field.max(1) - bias - mantissa_bits);
            (f64::from(lead + fraction) * scale, u64::from(bits))
        })
        .collect()
}

struct Tiny {
    name: &'static str,
    numbers: Vec<(f64, u64)>,
    infinity: Option<u64>,
}

fn formats() -> [Tiny; 2] {
    [
        Tiny { name: "e4m3x2", numbers: numbers(4, 3, 0x7f), infinity: None },
        Tiny { name: "e5m2x2", numbers: numbers(5, 2, 0x7c), infinity: Some(0x7c) },
    ]
}

impl Tiny {
    /// The encoding that is nearest, the even one of two; beyond the largest the largest.
    fn nearest(&self, value: f64, relu: bool) -> u64 {
        if value.is_nan() {
            return 0x7f;
        }
        if relu && value.is_sign_negative() {
            return 0;
        }
        let size = value.abs();
        let best = self.numbers.iter().min_by(|(a, first), (b, second)| {
            let (a, b) = ((a - size.min(1e9)).abs(), (b - size.min(1e9)).abs());
            a.total_cmp(&b).then((first & 1).cmp(&(second & 1)))
        });
        best.unwrap().1 | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    fn value(&self, bits: u64) -> f64 {
        let magnitude = bits & 0x7f;
        let size = match self.numbers.iter().find(|(_, own)| *own == magnitude) {
            Some((value, _)) => *value,
            None if self.infinity == Some(magnitude) => f64::INFINITY,
            None => f64::NAN,
        };
        if bits & 0x80 == 0 { size } else { -size }
    }
}

fn near_edges(tiny: &Tiny) -> Vec<f64> {
    let mut values =
        vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-9, 464.0, 61440.0, 65504.0];
    for pair in tiny.numbers.windows(2) {
        let middle = f64::midpoint(pair[0].0, pair[1].0);
        values.extend([pair[0].0, middle, -middle, middle * (1.0 - 1e-3), middle * (1.0 + 1e-3)]);
    }
    values
}

#[test]
fn eight_bit_formats() {
    let mut table = Table::new("8-bit floating point");
    for tiny in formats() {
        let name = tiny.name;
        let edges = near_edges(&tiny);
        let single: Vec<u64> =
            edges.iter().map(|&value| u64::from((value as f32).to_bits())).collect();
        let inputs =
            triples(single.len() + 400, 3, &single, |r| F32.edges()[r.next() as usize % 34]);
        let of = |bits: u64| f64::from(f32::from_bits(bits as u32));
        for (relu, cut) in [("", false), (".relu", true)] {
            let text = format!("cvt.rn.satfinite{relu}.{name}.f32 {{d}}, {{a}}, {{b}}");
            table.check(&text, "h rr", &inputs, |x| {
                Want::Bits(tiny.nearest(of(x[0]), cut) << 8 | tiny.nearest(of(x[1]), cut))
            });
            let half = |value: f64| u64::from(f16::from_f64(value).to_bits());
            let pairs: Vec<[u64; 3]> = edges
                .iter()
                .zip(edges.iter().rev())
                .map(|(&high, &low)| [half(high) << 16 | half(low), 0, 0])
                .collect();
            let of = |bits: u64| f16::from_bits(bits as u16).to_f64();
            let text = format!("cvt.rn.satfinite{relu}.{name}.f16x2 {{d}}, {{a}}");
            table.check(&text, "h r", &pairs, |x| {
                Want::Bits(tiny.nearest(of(x[0] >> 16), cut) << 8 | tiny.nearest(of(x[0]), cut))
            });
            let all: Vec<[u64; 3]> =
                (0..256).map(|bits| [bits << 8 | (255 - bits), 0, 0]).collect();
            table.check(&format!("cvt.rn{relu}.f16x2.{name} {{d}}, {{a}}"), "r h", &all, |x| {
                let one = |bits: u64| {
                    let value = tiny.value(bits & 0xff);
                    if value.is_nan() {
                        return 0x7fff;
                    }
                    half(if cut && value.is_sign_negative() { 0.0 } else { value })
                };
                Want::Bits(one(x[0] >> 8) << 16 | one(x[0]))
            });
        }
    }
    table.finish();
}

#[test]
fn packs() {
    let mut table = Table::new("cvt.pack");
    let edges =
        [0, 1, 2, 3, 7, 8, 15, 16, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 0x7fff_ffff];
    let edges: Vec<u64> = edges.iter().flat_map(|&x: &u64| [x, x.wrapping_neg()]).collect();
    let words = triples(300, 5, &edges, Random::next);
    for (sign, bits) in
        [('u', 16), ('s', 16), ('u', 8), ('s', 8), ('u', 4), ('s', 4), ('u', 2), ('s', 2)]
    {
        let limit = |x: u64| {
            let value = i128::from(x as u32 as i32);
            let (low, high) = if sign == 's' {
                (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
            } else {
                (0, (1 << bits) - 1)
            };
            value.clamp(low, high).rem_euclid(1 << bits) as u64
        };
        if bits == 16 {
            let text = format!("cvt.pack.sat.{sign}16.s32 {{d}}, {{a}}, {{b}}");
            table.check(&text, "r rr", &words, |x| Want::Bits(limit(x[0]) << 16 | limit(x[1])));
        } else {
            let text = format!("cvt.pack.sat.{sign}{bits}.s32.b32 {{d}}, {{a}}, {{b}}, {{c}}");
            table.check(&text, "r rrr", &words, |x| {
                Want::Bits(x[2] << (2 * bits) | limit(x[0]) << bits | limit(x[1]))
            });
        }
    }
    table.finish();
}

#[test]
fn cut_at_zero() {
    let mut table = Table::new("integer relu");
    let edges =
        [0, 1, 5, 0x7fff, 0x8000, 0xffff, 0x8000_0000, 0x7fff_ffff, 0xffff_ffff, 0x8000_7fff];
    let words = triples(600, 6, &edges, Random::next);
    for max in [false, true] {
        let name = if max { "max" } else { "min" };
        let pick = |a: i64, b: i64| (if max { a.max(b) } else { a.min(b) }).max(0) as u64;
        table.check(&format!("{name}.relu.s32 {{d}}, {{a}}, {{b}}"), "r rr", &words, |x| {
            Want::Bits(pick(i64::from(x[0] as i32), i64::from(x[1] as i32)))
        });
        table.check(&format!("{name}.relu.s16x2 {{d}}, {{a}}, {{b}}"), "r rr", &words, |x| {
            let half =
                |at: u32| pick(i64::from((x[0] >> at) as i16), i64::from((x[1] >> at) as i16));
            Want::Bits(half(16) << 16 | half(0))
        });
    }
    table.finish();
}

#[test]
fn lookup_with_predicate() {
    let mut table = Table::new("lop3 with a predicate");
    let words = triples(120, 7, &[0, 1, 0xffff_ffff, 0x8000_0000, 0x5555_5555], Random::next);
    for lookup in [0x00_u64, 0x80, 0xe8, 0x96, 0x01, 0xff] {
        let result = |x: [u64; 3]| -> u64 {
            let bit = |at: u32| {
                lookup >> ((x[0] >> at & 1) << 2 | (x[1] >> at & 1) << 1 | (x[2] >> at & 1)) & 1
            };
            (0..32).map(|at| bit(at) << at).sum()
        };
        for (name, or) in [("or", true), ("and", false)] {
            for (q, given) in [("-1", true), ("0", false)] {
                let setup = format!("setp.ne.s32 %q1, {q}, 0;\n");
                let text =
                    format!("{setup}lop3.{name}.b32 {{d}}|%q2, {{a}}, {{b}}, {{c}}, {lookup}, %q1");
                table.check(&text, "r rrr", &words, |x| Want::Bits(result(x)));
                let text =
                    format!("{setup}lop3.{name}.b32 _|{{d}}, {{a}}, {{b}}, {{c}}, {lookup}, %q1");
                table.check(&text, "p rrr", &words, |x| {
                    let set = result(x) != 0;
                    Want::Bits(u64::from(if or { set || given } else { set && given }))
                });
            }
        }
    }
    table.finish();
}
