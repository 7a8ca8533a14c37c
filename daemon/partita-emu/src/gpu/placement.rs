//! The block scheduler: which CTAs begin where, between the turns of the SMs.

use super::grid::Footprint;
use super::sm::{News, Surroundings};
use super::{EmulatedGpu, Timing};
use partita_model::{SmId, SmSet};

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
                    self.sm_for_cta(&open, &footprint).map(Chosen::One)
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
                };
                for &sm in chosen.sms() {
                    self.sms[sm].place(operation, self.now, &mut around);
                }
            }
        }
    }

    /// The SM with room that a CTA of this size goes to.
    fn sm_for_cta(&self, open: &SmSet, footprint: &Footprint) -> Option<usize> {
        let count = self.sms.len();
        let first = self.turns as usize % count;
        (0..count)
            .map(|step| (first + step) % count)
            .filter(|&sm| open.contains(SmId(sm as u16)))
            .filter(|&sm| self.sms[sm].has_room(footprint, &self.spec))
            .min_by_key(|&sm| self.rank(sm, footprint))
    }
}
