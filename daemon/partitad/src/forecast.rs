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

use crate::api::{Api, Asked, Caller};
use crate::problem::{Json, Problem};
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use partita_model::{AdviceRequest, ForecastRequest, StatusReport};
use partita_policy::{Facts, ForecastError};
use serde::Serialize;

pub async fn present(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<Response, Problem> {
    let report = api.seen(caller, asked).await?;
    answered(facts(&report).present())
}

pub async fn forecast(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
    request: Result<Json<ForecastRequest>, Problem>,
) -> Result<Response, Problem> {
    let Json(request) = request?;
    let report = api.seen(caller, asked).await?;
    answered(facts(&report).forecast(&request))
}

pub async fn pairs(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<Response, Problem> {
    let report = api.seen(caller, asked).await?;
    answered(facts(&report).pairs())
}

pub async fn advice(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
    request: Result<Json<AdviceRequest>, Problem>,
) -> Result<Response, Problem> {
    let Json(request) = request?;
    let report = api.seen(caller, asked).await?;
    answered(facts(&report).advice(&request))
}

fn facts(report: &StatusReport) -> Facts<'_> {
    Facts { gpu: &report.gpu, applications: &report.applications, partitions: &report.partitions }
}

fn answered<T: Serialize>(answer: Result<T, ForecastError>) -> Result<Response, Problem> {
    let answer = answer.map_err(|error| {
        let status = match error {
            ForecastError::Unknown(..) | ForecastError::Kernel { .. } => StatusCode::NOT_FOUND,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Problem::new(status, error.to_string())
    })?;
    Ok(axum::Json(answer).into_response())
}
