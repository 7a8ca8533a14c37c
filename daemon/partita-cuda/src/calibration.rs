//! The hardware's numbers, for policies.

use partita_model::{Calibration, DeviceFacts};

/// What a GPU's own attributes say, until it has been measured: DRAM's peak from clock and bus; the
/// LLC and the way to it as multiples of that which GPUs of compute capability 8 and 9 have about.
pub(crate) fn from_facts(facts: &DeviceFacts) -> Calibration {
    // Two transfers a clock.
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
