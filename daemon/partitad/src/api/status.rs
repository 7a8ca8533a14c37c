//! `/v1/status`: everything about the GPUs in one answer, and the reports that all resources are
//! cut from.
//!
//! [`Seen`] and [`SeenOne`] are the reports as the caller of a request may see them: what a handler
//! takes as its argument cannot have too much.

use super::{Api, Asked, Caller, Of, Sight, unexpected};
use crate::link::{AskError, Link};
use crate::problem::Problem;
use crate::recent::Found;
use crate::view;
use axum::Json;
use axum::extract::{ConnectInfo, FromRequestParts, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use partita_model::{DeviceFacts, GpuNumber, GpuReport, PolicyReport, StatusReport};
use partita_wire::supervise::{Answer, Ask};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::JoinSet;

/// GPUs, applications, partitions and policy, in one answer.
#[utoipa::path(
    get,
    path = "/v1/status",
    tag = "status",
    params(Of),
    responses((status = OK, body = StatusReport))
)]
pub(super) async fn status(Seen(reports): Seen) -> Result<Json<StatusReport>, Problem> {
    let mut reports = reports.into_iter();
    let mut report = reports.next().ok_or_else(|| Problem::from(AskError::Gone))?;
    report.version = env!("CARGO_PKG_VERSION").into();
    report.others = reports.map(Into::into).collect();
    Ok(Json(report))
}

/// The report of each GPU that a request means, in order of number, as its caller may see it.
pub(super) struct Seen(pub Vec<StatusReport>);

impl FromRequestParts<Api> for Seen {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, api: &Api) -> Result<Seen, Problem> {
        let (caller, asked) = asked_by(head, api).await?;
        api.reports(caller, asked, Freshness::of(head)).await.map(Seen)
    }
}

/// The report of the one GPU that a request means, as its caller may see it.
pub(super) struct SeenOne(pub StatusReport);

impl FromRequestParts<Api> for SeenOne {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, api: &Api) -> Result<SeenOne, Problem> {
        let (caller, asked) = asked_by(head, api).await?;
        api.seen(caller, asked, Freshness::of(head)).await.map(SeenOne)
    }
}

/// How old a status may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Freshness {
    /// As [`crate::recent`] keeps it.
    Recent,
    /// It is asked for after the request.
    New,
}

impl Freshness {
    fn of(head: &Parts) -> Freshness {
        let values = head.headers.get_all(header::CACHE_CONTROL).into_iter();
        let mut directives =
            values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let wants_new = directives.any(|one| one.trim().eq_ignore_ascii_case("no-cache"));
        if wants_new { Freshness::New } else { Freshness::Recent }
    }
}

/// Who asks, and for which GPU.
async fn asked_by(head: &mut Parts, api: &Api) -> Result<(Caller, Asked), Problem> {
    let caller = ConnectInfo::<Caller>::from_request_parts(head, api).await;
    let ConnectInfo(caller) = caller
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.body_text()))?;
    Ok((caller, Query::<Of>::from_request_parts(head, api).await))
}

impl Api {
    /// The report of each GPU that a request means, in order of number, as the caller may see it.
    async fn reports(
        &self,
        caller: Caller,
        asked: Asked,
        freshness: Freshness,
    ) -> Result<Vec<StatusReport>, Problem> {
        let gpus = match self.asked(asked)? {
            Some(gpu) => std::slice::from_ref(gpu),
            None => self.gpus.all(),
        };
        let mut asking = JoinSet::new();
        for gpu in gpus {
            let (number, state) = (gpu.number, gpu.handle.state());
            asking.spawn(async move {
                let resting = || resting_report(state.facts.as_ref()).map(Arc::new);
                let report = match &state.link {
                    None => resting(),
                    Some(link) => report_of(link, freshness).await.unwrap_or_else(resting),
                };
                report.map(|report| {
                    let mut report = Arc::unwrap_or_clone(report);
                    report.gpu.number = number;
                    report.gpu.restarts = state.restarts;
                    report.gpu.last_restart = state.last_restart;
                    report
                })
            });
        }
        let mut reports = Vec::new();
        while let Some(asked) = asking.join_next().await {
            let failed = |error: tokio::task::JoinError| {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            };
            let mut report = asked.map_err(failed)??;
            if let Sight::Own(tenant) = caller.sight() {
                view::keep_own(&mut report, tenant);
            }
            reports.push(report);
        }
        reports.sort_by_key(|report| report.gpu.number);
        Ok(reports)
    }

    /// The report of the GPU that a request means, as the caller may see it.
    async fn seen(
        &self,
        caller: Caller,
        asked: Asked,
        freshness: Freshness,
    ) -> Result<StatusReport, Problem> {
        let state = self.one(asked)?.handle.state();
        let link = state.link.as_ref().ok_or_else(|| Problem::from(AskError::Gone))?;
        let report = report_of(link, freshness).await;
        let report = report.unwrap_or_else(|| Err(AskError::Gone.into()))?;
        let mut report = Arc::unwrap_or_clone(report);
        if let Sight::Own(tenant) = caller.sight() {
            view::keep_own(&mut report, tenant);
        }
        Ok(report)
    }
}

/// The report of a `partita-gpu`; `None` where the process has died, and its applications with it.
async fn report_of(
    link: &Arc<Link>,
    freshness: Freshness,
) -> Option<Result<Arc<StatusReport>, Problem>> {
    if freshness == Freshness::Recent
        && let Some(Found { report, is_to_renew }) = link.recent_status()
    {
        if is_to_renew {
            let link = Arc::clone(link);
            tokio::spawn(async move { drop(new_report_of(&link).await) });
        }
        return Some(Ok(report));
    }
    new_report_of(link).await
}

/// As [`report_of`], after a question to the process.
async fn new_report_of(link: &Link) -> Option<Result<Arc<StatusReport>, Problem>> {
    let asked = link.recent().asked(Instant::now());
    match link.ask(Ask::Status).await {
        Ok(Answer::Status(mut report)) => {
            report.gpu.pid = link.pid();
            let report = Arc::new(*report);
            link.recent().keep(asked, Arc::clone(&report));
            Some(Ok(report))
        }
        Ok(other) => Some(Err(unexpected(&other))),
        Err(AskError::Gone) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// The report while no `partita-gpu` runs: the GPU's last state, without applications.
fn resting_report(facts: Option<&DeviceFacts>) -> Result<StatusReport, Problem> {
    let facts = facts.ok_or_else(|| Problem::from(AskError::Gone))?;
    let gpu = GpuReport {
        number: GpuNumber(0),
        name: facts.name.clone(),
        kind: facts.kind,
        timekeeping: facts.timekeeping,
        compute_capability: facts.compute_capability,
        sms: facts.sm_count,
        memory_bytes: facts.memory.0,
        memory_used_bytes: 0,
        device_time_ns: 0,
        host_time: None,
        patience_exceeded: 0,
        stray_accesses: 0,
        limits: Vec::new(),
        energy_nj: None,
        calibration: None,
        measured: None,
        pid: 0,
        restarts: 0,
        last_restart: None,
    };
    Ok(StatusReport {
        version: String::new(),
        gpu,
        applications: Vec::new(),
        partitions: Vec::new(),
        policy: PolicyReport::default(),
        other_users: None,
        others: Vec::new(),
    })
}
