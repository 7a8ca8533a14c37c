//! `GET /metrics`: the page of metrics, on the API's socket and on the TCP address of
//! `--metrics-listen`.
//!
//! A user that is no administrator gets the pages of GPUs and of its own applications. The TCP
//! address knows no users: it serves the whole page, which names no program, and nothing else but
//! health and readiness.

use super::{Api, Caller, Sight, health};
use crate::metrics::{GpuPage, OPEN_METRICS, TEXT, text};
use crate::problem::Problem;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use partita_wire::supervise::{Answer, Ask};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Connections to the TCP address at a time.
const SCRAPERS: usize = 16;
/// The longest time of one connection there.
const SCRAPE_LIMIT: Duration = Duration::from_secs(10);
/// The pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Metrics in Prometheus's text format, or in that of OpenMetrics where `Accept` names it.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "metrics",
    responses((status = OK, body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(
    State(api): State<Api>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    page(&api, caller.sight(), &headers).await
}

async fn page(
    api: &Api,
    sight: Sight,
    headers: &HeaderMap,
) -> Result<impl IntoResponse + use<>, Problem> {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let open_metrics = accepts.is_some_and(|accept| accept.contains("application/openmetrics"));
    let pages = pages(api, sight).await;
    let text = text(pages, open_metrics)
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let kind = if open_metrics { OPEN_METRICS } else { TEXT };
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// The pages of all GPUs, which are asked at once.
async fn pages(api: &Api, sight: Sight) -> Vec<GpuPage> {
    let mut asking = JoinSet::new();
    for gpu in api.gpus.all() {
        let (number, state) = (gpu.number, gpu.handle.state());
        let quotas = gpu.policy.borrow().as_ref().map(|config| config.quotas.clone());
        asking.spawn(async move {
            let accounts = match &state.link {
                Some(link) => link.ask(Ask::Accounts).await.ok(),
                None => None,
            };
            let mut accounts = match accounts {
                Some(Answer::Accounts(accounts)) => Some(*accounts),
                _ => None,
            };
            if let (Sight::Own(tenant), Some(accounts)) = (sight, &mut accounts) {
                accounts.applications.retain(|account| account.tenant == tenant);
            }
            let about = (state.facts, state.restarts);
            (number, GpuPage::new(number, about, accounts, &quotas.unwrap_or_default()))
        });
    }
    let mut pages: Vec<_> = asking.join_all().await;
    pages.sort_by_key(|(number, _)| *number);
    pages.into_iter().map(|(_, page)| page).collect()
}

async fn scraped(
    Extension(api): Extension<Api>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    page(&api, Sight::All, &headers).await
}

/// Serves metrics, health and readiness on a TCP address until it is dropped.
pub async fn serve_metrics(listener: TcpListener, api: Api) {
    let router = Router::new()
        .route("/metrics", get(scraped))
        .route("/-/healthy", get(health::healthy))
        .route("/-/ready", get(health::ready))
        .fallback(super::body::unknown_path)
        .method_not_allowed_fallback(super::body::wrong_method)
        .layer(from_fn(super::body::read_body))
        .layer(Extension(api.clone()))
        .with_state(api);
    let places = Arc::new(Semaphore::new(SCRAPERS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the metrics");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .keep_alive(false)
                .timer(TokioTimer::new())
                .header_read_timeout(SCRAPE_LIMIT)
                .serve_connection(TokioIo::new(stream), service);
            if let Ok(Err(error)) = tokio::time::timeout(SCRAPE_LIMIT, connection).await {
                tracing::debug!("a connection to the metrics broke: {error}");
            }
            drop(place);
        });
    }
}
