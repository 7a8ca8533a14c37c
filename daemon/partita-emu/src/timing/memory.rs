//! The way of a transaction: L1, port, LLC, DRAM.

use super::cache::Cache;
use super::calendar::Calendar;
use crate::exec::trace::{AccessKind, SECTOR_BYTES, Transaction};
use crate::spec::Spec;

/// Counts of the memory system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryCounts {
    /// Sectors that warps asked for.
    pub sectors: u64,
    /// Sectors that hit in L1.
    pub l1_hits: u64,
    /// Sectors that went to the LLC.
    pub llc_accesses: u64,
    /// Sectors that hit there.
    pub llc_hits: u64,
    /// Bytes from and to DRAM.
    pub dram_bytes: u64,
}

/// What all SMs share.
#[derive(Clone, Debug)]
pub struct SharedMemorySystem {
    llc: Cache,
    llc_bandwidth: Calendar,
    dram_bandwidth: Calendar,
    llc_latency: u64,
    dram_latency: u64,
}

/// What one SM has.
#[derive(Clone, Debug)]
pub struct SmMemory {
    l1: Cache,
    port: Calendar,
    l1_latency: u64,
}

impl SharedMemorySystem {
    /// As a spec says.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let cycle = spec.cycle_ps();
        // Dirty lines are written back once; a store costs its bytes at DRAM when it misses.
        let per_bucket =
            |gigabytes_per_second: f64, bucket: u64| (gigabytes_per_second * bucket as f64 / 1000.0) as u64;
        let bucket = cycle * 32;
        SharedMemorySystem {
            llc: Cache::new(spec.llc_bytes, 16),
            llc_bandwidth: Calendar::new(bucket, per_bucket(spec.llc_gigabytes_per_second, bucket)),
            dram_bandwidth: Calendar::new(
                bucket,
                per_bucket(spec.dram_gigabytes_per_second * spec.dram_efficiency, bucket),
            ),
            llc_latency: spec.llc_latency_cycles * cycle,
            dram_latency: spec.dram_latency_cycles * cycle,
        }
    }

    /// Nothing happens before `now` any more.
    pub fn advance(&mut self, now: u64) {
        self.llc_bandwidth.advance(now);
        self.dram_bandwidth.advance(now);
    }
}

impl SmMemory {
    /// As a spec says.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let bucket = spec.cycle_ps() * 32;
        SmMemory {
            l1: Cache::new(spec.l1_bytes, 4),
            port: Calendar::new(bucket, spec.port_bytes_per_cycle * 32),
            l1_latency: spec.l1_latency_cycles * spec.cycle_ps(),
        }
    }

    /// Nothing happens before `now` any more.
    pub fn advance(&mut self, now: u64) {
        self.port.advance(now);
    }

    /// A new grid does not see what an older one left in L1.
    pub fn forget(&mut self) {
        self.l1.clear();
    }

    /// When a transaction that starts at `time` has its data.
    pub fn access(
        &mut self,
        shared: &mut SharedMemorySystem,
        transaction: &Transaction,
        time: u64,
        counts: &mut MemoryCounts,
    ) -> u64 {
        let sectors = u64::from(transaction.sectors.count_ones());
        counts.sectors += sectors;
        let missed = match transaction.kind {
            AccessKind::Load => self.l1.access(transaction.line, transaction.sectors),
            _ => transaction.sectors,
        };
        let missing = u64::from(missed.count_ones());
        counts.l1_hits += sectors - missing;
        if missing == 0 {
            return time + self.l1_latency;
        }
        let bytes = missing * SECTOR_BYTES;
        let at_llc = self.port.serve(time, bytes);
        let at_llc = shared.llc_bandwidth.serve(at_llc, bytes);
        counts.llc_accesses += missing;
        let missed = shared.llc.access(transaction.line, missed);
        let missing_there = u64::from(missed.count_ones());
        counts.llc_hits += missing - missing_there;
        if missing_there == 0 {
            return at_llc + shared.llc_latency;
        }
        let bytes = missing_there * SECTOR_BYTES;
        counts.dram_bytes += bytes;
        shared.dram_bandwidth.serve(at_llc, bytes) + shared.dram_latency
    }
}
