//! Requests to the API, through its own socket, its connections and its routes.
//!
//! An input is what a caller writes before it shuts its side. It goes the whole way as the
//! daemon's own user. What can be read of it as a request then goes to the routes as another user,
//! who must not change anything.

use crate::session::facts;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::connect_info::MockConnectInfo;
use axum::http::Request;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use partita_model::{
    ApplicationId, ComputeCapability, DeviceKind, GpuNumber, GpuReport, PartitionReport,
    PolicyReport, SessionId, SmSet, StatusReport, TenantId, Timekeeping, TraceReport,
};
use partita_wire::supervise::{
    Answer, Ask, FrameReader, FromGpu, Ready, RefusalKind, ToGpu, encode,
};
use partitad::api::{self, Caller};
use partitad::gpus::Gpus;
use partitad::link::{GpuHandle, GpuState, Link};
use partitad::owners::Owners;
use partitad::problem::Problem;
use partitad::reservations::Book;
use partitad::rights::Rights;
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// The user of the second way, who is not the daemon's.
const USER: u32 = 1001;
const ADMIN: u32 = 0;

/// The largest answer of this API.
const MOST_ANSWER: usize = 1 << 20;

thread_local! {
    static API: Api = Api::start();
}

/// Checks a request.
///
/// # Panics
/// Where an answer is not one of the API's, or a user without the right changes something.
pub fn check(input: &[u8]) {
    API.with(|api| {
        api.runtime.block_on(async {
            assert_is_answer(input, &api.converse(input).await);
            api.ask_as_user(input).await;
        });
    });
}

/// The API and the data plane behind it, all on one thread.
struct Api {
    runtime: Runtime,
    socket: PathBuf,
    /// The routes for [`USER`].
    routes: Router,
    /// What the data plane was asked since the last look.
    asked: Arc<Mutex<Vec<Ask>>>,
    _states: watch::Sender<GpuState>,
    _folder: tempfile::TempDir,
}

impl Api {
    fn start() -> Api {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime starts");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("api.sock");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (states, routes) = runtime.block_on(async {
            let (states, state) = watch::channel(data_plane(Arc::clone(&asked)).await);
            let gpus = Gpus::new(vec![(GpuHandle::new(state), watch::channel(None).0)]);
            let listener = UnixListener::bind(&socket).expect("a new folder");
            let book = Book::open(gpus.clone(), None);
            let served = api::Api::new(
                gpus,
                Rights::new(ADMIN, None, Owners::system()),
                book,
                Arc::default(),
            );
            tokio::spawn(api::serve(listener, served.clone()));
            let user = MockConnectInfo(Caller { uid: Some(USER), is_admin: false });
            let routes = api::router(served).layer(user);
            told_that_nothing_is_reserved(&asked).await;
            (states, routes)
        });
        Api { runtime, socket, routes, asked, _states: states, _folder: folder }
    }

    /// Writes a request and returns all that is answered.
    async fn converse(&self, request: &[u8]) -> Vec<u8> {
        let stream = UnixStream::connect(&self.socket).await.expect("the API listens");
        let (mut reader, mut writer) = stream.into_split();
        let write = async {
            // The API may have answered before the end, and closed.
            if writer.write_all(request).await.is_ok() {
                drop(writer.shutdown().await);
            }
        };
        let mut answer = Vec::new();
        let read = async {
            drop(reader.read_to_end(&mut answer).await);
        };
        tokio::join!(write, read);
        answer
    }

    async fn ask_as_user(&self, input: &[u8]) {
        let Some(request) = request_of(input) else { return };
        let reads = request.method() == "GET" || request.method() == "HEAD";
        drop(self.take_asked());
        let routes = TowerToHyperService::new(self.routes.clone());
        let Ok(answer) = routes.call(request).await;
        let (head, body) = answer.into_parts();
        let kind = head.headers.get("content-type");
        if kind.is_some_and(|kind| kind == "text/event-stream") {
            // It has no end.
            return;
        }
        let body = to_bytes(body, MOST_ANSWER).await.expect("a short answer");
        assert!(head.status.as_u16() < 500, "{}: {}", head.status, String::from_utf8_lossy(&body));
        if !head.status.is_success() && !body.is_empty() {
            serde_json::from_slice::<Problem>(&body).expect("every error is a problem");
        }
        let user = TenantId(USER);
        for ask in self.take_asked() {
            let allowed = match ask {
                Ask::Status | Ask::Accounts | Ask::Events { .. } => reads,
                Ask::Trace(of) => reads && of == Some(user),
                Ask::CancelLaunches { by, .. } => !reads && by == Some(user),
                _ => false,
            };
            assert!(allowed, "user {USER} has asked for {ask:?}");
        }
    }

    fn take_asked(&self) -> Vec<Ask> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Waits for the keeper's first word to the data plane: no caller of the API is behind it.
async fn told_that_nothing_is_reserved(asked: &Mutex<Vec<Ask>>) {
    let told = |ask: &Ask| matches!(ask, Ask::Reserve(rules) if rules.is_empty());
    let is_told = async || {
        while !asked.lock().unwrap_or_else(PoisonError::into_inner).iter().any(told) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_told()).await.expect("the keeper speaks");
}

/// What an answer of the API is made of. There is none to a caller that has not said a whole head.
fn assert_is_answer(request: &[u8], answer: &[u8]) {
    if answer.is_empty() {
        return;
    }
    let text = String::from_utf8_lossy(answer);
    let words = || format!("{:?}\nis answered by\n{text}", String::from_utf8_lossy(request));
    let text = text.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&text);
    if text.is_empty() {
        return;
    }
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{}", words()));
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5));
    let status: u16 =
        status.and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{}", words()));
    assert!((200..500).contains(&status), "{}", words());
    if status >= 400 && !body.is_empty() {
        let problem: Problem =
            serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {}", words()));
        assert_eq!(problem.status, status, "{}", words());
    }
}

/// The request at the beginning of an input: its first line, and what follows the head.
fn request_of(input: &[u8]) -> Option<Request<Body>> {
    let end = input.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let line = input[..end].split(|byte| *byte == b'\r').next()?;
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next()?, words.next()?);
    Request::builder()
        .method(method)
        .uri(target)
        .header("content-type", "application/json")
        .body(Body::from(input[end + 4..].to_vec()))
        .ok()
}

/// A data plane that writes down what it is asked.
async fn data_plane(asked: Arc<Mutex<Vec<Ask>>>) -> GpuState {
    let (control, other_end) = pair();
    let (sessions, unused) = StdStream::pair().expect("descriptors are left");
    sessions.set_nonblocking(true).expect("a socket");
    tokio::spawn(async move {
        serve(other_end, &asked).await;
        drop(unused);
    });
    let link = Link::greet(control, sessions.into()).await.expect("it greets");
    GpuState { facts: Some(link.facts().clone()), link: Some(link), ..GpuState::default() }
}

fn pair() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("descriptors are left")
}

async fn serve(mut control: UnixStream, asked: &Mutex<Vec<Ask>>) {
    let send = |message: &FromGpu| encode(message).expect("short messages");
    let mut answers = send(&FromGpu::Ready(Box::new(Ready {
        facts: facts(),
        pid: 77,
        version: "1".into(),
        next_session: SessionId(1),
        config: None,
    })));
    let (mut frames, mut buffer) = (FrameReader::default(), [0; 4096]);
    loop {
        control.write_all(&answers).await.expect("the API reads");
        answers.clear();
        match control.read(&mut buffer).await {
            Ok(bytes @ 1..) => frames.push(&buffer[..bytes]),
            _ => return,
        }
        while let Some(ToGpu { id, ask }) = frames.next_message().expect("a frame of partitad's") {
            asked.lock().unwrap_or_else(PoisonError::into_inner).push(ask.clone());
            answers.extend(send(&FromGpu::Answer { id, answer: answer(ask) }));
        }
    }
}

fn answer(ask: Ask) -> Answer {
    let refused = |kind, detail: &str| Answer::Refused { kind, detail: detail.into() };
    match ask {
        Ask::Status => Answer::Status(Box::new(status())),
        Ask::Trace(_) => Answer::Trace(TraceReport {
            dropped: 3,
            ..TraceReport::new(Timekeeping::Simulated, Vec::new())
        }),
        Ask::CancelLaunches { session: SessionId(session), .. } if session != 1 => {
            refused(RefusalKind::NotFound, "there is no such session")
        }
        Ask::SetPlan(plan) if plan.partitions.is_empty() => {
            refused(RefusalKind::Conflict, "an application holds these SMs")
        }
        Ask::SetPlan(plan) if plan.partitions.len() > 1 => {
            refused(RefusalKind::Invalid, "SM 24 does not exist")
        }
        _ => Answer::Done,
    }
}

fn status() -> StatusReport {
    let gpu = GpuReport {
        number: GpuNumber(0),
        name: "small".into(),
        kind: DeviceKind::Emulated,
        timekeeping: Timekeeping::Simulated,
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        sms: 24,
        memory_bytes: 1 << 30,
        memory_used_bytes: 5,
        device_time_ns: 6,
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
    let partition = PartitionReport {
        application: ApplicationId(1),
        sms: SmSet::range(0, 24),
        pinned: false,
        part: None,
    };
    StatusReport {
        version: String::new(),
        gpu,
        applications: Vec::new(),
        partitions: vec![partition],
        policy: PolicyReport::default(),
        other_users: None,
        others: Vec::new(),
    }
}
