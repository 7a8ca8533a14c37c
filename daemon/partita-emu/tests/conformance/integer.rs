//! Integer instructions of every width (PTX ISA, "Integer Arithmetic Instructions",
//! "Extended-Precision Integer Arithmetic", "Logic and Shift", "Data Movement": `prmt`).

use crate::harness::{Random, Table, Want, triples};

/// A type: its name, its bits, the letter of its registers, and whether it is signed.
#[derive(Clone, Copy)]
struct Type {
    name: &'static str,
    bits: u32,
    kind: char,
    signed: bool,
}

const TYPES: [Type; 6] = [
    Type { name: "u16", bits: 16, kind: 'h', signed: false },
    Type { name: "s16", bits: 16, kind: 'h', signed: true },
    Type { name: "u32", bits: 32, kind: 'r', signed: false },
    Type { name: "s32", bits: 32, kind: 'r', signed: true },
    Type { name: "u64", bits: 64, kind: 'd', signed: false },
    Type { name: "s64", bits: 64, kind: 'd', signed: true },
];

impl Type {
    fn value(self, bits: u64) -> i128 {
        let wide = i128::from(bits) & ((1 << self.bits) - 1);
        if self.signed && wide >> (self.bits - 1) & 1 == 1 { wide - (1 << self.bits) } else { wide }
    }

    fn inputs(self, seed: u64) -> Vec<[u64; 3]> {
        triples(160, seed, &edges(self.bits), Random::next)
    }

    fn shape(self, sources: usize) -> String {
        format!("{} {}", self.kind, self.kind.to_string().repeat(sources))
    }
}

fn edges(bits: u32) -> Vec<u64> {
    let top = 1_u64 << (bits - 1);
    vec![
        0,
        1,
        2,
        3,
        4,
        7,
        8,
        15,
        16,
        17,
        31,
        32,
        33,
        63,
        64,
        65,
        0x7f,
        0x80,
        0xff,
        0x100,
        0x7fff,
        0x8000,
        0xffff,
        top - 1,
        top,
        top + 1,
        u64::MAX,
        u64::MAX - 1,
        u64::MAX - 15,
        0x5555_5555_5555_5555,
        0xaaaa_aaaa_aaaa_aaaa,
    ]
}

fn bits(value: i128) -> Want {
    Want::Bits(value as u64)
}

#[test]
fn arithmetic() {
    let mut table = Table::new("integer arithmetic");
    type Op = (&'static str, usize, fn(i128, i128, i128, u32) -> i128);
    let ops: [Op; 9] = [
        ("add", 2, |a, b, _, _| a + b),
        ("sub", 2, |a, b, _, _| a - b),
        ("mul.lo", 2, |a, b, _, _| a.wrapping_mul(b)),
        ("mad.lo", 3, |a, b, c, _| a.wrapping_mul(b).wrapping_add(c)),
        ("min", 2, |a, b, _, _| a.min(b)),
        ("max", 2, |a, b, _, _| a.max(b)),
        ("sad", 3, |a, b, c, _| c + (a - b).abs()),
        ("mul.hi", 2, |a, b, _, n| high(a, b, n)),
        ("mad.hi", 3, |a, b, c, n| high(a, b, n) + c),
    ];
    for ty in TYPES {
        for (name, sources, f) in ops {
            table.check(
                &format!(
                    "{name}.{} {}",
                    ty.name,
                    ["", "", "{d}, {a}, {b}", "{d}, {a}, {b}, {c}"][sources]
                ),
                &ty.shape(sources),
                &ty.inputs(1),
                |x| bits(f(ty.value(x[0]), ty.value(x[1]), ty.value(x[2]), ty.bits)),
            );
        }
        let nonzero: Vec<_> = ty.inputs(2).into_iter().filter(|x| ty.value(x[1]) != 0).collect();
        let (div, rem) = (
            format!("div.{} {{d}}, {{a}}, {{b}}", ty.name),
            format!("rem.{} {{d}}, {{a}}, {{b}}", ty.name),
        );
        table.check(&div, &ty.shape(2), &nonzero, |x| bits(ty.value(x[0]) / ty.value(x[1])));
        table.check(&rem, &ty.shape(2), &nonzero, |x| bits(ty.value(x[0]) % ty.value(x[1])));
        if ty.signed {
            for (name, f) in [("abs", i128::abs as fn(i128) -> i128), ("neg", |a| -a)] {
                let text = format!("{name}.{} {{d}}, {{a}}", ty.name);
                table.check(&text, &ty.shape(1), &ty.inputs(3), |x| bits(f(ty.value(x[0]))));
            }
        }
        if ty.bits < 64 {
            let wide = if ty.bits == 16 { 'r' } else { 'd' };
            let shape = format!("{wide} {0}{0}{wide}", ty.kind);
            let text = format!("mul.wide.{} {{d}}, {{a}}, {{b}}", ty.name);
            table.check(&text, &shape, &ty.inputs(4), |x| bits(ty.value(x[0]) * ty.value(x[1])));
            let text = format!("mad.wide.{} {{d}}, {{a}}, {{b}}, {{c}}", ty.name);
            table.check(&text, &shape, &ty.inputs(5), |x| {
                bits((ty.value(x[0]) * ty.value(x[1])).wrapping_add(i128::from(x[2])))
            });
        }
    }
    let s32 = TYPES[3];
    let limit = |value: i128| bits(value.clamp(i128::from(i32::MIN), i128::from(i32::MAX)));
    let v = |x: u64| s32.value(x);
    table.check("add.sat.s32 {d}, {a}, {b}", "r rr", &s32.inputs(6), |x| limit(v(x[0]) + v(x[1])));
    table.check("sub.sat.s32 {d}, {a}, {b}", "r rr", &s32.inputs(7), |x| limit(v(x[0]) - v(x[1])));
    table.check("mad.hi.sat.s32 {d}, {a}, {b}, {c}", "r rrr", &s32.inputs(8), |x| {
        limit(((v(x[0]) * v(x[1])) >> 32) + v(x[2]))
    });
    for (name, signed) in [("u32", false), ("s32", true)] {
        let low = |x: u64| {
            let low = i128::from(x & 0xff_ffff);
            if signed && low >> 23 == 1 { low - (1 << 24) } else { low }
        };
        let inputs = TYPES[2].inputs(9);
        table.check(&format!("mul24.lo.{name} {{d}}, {{a}}, {{b}}"), "r rr", &inputs, |x| {
            bits(low(x[0]) * low(x[1]))
        });
        table.check(&format!("mul24.hi.{name} {{d}}, {{a}}, {{b}}"), "r rr", &inputs, |x| {
            bits((low(x[0]) * low(x[1])) >> 16)
        });
        table.check(
            &format!("mad24.lo.{name} {{d}}, {{a}}, {{b}}, {{c}}"),
            "r rrr",
            &inputs,
            |x| bits(low(x[0]) * low(x[1]) + i128::from(x[2])),
        );
        table.check(
            &format!("mad24.hi.{name} {{d}}, {{a}}, {{b}}, {{c}}"),
            "r rrr",
            &inputs,
            |x| bits(((low(x[0]) * low(x[1])) >> 16) + i128::from(x[2])),
        );
        if signed {
            table.check("mad24.hi.sat.s32 {d}, {a}, {b}, {c}", "r rrr", &inputs, |x| {
                limit(((low(x[0]) * low(x[1])) >> 16) + v(x[2]))
            });
        }
        let half = |x: u64, y: u64| x.wrapping_add(y) & 0xffff;
        table.check(&format!("add.{}16x2 {{d}}, {{a}}, {{b}}", &name[..1]), "r rr", &inputs, |x| {
            Want::Bits(half(x[0], x[1]) | half(x[0] >> 16, x[1] >> 16) << 16)
        });
    }
    table.finish();
}

fn high(a: i128, b: i128, bits: u32) -> i128 {
    // A product of two 64-bit numbers may need 128 bits without a sign.
    if a >= 0 && b >= 0 { ((a as u128 * b as u128) >> bits) as i128 } else { (a * b) >> bits }
}

#[test]
fn carries() {
    let mut table = Table::new("extended precision");
    for (name, kind, width, t) in
        [("u32", 'r', 32, 't'), ("u64", 'd', 64, 'u'), ("s32", 'r', 32, 't'), ("s64", 'd', 64, 'u')]
    {
        // Signs matter to the high part of a product only.
        let signed = name.starts_with('s');
        let inputs = triples(200, 11, &edges(width), Random::next);
        let one = 1_u128 << width;
        let mask = one - 1;
        let shape = format!("{kind} {kind}{kind}{kind}");
        // The carry of the first sum enters the second; what is stored is the second.
        type Case = (&'static str, &'static str, fn(u128, u128, u128, u128) -> u128);
        let cases: [Case; 6] = [
            ("add.cc", "addc", |a, b, c, one| c + c + u128::from(a + b >= one)),
            ("sub.cc", "subc", |a, b, c, one| (one + c - a) - u128::from(a < b)),
            ("add.cc", "addc.cc", |a, b, c, one| {
                let second = c + a + u128::from(a + b >= one);
                second / one
            }),
            ("sub.cc", "subc.cc", |a, b, c, _| {
                let borrow = u128::from(a < b);
                u128::from(c >= a + borrow)
            }),
            ("mad.lo.cc", "madc.hi", |a, b, c, one| {
                a * b / one + b + u128::from(a * b % one + c >= one)
            }),
            ("mad.lo.cc", "madc.lo.cc", |a, b, c, one| {
                let low = a * b % one;
                (low + b + u128::from(low + c >= one)) / one
            }),
        ];
        for (index, (first, second, f)) in cases.into_iter().enumerate() {
            if signed && second.contains("hi") {
                continue;
            }
            let text = match index {
                0 => format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}};\n{second}.{name} {{d}}, {{c}}, {{c}}"
                ),
                1 => format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}};\n{second}.{name} {{d}}, {{c}}, {{a}}"
                ),
                2 => format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}};\n{second}.{name} %{t}1, {{c}}, \
                     {{a}};\naddc.{name} {{d}}, 0, 0"
                ),
                3 => format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}};\n{second}.{name} %{t}1, {{c}}, \
                     {{a}};\nsubc.{name} {{d}}, 1, 0"
                ),
                4 => format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}}, {{c}};\n{second}.{name} {{d}}, {{a}}, \
                     {{b}}, {{b}}"
                ),
                _ => format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}}, {{c}};\n{second}.{name} %{t}1, {{a}}, \
                     {{b}}, {{b}};\n\
                     addc.{name} {{d}}, 0, 0"
                ),
            };
            table.check(&text, &shape, &inputs, |x| {
                let [a, b, c] = x.map(u128::from);
                Want::Bits((f(a, b, c, one) & mask) as u64)
            });
        }
    }
    table.finish();
}

/// The carry of the hardware's adder: after a subtraction it is the inverted borrow, for whichever
/// instruction reads it. The values are those of the machine code: ptxas makes `sub.cc` an addition
/// of the complement with a carry in, and `addc` and `subc` read the carry out as it is.
#[test]
fn carries_across_kinds() {
    let mut table = Table::new("carries between sums and differences");
    // Sum or difference of two numbers with a carry in: carry out and result.
    type Adder = fn(u128, u128, u128, u128) -> (u128, u128);
    let plus: Adder = |a, b, carry, one| ((a + b + carry) / one, (a + b + carry) % one);
    let minus: Adder = |a, b, carry, one| {
        let sum = a + (one - 1 - b) + carry;
        (sum / one, sum % one)
    };
    for (name, kind, width, t) in [("u32", 'r', 32, 't'), ("u64", 'd', 64, 'u')] {
        let inputs = triples(600, 12, &edges(width), Random::next);
        let one = 1_u128 << width;
        let shape = format!("{kind} {kind}{kind}{kind}");
        let starts = [("add.cc", plus, 0), ("sub.cc", minus, 1)];
        for (first, adder, start) in starts {
            for (second, reader) in [("addc", plus), ("subc", minus)] {
                let text = format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}};\n{second}.{name} {{d}}, {{c}}, {{a}}"
                );
                table.check(&text, &shape, &inputs, |x| {
                    let [a, b, c] = x.map(u128::from);
                    let (carry, _) = adder(a, b, start, one);
                    Want::Bits(reader(c, a, carry, one).1 as u64)
                });
                // Through a third: what the second leaves.
                let text = format!(
                    "{first}.{name} %{t}0, {{a}}, {{b}};\n{second}.cc.{name} %{t}1, {{c}}, \
                     {{a}};\naddc.{name} {{d}}, 0, 0"
                );
                table.check(&text, &shape, &inputs, |x| {
                    let [a, b, c] = x.map(u128::from);
                    let (carry, _) = adder(a, b, start, one);
                    Want::Bits(reader(c, a, carry, one).0 as u64)
                });
            }
            let text = format!(
                "{first}.{name} %{t}0, {{a}}, {{b}};\nmadc.lo.{name} {{d}}, {{a}}, {{b}}, {{c}}"
            );
            table.check(&text, &shape, &inputs, |x| {
                let [a, b, c] = x.map(u128::from);
                let (carry, _) = adder(a, b, start, one);
                Want::Bits(((a * b % one + c + carry) % one) as u64)
            });
        }
        let text = format!(
            "mad.lo.cc.{name} %{t}0, {{a}}, {{b}}, {{c}};\nsubc.{name} {{d}}, {{c}}, {{b}}"
        );
        table.check(&text, &shape, &inputs, |x| {
            let [a, b, c] = x.map(u128::from);
            let (carry, _) = plus(a * b % one, c, 0, one);
            Want::Bits(minus(c, b, carry, one).1 as u64)
        });
    }
    table.finish();
}

#[test]
fn bits_and_fields() {
    let mut table = Table::new("bits");
    for ty in TYPES.into_iter().filter(|ty| ty.bits >= 32) {
        let n = ty.bits;
        let fields = triples(
            400,
            21,
            &[0, 1, 2, 5, 8, 16, 31, 32, 33, 48, 63, 64, 65, 128, 255, 256 + 7],
            |r| r.next() >> 57,
        );
        let values = triples(400, 22, &edges(n), Random::next);
        let inputs: Vec<_> = values.iter().zip(&fields).map(|(v, f)| [v[0], f[1], f[2]]).collect();
        let (kind, name) = (ty.kind, ty.name);
        table.check(
            &format!("bfe.{name} {{d}}, {{a}}, {{b}}, {{c}}"),
            &format!("{kind} {kind}rr"),
            &inputs,
            |x| {
                let (start, length) = (x[1] & 0xff, x[2] & 0xff);
                if length == 0 {
                    return bits(0);
                }
                // The field of an endless number: sign or zeros beyond the top, and the sign is
                // that of the last bit inside.
                let bit = |at: u64| x[0] >> at & 1;
                let last = (start + length - 1).min(u64::from(n) - 1);
                let fill = ty.signed && bit(last) == 1;
                let mut all = 0_i128;
                for index in 0..u64::from(n) {
                    let inside = index < length && start + index < u64::from(n);
                    let set = if inside { bit(start + index) == 1 } else { fill };
                    all += i128::from(set) << index;
                }
                bits(all)
            },
        );
        for (name, f) in [
            ("bfind", (|value, width| leading(value, width)) as fn(u64, u32) -> Option<u32>),
            ("bfind.shiftamt", |value, width| leading(value, width).map(|at| width - 1 - at)),
        ] {
            table.check(
                &format!("{name}.{} {{d}}, {{a}}", ty.name),
                &format!("r {kind}"),
                &values,
                |x| {
                    let negative = ty.signed && ty.value(x[0]) < 0;
                    let value = if negative { !x[0] } else { x[0] };
                    Want::Bits(f(value & (u64::MAX >> (64 - n)), n).map_or(0xffff_ffff, u64::from))
                },
            );
        }
        if ty.signed {
            continue;
        }
        let b = format!("b{n}");
        for (length, at) in [(0, 0), (1, 3), (5, 0), (8, 28), (32, 0), (40, 20), (3, 200), (255, 1)]
        {
            let text = format!("bfi.{b} {{d}}, {{a}}, {{b}}, {at}, {length}");
            table.check(&text, &ty.shape(2), &values[..40], |x| {
                let mask = if at >= n { 0 } else { ((1_u128 << length.min(100)) - 1) << at };
                let field = u128::from(x[0]).checked_shl(at).unwrap_or(0);
                Want::Bits((field & mask | u128::from(x[1]) & !mask) as u64)
            });
        }
        let string = move |x: u64| {
            format!("{:0width$b}", u128::from(x) & ((1 << n) - 1), width = n as usize)
        };
        table.check(&format!("brev.{b} {{d}}, {{a}}"), &ty.shape(1), &values, |x| {
            Want::Bits(
                u64::from_str_radix(&string(x[0]).chars().rev().collect::<String>(), 2).unwrap(),
            )
        });
        table.check(&format!("clz.{b} {{d}}, {{a}}"), &format!("r {kind}"), &values, |x| {
            Want::Bits(string(x[0]).find('1').map_or(u64::from(n), |at| at as u64))
        });
        table.check(&format!("popc.{b} {{d}}, {{a}}"), &format!("r {kind}"), &values, |x| {
            Want::Bits(string(x[0]).matches('1').count() as u64)
        });
    }
    table.finish();
}

fn leading(value: u64, width: u32) -> Option<u32> {
    (0..width).rev().find(|&at| value >> at & 1 == 1)
}

#[test]
fn logic_and_shifts() {
    let mut table = Table::new("logic and shifts");
    for (width, kind) in [(16_u32, 'h'), (32, 'r'), (64, 'd')] {
        let values = triples(200, 31, &edges(width), Random::next);
        let two = format!("{kind} {kind}{kind}");
        let ops: [(&str, fn(u64, u64) -> u64); 3] =
            [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
        for (name, f) in ops {
            let text = format!("{name}.b{width} {{d}}, {{a}}, {{b}}");
            table.check(&text, &two, &values, |x| Want::Bits(f(x[0], x[1])));
        }
        let one = format!("{kind} {kind}");
        table.check(&format!("not.b{width} {{d}}, {{a}}"), &one, &values, |x| Want::Bits(!x[0]));
        table.check(&format!("cnot.b{width} {{d}}, {{a}}"), &one, &values, |x| {
            Want::Bits(u64::from(x[0] == 0))
        });

        let counts =
            [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 0xffff_ffff, 0x8000_0000];
        let shifts: Vec<_> =
            values.iter().enumerate().map(|(i, x)| [x[0], counts[i % counts.len()], 0]).collect();
        let shape = format!("{kind} {kind}r");
        table.check(&format!("shl.b{width} {{d}}, {{a}}, {{b}}"), &shape, &shifts, |x| {
            Want::Bits(if x[1] >= u64::from(width) { 0 } else { (u128::from(x[0]) << x[1]) as u64 })
        });
        for ty in TYPES.into_iter().filter(|ty| ty.bits == width) {
            let text = format!("shr.{} {{d}}, {{a}}, {{b}}", ty.name);
            // Beyond the width only the sign is left, or nothing.
            let shifted = |x: [u64; 3]| bits(ty.value(x[0]) >> x[1].min(u64::from(width)));
            table.check(&text, &shape, &shifts, shifted);
            if !ty.signed {
                table.check(&format!("shr.b{width} {{d}}, {{a}}, {{b}}"), &shape, &shifts, shifted);
            }
        }
    }
    let words = triples(300, 32, &edges(32), Random::next);
    for (direction, left) in [("l", true), ("r", false)] {
        for (mode, clamp) in [("wrap", false), ("clamp", true)] {
            let text = format!("shf.{direction}.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}}");
            table.check(&text, "r rrr", &words, |x| {
                let count = if clamp { x[2].min(32) } else { x[2] % 32 };
                let both = u128::from(x[1]) << 32 | u128::from(x[0]);
                Want::Bits(if left { (both << count >> 32) as u64 } else { (both >> count) as u64 })
            });
        }
    }
    for lookup in [0x00_u64, 0x1e, 0x2d, 0x3c, 0x78, 0x80, 0x96, 0xc0, 0xca, 0xe8, 0xf8, 0xfe, 0xff]
    {
        let text = format!("lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {lookup}");
        table.check(&text, "r rrr", &words[..64], |x| {
            let bit = |at: u32| {
                lookup >> ((x[0] >> at & 1) << 2 | (x[1] >> at & 1) << 1 | (x[2] >> at & 1)) & 1
            };
            Want::Bits((0..32).map(|at| bit(at) << at).sum())
        });
    }
    table.finish();
}

#[test]
fn fields_and_places() {
    let mut table = Table::new("szext, bmsk, fns");
    let words = triples(300, 33, &edges(32), Random::next);
    let counts = [0, 1, 2, 7, 8, 15, 16, 30, 31, 32, 33, 40, 63, 64, 0x8000_0000, 0xffff_ffff];
    let sized: Vec<_> =
        words.iter().enumerate().map(|(i, x)| [x[0], counts[i % 16], x[2]]).collect();
    let spans: Vec<_> = (0..256).map(|i| [counts[i / 16], counts[i % 16], 0]).collect();
    for (mode, clamp) in [("clamp", true), ("wrap", false)] {
        let size = |n: u64| if clamp { n.min(32) } else { n % 32 } as u32;
        for signed in [false, true] {
            let text =
                format!("szext.{mode}.{}32 {{d}}, {{a}}, {{b}}", if signed { 's' } else { 'u' });
            table.check(&text, "r rr", &sized, |x| {
                let n = size(x[1]);
                let low = i128::from(x[0]) & ((1 << n) - 1);
                let negative = signed && n > 0 && low >> (n - 1) == 1;
                bits(if negative { low - (1 << n) } else { low })
            });
        }
        table.check(&format!("bmsk.{mode}.b32 {{d}}, {{a}}, {{b}}"), "r rr", &spans, |x| {
            let (start, length) = (size(x[0]), size(x[1]));
            bits(((1_i128 << length) - 1) << start & 0xffff_ffff)
        });
    }
    // The n-th set bit from a place on, upwards or downwards.
    let bases: Vec<_> = words.iter().map(|x| [x[0], x[1] % 32, x[2]]).collect();
    let offsets = [0_i64, 1, 2, 3, 5, 16, 31, 32, 33, -1, -2, -3, -16, -32];
    for offset in offsets {
        table.check(&format!("fns.b32 {{d}}, {{a}}, {{b}}, {offset}"), "r rr", &bases, |x| {
            let set = |at: &u64| x[0] >> at & 1 == 1;
            let nth = offset.unsigned_abs() as usize;
            let found = match offset {
                0 => Some(x[1]).filter(set),
                1.. => (x[1]..32).filter(set).nth(nth - 1),
                _ => (0..=x[1]).rev().filter(set).nth(nth - 1),
            };
            Want::Bits(found.unwrap_or(0xffff_ffff))
        });
    }
    table.finish();
}

#[test]
fn bytes() {
    let mut table = Table::new("bytes");
    let words = triples(300, 41, &edges(32), Random::next);
    let bytes = |x: &[u64; 3]| -> Vec<u8> {
        [(x[0] as u32).to_le_bytes(), (x[1] as u32).to_le_bytes()].concat()
    };
    let join = |four: [u8; 4]| Want::Bits(u64::from(u32::from_le_bytes(four)));
    table.check("prmt.b32 {d}, {a}, {b}, {c}", "r rrr", &words, |x| {
        let all = bytes(&x);
        join(std::array::from_fn(|i| {
            let nibble = (x[2] >> (4 * i) & 15) as usize;
            let byte = all[nibble & 7];
            if nibble < 8 { byte } else { ((byte as i8) >> 7) as u8 }
        }))
    });
    // The table of modes in the ISA: which byte each result byte takes, lowest first, for c = 0, 1,
    // 2, 3.
    let modes: [(&str, [[usize; 4]; 4]); 6] = [
        ("f4e", [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]]),
        ("b4e", [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]]),
        ("rc8", [[0; 4], [1; 4], [2; 4], [3; 4]]),
        ("ecl", [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]]),
        ("rc16", [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]]),
    ];
    for (mode, selections) in modes {
        table.check(&format!("prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}}"), "r rrr", &words, |x| {
            let all = bytes(&x);
            join(selections[(x[2] & 3) as usize].map(|at| all[at]))
        });
    }
    let value = |byte: u64, bits: u32, signed: bool| {
        let byte = (byte & ((1 << bits) - 1)) as i128;
        if signed && byte >> (bits - 1) == 1 { byte - (1 << bits) } else { byte }
    };
    for (a, b) in [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")] {
        let (sa, sb) = (a == "s32", b == "s32");
        table.check(&format!("dp4a.{a}.{b} {{d}}, {{a}}, {{b}}, {{c}}"), "r rrr", &words, |x| {
            let sum: i128 =
                (0..4).map(|i| value(x[0] >> (8 * i), 8, sa) * value(x[1] >> (8 * i), 8, sb)).sum();
            bits(sum + i128::from(x[2]))
        });
        for (half, first) in [("lo", 0), ("hi", 2)] {
            table.check(
                &format!("dp2a.{half}.{a}.{b} {{d}}, {{a}}, {{b}}, {{c}}"),
                "r rrr",
                &words,
                |x| {
                    let sum: i128 = (0..2)
                        .map(|i| {
                            value(x[0] >> (16 * i), 16, sa)
                                * value(x[1] >> (8 * (first + i)), 8, sb)
                        })
                        .sum();
                    bits(sum + i128::from(x[2]))
                },
            );
        }
    }
    for (name, signed, max) in [
        ("u16x2", false, true),
        ("u16x2", false, false),
        ("s16x2", true, true),
        ("s16x2", true, false),
    ] {
        let op = if max { "max" } else { "min" };
        table.check(&format!("{op}.{name} {{d}}, {{a}}, {{b}}"), "r rr", &words, |x| {
            let half = |at: u32| {
                let (a, b) = (value(x[0] >> at, 16, signed), value(x[1] >> at, 16, signed));
                (if max { a.max(b) } else { a.min(b) }) as u64 & 0xffff
            };
            Want::Bits(half(16) << 16 | half(0))
        });
    }
    table.finish();
}

#[test]
fn video() {
    let mut table = Table::new("video instructions");
    let words = triples(200, 51, &edges(32), Random::next);
    type Op = (&'static str, fn(i64, i64) -> i64);
    let ops: [Op; 6] = [
        ("vadd", |a, b| a + b),
        ("vsub", |a, b| a - b),
        ("vavrg", |a, b| (a + b + i64::from(a + b >= 0)).div_euclid(2)),
        ("vabsdiff", |a, b| (a - b).abs()),
        ("vmin", i64::min),
        ("vmax", i64::max),
    ];
    let comparisons: [(&str, fn(i64, i64) -> bool); 3] =
        [("eq", |a, b| a == b), ("lt", |a, b| a < b), ("ge", |a, b| a >= b)];
    for (count, bits) in [(2, 16_u32), (4, 8)] {
        let number = move |value: u64, index: u32, signed: bool| {
            let size = 1_i64 << bits;
            let low = (value >> (bits * index)) as i64 & (size - 1);
            if signed && low >= size / 2 { low - size } else { low }
        };
        let join = move |parts: &[i64]| {
            parts
                .iter()
                .rev()
                .fold(0_u64, |all, part| all << bits | *part as u64 & ((1 << bits) - 1))
        };
        let signs = [("u32", false), ("s32", true)];
        for (d, signed) in signs {
            for (a, sa) in signs {
                let parts = move |x: [u64; 3], f: fn(i64, i64) -> i64| -> Vec<i64> {
                    (0..count).map(|i| f(number(x[0], i, sa), number(x[1], i, sa))).collect()
                };
                for (name, f) in ops {
                    let text = format!("{name}{count}.{d}.{a}.{a} {{d}}, {{a}}, {{b}}, {{c}}");
                    table.check(&text, "r rrr", &words, |x| Want::Bits(join(&parts(x, f))));
                    let text = format!("{name}{count}.{d}.{a}.{a}.sat {{d}}, {{a}}, {{b}}, {{c}}");
                    table.check(&text, "r rrr", &words, |x| {
                        let top = (1_i64 << bits) - 1;
                        let (low, high) = if signed { (-(top / 2) - 1, top / 2) } else { (0, top) };
                        let clamped: Vec<i64> =
                            parts(x, f).into_iter().map(|part| part.clamp(low, high)).collect();
                        Want::Bits(join(&clamped))
                    });
                    let text = format!("{name}{count}.{d}.{a}.{a}.add {{d}}, {{a}}, {{b}}, {{c}}");
                    table.check(&text, "r rrr", &words, |x| {
                        bits_of(parts(x, f).into_iter().sum::<i64>() + x[2] as i64)
                    });
                }
            }
        }
        for (name, holds) in comparisons {
            for (a, signed) in signs {
                let truths = move |x: [u64; 3]| -> Vec<i64> {
                    (0..count)
                        .map(|i| i64::from(holds(number(x[0], i, signed), number(x[1], i, signed))))
                        .collect()
                };
                let text = format!("vset{count}.{a}.{a}.{name} {{d}}, {{a}}, {{b}}, {{c}}");
                table.check(&text, "r rrr", &words, |x| Want::Bits(join(&truths(x))));
                let text = format!("vset{count}.{a}.{a}.{name}.add {{d}}, {{a}}, {{b}}, {{c}}");
                table.check(&text, "r rrr", &words, |x| {
                    bits_of(truths(x).into_iter().sum::<i64>() + x[2] as i64)
                });
            }
        }
    }
    table.finish();
}

fn bits_of(value: i64) -> Want {
    Want::Bits(value as u64)
}
