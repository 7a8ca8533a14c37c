//! Partitions: who shall have which SMs, who has them, and how they change hands.
//!
//! Three sets are kept apart. The *target* is what the policy or an administrator decided.
//! *Granted* is where workers of an application may be, as its control blocks say. An SM is
//! *draining* between the moment at which its loser was told and the moment at which the loser's
//! last worker there was seen to have left; only then is it granted to its new owner. So sets of
//! resident workers are disjoint at every moment, however fast one decision follows another.
//!
//! A worker of the loser that starts late leaves before its first task: it looks at the bitmap
//! before every task.

use crate::control_block::{signal_allowed, signal_stalled};
use crate::effects::Effect;
use crate::engine::earliest;
use crate::state::{Application, Launch, LaunchForm};
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{ApplicationId, LaunchId, Nanos, Progress, SmId, SmSet, TraceEntry};
use partita_policy::{ApplicationObservation, Deciders, Observation, Plan, PlanError};
use std::collections::BTreeMap;

impl Engine {
    /// Sets the partitions of the named applications and keeps them (*pins*) until one of these
    /// applications leaves; the others share what is left.
    ///
    /// # Errors
    /// Where the plan cannot hold; nothing has changed then.
    pub fn set_plan(
        &mut self,
        device: &mut dyn Device,
        partitions: BTreeMap<ApplicationId, SmSet>,
    ) -> Result<(), PlanError> {
        let here = |id: &ApplicationId| self.applications.get(id).is_some_and(|a| !a.leaving);
        if let Some(&application) = partitions.keys().find(|id| !here(id)) {
            let known: Vec<String> =
                self.applications.keys().filter(|id| here(id)).map(|id| id.0.to_string()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(PlanError::Unknown { application, known });
        }
        let plan = Plan::new(partitions.clone(), self.facts.sm_count)?;
        if plan.taken().len() == self.facts.sm_count {
            let starves = |(id, a): &(&ApplicationId, &Application)| {
                a.demand > 0 && !a.leaving && !partitions.contains_key(id)
            };
            if let Some((&application, _)) = self.applications.iter().find(starves) {
                return Err(PlanError::Starves { application });
            }
        }
        self.pinned = partitions;
        self.replan_now(device);
        Ok(())
    }

    /// Gives all partitions back to the policy.
    pub fn unpin(&mut self, device: &mut dyn Device) {
        self.pinned.clear();
        self.replan_now(device);
    }

    /// Asks others from now on who runs together and who has how many SMs.
    pub fn set_policy(&mut self, device: &mut dyn Device, (selector, partitioner): Deciders) {
        self.policy.replace(selector, partitioner);
        self.replan_now(device);
    }

    fn replan_now(&mut self, device: &mut dyn Device) {
        self.effects.push(Effect::Replan);
        self.settle(device);
    }

    /// Lets the workers on these SMs wait at their next task border, besides those that the policy
    /// lets wait.
    pub fn set_stalled(&mut self, device: &mut dyn Device, sms: SmSet) {
        self.stalled_by_hand = sms;
        self.apply_stalled(device);
        self.settle(device);
    }

    /// Signals where workers wait. What was launched while some waited was kept off their SMs, and
    /// may go there now. While a module is loaded, or SMs are made ready, and that waits for every
    /// grid, nobody waits.
    pub(crate) fn apply_stalled(&mut self, device: &mut dyn Device) {
        let nothing_loads = self.loading.is_empty() && self.confining.is_empty();
        let stalled = match nothing_loads || !device.loading_waits_for_grids() {
            true => self.stalled_by_hand.union(&self.policy.orders().stalled),
            false => SmSet::EMPTY,
        };
        if self.stalled == stalled {
            return;
        }
        self.stalled = stalled;
        let mut failed = None;
        for launch in self.launches.values() {
            let Some(worker) = &launch.worker else { continue };
            failed = signal_stalled(device, worker.block, &stalled).err().or(failed);
            if let Some(application) = self.applications.get(&launch.application) {
                failed =
                    signal_allowed(device, worker.block, &application.granted).err().or(failed);
            }
        }
        if let Some(error) = failed {
            self.log(LogLevel::Error, None, format!("a stall was not signalled: {error}"));
        }
        let now = device.now();
        self.stall_followed = now + self.longest_task();
        self.tick_at = earliest(self.tick_at, now);
    }

    /// Whether nobody works on stalled SMs any more. Tickets and machine code are seen to leave;
    /// workers wait in their places and do not say so, but each has come to a task border after the
    /// time of a task.
    fn is_stall_followed(&self, now: Nanos) -> bool {
        let running = || self.front.iter().filter_map(|id| self.launches.get(id).map(Box::as_ref));
        let on_stalled = |launch: &Launch| match launch.spec.form() {
            LaunchForm::Ticket => {
                launch.worker.as_ref().is_some_and(|worker| worker.seen.live_on(&self.stalled) > 0)
            }
            LaunchForm::MachineCode => !launch.sms.is_disjoint(&self.stalled),
            LaunchForm::Worker | LaunchForm::Original => false,
        };
        now >= self.stall_followed && !running().any(on_stalled)
    }

    /// How long a worker that has just claimed a task works on it, over all running launches whose
    /// CTAs' time is known.
    pub(crate) fn longest_task(&self) -> Nanos {
        let running = self.front.iter().filter_map(|id| self.launches.get(id).map(Box::as_ref));
        let task = |launch: &Launch| {
            let cta = self.cta_time(&launch.spec)?;
            Some(Nanos(cta.0.saturating_mul(launch.worker.as_ref()?.task.into())))
        };
        running.filter_map(task).max().unwrap_or_default()
    }

    /// An application has one more worker launch.
    pub(crate) fn demand_began(&mut self, now: Nanos, id: ApplicationId) {
        let Some(application) = self.applications.get_mut(&id) else { return };
        if application.demand == 0 {
            application.busy_since = now;
        }
        application.demand += 1;
        if !application.active {
            self.effects.push(Effect::Join(id));
        }
    }

    /// An application without work has some again: it takes part from now on.
    pub(crate) fn join(&mut self, device: &mut dyn Device, id: ApplicationId) {
        // It may have left, or joined by an earlier launch of the same turn.
        let absent = |application: &&mut Application| !application.active && !application.leaving;
        let Some(application) = self.applications.get_mut(&id).filter(absent) else { return };
        application.active = true;
        self.replan(device);
        if self.target_of(id).is_empty() {
            let text = format!("{id} has work but no SM is left for it: it waits until one is");
            self.log(LogLevel::Warning, None, text);
        }
    }

    /// An application has one worker launch less.
    pub(crate) fn demand_ended(&mut self, id: ApplicationId, now: Nanos) {
        let Some(application) = self.applications.get_mut(&id) else { return };
        application.demand -= 1;
        if application.demand == 0 {
            application.idle_since = now;
            application.busy_before += now.saturating_sub(application.busy_since);
        }
    }

    /// When the policy wants to look again: at the end of a window, or when an idle application's
    /// SMs are lent. While nobody has work there is nothing to look at.
    pub(crate) fn policy_due(&self) -> Option<Nanos> {
        let active = || self.policed().filter(|(_, application)| application.active);
        if !active().any(|(_, application)| application.demand > 0) {
            return None;
        }
        let idle = active().filter(|(_, application)| application.demand == 0);
        let grace =
            idle.map(|(_, application)| application.idle_since + self.config.idle_grace).min();
        grace.into_iter().chain(self.policy.next_at()).min()
    }

    /// The applications whose SMs the policy decides on.
    fn policed(&self) -> impl Iterator<Item = (&ApplicationId, &Application)> {
        self.applications.iter().filter(|(id, a)| !a.leaving && !self.pinned.contains_key(id))
    }

    /// Shows the policy what is, and sets going what it wants.
    pub(crate) fn replan(&mut self, device: &mut dyn Device) {
        let front: Vec<LaunchId> = self.front.iter().copied().collect();
        for launch in front {
            self.observe(device, launch);
        }
        let now = device.now();
        let pinned = self.pinned.values().fold(SmSet::EMPTY, |all, sms| all.union(sms));
        let seen = Observation {
            now,
            sms: SmSet::range(0, self.facts.sm_count).difference(&pinned),
            settled: !self.handover_pending && self.is_stall_followed(now),
            applications: self
                .policed()
                .map(|(&id, application)| ApplicationObservation {
                    total: Progress {
                        ctas: application.ctas_completed,
                        traffic: if self.config.device_counters {
                            self.traffic_of(device, id)
                        } else {
                            self.profiled_traffic(id)
                        },
                    },
                    counting: self.is_counted(id),
                    ..self.seen(id, application, now)
                })
                .collect(),
        };
        let moved = self.policy.observe(&seen).is_some();
        while let Some(notice) = self.policy.poll_notice() {
            self.log(LogLevel::Warning, None, partita_policy::notice(&notice));
        }
        for (id, application) in &mut self.applications {
            if !application.leaving && !self.pinned.contains_key(id) {
                application.active = self.policy.takes_part(*id);
            }
        }
        let mut targets: BTreeMap<ApplicationId, SmSet> =
            self.policy.orders().plan.iter().collect();
        self.round_targets(device, &mut targets);
        targets.extend(self.pinned.iter().map(|(&id, &sms)| (id, sms)));
        self.apply_stalled(device);
        self.apply_gated(device);
        if moved
            || self
                .applications
                .iter()
                .any(|(id, a)| targets.get(id).copied().unwrap_or_default() != a.target)
        {
            self.apply_targets(device, &targets);
        }
    }

    /// What the policy sees of an application, but for its progress.
    fn seen(
        &self,
        id: ApplicationId,
        application: &Application,
        now: Nanos,
    ) -> ApplicationObservation {
        let has_work = application.demand > 0;
        let present = if has_work { now.saturating_sub(application.busy_since) } else { Nanos(0) };
        let front = self.front.iter().filter_map(|launch| self.launches.get(launch));
        let own = front.filter(|launch| launch.application == id);
        let workers = own.filter_map(|launch| Some((launch.worker.as_ref()?, launch.spec.total())));
        let (in_flight, launched) =
            workers.fold((0_u64, 0_u64), |(in_flight, launched), (worker, total)| {
                // Some claim in vain at the end.
                let claimed = worker.seen.next.min(total).saturating_sub(worker.seen.completed);
                (in_flight.saturating_add(claimed), launched.saturating_add(total))
            });
        ApplicationObservation {
            application: id,
            tenant: application.tenant,
            tag: application.tag.clone(),
            has_work,
            idle_since: application.idle_since,
            busy: application.busy_before + present,
            total: Progress::default(),
            in_flight,
            launched,
            counting: false,
        }
    }

    fn target_of(&self, id: ApplicationId) -> SmSet {
        self.applications.get(&id).map_or(SmSet::EMPTY, |application| application.target)
    }

    fn apply_targets(&mut self, device: &mut dyn Device, targets: &BTreeMap<ApplicationId, SmSet>) {
        let now = device.now();
        self.owners.fill(None);
        for (&id, sms) in targets {
            for sm in sms.iter() {
                self.owners[usize::from(sm.0)] = Some(id);
            }
        }
        let mut losers = Vec::new();
        for (&id, application) in &mut self.applications {
            application.target = targets.get(&id).copied().unwrap_or(SmSet::EMPTY);
            let kept = application.granted.intersection(&application.target);
            if kept != application.granted {
                losers.push((id, kept, application.granted.difference(&kept)));
            }
        }
        for &(id, kept, lost) in &losers {
            for launch in self.worker_launches_of(id) {
                for sm in lost.iter() {
                    self.shrink_entry(launch, sm);
                }
            }
            for sm in lost.iter() {
                self.draining[usize::from(sm.0)] = Some(id);
            }
            self.set_granted(device, id, kept, now);
        }
        for (id, ..) in losers {
            self.observe_application(device, id);
        }
        self.handover_pending = true;
        self.hand_over(device);
    }

    fn shrink_entry(&mut self, id: LaunchId, sm: SmId) {
        if let Some(launch) = self.launches.get(&id) {
            self.ledger.set(launch.stream, id, sm, 0);
        }
    }

    pub(crate) fn worker_launches_of(&self, application: ApplicationId) -> Vec<LaunchId> {
        self.launches
            .iter()
            .filter(|(_, launch)| launch.application == application && launch.worker.is_some())
            .map(|(&id, _)| id)
            .collect()
    }

    /// Signals a new set to everything of an application that is in flight.
    fn set_granted(&mut self, device: &mut dyn Device, id: ApplicationId, to: SmSet, now: Nanos) {
        let Some(application) = self.applications.get_mut(&id) else { return };
        let from = std::mem::replace(&mut application.granted, to);
        let (mut failed, unsure) = (None, self.config.unsettled_tick);
        for launch in self.launches.values_mut().filter(|launch| launch.application == id) {
            if let Some(worker) = &mut launch.worker {
                failed = signal_allowed(device, worker.block, &to).err().or(failed);
                worker.attempts = 0;
                worker.arrivals.forgive();
                let gained = to.difference(&from);
                if !gained.is_empty() {
                    // What was sent before was not for these SMs.
                    worker.next_wave = worker.next_wave.min(now);
                    worker.unsure_until = worker.unsure_until.max(now + unsure);
                }
            }
        }
        if let Some(error) = failed {
            self.log(LogLevel::Error, None, format!("a resize of {id} was not signalled: {error}"));
        }
        self.trace.push(TraceEntry::Resize { time: now, application: id, from, to });
    }

    /// Grants every SM whose former owner's workers are gone.
    pub(crate) fn hand_over(&mut self, device: &mut dyn Device) {
        if !self.handover_pending {
            return;
        }
        self.handover_pending = false;
        let mut gains: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        for sm in SmSet::range(0, self.facts.sm_count).iter() {
            let index = usize::from(sm.0);
            let owner = self.owners[index];
            if let Some(loser) = self.draining[index] {
                if Some(loser) != owner && self.has_live_workers(loser, sm) {
                    self.handover_pending = true;
                    continue;
                }
                self.draining[index] = None;
            }
            if let Some(owner) = owner
                && self
                    .applications
                    .get(&owner)
                    .is_some_and(|application| !application.granted.contains(sm))
            {
                gains.entry(owner).or_default().insert(sm);
            }
        }
        let now = device.now();
        for (&id, gained) in &gains {
            let granted =
                self.applications.get(&id).map_or(SmSet::EMPTY, |application| application.granted);
            self.set_granted(device, id, granted.union(gained), now);
        }
        if !gains.is_empty() {
            self.effects.push(Effect::PumpWaiting);
        }
        if !gains.is_empty() || self.handover_pending {
            self.tick_at = earliest(self.tick_at, now + self.config.handover_tick);
        }
    }

    fn has_live_workers(&self, application: ApplicationId, sm: SmId) -> bool {
        self.launches.values().any(|launch| {
            launch.application == application
                && match &launch.worker {
                    Some(worker) => {
                        worker.seen.live.get(usize::from(sm.0)).is_some_and(|&live| live > 0)
                    }
                    None => launch.sms.contains(sm),
                }
        })
    }
}
