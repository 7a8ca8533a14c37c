//! Seeded choices. The numbers that follow from a seed are part of what a figure means: another
//! generator is another workload.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// The only source of chance in the benchmarks: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(SplitMix64::seed_from_u64(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound.max(1)
    }

    /// Puts things into another order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).unwrap_or(0);
            things.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation (Vigna, splitmix64.c) for this seed.
    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut random = Random::new(1_477_776_061_723_855_037);
        assert_eq!(random.bits(), 1_985_237_415_132_408_290);
        assert_eq!(random.bits(), 2_979_275_885_539_914_483);
        assert_eq!(Random::new(7).below(0), 0);
    }
}
