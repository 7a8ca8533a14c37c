//! What a modelled GPU is: the numbers that timing, occupancy and the device's attributes come from.
//!
//! A spec is a TOML file in which every number names its source. Those that ship are embedded; others are read from a
//! path.

use partita_model::{Bytes, ComputeCapability, DeviceFacts, DeviceKind};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The specs that ship: name and text.
const EMBEDDED: [(&str, &str); 2] = [
    ("cd-search-24", include_str!("../specs/cd-search-24.toml")),
    ("h200", include_str!("../specs/h200.toml")),
];

/// A modelled GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The device's name.
    pub name: String,
    /// What it announces to execute: major, minor.
    pub compute_capability: [u8; 2],
    /// Number of SMs.
    pub sms: u16,
    /// SM clock.
    pub sm_clock_khz: u32,
    /// Memory clock.
    pub memory_clock_khz: u32,
    /// Width of the memory bus.
    pub memory_bus_bits: u32,
    /// Device memory.
    pub memory_bytes: u64,
    /// Warp instructions that an SM issues per cycle.
    pub issue_per_cycle: u64,
    /// Resident threads per SM.
    pub threads_per_sm: u32,
    /// Resident CTAs per SM.
    pub ctas_per_sm: u32,
    /// 32-bit registers per SM.
    pub registers_per_sm: u32,
    /// Shared memory per SM.
    pub shared_per_sm_bytes: u64,
    /// Shared memory per CTA without opting in.
    pub shared_per_cta_bytes: u64,
    /// Shared memory per CTA after opting in.
    pub shared_per_cta_optin_bytes: u64,
    /// Pieces in which shared memory is allotted.
    pub shared_granularity_bytes: u64,
    /// L1 data cache per SM.
    pub l1_bytes: u64,
    /// From issue to use of a load that hits in L1.
    pub l1_latency_cycles: u64,
    /// LLC.
    pub llc_bytes: u64,
    /// From issue to use of a load that hits in the LLC.
    pub llc_latency_cycles: u64,
    /// LLC bandwidth of all SMs together.
    pub llc_gigabytes_per_second: f64,
    /// Bytes per cycle between an SM and the crossbar.
    pub port_bytes_per_cycle: u64,
    /// From issue to use of a load from DRAM.
    pub dram_latency_cycles: u64,
    /// Peak DRAM bandwidth.
    pub dram_gigabytes_per_second: f64,
    /// The part of it that can be reached.
    pub dram_efficiency: f64,
    /// From the front of a stream to the first instruction.
    pub launch_nanoseconds: u64,
    /// Bandwidth between host and device.
    pub copy_gigabytes_per_second: f64,
    /// Cost of a copy beside its bytes.
    pub copy_nanoseconds: u64,
}

/// Why there is no such spec.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// No spec has this name.
    #[error("no spec is named `{name}`; there are {}", Spec::names().join(", "))]
    Unknown {
        /// The name.
        name: String,
    },
    /// The file cannot be read.
    #[error("spec file {path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The text is no spec.
    #[error("spec {name}: {source}")]
    Malformed {
        /// Name or path.
        name: String,
        /// Why.
        source: Box<toml::de::Error>,
    },
    /// The numbers make no GPU.
    #[error("spec {name}: {what}")]
    Impossible {
        /// Name or path.
        name: String,
        /// Why.
        what: &'static str,
    },
}

impl Spec {
    /// The names of the specs that ship.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        EMBEDDED.iter().map(|(name, _)| *name).collect()
    }

    /// The spec that ships under that name.
    ///
    /// # Errors
    /// [`SpecError::Unknown`].
    pub fn named(name: &str) -> Result<Self, SpecError> {
        match EMBEDDED.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => Spec::parse(name, text),
            None => Err(SpecError::Unknown { name: name.to_owned() }),
        }
    }

    /// The spec in a file.
    ///
    /// # Errors
    /// Where it cannot be read or is no spec.
    pub fn from_path(path: &Path) -> Result<Self, SpecError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| SpecError::Unreadable { path: shown.clone(), source })?;
        Spec::parse(&shown, &text)
    }

    fn parse(name: &str, text: &str) -> Result<Self, SpecError> {
        let spec: Spec = toml::from_str(text)
            .map_err(|source| SpecError::Malformed { name: name.to_owned(), source: Box::new(source) })?;
        let impossible = |what| Err(SpecError::Impossible { name: name.to_owned(), what });
        let positive = [
            u64::from(spec.sms),
            u64::from(spec.sm_clock_khz),
            spec.memory_bytes,
            spec.issue_per_cycle,
            u64::from(spec.ctas_per_sm),
            spec.shared_granularity_bytes,
            spec.port_bytes_per_cycle,
        ];
        let rates =
            [spec.llc_gigabytes_per_second, spec.dram_gigabytes_per_second, spec.copy_gigabytes_per_second];
        if positive.contains(&0) || rates.iter().any(|&rate| !rate.is_finite() || rate <= 0.0) {
            return impossible("a number that must be positive is not");
        }
        if spec.sms > partita_model::SmSet::CAPACITY {
            return impossible("more SMs than 256");
        }
        if !(spec.dram_efficiency > 0.0 && spec.dram_efficiency <= 1.0) {
            return impossible("dram_efficiency is not in (0, 1]");
        }
        Ok(spec)
    }

    /// Picoseconds of a cycle, rounded.
    #[must_use]
    pub fn cycle_ps(&self) -> u64 {
        (1_000_000_000 + u64::from(self.sm_clock_khz) / 2) / u64::from(self.sm_clock_khz)
    }

    /// What the device says of itself.
    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        let mut uuid = [0_u8; 16];
        for (index, byte) in self.name.bytes().enumerate() {
            uuid[index % 16] = uuid[index % 16].rotate_left(3) ^ byte;
        }
        DeviceFacts {
            kind: DeviceKind::Emulated,
            name: self.name.clone(),
            uuid,
            compute_capability: ComputeCapability {
                major: self.compute_capability[0],
                minor: self.compute_capability[1],
            },
            sm_count: self.sms,
            sm_clock_khz: self.sm_clock_khz,
            memory_clock_khz: self.memory_clock_khz,
            memory_bus_bits: self.memory_bus_bits,
            memory: Bytes(self.memory_bytes),
            llc: Bytes(self.llc_bytes),
            threads_per_sm: self.threads_per_sm,
            ctas_per_sm: self.ctas_per_sm,
            registers_per_sm: self.registers_per_sm,
            shared_per_sm: Bytes(self.shared_per_sm_bytes),
            shared_per_cta: Bytes(self.shared_per_cta_bytes),
            shared_per_cta_optin: Bytes(self.shared_per_cta_optin_bytes),
            threads_per_cta: 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_ship_are_specs() {
        for name in Spec::names() {
            let spec = Spec::named(name).unwrap();
            assert!(spec.cycle_ps() > 0, "{name}");
            assert_eq!(spec.facts().sm_count, spec.sms);
        }
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = Spec::named("h2000").unwrap_err().to_string();
        assert_eq!(error, "no spec is named `h2000`; there are cd-search-24, h200");
        let error = Spec::parse("x", "name = 3").unwrap_err().to_string();
        assert!(error.starts_with("spec x: "), "{error}");
    }
}
