//! The shapes of launches that `partita bench overhead` measures, and the length of each CTA.

use partita_bench::Random;
use serde::Serialize;
use std::fmt;

/// CTAs that sleep this long in nanoseconds, beside some 0.3 µs of their own work.
const TIMES: [u32; 3] = [0, 3_000, 100_000];
/// The long CTAs of an uneven grid are this much longer, and one CTA in as many is long.
const UNEVEN: u32 = 100;
/// Sleep of the short CTAs of uneven grids, in nanoseconds.
const UNEVEN_TIME: u32 = 1_000;

/// Where the long CTAs of an uneven grid are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Long {
    /// All CTAs take the same time.
    Nowhere,
    /// At the beginning.
    First,
    /// At the end.
    Last,
    /// Anywhere, by the seed.
    Scattered,
}

/// A launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Shape {
    /// CTAs.
    pub ctas: u32,
    /// Threads of each.
    pub threads: u32,
    /// Sleep of a CTA in nanoseconds.
    pub sleep_ns: u32,
    /// Where the long CTAs are.
    pub long: Long,
    /// Whether the kernel has shared memory and barriers.
    pub shared: bool,
}

impl Shape {
    /// The sleep of each CTA in nanoseconds.
    pub fn sleeps(&self, seed: u64) -> Vec<u32> {
        let mut sleeps = vec![self.sleep_ns; self.ctas as usize];
        let count = (self.ctas / UNEVEN).max(1) as usize;
        let long = self.sleep_ns * UNEVEN;
        let end = sleeps.len();
        match self.long {
            Long::Nowhere => {}
            Long::First => sleeps[..count].fill(long),
            Long::Last => sleeps[end - count..].fill(long),
            Long::Scattered => {
                let mut random = Random::new(seed);
                for _ in 0..count {
                    let cta = random.below(u64::from(self.ctas));
                    sleeps[usize::try_from(cta).unwrap_or_default()] = long;
                }
            }
        }
        sleeps
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { ctas, threads, sleep_ns, long, shared } = *self;
        write!(f, "{ctas} x {threads}, {:.1} us", f64::from(sleep_ns) / 1e3 + 0.3)?;
        match long {
            Long::Nowhere => {}
            Long::First => write!(f, ", long first")?,
            Long::Last => write!(f, ", long last")?,
            Long::Scattered => write!(f, ", long scattered")?,
        }
        if shared { write!(f, ", barriers") } else { Ok(()) }
    }
}

/// The matrix, or a part of it that takes less than a minute.
pub fn matrix(quick: bool) -> Vec<Shape> {
    let grids: &[u32] =
        if quick { &[1, 264, 4_224] } else { &[1, 16, 132, 264, 1_056, 4_224, 16_896, 70_000] };
    let blocks: &[u32] = if quick { &[32, 256] } else { &[32, 128, 256, 1_024] };
    let most_threads = if quick { 1 << 20 } else { 1 << 24 };
    let mut shapes = Vec::new();
    for &ctas in grids {
        for &threads in blocks.iter().filter(|&&threads| ctas * threads <= most_threads) {
            for sleep_ns in TIMES {
                for shared in [false, true] {
                    let long = Long::Nowhere;
                    shapes.push(Shape { ctas, threads, sleep_ns, long, shared });
                }
            }
        }
    }
    let grids: &[u32] = if quick { &[4_224] } else { &[132, 1_056, 4_224, 16_896, 70_000] };
    let blocks: &[u32] = if quick { &[64] } else { &[64, 256] };
    for &ctas in grids {
        for &threads in blocks.iter().filter(|&&threads| ctas * threads <= most_threads) {
            for long in [Long::First, Long::Last, Long::Scattered] {
                let sleep_ns = UNEVEN_TIME;
                shapes.push(Shape { ctas, threads, sleep_ns, long, shared: false });
            }
        }
    }
    shapes
}

/// Shapes of programs that share the GPU in halves.
pub fn halves(quick: bool) -> Vec<Shape> {
    let shape =
        |ctas, threads, sleep_ns, long| Shape { ctas, threads, sleep_ns, long, shared: false };
    let mut shapes = vec![
        shape(264, 256, 0, Long::Nowhere),
        shape(1_056, 256, 3_000, Long::Nowhere),
        shape(4_224, 64, UNEVEN_TIME, Long::First),
    ];
    if !quick {
        shapes.extend([
            shape(1, 256, 3_000, Long::Nowhere),
            shape(132, 1_024, 3_000, Long::Nowhere),
            shape(4_224, 256, 0, Long::Nowhere),
            shape(4_224, 64, UNEVEN_TIME, Long::Last),
            shape(4_224, 64, UNEVEN_TIME, Long::Scattered),
        ]);
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cta_in_a_hundred_is_long() {
        let of =
            |long| Shape { ctas: 1_000, threads: 32, sleep_ns: 7, long, shared: false }.sleeps(3);
        assert!(of(Long::Nowhere).iter().all(|&sleep| sleep == 7));
        assert_eq!(of(Long::First)[..11], [[700; 10].as_slice(), &[7]].concat());
        assert_eq!(of(Long::Last)[989..], [[7].as_slice(), &[700; 10]].concat());
        let scattered = of(Long::Scattered).iter().filter(|&&sleep| sleep == 700).count();
        assert!((5..=10).contains(&scattered), "{scattered}");
    }
}
