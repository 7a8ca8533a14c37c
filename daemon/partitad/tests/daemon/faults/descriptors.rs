//! Descriptors that nobody asked for, and too many of them.

use super::raw::{self, Raw};
use super::{Daemon, survive};
use partita_wire::message;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::os::fd::AsFd;

/// Open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// The processes of a daemon.
fn processes(daemon: &Daemon) -> [u32; 2] {
    [daemon.pid().as_raw_nonzero().get().cast_unsigned(), daemon.status().gpu.pid]
}

/// Does something, and checks that neither process keeps a descriptor of it.
fn nothing_stays(daemon: &Daemon, act: impl FnOnce()) {
    let processes = processes(daemon);
    let before = processes.map(descriptors);
    act();
    let start = std::time::Instant::now();
    loop {
        let now = processes.map(descriptors);
        if now.iter().zip(&before).all(|(now, before)| now <= before) {
            return;
        }
        assert!(start.elapsed() < super::PATIENCE, "{before:?} before, {now:?} now");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn connect_flood() {
    survive(|daemon| {
        nothing_stays(daemon, || {
            let flood: Vec<_> = (0..100).map(|_| raw::call(daemon)).collect();
            drop(flood);
        });
    });
}

#[test]
fn descriptor_flood() {
    survive(|daemon| {
        let file = tempfile::tempfile().unwrap();
        nothing_stays(daemon, || {
            for _ in 0..50 {
                let socket = raw::call(daemon);
                message::send(&socket, &raw::hello().encode(), &[file.as_fd(); 8]).unwrap();
                // Whether it is served is the daemon's choice.
                drop(message::receive(&socket, partita_wire::MAX_MESSAGE));
            }
        });
    });
}

#[test]
fn descriptors_of_the_wrong_kind_on_the_bell() {
    survive(|daemon| {
        let file = tempfile::tempfile().unwrap();
        nothing_stays(daemon, || {
            let guilty = Raw::connect(daemon);
            for _ in 0..10 {
                // The bell is a stream: each of its bytes may carry descriptors.
                let _ = message::send(&guilty.bell, &[1], &[file.as_fd(); 3]);
            }
        });
    });
}

#[test]
fn no_descriptors_left_in_accept() {
    survive(|daemon| {
        let [partitad, _] = processes(daemon);
        let pid = Pid::from_raw(partitad.cast_signed());
        let few = Some(descriptors(partitad) as u64 + 4);
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let old = prlimit(pid, Resource::Nofile, Rlimit { current: few, maximum }).unwrap();
        let flood: Vec<_> = (0..60).map(|_| raw::call(daemon)).collect();
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(flood);
        // Who comes now waits in the queue of the socket; then there are descriptors again.
        prlimit(pid, Resource::Nofile, old).unwrap();
    });
}
