//! `setp`, `set`, `selp`, `slct`, `testp`, `copysign` (PTX ISA, "Comparison and Selection
//! Instructions").

use crate::exact::{BF16, F16, F32, F64, Format};
use crate::harness::{Random, Table, Want, triples};
use std::cmp::Ordering;

/// The comparisons: their name, what they say of an order, and what of operands without one (none
/// for integers).
type Comparison = (&'static str, fn(Ordering) -> bool, bool);

const ORDERED: [Comparison; 6] = [
    ("eq", Ordering::is_eq, false),
    ("ne", Ordering::is_ne, false),
    ("lt", Ordering::is_lt, false),
    ("le", Ordering::is_le, false),
    ("gt", Ordering::is_gt, false),
    ("ge", Ordering::is_ge, false),
];

const UNORDERED: [Comparison; 8] = [
    ("equ", Ordering::is_eq, true),
    ("neu", Ordering::is_ne, true),
    ("ltu", Ordering::is_lt, true),
    ("leu", Ordering::is_le, true),
    ("gtu", Ordering::is_gt, true),
    ("geu", Ordering::is_ge, true),
    ("num", |_| true, false),
    ("nan", |_| false, true),
];

/// Order of two numbers by their bits alone; none where one is a NaN.
fn order(format: Format, a: u64, b: u64) -> Option<Ordering> {
    if format.is_nan(a) || format.is_nan(b) {
        return None;
    }
    let rank = |bits: u64| {
        let size = (bits & !format.sign()) as i128;
        if bits & format.sign() != 0 { -size } else { size }
    };
    Some(rank(a).cmp(&rank(b)))
}

#[test]
fn integers() {
    let mut table = Table::new("setp of integers");
    let edges = [
        0,
        1,
        2,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 63,
        u64::MAX,
        u64::MAX >> 1,
    ];
    let inputs = triples(200, 1, &edges, Random::next);
    for (bits, kind) in [(16_u32, 'h'), (32, 'r'), (64, 'd')] {
        let shape = format!("p {kind}{kind}");
        for signed in [false, true] {
            let value = |x: u64| {
                let low = i128::from(x);
                if signed && low >> (bits - 1) == 1 { low - (1 << bits) } else { low }
            };
            for (name, holds, _) in ORDERED {
                let ty = if signed { 's' } else { 'u' };
                let truth = |x: [u64; 3]| holds(value(x[0]).cmp(&value(x[1])));
                table.check(
                    &format!("setp.{name}.{ty}{bits} {{d}}, {{a}}, {{b}}"),
                    &shape,
                    &inputs,
                    |x| Want::Bits(u64::from(truth(x))),
                );
                for (result, yes) in
                    [("u32", 0xffff_ffff), ("s32", 0xffff_ffff), ("f32", 0x3f80_0000)]
                {
                    let text = format!("set.{name}.{result}.{ty}{bits} {{d}}, {{a}}, {{b}}");
                    table.check(&text, &format!("r {kind}{kind}"), &inputs, |x| {
                        Want::Bits(if truth(x) { yes } else { 0 })
                    });
                }
            }
        }
        for (name, holds, _) in [
            ("lo", ORDERED[2].1, ()),
            ("ls", ORDERED[3].1, ()),
            ("hi", ORDERED[4].1, ()),
            ("hs", ORDERED[5].1, ()),
        ] {
            table.check(
                &format!("setp.{name}.u{bits} {{d}}, {{a}}, {{b}}"),
                &shape,
                &inputs,
                |x| Want::Bits(u64::from(holds(x[0].cmp(&x[1])))),
            );
        }
        for name in ["eq", "ne"] {
            table.check(
                &format!("setp.{name}.b{bits} {{d}}, {{a}}, {{b}}"),
                &shape,
                &inputs,
                |x| Want::Bits(u64::from((x[0] == x[1]) == (name == "eq"))),
            );
        }
    }
    table.finish();
}

#[test]
fn floating_point() {
    let mut table = Table::new("setp of floating point");
    for (ty, format, kind) in
        [("f16", F16, 'h'), ("bf16", BF16, 'h'), ("f32", F32, 'r'), ("f64", F64, 'd')]
    {
        let inputs = triples(300, 2, &format.edges(), Random::next);
        for (name, holds, without) in ORDERED.into_iter().chain(UNORDERED) {
            for ftz in ["", ".ftz"] {
                if !ftz.is_empty() && !matches!(ty, "f16" | "f32") {
                    continue;
                }
                let text = format!("setp.{name}{ftz}.{ty} {{d}}, {{a}}, {{b}}");
                let flush = |x: u64| if ftz.is_empty() { x } else { format.flush(x) };
                let truth =
                    |x: [u64; 3]| order(format, flush(x[0]), flush(x[1])).map_or(without, holds);
                table.check(&text, &format!("p {kind}{kind}"), &inputs, |x| {
                    Want::Bits(u64::from(truth(x)))
                });
                if kind != 'h' {
                    for word in ["u32", "s32"] {
                        let text = format!("set.{name}{ftz}.{word}.{ty} {{d}}, {{a}}, {{b}}");
                        table.check(&text, &format!("r {kind}{kind}"), &inputs[..100], |x| {
                            Want::Bits(if truth(x) { 0xffff_ffff } else { 0 })
                        });
                    }
                    let text = format!("set.{name}{ftz}.f32.{ty} {{d}}, {{a}}, {{b}}");
                    table.check(&text, &format!("r {kind}{kind}"), &inputs[..100], |x| {
                        Want::Bits(if truth(x) { 0x3f80_0000 } else { 0 })
                    });
                }
            }
        }
    }
    for (ty, format, one) in [("f16", F16, 0x3c00_u64), ("bf16", BF16, 0x3f80)] {
        let inputs = triples(300, 3, &format.edges(), Random::next);
        let pairs: Vec<_> = inputs
            .windows(2)
            .map(|w| {
                [w[0][0] & 0xffff | w[1][0] << 16, w[0][1] & 0xffff | w[1][1] << 16, w[0][2] & 1]
            })
            .collect();
        for (name, holds, without) in ORDERED.into_iter().chain(UNORDERED) {
            for ftz in ["", ".ftz"] {
                if !ftz.is_empty() && ty != "f16" {
                    continue;
                }
                let value = move |x: u64| {
                    if ftz.is_empty() { x & 0xffff } else { format.flush(x & 0xffff) }
                };
                let truth =
                    move |a: u64, b: u64| order(format, value(a), value(b)).map_or(without, holds);
                for (result, yes) in [(&*format!("{ty}x2"), one), ("u32", 0xffff), ("s32", 0xffff)]
                {
                    let text = format!("set.{name}{ftz}.{result}.{ty}x2 {{d}}, {{a}}, {{b}}");
                    table.check(&text, "r rr", &pairs, |x| {
                        let half = |at: u32| if truth(x[0] >> at, x[1] >> at) { yes } else { 0 };
                        Want::Bits(half(16) << 16 | half(0))
                    });
                }
                for (result, kind, yes) in [
                    (ty, 'h', one),
                    ("u16", 'h', 0xffff),
                    ("s16", 'h', 0xffff),
                    ("u32", 'r', 0xffff_ffff),
                    ("s32", 'r', 0xffff_ffff),
                ] {
                    let text = format!("set.{name}{ftz}.{result}.{ty} {{d}}, {{a}}, {{b}}");
                    table.check(&text, &format!("{kind} hh"), &inputs[..100], |x| {
                        Want::Bits(if truth(x[0], x[1]) { yes } else { 0 })
                    });
                }
                for (operator, both) in ["", ".and", ".or", ".xor"].into_iter().zip([
                    (|a, _| a) as fn(bool, bool) -> bool,
                    |a, b| a && b,
                    |a, b| a || b,
                    |a, b| a != b,
                ]) {
                    let (setup, third) = if operator.is_empty() {
                        ("", "")
                    } else {
                        ("setp.ne.s32 %q3, {c}, 0;\n", ", %q3")
                    };
                    let text = format!(
                        "{setup}setp.{name}{operator}{ftz}.{ty}x2 %q1|%q2, {{a}}, \
                         {{b}}{third};\nselp.b32 %t0, 1, 0, %q1;\n\
                         selp.b32 {{d}}, 2, 0, %q2;\nor.b32 {{d}}, {{d}}, %t0"
                    );
                    table.check(&text, "r rrr", &pairs[..64], |x| {
                        let part =
                            |at: u32| u64::from(both(truth(x[0] >> at, x[1] >> at), x[2] != 0));
                        Want::Bits(part(0) | part(16) << 1)
                    });
                }
            }
        }
    }
    table.finish();
}

#[test]
fn booleans() {
    let mut table = Table::new("setp with boolean operators");
    let inputs = triples(128, 4, &[0, 1, 2, 0x8000_0000, u64::MAX], Random::next);
    let ops: [(&str, fn(bool, bool) -> bool); 3] =
        [("and", |a, b| a && b), ("or", |a, b| a || b), ("xor", |a, b| a != b)];
    for (name, f) in ops {
        for not in ["", "!"] {
            let text = format!("setp.lt.{name}.s32 {{d}}, {{a}}, {{b}}, {not}{{c}}");
            let operand = |x: [u64; 3]| (x[2] == 1) == not.is_empty();
            let less = |x: [u64; 3]| (x[0] as u32 as i32) < (x[1] as u32 as i32);
            table.check(&text, "p rrp", &inputs, |x| Want::Bits(u64::from(f(less(x), operand(x)))));
            // Both results: the second is the operator on the opposite.
            let text = format!("setp.lt.{name}.s32 %q1|{{d}}, {{a}}, {{b}}, {not}{{c}}");
            table
                .check(&text, "p rrp", &inputs, |x| Want::Bits(u64::from(f(!less(x), operand(x)))));
            let text = format!("set.lt.{name}.u32.s32 {{d}}, {{a}}, {{b}}, {not}{{c}}");
            table.check(&text, "r rrp", &inputs, |x| {
                Want::Bits(if f(less(x), operand(x)) { 0xffff_ffff } else { 0 })
            });
        }
        let text = format!("setp.lt.{name}.f32 {{d}}, {{a}}, {{b}}, {{c}}");
        table.check(&text, "p rrp", &inputs, |x| {
            let less = order(F32, x[0], x[1]).is_some_and(Ordering::is_lt);
            Want::Bits(u64::from(f(less, x[2] == 1)))
        });
        let text = format!("{name}.pred {{d}}, {{a}}, {{b}}");
        table.check(&text, "p pp", &inputs, |x| Want::Bits(u64::from(f(x[0] == 1, x[1] == 1))));
    }
    table.check("not.pred {d}, {a}", "p p", &inputs, |x| Want::Bits(1 - x[0]));
    table.finish();
}

#[test]
fn selection() {
    let mut table = Table::new("selection");
    let inputs = triples(
        200,
        5,
        &[0, 1, 0x8000_0000, 0x7fff_ffff, 0x8000_0001, 0x7f80_0000, 0x7fff_ffff, 0xff80_0000],
        Random::next,
    );
    for (bits, kind) in [(16, 'h'), (32, 'r'), (64, 'd')] {
        for ty in ['b', 'u', 's', 'f'] {
            if ty == 'f' && bits == 16 {
                continue;
            }
            let text = format!("selp.{ty}{bits} {{d}}, {{a}}, {{b}}, {{c}}");
            table.check(&text, &format!("{kind} {kind}{kind}p"), &inputs, |x| {
                Want::Bits(if x[2] == 1 { x[0] } else { x[1] })
            });
            let text = format!("slct.{ty}{bits}.s32 {{d}}, {{a}}, {{b}}, {{c}}");
            table.check(&text, &format!("{kind} {kind}{kind}r"), &inputs, |x| {
                Want::Bits(if x[2] >> 31 == 0 { x[0] } else { x[1] })
            });
            for ftz in ["", ".ftz"] {
                let text = format!("slct{ftz}.{ty}{bits}.f32 {{d}}, {{a}}, {{b}}, {{c}}");
                table.check(&text, &format!("{kind} {kind}{kind}r"), &inputs, |x| {
                    let c = if ftz.is_empty() { x[2] } else { F32.flush(x[2]) };
                    let first = order(F32, c, 0).is_some_and(Ordering::is_ge);
                    Want::Bits(if first { x[0] } else { x[1] })
                });
            }
        }
    }
    for (ty, format, kind) in [("f32", F32, 'r'), ("f64", F64, 'd')] {
        let inputs = triples(200, 6, &format.edges(), Random::next);
        table.check(
            &format!("copysign.{ty} {{d}}, {{a}}, {{b}}"),
            &format!("{kind} {kind}{kind}"),
            &inputs,
            |x| Want::Bits(x[0] & format.sign() | x[1] & !format.sign()),
        );
        type Property = (&'static str, fn(Format, u64) -> bool);
        let properties: [Property; 6] = [
            ("finite", |f, x| !f.is_nan(x) && !f.is_infinite(x)),
            ("infinite", |f, x| f.is_infinite(x)),
            ("number", |f, x| !f.is_nan(x)),
            ("notanumber", |f, x| f.is_nan(x)),
            ("normal", |f, x| {
                !f.is_nan(x) && !f.is_infinite(x) && !f.is_subnormal(x) && x & !f.sign() != 0
            }),
            ("subnormal", |f, x| f.is_subnormal(x)),
        ];
        for (name, f) in properties {
            table.check(
                &format!("testp.{name}.{ty} {{d}}, {{a}}"),
                &format!("p {kind}"),
                &inputs,
                |x| Want::Bits(u64::from(f(format, x[0]))),
            );
        }
    }
    table.finish();
}
