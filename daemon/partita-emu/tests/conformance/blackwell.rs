//! Arithmetic and accesses that came with compute capability 10.0: pairs of single precision,
//! mixed precision, quads of bytes, extremes of three, `redux` on single precision, and accesses of
//! 256 bits (PTX ISA, "Floating Point Instructions", "Mixed Precision Floating Point Instructions",
//! "redux.sync", "ld", "st").

use crate::exact::{BF16, F16, F32, Mode};
use crate::float::{How, extreme, inputs};
use crate::harness::{Random, Table, Want, triples};

fn bits(want: Want) -> u64 {
    match want {
        Want::Bits(bits) => bits,
        other => panic!("{other:?} has no bits"),
    }
}

type Reference = fn(&How, [u64; 3]) -> Want;

/// The modes of `.rn`, `.rz`, `.rm`, `.rp`, and of none of them.
const MODES_AND_NONE: [Mode; 5] = [Mode::Nearest, Mode::Zero, Mode::Down, Mode::Up, Mode::Nearest];

#[test]
fn pairs_of_single_precision() {
    let mut table = Table::new("f32x2");
    let inputs = inputs(F32, 300, 11);
    let pairs: Vec<[u64; 3]> = inputs
        .windows(2)
        .map(|two| std::array::from_fn(|i| two[0][i] & 0xffff_ffff | two[1][i] << 32))
        .collect();
    let operations: [(&str, Reference, bool); 4] = [
        ("add", How::add, false),
        ("sub", How::sub, false),
        ("mul", How::mul, false),
        ("fma", How::fma, true),
    ];
    for (name, reference, three) in operations {
        for (word, mode) in [".rn", ".rz", ".rm", ".rp", ""].into_iter().zip(MODES_AND_NONE) {
            if three && word.is_empty() {
                continue;
            }
            for ftz in ["", ".ftz"] {
                let how = How { ftz: !ftz.is_empty(), ..How::new(F32, mode) };
                let (operand, shape) = if three { (", {c}", "d ddd") } else { ("", "d dd") };
                let text = format!("{name}{word}{ftz}.f32x2 {{d}}, {{a}}, {{b}}{operand}");
                table.check(&text, shape, &pairs, |x| {
                    let half =
                        |at: u32| bits(reference(&how, x.map(|bits| bits >> at & 0xffff_ffff)));
                    Want::Bits(half(32) << 32 | half(0))
                });
            }
        }
    }
    table.finish();
}

/// A half as the same number in single precision.
fn widened(format: crate::exact::Format, half: u64) -> u64 {
    if format == BF16 {
        half << 16
    } else {
        u64::from(half::f16::from_bits(half as u16).to_f32().to_bits())
    }
}

#[test]
fn mixed_precision() {
    let mut table = Table::new("mixed precision");
    for (ty, format) in [("f16", F16), ("bf16", BF16)] {
        let halves = inputs(format, 300, 12);
        let singles = inputs(F32, 300, 13);
        for (word, mode) in [".rn", ".rz", ".rm", ".rp", ""].into_iter().zip(MODES_AND_NONE) {
            for sat in ["", ".sat"] {
                let how = How { sat: !sat.is_empty(), ..How::new(F32, mode) };
                let two: Vec<[u64; 3]> =
                    halves.iter().zip(&singles).map(|(half, one)| [half[0], one[1], 0]).collect();
                for (name, reference) in [("add", How::add as Reference), ("sub", How::sub)] {
                    let text = format!("{name}{word}{sat}.f32.{ty} {{d}}, {{a}}, {{b}}");
                    table.check(&text, "r hr", &two, |x| {
                        reference(&how, [widened(format, x[0]), x[1], 0])
                    });
                }
                if word.is_empty() {
                    continue;
                }
                let three: Vec<[u64; 3]> = halves
                    .iter()
                    .zip(&singles)
                    .map(|(half, one)| [half[0], half[1], one[2]])
                    .collect();
                let text = format!("fma{word}{sat}.f32.{ty} {{d}}, {{a}}, {{b}}, {{c}}");
                table.check(&text, "r hhr", &three, |x| {
                    how.fma([widened(format, x[0]), widened(format, x[1]), x[2]])
                });
            }
        }
    }
    table.finish();
}

#[test]
fn extremes_of_three() {
    let mut table = Table::new("min and max of three");
    let inputs = inputs(F32, 300, 14);
    for (name, max) in [("min", false), ("max", true)] {
        for ftz in ["", ".ftz"] {
            for nan in ["", ".NaN"] {
                for abs in ["", ".abs"] {
                    let wanted = |x: [u64; 3]| {
                        let x = x.map(|bits| {
                            let bits = if ftz.is_empty() { bits } else { F32.flush(bits) };
                            if abs.is_empty() { bits } else { bits & !F32.sign() }
                        });
                        let of = |a, b| extreme(F32, max, !nan.is_empty(), false, [a, b, 0]);
                        of(bits(of(x[0], x[1])), x[2])
                    };
                    let text = format!("{name}{ftz}{nan}{abs}.f32 {{d}}, {{a}}, {{b}}, {{c}}");
                    table.check(&text, "r rrr", &inputs, wanted);
                    // The result in the place of an operand.
                    let text = format!("{name}{ftz}{nan}{abs}.f32 {{c}}, {{a}}, {{b}}, {{c}}");
                    let text = format!("{text};\nmov.b32 {{d}}, {{c}}");
                    table.check(&text, "r rrr", &inputs, wanted);
                }
            }
        }
    }
    table.finish();
}

#[test]
fn redux_of_single_precision() {
    let mut table = Table::new("redux f32");
    let values: Vec<u64> = F32.edges();
    let mut random = Random::new(15);
    let mut warps = Vec::new();
    for partition in 0..48 {
        for lane in 0..32_u64 {
            let mask = match partition % 4 {
                0 => 0xffff_ffff_u64,
                1 => 0xffff << (lane / 16 * 16),
                2 => 0x5555_5555 << (lane % 2),
                _ => 1 << lane,
            };
            // A few warps have nothing but NaNs.
            let value = if partition % 8 == 0 { F32.nan() } else { random.pick(&values) };
            warps.push([value, mask, 0]);
        }
    }
    for (name, max) in [("min", false), ("max", true)] {
        for abs in ["", ".abs"] {
            for nan in ["", ".NaN"] {
                let text = format!("redux.sync.{name}{abs}{nan}.f32 {{d}}, {{a}}, {{b}}");
                table.check_warps(&text, "r rr", &warps, |warp, lane| {
                    let members = (0..32).filter(|&other| warp[lane][1] >> other & 1 == 1);
                    let values = members.map(|other: usize| {
                        let bits = warp[other][0];
                        if abs.is_empty() { bits } else { bits & !F32.sign() }
                    });
                    let best = values
                        .reduce(|a, b| bits(extreme(F32, max, !nan.is_empty(), false, [a, b, 0])));
                    let best = best.unwrap();
                    Want::Bits(if F32.is_nan(best) { F32.nan() } else { best })
                });
            }
        }
    }
    table.finish();
}

#[test]
fn quads_of_bytes() {
    let mut table = Table::new("u8x4 and s8x4");
    let edges = [0, 0x0100_7f80, 0x7f7f_7f7f, 0x8080_8080, 0xffff_ffff, 0x01fe_ff02];
    let words = triples(300, 16, &edges, Random::next);
    for (name, operation) in [
        ("add", (|a, b| a + b) as fn(i32, i32) -> i32),
        ("sub", |a, b| a - b),
        ("min", |a: i32, b| a.min(b)),
        ("max", |a: i32, b| a.max(b)),
    ] {
        for (ty, signed) in [("u8x4", false), ("s8x4", true)] {
            for sat in ["", ".sat"] {
                if !sat.is_empty() && matches!(name, "min" | "max") {
                    continue;
                }
                let text = format!("{name}{sat}.{ty} {{d}}, {{a}}, {{b}}");
                table.check(&text, "r rr", &words, |x| {
                    let byte = |at: u32| {
                        let of = |word: u64| {
                            let byte = (word >> at) as u8;
                            if signed { i32::from(byte as i8) } else { i32::from(byte) }
                        };
                        let result = operation(of(x[0]), of(x[1]));
                        let (low, high) = if signed { (-128, 127) } else { (0, 255) };
                        let result = if sat.is_empty() { result } else { result.clamp(low, high) };
                        u64::from(result as u8) << at
                    };
                    Want::Bits([0, 8, 16, 24].into_iter().map(byte).sum())
                });
            }
        }
    }
    table.finish();
}

/// Eight words of 32 bits that depend on a thread's operands and differ.
fn words(x: [u64; 3]) -> [u32; 8] {
    std::array::from_fn(|k| (x[0] as u32).wrapping_mul(2 * k as u32 + 1) ^ x[1] as u32)
}

#[test]
fn accesses_of_256_bits() {
    let mut table = Table::new("256-bit loads and stores");
    let inputs = triples(250, 17, &[0, 1, 0xffff_ffff, 0x8000_0000], Random::next);
    let module = ".global .align 32 .b8 buffer[65536];\n@@\n";
    let address = "mov.u64 %u0, buffer;\nmul.wide.u32 %u1, %i, 32;\nadd.u64 %u0, %u0, %u1;\n";
    let make: String = (0..8)
        .map(|k| format!("mul.lo.u32 %t{k}, {{a}}, {};\nxor.b32 %t{k}, %t{k}, {{b}};\n", 2 * k + 1))
        .collect();
    let pairs: String = (0..4)
        .map(|k| format!("mov.b64 %u{}, {{%t{}, %t{}}};\n", 4 + k, 2 * k, 2 * k + 1))
        .collect();
    let apart: String = (0..4)
        .map(|k| format!("mov.b64 {{%t{}, %t{}}}, %u{};\n", 2 * k, 2 * k + 1, 4 + k))
        .collect();
    let clear: String = (0..8).map(|k| format!("mov.u32 %t{k}, 0;\n")).collect();
    // The result weighs the words, so that each counts in its place.
    let join: String =
        (0..8).map(|k| format!("mad.lo.u32 %j, %t{k}, {}, %j;\n", 6 * k + 5)).collect::<String>();
    let result = |words: [u32; 8]| {
        let terms = words.iter().enumerate().map(|(k, w)| w.wrapping_mul(6 * k as u32 + 5));
        Want::Bits(u64::from(terms.fold(0, u32::wrapping_add)))
    };
    let all = "{%t0, %t1, %t2, %t3, %t4, %t5, %t6, %t7}";
    let wide = "{%u4, %u5, %u6, %u7}";
    for hint in ["", ".L2::evict_last", ".L1::no_allocate.L2::evict_first"] {
        for (store, load) in [(8, 8), (8, 4), (4, 8), (4, 4)] {
            let mut text = format!("{module}{address}{make}mov.u32 %j, 0;\n");
            if store == 8 {
                text += &format!("st.global{hint}.v8.b32 [%u0], {all};\n");
            } else {
                text += &format!("{pairs}st.global{hint}.v4.b64 [%u0], {wide};\n");
            }
            text += &clear;
            if load == 8 {
                text += &format!("ld.global{hint}.v8.f32 {all}, [%u0];\n");
            } else {
                text += &format!("ld.global{hint}.v4.u64 {wide}, [%u0];\n{apart}");
            }
            text += &format!("{join}mov.b32 {{d}}, %j");
            table.check(&text, "r rr", &inputs, |x| result(words(x)));
        }
    }
    // `_` leaves words in memory, and registers as they are.
    let text = format!(
        "{module}{address}{clear}st.v8.b32 [%u0], {all};\n{make}mov.u32 %j, 0;\nst.global.v8.b32 \
         [%u0], {{%t0, _, %t2, %t3, _, %t5, %t6, _}};\nmov.u32 %t3, 7;\nld.global.v8.b32 \
         {{%t0, %t1, %t2, _, %t4, %t5, %t6, %t7}}, [%u0];\n{join}mov.b32 {{d}}, %j"
    );
    table.check(&text, "r rr", &inputs, |x| {
        let mut words = words(x);
        for k in [1, 4, 7] {
            words[k] = 0;
        }
        words[3] = 7;
        result(words)
    });
    table.finish();
}

/// A chain of pairs takes as long as one of single numbers.
#[test]
fn pairs_are_as_quick_as_single_numbers() {
    use partita_emu::direct::{Argument, Form, Run, run};
    use partita_emu::{Options, Spec, Timing};
    use partita_model::Dim3;
    let cycles = |ty: &str, register: &str| {
        let step = format!("fma.rn.{ty} {register}, {register}, {register}, {register};\n");
        let ptx = format!(
            ".version 8.6\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 out)\n\
             {{\n.reg .b32 %r<4>; .reg .b64 %d<3>;\nld.param.u64 %d0, [out];\nmov.u32 %r0, 0; \
             mov.u64 %d1, 0;\nmov.u32 %r1, %clock;\n{}mov.u32 %r2, %clock;\nsub.u32 %r1, %r2, \
             %r1; st.global.u32 [%d0], %r1; st.global.u32 [%d0+4], %r0; st.global.u64 [%d0+8], \
             %d1;\nret;\n}}\n",
            step.repeat(64)
        );
        let job = Run {
            ptx: ptx.into(),
            kernel: "k".to_owned(),
            grid: Dim3::linear(1),
            block: Dim3::linear(1),
            dynamic_shared: 0,
            arguments: vec![Argument::Buffer(vec![0; 16])],
            form: Form::Original,
            spec: Spec::named("h200").unwrap(),
            options: Options { timing: Timing::On, seed: 1, ..Options::default() },
        };
        let out = run(&job).unwrap().buffers.remove(0);
        u32::from_le_bytes(out[..4].try_into().unwrap())
    };
    let (single, pair) = (cycles("f32", "%r0"), cycles("f32x2", "%d1"));
    assert_eq!(single, pair);
    assert!(pair >= 64 * 2, "{pair} cycles");
}
