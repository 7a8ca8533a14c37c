//! Kubernetes' quantities, as whole numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The suffixes, and the power of two or ten that each stands for.
const BINARY: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
/// The most digits of a quantity that are read; more do not fit into 64 bits.
const MOST_DIGITS: usize = 30;

/// The quantity, rounded up to a whole number; `None` where it is none or does not fit.
#[must_use]
pub fn whole(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.as_str();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    if before.len() + after.len() == 0 || number.len() > MOST_DIGITS || after.contains('.') {
        return None;
    }
    let digits: u128 = format!("{before}{after}").parse().ok()?;
    let shift = i32::try_from(after.len()).ok()?;
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        let scaled = digits.checked_mul(1 << power)?;
        return u64::try_from(scaled.div_ceil(10_u128.checked_pow(shift.unsigned_abs())?)).ok();
    }
    let exponent = match DECIMAL.iter().find(|(name, _)| *name == suffix) {
        Some((_, power)) => *power,
        None => suffix.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    let exponent = exponent.checked_sub(shift)?;
    let factor = 10_u128.checked_pow(exponent.unsigned_abs());
    let result = match (exponent < 0, factor) {
        (true, Some(factor)) => digits.div_ceil(factor),
        // Less than 10^-38 of anything.
        (true, None) => u128::from(digits > 0),
        (false, factor) => digits.checked_mul(factor?)?,
    };
    u64::try_from(result).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_rounded_up() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(whole(&Quantity(text.into())), expected, "{text}");
        };
        for (text, expected) in [
            ("8", 8),
            ("0", 0),
            ("8Gi", 8 << 30),
            ("1.5Gi", 3 << 29),
            ("1500m", 2),
            ("2k", 2000),
            ("1e3", 1000),
            ("12E2", 1200),
            ("3E", 3_000_000_000_000_000_000),
            (".5", 1),
            ("1n", 1),
        ] {
            check(text, Some(expected));
        }
        for text in ["", "-1", "x", "1.2.3", "1Q", "99E", "1e99", "Gi", "1e-", "16Ei"] {
            check(text, None);
        }
    }
}
