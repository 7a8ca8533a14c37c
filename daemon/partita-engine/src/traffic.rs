//! What applications have executed and what of it reached the LLC, where the device counts; and
//! power.
//!
//! An application's traffic is that of all its grids, ended or not, the rewritten form's own
//! instructions included.

use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{ApplicationId, LaunchId, OperationId, SmSet, Traffic};

impl Engine {
    /// A grid has ended.
    pub(crate) fn count_grid(&mut self, device: &dyn Device, id: LaunchId, operation: OperationId) {
        let Some(application) = self.launches.get(&id).map(|launch| launch.application) else {
            return;
        };
        let Some(application) = self.applications.get_mut(&application) else { return };
        if let Some(counters) = device.grid_counters(operation) {
            add(&mut application.traffic_ended, &counters.traffic());
        }
    }

    /// Since the application came; `None` where the device does not count.
    pub(crate) fn traffic_of(&self, device: &dyn Device, id: ApplicationId) -> Option<Traffic> {
        device.counters()?;
        let mut traffic = self.applications.get(&id)?.traffic_ended;
        for launch in self.launches.values().filter(|launch| launch.application == id) {
            let main = Some(launch.main).filter(|_| !launch.main_done);
            for grid in main.into_iter().chain(launch.helpers.keys().copied()) {
                if let Some(counters) = device.grid_counters(grid) {
                    add(&mut traffic, &counters.traffic());
                }
            }
        }
        // Grids of workers have other CTAs than the program's.
        Some(Traffic { ctas: self.applications.get(&id)?.ctas_completed, ..traffic })
    }

    /// Takes power from the SMs that the policy wants to be without.
    pub(crate) fn apply_gated(&mut self, device: &mut dyn Device) {
        let gated = self.policy.orders().gated;
        if self.gated == gated {
            return;
        }
        self.gated = gated;
        if let Err(error) = device.gate(gated) {
            // They stay empty all the same.
            self.log(LogLevel::Info, None, format!("SMs that nobody needs stay powered: {error}"));
        }
    }

    /// SMs without power.
    #[must_use]
    pub fn gated(&self) -> SmSet {
        self.gated
    }
}

fn add(sum: &mut Traffic, more: &Traffic) {
    *sum = sum.combine(more, u64::saturating_add);
}
