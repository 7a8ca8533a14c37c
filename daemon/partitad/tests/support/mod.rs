//! HTTP over a Unix socket, as much of it as tests need.

use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long an answer may take on an overloaded host.
const PATIENCE: Duration = Duration::from_secs(180);

/// An answer whose body is JSON or empty; where it is an error, a problem.
pub struct HttpAnswer {
    pub status: u16,
    pub body: Value,
}

/// One server-sent event.
#[derive(Debug)]
#[allow(dead_code, reason = "not every test that uses this module reads events")]
pub struct ServerEvent {
    pub id: String,
    pub kind: String,
    pub data: Value,
}

/// The events that a reader gets after the one with this id.
#[allow(dead_code, reason = "not every test that uses this module reads events")]
pub fn read_events(
    socket: &Path,
    after: Option<&str>,
) -> impl Iterator<Item = ServerEvent> + use<> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let after = after.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
    write!(stream, "GET /v1/events HTTP/1.1\r\nHost: partita\r\n{after}\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains(" 200 "), "no events");
    std::iter::from_fn(move || {
        let mut event = ServerEvent { id: String::new(), kind: String::new(), data: Value::Null };
        for line in &mut lines {
            match line.split_once(": ") {
                Some(("id", id)) => event.id = id.into(),
                Some(("event", kind)) => event.kind = kind.into(),
                Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
                _ if line.is_empty() && !event.kind.is_empty() => return Some(event),
                // The sizes of chunks, and fields of the head.
                _ => {}
            }
        }
        None
    })
}

/// Sends `METHOD /path` with a body and reads the answer. Nothing where nobody listens.
pub fn ask(socket: &Path, request: &str, body: &str) -> Option<HttpAnswer> {
    let (status, body) = ask_for_text(socket, request, body)?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(&body).unwrap() };
    Some(HttpAnswer { status, body })
}

/// As [`ask`], with the body as it came.
pub fn ask_for_text(socket: &Path, request: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    // Tests look right after what programs do. One of older answers says `Cache-Control` itself.
    let age = if request.contains("Cache-Control") { "" } else { "Cache-Control: no-cache\r\n" };
    let request = format!(
        "{request} HTTP/1.1\r\nHost: partita\r\nConnection: close\r\n{age}Content-Type: \
         application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // A server that closes before it has read everything resets the connection after its answer.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    if status >= 400 {
        assert_eq!(content_type, Some("application/problem+json"), "{head}");
    }
    Some((status, body.to_owned()))
}
