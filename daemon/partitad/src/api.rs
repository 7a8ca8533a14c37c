//! The HTTP API on the Unix socket: requests, and the rights that they need.
//!
//! | request | answer |
//! | --- | --- |
//! | `GET /v1/status` | [`StatusReport`]: GPU, applications, partitions |
//! | `GET /v1/trace` | [`partita_model::TraceReport`]: which CTAs were on which SM, and when borders moved |
//! | `PUT /v1/plan` | [`PlanRequest`] in, nothing out: pins partitions, all of them or none |
//! | `DELETE /v1/plan` | gives every partition back to the policy |
//! | `/v1/predict`, `/v1/advice` | [`crate::forecast`]: forecasts; they change nothing |
//! | `DELETE /v1/sessions/ID/launches` | ends what a session has queued or running; its program gets `CUDA_ERROR_LAUNCH_TIMEOUT` |
//!
//! `?gpu=N` names the GPU of a request. Without `?gpu`, `/v1/status` reports all GPUs and
//! `/v1/sessions/…` finds the session's GPU. All other requests need `?gpu` where the daemon serves
//! several GPUs.
//!
//! Root and the daemon's own user see everything and may change everything. Every other user sees
//! its own applications, and those of others in sum (`view`); it may end launches of its
//! own sessions. The kernel reports the
//! user of a connection. Every error is a [`Problem`]. The API decides nothing: a request becomes
//! one question to the data plane, and the answer becomes the response.

use crate::connections;
use crate::forecast;
use crate::gpus::{Gpu, Gpus};
use crate::link::{AskError, Link};
use crate::problem::{Json, Problem};
use crate::view;
use axum::Router;
use axum::body::to_bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, put};
use http_body_util::LengthLimitError;
use partita_model::{
    DeviceFacts, GpuNumber, GpuReport, PolicyReport, SessionId, StatusReport, TenantId,
};
use partita_wire::supervise::{Answer, Ask, PlanRequest, RefusalKind};
use serde::Deserialize;
use std::error::Error as _;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinSet;

/// The largest body: a plan for every SM of the largest GPU is far smaller.
const BODY_BYTES: usize = 64 << 10;

/// The longest time from the head of a request to the end of its body.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// The user at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The uid; `None` where the system does not report it, which gives no rights.
    pub uid: Option<u32>,
}

/// Serves the API until it is dropped.
pub async fn serve(listener: UnixListener, gpus: Gpus) {
    let admin = rustix::process::geteuid().as_raw();
    connections::serve(listener, router(gpus, admin), admin).await;
}

/// What the routes know.
#[derive(Clone)]
pub(crate) struct Api {
    gpus: Gpus,
    admin: u32,
}

/// `?gpu=N`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Of {
    gpu: Option<GpuNumber>,
}

pub(crate) type Asked = Result<Query<Of>, QueryRejection>;

/// The routes. The user `admin` may change things, as root may.
pub fn router(gpus: Gpus, admin: u32) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/trace", get(trace))
        .route("/v1/plan", put(set_plan).delete(clear_plan))
        .route("/v1/predict", get(forecast::present).post(forecast::forecast))
        .route("/v1/advice", get(forecast::pairs).post(forecast::advice))
        .route("/v1/sessions/{session}/launches", delete(cancel_launches))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn(read_body))
        .with_state(Api { gpus, admin })
}

async fn status(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<Response, Problem> {
    let gpus = match api.asked(asked)? {
        Some(gpu) => std::slice::from_ref(gpu),
        None => api.gpus.all(),
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
        if let Sight::Own(tenant) = api.sight(caller) {
            view::keep_own(&mut report, tenant);
        }
        reports.push(report);
    }
    reports.sort_by_key(|report| report.gpu.number);
    let mut reports = reports.into_iter();
    let mut report = reports.next().ok_or_else(|| Problem::from(AskError::Gone))?;
    report.version = env!("CARGO_PKG_VERSION").into();
    report.others = reports.map(Into::into).collect();
    Ok(axum::Json(report).into_response())
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

async fn trace(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<Response, Problem> {
    let whose = match api.sight(caller) {
        Sight::All => None,
        Sight::Own(tenant) => Some(tenant),
    };
    match api.one(asked)?.handle.ask(Ask::Trace(whose)).await? {
        Answer::Trace(report) => Ok(axum::Json(report).into_response()),
        other => Err(unexpected(&other)),
    }
}

async fn set_plan(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
    plan: Result<Json<PlanRequest>, Problem>,
) -> Result<StatusCode, Problem> {
    api.admit(caller)?;
    let Json(plan) = plan?;
    change(api.one(asked)?, Ask::SetPlan(plan)).await
}

async fn clear_plan(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    asked: Asked,
) -> Result<StatusCode, Problem> {
    api.admit(caller)?;
    change(api.one(asked)?, Ask::ClearPlan).await
}

async fn cancel_launches(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    session: Result<Path<u64>, PathRejection>,
    asked: Asked,
) -> Result<StatusCode, Problem> {
    let by = match api.sight(caller) {
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

async fn change(gpu: &Gpu, ask: Ask) -> Result<StatusCode, Problem> {
    match gpu.handle.ask(ask).await? {
        Answer::Done => Ok(StatusCode::NO_CONTENT),
        Answer::Refused { kind, detail } => Err(Problem::refused(kind, detail)),
        other => Err(unexpected(&other)),
    }
}

/// Whose applications a caller may see, and whose launches it may end.
enum Sight {
    All,
    Own(TenantId),
}

impl Api {
    /// The report of the GPU that a request means, as the caller may see it.
    pub(crate) async fn seen(&self, caller: Caller, asked: Asked) -> Result<StatusReport, Problem> {
        let state = self.one(asked)?.handle.state();
        let link = state.link.as_ref().ok_or_else(|| Problem::from(AskError::Gone))?;
        let report = report_of(link).await.unwrap_or_else(|| Err(AskError::Gone.into()));
        let mut report = report?;
        if let Sight::Own(tenant) = self.sight(caller) {
            view::keep_own(&mut report, tenant);
        }
        Ok(report)
    }

    fn sight(&self, caller: Caller) -> Sight {
        match caller.uid {
            Some(uid) if uid == 0 || uid == self.admin => Sight::All,
            // Nobody has this number: it stands for no user in the system's calls.
            uid => Sight::Own(TenantId(uid.unwrap_or(u32::MAX))),
        }
    }

    fn admit(&self, caller: Caller) -> Result<(), Problem> {
        match self.sight(caller) {
            Sight::All => Ok(()),
            Sight::Own(_) => {
                let uid = caller.uid;
                let who = uid.map_or_else(|| "not known".into(), |uid| format!("uid {uid}"));
                let admin = self.admin;
                let detail = format!(
                    "only root and the daemon's user (uid {admin}) may change partitions; you are \
                     {who}"
                );
                Err(Problem::new(StatusCode::FORBIDDEN, detail))
            }
        }
    }

    /// The GPU that a request names, if it names one.
    fn asked(&self, asked: Asked) -> Result<Option<&Gpu>, Problem> {
        let Query(Of { gpu }) =
            asked.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
        let Some(number) = gpu else { return Ok(None) };
        let found = self.gpus.get(number).ok_or_else(|| {
            let last = self.gpus.all().len() - 1;
            Problem::new(
                StatusCode::NOT_FOUND,
                format!("there is no {number}: the last one is GPU {last}"),
            )
        });
        found.map(Some)
    }

    /// The GPU of a request: the only GPU where the request names none.
    fn one(&self, asked: Asked) -> Result<&Gpu, Problem> {
        match (self.asked(asked)?, self.gpus.all()) {
            (Some(gpu), _) => Ok(gpu),
            (None, [gpu]) => Ok(gpu),
            (None, gpus) => {
                let count = gpus.len();
                let detail =
                    format!("the daemon serves {count} GPUs: say which, by --gpu N or ?gpu=N");
                Err(Problem::new(StatusCode::BAD_REQUEST, detail))
            }
        }
    }
}

fn unexpected(answer: &Answer) -> Problem {
    tracing::error!(?answer, "partita-gpu answered something else than it was asked");
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "partita-gpu answered something else than it was asked",
    )
}

/// Reads the whole body before a route sees the request.
async fn read_body(request: Request, next: Next) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_LIMIT, to_bytes(body, BODY_BYTES)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if error.source().is_some_and(|source| source.is::<LengthLimitError>()) => {
            let detail = format!("the body is over the limit of {BODY_BYTES} bytes");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        Ok(Err(error)) => {
            let detail = format!("the body cannot be read: {error}");
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        Err(_) => {
            let detail = format!("the body of the request took over {} s", BODY_LIMIT.as_secs());
            return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, detail));
        }
    };
    Ok(next.run(Request::from_parts(head, bytes.into())).await)
}

async fn unknown_path(uri: Uri) -> Problem {
    let path = uri.path();
    let detail = format!(
        "there is no `{path}`; there are /v1/status, /v1/trace, /v1/plan, /v1/predict, /v1/advice \
         and /v1/sessions/ID/launches"
    );
    Problem::new(StatusCode::NOT_FOUND, detail)
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("`{}` cannot be asked by {method}", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}
