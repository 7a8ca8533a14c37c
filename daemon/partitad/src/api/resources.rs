//! Lists of one kind of thing: GPUs, applications, sessions, kernels, partitions, decisions.
//!
//! Every list is cut from the status reports as the caller may see them, in order of GPU. What
//! concerns other users stands in sum at their GPU.

use super::status::Seen;
use super::{Api, Of};
use axum::Json;
use axum::extract::State;
use partita_model::{
    ApplicationItem, DecisionItem, GpuItem, GpuNumber, KernelItem, PartitionItem, SessionItem,
    StatusReport,
};
use partita_policy::explain;

type List<T> = Json<Vec<T>>;

/// The GPUs, with the applications of others in sum.
#[utoipa::path(
    get,
    path = "/v1/gpus",
    tag = "gpus",
    params(Of),
    responses((status = OK, body = Vec<GpuItem>))
)]
pub(super) async fn gpus(State(api): State<Api>, seen: Seen) -> List<GpuItem> {
    let item = |report: StatusReport| {
        let facts = api.gpus.get(report.gpu.number).and_then(|gpu| gpu.handle.state().facts);
        let policy = &report.policy;
        GpuItem {
            uuid: facts.map(|facts| uuid_text(&facts.uuid)).unwrap_or_default(),
            sharing: policy.sharing,
            policy: format!("{}+{}", policy.selector, policy.partitioner),
            stage: policy.stage.clone(),
            applications: report.applications.len(),
            other_users: report.other_users,
            gpu: report.gpu,
        }
    };
    Json(seen.0.into_iter().map(item).collect())
}

/// The applications, each with its partition.
#[utoipa::path(
    get,
    path = "/v1/applications",
    tag = "applications",
    params(Of),
    responses((status = OK, body = Vec<ApplicationItem>))
)]
pub(super) async fn applications(seen: Seen) -> List<ApplicationItem> {
    seen.list(|gpu, report| {
        let partitions = report.partitions;
        let item = move |application: partita_model::ApplicationReport| {
            let own = partitions.iter().find(|one| one.application == application.id);
            ApplicationItem { gpu, partition: own.cloned(), application }
        };
        report.applications.into_iter().map(item).collect()
    })
}

/// The sessions: one for each connected process and GPU.
#[utoipa::path(
    get,
    path = "/v1/sessions",
    tag = "sessions",
    params(Of),
    responses((status = OK, body = Vec<SessionItem>))
)]
pub(super) async fn sessions(seen: Seen) -> List<SessionItem> {
    seen.list(|gpu, report| {
        let mut items = Vec::new();
        for application in report.applications {
            let sessions = application.sessions.into_iter().zip(application.pids);
            items.extend(sessions.map(|(id, pid)| SessionItem {
                gpu,
                id,
                pid,
                application: application.id,
                program: application.name.clone(),
                tenant: application.tenant,
            }));
        }
        items.sort_by_key(|item: &SessionItem| item.id);
        items
    })
}

/// The kernels of all applications, each with its form, why it has no better one, and its profile.
#[utoipa::path(
    get,
    path = "/v1/kernels",
    tag = "kernels",
    params(Of),
    responses((status = OK, body = Vec<KernelItem>))
)]
pub(super) async fn kernels(seen: Seen) -> List<KernelItem> {
    seen.list(|gpu, report| {
        let of = |application: partita_model::ApplicationReport| {
            let id = application.id;
            let item = move |kernel| KernelItem { gpu, application: id, kernel };
            application.kernels.into_iter().map(item)
        };
        report.applications.into_iter().flat_map(of).collect()
    })
}

/// The partitions in force.
#[utoipa::path(
    get,
    path = "/v1/partitions",
    tag = "plan",
    params(Of),
    responses((status = OK, body = Vec<PartitionItem>))
)]
pub(super) async fn partitions(seen: Seen) -> List<PartitionItem> {
    seen.list(|gpu, report| {
        let item = |partition| PartitionItem { gpu, partition };
        report.partitions.into_iter().map(item).collect()
    })
}

/// The policy's last decisions with their evidence, oldest first, and what they say in sentences.
#[utoipa::path(
    get,
    path = "/v1/decisions",
    tag = "decisions",
    params(Of),
    responses((status = OK, body = Vec<DecisionItem>))
)]
pub(super) async fn decisions(seen: Seen) -> List<DecisionItem> {
    seen.list(|gpu, report| {
        // The record holds only what the caller may see, and so do its sentences.
        let item = |decision| DecisionItem { gpu, why: explain(&decision), decision };
        report.policy.decisions.into_iter().map(item).collect()
    })
}

impl Seen {
    fn list<T>(self, cut: impl Fn(GpuNumber, StatusReport) -> Vec<T>) -> List<T> {
        Json(self.0.into_iter().flat_map(|report| cut(report.gpu.number, report)).collect())
    }
}

/// A UUID as NVIDIA's tools print it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}
