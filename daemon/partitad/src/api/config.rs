//! `GET /v1/config`: the configuration in force, and where each key comes from.
//!
//! Administrators see all of it. Every other user sees all but the entries about other users.

use super::{Api, Caller, Sight};
use axum::Json;
use axum::extract::{ConnectInfo, State};
use partita_model::ConfigReport;

/// The configuration in force, and the place that each key comes from.
///
/// `refused` tells of a reload that was refused: what is told here stays in force then.
#[utoipa::path(
    get,
    path = "/v1/config",
    tag = "config",
    responses((status = OK, body = ConfigReport))
)]
pub(super) async fn config(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
) -> Json<ConfigReport> {
    let only = match caller.sight() {
        Sight::All => None,
        Sight::Own(tenant) => Some(tenant),
    };
    Json(api.in_force.report(&api.gpus, only))
}
