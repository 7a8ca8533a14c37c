//! `partita config`, `reservation` and `events` against an API that a test plays.

mod common;
mod played;

use common::{expect, partita, text};
use played::Api;
use serde_json::Value;

const CONFIG: &str = r#"{"files": ["/p.toml"], "read_at": 1, "left_out": 0, "keys": [
    {"key": "policy.partitioner", "value": "even",
        "from": {"kind": "file", "name": "/p.toml", "line": 2}},
    {"key": "policy.group", "value": 2, "from": {"kind": "default"}}]}"#;

#[test]
fn config() {
    let api = Api::answering("200 OK", CONFIG);
    let output = text(&expect(&mut api.partita(&["config"]), 0, &[]).stdout);
    assert!(output.starts_with("KEY                 VALUE  FROM\n"), "{output}");
    assert!(output.contains("policy.partitioner  even   /p.toml:2\n"), "{output}");
    assert!(api.asked().starts_with("GET /v1/config HTTP/1.1\r\n"));
    let api = Api::answering("200 OK", CONFIG);
    let output = text(&expect(&mut api.partita(&["config", "--set"]), 0, &[]).stdout);
    assert!(output.contains("partitioner") && !output.contains("group"), "{output}");
    let api = Api::answering("200 OK", CONFIG);
    let output = expect(&mut api.partita(&["config", "--json"]), 0, &[]);
    assert_eq!(text(&output.stdout), format!("{CONFIG}\n"));
}

const MAKE: [&str; 9] =
    ["reservation", "make", "job-1", "--user", "1000", "--sms", "8", "--memory", "1GiB"];

fn make(more: &[&'static str]) -> Vec<&'static str> {
    [&MAKE, more].concat()
}

#[test]
fn reservations_are_made_and_made_again() {
    let until = make(&["--until", "4000000000"]);
    for (status, word) in [("201 Created", "is new"), ("204 No Content", "was there and holds")] {
        let api = Api::answering(status, "");
        let output = text(&expect(&mut api.partita(&until), 0, &[]).stdout);
        let begin = format!("reservation job-1 {word}: 8 SMs and 1.0 GiB of GPU 0 for job job-1");
        assert!(output.starts_with(&begin), "{output}");
        let asked = api.asked();
        assert!(asked.starts_with("PUT /v1/reservations/job-1 HTTP/1.1\r\n"), "{asked}");
        let body = r#"{"expires":4000000000,"gpu":0,"job":"job-1","memory_bytes":1073741824,"#;
        let body = format!(r#"{body}"sms":8,"tenant":1000}}"#);
        assert!(asked.ends_with(&body), "{asked}");
    }
    let api = Api::answering("201 Created", "");
    expect(&mut api.partita(&make(&["--for", "2h", "--job", "train"])), 0, &[]);
    assert!(api.asked().contains(r#""job":"train""#));
    let full = r#"{"detail": "GPU 0 has 6 SMs left", "holders": [{"reservation": "a",
        "tenant": 7, "job": "j", "sms": 18, "memory_bytes": 0, "expires": 9}]}"#;
    let api = Api::answering("409 Conflict", full);
    let holder = ["GPU 0 has 6 SMs left", "HOLDER", "a       7     j    18"];
    expect(&mut api.partita(&until), 1, &holder);
}

#[test]
fn reservations_are_listed_and_released() {
    let one = r#"{"id": "a", "tenant": 7, "job": "j", "gpu": 0, "sms": 18, "memory_bytes": 0,
        "expires": 4000000000, "application": 3}"#;
    let all = format!("[{one}]");
    let api = Api::answering("200 OK", &all);
    let output = text(&expect(&mut api.partita(&["reservation", "list"]), 0, &[]).stdout);
    assert!(output.starts_with("RESERVATION  USER  JOB"), "{output}");
    let api = Api::answering("200 OK", one);
    let output = expect(&mut api.partita(&["reservation", "show", "a", "--json"]), 0, &[]);
    assert_eq!(text(&output.stdout), format!("{one}\n"));
    assert!(api.asked().starts_with("GET /v1/reservations/a HTTP/1.1\r\n"));
    let api = Api::answering("204 No Content", "");
    expect(&mut api.partita(&["reservation", "release", "a"]), 0, &[]);
    assert!(api.asked().starts_with("DELETE /v1/reservations/a HTTP/1.1\r\n"));
    let is_gone = ["reservation", "release", "b", "--if-there"];
    let missing = r#"{"status": 404, "detail": "there is no reservation `b`"}"#;
    expect(&mut Api::answering("404 Not Found", missing).partita(&is_gone), 0, &[]);
    let missing = Api::answering("404 Not Found", missing);
    expect(&mut missing.partita(&is_gone[..3]), 1, &["there is no reservation"]);
    let forbidden = r#"{"status": 403, "detail": "only root"}"#;
    expect(&mut Api::answering("403 Forbidden", forbidden).partita(&is_gone), 1, &["only root"]);
}

#[test]
fn wrong_usage() {
    for (args, part) in [
        (make(&[]), "--for"),
        (make(&["--for", "2h", "--until", "9"]), "cannot be used with"),
        (make(&["--for", "2 weeks"]), "as in 2h"),
        (vec!["reservation", "show", "a/b"], "letters, digits"),
        (vec!["events", "--since", "a b"], "first column"),
        (vec!["config", "--set", "--json"], "cannot be used with"),
    ] {
        expect(&mut partita(&args), 2, &[part]);
    }
    for args in [&["config"][..], &["reservation", "list"], &["events"]] {
        expect(&mut partita(args), 1, &["no daemon answers", "start partitad"]);
    }
}

const HELLO: &str = "event: hello\nid: e-2\ndata: {\"version\":\"0\"}\n\n";
const BORDER: &str = "event: border\nid: e-1\ndata: {\"gpu\":0,\"sequence\":1,\"time\":2732000,\
    \"event\":\"border\",\"application\":1,\"from\":\"0-11\",\"to\":\"0-5\"}\n\n";
const LEFT: &str = "event: application_left\nid: e-2\ndata: {\"gpu\":0,\"sequence\":2,\
    \"time\":3000000,\"event\":\"application_left\",\"application\":1}\n\n";
const UP_TO_DATE: &str = "event: up_to_date\nid: e-2\ndata: {}\n\n";

#[test]
fn remembered_events_have_an_end() {
    let api = Api::telling_each(&[&[HELLO, BORDER, LEFT, UP_TO_DATE].concat()]);
    let output = expect(&mut api.partita(&["events"]), 0, &[]);
    assert_eq!(
        text(&output.stdout),
        "e-1  GPU 0  2.7 ms  application 1: SMs 0-11 -> 0-5\n\
         e-2  GPU 0  3.0 ms  application 1 left\n"
    );
    let asked = api.asked();
    assert!(asked.starts_with("GET /v1/events HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("last-event-id: 0\r\n"), "{asked}");

    let api = Api::telling_each(&[&[HELLO, LEFT, UP_TO_DATE].concat()]);
    let args = ["events", "--json", "--since", "e-1", "--gpu", "0"];
    let output = text(&expect(&mut api.partita(&args), 0, &[]).stdout);
    let told: Value = serde_json::from_str(&output).expect("one line of JSON");
    assert_eq!((&told["id"], &told["kind"]), (&"e-2".into(), &"application_left".into()));
    assert_eq!(told["data"]["application"], 1);
    let asked = api.asked();
    assert!(asked.starts_with("GET /v1/events?gpu=0 ") && asked.contains("last-event-id: e-1\r\n"));

    let api = Api::telling_each(&[HELLO]);
    expect(&mut api.partita(&["events"]), 1, &["the events broke off"]);
}

#[test]
fn a_follower_comes_again_after_its_last_event() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    // The second connection ends before anything remembered was told.
    let rest = [HELLO, LEFT].concat();
    let api = Api::telling_each(&[&[HELLO, BORDER].concat(), HELLO, &rest]);
    let mut command = api.partita(&["events", "--follow"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let lines: Vec<String> = lines.take(2).map(|line| line.expect("text")).collect();
    assert!(lines[0].starts_with("e-1  ") && lines[1].starts_with("e-2  "), "{lines:?}");
    child.kill().expect("it follows");
    child.wait().expect("it ends");
    let asked = api.asked_each();
    assert!(!asked[0].contains("last-event-id"), "{asked:?}");
    for asked in &asked[1..] {
        assert!(asked.contains("last-event-id: e-1\r\n"), "{asked}");
    }
}
