//! Connections to the API that take places and send little.

use super::users::{as_user, open_daemon};
use super::{Daemon, PATIENCE};
use partitad::problem::Problem;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.sockets().join("api.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The head of the answer in lower case, and its problem.
fn problem(mut stream: UnixStream) -> (String, Problem) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let head = head.to_ascii_lowercase();
    assert!(head.contains("content-type: application/problem+json"), "{head}");
    (head, serde_json::from_str(body).unwrap())
}

/// Whether the daemon has answered on it, or closed it.
fn is_answered(stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut byte = [0];
    let peeked = rustix::net::recv(stream, &mut byte[..], rustix::net::RecvFlags::PEEK);
    stream.set_nonblocking(false).unwrap();
    peeked.is_ok()
}

/// Opens `connections` connections, and waits until the daemon has refused the expected number.
/// Returns the connections that are held and those that are refused.
fn crowd(
    daemon: &Daemon,
    connections: usize,
    refused: usize,
) -> (Vec<UnixStream>, Vec<UnixStream>) {
    let all: Vec<UnixStream> = (0..connections).map(|_| connect(daemon)).collect();
    for mut stream in &all {
        // The refused may already be gone.
        let _ = stream.write_all(b"G");
    }
    let start = Instant::now();
    while all.iter().filter(|stream| is_answered(stream)).count() < refused {
        assert!(start.elapsed() < Duration::from_secs(5), "they are not refused");
        std::thread::sleep(Duration::from_millis(10));
    }
    // More than that may be on their way.
    std::thread::sleep(Duration::from_millis(100));
    all.into_iter().partition(|stream| !is_answered(stream))
}

/// Sends `start`, then a byte twice a second, until an answer comes.
fn trickle(daemon: &Daemon, start: &str) -> (String, Problem) {
    let mut stream = connect(daemon);
    stream.write_all(start.as_bytes()).unwrap();
    let begin = Instant::now();
    while !is_answered(&stream) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{start:?} is waited for");
        std::thread::sleep(Duration::from_millis(500));
        let _ = stream.write_all(b"1");
    }
    problem(stream)
}

#[test]
fn a_request_that_comes_byte_by_byte_is_given_up() {
    let daemon = Daemon::start();
    let length = "content-type: application/json\r\ncontent-length: 60000";
    let body = format!("PUT /v1/plan HTTP/1.1\r\nhost: p\r\n{length}\r\n\r\n");
    let (head, body) = std::thread::scope(|scope| {
        let head = scope.spawn(|| trickle(&daemon, "GET /v1/status HTTP/1.1\r\nx: "));
        let body = scope.spawn(|| trickle(&daemon, &body));
        (head.join().unwrap(), body.join().unwrap())
    });
    assert!(head.0.starts_with("http/1.1 408"), "{}", head.0);
    assert_eq!(head.1.detail, "the head of the request took over 10 s");
    assert!(body.0.starts_with("http/1.1 408"), "{}", body.0);
    assert_eq!(body.1.detail, "the body of the request took over 10 s");
}

#[test]
fn one_user_has_so_many_connections() {
    let daemon = Daemon::start();
    let (mut held, mut refused) = crowd(&daemon, 80, 16);
    assert_eq!((held.len(), refused.len()), (64, 16));
    let (head, problem) = problem(refused.remove(0));
    assert!(head.starts_with("http/1.1 429"), "{head}");
    assert!(head.contains("retry-after: 1"), "{head}");
    assert!(problem.detail.contains("has 64 connections to the API"), "{}", problem.detail);
    // A place that is given back can be taken.
    held.truncate(32);
    let start = Instant::now();
    while daemon.ask("GET /v1/status", "").status == 429 {
        assert!(start.elapsed() < PATIENCE, "no place is given back");
    }
    assert_eq!(daemon.ask("GET /v1/status", "").status, 200);
}

#[test]
fn users_take_no_places_of_root() {
    let Some(daemon) = open_daemon(&[]) else { return };
    let mut held = Vec::new();
    for uid in 1001..1007 {
        let (mine, refused) = as_user(uid, || crowd(&daemon, 33, 1));
        assert_eq!((mine.len(), refused.len()), (32, 1), "uid {uid}");
        held.extend(mine);
    }
    // Six users have all places of users.
    let (head, problem) = as_user(1007, || problem(connect(&daemon)));
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert!(head.contains("retry-after: 1"), "{head}");
    assert!(problem.detail.contains("all 192 connections"), "{}", problem.detail);
    assert_eq!(daemon.ask("GET /v1/status", "").status, 200, "root is served");
    drop(held);
    let ask = |socket: &Path| super::support::ask(socket, "GET /v1/status", "").unwrap().status;
    let start = Instant::now();
    while as_user(1007, || ask(&daemon.sockets().join("api.sock"))) == 503 {
        assert!(start.elapsed() < PATIENCE, "no place is given back");
    }
}

#[test]
fn what_is_no_request_gets_a_problem() {
    let daemon = Daemon::start();
    let check = |request: &str, status: &str, words: &str| {
        let mut stream = connect(&daemon);
        stream.write_all(request.as_bytes()).unwrap();
        let (head, problem) = problem(stream);
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{head}");
        assert!(problem.detail.contains(words), "{}", problem.detail);
    };
    check("hello\r\n\r\n", "400", "no request of HTTP/1.1");
    check("GET / HTTP/9.9\r\n\r\n", "400", "no request of HTTP/1.1");
    check("GET / HTTP/1.1\r\nno field\r\n\r\n", "400", "no request of HTTP/1.1");
    let fields = "x: y\r\n".repeat(101);
    check(&format!("GET / HTTP/1.1\r\n{fields}\r\n"), "431", "over 100 fields");
    check("CONNECT p:1 HTTP/1.1\r\nhost: p\r\n\r\n", "404", "there is no");
    check("OPTIONS * HTTP/1.1\r\nhost: p\r\n\r\n", "404", "there is no");
    check("OPTIONS /v1/plan HTTP/1.1\r\nhost: p\r\n\r\n", "405", "OPTIONS");
    check("GET /v1/%ff HTTP/1.1\r\nhost: p\r\n\r\n", "404", "there is no");
    let length = "transfer-encoding: chunked\r\ncontent-type: application/json";
    check(&format!("PUT /v1/plan HTTP/1.1\r\n{length}\r\n\r\nzz\r\n"), "400", "body");
}
