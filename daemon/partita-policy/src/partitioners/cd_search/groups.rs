//! Groups of applications: each goes on where it was.
//!
//! Groups take turns under a selector, and an application that pauses leaves a smaller group
//! behind. What was found of a group (classes, curves, plan) holds for it still when it comes
//! again, so a search goes on at the step that was cut off, and a plan that was found stands at
//! once. Watching finds what has changed meanwhile.
//!
//! A group is known by its applications, their bounds, and the SMs that it was given. [`MOST`]
//! groups are remembered.

use super::watch::Pauses;
use super::{CdSearch, Member, Stage, search::Search};
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
}

impl CdSearch {
    /// Other applications share the SMs than before, or other SMs are shared: what was found of
    /// those before is kept, and those now go on where they were, or begin.
    pub(super) fn change_group(&mut self, sample: &Sample) -> Decision {
        let before: Group = self.members.iter().map(|m| (m.application, m.bounds)).collect();
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
        let group: Group = sample.applications.iter().map(|a| (a.application, a.bounds)).collect();
        let Some(found) = self.groups.take(&group, sample.sms) else {
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
