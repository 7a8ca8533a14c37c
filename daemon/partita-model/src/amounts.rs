//! Amounts in terms, as configuration, command lines and requests write them: SMs, memory, time.
//!
//! Invariants: a percentage lies in 1–100, an amount of memory is above 0, a latency target lies
//! between [`LatencyTarget::LEAST`] and [`LatencyTarget::MOST`].

use crate::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of SMs, absolute or as a part of the GPU: `24` or `30%`.
///
/// ```
/// # use partita_model::SmAmount;
/// assert_eq!("24".parse::<SmAmount>().unwrap().on(132), 24);
/// assert_eq!("30%".parse::<SmAmount>().unwrap().on(132), 40);
/// assert!("130%".parse::<SmAmount>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Written")]
pub enum SmAmount {
    /// A number of SMs.
    Sms(u16),
    /// Per cent of the GPU's SMs, 1–100.
    PerCent(u8),
}

/// An amount in a file or a request: a number of SMs, or a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Sms(i64),
    Text(String),
}

impl SmAmount {
    /// The number of SMs on a GPU of `sm_count`. A percentage is rounded to the nearest number, and
    /// is one SM at least.
    #[must_use]
    pub fn on(self, sm_count: u16) -> u16 {
        match self {
            SmAmount::Sms(sms) => sms,
            SmAmount::PerCent(part) => {
                let sms = (u32::from(sm_count) * u32::from(part) + 50) / 100;
                u16::try_from(sms).unwrap_or(u16::MAX).max(1)
            }
        }
    }
}

impl fmt::Display for SmAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SmAmount::Sms(sms) => write!(f, "{sms}"),
            SmAmount::PerCent(part) => write!(f, "{part}%"),
        }
    }
}

impl From<SmAmount> for String {
    fn from(amount: SmAmount) -> Self {
        amount.to_string()
    }
}

impl TryFrom<Written> for SmAmount {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Sms(sms) => sms.to_string().parse(),
            Written::Text(text) => text.parse(),
        }
    }
}

impl FromStr for SmAmount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("`{text}` is no number of SMs: write SMs as in `24`, or per cent as in `30%`")
        };
        match text.strip_suffix('%') {
            Some(part) => {
                let part = part.parse().ok().filter(|part| (1..=100).contains(part));
                part.map(SmAmount::PerCent).ok_or_else(wrong)
            }
            None => text.parse().map(SmAmount::Sms).map_err(|_| wrong()),
        }
    }
}

/// A minimum and a maximum, as a command line has them: `8`, `8..24`, `8..`, `..24` or `20%..50%`.
///
/// ```
/// # use partita_model::{SmAmount, SmRange};
/// let range: SmRange = "8..24".parse().unwrap();
/// assert_eq!((range.min, range.max), (Some(SmAmount::Sms(8)), Some(SmAmount::Sms(24))));
/// let range: SmRange = "50%".parse().unwrap();
/// assert_eq!((range.min, range.max), (range.max, Some(SmAmount::PerCent(50))));
/// assert!(["24..8", "50%..20%", "..0"].iter().all(|text| text.parse::<SmRange>().is_err()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SmRange {
    /// SMs that the application has whenever it has work.
    pub min: Option<SmAmount>,
    /// SMs that it has at most.
    pub max: Option<SmAmount>,
}

impl FromStr for SmRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let amount = |text: &str| match text {
            "" => Ok(None),
            text => text.parse().map(Some),
        };
        let range = match text.split_once("..") {
            Some((min, max)) => SmRange { min: amount(min)?, max: amount(max)? },
            None => SmRange { min: amount(text)?, max: amount(text)? },
        };
        if range == SmRange::default() {
            return Err(format!("`{text}` says nothing: write SMs as in `8..24`, `8..` or `..24`"));
        }
        // What depends on the GPU's size, its daemon says.
        let is_empty = match (range.min, range.max) {
            (_, Some(SmAmount::Sms(0))) => true,
            (Some(SmAmount::Sms(min)), Some(SmAmount::Sms(max))) => min > max,
            (Some(SmAmount::PerCent(min)), Some(SmAmount::PerCent(max))) => min > max,
            _ => false,
        };
        if is_empty {
            return Err(format!(
                "`{text}` leaves no SM: the maximum is 1 at least, and no less than the minimum"
            ));
        }
        Ok(range)
    }
}

/// Device memory in bytes, as in `8G`, `512MiB` or `100B`. Units are powers of 1,024, and a number
/// without a unit is none: one person means bytes, another gigabytes.
///
/// ```
/// # use partita_model::MemoryAmount;
/// assert_eq!("8G".parse::<MemoryAmount>().unwrap().bytes(), 8 << 30);
/// assert_eq!("512MiB".parse::<MemoryAmount>().unwrap().to_string(), "512MiB");
/// assert!("0G".parse::<MemoryAmount>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MemoryAmount(u64);

impl MemoryAmount {
    /// Units with the powers of two that they stand for, the largest first.
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

    /// The amount, where it is above 0.
    #[must_use]
    pub fn of(bytes: u64) -> Option<Self> {
        (bytes > 0).then_some(MemoryAmount(bytes))
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MemoryAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, power): &&(&str, u32)| self.0.is_multiple_of(1 << power);
        match Self::UNITS.iter().find(whole) {
            Some((unit, power)) => write!(f, "{}{unit}", self.0 >> power),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl From<MemoryAmount> for String {
    fn from(amount: MemoryAmount) -> Self {
        amount.to_string()
    }
}

impl TryFrom<String> for MemoryAmount {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for MemoryAmount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no amount of memory: write it as in `8G` or `512MiB`");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let power = match unit {
            "B" => Some(0),
            unit => Self::UNITS.iter().find_map(|(long, power)| {
                let is_it = unit == *long || unit == &long[..1];
                is_it.then_some(*power)
            }),
        };
        let bytes = number.parse::<u64>().ok().zip(power);
        let bytes = bytes.and_then(|(number, power)| number.checked_mul(1 << power));
        bytes.and_then(MemoryAmount::of).ok_or_else(wrong)
    }
}

/// The time that a request may take, as in `250us`, `1.5ms` or `2s`.
///
/// ```
/// # use partita_model::LatencyTarget;
/// assert_eq!("1.5ms".parse::<LatencyTarget>().unwrap().nanos().0, 1_500_000);
/// assert_eq!("1500us".parse::<LatencyTarget>().unwrap().to_string(), "1500us");
/// assert!("1ns".parse::<LatencyTarget>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct LatencyTarget(Nanos);

impl LatencyTarget {
    /// The shortest target: a launch takes some microseconds.
    pub const LEAST: Nanos = Nanos(10_000);
    /// The longest target.
    pub const MOST: Nanos = Nanos(60_000_000_000);

    /// The target, where it lies within the bounds.
    #[must_use]
    pub fn of(nanos: Nanos) -> Option<Self> {
        (Self::LEAST..=Self::MOST).contains(&nanos).then_some(LatencyTarget(nanos))
    }

    /// The time in nanoseconds of device time.
    #[must_use]
    pub fn nanos(self) -> Nanos {
        self.0
    }
}

impl fmt::Display for LatencyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Nanos(nanos) = self.0;
        match nanos {
            _ if nanos.is_multiple_of(1_000_000_000) => write!(f, "{}s", nanos / 1_000_000_000),
            _ if nanos.is_multiple_of(1_000_000) => write!(f, "{}ms", nanos / 1_000_000),
            _ if nanos.is_multiple_of(1_000) => write!(f, "{}us", nanos / 1_000),
            _ => write!(f, "{nanos}ns"),
        }
    }
}

impl From<LatencyTarget> for String {
    fn from(target: LatencyTarget) -> Self {
        target.to_string()
    }
}

impl TryFrom<String> for LatencyTarget {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for LatencyTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no latency target: write a time from 10us to 60s, as in `250us` or \
                 `1.5ms`"
            )
        };
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let power: u32 = match unit {
            "ns" => 0,
            "us" | "µs" => 3,
            "ms" => 6,
            "s" => 9,
            _ => return Err(wrong()),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let part = part.trim_end_matches('0');
        let nanos = || {
            // Nothing is finer than a nanosecond.
            let finer = 10_u64.pow(power.checked_sub(u32::try_from(part.len()).ok()?)?);
            let part = if part.is_empty() { 0 } else { part.parse::<u64>().ok()? };
            let whole = whole.parse::<u64>().ok()?;
            whole.checked_mul(10_u64.pow(power))?.checked_add(part * finer)
        };
        nanos().and_then(|nanos| LatencyTarget::of(Nanos(nanos))).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_ranges_parse() {
        for (text, expected) in [
            ("0", Ok(SmAmount::Sms(0))),
            ("132", Ok(SmAmount::Sms(132))),
            ("1%", Ok(SmAmount::PerCent(1))),
            ("100%", Ok(SmAmount::PerCent(100))),
            ("0%", Err(())),
            ("101%", Err(())),
            ("-1", Err(())),
            ("", Err(())),
            ("%", Err(())),
            ("65536", Err(())),
        ] {
            assert_eq!(text.parse::<SmAmount>().map_err(|_| ()), expected, "{text}");
        }
        let sms = |sms| Some(SmAmount::Sms(sms));
        for (text, min, max) in
            [("8", sms(8), sms(8)), ("8..", sms(8), None), ("..9", None, sms(9))]
        {
            assert_eq!(text.parse(), Ok(SmRange { min, max }), "{text}");
        }
        for wrong in ["", "..", "8...9", "a..b", "8..9%%"] {
            assert!(wrong.parse::<SmRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_of_a_small_gpu_is_an_sm_at_least() {
        assert_eq!([1, 49, 50, 51, 100].map(|part| SmAmount::PerCent(part).on(3)), [1, 1, 2, 2, 3]);
        assert_eq!(SmAmount::PerCent(100).on(u16::MAX), u16::MAX);
    }

    #[test]
    fn memory_and_times_parse_and_survive_the_way() {
        for (text, bytes, again) in [
            ("1B", 1, "1B"),
            ("8G", 8 << 30, "8GiB"),
            ("8GiB", 8 << 30, "8GiB"),
            ("1536M", 1536 << 20, "1536MiB"),
            ("2048K", 2 << 20, "2MiB"),
            ("3T", 3 << 40, "3TiB"),
        ] {
            let amount: MemoryAmount = text.parse().unwrap();
            assert_eq!((amount.bytes(), amount.to_string().as_str()), (bytes, again));
            assert_eq!(amount.to_string().parse(), Ok(amount));
        }
        for wrong in ["", "G", "0", "-1", "8 G", "8GB", "1.5G", "99999999999999999T", "8Gi", "8"] {
            assert!(wrong.parse::<MemoryAmount>().is_err(), "{wrong}");
        }
        for (text, nanos) in
            [("10us", 10_000), ("0.25ms", 250_000), ("1µs", 0), ("60s", 60_000_000_000)]
        {
            let target = text.parse::<LatencyTarget>();
            assert_eq!(target.clone().map(|target| target.nanos().0).unwrap_or(0), nanos, "{text}");
            if let Ok(target) = target {
                assert_eq!(target.to_string().parse(), Ok(target));
            }
        }
        for wrong in ["", "5", "ms", "61s", "-1ms", "1.2.3ms", "nan", "1e9s", "5 ms"] {
            assert!(wrong.parse::<LatencyTarget>().is_err(), "{wrong}");
        }
    }
}
