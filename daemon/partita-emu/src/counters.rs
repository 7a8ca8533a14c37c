//! The counters of a grid, and the energy that they stand for.

use crate::exec::trace::RunCounts;
use crate::spec::Spec;
use crate::timing::memory::MemoryCounts;
use partita_model::GridCounters;

/// Adds the work of a run.
pub fn add_run(counters: &mut GridCounters, counts: &RunCounts) {
    counters.warp_instructions += counts.warp_instructions;
    counters.thread_instructions += counts.thread_instructions;
    counters.global_loads += counts.global_loads;
    counters.global_stores += counts.global_stores;
    counters.shared_accesses += counts.shared_accesses;
    counters.atomics += counts.atomics;
}

/// Sets the counts of the memory system.
pub fn set_memory(counters: &mut GridCounters, counts: &MemoryCounts) {
    counters.global_sectors = counts.sectors;
    counters.l1_hits = counts.l1_hits;
    counters.llc_accesses = counts.llc_accesses;
    counters.llc_hits = counts.llc_hits;
    counters.crossbar_bytes = counts.crossbar_bytes();
    counters.dram_bytes = counts.dram_bytes;
}

/// The energy of instructions and bytes.
#[must_use]
pub fn dynamic_nanojoules(counters: &GridCounters, spec: &Spec) -> u64 {
    let picojoules = counters.warp_instructions as f64 * spec.warp_instruction_picojoules
        + counters.crossbar_bytes as f64 * spec.llc_byte_picojoules
        + counters.dram_bytes as f64 * spec.dram_byte_picojoules;
    (picojoules / 1000.0).round() as u64
}

/// The energy of SMs that have power, for a sum of cycles over all SMs.
#[must_use]
pub fn static_nanojoules(sm_cycles: u64, spec: &Spec) -> u64 {
    // Watts × picoseconds = picojoules.
    (sm_cycles as f64 * spec.cycle_ps() as f64 * spec.sm_static_watts / 1000.0).round() as u64
}
