//! What a start leaves that is refused after `partita-gpu` was started: nothing.

use super::{DEVICE, Daemon};
use rustix::process::{Pid, test_kill_process};
use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Half of the time after which a `partita-gpu` that nobody calls ends by itself.
const SOON: Duration = Duration::from_secs(5);

/// The start with these options is refused with these words, and GPU 0's process ends with it.
#[track_caller]
fn check(more: &[&str], words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let (sockets, log) = (folder.path().join("sockets"), folder.path().join("log"));
    // A pipe would stay open for as long as `partita-gpu` lives.
    let status = Daemon::command(DEVICE, &sockets)
        .args(more)
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .status()
        .unwrap();
    let ended = Instant::now();
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(!status.success() && log.contains(words), "{status}: {log}");
    let note = std::fs::read_to_string(sockets.join("gpu/0.process")).unwrap();
    let pid: i32 = note.split_once(' ').unwrap().0.parse().unwrap();
    let gpu = Pid::from_raw(pid).unwrap();
    while test_kill_process(gpu).is_ok() {
        assert!(ended.elapsed() < SOON, "partita-gpu {pid} is still there: {log}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_configuration_that_cannot_hold_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("partitad.toml");
    let text = "[policy]\npartitioner = \"static\"\n[[policy.share]]\ntag = \"a\"\nsms = 25\n";
    std::fs::write(&config, text).unwrap();
    check(&["--config", config.to_str().unwrap()], "a share of 25 SMs");
}

#[test]
fn an_address_that_is_taken_leaves_no_process() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    check(&["--metrics-listen", &address], "--metrics-listen");
}

#[test]
fn a_gpu_that_cannot_be_served_leaves_no_process_of_another() {
    check(&["--device", "emu:nothing"], "nothing");
}
