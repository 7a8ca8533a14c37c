//! Items of the API's lists: a report of one thing, with the GPU that it is on.

use crate::{
    ApplicationId, ApplicationReport, DecisionRecord, GpuNumber, GpuReport, KernelReport,
    OtherUsers, PartitionReport, SessionId, Sharing, TenantId,
};
use serde::{Deserialize, Serialize};

/// `GET /v1/gpus`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuItem {
    /// The GPU.
    #[serde(flatten)]
    pub gpu: GpuReport,
    /// Its UUID, as NVIDIA's tools print it.
    pub uuid: String,
    /// The way in which applications share it.
    pub sharing: Sharing,
    /// The policy: `SELECTOR+PARTITIONER`.
    pub policy: String,
    /// The partitioner's state in one word; empty before the first work.
    pub stage: String,
    /// The number of applications that the caller sees.
    pub applications: usize,
    /// The applications of other users in sum, where the caller does not see them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_users: Option<OtherUsers>,
}

/// `GET /v1/applications`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApplicationItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// The application. Its id is unique on its GPU.
    #[serde(flatten)]
    pub application: ApplicationReport,
    /// Its SMs, while it has some.
    pub partition: Option<PartitionReport>,
}

/// `GET /v1/sessions`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// The session, unique in the daemon.
    pub id: SessionId,
    /// Its application.
    pub application: ApplicationId,
    /// Its tenant.
    pub tenant: TenantId,
    /// The name of the application's program.
    pub program: String,
    /// The process id of its client; 0 for a process of a PID namespace that the daemon does not
    /// see.
    pub pid: u32,
}

/// `GET /v1/kernels`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// The application that launched it.
    pub application: ApplicationId,
    /// The kernel.
    #[serde(flatten)]
    pub kernel: KernelReport,
}

/// `GET /v1/partitions`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PartitionItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// The partition.
    #[serde(flatten)]
    pub partition: PartitionReport,
}

/// `GET /v1/decisions`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DecisionItem {
    /// The GPU.
    pub gpu: GpuNumber,
    /// The decision.
    #[serde(flatten)]
    pub decision: DecisionRecord,
    /// What it says, in sentences.
    pub why: Vec<String>,
}

/// `GET /v1/build`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BuildReport {
    /// The daemon's version.
    pub version: String,
    /// The versions of the API that it serves, as their paths begin.
    pub api: Vec<String>,
    /// Whether the daemon is built with optimisation.
    pub optimised: bool,
    /// Architecture and system that it is built for.
    pub target: String,
}
