//! Approximate functions: within the error that the PTX ISA states for each, and its tables of
//! special operands.

use crate::exact::{BF16, F16, F32, F64};
use crate::harness::{Random, Table, Want, triples};

/// A function and the error that the ISA allows: relative (as a power of two), absolute.
type Function = (&'static str, fn(f64) -> f64, f64, f64);

/// What is wanted of `f(x)`, given how far off it may be.
fn near(exact: f64, relative: f64, absolute: f64) -> Want {
    if exact.is_nan() {
        return Want::Bits(F32.nan());
    }
    if exact.is_infinite() || exact.abs() > f64::from(f32::MAX) {
        let infinite = f32::INFINITY.copysign(exact as f32);
        return Want::Bits(u64::from(infinite.to_bits()));
    }
    // Half a unit of the last place is for rounding to the format at all.
    let error = exact.abs() * relative + absolute + f64::from(f32::from_bits(1));
    Want::Between(exact - error, exact + error)
}

#[test]
fn single() {
    let mut table = Table::new("approximate functions");
    let exponent = |power: i32| 2_f64.powi(power);
    let functions: [Function; 11] = [
        ("rcp.approx.f32", |x| 1.0 / x, exponent(-23), 0.0),
        ("sqrt.approx.f32", f64::sqrt, exponent(-23), 0.0),
        ("rsqrt.approx.f32", |x| 1.0 / x.sqrt(), exponent(-22), 0.0),
        ("ex2.approx.f32", f64::exp2, exponent(-22), 0.0),
        ("lg2.approx.f32", f64::log2, exponent(-22), exponent(-22)),
        ("tanh.approx.f32", f64::tanh, exponent(-11), 0.0),
        ("rcp.approx.ftz.f32", |x| 1.0 / x, exponent(-23), 0.0),
        ("ex2.approx.ftz.f32", f64::exp2, exponent(-22), 0.0),
        ("rsqrt.approx.ftz.f32", |x| 1.0 / x.sqrt(), exponent(-22), 0.0),
        ("sqrt.approx.ftz.f32", f64::sqrt, exponent(-23), 0.0),
        ("lg2.approx.ftz.f32", f64::log2, exponent(-22), exponent(-22)),
    ];
    let inputs = triples(600, 1, &F32.edges(), |r| {
        let bits = r.next();
        if bits >> 63 == 0 {
            bits
        } else {
            u64::from((((bits >> 40) as f32 / 65536.0) - 128.0).to_bits())
        }
    });
    for (name, f, relative, absolute) in functions {
        table.check(&format!("{name} {{d}}, {{a}}"), "r r", &inputs, |x| {
            let ftz = name.contains("ftz");
            let x = f64::from(f32::from_bits(if ftz { F32.flush(x[0]) } else { x[0] } as u32));
            match near(f(x), relative, absolute) {
                Want::Between(low, high) if ftz => {
                    // A result below the normal numbers may have become zero.
                    let smallest = f64::from(f32::MIN_POSITIVE);
                    Want::Between(
                        if low < smallest { low.min(0.0) } else { low },
                        if high > -smallest { high.max(0.0) } else { high },
                    )
                }
                want => want,
            }
        });
    }
    let angles = triples(600, 2, &[0, 0x8000_0000], |r| {
        let unit = (r.next() >> 11) as f64 / (1_u64 << 53) as f64;
        u64::from((((unit * 2.0 - 1.0) * std::f64::consts::PI) as f32).to_bits())
    });
    for (name, f) in [
        ("sin.approx", f64::sin as fn(f64) -> f64),
        ("cos.approx", f64::cos),
        ("sin.approx.ftz", f64::sin),
        ("cos.approx.ftz", f64::cos),
    ] {
        table.check(&format!("{name}.f32 {{d}}, {{a}}"), "r r", &angles, |x| {
            near(f(f64::from(f32::from_bits(x[0] as u32))), 0.0, exponent(-20))
        });
        table.check(
            &format!("{name}.f32 {{d}}, {{a}}"),
            "r r",
            &[[0x7f80_0000, 0, 0], [0xff80_0000, 0, 0], [0x7fc0_0000, 0, 0]],
            |_| Want::Bits(F32.nan()),
        );
    }
    // 2 ulp for divisors between 2^-126 and 2^126.
    let divisors: Vec<_> = inputs
        .iter()
        .copied()
        .filter(|x| {
            let size = f32::from_bits(x[1] as u32).abs();
            size >= f32::MIN_POSITIVE && size <= 2_f32.powi(126)
        })
        .collect();
    for name in ["div.approx.f32", "div.full.f32", "div.approx.ftz.f32", "div.full.ftz.f32"] {
        let ftz = name.contains("ftz");
        table.check(&format!("{name} {{d}}, {{a}}, {{b}}"), "r rr", &divisors, |x| {
            let a = if ftz { F32.flush(x[0]) } else { x[0] };
            let (a, b) =
                (f64::from(f32::from_bits(a as u32)), f64::from(f32::from_bits(x[1] as u32)));
            let exact = a / b;
            if ftz && exact.abs() < f64::from(f32::MIN_POSITIVE) {
                let tiny = exact.abs() * (1.0 + exponent(-20));
                return Want::Between(-tiny, tiny);
            }
            if exact.abs() > f64::from(f32::MAX) && exact.is_finite() {
                return Want::Between(
                    f64::from(f32::MAX) * exact.signum(),
                    f64::INFINITY.copysign(exact),
                )
                .ordered();
            }
            near(exact, 2.0 * exponent(-23), 0.0)
        });
    }
    table.finish();
}

impl Want {
    fn ordered(self) -> Want {
        match self {
            Want::Between(a, b) if a > b => Want::Between(b, a),
            other => other,
        }
    }
}

#[test]
fn double() {
    let mut table = Table::new("approximate functions of f64");
    let inputs = triples(700, 3, &F64.edges(), Random::next);
    let functions: [(&str, fn(f64) -> f64); 2] =
        [("rcp", |x| 1.0 / x), ("rsqrt", |x| 1.0 / x.sqrt())];
    for (name, f) in functions {
        table.check(&format!("{name}.approx.ftz.f64 {{d}}, {{a}}"), "d d", &inputs, |x| {
            let exact = f(f64::from_bits(F64.flush(x[0])));
            if exact.is_nan() {
                return Want::Nan;
            }
            if exact.is_infinite() {
                return Want::Bits(exact.to_bits());
            }
            let error = exact.abs() * 2_f64.powi(-20);
            let tiny = exact.abs() < f64::MIN_POSITIVE;
            Want::Between(
                if tiny { exact.min(0.0) } else { exact - error },
                if tiny { exact.max(0.0) } else { exact + error },
            )
        });
    }
    // Denormal numbers are kept, so the table of special operands is that of the exact function.
    table.check("rsqrt.approx.f64 {d}, {a}", "d d", &inputs, |x| {
        let exact = 1.0 / f64::from_bits(x[0]).sqrt();
        match () {
            () if exact.is_nan() => Want::Nan,
            () if exact.is_infinite() => Want::Bits(exact.to_bits()),
            () => Want::Between(exact * (1.0 - 2_f64.powi(-20)), exact * (1.0 + 2_f64.powi(-20))),
        }
    });
    table.finish();
}

/// `ex2` and `tanh` of halves and of pairs, seen as `f32`, which holds them exactly.
#[test]
fn halves() {
    let mut table = Table::new("approximate functions of f16 and bf16");
    // Relative and absolute errors of `ex2`, then of `tanh`; the largest number and the smallest
    // normal one.
    for (ty, format, ex2, tanh, largest, normal) in [
        ("f16", F16, "ex2.approx.f16", 2_f64.powf(-10.987), 65_504.0, 2_f64.powi(-14)),
        (
            "bf16",
            BF16,
            "ex2.approx.ftz.bf16",
            2_f64.powi(-8),
            f64::from(f32::MAX),
            f64::from(f32::MIN_POSITIVE),
        ),
    ] {
        let is_half = ty == "f16";
        let value = |bits: u64| {
            let bits = bits as u16;
            if is_half {
                half::f16::from_bits(bits).to_f64()
            } else {
                half::bf16::from_bits(bits).to_f64()
            }
        };
        let inputs = triples(600, 4, &format.edges(), |r| {
            let bits = r.next();
            let small = ((bits >> 40) as f32 / 65_536.0 - 128.0) / 8.0;
            let near = if is_half {
                half::f16::from_f32(small).to_bits()
            } else {
                half::bf16::from_f32(small).to_bits()
            };
            if bits & 1 == 0 { bits & 0xffff } else { u64::from(near) }
        });
        let wanted_ex2 = |bits: u64| {
            let x = value(if is_half { bits } else { format.flush(bits & 0xffff) });
            let exact = x.exp2();
            let relative = if is_half { 2_f64.powf(-9.9) } else { 2_f64.powi(-7) };
            if exact.is_nan() {
                return Want::Nan;
            }
            if exact > largest * (1.0 - relative) {
                return Want::Between(largest * (1.0 - 2.0 * relative), f64::INFINITY);
            }
            // Below the normal numbers: the last place of a denormal one, or zero under `.ftz`.
            let error = exact * relative + if is_half { 2_f64.powi(-25) } else { 0.0 };
            let low = if !is_half && exact < normal * 2.0 { 0.0 } else { exact - error };
            Want::Between(low, exact + error)
        };
        let wanted_tanh = |bits: u64| {
            let exact = value(bits).tanh();
            if exact.is_nan() { Want::Nan } else { Want::Between(exact - tanh, exact + tanh) }
        };
        let widen = if is_half { "cvt.f32.f16" } else { "cvt.f32.bf16" };
        for (name, wanted) in [
            (ex2.to_owned(), &wanted_ex2 as &dyn Fn(u64) -> Want),
            (format!("tanh.approx.{ty}"), &wanted_tanh),
        ] {
            table.check(&format!("{name} %s0, {{a}};\n{widen} {{d}}, %s0"), "r h", &inputs, |x| {
                wanted(x[0])
            });
            let pairs: Vec<_> =
                inputs.windows(2).map(|w| [w[0][0] & 0xffff | w[1][0] << 16, 0, 0]).collect();
            for (part, at) in [(0, 0), (1, 16)] {
                let text = format!(
                    "{name}x2 %t1, {{a}};\nmov.b32 {{%s0, %s1}}, %t1;\n{widen} {{d}}, %s{part}"
                );
                table.check(&text, "r r", &pairs, |x| wanted(x[0] >> at & 0xffff));
            }
        }
    }
    table.finish();
}
