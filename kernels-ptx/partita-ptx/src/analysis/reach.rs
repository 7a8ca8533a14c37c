//! Finds the definitions of a register that a use may see.
//!
//! Compilers write most registers once. Only for the others is anything computed: bits that go
//! through the blocks until nothing changes. A guarded definition leaves the older ones visible.

use super::cfg::{BlockId, Cfg};
use crate::ir::Reg;
use std::ops::Range;

/// One definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Definition {
    pub reg: Reg,
    pub stmt: u32,
    /// Whether the definition always happens, and to the whole register.
    pub hides: bool,
}

/// Result of the analysis.
#[derive(Clone, Debug)]
pub(crate) struct Reaching {
    /// Definitions, ordered by register and then by statement.
    definitions: Vec<Definition>,
    /// For each register, the beginning of its definitions, and last the end of all.
    starts: Vec<u32>,
    /// For each definition of a register that has several, its bit.
    bits: Vec<u32>,
    /// Words of a block's bits.
    words: usize,
    /// For each block, the definitions that are visible at its beginning.
    entering: Vec<u64>,
}

/// The most bits of all blocks together, and the most words that the search looks at.
const MOST_BITS: usize = 1 << 28;
const BUDGET: usize = 1 << 26;

impl Reaching {
    /// Follows the definitions of so many registers. `None` when that takes too much.
    pub fn new(cfg: &Cfg, registers: usize, mut definitions: Vec<Definition>) -> Option<Self> {
        definitions.sort_unstable();
        definitions.dedup_by_key(|definition| (definition.reg, definition.stmt));
        let count =
            |index: usize| u32::try_from(index).expect("fewer definitions than source bytes");
        let place =
            |reg: usize| definitions.partition_point(|definition| definition.reg.index() < reg);
        let starts: Vec<u32> = (0..=registers).map(|reg| count(place(reg))).collect();
        let mut reaching = Self {
            bits: vec![u32::MAX; definitions.len()],
            definitions,
            starts,
            words: 0,
            entering: Vec::new(),
        };
        let mut bits = 0;
        for reg in 0..registers {
            let range = reaching.range(reg);
            if range.len() > 1 {
                for bit in &mut reaching.bits[range] {
                    *bit = bits;
                    bits += 1;
                }
            }
        }
        reaching.words = (bits as usize).div_ceil(64);
        if reaching.words.saturating_mul(cfg.blocks.len()) > MOST_BITS / 64 {
            return None;
        }
        reaching.follow(cfg)?;
        Some(reaching)
    }

    fn range(&self, reg: usize) -> Range<usize> {
        self.starts[reg] as usize..self.starts[reg + 1] as usize
    }

    /// The number of definitions.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// All definitions of a register.
    pub fn of(&self, reg: Reg) -> Range<usize> {
        self.range(reg.index())
    }

    /// The definition of a register by a statement.
    pub fn at(&self, stmt: u32, reg: Reg) -> Option<usize> {
        let range = self.of(reg);
        let own = &self.definitions[range.clone()];
        own.binary_search_by_key(&stmt, |definition| definition.stmt)
            .ok()
            .map(|index| range.start + index)
    }

    /// The definitions that a use of a register in a statement may see.
    pub fn seen(&self, cfg: &Cfg, stmt: usize, reg: Reg, mut see: impl FnMut(usize)) {
        let range = self.of(reg);
        if range.len() <= 1 {
            range.for_each(see);
            return;
        }
        let block = cfg.block_of[stmt];
        let earlier = |index: &usize| (self.definitions[*index].stmt as usize) < stmt;
        let here = |index: &usize| cfg.block_of[self.definitions[*index].stmt as usize] == block;
        for index in range.clone().rev().skip_while(|index| !earlier(index)).take_while(here) {
            see(index);
            if self.definitions[index].hides {
                return;
            }
        }
        let entering = &self.entering[block.index() * self.words..][..self.words];
        let enters = |bit: u32| entering[bit as usize / 64] & 1 << (bit % 64) != 0;
        range.filter(|&index| enters(self.bits[index])).for_each(see);
    }

    fn follow(&mut self, cfg: &Cfg) -> Option<()> {
        let blocks = cfg.blocks.len();
        let words = self.words;
        self.entering = vec![0; blocks * words];
        if words == 0 {
            return Some(());
        }
        // What a block adds, and the registers of which it hides all others.
        let mut made: Vec<Vec<usize>> = vec![Vec::new(); blocks];
        for (index, definition) in self.definitions.iter().enumerate() {
            if self.bits[index] != u32::MAX {
                made[cfg.block_of[definition.stmt as usize].index()].push(index);
            }
        }
        let mut waiting = vec![true; blocks];
        let mut stack: Vec<usize> = (0..blocks).rev().collect();
        let mut budget = BUDGET;
        let mut leaving = vec![0_u64; words];
        while let Some(block) = stack.pop() {
            waiting[block] = false;
            budget = budget.checked_sub(words + made[block].len())?;
            leaving.copy_from_slice(&self.entering[block * words..][..words]);
            for &index in &made[block] {
                if self.definitions[index].hides {
                    for other in self.of(self.definitions[index].reg) {
                        leaving[self.bits[other] as usize / 64] &= !(1 << (self.bits[other] % 64));
                    }
                }
                leaving[self.bits[index] as usize / 64] |= 1 << (self.bits[index] % 64);
            }
            for &BlockId(next) in &cfg.blocks[block].succs {
                let next = next as usize;
                if next >= blocks {
                    continue;
                }
                let mut rose = false;
                for (into, from) in self.entering[next * words..][..words].iter_mut().zip(&leaving)
                {
                    rose |= from & !*into != 0;
                    *into |= from;
                }
                if rose && !std::mem::replace(&mut waiting[next], true) {
                    stack.push(next);
                }
            }
        }
        Some(())
    }
}
