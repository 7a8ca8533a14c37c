//! Clients that die at each point of their lives, or stop.

use super::raw::{self, Raw};
use super::{Client, Daemon, survive, wait_for_applications};
use partita_client::{Session, StreamHandle};
use partita_wire::message;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Names the point at which the child waits for its end, and the folder of the daemon's sockets.
const POINT: &str = "PARTITAD_TEST_DEATH";
const SOCKETS: &str = "PARTITAD_TEST_SOCKETS";

/// The client that the other tests kill; by itself it tests nothing.
#[test]
fn child() {
    let Some(point) = std::env::var_os(POINT) else { return };
    let sockets = std::env::var_os(SOCKETS).unwrap();
    let sockets = Path::new(&sockets);
    let wait = || {
        println!("\nTHERE");
        std::thread::sleep(Duration::from_secs(600));
    };
    match point.to_str().unwrap() {
        "before hello" => {
            let _socket = raw::call_in(sockets);
            wait();
        }
        "mid hello" => {
            let socket = raw::call_in(sockets);
            message::send(&socket, &raw::hello().encode(), &[]).unwrap();
            // The answer and its descriptors wait in the socket.
            wait();
        }
        "mid launch" => {
            let client = Client::new(Session::connect(sockets).unwrap());
            let held = client.hold(100, 8000);
            for _ in 0..10 {
                // Behind the launch.
                let to = held.spinning.data;
                client.session.fill(StreamHandle::LEGACY, to, 0, 4, 1).unwrap();
            }
            println!("\nTHERE");
            let _ = client.session.synchronize(None);
        }
        "holding a slot" => {
            let client = Client::new(Session::connect(sockets).unwrap());
            let _held = client.hold(100, 8000);
            let event = client.session.create_event().unwrap();
            client.session.record_event(event, StreamHandle::LEGACY).unwrap();
            wait();
        }
        "exec" => {
            let client = Client::new(Session::connect(sockets).unwrap());
            let _held = client.hold(100, 8000);
            println!("\nTHERE");
            panic!("{}", Command::new("sleep").arg("600").exec());
        }
        other => panic!("{other}"),
    }
}

/// A child at this point of its life.
fn child_at(daemon: &Daemon, point: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::client_death::child", "--nocapture"])
        .env(POINT, point)
        .env(SOCKETS, daemon.sockets())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "THERE"), "no child {point}");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn killed_before_its_hello() {
    survive(|daemon| kill(child_at(daemon, "before hello")));
}

#[test]
fn killed_in_its_hello() {
    survive(|daemon| kill(child_at(daemon, "mid hello")));
}

#[test]
fn killed_in_a_launch() {
    survive(|daemon| {
        let child = child_at(daemon, "mid launch");
        wait_for_applications(daemon, 2);
        kill(child);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn killed_while_a_border_moves() {
    survive(|daemon| {
        let child = child_at(daemon, "mid launch");
        let status = daemon.wait_for("it to run", |status| {
            status.applications.iter().any(|a| a.pids.contains(&child.id()) && a.ctas_completed > 0)
        });
        let guilty = status.applications.iter().find(|a| a.pids.contains(&child.id())).unwrap();
        let other = status.applications.iter().find(|a| a.id != guilty.id).unwrap();
        let plan = json!({"partitions": [
            {"application": guilty.id, "sms": "0-3"}, {"application": other.id, "sms": "4-23"}]});
        assert_eq!(daemon.ask("PUT /v1/plan", &plan.to_string()).status, 204);
        kill(child);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn killed_with_an_event_slot() {
    survive(|daemon| {
        let child = child_at(daemon, "holding a slot");
        kill(child);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn stopped_and_later_killed() {
    survive(|daemon| {
        let child = child_at(daemon, "mid launch");
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        let beside = daemon.connect();
        beside.check(&beside.spin(10, 10));
        drop(beside);
        kill(child);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn exec_over_itself() {
    survive(|daemon| {
        let child = child_at(daemon, "exec");
        // The process goes on as another program, without its session.
        wait_for_applications(daemon, 1);
        kill(child);
    });
}

#[test]
fn killed_with_a_session_that_it_never_used() {
    survive(|daemon| {
        for _ in 0..20 {
            drop(Raw::connect(daemon));
        }
        wait_for_applications(daemon, 1);
    });
}
