//! `/v1/trace`: which CTAs were on which SM, when borders moved, and when copies were under way.

use super::{Api, Asked, Caller, Of, Sight, unexpected};
use crate::problem::Problem;
use axum::Json;
use axum::extract::{ConnectInfo, State};
use partita_model::TraceReport;
use partita_wire::supervise::{Answer, Ask};

/// The trace of the caller's applications: CTAs on SMs, borders and copies. An administrator gets
/// all.
#[utoipa::path(
    get,
    path = "/v1/trace",
    tag = "trace",
    params(Of),
    responses((status = OK, body = TraceReport))
)]
pub(super) async fn trace(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<Json<TraceReport>, Problem> {
    let whose = match caller.sight() {
        Sight::All => None,
        Sight::Own(tenant) => Some(tenant),
    };
    match api.one(asked)?.handle.ask(Ask::Trace(whose)).await? {
        Answer::Trace(report) => Ok(Json(report)),
        other => Err(unexpected(&other)),
    }
}
