//! Seeded choices: the same seed and purpose give the same choices in every process.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::time::Duration;

/// The only source of chance: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// The next 32 bits.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.bits() >> 32).expect("32 bits are left")
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    /// A span of at least `least` and less than `most` milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least))
    }

    /// One of several things, of which there is at least one.
    pub fn one_of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        let at = usize::try_from(self.below(things.len() as u64)).expect("an index of a slice");
        &things[at]
    }

    /// `count` different things, or all where there are fewer.
    pub fn some_of<T: Copy>(&mut self, things: &[T], count: usize) -> Vec<T> {
        let mut left = things.to_vec();
        let mut taken = Vec::new();
        while taken.len() < count && !left.is_empty() {
            let at = usize::try_from(self.below(left.len() as u64)).expect("an index of a slice");
            taken.push(left.swap_remove(at));
        }
        taken
    }
}
