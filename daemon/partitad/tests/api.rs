//! The API in this process, with a `partita-gpu` of the test's own at the other end of the line.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use axum::extract::connect_info::MockConnectInfo;
use partita_model::{
    AccountsReport, ApplicationId, Bytes, Cause, ComputeCapability, DeviceFacts, DeviceKind,
    EventBatch, GpuEvent, GpuNumber, GpuReport, Happening, JobAccount, JobUsage, Nanos,
    PartitionReport, PolicyReport, SessionId, SmSet, StatusReport, TenantId, Timekeeping, Totals,
    TraceReport,
};
use partita_wire::supervise::{
    Answer, Ask, FrameReader, FromGpu, Greeting, HandOver, Peer, Ready, RefusalKind, ToGpu, encode,
};
use partitad::api::{self, Api, Caller};
use partitad::gpus::Gpus;
use partitad::link::{GpuHandle, GpuState, Link};
use partitad::owners::Owners;
use partitad::problem::Problem;
use partitad::reservations::{Book, Put};
use partitad::rights::Rights;
use serde_json::json;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::HttpAnswer;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

const ADMIN: u32 = 1000;

fn facts() -> DeviceFacts {
    DeviceFacts {
        kind: DeviceKind::Emulated,
        timekeeping: Timekeeping::Simulated,
        name: "small".into(),
        uuid: [7; 16],
        compute_capability: ComputeCapability { major: 9, minor: 0 },
        sm_count: 24,
        sm_clock_khz: 1_000_000,
        memory_clock_khz: 1_000_000,
        memory_bus_bits: 512,
        memory: Bytes(1 << 30),
        llc: Bytes(1 << 20),
        threads_per_sm: 2048,
        ctas_per_sm: 32,
        registers_per_sm: 65536,
        shared_per_sm: Bytes(65536),
        shared_per_cta: Bytes(49152),
        shared_per_cta_optin: Bytes(65536),
        threads_per_cta: 1024,
        register_parts: 4,
        shared_reserved: Bytes(1024),
        absent_sms: SmSet::EMPTY,
    }
}

fn status_report() -> StatusReport {
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

fn accounts() -> AccountsReport {
    AccountsReport {
        time: Nanos(2_000_000_000),
        memory_used_bytes: 5,
        energy_nj: None,
        decisions: 3,
        applications: Vec::new(),
        totals: Totals::default(),
        jobs: vec![JobAccount {
            tenant: TenantId(1001),
            tag: "job-7".into(),
            used: JobUsage { sm_ns: 9, compared_ns: 4, alone_ns: 3 },
        }],
    }
}

/// Of an application of the user 1001 and one of the user 1002.
fn events(after: u64) -> EventBatch {
    let (own, foreign) = (ApplicationId(1), ApplicationId(2));
    let came = |application, name: &str| Happening::ApplicationCame {
        application,
        name: name.into(),
        tag: None,
    };
    let border = |application, to| Happening::Border { application, from: SmSet::EMPTY, to };
    let why = vec!["So application 1 has 6 SMs.".into(), "So application 2 has 12 SMs.".into()];
    let decision = Happening::Decision { decision: 9, cause: Cause::Membership, why };
    let happened = [
        (Some(1001), came(own, "mine")),
        (Some(1002), came(foreign, "secret")),
        (None, decision),
        (Some(1001), border(own, SmSet::range(0, 6))),
        (Some(1002), border(foreign, SmSet::range(6, 12))),
    ];
    let event = |(sequence, (tenant, what)): (u64, (Option<u32>, Happening))| GpuEvent {
        sequence,
        time: Nanos(7),
        tenant: tenant.map(TenantId),
        what,
    };
    let all = (1..).zip(happened).map(event);
    let events = all.filter(|event| event.sequence > after).collect();
    let last = if after == u64::MAX { 0 } else { 5 };
    EventBatch { events, lost: 0, more: false, last }
}

/// Answers as a data plane with the applications 1 and 2 would; ends at an empty plan.
fn answer(ask: Ask) -> Option<Answer> {
    Some(match ask {
        Ask::Heartbeat | Ask::End | Ask::EndWhenIdle => Answer::Done,
        Ask::Status => Answer::Status(Box::new(status_report())),
        Ask::Trace(_) => Answer::Trace(TraceReport {
            dropped: 3,
            ..TraceReport::new(Timekeeping::Simulated, Vec::new())
        }),
        Ask::Accounts => Answer::Accounts(Box::new(accounts())),
        Ask::Events { after } => Answer::Events(events(after)),
        Ask::ClearPlan | Ask::Configure(_) | Ask::Reserve(_) => Answer::Done,
        Ask::SetTerms { application: ApplicationId(1), terms, by } => match by {
            None | Some(TenantId(1001)) if terms.priority.is_none() => Answer::Done,
            _ => Answer::Refused {
                kind: RefusalKind::Forbidden,
                detail: "uid 1001 may not ask for so high a priority".into(),
            },
        },
        Ask::SetTerms { application, .. } => Answer::Refused {
            kind: RefusalKind::NotFound,
            detail: format!("there is no {application}"),
        },
        Ask::CancelLaunches { session: SessionId(1), by: None | Some(TenantId(1001)) } => {
            Answer::Done
        }
        Ask::CancelLaunches { .. } => Answer::Refused {
            kind: RefusalKind::NotFound,
            detail: "session 2 does not exist".into(),
        },
        Ask::SetPlan(plan) => {
            let first = plan.partitions.first()?;
            let refused = |kind, detail: &str| Answer::Refused { kind, detail: detail.into() };
            match first.application.0 {
                1 if first.sms == SmSet::range(0, 18) => Answer::Done,
                1 => refused(RefusalKind::Conflict, "SM 18 is application 2's"),
                2 => refused(RefusalKind::Invalid, "SM 24 does not exist"),
                _ => refused(RefusalKind::NotFound, "there is no application 9"),
            }
        }
    })
}

fn ready() -> Ready {
    Ready { facts: facts(), pid: 77, version: "1".into(), next_session: SessionId(1), config: None }
}

/// The session that such a thread answers at its next heartbeat.
const COMING: SessionId = SessionId(5);

/// How often a GPU was asked.
#[derive(Default)]
struct Asked {
    statuses: AtomicU64,
    reservations: AtomicU64,
}

fn serve_as_gpu(mut control: StdStream, asked: &Asked) {
    control.write_all(&encode(&FromGpu::Ready(Box::new(ready()))).unwrap()).unwrap();
    let mut frames = FrameReader::default();
    let mut buffer = [0; 4096];
    loop {
        while let Some(ToGpu { id, ask }) = frames.next_message().unwrap() {
            asked.statuses.fetch_add(u64::from(ask == Ask::Status), Ordering::Relaxed);
            let reserves = matches!(ask, Ask::Reserve(_));
            asked.reservations.fetch_add(u64::from(reserves), Ordering::Relaxed);
            if ask == Ask::Heartbeat {
                let answered = FromGpu::ClientAnswered { session: COMING };
                control.write_all(&encode(&answered).unwrap()).unwrap();
            }
            let Some(answer) = answer(ask) else { return };
            control.write_all(&encode(&FromGpu::Answer { id, answer }).unwrap()).unwrap();
        }
        match control.read(&mut buffer).unwrap() {
            0 => return,
            bytes => frames.push(&buffer[..bytes]),
        }
    }
}

/// A server whose callers all are `uid`, or whoever they are.
struct Server {
    folder: tempfile::TempDir,
    /// Of each GPU.
    states: Vec<watch::Sender<GpuState>>,
    /// Of each GPU as it was at first.
    asked: Vec<Arc<Asked>>,
    book: Arc<Book>,
}

/// The state of a GPU that such a thread serves.
async fn gpu_state() -> GpuState {
    counted_gpu_state(Arc::default()).await
}

/// The same, where somebody counts what is asked.
async fn counted_gpu_state(asked: Arc<Asked>) -> GpuState {
    let (control, gpu_control) = StdStream::pair().unwrap();
    let (sessions, gpu_sessions) = StdStream::pair().unwrap();
    std::thread::spawn(move || {
        serve_as_gpu(gpu_control, &asked);
        drop(gpu_sessions);
    });
    control.set_nonblocking(true).unwrap();
    let control = UnixStream::from_std(control).unwrap();
    sessions.set_nonblocking(true).unwrap();
    let link = Link::greet(control, OwnedFd::from(sessions)).await.unwrap();
    GpuState {
        facts: Some(link.facts().clone()),
        link: Some(link),
        restarts: 4,
        last_restart: Some("it ended".into()),
    }
}

impl Server {
    async fn start(uid: Option<u32>) -> Server {
        Server::with(1, uid).await
    }

    async fn with(gpu_count: usize, uid: Option<u32>) -> Server {
        let (mut states, mut lines, mut asked) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..gpu_count {
            let counts = Arc::<Asked>::default();
            let (sender, state) = watch::channel(counted_gpu_state(Arc::clone(&counts)).await);
            states.push(sender);
            asked.push(counts);
            lines.push((GpuHandle::new(state), watch::channel(None).0));
        }
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
        let own = uid.map_or_else(|| rustix::process::geteuid().as_raw(), |_| ADMIN);
        let gpus = Gpus::new(lines);
        let book = Book::open(gpus.clone(), None);
        let api = Api::new(
            gpus,
            Rights::new(own, None, Owners::system()),
            Arc::clone(&book),
            Arc::default(),
        );
        match uid {
            Some(uid) => {
                let caller = Caller { uid: Some(uid), is_admin: [0, ADMIN].contains(&uid) };
                let router = api::router(api).layer(MockConnectInfo(caller));
                tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
            }
            None => {
                tokio::spawn(async move { api::serve(listener, api).await });
            }
        }
        Server { folder, states, asked, book }
    }

    async fn ask(&self, request: &str, body: &str) -> HttpAnswer {
        let path = self.folder.path().join("api.sock");
        let (request, body) = (request.to_owned(), body.to_owned());
        tokio::task::spawn_blocking(move || support::ask(&path, &request, &body).unwrap())
            .await
            .unwrap()
    }

    async fn text(&self, request: &str) -> (u16, String) {
        let path = self.folder.path().join("api.sock");
        let request = request.to_owned();
        let ask = move || support::ask_for_text(&path, &request, "").unwrap();
        tokio::task::spawn_blocking(ask).await.unwrap()
    }

    /// The first `most` events for a reader that has read `after`.
    async fn events(&self, after: Option<&str>, most: usize) -> Vec<support::ServerEvent> {
        let path = self.folder.path().join("api.sock");
        let after = after.map(str::to_owned);
        let read = move || support::read_events(&path, after.as_deref()).take(most).collect();
        tokio::task::spawn_blocking(read).await.unwrap()
    }

    /// Checks that a request fails with this status and a problem that says `words`.
    async fn check_problem(&self, request: &str, body: &str, status: u16, words: &str) {
        let answer = self.ask(request, body).await;
        assert_eq!(answer.status, status, "{request}: {}", answer.body);
        let problem: Problem = serde_json::from_value(answer.body).unwrap();
        assert_eq!(problem.status, status, "{request}");
        assert!(problem.detail.contains(words), "{request}: {}", problem.detail);
    }
}

fn plan(application: u32, sms: &str) -> String {
    json!({"partitions": [{"application": application, "sms": sms}]}).to_string()
}

#[tokio::test]
async fn reading() {
    let server = Server::start(None).await;
    let answer = server.ask("GET /v1/status", "").await;
    assert_eq!(answer.status, 200);
    let report: StatusReport = serde_json::from_value(answer.body).unwrap();
    let mut expected = status_report();
    expected.version = env!("CARGO_PKG_VERSION").into();
    expected.gpu.pid = 77;
    expected.gpu.restarts = 4;
    expected.gpu.last_restart = Some("it ended".into());
    assert_eq!(report, expected);
    let answer = server.ask("GET /v1/trace", "").await;
    assert_eq!(
        (answer.status, answer.body),
        (
            200,
            json!({"timekeeping": "simulated", "entries": [], "dropped": 3, "copies": [],
                "dropped_copies": 0})
        )
    );
}

/// A status answers further requests, but none after a change, and none that wants a new one.
#[tokio::test]
async fn a_status_is_told_again_until_something_changes() {
    let server = Server::start(Some(ADMIN)).await;
    let asked = Arc::<Asked>::default();
    server.states[0].send_replace(counted_gpu_state(Arc::clone(&asked)).await);
    let asked = || asked.statuses.load(Ordering::Relaxed);
    for questions in 1..=3 {
        assert_eq!(server.ask("GET /v1/partitions", "").await.status, 200);
        assert_eq!(asked(), questions, "the request says `no-cache`");
    }
    let may_be_old = "GET /v1/partitions HTTP/1.1\r\nCache-Control: max-age=1\r\nX-Rest:";
    for _ in 0..500 {
        assert_eq!(server.ask(may_be_old, "").await.status, 200);
    }
    let told = asked();
    assert!(told < 500, "{told} questions for 500 requests");
    for (change, body) in [("PUT /v1/plan", plan(1, "0-17")), ("DELETE /v1/plan", String::new())] {
        assert_eq!(server.ask(may_be_old, "").await.status, 200);
        // A renewal may be under way.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(server.ask(change, &body).await.status, 204);
        let before = asked();
        assert_eq!(server.ask(may_be_old, "").await.status, 200);
        assert!(asked() > before, "the answer is from before {change}");
    }
}

/// A status from before a change, or from before an event that readers are told, is told no more.
#[tokio::test]
async fn no_status_is_from_before_a_change_or_an_event() {
    let link = gpu_state().await.link.unwrap();
    // The status does not grow old within the test.
    let later = Instant::now() + Duration::from_secs(600);
    let asks = [
        (Ask::ClearPlan, false),
        (Ask::Reserve(Vec::new()), false),
        (Ask::Events { after: 0 }, false),
        (Ask::Accounts, true),
        (Ask::Events { after: 5 }, true),
    ];
    for (ask, is_told) in asks {
        link.recent().keep(link.recent().asked(later), Arc::new(status_report()));
        assert!(link.recent_status().is_some());
        let said = format!("{ask:?}");
        link.ask(ask).await.unwrap();
        assert_eq!(link.recent_status().is_some(), is_told, "after {said}");
    }
}

/// A program that has connected is in every status that is told afterwards.
#[tokio::test]
async fn no_status_is_from_before_a_session_came() {
    let link = gpu_state().await.link.unwrap();
    // The status does not grow old within the test.
    let later = Instant::now() + Duration::from_secs(600);
    let keep = || link.recent().keep(link.recent().asked(later), Arc::new(status_report()));
    keep();
    assert!(link.recent_status().is_some());
    let (client, _program) = StdStream::pair().unwrap();
    let peer = Peer { pid: 1, uid: 2, gid: 3 };
    let session = HandOver { session: COMING, peer, greeting: Greeting::default() };
    let desk = Arc::clone(&link);
    let handed = tokio::spawn(async move { desk.hand_over(&session, client.as_fd()).await });
    let is_told = async || {
        while link.recent_status().is_some() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_told()).await.expect("none is told");
    keep();
    assert!(link.recent_status().is_none(), "the session may have come since");
    link.beat(Duration::from_secs(60)).await.unwrap();
    handed.await.unwrap().unwrap();
    assert!(link.recent_status().is_none(), "that was before the session was answered");
    keep();
    assert!(link.recent_status().is_some());
}

#[tokio::test]
async fn lists_are_cut_from_the_status() {
    let server = Server::with(2, Some(ADMIN)).await;
    let list = async |path: &str| server.ask(&format!("GET {path}"), "").await.body;
    let gpus = list("/v1/gpus").await;
    assert_eq!(gpus.as_array().unwrap().len(), 2);
    assert_eq!((&gpus[1]["number"], &gpus[1]["sms"]), (&json!(1), &json!(24)));
    assert_eq!(gpus[0]["uuid"], "GPU-07070707-0707-0707-0707-070707070707");
    let partition = json!({"gpu": 1, "application": 1, "sms": "0-23", "pinned": false});
    assert_eq!(list("/v1/partitions?gpu=1").await, json!([partition]));
    for empty in ["applications", "sessions", "kernels", "decisions"] {
        assert_eq!(list(&format!("/v1/{empty}")).await, json!([]), "{empty}");
    }
    assert_eq!(list("/v1/plan?gpu=0").await, json!({"partitions": []}));
    server.check_problem("GET /v1/kernels?gpu=2", "", 404, "there is no GPU 2").await;
    let build = list("/v1/build").await;
    assert_eq!(build["version"], env!("CARGO_PKG_VERSION"));
    let described = list("/v1/openapi.json").await;
    assert!(described["paths"]["/v1/partitions"]["get"].is_object());
}

#[tokio::test]
async fn readiness_follows_the_data_planes() {
    let server = Server::with(2, Some(ADMIN + 1)).await;
    assert_eq!(server.text("GET /-/ready").await, (200, "ready\n".into()));
    server.states[1].send_modify(|state| state.link = None);
    server.check_problem("GET /-/ready", "", 503, "GPU 1 is not served").await;
    assert_eq!(server.text("GET /-/healthy").await, (200, "healthy\n".into()));
}

#[tokio::test]
async fn events_are_told_to_whom_they_concern() {
    for (uid, told) in [
        (0, &["application_came", "application_came", "decision", "border", "border"][..]),
        (1001, &["application_came", "others", "decision", "border"]),
        (1002, &["others", "application_came", "decision", "border"]),
        (1003, &["others"]),
    ] {
        let server = Server::start(Some(uid)).await;
        let hello = server.events(None, 1).await.remove(0);
        assert_eq!(hello.kind, "hello");
        let epoch = hello.id.split_once('-').unwrap().0.to_owned();
        let found = server.events(Some(&format!("{epoch}-0")), 1 + told.len()).await;
        let kinds: Vec<_> = found[1..].iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, told, "uid {uid}");
        let all: String = found.iter().map(|event| event.data.to_string()).collect();
        assert_eq!(all.contains("secret"), [0, 1002].contains(&uid), "{all}");
        assert_eq!(all.contains("application 2 has"), [0, 1002].contains(&uid), "{all}");
        let sums = found.iter().find(|event| event.kind == "others");
        if uid == 1001 {
            // Where they stand when the reader comes.
            assert_eq!(sums.unwrap().data, json!({"gpu": 0, "applications": 1, "sms": 12}));
            assert_eq!(found.last().unwrap().data["to"], "0-5");
            assert_eq!(found.last().unwrap().id, format!("{epoch}-4"));
        }
        let again = server.events(Some("1-1"), 3).await;
        assert_eq!((again[1].kind.as_str(), &again[1].data), ("lagged", &json!({"missed": 0})));
        assert_eq!(again[2].kind, "up_to_date");
        let all = server.events(Some("0"), 2 + told.len()).await;
        let kinds: Vec<_> = all[1..].iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, [told, &["up_to_date"]].concat(), "uid {uid}");
    }
    Server::start(Some(0)).await.check_problem("GET /v1/events?gpu=1", "", 404, "GPU 1").await;
}

#[tokio::test]
async fn an_administrator_may_ask_as_another_user() {
    let server = Server::start(Some(0)).await;
    let own = "GET /v1/status HTTP/1.1\r\nPartita-Sight: own\r\nX:";
    let seen: StatusReport = serde_json::from_value(server.ask(own, "").await.body).unwrap();
    assert!(seen.partitions.is_empty() && seen.other_users.is_some());
    let all = server.ask("GET /v1/status", "").await.body;
    assert_eq!(all["partitions"].as_array().unwrap().len(), 1);
    let plan = "DELETE /v1/plan HTTP/1.1\r\nPartita-Sight: own\r\nX:";
    server.check_problem(plan, "", 403, "you are uid 0").await;
    let wrong = "GET /v1/status HTTP/1.1\r\nPartita-Sight: all\r\nX:";
    server.check_problem(wrong, "", 400, "one value, `own`").await;
}

#[tokio::test]
async fn the_configuration_is_told() {
    let server = Server::start(Some(1001)).await;
    let answer = server.ask("GET /v1/config", "").await;
    assert_eq!((answer.status, &answer.body["keys"]), (200, &json!([])), "none was read");
    server.check_problem("PUT /v1/config", "", 405, "PUT").await;
}

fn reservation(tenant: u32, sms: u16, memory: u64) -> String {
    let (job, expires) = (format!("job-{tenant}"), 4_000_000_000_u64);
    json!({
        "tenant": tenant, "job": job, "sms": sms, "memory_bytes": memory, "expires": expires
    })
    .to_string()
}

#[tokio::test]
async fn reservations_are_kept_or_refused_with_the_holders() {
    let server = Server::start(Some(ADMIN)).await;
    let put = async |id: &str, body: &str| {
        let answer = server.ask(&format!("PUT /v1/reservations/{id}"), body).await;
        (answer.status, answer.body)
    };
    assert_eq!(put("a", &reservation(1001, 18, 1 << 20)).await.0, 201);
    assert_eq!(put("a", &reservation(1001, 18, 1 << 20)).await.0, 204, "it is idempotent");
    let (status, problem) = put("b", &reservation(1002, 7, 0)).await;
    assert_eq!(status, 409);
    let holder = &problem["holders"][0];
    assert_eq!((&holder["reservation"], &holder["sms"]), (&json!("a"), &json!(18)));
    assert!(problem["detail"].as_str().unwrap().contains("6 SMs and 1072693248 bytes left"));
    assert_eq!(put("b", &reservation(1002, 6, 1 << 30)).await.0, 409, "memory counts, too");
    assert_eq!(put("b", &reservation(1002, 6, 0)).await.0, 201);
    assert_eq!(put("a", &reservation(1001, 19, 0)).await.0, 409);
    let (status, problem) = put("c", &reservation(1002, 1, 0)).await;
    assert_eq!((status, &problem["holders"][0]["reservation"]), (409, &json!("b")), "of one job");
    assert_eq!(put("a", &reservation(1001, 12, 0)).await.0, 204, "it may shrink");
    for (id, body, status, words) in [
        ("c", "{}".to_owned(), 422, "missing field"),
        ("c", reservation(1, 0, 0), 422, "`sms` is at least 1"),
        ("c", reservation(1, 25, 0), 422, "GPU 0 has 24 SMs"),
        ("c", reservation(1, 2, 0).replace('{', "{\"max_sms\":1,"), 422, "at least `sms`"),
        ("c", reservation(1, 2, 0).replace('{', "{\"priority\":\"high\","), 422, "priority"),
        ("c", reservation(1, 1, 0).replace("4000000000", "7"), 422, "`expires` is over"),
        ("c", reservation(1, 1, 0).replace("job-1", ""), 422, "`job` has 1 to"),
        ("a%20b", reservation(1, 1, 0), 422, "letters, digits"),
        ("%2e%2e", reservation(1, 1, 0), 422, "not dots alone"),
        ("c", reservation(1, 1, 0).replace('{', "{\"gpu\":3,"), 404, "there is no GPU 3"),
    ] {
        server.check_problem(&format!("PUT /v1/reservations/{id}"), &body, status, words).await;
    }
    let all = server.ask("GET /v1/reservations", "").await.body;
    assert_eq!((all[0]["id"].as_str(), all[1]["sms"].as_u64()), (Some("a"), Some(6)));
    assert_eq!(server.ask("GET /v1/reservations/b", "").await.body["job"], "job-1002");
    let of_before = "DELETE /v1/reservations/b?expires=3999999999";
    server.check_problem(of_before, "", 409, "made anew and ends at 4000000000").await;
    server.check_problem("DELETE /v1/reservations/b?expires=x", "", 400, "expires").await;
    let same = "DELETE /v1/reservations/b?expires=4000000000";
    assert_eq!(server.ask(same, "").await.status, 204);
    server.check_problem(same, "", 404, "no reservation `b`").await;
    assert_eq!(put("b", &reservation(1002, 6, 0)).await.0, 201);
    assert_eq!(server.ask("DELETE /v1/reservations/b", "").await.status, 204);
    server.check_problem("DELETE /v1/reservations/b", "", 404, "no reservation `b`").await;
    assert_eq!(put("b", &reservation(1002, 12, 0)).await.0, 201);
    let terms = "{\"max_sms\":20,\"priority\":\"batch\",";
    let bounded = reservation(1002, 12, 0).replace('{', terms);
    assert_eq!(put("b", &bounded).await.0, 204);
    let b = server.ask("GET /v1/reservations/b", "").await.body;
    assert_eq!((&b["max_sms"], &b["priority"]), (&json!(20), &json!("batch")));
}

/// It may hold reservations of a daemon before this one.
#[tokio::test]
async fn a_data_plane_learns_that_nothing_is_reserved() {
    let server = Server::with(2, None).await;
    let is_told = || server.asked.iter().all(|one| one.reservations.load(Ordering::Relaxed) > 0);
    let told = async {
        while !is_told() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("it is told");
}

#[tokio::test]
async fn a_reservation_tells_what_its_job_has_had() {
    let server = Server::start(Some(ADMIN)).await;
    for (id, tenant, job) in [("a", 1001, "job-7"), ("b", 1002, "job-7"), ("c", 1001, "job-8")] {
        let body = json!({"tenant": tenant, "job": job, "sms": 1, "expires": 4_000_000_000_u64});
        let put = server.ask(&format!("PUT /v1/reservations/{id}"), &body.to_string()).await;
        assert_eq!(put.status, 201);
    }
    let used = json!({"sm_ns": 9, "compared_ns": 4, "alone_ns": 3});
    let all = server.ask("GET /v1/reservations", "").await.body;
    let told: Vec<_> = all.as_array().unwrap().iter().map(|one| &one["used"]).collect();
    assert_eq!(told, [&used, &json!(null), &json!(null)]);
    assert_eq!(server.ask("GET /v1/reservations/a", "").await.body["used"], used);
}

#[tokio::test]
async fn reserving_needs_rights() {
    let server = Server::start(Some(ADMIN + 1)).await;
    let body = reservation(1001, 1, 0);
    server.check_problem("PUT /v1/reservations/a", &body, 403, "you are uid 1001").await;
    server.check_problem("DELETE /v1/reservations/a", "", 403, "you are uid 1001").await;
    let known = &server.book;
    for (id, tenant) in [("mine", 1001), ("secret", 1002)] {
        let request = serde_json::from_str(&reservation(tenant, 1, 0)).unwrap();
        assert_eq!(known.put(id, request).await.unwrap(), Put::New);
    }
    let seen = server.ask("GET /v1/reservations", "").await.body;
    assert_eq!((seen.as_array().unwrap().len(), &seen[0]["id"]), (1, &json!("mine")));
    server.check_problem("GET /v1/reservations/secret", "", 404, "no reservation").await;
}

#[tokio::test]
async fn reservations_survive_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state/reservations.json");
    let (_sender, state) = watch::channel(gpu_state().await);
    let gpus = Gpus::new(vec![(GpuHandle::new(state), watch::channel(None).0)]);
    let open = || Book::open(gpus.clone(), Some(file.clone()));
    let request = || serde_json::from_str(&reservation(1001, 4, 0)).unwrap();
    open().put("a", request()).await.unwrap();
    let found = open().all();
    assert_eq!((found.len(), found[0].request()), (1, request()));
    open().delete("a", None).await.unwrap();
    assert!(open().all().is_empty());
    std::fs::write(&file, "no book").unwrap();
    assert!(open().all().is_empty());
    assert!(file.with_extension("json.bad").exists() && !file.exists());
    open().put("b", request()).await.unwrap();
    assert_eq!(open().all().len(), 1);
}

#[tokio::test]
async fn changing() {
    for uid in [ADMIN, 0] {
        let server = Server::start(Some(uid)).await;
        assert_eq!(server.ask("PUT /v1/plan", &plan(1, "0-17")).await.status, 204);
        assert_eq!(server.ask("DELETE /v1/plan", "").await.status, 204);
        assert_eq!(server.ask("DELETE /v1/sessions/1/launches", "").await.status, 204);
        server
            .check_problem("DELETE /v1/sessions/2/launches", "", 404, "session 2 does not exist")
            .await;
        server
            .check_problem("PUT /v1/plan", &plan(1, "0-18"), 409, "SM 18 is application 2's")
            .await;
        server.check_problem("PUT /v1/plan", &plan(2, "24"), 422, "SM 24 does not exist").await;
        server.check_problem("PUT /v1/plan", &plan(9, "0"), 404, "no application 9").await;
    }
}

#[tokio::test]
async fn every_error_is_a_problem() {
    let server = Server::start(Some(ADMIN)).await;
    for (request, body, status, words) in [
        ("GET /", "", 404, "/v1/openapi.json lists"),
        ("GET /v1/statu", "", 404, "/v1/statu"),
        ("POST /v1/status", "", 405, "POST"),
        ("POST /v1/plan", "", 405, "POST"),
        ("DELETE /v1/sessions/one/launches", "", 400, "one"),
        ("GET /v1/sessions/1/launches", "", 405, "GET"),
        ("PUT /v1/advice", "", 405, "PUT"),
        ("POST /v1/predict", "{}", 422, "members"),
        ("POST /v1/predict", r#"{"members":[]}"#, 422, "no application is named"),
        (
            "POST /v1/predict",
            r#"{"members":[{"application":"99","sms":4}]}"#,
            404,
            "no application `99`",
        ),
        ("POST /v1/advice", r#"{"application":"99","target_ns":-1.0}"#, 422, "nanoseconds above 0"),
        ("PUT /v1/plan", "", 400, "EOF"),
        ("PUT /v1/plan", "{", 400, "EOF"),
        ("PUT /v1/plan", "{}", 422, "partitions"),
        ("PUT /v1/plan", r#"{"partitions":[],"more":1}"#, 422, "more"),
        ("PUT /v1/plan", r#"{"partitions":[{"application":-1,"sms":"0"}]}"#, 422, "-1"),
        (
            "PUT /v1/plan",
            r#"{"partitions":[{"application":1,"sms":"0-400"}]}"#,
            422,
            "`0-400` is not an SM id",
        ),
    ] {
        server.check_problem(request, body, status, words).await;
    }
    let answer = server.ask("PUT /v1/plan", &" ".repeat(70_000)).await;
    assert_eq!(answer.status, 413, "{}", answer.body);
    let problem: Problem = serde_json::from_value(answer.body).unwrap();
    assert!(problem.detail.contains("limit"), "{}", problem.detail);
}

#[tokio::test]
async fn changing_needs_rights() {
    let server = Server::start(Some(ADMIN + 1)).await;
    let words =
        "only root and the daemon's user (uid 1000) may change partitions; you are uid 1001";
    server.check_problem("PUT /v1/plan", &plan(1, "0-17"), 403, words).await;
    server.check_problem("PUT /v1/plan", "no plan at all", 403, words).await;
    server.check_problem("DELETE /v1/plan", "", 403, words).await;
    // Whether the session is the caller's own is the data plane's to say.
    assert_eq!(server.ask("DELETE /v1/sessions/1/launches", "").await.status, 204);
    assert_eq!(server.ask("GET /v1/status", "").await.status, 200);
}

#[tokio::test]
async fn a_dead_data_plane_is_told() {
    let server = Server::start(Some(ADMIN)).await;
    // The fake ends at an empty plan: in the middle of a question.
    server.check_problem("PUT /v1/plan", r#"{"partitions":[]}"#, 503, "being restarted").await;
    server.check_problem("GET /v1/trace", "", 503, "being restarted").await;
    let report: StatusReport =
        serde_json::from_value(server.ask("GET /v1/status", "").await.body).unwrap();
    assert_eq!((report.gpu.pid, report.gpu.name.as_str(), report.gpu.restarts), (0, "small", 4));
    assert!(report.applications.is_empty());
    server.states[0].send_modify(|state| state.link = None);
    assert_eq!(server.ask("GET /v1/status", "").await.status, 200);
    server.states[0].send_modify(|state| state.facts = None);
    server.check_problem("GET /v1/status", "", 503, "being restarted").await;
}

#[tokio::test]
async fn of_several_gpus_one_is_named_where_it_matters() {
    let server = Server::with(2, Some(ADMIN)).await;
    let status = async |request: &str| -> StatusReport {
        serde_json::from_value(server.ask(request, "").await.body).unwrap()
    };
    let all = status("GET /v1/status").await;
    assert_eq!((all.gpu.number, all.gpu.pid), (GpuNumber(0), 77));
    let others: Vec<_> =
        all.others.iter().map(|other| (other.gpu.number, other.partitions.len())).collect();
    assert_eq!(others, [(GpuNumber(1), 1)]);
    let second = status("GET /v1/status?gpu=1").await;
    assert_eq!((second.gpu.number, second.others.len()), (GpuNumber(1), 0));

    let words = "the daemon serves 2 GPUs: say which, by --gpu N or ?gpu=N";
    for request in ["GET /v1/trace", "DELETE /v1/plan"] {
        server.check_problem(request, "", 400, words).await;
    }
    server.check_problem("PUT /v1/plan", &plan(1, "0-17"), 400, words).await;
    assert_eq!(server.ask("PUT /v1/plan?gpu=1", &plan(1, "0-17")).await.status, 204);
    assert_eq!(server.ask("DELETE /v1/plan?gpu=0", "").await.status, 204);
    assert_eq!(server.ask("GET /v1/trace?gpu=1", "").await.status, 200);
    server.check_problem("GET /v1/trace?gpu=2", "", 404, "there is no GPU 2").await;
    server.check_problem("GET /v1/status?gpu=first", "", 400, "gpu: invalid digit").await;
    server.check_problem("GET /v1/status?cpu=1", "", 400, "cpu").await;

    // Sessions are found wherever they are.
    assert_eq!(server.ask("DELETE /v1/sessions/1/launches", "").await.status, 204);
    server
        .check_problem("DELETE /v1/sessions/2/launches", "", 404, "session 2 does not exist")
        .await;

    // The end of one is the others' no concern.
    server.states[1].send_modify(|state| state.link = None);
    let all = status("GET /v1/status").await;
    assert_eq!((all.gpu.pid, all.others[0].gpu.pid), (77, 0));
    server.check_problem("GET /v1/trace?gpu=1", "", 503, "being restarted").await;
    assert_eq!(server.ask("DELETE /v1/plan?gpu=0", "").await.status, 204);
    assert_eq!(server.ask("DELETE /v1/sessions/1/launches", "").await.status, 204);
}
