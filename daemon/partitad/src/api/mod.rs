//! The HTTP API on the Unix socket: the routes by resource, and the rights that they need.
//!
//! | module | requests |
//! | --- | --- |
//! | `status` | `GET /v1/status`: everything in one answer |
//! | `resources` | `GET /v1/gpus`, `applications`, `sessions`, `kernels`, `partitions`, `decisions` |
//! | `plan` | `GET`, `PUT` and `DELETE /v1/plan`: pinned partitions |
//! | `launches` | `DELETE /v1/sessions/ID/launches` |
//! | `reservations` | `/v1/reservations`: what schedulers have asked for on behalf of jobs |
//! | `trace` | `GET /v1/trace` |
//! | `events` | `GET /v1/events`: what happens, as it happens |
//! | `config` | `GET /v1/config`: the configuration in force |
//! | `metrics` | `GET /metrics` |
//! | `forecast` | `/v1/predict`, `/v1/advice`: forecasts; they change nothing |
//! | `health` | `GET /-/healthy`, `/-/ready`, `/v1/build` |
//!
//! `GET /v1/openapi.json` describes them all; the description is generated from the handlers.
//!
//! `?gpu=N` names the GPU of a request. Lists and `/v1/status` without `?gpu` are about all GPUs,
//! and `/v1/sessions/…` finds the session's GPU. All other requests need `?gpu` where the daemon
//! serves several GPUs.
//!
//! Administrators ([`crate::rights`]) see everything and may change everything. Every other user
//! sees its own applications, and those of others in sum (`view`); it may end launches of its own
//! sessions. An administrator may ask to be answered as such a user (`sight`). Every error is a
//! [`Problem`]. The API decides nothing: a request becomes one question to the data plane, and the
//! answer becomes the response.

mod body;
#[cfg(test)]
mod compatible;
mod config;
mod events;
mod forecast;
mod health;
mod launches;
mod metrics;
mod openapi;
mod plan;
mod reservations;
mod resources;
mod sight;
mod status;
mod terms;
mod trace;

pub(crate) use resources::uuid_text;

use crate::connections;
use crate::events::Hub;
use crate::gpus::{Gpu, Gpus};
use crate::in_force::InForce;
use crate::keeper::Keeper;
use crate::places::{Limits, Places};
use crate::problem::Problem;
use crate::reservations::Book;
use crate::rights::Rights;
use axum::Router;
use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn;
use axum::routing::get;
pub use metrics::serve_metrics;
pub use openapi::document;
use partita_model::{GpuNumber, TenantId};
use partita_wire::supervise::{Answer, Ask};
use serde::Deserialize;
use std::sync::Arc;
use tokio::net::UnixListener;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Readers of events at a time.
const READERS: Limits = Limits { all: 1024, user: 64, admin: 1024 };

/// The user at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The uid; `None` where the system does not report it, which gives no rights.
    pub uid: Option<u32>,
    /// Whether it sees and changes everything.
    pub is_admin: bool,
}

impl Caller {
    fn sight(self) -> Sight {
        match self.is_admin {
            true => Sight::All,
            // Nobody has this number: it stands for no user in the system's calls.
            false => Sight::Own(TenantId(self.uid.unwrap_or(u32::MAX))),
        }
    }
}

/// Whose applications a caller may see, and whose launches it may end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sight {
    All,
    Own(TenantId),
}

/// What the routes know.
#[derive(Clone, Debug)]
pub struct Api {
    gpus: Gpus,
    rights: Rights,
    hub: Arc<Hub>,
    book: Arc<Book>,
    in_force: Arc<InForce>,
    /// Places of readers of events.
    readers: Arc<Places>,
}

impl Api {
    /// The API of these GPUs.
    #[must_use]
    pub fn new(gpus: Gpus, rights: Rights, book: Arc<Book>, in_force: Arc<InForce>) -> Api {
        let (hub, readers) = (Hub::new(gpus.clone()), Places::new(READERS, rights.own()));
        Api { gpus, rights, hub, book, in_force, readers }
    }
}

/// `?gpu=N`.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Of {
    /// The number of a GPU.
    #[param(value_type = Option<u16>)]
    gpu: Option<GpuNumber>,
}

type Asked = Result<Query<Of>, QueryRejection>;

/// Serves the API until it is dropped.
pub async fn serve(listener: UnixListener, api: Api) {
    let (rights, hub) = (api.rights.clone(), Arc::clone(&api.hub));
    let keeper = Keeper::new(api.gpus.clone(), Arc::clone(&api.book));
    tokio::join!(connections::serve(listener, router(api), rights), hub.collect(), keeper.keep());
}

/// The routes.
pub fn router(api: Api) -> Router {
    let (router, _) = routes().split_for_parts();
    let document: axum::body::Bytes = document().into();
    let described = async || ([(header::CONTENT_TYPE, "application/json")], document);
    router
        .route("/v1/openapi.json", get(described))
        .fallback(body::unknown_path)
        .method_not_allowed_fallback(body::wrong_method)
        .layer(from_fn(body::read_body))
        .layer(from_fn(sight::reduce))
        .with_state(api)
}

/// The routes that describe themselves.
fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(status::status))
        .routes(routes!(resources::gpus))
        .routes(routes!(resources::applications))
        .routes(routes!(resources::sessions))
        .routes(routes!(resources::kernels))
        .routes(routes!(resources::partitions))
        .routes(routes!(resources::decisions))
        .routes(routes!(plan::plan, plan::set_plan, plan::clear_plan))
        .routes(routes!(launches::cancel_launches))
        .routes(routes!(terms::set_terms))
        .routes(routes!(reservations::reservations))
        .routes(routes!(reservations::reservation, reservations::reserve, reservations::unreserve))
        .routes(routes!(config::config))
        .routes(routes!(trace::trace))
        .routes(routes!(forecast::present, forecast::forecast))
        .routes(routes!(forecast::pairs, forecast::advice))
        .routes(routes!(events::events))
        .routes(routes!(metrics::metrics))
        .routes(routes!(health::healthy))
        .routes(routes!(health::ready))
        .routes(routes!(health::build))
}

async fn change(gpu: &Gpu, ask: Ask) -> Result<StatusCode, Problem> {
    match gpu.handle.ask(ask).await? {
        Answer::Done => Ok(StatusCode::NO_CONTENT),
        Answer::Refused { kind, detail } => Err(Problem::refused(kind, detail)),
        other => Err(unexpected(&other)),
    }
}

impl Api {
    fn admit(&self, caller: Caller) -> Result<(), Problem> {
        if caller.is_admin {
            return Ok(());
        }
        let who = caller.uid.map_or_else(|| "not known".into(), |uid| format!("uid {uid}"));
        let detail =
            format!("only {} may change partitions; you are {who}", self.rights.in_words());
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
    }

    /// The GPU that a request names, if it names one.
    fn asked(&self, asked: Asked) -> Result<Option<&Gpu>, Problem> {
        let Query(Of { gpu }) =
            asked.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))?;
        gpu.map(|number| self.numbered(number)).transpose()
    }

    fn numbered(&self, number: GpuNumber) -> Result<&Gpu, Problem> {
        self.gpus.get(number).ok_or_else(|| {
            let last = self.gpus.all().len() - 1;
            Problem::new(
                StatusCode::NOT_FOUND,
                format!("there is no {number}: the last one is GPU {last}"),
            )
        })
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
