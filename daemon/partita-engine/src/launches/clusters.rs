//! Launches whose tickets claim whole clusters of CTAs ([`crate::KernelForm::Ticket`]).
//!
//! The CTAs of a cluster begin together, on SMs of one GPC (CUDA C++ Programming Guide, "Thread
//! Block Clusters"). A cluster of tickets claims only where all its CTAs stand on SMs of their
//! application. So such a launch starts where its application's SMs hold a cluster, and where the
//! device keeps its waves to them: a wave that may start anywhere could mix SMs of two applications
//! in every cluster. Where an application never gets such SMs, the launch runs alone, as it was
//! written. As long as the launch runs, its application keeps the SMs for one cluster.

use super::Launches;
use super::confinement::{Readiness, whole_groups};
use super::spec::{Form, Launch, Pending, Place, Run, Spec};
use crate::KernelForm;
use crate::handover::{Handover, Targets};
use crate::turn::Turn;
use partita_device::Device;
use partita_model::{ApplicationId, Sharing, SmId, SmSet};
use std::collections::{BTreeMap, BTreeSet};

/// Whether tickets can claim whole clusters now.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// They can, or the launch claims none.
    Now,
    /// They can when its application's SMs have changed hands, or are kept.
    Later,
    /// They cannot, for this reason.
    Never(String),
}

/// The SMs on which a cluster may run, each set by itself: those of a GPC. Where the GPCs are
/// unknown, groups of SMs to which the device keeps grids lie in one GPC.
pub(super) fn pools(device: &dyn Device) -> &[SmSet] {
    match device.gpcs() {
        [] => device.sm_groups(),
        gpcs => gpcs,
    }
}

/// How many clusters of `ctas` CTAs fit on some SMs, where each has room for `room` CTAs.
pub(super) fn clusters(pools: &[SmSet], ctas: u64, sms: &SmSet, room: impl Fn(SmId) -> u64) -> u64 {
    let in_pool = |pool: &SmSet| pool.intersection(sms).iter().map(&room).sum::<u64>();
    pools.iter().map(|pool| in_pool(pool) / ctas.max(1)).sum()
}

impl Spec {
    /// CTAs that claim together in the form of tickets: those of a cluster, or one.
    pub(super) fn claimed_together(&self) -> u32 {
        match &self.kernel.form {
            KernelForm::Ticket { clusters: true, .. } => {
                u32::try_from(self.cluster.count()).expect("clusters were checked")
            }
            _ => 1,
        }
    }
}

impl Pending {
    /// Whether the launch's tickets claim whole clusters of more than one CTA.
    pub(crate) fn claims_clusters(&self) -> bool {
        matches!(self.form, Form::Ticket) && self.spec.claimed_together() > 1
    }

    /// Has the launch run alone, as it was written.
    pub(crate) fn set_alone(&mut self, reason: String) {
        self.set_original(Some(reason), None);
    }
}

impl Handover {
    /// Whether SMs hold a cluster of a launch, where nothing else runs.
    pub(crate) fn holds_cluster(&self, device: &dyn Device, spec: &Spec, sms: &SmSet) -> bool {
        let each = u64::from(self.ledger().occupancy(spec.cta));
        clusters(pools(device), spec.claimed_together().into(), sms, |_| each) > 0
    }

    /// The fewest whole groups of SMs of an application that hold a cluster of one of its launches;
    /// none where no such groups hold one. SMs that an administrator gave others do not count.
    fn sms_for_cluster(&self, device: &dyn Device, id: ApplicationId, spec: &Spec) -> SmSet {
        let own = self.granted(id).intersection(&self.unpinned_sms());
        let mut best: Option<SmSet> = None;
        for pool in pools(device) {
            let mut kept = SmSet::EMPTY;
            let inside = pool.intersection(&own);
            let groups = device.sm_groups().iter().filter(|g| g.difference(&inside).is_empty());
            for group in groups {
                if self.holds_cluster(device, spec, &kept) {
                    break;
                }
                kept = kept.union(group);
            }
            let is_better = best.is_none_or(|best| kept.len() < best.len());
            if is_better && self.holds_cluster(device, spec, &kept) {
                best = Some(kept);
            }
        }
        best.unwrap_or(SmSet::EMPTY)
    }
}

impl Launches {
    /// Whether the tickets of a launch can claim whole clusters on its application's SMs.
    pub(crate) fn fit_clusters(
        &mut self,
        turn: &mut Turn<'_>,
        handover: &Handover,
        (place, pending): (Place, &Pending),
    ) -> Fit {
        if !pending.claims_clusters() || turn.common.sharing != Sharing::Spatial {
            return Fit::Now;
        }
        let (own, target) =
            (handover.open_to(place.application), handover.target(place.application));
        let all = handover.ledger().sms();
        let spec = &pending.spec;
        let ctas = spec.claimed_together();
        if !handover.holds_cluster(turn.device, spec, &own) {
            let is_coming = handover.holds_cluster(turn.device, spec, &target);
            return match is_coming || target.is_empty() {
                true => Fit::Later,
                false => Fit::Never(format!(
                    "its application's SMs {target} hold no cluster of {ctas} CTAs: all have to \
                     be on one GPC"
                )),
            };
        }
        let room = |sm| u64::from(handover.ledger().room(sm, place.lane(), spec.cta));
        if clusters(pools(turn.device), ctas.into(), &own, room) == 0 {
            return Fit::Later;
        }
        if own == all || self.kept_to(turn, handover, place.application, place.stream).is_some() {
            return Fit::Now;
        }
        if turn.device.confining().is_none() {
            return Fit::Never(
                "the device does not keep its clusters to its application's SMs".to_owned(),
            );
        }
        if whole_groups(turn, &target) != target {
            return Fit::Never(format!("its application's SMs {target} are no whole groups"));
        }
        if whole_groups(turn, &own) != own {
            return Fit::Later;
        }
        // Where making ready holds up loading, other grids ask only while nothing is in flight.
        // This one could wait for that for ever.
        match self.make_ready(turn, own) {
            Readiness::Ready | Readiness::Pending => Fit::Later,
            Readiness::Refused(reason) => {
                Fit::Never(format!("SMs {own} cannot be kept for it: {reason}"))
            }
        }
    }

    /// Leaves applications whose tickets claim whole clusters the SMs for one, whatever the policy
    /// has decided.
    pub(super) fn keep_for_clusters(
        &self,
        device: &dyn Device,
        handover: &Handover,
        targets: &mut Targets,
    ) {
        if !targets.parts.is_empty() {
            return;
        }
        let claims = |launch: &&Launch| {
            matches!(launch.run, Run::Ticket(_)) && launch.spec.claimed_together() > 1
        };
        let claiming = || self.records.values().map(Box::as_ref).filter(claims);
        let held: BTreeSet<ApplicationId> = claiming().map(|l| l.place.application).collect();
        for launch in claiming() {
            let (id, spec) = (launch.place.application, &launch.spec);
            let next = targets.sms.get(&id).copied().unwrap_or(SmSet::EMPTY);
            if handover.holds_cluster(device, spec, &next) {
                continue;
            }
            let kept = handover.sms_for_cluster(device, id, spec);
            let may_give =
                |other: &ApplicationId| !held.contains(other) && !self.grouped.contains(other);
            keep(&mut targets.sms, id, kept, device.sm_groups(), may_give);
        }
    }
}

/// Gives `kept` to an application. Those who had SMs of it get the application's others for theirs,
/// and no group of the application is torn for that. An application that is left without an SM gets
/// one from the application with the most SMs that `may_give`.
fn keep(
    targets: &mut BTreeMap<ApplicationId, SmSet>,
    id: ApplicationId,
    kept: SmSet,
    groups: &[SmSet],
    may_give: impl Fn(&ApplicationId) -> bool,
) {
    let mut own = targets.remove(&id).unwrap_or(SmSet::EMPTY).difference(&kept);
    let mut without = Vec::new();
    for (other, sms) in targets.iter_mut() {
        let lost = sms.intersection(&kept).len();
        *sms = sms.difference(&kept);
        let gained = given_up(&own, lost, groups, sms.is_empty());
        own = own.difference(&gained);
        *sms = sms.union(&gained);
        if sms.is_empty() {
            without.push(*other);
        }
    }
    for other in without {
        let giving = targets.iter_mut().filter(|(id, sms)| sms.len() > 1 && may_give(id));
        let Some((_, richest)) = giving.max_by_key(|(_, sms)| sms.len()) else { break };
        let given: SmSet = richest.iter().take(1).collect();
        *richest = richest.difference(&given);
        targets.insert(other, given);
    }
    targets.insert(id, own.union(&kept));
}

/// Up to `count` of an application's SMs: those in none of its whole groups first, then groups. A
/// taker that has nothing else gets one whole group, even a larger one.
fn given_up(own: &SmSet, count: u16, groups: &[SmSet], has_nothing: bool) -> SmSet {
    let whole = groups.iter().filter(|group| group.difference(own).is_empty());
    let in_groups = whole.clone().fold(SmSet::EMPTY, |all, group| all.union(group));
    let mut given: SmSet = own.difference(&in_groups).iter().take(count.into()).collect();
    for group in whole {
        let is_needed = has_nothing && given.is_empty() && count > 0;
        if given.len() + group.len() <= count || is_needed {
            given = given.union(group);
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_lie_in_one_pool() {
        let pools = [SmSet::range(0, 4), SmSet::range(4, 6)];
        let all = SmSet::range(0, 10);
        assert_eq!(clusters(&pools, 4, &all, |_| 1), 2);
        assert_eq!(clusters(&pools, 8, &all, |_| 1), 0, "none lies across two");
        assert_eq!(clusters(&pools, 8, &all, |_| 2), 2);
        assert_eq!(clusters(&pools, 2, &SmSet::range(3, 7), |_| 1), 3);
    }

    #[test]
    fn nobody_is_left_without_while_somebody_has_two() {
        let of = |parts: &[&str]| -> BTreeMap<ApplicationId, SmSet> {
            let sets = parts.iter().map(|sms| sms.parse().expect("numbers of SMs"));
            (1..).map(ApplicationId).zip(sets).collect()
        };
        let groups = [0, 4, 8].map(|first| SmSet::range(first, 4));
        let after = |parts: &[&str], giving: bool| {
            let mut targets = of(parts);
            keep(&mut targets, ApplicationId(1), SmSet::range(0, 4), &groups, |_| giving);
            targets
        };
        assert_eq!(after(&["0-3", "4-7"], true), of(&["0-3", "4-7"]));
        assert_eq!(after(&["4-7", "0-3"], true), of(&["0-3", "4-7"]), "they are exchanged");
        assert_eq!(after(&["3", "0-2", "4-7"], true), of(&["0-3", "4", "5-7"]));
        assert_eq!(after(&["4-9", "0-2,10"], true), of(&["0-3,4-7", "8-10"]), "no group is torn");
        assert_eq!(after(&["4-11", "0,1", "2,3"], true), of(&["0-3", "4-7", "8-11"]));
        let alone = |parts: &[&str], giving| {
            let found = after(parts, giving);
            (found[&ApplicationId(1)], found[&ApplicationId(2)].len())
        };
        assert_eq!(alone(&["3", "0-2", "4"], true), (SmSet::range(0, 4), 0), "nobody has two");
        assert_eq!(alone(&["3", "0-2", "4-7"], false), (SmSet::range(0, 4), 0), "nobody may");
    }
}
