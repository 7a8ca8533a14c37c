//! Steps of the policy: what it is shown, and what its orders change.

use super::Machines;
use crate::effects::Effect;
use crate::handover::ledger::Usage;
use crate::handover::{Granted, Targets};
use crate::launches::Patience;
use crate::observer::Account;
use crate::sessions::Application;
use crate::turn::Turn;
use crate::{About, LogLevel};
use partita_device::Device;
use partita_model::{
    ApplicationId, Entitlement, Happening, Nanos, Priority, Progress, ResizeReason, SmSet,
    TraceEntry, Traffic,
};
use partita_policy::{ApplicationObservation, Bounds, Observation, PlanError};
use std::collections::BTreeMap;

impl Machines {
    /// Checks and keeps partitions that an administrator sets.
    pub(crate) fn set_plan(
        &mut self,
        partitions: BTreeMap<ApplicationId, SmSet>,
    ) -> Result<(), PlanError> {
        let here = |id: &ApplicationId| self.sessions.application(*id).is_some_and(|a| !a.leaving);
        if let Some(&application) = partitions.keys().find(|id| !here(id)) {
            let known: Vec<String> =
                self.sessions.staying().map(|(id, _)| id.0.to_string()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(PlanError::Unknown { application, known });
        }
        self.handover.pin(partitions, self.observer.at_work().filter(here))
    }

    /// When the policy wants to look again.
    pub(crate) fn policy_due(&self) -> Option<Nanos> {
        self.observer.policy_due(|id| self.is_policed(id))
    }

    /// Whether the policy decides on an application's SMs.
    fn is_policed(&self, id: ApplicationId) -> bool {
        let stays = self.sessions.application(id).is_some_and(|a| !a.leaving);
        stays && !self.handover.is_pinned(id)
    }

    /// An application without work has some again: it takes part from now on.
    pub(super) fn join(&mut self, turn: &mut Turn<'_>, id: ApplicationId) {
        let stays = self.sessions.application(id).is_some_and(|a| !a.leaving);
        // It may have left, or joined by an earlier launch of the same turn.
        if !stays || self.observer.account(id).is_none_or(Account::is_active) {
            return;
        }
        self.observer.set_active(id, true);
        self.replan(turn);
        if self.handover.target(id).is_empty() {
            let text = format!("{id} has work but no SM is left for it: it waits until one is");
            turn.log(LogLevel::Warning, id, text);
        }
    }

    /// Shows the policy the applications, and carries out its orders.
    pub(super) fn replan(&mut self, turn: &mut Turn<'_>) {
        for launch in self.launches.front_ids() {
            self.observe(turn, launch);
        }
        self.apply_terms(turn);
        let now = turn.now();
        let is_moving = self.handover.is_pending() || !self.handover.lingering().is_empty();
        let settled = !is_moving && self.is_stall_followed(now);
        let policed = self.sessions.staying().filter(|(id, _)| !self.handover.is_pinned(*id));
        // Every application has an account, from its first session to its last.
        let applications = policed
            .filter_map(|at| Some(self.seen(turn, at, self.observer.account(at.0)?)))
            .collect();
        let sms = self.handover.unpinned_sms();
        let pinned = self.handover.pinned_sms();
        let before = self.last_decision();
        let seen = Observation { now, sms, pinned, settled, applications };
        let moved = self.observer.show(turn, &seen);
        let reason = self.tell_decision(turn, before);
        let orders = self.observer.policy().orders();
        let parts = orders.plan.parts().clone();
        let mut targets = Targets { sms: orders.plan.iter().collect(), parts };
        let idle = sms.difference(&orders.plan.taken()).difference(&orders.gated);
        let bounds = |id| {
            let entitlement = self.sessions.application(id).map(|own| own.entitlement);
            entitlement.map_or(Bounds::default(), |own| Bounds {
                least: own.min,
                most: own.max,
                weight: own.weight.get(),
            })
        };
        self.launches.round_targets(turn.device, &self.handover, &mut targets, idle, bounds);
        targets.sms.extend(self.handover.pinned().iter().map(|(&id, &sms)| (id, sms)));
        self.stall(turn);
        self.gate(turn);
        if moved || self.handover.differs(&targets) {
            self.aim(turn, &targets, reason);
        }
    }

    /// Sets for how long applications without work keep their SMs, at most, what their requests may
    /// take, and what the meter holds their SMs against.
    fn apply_terms(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now();
        for (id, application) in self.sessions.staying() {
            let config = turn.config();
            let longest = match application.entitlement.priority {
                Priority::Latency => config.urgent_grace.min(config.idle_grace),
                Priority::Normal | Priority::Batch => config.idle_grace,
            };
            let Entitlement { min, target, priority, .. } = application.entitlement;
            turn.common.meter.promised(id, now, min);
            if let Some(account) = self.observer.account_mut(id) {
                account.set_longest_grace(longest);
                account.set_target(target.filter(|_| priority == Priority::Latency));
            }
        }
    }

    /// What the policy sees of an application.
    fn seen(
        &self,
        turn: &Turn<'_>,
        (id, application): (ApplicationId, &Application),
        account: &Account,
    ) -> ApplicationObservation {
        let (in_flight, launched) = self.launches.progress_of(&self.handover, id);
        let is_urgent = application.entitlement.priority == Priority::Latency;
        let traffic = if turn.config().device_counters {
            self.counted_traffic(turn.device, id)
        } else {
            self.observer.profiled_traffic(id, self.launches.will_be_counted(id))
        };
        ApplicationObservation {
            application: id,
            tenant: application.tenant,
            tag: application.tag.clone(),
            has_work: account.has_work(),
            lends_at: account.lends_at(),
            busy: account.busy(turn.now()),
            total: Progress { ctas: account.ctas_completed(), traffic },
            in_flight,
            launched,
            counting: self.launches.is_counted(id),
            stuck: self.launches.stuck_for(id).is_some(),
            character: self.observer.character(id),
            cramped: account.is_cramped(),
            entitlement: Entitlement {
                need: is_urgent.then(|| account.need(launched, turn.facts().sm_count)),
                ..application.entitlement
            },
        }
    }

    /// Looks whether a launch of an application that shares its SMs can ever have room in its part:
    /// a CTA of this size does not fit, or the launch cannot be kept to a part (`None`). The policy
    /// then lets the application share none.
    pub(super) fn see_if_cramped(
        &mut self,
        turn: &mut Turn<'_>,
        id: ApplicationId,
        cta: Option<Usage>,
    ) {
        let Some(part) = self.handover.part(id) else { return };
        let fits = |cta| self.handover.ledger().occupancy_of_part(part, cta) > 0;
        let account = self.observer.account_mut(id).filter(|account| !account.is_cramped());
        if let Some(account) = account
            && !cta.is_some_and(fits)
        {
            account.set_cramped();
            turn.push(Effect::Replan);
        }
    }

    /// What an application's grids did since it came, ended or not, the rewritten form's own
    /// instructions included. `None` where the device does not count.
    pub(crate) fn counted_traffic(
        &self,
        device: &dyn Device,
        id: ApplicationId,
    ) -> Option<Traffic> {
        let counting = device.counting()?;
        let account = self.observer.account(id)?;
        let grids = self.launches.grids_of(id);
        let counters = grids.filter_map(|grid| counting.grid_counters(grid));
        let traffic = counters.fold(account.counted(), |sum, counters| {
            sum.combine(&counters.traffic(), u64::saturating_add)
        });
        // Grids of workers have other CTAs than the program's.
        Some(Traffic { ctas: account.ctas_completed(), ..traffic })
    }

    // Borders.

    /// Sets the owners of SMs, and grants those that are free.
    fn aim(&mut self, turn: &mut Turn<'_>, targets: &Targets, reason: ResizeReason) {
        let losses = self.handover.aim(targets, turn.now());
        if !losses.is_empty() {
            let now = turn.now();
            turn.common.meter.resize_began(now, reason);
        }
        for loss in &losses {
            let lost = loss.from.difference(&loss.to);
            let shrunk = self.launches.shrink(&mut self.handover, loss.application, &lost);
            turn.sound(shrunk);
            self.announce(turn, loss);
        }
        for loss in losses {
            self.observe_application(turn, loss.application);
        }
        self.hand_over(turn);
    }

    /// Tells an application's launches, and the trace, where its workers may be.
    fn announce(&mut self, turn: &mut Turn<'_>, change: &Granted) {
        self.launches.signal_granted(turn, &self.handover, change);
        let Granted { application, from, to } = *change;
        let now = turn.now();
        turn.common.meter.granted(application, now, &to);
        if let Some(account) = self.observer.account_mut(application) {
            account.holds(to.len());
        }
        turn.happened(Happening::Border { application, from, to });
        self.trace.push(TraceEntry::Resize { time: now, application, from, to });
    }

    /// Grants every SM whose former holder's workers are gone or linger.
    pub(super) fn hand_over(&mut self, turn: &mut Turn<'_>) {
        self.look_after_lingering(turn);
        if !self.handover.is_pending() {
            self.tell_settled(turn);
            return;
        }
        let (launches, before) = (&self.launches, self.handover.lingering().all());
        let patience = Patience::of(turn);
        let gains = self.handover.advance(|id, sm, lost| launches.presence(id, sm, lost, patience));
        self.tell_lingering(turn, &before);
        self.look_after_lingering(turn);
        for gain in &gains {
            let held = self.launches.hold_regained(&mut self.handover, gain);
            turn.sound(held);
        }
        for gain in &gains {
            self.announce(turn, gain);
        }
        if !gains.is_empty() {
            turn.push(Effect::PumpWaiting);
        }
        if !gains.is_empty() || self.handover.is_pending() {
            self.launches.look_by(turn.now() + turn.config().handover_tick);
        }
        self.tell_settled(turn);
    }

    /// The ledger keeps room for workers that linger on others' SMs. Workers that have gone linger
    /// no more.
    fn look_after_lingering(&mut self, turn: &mut Turn<'_>) {
        if self.handover.lingering().is_empty() {
            return;
        }
        let held = self.launches.hold_lingering(&mut self.handover);
        turn.sound(held);
        let (launches, lingering) = (&self.launches, self.handover.lingering_mut());
        lingering.see_off(|application, sm| launches.is_on(application, sm));
    }

    /// Tells of workers that linger on more SMs than `before`.
    fn tell_lingering(&self, turn: &mut Turn<'_>, before: &BTreeMap<ApplicationId, SmSet>) {
        for (id, sms) in self.handover.lingering().all() {
            let new = before.get(&id).map_or(sms, |before| sms.difference(before));
            if new.is_empty() {
                continue;
            }
            let name = self.sessions.application(id).map_or("", |a| &a.name);
            let text = format!(
                "{id} ({name}) has lost SMs {new}, and CTAs there have not ended: the SMs' new \
                 owners work beside them, where these leave room"
            );
            turn.log(LogLevel::Info, id, text);
        }
    }

    // Stalled and gated SMs.

    /// Signals where workers wait. While a module is loaded, or SMs are made ready, and that waits
    /// for every grid, no worker waits.
    pub(super) fn stall(&mut self, turn: &mut Turn<'_>) {
        let nothing_loads = !self.sessions.is_loading() && !self.launches.is_confining();
        let may_wait = nothing_loads || !turn.device.loading_waits_for_grids();
        // Slices wait for modules.
        if nothing_loads && self.launches.is_anyone_waiting() {
            turn.push(Effect::PumpWaiting);
        }
        let by_policy = self.observer.policy().orders().stalled;
        if !self.handover.stall(by_policy, may_wait) {
            return;
        }
        self.launches.signal_stalled(turn, &self.handover);
        let now = turn.now();
        self.handover.stall_followed_by(now + self.longest_task());
        self.launches.look_by(now);
    }

    /// Whether no CTA works on stalled SMs any more. Tickets and machine code are seen to leave.
    /// Workers wait in their places and do not say so, but each has come to a task border after the
    /// time of a task.
    fn is_stall_followed(&self, now: Nanos) -> bool {
        let stalled = self.handover.stalled();
        self.handover.is_stall_followed(now) && !self.launches.is_anyone_on(&stalled)
    }

    /// Takes power from the SMs that the policy wants to be without.
    fn gate(&mut self, turn: &mut Turn<'_>) {
        let gated = self.observer.policy().orders().gated;
        if !self.handover.gate(gated) {
            return;
        }
        // The SMs stay empty all the same.
        let reason = match turn.device.gating().map(|gating| gating.gate(gated)) {
            Some(Ok(())) => return,
            Some(Err(error)) => error.to_string(),
            None => "this device cannot take power from SMs".to_owned(),
        };
        let text = format!("SMs that nobody needs stay powered: {reason}");
        turn.log(LogLevel::Info, About::default(), text);
    }
}
