//! The time to look for an answer before sleeping until it comes.
//!
//! A sleep costs tens of microseconds on an idle processor; the data plane answers many calls
//! within one or two. The time adapts: a look in vain halves it, a find doubles it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest look: longer than a round trip with both sides awake, shorter than a wake-up.
const LONGEST: Duration = Duration::from_micros(20);
/// Shortest look, so that a faster data plane is noticed.
const SHORTEST: Duration = Duration::from_nanos(500);

/// Looks between two looks at the clock.
const LOOKS: u32 = 16;

/// The adapted time.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The length of the next look; 0 on one processor, where the other side cannot work meanwhile.
    nanos: AtomicU64,
}

impl Patience {
    pub(crate) fn new() -> Self {
        let several =
            std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
        Patience { nanos: AtomicU64::new(if several { nanos(LONGEST) } else { 0 }) }
    }

    /// Looks until `found` is true or the time is over.
    pub(crate) fn spin(&self, found: impl Fn() -> bool) {
        let patience = self.nanos.load(Ordering::Relaxed);
        if patience == 0 {
            return;
        }
        let start = Instant::now();
        let mut early = false;
        while !early && nanos(start.elapsed()) < patience {
            for _ in 0..LOOKS {
                early |= found();
                std::hint::spin_loop();
            }
        }
        self.learn(patience, early);
    }

    fn learn(&self, patience: u64, early: bool) {
        let next = if early { patience * 2 } else { patience / 2 };
        self.nanos.store(next.clamp(nanos(SHORTEST), nanos(LONGEST)), Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_looked_for_longer() {
        let patience = Patience { nanos: AtomicU64::new(nanos(LONGEST)) };
        let next = || patience.nanos.load(Ordering::Relaxed);
        for _ in 0..20 {
            patience.spin(|| false);
        }
        assert_eq!(next(), nanos(SHORTEST));
        patience.spin(|| true);
        assert_eq!(next(), 2 * nanos(SHORTEST));
        for _ in 0..20 {
            patience.spin(|| true);
        }
        assert_eq!(next(), nanos(LONGEST));
        let alone = Patience { nanos: AtomicU64::new(0) };
        alone.spin(|| panic!("where there is one processor nobody spins"));
    }
}
