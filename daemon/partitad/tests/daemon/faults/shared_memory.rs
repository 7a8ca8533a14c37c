//! Lies in a session's memory.

use super::raw::Raw;
use super::{survive, wait_for_applications, wait_for_the_end};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
fn tail_out_of_range() {
    for tail in [7, 1 << 40, u64::MAX] {
        survive(|daemon| {
            let guilty = Raw::connect(daemon);
            guilty.store(guilty.welcome.layout.command_ring().tail, tail);
            guilty.ring();
            wait_for_the_end(daemon);
        });
    }
}

#[test]
fn head_out_of_range() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        // The daemon believes this word only where its own ring seems full.
        guilty.store(guilty.welcome.layout.reply_ring().head, 1 << 40);
        guilty.push(24, 1, 1, &[1; 8]);
        drop(guilty);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn index_that_goes_back() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        let tail = guilty.welcome.layout.command_ring().tail;
        guilty.store(tail, 8);
        guilty.ring();
        std::thread::sleep(Duration::from_millis(20));
        guilty.store(tail, 0);
        guilty.ring();
        wait_for_the_end(daemon);
    });
}

#[test]
fn change_during_read() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        let ring = guilty.welcome.layout.command_ring();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let at = ring.data as u64 + (value >> 33) % 4096;
                    guilty.memory.write_at(&value.to_le_bytes(), at).unwrap();
                }
            });
            for kind in 0..500 {
                guilty.push(24, kind % 64, 0, &[1; 8]);
            }
            std::thread::sleep(Duration::from_millis(50));
            done.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn truncated_memory() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        let size = guilty.welcome.layout.total();
        for bytes in [0, 4096, size - 4096, size + 4096] {
            assert!(ftruncate(&guilty.memory, bytes).is_err(), "{bytes} bytes: it is sealed");
        }
    });
}

#[test]
fn punched_hole() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&guilty.memory, flags, 0, guilty.welcome.layout.total()).unwrap();
        guilty.ring();
        drop(guilty);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn garbage_on_the_bell() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        for round in 0..200_u8 {
            let _ = rustix::net::send(&guilty.bell, &[round; 4096], flags);
        }
        drop(guilty);
        wait_for_applications(daemon, 1);
    });
}

#[test]
fn many_turns_of_the_ring() {
    survive(|daemon| {
        let client = daemon.connect();
        // Each copy of 4 KiB takes a record; the ring has 64 KiB.
        for _ in 0..200 {
            client.check(&client.spin(4, 3));
        }
    });
}

#[test]
fn flipped_header() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        for at in (0..4096).step_by(8) {
            let word = guilty.load(at);
            guilty.store(at, !word);
        }
        guilty.ring();
        drop(guilty);
        wait_for_applications(daemon, 1);
    });
}
