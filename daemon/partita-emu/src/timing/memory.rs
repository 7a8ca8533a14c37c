//! The way of a memory transaction: L1, the SM's port, crossbar and slice of the LLC, DRAM channel.
//!
//! Each station has a limited bandwidth, which transactions of all SMs share; so latency grows with
//! load. Consecutive lines lie in consecutive slices, rotated by a hash of the group, or where
//! [`Spec::interleave_bytes`] puts them. The slices are dealt out evenly to the channels. A request
//! to a busy DRAM also waits for rows ([`super::crowd`]). The LLC is write-back: a store costs DRAM
//! bandwidth when its sector is evicted. [`Spec::fill_bytes`], [`Spec::l1_stores_evict`] and
//! [`Spec::llc_stores_fetch`] describe older GPUs, whose caches fill whole lines.

use super::cache::{Cache, Found};
use super::calendar::Calendar;
use super::crowd::Crowd;
use crate::exec::trace::{AccessKind, LINE_BYTES, SECTOR_BYTES, Transaction};
use crate::spec::Spec;

/// Ways of a set of the LLC.
const LLC_WAYS: usize = 16;
/// Ways of a set of an L1.
pub const L1_WAYS: usize = 4;
/// Cycles of a bucket, in which bandwidth is shared; calendars round to a power of two.
const BUCKET_CYCLES: u64 = 32;
/// All sectors of a line.
const WHOLE_LINE: u8 = 0xf;

/// Counts of the memory system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryCounts {
    /// Sectors that warps asked for.
    pub sectors: u64,
    /// Sectors that hit in L1.
    pub l1_hits: u64,
    /// Sectors that went to the LLC.
    pub llc_accesses: u64,
    /// Sectors that hit there; those of stores always do.
    pub llc_hits: u64,
    /// Bytes from and to DRAM. A write-back counts for the access that evicted the sector.
    pub dram_bytes: u64,
}

impl MemoryCounts {
    /// Bytes of payload through the crossbar.
    #[must_use]
    pub fn crossbar_bytes(&self) -> u64 {
        self.llc_accesses * SECTOR_BYTES
    }
}

/// When a transaction was let in and when it is over, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Served {
    /// It has left the SM and all queues; only latency is left.
    pub accepted: u64,
    /// Its data are in the SM, or its acknowledgement is.
    pub done: u64,
}

#[derive(Clone, Debug)]
struct Slice {
    tags: Cache<LLC_WAYS>,
    bandwidth: Calendar,
}

/// The data that a miss fetches into a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fill {
    /// Fetches the whole line, instead of the requested sectors.
    lines: bool,
    /// A store that misses in the LLC goes on to DRAM and fetches its line.
    stores_fetch: bool,
}

impl Fill {
    fn of(spec: &Spec) -> Self {
        Fill { lines: spec.fill_bytes >= LINE_BYTES, stores_fetch: spec.llc_stores_fetch }
    }

    /// The sectors that a miss of these sectors fetches.
    #[inline]
    fn of_sectors(self, sectors: u8) -> u8 {
        if self.lines { WHOLE_LINE } else { sectors }
    }
}

/// What all SMs share.
#[derive(Clone, Debug)]
pub struct SharedMemorySystem {
    slices: Vec<Slice>,
    channels: Vec<Calendar>,
    crowd: Crowd,
    slices_per_channel: usize,
    fill: Fill,
    /// Lines of a run in one channel, if the spec has runs.
    run_lines: Option<u64>,
    /// 2⁶⁴ ÷ number of slices, rounded up. A multiplication by this number divides.
    inverse: u128,
    llc_latency: u64,
    dram_latency: u64,
}

/// One SM's part of the memory system.
#[derive(Clone, Debug)]
pub struct SmMemory {
    l1: Cache<L1_WAYS>,
    fill: Fill,
    stores_evict: bool,
    port: Calendar,
    /// The port of stores, where they have their own.
    store_port: Option<Calendar>,
    l1_latency: u64,
    /// Picoseconds that a line, or a pass through shared memory, takes.
    pass: u64,
    /// The time at which the load/store unit has completed its work.
    unit_free: u64,
}

impl SharedMemorySystem {
    /// As a spec says.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let cycle = spec.cycle_ps();
        let bucket = cycle * BUCKET_CYCLES;
        let slices = spec.llc_slices.max(1);
        let channels = spec.dram_channels.max(1);
        let slice = Slice {
            tags: match spec.interleave_bytes {
                None => Cache::new(spec.llc_bytes / u64::from(slices)),
                Some(_) => Cache::in_order(spec.llc_bytes / u64::from(slices)),
            },
            bandwidth: Calendar::new(bucket, spec.llc_gigabytes_per_second / f64::from(slices)),
        };
        let dram = spec.dram_gigabytes_per_second * spec.dram_efficiency;
        SharedMemorySystem {
            slices: vec![slice; slices as usize],
            channels: vec![Calendar::new(bucket, dram / f64::from(channels)); channels as usize],
            crowd: Crowd::new(spec.dram_row_nanoseconds, dram),
            slices_per_channel: (slices / channels).max(1) as usize,
            fill: Fill::of(spec),
            run_lines: spec.interleave_bytes.map(|bytes| bytes / LINE_BYTES),
            inverse: (1_u128 << 64).div_ceil(u128::from(slices)),
            llc_latency: spec.llc_latency_cycles * cycle,
            dram_latency: spec.dram_latency_cycles * cycle,
        }
    }

    /// Nothing happens before `now` any more.
    pub fn advance(&mut self, now: u64) {
        for slice in &mut self.slices {
            slice.bandwidth.advance(now);
        }
        for channel in &mut self.channels {
            channel.advance(now);
        }
        self.crowd.advance(now);
    }

    /// The slice of a line, and the line's number in that slice.
    #[inline]
    fn place(&self, line: u64) -> (usize, u64) {
        let count = self.slices.len() as u64;
        if let Some(run_lines) = self.run_lines {
            return self.place_in_runs(line, run_lines);
        }
        // Exact for lines below 2⁴⁰: an address has 47 bits, and there are few slices.
        let group = ((u128::from(line) * self.inverse) >> 64) as u64;
        let position = line - group * count;
        let hash = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let slice = position + ((hash * count) >> 32);
        ((if slice >= count { slice - count } else { slice }) as usize, group)
    }

    /// [`Self::place`] where runs of lines rotate over the channels, and a channel's runs over its
    /// slices.
    fn place_in_runs(&self, line: u64, run_lines: u64) -> (usize, u64) {
        let slices = self.slices_per_channel as u64;
        let channels = self.channels.len() as u64;
        let (run, offset) = (line / run_lines, line % run_lines);
        let (round, channel) = (run / channels, run % channels);
        let slice = channel * slices + round % slices;
        (slice as usize, round / slices * run_lines + offset)
    }

    /// Serves `sectors` of a line at `time`, from the SM's port on.
    #[inline]
    fn access(
        &mut self,
        line: u64,
        sectors: u8,
        kind: AccessKind,
        time: u64,
        counts: &mut MemoryCounts,
    ) -> Served {
        let count = u64::from(sectors.count_ones());
        let (index, local) = self.place(line);
        let slice = &mut self.slices[index];
        let accepted = slice.bandwidth.serve(time, count * SECTOR_BYTES);
        counts.llc_accesses += count;
        let writes = matches!(kind, AccessKind::Store);
        let line_sectors = self.fill.of_sectors(sectors);
        let Found { missed, written_back } = match kind {
            AccessKind::Store if self.fill.stores_fetch => {
                slice.tags.write_found(local, line_sectors)
            }
            AccessKind::Store => slice.tags.write(local, sectors),
            AccessKind::Atomic => {
                let found = slice.tags.read(local, line_sectors);
                slice.tags.write(local, line_sectors);
                found
            }
            AccessKind::Load | AccessKind::LoadPastL1 => slice.tags.read(local, line_sectors),
        };
        // Without `stores_fetch` a store writes whole sectors and fetches nothing.
        let fetches = !writes || self.fill.stores_fetch;
        let fetched = if fetches { u64::from(missed.count_ones()) } else { 0 };
        let fetched_of_asked = if fetches { u64::from((missed & sectors).count_ones()) } else { 0 };
        counts.llc_hits += count - fetched_of_asked;
        // The store also goes to DRAM.
        let written_through = if writes { fetched_of_asked } else { 0 };
        let written = u64::from(written_back) + written_through;
        let mut served = Served { accepted, done: accepted + self.llc_latency };
        if fetched == 0 && written == 0 {
            return served;
        }
        let channel = &mut self.channels[index / self.slices_per_channel];
        if fetched > 0 {
            let through = channel.serve(accepted, fetched * SECTOR_BYTES);
            if !writes {
                served.done = through + self.dram_latency + self.crowd.wait();
            }
        }
        if written > 0 {
            let through = channel.serve(accepted, written * SECTOR_BYTES);
            if writes {
                // The slice accepts the store only when DRAM has taken it.
                served = Served { accepted: through, done: through + self.llc_latency };
            }
        }
        let bytes = (fetched + written) * SECTOR_BYTES;
        counts.dram_bytes += bytes;
        self.crowd.add(bytes);
        served
    }
}

impl SmMemory {
    /// As a spec says.
    #[must_use]
    pub fn new(spec: &Spec) -> Self {
        let cycle = spec.cycle_ps();
        // Bytes per picosecond × 1,000 = GB/s.
        let port =
            |bytes: u64| Calendar::new(cycle * BUCKET_CYCLES, bytes as f64 / cycle as f64 * 1000.0);
        SmMemory {
            l1: Cache::new(spec.l1_bytes),
            fill: Fill::of(spec),
            stores_evict: spec.l1_stores_evict,
            port: port(spec.port_bytes_per_cycle),
            store_port: spec.store_port_bytes_per_cycle.map(port),
            l1_latency: spec.l1_latency_cycles * cycle,
            pass: (LINE_BYTES * cycle / spec.l1_bytes_per_cycle.max(1)).max(1),
            unit_free: 0,
        }
    }

    /// Nothing happens before `now` any more.
    pub fn advance(&mut self, now: u64) {
        self.port.advance(now);
        if let Some(port) = &mut self.store_port {
            port.advance(now);
        }
    }

    /// A new grid does not see what an older one left in L1.
    pub fn forget(&mut self) {
        self.l1.clear();
    }

    /// The load/store unit is given `passes` at `time`; returns when it is through with them and
    /// all before.
    #[inline]
    pub fn pass(&mut self, time: u64, passes: u64) -> u64 {
        self.unit_free = self.unit_free.max(time) + passes * self.pass;
        self.unit_free
    }

    /// Looks at what transactions from `time` on will need, and changes nothing. The host fetches
    /// the first line of each set, and the bucket of each slice, at a time.
    pub fn touch(&self, shared: &SharedMemorySystem, transactions: &[Transaction], time: u64) {
        let look = |seen: u64, transaction: &Transaction| {
            let (slice, local) = shared.place(transaction.line);
            let here = if transaction.kind == AccessKind::Load {
                self.l1.touch(transaction.line)
            } else {
                0
            };
            let slice = &shared.slices[slice];
            seen ^ here ^ slice.tags.touch(local) ^ u64::from(slice.bandwidth.touch(time))
        };
        std::hint::black_box(transactions.iter().fold(0, look));
    }

    /// What becomes of a transaction that its warp issues at `time`.
    #[inline]
    pub fn access(
        &mut self,
        shared: &mut SharedMemorySystem,
        transaction: &Transaction,
        time: u64,
        counts: &mut MemoryCounts,
    ) -> Served {
        let sectors = u64::from(transaction.sectors.count_ones());
        counts.sectors += sectors;
        let time = self.pass(time, 1) - self.pass;
        let missed = match transaction.kind {
            AccessKind::Load => {
                self.l1.read(transaction.line, self.fill.of_sectors(transaction.sectors)).missed
            }
            AccessKind::Store if self.stores_evict => {
                self.l1.evict(transaction.line);
                transaction.sectors
            }
            _ => transaction.sectors,
        };
        let missing = u64::from(missed.count_ones());
        counts.l1_hits += sectors - u64::from((missed & transaction.sectors).count_ones());
        if missing == 0 {
            return Served { accepted: time, done: time + self.l1_latency };
        }
        let port = match (transaction.kind, &mut self.store_port) {
            (AccessKind::Store, Some(port)) => port,
            _ => &mut self.port,
        };
        let at_crossbar = port.serve(time, missing * SECTOR_BYTES);
        shared.access(transaction.line, missed, transaction.kind, at_crossbar, counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: AccessKind = AccessKind::Load;

    /// Sends `lines` whole lines from each of `sms` SMs at once. Returns bytes per second and the
    /// counts.
    fn stream(spec: &Spec, sms: u64, lines: u64, kind: AccessKind) -> (f64, MemoryCounts) {
        let mut shared = SharedMemorySystem::new(spec);
        let mut memories = vec![SmMemory::new(spec); sms as usize];
        let mut counts = MemoryCounts::default();
        let mut end = 0;
        for at in 0..lines {
            for (sm, memory) in memories.iter_mut().enumerate() {
                let line = sm as u64 * lines + at;
                let transaction = Transaction { line, sectors: 0xf, kind, pc: 0 };
                end = end.max(memory.access(&mut shared, &transaction, 0, &mut counts).accepted);
            }
        }
        ((sms * lines * LINE_BYTES) as f64 * 1e12 / end.max(1) as f64, counts)
    }

    fn spec() -> Spec {
        Spec::named("masola-rtx2060").unwrap()
    }

    #[test]
    fn one_sm_is_limited_by_its_port() {
        let spec = Spec { port_bytes_per_cycle: 16, ..spec() };
        let (rate, _) = stream(&spec, 1, 8_000, LOAD);
        let port = 16.0 * 1e12 / spec.cycle_ps() as f64;
        assert!((rate / port - 1.0).abs() < 0.02, "{rate} of {port}");
    }

    #[test]
    fn slices_are_met_evenly_at_any_stride() {
        let shared = SharedMemorySystem::new(&spec());
        for stride in [1, 2, 3, 8, 24, 64, 1024, 4096] {
            let mut met = vec![0; shared.slices.len()];
            for index in 0..24_000 {
                met[shared.place(index * stride).0] += 1;
            }
            let (least, most) = (met.iter().min().unwrap(), met.iter().max().unwrap());
            assert!(*least > 700 && *most < 1300, "stride {stride}: {least} to {most}");
        }
    }

    #[test]
    fn runs_go_round_the_channels() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let shared = SharedMemorySystem::new(&spec);
        // Runs of 256 bytes are two lines. Twelve runs pass once through six channels of two
        // slices.
        let slices: Vec<usize> = (0..24).step_by(2).map(|line| shared.place(line).0).collect();
        assert_eq!(slices, [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]);
        assert_eq!([shared.place(1), shared.place(24)], [(0, 1), (0, 2)]);
        // A column of a matrix with 8 KB rows uses three of twelve slices, and few sets of each.
        let mut met: Vec<usize> = (0..2048).map(|row| shared.place(row * 64).0).collect();
        met.sort_unstable();
        met.dedup();
        assert_eq!(met.len(), 3);
    }

    #[test]
    fn stores_evict_and_fetch_where_a_spec_says_so() {
        let spec = Spec::named("gpgpu-sim-24").unwrap();
        let mut shared = SharedMemorySystem::new(&spec);
        let mut memory = SmMemory::new(&spec);
        let mut counts = MemoryCounts::default();
        let mut access = |kind, sectors| {
            let transaction = Transaction { line: 0, sectors, kind, pc: 0 };
            memory.access(&mut shared, &transaction, 0, &mut counts);
            counts
        };
        let store = access(AccessKind::Store, 0b1);
        assert_eq!((store.llc_accesses, store.llc_hits, store.dram_bytes), (1, 0, 32 + 128));
        let load = access(LOAD, 0b1);
        assert_eq!((load.llc_accesses, load.llc_hits, load.dram_bytes), (5, 4, 160), "a line");
        assert_eq!(access(LOAD, 0b1000).l1_hits, 1, "it is in L1, all of it");
        access(AccessKind::Store, 0b1);
        let load = access(LOAD, 0b1000);
        assert_eq!((load.l1_hits, load.llc_accesses), (1, 10), "the store has dropped it");
    }

    #[test]
    fn products_divide() {
        for slices in [1, 2, 3, 7, 12, 24, 80, 96] {
            let shared = SharedMemorySystem::new(&Spec { llc_slices: slices, ..spec() });
            for line in (0..1000).chain((1 << 40) - 1000..1 << 40) {
                assert_eq!(shared.place(line).1, line / u64::from(slices), "{line} by {slices}");
            }
        }
    }

    #[test]
    fn no_two_lines_share_a_place() {
        let shared = SharedMemorySystem::new(&spec());
        let mut places: Vec<_> = (0..24_000).map(|line| shared.place(line)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 24_000);
    }

    #[test]
    fn stores_reach_dram_when_they_are_evicted() {
        let spec = spec();
        let fits = spec.llc_bytes / LINE_BYTES / 8;
        let (_, counts) = stream(&spec, 4, fits, AccessKind::Store);
        assert_eq!(counts.dram_bytes, 0, "half of the LLC");
        let (_, counts) = stream(&spec, 4, fits * 8, AccessKind::Store);
        assert_eq!(counts.dram_bytes, 3 * spec.llc_bytes, "four times the LLC, and one stays");
        assert_eq!(counts.llc_hits, counts.llc_accesses);
    }

    #[test]
    fn latency_grows_with_load() {
        let spec = spec();
        let mut shared = SharedMemorySystem::new(&spec);
        let mut memory = SmMemory::new(&spec);
        let mut counts = MemoryCounts::default();
        let mut done = |line| {
            let transaction = Transaction { line, sectors: 0xf, kind: LOAD, pc: 0 };
            memory.access(&mut shared, &transaction, 0, &mut counts).done
        };
        let alone = done(0);
        assert_eq!(alone, spec.dram_latency_cycles * spec.cycle_ps());
        let crowded = (1..1000).map(&mut done).max().unwrap();
        assert!(crowded > 4 * alone, "{crowded}");
    }
}
