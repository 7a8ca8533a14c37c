//! The rings and their doorbells under every interleaving, and under every stale value that the
//! memory model allows.
//!
//! The code that runs is the crate's own; only the memory is the model checker's. A lost wake-up
//! shows as a deadlock, a missing ordering as a record with other contents than were written.
#![expect(clippy::unwrap_used, reason = "helpers of tests may unwrap as tests do")]

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use partita_wire::ring::{Consumer, Memory, Producer, RingSpec, Sleeper, Waker};
use std::sync::atomic::Ordering;

/// Room for two records without a body.
const SPEC: RingSpec = RingSpec { tail: 0, head: 8, data: 32, capacity: 32 };
const READER_SLEEPS: usize = 16;
const ROOM_WANTED: usize = 24;
const WORDS: usize = 8;

/// Memory of the model checker. Bulk data are relaxed atomics: nothing but the indices orders them.
struct Model {
    words: [AtomicU64; WORDS],
    fences: bool,
}

#[derive(Clone)]
struct Shared(Arc<Model>);

impl Shared {
    fn new(fences: bool) -> Shared {
        Shared(Arc::new(Model { words: std::array::from_fn(|_| AtomicU64::new(0)), fences }))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8));
        &self.0.words[at / 8]
    }
}

impl Memory for Shared {
    fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    fn store(&self, at: usize, value: u64, order: Ordering) {
        self.word(at).store(value, order);
    }

    fn fence(&self) {
        if self.0.fences {
            fence(Ordering::SeqCst);
        }
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        for (i, chunk) in into.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&self.word(at + 8 * i).load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    fn write(&self, at: usize, from: &[u8]) {
        for (i, chunk) in from.chunks_exact(8).enumerate() {
            let value = u64::from_ne_bytes(chunk.try_into().unwrap());
            self.word(at + 8 * i).store(value, Ordering::Relaxed);
        }
    }
}

/// One direction of the socket pair.
#[derive(Clone)]
struct Bell(Arc<(Mutex<u32>, Condvar)>);

impl Bell {
    fn new() -> Bell {
        Bell(Arc::new((Mutex::new(0), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_one();
    }

    /// Waits for at least one ring and takes all; returns how many there were.
    fn sleep(&self) -> u32 {
        let mut rings = self.0.0.lock().unwrap();
        while *rings == 0 {
            rings = self.0.1.wait(rings).unwrap();
        }
        std::mem::take(&mut rings)
    }
}

/// A writer sends `count` records; the reader sleeps when there is none, the writer when there is
/// no room. Every schedule with at most so many preemptions is tried.
fn conversation(count: u16, preemptions: usize, fences: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Shared::new(fences);
        let (to_reader, to_writer) = (Bell::new(), Bell::new());
        let writer = loom::thread::spawn({
            let (memory, to_reader, to_writer) =
                (memory.clone(), to_reader.clone(), to_writer.clone());
            move || write(count, &memory, &to_reader, &to_writer)
        });
        read(count, &memory, &to_reader, &to_writer);
        writer.join().unwrap();
    });
}

fn write(count: u16, memory: &Shared, to_reader: &Bell, to_writer: &Bell) {
    let mut ring = Producer::new(memory.clone(), SPEC);
    let reader_sleeps = Waker::new(memory.clone(), READER_SLEEPS);
    let room_wanted = Sleeper::new(memory.clone(), ROOM_WANTED);
    for number in 1..=count {
        let mut push = || ring.push(number, !number, u64::from(number) << 32 | 7, &[]).unwrap();
        while !push() {
            room_wanted.raise();
            if push() {
                room_wanted.lower();
                break;
            }
            to_writer.sleep();
        }
        if reader_sleeps.take() {
            to_reader.ring();
        }
    }
}

fn read(count: u16, memory: &Shared, to_reader: &Bell, to_writer: &Bell) {
    let mut ring = Consumer::new(memory.clone(), SPEC, 16);
    let reader_sleeps = Sleeper::new(memory.clone(), READER_SLEEPS);
    let room_wanted = Waker::new(memory.clone(), ROOM_WANTED);
    let mut body = Vec::new();
    let mut next = 1;
    let (mut announced, mut rings) = (0, 0);
    while next <= count {
        while let Some(header) = ring.pop(&mut body).unwrap() {
            assert_eq!((header.length, header.kind, header.flags), (16, next, !next));
            assert_eq!(header.sequence, u64::from(next) << 32 | 7);
            next += 1;
        }
        if ring.publish() && room_wanted.take() {
            to_writer.ring();
        }
        if next > count {
            break;
        }
        reader_sleeps.raise();
        announced += 1;
        if ring.has_news().unwrap() {
            reader_sleeps.lower();
            continue;
        }
        rings += to_reader.sleep();
        assert!(rings <= announced, "{rings} rings for {announced} announced sleeps");
    }
}

#[test]
fn no_wake_up_is_lost_and_no_record_torn() {
    conversation(2, 3, true);
}

#[test]
fn a_full_ring_wakes_its_writer() {
    conversation(3, 2, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_wake_up_is_lost() {
    conversation(2, 3, false);
}
