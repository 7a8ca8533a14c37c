//! What kernels print, as C's `printf` formats it (CUDA C++ Programming Guide, "Formatted Output").

use std::iter::{Copied, Peekable};
use std::slice::Iter;

/// The greatest width and precision; C has none.
const WIDEST: usize = 4096;

/// The arguments of a call.
pub trait Arguments {
    /// Why an argument cannot be had.
    type Error;

    /// The next argument, which has 4 or 8 bytes and their alignment.
    ///
    /// # Errors
    /// The implementation's.
    fn word(&mut self, bytes: usize) -> Result<u64, Self::Error>;

    /// The text at an address, without the zero byte at its end.
    ///
    /// # Errors
    /// The implementation's.
    fn text(&mut self, address: u64) -> Result<Vec<u8>, Self::Error>;
}

/// Formats as C's `printf` does. Returns the output and the number of arguments that it took.
///
/// # Errors
/// Those of the arguments.
pub fn format<A: Arguments>(format: &[u8], arguments: &mut A) -> Result<(Vec<u8>, u64), A::Error> {
    let mut call = Call { arguments, taken: 0, rest: format.iter().copied().peekable() };
    let mut out = Vec::new();
    while let Some(byte) = call.rest.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let Some(text) = call.conversion()? else { break };
        out.extend_from_slice(&text);
    }
    Ok((out, call.taken))
}

/// A call while it is formatted.
struct Call<'a, A> {
    arguments: &'a mut A,
    taken: u64,
    rest: Peekable<Copied<Iter<'a, u8>>>,
}

impl<A: Arguments> Call<'_, A> {
    fn take(&mut self, bytes: usize) -> Result<u64, A::Error> {
        self.taken += 1;
        self.arguments.word(bytes)
    }

    /// A width or precision: digits, or an argument.
    fn number(&mut self) -> Result<Option<usize>, A::Error> {
        if self.rest.next_if_eq(&b'*').is_some() {
            let value = u32::try_from(self.take(4)? & 0xffff_ffff).unwrap_or(0).cast_signed();
            return Ok(Some(usize::try_from(value.unsigned_abs()).unwrap_or(WIDEST).min(WIDEST)));
        }
        let mut value = None;
        while let Some(digit) = self.rest.next_if(u8::is_ascii_digit) {
            value = Some((value.unwrap_or(0) * 10 + usize::from(digit - b'0')).min(WIDEST));
        }
        Ok(value)
    }

    /// What follows a `%`. `None`: the format ends there.
    fn conversion(&mut self) -> Result<Option<Vec<u8>>, A::Error> {
        let mut spec = Spec::default();
        while let Some(&flag) = self.rest.peek() {
            match flag {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            self.rest.next();
        }
        spec.width = self.number()?.unwrap_or(0);
        if self.rest.next_if_eq(&b'.').is_some() {
            spec.precision = Some(self.number()?.unwrap_or(0));
        }
        let mut bytes = 4;
        let is_length = |byte: &u8| matches!(byte, b'l' | b'h' | b'z' | b'j' | b't');
        while let Some(length) = self.rest.next_if(is_length) {
            if length != b'h' {
                bytes = 8;
            }
        }
        let Some(kind) = self.rest.next() else { return Ok(None) };
        let alternate = |prefix| if spec.alternate { prefix } else { "" };
        let text = match kind {
            b'%' => "%".to_owned(),
            b'd' | b'i' => {
                let value = self.take(bytes)?;
                let low = u32::try_from(value & 0xffff_ffff).unwrap_or(0).cast_signed();
                spec.signed(if bytes == 8 { value.cast_signed() } else { low.into() })
            }
            b'u' => spec.integer(self.take(bytes)?.to_string(), ""),
            b'x' => spec.integer(format!("{:x}", self.take(bytes)?), alternate("0x")),
            b'X' => spec.integer(format!("{:X}", self.take(bytes)?), alternate("0X")),
            b'o' => spec.integer(format!("{:o}", self.take(bytes)?), ""),
            b'p' => spec.pad(format!("{:#x}", self.take(8)?)),
            b'c' => {
                let [byte, ..] = self.take(4)?.to_le_bytes();
                spec.pad(char::from(byte).to_string())
            }
            b's' => {
                let address = self.take(8)?;
                let text = String::from_utf8_lossy(&self.arguments.text(address)?).into_owned();
                spec.pad(match spec.precision {
                    Some(precision) => text.chars().take(precision).collect(),
                    None => text,
                })
            }
            b'a' | b'A' | b'f' | b'F' | b'e' | b'E' | b'g' | b'G' => {
                spec.float(f64::from_bits(self.take(8)?), kind)
            }
            other => format!("%{}", char::from(other)),
        };
        Ok(Some(text.into_bytes()))
    }
}

#[derive(Clone, Copy, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

impl Spec {
    fn pad(&self, text: String) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if self.left { text + &" ".repeat(missing) } else { " ".repeat(missing) + &text }
    }

    fn sign(&self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (false, true, _) => "+",
            (false, false, true) => " ",
            _ => "",
        }
    }

    fn with_prefix(&self, prefix: &str, digits: &str, zero: bool) -> String {
        let missing = self.width.saturating_sub(prefix.len() + digits.len());
        if zero && !self.left {
            return format!("{prefix}{}{digits}", "0".repeat(missing));
        }
        self.pad(format!("{prefix}{digits}"))
    }

    fn integer(&self, digits: String, prefix: &str) -> String {
        let digits = match self.precision {
            Some(precision) => format!("{digits:0>precision$}"),
            None => digits,
        };
        self.with_prefix(prefix, &digits, self.zero && self.precision.is_none())
    }

    fn signed(&self, value: i64) -> String {
        self.integer(value.unsigned_abs().to_string(), self.sign(value < 0))
    }

    fn float(&self, value: f64, kind: u8) -> String {
        let sign = self.sign(value.is_sign_negative() && !value.is_nan());
        let size = value.abs();
        if !value.is_finite() {
            let text = if value.is_nan() { "nan" } else { "inf" };
            return self.with_prefix(sign, text, false);
        }
        let precision = self.precision.unwrap_or(6);
        let (prefix, digits) = match kind.to_ascii_lowercase() {
            b'a' => (format!("{sign}0x"), hexadecimal(size, self.precision)),
            b'f' => (sign.to_owned(), format!("{size:.precision$}")),
            b'e' => (sign.to_owned(), exponential(size, precision)),
            _ => (sign.to_owned(), general(size, precision.max(1), self.alternate)),
        };
        let cased = |text: String| {
            if kind.is_ascii_uppercase() { text.to_uppercase() } else { text }
        };
        self.with_prefix(&cased(prefix), &cased(digits), self.zero)
    }
}

fn exponential(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn general(size: f64, precision: usize, keep_zeros: bool) -> String {
    let scientific = exponential(size, precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let trim = |digits: &str| {
        if keep_zeros || !digits.contains('.') {
            return digits.to_owned();
        }
        digits.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let most = i32::try_from(precision).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= most {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", trim(digits));
    }
    let decimals = usize::try_from(most - 1 - exponent).unwrap_or(0);
    trim(&format!("{size:.decimals$}"))
}

/// The digits of `%a`, behind `0x`.
fn hexadecimal(size: f64, precision: Option<usize>) -> String {
    const FRACTION_BITS: usize = 52;
    let bits = size.to_bits();
    let fraction = bits & ((1 << FRACTION_BITS) - 1);
    let biased = i32::try_from(bits >> FRACTION_BITS).unwrap_or(0);
    let (mut whole, exponent) = match (biased, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, biased - 1023),
    };
    let digits = match precision.filter(|precision| *precision < FRACTION_BITS / 4) {
        Some(precision) => {
            let dropped = FRACTION_BITS - 4 * precision;
            let all = (whole << FRACTION_BITS) | fraction;
            let (kept, half, rest) =
                (all >> dropped, 1 << (dropped - 1), all & ((1 << dropped) - 1));
            let up = rest > half || (rest == half && kept & 1 == 1);
            let rounded = kept + u64::from(up);
            whole = rounded >> (4 * precision);
            let low = rounded & ((1_u64 << (4 * precision)) - 1);
            if precision == 0 { String::new() } else { format!("{low:0precision$x}") }
        }
        None => {
            let all = format!("{fraction:013x}");
            match precision {
                Some(precision) => format!("{all:0<precision$}"),
                None => all.trim_end_matches('0').to_owned(),
            }
        }
    };
    let point = if digits.is_empty() { "" } else { "." };
    format!("{whole}{point}{digits}p{exponent:+}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_c() {
        let spec = Spec::default();
        for (value, kind, expect) in [
            (1.5, b'f', "1.500000"),
            (1.5, b'e', "1.500000e+00"),
            (1e-5, b'g', "1e-05"),
            (123_456_789.0, b'g', "1.23457e+08"),
            (0.5, b'g', "0.5"),
            (100.0, b'g', "100"),
            (f64::INFINITY, b'F', "inf"),
            (1.5, b'a', "0x1.8p+0"),
            (-0.1, b'a', "-0x1.999999999999ap-4"),
            (0.0, b'a', "0x0p+0"),
            (1e300, b'A', "0X1.7E43C8800759CP+996"),
        ] {
            assert_eq!(spec.float(value, kind), expect);
        }
        assert_eq!(Spec { precision: Some(2), ..spec }.float(0.1, b'a'), "0x1.9ap-4");
        assert_eq!(Spec { precision: Some(0), ..spec }.float(1.75, b'a'), "0x2p+0");
        assert_eq!(Spec { width: 5, zero: true, ..spec }.signed(-42), "-0042");
        assert_eq!(Spec { width: 5, left: true, ..spec }.signed(42), "42   ");
        assert_eq!(Spec { precision: Some(4), plus: true, ..spec }.signed(42), "+0042");
    }

    /// Words in order, and a text.
    struct Fixed(Vec<u64>);

    impl Arguments for Fixed {
        type Error = usize;

        fn word(&mut self, bytes: usize) -> Result<u64, usize> {
            if self.0.is_empty() { Err(bytes) } else { Ok(self.0.remove(0)) }
        }

        fn text(&mut self, address: u64) -> Result<Vec<u8>, usize> {
            Ok(format!("at {address}").into_bytes())
        }
    }

    #[test]
    fn conversions_take_their_arguments() {
        let check = |text: &str, words: &[u64], expected: &str, taken| {
            let result = format(text.as_bytes(), &mut Fixed(words.to_vec()));
            assert_eq!(result, Ok((expected.as_bytes().to_vec(), taken)), "{text}");
        };
        check("100%% of %s%c", &[7, 33], "100% of at 7!", 2);
        check("%*d|%-4u|%.*s", &[4, 5, 6, 3, 9], "   5|6   |at ", 5);
        check("%d %ld %hhd", &[u64::MAX, u64::MAX, 1], "-1 -1 1", 3);
        check("%y %", &[], "%y ", 0);
        assert_eq!(format(b"%d", &mut Fixed(Vec::new())), Err(4));
    }
}
