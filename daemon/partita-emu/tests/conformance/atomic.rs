//! `atom` and `red` of every operation and type, in global and in shared memory (PTX ISA, "atom",
//! "red").

use crate::exact::{BF16, F16, F32, F64, Format, Mode};
use crate::harness::{Random, Table, Want, triples};

fn kind(bits: u32) -> char {
    match bits {
        16 => 'h',
        32 => 'r',
        _ => 'd',
    }
}

/// Compares the atomic's result (the old value) and the memory afterwards with a reference.
fn both(
    table: &mut Table,
    operation: &str,
    bits: u32,
    inputs: &[[u64; 3]],
    operands: &str,
    new: impl Fn(bool, [u64; 3]) -> Want,
) {
    let k = kind(bits);
    let shape = format!("{k} {k}{k}{k}");
    for (space, place, before) in [
        ("global", "%y", ""),
        (
            "shared",
            "%t2",
            ".shared .align 8 .b64 room[256];\nmov.u32 %t1, %tid.x;\nmov.u32 %t2, \
             room;\nmad.lo.u32 %t2, %t1, 8, %t2;\n",
        ),
        ("", "%y", ""),
    ] {
        let suffix = if space.is_empty() { String::new() } else { format!(".{space}") };
        let global = space != "shared";
        let store = format!("{before}st{suffix}.b{bits} [{place}], {{a}};\n");
        for order in ["", ".relaxed.gpu", ".acq_rel.sys"] {
            let atom = format!("atom{order}{suffix}.{operation}");
            table.check(
                &format!("{store}{atom} {{d}}, [{place}], {operands}"),
                &shape,
                inputs,
                |x| Want::Bits(x[0]),
            );
            let text = format!(
                "{store}{atom} {{d}}, [{place}], {operands};\nld{suffix}.b{bits} {{d}}, [{place}]"
            );
            table.check(&text, &shape, inputs, |x| new(global, x));
        }
        if !operation.starts_with("exch") && !operation.starts_with("cas") {
            let text = format!(
                "{store}red{suffix}.{operation} [{place}], {operands};\nld{suffix}.b{bits} {{d}}, \
                 [{place}]"
            );
            table.check(&text, &shape, inputs, |x| new(global, x));
        }
    }
}

#[test]
fn integers() {
    let mut table = Table::new("atomics on integers");
    let edges =
        [0, 1, 2, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, u64::MAX, u64::MAX >> 1];
    let inputs = triples(64, 1, &edges, |r| r.next() >> (r.next() & 63));
    for bits in [32_u32, 64] {
        let value = |x: u64, signed: bool| {
            let value = i128::from(x);
            if signed && value >> (bits - 1) == 1 { value - (1 << bits) } else { value }
        };
        for (ty, signed) in [('u', false), ('s', true)] {
            for (name, max) in [("min", false), ("max", true)] {
                both(&mut table, &format!("{name}.{ty}{bits}"), bits, &inputs, "{b}", |_, x| {
                    let (a, b) = (value(x[0], signed), value(x[1], signed));
                    Want::Bits(if max { a.max(b) } else { a.min(b) } as u64)
                });
            }
        }
        both(&mut table, &format!("add.u{bits}"), bits, &inputs, "{b}", |_, x| {
            Want::Bits(x[0].wrapping_add(x[1]))
        });
        both(&mut table, &format!("and.b{bits}"), bits, &inputs, "{b}", |_, x| {
            Want::Bits(x[0] & x[1])
        });
        both(&mut table, &format!("or.b{bits}"), bits, &inputs, "{b}", |_, x| {
            Want::Bits(x[0] | x[1])
        });
        both(&mut table, &format!("xor.b{bits}"), bits, &inputs, "{b}", |_, x| {
            Want::Bits(x[0] ^ x[1])
        });
        both(&mut table, &format!("exch.b{bits}"), bits, &inputs, "{b}", |_, x| Want::Bits(x[1]));
        let cas: Vec<_> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| if i % 2 == 0 { [x[0], x[0], x[2]] } else { *x })
            .collect();
        both(&mut table, &format!("cas.b{bits}"), bits, &cas, "{b}, {c}", |_, x| {
            Want::Bits(if x[0] == x[1] { x[2] } else { x[0] })
        });
    }
    both(&mut table, "add.s32", 32, &inputs, "{b}", |_, x| Want::Bits(x[0].wrapping_add(x[1])));
    both(&mut table, "inc.u32", 32, &inputs, "{b}", |_, x| {
        Want::Bits(if x[0] >= x[1] { 0 } else { x[0] + 1 })
    });
    both(&mut table, "dec.u32", 32, &inputs, "{b}", |_, x| {
        Want::Bits(if x[0] == 0 || x[0] > x[1] { x[1] } else { x[0] - 1 })
    });
    table.finish();
}

/// The sum of two finite numbers, or none where it is for the tables of `add`.
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

#[test]
fn floating_point() {
    let mut table = Table::new("atomics on floating point");
    for (ty, format) in [("f32", F32), ("f64", F64)] {
        let inputs = triples(150, 2, &format.edges(), Random::next);
        let inputs: Vec<_> = inputs
            .into_iter()
            .map(|x| x.map(|bits| bits & (format.sign() | (format.sign() - 1))))
            .filter(|x| sum(format, x[0], x[1]).is_some())
            .collect();
        both(&mut table, &format!("add.{ty}"), format.bits, &inputs, "{b}", |global, x| {
            let flush = |bits: u64| if global && format == F32 { format.flush(bits) } else { bits };
            Want::Bits(flush(sum(format, flush(x[0]), flush(x[1])).unwrap()))
        });
    }
    for (ty, format) in [("f16", F16), ("bf16", BF16)] {
        let inputs = triples(400, 3, &format.edges(), Random::next);
        let inputs: Vec<_> = inputs
            .into_iter()
            .map(|x| x.map(|bits| bits & 0xffff))
            .filter(|x| sum(format, x[0], x[1]).is_some())
            .collect();
        both(&mut table, &format!("add.noftz.{ty}"), 16, &inputs, "{b}", |_, x| {
            Want::Bits(sum(format, x[0], x[1]).unwrap())
        });
        let pairs: Vec<_> = inputs
            .windows(2)
            .map(|w| [w[0][0] | w[1][0] << 16, w[0][1] | w[1][1] << 16, 0])
            .collect();
        both(&mut table, &format!("add.noftz.{ty}x2"), 32, &pairs, "{b}", |_, x| {
            let half = |at: u32| sum(format, x[0] >> at & 0xffff, x[1] >> at & 0xffff).unwrap();
            Want::Bits(half(16) << 16 | half(0))
        });
    }
    table.finish();
}

#[test]
fn all_threads_on_one_word() {
    let mut table = Table::new("contended atomics");
    // Lanes execute in any order. The old values of the warp are 0, 1, 2 and so on, each once.
    let inputs: Vec<_> = (0..2048).map(|i| [i, 0, 0]).collect();
    let text = ".shared .b32 word;\nmov.u32 %t1, %tid.x;\nsetp.eq.u32 %q1, %t1, 0;\n@%q1 \
        st.shared.b32 [word], 0;\n\
                bar.sync 0;\nadd.u32 %t2, {a}, 1;\natom.shared.add.u32 %t3, [word], \
                %t2;\nbar.sync 0;\nld.shared.b32 {d}, [word]";
    // CTAs have 64 threads.
    table.check(text, "r r", &inputs, |x| {
        let first = x[0] / 64 * 64;
        Want::Bits((first + 1..=first + 64).sum())
    });
    table.finish();
}
