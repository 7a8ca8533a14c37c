//! Conversions from and to numbers of four, six and eight bits, powers of two, and stochastic
//! rounding (PTX ISA, "cvt"). The wanted results come from tables of all numbers of a format.

use crate::exact::F32;
use crate::harness::{Random, Table, Want, triples};
use crate::packed::numbers;
use half::{bf16, f16};

struct Format {
    name: &'static str,
    /// Bits of a number, and of its part of the register.
    bits: u32,
    part: u32,
    /// From 0 on; the last is what follows the largest finite number where `infinite`.
    numbers: Vec<(f64, u64)>,
    infinite: bool,
    /// What a NaN becomes.
    nan: u64,
}

fn format(name: &'static str, [exponent, mantissa]: [i32; 2], count: u16, part: u32) -> Format {
    let numbers = numbers(exponent, mantissa, count);
    let nan = if part == 8 && exponent + mantissa == 7 { 0x7f } else { u64::from(count) - 1 };
    let bits = (1 + exponent + mantissa).unsigned_abs();
    Format { name, bits, part, numbers, infinite: false, nan }
}

fn formats() -> [Format; 5] {
    [
        format("e2m1", [2, 1], 8, 4),
        format("e2m3", [2, 3], 32, 8),
        format("e3m2", [3, 2], 32, 8),
        format("e4m3", [4, 3], 0x7f, 8),
        format("e5m2", [5, 2], 0x7c, 8),
    ]
}

impl Format {
    fn signed(&self, code: u64, value: f64) -> u64 {
        code | if value.is_sign_negative() { 1 << (self.bits - 1) } else { 0 }
    }

    fn nearest(&self, value: f64, relu: bool) -> u64 {
        if value.is_nan() {
            return self.nan;
        }
        if relu && value.is_sign_negative() {
            return 0;
        }
        let size = value.abs().min(1e9);
        let best = self.numbers.iter().min_by(|(a, first), (b, second)| {
            let order = (a - size).abs().total_cmp(&(b - size).abs());
            order.then((first & 1).cmp(&(second & 1)))
        });
        self.signed(best.unwrap().1, value)
    }

    /// Rounds towards zero, and away from it where the dropped bits and the random bits carry.
    fn by_chance(&self, value: f64, random: u64, count: u32, how: (bool, bool)) -> u64 {
        let (relu, finite) = how;
        if value.is_nan() {
            return self.nan;
        }
        if relu && value.is_sign_negative() {
            return 0;
        }
        let size = value.abs();
        let below = self.numbers.partition_point(|(number, _)| *number <= size) - 1;
        let code = match self.numbers.get(below + 1) {
            None => self.numbers[below].1,
            Some((above, code)) => {
                let low = self.numbers[below].0;
                let dropped = (size - low) / (above - low) * f64::from(1_u32 << count);
                if dropped.floor() as u64 + random >= 1 << count {
                    *code
                } else {
                    self.numbers[below].1
                }
            }
        };
        let largest = self.numbers.last().unwrap().1 - u64::from(self.infinite && finite);
        self.signed(code.min(largest), value)
    }

    fn value(&self, bits: u64) -> f64 {
        let magnitude = bits & ((1 << (self.bits - 1)) - 1);
        let size = match self.numbers.iter().find(|(_, own)| *own == magnitude) {
            Some((value, _)) => *value,
            None if self.name == "e5m2" && magnitude == 0x7c => f64::INFINITY,
            None => f64::NAN,
        };
        if bits >> (self.bits - 1) & 1 == 1 { -size } else { size }
    }

    /// Numbers, ties, and what is near them.
    fn edges(&self) -> Vec<f64> {
        let mut edges = vec![0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-9, 1e6];
        for pair in self.numbers.windows(2) {
            let middle = f64::midpoint(pair[0].0, pair[1].0);
            edges.extend([pair[0].0, -pair[1].0, middle, -middle]);
            edges.extend([middle * (1.0 - 1e-3), middle * (1.0 + 1e-3)]);
        }
        edges
    }
}

fn single(bits: u64) -> f64 {
    f64::from(f32::from_bits(bits as u32))
}

fn of_half(ty: &str, bits: u64) -> f64 {
    if ty == "f16x2" {
        f16::from_bits(bits as u16).to_f64()
    } else {
        bf16::from_bits(bits as u16).to_f64()
    }
}

fn to_half(ty: &str, value: f64) -> u64 {
    if value.is_nan() {
        0x7fff
    } else if ty == "f16x2" {
        u64::from(f16::from_f64(value).to_bits())
    } else {
        u64::from(bf16::from_f64(value).to_bits())
    }
}

#[test]
fn pairs() {
    let mut table = Table::new("cvt of narrow pairs");
    for own in formats() {
        let name = own.name;
        let byte = own.part == 4;
        // A pair of four bits is a register of eight.
        let (before, to, after) =
            if byte { (".reg .b8 %z;\n", "%z", ";\ncvt.u16.u8 {d}, %z") } else { ("", "{d}", "") };
        let (first, from) =
            if byte { (".reg .b8 %z;\ncvt.u8.u16 %z, {a};\n", "%z") } else { ("", "{a}") };
        let edges = own.edges();
        let singles: Vec<u64> =
            edges.iter().map(|&value| u64::from((value as f32).to_bits())).collect();
        let inputs =
            triples(singles.len() + 300, 21, &singles, |r| F32.edges()[r.next() as usize % 34]);
        for (relu, cut) in [("", false), (".relu", true)] {
            let text =
                format!("{before}cvt.rn.satfinite{relu}.{name}x2.f32 {to}, {{a}}, {{b}}{after}");
            table.check(&text, "h rr", &inputs, |x| {
                let [high, low] = [x[0], x[1]].map(|bits| own.nearest(single(bits), cut));
                Want::Bits(high << own.part | low)
            });
            for ty in ["f16x2", "bf16x2"] {
                let halves: Vec<[u64; 3]> = edges
                    .iter()
                    .zip(edges.iter().rev())
                    .map(|(&high, &low)| [to_half(ty, high) << 16 | to_half(ty, low), 0, 0])
                    .collect();
                let text =
                    format!("{before}cvt.rn.satfinite{relu}.{name}x2.{ty} {to}, {{a}}{after}");
                table.check(&text, "h r", &halves, |x| {
                    let of = |bits| own.nearest(of_half(ty, bits), cut);
                    Want::Bits(of(x[0] >> 16) << own.part | of(x[0] & 0xffff))
                });
                let all: Vec<[u64; 3]> = (0..256_u64)
                    .map(|bits| if byte { [bits, 0, 0] } else { [bits << 8 | (255 - bits), 0, 0] })
                    .collect();
                let text = format!("{first}cvt.rn{relu}.{ty}.{name}x2 {{d}}, {from}");
                table.check(&text, "r h", &all, |x| {
                    let half = |bits: u64| {
                        let value = own.value(bits & ((1 << own.part) - 1));
                        let negative = value.is_sign_negative() && !value.is_nan();
                        to_half(ty, if cut && negative { 0.0 } else { value })
                    };
                    Want::Bits(half(x[0] >> own.part) << 16 | half(x[0]))
                });
            }
        }
    }
    table.finish();
}

#[test]
fn powers_of_two() {
    let mut table = Table::new("cvt of ue8m0x2");
    let powers: Vec<f64> = (0..255).map(|code| f64::from(code - 127).exp2()).collect();
    let mut edges: Vec<u64> = F32.edges();
    edges.extend((0..64).map(|i| u64::from((1.5_f32 * f32::powi(2.0, 4 * i - 126)).to_bits())));
    edges.extend([0x0040_0000, 0x0040_0001, 0x003f_ffff, 0x0060_0000]);
    let inputs = triples(500, 22, &edges, Random::next);
    let code = |value: f64, up: bool, finite: bool| -> u64 {
        let size = value.abs();
        let most = if finite { 0xfe } else { 0xff };
        if value.is_nan() {
            return 0xff;
        }
        let code = if up {
            powers.partition_point(|power| *power < size)
        } else if size.is_infinite() {
            255
        } else {
            powers.partition_point(|power| *power <= size).saturating_sub(1)
        };
        (code as u64).min(most)
    };
    for (mode, up) in [("rz", false), ("rp", true)] {
        for (word, finite) in [("", false), (".satfinite", true)] {
            let text = format!("cvt.{mode}{word}.ue8m0x2.f32 {{d}}, {{a}}, {{b}}");
            table.check(&text, "h rr", &inputs, |x| {
                let of = |bits| code(single(bits), up, finite);
                Want::Bits(of(x[0]) << 8 | of(x[1]))
            });
            let text = format!("cvt.{mode}{word}.ue8m0x2.bf16x2 {{d}}, {{a}}");
            table.check(&text, "h r", &inputs, |x| {
                let of = |bits| code(of_half("bf16x2", bits), up, finite);
                Want::Bits(of(x[0] >> 16) << 8 | of(x[0] & 0xffff))
            });
        }
    }
    let all: Vec<[u64; 3]> = (0..256).map(|bits| [bits << 8 | (255 - bits), 0, 0]).collect();
    table.check("cvt.rn.bf16x2.ue8m0x2 {d}, {a}", "r h", &all, |x| {
        let half = |bits: u64| match powers.get((bits & 0xff) as usize) {
            Some(&power) => to_half("bf16x2", power),
            None => 0x7fff,
        };
        Want::Bits(half(x[0] >> 8) << 16 | half(x[0]))
    });
    table.finish();
}

#[test]
fn stochastic_rounding() {
    let mut table = Table::new("cvt.rs");
    let random = |r: &mut Random| r.next();
    for own in formats() {
        let singles: Vec<u64> =
            own.edges().iter().map(|&value| u64::from((value as f32).to_bits())).collect();
        let inputs = triples(singles.len() + 200, 23, &singles, random);
        let kind = if own.part == 4 { "h" } else { "r" };
        for (relu, cut) in [("", false), (".relu", true)] {
            let text = format!(
                "cvt.rs{relu}.satfinite.{}x4.f32 {{d}}, {{{{a}}, {{b}}, {{b}}, {{a}}}}, {{c}}",
                own.name
            );
            table.check(&text, &format!("{kind} rrr"), &inputs, |x| {
                let parts = if own.part == 4 {
                    [x[2] >> 24, x[2] >> 8, x[2] >> 16, x[2]].map(|bits| bits & 0xff)
                } else {
                    [x[2] >> 16, x[2] >> 16, x[2], x[2]].map(|bits| bits & 0xffff)
                };
                let count = if own.part == 4 { 8 } else { 16 };
                let all = [x[0], x[1], x[1], x[0]].into_iter().zip(parts);
                Want::Bits(all.fold(0, |word, (bits, random)| {
                    let code = own.by_chance(single(bits), random, count, (cut, true));
                    word << own.part | code
                }))
            });
        }
    }
    for (name, shape, count, bits) in
        [("f16x2", [5, 10], 0x7c01, 13), ("bf16x2", [8, 7], 0x7f81, 16)]
    {
        let own = Format {
            name,
            bits: 16,
            part: 16,
            numbers: numbers(shape[0], shape[1], count),
            infinite: true,
            nan: 0x7fff,
        };
        let inputs = triples(600, 24, &F32.edges(), random);
        for (relu, cut) in [("", false), (".relu", true)] {
            for (word, finite) in [("", false), (".satfinite", true)] {
                let text = format!("cvt.rs{relu}{word}.{name}.f32 {{d}}, {{a}}, {{b}}, {{c}}");
                table.check(&text, "r rrr", &inputs, |x| {
                    let of = |value, random: u64| {
                        own.by_chance(
                            single(value),
                            random & ((1 << bits) - 1),
                            bits,
                            (cut, finite),
                        )
                    };
                    Want::Bits(of(x[0], x[2] >> 16) << 16 | of(x[1], x[2]))
                });
            }
        }
    }
    table.finish();
}
