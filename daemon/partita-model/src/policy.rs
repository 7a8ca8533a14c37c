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
    /// The largest group of the selector `matching`.
    #[serde(default)]
    pub group: GroupSize,
}

impl PolicyConfig {
    /// Whether selector or partitioner compare speeds. The device is then calibrated, and kernels
    /// are counted.
    #[must_use]
    pub fn compares_speeds(&self) -> bool {
        self.selector.compares_speeds() || self.partitioner.compares_speeds()
    }
}

/// Applications that the selector `matching` runs together, at most: 2, 3 or 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "u8", try_from = "u8")]
pub struct GroupSize(u8);

impl GroupSize {
    /// The number of applications.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for GroupSize {
    fn default() -> Self {
        GroupSize(2)
    }
}

impl From<GroupSize> for u8 {
    fn from(size: GroupSize) -> Self {
        size.0
    }
}

impl TryFrom<u8> for GroupSize {
    type Error = String;

    fn try_from(size: u8) -> Result<Self, String> {
        match size {
            2..=4 => Ok(GroupSize(size)),
            _ => Err(format!("a group has 2, 3 or 4 applications, not {size}")),
        }
    }
}

/// A policy by name, as a command line has it: `SELECTOR+PARTITIONER`, or one of them.
///
/// ```
/// # use partita_model::{PartitionerKind, PolicyName, SelectorKind};
/// let name: PolicyName = "slate+cd-search".parse().unwrap();
/// assert_eq!(name.selector, Some(SelectorKind::Slate));
/// assert_eq!(name.partitioner, Some(PartitionerKind::CdSearch));
/// let name: PolicyName = "even".parse().unwrap();
/// assert_eq!((name.selector, name.partitioner), (None, Some(PartitionerKind::Even)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PolicyName {
    /// The selector; `None` where none is named.
    pub selector: Option<SelectorKind>,
    /// The partitioner; `None` where none is named.
    pub partitioner: Option<PartitionerKind>,
}

impl std::str::FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (selector, partitioner) = match text.split_once('+') {
            Some((selector, partitioner)) => (named(selector), named(partitioner)),
            None => (named(text), named(text)),
        };
        let both = text.contains('+');
        let is_known = |count: u8| count == if both { 2 } else { 1 };
        if is_known(u8::from(selector.is_some()) + u8::from(partitioner.is_some())) {
            return Ok(PolicyName { selector, partitioner });
        }
        Err(format!(
            "no policy `{text}`: it is a selector (`everyone`, `slate`, `kernelet`, `matching`), a \
             partitioner (`cd-search`, `cd-search-paper`, `demand`, `even`, `smra`, `static`), or \
             both, as in `slate+cd-search`"
        ))
    }
}

/// The kind of this name, if there is one.
fn named<'a, T: Deserialize<'a>>(text: &'a str) -> Option<T> {
    use serde::de::IntoDeserializer;
    let name: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
        text.into_deserializer();
    T::deserialize(name).ok()
}

/// The kinds of selectors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SelectorKind {
    /// All applications with work.
    #[default]
    Everyone,
    /// Pairs by Slate's table; who does not fit together takes turns.
    Slate,
    /// Pairs that share each SM, by Kernelet's model of what that gains; the pairs take turns.
    Kernelet,
    /// Groups whose classes slow each other down least (Punyala); the groups take turns.
    Matching,
}

impl SelectorKind {
    /// The partitioner beside it where none is named.
    #[must_use]
    pub fn usual_partitioner(self) -> PartitionerKind {
        match self {
            SelectorKind::Everyone => PartitionerKind::CdSearch,
            SelectorKind::Slate => PartitionerKind::Demand,
            // A pair shares all SMs, so nothing is left to decide.
            SelectorKind::Kernelet => PartitionerKind::Even,
            SelectorKind::Matching => PartitionerKind::Smra,
        }
    }

    /// Whether the selector compares speeds. It then needs a calibrated device that keeps time.
    #[must_use]
    pub fn compares_speeds(self) -> bool {
        !matches!(self, SelectorKind::Everyone)
    }
}

/// The kinds of partitioners.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
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
    /// In proportion to the SMs that an application can use, by its profile.
    Demand,
    /// SMs move away from applications with low IPC and high bandwidth (Punyala).
    Smra,
}

impl PartitionerKind {
    /// Whether the partitioner compares speeds. It then needs a calibrated device that keeps time.
    #[must_use]
    pub fn compares_speeds(self) -> bool {
        !matches!(self, PartitionerKind::Even | PartitionerKind::Static)
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
