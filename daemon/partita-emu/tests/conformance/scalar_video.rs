//! Video instructions on one number (PTX ISA, "Scalar Video Instructions"), with the pseudocode of
//! the ISA over integers of any size; and the selectors and masks of those on pairs and quads.

use crate::harness::{Random, Table, Want, triples};

fn words() -> Vec<[u64; 3]> {
    let edges = [
        0,
        1,
        2,
        31,
        32,
        33,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
    ];
    triples(104, 61, &edges, Random::next)
}

fn number(value: u64, bits: u32, at: u32, signed: bool) -> i128 {
    let value = i128::from(value >> at) & ((1 << bits) - 1);
    if signed && value >> (bits - 1) == 1 { value - (1 << bits) } else { value }
}

fn clamp(value: i128, bits: u32, signed: bool) -> i128 {
    if signed {
        value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        value.clamp(0, (1 << bits) - 1)
    }
}

const SIGNS: [(&str, bool); 2] = [("u32", false), ("s32", true)];
const PARTS: [(&str, u32, u32); 7] = [
    ("", 32, 0),
    (".b0", 8, 0),
    (".b1", 8, 8),
    (".b2", 8, 16),
    (".b3", 8, 24),
    (".h0", 16, 0),
    (".h1", 16, 16),
];

fn bits(value: i128) -> Want {
    Want::Bits(value as u64)
}

#[test]
fn arithmetic() {
    let mut table = Table::new("scalar video arithmetic");
    let words = words();
    type Op = (&'static str, fn(i128, i128) -> i128);
    let ops: [Op; 5] = [
        ("vadd", |a, b| a + b),
        ("vsub", |a, b| a - b),
        ("vabsdiff", |a, b| (a - b).abs()),
        ("vmin", i128::min),
        ("vmax", i128::max),
    ];
    for (name, f) in ops {
        for (index, (d, signed)) in SIGNS.into_iter().enumerate() {
            for (a, sa) in SIGNS {
                for (b, sb) in SIGNS {
                    for (part, (pa, wide_a, at_a)) in PARTS.into_iter().enumerate() {
                        let (pb, wide_b, at_b) = PARTS[(part + index + 2) % 7];
                        let value = move |x: [u64; 3]| {
                            f(number(x[0], wide_a, at_a, sa), number(x[1], wide_b, at_b, sb))
                        };
                        let text = format!("{name}.{d}.{a}.{b} {{d}}, {{a}}{pa}, {{b}}{pb}");
                        table.check(&text, "r rr", &words, |x| bits(value(x)));
                        let text = format!("{name}.{d}.{a}.{b}.sat {{d}}, {{a}}{pa}, {{b}}{pb}");
                        table.check(&text, "r rr", &words, |x| bits(clamp(value(x), 32, signed)));
                    }
                    let value =
                        move |x: [u64; 3]| f(number(x[0], 32, 0, sa), number(x[1], 32, 0, sb));
                    for (part, wide, at) in &PARTS[1..] {
                        let text =
                            format!("{name}.{d}.{a}.{b}.sat {{d}}{part}, {{a}}, {{b}}, {{c}}");
                        table.check(&text, "r rrr", &words, |x| {
                            let field = (1 << wide) - 1;
                            let result = clamp(value(x), *wide, signed) & field;
                            bits(i128::from(x[2]) & !(field << at) | result << at)
                        });
                    }
                    for second in ["add", "min", "max"] {
                        let text =
                            format!("{name}.{d}.{a}.{b}.{second} {{d}}, {{a}}, {{b}}, {{c}}");
                        table.check(&text, "r rrr", &words, |x| {
                            let result = number(value(x) as u64, 32, 0, signed);
                            let c = number(x[2], 32, 0, signed);
                            bits(match second {
                                "add" => result + c,
                                "min" => result.min(c),
                                _ => result.max(c),
                            })
                        });
                    }
                }
            }
        }
    }
    table.finish();
}

#[test]
fn shifts_and_comparisons() {
    let mut table = Table::new("scalar video shifts and comparisons");
    let words = words();
    for (d, signed) in SIGNS {
        for (a, sa) in SIGNS {
            for (mode, wrap) in [("clamp", false), ("wrap", true)] {
                for (name, left) in [("vshl", true), ("vshr", false)] {
                    let value = move |x: [u64; 3]| {
                        let count = if wrap { x[1] % 32 } else { x[1].min(32) };
                        let value = number(x[0], 32, 0, sa);
                        if left { value << count } else { value >> count }
                    };
                    let text = format!("{name}.{d}.{a}.u32.{mode} {{d}}, {{a}}, {{b}}");
                    table.check(&text, "r rr", &words, |x| bits(value(x)));
                    let text =
                        format!("{name}.{d}.{a}.u32.sat.{mode}.add {{d}}, {{a}}, {{b}}, {{c}}");
                    table.check(&text, "r rrr", &words, |x| {
                        bits(clamp(value(x), 32, signed) + i128::from(x[2]))
                    });
                }
            }
        }
    }
    type Comparison = (&'static str, fn(i128, i128) -> bool);
    let comparisons: [Comparison; 6] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
    ];
    for (name, holds) in comparisons {
        for (a, sa) in SIGNS {
            for (b, sb) in SIGNS {
                for (part, wide, at) in PARTS {
                    let truth = move |x: [u64; 3]| {
                        i128::from(holds(number(x[0], 32, 0, sa), number(x[1], wide, at, sb)))
                    };
                    let text = format!("vset.{a}.{b}.{name} {{d}}, {{a}}, {{b}}{part}");
                    table.check(&text, "r rr", &words, |x| bits(truth(x)));
                    let text = format!("vset.{a}.{b}.{name}.add {{d}}, {{a}}, {{b}}{part}, {{c}}");
                    table.check(&text, "r rrr", &words, |x| bits(truth(x) + i128::from(x[2])));
                }
            }
        }
    }
    table.finish();
}

#[test]
fn products() {
    let mut table = Table::new("vmad");
    let words = words();
    for (d, _) in SIGNS {
        for (a, sa) in SIGNS {
            for (b, sb) in SIGNS {
                for (scale, shift) in [("", 0), (".shr7", 7), (".shr15", 15)] {
                    for (sat, saturates) in [("", false), (".sat", true)] {
                        for (plus, minus_product, minus_c) in [
                            ("", false, false),
                            (".po", false, false),
                            ("", true, false),
                            ("", false, true),
                        ] {
                            let sign = |minus: bool| if minus { "-" } else { "" };
                            let text = format!(
                                "vmad.{d}.{a}.{b}{plus}{sat}{scale} {{d}}, {}{{a}}{}, {{b}}.b1, \
                                 {}{{c}}",
                                sign(minus_product),
                                if minus_product { "" } else { ".h0" },
                                sign(minus_c)
                            );
                            let signed = sa || sb || minus_product || minus_c;
                            table.check(&text, "r rrr", &words, |x| {
                                let wide = if minus_product { 32 } else { 16 };
                                let product = number(x[0], wide, 0, sa) * number(x[1], 8, 8, sb);
                                let c = number(x[2], 32, 0, signed);
                                let product = if minus_product { -product } else { product };
                                let c = if minus_c { -c } else { c };
                                let sum = (product + c + i128::from(plus == ".po")) >> shift;
                                bits(if saturates { clamp(sum, 32, signed) } else { sum })
                            });
                        }
                    }
                }
            }
        }
    }
    table.finish();
}

#[test]
fn selections() {
    let mut table = Table::new("video selectors and masks");
    let words = words();
    let selected = |x: [u64; 3], width: u32, which: u32| {
        number(x[0] | x[1] << 32, width, width * which, false)
    };
    for (a, b) in [([0, 1], [2, 3]), ([1, 0], [3, 2]), ([3, 3], [0, 1]), ([2, 0], [1, 1])] {
        for (mask, halves) in [("", [true, true]), (".h0", [true, false]), (".h1", [false, true])] {
            let text = format!(
                "vadd2.u32.u32.u32 {{d}}{mask}, {{a}}.h{}{}, {{b}}.h{}{}, {{c}}",
                a[1], a[0], b[1], b[0]
            );
            table.check(&text, "r rrr", &words, |x| {
                bits((0..2).fold(0, |all, i| {
                    let sum = (selected(x, 16, a[i]) + selected(x, 16, b[i])) & 0xffff;
                    let kept = number(x[2], 16, 16 * i as u32, false);
                    all | (if halves[i] { sum } else { kept }) << (16 * i)
                }))
            });
        }
    }
    for (a, b) in [([0, 1, 2, 3], [4, 5, 6, 7]), ([7, 0, 3, 3], [1, 2, 6, 0])] {
        for (mask, lanes) in [("", 0xf), (".b2", 4), (".b30", 9), (".b321", 14)] {
            let digits =
                |list: [u32; 4]| list.iter().rev().map(ToString::to_string).collect::<String>();
            let text = format!(
                "vsub4.u32.u32.u32 {{d}}{mask}, {{a}}.b{}, {{b}}.b{}, {{c}}",
                digits(a),
                digits(b)
            );
            table.check(&text, "r rrr", &words, |x| {
                bits((0..4).fold(0, |all, i| {
                    let rest = (selected(x, 8, a[i]) - selected(x, 8, b[i])) & 0xff;
                    let kept = number(x[2], 8, 8 * i as u32, false);
                    all | (if lanes >> i & 1 == 1 { rest } else { kept }) << (8 * i)
                }))
            });
        }
    }
    table.finish();
}
