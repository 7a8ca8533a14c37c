//! What becomes of a session's memory in forked children and after its end, and how threads use it
//! at once.
#![expect(unsafe_code, reason = "fork has no safe form, and neither has mapping memory")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

#[path = "session/welcome.rs"]
mod welcome;

use partita_wire::mapping::{Mapping, sealed_memory};
use partita_wire::ring::{Memory, Sleeper, Waker};
use partita_wire::{ClientEnd, ServerSession, Sizes};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use welcome::welcome;

// SAFETY: both are the C library's.
unsafe extern "C" {
    fn fork() -> i32;
    safe fn _exit(code: i32) -> !;
}

const SIZES: Sizes = Sizes {
    command_bytes: 1 << 17,
    reply_bytes: 1 << 16,
    event_slots: 16,
    staging_bytes: 1 << 16,
    host_bytes: 1 << 20,
};

fn attach(server: &ServerSession) -> ClientEnd {
    let [memfd, bell] = server.client_fds().unwrap().map(|fd| fd.try_clone_to_owned().unwrap());
    ClientEnd::attach(&welcome(server), &memfd, bell).unwrap()
}

/// What a forked child says.
fn in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child uses nothing but memory, which the C library keeps usable, and ends.
    let child = unsafe { fork() };
    if child == 0 {
        let good = catch_unwind(AssertUnwindSafe(check)).unwrap_or(false);
        _exit(if good { 42 } else { 1 });
    }
    let child = Pid::from_raw(child).unwrap();
    let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
    status.exit_status() == Some(42)
}

/// Maps the page of an address if nothing is there; whether it did.
fn take(address: *mut u8) -> bool {
    let page = address.map_addr(|at| at / 4096 * 4096).cast();
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: no memory of anybody is replaced.
    unsafe { mmap_anonymous(page, 4096, ProtFlags::READ, flags) }.is_ok()
}

#[test]
fn a_forked_child_has_no_session_and_its_own_memory_stays() {
    let server = ServerSession::create(SIZES).unwrap();
    let client = attach(&server);
    let places = [server.arena().address(0), client.shared.arena().address(0)];
    assert!(client.shared.is_owner() && !places.map(take).contains(&true));
    let good = in_child(|| {
        let owns = client.shared.is_owner();
        let absent = places.map(take) == [true; 2];
        drop((server, client));
        !owns && absent && places.map(take) == [false; 2]
    });
    assert!(good);
}

#[test]
fn children_inherit_all_host_memory_and_nothing_before_it() {
    let server = ServerSession::create(SIZES).unwrap();
    let client = attach(&server);
    let arena = client.shared.arena();
    let (first, last) = (SIZES.staging_bytes, arena.size() - 1);
    arena.write(last, &[42]);
    let [before, first, last] = [first - 1, first, last].map(|at| arena.address(at));
    let good = in_child(|| {
        let inherited = !take(first) && !take(last);
        // SAFETY: something is mapped there, and nobody writes it now.
        take(before) && inherited && unsafe { last.read_volatile() } == 42
    });
    assert!(good);
}

#[test]
fn a_session_that_ends_leaves_nothing_mapped() {
    let server = ServerSession::create(SIZES).unwrap();
    let file = server.memory_file();
    let inode = rustix::fs::fstat(&file).unwrap().st_ino.to_string();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.split_ascii_whitespace().nth(4) == Some(&inode))
    };
    let client = attach(&server);
    drop(server);
    assert!(mapped());
    drop(client);
    assert!(!mapped());
}

/// KiB of pages that the kernel wipes in children: each mapping has one.
fn wiped_kib() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut kib, mut wiped) = (0, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Size:") => kib = words.next().unwrap().parse().unwrap(),
            Some("VmFlags:") if words.any(|flag| flag == "wf") => wiped += kib,
            _ => {}
        }
    }
    wiped
}

#[test]
fn a_thousand_mappings_one_after_another_leave_no_page_behind() {
    let file = sealed_memory(4096).unwrap();
    let mapping = Mapping::new(file.as_fd(), 4096).unwrap();
    assert!(wiped_kib() >= 4);
    drop(mapping);
    for _ in 0..1000 {
        drop(Mapping::new(file.as_fd(), 4096).unwrap());
    }
    // Other tests have some.
    assert!(wiped_kib() < 400, "{} KiB", wiped_kib());
}

fn words() -> Arc<Mapping> {
    let file = sealed_memory(4096).unwrap();
    Arc::new(Mapping::new(file.as_fd(), 4096).unwrap())
}

/// The two sides of a doorbell, without the bell.
#[test]
fn of_two_sides_that_write_and_then_look_one_sees_the_other() {
    const ROUNDS: u64 = 100_000;
    let (memory, start) = (words(), Barrier::new(2));
    let side = |own: usize, other: usize| -> Vec<u64> {
        start.wait();
        let round = |round| {
            memory.store(own, round, Ordering::Relaxed);
            memory.fence();
            memory.load(other, Ordering::Relaxed)
        };
        (1..=ROUNDS).map(round).collect()
    };
    let (one, two) = std::thread::scope(|scope| {
        let one = scope.spawn(|| side(0, 128));
        let two = side(128, 0);
        (one.join().unwrap(), two)
    });
    for (round, saw) in (1..).zip(one) {
        // The first round of the other side that this one did not see.
        if let Some(seen) = two.get(usize::try_from(saw).unwrap()) {
            assert!(*seen >= round, "{round} saw {saw} and was not seen: {seen}");
        }
    }
}

#[test]
fn threads_that_find_the_same_sleep_ring_once_for_it() {
    const SLEEPS: u64 = 200_000;
    let memory = words();
    let (sleeper, waker) = (Sleeper::new(memory.clone(), 0), Waker::new(memory, 0));
    let over = AtomicBool::new(false);
    let rung = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut rung = 0;
            while !over.load(Ordering::Relaxed) {
                rung += u64::from(waker.take());
            }
            rung
        });
        let mut rung = 0;
        for _ in 0..SLEEPS {
            sleeper.raise();
            rung += u64::from(waker.take());
        }
        over.store(true, Ordering::Relaxed);
        rung + other.join().unwrap()
    });
    assert_eq!(rung, SLEEPS);
}
