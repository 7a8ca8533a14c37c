//! `/v1/plan`: the partitions that an administrator has pinned.

use super::status::SeenOne;
use super::{Api, Asked, Caller, Of, change};
use crate::problem::{Json, Problem};
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use partita_model::PartitionReport;
use partita_wire::supervise::{Ask, PlanRequest, PlannedPartition};

/// The pinned partitions of the caller's applications; an administrator sees all.
#[utoipa::path(
    get,
    path = "/v1/plan",
    tag = "plan",
    params(Of),
    responses((status = OK, body = PlanRequest))
)]
pub(super) async fn plan(SeenOne(report): SeenOne) -> axum::Json<PlanRequest> {
    let pinned = report.partitions.into_iter().filter(|partition| partition.pinned);
    let planned = |PartitionReport { application, sms, .. }| PlannedPartition { application, sms };
    axum::Json(PlanRequest { partitions: pinned.map(planned).collect() })
}

/// Pins partitions, all of them or none. Needs the right to change.
#[utoipa::path(
    put,
    path = "/v1/plan",
    tag = "plan",
    params(Of),
    request_body = PlanRequest,
    responses((status = NO_CONTENT))
)]
pub(super) async fn set_plan(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
    plan: Result<Json<PlanRequest>, Problem>,
) -> Result<StatusCode, Problem> {
    api.admit(caller)?;
    let Json(plan) = plan?;
    change(api.one(asked)?, Ask::SetPlan(plan)).await
}

/// Gives every partition back to the policy. Needs the right to change.
#[utoipa::path(
    delete,
    path = "/v1/plan",
    tag = "plan",
    params(Of),
    responses((status = NO_CONTENT))
)]
pub(super) async fn clear_plan(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<StatusCode, Problem> {
    api.admit(caller)?;
    change(api.one(asked)?, Ask::ClearPlan).await
}
