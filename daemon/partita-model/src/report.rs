//! Reports of the daemon: the bodies of the API's answers.

use crate::{
    ApplicationId, Calibration, Class, ComputeCapability, DecisionRecord, DeviceKind, Entitlement,
    GpuNumber, HostTime, KernelProfile, LaunchId, Measurements, Nanos, OperationId, SessionId,
    Sharing, SmId, SmPart, SmSet, StreamId, TargetReport, TenantId, Timekeeping,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// `GET /v1/status`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
    /// The policy's state and its reasons.
    pub policy: PolicyReport,
    /// The applications of other users in sum, where the reader may not see them; they are then
    /// missing everywhere else in the report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_users: Option<OtherUsers>,
    /// The daemon's other GPUs in order of their numbers, where the report covers all GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<GpuStatus>,
}

/// One of several GPUs with its applications. Ids of applications are unique on their GPU, ids of
/// sessions in the daemon.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuStatus {
    /// The GPU.
    pub gpu: GpuReport,
    /// Every application that has at least one session, in order of id.
    pub applications: Vec<ApplicationReport>,
    /// Every partition in force, in order of application.
    pub partitions: Vec<PartitionReport>,
    /// The policy's state and its reasons.
    pub policy: PolicyReport,
    /// As in [`StatusReport`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_users: Option<OtherUsers>,
}

/// The applications of other users, in sum.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OtherUsers {
    /// Number of applications.
    pub applications: usize,
    /// Number of their sessions.
    pub sessions: usize,
    /// Number of SMs in their partitions.
    pub sms: u16,
    /// Their device memory in use in bytes.
    pub memory_used_bytes: u64,
    /// Their launches that have completed.
    pub launches_completed: u64,
    /// Their completed CTAs.
    pub ctas_completed: u64,
}

impl From<StatusReport> for GpuStatus {
    fn from(report: StatusReport) -> Self {
        let StatusReport { gpu, applications, partitions, policy, other_users, .. } = report;
        GpuStatus { gpu, applications, partitions, policy, other_users }
    }
}

/// The policy: its parts, its orders and its reasons. It is idle where SMs are not shared out.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The way in which applications share the device.
    #[serde(default)]
    pub sharing: Sharing,
    /// The selector's name. The selector says which applications run together.
    pub selector: String,
    /// The partitioner's name. The partitioner says how many SMs each application gets.
    pub partitioner: String,
    /// The partitioner's state in one word; empty before the first work.
    pub stage: String,
    /// SMs whose workers wait at the next task border.
    pub stalled: SmSet,
    /// SMs that stay empty to save power.
    pub gated: SmSet,
    /// The reasons for the partitions, in sentences.
    pub why: Vec<String>,
    /// The last decisions with their evidence, oldest first.
    pub decisions: Vec<DecisionRecord>,
}

/// The GPU and the process that holds it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuReport {
    /// The number of the GPU.
    #[serde(default = "first_gpu")]
    pub number: GpuNumber,
    /// Its name.
    pub name: String,
    /// Emulated or real.
    pub kind: DeviceKind,
    /// The meaning of its times.
    pub timekeeping: Timekeeping,
    /// Its compute capability.
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
    /// The worth of host time, where calls are charged for.
    #[serde(default)]
    pub host_time: Option<HostTime>,
    /// Number of times that the device stopped waiting for a program. From then on that program's
    /// calls depend on the host's speed.
    #[serde(default)]
    pub patience_exceeded: u64,
    /// How often kernels went past an allocation, inside pages that their program has mapped. The
    /// emulated GPU counts, unless its text has `memcheck=on`.
    #[serde(default)]
    pub stray_accesses: u64,
    /// What its users do without because of this GPU or its driver, and why, in sentences. The
    /// self-test finds it when a real GPU is opened.
    #[serde(default)]
    pub limits: Vec<String>,
    /// The bandwidths that policies use, by specification.
    #[serde(default)]
    pub calibration: Option<Calibration>,
    /// The measured bandwidths, once they are known. They take precedence over the specification.
    #[serde(default)]
    pub measured: Option<Measurements>,
    /// Process id of `partita-gpu`.
    pub pid: u32,
    /// Restarts of `partita-gpu` since the daemon started.
    pub restarts: u32,
    /// The reason for the last restart, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_restart: Option<String>,
}

fn first_gpu() -> GpuNumber {
    GpuNumber(0)
}

/// One application.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApplicationReport {
    /// Its id.
    pub id: ApplicationId,
    /// Its program's name.
    pub name: String,
    /// The tenant.
    pub tenant: TenantId,
    /// Its sessions.
    pub sessions: Vec<SessionId>,
    /// Process ids of its sessions, in the same order; 0 for a process of a PID namespace that the
    /// daemon does not see.
    pub pids: Vec<u32>,
    /// Device memory in use in bytes.
    pub memory_used_bytes: u64,
    /// The resource that limits its speed, once the policy knows it.
    pub class: Option<Class>,
    /// Launches that have completed.
    pub launches_completed: u64,
    /// Completed CTAs of original work, with those of running kernels.
    pub ctas_completed: u64,
    /// Device time in nanoseconds for which a launch of it has been stuck; absent where none is.
    #[serde(default)]
    pub stuck_ns: Option<u64>,
    /// Copies between host and device that wait for their turn.
    #[serde(default)]
    pub copies_waiting: u64,
    /// What it may have of the GPU; absent where nothing was said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitlement: Option<Entitlement>,
    /// What became of its latency target, where it has one that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetReport>,
    /// Device time in nanoseconds for which it has lent SMs of its minimum; absent where it has no
    /// minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent_ns: Option<u64>,
    /// Kernels that it has launched so far, in order of first launch.
    pub kernels: Vec<KernelReport>,
}

/// A kernel of an application.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelReport {
    /// Its name as in the module.
    pub name: String,
    /// The form in which it runs: `worker`, `ticket`, `slice`, or `original` where it stays as it
    /// was.
    pub form: String,
    /// The reason why it is no worker, where it is none.
    pub reason: Option<String>,
    /// The reason why no fence keeps it to its program's memory, where none does.
    #[serde(default)]
    pub unfenced: Option<String>,
    /// Number of its launches.
    pub launches: u64,
    /// Those that ran as they were written, because the application had the GPU to itself.
    #[serde(default)]
    pub as_written: u64,
    /// Slices in which its launches ran so far.
    #[serde(default)]
    pub slices: u64,
    /// Its profile in launches of the latest shape, once it is known.
    #[serde(default)]
    pub profile: Option<KernelProfile>,
    /// The size of its latest launch, where launches are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<LaunchSize>,
}

/// The size of a launch.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchSize {
    /// Its CTAs.
    pub ctas: u64,
    /// Warps of a CTA.
    pub warps: u32,
    /// CTAs of it that an SM holds at a time.
    pub ctas_per_sm: u32,
}

/// The SMs of one application.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartitionReport {
    /// The application.
    pub application: ApplicationId,
    /// The SMs.
    pub sms: SmSet,
    /// Whether an administrator pinned it; the policy leaves a pinned partition alone.
    pub pinned: bool,
    /// The part of each of these SMs that its CTAs may take, where it shares them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<SmPart>,
}

/// `GET /v1/trace`: residency of CTAs on SMs, moves of borders, and copies.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TraceReport {
    /// The meaning of its times.
    pub timekeeping: Timekeeping,
    /// The entries in order of time.
    pub entries: Vec<TraceEntry>,
    /// Entries that were dropped because the buffer was full, oldest first.
    pub dropped: u64,
    /// Copies in order of their ends. A daemon from before them tells none.
    #[serde(default)]
    pub copies: Vec<TracedCopy>,
    /// Copies that were dropped because their buffer was full, oldest first.
    #[serde(default)]
    pub dropped_copies: u64,
}

impl TraceReport {
    /// A trace without copies of which nothing was dropped.
    #[must_use]
    pub fn new(timekeeping: Timekeeping, entries: Vec<TraceEntry>) -> TraceReport {
        TraceReport { timekeeping, entries, dropped: 0, copies: Vec::new(), dropped_copies: 0 }
    }
}

/// A copy or fill that has ended.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TracedCopy {
    /// The application.
    pub application: ApplicationId,
    /// The session.
    pub session: SessionId,
    /// The stream. The ids of all sessions differ.
    pub stream: StreamId,
    /// The operation. Pieces of one copy have the same, and are entries of their own where other
    /// copies came between.
    pub operation: OperationId,
    /// From where to where.
    pub kind: CopyKind,
    /// Length in bytes.
    pub bytes: u64,
    /// Device time of the beginning: the latest of three moments. The device got the copy, the
    /// operation before it in its stream ended, and, for a copy to or from the host, the copy
    /// before it in its direction ended.
    pub start: Nanos,
    /// Device time of the end.
    pub end: Nanos,
}

/// From where to where a copy goes.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyKind {
    /// From the host to the device.
    HostToDevice,
    /// From the device to the host.
    DeviceToHost,
    /// Inside the device.
    DeviceToDevice,
    /// A value that is written to device memory.
    Fill,
}

impl fmt::Display for CopyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopyKind::HostToDevice => "host to device",
            CopyKind::DeviceToHost => "device to host",
            CopyKind::DeviceToDevice => "device to device",
            CopyKind::Fill => "fill",
        })
    }
}

/// One line of a trace.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TraceEntry {
    /// A CTA became or ceased to be resident.
    Residency {
        /// The change.
        #[serde(flatten)]
        change: ResidencyChange,
        /// The application.
        application: ApplicationId,
        /// The launch.
        launch: LaunchId,
    },
    /// A partition changed: the signal was written at `time`.
    Resize {
        /// Device time.
        time: Nanos,
        /// The application.
        application: ApplicationId,
        /// The partition before.
        from: SmSet,
        /// The partition after.
        to: SmSet,
    },
}

/// A CTA came to an SM or left it, as the device saw it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResidencyChange {
    /// Device time.
    pub time: Nanos,
    /// The SM.
    pub sm: SmId,
    /// The grid.
    pub grid: OperationId,
    /// The hardware's CTA index in that grid, linear.
    pub cta: u64,
    /// The kind of change.
    pub kind: ResidencyKind,
}

/// Whether a CTA came or left.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidencyKind {
    /// It became resident.
    Start,
    /// It left.
    Exit,
}
