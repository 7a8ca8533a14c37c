//! A `partitad` that is killed or restarted loses nothing: `partita-gpu` goes on with its sessions,
//! and the next `partitad` finds them.

use super::{Client, DEVICE, Daemon, PATIENCE, wait_until_gone};
use partita_client::Session;
use partita_model::SmSet;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

/// A daemon whose `partita-gpu` outlives it.
struct Restartable {
    daemon: Daemon,
    device: &'static str,
}

impl Restartable {
    fn start() -> Restartable {
        let folder = tempfile::tempdir().unwrap();
        Restartable { daemon: started(DEVICE, folder).ready(), device: DEVICE }
    }

    /// Kills the daemon without its `partita-gpu`, and starts it again in the same folder. The time
    /// is that from the start to readiness.
    fn kill_and_restart(mut self) -> (Restartable, Duration) {
        self.daemon.end(Signal::KILL);
        self.restart()
    }

    fn restart(mut self) -> (Restartable, Duration) {
        // The folder must outlive the daemon that is gone.
        let folder = std::mem::replace(&mut self.daemon.folder, tempfile::tempdir().unwrap());
        std::fs::write(self.daemon.folder.path().join("log"), "").unwrap();
        let start = Instant::now();
        let daemon = started(self.device, folder).ready();
        (Restartable { daemon, device: self.device }, start.elapsed())
    }
}

fn started(device: &str, folder: tempfile::TempDir) -> Daemon {
    let log = folder.path().join("log");
    let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
    let mut command = Daemon::command(device, &folder.path().join("sockets"));
    command.args(["--policy", "even"]).stderr(log);
    Daemon { child: command.spawn().unwrap(), folder }
}

fn lives(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(pid.cast_signed()).unwrap()).is_ok()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

#[test]
fn a_killed_partitad_loses_nothing() {
    let first = Restartable::start();
    let (a, b) = (first.daemon.connect(), first.daemon.connect());
    let (id_a, id_b) = (a.application(&first.daemon), b.application(&first.daemon));
    let plan = json!({"partitions": [
        {"application": id_a, "sms": "0-11"}, {"application": id_b, "sms": "12-17"}]});
    assert_eq!(first.daemon.ask("PUT /v1/plan", &plan.to_string()).status, 204);
    let held = a.hold(100, 8000);
    let before = first.daemon.wait_for("the launch to run", |status| {
        status.applications.iter().any(|application| application.ctas_completed > 300)
    });

    let (second, took) = first.kill_and_restart();
    let daemon = &second.daemon;
    eprintln!("partitad was ready {} ms after its start", took.as_millis());
    assert!(took < Duration::from_secs(10), "{took:?}");
    let after = daemon.status();
    assert_eq!((after.gpu.pid, after.gpu.restarts), (before.gpu.pid, 0), "{}", daemon.log());
    for (id, sms) in [(id_a, SmSet::range(0, 12)), (id_b, SmSet::range(12, 6))] {
        let found = after.partitions.iter().find(|partition| partition.application == id).unwrap();
        assert!(found.sms == sms && found.pinned, "{found:?}");
    }
    assert_eq!(after.policy.partitioner, before.policy.partitioner);
    let newcomer = daemon.connect();
    assert!(newcomer.session.id() > b.session.id(), "ids are not given twice");
    newcomer.check(&newcomer.spin(10, 10));
    b.check(&b.spin(10, 10));
    assert!(daemon.status().applications.iter().all(|a| a.id != id_a || a.launches_completed == 0));
    a.release(held);

    let mut daemon = second.daemon;
    assert!(daemon.end(Signal::TERM).success());
    wait_until_gone(after.gpu.pid);
}

#[test]
fn a_data_plane_that_was_found_is_supervised() {
    let (second, _) = Restartable::start().kill_and_restart();
    let daemon = &second.daemon;
    let before = daemon.status().gpu;
    assert_eq!(before.restarts, 0);
    let client = daemon.connect();
    client.check(&client.spin(10, 10));
    signal(before.pid, Signal::KILL);
    let after = daemon.wait_for("a new data plane", |status| status.gpu.restarts == 1).gpu;
    assert_ne!(after.pid, before.pid);
    assert!(client.session.synchronize(None).is_err());
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
}

/// Without systemd nobody else would end it.
#[test]
fn a_hung_data_plane_of_an_earlier_partitad_is_killed() {
    let mut first = Restartable::start();
    let client = first.daemon.connect();
    let gpu = first.daemon.status().gpu.pid;
    first.daemon.end(Signal::KILL);
    signal(gpu, Signal::STOP);
    let (second, _) = first.restart();
    wait_until_gone(gpu);
    assert!(client.session.synchronize(None).is_err());
    let log = second.daemon.log();
    assert!(log.contains("answered no call for 60 s; killing it"), "{log}");
    let next = second.daemon.connect();
    next.check(&next.spin(10, 10));
}

/// A client whose handshake has begun when `partitad` is killed gets its session from the next one.
#[test]
fn clients_in_their_handshake_outlive_their_partitad() {
    // Stopped, it reads no hello. Running, it is somewhere between the first client and the last.
    for stopped in [true, false] {
        let mut first = Restartable::start();
        // Without a session partita-gpu would not wait for the next partitad.
        let held = first.daemon.connect();
        let gpu = first.daemon.status().gpu.pid;
        if stopped {
            kill_process(first.daemon.pid(), Signal::STOP).unwrap();
        }
        let connecting: Vec<_> = (0..8)
            .map(|_| {
                let sockets = first.daemon.sockets();
                std::thread::spawn(move || Session::connect(&sockets).map(Client::new))
            })
            .collect();
        // Long enough for a stopped one to get all hellos, as a rule.
        std::thread::sleep(Duration::from_millis(if stopped { 200 } else { 2 }));
        first.daemon.end(Signal::KILL);
        let (second, _) = first.restart();
        for client in connecting {
            let client = client.join().unwrap().unwrap();
            client.check(&client.spin(10, 10));
        }
        held.check(&held.spin(10, 10));
        assert_eq!(second.daemon.status().gpu.pid, gpu, "{}", second.daemon.log());
    }
}

#[test]
fn a_data_plane_without_sessions_ends_soon_after_its_partitad() {
    let mut first = Restartable::start();
    let gpu = first.daemon.status().gpu.pid;
    drop(first.daemon.connect());
    first.daemon.end(Signal::KILL);
    assert!(lives(gpu), "a restarted partitad would find it");
    wait_until_gone(gpu);
}

#[test]
fn sessions_on_another_device_go_on_until_they_end() {
    let mut first = Restartable::start();
    let (client, gpu) = (first.daemon.connect(), first.daemon.status().gpu.pid);
    first.daemon.end(Signal::KILL);
    let folder = std::mem::replace(&mut first.daemon.folder, tempfile::tempdir().unwrap());
    std::fs::write(first.daemon.folder.path().join("log"), "").unwrap();
    let second = started("emu:titan-xp", folder);
    let start = Instant::now();
    while !second.log().contains("waiting for partita-gpu: it serves `emu:cd-search-24`") {
        assert!(start.elapsed() < PATIENCE, "{}", second.log());
    }
    assert!(lives(gpu) && !api_answers(&second.sockets()));
    client.check(&client.spin(10, 10));
    drop(client);
    let second = second.ready();
    wait_until_gone(gpu);
    let next = Session::connect(&second.sockets()).map(Client::new).unwrap();
    next.check(&next.spin(10, 10));
}

fn api_answers(sockets: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(sockets.join("api.sock")).is_ok()
}
