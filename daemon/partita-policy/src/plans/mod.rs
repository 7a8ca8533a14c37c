//! Plans: which application has which SMs.

mod allot;
mod groups;

use partita_model::{ApplicationId, SmSet};
use std::collections::BTreeMap;

pub(crate) use allot::{allot, at_least_one, even_counts};
pub use groups::whole_groups;

/// A partition for every application that has one. Sets are disjoint and none is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    partitions: BTreeMap<ApplicationId, SmSet>,
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
    #[error("SMs {sms} of {application} do not exist: the GPU has SMs 0-{last}")]
    OutsideGpu {
        /// Whose.
        application: ApplicationId,
        /// Those that do not exist.
        sms: SmSet,
        /// The highest that exists.
        last: u16,
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
    /// A plan of these partitions for a GPU of `sm_count` SMs.
    ///
    /// # Errors
    /// The first reason, in order of application, why it cannot hold.
    pub fn new(
        partitions: BTreeMap<ApplicationId, SmSet>,
        sm_count: u16,
    ) -> Result<Self, PlanError> {
        let gpu = SmSet::range(0, sm_count);
        for (&application, sms) in &partitions {
            if sms.is_empty() {
                return Err(PlanError::Empty { application });
            }
            let outside = sms.difference(&gpu);
            if !outside.is_empty() {
                return Err(PlanError::OutsideGpu {
                    application,
                    sms: outside,
                    last: sm_count.saturating_sub(1),
                });
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
        Ok(Plan { partitions })
    }

    /// A plan of partitions that are known to be disjoint, non-empty and inside the GPU.
    pub(crate) fn of_disjoint(partitions: BTreeMap<ApplicationId, SmSet>) -> Self {
        Plan { partitions }
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
        let text = Plan::new(partitions, 24)
            .map(|plan| plan.taken().to_string())
            .map_err(|e| e.to_string());
        assert_eq!(text, expected.map(str::to_owned).map_err(str::to_owned));
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
