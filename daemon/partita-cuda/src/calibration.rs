//! The hardware's numbers, for policies.

use partita_model::{Calibration, DeviceFacts};

/// Estimates from a GPU's attributes, until it has been measured. DRAM's peak follows from clock
/// and bus width. The LLC and its interconnect are multiples of that peak, as on GPUs of compute
/// capability 8 and 9.
pub(crate) fn from_facts(facts: &DeviceFacts) -> Calibration {
    // DRAM transfers twice a clock cycle.
    let dram =
        f64::from(facts.memory_clock_khz) * 1e3 * 2.0 * f64::from(facts.memory_bus_bits) / 8.0;
    Calibration {
        sms: facts.sm_count,
        sm_clock_khz: facts.sm_clock_khz,
        warp_instructions_per_cycle: 4.0,
        access_bytes: 32,
        noc_bytes_per_second: dram * 2.0,
        llc_bytes_per_second: dram * 2.0,
        dram_bytes_per_second: dram,
        dram_utilisation: 0.9,
    }
}
