//! A kernel's argument as it stands on the command line.
//!
//! | text | argument |
//! | --- | --- |
//! | `u32:7` `s64:-1` `b16:0xff` | an integer of that type, decimal or hexadecimal |
//! | `f32:1.5` `f64:-inf` `f16:0x3c00` | a floating-point number, or its bits in hexadecimal |
//! | `in:FILE` | the address of a device buffer filled from the file |
//! | `out:BYTES:FILE` | the address of a zeroed device buffer, written to the file afterwards |
//! | `inout:FILE:FILE` | both: filled from the first file, written to the second |
//!
//! Parsing is apart from reading the files; only [`Argument`]s that make sense by themselves come
//! out of it.

use half::f16;
use std::path::PathBuf;

/// One argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument {
    /// A value, as the bytes of the parameter.
    Value(Vec<u8>),
    /// A buffer filled from a file.
    In(PathBuf),
    /// A zeroed buffer of so many bytes, written to a file afterwards.
    Out(u64, PathBuf),
    /// A buffer filled from the first file and written to the second.
    InOut(PathBuf, PathBuf),
}

const EXPECTED: &str = "expected TYPE:VALUE (u8 u16 u32 u64 s8 s16 s32 s64 b8 b16 b32 b64 f16 f32 \
    f64), in:FILE, \
                        out:BYTES:FILE or inout:FILE:FILE";

/// Reads an argument. The error says what was expected; clap adds which argument it was.
pub fn parse(text: &str) -> Result<Argument, String> {
    let (kind, rest) = text.split_once(':').ok_or(EXPECTED)?;
    let file = |path: &str| {
        if path.is_empty() {
            Err("expected the name of a file after the colon".to_owned())
        } else {
            Ok(path.into())
        }
    };
    match kind {
        "in" => Ok(Argument::In(file(rest)?)),
        "out" => {
            let (bytes, path) =
                rest.split_once(':').ok_or("expected out:BYTES:FILE, e.g. out:4096:c.bin")?;
            let count = number(bytes)
                .and_then(|(negative, count)| {
                    u64::try_from(count).ok().filter(|count| !negative && *count > 0)
                })
                .ok_or_else(|| format!("expected a number of bytes above zero, not `{bytes}`"))?;
            Ok(Argument::Out(count, file(path)?))
        }
        "inout" => match rest.split(':').collect::<Vec<_>>()[..] {
            [from, to] => Ok(Argument::InOut(file(from)?, file(to)?)),
            _ => Err("expected inout:FILE:FILE with no colon in either name".into()),
        },
        _ => value(kind, rest).map(Argument::Value),
    }
}

fn value(kind: &str, text: &str) -> Result<Vec<u8>, String> {
    let unsigned = |bytes| integer(kind, text, bytes, 0, unsigned_max(bytes));
    let signed = |bytes| {
        let max = unsigned_max(bytes) / 2;
        integer(kind, text, bytes, -max - 1, max)
    };
    // Untyped bits may be written either way.
    let bits =
        |bytes| integer(kind, text, bytes, -(unsigned_max(bytes) / 2) - 1, unsigned_max(bytes));
    match kind {
        "u8" => unsigned(1),
        "u16" => unsigned(2),
        "u32" => unsigned(4),
        "u64" => unsigned(8),
        "s8" => signed(1),
        "s16" => signed(2),
        "s32" => signed(4),
        "s64" => signed(8),
        "b8" => bits(1),
        "b16" => bits(2),
        "b32" => bits(4),
        "b64" => bits(8),
        "f16" => float(kind, text, 2, |value| f16::from_f64(value).to_le_bytes().to_vec()),
        "f32" => {
            // From the text and not by way of f64, so that it is rounded once.
            let rounded = text.parse::<f32>().unwrap_or_default();
            float(kind, text, 4, |_| rounded.to_le_bytes().to_vec())
        }
        "f64" => float(kind, text, 8, |value| value.to_le_bytes().to_vec()),
        _ => Err(format!("`{kind}` is no type: {EXPECTED}")),
    }
}

fn unsigned_max(bytes: usize) -> i128 {
    (1 << (8 * bytes)) - 1
}

fn integer(kind: &str, text: &str, bytes: usize, min: i128, max: i128) -> Result<Vec<u8>, String> {
    let (negative, magnitude) = number(text)
        .ok_or_else(|| format!("expected an integer for {kind}, e.g. 7 or 0x1f, not `{text}`"))?;
    let value = i128::try_from(magnitude)
        .map(|value| if negative { -value } else { value })
        .ok()
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| format!("{text} does not fit {kind}, which holds {min} to {max}"))?;
    Ok(value.to_le_bytes()[..bytes].to_vec())
}

fn float(
    kind: &str,
    text: &str,
    bytes: usize,
    encode: impl Fn(f64) -> Vec<u8>,
) -> Result<Vec<u8>, String> {
    if text.starts_with("0x") || text.starts_with("0X") {
        let digits = &text[2..];
        let bits = number(text).filter(|_| digits.len() <= 2 * bytes);
        let (_, bits) = bits.ok_or_else(|| {
            format!("expected at most {} hexadecimal digits for {kind}, not `{text}`", 2 * bytes)
        })?;
        return Ok(bits.to_le_bytes()[..bytes].to_vec());
    }
    text.parse().map(encode).map_err(|_| {
        format!(
            "expected a number for {kind}, e.g. 1.5, -2e-3, inf or 0x{}, not `{text}`",
            "0".repeat(2 * bytes)
        )
    })
}

/// Sign and magnitude of a decimal or hexadecimal integer.
fn number(text: &str) -> Option<(bool, u128)> {
    let (negative, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (digits, radix) =
        match magnitude.strip_prefix("0x").or_else(|| magnitude.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (magnitude, 10),
        };
    // `from_str_radix` would take a second sign.
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u128::from_str_radix(digits, radix).ok().map(|magnitude| (negative, magnitude))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let check = |text: &str, expected: &[u8]| {
            assert_eq!(parse(text), Ok(Argument::Value(expected.to_vec())), "{text}");
        };
        check("u8:255", &[255]);
        check("u16:0x102", &[2, 1]);
        check("u32:7", &[7, 0, 0, 0]);
        check("u64:18446744073709551615", &[255; 8]);
        check("s8:-128", &[128]);
        check("s16:-2", &[0xfe, 0xff]);
        check("s32:-0x80000000", &[0, 0, 0, 0x80]);
        check("s64:-1", &[255; 8]);
        check("b8:0xff", &[255]);
        check("b8:-1", &[255]);
        check("b64:0XfF", &[255, 0, 0, 0, 0, 0, 0, 0]);
        check("f16:1", &[0, 0x3c]);
        check("f16:0x3C00", &[0, 0x3c]);
        check("f32:1.5", &1.5_f32.to_le_bytes());
        check("f32:-2e-3", &(-2e-3_f32).to_le_bytes());
        check("f32:inf", &f32::INFINITY.to_le_bytes());
        check("f32:0x3f800000", &1.0_f32.to_le_bytes());
        check("f64:-0", &(-0.0_f64).to_le_bytes());
        check("f64:0x1", &1_u64.to_le_bytes());
        // Halfway between two f32 as f64 sees it, above it as written: rounding twice would give
        // the lower one.
        check("f32:1.000000059604644775390626", &1.000_000_1_f32.to_le_bytes());
    }

    #[test]
    fn buffers() {
        let check =
            |text: &str, expected: Argument| assert_eq!(parse(text), Ok(expected), "{text}");
        check("in:a.bin", Argument::In("a.bin".into()));
        check("in:a:b", Argument::In("a:b".into()));
        check("out:4096:c.bin", Argument::Out(4096, "c.bin".into()));
        check("out:0x10:c:d", Argument::Out(16, "c:d".into()));
        check("inout:a:b", Argument::InOut("a".into(), "b".into()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let check = |text: &str, part: &str| {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("", "expected TYPE:VALUE");
        check("7", "expected TYPE:VALUE");
        check("i32:7", "`i32` is no type");
        check("U32:7", "`U32` is no type");
        check("u8:256", "256 does not fit u8, which holds 0 to 255");
        check("u32:-1", "does not fit u32");
        check("s8:128", "which holds -128 to 127");
        check("b8:256", "which holds -128 to 255");
        check("u64:0x10000000000000000", "does not fit u64");
        check("u64:999999999999999999999999999999999999999999", "expected an integer for u64");
        check("u32:", "expected an integer for u32");
        check("u32:1.5", "expected an integer for u32");
        check("u32:0x", "expected an integer");
        check("s32:--1", "expected an integer");
        check("s32:-+1", "expected an integer");
        check("u32: 1", "expected an integer");
        check("f32:x", "expected a number for f32");
        check("f32:0x100000000", "at most 8 hexadecimal digits");
        check("f16:0xg", "at most 4 hexadecimal digits");
        check("in:", "expected the name of a file");
        check("out:16", "expected out:BYTES:FILE");
        check("out:0:f", "above zero");
        check("out:-1:f", "above zero");
        check("out:x:f", "not `x`");
        check("out:16:", "name of a file");
        check("inout:a", "expected inout:FILE:FILE");
        check("inout:a:b:c", "no colon in either name");
        check("inout::b", "name of a file");
    }
}
