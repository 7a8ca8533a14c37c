//! The LLC's hit rate of applications that run alone, where the device counts
//! ([`partita_device::TrafficSampling`]).
//!
//! The device's counters are of the whole LLC, so a window says something of an application only
//! while no other application has a grid on the device. A window begins when an application starts
//! a grid there alone, and is cut into pieces of [`crate::EngineConfig::traffic_window`]. Grids of
//! another end it, and what has not been told by then is not believed.
//!
//! A measured hit rate takes the place of the one that the replay of a kernel's accesses gave
//! ([`super::profiling`]).

use crate::turn::Turn;
use partita_model::{ApplicationId, Nanos, Traffic};
use std::collections::{BTreeMap, BTreeSet};

/// Windows whose results may come. A device that does not count gives none.
const MOST_AWAITED: usize = 8;

/// The window that is open, and those whose results may come.
#[derive(Debug, Default)]
pub(super) struct HitRates {
    open: Option<Open>,
    awaited: BTreeSet<u64>,
    last: u64,
    rates: BTreeMap<ApplicationId, f64>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    application: ApplicationId,
    number: u64,
    since: Nanos,
}

impl HitRates {
    /// The hit rate of an application while it ran alone, as the device counted.
    pub(super) fn get(&self, application: ApplicationId) -> Option<f64> {
        self.rates.get(&application).copied()
    }

    /// An application starts a grid. `has_company`: another has some on the device.
    pub(super) fn starts(
        &mut self,
        turn: &mut Turn<'_>,
        application: ApplicationId,
        has_company: bool,
    ) {
        if has_company {
            self.end();
        } else if self.open.is_none_or(|open| open.application != application) {
            self.end();
            self.begin(turn, application);
        }
    }

    /// Ends a window that is long enough, and takes what is known of those before.
    pub(super) fn look(&mut self, turn: &mut Turn<'_>) {
        // Nobody runs alone.
        let Some(open) = self.open else { return };
        let Some(sampling) = turn.device.traffic_sampling() else { return };
        for (number, rate) in sampling.hit_rates() {
            if self.awaited.remove(&number) {
                self.rates.insert(open.application, rate);
            }
        }
        if turn.now().saturating_sub(open.since) >= turn.config().traffic_window {
            if let Some(sampling) = turn.device.traffic_sampling() {
                sampling.end_traffic(open.number);
            }
            self.awaited.insert(open.number);
            if self.awaited.len() > MOST_AWAITED {
                self.awaited.pop_first();
            }
            self.begin(turn, open.application);
        }
    }

    pub(super) fn forget(&mut self, application: ApplicationId) {
        self.rates.remove(&application);
    }

    /// The device is gone, and its counters.
    pub(super) fn reset(&mut self) {
        self.end();
    }

    fn begin(&mut self, turn: &mut Turn<'_>, application: ApplicationId) {
        self.last += 1;
        self.open = Some(Open { application, number: self.last, since: turn.now() });
        if let Some(sampling) = turn.device.traffic_sampling() {
            sampling.begin_traffic(self.last);
        }
    }

    fn end(&mut self) {
        self.open = None;
        self.awaited.clear();
    }
}

/// The same accesses, at a hit rate that was measured.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a count, from 0 to 1"
)]
pub(super) fn at_rate(traffic: Traffic, rate: Option<f64>) -> Traffic {
    let Some(rate) = rate else { return traffic };
    let hits = (traffic.llc_accesses as f64 * rate).round() as u64;
    Traffic { llc_hits: hits, hits_least: hits, hits_most: hits, ..traffic }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_stay_and_hits_are_what_was_measured() {
        let counted = Traffic::exact(10, 1_000, 400, 40);
        assert_eq!(at_rate(counted, None), counted);
        assert_eq!(at_rate(counted, Some(0.75)), Traffic::exact(10, 1_000, 400, 300));
    }
}
