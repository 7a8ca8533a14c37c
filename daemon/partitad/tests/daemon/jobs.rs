//! Events, reservations and the group of administrators, with real programs of several users.

use super::support::{ServerEvent, ask, read_events};
use super::users::{as_user, open_daemon};
use super::{Client, Daemon};
use partita_client::Session;
use partita_model::StatusReport;
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const ALICE: u32 = 1001;
const BOB: u32 = 1002;
/// A user of Debian that is the member of the group of the same name, and one that is not.
const DAEMON: (u32, &str) = (1, "daemon");
const BIN: u32 = 2;

/// Where a tagged program finds the daemon.
const SOCKETS: &str = "PARTITA_TEST_SOCKETS";

/// This test as another process, whose application has a tag.
struct Tagged {
    child: Child,
    input: Option<ChildStdin>,
}

impl Tagged {
    fn start(daemon: &Daemon, tag: &str) -> Tagged {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "jobs::tagged_program"])
            .env("PARTITA_APP", tag)
            .env(SOCKETS, daemon.sockets())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        Tagged { child, input }
    }

    fn end(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// The program that the other tests start; by itself it tests nothing.
#[test]
fn tagged_program() {
    let Some(sockets) = std::env::var_os(SOCKETS) else { return };
    let client = Client::new(Session::connect(Path::new(&sockets)).unwrap());
    let held = client.hold(100, 2000);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    client.release(held);
}

/// The SMs of an application.
fn sms_of(status: &StatusReport, application: u64) -> u16 {
    let own = status.partitions.iter().find(|one| u64::from(one.application.0) == application);
    own.map_or(0, |partition| partition.sms.len())
}

#[test]
fn a_job_gets_what_is_reserved_for_it() {
    let daemon = Daemon::start();
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let expires = since_1970.as_secs() + 3600;
    let uid = geteuid().as_raw();
    let reserve = |id: &str, sms: u16| {
        let body = json!({"tenant": uid, "job": id, "sms": sms, "expires": expires});
        daemon.ask(&format!("PUT /v1/reservations/{id}"), &body.to_string())
    };
    let reservation = |id: &str| daemon.ask(&format!("GET /v1/reservations/{id}"), "").body;
    assert_eq!(reserve("one", 15).status, 201);
    let refused = reserve("two", 10);
    assert_eq!((refused.status, &refused.body["holders"][0]["job"]), (409, &json!("one")));
    assert_eq!(reserve("two", 5).status, 201);

    let other = daemon.connect();
    let held = other.hold(100, 8000);
    let first = Tagged::start(&daemon, "one");
    let second = Tagged::start(&daemon, "two");
    let id = |of: &str| {
        wait_until("the job", || reservation(of)["application"].is_u64());
        reservation(of)["application"].as_u64().unwrap()
    };
    let (one, two) = (id("one"), id("two"));
    daemon.wait_for("what is reserved for both", |status| {
        sms_of(status, one) >= 15 && sms_of(status, two) >= 5
    });

    // The end of one job takes nothing from the other, and what it has had is still known.
    first.end();
    wait_until("the first job to be forgotten", || reservation("one")["application"].is_null());
    let used = |id: &str| reservation(id)["used"]["sm_ns"].as_u64();
    assert!(used("one") > Some(0) && used("two") > Some(0), "{:?}", reservation("one"));
    assert!(sms_of(&daemon.status(), two) >= 5);
    assert_eq!(daemon.ask("DELETE /v1/reservations/two", "").status, 204);
    let said = |status: &StatusReport| {
        status.applications.iter().any(|application| application.entitlement.is_some())
    };
    daemon.wait_for("no terms", |status| !said(status));
    second.end();
    other.release(held);
}

#[test]
fn terms_are_set_while_kernels_run() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let alice = as_user(ALICE, || daemon.connect());
    let bob = as_user(BOB, || daemon.connect());
    let (own, foreign) = (alice.application(&daemon), bob.application(&daemon));
    let held = (alice.hold(100, 8000), bob.hold(100, 8000));
    daemon.wait_for("both to run", |status| status.partitions.len() == 2);
    let socket = daemon.sockets().join("api.sock");
    let put = |uid: u32, application: u32, terms: Value| {
        let request = format!("PUT /v1/applications/{application}/terms");
        as_user(uid, || ask(&socket, &request, &terms.to_string()).unwrap())
    };
    assert_eq!(put(0, own.0, json!({"min": 17})).status, 204);
    daemon.wait_for("a minimum", |status| sms_of(status, own.0.into()) == 17);
    // There are 24 SMs.
    let refused = put(0, foreign.0, json!({"min": 8}));
    assert_eq!(refused.status, 409);
    let holder = format!("{own} has 17");
    assert!(refused.body["detail"].as_str().unwrap().contains(&holder), "{:?}", refused.body);
    assert_eq!(put(ALICE, own.0, json!({"max": "25%"})).status, 204);
    daemon.wait_for("a maximum", |status| {
        (sms_of(status, own.0.into()), sms_of(status, foreign.0.into())) == (6, 18)
    });
    for (application, terms, status) in [
        (own.0, json!({"min": 18}), 403),
        (own.0, json!({"priority": "latency"}), 403),
        (own.0, json!({"priority": "batch"}), 204),
        (foreign.0, json!({"max": 1}), 403),
        (99, json!({"max": 1}), 404),
        (own.0, json!({"max": "all"}), 422),
        (own.0, json!({"most": 3}), 422),
    ] {
        let answer = put(ALICE, application, terms.clone());
        assert_eq!(answer.status, status, "{terms}: {:?}", answer.body);
    }
    alice.release(held.0);
    bob.release(held.1);
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < super::PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn events_of(daemon: &Daemon, uid: u32) -> impl Iterator<Item = ServerEvent> + use<> {
    let socket = daemon.sockets().join("api.sock");
    let mut events = as_user(uid, || read_events(&socket, None));
    assert_eq!(events.next().unwrap().kind, "hello");
    events
}

#[test]
fn readers_are_told_what_concerns_them() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let [for_root, for_alice] = [0, ALICE].map(|uid| events_of(&daemon, uid));
    let alice = as_user(ALICE, || daemon.connect());
    let bob = as_user(BOB, || daemon.connect());
    let (own, foreign) = (alice.application(&daemon), bob.application(&daemon));
    let held = (alice.hold(100, 8000), bob.hold(100, 8000));
    daemon.wait_for("both to run", |status| status.partitions.len() == 2);
    let session = alice.session.id().0;
    let cancelled = daemon.ask(&format!("DELETE /v1/sessions/{session}/launches"), "");
    assert_eq!(cancelled.status, 204);
    bob.release(held.1);
    drop((alice, bob));
    let last = |event: &ServerEvent, application: u32| {
        event.kind == "application_left" && event.data["application"] == application
    };
    let until = |events: &mut dyn Iterator<Item = ServerEvent>, application: u32| {
        let mut found = Vec::new();
        for event in events {
            let is_last = last(&event, application);
            found.push(event);
            if is_last {
                break;
            }
        }
        found
    };
    let mut for_root = for_root;
    let mut all = until(&mut for_root, own.0);
    if !all.iter().any(|event| last(event, foreign.0)) {
        all.extend(until(&mut for_root, foreign.0));
    }
    for kind in ["application_came", "session_came", "border", "decision", "fault", "session_left"]
    {
        assert!(all.iter().any(|event| event.kind == kind), "{kind} is not among {all:#?}");
    }
    let fault = all.iter().find(|event| event.kind == "fault").unwrap();
    assert_eq!(fault.data["error"], "CUDA_ERROR_LAUNCH_TIMEOUT");
    let reasons =
        |event: &ServerEvent| event.data["why"].as_array().is_some_and(|why| !why.is_empty());
    assert!(all.iter().any(reasons), "a decision has reasons");

    let seen = until(&mut { for_alice }, own.0);
    assert!(
        seen.iter().any(|event| event.kind == "others" && event.data["sms"].as_u64() > Some(0))
    );
    for event in &seen {
        assert_ne!(event.data["application"], json!(foreign.0), "{event:?}");
        let named = format!("{foreign} ");
        assert!(!event.data.to_string().contains(&named), "{event:?}");
    }
}

#[test]
fn members_of_the_administrators_group_change_what_others_may_not() {
    let Some(daemon) = open_daemon(&["--admin-group", DAEMON.1]) else { return };
    let client = as_user(ALICE, || daemon.connect());
    let application = client.application(&daemon);
    let socket = daemon.sockets().join("api.sock");
    let plan = json!({"partitions": [{"application": application, "sms": "0-5"}]}).to_string();
    let as_one =
        |uid: u32, request: &str, body: &str| as_user(uid, || ask(&socket, request, body).unwrap());
    let seen = |uid: u32| {
        let answer: Value = as_one(uid, "GET /v1/applications", "").body;
        answer.as_array().unwrap().len()
    };
    for (uid, status, sees) in [(0, 204, 1), (DAEMON.0, 204, 1), (BIN, 403, 0), (ALICE, 403, 1)] {
        assert_eq!(as_one(uid, "PUT /v1/plan", &plan).status, status, "uid {uid}");
        assert_eq!(seen(uid), sees, "uid {uid}");
        let page =
            as_user(uid, || super::support::ask_for_text(&socket, "GET /metrics", "").unwrap().1);
        let of_alice = format!("tenant=\"{ALICE}\"");
        assert_eq!(page.contains(&of_alice), sees == 1, "uid {uid}");
    }
    let refused = as_one(BIN, "PUT /v1/plan", &plan).body["detail"].to_string();
    assert!(refused.contains("members of group `daemon`"), "{refused}");
}
