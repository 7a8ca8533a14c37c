//! Which policy, and the numbers of the hardware that policies reason with.

use crate::TenantId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A policy's settings. `partitad` reads them from the configuration file and checks them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyConfig {
    /// Who runs together.
    pub selector: SelectorKind,
    /// How many SMs each.
    pub partitioner: PartitionerKind,
    /// How CD-search computes supply.
    pub supply: SupplyModel,
    /// Shares for the static partitioner.
    pub shares: Vec<Share>,
}

/// Which selector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorKind {
    /// Everyone who has work.
    #[default]
    Everyone,
}

/// Which partitioner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionerKind {
    /// The same for everyone.
    Even,
    /// Shares by tenant and tag.
    Static,
    /// Classification-driven search.
    #[default]
    CdSearch,
    /// Classification-driven search as its paper prints it.
    CdSearchPaper,
}

impl PartitionerKind {
    /// Whether it compares speeds, for which a device must keep time and be measured.
    #[must_use]
    pub fn compares_speeds(self) -> bool {
        matches!(self, PartitionerKind::CdSearch | PartitionerKind::CdSearchPaper)
    }
}

/// How supply is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupplyModel {
    /// As CD-search prints Eq. 2: LLC and DRAM bandwidth weighted by hit and miss rate and added.
    #[default]
    Printed,
    /// The slowest of interconnect, LLC and DRAM, where DRAM serves only the misses: min(NoC, LLC,
    /// DRAM × util / miss).
    Bottleneck,
}

/// What one entry of the configuration gives to whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// Only applications of this tenant; `None`: of any.
    pub tenant: Option<TenantId>,
    /// Only applications with this tag; `None`: with any or none.
    pub tag: Option<String>,
    /// So many SMs, for all that match together.
    pub sms: u16,
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.tenant, &self.tag) {
            (Some(tenant), Some(tag)) => write!(f, "{tenant}, tag `{tag}`"),
            (Some(tenant), None) => write!(f, "{tenant}"),
            (None, Some(tag)) => write!(f, "tag `{tag}`"),
            (None, None) => f.write_str("everyone"),
        }
    }
}

/// What was measured on a device, with kernels of ours.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurements {
    /// Warp instructions that one SM issued per cycle.
    pub warp_instructions_per_cycle: f64,
    /// What one SM alone read from the LLC, in bytes per second.
    pub sm_bytes_per_second: f64,
    /// What all SMs together read from the LLC, in bytes per second.
    pub llc_bytes_per_second: f64,
    /// What all SMs together read from DRAM, in bytes per second.
    pub dram_bytes_per_second: f64,
    /// From the end of a short launch to that of the next in its stream, in nanoseconds.
    pub launch_nanos: f64,
    /// SMs on which CTAs ran.
    pub sms_seen: u16,
}

/// The hardware's numbers, from its specification or measured once on it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Number of SMs.
    pub sms: u16,
    /// SM clock in kHz.
    pub sm_clock_khz: u32,
    /// Warp instructions that one SM issues per cycle at most.
    pub warp_instructions_per_cycle: f64,
    /// Bytes that one counted LLC access moves.
    pub access_bytes: u32,
    /// Bisection bandwidth of the interconnect between SMs and LLC, in bytes per second.
    pub noc_bytes_per_second: f64,
    /// Bandwidth of the LLC, in bytes per second.
    pub llc_bytes_per_second: f64,
    /// Peak bandwidth of DRAM, in bytes per second.
    pub dram_bytes_per_second: f64,
    /// Part of DRAM's peak that can be counted on, in (0, 1]. CD-search assumes 0.5.
    pub dram_utilisation: f64,
}
