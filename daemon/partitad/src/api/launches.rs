//! `DELETE /v1/sessions/ID/launches`: ends what a session has queued or running.

use super::{Api, Asked, Caller, Of, Sight, change, unexpected};
use crate::link::AskError;
use crate::problem::Problem;
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use partita_model::SessionId;
use partita_wire::supervise::{Answer, Ask, RefusalKind};

/// Ends the queued and running launches of a session; its program gets
/// `CUDA_ERROR_LAUNCH_TIMEOUT`.
#[utoipa::path(
    delete,
    path = "/v1/sessions/{session}/launches",
    tag = "sessions",
    params(("session" = u64, Path, description = "The session's id"), Of),
    responses((status = NO_CONTENT))
)]
pub(super) async fn cancel_launches(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    session: Result<Path<u64>, PathRejection>,
    asked: Asked,
) -> Result<StatusCode, Problem> {
    let by = match caller.sight() {
        Sight::All => None,
        Sight::Own(tenant) => Some(tenant),
    };
    let Path(session) =
        session.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    let ask = Ask::CancelLaunches { session: SessionId(session), by };
    if let Some(gpu) = api.asked(asked)? {
        return change(gpu, ask).await;
    }
    // A session is on one GPU and unknown to all others.
    let mut unknown = None;
    for gpu in api.gpus.all() {
        match gpu.handle.ask(ask.clone()).await {
            Ok(Answer::Done) => return Ok(StatusCode::NO_CONTENT),
            Ok(Answer::Refused { kind: RefusalKind::NotFound, detail }) => {
                unknown.get_or_insert(Problem::refused(RefusalKind::NotFound, detail));
            }
            Ok(Answer::Refused { kind, detail }) => return Err(Problem::refused(kind, detail)),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => unknown = Some(error.into()),
        }
    }
    Err(unknown.unwrap_or_else(|| AskError::Gone.into()))
}
