//! CTAs that leave an SM, and the accounts of their stay.

use super::{News, Resident, Sm, Surroundings};
use crate::gpu::grid::{Grid, Stays};
use partita_model::{OperationId, SmId};
use std::collections::BTreeMap;

impl Sm {
    /// Removes a CTA; the next one takes its room.
    pub(super) fn leave(&mut self, slot: usize, time: u64, around: &mut Surroundings<'_>) {
        let Some(resident) = self.slots[slot].take() else { return };
        self.give_back(&resident);
        self.switch(time);
        self.account(&resident, time, around.grids);
        let operation = resident.operation;
        if let Some(weak) = around.weak {
            weak.end_cta(operation.0, resident.cta.linear);
        }
        if around.residency {
            around.news.push(News::Left {
                time,
                sm: self.id,
                grid: operation,
                cta: resident.cta.linear,
            });
        }
        self.spare_times.push(resident.times);
        if let Some(grid) = around.grids.get_mut(&operation) {
            grid.resident -= 1;
            grid.counters.ctas += 1;
            grid.end = grid.end.max(time);
            grid.leave_cluster(&resident.cta);
            grid.keep(resident.cta);
        }
        // Leftover policy: only the first grid, in order of priority and then of arrival, that has
        // CTAs left for this SM may place one.
        let id = SmId(self.id as u16);
        if self.power.gated {
            return;
        }
        while let Some(&first) = around.order.iter().find(|operation| {
            let grid = around.grids.get(operation);
            grid.is_some_and(|grid| {
                grid.next < grid.total && grid.start <= time && grid.sms.contains(id)
            })
        }) {
            // Clusters begin between turns.
            let grid = &around.grids[&first];
            if grid.cluster_ctas() > 1 || !self.has_room(&grid.footprint, around.spec) {
                break;
            }
            self.place(first, time, around);
        }
    }

    /// Adds a CTA's residency to the times of its grid.
    fn account(&mut self, resident: &Resident, time: u64, grids: &mut BTreeMap<OperationId, Grid>) {
        let Some(index) = self.present.iter().position(|(grid, ..)| *grid == resident.operation)
        else {
            return;
        };
        let (_, ctas, since) = &mut self.present[index];
        *ctas -= 1;
        let (last, since) = (*ctas == 0, *since);
        let Some(grid) = grids.get_mut(&resident.operation) else { return };
        grid.stays.warp_ps +=
            time.saturating_sub(resident.since) * u64::from(resident.footprint.threads / 32);
        if last {
            grid.stays.sm_ps += time.saturating_sub(since);
            self.present.swap_remove(index);
        }
    }

    /// What a grid that is here takes until `time`, beside the stays that have ended.
    #[must_use]
    pub fn stays(&self, operation: OperationId, time: u64) -> Stays {
        let warps = |resident: &Resident| {
            time.saturating_sub(resident.since) * u64::from(resident.footprint.threads / 32)
        };
        let here = self.slots.iter().flatten().filter(|resident| resident.operation == operation);
        let present = self.present.iter().find(|(grid, ..)| *grid == operation);
        Stays {
            warp_ps: here.map(warps).sum(),
            sm_ps: present.map_or(0, |(.., since)| time.saturating_sub(*since)),
        }
    }

    fn give_back(&mut self, resident: &Resident) {
        let footprint = &resident.footprint;
        self.ctas -= 1;
        self.threads -= footprint.threads;
        self.registers -= footprint.registers;
        self.shared -= footprint.shared;
        let (side, units) = resident.cta.columns;
        self.claims.0[side & 1] &= !units;
        for (used, less) in self.parts.iter_mut().zip(resident.parts) {
            *used -= less;
        }
    }

    /// Takes a grid's CTAs off the SM.
    pub fn evict(
        &mut self,
        operation: OperationId,
        time: u64,
        news: &mut Vec<News>,
        grids: &mut BTreeMap<OperationId, Grid>,
    ) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].as_ref().is_some_and(|resident| resident.operation == operation) {
                let resident = self.slots[slot].take().expect("seen just now");
                self.give_back(&resident);
                self.switch(time);
                self.account(&resident, time, grids);
                self.generations[slot] = self.generations[slot].wrapping_add(1);
                // SMs run one after the other within a turn. So this SM may have begun a CTA later
                // than the time of the fault that ends the grid.
                let time = time.max(resident.since);
                news.push(News::Left {
                    time,
                    sm: self.id,
                    grid: operation,
                    cta: resident.cta.linear,
                });
            }
        }
    }
}
