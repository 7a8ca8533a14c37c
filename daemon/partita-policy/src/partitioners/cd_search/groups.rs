//! Groups of applications: each goes on where it was.
//!
//! Groups take turns under a selector, and an application that pauses leaves a smaller group
//! behind. What was found of a group (classes, curves, plan) holds for it still when it comes
//! again, so a search goes on at the step that was cut off, and a plan that was found stands at
//! once. Watching finds what has changed meanwhile.
//!
//! A group is known by its applications, their bounds, and the SMs that it was given. [`MOST`]
//! groups are remembered.
//!
//! Bounds move with what a `latency` application needs. A group whose search has ended gives its
//! classes, curves and plan to the same applications under other bounds: its plan is cut to these,
//! and watched. So two applications beside a server are searched once, not once for each need.

use super::watch::Pauses;
use super::{CdSearch, Member, Stage, search::Search};
use crate::plans::{allot, fitted};
use crate::{Bounds, Decision, Plan, Sample};
use partita_model::{ApplicationId, Class, SmSet};
use std::collections::BTreeMap;

/// Groups that are remembered. Beyond that the group is forgotten that was away longest.
const MOST: usize = 64;

/// The applications of a group, and what terms leave each.
type Group = Vec<(ApplicationId, Bounds)>;

/// What was found of a group.
#[derive(Clone, Debug)]
struct Found {
    sms: SmSet,
    stage: Stage,
    members: Vec<Member>,
    plan: Plan,
    gated: SmSet,
    search: Search,
    pauses: Pauses,
    /// Its place in the order in which groups were left.
    left: u64,
}

/// The groups that are away.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    away: BTreeMap<Group, Found>,
    left: u64,
}

impl Groups {
    fn keep(&mut self, group: Group, found: Found) {
        self.left += 1;
        self.away.insert(group, Found { left: self.left, ..found });
        if self.away.len() > MOST {
            let longest = self.away.iter().min_by_key(|(_, found)| found.left);
            let Some(group) = longest.map(|(group, _)| group.clone()) else { return };
            self.away.remove(&group);
        }
    }

    fn take(&mut self, group: &[(ApplicationId, Bounds)], sms: SmSet) -> Option<Found> {
        self.away.remove(group).filter(|found| found.sms == sms)
    }

    /// What was found last of the same applications under other bounds, cut to these bounds.
    fn alike(&self, group: &[(ApplicationId, Bounds)], sms: SmSet) -> Option<Found> {
        let ids = || group.iter().map(|(application, _)| *application);
        let is_alike = |known: &Group, found: &Found| {
            let same = known.iter().map(|(application, _)| *application).eq(ids());
            same && found.sms == sms && found.stage == Stage::Watch
        };
        let known = self.away.iter().filter(|(known, found)| is_alike(known, found));
        let (_, found) = known.max_by_key(|(_, found)| found.left)?;
        let mut found = found.clone();
        let had: Vec<(ApplicationId, SmSet)> = ids().map(|id| (id, found.plan.sms(id))).collect();
        let wanted: Vec<u16> = had.iter().map(|(_, sms)| sms.len()).collect();
        let bounds: Vec<Bounds> = group.iter().map(|(_, bounds)| *bounds).collect();
        let counts = fitted(sms.len(), &wanted, &bounds);
        found.plan = allot(sms, &had, &counts);
        found.gated = found.gated.difference(&found.plan.taken());
        for ((member, bounds), (before, now)) in
            found.members.iter_mut().zip(bounds).zip(wanted.iter().zip(&counts))
        {
            member.bounds = bounds;
            // The level is that of a number of SMs; the curve tells those of others.
            if before != now {
                member.level = None;
            }
        }
        Some(found)
    }
}

impl CdSearch {
    /// Other applications share the SMs than before, or other SMs are shared: what was found of
    /// those before is kept, and those now go on where they were, or begin.
    pub(super) fn change_group(&mut self, sample: &Sample) -> Decision {
        let before: Group = self.members.iter().map(|m| (m.application, m.bounds)).collect();
        let group: Group = sample.applications.iter().map(|a| (a.application, a.bounds)).collect();
        // Taken first, because the group that leaves may take the place of the one that returns.
        let known = self.groups.take(&group, sample.sms);
        if before.len() > 1 {
            let found = Found {
                sms: self.sms,
                stage: self.stage,
                members: std::mem::take(&mut self.members),
                plan: self.plan.clone(),
                gated: self.gated,
                search: std::mem::take(&mut self.search),
                pauses: self.pauses,
                left: 0,
            };
            self.groups.keep(before, found);
        }
        let known = known.or_else(|| self.groups.take(&group, sample.sms));
        let Some(found) = known.or_else(|| self.groups.alike(&group, sample.sms)) else {
            self.pauses = Pauses::new(self.settings.pause);
            return self.begin(sample, Vec::new());
        };
        let Found { stage, members, plan, gated, search, pauses, .. } = found;
        (self.members, self.plan, self.gated) = (members, plan, gated);
        (self.search, self.pauses, self.sms) = (search, pauses, sample.sms);
        let known = self.members.iter().filter(|member| member.class != Class::Unknown);
        let notes = known.map(Member::classified).collect();
        self.go_to(stage, notes)
    }
}
