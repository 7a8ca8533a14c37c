//! A `partita-gpu` that is stopped, and one whose `partitad` is gone.

use super::{Daemon, wait_until_gone};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::{Duration, Instant};

/// A daemon that takes its `partita-gpu` for hung after 2 s.
fn impatient() -> (Daemon, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    std::fs::write(&config, "[policy]\npartitioner = \"even\"\nhung_after_ms = 2000\n").unwrap();
    let daemon = Daemon::with(&["--config", config.to_str().unwrap()]);
    (daemon, folder)
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// The state letter of a process (`/proc/PID/stat`).
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
}

#[test]
fn a_stopped_data_plane_is_killed_and_started_again() {
    let (daemon, _folder) = impatient();
    let before = daemon.status().gpu;
    assert_eq!(before.last_restart, None);
    let client = daemon.connect();
    client.check(&client.spin(10, 10));
    signal(before.pid, Signal::STOP);
    // The call comes back when the process is killed.
    let error = client.session.synchronize(None).unwrap_err();
    assert_eq!(error.code, partita_client::code::PEER_GONE);
    wait_until_gone(before.pid);
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
    let after = daemon.status().gpu;
    assert_eq!(after.restarts, 1);
    assert_ne!(after.pid, before.pid);
    let reason = after.last_restart.unwrap();
    assert!(reason.contains("stopped or hung: it answered no heartbeat for "), "{reason}");
    let log = daemon.log();
    assert!(log.contains("killing it") && log.contains("serves again"), "{log}");
}

#[test]
fn a_daemon_that_was_stopped_kills_no_healthy_data_plane() {
    let (daemon, _folder) = impatient();
    let before = daemon.status().gpu;
    let client = daemon.connect();
    for _ in 0..2 {
        // Both, as when the machine is suspended, with a heartbeat under way; the daemon goes on
        // first. The last answer is then older than the limit.
        signal(before.pid, Signal::STOP);
        while !is_stopped(before.pid) {}
        std::thread::sleep(Duration::from_millis(500));
        kill_process(daemon.pid(), Signal::STOP).unwrap();
        std::thread::sleep(Duration::from_secs(3));
        kill_process(daemon.pid(), Signal::CONT).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        signal(before.pid, Signal::CONT);
        client.check(&client.spin(10, 10));
    }
    let after = daemon.status().gpu;
    assert_eq!((after.pid, after.restarts), (before.pid, 0), "{}", daemon.log());
}

#[test]
fn a_busy_data_plane_is_not_taken_for_hung() {
    let (daemon, _folder) = impatient();
    let client = daemon.connect();
    let held = client.hold(100, 8000);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        daemon.status();
    }
    client.release(held);
    assert_eq!(daemon.status().gpu.restarts, 0, "{}", daemon.log());
}

#[test]
fn a_stopped_data_plane_ends_with_its_daemon() {
    let mut daemon = Daemon::start();
    let gpu = daemon.status().gpu.pid;
    signal(gpu, Signal::STOP);
    daemon.end(Signal::KILL);
    wait_until_gone(gpu);
}

#[test]
fn the_reason_of_a_death_is_reported() {
    let daemon = Daemon::start();
    signal(daemon.status().gpu.pid, Signal::KILL);
    let after = daemon.wait_for("a new data plane", |status| status.gpu.restarts == 1);
    let reason = after.gpu.last_restart.unwrap();
    assert!(reason.contains("partita-gpu ended (signal: 9"), "{reason}");
}
