//! Device attributes (CUDA Driver API, `CUdevice_attribute`), derived from the facts that the
//! daemon reports.
//!
//! An attribute that Partita does not know is 0. The runtime asks for more than a hundred
//! attributes at its start, most of which state that an optional feature exists, and treats an
//! error for any of them as the device's failure.

use partita_model::{Bytes, DeviceFacts};

/// The reported place of the first device: domain, bus, device. Further devices are on the
/// following buses.
/// The place carries no information.
pub const PCI: [i32; 3] = [0, 1, 0];
/// `MAX_PITCH`: the widest row of a two-dimensional copy in bytes.
pub const MAX_PITCH: i32 = i32::MAX;
/// Alignment of the rows that `cuMemAllocPitch` makes.
pub const PITCH_ALIGNMENT: u64 = 512;
/// Alignment of memory that a texture reads.
pub const TEXTURE_ALIGNMENT: u64 = 512;
/// Alignment of its rows.
pub const TEXTURE_PITCH_ALIGNMENT: u64 = 32;

/// The value of an attribute.
#[must_use]
pub fn value(facts: &DeviceFacts, attribute: i32) -> i32 {
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let bytes = |value: Bytes| i32::try_from(value.0).unwrap_or(i32::MAX);
    match attribute {
        1..=3 => number(facts.threads_per_cta),
        4 => 64,                          // MAX_BLOCK_DIM_Z
        5 => i32::MAX,                    // MAX_GRID_DIM_X
        6 | 7 => 65_535,                  // MAX_GRID_DIM_Y, _Z
        8 => bytes(facts.shared_per_cta), // MAX_SHARED_MEMORY_PER_BLOCK
        9 => 65_536,                      // TOTAL_CONSTANT_MEMORY
        10 => 32,                         // WARP_SIZE
        11 => MAX_PITCH,
        12 | 82 => number(facts.registers_per_sm),
        13 => number(facts.sm_clock_khz), // CLOCK_RATE
        14 | 30 => 512,                   // TEXTURE_ALIGNMENT, SURFACE_ALIGNMENT
        15 | 31 | 41 => 1,                // GPU_OVERLAP, CONCURRENT_KERNELS, UNIFIED_ADDRESSING
        16 => i32::from(facts.sm_count),  // MULTIPROCESSOR_COUNT
        21..=29 | 42..=49 | 52..=74 | 77 => texture_limit(attribute),
        33 => PCI[1],
        34 => PCI[2],
        36 => number(facts.memory_clock_khz),
        37 => number(facts.memory_bus_bits),
        38 => bytes(facts.llc), // L2_CACHE_SIZE
        39 => number(facts.threads_per_sm),
        40 => 2, // ASYNC_ENGINE_COUNT
        50 => PCI[0],
        51 => 32, // TEXTURE_PITCH_ALIGNMENT
        75 => i32::from(facts.compute_capability.major),
        76 => i32::from(facts.compute_capability.minor),
        78..=80 => 1, // STREAM_PRIORITIES_SUPPORTED, GLOBAL_ and LOCAL_L1_CACHE_SUPPORTED
        81 => bytes(facts.shared_per_sm),
        87 => 2,                  // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
        90 => 1,                  // COMPUTE_PREEMPTION_SUPPORTED
        92..=94 | 122 | 123 => 1, // …STREAM_MEM_OPS, 64-bit ones, WAIT_VALUE_NOR
        95 => 1,                  // COOPERATIVE_LAUNCH
        // CLUSTER_LAUNCH, TENSOR_MAP_ACCESS_SUPPORTED
        120 | 127 => i32::from(facts.compute_capability.major >= 9),
        97 => bytes(facts.shared_per_cta_optin),
        102 | 103 => 1, // VIRTUAL_MEMORY_MANAGEMENT_, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        106 => number(facts.ctas_per_sm),
        111 => bytes(facts.shared_reserved),
        115 | 125 => 1, // MEMORY_POOLS_SUPPORTED, IPC_EVENT_SUPPORTED
        // MEMPOOL_SUPPORTED_HANDLE_TYPES: files
        119 => 1,
        131 | 134 => -1, // NUMA_ID, HOST_NUMA_ID: no node
        _ => 0,
    }
}

/// `MAXIMUM_TEXTURE…` and `MAXIMUM_SURFACE…` (CUDA C++ Programming Guide, "Technical Specifications
/// per Compute Capability", 9.0).
fn texture_limit(attribute: i32) -> i32 {
    match attribute {
        // widths of 1-D and 2-D arrays, 2-D surfaces, 2-D linear memory
        21 | 22 | 56 | 70 => 131_072,
        23 | 57 => 65_536,           // heights of 2-D arrays and surfaces
        24..=26 | 58..=60 => 16_384, // 3-D arrays and surfaces
        47 | 48 => 8192,             // 3-D, the other way: width and height
        49 => 32_768,                // and depth
        29 | 43 | 62 | 65 => 2048,   // layers
        54 | 68 => 2046,             // layers of cubemaps
        44 => 1,                     // CAN_TEX2D_GATHER
        69 => 1 << 28,               // 1-D linear memory
        71 => 65_000,                // height of 2-D linear memory
        72 => 2_097_120,             // pitch of 2-D linear memory
        // Widths and heights of layered arrays, cubemaps, mipmapped arrays, gathers and 1-D
        // surfaces.
        _ => 32_768,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use partita_model::{ComputeCapability, DeviceKind, Timekeeping};

    /// An emulated GPU of compute capability 9.0.
    pub(crate) fn facts() -> DeviceFacts {
        DeviceFacts {
            kind: DeviceKind::Emulated,
            timekeeping: Timekeeping::Simulated,
            name: "Test".to_owned(),
            uuid: [7; 16],
            compute_capability: ComputeCapability { major: 9, minor: 0 },
            sm_count: 24,
            sm_clock_khz: 1_500_000,
            memory_clock_khz: 2_000_000,
            memory_bus_bits: 384,
            memory: Bytes(8 << 30),
            llc: Bytes(4 << 20),
            threads_per_sm: 2048,
            ctas_per_sm: 32,
            registers_per_sm: 65_536,
            shared_per_sm: Bytes(100 << 10),
            shared_per_cta: Bytes(48 << 10),
            shared_per_cta_optin: Bytes(99 << 10),
            threads_per_cta: 1024,
            register_parts: 4,
            shared_reserved: Bytes(1024),
            absent_sms: partita_model::SmSet::EMPTY,
        }
    }

    #[test]
    fn values() {
        let check =
            |attribute, expect| assert_eq!(value(&facts(), attribute), expect, "{attribute}");
        check(1, 1024);
        check(5, i32::MAX);
        check(8, 49_152);
        check(10, 32);
        check(16, 24);
        check(21, 131_072);
        check(28, 32_768);
        check(54, 2046);
        check(72, 2_097_120);
        check(33, 1);
        check(39, 2048);
        check(75, 9);
        check(76, 0);
        check(97, 101_376);
        check(106, 32);
    }

    #[test]
    fn unknown_attributes_are_0() {
        for attribute in [-1, 0, 17, 83, 110, 10_000, i32::MAX, i32::MIN] {
            assert_eq!(value(&facts(), attribute), 0, "{attribute}");
        }
    }

    #[test]
    fn sizes_beyond_an_int_are_cut() {
        let facts = DeviceFacts { llc: Bytes(1 << 40), ..facts() };
        assert_eq!(value(&facts, 38), i32::MAX);
    }
}
