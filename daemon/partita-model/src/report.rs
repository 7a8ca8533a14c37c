//! What the daemon tells of itself: the bodies of the API's answers.

use crate::{
    ApplicationId, Calibration, Class, ComputeCapability, DecisionRecord, DeviceKind, GpuNumber,
    HostTime, KernelProfile, LaunchId, Measurements, Nanos, OperationId, SessionId, Sharing, SmId,
    SmSet, TenantId, Timekeeping,
};
use serde::{Deserialize, Serialize};

/// `GET /v1/status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StatusReport {
    /// The daemon's version.
    pub version: String,
    /// The GPU.
    pub gpu: GpuReport,
    /// Every application that has at least one session, in order of id.
    pub applications: Vec<ApplicationReport>,
    /// Every partition in force, in order of application.
    pub partitions: Vec<PartitionReport>,
    /// What the policy does, and why.
    pub policy: PolicyReport,
    /// The daemon's other GPUs in order of number, where the report is of all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<GpuStatus>,
}

/// One of several GPUs, with what is on it. Ids of applications are unique on their GPU only, those
/// of sessions in the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The GPU.
    pub gpu: GpuReport,
    /// Every application that has at least one session, in order of id.
    pub applications: Vec<ApplicationReport>,
    /// Every partition in force, in order of application.
    pub partitions: Vec<PartitionReport>,
    /// What the policy does, and why.
    pub policy: PolicyReport,
}

impl From<StatusReport> for GpuStatus {
    fn from(report: StatusReport) -> Self {
        let StatusReport { gpu, applications, partitions, policy, .. } = report;
        GpuStatus { gpu, applications, partitions, policy }
    }
}

/// The policy: which it is, what it has ordered, and why. Where SMs are not shared out it has
/// nothing to do.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyReport {
    /// How applications share the device.
    #[serde(default)]
    pub sharing: Sharing,
    /// Who runs together: the selector's name.
    pub selector: String,
    /// How many SMs each: the partitioner's name.
    pub partitioner: String,
    /// What the partitioner is doing, in one word; empty where nobody has had work yet.
    pub stage: String,
    /// SMs whose workers wait at the next task border.
    pub stalled: SmSet,
    /// SMs that stay empty to save power.
    pub gated: SmSet,
    /// Why the partitions are as they are, in sentences.
    pub why: Vec<String>,
    /// The last decisions with what they were made from, oldest first.
    pub decisions: Vec<DecisionRecord>,
}

/// The GPU and the process that holds it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuReport {
    /// Which of the daemon's GPUs it is.
    #[serde(default = "first_gpu")]
    pub number: GpuNumber,
    /// Its name.
    pub name: String,
    /// Emulated or real.
    pub kind: DeviceKind,
    /// What its times are worth.
    pub timekeeping: Timekeeping,
    /// What it can execute.
    pub compute_capability: ComputeCapability,
    /// Number of SMs.
    pub sms: u16,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Device memory in use in bytes.
    pub memory_used_bytes: u64,
    /// Device time since its start in nanoseconds; simulated on the emulated GPU.
    pub device_time_ns: u64,
    /// Energy used since its start in nanojoules, where the device counts it.
    pub energy_nj: Option<u64>,
    /// What host time is worth, where calls are charged for.
    #[serde(default)]
    pub host_time: Option<HostTime>,
    /// How often a program was not waited for any more: since then its calls depend on how fast the
    /// host is.
    #[serde(default)]
    pub patience_exceeded: u64,
    /// How often kernels went past an allocation, inside pages that their program has mapped. The
    /// emulated GPU counts, unless its text has `memcheck=on`.
    #[serde(default)]
    pub stray_accesses: u64,
    /// The numbers that policies reason with, by specification.
    #[serde(default)]
    pub calibration: Option<Calibration>,
    /// What of them was measured, once it is: it goes before the specification.
    #[serde(default)]
    pub measured: Option<Measurements>,
    /// Process id of `partita-gpu`.
    pub pid: u32,
    /// How often `partita-gpu` has been restarted since the daemon started.
    pub restarts: u32,
}

fn first_gpu() -> GpuNumber {
    GpuNumber(0)
}

/// One application.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApplicationReport {
    /// Its id.
    pub id: ApplicationId,
    /// Its program's name.
    pub name: String,
    /// Who is accounted.
    pub tenant: TenantId,
    /// Its sessions.
    pub sessions: Vec<SessionId>,
    /// Process ids of its sessions, in the same order.
    pub pids: Vec<u32>,
    /// Device memory in use in bytes.
    pub memory_used_bytes: u64,
    /// What its speed depends on, once the policy has found out.
    pub class: Option<Class>,
    /// Launches that have completed.
    pub launches_completed: u64,
    /// CTAs of original work that have completed, those of running kernels included.
    pub ctas_completed: u64,
    /// For how long a launch of it has got nowhere, in nanoseconds of device time, where that is
    /// longer than the limit.
    #[serde(default)]
    pub stuck_ns: Option<u64>,
    /// Kernels that it has launched so far, in order of first launch.
    pub kernels: Vec<KernelReport>,
}

/// How a kernel runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelReport {
    /// Its name as in the module.
    pub name: String,
    /// The form in which it runs: `worker`, or `original` where it stays as it was.
    pub form: String,
    /// Why it is not a worker, where it is not.
    pub reason: Option<String>,
    /// Why nothing keeps it to its program's memory, where nothing does.
    #[serde(default)]
    pub unfenced: Option<String>,
    /// How often it was launched.
    pub launches: u64,
    /// What it does, in launches of the shape that was launched last, once that is known.
    #[serde(default)]
    pub profile: Option<KernelProfile>,
}

/// The SMs of one application.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartitionReport {
    /// Whose.
    pub application: ApplicationId,
    /// Which.
    pub sms: SmSet,
    /// Whether an administrator set it; the policy leaves it alone then.
    pub pinned: bool,
}

/// `GET /v1/trace`: which CTAs were resident on which SM, and when borders moved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceReport {
    /// What its times are worth.
    pub timekeeping: Timekeeping,
    /// In order of time.
    pub entries: Vec<TraceEntry>,
    /// Entries that were dropped because the buffer was full, oldest first.
    pub dropped: u64,
}

/// One line of a trace.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TraceEntry {
    /// A CTA became or ceased to be resident.
    Residency {
        /// What happened.
        #[serde(flatten)]
        change: ResidencyChange,
        /// Whose.
        application: ApplicationId,
        /// Of which launch.
        launch: LaunchId,
    },
    /// A partition changed: the signal was written at `time`.
    Resize {
        /// Device time.
        time: Nanos,
        /// Whose.
        application: ApplicationId,
        /// Before.
        from: SmSet,
        /// After.
        to: SmSet,
    },
}

/// A CTA came to an SM or left it, as the device saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResidencyChange {
    /// Device time.
    pub time: Nanos,
    /// Where.
    pub sm: SmId,
    /// Which grid.
    pub grid: OperationId,
    /// The hardware's CTA index in that grid, linear.
    pub cta: u64,
    /// Came or left.
    pub kind: ResidencyKind,
}

/// Whether a CTA came or left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidencyKind {
    /// It became resident.
    Start,
    /// It left.
    Exit,
}
