//! Even shares: every application with work gets the same number of SMs, give or take one.

use crate::{Decision, Demand, Partitioner, Plan, Sample};
use partita_model::{ApplicationId, SmSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The even partitioner. It keeps SMs where they are as far as the shares allow. Where there are more applications than
/// SMs, those with the highest ids get none for now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Even;

impl Partitioner for Even {
    fn name(&self) -> &'static str {
        "even"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let mut holders: Vec<(ApplicationId, SmSet)> = sample
            .applications
            .iter()
            .filter(|application| application.demand == Demand::Working)
            .map(|application| (application.application, application.partition.intersection(&sample.sms)))
            .collect();
        if holders.is_empty() {
            // Nobody wants anything: leave everything where it is, so that the next launch needs no move.
            holders = sample
                .applications
                .iter()
                .map(|application| (application.application, application.partition.intersection(&sample.sms)))
                .collect();
            let kept = holders.into_iter().filter(|(_, sms)| !sms.is_empty()).collect();
            return Decision { plan: Plan::of_disjoint(kept), stalled: SmSet::EMPTY };
        }
        Decision { plan: Plan::of_disjoint(share_evenly(sample.sms, &holders)), stalled: SmSet::EMPTY }
    }
}

/// Divides `sms` among `holders`, who have disjoint parts of it now, with as few moves as possible.
///
/// The remainder of the division goes to those who have most, ties to the lowest id: that moves fewest.
fn share_evenly(sms: SmSet, holders: &[(ApplicationId, SmSet)]) -> BTreeMap<ApplicationId, SmSet> {
    let count = u16::try_from(holders.len()).unwrap_or(u16::MAX);
    let (base, extras) = (sms.len() / count, usize::from(sms.len() % count));
    let mut by_holding: Vec<usize> = (0..holders.len()).collect();
    by_holding.sort_by_key(|&i| (Reverse(holders[i].1.len()), holders[i].0));
    let mut shares = vec![base; holders.len()];
    for &i in by_holding.iter().take(extras) {
        shares[i] += 1;
    }

    let mut kept: Vec<SmSet> = holders
        .iter()
        .zip(&shares)
        .map(|((_, has), &share)| has.iter().take(share.into()).collect())
        .collect();
    let mut free = kept.iter().fold(sms, |free, has| free.difference(has)).iter();
    for (has, &share) in kept.iter_mut().zip(&shares) {
        while has.len() < share {
            has.insert(free.next().expect("the shares add up to no more than there is"));
        }
    }
    holders.iter().map(|(id, _)| *id).zip(kept).filter(|(_, sms)| !sms.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApplicationSample;
    use partita_model::Nanos;
    use proptest::prelude::*;

    fn sample(sms: u16, applications: &[(u32, &str, bool)]) -> Sample {
        let applications = applications
            .iter()
            .map(|&(id, has, working)| ApplicationSample {
                application: ApplicationId(id),
                partition: has.parse().unwrap(),
                demand: if working { Demand::Working } else { Demand::Idle },
                ctas_completed: 0,
            })
            .collect();
        Sample { time: Nanos(0), sms: SmSet::range(0, sms), applications }
    }

    #[track_caller]
    fn check(sms: u16, applications: &[(u32, &str, bool)], expected: &str) {
        let decision = Even.step(&sample(sms, applications));
        let text: Vec<String> =
            decision.plan.iter().map(|(application, sms)| format!("{}:{sms}", application.0)).collect();
        assert_eq!(text.join(" "), expected);
    }

    #[test]
    fn shares() {
        check(24, &[], "");
        check(24, &[(1, "none", true)], "1:0-23");
        check(24, &[(1, "0-23", true), (2, "none", true)], "1:0-11 2:12-23");
        check(24, &[(1, "0-11", true), (2, "12-23", true), (3, "none", true)], "1:0-7 2:12-19 3:8-11,20-23");
        check(24, &[(1, "0-11", false), (2, "12-23", true)], "2:0-23");
        check(24, &[(1, "0-11", false), (2, "12-23", false)], "1:0-11 2:12-23");
        check(25, &[(1, "0-11", true), (2, "12-24", true)], "1:0-11 2:12-24");
        check(1, &[(1, "none", true), (2, "0", true)], "2:0");
    }

    proptest! {
        #[test]
        fn is_even_disjoint_complete_and_stays_put(
            sms in 1_u16..200,
            owners in prop::collection::vec(0_usize..8, 200),
            working in prop::collection::vec(any::<bool>(), 1..8),
        ) {
            let mut sets = vec![SmSet::EMPTY; 8];
            for sm in SmSet::range(0, sms).iter() {
                sets[owners[usize::from(sm.0)]].insert(sm);
            }
            let applications: Vec<ApplicationSample> = working.iter().enumerate().map(|(i, &working)| {
                ApplicationSample {
                    application: ApplicationId(u32::try_from(i).unwrap()),
                    partition: sets[i],
                    demand: if working { Demand::Working } else { Demand::Idle },
                    ctas_completed: 0,
                }
            }).collect();
            let mut sample = Sample { time: Nanos(0), sms: SmSet::range(0, sms), applications };
            let plan = Even.step(&sample).plan;
            let partitions: Vec<_> = plan.iter().collect();
            let total: u16 = partitions.iter().map(|(_, sms)| sms.len()).sum();
            prop_assert_eq!(plan.taken().len(), total, "disjoint");
            if working.iter().any(|&working| working) {
                prop_assert_eq!(plan.taken(), SmSet::range(0, sms));
                let sizes: Vec<u16> = working.iter().enumerate().filter(|(_, working)| **working)
                    .map(|(i, _)| plan.sms(ApplicationId(u32::try_from(i).unwrap())).len()).collect();
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
            for application in &mut sample.applications {
                application.partition = plan.sms(application.application);
            }
            prop_assert_eq!(Even.step(&sample).plan, plan, "a second step moves nothing");
        }
    }
}
