//! Whether the daemon lives, whether it serves, and which build it is.
//!
//! `/-/ready` agrees with readiness as told to systemd: the API listens only after that message.
//! Later it follows the data planes: while one is being restarted, programs have to wait.

use super::Api;
use crate::problem::Problem;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use partita_model::BuildReport;

/// Whether the daemon answers.
#[utoipa::path(
    get,
    path = "/-/healthy",
    tag = "health",
    responses((status = OK, body = String, content_type = "text/plain"))
)]
pub(super) async fn healthy() -> &'static str {
    "healthy\n"
}

/// Whether every GPU is served.
#[utoipa::path(
    get,
    path = "/-/ready",
    tag = "health",
    responses((status = OK, body = String, content_type = "text/plain"))
)]
pub(super) async fn ready(State(api): State<Api>) -> Result<&'static str, Problem> {
    for gpu in api.gpus.all() {
        let state = gpu.handle.state();
        if state.link.is_none() {
            let number = gpu.number;
            let why = state.last_restart.map(|why| format!(" ({why})")).unwrap_or_default();
            let detail = format!("{number} is not served: its partita-gpu is being restarted{why}");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
        }
    }
    Ok("ready\n")
}

/// The daemon's version, and the versions of the API that it serves.
#[utoipa::path(
    get,
    path = "/v1/build",
    tag = "health",
    responses((status = OK, body = BuildReport))
)]
pub(super) async fn build() -> Json<BuildReport> {
    Json(BuildReport {
        version: env!("CARGO_PKG_VERSION").into(),
        api: vec!["v1".into()],
        optimised: !cfg!(debug_assertions),
        target: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    })
}
