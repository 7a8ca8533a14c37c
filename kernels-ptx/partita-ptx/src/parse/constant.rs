//! Literals and constant expressions (PTX ISA, "Constants" and "Constant Expressions"), folded
//! while parsing.
//!
//! Integers are 64 bits, signed unless the suffix `U` or the size says otherwise; floating-point
//! constants are `f64`, except `0f…`, which is an exact `f32` and takes no part in expressions.
//! Division by zero is an error, overflow wraps.

use super::lexer::{Kind, Token};
use super::{MAX_DEPTH, Parsed, Parser};

/// A constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Signed(i64),
    Unsigned(u64),
    Double(f64),
    /// Bits of an exact `f32`.
    Single(u32),
}

/// Binding strength of a binary operator; higher binds tighter. The order is C's.
fn strength(kind: Kind) -> Option<u8> {
    Some(match kind {
        Kind::Operator(b'|', _) => 1,
        Kind::Operator(b'&', _) => 2,
        Kind::Punct(b'|') => 3,
        Kind::Punct(b'^') => 4,
        Kind::Punct(b'&') => 5,
        Kind::Operator(b'=' | b'!', _) => 6,
        Kind::Operator(b'<' | b'>', b'=') | Kind::Punct(b'<' | b'>') => 7,
        Kind::Operator(b'<' | b'>', _) => 8,
        Kind::Punct(b'+' | b'-') => 9,
        Kind::Punct(b'*' | b'/' | b'%') => 10,
        _ => return None,
    })
}

impl Parser<'_> {
    /// Whether the current token can begin a constant that is no plain name.
    pub(super) fn at_constant(&self) -> bool {
        match self.token.kind {
            Kind::Number | Kind::Punct(b'-' | b'+' | b'~' | b'!' | b'(') => true,
            Kind::Ident => self.current() == "WARP_SZ",
            _ => false,
        }
    }

    /// Parses and folds a constant expression.
    pub(super) fn constant(&mut self) -> Parsed<Constant> {
        // The common case first: a literal that nothing follows.
        if self.token.kind == Kind::Number {
            let token = self.advance();
            let value = self.literal(token)?;
            return match strength(self.token.kind) {
                None if !self.at(b'?') => Ok(value),
                _ => self.ternary(value, 0),
            };
        }
        let value = self.unary(0)?;
        self.ternary(value, 0)
    }

    /// A constant that must be an integer.
    pub(super) fn integer(&mut self, what: &str) -> Parsed<i64> {
        let token = self.token;
        match self.constant()? {
            Constant::Signed(value) => Ok(value),
            Constant::Unsigned(value) => Ok(value.cast_signed()),
            Constant::Double(_) | Constant::Single(_) => {
                Err(self.error(token, format!("expected {what}, found a fraction")))
            }
        }
    }

    /// A plain number of 32 bits, as directives take.
    pub(super) fn small(&mut self, what: &str) -> Parsed<u32> {
        let token = self.token;
        if token.kind != Kind::Number {
            return Err(self.expected(what));
        }
        self.advance();
        match self.literal(token)? {
            Constant::Signed(value) if u32::try_from(value).is_ok() => {
                Ok(u32::try_from(value).expect("checked by the guard"))
            }
            Constant::Unsigned(value) if u32::try_from(value).is_ok() => {
                Ok(u32::try_from(value).expect("checked by the guard"))
            }
            _ => Err(self.error(token, format!("expected {what} of 32 bits"))),
        }
    }

    fn ternary(&mut self, value: Constant, depth: u32) -> Parsed<Constant> {
        let value = self.binary(value, 0, depth)?;
        if !self.eat(b'?') {
            return Ok(value);
        }
        self.deeper(depth)?;
        let first = self.unary(depth + 1)?;
        let yes = self.ternary(first, depth + 1)?;
        self.expect(b':', "in the conditional expression")?;
        let first = self.unary(depth + 1)?;
        let no = self.ternary(first, depth + 1)?;
        Ok(if truth(value) { yes } else { no })
    }

    fn deeper(&mut self, depth: u32) -> Parsed<()> {
        if depth < MAX_DEPTH {
            return Ok(());
        }
        let token = self.token;
        Err(self.error(token, format!("expression is nested deeper than {MAX_DEPTH}")))
    }

    fn unary(&mut self, depth: u32) -> Parsed<Constant> {
        self.deeper(depth)?;
        let token = self.token;
        match token.kind {
            Kind::Number => {
                self.advance();
                self.literal(token)
            }
            Kind::Ident if self.current() == "WARP_SZ" => {
                self.advance();
                Ok(Constant::Signed(32))
            }
            Kind::Punct(b'(') => {
                self.advance();
                self.parenthesised(depth)
            }
            Kind::Punct(sign @ (b'-' | b'+' | b'~' | b'!')) => {
                self.advance();
                let value = self.unary(depth + 1)?;
                match fold_unary(sign, value) {
                    Some(value) => Ok(value),
                    None => Err(self
                        .error(token, "expected an integer after the operator, found a fraction")),
                }
            }
            _ => Err(self.expected("a constant")),
        }
    }

    /// Behind `(`: an expression, or a cast `(.s64)` before an operand.
    fn parenthesised(&mut self, depth: u32) -> Parsed<Constant> {
        let cast = match self.token.kind {
            Kind::Dotted if self.current() == ".s64" => Some(false),
            Kind::Dotted if self.current() == ".u64" => Some(true),
            _ => None,
        };
        let Some(unsigned) = cast else {
            let first = self.unary(depth + 1)?;
            let value = self.ternary(first, depth + 1)?;
            self.expect(b')', "after the expression")?;
            return Ok(value);
        };
        self.advance();
        self.expect(b')', "after the cast")?;
        let value = self.unary(depth + 1)?;
        Ok(match (value, unsigned) {
            (Constant::Signed(value), true) => Constant::Unsigned(value.cast_unsigned()),
            (Constant::Unsigned(value), false) => Constant::Signed(value.cast_signed()),
            #[expect(clippy::cast_possible_truncation, reason = "a cast in the source asks for it")]
            (Constant::Double(value), false) => Constant::Signed(value as i64),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a cast in the source asks for it"
            )]
            (Constant::Double(value), true) => Constant::Unsigned(value as u64),
            _ => value,
        })
    }

    /// Precedence climbing: the recursion is bounded by the number of strengths.
    fn binary(&mut self, mut left: Constant, least: u8, depth: u32) -> Parsed<Constant> {
        while let Some(strength_here) =
            strength(self.token.kind).filter(|&strength| strength > least)
        {
            let operator = self.advance();
            let mut right = self.unary(depth + 1)?;
            if strength(self.token.kind).is_some_and(|next| next > strength_here) {
                right = self.binary(right, strength_here, depth)?;
            }
            left = match fold_binary(operator.kind, left, right) {
                Ok(value) => value,
                Err(message) => return Err(self.error(operator, message)),
            };
        }
        Ok(left)
    }

    /// The value of a number token.
    pub(super) fn literal(&mut self, token: Token) -> Parsed<Constant> {
        match literal(self.text(token)) {
            Some(value) => Ok(value),
            None => {
                let text: String = self.text(token).chars().take(40).collect();
                Err(self.error(
                    token,
                    format!("`{text}` is no number that PTX knows, or needs more than 64 bits"),
                ))
            }
        }
    }
}

fn literal(text: &str) -> Option<Constant> {
    let bytes = text.as_bytes();
    if bytes[0] == b'0' && bytes.len() > 1 {
        let rest = text.get(2..)?;
        match bytes[1] {
            b'f' | b'F' => {
                let exact = rest.len() == 8 && rest.bytes().all(|c| c.is_ascii_hexdigit());
                return exact
                    .then(|| u32::from_str_radix(rest, 16).ok())
                    .flatten()
                    .map(Constant::Single);
            }
            b'd' | b'D' => {
                let exact = rest.len() == 16 && rest.bytes().all(|c| c.is_ascii_hexdigit());
                let bits = exact.then(|| u64::from_str_radix(rest, 16).ok()).flatten()?;
                return Some(Constant::Double(f64::from_bits(bits)));
            }
            b'x' | b'X' => return integer(rest, 16),
            b'b' | b'B' => return integer(rest, 2),
            _ => {}
        }
    }
    if bytes.iter().any(|c| matches!(c, b'.' | b'e' | b'E')) {
        return text.parse().ok().map(Constant::Double);
    }
    if bytes[0] == b'0' && bytes.len() > 1 && bytes[1] != b'U' {
        return integer(&text[1..], 8);
    }
    integer(text, 10)
}

fn integer(digits: &str, radix: u32) -> Option<Constant> {
    let (digits, unsigned) = match digits.strip_suffix('U') {
        Some(digits) => (digits, true),
        None => (digits, false),
    };
    if digits.starts_with('+') {
        return None;
    }
    let value = u64::from_str_radix(digits, radix).ok()?;
    Some(match i64::try_from(value) {
        Ok(value) if !unsigned => Constant::Signed(value),
        _ => Constant::Unsigned(value),
    })
}

fn truth(value: Constant) -> bool {
    match value {
        Constant::Signed(value) => value != 0,
        Constant::Unsigned(value) => value != 0,
        Constant::Double(value) => value.abs() > 0.0,
        Constant::Single(bits) => bits << 1 != 0,
    }
}

fn fold_unary(sign: u8, value: Constant) -> Option<Constant> {
    Some(match (sign, value) {
        (b'+', value) => value,
        (b'-', Constant::Signed(value)) => Constant::Signed(value.wrapping_neg()),
        (b'-', Constant::Unsigned(value)) => Constant::Unsigned(value.wrapping_neg()),
        (b'-', Constant::Double(value)) => Constant::Double(-value),
        (b'-', Constant::Single(bits)) => Constant::Single(bits ^ 0x8000_0000),
        (b'~', Constant::Signed(value)) => Constant::Signed(!value),
        (b'~', Constant::Unsigned(value)) => Constant::Unsigned(!value),
        (b'!', Constant::Signed(_) | Constant::Unsigned(_)) => {
            Constant::Signed(i64::from(!truth(value)))
        }
        _ => return None,
    })
}

fn fold_binary(operator: Kind, left: Constant, right: Constant) -> Result<Constant, &'static str> {
    let (a, b, unsigned) = match (left, right) {
        (Constant::Signed(a), Constant::Signed(b)) => (a, b, false),
        (Constant::Signed(a), Constant::Unsigned(b)) => (a, b.cast_signed(), true),
        (Constant::Unsigned(a), Constant::Signed(b)) => (a.cast_signed(), b, true),
        (Constant::Unsigned(a), Constant::Unsigned(b)) => (a.cast_signed(), b.cast_signed(), true),
        _ => return fold_floats(operator, left, right),
    };
    let (ua, ub) = (a.cast_unsigned(), b.cast_unsigned());
    let truth = |value: bool| Ok(Constant::Signed(i64::from(value)));
    let order = if unsigned { ua.cmp(&ub) } else { a.cmp(&b) };
    // A shift by the width or more gives 0, or the sign, as PTX's shift instructions do.
    let shift = u32::try_from(ub).unwrap_or(64);
    let value = match operator {
        Kind::Punct(b'+') => a.wrapping_add(b),
        Kind::Punct(b'-') => a.wrapping_sub(b),
        Kind::Punct(b'*') => a.wrapping_mul(b),
        Kind::Punct(b'/' | b'%') if b == 0 => {
            return Err("division by zero in a constant expression");
        }
        Kind::Punct(b'/') if unsigned => (ua / ub).cast_signed(),
        Kind::Punct(b'%') if unsigned => (ua % ub).cast_signed(),
        Kind::Punct(b'/') => a.wrapping_div(b),
        Kind::Punct(b'%') => a.wrapping_rem(b),
        Kind::Punct(b'&') => a & b,
        Kind::Punct(b'|') => a | b,
        Kind::Punct(b'^') => a ^ b,
        Kind::Operator(b'<', b'<') => {
            let shifted = ua.checked_shl(shift).unwrap_or(0).cast_signed();
            return Ok(same_kind(left, shifted));
        }
        Kind::Operator(b'>', b'>') => {
            let shifted = match left {
                Constant::Unsigned(_) => ua.checked_shr(shift).unwrap_or(0).cast_signed(),
                _ => a >> shift.min(63),
            };
            return Ok(same_kind(left, shifted));
        }
        Kind::Operator(b'&', _) => return truth(a != 0 && b != 0),
        Kind::Operator(b'|', _) => return truth(a != 0 || b != 0),
        Kind::Operator(b'=', _) => return truth(a == b),
        Kind::Operator(b'!', _) => return truth(a != b),
        Kind::Punct(b'<') => return truth(order.is_lt()),
        Kind::Punct(b'>') => return truth(order.is_gt()),
        Kind::Operator(b'<', _) => return truth(order.is_le()),
        Kind::Operator(b'>', _) => return truth(order.is_ge()),
        _ => return Err("expected an operator of constant expressions"),
    };
    Ok(if unsigned { Constant::Unsigned(value.cast_unsigned()) } else { Constant::Signed(value) })
}

fn same_kind(like: Constant, value: i64) -> Constant {
    match like {
        Constant::Unsigned(_) => Constant::Unsigned(value.cast_unsigned()),
        _ => Constant::Signed(value),
    }
}

fn fold_floats(operator: Kind, left: Constant, right: Constant) -> Result<Constant, &'static str> {
    let double = |value: Constant| match value {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the usual arithmetic conversion of PTX constants"
        )]
        Constant::Signed(value) => Ok(value as f64),
        #[expect(
            clippy::cast_precision_loss,
            reason = "the usual arithmetic conversion of PTX constants"
        )]
        Constant::Unsigned(value) => Ok(value as f64),
        Constant::Double(value) => Ok(value),
        Constant::Single(_) => {
            Err("`0f…` constants take no part in constant expressions; write a decimal")
        }
    };
    let (a, b) = (double(left)?, double(right)?);
    let truth = |value: bool| Ok(Constant::Signed(i64::from(value)));
    Ok(Constant::Double(match operator {
        Kind::Punct(b'+') => a + b,
        Kind::Punct(b'-') => a - b,
        Kind::Punct(b'*') => a * b,
        Kind::Punct(b'/') => a / b,
        Kind::Punct(b'<') => return truth(a < b),
        Kind::Punct(b'>') => return truth(a > b),
        Kind::Operator(b'<', b'=') => return truth(a <= b),
        Kind::Operator(b'>', b'=') => return truth(a >= b),
        _ => return Err("this operator takes integers, found a fraction"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: Result<Constant, &str>) {
        let mut parser = Parser::new(source);
        let found = parser.constant();
        match expected {
            Ok(value) => assert_eq!(found.ok(), Some(value), "{source}"),
            Err(part) => {
                assert!(found.is_err(), "{source}");
                assert!(parser.errors[0].message.contains(part), "{source}: {:?}", parser.errors);
            }
        }
    }

    #[test]
    fn literals() {
        check("0x1F", Ok(Constant::Signed(31)));
        check("017", Ok(Constant::Signed(15)));
        check("0b101U", Ok(Constant::Unsigned(5)));
        check("0U", Ok(Constant::Unsigned(0)));
        check("0xFFFFFFFFFFFFFFFF", Ok(Constant::Unsigned(u64::MAX)));
        check("-9223372036854775808", Ok(Constant::Unsigned(1 << 63)));
        check("0f3F800000", Ok(Constant::Single(0x3f80_0000)));
        check("-0f3F800000", Ok(Constant::Single(0xbf80_0000)));
        check("0d3FF0000000000000", Ok(Constant::Double(1.0)));
        check("1.5e3", Ok(Constant::Double(1500.0)));
        check("0f3F8", Err("no number"));
        check("08", Err("no number"));
        check("0xFFFFFFFFFFFFFFFFF", Err("no number"));
    }

    #[test]
    fn expressions() {
        check("1+2*3", Ok(Constant::Signed(7)));
        check("2*3+1", Ok(Constant::Signed(7)));
        check("1-2-3", Ok(Constant::Signed(-4)));
        check("(1<<4)|~0", Ok(Constant::Signed(-1)));
        check("WARP_SZ*4", Ok(Constant::Signed(128)));
        check("1 ? 2 : 3", Ok(Constant::Signed(2)));
        check("-1 > 0U", Ok(Constant::Signed(1)));
        check("-8 >> 1", Ok(Constant::Signed(-4)));
        check("1 << 64", Ok(Constant::Signed(0)));
        check("(.u64)-1 / 2", Ok(Constant::Unsigned(u64::MAX / 2)));
        check("!0 && 3", Ok(Constant::Signed(1)));
        check("1.0 / 4", Ok(Constant::Double(0.25)));
        check("7 % 0", Err("division by zero"));
        check("1.0 & 2", Err("takes integers"));
        check(&"(".repeat(1000), Err("nested deeper"));
        check(&"-".repeat(100_000), Err("nested deeper"));
    }
}
