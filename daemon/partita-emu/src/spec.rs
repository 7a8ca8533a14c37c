//! The specification of a modelled GPU: the numbers behind timing, occupancy and the device's
//! attributes.
//!
//! A specification is a TOML file in which every number names its source. The crate embeds some;
//! others are read from a path.

use partita_model::{
    Bytes, Calibration, ComputeCapability, DeviceFacts, DeviceKind, SmSet, Timekeeping,
};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The built-in specs: name and text.
const EMBEDDED: [(&str, &str); 11] = [
    ("a100", include_str!("../specs/a100.toml")),
    ("b200", include_str!("../specs/b200.toml")),
    ("cd-search-24", include_str!("../specs/cd-search-24.toml")),
    ("gpgpu-sim-24", include_str!("../specs/gpgpu-sim-24.toml")),
    ("h200", include_str!("../specs/h200.toml")),
    ("kernelet-c2050", include_str!("../specs/kernelet-c2050.toml")),
    ("kernelet-gtx680", include_str!("../specs/kernelet-gtx680.toml")),
    ("masola-rtx2060", include_str!("../specs/masola-rtx2060.toml")),
    ("p100", include_str!("../specs/p100.toml")),
    ("punyala-60", include_str!("../specs/punyala-60.toml")),
    ("titan-xp", include_str!("../specs/titan-xp.toml")),
];

/// A modelled GPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The device's name.
    pub name: String,
    /// What it announces to execute: major, minor. Apart from what is modelled, so that old GPUs
    /// run today's PTX.
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
    /// SMs of a group to which grids can be kept, as by CUDA's green contexts. The last group may
    /// have fewer.
    #[serde(default = "texture_processing_cluster")]
    pub sm_group: u16,
    /// SMs of each graphics processing cluster (GPC): a cluster of CTAs runs on one. Empty: all SMs
    /// are one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpc_sms: Vec<u16>,
    /// Resident threads per SM.
    pub threads_per_sm: u32,
    /// Resident CTAs per SM.
    pub ctas_per_sm: u32,
    /// 32-bit registers per SM.
    pub registers_per_sm: u32,
    /// Parts of an SM among which its registers are divided. A warp's registers lie in one part.
    #[serde(default = "one_part")]
    pub register_parts: u8,
    /// Shared memory per SM.
    pub shared_per_sm_bytes: u64,
    /// Shared memory per CTA without opting in.
    pub shared_per_cta_bytes: u64,
    /// Shared memory per CTA after opting in.
    pub shared_per_cta_optin_bytes: u64,
    /// Pieces in which shared memory is allotted.
    pub shared_granularity_bytes: u64,
    /// Shared memory that each CTA takes beside its own.
    #[serde(default)]
    pub shared_reserved_bytes: u64,
    /// L1 data cache per SM.
    pub l1_bytes: u64,
    /// Bytes per cycle between an SM's lanes and its L1 or shared memory.
    pub l1_bytes_per_cycle: u64,
    /// Bytes that a load which misses brings into L1 and LLC: 32, a sector, or 128, a line.
    #[serde(default = "sector")]
    pub fill_bytes: u64,
    /// Whether a store drops its line from the SM's L1.
    #[serde(default)]
    pub l1_stores_evict: bool,
    /// From issue to use of a load that hits in L1.
    pub l1_latency_cycles: u64,
    /// LLC.
    pub llc_bytes: u64,
    /// Slices of it. Consecutive lines lie in different slices; each has an equal part of its size
    /// and bandwidth.
    pub llc_slices: u32,
    /// Runs of so many bytes lie in one DRAM channel, and the next run in the next channel; runs of
    /// a channel go round its slices, and lines of a slice round its sets. Absent: a hash spreads
    /// lines over slices and sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interleave_bytes: Option<u64>,
    /// Whether a store that misses in the LLC is written to DRAM and fetches its line. Otherwise
    /// the LLC keeps the store's sectors until they are evicted.
    #[serde(default)]
    pub llc_stores_fetch: bool,
    /// From issue to use of a load that hits in the LLC.
    pub llc_latency_cycles: u64,
    /// Bandwidth of all slices together, the crossbar's ports on their side included.
    pub llc_gigabytes_per_second: f64,
    /// Bytes per cycle between an SM and the crossbar.
    pub port_bytes_per_cycle: u64,
    /// Bytes per cycle from an SM to the crossbar for stores. Absent: loads and stores share
    /// [`Spec::port_bytes_per_cycle`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_port_bytes_per_cycle: Option<u64>,
    /// DRAM channels; the slices are dealt out to them evenly.
    pub dram_channels: u32,
    /// From issue to use of a load from DRAM.
    pub dram_latency_cycles: u64,
    /// Row cycle of DRAM: how soon a bank can open another row. It is the scale on which requests
    /// wait for one another.
    pub dram_row_nanoseconds: f64,
    /// Peak DRAM bandwidth.
    pub dram_gigabytes_per_second: f64,
    /// The part of it that can be reached.
    pub dram_efficiency: f64,
    /// From the front of a stream to the first instruction.
    pub launch_nanoseconds: u64,
    /// How long a context has the GPU where contexts take turns.
    pub time_slice_nanoseconds: u64,
    /// From room on an SM to the first instruction of the CTA that gets it.
    pub cta_launch_cycles: u64,
    /// Bandwidth between host and device.
    pub copy_gigabytes_per_second: f64,
    /// Cost of a copy beside its bytes.
    pub copy_nanoseconds: u64,
    /// Power of an SM that is not gated, working or not.
    pub sm_static_watts: f64,
    /// Energy of an instruction of a warp, its operands included.
    pub warp_instruction_picojoules: f64,
    /// Energy of a byte through crossbar and LLC.
    pub llc_byte_picojoules: f64,
    /// Energy of a byte from or to DRAM.
    pub dram_byte_picojoules: f64,
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
        /// The system's error.
        source: std::io::Error,
    },
    /// The text is not a valid spec.
    #[error("spec {name}, line {line}: {reason}")]
    Malformed {
        /// Name or path.
        name: String,
        /// The line of the fault, from 1.
        line: usize,
        /// The reason and the remedy.
        reason: String,
    },
}

impl Spec {
    /// The names of the specs that ship.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        EMBEDDED.iter().map(|(name, _)| *name).collect()
    }

    /// The text of the spec that ships under that name: each number with its source.
    #[must_use]
    pub fn text(name: &str) -> Option<&'static str> {
        EMBEDDED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// The spec that ships under that name.
    ///
    /// # Errors
    /// [`SpecError::Unknown`].
    pub fn named(name: &str) -> Result<Self, SpecError> {
        match EMBEDDED.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => Spec::from_text(name, text),
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
        Spec::from_text(&shown, &text)
    }

    /// The spec that a text is; `name` says where it is from.
    ///
    /// # Errors
    /// [`SpecError::Malformed`].
    pub fn from_text(name: &str, text: &str) -> Result<Self, SpecError> {
        let malformed = |line: usize, reason: String| SpecError::Malformed {
            name: name.to_owned(),
            line,
            reason,
        };
        let spec: Spec = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            malformed(line_of(text, start), error.message().to_owned())
        })?;
        match spec.impossible() {
            None => Ok(spec),
            Some((key, reason)) => {
                let line = text.lines().position(|line| line.trim_start().starts_with(key));
                Err(malformed(line.map_or(1, |line| line + 1), format!("{key} {reason}")))
            }
        }
    }

    /// The first field with an impossible value, and the reason.
    fn impossible(&self) -> Option<(&'static str, String)> {
        let counts = [
            ("sms", u64::from(self.sms)),
            ("sm_group", u64::from(self.sm_group)),
            ("sm_clock_khz", u64::from(self.sm_clock_khz)),
            ("memory_bytes", self.memory_bytes),
            ("issue_per_cycle", self.issue_per_cycle),
            ("threads_per_sm", u64::from(self.threads_per_sm)),
            ("ctas_per_sm", u64::from(self.ctas_per_sm)),
            ("registers_per_sm", u64::from(self.registers_per_sm)),
            ("register_parts", u64::from(self.register_parts)),
            ("shared_granularity_bytes", self.shared_granularity_bytes),
            ("l1_bytes_per_cycle", self.l1_bytes_per_cycle),
            ("llc_slices", u64::from(self.llc_slices)),
            ("store_port_bytes_per_cycle", self.store_port_bytes_per_cycle.unwrap_or(1)),
            ("port_bytes_per_cycle", self.port_bytes_per_cycle),
            ("dram_channels", u64::from(self.dram_channels)),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, value)| *value == 0) {
            return Some((key, "must be at least 1".to_owned()));
        }
        let rates = [
            ("llc_gigabytes_per_second", self.llc_gigabytes_per_second),
            ("dram_gigabytes_per_second", self.dram_gigabytes_per_second),
            ("copy_gigabytes_per_second", self.copy_gigabytes_per_second),
        ];
        // Outside 1 KB/s to 1 EB/s the integer arithmetic of time would overflow or lose precision.
        if let Some((key, _)) = rates.iter().find(|(_, rate)| !(*rate >= 1e-6 && *rate <= 1e9)) {
            return Some((key, "must be between 1e-6 and 1e9".to_owned()));
        }
        let energies = [
            ("sm_static_watts", self.sm_static_watts),
            ("warp_instruction_picojoules", self.warp_instruction_picojoules),
            ("llc_byte_picojoules", self.llc_byte_picojoules),
            ("dram_byte_picojoules", self.dram_byte_picojoules),
        ];
        if let Some((key, _)) =
            energies.iter().find(|(_, energy)| !(*energy >= 0.0 && *energy <= 1e9))
        {
            return Some((key, "must be between 0 and 1e9".to_owned()));
        }
        if !(self.dram_efficiency > 0.0 && self.dram_efficiency <= 1.0) {
            return Some(("dram_efficiency", "must be above 0 and at most 1".to_owned()));
        }
        if !(self.dram_row_nanoseconds >= 0.0 && self.dram_row_nanoseconds <= 1e6) {
            return Some(("dram_row_nanoseconds", "must be between 0 and 1e6".to_owned()));
        }
        let latencies = [
            ("l1_latency_cycles", self.l1_latency_cycles),
            ("llc_latency_cycles", self.llc_latency_cycles),
            ("dram_latency_cycles", self.dram_latency_cycles),
            ("launch_nanoseconds", self.launch_nanoseconds),
            ("cta_launch_cycles", self.cta_launch_cycles),
            ("copy_nanoseconds", self.copy_nanoseconds),
        ];
        if let Some((key, _)) = latencies.iter().find(|(_, latency)| *latency > 1_000_000_000) {
            return Some((key, "must be at most 1000000000".to_owned()));
        }
        let residents =
            [("threads_per_sm", self.threads_per_sm), ("ctas_per_sm", self.ctas_per_sm)];
        if let Some((key, _)) = residents.iter().find(|(_, value)| *value > 32_768) {
            return Some((key, "must be at most 32768".to_owned()));
        }
        let capacity = SmSet::CAPACITY;
        if self.sms > capacity {
            return Some(("sms", format!("must be at most {capacity}")));
        }
        if !self.llc_slices.is_multiple_of(self.dram_channels) || self.llc_slices > 1024 {
            return Some((
                "llc_slices",
                "must be a multiple of dram_channels and at most 1024".to_owned(),
            ));
        }
        if self.interleave_bytes.is_some_and(|bytes| bytes == 0 || bytes % 128 != 0) {
            return Some(("interleave_bytes", "must be a multiple of 128".to_owned()));
        }
        if ![32, 128].contains(&self.fill_bytes) {
            return Some(("fill_bytes", "must be 32 or 128".to_owned()));
        }
        if self.l1_bytes > 1 << 30 || self.llc_bytes > 1 << 33 {
            let key = if self.l1_bytes > 1 << 30 { "l1_bytes" } else { "llc_bytes" };
            return Some((key, "is larger than any cache".to_owned()));
        }
        let most = self.shared_per_sm_bytes.saturating_sub(self.shared_reserved_bytes);
        if self.shared_per_cta_optin_bytes > most {
            return Some((
                "shared_per_cta_optin_bytes",
                "must not exceed shared_per_sm_bytes less shared_reserved_bytes".to_owned(),
            ));
        }
        None
    }

    /// Picoseconds of a cycle, rounded.
    #[must_use]
    pub fn cycle_ps(&self) -> u64 {
        (1_000_000_000 + u64::from(self.sm_clock_khz) / 2) / u64::from(self.sm_clock_khz)
    }

    /// The device's facts.
    #[must_use]
    pub fn facts(&self) -> DeviceFacts {
        let mut uuid = [0_u8; 16];
        for (index, byte) in self.name.bytes().enumerate() {
            uuid[index % 16] = uuid[index % 16].rotate_left(3) ^ byte;
        }
        DeviceFacts {
            kind: DeviceKind::Emulated,
            timekeeping: Timekeeping::Simulated,
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
            register_parts: self.register_parts,
            shared_reserved: Bytes(self.shared_reserved_bytes),
            absent_sms: SmSet::EMPTY,
        }
    }

    /// The groups of SMs that grids can be kept to.
    #[must_use]
    pub fn sm_groups(&self) -> Vec<SmSet> {
        let firsts = (0..self.sms).step_by(usize::from(self.sm_group));
        firsts.map(|first| SmSet::range(first, self.sm_group.min(self.sms - first))).collect()
    }

    /// The SMs of each GPC. SMs beyond [`Spec::gpc_sms`] are one more.
    #[must_use]
    pub fn gpcs(&self) -> Vec<SmSet> {
        let mut first = 0;
        let rest = std::iter::once(self.sms);
        let sizes = self.gpc_sms.iter().copied().chain(rest).map_while(|size| {
            let size = size.min(self.sms - first);
            let gpc = SmSet::range(first, size);
            first += size;
            (size > 0).then_some(gpc)
        });
        sizes.collect()
    }

    /// Its bandwidths. An LLC access is a sector of 32 bytes; the interconnect is as wide as the
    /// SMs' ports together.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "numbers of hardware are far below 2^52")]
    pub fn calibration(&self) -> Calibration {
        let ports = self.port_bytes_per_cycle as f64 * f64::from(self.sms);
        Calibration {
            sms: self.sms,
            sm_clock_khz: self.sm_clock_khz,
            warp_instructions_per_cycle: self.issue_per_cycle as f64,
            access_bytes: 32,
            noc_bytes_per_second: ports * f64::from(self.sm_clock_khz) * 1e3,
            llc_bytes_per_second: self.llc_gigabytes_per_second * 1e9,
            dram_bytes_per_second: self.dram_gigabytes_per_second * 1e9,
            dram_utilisation: 0.5,
        }
    }
}

/// Bytes that a miss fetches by default. Today's GPUs fetch sectors.
/// SMs of a texture processing cluster (TPC): the smallest group of SMs that a green context can
/// have, where SMs need not be scheduled together (CUDA Driver API, `cuDevSmResourceSplitByCount`).
fn texture_processing_cluster() -> u16 {
    2
}

fn one_part() -> u8 {
    1
}

fn sector() -> u64 {
    32
}

/// The line, from 1, that contains byte `at` of a text.
fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|&byte| byte == b'\n').count() + 1
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
    fn every_number_names_its_source() {
        for (name, text) in EMBEDDED {
            for line in text.lines().filter(|line| line.contains('=') && !line.starts_with('#')) {
                let named = line.starts_with("name ") || line.contains("# ");
                assert!(named, "{name}: no source: {line}");
            }
        }
    }

    #[test]
    fn errors_name_the_remedy() {
        let error = Spec::named("h2000").unwrap_err().to_string();
        assert_eq!(
            error,
            "no spec is named `h2000`; there are a100, b200, cd-search-24, gpgpu-sim-24, \
             h200, kernelet-c2050, kernelet-gtx680, masola-rtx2060, p100, punyala-60, titan-xp"
        );
    }

    #[test]
    fn bad_text_is_refused_with_line_and_reason() {
        let good = Spec::text("cd-search-24").unwrap();
        let check = |from: &str, to: &str, expected: &str| {
            let text = good.replace(from, to);
            assert_ne!(text, good, "{from} is there");
            let key = expected.split(' ').next().unwrap();
            let line =
                text.lines().position(|line| line.starts_with(key)).map_or(1, |line| line + 1);
            let error = Spec::from_text("x", &text).unwrap_err().to_string();
            assert_eq!(error, format!("spec x, line {line}: {expected}"));
        };
        check("sms = 24 ", "sms = 0 ", "sms must be at least 1");
        check("sms = 24 ", "sms = 257 ", "sms must be at most 256");
        check(
            "dram_efficiency = 0.85",
            "dram_efficiency = 1.5",
            "dram_efficiency must be above 0 and at most 1",
        );
        check(
            "llc_gigabytes_per_second = 268.8",
            "llc_gigabytes_per_second = nan",
            "llc_gigabytes_per_second must be between 1e-6 and 1e9",
        );
        check(
            "dram_channels = 6 ",
            "dram_channels = 7 ",
            "llc_slices must be a multiple of dram_channels and at most 1024",
        );
        let error = Spec::from_text("x", &good.replace("sms = 24", "sms = \"many\""))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("spec x, line 5: invalid type: string"), "{error}");
        let error =
            Spec::from_text("x", &good.replace("sms = 24", "smms = 24")).unwrap_err().to_string();
        assert!(error.starts_with("spec x, line 5: unknown field `smms`"), "{error}");
        let error = Spec::from_text("x", "name = \"y\"").unwrap_err().to_string();
        assert!(error.starts_with("spec x, line 1: missing field"), "{error}");
    }
}
