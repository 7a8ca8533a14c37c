//! The configuration of one GPU: its policy, and what is configured beside the policy.

use crate::{PolicyConfig, TenantId, TermsRule};
use serde::{Deserialize, Serialize};

/// What the configuration file says of one GPU. `partitad` reads and checks it; `partita-gpu`
/// follows it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GpuConfig {
    /// Who runs, and on how many SMs.
    pub policy: PolicyConfig,
    /// How long a launch may make no progress.
    pub limits: Limits,
    /// When `partitad` takes the GPU's `partita-gpu` for hung.
    #[serde(default)]
    pub hung_after: HungAfter,
    /// When kernels run as they were written.
    #[serde(default)]
    pub originals: Originals,
    /// How many sessions one tenant may have.
    #[serde(default)]
    pub sessions_per_user: SessionsPerUser,
    /// The device memory of each tenant. No two entries name the same tenant.
    pub quotas: Vec<MemoryQuota>,
    /// The machine's memory that programs may make the daemon hold.
    #[serde(default)]
    pub host_memory: HostMemoryLimits,
    /// Tenants that may run kernels which nothing confines to their own memory. The daemon's own
    /// user always may. `None` stands for every tenant.
    pub unfenced: Vec<Option<TenantId>>,
    /// What applications may have of the SMs.
    #[serde(default)]
    pub terms: Vec<TermsRule>,
    /// Tenants whose programs may ask for more than `terms` grant. The daemon's own user and root
    /// always may. `None` stands for every tenant.
    #[serde(default)]
    pub askers: Vec<Option<TenantId>>,
    /// The tenants that may use the GPU; `None` stands for every tenant. `partitad` enforces it.
    pub tenants: Option<Vec<TenantId>>,
}

/// When kernels that have another form run as they were written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Originals {
    /// In short launches that keep to their application's SMs: where it has the GPU to itself, and
    /// where the device keeps the launch there.
    #[default]
    Short,
    /// In short launches of an application that has the GPU to itself.
    Alone,
    /// Only where the other form cannot serve the launch.
    Never,
}

/// The host time, in milliseconds, for which a `partita-gpu` may answer no heartbeat. `partitad`
/// then kills it and starts another. Waits for a processor do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HungAfter(pub u32);

impl Default for HungAfter {
    /// Calls of a driver that take seconds are rare; the longest launch that must run alone may
    /// take 10 s.
    fn default() -> Self {
        HungAfter(30_000)
    }
}

/// The most sessions of one tenant on one GPU, root's among them. A session takes 256 GiB of the
/// 112 TiB of device addresses, and more where the GPU has more than 128 GiB of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionsPerUser(pub u32);

impl Default for SessionsPerUser {
    /// A job of 128 processes, and some more. The smallest number of sessions that a GPU's
    /// addresses serve is some hundreds.
    fn default() -> Self {
        SessionsPerUser(160)
    }
}

/// The device memory that the programs of one tenant may have together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryQuota {
    /// The tenant; `None` stands for each tenant without an entry of its own.
    pub tenant: Option<TenantId>,
    /// The quota in bytes.
    pub bytes: u64,
}

/// The machine's memory that programs may make the daemon hold: page-locked and managed memory,
/// modules, queued operations, and the memory of an emulated GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostMemoryLimits {
    /// Bytes for all tenants together; `None`: three quarters of the machine's memory.
    pub bytes: Option<u64>,
    /// Bytes for the tenants. Without an entry for every tenant, it is half of the machine's
    /// memory. No two entries name the same tenant.
    pub tenants: Vec<MemoryQuota>,
}

/// Limits of launches and modules.
///
/// A launch without progress is ended beyond a limit where it holds SMs that another application
/// was given, or keeps others waiting. A module that takes too long or too much to prepare is
/// refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Of workers and tickets: the longest device time without a completed CTA, in milliseconds.
    pub no_progress_ms: u32,
    /// Of a kernel that runs alone, whose progress is not visible: its longest duration in
    /// milliseconds of device time.
    pub alone_ms: u32,
    /// Of every launch: the longest time of the host, in milliseconds, for which the device runs,
    /// no CTA of the launch completes, and others wait for it.
    pub hold_up_ms: u32,
    /// Of a module: the longest time of its preparation, in milliseconds of a thread's life.
    pub prepare_ms: u32,
    /// Of a module: the memory in MiB that its preparation may take. It bounds the module's text,
    /// and the forms that are prepared when the module is loaded.
    pub prepare_mib: u32,
}

impl Default for Limits {
    /// CTAs of 1 s and kernels of 10 s are rare. An emulated GPU takes seconds of the host's time
    /// for a legitimate CTA where thousands run at once. The largest texts in CUDA's own libraries
    /// have tens of megabytes, and take less than a minute.
    fn default() -> Self {
        Limits {
            no_progress_ms: 1_000,
            alone_ms: 10_000,
            hold_up_ms: 30_000,
            prepare_ms: 300_000,
            prepare_mib: 4_096,
        }
    }
}
