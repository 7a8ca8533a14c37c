//! Times of the host, as people read and write them.

use std::time::{SystemTime, UNIX_EPOCH};

/// The units of a span, in seconds, the longest first.
const UNITS: [(u64, &str, &str); 4] =
    [(86_400, "d", "d"), (3_600, "h", "h"), (60, "min", "m"), (1, "s", "s")];

/// The time in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Seconds in the two greatest units that they have.
pub fn span(seconds: u64) -> String {
    let mut rest = seconds;
    let mut parts = Vec::new();
    for (unit, name, _) in UNITS {
        let count = rest / unit;
        rest %= unit;
        if count > 0 || !parts.is_empty() {
            parts.push((count, name));
        }
    }
    parts.truncate(2);
    parts.retain(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.iter().map(|(count, name)| format!("{count} {name}")).collect();
    if parts.is_empty() { "0 s".into() } else { parts.join(" ") }
}

/// A span as it is written on a command line, as in `90s`, `30m`, `2h`, `1d`, in seconds.
pub fn parse_span(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no time: give a number and s, m, h or d, as in 2h");
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(.., written)| *written == unit).ok_or_else(wrong)?.0;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|seconds| *seconds > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (seconds, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (3_661, "1 h 1 min"),
            (3_601, "1 h"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(span(seconds), expected);
        }
        for (text, seconds) in [("90s", 90), ("30m", 1_800), ("2h", 7_200), ("1d", 86_400)] {
            assert_eq!(parse_span(text), Ok(seconds));
        }
        for wrong in ["", "h", "2", "0s", "-1h", "2 h", "2w", "99999999999999999999s"] {
            assert!(parse_span(wrong).unwrap_err().contains("as in 2h"), "{wrong}");
        }
    }
}
