//! Long launches leave a device that drains ([`Phase::Draining`]), and come back.
//!
//! A device that drains closes when nothing is on it, so one long launch would keep everybody's
//! code from being loaded. Where a device says so, a launch of workers that may last long can
//! therefore leave: all its workers come by helper grids, and nothing stands in the program's
//! stream but a wait for the launch's last CTA, as for tickets. For a phase all its helper grids
//! are retired. Their workers leave at the next task border, and unclaimed CTAs stay in the queue.
//! Behind the phase other helper grids go on. Tickets leave too: no wave is sent.
//!
//! Launches that stay keep the device from closing. Where one has done so for long, nobody leaves:
//! it would not end sooner.

use super::helpers::Helpers;
use super::spec::{Launch, Run, Spec};
use super::worker::Worker;
use super::{Launches, signal_retired};
use crate::turn::Turn;
use partita_device::Phase;
use partita_model::Nanos;

/// The expected time from which on a launch can leave. Shorter launches end while the device
/// drains.
const LONG: Nanos = Nanos(50_000_000);

/// Whether a launch on `places` may last long, and have CTAs that nobody has claimed. `cta_time` is
/// what is known of its CTAs.
pub(super) fn may_last(spec: &Spec, places: u64, cta_time: Option<Nanos>) -> bool {
    let rounds = spec.ctas().div_ceil(places.max(1));
    let is_long = |cta: Nanos| Nanos(cta.0.saturating_mul(rounds)) >= LONG;
    rounds > 1 && cta_time.is_none_or(is_long)
}

impl Launches {
    /// Whether launches that can leave shall do so now.
    pub(super) fn is_leaving(&self, turn: &Turn<'_>) -> bool {
        if turn.device.phase() != Phase::Draining || !turn.device.launches_may_leave() {
            return false;
        }
        let now = turn.now();
        let is_old = |begun: Nanos| now.saturating_sub(begun) >= LONG;
        let stays = |launch: &Launch| !launch.main_done && !launch.can_leave();
        !self.records.values().any(|l| stays(l) && l.begun().is_some_and(is_old))
    }

    /// Has the workers leave of all launches that can. `longest_task` bounds how long they stay.
    pub(crate) fn leave_for_phase(&mut self, turn: &mut Turn<'_>, longest_task: Nanos) {
        if !self.is_leaving(turn) {
            return;
        }
        let has_grids = |l: &Launch| l.claims().is_some_and(|claims| !claims.helpers.is_empty());
        if self.records.values().any(|launch| launch.can_leave() && has_grids(launch)) {
            turn.device.launches_leave();
        }
        let soon = turn.now() + turn.config().unsettled_tick + longest_task;
        for launch in self.records.values_mut().filter(|launch| !launch.main_done) {
            let (id, session) = (launch.spec.id, launch.place.session);
            let Some(worker) = launch.worker_mut().filter(|worker| worker.can_leave) else {
                continue;
            };
            let retired = worker.retire_all(soon);
            if retired != 0
                && let Err(error) = signal_retired(turn.device, worker.claims.block, worker.retired)
            {
                // The next look tries again.
                worker.retired &= !retired;
                let text = format!("{id} was not told to leave for a phase: {error}");
                turn.log_error(Some(session), text);
            }
        }
    }

    /// The device is open again. Launches whose grids had gone could make no progress before.
    pub(crate) fn come_back(&mut self, now: Nanos) {
        for launch in self.records.values_mut().filter(|launch| !launch.main_done) {
            let has_left = launch.can_leave()
                && launch.claims().is_some_and(|claims| claims.helpers.is_empty());
            if has_left {
                launch.watch.begin_anew(now);
            }
        }
        self.look_by(now);
    }
}

impl Launch {
    /// Whether the launch can leave for a phase.
    pub(super) fn can_leave(&self) -> bool {
        match &self.run {
            Run::Worker(worker) => worker.can_leave,
            Run::Ticket(_) => true,
            Run::MachineCode(_) | Run::Original(_) => false,
        }
    }
}

impl Worker {
    /// Retires all helper grids. Returns the bits of the grids that this call retired.
    fn retire_all(&mut self, soon: Nanos) -> u32 {
        let all = self.claims.helpers.numbers();
        let new = all & !self.retired;
        if new != 0 {
            self.retired |= all;
            self.arrivals = Default::default();
            // The SMs of its workers are empty until that is seen.
            self.claims.unsure_until = self.claims.unsure_until.max(soon);
        }
        new
    }
}

impl Helpers {
    /// Their numbers, one bit each.
    fn numbers(&self) -> u32 {
        self.0.values().fold(0, |all, helper| all | 1 << helper.number)
    }
}
