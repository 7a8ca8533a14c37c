//! Static shares: an administrator says how many SMs which applications get.
//!
//! A share is split evenly among the applications that match it. What shares of absent or idle
//! applications leave goes to applications without a share, or, where all have one, evenly to all.
//! Everyone gets at least one SM, if need be from those who have most.

use crate::partitioners::even::holders;
use crate::plans::{allot, at_least_one, even_counts};
use crate::{ApplicationSample, Decision, Partitioner, Sample};
use partita_model::{ApplicationId, Note, Share, SmSet};

fn matches(share: &Share, application: &ApplicationSample) -> bool {
    share.tenant.is_none_or(|tenant| tenant == application.tenant)
        && share.tag.as_ref().is_none_or(|tag| Some(tag) == application.tag.as_ref())
}

fn precision(share: &Share) -> usize {
    usize::from(share.tenant.is_some()) + usize::from(share.tag.is_some())
}

/// The static partitioner.
#[derive(Clone, Debug, Default)]
pub struct StaticShares {
    shares: Vec<Share>,
}

impl StaticShares {
    /// The shares are disjoint and leave at least one SM for applications without a share.
    #[must_use]
    pub fn new(shares: Vec<Share>) -> Self {
        StaticShares { shares }
    }

    /// The entry for an application: the one that says most about it; the first of several.
    fn share_of(&self, application: &ApplicationSample) -> Option<usize> {
        let matching =
            self.shares.iter().enumerate().filter(|(_, share)| matches(share, application));
        matching
            .min_by_key(|(_, share)| std::cmp::Reverse(precision(share)))
            .map(|(index, _)| index)
    }

    fn counts(
        &self,
        sample: &Sample,
        rules: &[Option<usize>],
        holders: &[(ApplicationId, SmSet)],
    ) -> Vec<u16> {
        let total = sample.sms.len();
        let mut counts = vec![0_u16; holders.len()];
        let mut spread = |total: u16, members: &[usize]| {
            let group: Vec<_> = members.iter().map(|&i| holders[i]).collect();
            for (&i, more) in members.iter().zip(even_counts(total, &group)) {
                counts[i] += more;
            }
        };
        let members = |rule: Option<usize>| -> Vec<usize> {
            (0..rules.len()).filter(|&i| rules[i] == rule).collect()
        };
        let mut left = total;
        for (index, share) in self.shares.iter().enumerate() {
            let group = members(Some(index));
            if !group.is_empty() {
                let given = share.sms.min(left);
                left -= given;
                spread(given, &group);
            }
        }
        let others = members(None);
        if others.is_empty() {
            spread(left, &(0..rules.len()).collect::<Vec<_>>());
        } else {
            spread(left, &others);
        }
        at_least_one(&mut counts);
        counts
    }
}

impl Partitioner for StaticShares {
    fn name(&self) -> &'static str {
        "static"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let holders = holders(sample);
        let rules: Vec<Option<usize>> =
            sample.applications.iter().map(|a| self.share_of(a)).collect();
        let counts = self.counts(sample, &rules, &holders);
        let notes =
            holders.iter().zip(&rules).zip(&counts).map(|((&(application, _), rule), &gets)| {
                match rule.map(|index| &self.shares[index]) {
                    Some(share) => {
                        Note::Share { application, rule: share.to_string(), share: share.sms, gets }
                    }
                    None => Note::NoShare { application, gets },
                }
            });
        let notes = notes.collect();
        Decision {
            plan: allot(sample.sms, &holders, &counts),
            stalled: SmSet::EMPTY,
            gated: SmSet::EMPTY,
            stage: "static",
            notes,
            next: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Cause, Nanos, TenantId};

    fn share(tenant: Option<u32>, tag: Option<&str>, sms: u16) -> Share {
        Share { tenant: tenant.map(TenantId), tag: tag.map(str::to_owned), sms }
    }

    fn three_shares() -> Vec<Share> {
        vec![
            share(Some(1000), None, 8),
            share(None, Some("train"), 10),
            share(Some(1000), Some("train"), 4),
        ]
    }

    fn step(sms: u16, applications: &[(u32, u32, Option<&str>)]) -> Decision {
        let sample = Sample {
            now: Nanos(0),
            cause: Cause::Membership,
            interval: None,
            sms: SmSet::range(0, sms),
            applications: applications
                .iter()
                .map(|&(id, tenant, tag)| ApplicationSample {
                    tenant: TenantId(tenant),
                    tag: tag.map(str::to_owned),
                    ..ApplicationSample::unseen(id)
                })
                .collect(),
        };
        StaticShares::new(three_shares()).step(&sample)
    }

    #[track_caller]
    fn check(sms: u16, applications: &[(u32, u32, Option<&str>)], expected: &[u16]) {
        let plan = step(sms, applications).plan;
        let counts: Vec<u16> =
            applications.iter().map(|a| plan.sms(ApplicationId(a.0)).len()).collect();
        assert_eq!(counts, expected);
    }

    #[test]
    fn shares() {
        check(24, &[(1, 1000, None), (2, 7, None)], &[8, 16]);
        check(24, &[(1, 1000, None), (2, 1000, None), (3, 7, None)], &[4, 4, 16]);
        check(24, &[(1, 1000, Some("train")), (2, 7, Some("train")), (3, 7, None)], &[4, 10, 10]);
        // Nobody without a share: what is left is spread.
        check(24, &[(1, 1000, None), (2, 7, Some("train"))], &[11, 13]);
        check(24, &[(1, 1000, None)], &[24]);
        // A smaller GPU than the shares were made for, and more applications than a share has SMs.
        check(9, &[(1, 1000, None), (2, 7, Some("train")), (3, 7, None)], &[7, 1, 1]);
        check(2, &[(1, 1000, None), (2, 1000, None), (3, 1000, None)], &[1, 1, 0]);
        check(24, &[], &[]);
    }

    #[test]
    fn notes_name_the_share_of_each_application() {
        let shares = three_shares();
        let application = ApplicationId;
        let by = |id, index: usize, gets| {
            let (rule, share) = (shares[index].to_string(), shares[index].sms);
            Note::Share { application: application(id), rule, share, gets }
        };
        let decision =
            step(24, &[(1, 1000, Some("train")), (2, 1000, None), (3, 7, Some("other"))]);
        let none = Note::NoShare { application: application(3), gets: 12 };
        assert_eq!(decision.notes, [by(1, 2, 4), by(2, 0, 8), none]);
    }

    #[test]
    fn the_entry_that_says_more_goes_before_that_of_everyone() {
        let everyone = share(None, None, 4);
        for more in [share(Some(1000), None, 8), share(None, Some("train"), 8)] {
            let application = ApplicationSample {
                tenant: TenantId(1000),
                tag: Some("train".to_owned()),
                ..ApplicationSample::unseen(1)
            };
            for shares in [[everyone.clone(), more.clone()], [more.clone(), everyone.clone()]] {
                let at = shares.iter().position(|share| *share == more);
                assert_eq!(StaticShares::new(shares.to_vec()).share_of(&application), at);
            }
        }
    }
}
