//! From the sectors that a counted launch records to what reaches the LLC and what hits there.
//!
//! Records hold every sector that the launch's first CTAs touched, in the order in which the device
//! was asked for them, each with its SM. Replayed through tags of the device's L1s and LLC they say
//! which of them miss. That is an estimate: other launches have their CTAs on other SMs, in another
//! order, and how a GPU maps lines to sets is not published. So each record goes through three
//! models, and their answers bound the truth:
//!
//! | answer | caches | rate from |
//! | --- | --- | --- |
//! | likely | as the device has them | the last quarter of the records: the others fill the caches |
//! | optimistic | twice the size and the ways, an L1 for each two SMs | whichever of all, second half and last quarter has the lowest rate |
//! | pessimistic | half the size | whichever has the highest |
//!
//! CTAs that were on two SMs may be on one another time, and find in its L1 what the other has
//! read: hence the pairs.
//!
//! The records are the launch's first sectors, and count as they are; the rate is for those that
//! are not recorded. Loads that may hit in L1 have rates of their own, for how many there are is
//! counted exactly: a launch that is cut off in the first part of its CTAs would seem to write
//! nothing.
//!
//! A sector that misses costs DRAM a sector, sooner or later. So does one that hits and is written,
//! once, as long as it stays.
//!
//! An L1 that [`CacheShape::fills_lines`] asks the LLC for four sectors where one misses.
//!
//! L1s are empty when a launch begins. The LLC keeps what the application's counted launch before
//! left in it, unless that must have swept it. Where a launch is recorded in part and what it
//! touches seems to fit twice the LLC, no miss is certain: the optimistic answer then has none.
//!
//! An LLC of more than [`MODELLED_LLC`] is modelled by every so-manieth line, in a cache smaller by
//! the same factor.
//!
//! # What this leaves alone
//!
//! Launches whose data are somewhat more than the LLC: part of them outlives the launch on a GPU
//! and nothing here. Misses in flight that merge, prefetching, replacement other than by age, and
//! what other applications do to the LLC.

use partita_model::profile::{
    CacheShape, Counts, LlcUse, RECORD_ADDRESS, RECORD_KIND, RECORD_LOAD, RECORD_SM_SHIFT,
    RECORD_WRITES,
};
use std::collections::BTreeMap;

/// Lines have 128 bytes, sectors 32.
const LINE_SHIFT: u32 = 7;
const SECTOR_SHIFT: u32 = 5;
/// The sectors of a line.
const SECTORS: [u64; 4] = [0, 32, 64, 96];
/// The largest LLC whose every line is modelled, in bytes.
const MODELLED_LLC: u64 = 2 << 20;
/// Ways of the modelled LLC: 16 in all GPUs that have been measured.
const LLC_WAYS: u32 = 16;

/// What a counted launch has recorded.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// The counts of all counted CTAs.
    pub counts: Counts,
    /// The first of their sectors, in order.
    pub records: &'a [u64],
    /// CTAs of the launch, counted or not.
    pub launch_ctas: u64,
}

/// Replays the counted launches of one application.
#[derive(Clone, Debug)]
pub struct Replay {
    l1: CacheShape,
    llc_bytes: u64,
    /// Pessimistic, likely, optimistic.
    llcs: [Llc; 3],
}

impl Replay {
    /// For a device with such an L1 in each SM and an LLC of so many bytes. Nothing is in it.
    #[must_use]
    pub fn new(l1: CacheShape, llc_bytes: u64) -> Self {
        let llcs = [llc_bytes / 2, llc_bytes, llc_bytes.saturating_mul(2)].map(Llc::new);
        Replay { l1, llc_bytes, llcs }
    }

    /// What reaches the LLC of all that the counted CTAs touched, and what hits there.
    pub fn launch(&mut self, recorded: &Recorded<'_>) -> LlcUse {
        let Recorded { counts, records, launch_ctas } = *recorded;
        let whole = counts.ctas >= launch_ctas && records.len() as u64 >= counts.sectors;
        let footprint = footprint(recorded);
        let half = |shape: CacheShape| CacheShape { bytes: shape.bytes / 2, ..shape };
        let twice = |shape: CacheShape| CacheShape {
            bytes: shape.bytes * 2,
            ways: shape.ways * 2,
            ..shape
        };
        let [low, likely, high] = &mut self.llcs;
        let pessimistic = replay(half(self.l1), 1, low, records);
        let answer = replay(self.l1, 1, likely, records);
        let optimistic = replay(twice(self.l1), 2, high, records);
        if !whole && footprint > self.llc_bytes {
            self.llcs.iter_mut().for_each(Llc::sweep);
        }

        // Of each kind in the whole launch.
        let past = counts.past_sectors.min(counts.sectors);
        let all = [counts.sectors - past, past].map(|n| scaled(n, launch_ctas, counts.ctas));
        // The other CTAs' as the first ones'.
        let back = |n: [u64; 2]| {
            let most = counts.sectors.saturating_mul(SECTORS.len() as u64);
            scaled(n[0].saturating_add(n[1]), counts.ctas, launch_ctas).min(most)
        };
        let accesses = answer.accesses(all, Part::Last);
        let misses = answer.misses(accesses, Part::Last);
        let most_misses = pessimistic.misses(accesses, Part::Worst);
        let kept = !whole && footprint <= self.llc_bytes.saturating_mul(2);
        let fewest_misses = if kept { [0; 2] } else { optimistic.misses(accesses, Part::Best) };
        let [least, most] =
            [optimistic.accesses(all, Part::Best), pessimistic.accesses(all, Part::Worst)];
        let dirtied = back(answer.dirtied(accesses));
        let accesses = back(accesses);
        let misses = back(misses).min(accesses);
        LlcUse {
            least: back(least).min(accesses),
            accesses,
            most: back(most).max(accesses),
            hits_least: accesses - back(most_misses).clamp(misses, accesses),
            hits: accesses - misses,
            hits_most: accesses - back(fewest_misses).min(misses),
            dirtied: dirtied.min(accesses - misses),
        }
    }
}

/// About how many bytes the whole launch touches, if its other CTAs touch new ones as often as the
/// last recorded did.
fn footprint(recorded: &Recorded<'_>) -> u64 {
    let distinct = |records: &[u64]| {
        let mut sectors: Vec<u64> = records.iter().map(|record| record & RECORD_ADDRESS).collect();
        sectors.sort_unstable();
        sectors.dedup();
        sectors.len() as u64
    };
    let records = recorded.records;
    let (before, last) = records.split_at(records.len() - records.len() / 4);
    let so_far = distinct(records);
    let new = so_far - distinct(before);
    let all = scaled(recorded.counts.sectors, recorded.launch_ctas, recorded.counts.ctas);
    let to_come = all.saturating_sub(records.len() as u64);
    let more = if last.is_empty() { 0 } else { scaled(new, to_come, last.len() as u64) };
    so_far.saturating_add(more).saturating_mul(1 << SECTOR_SHIFT)
}

/// `value` × `part` ÷ `of`, rounded; `value` where there is nothing to divide by.
fn scaled(value: u64, part: u64, of: u64) -> u64 {
    if of == 0 {
        return value;
    }
    let product = u128::from(value) * u128::from(part) + u128::from(of / 2);
    u64::try_from(product / u128::from(of)).unwrap_or(u64::MAX)
}

/// Counts of the records of one kind in a part of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    sectors: u64,
    /// Those that reach the LLC.
    accesses: u64,
    /// Those of them that the modelled part of the LLC saw, and missed.
    seen: u64,
    missed: u64,
    /// Those that hit, and wrote what nobody had written.
    dirtied: u64,
}

impl Tally {
    /// A sector goes to the LLC.
    fn reaches(&mut self, llc: &mut Llc, address: u64, writes: bool) {
        self.accesses += 1;
        if let Some(found) = llc.touch(address, writes) {
            self.seen += 1;
            self.missed += u64::from(!found.hit);
            self.dirtied += u64::from(found.hit && found.dirtied);
        }
    }

    fn since(&self, before: &Tally) -> Tally {
        Tally {
            sectors: self.sectors - before.sectors,
            accesses: self.accesses - before.accesses,
            seen: self.seen - before.seen,
            missed: self.missed - before.missed,
            dirtied: self.dirtied - before.dirtied,
        }
    }
}

/// Which part of the records says how what is not recorded behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The last quarter.
    Last,
    /// The one with the lowest rate.
    Best,
    /// The one with the highest.
    Worst,
}

/// What one model answers, for loads that may hit in L1 and for all others: over all records, their
/// second half, their last quarter.
struct Answer([[Tally; 2]; 3]);

impl Answer {
    /// Accesses of the LLC among so many sectors, of which the recorded ones are the first.
    fn accesses(&self, all: [u64; 2], part: Part) -> [u64; 2] {
        [0, 1].map(|kind| {
            let recorded = self.0[0][kind];
            let rest = all[kind].saturating_sub(recorded.sectors);
            recorded.accesses + self.rest(kind, rest, part, |tally| (tally.accesses, tally.sectors))
        })
    }

    /// Misses among so many accesses, of which the recorded ones are the first.
    fn misses(&self, accesses: [u64; 2], part: Part) -> [u64; 2] {
        [0, 1].map(|kind| {
            let recorded = self.0[0][kind];
            let missed = scaled(recorded.accesses, recorded.missed, recorded.seen.max(1));
            let rest = accesses[kind].saturating_sub(recorded.accesses);
            missed + self.rest(kind, rest, part, |tally| (tally.missed, tally.seen))
        })
    }

    /// Hits that write first among so many accesses, most likely.
    fn dirtied(&self, accesses: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|kind| {
            let recorded = self.0[0][kind];
            let dirtied = scaled(recorded.accesses, recorded.dirtied, recorded.seen.max(1));
            let rest = accesses[kind].saturating_sub(recorded.accesses);
            let seen = self.0.iter().rfind(|tallies| tallies[kind].seen > 0);
            dirtied
                + seen.map_or(0, |tallies| scaled(rest, tallies[kind].dirtied, tallies[kind].seen))
        })
    }

    /// What of the unrecorded, by the rate of a part. Where no part has any of the kind it is
    /// anything, and all of it most likely.
    fn rest(&self, kind: usize, rest: u64, part: Part, rate: impl Fn(&Tally) -> (u64, u64)) -> u64 {
        let rates = self.0.iter().map(|tallies| rate(&tallies[kind])).filter(|(_, of)| *of > 0);
        let by_rate = rates.map(|(part, of)| scaled(rest, part, of));
        match part {
            Part::Last => by_rate.last().unwrap_or(rest),
            Part::Best => by_rate.min().unwrap_or(0),
            Part::Worst => by_rate.max().unwrap_or(rest),
        }
    }
}

fn replay(l1: CacheShape, sms_per_l1: u64, llc: &mut Llc, records: &[u64]) -> Answer {
    let mut l1s: BTreeMap<u64, Tags> = BTreeMap::new();
    let mut all = [Tally::default(); 2];
    let (mut half, mut quarter) = (all, all);
    let count = records.len();
    for (index, record) in records.iter().enumerate() {
        if index == count - count / 2 {
            half = all;
        }
        if index == count - count / 4 {
            quarter = all;
        }
        let address = record & RECORD_ADDRESS;
        let cached = record & RECORD_KIND == RECORD_LOAD;
        let tally = &mut all[usize::from(!cached)];
        tally.sectors += 1;
        let sm = (record >> RECORD_SM_SHIFT) / sms_per_l1;
        if cached {
            let own = l1s.entry(sm).or_insert_with(|| Tags::new(l1));
            if own.touch(address, false).hit {
                continue;
            }
            if l1.fills_lines {
                let line = address >> LINE_SHIFT << LINE_SHIFT;
                for sector in SECTORS.map(|sector| line + sector) {
                    own.touch(sector, false);
                    tally.reaches(llc, sector, false);
                }
                continue;
            }
        } else if l1.stores_evict && record & RECORD_KIND == RECORD_WRITES {
            l1s.entry(sm).and_modify(|own| own.evict(address));
        }
        tally.reaches(llc, address, record & RECORD_WRITES != 0);
    }
    let since = |before: [Tally; 2]| [0, 1].map(|kind| all[kind].since(&before[kind]));
    Answer([all, since(half), since(quarter)])
}

/// The LLC, or a part of it that stands for all.
#[derive(Clone, Debug)]
struct Llc {
    tags: Tags,
    /// One line of so many is modelled.
    one_of: u64,
}

impl Llc {
    fn new(bytes: u64) -> Self {
        let one_of = bytes.div_ceil(MODELLED_LLC).max(1);
        Llc { tags: Tags::new(CacheShape::sectored(bytes / one_of, LLC_WAYS)), one_of }
    }

    /// What became of an access; `None` where the line is not modelled.
    fn touch(&mut self, address: u64, writes: bool) -> Option<Found> {
        let modelled = mix(address >> LINE_SHIFT).is_multiple_of(self.one_of);
        modelled.then(|| self.tags.touch(address, writes))
    }

    fn sweep(&mut self) {
        self.tags.lines.fill(EMPTY);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    tag: u64,
    used: u32,
    sectors: u8,
    dirty: u8,
}

const EMPTY: Line = Line { tag: u64::MAX, used: 0, sectors: 0, dirty: 0 };

/// What became of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Found {
    /// The sector was there.
    hit: bool,
    /// It is the first to write it since it came.
    dirtied: bool,
}

/// Tags of a set-associative cache with sectors. The oldest line makes room.
#[derive(Clone, Debug)]
struct Tags {
    ways: usize,
    sets: u64,
    lines: Vec<Line>,
    clock: u32,
}

impl Tags {
    /// Less than a set counts as one.
    fn new(shape: CacheShape) -> Self {
        let ways = shape.ways.max(1);
        let sets = ((shape.bytes >> LINE_SHIFT) / u64::from(ways)).clamp(1, 1 << 24);
        let count = usize::try_from(sets * u64::from(ways)).expect("at most 2^24 sets");
        Tags { ways: ways as usize, sets, lines: vec![EMPTY; count], clock: 0 }
    }

    /// The ways of a line's set.
    fn set(&mut self, line: u64) -> &mut [Line] {
        // Neighbours lie in different sets, and so do lines at strides of a power of two.
        let folded = line ^ (line >> 7) ^ (line >> 15);
        let set = usize::try_from(folded % self.sets).expect("there are so many sets") * self.ways;
        &mut self.lines[set..set + self.ways]
    }

    /// Drops a line.
    fn evict(&mut self, address: u64) {
        let line = address >> LINE_SHIFT;
        if let Some(found) = self.set(line).iter_mut().find(|found| found.tag == line) {
            *found = EMPTY;
        }
    }

    /// Whether the sector was there; it is now.
    fn touch(&mut self, address: u64, writes: bool) -> Found {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        let line = address >> LINE_SHIFT;
        let sector = 1_u8 << ((address >> SECTOR_SHIFT) & 3);
        let ways = self.set(line);
        if let Some(way) = ways.iter_mut().find(|way| way.tag == line) {
            way.used = clock;
            let dirty = if writes { sector } else { 0 };
            let found = Found { hit: way.sectors & sector != 0, dirtied: dirty & !way.dirty != 0 };
            way.sectors |= sector;
            way.dirty |= dirty;
            return found;
        }
        if let Some(oldest) = ways.iter_mut().max_by_key(|way| clock.wrapping_sub(way.used)) {
            *oldest = Line {
                tag: line,
                used: clock,
                sectors: sector,
                dirty: if writes { sector } else { 0 },
            };
        }
        Found { hit: false, dirtied: writes }
    }
}

/// Chooses lines to be modelled evenly (Fibonacci hashing: Knuth, volume 3, section 6.4).
fn mix(line: u64) -> u64 {
    line.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
