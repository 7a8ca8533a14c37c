//! Handover: the owner and the holder of every SM, and how SMs change hands.
//!
//! Every SM is in one state ([`Tenure`]). A new target makes an SM that its holder loses *drain*:
//! the holder is told, and the SM goes to its next owner only when the holder's last worker there
//! was seen to have left. So sets of resident workers are disjoint at every moment, however fast
//! one decision follows another. A worker of the loser that starts late leaves before its first
//! task: it looks at its gate before every task.
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

use holder::Holder;
pub(crate) use holder::Targets;
use ledger::Ledger;
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
    Draining { from: Holder, to: Option<Holder> },
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

    /// The state after a decision that gives the SM to `owner`.
    fn aim(self, owner: Option<Holder>) -> Tenure {
        match self {
            Tenure::Free | Tenure::Promised(_) => owner.map_or(Tenure::Free, Tenure::Promised),
            Tenure::Held(by) if owner == Some(by) => self,
            Tenure::Draining { from, .. } if owner == Some(from) => Tenure::Promised(from),
            Tenure::Held(from) | Tenure::Draining { from, .. } => {
                Tenure::Draining { from, to: owner }
            }
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
        held && self.part(id).is_none() && self.stalled.is_empty() && self.gated.is_empty()
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

    /// The SMs that an application has lost to others, and where its workers may still be.
    pub(crate) fn given_away(&self, id: ApplicationId) -> impl Iterator<Item = SmId> {
        self.sms().filter_map(move |(sm, tenure)| match tenure {
            Tenure::Draining { from, to: Some(to) } if from.has(id) && !to.is_only(id) => Some(sm),
            _ => None,
        })
    }

    /// Whether some SM has not reached its owner.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending
    }

    /// The applications whose workers have to leave some SM.
    pub(crate) fn losers(&self) -> Vec<ApplicationId> {
        let mut losers: Vec<ApplicationId> = self
            .tenures
            .iter()
            .flat_map(|tenure| match tenure {
                Tenure::Draining { from, .. } => Some(from.ids()),
                Tenure::Free | Tenure::Promised(_) | Tenure::Held(_) => None,
            })
            .flatten()
            .collect();
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
    pub(crate) fn aim(&mut self, targets: &Targets) -> Vec<Granted> {
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
            *tenure = tenure.aim(owner);
        }
        self.pending = true;
        losses.into_iter().map(|(id, lost)| self.grant(id, |g| g.difference(&lost))).collect()
    }

    /// Gives every SM whose former holder's workers are gone to its owner. `is_on` says whether
    /// workers of an application may be on an SM.
    pub(crate) fn advance(&mut self, is_on: impl Fn(ApplicationId, SmId) -> bool) -> Vec<Granted> {
        if !self.pending {
            return Vec::new();
        }
        self.pending = false;
        let mut gains: BTreeMap<ApplicationId, SmSet> = BTreeMap::new();
        for (sm, tenure) in (0..).map(SmId).zip(&mut self.tenures) {
            let to = match *tenure {
                Tenure::Free | Tenure::Held(_) => continue,
                Tenure::Draining { from, .. } if from.ids().any(|id| is_on(id, sm)) => {
                    self.pending = true;
                    continue;
                }
                Tenure::Draining { to, .. } => to,
                Tenure::Promised(to) => Some(to),
            };
            *tenure = to.map_or(Tenure::Free, Tenure::Held);
            self.ledger.divide(sm, to);
            for to in to.into_iter().flat_map(Holder::ids) {
                gains.entry(to).or_default().insert(sm);
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

    /// The SMs that the policy decides on.
    pub(crate) fn unpinned_sms(&self) -> SmSet {
        let pinned = self.pinned.values().fold(SmSet::EMPTY, |all, sms| all.union(sms));
        self.ledger.sms().difference(&pinned)
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
        self.ledger.is_empty()
    }

    /// The device is gone, and all workers with it.
    pub(crate) fn device_lost(&mut self, facts: &DeviceFacts) {
        self.tenures.fill(Tenure::Free);
        self.granted.clear();
        self.pending = false;
        self.pinned.clear();
        self.ledger = Ledger::new(facts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake_device::facts;

    const A: ApplicationId = ApplicationId(1);
    const B: ApplicationId = ApplicationId(2);

    fn targets(of: &[(ApplicationId, &str)]) -> Targets {
        let sms = of.iter().map(|(id, sms)| (*id, sms.parse().unwrap())).collect();
        Targets { sms, parts: BTreeMap::new() }
    }

    /// Applications A and B share these SMs; A has `eighths` of each.
    fn shared(sms: &str, eighths: u16) -> Targets {
        let part = |ctas| SmPart::new(ctas, 8).unwrap();
        let parts = BTreeMap::from([(A, part(eighths)), (B, part(8 - eighths))]);
        Targets { parts, ..targets(&[(A, sms), (B, sms)]) }
    }

    fn granted(handover: &Handover) -> [String; 2] {
        [A, B].map(|id| handover.granted(id).to_string())
    }

    #[test]
    fn an_sm_changes_hands_when_its_holder_has_left() {
        let mut handover = Handover::new(&facts(4));
        assert_eq!(handover.aim(&targets(&[(A, "0-3")])), []);
        assert_eq!(handover.advance(|_, _| true).len(), 1, "nobody has to leave a free SM");
        let losses = handover.aim(&targets(&[(A, "0-1"), (B, "2-3")]));
        assert_eq!(losses.len(), 1);
        assert_eq!(granted(&handover), ["0-1", "none"]);
        assert_eq!(handover.given_away(A).collect::<Vec<_>>(), [SmId(2), SmId(3)]);
        handover.advance(|id, sm| id == A && sm == SmId(3));
        assert!(handover.is_pending());
        assert_eq!(granted(&handover), ["0-1", "2"]);
        // The next decision takes back what has not changed hands.
        assert!(handover.differs(&targets(&[(A, "0-1,3"), (B, "2")])));
        handover.aim(&targets(&[(A, "0-1,3"), (B, "2")]));
        handover.advance(|_, _| true);
        assert_eq!(granted(&handover), ["0-1,3", "2"]);
        assert!(!handover.is_pending() && !handover.differs(&targets(&[(A, "0-1,3"), (B, "2")])));
    }

    #[test]
    fn an_sm_that_two_share_drains_of_whoever_had_all_of_it() {
        let mut handover = Handover::new(&facts(2));
        handover.aim(&targets(&[(A, "0-1")]));
        handover.advance(|_, _| false);
        assert!(handover.differs(&shared("0-1", 3)));
        let losses = handover.aim(&shared("0-1", 3));
        assert_eq!(losses.len(), 1);
        assert_eq!(handover.target(A), handover.target(B));
        assert_eq!(handover.given_away(A).count(), 2, "B waits for them");
        handover.advance(|id, sm| id == A && sm == SmId(1));
        assert_eq!(granted(&handover), ["0", "0"], "A had all of SM 1");
        handover.advance(|_, _| false);
        assert_eq!(granted(&handover), ["0-1", "0-1"]);
        assert_eq!([A, B].map(|id| handover.part(id)), [SmPart::new(3, 8), SmPart::new(5, 8)]);
        assert!(!handover.differs(&shared("0-1", 3)) && handover.differs(&shared("0-1", 4)));
        // Other parts begin when both have left.
        handover.aim(&shared("0-1", 4));
        assert_eq!(
            (granted(&handover), handover.losers()),
            (["none", "none"].map(str::to_owned), vec![A, B])
        );
        handover.advance(|id, _| id == B);
        assert!(handover.is_pending());
        handover.advance(|_, _| false);
        assert_eq!(handover.part(A), SmPart::new(4, 8));
        // One of them gets all.
        handover.aim(&targets(&[(B, "0-1")]));
        handover.advance(|_, _| false);
        assert_eq!(
            (granted(&handover), handover.part(B)),
            (["none", "0-1"].map(str::to_owned), None)
        );
    }

    #[test]
    fn an_sm_that_nobody_gets_drains_too() {
        let mut handover = Handover::new(&facts(2));
        handover.aim(&targets(&[(A, "0-1")]));
        handover.advance(|_, _| false);
        handover.aim(&targets(&[(A, "0")]));
        handover.advance(|_, _| true);
        handover.aim(&targets(&[(A, "0"), (B, "1")]));
        handover.advance(|id, _| id == A);
        assert_eq!(granted(&handover), ["0", "none"], "workers of the first are there");
        handover.advance(|_, _| false);
        assert_eq!(granted(&handover), ["0", "1"]);
    }
}
