//! Handover: the owner and the holder of every SM, and how SMs change hands.
//!
//! Every SM is in one state ([`Tenure`]). A new target makes an SM that its holder loses *drain*:
//! the holder is told, and the SM goes to its next owner only when the holder's last worker there
//! was seen to have left. So sets of resident workers are disjoint at every moment, however fast
//! one decision follows another. A worker of the loser that starts late leaves before its first
//! task: it looks at its gate before every task.
//!
//! One case is left out. Workers of the loser that stay for long *linger* ([`lingering`]): the SM
//! goes to its next owner, whose workers take the room that they leave. The ledger holds the room
//! of both. Gates keep the loser's other workers away, so lingering ones only become fewer.
//!
//! A holder is one application, or two that *share* the SM ([`holder`]). Two have a part of it
//! each, which the ledger holds them to. Other parts are another holder, so the SM drains before
//! they begin: the application that had more of it has left.
//!
//! An application is *granted* the SMs that it holds: there its workers may be, as its control
//! blocks say. Its *target* adds the SMs that drain to it.
//!
//! Two marks are independent of who has an SM: workers on *stalled* SMs wait at their next task
//! border, and *gated* SMs are without power.
//!
//! This machine decides neither who gets what ([`crate::observer`]) nor what runs there
//! ([`crate::launches`]). It answers with changes, which the engine passes on.

pub(crate) mod holder;
pub(crate) mod ledger;
mod lingering;

use holder::Holder;
pub(crate) use holder::Targets;
use ledger::Ledger;
use lingering::Lingering;
use partita_model::{ApplicationId, DeviceFacts, Nanos, SmId, SmPart, SmSet};
use partita_policy::{Plan, PlanError};
use std::collections::BTreeMap;

/// The state of one SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tenure {
    /// Nobody.
    Free,
    /// Nobody has to leave: this holder gets the SM with the next step.
    Promised(Holder),
    /// Workers of this holder may be there.
    Held(Holder),
    /// `from` has lost the SM and may still have workers there; `to` gets it when they have left.
    Draining { from: Holder, to: Option<Holder>, since: Nanos },
}

/// What is known of an application's workers on an SM that it has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    Gone,
    /// Some are there, and leave at their next task border.
    Leaving,
    /// Some are there, and have stayed for long.
    Lingering,
}

impl Tenure {
    /// Who owns the SM, though another may still hold it.
    fn owner(self) -> Option<Holder> {
        match self {
            Tenure::Free => None,
            Tenure::Promised(to) => Some(to),
            Tenure::Held(by) => Some(by),
            Tenure::Draining { to, .. } => to,
        }
    }

    /// The state after a decision, made now, that gives the SM to `owner`.
    fn aim(self, owner: Option<Holder>, now: Nanos) -> Tenure {
        match self {
            Tenure::Free | Tenure::Promised(_) => owner.map_or(Tenure::Free, Tenure::Promised),
            Tenure::Held(by) if owner == Some(by) => self,
            Tenure::Draining { from, .. } if owner == Some(from) => Tenure::Promised(from),
            Tenure::Held(from) => Tenure::Draining { from, to: owner, since: now },
            // Nobody has waited for the SM yet, so its holder is not late.
            Tenure::Draining { from, to: None, .. } => {
                Tenure::Draining { from, to: owner, since: now }
            }
            Tenure::Draining { from, since, .. } => Tenure::Draining { from, to: owner, since },
        }
    }
}

/// A change of the SMs on which an application's workers may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) application: ApplicationId,
    pub(crate) from: SmSet,
    pub(crate) to: SmSet,
}

/// The machine of SMs.
pub(crate) struct Handover {
    tenures: Vec<Tenure>,
    /// The SMs that each application holds: the same as [`Handover::tenures`], by application.
    granted: BTreeMap<ApplicationId, SmSet>,
    /// Some SM drains.
    pending: bool,
    lingering: Lingering,
    /// Partitions that an administrator has set.
    pinned: BTreeMap<ApplicationId, SmSet>,
    /// SMs whose workers wait, as the control blocks say.
    stalled: SmSet,
    /// SMs whose workers an administrator or a test lets wait.
    stalled_by_hand: SmSet,
    /// By when every worker has come to a task border since the stalled SMs last changed.
    stall_followed: Nanos,
    /// SMs without power.
    gated: SmSet,
    ledger: Ledger,
}

impl Handover {
    pub(crate) fn new(facts: &DeviceFacts) -> Self {
        Handover {
            tenures: vec![Tenure::Free; facts.sm_numbers().into()],
            granted: BTreeMap::new(),
            pending: false,
            lingering: Lingering::default(),
            pinned: BTreeMap::new(),
            stalled: SmSet::EMPTY,
            stalled_by_hand: SmSet::EMPTY,
            stall_followed: Nanos::default(),
            gated: SmSet::EMPTY,
            ledger: Ledger::new(facts),
        }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn ledger_mut(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The SMs on which an application's workers may be.
    pub(crate) fn granted(&self, id: ApplicationId) -> SmSet {
        self.granted.get(&id).copied().unwrap_or(SmSet::EMPTY)
    }

    /// The SMs on which an application's next workers may begin. A worker that began where workers
    /// wait would only wait. Where all its SMs are stalled, it shall.
    pub(crate) fn open_to(&self, id: ApplicationId) -> SmSet {
        let granted = self.granted(id);
        let open = granted.difference(&self.stalled);
        if open.is_empty() { granted } else { open }
    }

    /// Whether an application holds every SM with nobody else, and works on every one of them.
    pub(crate) fn has_all(&self, id: ApplicationId) -> bool {
        let held = self.granted(id) == self.ledger.sms() && !self.pending;
        let shares_none = self.part(id).is_none() && self.lingering.is_empty();
        held && shares_none && self.stalled.is_empty() && self.gated.is_empty()
    }

    /// The SMs that an application owns: those that it holds and those that drain to it.
    pub(crate) fn target(&self, id: ApplicationId) -> SmSet {
        let own = self.sms().filter(|(_, tenure)| tenure.owner().is_some_and(|by| by.has(id)));
        own.map(|(sm, _)| sm).collect()
    }

    /// The part of its SMs that an application may take, where it shares them.
    pub(crate) fn part(&self, id: ApplicationId) -> Option<SmPart> {
        let sm = self.granted(id).iter().next()?;
        match self.tenures.get(usize::from(sm.0))? {
            Tenure::Held(by) => by.part(id),
            Tenure::Free | Tenure::Promised(_) | Tenure::Draining { .. } => None,
        }
    }

    /// The SMs that an application has lost to others, where its workers may still be, and when.
    pub(crate) fn given_away(&self, id: ApplicationId) -> impl Iterator<Item = (SmId, Nanos)> {
        self.sms().filter_map(move |(sm, tenure)| {
            let lost = match tenure {
                Tenure::Draining { from, since, .. } if from.has(id) => Some(since),
                _ => self.lingering.since(id, sm),
            };
            let is_anothers = tenure.owner().is_some_and(|to| !to.is_only(id));
            lost.filter(|_| is_anothers).map(|lost| (sm, lost))
        })
    }

    pub(crate) fn lingering(&self) -> &Lingering {
        &self.lingering
    }

    pub(crate) fn lingering_mut(&mut self) -> &mut Lingering {
        &mut self.lingering
    }

    /// Whether some SM has not reached its owner.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
    }

    /// The applications whose workers have to leave some SM, or linger on one.
    pub(crate) fn losers(&self) -> Vec<ApplicationId> {
        let draining = self.tenures.iter().flat_map(|tenure| match tenure {
            Tenure::Draining { from, .. } => Some(from.ids()),
            Tenure::Free | Tenure::Promised(_) | Tenure::Held(_) => None,
        });
        let mut losers: Vec<ApplicationId> =
            draining.flatten().chain(self.lingering.all().into_keys()).collect();
        losers.sort_unstable();
        losers.dedup();
        losers
    }

    fn sms(&self) -> impl Iterator<Item = (SmId, Tenure)> {
        (0..).map(SmId).zip(self.tenures.iter().copied())
    }

    /// Whether a plan differs from the present owners.
    pub(crate) fn differs(&self, targets: &Targets) -> bool {
        let owners = targets.owners(self.tenures.len());
        self.tenures.iter().zip(owners).any(|(tenure, owner)| tenure.owner() != owner)
    }

    /// Sets the owners of SMs. The answer names the applications that lose SMs at once;
    /// [`Handover::advance`] names those that gain some.
    pub(crate) fn aim(&mut self, targets: &Targets, now: Nanos) -> Vec<Granted> {
        let owners = targets.owners(self.tenures.len());
        let mut losses: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        for ((sm, tenure), owner) in (0..).map(SmId).zip(&mut self.tenures).zip(owners) {
            if let Tenure::Held(by) = *tenure
                && owner != Some(by)
            {
                for id in by.ids() {
                    losses.entry(id).or_default().insert(sm);
                }
            }
            *tenure = tenure.aim(owner, now);
        }
        self.pending = true;
        losses.into_iter().map(|(id, lost)| self.grant(id, |g| g.difference(&lost))).collect()
    }

    /// Gives every SM whose former holder's workers are gone, or linger, to its owner. `presence`
    /// says what is known of an application's workers on an SM that it lost at a time.
    ///
    /// Lingering workers count against nobody's part of an SM. So two that are to share an SM get
    /// it when nobody lingers there.
    pub(crate) fn advance(
        &mut self,
        presence: impl Fn(ApplicationId, SmId, Nanos) -> Presence,
    ) -> Vec<Granted> {
        if !self.pending {
            return Vec::new();
        }
        self.pending = false;
        let mut gains: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        for (sm, tenure) in (0..).map(SmId).zip(&mut self.tenures) {
            let to = match *tenure {
                Tenure::Free | Tenure::Held(_) => continue,
                Tenure::Promised(Holder::Two(_))
                | Tenure::Draining { to: Some(Holder::Two(_)), .. }
                    if self.lingering.has(sm) =>
                {
                    self.pending = true;
                    continue;
                }
                Tenure::Draining { from, to, since } => {
                    let is_one = matches!(to, Some(Holder::One(_)));
                    let there = || from.ids().map(|id| (id, presence(id, sm, since)));
                    let may_go = |seen: Presence| {
                        seen == Presence::Gone || is_one && seen == Presence::Lingering
                    };
                    if !there().all(|(_, seen)| may_go(seen)) {
                        self.pending = true;
                        continue;
                    }
                    for (id, _) in there().filter(|(_, seen)| *seen == Presence::Lingering) {
                        self.lingering.begin(id, sm, since);
                    }
                    to
                }
                Tenure::Promised(to) => Some(to),
            };
            *tenure = to.map_or(Tenure::Free, Tenure::Held);
            self.ledger.divide(sm, to);
            for to in to.into_iter().flat_map(Holder::ids) {
                gains.entry(to).or_default().insert(sm);
                // Its lingering workers have the SM again.
                self.lingering.end(to, sm);
            }
        }
        gains.into_iter().map(|(id, gained)| self.grant(id, |g| g.union(&gained))).collect()
    }

    fn grant(&mut self, application: ApplicationId, to: impl Fn(&SmSet) -> SmSet) -> Granted {
        let granted = self.granted.entry(application).or_default();
        let from = *granted;
        *granted = to(&from);
        let to = *granted;
        if to.is_empty() {
            self.granted.remove(&application);
        }
        Granted { application, from, to }
    }

    /// Every application that holds SMs, with them.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = (ApplicationId, SmSet)> {
        self.granted.iter().map(|(&id, &sms)| (id, sms))
    }

    // Pinned plans.

    /// Checks a plan that an administrator sets, and keeps it. Others must be able to live with it:
    /// `starving` are the applications that have work.
    pub(crate) fn pin(
        &mut self,
        partitions: BTreeMap<ApplicationId, SmSet>,
        mut starving: impl Iterator<Item = ApplicationId>,
    ) -> Result<(), PlanError> {
        let all = self.ledger.sms();
        let plan = Plan::new(partitions.clone(), &all)?;
        if plan.taken().len() == all.len()
            && let Some(application) = starving.find(|id| !partitions.contains_key(id))
        {
            return Err(PlanError::Starves { application });
        }
        self.pinned = partitions;
        Ok(())
    }

    pub(crate) fn unpin(&mut self) {
        self.pinned.clear();
    }

    pub(crate) fn is_pinned(&self, id: ApplicationId) -> bool {
        self.pinned.contains_key(&id)
    }

    pub(crate) fn pinned(&self) -> &BTreeMap<ApplicationId, SmSet> {
        &self.pinned
    }

    pub(crate) fn pinned_sms(&self) -> SmSet {
        self.pinned.values().fold(SmSet::EMPTY, |all, sms| all.union(sms))
    }

    /// The SMs that the policy decides on.
    pub(crate) fn unpinned_sms(&self) -> SmSet {
        self.ledger.sms().difference(&self.pinned_sms())
    }

    // Stalled and gated SMs.

    /// SMs whose workers wait.
    pub(crate) fn stalled(&self) -> SmSet {
        self.stalled
    }

    pub(crate) fn stall_by_hand(&mut self, sms: SmSet) {
        self.stalled_by_hand = sms;
    }

    /// Lets workers wait on the policy's SMs and on those that were named by hand. Without
    /// `may_wait` no worker waits. Whether that is a change.
    pub(crate) fn stall(&mut self, by_policy: SmSet, may_wait: bool) -> bool {
        let wanted = self.stalled_by_hand.union(&by_policy);
        let stalled = if may_wait { wanted } else { SmSet::EMPTY };
        std::mem::replace(&mut self.stalled, stalled) != stalled
    }

    /// The stalled SMs have changed. Every worker has come to a task border by `time`.
    pub(crate) fn stall_followed_by(&mut self, time: Nanos) {
        self.stall_followed = time;
    }

    /// Whether every worker has come to a task border since the stalled SMs last changed.
    pub(crate) fn is_stall_followed(&self, now: Nanos) -> bool {
        now >= self.stall_followed
    }

    /// SMs without power.
    pub(crate) fn gated(&self) -> SmSet {
        self.gated
    }

    /// Sets the SMs without power. Whether that is a change.
    pub(crate) fn gate(&mut self, gated: SmSet) -> bool {
        std::mem::replace(&mut self.gated, gated) != gated
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.ledger.is_empty() && self.lingering.is_empty()
    }

    /// The device is gone, and all workers with it.
    pub(crate) fn device_lost(&mut self, facts: &DeviceFacts) {
        self.tenures.fill(Tenure::Free);
        self.granted.clear();
        self.pending = false;
        self.lingering.clear();
        self.pinned.clear();
        self.ledger = Ledger::new(facts);
    }
}

#[cfg(test)]
mod tests;
