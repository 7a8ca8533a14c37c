//! A part of an SM, for applications that share SMs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The part of every SM of its partition that an application's CTAs may take, where other
/// applications have the rest: so many CTAs of the number that fit on an SM. It holds for each
/// resource of an SM: registers, shared memory, threads and CTA slots.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SmPart {
    /// CTAs, at least one and at most `of`.
    ctas: u16,
    /// CTAs that fit on an SM.
    of: u16,
}

impl SmPart {
    /// `ctas` of the `of` CTAs that fit; `None` where that is nothing or more than an SM.
    #[must_use]
    pub fn new(ctas: u16, of: u16) -> Option<Self> {
        (1..=of).contains(&ctas).then_some(SmPart { ctas, of })
    }

    /// This part of an amount, rounded down: parts that fit an SM together fit each resource.
    #[must_use]
    pub fn of(self, amount: u64) -> u64 {
        let part = u128::from(amount) * u128::from(self.ctas) / u128::from(self.of.max(1));
        u64::try_from(part).unwrap_or(amount)
    }

    /// Whether two parts fit on one SM.
    #[must_use]
    pub fn fits_beside(self, other: SmPart) -> bool {
        let (of, others) = (u64::from(self.of), u64::from(other.of));
        u64::from(self.ctas) * others + u64::from(other.ctas) * of <= of * others
    }
}

impl fmt::Display for SmPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ctas, self.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ctas: u16, of: u16) -> SmPart {
        SmPart::new(ctas, of).unwrap()
    }

    #[test]
    fn a_part_is_of_an_sm() {
        assert_eq!(SmPart::new(0, 8), None);
        assert_eq!(SmPart::new(9, 8), None);
        assert_eq!(SmPart::new(1, 0), None);
        assert_eq!(part(8, 8).of(65_536), 65_536);
        assert_eq!(part(3, 7).of(65_536), 28_086);
        assert_eq!(part(u16::MAX, u16::MAX).of(u64::MAX), u64::MAX);
    }

    #[test]
    fn parts_that_fit_leave_nobody_short() {
        assert!(part(3, 7).fits_beside(part(9, 16)));
        assert!(!part(3, 7).fits_beside(part(10, 16)));
        assert!(part(1, 2).fits_beside(part(16, 32)));
        assert!(!part(u16::MAX, u16::MAX).fits_beside(part(1, u16::MAX)));
    }
}
