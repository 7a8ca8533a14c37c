//! Approximate functions: within the error that the PTX ISA states for each, and its tables of special operands.

use crate::exact::{F32, F64};
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
    let functions: [Function; 9] = [
        ("rcp.approx.f32", |x| 1.0 / x, exponent(-23), 0.0),
        ("sqrt.approx.f32", f64::sqrt, exponent(-23), 0.0),
        ("rsqrt.approx.f32", |x| 1.0 / x.sqrt(), exponent(-22), 0.0),
        ("ex2.approx.f32", f64::exp2, exponent(-22), 0.0),
        ("lg2.approx.f32", f64::log2, exponent(-22), exponent(-22)),
        ("tanh.approx.f32", f64::tanh, exponent(-11), 0.0),
        ("rcp.approx.ftz.f32", |x| 1.0 / x, exponent(-23), 0.0),
        ("ex2.approx.ftz.f32", f64::exp2, exponent(-22), 0.0),
        ("rsqrt.approx.ftz.f32", |x| 1.0 / x.sqrt(), exponent(-22), 0.0),
    ];
    let inputs = triples(600, 1, &F32.edges(), |r| {
        let bits = r.next();
        if bits >> 63 == 0 { bits } else { u64::from((((bits >> 40) as f32 / 65536.0) - 128.0).to_bits()) }
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
    for (name, f) in [("sin", f64::sin as fn(f64) -> f64), ("cos", f64::cos)] {
        table.check(&format!("{name}.approx.f32 {{d}}, {{a}}"), "r r", &angles, |x| {
            near(f(f64::from(f32::from_bits(x[0] as u32))), 0.0, exponent(-20))
        });
        table.check(
            &format!("{name}.approx.f32 {{d}}, {{a}}"),
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
    for name in ["div.approx.f32", "div.full.f32"] {
        table.check(&format!("{name} {{d}}, {{a}}, {{b}}"), "r rr", &divisors, |x| {
            let (a, b) = (f64::from(f32::from_bits(x[0] as u32)), f64::from(f32::from_bits(x[1] as u32)));
            let exact = a / b;
            if exact.abs() > f64::from(f32::MAX) && exact.is_finite() {
                return Want::Between(f64::from(f32::MAX) * exact.signum(), f64::INFINITY.copysign(exact))
                    .ordered();
            }
            near(exact, 2.0 * exponent(-23), 0.0)
        });
    }
    table.finish(6000);
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
    let inputs = triples(300, 3, &F64.edges(), Random::next);
    let functions: [(&str, fn(f64) -> f64); 2] = [("rcp", |x| 1.0 / x), ("rsqrt", |x| 1.0 / x.sqrt())];
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
    table.finish(500);
}
