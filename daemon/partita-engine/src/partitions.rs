//! Partitions: who shall have which SMs, who has them, and how they change hands.
//!
//! Three sets are kept apart. The *target* is what the policy or an administrator decided. *Granted* is where workers of
//! an application may be, as its control blocks say. An SM is *draining* between the moment at which its loser was told
//! and the moment at which the loser's last worker there was seen to have left; only then is it granted to its new
//! owner. So sets of resident workers are disjoint at every moment, however fast one decision follows another.
//!
//! A worker of the loser that starts late leaves before its first task: it looks at the bitmap before every task.

use crate::control_block::{signal_allowed, signal_stalled};
use crate::engine::earliest;
use crate::{Engine, LogLevel};
use partita_device::Device;
use partita_model::{ApplicationId, Cause, Cycles, LaunchId, Nanos, Progress, SmId, SmSet, TraceEntry};
use partita_policy::{ApplicationSample, Plan, PlanError, Sample};
use std::collections::BTreeMap;

impl Engine {
    /// Sets the partitions of the named applications and keeps them (*pins*) until one of these applications leaves;
    /// the others share what is left.
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
            let starves = |(id, a): &(&ApplicationId, &crate::state::Application)| {
                a.demand > 0 && !a.leaving && !partitions.contains_key(id)
            };
            if let Some((&application, _)) = self.applications.iter().find(starves) {
                return Err(PlanError::Starves { application });
            }
        }
        self.pinned = partitions;
        self.replan(device);
        Ok(())
    }

    /// Gives all partitions back to the policy.
    pub fn unpin(&mut self, device: &mut dyn Device) {
        self.pinned.clear();
        self.replan(device);
    }

    /// Lets the workers on these SMs wait at their next task border, and all others go on.
    pub fn set_stalled(&mut self, device: &mut dyn Device, sms: SmSet) {
        if self.stalled == sms {
            return;
        }
        self.stalled = sms;
        let mut failed = None;
        for worker in self.launches.values().filter_map(|launch| launch.worker.as_ref()) {
            failed = signal_stalled(device, worker.block, &sms).err().or(failed);
        }
        if let Some(error) = failed {
            self.log(LogLevel::Error, None, format!("a stall was not signalled: {error}"));
        }
        self.tick_at = earliest(self.tick_at, device.now());
    }

    /// An application has one more worker launch.
    pub(crate) fn demand_began(&mut self, device: &mut dyn Device, id: ApplicationId) {
        let Some(application) = self.applications.get_mut(&id) else { return };
        application.demand += 1;
        if !application.active {
            application.active = true;
            self.replan(device);
            if self.target_of(id).is_empty() {
                let text = format!("{id} has work but no SM is left for it: it waits until one is");
                self.log(LogLevel::Warning, None, text);
            }
        }
    }

    /// An application has one worker launch less.
    pub(crate) fn demand_ended(&mut self, id: ApplicationId, now: Nanos) {
        let Some(application) = self.applications.get_mut(&id) else { return };
        application.demand -= 1;
        if application.demand == 0 {
            application.idle_since = now;
        }
    }

    /// When the first idle application's SMs are lent, if somebody wants them.
    pub(crate) fn grace_end(&self) -> Option<Nanos> {
        let active = || self.applications.values().filter(|application| application.active);
        if !active().any(|application| application.demand > 0) {
            return None;
        }
        let idle = active().filter(|application| application.demand == 0);
        idle.map(|application| application.idle_since + self.config.idle_grace).min()
    }

    /// Asks the policy again and sets its answer going.
    pub(crate) fn replan(&mut self, device: &mut dyn Device) {
        let now = device.now();
        if self.grace_end().is_some() {
            let grace = self.config.idle_grace;
            for application in self.applications.values_mut() {
                application.active &= application.demand > 0 || application.idle_since + grace > now;
            }
        }
        let pinned = self.pinned.values().fold(SmSet::EMPTY, |all, sms| all.union(sms));
        let sample = Sample {
            now,
            cause: Cause::Membership,
            window: None,
            sms: SmSet::range(0, self.facts.sm_count).difference(&pinned),
            applications: self
                .applications
                .iter()
                .filter(|(id, a)| a.active && !a.leaving && !self.pinned.contains_key(id))
                .map(|(&id, application)| ApplicationSample {
                    application: id,
                    tenant: application.tenant,
                    tag: application.tag.clone(),
                    partition: application.target,
                    stalled: SmSet::EMPTY,
                    progress: Progress::default(),
                    busy: Cycles(0),
                    warm_up_ctas: 0,
                })
                .collect(),
        };
        let mut targets = if sample.applications.is_empty() {
            self.kept_targets(&sample.sms)
        } else {
            self.partitioner.step(&sample).plan.iter().collect()
        };
        targets.extend(self.pinned.iter().map(|(&id, &sms)| (id, sms)));
        self.apply_targets(device, &targets);
    }

    /// Nobody wants anything: everything stays where it is, so that the next launch needs no move.
    fn kept_targets(&self, sms: &SmSet) -> BTreeMap<ApplicationId, SmSet> {
        let policed = self.applications.iter().filter(|(id, a)| !a.leaving && !self.pinned.contains_key(id));
        policed
            .map(|(&id, application)| (id, application.target.intersection(sms)))
            .filter(|(_, sms)| !sms.is_empty())
            .collect()
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
        let mut failed = None;
        for launch in self.launches.values_mut().filter(|launch| launch.application == id) {
            if let Some(worker) = &mut launch.worker {
                failed = signal_allowed(device, worker.block, &to).err().or(failed);
                worker.attempts = 0;
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
                && self.applications.get(&owner).is_some_and(|application| !application.granted.contains(sm))
            {
                gains.entry(owner).or_default().insert(sm);
            }
        }
        let now = device.now();
        for (&id, gained) in &gains {
            let granted = self.applications.get(&id).map_or(SmSet::EMPTY, |application| application.granted);
            self.set_granted(device, id, granted.union(gained), now);
        }
        if !gains.is_empty() {
            self.pump_waiting(device);
        }
        if !gains.is_empty() || self.handover_pending {
            self.tick_at = earliest(self.tick_at, now + self.config.handover_tick);
        }
    }

    fn has_live_workers(&self, application: ApplicationId, sm: SmId) -> bool {
        self.launches.values().any(|launch| {
            launch.application == application
                && launch.worker.as_ref().is_some_and(|worker| {
                    worker.seen.live.get(usize::from(sm.0)).is_some_and(|&live| live > 0)
                })
        })
    }
}
