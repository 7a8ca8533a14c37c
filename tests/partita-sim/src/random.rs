//! The only source of chance.

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): its results are part of what a seed means, so
/// it is written out here.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed. Neighbouring seeds give unrelated numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let start = random.next();
        Random(start)
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it has no end, and nobody iterates")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high) - u64::from(low) + 1;
        u32::try_from(u64::from(low) + self.below(span)).unwrap_or(high)
    }

    /// True once in `of` times.
    pub fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// If the slice is empty.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(of.len() as u64)).unwrap_or(0);
        &of[index]
    }
}
