//! What one grid did.

use crate::exec::trace::RunCounts;
use crate::timing::memory::MemoryCounts;
use serde::{Deserialize, Serialize};

/// Counters of one grid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LaunchCounters {
    /// Cycles of the SM clock from the first CTA's start to the last one's end.
    pub cycles: u64,
    /// CTAs that ran.
    pub ctas: u64,
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
    /// Sectors that hit there.
    pub llc_hits: u64,
    /// Bytes between LLC and DRAM.
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
        self.dram_bytes = counts.dram_bytes;
    }

    /// Adds what another grid did, one after the other.
    pub fn add(&mut self, other: &LaunchCounters) {
        self.cycles += other.cycles;
        self.ctas += other.ctas;
        self.warp_instructions += other.warp_instructions;
        self.thread_instructions += other.thread_instructions;
        self.global_loads += other.global_loads;
        self.global_stores += other.global_stores;
        self.global_sectors += other.global_sectors;
        self.l1_hits += other.l1_hits;
        self.llc_accesses += other.llc_accesses;
        self.llc_hits += other.llc_hits;
        self.dram_bytes += other.dram_bytes;
        self.shared_accesses += other.shared_accesses;
        self.atomics += other.atomics;
    }
}
