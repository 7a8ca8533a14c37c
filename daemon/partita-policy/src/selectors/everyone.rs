//! Everyone runs together; with more applications than SMs, they take turns.

use super::{Selected, Selector};
use crate::Sample;
use partita_model::{ApplicationId, Nanos, Note};
use std::collections::{BTreeSet, VecDeque};

/// How long applications run before those that wait have their turn.
const TURN: Nanos = Nanos(2_000_000);

/// Everyone runs, as long as there is an SM for each. Where there are more applications than SMs,
/// they take turns: those that have waited longest come next. So nobody waits for ever, not even
/// for one whose kernels never end.
#[derive(Clone, Debug, Default)]
pub struct Everyone {
    /// While some wait: all, those that run first, then those whose turn comes next.
    queue: VecDeque<ApplicationId>,
    turn_ends: Nanos,
}

impl Selector for Everyone {
    fn name(&self) -> &'static str {
        "everyone"
    }

    fn step(&mut self, sample: &Sample) -> Selected {
        let ids: BTreeSet<ApplicationId> =
            sample.applications.iter().map(|a| a.application).collect();
        let together = self.choose(sample, &ids);
        let waiting = ids.difference(&together);
        let notes = waiting.map(|&application| Note::NoRoom { application }).collect();
        Selected { together, notes, ..Selected::default() }
    }

    fn again_at(&self) -> Option<Nanos> {
        (!self.queue.is_empty()).then_some(self.turn_ends)
    }
}

impl Everyone {
    fn choose(
        &mut self,
        sample: &Sample,
        ids: &BTreeSet<ApplicationId>,
    ) -> BTreeSet<ApplicationId> {
        let room = usize::from(sample.sms.len());
        if ids.len() <= room || room == 0 {
            self.queue.clear();
            return if room == 0 { BTreeSet::new() } else { ids.clone() };
        }
        if self.queue.is_empty() {
            self.turn_ends = sample.now + TURN;
        }
        self.queue.retain(|id| ids.contains(id));
        self.queue.extend(ids.iter().filter(|id| !self.queue.contains(id)).collect::<Vec<_>>());
        if sample.now >= self.turn_ends {
            self.queue.rotate_left(room);
            self.turn_ends = sample.now + TURN;
        }
        self.queue.iter().copied().take(room).collect()
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
