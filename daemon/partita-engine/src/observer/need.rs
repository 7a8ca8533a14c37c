//! How many SMs an application can use: the CTAs of its largest launch of late.
//!
//! An SM for each CTA is the most that a launch can use: CTAs that share an SM are slower.

use partita_model::Nanos;

/// A launch is remembered for this time at least, and for twice as long at most: requests of an
/// inference server, whose kernels have from a few to thousands of CTAs, take some milliseconds.
const LATE: Nanos = Nanos(10_000_000);

/// The most CTAs of a launch, now and in the time before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    present: u64,
    before: u64,
    began: Nanos,
    /// What is told: it falls only where less than half is needed, because every change is a
    /// decision of the policy.
    told: u64,
}

impl Need {
    /// A launch of `ctas` CTAs is queued. Whether that is more than launches had of late.
    pub(super) fn saw(&mut self, now: Nanos, ctas: u64) -> bool {
        let known = self.ctas();
        if now.saturating_sub(self.began) >= LATE {
            (self.before, self.present, self.began) = (self.present, 0, now);
        }
        self.present = self.present.max(ctas);
        let needed = self.present.max(self.before);
        if needed > known || needed <= known / 2 {
            self.told = needed;
        }
        ctas > known
    }

    /// The CTAs of the largest launch of late.
    pub(super) fn ctas(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_launch_is_remembered_and_then_forgotten() {
        let mut need = Need::default();
        let mut see = |ms: u64, ctas| (need.saw(Nanos(ms * 1_000_000), ctas), need.ctas());
        assert_eq!(see(0, 8), (true, 8));
        assert_eq!(see(1, 4), (false, 8));
        assert_eq!(see(2, 90), (true, 90));
        assert_eq!(see(11, 4), (false, 90));
        assert_eq!(see(20, 4), (false, 90));
        assert_eq!(see(21, 4), (false, 4));
        assert_eq!(see(22, 5), (true, 5));
        assert_eq!(see(40, 3), (false, 5), "a little less changes nothing");
        assert_eq!(see(60, 3), (false, 5));
        assert_eq!(see(80, 2), (false, 5));
        assert_eq!(see(100, 2), (false, 2));
    }
}
