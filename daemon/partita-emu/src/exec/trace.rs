//! The costs of a run of instructions. The executor writes them, the timing model reads them.

use super::rows::{LANES, lanes};

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 128;
/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 32;

/// The kind of a global memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// A load that may hit in L1.
    Load,
    /// A load that bypasses L1 (volatile, `.cg`).
    LoadPastL1,
    /// A store.
    Store,
    /// An atomic or reduction.
    Atomic,
}

/// Sectors of one line that a warp touched with one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// Address divided by [`LINE_BYTES`].
    pub line: u64,
    /// Its sectors.
    pub sectors: u8,
    /// The kind of the access.
    pub kind: AccessKind,
    /// The instruction.
    pub pc: u32,
}

/// Counts of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunCounts {
    /// Instructions by warps.
    pub warp_instructions: u64,
    /// Instructions by active threads.
    pub thread_instructions: u64,
    /// Warp-level loads from global memory.
    pub global_loads: u64,
    /// Warp-level stores to global memory.
    pub global_stores: u64,
    /// Warp-level accesses to shared memory.
    pub shared_accesses: u64,
    /// Warp-level atomics and reductions on global memory.
    pub atomics: u64,
}

/// The work of a run.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Whether transactions are wanted.
    pub wanted: bool,
    /// In order.
    pub transactions: Vec<Transaction>,
    /// Counts.
    pub counts: RunCounts,
    /// Extra passes through shared memory because of bank conflicts.
    pub shared_passes: u64,
    /// Bytes from or to shared memory of other CTAs of the cluster.
    pub cluster_bytes: u64,
    /// Accesses that may be polls: atomics and loads past L1.
    pub polls: u32,
    /// Those of them that found what they had found before ([`Team::is_wait`]).
    ///
    /// [`Team::is_wait`]: super::team::Team::is_wait
    pub waits: u32,
}

impl Trace {
    /// Forgets everything but whether transactions are wanted.
    pub fn clear(&mut self) {
        self.transactions.clear();
        self.counts = RunCounts::default();
        self.shared_passes = 0;
        self.cluster_bytes = 0;
        self.polls = 0;
        self.waits = 0;
    }

    /// Consecutive bytes.
    #[inline]
    pub fn range(&mut self, kind: AccessKind, low: u64, high: u64, pc: usize) {
        if !self.wanted {
            return;
        }
        let mut at = low / SECTOR_BYTES;
        let end = high.div_ceil(SECTOR_BYTES);
        while at < end {
            let line = at * SECTOR_BYTES / LINE_BYTES;
            let mut sectors = 0;
            while at < end && at * SECTOR_BYTES / LINE_BYTES == line {
                sectors |= 1 << (at % 4);
                at += 1;
            }
            self.transactions.push(Transaction { line, sectors, kind, pc: pc as u32 });
        }
    }

    /// Each lane its own `bytes`.
    #[inline(never)]
    pub fn scattered(
        &mut self,
        kind: AccessKind,
        addresses: &[u64; LANES],
        mask: u32,
        bytes: u32,
        pc: usize,
    ) {
        if !self.wanted {
            return;
        }
        let first = self.transactions.len();
        for lane in lanes(mask) {
            let low = addresses[lane] / SECTOR_BYTES;
            let high = (addresses[lane] + u64::from(bytes) - 1) / SECTOR_BYTES;
            for sector in low..=high {
                let (line, bit) = (sector / 4, 1 << (sector % 4));
                match self.transactions[first..]
                    .iter_mut()
                    .find(|transaction| transaction.line == line)
                {
                    Some(transaction) => transaction.sectors |= bit,
                    None => {
                        self.transactions.push(Transaction {
                            line,
                            sectors: bit,
                            kind,
                            pc: pc as u32,
                        });
                    }
                }
            }
        }
    }

    /// Places of their own, each with its size, all by one instruction.
    #[inline(never)]
    pub fn places(&mut self, kind: AccessKind, places: &[(u64, u32)], pc: usize) {
        if !self.wanted {
            return;
        }
        let first = self.transactions.len();
        for &(address, bytes) in places {
            for sector in address / SECTOR_BYTES..=(address + u64::from(bytes) - 1) / SECTOR_BYTES {
                let (line, bit) = (sector / 4, 1 << (sector % 4));
                match self.transactions[first..]
                    .iter_mut()
                    .find(|transaction| transaction.line == line)
                {
                    Some(transaction) => transaction.sectors |= bit,
                    None => self.transactions.push(Transaction {
                        line,
                        sectors: bit,
                        kind,
                        pc: pc as u32,
                    }),
                }
            }
        }
    }

    /// Passes that a shared access takes: the most distinct words that fall into one of 32 banks.
    #[inline(never)]
    pub fn shared(&mut self, addresses: &[u64; LANES], mask: u32) {
        if !self.wanted {
            return;
        }
        let mut banks = [[u64::MAX; 4]; 32];
        let mut worst = 1;
        for lane in lanes(mask) {
            let word = addresses[lane] / 4;
            let bank = &mut banks[(word % 32) as usize];
            let depth =
                bank.iter().position(|&other| other == word || other == u64::MAX).unwrap_or(3);
            bank[depth] = word;
            worst = worst.max(depth as u64 + 1);
        }
        self.shared_passes += worst - 1;
    }
}

impl Trace {
    /// As [`Trace::shared`], of two pieces of consecutive words: the first of each, and how many,
    /// at most 16.
    #[inline]
    pub fn shared_pieces(&mut self, a: (u32, u32), b: (u32, u32)) {
        // Two pieces share a bank if their distance around the banks is less than a piece's length.
        // They share a word only if their distance in words is less than that.
        let forth = b.0.wrapping_sub(a.0);
        let back = a.0.wrapping_sub(b.0);
        let same_bank = forth % 32 < a.1 || back % 32 < b.1;
        let same_word = forth < a.1 || back < b.1;
        self.shared_passes += u64::from(same_bank && !same_word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_conflict_as_their_lanes_do() {
        for (first, second) in [(16, 16), (1, 16), (16, 1), (1, 1)] {
            for a in 0..80_u32 {
                for b in 0..80_u32 {
                    let lane = |lane: u32| {
                        let (start, count) = if lane < 16 { (a, first) } else { (b, second) };
                        u64::from(4 * (start + if count == 1 { 0 } else { lane % 16 }))
                    };
                    let mut each = Trace { wanted: true, ..Trace::default() };
                    each.shared(&std::array::from_fn(|at| lane(at as u32)), u32::MAX);
                    let mut pieces = Trace { wanted: true, ..Trace::default() };
                    pieces.shared_pieces((a, first), (b, second));
                    assert_eq!(
                        pieces.shared_passes, each.shared_passes,
                        "{a}+{first} and {b}+{second}"
                    );
                }
            }
        }
    }

    #[test]
    fn coalescing() {
        let mut trace = Trace { wanted: true, ..Trace::default() };
        trace.range(AccessKind::Load, 128, 256, 0);
        assert_eq!(trace.transactions.len(), 1);
        assert_eq!(trace.transactions[0].sectors, 0xf);
        trace.clear();
        trace.range(AccessKind::Load, 96, 224, 0);
        assert_eq!(
            trace.transactions.iter().map(|t| t.sectors).collect::<Vec<_>>(),
            [0b1000, 0b0111]
        );
        trace.clear();
        let strided: [u64; LANES] = std::array::from_fn(|lane| lane as u64 * 128);
        trace.scattered(AccessKind::Load, &strided, u32::MAX, 4, 0);
        assert_eq!(trace.transactions.len(), 32);
        trace.clear();
        trace.shared(&strided, u32::MAX);
        assert_eq!(trace.shared_passes, 3, "counted up to four deep");
    }
}
