//! Floating-point arithmetic with every rounding mode, `.ftz` and `.sat` (PTX ISA, "Floating Point
//! Instructions", "Half Precision Floating Point Instructions").

use crate::exact::{BF16, Exact, F16, F32, F64, Format, MODES, Mode};
use crate::harness::{Table, Want, triples};

/// The result of an exact operation.
enum Result {
    Nan,
    Infinite { negative: bool },
    Finite(Exact),
}

pub struct How {
    pub format: Format,
    pub mode: Mode,
    pub ftz: bool,
    pub sat: bool,
    pub relu: bool,
}

impl How {
    pub fn new(format: Format, mode: Mode) -> Self {
        How { format, mode, ftz: false, sat: false, relu: false }
    }

    fn input(&self, bits: u64) -> u64 {
        if self.ftz { self.format.flush(bits) } else { bits }
    }

    fn finish(&self, result: Result) -> Want {
        let format = self.format;
        let bits = match result {
            Result::Nan if self.sat => return Want::Bits(0),
            Result::Nan if format == F64 => return Want::Nan,
            Result::Nan => return Want::Bits(format.nan()),
            Result::Infinite { negative } => {
                format.infinity() | if negative { format.sign() } else { 0 }
            }
            Result::Finite(value) => format.round(&value, self.mode),
        };
        let bits = self.input(bits);
        let negative = bits & format.sign() != 0;
        let one = format.round(&Exact::from_integer(1), Mode::Nearest);
        Want::Bits(match () {
            () if (self.sat || self.relu) && negative => 0,
            () if self.sat => bits.min(one),
            () => bits,
        })
    }

    fn is_negative(&self, bits: u64) -> bool {
        bits & self.format.sign() != 0
    }

    fn product(&self, a: u64, b: u64) -> Result {
        let f = self.format;
        let negative = self.is_negative(a) != self.is_negative(b);
        if f.is_nan(a) || f.is_nan(b) {
            return Result::Nan;
        }
        let zero = a & !f.sign() == 0 || b & !f.sign() == 0;
        match (f.is_infinite(a) || f.is_infinite(b), zero) {
            (true, true) => Result::Nan,
            (true, false) => Result::Infinite { negative },
            _ => Result::Finite(f.exact(a).times(&f.exact(b))),
        }
    }

    fn sum(&self, a: Result, b: Result) -> Result {
        match (a, b) {
            (Result::Nan, _) | (_, Result::Nan) => Result::Nan,
            (Result::Infinite { negative: x }, Result::Infinite { negative: y }) if x != y => {
                Result::Nan
            }
            (Result::Infinite { negative }, _) | (_, Result::Infinite { negative }) => {
                Result::Infinite { negative }
            }
            (Result::Finite(a), Result::Finite(b)) => {
                let mut sum = a.plus(&b);
                if sum.is_zero() {
                    // IEEE 754, 6.3: the sign of a zero sum.
                    let same = a.negative == b.negative;
                    sum.negative = if same { a.negative } else { self.mode == Mode::Down };
                }
                Result::Finite(sum)
            }
        }
    }

    fn value(&self, bits: u64) -> Result {
        let f = self.format;
        if f.is_nan(bits) {
            Result::Nan
        } else if f.is_infinite(bits) {
            Result::Infinite { negative: self.is_negative(bits) }
        } else {
            Result::Finite(f.exact(bits))
        }
    }

    pub fn add(&self, x: [u64; 3]) -> Want {
        let [a, b, _] = x.map(|bits| self.value(self.input(bits)));
        self.finish(self.sum(a, b))
    }

    pub fn sub(&self, x: [u64; 3]) -> Want {
        self.add([x[0], x[1] ^ self.format.sign(), 0])
    }

    pub fn mul(&self, x: [u64; 3]) -> Want {
        self.finish(self.product(self.input(x[0]), self.input(x[1])))
    }

    pub fn fma(&self, x: [u64; 3]) -> Want {
        let x = x.map(|bits| self.input(bits));
        self.finish(self.sum(self.product(x[0], x[1]), self.value(x[2])))
    }

    fn div(&self, x: [u64; 3]) -> Want {
        let f = self.format;
        let [a, b, _] = x.map(|bits| self.input(bits));
        let negative = self.is_negative(a) != self.is_negative(b);
        let zero = |bits: u64| bits & !f.sign() == 0;
        let result = if f.is_nan(a)
            || f.is_nan(b)
            || (f.is_infinite(a) && f.is_infinite(b))
            || (zero(a) && zero(b))
        {
            Result::Nan
        } else if f.is_infinite(a) || zero(b) {
            Result::Infinite { negative }
        } else if f.is_infinite(b) || zero(a) {
            let zero = Exact::from_integer(0);
            Result::Finite(if negative { zero.negated() } else { zero })
        } else {
            Result::Finite(f.exact(a).over(&f.exact(b)))
        };
        self.finish(result)
    }

    fn rcp(&self, x: [u64; 3]) -> Want {
        self.div([self.format.round(&Exact::from_integer(1), Mode::Nearest), x[0], 0])
    }

    fn sqrt(&self, x: [u64; 3]) -> Want {
        let a = self.input(x[0]);
        let zero = a & !self.format.sign() == 0;
        let result = match self.value(a) {
            _ if zero => self.value(a),
            _ if self.is_negative(a) => Result::Nan,
            Result::Finite(value) => Result::Finite(value.root()),
            other => other,
        };
        self.finish(result)
    }
}

/// Numbers whose sums and products are near ties, beside anything at all.
pub fn inputs(format: Format, count: usize, seed: u64) -> Vec<[u64; 3]> {
    let one = format.round(&Exact::from_integer(1), Mode::Nearest);
    let unit = 1_u64 << (format.precision - 1);
    let span = u64::from(format.precision);
    triples(count, seed, &format.edges(), |r| {
        let bits = r.next();
        let fraction = match bits >> 60 & 3 {
            0 => bits & (unit - 1),
            1 => bits & 7,
            2 => unit - 1 - (bits & 3),
            _ => 1 << (bits % (span - 1)) | bits >> 20 & 1,
        };
        let sign = if bits >> 59 & 1 == 1 { format.sign() } else { 0 };
        match bits >> 57 & 3 {
            0 => bits,
            1 => sign | fraction,
            _ => {
                sign | (one + r.next() % (2 * span) * unit - span.min(one / unit - 1) * unit)
                    & !(unit - 1)
                    | fraction
            }
        }
    })
}

type Reference = fn(&How, [u64; 3]) -> Want;

#[test]
fn single() {
    let mut table = Table::new("f32");
    let inputs = inputs(F32, 500, 1);
    let binary: [(&str, &str, Reference); 7] = [
        ("add", "{d}, {a}, {b}", How::add),
        ("sub", "{d}, {a}, {b}", How::sub),
        ("mul", "{d}, {a}, {b}", How::mul),
        ("fma", "{d}, {a}, {b}, {c}", How::fma),
        ("div", "{d}, {a}, {b}", How::div),
        ("rcp", "{d}, {a}", How::rcp),
        ("sqrt", "{d}, {a}", How::sqrt),
    ];
    for (name, operands, reference) in binary {
        let shape = format!("r {}", "r".repeat(operands.matches('{').count() - 1));
        for (suffix, mode) in MODES {
            for (flags, ftz, sat) in [
                ("", false, false),
                (".ftz", true, false),
                (".sat", false, true),
                (".ftz.sat", true, true),
            ] {
                if sat && matches!(name, "div" | "rcp" | "sqrt") {
                    continue;
                }
                let how = How { ftz, sat, ..How::new(F32, mode) };
                let text = format!("{name}.{suffix}{flags}.f32 {operands}");
                table.check(&text, &shape, &inputs, |x| reference(&how, x));
            }
        }
    }
    for (flags, ftz, sat) in
        [("", false, false), (".ftz", true, false), (".sat", false, true), (".ftz.sat", true, true)]
    {
        // To the nearest where no mode is named.
        for (name, operands, reference) in &binary[..3] {
            let how = How { ftz, sat, ..How::new(F32, Mode::Nearest) };
            table.check(&format!("{name}{flags}.f32 {operands}"), "r rr", &inputs, |x| {
                reference(&how, x)
            });
        }
        for (suffix, mode) in MODES {
            let how = How { ftz, sat, ..How::new(F32, mode) };
            let text = format!("mad.{suffix}{flags}.f32 {{d}}, {{a}}, {{b}}, {{c}}");
            table.check(&text, "r rrr", &inputs, |x| how.fma(x));
        }
    }
    table.finish();
}

#[test]
fn double() {
    let mut table = Table::new("f64");
    let inputs = inputs(F64, 400, 2);
    let all: [(&str, &str, Reference); 7] = [
        ("add", "{d}, {a}, {b}", How::add),
        ("sub", "{d}, {a}, {b}", How::sub),
        ("mul", "{d}, {a}, {b}", How::mul),
        ("fma", "{d}, {a}, {b}, {c}", How::fma),
        ("div", "{d}, {a}, {b}", How::div),
        ("rcp", "{d}, {a}", How::rcp),
        ("sqrt", "{d}, {a}", How::sqrt),
    ];
    for (name, operands, reference) in all {
        let shape = format!("d {}", "d".repeat(operands.matches('{').count() - 1));
        for (suffix, mode) in MODES {
            let how = How::new(F64, mode);
            table.check(&format!("{name}.{suffix}.f64 {operands}"), &shape, &inputs, |x| {
                reference(&how, x)
            });
        }
    }
    let nearest = How::new(F64, Mode::Nearest);
    for (name, operands, reference) in &all[..3] {
        table.check(&format!("{name}.f64 {operands}"), "d dd", &inputs, |x| reference(&nearest, x));
    }
    for (suffix, mode) in MODES {
        let how = How::new(F64, mode);
        let text = format!("mad.{suffix}.f64 {{d}}, {{a}}, {{b}}, {{c}}");
        table.check(&text, "d ddd", &inputs, |x| how.fma(x));
    }
    table.finish();
}

#[test]
fn halves() {
    let mut table = Table::new("f16 and bf16");
    let all: [(&str, &str, Reference); 4] = [
        ("add", "{d}, {a}, {b}", How::add),
        ("sub", "{d}, {a}, {b}", How::sub),
        ("mul", "{d}, {a}, {b}", How::mul),
        ("fma", "{d}, {a}, {b}, {c}", How::fma),
    ];
    for (ty, format) in [("f16", F16), ("bf16", BF16)] {
        let inputs = inputs(format, 1500, 3);
        let pairs: Vec<[u64; 3]> = inputs
            .windows(2)
            .map(|w| std::array::from_fn(|i| w[0][i] & 0xffff | (w[1][i] & 0xffff) << 16))
            .collect();
        for (name, operands, reference) in all {
            let sources = operands.matches('{').count() - 1;
            for flags in [
                ".rn",
                ".rn.sat",
                ".rn.relu",
                ".rn.ftz",
                ".rn.ftz.sat",
                ".rn.ftz.relu",
                "",
                ".sat",
                ".ftz",
                ".ftz.sat",
            ] {
                let (sat, relu, ftz) =
                    (flags.contains("sat"), flags.contains("relu"), flags.contains("ftz"));
                let unnamed = !flags.starts_with(".rn");
                if ((sat || ftz) && ty == "bf16")
                    || (relu && name != "fma")
                    || (unnamed && name == "fma")
                {
                    continue;
                }
                let how = How { sat, relu, ftz, ..How::new(format, Mode::Nearest) };
                let shape = format!("h {}", "h".repeat(sources));
                table.check(&format!("{name}{flags}.{ty} {operands}"), &shape, &inputs, |x| {
                    reference(&how, x)
                });
                let shape = format!("r {}", "r".repeat(sources));
                table.check(&format!("{name}{flags}.{ty}x2 {operands}"), &shape, &pairs, |x| {
                    let half = |at: u32| match reference(&how, x.map(|bits| bits >> at & 0xffff)) {
                        Want::Bits(bits) => bits,
                        _ => 0,
                    };
                    Want::Bits(half(16) << 16 | half(0))
                });
            }
        }
        for (name, f) in [("neg", 0x8000_u64), ("abs", 0)] {
            let sign = move |x: u64| if f == 0 { x & 0x7fff } else { x ^ f };
            table.check(&format!("{name}.{ty} {{d}}, {{a}}"), "h h", &inputs, |x| {
                Want::Bits(sign(x[0]))
            });
            table.check(&format!("{name}.{ty}x2 {{d}}, {{a}}"), "r r", &pairs, |x| {
                Want::Bits(sign(x[0] & 0xffff) | sign(x[0] >> 16) << 16)
            });
            if ty == "f16" {
                // The bits of a NaN result are not specified.
                let flushed = |x: u64| sign(format.flush(x & 0xffff));
                let number = |x: u64| !format.is_nan(x & 0xffff);
                let some: Vec<_> = inputs.iter().copied().filter(|x| number(x[0])).collect();
                table.check(&format!("{name}.ftz.f16 {{d}}, {{a}}"), "h h", &some, |x| {
                    Want::Bits(flushed(x[0]))
                });
                let some: Vec<_> =
                    pairs.iter().copied().filter(|x| number(x[0]) && number(x[0] >> 16)).collect();
                table.check(&format!("{name}.ftz.f16x2 {{d}}, {{a}}"), "r r", &some, |x| {
                    Want::Bits(flushed(x[0]) | flushed(x[0] >> 16) << 16)
                });
            }
        }
    }
    table.finish();
}

pub fn extreme(format: Format, max: bool, nan: bool, xorsign: bool, x: [u64; 3]) -> Want {
    let (a, b) = (x[0], x[1]);
    let canonical = if format == F64 { Want::Nan } else { Want::Bits(format.nan()) };
    match (format.is_nan(a), format.is_nan(b)) {
        (true, true) => return canonical,
        (true, false) | (false, true) if nan => return canonical,
        (true, false) => return Want::Bits(b),
        (false, true) => return Want::Bits(a),
        _ => {}
    }
    let (a, b, sign) = if xorsign {
        (a & !format.sign(), b & !format.sign(), (a ^ b) & format.sign())
    } else {
        (a, b, 0)
    };
    // By sign, then by size: −0 is below +0.
    let rank = |bits: u64| {
        let size = (bits & !format.sign()) as i128;
        if bits & format.sign() != 0 { -size - 1 } else { size }
    };
    Want::Bits(sign | if (rank(a) < rank(b)) == max { b } else { a })
}

#[test]
fn extremes() {
    let mut table = Table::new("min and max");
    for (ty, format, kind) in
        [("f16", F16, 'h'), ("bf16", BF16, 'h'), ("f32", F32, 'r'), ("f64", F64, 'd')]
    {
        let inputs = inputs(format, 400, 4);
        for (name, max) in [("min", false), ("max", true)] {
            for (flags, nan, xorsign) in [
                ("", false, false),
                (".NaN", true, false),
                (".NaN.xorsign.abs", true, true),
                (".xorsign.abs", false, true),
            ] {
                if format == F64 && !flags.is_empty() {
                    continue;
                }
                // The sign that a number takes from a NaN is not specified.
                let inputs: Vec<_> = inputs
                    .iter()
                    .copied()
                    .filter(|x| {
                        !xorsign
                            || !x.iter().any(|&bits| {
                                format.is_nan(bits & (format.sign() * 2 - 1).max(format.sign()))
                            })
                    })
                    .collect();
                let pairs: Vec<[u64; 3]> = inputs
                    .windows(2)
                    .map(|w| std::array::from_fn(|i| w[0][i] & 0xffff | (w[1][i] & 0xffff) << 16))
                    .collect();
                for ftz in ["", ".ftz"] {
                    if !ftz.is_empty() && !matches!(format, F16 | F32) {
                        continue;
                    }
                    let wanted = |x: [u64; 3]| {
                        let flushed = |bits| if ftz.is_empty() { bits } else { format.flush(bits) };
                        extreme(format, max, nan, xorsign, x.map(flushed))
                    };
                    let text = format!("{name}{ftz}{flags}.{ty} {{d}}, {{a}}, {{b}}");
                    table.check(&text, &format!("{kind} {kind}{kind}"), &inputs, wanted);
                    if kind == 'h' {
                        let text = format!("{name}{ftz}{flags}.{ty}x2 {{d}}, {{a}}, {{b}}");
                        table.check(&text, "r rr", &pairs, |x| {
                            let half = |at: u32| match wanted(x.map(|bits| bits >> at & 0xffff)) {
                                Want::Bits(bits) => bits,
                                _ => 0,
                            };
                            Want::Bits(half(16) << 16 | half(0))
                        });
                    }
                }
            }
        }
    }
    let inputs = inputs(F32, 400, 5);
    for (ty, format, kind) in [("f32", F32, 'r'), ("f64", F64, 'd')] {
        let shape = format!("{kind} {kind}");
        let numbers: Vec<_> = inputs
            .iter()
            .map(|x| if format == F64 { x.map(|bits| bits << 32) } else { *x })
            .filter(|x| !format.is_nan(x[0] & (format.sign() | (format.sign() - 1))))
            .collect();
        table.check(&format!("neg.{ty} {{d}}, {{a}}"), &shape, &numbers, |x| {
            Want::Bits(x[0] ^ format.sign())
        });
        table.check(&format!("abs.{ty} {{d}}, {{a}}"), &shape, &numbers, |x| {
            Want::Bits(x[0] & !format.sign())
        });
        if ty == "f32" {
            table.check("neg.ftz.f32 {d}, {a}", &shape, &numbers, |x| {
                Want::Bits(F32.flush(x[0]) ^ F32.sign())
            });
            table.check("abs.ftz.f32 {d}, {a}", &shape, &numbers, |x| {
                Want::Bits(F32.flush(x[0]) & !F32.sign())
            });
        }
    }
    table.finish();
}
