//! Values on their way: `mov` that packs and takes apart, loads and stores of every width in every
//! space, generic addresses (PTX ISA, "mov", "ld", "st", "cvta", "isspacep").

use crate::harness::{Random, Table, Want, triples};

fn inputs(count: usize, seed: u64) -> Vec<[u64; 3]> {
    triples(
        count,
        seed,
        &[0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x8000_0000, u64::MAX, 1 << 63],
        Random::next,
    )
}

#[test]
fn packing() {
    let mut table = Table::new("mov");
    let inputs = inputs(100, 1);
    for (kind, bits) in [('h', 16), ('r', 32), ('d', 64)] {
        for ty in ['b', 'u', 's', 'f'] {
            if ty == 'f' && bits == 16 {
                continue;
            }
            let text = format!("mov.{ty}{bits} {{d}}, {{a}}");
            table.check(&text, &format!("{kind} {kind}"), &inputs, |x| Want::Bits(x[0]));
        }
    }
    table.check("mov.pred %q1, {a};\nmov.pred {d}, %q1", "p p", &inputs, |x| Want::Bits(x[0]));
    table.check("mov.b32 {d}, {{a}, {b}}", "r hh", &inputs, |x| Want::Bits(x[0] | x[1] << 16));
    table.check("mov.b64 {d}, {{a}, {b}}", "d rr", &inputs, |x| Want::Bits(x[0] | x[1] << 32));
    table.check("mov.b64 {d}, {{a}, {b}, {c}, {a}}", "d hhh", &inputs, |x| {
        Want::Bits(x[0] | x[1] << 16 | x[2] << 32 | x[0] << 48)
    });
    for (index, names) in ["{d}, %s1", "%s1, {d}", "_, {d}"].into_iter().enumerate() {
        let text = format!("mov.b32 {{{names}}}, {{a}}");
        table.check(&text, "h r", &inputs, |x| {
            Want::Bits(if index == 0 { x[0] } else { x[0] >> 16 })
        });
    }
    for (index, names) in ["{d}, %t1", "%t1, {d}", "_, {d}"].into_iter().enumerate() {
        let text = format!("mov.b64 {{{names}}}, {{a}}");
        table.check(&text, "r d", &inputs, |x| {
            Want::Bits(if index == 0 { x[0] } else { x[0] >> 32 })
        });
    }
    for part in 0..4 {
        let names: Vec<&str> = (0..4).map(|at| if at == part { "{d}" } else { "_" }).collect();
        let text = format!("mov.b64 {{{}}}, {{a}}", names.join(", "));
        table.check(&text, "h d", &inputs, |x| Want::Bits(x[0] >> (16 * part)));
        // Bytes have registers of their own, which `cvt` widens.
        let names: Vec<&str> = (0..4).map(|at| if at == part { "%z1" } else { "%z2" }).collect();
        let text = format!(
            ".reg .b8 %z<4>;\nmov.b32 {{{}}}, {{a}};\ncvt.u32.u8 {{d}}, %z1",
            names.join(", ")
        );
        table.check(&text, "r r", &inputs, |x| Want::Bits(x[0] >> (8 * part) & 0xff));
    }
    table.finish();
}

/// Room for each of the 64 threads of a CTA in shared and local memory: its shared address in %t2,
/// the generic one of the same place in %u1, a local address in %u2 and the generic one in %u3.
const ROOM: &str = ".shared .align 16 .b8 room[2048];\n.local .align 16 .b8 own[32];\nmov.u32 \
    %t1, room;\nmov.u32 %t2, %tid.x;\n\
                    mad.lo.u32 %t2, %t2, 32, %t1;\ncvt.u64.u32 %u1, %t2;\ncvta.shared.u64 %u1, \
                    %u1;\nmov.u64 %u2, own;\n\
                    cvta.local.u64 %u3, %u2;\n";

/// How a place is named: the space in the instruction, and the address.
const PLACES: [(&str, &str); 5] =
    [(".shared", "%t2"), ("", "%u1"), (".local", "%u2"), ("", "%u3"), (".shared::cta", "%t2")];

#[test]
fn loads_and_stores() {
    let mut table = Table::new("ld and st");
    let inputs = inputs(64, 2);
    for (space, address) in PLACES {
        for (order, stored) in
            [("", ""), (".volatile", ".volatile"), (".relaxed.cta", ".relaxed.cta")]
        {
            let local = address.ends_with('2') && space == ".local" || address == "%u3";
            if order.contains("relaxed") && (local || space == ".shared::cta") {
                continue;
            }
            // Eight bytes are stored, and a part of them is loaded.
            let setup = format!("{ROOM}st{stored}{space}.b64 [{address}+8], {{a}};\n");
            for (ty, kind, bits) in [
                ("b8", 'h', 8),
                ("u8", 'r', 8),
                ("s8", 'r', 8),
                ("s8", 'd', 8),
                ("b16", 'h', 16),
                ("u16", 'r', 16),
                ("s16", 'r', 16),
                ("s16", 'd', 16),
                ("b32", 'r', 32),
                ("s32", 'd', 32),
                ("u32", 'd', 32),
                ("f32", 'r', 32),
                ("b64", 'd', 64),
                ("f64", 'd', 64),
            ] {
                let at = if bits == 64 { 0 } else { 8 / (64 / bits) };
                let text = format!("{setup}ld{order}{space}.{ty} {{d}}, [{address}+{}]", 8 + at);
                table.check(&text, &format!("{kind} d"), &inputs, |x| {
                    let part = x[0] >> (8 * at);
                    let unused = 64 - bits;
                    Want::Bits(if ty.starts_with('s') {
                        ((part << unused) as i64 >> unused) as u64
                    } else {
                        part << unused >> unused
                    })
                });
                // The store leaves its neighbours alone.
                let (width, from) = if bits == 64 { (64, "{b}") } else { (bits, "{b}") };
                let value = if kind == 'd' { from.to_owned() } else { "%narrow".to_owned() };
                let narrow = match (kind, bits) {
                    ('d', _) => String::new(),
                    ('h', _) => ".reg .b16 %narrow;\ncvt.u16.u64 %narrow, {b};\n".to_owned(),
                    _ => ".reg .b32 %narrow;\ncvt.u32.u64 %narrow, {b};\n".to_owned(),
                };
                let text = format!(
                    "{setup}{narrow}st{stored}{space}.{ty} [{address}+{}], \
                     {value};\nld{space}.b64 {{d}}, [{address}+8]",
                    8 + at
                );
                table.check(&text, "d dd", &inputs, |x| {
                    let mask = (u64::MAX >> (64 - width)) << (8 * at);
                    Want::Bits(x[0] & !mask | x[1] << (8 * at) & mask)
                });
            }
        }
        for (vector, ty, register, parts) in [
            ("v2", "b8", 'h', 2_u32),
            ("v4", "u8", 'h', 4),
            ("v2", "b16", 'h', 2),
            ("v4", "b16", 'h', 4),
            ("v2", "b32", 'r', 2),
            ("v4", "f32", 'r', 4),
            ("v2", "b64", 'd', 2),
        ] {
            let bits: u32 = ty[1..].parse().unwrap();
            let names = |prefix: &str| -> Vec<String> {
                (0..parts).map(|at| format!("%{prefix}{at}")).collect()
            };
            for picked in 0..parts {
                let mut text = format!(
                    "{ROOM}.reg .b{0} %in<4>, %out<4>;\n",
                    if bits == 8 { 16 } else { bits }
                );
                for at in 0..parts {
                    let shift = (bits * at) % 64;
                    let source = if bits * at >= 64 { "{b}" } else { "{a}" };
                    text += &format!("shr.u64 %u4, {source}, {shift};\n");
                    text += &match bits {
                        64 => format!("mov.b64 %in{at}, %u4;\n"),
                        32 => format!("cvt.u32.u64 %in{at}, %u4;\n"),
                        _ => format!("cvt.u16.u64 %in{at}, %u4;\n"),
                    };
                }
                text += &format!(
                    "st{space}.{vector}.{ty} [{address}+16], {{{}}};\n",
                    names("in").join(", ")
                );
                text += &format!(
                    "ld{space}.{vector}.{ty} {{{}}}, [{address}+16];\n",
                    names("out").join(", ")
                );
                text += &format!("mov.b{} {{d}}, %out{picked}", if bits == 8 { 16 } else { bits });
                table.check(&text, &format!("{register} dd"), &inputs, |x| {
                    let source = if bits * picked >= 64 { x[1] } else { x[0] };
                    Want::Bits(source >> (bits * picked % 64) & u64::MAX >> (64 - bits))
                });
            }
        }
    }
    table.finish();
}

#[test]
fn generic_addresses() {
    let mut table = Table::new("cvta and isspacep");
    let inputs = inputs(100, 3);
    // The kernel's buffer, for %y is the address of this thread's result.
    // Between the windows of other spaces everything is global.
    let between = "add.u64 %u4, %u3, 0x200000000;\n";
    for (name, before, address) in [
        ("shared", "", "%u1"),
        ("local", "", "%u3"),
        ("global", "", "%y"),
        ("global", between, "%u4"),
    ] {
        for space in ["shared", "shared::cta", "local", "global", "const", "param"] {
            let text = format!("{ROOM}{before}isspacep.{space} {{d}}, {address}");
            let inside = space.split("::").next() == Some(name);
            table.check(&text, "p r", &inputs, |_| Want::Bits(u64::from(inside)));
        }
    }
    // There and back, and a store through the one is seen through the other.
    for (space, generic, own) in [("shared", "%u1", "%t2"), ("local", "%u3", "%u2")] {
        let text = format!(
            "{ROOM}cvta.to.{space}.u64 %u4, {generic};\ncvta.{space}.u64 %u4, %u4;\nsetp.eq.u64 \
             {{d}}, %u4, {generic}"
        );
        table.check(&text, "p r", &inputs, |_| Want::Bits(1));
        let text = format!("{ROOM}st.{space}.b32 [{own}+4], {{a}};\nld.b32 {{d}}, [{generic}+4]");
        table.check(&text, "r r", &inputs, |x| Want::Bits(x[0]));
        let text = format!("{ROOM}st.b32 [{generic}+4], {{a}};\nld.{space}.b32 {{d}}, [{own}+4]");
        table.check(&text, "r r", &inputs, |x| Want::Bits(x[0]));
    }
    table.check("cvta.global.u64 %u1, %y;\nsetp.eq.u64 {d}, %u1, %y", "p r", &inputs, |_| {
        Want::Bits(1)
    });
    table.check(
        "cvta.to.global.u64 %u1, %y;\nst.global.b32 [%u1], {a};\nld.b32 {d}, [%y]",
        "r r",
        &inputs,
        |x| Want::Bits(x[0]),
    );
    table.check(
        "mov.b64 %u1, in;\ncvta.param.u64 %u1, %u1;\nisspacep.param {d}, %u1",
        "p r",
        &inputs,
        |_| Want::Bits(1),
    );
    // `in` holds the address of the operands, of which %x is this thread's.
    table.check(
        "mov.b64 %u1, in;\ncvta.param.u64 %u1, %u1;\nld.b64 %u2, [%u1];\nsetp.le.u64 {d}, %u2, %x",
        "p r",
        &inputs,
        |_| Want::Bits(1),
    );
    table.finish();
}
