//! Turns of applications for which there are too few SMs.

use partita_model::{ApplicationId, Nanos};
use std::collections::{BTreeSet, VecDeque};

/// How long applications run before those that wait have their turn.
const TURN: Nanos = Nanos(2_000_000);
/// Applications whose place is remembered.
const REMEMBERED: usize = 4_096;

/// Whose turn it is: applications that have waited longest come next. So nobody waits for ever, not
/// even for an application whose kernels never end, and not where the candidates change with each
/// turn of a selector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rota {
    /// All that are known, those that run first, then those whose turn comes next. An application
    /// that is away keeps its place.
    queue: VecDeque<ApplicationId>,
    /// When the turn ends, while some wait.
    turn_ends: Option<Nanos>,
}

impl Rota {
    /// When the present turn ends; `None` while nobody waits.
    pub(crate) fn again_at(&self) -> Option<Nanos> {
        self.turn_ends
    }

    /// Nobody waits.
    pub(crate) fn rest(&mut self) {
        self.turn_ends = None;
    }

    /// Those of `ids` that run where there is room for so many.
    pub(crate) fn choose(
        &mut self,
        now: Nanos,
        ids: &BTreeSet<ApplicationId>,
        room: usize,
    ) -> BTreeSet<ApplicationId> {
        if ids.len() <= room || room == 0 {
            self.rest();
            return if room == 0 { BTreeSet::new() } else { ids.clone() };
        }
        let known: BTreeSet<ApplicationId> = self.queue.iter().copied().collect();
        self.queue.extend(ids.difference(&known));
        // Whoever is away was served, or has left: its place in front is not needed.
        while self.queue.len() > REMEMBERED.max(ids.len()) {
            let Some(at) = self.queue.iter().position(|id| !ids.contains(id)) else { break };
            self.queue.remove(at);
        }
        let next = Nanos(now.0.saturating_add(TURN.0));
        if now >= *self.turn_ends.get_or_insert(next) {
            self.turn_ends = Some(next);
            for id in self.first(ids, room) {
                self.queue.retain(|other| *other != id);
                self.queue.push_back(id);
            }
        }
        self.first(ids, room).into_iter().collect()
    }

    /// The first of `ids` in the queue.
    fn first(&self, ids: &BTreeSet<ApplicationId>, room: usize) -> Vec<ApplicationId> {
        self.queue.iter().filter(|id| ids.contains(id)).take(room).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Candidates of two groups, with room for fewer than either has.
    #[test]
    fn changing_candidates_all_have_turns() {
        let mut rota = Rota::default();
        let groups = [[1, 2, 3], [3, 4, 5]].map(|ids| ids.map(ApplicationId).into());
        let mut turns = BTreeMap::<ApplicationId, u32>::new();
        for turn in 0..60 {
            let now = Nanos(turn * TURN.0);
            let running = rota.choose(now, &groups[usize::from(turn % 2 == 1)], 1);
            assert_eq!(running.len(), 1);
            running.into_iter().for_each(|id| *turns.entry(id).or_default() += 1);
        }
        assert!(turns.len() == 5 && turns.values().all(|turns| *turns >= 5), "{turns:?}");
    }

    /// So many places are kept; those of applications that are away go first.
    #[test]
    fn places_are_forgotten_in_the_end() {
        let mut rota = Rota::default();
        let ids = |from: u32, to: u32| -> BTreeSet<ApplicationId> {
            (from..to).map(ApplicationId).collect()
        };
        assert_eq!(rota.choose(Nanos(0), &ids(0, 4_100), 1).len(), 1);
        assert_eq!(rota.queue.len(), 4_100, "all of them are there");
        assert_eq!(rota.choose(Nanos(1), &ids(5_000, 5_002), 1), ids(5_000, 5_001));
        assert_eq!(rota.queue.len(), REMEMBERED);
    }
}
