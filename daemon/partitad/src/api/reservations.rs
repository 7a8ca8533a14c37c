//! `/v1/reservations`: what schedulers have asked for on behalf of jobs.
//!
//! Administrators see and change all of them; every other user sees its own.

use super::{Api, Caller, Sight};
use crate::problem::{Json, Problem};
use crate::reservations::Put;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::StatusCode;
use partita_model::{
    ApplicationAccount, ApplicationId, GpuNumber, JobAccount, PartitionReport, Reservation,
    ReservationRequest,
};
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
    axum::Json(api.with_jobs(all).await)
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
    let found = api.with_jobs(found.into_iter().collect()).await.pop();
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

    /// Adds what the data planes tell of the jobs: which application has the SMs, and what the job
    /// has had.
    async fn with_jobs(&self, mut all: Vec<Reservation>) -> Vec<Reservation> {
        let gpus: BTreeSet<GpuNumber> = all.iter().map(|one| one.gpu).collect();
        for gpu in gpus {
            let Some(gpu) = self.gpus.get(gpu) else { continue };
            let (Ok(Answer::Accounts(accounts)), Ok(Answer::Status(status))) =
                (gpu.handle.ask(Ask::Accounts).await, gpu.handle.ask(Ask::Status).await)
            else {
                continue;
            };
            for one in all.iter_mut().filter(|one| one.gpu == gpu.number) {
                let is_own = |job: &&JobAccount| job.tenant == one.tenant && job.tag == one.job;
                one.used = accounts.jobs.iter().find(is_own).map(|job| job.used);
                (one.application, one.why) =
                    holder(one, &accounts.applications, &status.partitions);
            }
        }
        all
    }
}

/// The application that has the SMs of a reservation, or why the job's application does not have
/// them.
fn holder(
    reservation: &Reservation,
    applications: &[ApplicationAccount],
    partitions: &[PartitionReport],
) -> (Option<ApplicationId>, Option<String>) {
    // A data plane that has not been told of the reservation yet gives nobody its SMs.
    let is_holder = |account: &&ApplicationAccount| {
        account.tenant == reservation.tenant
            && account.tag.as_ref() == Some(&reservation.job)
            && account.entitlement.is_some_and(|own| own.reserved)
    };
    let Some(job) = applications.iter().find(is_holder).map(|account| account.id) else {
        return (None, None);
    };
    let own = partitions.iter().find(|partition| partition.pinned && partition.application == job);
    if let Some(few) = own.filter(|own| own.sms.len() < reservation.sms) {
        let (has, asked) = (few.sms.len(), reservation.sms);
        return (None, Some(format!("an administrator has pinned {job} to {has} of {asked} SMs")));
    }
    (Some(job), None)
}

fn named(id: Named) -> Result<String, Problem> {
    let Path(id) = id.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    Ok(id)
}

fn unknown(id: &str) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, format!("there is no reservation `{id}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Entitlement, TenantId, Usage};

    fn reservation(job: &str, sms: u16) -> Reservation {
        let request = ReservationRequest {
            tenant: TenantId(7),
            job: job.into(),
            gpu: GpuNumber(0),
            sms,
            memory_bytes: 0,
            expires: u64::MAX,
            max_sms: None,
            priority: None,
        };
        Reservation::new("id".into(), request)
    }

    fn application(id: u32, tenant: u32, tag: &str) -> ApplicationAccount {
        ApplicationAccount {
            id: ApplicationId(id),
            name: "program".into(),
            tag: Some(tag.into()),
            tenant: TenantId(tenant),
            sessions: 1,
            sms: 0,
            memory_used_bytes: 0,
            launches: 0,
            ctas: 0,
            stuck: false,
            entitlement: Some(Entitlement { reserved: true, ..Entitlement::default() }),
            target: None,
            usage: Usage::default(),
        }
    }

    #[test]
    fn a_job_is_the_application_of_its_user_and_tag() {
        let mut applications =
            [application(1, 8, "one"), application(2, 7, "one"), application(3, 7, "two")];
        let one = reservation("one", 6);
        assert_eq!(holder(&one, &applications, &[]), (Some(ApplicationId(2)), None));
        assert_eq!(holder(&reservation("three", 6), &applications, &[]), (None, None));
        applications[1].entitlement = None;
        assert_eq!(holder(&one, &applications, &[]), (None, None), "nobody has told it yet");
    }

    #[test]
    fn an_administrator_goes_before_reservations() {
        let applications = [application(1, 7, "one")];
        let pinned = |sms: &str| PartitionReport {
            application: ApplicationId(1),
            sms: sms.parse().unwrap(),
            pinned: true,
            part: None,
        };
        let one = reservation("one", 6);
        assert_eq!(holder(&one, &applications, &[pinned("0-5")]).1, None);
        let why = holder(&one, &applications, &[pinned("0-3")]).1.unwrap();
        assert!(why.contains("pinned application 1 to 4 of 6 SMs"), "{why}");
    }
}
