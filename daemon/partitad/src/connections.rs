//! The connections to the API: places, deadlines, and errors before a request reaches a route.
//!
//! Invariants: no user can keep another from the API ([`crate::places`]). A connection carries one
//! request and then closes. Every step of it has a deadline that no byte renews, except the answer,
//! whose reader must only go on.
//!
//! hyper answers a bad head with a bare status. [`Doorway`] swallows that answer, and the caller
//! gets a [`Problem`] instead.

use crate::api::Caller;
use crate::places::{Full, Limits, Place, Places};
use crate::problem::Problem;
use crate::rights::Rights;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::StatusCode;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Connections at a time.
const CONNECTIONS: Limits = Limits { all: 192, user: 32, admin: 64 };

/// The longest time from the connection to the end of the request's head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// The largest head.
const HEAD_BYTES: usize = 16 << 10;

/// The longest time for which the reader of an answer may read nothing.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Refused callers that may finish writing at a time, and for how long. Without that a caller that
/// is still writing sees a broken pipe instead of the refusal.
const LINGERING: usize = 32;
const LINGER: Duration = Duration::from_secs(1);

/// The pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the API until it is dropped. The daemon's user has places of its own, as root has.
pub async fn serve(listener: UnixListener, router: Router, rights: Rights) {
    let places = Places::new(CONNECTIONS, rights.own());
    let lingering = Arc::new(Semaphore::new(LINGERING));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection to the API");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Not rustix's function: it knows no process of another PID namespace.
        let peer = stream.peer_cred().ok().map(|peer| (peer.uid(), peer.gid()));
        let uid = peer.map(|(uid, _)| rights.owner(uid));
        match places.take(uid) {
            Ok(place) => {
                let seat = Seat(Arc::new(Mutex::new(Some(place))));
                let (router, rights) = (router.clone(), rights.clone());
                tokio::spawn(async move {
                    let caller = rights.caller(peer).await;
                    converse(stream, router, caller, seat.clone()).await;
                    seat.leave();
                });
            }
            Err(full) => {
                let problem = refusal(uid, full);
                tracing::debug!(uid, "a connection to the API is refused: {}", problem.detail);
                // A refusal fits the socket's empty buffer.
                if stream.try_write(&problem.to_http()).is_ok()
                    && let Ok(permit) = Arc::clone(&lingering).try_acquire_owned()
                {
                    tokio::spawn(async move {
                        linger(stream).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

/// The place of a connection. A request that gets a place of another kind gives it back early.
#[derive(Clone, Debug)]
pub struct Seat(Arc<Mutex<Option<Place>>>);

impl Seat {
    /// Gives the place back.
    pub fn leave(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Reads what a refused caller still writes.
async fn linger(mut stream: UnixStream) {
    let drain = async {
        drop(stream.shutdown().await);
        let mut bytes = [0; 1024];
        while matches!(stream.read(&mut bytes).await, Ok(1..)) {}
    };
    drop(timeout(LINGER, drain).await);
}

/// Serves one request.
async fn converse(stream: UnixStream, router: Router, caller: Caller, seat: Seat) {
    let arrived = Arc::new(AtomicBool::new(false));
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        arrived.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(ConnectInfo(caller));
        request.extensions_mut().insert(seat.clone());
        routes.call(request)
    });
    let doorway = Doorway {
        stream,
        arrived: Arc::clone(&arrived),
        head: Box::pin(sleep(HEAD_LIMIT)),
        stall: Box::pin(sleep(STALL_LIMIT)),
        late: false,
        swallowed: Vec::new(),
    };
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(doorway), service);
    let result = std::future::poll_fn(|context| connection.poll_without_shutdown(context)).await;
    if let Err(error) = result {
        tracing::debug!(?caller, "a connection to the API broke: {error}");
    }
    let mut doorway = connection.into_parts().io.into_inner();
    if let Some(problem) = doorway.problem() {
        drop(doorway.stream.try_write(&problem.to_http()));
    }
    drop(timeout(LINGER, doorway.stream.shutdown()).await);
}

/// The answer to a caller without a place.
fn refusal(uid: Option<u32>, full: Full) -> Problem {
    match full {
        Full::User { most } => {
            let who = uid.map_or_else(|| "an unknown user".into(), |uid| format!("uid {uid}"));
            let detail = format!(
                "{who} has {most} connections to the API, and no user may have more: close some, \
                 then try again"
            );
            Problem::new(StatusCode::TOO_MANY_REQUESTS, detail)
        }
        Full::All { most } => {
            let detail =
                format!("all {most} connections to the API are taken: try again in a second");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }
}

/// A connection until its request has arrived and while it is answered.
struct Doorway {
    stream: UnixStream,
    /// Whether the request has reached the routes.
    arrived: Arc<AtomicBool>,
    /// Ends when the head is late.
    head: Pin<Box<Sleep>>,
    /// Ends when the reader of the answer has stalled.
    stall: Pin<Box<Sleep>>,
    late: bool,
    /// What hyper has answered to a head that is none.
    swallowed: Vec<u8>,
}

impl Doorway {
    /// The answer to a request that has reached no route.
    fn problem(&self) -> Option<Problem> {
        if self.arrived.load(Ordering::Relaxed) {
            return None;
        }
        if self.late {
            let detail = format!("the head of the request took over {} s", HEAD_LIMIT.as_secs());
            return Some(Problem::new(StatusCode::REQUEST_TIMEOUT, detail));
        }
        let line = self.swallowed.split(|byte| *byte == b'\r').next()?;
        let status = line.split(|byte| *byte == b' ').nth(1)?;
        let status = StatusCode::from_bytes(status).unwrap_or(StatusCode::BAD_REQUEST);
        let detail = match status {
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                format!("the head of the request has over {HEAD_BYTES} bytes or over 100 fields")
            }
            StatusCode::URI_TOO_LONG => "the path of the request is too long".into(),
            _ => "this is no request of HTTP/1.1".into(),
        };
        Some(Problem::new(status, detail))
    }
}

impl AsyncRead for Doorway {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.arrived.load(Ordering::Relaxed) && this.head.as_mut().poll(context).is_ready() {
            this.late = true;
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Doorway {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.arrived.load(Ordering::Relaxed) {
            this.swallowed.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        if written.is_ready() {
            this.stall.as_mut().reset(Instant::now() + STALL_LIMIT);
            return written;
        }
        this.stall.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
