//! HTTP over a Unix socket, as much of it as tests need.

use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
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
    let request = format!(
        "{request} HTTP/1.1\r\nHost: partita\r\nConnection: close\r\nContent-Type: \
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
