//! `/v1/reservations`: what schedulers have asked for on behalf of jobs.
//!
//! Administrators see and change all of them; every other user sees its own.

use super::{Api, Caller, Sight};
use crate::problem::{Json, Problem};
use crate::reservations::Put;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use partita_model::{GpuNumber, JobAccount, Reservation, ReservationRequest};
use partita_wire::supervise::{Answer, Ask};
use serde::Deserialize;
use std::collections::BTreeSet;

type Named = Result<Path<String>, PathRejection>;

/// All reservations that the caller may see, in order of id.
#[utoipa::path(
    get,
    path = "/v1/reservations",
    tag = "reservations",
    responses((status = OK, body = Vec<Reservation>))
)]
pub(super) async fn reservations(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
) -> axum::Json<Vec<Reservation>> {
    let all = api.reservations_of(caller).collect();
    axum::Json(api.with_usage(all).await)
}

/// One reservation.
#[utoipa::path(
    get,
    path = "/v1/reservations/{id}",
    tag = "reservations",
    params(("id" = String, Path, description = "the id that the scheduler has chosen")),
    responses((status = OK, body = Reservation))
)]
pub(super) async fn reservation(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    id: Named,
) -> Result<axum::Json<Reservation>, Problem> {
    let id = named(id)?;
    let found = api.reservations_of(caller).find(|one| one.id == id);
    let found = api.with_usage(found.into_iter().collect()).await.pop();
    found.map(axum::Json).ok_or_else(|| unknown(&id))
}

/// Reserves SMs and memory for a job, or changes that. The same request again changes nothing.
///
/// The job's application is the one of that user with the tag `job`. Where others have reserved
/// what is asked for, the answer is 409, and `holders` says who has what.
#[utoipa::path(
    put,
    path = "/v1/reservations/{id}",
    tag = "reservations",
    params(("id" = String, Path, description = "the id that the scheduler chooses")),
    request_body = ReservationRequest,
    responses(
        (status = CREATED, description = "the reservation is new"),
        (status = NO_CONTENT, description = "it was there; its numbers are these now")
    )
)]
pub(super) async fn reserve(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    id: Named,
    request: Result<Json<ReservationRequest>, Problem>,
) -> Result<StatusCode, Problem> {
    api.admit(caller)?;
    let (id, Json(request)) = (named(id)?, request?);
    match api.book.put(&id, request).await? {
        Put::New => Ok(StatusCode::CREATED),
        Put::Kept => Ok(StatusCode::NO_CONTENT),
    }
}

/// `?expires=N`.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Until {
    /// End the reservation only where it has this end.
    expires: Option<u64>,
}

/// Ends a reservation. With `expires`, a reservation that was made anew meanwhile stays, and the
/// answer is 409.
#[utoipa::path(
    delete,
    path = "/v1/reservations/{id}",
    tag = "reservations",
    params(("id" = String, Path, description = "the id that the scheduler has chosen"), Until),
    responses((status = NO_CONTENT))
)]
pub(super) async fn unreserve(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    id: Named,
    until: Result<Query<Until>, QueryRejection>,
) -> Result<StatusCode, Problem> {
    api.admit(caller)?;
    let id = named(id)?;
    let Query(Until { expires }) =
        until.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    match api.book.delete(&id, expires).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(unknown(&id)),
    }
}

impl Api {
    fn reservations_of(&self, caller: Caller) -> impl Iterator<Item = Reservation> + use<> {
        let sight = caller.sight();
        let is_seen = move |one: &Reservation| match sight {
            Sight::All => true,
            Sight::Own(tenant) => one.tenant == tenant,
        };
        self.book.all().into_iter().filter(is_seen)
    }

    /// Adds what the jobs have had, where a data plane tells it.
    async fn with_usage(&self, mut all: Vec<Reservation>) -> Vec<Reservation> {
        let gpus: BTreeSet<GpuNumber> = all.iter().map(|one| one.gpu).collect();
        for gpu in gpus {
            let Some(gpu) = self.gpus.get(gpu) else { continue };
            let Ok(Answer::Accounts(accounts)) = gpu.handle.ask(Ask::Accounts).await else {
                continue;
            };
            for one in all.iter_mut().filter(|one| one.gpu == gpu.number) {
                let is_own = |job: &&JobAccount| job.tenant == one.tenant && job.tag == one.job;
                one.used = accounts.jobs.iter().find(is_own).map(|job| job.used);
            }
        }
        all
    }
}

fn named(id: Named) -> Result<String, Problem> {
    let Path(id) = id.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    Ok(id)
}

fn unknown(id: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("there is no reservation `{id}`"))
}
