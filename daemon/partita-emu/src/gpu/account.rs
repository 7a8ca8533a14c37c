//! Totals of grids and of the device, their energy, and the SMs that have power.

use super::{EmulatedGpu, Grid};
use crate::counters::{dynamic_nanojoules, set_memory, static_nanojoules};
use partita_model::{DeviceCounters, GridCounters, OperationId, SmId, SmSet};

/// The number of ended grids whose counters are kept.
const KEPT_COUNTERS: usize = 4096;

impl EmulatedGpu {
    /// The counters of a grid that has ended; those of the last few thousand are kept.
    pub fn take_counters(&mut self, operation: OperationId) -> Option<GridCounters> {
        let index = self.ended.iter().position(|(id, _)| *id == operation)?;
        self.ended.remove(index).map(|(_, counters)| counters)
    }

    /// What a grid has done so far, ended or in flight. Where no time is kept only instructions and
    /// accesses count.
    #[must_use]
    pub fn counters_of(&self, operation: OperationId) -> Option<GridCounters> {
        match self.grids.get(&operation) {
            Some(grid) => Some(self.counters_at(grid, self.now)),
            None => self
                .ended
                .iter()
                .rev()
                .find(|(id, _)| *id == operation)
                .map(|(_, counters)| *counters),
        }
    }

    fn counters_at(&self, grid: &Grid, time: u64) -> GridCounters {
        let cycle = self.spec.cycle_ps();
        let mut counters = grid.counters;
        set_memory(&mut counters, &grid.memory_counts);
        counters.cycles = time.saturating_sub(grid.start) / cycle;
        let stays = self.sms.iter().map(|sm| sm.stays(grid.operation, time));
        let (sm_ps, warp_ps) = stays
            .fold((grid.stays.sm_ps, grid.stays.warp_ps), |(sm, warp), stays| {
                (sm + stays.sm_ps, warp + stays.warp_ps)
            });
        counters.sm_cycles = sm_ps / cycle;
        counters.warp_cycles = warp_ps / cycle;
        counters.nanojoules = static_nanojoules(counters.sm_cycles, &self.spec)
            + dynamic_nanojoules(&counters, &self.spec);
        counters
    }

    /// Keeps the counters of a grid that ended at `time`.
    pub(super) fn keep_counters(&mut self, grid: &Grid, time: u64) {
        let counters = self.counters_at(grid, time);
        self.ended_sum.add(&counters);
        if self.ended.len() == KEPT_COUNTERS {
            self.ended.pop_front();
        }
        self.ended.push_back((grid.operation, counters));
    }

    /// The device's counters since it was made.
    #[must_use]
    pub fn totals(&self) -> DeviceCounters {
        let mut work = self.ended_sum;
        for grid in self.grids.values() {
            work.add(&self.counters_at(grid, self.now));
        }
        let cycle = self.spec.cycle_ps();
        let powered_ps: u64 = self.sms.iter().map(|sm| sm.powered_ps(self.now)).sum();
        let powered_sm_cycles = powered_ps / cycle;
        DeviceCounters {
            cycles: self.now / cycle,
            powered_sm_cycles,
            work,
            nanojoules: static_nanojoules(powered_sm_cycles, &self.spec)
                + dynamic_nanojoules(&work, &self.spec),
        }
    }

    /// Gates these SMs and powers all others. An SM loses power when it is empty, and gets no new
    /// CTAs.
    pub(super) fn set_gated(&mut self, sms: SmSet) {
        self.gated = sms.intersection(&SmSet::range(0, self.spec.sms));
        for sm in &mut self.sms {
            sm.gate(self.gated.contains(SmId(sm.id as u16)), self.now);
        }
    }
}
