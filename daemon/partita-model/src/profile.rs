//! What is known of a kernel from running it in the `count` form, and the block in which it counts.
//!
//! The layout of the count block is what rewritten kernels are compiled against;
//! `partita_ptx::count` repeats it, because the compiler depends on nothing of ours, and a test in
//! `partita-gpu` holds the two equal.

use crate::{Dim3, Nanos};
use serde::{Deserialize, Serialize};

/// `u64`: instructions by warps.
pub const WARP_INSTRUCTIONS: u64 = 0;
/// `u64`: instructions by threads.
pub const THREAD_INSTRUCTIONS: u64 = 8;
/// `u64`: loads of global memory by warps, and asynchronous copies from it.
pub const GLOBAL_LOADS: u64 = 16;
/// `u64`: stores to global memory by warps.
pub const GLOBAL_STORES: u64 = 24;
/// `u64`: atomics and reductions on global memory by warps.
pub const ATOMICS: u64 = 32;
/// `u64`: sectors that all these touched, those of one instruction of one warp each once.
pub const GLOBAL_SECTORS: u64 = 40;
/// `u64`: those of accesses that cannot hit in L1: all but loads, and some of these.
pub const PAST_SECTORS: u64 = 48;
/// `u64`: records that wanted a place; more than [`CAPACITY`] where the room did not suffice.
pub const RECORDED: u64 = 64;
/// `u64`, the host's: records that there is room for.
pub const CAPACITY: u64 = 72;
/// `u32`, the host's: CTAs are sampled whose linear index has none of its bits.
pub const PERIOD: u64 = 80;
/// Bytes before the records.
pub const HEADER_BYTES: usize = 128;
/// The first record, a `u64`: the kind of access in bits 0 and 1, the sector's address in bits 5 to
/// 48, then the SM.
pub const RECORDS: u64 = HEADER_BYTES as u64;

/// The kind of access of a record: a load that may hit in L1.
pub const RECORD_LOAD: u64 = 0;
/// The bit of the kind that stores and atomics have.
pub const RECORD_WRITES: u64 = 2;
/// The bits of a record that hold the kind.
pub const RECORD_KIND: u64 = 3;
/// The bits of a record that hold the sector's address.
pub const RECORD_ADDRESS: u64 = (1 << 49) - 32;
/// Where the SM's number begins in a record.
pub const RECORD_SM_SHIFT: u32 = 49;

/// An L1's shape. Lines have 128 bytes and sectors 32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheShape {
    /// Its size.
    pub bytes: u64,
    /// Lines of a set.
    pub ways: u32,
    /// Whether a load that misses brings in its whole line, instead of the sectors that it needs.
    #[serde(default)]
    pub fills_lines: bool,
    /// Whether a store drops its line.
    #[serde(default)]
    pub stores_evict: bool,
}

impl CacheShape {
    /// A cache that brings in sectors and keeps lines that are stored to.
    #[must_use]
    pub const fn sectored(bytes: u64, ways: u32) -> Self {
        CacheShape { bytes, ways, fills_lines: false, stores_evict: false }
    }
}

/// What counted CTAs did, as the count block has it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// CTAs that were counted.
    pub ctas: u64,
    /// Instructions by warps, of the program's own text.
    pub warp_instructions: u64,
    /// Instructions by threads.
    pub thread_instructions: u64,
    /// Loads of global memory by warps.
    pub global_loads: u64,
    /// Stores to global memory by warps.
    pub global_stores: u64,
    /// Atomics and reductions on global memory by warps.
    pub atomics: u64,
    /// Sectors of 32 bytes that these touched.
    pub sectors: u64,
    /// Those of accesses that cannot hit in L1.
    pub past_sectors: u64,
}

/// What of the counted sectors reaches the LLC, and what of that hits there: bounds, and the
/// likeliest value.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LlcUse {
    /// Accesses at least.
    pub least: u64,
    /// Accesses by the device's own L1.
    pub accesses: u64,
    /// Accesses at most.
    pub most: u64,
    /// Hits at least, of [`LlcUse::accesses`].
    pub hits_least: u64,
    /// Hits by the device's own LLC.
    pub hits: u64,
    /// Hits at most.
    pub hits_most: u64,
    /// Hits by the device's own LLC that write what nobody had written: DRAM gets that later.
    #[serde(default)]
    pub dirtied: u64,
}

/// A kernel's profile for launches of one shape.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct KernelProfile {
    /// Launches that were counted; the last one's counts are here.
    pub launches: u32,
    /// What was counted.
    pub counts: Counts,
    /// What the replay of the sampled sectors says. A sector that misses costs DRAM a sector,
    /// sooner or later: so stores miss, too, where nothing of theirs is in the LLC.
    pub llc: LlcUse,
    /// Device time of a CTA, from launches that were not counted.
    pub cta_time: Option<Nanos>,
    /// Nanoseconds from one completed CTA to the next, while the application had the whole GPU.
    #[serde(default)]
    pub alone: Option<f64>,
}

/// Launches of a kernel that are taken to behave alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LaunchShape {
    /// Extent of a CTA.
    pub block: (u32, u32, u32),
    /// The logarithm to base 2 of the number of CTAs, rounded down.
    pub grid_log2: u8,
    /// Dynamic shared memory per CTA in bytes.
    pub dynamic_shared: u32,
}

impl LaunchShape {
    /// The shape of a launch of so many CTAs.
    #[must_use]
    pub const fn new(ctas: u64, block: Dim3, dynamic_shared: u32) -> Self {
        let grid_log2 = match ctas.checked_ilog2() {
            // Below 64.
            #[expect(clippy::cast_possible_truncation, reason = "a logarithm of 64 bits")]
            Some(log2) => log2 as u8,
            None => 0,
        };
        LaunchShape { block: (block.x, block.y, block.z), grid_log2, dynamic_shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_alike_within_a_factor_of_two() {
        let shape = |ctas| LaunchShape::new(ctas, Dim3::linear(32), 0).grid_log2;
        assert_eq!([1, 2, 3, 4, 1023, 1024, u64::MAX].map(shape), [0, 1, 1, 2, 9, 10, 63]);
    }
}
