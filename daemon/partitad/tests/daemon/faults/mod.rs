//! Faults that a running daemon survives, one test each, named by the fault.
//!
//! Each test does one wrong thing beside a program that computes. Then the computing program has
//! its results, the next program is served, the guilty session is gone, and `partita-gpu` is the
//! one of the beginning. The guide has the list (`docs/guide/faults.md`).

mod client_death;
mod daemon;
mod descriptors;
mod program_input;
mod raw;
mod shared_memory;
mod users;
mod wire;

use super::{Client, DEVICE, Daemon, HELD_CTAS, PATIENCE, THREADS};

/// Does one wrong thing beside a program that computes, and checks that only the guilty notices.
fn survive(fault: impl FnOnce(&Daemon)) {
    let daemon = Daemon::start();
    survive_on(&daemon, fault);
}

fn survive_on(daemon: &Daemon, fault: impl FnOnce(&Daemon)) {
    let healthy = daemon.connect();
    let gpu = daemon.status().gpu.pid;
    let spinning = healthy.spin(100, 50);
    fault(daemon);
    healthy.check(&spinning);
    let next = daemon.connect();
    next.check(&next.spin(10, 10));
    drop((healthy, next));
    let status = daemon.wait_for("everybody to leave", |status| {
        status.applications.is_empty() && status.gpu.memory_used_bytes == 0
    });
    assert_eq!((status.gpu.restarts, status.gpu.pid), (0, gpu));
    assert!(status.partitions.is_empty(), "{status:?}");
}

/// Waits until so many applications are there.
fn wait_for_applications(daemon: &Daemon, count: usize) {
    daemon.wait_for("applications", |status| status.applications.len() == count);
}

/// Waits until a session was ended for what its client did. The healthy program's stays.
fn wait_for_the_end(daemon: &Daemon) {
    wait_for_applications(daemon, 1);
    let log = daemon.log();
    assert!(log.contains("it broke the protocol"), "{log}");
}
