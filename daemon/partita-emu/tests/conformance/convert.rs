//! `cvt` in all combinations (PTX ISA, "Data Movement and Conversion Instructions: cvt").

use crate::exact::{BF16, Exact, F16, F32, F64, Format, MODES, Mode};
use crate::harness::{Random, Table, Want, triples};

const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

const FLOATS: [(&str, Format); 4] = [("f16", F16), ("bf16", BF16), ("f32", F32), ("f64", F64)];

fn kind(bits: u32) -> char {
    match bits {
        8 | 16 => 'h',
        32 => 'r',
        _ => 'd',
    }
}

fn integer(value: u64, bits: u32, signed: bool) -> i128 {
    let low = i128::from(value) & ((1 << bits) - 1);
    if signed && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
}

fn limits(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn integer_edges() -> Vec<u64> {
    let mut edges = vec![0, u64::MAX];
    for bit in 0..64 {
        edges.extend([1_u64 << bit, (1 << bit) - 1, (1 << bit) + 1, (1_u64 << bit).wrapping_neg()]);
    }
    edges
}

#[test]
fn between_integers() {
    let mut table = Table::new("cvt between integers");
    let inputs = triples(300, 1, &integer_edges(), Random::next);
    for (to, to_bits, to_signed) in INTEGERS {
        for (from, from_bits, from_signed) in INTEGERS {
            for sat in ["", ".sat"] {
                let text = format!("cvt{sat}.{to}.{from} {{d}}, {{a}}");
                let shape = format!("{} {}", kind(to_bits), kind(from_bits));
                table.check(&text, &shape, &inputs[..150], |x| {
                    let value = integer(x[0], from_bits, from_signed);
                    let (low, high) = limits(to_bits, to_signed);
                    let value = if sat.is_empty() { value } else { value.clamp(low, high) };
                    // A wider register is filled by the sign of the type.
                    Want::Bits(integer(value as u64, to_bits, to_signed) as u64)
                });
            }
        }
    }
    table.finish();
}

#[test]
fn from_integers() {
    let mut table = Table::new("cvt to floating point");
    let inputs = triples(400, 2, &integer_edges(), |r| r.next() >> (r.next() & 63));
    for (to, format) in FLOATS {
        for (from, from_bits, signed) in INTEGERS {
            for (suffix, mode) in MODES {
                for sat in ["", ".sat"] {
                    if !sat.is_empty() && to != "f32" {
                        continue;
                    }
                    let text = format!("cvt.{suffix}{sat}.{to}.{from} {{d}}, {{a}}");
                    let shape = format!("{} {}", kind(format.bits), kind(from_bits));
                    table.check(&text, &shape, &inputs, |x| {
                        let value = integer(x[0], from_bits, signed);
                        let value = if sat.is_empty() { value } else { value.clamp(0, 1) };
                        Want::Bits(format.round(&Exact::from_integer(value), mode))
                    });
                }
            }
        }
    }
    table.finish();
}

fn float_inputs(format: Format, seed: u64) -> Vec<[u64; 3]> {
    let mut edges = format.edges();
    // Numbers around every integer limit, with all fractions of a quarter.
    for bit in [0_u32, 1, 7, 8, 15, 16, 31, 32, 52, 63, 64] {
        for quarter in -9_i128..=9 {
            let value = Exact::from_integer((1_i128 << (bit + 2)) + quarter);
            let quarter_of = F64.exact(0.25_f64.to_bits());
            let bits = format.round(&value.times(&quarter_of), Mode::Nearest);
            edges.extend([bits, bits | format.sign()]);
        }
    }
    triples(700, seed, &edges, |r| {
        let bits = r.next();
        // Exponents near one are what programs convert.
        let near = format.round(&Exact::from_integer(i128::from(bits as i64)), Mode::Zero);
        if bits & 2 == 0 { bits } else { near }
    })
}

#[test]
fn to_integers() {
    let mut table = Table::new("cvt to integers");
    for (from, format) in FLOATS {
        for (to, to_bits, signed) in INTEGERS {
            for ((_, mode), suffix) in MODES.into_iter().zip(["rni", "rzi", "rmi", "rpi"]) {
                // A result out of range is the limit, with `.sat` and without.
                for flags in ["", ".ftz", ".sat", ".ftz.sat"] {
                    if !flags.is_empty() && from != "f32" {
                        continue;
                    }
                    let text = format!("cvt.{suffix}{flags}.{to}.{from} {{d}}, {{a}}");
                    let shape = format!("{} {}", kind(to_bits), kind(format.bits));
                    table.check(&text, &shape, &float_inputs(format, 3), |x| {
                        let (low, high) = limits(to_bits, signed);
                        let bits = if flags.contains("ftz") { format.flush(x[0]) } else { x[0] };
                        if format.is_nan(bits) {
                            let wide = from == "f64" || to_bits == 64;
                            let lowest = if wide { 1 << (to_bits - 1) } else { 0 };
                            return Want::Bits(integer(lowest, to_bits, signed) as u64);
                        }
                        let value = if format.is_infinite(bits) {
                            if bits & format.sign() != 0 { low } else { high }
                        } else {
                            format.exact(bits).to_integer(mode).clamp(low, high)
                        };
                        Want::Bits(value as u64)
                    });
                }
            }
        }
    }
    table.finish();
}

fn nan(format: Format) -> Want {
    if format == F64 { Want::Nan } else { Want::Bits(format.nan()) }
}

#[test]
fn between_floats() {
    let mut table = Table::new("cvt between floating-point types");
    for (from, source) in FLOATS {
        for (to, target) in FLOATS {
            if from == to || (from == "bf16" && to == "f16") || (from == "f16" && to == "bf16") {
                continue;
            }
            for (suffix, mode) in MODES {
                let narrows = target.bits < source.bits;
                if !narrows && mode != Mode::Nearest {
                    continue;
                }
                for flag in
                    ["", ".ftz", ".sat", ".ftz.sat", ".relu", ".satfinite", ".relu.satfinite"]
                {
                    if flag.contains(".ftz") && source != F32 && target != F32 {
                        continue;
                    }
                    let half = target.bits == 16 && source == F32;
                    if (flag.contains(".relu") || flag.contains(".satfinite")) && !half {
                        continue;
                    }
                    if flag.contains(".sat") && !flag.contains(".satfinite") && to == "bf16" {
                        continue;
                    }
                    let saturates = flag.ends_with(".sat");
                    let rounding = if narrows { format!(".{suffix}") } else { String::new() };
                    let text = format!("cvt{rounding}{flag}.{to}.{from} {{d}}, {{a}}");
                    let shape = format!("{} {}", kind(target.bits), kind(source.bits));
                    table.check(&text, &shape, &float_inputs(source, 4), |x| {
                        let flush = flag.contains(".ftz");
                        let bits = if flush && source == F32 { source.flush(x[0]) } else { x[0] };
                        let negative = bits & source.sign() != 0;
                        if source.is_nan(bits) {
                            return if saturates { Want::Bits(0) } else { nan(target) };
                        }
                        let one = target.round(&Exact::from_integer(1), Mode::Nearest);
                        if negative && (saturates || flag.contains(".relu")) {
                            return Want::Bits(0);
                        }
                        let mut rounded = if source.is_infinite(bits) {
                            target.infinity() | if negative { target.sign() } else { 0 }
                        } else {
                            target.round(&source.exact(bits), mode)
                        };
                        if saturates {
                            rounded = rounded.min(one);
                        }
                        if flag.ends_with(".satfinite") && target.is_infinite(rounded) {
                            rounded -= 1;
                        }
                        Want::Bits(if flush && target == F32 {
                            target.flush(rounded)
                        } else {
                            rounded
                        })
                    });
                }
            }
        }
    }
    table.finish();
}

#[test]
fn to_whole_numbers() {
    let mut table = Table::new("cvt to whole numbers of the same type");
    for (name, format) in FLOATS {
        let whole = MODES
            .into_iter()
            .zip(["rni", "rzi", "rmi", "rpi"])
            .map(|((_, mode), text)| (text, mode));
        for (suffix, mode) in whole {
            for flags in ["", ".ftz", ".sat", ".ftz.sat"] {
                if (flags.contains("ftz") && name != "f32")
                    || (flags.contains("sat") && name == "bf16")
                {
                    continue;
                }
                let text = format!("cvt.{suffix}{flags}.{name}.{name} {{d}}, {{a}}");
                let k = kind(format.bits);
                table.check(&text, &format!("{k} {k}"), &float_inputs(format, 5), |x| {
                    let bits = if flags.contains("ftz") { format.flush(x[0]) } else { x[0] };
                    limited(format, flags, bits, |bits| {
                        let large = format.is_infinite(bits)
                            || format.exact(bits).to_integer(Mode::Zero).unsigned_abs() >= 1 << 60;
                        if large {
                            return bits;
                        }
                        let mut value = Exact::from_integer(format.exact(bits).to_integer(mode));
                        value.negative = bits & format.sign() != 0;
                        format.round(&value, mode)
                    })
                });
            }
        }
        for flags in ["", ".ftz", ".sat", ".ftz.sat"] {
            if (flags.contains("ftz") && name != "f32")
                || name == "bf16"
                || (flags.is_empty() && name != "f32")
            {
                continue;
            }
            let k = kind(format.bits);
            // Without a rounding it moves, and what becomes of a NaN's bits is left open.
            let numbers: Vec<_> = float_inputs(format, 8)
                .into_iter()
                .filter(|x| {
                    flags.contains("sat")
                        || !format.is_nan(x[0] & (format.sign() * 2 - 1).max(format.sign()))
                })
                .collect();
            table.check(
                &format!("cvt{flags}.{name}.{name} {{d}}, {{a}}"),
                &format!("{k} {k}"),
                &numbers,
                |x| {
                    let bits = if flags.contains("ftz") { format.flush(x[0]) } else { x[0] };
                    limited(format, flags, bits, |bits| bits)
                },
            );
        }
    }
    table.finish();
}

/// What `f` makes of a number; under `.sat` no less than 0 and no more than 1, and 0 for a NaN.
fn limited(format: Format, flags: &str, bits: u64, f: impl Fn(u64) -> u64) -> Want {
    let saturates = flags.contains("sat");
    if format.is_nan(bits) {
        return if saturates { Want::Bits(0) } else { nan(format) };
    }
    let result = f(bits);
    if !saturates {
        return Want::Bits(result);
    }
    let one = format.round(&Exact::from_integer(1), Mode::Nearest);
    Want::Bits(if bits & format.sign() != 0 { 0 } else { result.min(one) })
}

#[test]
fn pairs() {
    let mut table = Table::new("cvt to pairs");
    for (to, format) in [("f16x2", F16), ("bf16x2", BF16)] {
        for (suffix, mode) in &MODES[..2] {
            for flag in ["", ".relu", ".satfinite", ".relu.satfinite"] {
                let text = format!("cvt.{suffix}{flag}.{to}.f32 {{d}}, {{a}}, {{b}}");
                table.check(&text, "r rr", &float_inputs(F32, 6), |x| {
                    let half = |bits: u64| {
                        if F32.is_nan(bits) {
                            return format.nan();
                        }
                        let negative = bits & F32.sign() != 0;
                        if flag.contains(".relu") && negative {
                            return 0;
                        }
                        let rounded = if F32.is_infinite(bits) {
                            format.infinity() | if negative { format.sign() } else { 0 }
                        } else {
                            format.round(&F32.exact(bits), *mode)
                        };
                        rounded
                            - u64::from(flag.contains(".satfinite") && format.is_infinite(rounded))
                    };
                    Want::Bits(half(x[0]) << 16 | half(x[1]))
                });
            }
        }
    }
    // Ten bits of the fraction are kept, and rounding adds to the thirteen below them.
    let even = |bits: u64| 0xfff + (bits >> 13 & 1);
    let roundings: [(&str, &dyn Fn(u64) -> u64); 3] =
        [("rna", &|_| 0x1000), ("rn", &even), ("rz", &|_| 0)];
    for (rounding, added) in roundings {
        for flags in ["", ".relu", ".satfinite"] {
            if (rounding == "rna") == (flags == ".relu") && !flags.is_empty() {
                continue;
            }
            if rounding != "rna" && flags == ".satfinite" {
                continue;
            }
            table.check(
                &format!("cvt.{rounding}{flags}.tf32.f32 {{d}}, {{a}}"),
                "r r",
                &float_inputs(F32, 7),
                |x| {
                    if F32.is_nan(x[0]) {
                        return Want::Bits(F32.nan());
                    }
                    if flags == ".relu" && x[0] & F32.sign() != 0 {
                        return Want::Bits(0);
                    }
                    let magnitude =
                        if F32.is_infinite(x[0]) { x[0] } else { x[0] + added(x[0]) } & 0xffff_e000;
                    let beyond = flags == ".satfinite" && F32.is_infinite(magnitude);
                    // The largest number of the format.
                    Want::Bits(if beyond { magnitude - 0x2000 } else { magnitude })
                },
            );
        }
    }
    table.finish();
}
