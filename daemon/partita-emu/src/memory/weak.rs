//! Global memory as the weaker of two worlds: what PTX allows and a GPU may do, chosen by a seed.
//!
//! PTX ISA, "Memory Consistency Model". Two things stand between a thread and the coherent memory,
//! both kept per CTA:
//!
//! - **Stores wait.** The thread itself sees them; its CTA does once a barrier or a fence has
//!   published them; everybody does once they drain, in any order between different places. A fence
//!   of `.gpu` or `.sys`, or a release, *orders* what the thread has stored and what has been
//!   published in its CTA (causality is transitive): it drains before anything that the CTA writes
//!   from then on. `fence.sc` and `membar` drain it at once, the end of the grid drains all, and
//!   none waits longer than [`MOST_TURNS`].
//! - **Loads look through a view**, which holds each byte as it was at some time since the CTA last
//!   acquired, or since its grid began. The past is known from a log of coherent writes, so a stale
//!   value needs no earlier load. A view never goes back in time, and what the CTA itself has
//!   written is in it. A strong load (volatile, relaxed, acquire, past L1) looks back no further
//!   than [`MOST_TURNS`] and finds the present after a few tries; a weak one looks back without
//!   bound and may never find the present, which is up to the seed.
//!
//! Atomics that give a value work on the coherent memory. Reductions and strong stores wait like
//! others, or are done at once.
//!
//! Coherent memory has one order of all writes, ordered stores drain before what follows them, and
//! an acquire forgets all that is older than itself. Hence nothing shows that PTX forbids.
//!
//! # What it leaves alone
//!
//! Shared and local memory, textures and surfaces, and what the device itself does (copies,
//! `malloc`). No load happens later than its place in the program (load buffering is never seen),
//! bulk copies are done at once, and an order that one thread makes holds for its CTA: all of these
//! show less than PTX allows, never more.

use super::Memory;
use crate::exec::access::combine;
use crate::exec::inst::AtomicOp;
use partita_model::DeviceAddress;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Bytes of a word, the unit of a view. An aligned access of this size is not torn.
const WORD: u64 = 8;
/// The most stores of one CTA that wait.
const MOST_WAITING: usize = 96;
/// The most turns of the device that a store waits and a strong load looks back.
const MOST_TURNS: u64 = 24;
/// The most words in one view.
const MOST_WORDS: usize = 1 << 14;
/// The most bytes of one host write for which old values can still be seen.
const MOST_POKED: usize = 64;
/// Coherent writes that the log remembers.
const REMEMBERED: usize = 1 << 16;

/// A thread, as far as memory is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its grid.
    pub grid: u64,
    /// Linear index of its CTA.
    pub cta: u64,
    /// Its index in the CTA.
    pub index: u32,
}

/// A grid, and the linear index of a CTA in it.
type Cta = (u64, u64);

impl Thread {
    fn of(self) -> Cta {
        (self.grid, self.cta)
    }
}

/// How far an order reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The CTA.
    Cta,
    /// The whole device, or the system.
    Device,
}

/// The kind of a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// `fence.acq_rel`: a later load may still overtake an earlier store.
    AcquireRelease,
    /// `fence.sc`, `membar`.
    Sequential,
}

/// The effect of a store on a place of at most 8 bytes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Set([u8; WORD as usize]),
    /// A reduction by this operand.
    Reduce(AtomicOp, u64),
}

/// A waiting store.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The index of the storing thread in its CTA.
    by: u32,
    published: bool,
    /// The turn of the store.
    turn: u64,
    /// The number of orders in the CTA before the store.
    made: u64,
    /// The order that applies to the store: it drains before stores made after that order.
    ordered: Option<u64>,
    address: u64,
    length: usize,
    change: Change,
}

impl Waiting {
    fn overlaps(&self, address: u64, length: usize) -> bool {
        self.address < address + length as u64 && address < self.address + self.length as u64
    }

    /// Whether this store must drain before `later`.
    fn is_before(&self, later: &Waiting) -> bool {
        self.overlaps(later.address, later.length)
            || self.ordered.is_some_and(|order| order <= later.made)
    }

    /// Whether a thread of the CTA must see this store.
    fn is_for(&self, thread: u32) -> bool {
        self.published || self.by == thread
    }
}

/// A word as a CTA sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: [u8; WORD as usize],
    /// Bytes that the CTA has seen, one bit each.
    known: u8,
}

#[derive(Clone, Debug, Default)]
struct View {
    /// The CTA sees no value that is older than this time.
    since: u64,
    words: BTreeMap<u64, Seen>,
    waiting: Vec<Waiting>,
    /// Number of orders so far.
    orders: u64,
    /// The CTA has left; stores may still wait.
    left: bool,
}

/// The contents of a place before a write.
#[derive(Clone, Copy, Debug)]
struct Past {
    time: u64,
    address: u64,
    length: usize,
    old: [u8; 8],
}

/// The state of the weak memory.
#[derive(Clone, Debug)]
pub struct Weak {
    random: u64,
    views: BTreeMap<Cta, View>,
    /// Start times of the grids in flight.
    starts: BTreeMap<u64, u64>,
    /// The earlier contents of each word, one entry a remembered write, the oldest first.
    log: BTreeMap<u64, VecDeque<Past>>,
    /// The words of the remembered writes, the oldest first.
    written: VecDeque<u64>,
    /// Coherent writes so far.
    time: u64,
    /// Turns of the device so far.
    turn: u64,
    /// The value of `time` at the last turns, the oldest first.
    times: VecDeque<u64>,
    /// The log holds all writes after this time.
    known_since: u64,
    /// Whether a weak load of a word in the view sometimes looks at the present value.
    curious: bool,
}

/// How a load looks at memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// May return any value that the view allows.
    Weak,
    /// Eventually returns the present value.
    Strong,
}

/// The bits of these bytes of one word.
fn bits(bytes: &Range<u64>) -> u8 {
    bytes.clone().fold(0, |bits, at| bits | 1 << (at % WORD))
}

/// Copies to `into`, at `into_address`, the overlapping part of `from`, at `from_address`.
fn overlay(into: &mut [u8], into_address: u64, from: &[u8], from_address: u64) {
    for (offset, &byte) in from.iter().enumerate() {
        let at = (from_address + offset as u64).wrapping_sub(into_address);
        if let Some(place) = usize::try_from(at).ok().and_then(|at| into.get_mut(at)) {
            *place = byte;
        }
    }
}

impl Weak {
    /// The seed decides what the model leaves open.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Weak {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d,
            views: BTreeMap::new(),
            starts: BTreeMap::new(),
            log: BTreeMap::new(),
            written: VecDeque::new(),
            time: 0,
            turn: 0,
            times: VecDeque::new(),
            known_since: 0,
            curious: seed.is_multiple_of(2),
        }
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    /// One of two.
    pub fn chance(&mut self) -> bool {
        self.one_in(2)
    }

    fn view(&mut self, cta: Cta) -> &mut View {
        let since = self.starts.get(&cta.0).copied().unwrap_or(self.time);
        self.views.entry(cta).or_insert_with(|| View { since, ..View::default() })
    }

    /// A CTA of a grid begins; the first one begins the grid.
    pub fn begin_grid(&mut self, grid: u64) {
        self.starts.entry(grid).or_insert(self.time);
    }

    /// A CTA has left. What it has stored may still wait.
    pub fn end_cta(&mut self, grid: u64, cta: u64) {
        let view = self.view((grid, cta));
        view.words.clear();
        view.left = true;
    }

    /// A load, of bytes that may be read.
    pub fn load(
        &mut self,
        memory: &mut Memory,
        who: Thread,
        how: Load,
        address: u64,
        into: &mut [u8],
    ) {
        let end = address + into.len() as u64;
        let (cta, length) = (who.of(), into.len());
        self.drain(memory, cta, |waiting| {
            matches!(waiting.change, Change::Reduce(..))
                && waiting.is_for(who.index)
                && waiting.overlaps(address, length)
        });
        for word in address / WORD..end.div_ceil(WORD) {
            let (low, high) = (address.max(word * WORD), end.min((word + 1) * WORD));
            let seen = self.see(memory, cta, how, low..high);
            overlay(into, address, &seen, word * WORD);
        }
        for waiting in &self.view(cta).waiting {
            if let Change::Set(data) = &waiting.change
                && waiting.is_for(who.index)
            {
                overlay(into, address, &data[..waiting.length], waiting.address);
            }
        }
    }

    /// Lets a CTA read some bytes of one word.
    fn see(
        &mut self,
        memory: &Memory,
        cta: Cta,
        how: Load,
        bytes: Range<u64>,
    ) -> [u8; WORD as usize] {
        let (renew, bound) = match how {
            Load::Weak => (self.curious && self.one_in(16), 0),
            Load::Strong => (self.chance(), self.times.front().copied().unwrap_or(0)),
        };
        let word = bytes.start / WORD;
        let wanted = bits(&bytes);
        let known = self.view(cta).words.get(&word).map_or(0, |seen| seen.known);
        if known & wanted != wanted || renew {
            let since = self.view(cta).since.max(self.known_since).max(bound);
            let time = match self.next() % 4 {
                0 if known & wanted == 0 => since,
                1 if known & wanted == 0 => since + self.next() % (self.time - since + 1),
                _ => self.time,
            };
            let then = self.at_time(memory, word, time);
            let (at, length) = ((bytes.start % WORD) as usize, (bytes.end - bytes.start) as usize);
            self.note(cta, bytes.start, &then[at..at + length]);
        }
        self.view(cta).words.get(&word).map_or([0; WORD as usize], |seen| seen.bytes)
    }

    /// Records bytes of one word that a CTA has seen.
    fn note(&mut self, cta: Cta, address: u64, bytes: &[u8]) {
        if self.view(cta).words.len() >= MOST_WORDS {
            self.acquire(cta);
        }
        let word = address / WORD;
        let seen = self.view(cta).words.entry(word).or_default();
        overlay(&mut seen.bytes, word * WORD, bytes, address);
        seen.known |= bits(&(address..address + bytes.len() as u64));
    }

    fn at_time(&self, memory: &Memory, word: u64, time: u64) -> [u8; WORD as usize] {
        let start = word * WORD;
        let mut bytes = [0; WORD as usize];
        memory.read_live(start, &mut bytes);
        let log = self.log.get(&word).into_iter().flatten();
        for past in log.rev().take_while(|past| past.time > time) {
            overlay(&mut bytes, start, &past.old[..past.length], past.address);
        }
        bytes
    }

    /// A thread acquires: its CTA sees nothing older than now.
    pub fn forget(&mut self, who: Thread) {
        self.acquire(who.of());
    }

    fn acquire(&mut self, cta: Cta) {
        let time = self.time;
        let view = self.view(cta);
        view.since = time;
        view.words.clear();
    }

    /// A store, of bytes that may be written.
    pub fn store(&mut self, memory: &mut Memory, who: Thread, address: u64, from: &[u8]) {
        for (index, chunk) in from.chunks(8).enumerate() {
            let mut data = [0; 8];
            data[..chunk.len()].copy_from_slice(chunk);
            self.queue(memory, who, (address + 8 * index as u64, chunk.len()), Change::Set(data));
        }
    }

    /// A reduction of integers by an operand.
    pub fn reduce(
        &mut self,
        memory: &mut Memory,
        who: Thread,
        address: u64,
        (op, by): (AtomicOp, u64),
    ) {
        self.queue(memory, who, (address, op.ty.bytes() as usize), Change::Reduce(op, by));
    }

    fn queue(
        &mut self,
        memory: &mut Memory,
        who: Thread,
        (address, length): (u64, usize),
        change: Change,
    ) {
        let (turn, cta) = (self.turn, who.of());
        let view = self.view(cta);
        let (by, made, published, ordered) = (who.index, view.orders, false, None);
        view.waiting.push(Waiting { by, published, turn, made, ordered, address, length, change });
        while self.view(cta).waiting.len() > MOST_WAITING {
            self.drain_any(memory, cta);
        }
        if self.one_in(8) {
            self.drain_any(memory, cta);
        }
    }

    /// A strong store.
    pub fn store_strong(&mut self, memory: &mut Memory, who: Thread, address: u64, from: &[u8]) {
        if self.chance() {
            return self.store(memory, who, address, from);
        }
        self.settle(memory, who, address, from.len());
        self.write(memory, who, address, from);
    }

    /// Drains what must be in the coherent memory before a thread changes a place there.
    pub fn settle(&mut self, memory: &mut Memory, who: Thread, address: u64, length: usize) {
        self.drain(memory, who.of(), |waiting| {
            waiting.is_for(who.index) && waiting.overlaps(address, length)
                || waiting.ordered.is_some()
        });
    }

    /// A fence by the threads of one CTA for which `takes_part` holds; `who` is one of them.
    pub fn fence(
        &mut self,
        memory: &mut Memory,
        who: Thread,
        takes_part: impl Fn(u32) -> bool,
        (order, scope): (Order, Scope),
    ) {
        self.release(who, takes_part, scope);
        if scope == Scope::Device {
            if order == Order::Sequential {
                self.drain(memory, who.of(), |waiting| waiting.ordered.is_some());
            }
            self.forget(who);
        }
    }

    /// The releasing half of a fence.
    pub fn release(&mut self, who: Thread, takes_part: impl Fn(u32) -> bool, scope: Scope) {
        let view = self.view(who.of());
        view.orders += u64::from(scope == Scope::Device);
        for waiting in &mut view.waiting {
            waiting.published |= takes_part(waiting.by);
            if scope == Scope::Device && waiting.published {
                waiting.ordered.get_or_insert(view.orders);
            }
        }
    }

    /// The grid has ended.
    pub fn end_grid(&mut self, memory: &mut Memory, grid: u64) {
        let ctas: Vec<Cta> =
            self.views.range((grid, 0)..=(grid, u64::MAX)).map(|(&cta, _)| cta).collect();
        for cta in ctas {
            self.drain(memory, cta, |_| true);
            self.views.remove(&cta);
        }
        self.starts.remove(&grid);
    }

    /// A turn of the device begins: some stores drain.
    pub fn tick(&mut self, memory: &mut Memory) {
        self.turn += 1;
        self.times.push_back(self.time);
        if self.times.len() as u64 > MOST_TURNS {
            self.times.pop_front();
        }
        let oldest = self.turn.saturating_sub(MOST_TURNS);
        let waits = |view: &View| !view.waiting.is_empty();
        let ctas: Vec<Cta> =
            self.views.iter().filter(|(_, view)| waits(view)).map(|(&cta, _)| cta).collect();
        for cta in ctas {
            if self.one_in(4) {
                self.drain_any(memory, cta);
            }
            self.drain(memory, cta, |waiting| waiting.turn < oldest);
        }
        self.views.retain(|_, view| !view.left || waits(view));
    }

    /// The host writes, all at once.
    pub fn poked(&mut self, memory: &Memory, address: u64, bytes: usize) {
        if bytes > MOST_POKED {
            return;
        }
        let end = address + bytes as u64;
        for word in address / WORD..end.div_ceil(WORD) {
            let (low, high) = (address.max(word * WORD), end.min((word + 1) * WORD));
            let (mut old, length) = ([0; WORD as usize], (high - low) as usize);
            if memory.read(DeviceAddress(low), &mut old[..length]).is_ok() {
                self.remember(low, old, length);
            }
        }
    }

    fn drain_any(&mut self, memory: &mut Memory, cta: Cta) {
        let count = self.view(cta).waiting.len() as u64;
        if count > 0 {
            let index = (self.next() % count) as usize;
            self.drain_one(memory, cta, index);
        }
    }

    fn drain(&mut self, memory: &mut Memory, cta: Cta, which: impl Fn(&Waiting) -> bool) {
        while let Some(index) = self.view(cta).waiting.iter().position(&which) {
            self.drain_one(memory, cta, index);
        }
    }

    /// Drains a store, after all stores that must precede it.
    fn drain_one(&mut self, memory: &mut Memory, cta: Cta, mut index: usize) {
        let last = self.view(cta).waiting[index];
        while let Some(first) =
            self.view(cta).waiting[..index].iter().position(|one| one.is_before(&last))
        {
            let count = self.view(cta).waiting.len();
            self.drain_one(memory, cta, first);
            index -= count - self.view(cta).waiting.len();
        }
        let waiting = self.view(cta).waiting.remove(index);
        let bytes = match waiting.change {
            Change::Set(data) => data,
            Change::Reduce(op, by) => {
                let mut old = [0; WORD as usize];
                memory.read_live(waiting.address, &mut old[..waiting.length]);
                combine(&op, u64::from_le_bytes(old), by, 0).to_le_bytes()
            }
        };
        self.put(memory, cta, waiting.address, &bytes[..waiting.length]);
    }

    /// A thread writes to the coherent memory.
    pub fn write(&mut self, memory: &mut Memory, who: Thread, address: u64, from: &[u8]) {
        self.put(memory, who.of(), address, from);
    }

    /// Writes coherent memory, except memory that was freed in the meantime.
    fn put(&mut self, memory: &mut Memory, cta: Cta, address: u64, from: &[u8]) {
        let end = address + from.len() as u64;
        for word in address / WORD..end.div_ceil(WORD) {
            let (low, high) = (address.max(word * WORD), end.min((word + 1) * WORD));
            let new = &from[(low - address) as usize..(high - address) as usize];
            let mut old = [0; WORD as usize];
            if memory.read(DeviceAddress(low), &mut old[..new.len()]).is_ok()
                && memory.write(DeviceAddress(low), new).is_ok()
            {
                self.remember(low, old, new.len());
                if !self.view(cta).left {
                    // The writing CTA sees its own value.
                    self.note(cta, low, new);
                }
            }
        }
    }

    /// Logs the old contents of a change of coherent memory.
    fn remember(&mut self, address: u64, old: [u8; WORD as usize], length: usize) {
        self.time += 1;
        let word = address / WORD;
        self.log.entry(word).or_default().push_back(Past { time: self.time, address, length, old });
        self.written.push_back(word);
        if self.written.len() > REMEMBERED
            && let Some(word) = self.written.pop_front()
            && let Some(log) = self.log.get_mut(&word)
            && let Some(forgotten) = log.pop_front()
        {
            self.known_since = forgotten.time;
            if log.is_empty() {
                self.log.remove(&word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_device::AddressRange;
    use partita_model::WindowId;

    const SC: (Order, Scope) = (Order::Sequential, Scope::Device);

    fn world(seed: u64) -> (Memory, Weak, u64) {
        let mut memory = Memory::new(1 << 20);
        let base = memory.reserve(WindowId(1), 1 << 20).unwrap().0;
        memory
            .allocate(WindowId(1), AddressRange { start: DeviceAddress(base), bytes: 200 })
            .unwrap();
        (memory, Weak::new(seed), base)
    }

    fn thread(cta: u64, index: u32) -> Thread {
        Thread { grid: 1, cta, index }
    }

    fn load(weak: &mut Weak, memory: &mut Memory, who: Thread, address: u64) -> u8 {
        let mut byte = [0];
        weak.load(memory, who, Load::Weak, address, &mut byte);
        byte[0]
    }

    #[test]
    fn a_thread_sees_its_own_stores_and_no_older_ones() {
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            let who = thread(0, 3);
            for value in 1..100 {
                weak.store(&mut memory, who, base + 7, &[value]);
                assert_eq!(load(&mut weak, &mut memory, who, base + 7), value, "seed {seed}");
                if value % 7 == 0 {
                    weak.tick(&mut memory);
                }
            }
            weak.end_grid(&mut memory, 1);
            let mut byte = [0];
            memory.read(DeviceAddress(base + 7), &mut byte).unwrap();
            assert_eq!(byte, [99], "seed {seed}");
        }
    }

    #[test]
    fn views_go_forward_in_time() {
        let mut stale = 0;
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            let (writer, reader) = (thread(0, 0), thread(1, 0));
            weak.begin_grid(1);
            let mut last = 0;
            for value in 1..50 {
                weak.store(&mut memory, writer, base, &[value]);
                weak.fence(&mut memory, writer, |_| true, SC);
                let seen = load(&mut weak, &mut memory, reader, base);
                assert!(
                    last <= seen && seen <= value,
                    "seed {seed}: {seen} after {last}, newest {value}"
                );
                stale += u32::from(seen < value);
                last = seen;
            }
            weak.forget(thread(1, 0));
            assert_eq!(
                load(&mut weak, &mut memory, reader, base),
                49,
                "seed {seed}: after an acquire"
            );
        }
        assert!(stale > 1000, "{stale}");
    }

    #[test]
    fn a_barrier_publishes_to_the_cta_and_a_fence_of_one_thread_to_all() {
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            weak.store(&mut memory, thread(0, 1), base + 40, &[5, 6]);
            weak.release(thread(0, 0), |_| true, Scope::Cta);
            assert_eq!(load(&mut weak, &mut memory, thread(0, 9), base + 41), 6);
            weak.fence(&mut memory, thread(0, 9), |thread| thread == 9, SC);
            weak.forget(thread(1, 0));
            assert_eq!(load(&mut weak, &mut memory, thread(1, 0), base + 40), 5);
        }
    }

    #[test]
    fn a_release_orders_and_does_not_wait() {
        let (mut early, mut late) = (0, 0);
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            let who = thread(0, 1);
            weak.store(&mut memory, who, base, &[1]);
            weak.release(who, |thread| thread == 1, Scope::Device);
            weak.store(&mut memory, who, base + 64, &[2]);
            let mut bytes = [0; 2];
            for (byte, at) in bytes.iter_mut().zip([base, base + 64]) {
                memory.read(DeviceAddress(at), std::slice::from_mut(byte)).unwrap();
            }
            assert!(bytes != [0, 2], "seed {seed}");
            early += u32::from(bytes == [1, 0]);
            late += u32::from(bytes == [0, 0]);
            weak.settle(&mut memory, who, base + 128, 4);
            memory.read(DeviceAddress(base), &mut bytes[..1]).unwrap();
            assert_eq!(bytes[0], 1, "seed {seed}: an atomic comes behind the release");
        }
        assert!(early > 0 && late > 0, "{early} {late}");
    }
}
