//! Counters of grids and of a device. They only grow, so that two samples bound an interval.

use crate::Traffic;
use serde::{Deserialize, Serialize};

/// Counters of one grid, at its end or so far. A device that cannot count something leaves it zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GridCounters {
    /// Cycles of the SM clock from the first CTA's start to the last one's end.
    pub cycles: u64,
    /// CTAs that ran.
    pub ctas: u64,
    /// Cycles that SMs had at least one of its CTAs, summed over the SMs.
    pub sm_cycles: u64,
    /// Cycles that its warps were resident, summed over the warps.
    pub warp_cycles: u64,
    /// Instructions by warps.
    pub warp_instructions: u64,
    /// Instructions by active threads.
    pub thread_instructions: u64,
    /// Loads from global memory, by warps.
    pub global_loads: u64,
    /// Stores to global memory, by warps.
    pub global_stores: u64,
    /// Sectors of 32 bytes that those and atomics touched. Zero where time is not kept.
    pub global_sectors: u64,
    /// Sectors that hit in L1.
    pub l1_hits: u64,
    /// Sectors that went to the LLC.
    pub llc_accesses: u64,
    /// Sectors that hit there. Those of stores always do: the LLC is write-back.
    pub llc_hits: u64,
    /// Bytes of payload between SMs and LLC.
    pub crossbar_bytes: u64,
    /// Bytes between LLC and DRAM. What is written back counts for the grid that made it leave.
    pub dram_bytes: u64,
    /// Accesses to shared memory, by warps.
    pub shared_accesses: u64,
    /// Atomics and reductions on global memory, by warps.
    pub atomics: u64,
    /// Energy: static of its SMs while it was there, dynamic of its instructions and bytes. Where
    /// two grids share an SM both count that SM; [`DeviceCounters::nanojoules`] counts it once.
    pub nanojoules: u64,
}

impl GridCounters {
    /// Applies `f` to each counter and its like in `other`.
    fn combine(&mut self, other: &GridCounters, f: impl Fn(u64, u64) -> u64) {
        let GridCounters {
            cycles,
            ctas,
            sm_cycles,
            warp_cycles,
            warp_instructions,
            thread_instructions,
            global_loads,
            global_stores,
            global_sectors,
            l1_hits,
            llc_accesses,
            llc_hits,
            crossbar_bytes,
            dram_bytes,
            shared_accesses,
            atomics,
            nanojoules,
        } = self;
        for (own, other) in [
            (cycles, other.cycles),
            (ctas, other.ctas),
            (sm_cycles, other.sm_cycles),
            (warp_cycles, other.warp_cycles),
            (warp_instructions, other.warp_instructions),
            (thread_instructions, other.thread_instructions),
            (global_loads, other.global_loads),
            (global_stores, other.global_stores),
            (global_sectors, other.global_sectors),
            (l1_hits, other.l1_hits),
            (llc_accesses, other.llc_accesses),
            (llc_hits, other.llc_hits),
            (crossbar_bytes, other.crossbar_bytes),
            (dram_bytes, other.dram_bytes),
            (shared_accesses, other.shared_accesses),
            (atomics, other.atomics),
            (nanojoules, other.nanojoules),
        ] {
            *own = f(*own, other);
        }
    }

    /// Adds another grid's.
    pub fn add(&mut self, other: &GridCounters) {
        self.combine(other, u64::saturating_add);
    }

    /// The counts since an earlier sample.
    #[must_use]
    pub fn since(mut self, earlier: &GridCounters) -> GridCounters {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    /// Resident warps by those that its SMs could hold, from 0 to 1, over the time that it was
    /// there; zero where it was not.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "only a ratio is formed")]
    pub fn achieved_occupancy(&self, threads_per_sm: u32) -> f64 {
        let possible = self.sm_cycles.saturating_mul(u64::from(threads_per_sm / 32));
        if possible == 0 { 0.0 } else { self.warp_cycles as f64 / possible as f64 }
    }

    /// The counters that policies use.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic::exact(self.ctas, self.warp_instructions, self.llc_accesses, self.llc_hits)
    }
}

/// Counters of a device since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Cycles of the SM clock that went by.
    pub cycles: u64,
    /// Cycles of SMs that had power, summed over the SMs.
    pub powered_sm_cycles: u64,
    /// Sums over all grids.
    pub work: GridCounters,
    /// Energy: static of all SMs that had power, working or idle, and the dynamic energy of all
    /// grids.
    pub nanojoules: u64,
}

impl DeviceCounters {
    /// The counts since an earlier sample.
    #[must_use]
    pub fn since(self, earlier: &DeviceCounters) -> DeviceCounters {
        DeviceCounters {
            cycles: self.cycles.saturating_sub(earlier.cycles),
            powered_sm_cycles: self.powered_sm_cycles.saturating_sub(earlier.powered_sm_cycles),
            work: self.work.since(&earlier.work),
            nanojoules: self.nanojoules.saturating_sub(earlier.nanojoules),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_bound_a_window() {
        let earlier =
            GridCounters { cycles: 10, llc_hits: 3, nanojoules: 5, ..GridCounters::default() };
        let mut later = earlier;
        later.add(&GridCounters {
            cycles: 5,
            atomics: 2,
            nanojoules: 1,
            ..GridCounters::default()
        });
        let window = later.since(&earlier);
        assert_eq!(
            (window.cycles, window.llc_hits, window.atomics, window.nanojoules),
            (5, 0, 2, 1)
        );
        assert_eq!(earlier.since(&later), GridCounters::default(), "not below zero");
    }

    #[test]
    fn occupancy_is_of_the_time_that_the_grid_was_there() {
        let counters =
            GridCounters { sm_cycles: 100, warp_cycles: 1600, ..GridCounters::default() };
        assert!((counters.achieved_occupancy(1024) - 0.5).abs() < 1e-9);
        assert!(GridCounters::default().achieved_occupancy(1024).abs() < 1e-9);
    }
}
