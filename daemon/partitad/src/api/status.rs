//! `/v1/status`: everything about the GPUs in one answer, and the reports that all resources are
//! cut from.
//!
//! [`Seen`] and [`SeenOne`] are the reports as the caller of a request may see them: what a handler
//! takes as its argument cannot have too much.

use super::{Api, Asked, Caller, Of, Sight, unexpected};
use crate::link::{AskError, Link};
use crate::problem::Problem;
use crate::view;
use axum::Json;
use axum::extract::{ConnectInfo, FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use partita_model::{DeviceFacts, GpuNumber, GpuReport, PolicyReport, StatusReport};
use partita_wire::supervise::{Answer, Ask};
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
        api.reports(caller, asked).await.map(Seen)
    }
}

/// The report of the one GPU that a request means, as its caller may see it.
pub(super) struct SeenOne(pub StatusReport);

impl FromRequestParts<Api> for SeenOne {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, api: &Api) -> Result<SeenOne, Problem> {
        let (caller, asked) = asked_by(head, api).await?;
        api.seen(caller, asked).await.map(SeenOne)
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
    pub(super) async fn reports(
        &self,
        caller: Caller,
        asked: Asked,
    ) -> Result<Vec<StatusReport>, Problem> {
        let gpus = match self.asked(asked)? {
            Some(gpu) => std::slice::from_ref(gpu),
            None => self.gpus.all(),
        };
        let mut asking = JoinSet::new();
        for gpu in gpus {
            let (number, state) = (gpu.number, gpu.handle.state());
            asking.spawn(async move {
                let resting = || resting_report(state.facts.as_ref());
                let report = match &state.link {
                    None => resting(),
                    Some(link) => report_of(link).await.unwrap_or_else(resting),
                };
                report.map(|mut report| {
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
    async fn seen(&self, caller: Caller, asked: Asked) -> Result<StatusReport, Problem> {
        let state = self.one(asked)?.handle.state();
        let link = state.link.as_ref().ok_or_else(|| Problem::from(AskError::Gone))?;
        let report = report_of(link).await.unwrap_or_else(|| Err(AskError::Gone.into()));
        let mut report = report?;
        if let Sight::Own(tenant) = caller.sight() {
            view::keep_own(&mut report, tenant);
        }
        Ok(report)
    }
}

/// The report of a `partita-gpu`; `None` where the process has died, and its applications with it.
async fn report_of(link: &Link) -> Option<Result<StatusReport, Problem>> {
    match link.ask(Ask::Status).await {
        Ok(Answer::Status(mut report)) => {
            report.gpu.pid = link.pid();
            Some(Ok(*report))
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
