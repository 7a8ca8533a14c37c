//! Plans: which application has which SMs, or which part of them.

mod allot;
mod fair;
mod groups;

use partita_model::{ApplicationId, SmPart, SmSet};
use std::collections::BTreeMap;

pub(crate) use allot::{allot, at_least_one, even_counts};
pub use fair::Bounds;
pub(crate) use fair::{fair_counts, fitted};
pub use groups::whole_groups;

/// Applications that share an SM, at most.
const MOST_ON_AN_SM: usize = 2;

/// A partition for every application that has one. None is empty, and sets are disjoint but for
/// those of applications that share each of their SMs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    partitions: BTreeMap<ApplicationId, SmSet>,
    /// Of those that share SMs: the part of each.
    parts: BTreeMap<ApplicationId, SmPart>,
}

/// Why a plan cannot hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// Two applications have an SM in common.
    #[error("{first} and {second} would share SMs {sms}: partitions must be disjoint")]
    Overlap {
        /// The one with the lower id.
        first: ApplicationId,
        /// The other.
        second: ApplicationId,
        /// What they share.
        sms: SmSet,
    },
    /// An SM does not exist.
    #[error("SMs {sms} of {application} do not exist: the GPU has SMs {gpu}")]
    OutsideGpu {
        /// Whose.
        application: ApplicationId,
        /// SMs of the plan that do not exist.
        sms: SmSet,
        /// All SMs of the GPU.
        gpu: SmSet,
    },
    /// A set is empty.
    #[error("{application} would have no SM: give it at least one, or leave it out of the plan")]
    Empty {
        /// Whose.
        application: ApplicationId,
    },
    /// No such application.
    #[error("{application} does not exist; those that do: {known}")]
    Unknown {
        /// The one named.
        application: ApplicationId,
        /// Those that exist, as text.
        known: String,
    },
    /// An application that the plan leaves out has work and would get nothing.
    #[error("{application} has work but the plan leaves no SM for it: leave at least one SM free")]
    Starves {
        /// Who.
        application: ApplicationId,
    },
}

impl Plan {
    /// A plan of these partitions for a GPU with these SMs.
    ///
    /// # Errors
    /// The first reason, in order of application, why it cannot hold.
    pub fn new(partitions: BTreeMap<ApplicationId, SmSet>, gpu: &SmSet) -> Result<Self, PlanError> {
        for (&application, sms) in &partitions {
            if sms.is_empty() {
                return Err(PlanError::Empty { application });
            }
            let outside = sms.difference(gpu);
            if !outside.is_empty() {
                return Err(PlanError::OutsideGpu { application, sms: outside, gpu: *gpu });
            }
            for (&second, other) in partitions.range(application..).skip(1) {
                if !sms.is_disjoint(other) {
                    return Err(PlanError::Overlap {
                        first: application,
                        second,
                        sms: sms.intersection(other),
                    });
                }
            }
        }
        Ok(Plan { partitions, ..Plan::default() })
    }

    /// A plan by which two applications share all of these SMs. `None` where there are no SMs, not
    /// two applications, or where the parts are more than an SM.
    pub(crate) fn shared(sms: SmSet, parts: &BTreeMap<ApplicationId, SmPart>) -> Option<Self> {
        let mut both = parts.values();
        let fit = both.next()?.fits_beside(*both.next()?);
        let is_plan = fit && parts.len() == MOST_ON_AN_SM && !sms.is_empty();
        is_plan.then(|| Plan {
            partitions: parts.keys().map(|&id| (id, sms)).collect(),
            parts: parts.clone(),
        })
    }

    /// A plan of partitions that are known to be disjoint, non-empty and inside the GPU.
    pub(crate) fn of_disjoint(partitions: BTreeMap<ApplicationId, SmSet>) -> Self {
        Plan { partitions, ..Plan::default() }
    }

    /// The part of each of its SMs that an application has; `None` where it shares none.
    #[must_use]
    pub fn part(&self, application: ApplicationId) -> Option<SmPart> {
        self.parts.get(&application).copied()
    }

    /// The parts of those that share SMs.
    #[must_use]
    pub fn parts(&self) -> &BTreeMap<ApplicationId, SmPart> {
        &self.parts
    }

    /// The SMs of an application; empty where it has none.
    #[must_use]
    pub fn sms(&self, application: ApplicationId) -> SmSet {
        self.partitions.get(&application).copied().unwrap_or(SmSet::EMPTY)
    }

    /// All SMs that belong to someone.
    #[must_use]
    pub fn taken(&self) -> SmSet {
        self.partitions.values().fold(SmSet::EMPTY, |all, sms| all.union(sms))
    }

    /// The partitions in order of application.
    pub fn iter(&self) -> impl Iterator<Item = (ApplicationId, SmSet)> + '_ {
        self.partitions.iter().map(|(&application, &sms)| (application, sms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(partitions: &[(u32, &str)], expected: Result<&str, &str>) {
        let partitions =
            partitions.iter().map(|&(id, sms)| (ApplicationId(id), sms.parse().unwrap())).collect();
        let text = Plan::new(partitions, &SmSet::range(0, 24))
            .map(|plan| plan.taken().to_string())
            .map_err(|e| e.to_string());
        assert_eq!(text, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn two_share_sms_where_their_parts_fit() {
        let parts = |of: &[(u32, u16, u16)]| -> BTreeMap<ApplicationId, SmPart> {
            let part = |&(id, ctas, of): &(u32, u16, u16)| {
                (ApplicationId(id), SmPart::new(ctas, of).unwrap())
            };
            of.iter().map(part).collect()
        };
        let sms = SmSet::range(0, 4);
        let plan = Plan::shared(sms, &parts(&[(1, 3, 8), (2, 10, 16)])).unwrap();
        assert_eq!([1, 2].map(|id| plan.sms(ApplicationId(id))), [sms, sms]);
        assert_eq!(plan.part(ApplicationId(1)), SmPart::new(3, 8));
        assert_eq!((plan.part(ApplicationId(3)), plan.taken()), (None, sms));
        assert_eq!(Plan::shared(sms, &parts(&[(1, 4, 8), (2, 9, 16)])), None, "too much");
        assert_eq!(Plan::shared(sms, &parts(&[(1, 1, 8)])), None, "nobody shares with it");
        let three = parts(&[(1, 1, 8), (2, 1, 8), (3, 1, 8)]);
        assert_eq!(Plan::shared(sms, &three), None);
        assert_eq!(Plan::shared(SmSet::EMPTY, &parts(&[(1, 1, 8), (2, 1, 8)])), None);
    }

    #[test]
    fn validation() {
        check(&[], Ok("none"));
        check(&[(1, "0-3"), (2, "4-23")], Ok("0-23"));
        check(
            &[(1, "0-12"), (2, "12-23")],
            Err("application 1 and application 2 would share SMs 12: partitions must be disjoint"),
        );
        check(
            &[(3, "20-25")],
            Err("SMs 24-25 of application 3 do not exist: the GPU has SMs 0-23"),
        );
        check(
            &[(1, "none")],
            Err(
                "application 1 would have no SM: give it at least one, or leave it out of the plan",
            ),
        );
    }
}
