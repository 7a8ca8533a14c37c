//! Launches of tickets: waves of CTAs that each run one CTA of the original and exit.
//!
//! Nothing stands in the program's stream but a wait until `completed` equals `total`, so the
//! stream's next operation is never early and no SM is taken by it. The waves go to side streams,
//! each as large as the places that the ledger holds for the launch and that no ticket has, so that
//! none waits in the hardware's block scheduler, where it would keep other applications' grids
//! waiting too. Only where no other application has work, more tickets are sent than there are
//! places: the scheduler fills these faster than the host.
//!
//! A ticket that finds its SM foreign or stalled, or nothing left, exits without a claim; so a wave
//! may run fewer CTAs than it has, and waves follow as long as CTAs are left.

use crate::Engine;
use crate::upkeep::Staffing;
use partita_device::Device;
use partita_model::{LaunchId, Nanos, SmId};

/// Tickets per place where nobody else has work.
const AHEAD: u64 = 4;

impl Engine {
    /// Sends a wave where places are free and CTAs are left.
    pub(crate) fn send_waves(
        &mut self,
        device: &mut dyn Device,
        id: LaunchId,
        now: Nanos,
    ) -> Staffing {
        let Some(launch) = self.launches.get(&id) else { return Staffing::Complete };
        let Some(worker) = launch.worker.as_ref().filter(|_| !launch.main_done) else {
            return Staffing::Complete;
        };
        let left = launch.spec.total().saturating_sub(worker.seen.next);
        let Some(application) = self.applications.get(&launch.application) else {
            return Staffing::Complete;
        };
        if left == 0 {
            return Staffing::Complete;
        }
        let own = application.granted.difference(&self.stalled);
        let (application, stream, cta) = (launch.application, launch.stream, launch.spec.cta);
        let live = worker.seen.live_total();
        self.extend_entry(id, stream, &own, left.saturating_add(live));

        let Some(launch) = self.launches.get(&id) else { return Staffing::Complete };
        let Some(worker) = &launch.worker else { return Staffing::Complete };
        let missing = |sm: SmId| {
            let live = worker.seen.live.get(usize::from(sm.0)).copied().unwrap_or(0);
            self.held(stream, id, sm).saturating_sub(live)
        };
        let most = own.iter().map(missing).max().unwrap_or(0);
        let free: u64 = own.iter().map(|sm| u64::from(missing(sm))).sum();
        if free > 0 && now >= worker.next_wave {
            let nobody_else =
                self.applications.iter().all(|(&other, a)| other == application || a.demand == 0);
            let wanted = if nobody_else { free * AHEAD } else { free };
            let ctas = wanted.min(left) + self.burn(&own, stream, cta, most);
            self.send_helper(device, id, u32::try_from(ctas).unwrap_or(u32::MAX), now);
        }
        Staffing::Lacking
    }
}
