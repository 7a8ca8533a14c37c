//! Registers of 128 bits, and atomics on vectors (PTX ISA, "ld", "st", "mov", "atom", "red"): each
//! half or element is looked at by itself.

use crate::exact::{BF16, F16, F32, Format, Mode};
use crate::harness::{Random, Table, Want, triples};

/// Room for a vector of its own for each thread, its address in %u1.
const ROOM: &str = ".shared .align 32 .b8 room[4096];\nmov.u32 %t1, %tid.x;\nmov.u32 %t2, \
    room;\nmad.lo.u32 %t2, %t1, 32, %t2;\n\
                    cvt.u64.u32 %u1, %t2;\ncvta.shared.u64 %u1, %u1;\n";

#[test]
fn a_hundred_and_twenty_eight_bits() {
    let mut table = Table::new("128 bits");
    let inputs = triples(128, 71, &[0, 1, u64::MAX, 1 << 63, 0xdead_beef], Random::next);
    let halves: [(&str, fn(u64, u64) -> u64); 2] =
        [("{d}, _", |low, _| low), ("_, {d}", |_, high| high)];
    for (result, pick) in halves {
        let regs = ".reg .b128 %w<4>;\nmov.b128 %w0, {{a}, {b}};\n";
        let out = format!("mov.b128 {{{result}}}, %w3");
        let moved = format!("{regs}mov.b128 %w3, %w0;\n{out}");
        table.check(&moved, "d dd", &inputs, |x| Want::Bits(pick(x[0], x[1])));
        let stored = format!("{regs}{ROOM}st.b128 [%u1], %w0;\nld.b128 %w3, [%u1];\n{out}");
        table.check(&stored, "d dd", &inputs, |x| Want::Bits(pick(x[0], x[1])));
        let shared = format!(
            "{regs}{ROOM}st.shared.b128 [%t2+16], %w0;\nld.shared.b128 %w3, [%t2+16];\n{out}"
        );
        table.check(&shared, "d dd", &inputs, |x| Want::Bits(pick(x[0], x[1])));
        let setup = format!("{regs}{ROOM}st.b128 [%u1], %w0;\nmov.b128 %w1, {{{{c}}, {{a}}}};\n");
        for (text, old) in [
            (format!("{setup}atom.exch.b128 %w3, [%u1], %w1;\n{out}"), true),
            (
                format!(
                    "{setup}atom.shared.exch.b128 %w2, [%t2], %w1;\nld.b128 %w3, [%u1];\n{out}"
                ),
                false,
            ),
        ] {
            table.check(&text, "d ddd", &inputs, |x| {
                Want::Bits(if old { pick(x[0], x[1]) } else { pick(x[2], x[0]) })
            });
        }
        // Both halves must agree, or nothing changes.
        let differing = "add.u64 %u3, {b}, 1;\nmov.b128 %w2, {{a}, %u3};\n";
        for (compare, changes) in [("mov.b128 %w2, %w0;\n", true), (differing, false)] {
            let text = format!("{setup}{compare}atom.cas.b128 %w3, [%u1], %w2, %w1;\n");
            table
                .check(&format!("{text}{out}"), "d ddd", &inputs, |x| Want::Bits(pick(x[0], x[1])));
            table.check(&format!("{text}ld.b128 %w3, [%u1];\n{out}"), "d ddd", &inputs, |x| {
                Want::Bits(if changes { pick(x[2], x[0]) } else { pick(x[0], x[1]) })
            });
        }
    }
    table.finish();
}

fn sum(format: Format, a: u64, b: u64) -> Option<u64> {
    if [a, b].iter().any(|&x| format.is_nan(x) || format.is_infinite(x)) {
        return None;
    }
    let mut sum = format.exact(a).plus(&format.exact(b));
    if sum.is_zero() {
        sum.negative = a & b & format.sign() != 0;
    }
    Some(format.round(&sum, Mode::Nearest))
}

/// A vector atomic on the thread's own output slot of 8 bytes: `{a}` before, `{b}` added.
fn vectors(
    table: &mut Table,
    parts: (&str, &str),
    bits: u32,
    inputs: &[[u64; 3]],
    want: impl Fn([u64; 3]) -> Want,
) {
    let (name, operation) = parts;
    let count = 64 / bits;
    let list = |kind: &str, first: u32| {
        let names: Vec<String> =
            (first..first + count).map(|index| format!("%{kind}{index}")).collect();
        names.join(", ")
    };
    let kind = if bits == 16 { "z" } else { "v" };
    let setup = format!(
        ".reg .b16 %z<12>;\n.reg .b32 %v<12>;\nst.global.b64 [%y], {{a}};\nmov.b64 {{{}}}, \
         {{b}};\n",
        list(kind, 0)
    );
    let left = "ld.global.b64 {d}, [%y]";
    let red = format!("{setup}red.global.{operation}.{name} [%y], {{{}}};\n{left}", list(kind, 0));
    table.check(&red, "d dd", inputs, &want);
    let atom = format!(
        "{setup}atom.global.{operation}.{name} {{{}}}, [%y], {{{}}};\n",
        list(kind, 4),
        list(kind, 0)
    );
    table.check(&format!("{atom}{left}"), "d dd", inputs, &want);
    let old = format!("{atom}mov.b64 {{d}}, {{{}}}", list(kind, 4));
    table.check(&old, "d dd", inputs, |x| Want::Bits(x[0]));
}

#[test]
fn vector_atomics() {
    let mut table = Table::new("vector atomics");
    for (ty, format, vector, operation) in [
        ("f32", F32, "v2.f32", "add"),
        ("f16", F16, "v4.f16", "add.noftz"),
        ("bf16", BF16, "v4.bf16", "add.noftz"),
        ("f16", F16, "v2.f16x2", "add.noftz"),
        ("bf16", BF16, "v2.bf16x2", "add.noftz"),
    ] {
        let bits = format.bits;
        let mask = (1_u64 << bits) - 1;
        let finite: Vec<u64> = format
            .edges()
            .into_iter()
            .filter(|&x| !format.is_nan(x) && !format.is_infinite(x))
            .collect();
        let mut random = Random::new(73);
        let inputs: Vec<[u64; 3]> = (0..200)
            .map(|_| {
                let mut slot =
                    || (0..64 / bits).fold(0, |all, at| all | random.pick(&finite) << (bits * at));
                [slot(), slot(), 0]
            })
            .collect();
        let registers = if vector.ends_with("x2") { 32 } else { bits };
        vectors(&mut table, (vector, operation), registers, &inputs, |x| {
            let flush = |part: u64| if ty == "f32" { format.flush(part) } else { part };
            Want::Bits((0..64 / bits).fold(0, |all, at| {
                let part = |value: u64| flush(value >> (bits * at) & mask);
                all | flush(sum(format, part(x[0]), part(x[1])).unwrap()) << (bits * at)
            }))
        });
        if ty == "f32" {
            continue;
        }
        // Numbers are ordered as their encodings are, once negative ones are turned round.
        let order =
            |part: u64| if part & format.sign() != 0 { mask - part } else { part | format.sign() };
        for (operation, max) in [("min.noftz", false), ("max.noftz", true)] {
            vectors(&mut table, (vector, operation), registers, &inputs, |x| {
                Want::Bits((0..64 / bits).fold(0, |all, at| {
                    let (a, b) = (x[0] >> (bits * at) & mask, x[1] >> (bits * at) & mask);
                    let pick = if (order(a) > order(b)) == max { a } else { b };
                    all | pick << (bits * at)
                }))
            });
        }
    }
    table.finish();
}
