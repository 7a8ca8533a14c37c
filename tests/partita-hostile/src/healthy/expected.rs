//! What the healthy kernels (`kernels.ptx`) leave in memory, computed on the host.

use crate::random::Random;

/// Words of the data.
pub const WORDS: u32 = 8 << 10;
/// Threads of a CTA; `sums` adds as many words.
pub const THREADS: u32 = 128;
/// Counters of `bins`.
pub const BINS: usize = 256;

/// The data and the results of one round.
pub struct Round {
    /// What is uploaded.
    pub data: Vec<u32>,
    /// Steps of `mix`, at least 1.
    pub steps: u32,
    /// The result of `sums`.
    pub sums: Vec<u32>,
    /// The result of `turn`.
    pub turned: Vec<u32>,
    /// The result of `bins`.
    pub bins: Vec<u32>,
}

impl Round {
    /// The next round of a program.
    pub fn next(random: &mut Random) -> Round {
        let data: Vec<u32> = (0..WORDS).map(|_| random.word()).collect();
        let steps = 64 + random.word() % 64;
        let (factor, summand) = generator(steps);
        let mixed: Vec<u32> =
            data.iter().map(|x| x.wrapping_mul(factor).wrapping_add(summand)).collect();
        let sums = mixed
            .chunks(THREADS as usize)
            .map(|part| part.iter().fold(0_u32, |sum, x| sum.wrapping_add(*x)))
            .collect();
        let turned = (0..WORDS).zip(&mixed).map(|(i, x)| x ^ i).rev().collect();
        let mut bins = vec![0; BINS];
        mixed.iter().for_each(|x| bins[(x & 255) as usize] += 1);
        Round { data, steps, sums, turned, bins }
    }
}

/// Factor and summand of `steps` steps of `mix` at once.
fn generator(steps: u32) -> (u32, u32) {
    let step = |(factor, summand): (u32, u32), _| {
        let next = |x: u32| x.wrapping_mul(1_664_525);
        (next(factor), next(summand).wrapping_add(1_013_904_223))
    };
    (0..steps).fold((1, 0), step)
}

/// The first place where two results differ, in words.
pub fn difference(what: &str, found: &[u8], expected: &[u32]) -> Option<String> {
    let words = found.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
    words
        .zip(expected)
        .enumerate()
        .find(|(_, (found, expected))| found != *expected)
        .map(|(at, (found, expected))| format!("{what}[{at}] is {found:#x}, not {expected:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jump_is_as_many_steps() {
        let (factor, summand) = generator(37);
        let slow =
            (0..37).fold(5_u32, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        assert_eq!(5_u32.wrapping_mul(factor).wrapping_add(summand), slow);
    }

    #[test]
    fn a_difference_is_named() {
        assert_eq!(difference("sums", &[1, 0, 0, 0, 2, 0, 0, 0], &[1, 2]), None);
        let found = difference("sums", &[1, 0, 0, 0, 2, 0, 0, 0], &[1, 3]);
        assert_eq!(found.as_deref(), Some("sums[1] is 0x2, not 0x3"));
    }
}
