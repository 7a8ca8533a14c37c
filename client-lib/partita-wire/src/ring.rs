//! A ring of records for one writer and one reader who do not trust each other, and the flags of
//! two sleepers.
//!
//! A record is a [`Header`] and a body, at a multiple of 8 bytes; it may wrap around the ring's
//! end. Indices count bytes since the beginning and never wrap (2⁶⁴ bytes at 10 GB/s last 58
//! years). Each side keeps its own index privately and publishes it; of the peer's index it
//! believes only what leaves the distance between 0 and the capacity.
//!
//! The code is generic over [`Memory`] so that the model checker can run it on memory of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Memory that a peer shares. Accesses outside it panic: offsets are checked before they get here.
pub trait Memory {
    /// An atomic load of the word at a multiple of 8.
    fn load(&self, at: usize, order: Ordering) -> u64;
    /// An atomic store.
    fn store(&self, at: usize, value: u64, order: Ordering);
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Copies out.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Copies in.
    fn write(&self, at: usize, from: &[u8]);
}

/// Where a ring lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSpec {
    /// The writer's word.
    pub tail: usize,
    /// The reader's word.
    pub head: usize,
    /// The first byte of the data.
    pub data: usize,
    /// Size of the data, a power of two.
    pub capacity: u64,
}

/// What goes before a record's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Bytes of header and body, without the padding to the next multiple of 8.
    pub length: u32,
    /// What it is.
    pub kind: u16,
    /// More about it.
    pub flags: u16,
    /// Its number.
    pub sequence: u64,
}

/// Size of a [`Header`].
pub const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 16);

/// What the *peer* did wrong; the side that finds it is never at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingFault {
    /// The peer's index is impossible: it is ahead by more than the ring's size, or moved
    /// backwards.
    #[error("ring index {theirs} is not within {capacity} bytes of {ours}")]
    Distance {
        /// The peer's index.
        theirs: u64,
        /// Our own.
        ours: u64,
        /// Bytes in the ring.
        capacity: u64,
    },
    /// The peer's index is not at a record's border.
    #[error("ring index {theirs} is not a multiple of 8")]
    Unaligned {
        /// The peer's index.
        theirs: u64,
    },
    /// A record says that it is shorter than its header, longer than a record may be, or longer
    /// than what is there.
    #[error("a record of {length} bytes at {at}, where at most {limit} are possible")]
    Length {
        /// The record's length in its header.
        length: u32,
        /// The place, in bytes.
        at: u64,
        /// The largest possible length.
        limit: u64,
    },
}

fn stride(length: usize) -> u64 {
    length.next_multiple_of(8) as u64
}

/// The offset of `index` in the data, and the bytes from there to the ring's end.
fn place(spec: &RingSpec, index: u64) -> (usize, usize) {
    let offset = index & (spec.capacity - 1);
    let narrow =
        |value: u64| usize::try_from(value).expect("a ring is smaller than the address space");
    (spec.data + narrow(offset), narrow(spec.capacity - offset))
}

/// The writing side.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    spec: RingSpec,
    tail: u64,
    /// The reader's index when last looked at.
    head: u64,
}

impl<M: Memory> Producer<M> {
    /// The writer of a ring that is still empty.
    pub fn new(memory: M, spec: RingSpec) -> Self {
        Producer { memory, spec, tail: 0, head: 0 }
    }

    /// Writes a record and publishes it; false where there is no room for it now.
    ///
    /// # Errors
    /// Where the reader's index is impossible.
    ///
    /// # Panics
    /// Where the record is longer than half the ring, which no caller may ask for.
    pub fn push(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u64,
        body: &[u8],
    ) -> Result<bool, RingFault> {
        let length = HEADER_BYTES + body.len();
        let wanted = stride(length);
        assert!(
            wanted <= self.spec.capacity / 2,
            "a record of {length} bytes is too long for its ring"
        );
        if self.room() < wanted {
            self.look()?;
            if self.room() < wanted {
                return Ok(false);
            }
        }
        let length = u32::try_from(length).expect("rings are smaller than 4 GiB");
        let header = Header { length, kind, flags, sequence };
        self.put(self.tail, header.as_bytes());
        self.put(self.tail + HEADER_BYTES as u64, body);
        self.tail += wanted;
        self.memory.store(self.spec.tail, self.tail, Ordering::Release);
        Ok(true)
    }

    /// Whether everything written has been read.
    ///
    /// # Errors
    /// Where the reader's index is impossible.
    pub fn is_empty(&mut self) -> Result<bool, RingFault> {
        self.look()?;
        Ok(self.head == self.tail)
    }

    fn room(&self) -> u64 {
        self.spec.capacity - (self.tail - self.head)
    }

    fn look(&mut self) -> Result<(), RingFault> {
        let theirs = self.memory.load(self.spec.head, Ordering::Acquire);
        if theirs < self.head || theirs > self.tail {
            return Err(RingFault::Distance {
                theirs,
                ours: self.tail,
                capacity: self.spec.capacity,
            });
        }
        if !theirs.is_multiple_of(8) {
            return Err(RingFault::Unaligned { theirs });
        }
        self.head = theirs;
        Ok(())
    }

    fn put(&self, index: u64, bytes: &[u8]) {
        let (at, until_end) = place(&self.spec, index);
        let (first, second) = bytes.split_at(until_end.min(bytes.len()));
        self.memory.write(at, first);
        if !second.is_empty() {
            self.memory.write(self.spec.data, second);
        }
    }
}

/// The reading side.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    spec: RingSpec,
    head: u64,
    /// The writer's index when last looked at.
    tail: u64,
    /// What the writer was last told.
    published: u64,
    /// No longer record is accepted.
    limit: usize,
}

impl<M: Memory> Consumer<M> {
    /// The reader of a ring that is still empty, for records of at most `limit` bytes.
    pub fn new(memory: M, spec: RingSpec, limit: usize) -> Self {
        Consumer { memory, spec, head: 0, tail: 0, published: 0, limit }
    }

    /// Copies the next record into `body` and returns its header, or `None` where there is none.
    ///
    /// # Errors
    /// Where the writer's index is impossible or the record's length is.
    pub fn pop(&mut self, body: &mut Vec<u8>) -> Result<Option<Header>, RingFault> {
        if self.head == self.tail {
            self.look()?;
            if self.head == self.tail {
                return Ok(None);
            }
        }
        let present = self.tail - self.head;
        let mut raw = [0; HEADER_BYTES];
        if present < HEADER_BYTES as u64 {
            return Err(RingFault::Length { length: 0, at: self.head, limit: present });
        }
        self.get(self.head, &mut raw);
        let header = Header::read_from_bytes(&raw).expect("the array has a header's size");
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        if length < HEADER_BYTES || length > self.limit || stride(length) > present {
            let limit = present.min(self.limit as u64);
            return Err(RingFault::Length { length: header.length, at: self.head, limit });
        }
        body.clear();
        body.resize(length - HEADER_BYTES, 0);
        self.get(self.head + HEADER_BYTES as u64, body);
        self.head += stride(length);
        Ok(Some(header))
    }

    /// Whether the writer has published something that was not popped yet.
    ///
    /// # Errors
    /// Where its index is impossible.
    pub fn has_news(&mut self) -> Result<bool, RingFault> {
        self.look()?;
        Ok(self.head != self.tail)
    }

    /// Tells the writer how far the ring is free again; true where that is news. To be called now
    /// and then rather than for each record, because the word moves between processors.
    pub fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        self.memory.store(self.spec.head, self.head, Ordering::Release);
        true
    }

    /// Bytes that were read and that the writer does not know to be free yet.
    #[must_use]
    pub fn unpublished(&self) -> u64 {
        self.head - self.published
    }

    fn look(&mut self) -> Result<(), RingFault> {
        let theirs = self.memory.load(self.spec.tail, Ordering::Acquire);
        let capacity = self.spec.capacity;
        if theirs < self.tail || theirs - self.published > capacity {
            return Err(RingFault::Distance { theirs, ours: self.head, capacity });
        }
        if !theirs.is_multiple_of(8) {
            return Err(RingFault::Unaligned { theirs });
        }
        self.tail = theirs;
        Ok(())
    }

    fn get(&self, index: u64, into: &mut [u8]) {
        let (at, until_end) = place(&self.spec, index);
        let split = until_end.min(into.len());
        let (first, second) = into.split_at_mut(split);
        self.memory.read(at, first);
        if !second.is_empty() {
            self.memory.read(self.spec.data, second);
        }
    }
}

/// A sleeper's side of a word that says whether it sleeps: 0, or the number of this sleep. Nobody
/// else writes the word, so that nothing but the two fences is needed to reason about it.
#[derive(Debug)]
pub struct Sleeper<M> {
    memory: M,
    at: usize,
    sleeps: AtomicU64,
}

impl<M: Memory> Sleeper<M> {
    /// The sleeper whose word is at `at`.
    pub fn new(memory: M, at: usize) -> Self {
        Sleeper { memory, at, sleeps: AtomicU64::new(0) }
    }

    /// Before sleeping. The caller must look for news once more *afterwards*; news that it does not
    /// see then will ring the bell. Threads of one sleeper must not call this at the same time.
    pub fn raise(&self) {
        let sleep = self.sleeps.fetch_add(1, Ordering::Relaxed) + 1;
        self.memory.store(self.at, sleep, Ordering::Relaxed);
        self.memory.fence();
    }

    /// Instead of sleeping, or after it.
    pub fn lower(&self) {
        self.memory.store(self.at, 0, Ordering::Relaxed);
    }
}

/// The other side of a [`Sleeper`]'s word.
#[derive(Debug)]
pub struct Waker<M> {
    memory: M,
    at: usize,
    /// The last sleep that was rung for.
    rung: AtomicU64,
}

impl<M: Memory> Waker<M> {
    /// Who wakes the sleeper whose word is at `at`.
    pub fn new(memory: M, at: usize) -> Self {
        Waker { memory, at, rung: AtomicU64::new(0) }
    }

    /// Whether the sleeper sleeps and has not been rung for.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.memory.load(self.at, Ordering::Relaxed) > self.rung.load(Ordering::Relaxed)
    }

    /// After publishing news: whether the bell must be rung. True once for each sleep.
    #[must_use]
    pub fn take(&self) -> bool {
        self.memory.fence();
        let sleep = self.memory.load(self.at, Ordering::Relaxed);
        // A sleep that was rung for will look for news again before it sleeps anew, and counts up
        // then.
        sleep > self.rung.load(Ordering::Relaxed)
            && self.rung.fetch_max(sleep, Ordering::Relaxed) < sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const TAIL: usize = 0;
    const HEAD: usize = 8;
    const SLEEPS: usize = 16;
    const DATA: usize = 24;
    const CAPACITY: u64 = 128;
    const SPEC: RingSpec = RingSpec { tail: TAIL, head: HEAD, data: DATA, capacity: CAPACITY };

    /// Memory of one thread.
    struct Plain(RefCell<Vec<u8>>);

    impl Plain {
        fn new() -> Plain {
            // Nothing is read or written past the ring.
            Plain(RefCell::new(vec![0; DATA + 128]))
        }

        /// Sets a word as a peer does that keeps no rules.
        fn set(&self, at: usize, value: u64) {
            Memory::store(&self, at, value, Ordering::Relaxed);
        }

        fn word(&self, at: usize) -> u64 {
            Memory::load(&self, at, Ordering::Relaxed)
        }
    }

    impl Memory for &Plain {
        fn load(&self, at: usize, _: Ordering) -> u64 {
            let mut word = [0; 8];
            self.read(at, &mut word);
            u64::from_le_bytes(word)
        }
        fn store(&self, at: usize, value: u64, _: Ordering) {
            self.write(at, &value.to_le_bytes());
        }
        fn fence(&self) {}
        fn read(&self, at: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0.borrow()[at..at + into.len()]);
        }
        fn write(&self, at: usize, from: &[u8]) {
            self.0.borrow_mut()[at..at + from.len()].copy_from_slice(from);
        }
    }

    fn ends(memory: &Plain, limit: usize) -> (Producer<&Plain>, Consumer<&Plain>) {
        (Producer::new(memory, SPEC), Consumer::new(memory, SPEC, limit))
    }

    #[test]
    fn a_ring_is_filled_to_the_last_byte_and_read_around_its_end() {
        let memory = Plain::new();
        let (mut producer, mut consumer) = ends(&memory, 64);
        let (mut body, mut written, mut read) = (Vec::new(), 0_u64, 0_u64);
        // 27 bytes take 32 of the ring: four records fill it.
        for fits in [4, 1, 3, 2, 4] {
            for _ in 0..fits {
                let byte = written.to_le_bytes()[0];
                assert_eq!(producer.push(7, 1, written, &[byte; 11]), Ok(true));
                written += 1;
            }
            if written - read == 4 {
                assert_eq!(producer.push(7, 1, written, &[0; 11]), Ok(false), "it is full");
            }
            assert_eq!(producer.is_empty(), Ok(false));
            assert_eq!(consumer.has_news(), Ok(true));
            while let Some(header) = consumer.pop(&mut body).unwrap() {
                assert_eq!(header, Header { length: 27, kind: 7, flags: 1, sequence: read });
                assert_eq!(body, [read.to_le_bytes()[0]; 11]);
                read += 1;
            }
            assert_eq!((read, consumer.has_news()), (written, Ok(false)));
            assert_eq!(consumer.unpublished(), fits * 32);
            assert_eq!((consumer.publish(), consumer.publish()), (true, false));
            assert_eq!((consumer.unpublished(), memory.word(HEAD)), (0, read * 32));
            assert_eq!(producer.is_empty(), Ok(true));
        }
    }

    #[test]
    fn room_for_one_record_is_room_for_it() {
        let memory = Plain::new();
        let (mut producer, mut consumer) = ends(&memory, 64);
        for sequence in 0..4 {
            assert_eq!(producer.push(7, 1, sequence, &[0; 16]), Ok(true));
        }
        assert_eq!(producer.push(7, 1, 4, &[0; 16]), Ok(false));
        assert!(consumer.pop(&mut Vec::new()).unwrap().is_some());
        assert!(consumer.publish());
        assert_eq!(producer.push(7, 1, 4, &[0; 16]), Ok(true));
        assert_eq!(producer.push(7, 1, 5, &[]), Ok(false));
    }

    #[test]
    fn a_record_across_the_end_goes_on_at_the_beginning() {
        // The memory ends with the ring: a write behind it would fail.
        let memory = Plain::new();
        let (mut producer, mut consumer) = ends(&memory, 64);
        let mut body = Vec::new();
        for sequence in 0..32 {
            let sent: Vec<u8> = (sequence..sequence + 24).collect();
            assert_eq!(producer.push(1, 0, sequence.into(), &sent), Ok(true));
            assert!(consumer.pop(&mut body).unwrap().is_some());
            assert_eq!(body, sent);
            assert!(consumer.publish());
        }
    }

    #[test]
    fn a_writer_believes_no_impossible_index() {
        let distance = |theirs| Err(RingFault::Distance { theirs, ours: 64, capacity: CAPACITY });
        for (theirs, expected) in [
            (0, Ok(false)),
            (64, Ok(true)),
            (32, Ok(false)),
            (72, distance(72)),
            (u64::MAX, distance(u64::MAX)),
            (33, Err(RingFault::Unaligned { theirs: 33 })),
        ] {
            let memory = Plain::new();
            let (mut producer, _) = ends(&memory, 64);
            assert_eq!(producer.push(1, 0, 1, &[0; 48]), Ok(true));
            memory.set(HEAD, theirs);
            assert_eq!(producer.is_empty(), expected, "{theirs}");
        }
        // Backwards.
        let memory = Plain::new();
        let (mut producer, _) = ends(&memory, 64);
        assert_eq!(producer.push(1, 0, 1, &[0; 48]), Ok(true));
        memory.set(HEAD, 32);
        assert_eq!(producer.is_empty(), Ok(false));
        memory.set(HEAD, 24);
        assert_eq!(producer.is_empty(), distance(24));
    }

    #[test]
    #[should_panic = "too long for its ring"]
    fn a_record_longer_than_half_the_ring_is_our_fault() {
        let memory = Plain::new();
        let _ = ends(&memory, 128).0.push(1, 0, 1, &[0; 49]);
    }

    #[test]
    fn a_reader_believes_no_impossible_index() {
        let distance = |theirs, ours| Err(RingFault::Distance { theirs, ours, capacity: CAPACITY });
        let memory = Plain::new();
        let (_, mut consumer) = ends(&memory, 64);
        for (theirs, expected) in [
            (136, distance(136, 0)),
            (u64::MAX, distance(u64::MAX, 0)),
            (4, Err(RingFault::Unaligned { theirs: 4 })),
            (0, Ok(false)),
            (32, Ok(true)),
            // Backwards.
            (24, distance(24, 0)),
            (128, Ok(true)),
        ] {
            memory.set(TAIL, theirs);
            assert_eq!(consumer.has_news(), expected, "{theirs}");
        }
        // What was read and not published still takes room.
        let memory = Plain::new();
        let (mut producer, mut consumer) = ends(&memory, 64);
        assert_eq!(producer.push(1, 0, 1, &[0; 16]), Ok(true));
        assert!(consumer.pop(&mut Vec::new()).unwrap().is_some());
        memory.set(TAIL, 136);
        assert_eq!(consumer.has_news(), distance(136, 32));
        assert!(consumer.publish());
        assert_eq!(consumer.has_news(), Ok(true));
    }

    #[test]
    fn a_record_has_a_header_and_no_more_than_there_is() {
        // At the ring's beginning, and behind two records of a header each.
        for before in [0, 2] {
            let at = before * HEADER_BYTES as u64;
            let read = |length: u32, present: u64, limit: usize| {
                let memory = Plain::new();
                let mut consumer = Consumer::new(&memory, SPEC, limit);
                for (place, length) in [(0, 16), (16, 16), (at, length)] {
                    let header = Header { length, kind: 0, flags: 0, sequence: 0 };
                    let (place, _) = super::place(&SPEC, place);
                    Memory::write(&&memory, place, header.as_bytes());
                }
                memory.set(TAIL, at + present);
                let mut body = Vec::new();
                for _ in 0..before {
                    assert!(consumer.pop(&mut body).unwrap().is_some());
                }
                consumer.pop(&mut body).map(|header| header.map(|_| body.len()))
            };
            let fault = |length, limit| Err(RingFault::Length { length, at, limit });
            assert_eq!(read(16, 16, 64), Ok(Some(0)));
            assert_eq!(read(17, 24, 64), Ok(Some(1)));
            assert_eq!(read(64, 96, 64), Ok(Some(48)));
            assert_eq!(read(16, 0, 64), Ok(None));
            assert_eq!(read(15, 16, 64), fault(15, 16));
            assert_eq!(read(17, 16, 64), fault(17, 16));
            assert_eq!(read(65, 96, 64), fault(65, 64));
            assert_eq!(read(u32::MAX, 96, 64), fault(u32::MAX, 64));
            assert_eq!(read(16, 8, 64), fault(0, 8));
        }
    }

    #[test]
    fn each_sleep_is_rung_for_once() {
        let memory = Plain::new();
        let (sleeper, waker) = (Sleeper::new(&memory, SLEEPS), Waker::new(&memory, SLEEPS));
        assert!(!waker.is_due() && !waker.take());
        for sleep in 1..4 {
            sleeper.raise();
            assert_eq!(memory.word(SLEEPS), sleep);
            assert!(waker.is_due());
            assert!(waker.take(), "sleep {sleep}");
            assert!(!waker.is_due() && !waker.take(), "it was rung for");
            sleeper.lower();
            assert_eq!(memory.word(SLEEPS), 0);
            assert!(!waker.is_due() && !waker.take(), "nobody sleeps");
        }
    }
}
