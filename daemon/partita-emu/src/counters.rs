//! What grids did, and what it cost.

use crate::exec::trace::RunCounts;
use crate::spec::Spec;
use crate::timing::memory::MemoryCounts;
use serde::{Deserialize, Serialize};

/// Counters of one grid, at its end or so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LaunchCounters {
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
}

impl LaunchCounters {
    /// Adds what a run did.
    pub fn add_run(&mut self, counts: &RunCounts) {
        self.warp_instructions += counts.warp_instructions;
        self.thread_instructions += counts.thread_instructions;
        self.global_loads += counts.global_loads;
        self.global_stores += counts.global_stores;
        self.shared_accesses += counts.shared_accesses;
        self.atomics += counts.atomics;
    }

    /// Sets what the memory system counted.
    pub fn set_memory(&mut self, counts: &MemoryCounts) {
        self.global_sectors = counts.sectors;
        self.l1_hits = counts.l1_hits;
        self.llc_accesses = counts.llc_accesses;
        self.llc_hits = counts.llc_hits;
        self.crossbar_bytes = counts.crossbar_bytes();
        self.dram_bytes = counts.dram_bytes;
    }

    /// Applies `f` to each counter and its like in `other`.
    fn combine(&mut self, other: &LaunchCounters, f: impl Fn(u64, u64) -> u64) {
        let LaunchCounters {
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
        ] {
            *own = f(*own, other);
        }
    }

    /// Adds another grid's.
    pub fn add(&mut self, other: &LaunchCounters) {
        self.combine(other, u64::saturating_add);
    }

    /// What happened since an earlier sample of the same grid.
    #[must_use]
    pub fn since(mut self, earlier: &LaunchCounters) -> LaunchCounters {
        self.combine(earlier, u64::saturating_sub);
        self
    }

    /// Resident warps by those that its SMs could hold, from 0 to 1, over the time that it was there; zero where it
    /// was not.
    #[must_use]
    pub fn achieved_occupancy(&self, spec: &Spec) -> f64 {
        let possible = self.sm_cycles * u64::from(spec.threads_per_sm / 32);
        if possible == 0 { 0.0 } else { self.warp_cycles as f64 / possible as f64 }
    }

    /// The energy of its instructions and bytes.
    #[must_use]
    pub fn dynamic_joules(&self, spec: &Spec) -> f64 {
        let picojoules = self.warp_instructions as f64 * spec.warp_instruction_picojoules
            + self.crossbar_bytes as f64 * spec.llc_byte_picojoules
            + self.dram_bytes as f64 * spec.dram_byte_picojoules;
        picojoules * 1e-12
    }

    /// The static energy of the SMs while it was there, and its dynamic energy. Where two grids share an SM both
    /// count it; [`Totals::joules`] counts it once.
    #[must_use]
    pub fn joules(&self, spec: &Spec) -> f64 {
        static_joules(self.sm_cycles, spec) + self.dynamic_joules(spec)
    }
}

fn static_joules(sm_cycles: u64, spec: &Spec) -> f64 {
    sm_cycles as f64 * spec.cycle_ps() as f64 * 1e-12 * spec.sm_static_watts
}

/// What a device did since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Cycles of the SM clock that went by.
    pub cycles: u64,
    /// Cycles of SMs that were not gated, summed over the SMs.
    pub powered_sm_cycles: u64,
    /// Sums over all grids.
    pub work: LaunchCounters,
}

impl Totals {
    /// What happened since an earlier sample.
    #[must_use]
    pub fn since(self, earlier: &Totals) -> Totals {
        Totals {
            cycles: self.cycles.saturating_sub(earlier.cycles),
            powered_sm_cycles: self.powered_sm_cycles.saturating_sub(earlier.powered_sm_cycles),
            work: self.work.since(&earlier.work),
        }
    }

    /// Static energy of all SMs that were not gated, working or idle, and the dynamic energy of all grids.
    #[must_use]
    pub fn joules(&self, spec: &Spec) -> f64 {
        static_joules(self.powered_sm_cycles, spec) + self.work.dynamic_joules(spec)
    }
}
