//! `/v1/predict` and `/v1/advice`: what applications would take on so many SMs, who fits to whom,
//! and how many SMs a target needs.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /v1/predict` | [`partita_model::ForecastReport`] of the applications on the SMs that they have |
//! | `POST /v1/predict` | [`ForecastRequest`] in, the same of the named applications on the named SMs |
//! | `GET /v1/advice` | [`partita_model::PairsReport`]: pairs, the best first |
//! | `POST /v1/advice` | [`AdviceRequest`] in, [`partita_model::AdviceReport`]: the fewest SMs for a target |
//!
//! The facts are those of a status report as the caller may see it, and the answers change nothing.
//! A request that the models cannot answer gets 422, one that names something unknown 404.

use super::Of;
use super::status::SeenOne;
use crate::problem::{Json, Problem};
use axum::http::StatusCode;
use partita_model::{
    AdviceReport, AdviceRequest, ForecastReport, ForecastRequest, PairsReport, StatusReport,
};
use partita_policy::{Facts, ForecastError};

/// What the applications take on the SMs that they have.
#[utoipa::path(
    get,
    path = "/v1/predict",
    tag = "forecasts",
    params(Of),
    responses((status = OK, body = ForecastReport))
)]
pub(super) async fn present(
    SeenOne(report): SeenOne,
) -> Result<axum::Json<ForecastReport>, Problem> {
    answered(facts(&report).present())
}

/// What the named applications would take on the named SMs.
#[utoipa::path(
    post,
    path = "/v1/predict",
    tag = "forecasts",
    params(Of),
    request_body = ForecastRequest,
    responses((status = OK, body = ForecastReport))
)]
pub(super) async fn forecast(
    SeenOne(report): SeenOne,
    request: Result<Json<ForecastRequest>, Problem>,
) -> Result<axum::Json<ForecastReport>, Problem> {
    let Json(request) = request?;
    answered(facts(&report).forecast(&request))
}

/// Pairs of applications, the best first.
#[utoipa::path(
    get,
    path = "/v1/advice",
    tag = "forecasts",
    params(Of),
    responses((status = OK, body = PairsReport))
)]
pub(super) async fn pairs(SeenOne(report): SeenOne) -> Result<axum::Json<PairsReport>, Problem> {
    answered(facts(&report).pairs())
}

/// The fewest SMs with which a launch takes no longer than its target.
#[utoipa::path(
    post,
    path = "/v1/advice",
    tag = "forecasts",
    params(Of),
    request_body = AdviceRequest,
    responses((status = OK, body = AdviceReport))
)]
pub(super) async fn advice(
    SeenOne(report): SeenOne,
    request: Result<Json<AdviceRequest>, Problem>,
) -> Result<axum::Json<AdviceReport>, Problem> {
    let Json(request) = request?;
    answered(facts(&report).advice(&request))
}

fn facts(report: &StatusReport) -> Facts<'_> {
    Facts { gpu: &report.gpu, applications: &report.applications, partitions: &report.partitions }
}

fn answered<T>(answer: Result<T, ForecastError>) -> Result<axum::Json<T>, Problem> {
    let answer = answer.map_err(|error| {
        let status = match error {
            ForecastError::Unknown(..) | ForecastError::Kernel { .. } => StatusCode::NOT_FOUND,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Problem::new(status, error.to_string())
    })?;
    Ok(axum::Json(answer))
}
