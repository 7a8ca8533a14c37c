//! `/v1/applications/ID/terms`: what an application may have of the SMs.

use super::{Api, Asked, Caller, Of, Sight, change};
use crate::problem::{Json, Problem};
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use partita_model::{ApplicationId, Terms};
use partita_wire::supervise::Ask;

/// Sets minimum, maximum, weight and priority of an application; running kernels follow. What the
/// body leaves out is as the configuration and the program say. Its own user may ask for less than
/// the configuration grants, an administrator for everything.
#[utoipa::path(
    put,
    path = "/v1/applications/{application}/terms",
    tag = "applications",
    params(("application" = u32, Path, description = "The application's id"), Of),
    request_body = Terms,
    responses((status = NO_CONTENT))
)]
pub(super) async fn set_terms(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    application: Result<Path<u32>, PathRejection>,
    asked: Asked,
    terms: Result<Json<Terms>, Problem>,
) -> Result<StatusCode, Problem> {
    let Path(application) =
        application.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    let Json(terms) = terms?;
    let by = match caller.sight() {
        Sight::All => None,
        Sight::Own(tenant) => Some(tenant),
    };
    let ask = Ask::SetTerms { application: ApplicationId(application), terms, by };
    change(api.one(asked)?, ask).await
}
