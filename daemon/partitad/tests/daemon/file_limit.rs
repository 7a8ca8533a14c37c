//! A limit on the size of files (`ulimit -f`, `LimitFSIZE=`) refuses what needs a larger file, and
//! ends no process.

use super::{Daemon, PATIENCE, Pid, Session, Signal, kill_process};
use rustix::process::{Resource, Rlimit, prlimit};
use std::time::Instant;

/// Sets the limit of a process, in bytes.
fn limit(pid: Pid, bytes: Option<u64>) {
    let maximum = rustix::process::getrlimit(Resource::Fsize).maximum;
    prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum }).unwrap();
}

#[test]
fn a_session_over_the_limit_is_refused_and_others_go_on() {
    let daemon = Daemon::start();
    let gpu = Pid::from_raw(daemon.status().gpu.pid.cast_signed()).unwrap();
    let other = daemon.connect();
    let spinning = other.spin(200, 200);
    limit(gpu, Some(1 << 20));
    let refused = Session::connect(&daemon.sockets()).unwrap_err().to_string();
    for word in ["session's memory", "RLIMIT_FSIZE", "LimitFSIZE=", "ulimit -f"] {
        assert!(refused.contains(word), "`{word}` in {refused}");
    }
    other.check(&spinning);
    let status = daemon.wait_for("the refused one to be gone", |s| s.applications.len() == 1);
    assert_eq!(status.gpu.restarts, 0, "{:?}", status.gpu.last_restart);
    limit(gpu, None);
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
}

#[test]
fn what_partitad_cannot_write_is_refused_or_counted() {
    let daemon = Daemon::start();
    let reserve = |id: &str| {
        let job = format!(r#""tenant": 0, "gpu": 0, "job": "{id}""#);
        let body = format!(r#"{{{job}, "sms": 1, "expires": 4000000000}}"#);
        daemon.ask(&format!("PUT /v1/reservations/{id}"), &body)
    };
    assert_eq!(reserve("kept").status, 201);
    limit(daemon.pid(), Some(0));
    let refused = reserve("refused");
    assert_eq!(refused.status, 500);
    let detail = refused.body["detail"].as_str().unwrap();
    for word in ["reservations-", "File too large", "no reservation can be kept", "LimitFSIZE="] {
        assert!(detail.contains(word), "`{word}` in {detail}");
    }
    assert_eq!(reserve("kept").status, 204, "what is there needs no write");
    assert_eq!(daemon.ask("GET /v1/reservations/refused", "").status, 404);

    // Each reading of the configuration is a line of the log, which is a file.
    for _ in 0..2 {
        kill_process(daemon.pid(), Signal::HUP).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    limit(daemon.pid(), None);
    kill_process(daemon.pid(), Signal::HUP).unwrap();
    let start = Instant::now();
    while !daemon.log().contains(" lines of this log were lost: File too large") {
        assert!(start.elapsed() < PATIENCE, "nothing tells of lost lines: {}", daemon.log());
    }
    assert_eq!(reserve("refused").status, 201);
}
