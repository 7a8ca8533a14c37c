//! Global memory as the weaker of two worlds: what PTX allows and a GPU may do, chosen by a seed.
//!
//! PTX ISA, "Memory Consistency Model". Two things stand between a thread and the coherent memory, both kept per SM:
//!
//! - **Stores wait.** The thread itself sees them; its CTA does once a barrier or a fence has published them; everybody
//!   does once they drain, in any order between different places. A fence of `.gpu` or `.sys`, or a release, *orders*
//!   what the thread has stored and what has been published in its CTA (causality is transitive): it drains before
//!   anything that the CTA writes from then on. `fence.sc` and `membar` drain it at once; the end of the grid drains all;
//!   otherwise stores drain one by one as time goes on.
//! - **Loads look through a view**, which holds each byte as it was at some time since the SM last acquired. The past is
//!   known from a log of coherent writes, so a stale value needs no earlier load. A view never goes back in time, and what
//!   the SM itself has written is in it. A strong load (volatile, relaxed, acquire, past L1) finds the present at the
//!   latest after a few tries; a weak one perhaps never, which is up to the seed.
//!
//! Atomics work on the coherent memory. Strong stores wait like others, or are done at once.
//!
//! Coherent memory has one order of all writes, ordered stores drain before what follows them, and an acquire forgets all
//! that is older than itself. Hence nothing shows that PTX forbids.
//!
//! # What it leaves alone
//!
//! Shared and local memory, textures and surfaces, and what the device itself does (copies, `malloc`). No load happens
//! later than its place in the program (load buffering is never seen), atomics never wait, bulk copies are done at
//! once, and an order that reaches the device holds for a whole CTA or SM: all of these show less than PTX allows, never
//! more.

use super::Memory;
use partita_model::DeviceAddress;
use std::collections::{BTreeMap, VecDeque};

/// Bytes that a view keeps together; accesses of that size are not torn.
const WORD: u64 = 8;
/// Stores that wait in one SM at most.
const MOST_WAITING: usize = 96;
/// Words in one view at most.
const MOST_WORDS: usize = 1 << 14;
/// Coherent writes that the log remembers.
const REMEMBERED: usize = 2048;

/// A thread, as far as memory is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its SM.
    pub sm: u32,
    /// Its grid.
    pub grid: u64,
    /// Linear index of its CTA.
    pub cta: u64,
    /// Its index in the CTA.
    pub index: u32,
}

/// How far an order reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The CTA.
    Cta,
    /// All of the device, or more.
    Device,
}

/// What a fence does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// `fence.acq_rel`: a later load may still overtake an earlier store.
    AcquireRelease,
    /// `fence.sc`, `membar`.
    Sequential,
}

/// A store that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    by: Thread,
    published: bool,
    /// How often its SM had ordered stores when it was made.
    made: u64,
    /// The number of the order that holds for it: it drains before stores that are made later.
    ordered: Option<u64>,
    address: u64,
    length: usize,
    data: [u8; 8],
}

impl Waiting {
    fn bytes(&self) -> &[u8] {
        &self.data[..self.length]
    }

    fn overlaps(&self, address: u64, length: usize) -> bool {
        self.address < address + length as u64 && address < self.address + self.length as u64
    }

    fn is_of_cta(&self, who: Thread) -> bool {
        (self.by.grid, self.by.cta) == (who.grid, who.cta)
    }

    /// Whether it must drain before another that comes behind it.
    fn is_before(&self, later: &Waiting) -> bool {
        self.overlaps(later.address, later.length)
            || self.is_of_cta(later.by) && self.ordered.is_some_and(|order| order <= later.made)
    }

    /// Whether a thread must see it.
    fn is_for(&self, who: Thread) -> bool {
        self.is_of_cta(who) && (self.published || self.by.index == who.index)
    }
}

/// A word as an SM sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    bytes: [u8; WORD as usize],
    /// Which of them it has seen, a bit each.
    known: u8,
}

#[derive(Clone, Debug, Default)]
struct View {
    /// Nothing older than this is seen.
    since: u64,
    words: BTreeMap<u64, Seen>,
    waiting: Vec<Waiting>,
    /// How often stores were ordered.
    orders: u64,
}

/// What a place held before a write.
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
    views: Vec<View>,
    log: VecDeque<Past>,
    /// Coherent writes so far.
    time: u64,
    /// The log knows all that happened after this.
    known_since: u64,
    /// Whether weak loads of what a view has look for the present now and then.
    curious: bool,
}

/// How a load looks at memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Without promise.
    Weak,
    /// Finds the present in the end.
    Strong,
}

/// The bits of bytes of one word.
fn bits(bytes: &std::ops::Range<u64>) -> u8 {
    bytes.clone().fold(0, |bits, at| bits | 1 << (at % WORD))
}

/// Copies the part of `from` at `from_address` that lies in `into` at `into_address`.
fn overlay(into: &mut [u8], into_address: u64, from: &[u8], from_address: u64) {
    for (offset, &byte) in from.iter().enumerate() {
        let at = (from_address + offset as u64).wrapping_sub(into_address);
        if let Some(place) = usize::try_from(at).ok().and_then(|at| into.get_mut(at)) {
            *place = byte;
        }
    }
}

impl Weak {
    /// For so many SMs; the seed decides what the model leaves open.
    #[must_use]
    pub fn new(seed: u64, sms: usize) -> Self {
        Weak {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d,
            views: vec![View::default(); sms],
            log: VecDeque::new(),
            time: 0,
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

    fn view(&mut self, sm: u32) -> &mut View {
        &mut self.views[sm as usize]
    }

    /// A load, of bytes that may be read.
    pub fn load(&mut self, memory: &Memory, who: Thread, how: Load, address: u64, into: &mut [u8]) {
        let end = address + into.len() as u64;
        for word in address / WORD..end.div_ceil(WORD) {
            let (low, high) = (address.max(word * WORD), end.min((word + 1) * WORD));
            let renew = match how {
                Load::Weak => self.curious && self.one_in(16),
                Load::Strong => self.one_in(2),
            };
            let seen = self.see(memory, who.sm, low..high, renew);
            overlay(into, address, &seen, word * WORD);
        }
        for waiting in &self.views[who.sm as usize].waiting {
            if waiting.is_for(who) {
                overlay(into, address, waiting.bytes(), waiting.address);
            }
        }
    }

    /// A word of which an SM looks at some bytes; at their present, where they are to be renewed.
    fn see(
        &mut self,
        memory: &Memory,
        sm: u32,
        bytes: std::ops::Range<u64>,
        renew: bool,
    ) -> [u8; WORD as usize] {
        let word = bytes.start / WORD;
        let wanted = bits(&bytes);
        let known = self.view(sm).words.get(&word).map_or(0, |seen| seen.known);
        if known & wanted != wanted || renew {
            let since = self.view(sm).since.max(self.known_since);
            let time = match self.next() % 4 {
                0 if known & wanted == 0 => since,
                1 if known & wanted == 0 => since + self.next() % (self.time - since + 1),
                _ => self.time,
            };
            let then = self.at_time(memory, word, time);
            let (at, length) = ((bytes.start % WORD) as usize, (bytes.end - bytes.start) as usize);
            self.note(sm, bytes.start, &then[at..at + length]);
        }
        self.view(sm).words.get(&word).map_or([0; WORD as usize], |seen| seen.bytes)
    }

    /// An SM has seen bytes of one word.
    fn note(&mut self, sm: u32, address: u64, bytes: &[u8]) {
        if self.view(sm).words.len() >= MOST_WORDS {
            self.forget(sm);
        }
        let word = address / WORD;
        let seen = self.view(sm).words.entry(word).or_default();
        overlay(&mut seen.bytes, word * WORD, bytes, address);
        seen.known |= bits(&(address..address + bytes.len() as u64));
    }

    fn at_time(&self, memory: &Memory, word: u64, time: u64) -> [u8; WORD as usize] {
        let start = word * WORD;
        let mut bytes = [0; WORD as usize];
        memory.read_live(start, &mut bytes);
        for past in self.log.iter().rev().take_while(|past| past.time > time) {
            overlay(&mut bytes, start, &past.old[..past.length], past.address);
        }
        bytes
    }

    /// The SM acquires: it sees nothing older than now.
    pub fn forget(&mut self, sm: u32) {
        let time = self.time;
        let view = self.view(sm);
        view.since = time;
        view.words.clear();
    }

    /// A store, of bytes that may be written.
    pub fn store(&mut self, memory: &mut Memory, who: Thread, address: u64, from: &[u8]) {
        for (index, chunk) in from.chunks(8).enumerate() {
            let mut data = [0; 8];
            data[..chunk.len()].copy_from_slice(chunk);
            let address = address + 8 * index as u64;
            let view = self.view(who.sm);
            let made = view.orders;
            let length = chunk.len();
            let waiting = Waiting { by: who, published: false, made, ordered: None, address, length, data };
            view.waiting.push(waiting);
        }
        while self.view(who.sm).waiting.len() > MOST_WAITING {
            self.drain_any(memory, who.sm);
        }
        if self.one_in(8) {
            self.drain_any(memory, who.sm);
        }
    }

    /// A strong store.
    pub fn store_strong(&mut self, memory: &mut Memory, who: Thread, address: u64, from: &[u8]) {
        if self.one_in(2) {
            return self.store(memory, who, address, from);
        }
        self.settle(memory, who, address, from.len());
        self.write(memory, who.sm, address, from);
    }

    /// Drains what must be in the coherent memory before a thread changes a place there.
    pub fn settle(&mut self, memory: &mut Memory, who: Thread, address: u64, length: usize) {
        self.drain(memory, who.sm, |waiting| {
            waiting.is_for(who) && waiting.overlaps(address, length)
                || waiting.is_of_cta(who) && waiting.ordered.is_some()
        });
    }

    /// A fence by threads of one CTA, those for which `takes_part` holds; `who` is any of them.
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
                self.drain(memory, who.sm, |waiting| waiting.is_of_cta(who) && waiting.ordered.is_some());
            }
            self.forget(who.sm);
        }
    }

    /// The releasing half of a fence.
    pub fn release(&mut self, who: Thread, takes_part: impl Fn(u32) -> bool, scope: Scope) {
        let view = self.view(who.sm);
        view.orders += u64::from(scope == Scope::Device);
        for waiting in view.waiting.iter_mut().filter(|waiting| waiting.is_of_cta(who)) {
            waiting.published |= takes_part(waiting.by.index);
            if scope == Scope::Device && waiting.published {
                waiting.ordered.get_or_insert(view.orders);
            }
        }
    }

    /// The grid has ended.
    pub fn end_grid(&mut self, memory: &mut Memory, grid: u64) {
        for sm in 0..self.views.len() {
            self.drain(memory, sm as u32, |waiting| waiting.by.grid == grid);
        }
    }

    /// Time goes on: some stores drain.
    pub fn tick(&mut self, memory: &mut Memory) {
        for sm in 0..self.views.len() as u32 {
            if !self.view(sm).waiting.is_empty() && self.one_in(4) {
                self.drain_any(memory, sm);
            }
        }
    }

    fn drain_any(&mut self, memory: &mut Memory, sm: u32) {
        let count = self.view(sm).waiting.len() as u64;
        if count > 0 {
            let index = (self.next() % count) as usize;
            self.drain_one(memory, sm, index);
        }
    }

    fn drain(&mut self, memory: &mut Memory, sm: u32, which: impl Fn(&Waiting) -> bool) {
        while let Some(index) = self.view(sm).waiting.iter().position(&which) {
            self.drain_one(memory, sm, index);
        }
    }

    /// Drains a store, and before it those that must be earlier.
    fn drain_one(&mut self, memory: &mut Memory, sm: u32, mut index: usize) {
        let last = self.view(sm).waiting[index];
        while let Some(first) = self.view(sm).waiting[..index].iter().position(|one| one.is_before(&last)) {
            let count = self.view(sm).waiting.len();
            self.drain_one(memory, sm, first);
            index -= count - self.view(sm).waiting.len();
        }
        let waiting = self.view(sm).waiting.remove(index);
        self.write(memory, sm, waiting.address, waiting.bytes());
    }

    /// Writes to the coherent memory. What was freed in the meantime is left alone.
    pub fn write(&mut self, memory: &mut Memory, sm: u32, address: u64, from: &[u8]) {
        let end = address + from.len() as u64;
        for word in address / WORD..end.div_ceil(WORD) {
            let (low, high) = (address.max(word * WORD), end.min((word + 1) * WORD));
            let new = &from[(low - address) as usize..(high - address) as usize];
            let mut old = [0; WORD as usize];
            if memory.read(DeviceAddress(low), &mut old[..new.len()]).is_ok()
                && memory.write(DeviceAddress(low), new).is_ok()
            {
                self.remember(low, old, new.len());
                // Whoever wrote it sees it.
                self.note(sm, low, new);
            }
        }
    }

    /// The coherent memory has changed.
    fn remember(&mut self, address: u64, old: [u8; WORD as usize], length: usize) {
        self.time += 1;
        self.log.push_back(Past { time: self.time, address, length, old });
        if self.log.len() > REMEMBERED
            && let Some(forgotten) = self.log.pop_front()
        {
            self.known_since = forgotten.time;
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
        memory.allocate(WindowId(1), AddressRange { start: DeviceAddress(base), bytes: 200 }).unwrap();
        (memory, Weak::new(seed, 2), base)
    }

    fn thread(sm: u32, cta: u64, index: u32) -> Thread {
        Thread { sm, grid: 1, cta, index }
    }

    fn load(weak: &mut Weak, memory: &Memory, who: Thread, address: u64) -> u8 {
        let mut byte = [0];
        weak.load(memory, who, Load::Weak, address, &mut byte);
        byte[0]
    }

    #[test]
    fn a_thread_sees_its_own_stores_and_no_older_ones() {
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            let who = thread(0, 0, 3);
            for value in 1..100 {
                weak.store(&mut memory, who, base + 7, &[value]);
                assert_eq!(load(&mut weak, &memory, who, base + 7), value, "seed {seed}");
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
            let (writer, reader) = (thread(0, 0, 0), thread(1, 1, 0));
            let mut last = 0;
            for value in 1..50 {
                weak.store(&mut memory, writer, base, &[value]);
                weak.fence(&mut memory, writer, |_| true, SC);
                let seen = load(&mut weak, &memory, reader, base);
                assert!(last <= seen && seen <= value, "seed {seed}: {seen} after {last}, newest {value}");
                stale += u32::from(seen < value);
                last = seen;
            }
            weak.forget(1);
            assert_eq!(load(&mut weak, &memory, reader, base), 49, "seed {seed}: after an acquire");
        }
        assert!(stale > 1000, "{stale}");
    }

    #[test]
    fn a_barrier_publishes_to_the_cta_and_a_fence_of_one_thread_to_all() {
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            weak.store(&mut memory, thread(0, 0, 1), base + 40, &[5, 6]);
            weak.release(thread(0, 0, 0), |_| true, Scope::Cta);
            assert_eq!(load(&mut weak, &memory, thread(0, 0, 9), base + 41), 6);
            weak.fence(&mut memory, thread(0, 0, 9), |thread| thread == 9, SC);
            weak.forget(1);
            assert_eq!(load(&mut weak, &memory, thread(1, 1, 0), base + 40), 5);
        }
    }

    #[test]
    fn a_release_orders_and_does_not_wait() {
        let (mut early, mut late) = (0, 0);
        for seed in 0..200 {
            let (mut memory, mut weak, base) = world(seed);
            let who = thread(0, 0, 1);
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
