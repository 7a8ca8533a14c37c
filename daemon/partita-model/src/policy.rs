//! The choice of policy, and the hardware's numbers that policies use.

use crate::TenantId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A policy's settings. `partitad` reads them from the configuration file and checks them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyConfig {
    /// Chooses the applications that run together.
    pub selector: SelectorKind,
    /// Chooses the number of SMs of each application.
    pub partitioner: PartitionerKind,
    /// The formula for CD-search's supply.
    pub supply: SupplyModel,
    /// The shares of the static partitioner.
    pub shares: Vec<Share>,
}

/// The kinds of selectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorKind {
    /// All applications with work.
    #[default]
    Everyone,
}

/// The kinds of partitioners.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartitionerKind {
    /// The same number of SMs for each application.
    Even,
    /// Shares by tenant and tag.
    Static,
    /// Classification-driven search.
    #[default]
    CdSearch,
    /// Classification-driven search as printed in its paper.
    CdSearchPaper,
}

impl PartitionerKind {
    /// Whether the partitioner compares speeds. It then needs a calibrated device that keeps time.
    #[must_use]
    pub fn compares_speeds(self) -> bool {
        matches!(self, PartitionerKind::CdSearch | PartitionerKind::CdSearchPaper)
    }
}

/// The formula for the supply of bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SupplyModel {
    /// Eq. 2 as the CD-search paper prints it: LLC and DRAM bandwidth, weighted by hit and miss
    /// rate, added.
    #[default]
    Printed,
    /// The minimum of interconnect, LLC and DRAM, where DRAM serves only the misses: min(NoC, LLC,
    /// DRAM × util / miss).
    Bottleneck,
}

/// One entry of the configuration: the applications that match, and their SMs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// Matches only this tenant's applications; `None` matches all tenants.
    pub tenant: Option<TenantId>,
    /// Matches only applications with this tag; `None` matches any.
    pub tag: Option<String>,
    /// SMs for all matching applications together.
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

/// Measurements of a device, taken with Partita's own kernels.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Measurements {
    /// Warp instructions per cycle of one SM.
    pub warp_instructions_per_cycle: f64,
    /// Bandwidth from the LLC to one SM alone, in bytes per second.
    pub sm_bytes_per_second: f64,
    /// Bandwidth from the LLC to all SMs together, in bytes per second.
    pub llc_bytes_per_second: f64,
    /// Bandwidth from DRAM to all SMs together, in bytes per second.
    pub dram_bytes_per_second: f64,
    /// Nanoseconds from the end of a short launch to the end of the next one in its stream.
    pub launch_nanos: f64,
    /// SMs on which CTAs ran.
    pub sms_seen: u16,
}

/// The hardware's numbers, from its specification or from a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Number of SMs.
    pub sms: u16,
    /// SM clock in kHz.
    pub sm_clock_khz: u32,
    /// Warp instructions that one SM issues per cycle, at most.
    pub warp_instructions_per_cycle: f64,
    /// Bytes that one counted LLC access moves.
    pub access_bytes: u32,
    /// Bisection bandwidth of the interconnect between SMs and LLC, in bytes per second.
    pub noc_bytes_per_second: f64,
    /// Bandwidth of the LLC, in bytes per second.
    pub llc_bytes_per_second: f64,
    /// Peak bandwidth of DRAM, in bytes per second.
    pub dram_bytes_per_second: f64,
    /// Usable part of DRAM's peak, in (0, 1]. CD-search assumes 0.5.
    pub dram_utilisation: f64,
}
