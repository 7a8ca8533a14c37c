//! Kernels that never end. They are reported, they hold no SM that another application was given,
//! and they end with their program or by an administrator's command. Each test runs on a device
//! that ends grids, and on one whose kernels must read a flag.

use partita_e2e::daemon::Daemon;
use partita_e2e::toolchain;
use partita_model::StatusReport;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const DEVICES: [&str; 2] = ["emu:cd-search-24", "emu:cd-search-24,cancel=off"];

fn daemon(device: &str) -> Daemon {
    Daemon::with_config(
        device,
        "[policy]\npartitioner = \"even\"\nno_progress_ms = 1\nalone_ms = 2\n",
    )
}

/// Starts the program that never ends, and waits until its kernel is launched.
fn start_endless(daemon: &Daemon) -> Child {
    let mut command: Command = daemon.run(&toolchain::gallery_program("endless"));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("partita can be started");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is piped");
    BufReader::new(stdout).read_line(&mut line).expect("it can be read");
    assert_eq!(line, "endless\n");
    child
}

fn expect_timeout(child: Child) {
    let output = child.wait_with_output().expect("its output can be read");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cudaErrorLaunchTimeout"), "{stderr}");
}

fn is_stuck(status: &StatusReport) -> bool {
    status.applications.iter().any(|application| application.stuck_ns.is_some())
}

#[test]
fn a_working_program_gets_its_sms_from_a_spinning_one() {
    for device in DEVICES {
        let daemon = daemon(device);
        let endless = start_endless(&daemon);
        daemon.wait_for("the report", is_stuck);
        let why = daemon.partita(&["why"]).output().expect("partita can be started");
        let why = String::from_utf8_lossy(&why.stdout).into_owned();
        assert!(why.contains("has completed no CTA for"), "{why}");

        let poly = daemon.run(&toolchain::program("poly")).args(["65536", "500"]).output();
        let poly = poly.expect("partita can be started");
        let stdout = String::from_utf8_lossy(&poly.stdout);
        assert!(stdout.ends_with("PASSED\n"), "{stdout}\n{}", daemon.log());
        expect_timeout(endless);
        let log = daemon.log();
        assert!(log.contains("others wait for its SMs: it is ended"), "{log}");
    }
}

#[test]
fn an_administrator_ends_it() {
    for device in DEVICES {
        let daemon = daemon(device);
        let endless = start_endless(&daemon);
        let status = daemon.wait_for("the session", |status| {
            status.applications.iter().any(|application| !application.kernels.is_empty())
        });
        let session = status.applications[0].sessions[0].0;
        let cancel = |session: u64| {
            let output = daemon.partita(&["cancel".to_owned(), session.to_string()]).output();
            output.expect("partita can be started")
        };
        let unknown = cancel(4711);
        let stderr = String::from_utf8_lossy(&unknown.stderr);
        assert_eq!(unknown.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains(&format!("session 4711 does not exist; those that do: {session}")),
            "{stderr}"
        );
        let done = cancel(session);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        expect_timeout(endless);
        daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    }
}

#[test]
fn its_client_dies_and_its_workers_are_gone() {
    for device in DEVICES {
        let daemon = daemon(device);
        let mut endless = start_endless(&daemon);
        kill_process(Pid::from_child(&endless), Signal::KILL).expect("it runs");
        endless.wait().expect("it has ended");
        let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
        assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
        let next = daemon.run(&toolchain::program("vecAdd")).arg("1000").output();
        assert!(next.expect("partita can be started").status.success(), "{}", daemon.log());
    }
}
