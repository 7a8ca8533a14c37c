//! The block scheduler: which CTAs begin where, between the turns of the SMs.

use super::grid::Footprint;
use super::sm::{News, Surroundings};
use super::{EmulatedGpu, Timing};
use partita_model::{SmId, SmSet};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An SM for the next CTA: its rank and its step in the round.
type Candidate = Reverse<((Reverse<u32>, u32), usize)>;

/// The SMs on which CTAs begin.
enum Chosen {
    One(usize),
    /// By rank.
    Cluster(Vec<usize>),
}

impl Chosen {
    fn sms(&self) -> &[usize] {
        match self {
            Chosen::One(sm) => std::slice::from_ref(sm),
            Chosen::Cluster(sms) => sms,
        }
    }
}

impl EmulatedGpu {
    /// The block scheduler. It spreads the CTAs of the first grid over the SMs with room, the SM
    /// with the fewest CTAs first. The next grid gets the rest only when the first has no CTA left.
    /// A grid that waits for room keeps later grids off its SMs. One that waits for its start, and
    /// is not known to the scheduler before, does so to later grids of its own priority only: it
    /// started in order of arrival.
    pub(super) fn place_ctas(&mut self, news: &mut Vec<News>) {
        self.order.retain(|id| self.grids.get(id).is_some_and(|grid| grid.next < grid.total));
        if self.order.is_empty() || !self.may_place() {
            return;
        }
        let order = self.order_of_context();
        let mut executed = 0;
        let mut blocked = self.gated;
        // SMs of grids of one priority that wait for their start.
        let (mut priority, mut awaited) = (i32::MIN, SmSet::EMPTY);
        for &operation in &order {
            // Asking all SMs for each CTA took a quarter of a short kernel's time.
            let mut candidates = None;
            loop {
                let grid = &self.grids[&operation];
                if grid.next >= grid.total {
                    break;
                }
                if grid.priority != priority {
                    (priority, awaited) = (grid.priority, SmSet::EMPTY);
                }
                let all = grid.sms;
                if grid.start > self.now {
                    awaited = awaited.union(&all);
                    break;
                }
                let open = all.difference(&blocked).difference(&awaited);
                if open.is_empty() {
                    blocked = blocked.union(&all);
                    break;
                }
                let (footprint, ctas) = (grid.footprint, grid.cluster_ctas());
                let chosen = if ctas > 1 {
                    self.sms_for_cluster(&open, &footprint, ctas).map(Chosen::Cluster)
                } else {
                    let candidates =
                        candidates.get_or_insert_with(|| self.candidates(&open, &footprint));
                    candidates.pop().map(|Reverse((_, step))| Chosen::One(self.sm_at(step)))
                };
                let Some(chosen) = chosen else {
                    blocked = blocked.union(&all);
                    break;
                };
                let mut around = Surroundings {
                    spec: &self.spec,
                    timed: self.options.timing == Timing::On,
                    memory: &mut self.memory,
                    weak: &mut self.weak,
                    system: &mut self.system,
                    grids: &mut self.grids,
                    order: &order,
                    sequence: &mut self.sequence,
                    news,
                    residency: self.residency,
                    executed: &mut executed,
                    pace: None,
                    helpers: self.helpers.as_mut(),
                    ahead: None,
                };
                for &sm in chosen.sms() {
                    self.sms[sm].place(operation, self.now, &mut around);
                }
                // Only this SM's rank and room have changed.
                if let (Chosen::One(sm), Some(candidates)) = (chosen, &mut candidates) {
                    candidates.extend(self.candidate(sm, &footprint));
                }
            }
        }
    }

    /// The SMs with room for a CTA of this size. The least goes first: by rank, then by a round
    /// that begins at another SM from turn to turn.
    fn candidates(&self, open: &SmSet, footprint: &Footprint) -> BinaryHeap<Candidate> {
        let open = (0..self.sms.len()).filter(|&sm| open.contains(SmId(sm as u16)));
        open.filter_map(|sm| self.candidate(sm, footprint)).collect()
    }

    /// An SM among the candidates, where it has room.
    fn candidate(&self, sm: usize, footprint: &Footprint) -> Option<Candidate> {
        let count = self.sms.len();
        let step = (sm + count - self.turns as usize % count) % count;
        let has_room = self.sms[sm].has_room(footprint, &self.spec);
        has_room.then(|| Reverse((self.rank(sm, footprint), step)))
    }

    /// The SM of a candidate.
    fn sm_at(&self, step: usize) -> usize {
        let count = self.sms.len();
        (self.turns as usize % count + step) % count
    }
}
