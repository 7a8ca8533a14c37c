//! Wrong first messages and wrong records.

use super::raw::{self, Raw};
use super::{survive, wait_for_the_end};
use partita_wire::{Hello, Protocol, message};
use rustix::net::{Shutdown, shutdown};
use std::time::Duration;

#[test]
fn truncated_hello() {
    survive(|daemon| {
        let whole = raw::hello().encode();
        for bytes in 1..whole.len() {
            let refusal = raw::refusal(daemon, &whole[..bytes]);
            assert!(!refusal.text.is_empty(), "{refusal:?}");
        }
    });
}

#[test]
fn oversized_hello() {
    survive(|daemon| {
        let mut long = raw::hello().encode();
        long.resize(100_000, 0);
        assert!(!raw::refusal(daemon, &long).text.is_empty());
    });
}

#[test]
fn wrong_version() {
    survive(|daemon| {
        let protocol = Protocol { major: 1, minor: 0 };
        let refusal = raw::refusal(daemon, &Hello { protocol, ..raw::hello() }.encode());
        assert!(refusal.text.contains("protocol 1.0"), "{refusal:?}");
    });
}

#[test]
fn unknown_type() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        guilty.push(24, 0xfff0, 0, &[0; 8]);
        wait_for_the_end(daemon);
    });
}

#[test]
fn bad_length() {
    for length in [0, 15, 1 << 20, u32::MAX] {
        survive(|daemon| {
            let guilty = Raw::connect(daemon);
            guilty.push(length, 1, 0, &[0; 8]);
            wait_for_the_end(daemon);
        });
    }
}

#[test]
fn one_byte_and_then_nothing() {
    survive(|daemon| {
        // The rest of the hello never comes; the daemon gives such a client up by itself.
        let silent: Vec<_> = (0..20).map(|_| raw::call(daemon)).collect();
        message::send(&silent[0], &raw::hello().encode()[..1], &[]).unwrap();
        drop(silent);
    });
}

#[test]
fn never_reads() {
    survive(|daemon| {
        let guilty = Raw::connect(daemon);
        // Whatever these records are, nobody reads an answer.
        for kind in 0..2000_u16 {
            guilty.push(24, kind % 64, 1, &[0; 8]);
            if kind % 100 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

#[test]
fn half_close() {
    survive(|daemon| {
        for side in [Shutdown::Write, Shutdown::Read, Shutdown::Both] {
            let guilty = Raw::connect(daemon);
            shutdown(&guilty.bell, side).unwrap();
            guilty.ring();
        }
    });
}
