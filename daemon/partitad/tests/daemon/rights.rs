//! What a user sees of other users, and whose launches it may cancel.

use super::support::{HttpAnswer, ask, ask_for_text};
use super::users::{as_user, open_daemon};
use super::{Client, Daemon};

use partita_model::{ApplicationId, StatusReport, TraceEntry, TraceReport};

const ALICE: u32 = 1001;
const BOB: u32 = 1002;

fn ask_as(daemon: &Daemon, uid: u32, request: &str) -> HttpAnswer {
    let socket = daemon.sockets().join("api.sock");
    as_user(uid, || ask(&socket, request, "").unwrap())
}

fn status_as(daemon: &Daemon, uid: u32) -> StatusReport {
    serde_json::from_value(ask_as(daemon, uid, "GET /v1/status").body).unwrap()
}

fn trace_as(daemon: &Daemon, uid: u32) -> TraceReport {
    serde_json::from_value(ask_as(daemon, uid, "GET /v1/trace").body).unwrap()
}

/// The applications that a trace names.
fn traced(trace: &TraceReport) -> Vec<ApplicationId> {
    let of = |entry: &TraceEntry| match entry {
        TraceEntry::Residency { application, .. } | TraceEntry::Resize { application, .. } => {
            *application
        }
    };
    let copies = trace.copies.iter().map(|copy| copy.application);
    let mut found: Vec<_> = trace.entries.iter().map(of).chain(copies).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn connect_as(daemon: &Daemon, uid: u32) -> Client {
    as_user(uid, || daemon.connect())
}

#[test]
fn a_user_sees_others_in_sum_only() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let (alice, bob) = (connect_as(&daemon, ALICE), connect_as(&daemon, BOB));
    let (own, foreign) = (alice.application(&daemon), bob.application(&daemon));
    let held = (alice.hold(100, 8000), bob.hold(100, 8000));
    let all = daemon.wait_for("both to run", |status| {
        status.partitions.len() == 2 && status.applications.iter().all(|a| a.ctas_completed > 0)
    });
    assert_eq!((all.applications.len(), all.other_users), (2, None));
    assert!(all.policy.why.iter().any(|sentence| sentence.contains(&foreign.to_string())));

    let seen = status_as(&daemon, ALICE);
    let [application] = &seen.applications[..] else { panic!("{seen:#?}") };
    assert_eq!((application.id, application.tenant.0), (own, ALICE));
    assert_eq!(application.kernels[0].name, "held");
    assert_eq!(application.pids, [std::process::id()]);
    assert!(seen.partitions.iter().all(|partition| partition.application == own));
    assert!(seen.policy.why.iter().any(|sentence| sentence.contains(&own.to_string())));
    let others = seen.other_users.unwrap();
    assert_eq!((others.applications, others.sessions, others.sms), (1, 1, 12));
    assert!(others.memory_used_bytes > 0);
    let text = serde_json::to_string(&seen).unwrap();
    assert!(!text.contains(&foreign.to_string()), "{text}");
    assert!(seen.policy.decisions.iter().all(|decision| {
        decision.applications.iter().all(|record| record.application == own)
            && decision.notes.iter().all(|note| note.application().is_none_or(|id| id == own))
    }));

    assert_eq!(traced(&trace_as(&daemon, 0)), [own, foreign]);
    let seen = trace_as(&daemon, ALICE);
    assert_eq!(traced(&seen), [own]);
    assert!(!seen.copies.is_empty(), "its program copies before it launches");
    // A user without programs sees sums only.
    let seen = status_as(&daemon, 1003);
    assert_eq!((seen.applications.len(), seen.other_users.unwrap().applications), (0, 2));
    assert!(traced(&trace_as(&daemon, 1003)).is_empty());

    alice.release(held.0);
    bob.release(held.1);
    // What a program has left in the trace is still its user's, and nobody else's.
    drop((alice, bob));
    daemon.wait_for("both to leave", |status| status.applications.is_empty());
    assert_eq!(traced(&trace_as(&daemon, BOB)), [foreign]);
}

/// What `partita doctor --bundle` asks for.
#[test]
fn an_administrator_that_asks_as_a_user_gets_nothing_of_others() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let alice = connect_as(&daemon, ALICE);
    let held = alice.hold(100, 8000);
    let all = daemon.wait_for("work", |status| {
        status.applications.iter().any(|one| one.ctas_completed > 0 && !one.kernels.is_empty())
    });
    let program = all.applications[0].name.clone();
    let request =
        format!(r#"{{"tenant": {ALICE}, "job": "secret-job", "sms": 1, "expires": 4000000000}}"#);
    let socket = daemon.sockets().join("api.sock");
    let reserved = ask(&socket, "PUT /v1/reservations/secret", &request).unwrap();
    assert_eq!(reserved.status, 201, "{}", reserved.body);
    let secrets = [program.as_str(), "\"held\"", "secret"];
    let paths = [
        "/v1/status",
        "/v1/gpus",
        "/v1/applications",
        "/v1/sessions",
        "/v1/kernels",
        "/v1/partitions",
        "/v1/decisions",
        "/v1/plan",
        "/v1/trace",
        "/v1/config",
        "/v1/reservations",
        "/metrics",
    ];
    let (mut seen, own) = (String::new(), "HTTP/1.1\r\nPartita-Sight: own\r\nX-Rest:");
    for path in paths {
        let (status, all) = ask_for_text(&socket, &format!("GET {path}"), "").unwrap();
        assert_eq!(status, 200, "{path}: {all}");
        seen += &all;
        let (status, text) = ask_for_text(&socket, &format!("GET {path} {own}"), "").unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        for secret in secrets {
            assert!(!text.contains(secret), "{path} has `{secret}`: {text}");
        }
    }
    for secret in secrets {
        assert!(seen.contains(secret), "an administrator sees `{secret}` elsewhere");
    }
    alice.release(held);
}

#[test]
fn a_user_cancels_its_own_launches_only() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let (alice, bob) = (connect_as(&daemon, ALICE), connect_as(&daemon, BOB));
    let held = (alice.hold(100, 8000), bob.hold(100, 8000));
    daemon
        .wait_for("both to run", |status| status.applications.iter().all(|a| a.ctas_completed > 0));
    let cancel = |session| format!("DELETE /v1/sessions/{session}/launches");
    let [first, second] = [&alice, &bob].map(|client| client.session.id().0);

    let refused = ask_as(&daemon, ALICE, &cancel(second));
    assert_eq!(refused.status, 403, "{}", refused.body);
    let detail = refused.body["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("is another user's"), "{detail}");
    let unknown = ask_as(&daemon, ALICE, &cancel(99));
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    let detail = unknown.body["detail"].as_str().unwrap().to_owned();
    assert!(detail.ends_with(&format!("those that do: {first}")), "{detail}");
    for request in ["DELETE /v1/plan", "PUT /v1/plan"] {
        assert_eq!(ask_as(&daemon, ALICE, request).status, 403, "{request}");
    }

    assert_eq!(ask_as(&daemon, ALICE, &cancel(first)).status, 204);
    let error = alice.session.synchronize(None).unwrap_err();
    // CUDA_ERROR_LAUNCH_TIMEOUT
    assert_eq!(error.code, 702, "{error}");
    assert!(daemon.log().contains("its user ended its launches"), "{}", daemon.log());
    // Bob's went on.
    bob.release(held.1);
}
