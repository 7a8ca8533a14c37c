//! The LLC's hit rate of applications that run alone, where the device counts
//! ([`Device::begin_traffic`]).
//!
//! The device's counters are of the whole LLC, so a window says something of an application only
//! while nobody else has a grid on the device: one begins when an application starts a grid there
//! alone, and is cut into pieces of [`crate::EngineConfig::traffic_window`]. Grids of another end
//! it, and what has not been told by then is not believed.
//!
//! What was measured takes the place of the hit rate that the replay of a kernel's accesses gave
//! ([`crate::profiling`]).

use crate::Engine;
use partita_device::Device;
use partita_model::{ApplicationId, Nanos, Traffic};
use std::collections::BTreeSet;

/// Windows whose results may come. A device that does not count gives none.
const MOST_AWAITED: usize = 8;

/// The window that is open, and those whose results may come.
#[derive(Debug, Default)]
pub(crate) struct Alone {
    open: Option<Open>,
    awaited: BTreeSet<u64>,
    last: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    application: ApplicationId,
    number: u64,
    since: Nanos,
}

impl Alone {
    fn begin(&mut self, device: &mut dyn Device, application: ApplicationId) {
        self.last += 1;
        self.open = Some(Open { application, number: self.last, since: device.now() });
        device.begin_traffic(self.last);
    }

    fn end(&mut self) {
        self.open = None;
        self.awaited.clear();
    }
}

impl Engine {
    /// An application starts a grid.
    pub(crate) fn starts(&mut self, device: &mut dyn Device, application: ApplicationId) {
        let in_flight = |a: &crate::state::Application| a.workers_in_flight + a.originals_in_flight;
        let own = self.applications.get(&application).map_or(0, in_flight);
        if self.workers_in_flight + self.originals_in_flight > own {
            self.alone.end();
        } else if self.alone.open.is_none_or(|open| open.application != application) {
            self.alone.end();
            self.alone.begin(device, application);
        }
    }

    /// Ends a window that is long enough, and takes what is known of those before.
    pub(crate) fn look_at_traffic(&mut self, device: &mut dyn Device) {
        let Some(open) = self.alone.open else { return };
        for (number, rate) in device.hit_rates() {
            if self.alone.awaited.remove(&number)
                && let Some(application) = self.applications.get_mut(&open.application)
            {
                application.hit_rate = Some(rate);
            }
        }
        if device.now().0.saturating_sub(open.since.0) >= self.config.traffic_window.0 {
            device.end_traffic(open.number);
            self.alone.awaited.insert(open.number);
            if self.alone.awaited.len() > MOST_AWAITED {
                self.alone.awaited.pop_first();
            }
            self.alone.begin(device, open.application);
        }
    }
}

/// The same accesses, at a hit rate that was measured.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of a count, from 0 to 1"
)]
pub(crate) fn at_rate(traffic: Traffic, rate: Option<f64>) -> Traffic {
    let Some(rate) = rate else { return traffic };
    let hits = (traffic.llc_accesses as f64 * rate).round() as u64;
    Traffic { llc_hits: hits, hits_least: hits, hits_most: hits, ..traffic }
}
