//! Everyone runs together; with more applications than SMs, they take turns.

use super::{Rota, Selected, Selector};
use crate::Sample;
use partita_model::{ApplicationId, Nanos, Note};
use std::collections::BTreeSet;

/// Everyone runs, as long as there is an SM for each; else in [turns](Rota).
#[derive(Clone, Debug, Default)]
pub struct Everyone {
    rota: Rota,
}

impl Selector for Everyone {
    fn name(&self) -> &'static str {
        "everyone"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let ids: BTreeSet<ApplicationId> =
            sample.applications.iter().map(|a| a.application).collect();
        let together = self.rota.choose(sample.now, &ids, sample.sms.len().into());
        let waiting = ids.difference(&together);
        let notes = waiting.map(|&application| Note::NoRoom { application }).collect();
        Selected { together, notes, ..Selected::default() }
    }

    fn again_at(&self) -> Option<Nanos> {
        self.rota.again_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ApplicationSample;
    use partita_model::{Cause, SmSet};
    use std::collections::BTreeMap;

    fn sample(now: u64, sms: u16, ids: &[u32]) -> Sample {
        let application = |&id: &u32| ApplicationSample::unseen(id);
        Sample {
            now: Nanos(now),
            cause: Cause::Membership,
            interval: None,
            sms: SmSet::range(0, sms),
            applications: ids.iter().map(application).collect(),
        }
    }

    #[test]
    fn where_there_is_an_sm_for_each_everyone_runs() {
        let mut everyone = Everyone::default();
        assert_eq!(everyone.step(&sample(0, 3, &[4, 5, 9])).together.len(), 3);
        assert_eq!(everyone.again_at(), None);
        assert!(everyone.step(&sample(0, 0, &[4])).together.is_empty());
        assert_eq!(everyone.again_at(), None);
    }

    #[test]
    fn with_fewer_sms_than_applications_all_have_equally_many_turns() {
        let mut everyone = Everyone::default();
        let (mut now, mut turns) = (0, BTreeMap::<ApplicationId, u32>::new());
        for _ in 0..70 {
            let together = everyone.step(&sample(now, 3, &[1, 2, 3, 4, 5, 6, 7])).together;
            assert_eq!(together.len(), 3);
            assert_eq!(
                everyone.step(&sample(now + 1, 3, &[1, 2, 3, 4, 5, 6, 7])).together,
                together,
                "a turn lasts"
            );
            together.into_iter().for_each(|id| *turns.entry(id).or_default() += 1);
            now = everyone.again_at().unwrap().0;
        }
        assert!(turns.len() == 7 && turns.values().all(|turns| *turns == 30), "{turns:?}");
    }

    #[test]
    fn who_comes_waits_behind_the_others_and_who_goes_makes_room() {
        let mut everyone = Everyone::default();
        let ids =
            |selected: Selected| selected.together.into_iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(ids(everyone.step(&sample(0, 2, &[5, 6, 7]))), [5, 6]);
        assert_eq!(ids(everyone.step(&sample(9, 2, &[1, 5, 6, 7]))), [5, 6]);
        assert_eq!(ids(everyone.step(&sample(10, 2, &[1, 6, 7]))), [6, 7]);
        assert_eq!(ids(everyone.step(&sample(11, 2, &[1, 6]))), [1, 6]);
        assert_eq!(everyone.again_at(), None);
    }
}
