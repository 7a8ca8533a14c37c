//! Even shares: every application with work gets the same number of SMs, give or take one.

use crate::plans::{Bounds, allot, fair_counts};
use crate::{ApplicationSample, Decision, Partitioner, Plan, Sample};
use partita_model::{ApplicationId, EvenReason, Note, SmSet};

/// The even partitioner. It keeps SMs where they are as far as the shares allow. Where there are
/// more applications than SMs, some get none: a selector sees to it that this does not happen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Even;

impl Partitioner for Even {
    fn name(&self) -> &'static str {
        "even"
    }

    fn step(&mut self, sample: &Sample) -> Decision {
        let (plan, notes) = even_plan(sample, EvenReason::Policy);
        Decision {
            plan,
            stalled: SmSet::EMPTY,
            gated: SmSet::EMPTY,
            stage: "even",
            notes,
            next: None,
        }
    }
}

/// Who has what, as partitioners look at it.
pub(crate) fn holders(sample: &Sample) -> Vec<(ApplicationId, SmSet)> {
    let holder = |a: &ApplicationSample| (a.application, a.partition.intersection(&sample.sms));
    sample.applications.iter().map(holder).collect()
}

/// The even plan and why: by the weights and within the bounds of the applications.
pub(crate) fn even_plan(sample: &Sample, reason: EvenReason) -> (Plan, Vec<Note>) {
    let holders = holders(sample);
    let bounds: Vec<Bounds> = sample.applications.iter().map(|a| a.bounds).collect();
    let counts = fair_counts(sample.sms.len(), &holders, &bounds);
    let notes = match (&*holders, counts.iter().min(), counts.iter().max()) {
        ([(application, _)], ..) => vec![Note::Alone { application: *application }],
        (_, Some(&least), Some(&most)) => {
            let applications = u16::try_from(holders.len()).unwrap_or(u16::MAX);
            vec![Note::Even { applications, least, most, reason }]
        }
        _ => Vec::new(),
    };
    (allot(sample.sms, &holders, &counts), notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Cause, Nanos, TenantId};
    use proptest::prelude::*;

    fn sample(sms: u16, applications: &[(u32, &str)]) -> Sample {
        let applications = applications
            .iter()
            .map(|&(id, has)| ApplicationSample {
                tenant: TenantId(0),
                partition: has.parse().unwrap(),
                ..ApplicationSample::unseen(id)
            })
            .collect();
        let sms = SmSet::range(0, sms);
        Sample { now: Nanos(0), cause: Cause::Membership, interval: None, sms, applications }
    }

    #[track_caller]
    fn check(sms: u16, applications: &[(u32, &str)], expected: &str) {
        let decision = Even.step(&sample(sms, applications));
        let text: Vec<String> = decision
            .plan
            .iter()
            .map(|(application, sms)| format!("{}:{sms}", application.0))
            .collect();
        assert_eq!(text.join(" "), expected);
    }

    #[test]
    fn shares() {
        check(24, &[], "");
        check(24, &[(1, "none")], "1:0-23");
        check(24, &[(1, "0-23"), (2, "none")], "1:0-11 2:12-23");
        check(24, &[(1, "0-11"), (2, "12-23"), (3, "none")], "1:0-7 2:12-19 3:8-11,20-23");
        check(25, &[(1, "0-11"), (2, "12-24")], "1:0-11 2:12-24");
        check(1, &[(1, "none"), (2, "0")], "2:0");
        // SMs that are not to be shared out stay out.
        check(4, &[(1, "2-7"), (2, "none")], "1:2-3 2:0-1");
    }

    #[test]
    fn notes_say_why() {
        let notes = |sms, applications: &[(u32, &str)]| {
            even_plan(&sample(sms, applications), EvenReason::Policy).1
        };
        assert_eq!(notes(24, &[]), []);
        assert_eq!(notes(24, &[(3, "none")]), [Note::Alone { application: ApplicationId(3) }]);
        let even = |applications, least, most| {
            [Note::Even { applications, least, most, reason: EvenReason::Policy }]
        };
        assert_eq!(notes(24, &[(1, "none"), (2, "none")]), even(2, 12, 12));
        assert_eq!(notes(25, &[(1, "none"), (2, "none"), (3, "none")]), even(3, 8, 9));
    }

    proptest! {
        #[test]
        fn is_even_disjoint_complete_and_stays_put(
            sms in 1_u16..200,
            owners in prop::collection::vec(0_usize..8, 200),
            count in 1_usize..8,
        ) {
            let mut sets = vec![SmSet::EMPTY; 8];
            for sm in SmSet::range(0, sms).iter() {
                sets[owners[usize::from(sm.0)]].insert(sm);
            }
            let texts: Vec<(u32, String)> = sets.iter().take(count).enumerate()
                .map(|(i, set)| (u32::try_from(i).unwrap(), set.to_string())).collect();
            let texts: Vec<(u32, &str)> = texts.iter().map(|(id, set)| (*id,
                set.as_str())).collect();
            let mut sample = sample(sms, &texts);
            let plan = Even.step(&sample).plan;
            let total: u16 = plan.iter().map(|(_, sms)| sms.len()).sum();
            prop_assert_eq!(plan.taken().len(), total, "disjoint");
            prop_assert_eq!(plan.taken(), SmSet::range(0, sms));
            let sizes: Vec<u16> =
                sample.applications.iter().map(|a| plan.sms(a.application).len()).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            for application in &mut sample.applications {
                application.partition = plan.sms(application.application);
            }
            prop_assert_eq!(Even.step(&sample).plan, plan, "a second step moves nothing");
        }
    }
}
