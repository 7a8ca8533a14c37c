//! `partita status`, `resize` and `trace` against an API that a test plays.

mod common;
mod played;

use common::{expect, partita, text};
use played::Api;
use std::os::unix::net::UnixListener;

const STATUS: &str = r#"{"version": "0.1.0", "gpu": {"name": "emu 24", "kind": "emulated",
    "timekeeping": "simulated",
    "compute_capability": {"major": 9, "minor": 0}, "sms": 24, "memory_bytes": 1024,
    "memory_used_bytes": 0,
    "device_time_ns": 5, "pid": 7, "restarts": 0}, "applications": [], "partitions": [],
    "policy": {"selector": "everyone", "partitioner": "cd-search", "stage": "", "stalled": "none",
    "gated": "none", "why": [],
    "decisions": []}}"#;

#[test]
fn a_busy_data_plane_is_asked_again_where_that_changes_nothing() {
    let busy = ("504 Gateway Timeout", r#"{"detail": "partita-gpu has not answered for 10 s"}"#);
    let api = Api::answering_each(&[busy, busy, ("200 OK", STATUS)]);
    expect(&mut api.partita(&["status"]), 0, &[]);
    let api = Api::answering_each(&[busy]);
    expect(&mut api.partita(&["resize", "1=0-3"]), 1, &["has not answered for 10 s"]);
}

#[test]
fn status() {
    let api = Api::answering("200 OK", STATUS);
    let output = expect(&mut api.partita(&["status"]), 0, &[]);
    assert!(
        text(&output.stdout).starts_with("GPU          emu 24 (emulated"),
        "{}",
        text(&output.stdout)
    );
    assert!(api.asked().starts_with("GET /v1/status HTTP/1.1\r\n"));

    let api = Api::answering("200 OK", STATUS);
    let output = expect(&mut api.partita(&["status", "--json"]), 0, &[]);
    assert_eq!(text(&output.stdout), format!("{STATUS}\n"));
}

#[test]
fn resize() {
    let api = Api::answering("204 No Content", "");
    let output = expect(&mut api.partita(&["resize", "1=0-17", "2=18-23"]), 0, &[]);
    assert_eq!(text(&output.stdout), "");
    let asked = api.asked();
    assert!(asked.starts_with("PUT /v1/plan HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("content-type: application/json\r\n"), "{asked}");
    assert!(
        asked.ends_with(
            r#"{"partitions":[{"application":1,"sms":"0-17"},{"application":2,"sms":"18-23"}]}"#
        ),
        "{asked}"
    );

    let api = Api::answering("204 No Content", "");
    expect(&mut api.partita(&["resize", "--reset"]), 0, &[]);
    assert!(api.asked().starts_with("DELETE /v1/plan HTTP/1.1\r\n"));
}

#[test]
fn a_refusal_is_shown_as_the_daemon_says_it() {
    let api = Api::answering(
        "409 Conflict",
        r#"{"title": "Conflict", "detail": "they would share SMs 3-4"}"#,
    );
    expect(
        &mut api.partita(&["resize", "1=0-4", "2=3-9"]),
        1,
        &["partita: they would share SMs 3-4\n"],
    );
}

#[test]
fn trace() {
    let entry = |time: u64, kind: &str| {
        format!(
            r#"{{"event":"residency","time":{time},"sm":3,"grid":1,"cta":0,"kind":"{kind}",
                "application":1,"launch":1}}"#
        )
    };
    let body = format!(
        r#"{{"timekeeping":"simulated","entries":[{},{}],"dropped":0}}"#,
        entry(0, "start"),
        entry(99, "exit")
    );
    let api = Api::answering("200 OK", &body);
    let output = expect(&mut api.partita(&["trace", "--width", "10"]), 0, &[]);
    assert!(
        text(&output.stdout).ends_with("a = application 1\n  SM 3 aaaaaaaaaa\n"),
        "{}",
        text(&output.stdout)
    );
    assert!(api.asked().starts_with("GET /v1/trace HTTP/1.1\r\n"));

    let api = Api::answering("200 OK", &body);
    let output = expect(&mut api.partita(&["trace", "--json"]), 0, &[]);
    assert_eq!(text(&output.stdout), format!("{body}\n"));
}

/// What real daemons answered while a program ran on them. The first was made before the first
/// release, and is too old to be read.
const OLDER: &str = include_str!("versions/status-2.1.json");
const LAST: &str = include_str!("versions/status-0.1.0.json");

#[test]
fn an_older_daemon_is_shown_or_the_remedy_is() {
    for (args, parts) in [
        (&["status"][..], ["Emulated GPU, 24 SMs", "python3", "0-23"]),
        (&["why"], ["cd-search", "Nobody but application 1 has work", "24 SMs"]),
    ] {
        let output = expect(&mut Api::answering("200 OK", LAST).partita(args), 0, &[]);
        let shown = text(&output.stdout);
        assert!(parts.iter().all(|part| shown.contains(part)), "{shown}");
        let remedy = "install partita and partitad of one version";
        expect(&mut Api::answering("200 OK", OLDER).partita(args), 1, &["`window`", remedy]);
    }
}

#[test]
fn what_an_older_daemon_does_not_have_is_told_with_the_remedy() {
    for detail in [
        "there is no `/v1/advice`; there are /v1/status, /v1/trace and /v1/plan",
        "there is no `/v1/advice`; /v1/openapi.json lists what there is",
    ] {
        let api = Api::answering("404 Not Found", &format!(r#"{{"detail": "{detail}"}}"#));
        let remedy = "it is older than this command; install partita and partitad of one version";
        expect(&mut api.partita(&["predict"]), 1, &["has no `/v1/", remedy, "restart partitad"]);
    }
    // A thing that does not exist is no sign of age.
    let body = r#"{"detail": "application 7 does not exist; those that do: none"}"#;
    let api = Api::answering("404 Not Found", body);
    let output = expect(&mut api.partita(&["resize", "7=0"]), 1, &["application 7 does not exist"]);
    assert!(!text(&output.stderr).contains("older"));
}

#[test]
fn no_daemon_names_the_sockets_and_the_remedy() {
    for args in [&["status"][..], &["resize", "1=0"], &["trace"]] {
        expect(
            &mut partita(args),
            1,
            &["/nonexistent/partita/api.sock", "start partitad", "--socket-dir"],
        );
    }
    let mut command = partita(&["status"]);
    command.env_remove("PARTITA_SOCKET_DIR").env("XDG_RUNTIME_DIR", "/nonexistent/user");
    if !std::path::Path::new("/run/partita/api.sock").exists() {
        expect(&mut command, 1, &["/run/partita/api.sock, /nonexistent/user/partita/api.sock"]);
    }
}

#[test]
fn answers_that_are_none() {
    let api = Api::answering("200 OK", "{}");
    expect(
        &mut api.partita(&["status"]),
        1,
        &["api.sock answered something else", "missing field"],
    );
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
    let served = std::thread::spawn(move || drop(listener.accept()));
    let mut command = partita(&["status"]);
    expect(command.env("PARTITA_SOCKET_DIR", folder.path()), 1, &["did not answer"]);
    served.join().unwrap();
}

#[test]
fn wrong_usage() {
    for (args, part) in [
        (&["resize"][..], "APP=SMS"),
        (&["resize", "1=abc"], "`abc` is not an SM id"),
        (&["resize", "1=0", "1=2"], "application 1 is named twice"),
        (&["resize", "--reset", "1=0"], "cannot be used with"),
        (&["trace", "--width", "3"], "3 is not in 10..=2000"),
        (&["trace", "--from", "7", "--to", "7"], "--from 7 is not before --to 7"),
    ] {
        expect(&mut partita(args), 2, &[part]);
    }
}
