//! Questions about rows that plain loops over lanes do not compile well to.
//!
//! Each has one answer in plain Rust ([`Plain`]) and one in the intrinsics of a vector unit. A value of a vector unit's
//! type exists only where the processor has it, so having one is the permission to use it.

/// Lanes that are looked at together: tiles of matrices are 16 wide.
pub const HALF: usize = 16;

/// How numbers in 16 lanes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// All are one.
    One,
    /// Each is the first plus what the pattern says for its lane.
    Run,
    /// Otherwise.
    Scattered,
}

impl Shape {
    #[inline(always)]
    fn of(is_one: bool, is_run: bool) -> Self {
        match (is_run, is_one) {
            (true, _) => Shape::Run,
            (_, true) => Shape::One,
            _ => Shape::Scattered,
        }
    }
}

/// Answers questions about rows of addresses.
pub trait Vector: Copy {
    /// How the lanes lie.
    fn shape32(self, lanes: &[u32; HALF], pattern: &[u32; HALF]) -> Shape;

    /// As [`Vector::shape32`].
    fn shape64(self, lanes: &[u64; HALF], pattern: &[u64; HALF]) -> Shape;

    /// Whether all lanes are at most `last` and have none of the bits of `misaligned`.
    fn is_inside32(self, lanes: &[u32; HALF], last: u32, misaligned: u32) -> bool;

    /// Whether all lanes less `base` are at most `last`, which is below 2^63, and have none of the bits of
    /// `misaligned`.
    fn is_inside64(self, lanes: &[u64; HALF], base: u64, last: u64, misaligned: u64) -> bool;
}

/// Loops, for any processor.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Vector for Plain {
    #[inline(always)]
    fn shape32(self, lanes: &[u32; HALF], pattern: &[u32; HALF]) -> Shape {
        let apart = || lanes.iter().map(|lane| lane.wrapping_sub(lanes[0]));
        Shape::of(apart().all(|apart| apart == 0), apart().eq(*pattern))
    }

    #[inline(always)]
    fn shape64(self, lanes: &[u64; HALF], pattern: &[u64; HALF]) -> Shape {
        let apart = || lanes.iter().map(|lane| lane.wrapping_sub(lanes[0]));
        Shape::of(apart().all(|apart| apart == 0), apart().eq(*pattern))
    }

    #[inline(always)]
    fn is_inside32(self, lanes: &[u32; HALF], last: u32, misaligned: u32) -> bool {
        lanes.iter().all(|&lane| lane <= last && lane & misaligned == 0)
    }

    #[inline(always)]
    fn is_inside64(self, lanes: &[u64; HALF], base: u64, last: u64, misaligned: u64) -> bool {
        lanes.iter().all(|&lane| {
            let offset = lane.wrapping_sub(base);
            offset <= last && offset & misaligned == 0
        })
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::Avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{HALF, Shape, Vector};
    use std::arch::x86_64::*;

    /// AVX2 of x86-64.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    impl Avx2 {
        /// Where the processor has AVX2, and with it FMA and what else the interpreter is compiled for.
        #[must_use]
        pub fn detect() -> Option<Self> {
            use std::sync::OnceLock;
            static FOUND: OnceLock<bool> = OnceLock::new();
            let found = *FOUND.get_or_init(|| {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("lzcnt")
                    && is_x86_feature_detected!("popcnt")
            });
            found.then_some(Avx2(()))
        }
    }

    impl Vector for Avx2 {
        #[inline(always)]
        fn shape32(self, lanes: &[u32; HALF], pattern: &[u32; HALF]) -> Shape {
            // SAFETY: `self` exists only where the processor has AVX2.
            unsafe { shape32(lanes, pattern) }
        }

        #[inline(always)]
        fn shape64(self, lanes: &[u64; HALF], pattern: &[u64; HALF]) -> Shape {
            // SAFETY: as above.
            unsafe { shape64(lanes, pattern) }
        }

        #[inline(always)]
        fn is_inside32(self, lanes: &[u32; HALF], last: u32, misaligned: u32) -> bool {
            // SAFETY: as above.
            unsafe { is_inside32(lanes, last, misaligned) }
        }

        #[inline(always)]
        fn is_inside64(self, lanes: &[u64; HALF], base: u64, last: u64, misaligned: u64) -> bool {
            // SAFETY: as above.
            unsafe { is_inside64(lanes, base, last, misaligned) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load32(lanes: &[u32; 8]) -> __m256i {
        // SAFETY: the reference names 32 readable bytes, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load64(lanes: &[u64; 4]) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn shape32(lanes: &[u32; HALF], pattern: &[u32; HALF]) -> Shape {
        let first = _mm256_set1_epi32(lanes[0].cast_signed());
        let mut different = _mm256_setzero_si256();
        let mut stray = _mm256_setzero_si256();
        for (lanes, pattern) in lanes.as_chunks().0.iter().zip(pattern.as_chunks().0) {
            let apart = _mm256_sub_epi32(load32(lanes), first);
            different = _mm256_or_si256(different, apart);
            stray = _mm256_or_si256(stray, _mm256_xor_si256(apart, load32(pattern)));
        }
        Shape::of(_mm256_testz_si256(different, different) == 1, _mm256_testz_si256(stray, stray) == 1)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn shape64(lanes: &[u64; HALF], pattern: &[u64; HALF]) -> Shape {
        let first = _mm256_set1_epi64x(lanes[0].cast_signed());
        let mut different = _mm256_setzero_si256();
        let mut stray = _mm256_setzero_si256();
        for (lanes, pattern) in lanes.as_chunks().0.iter().zip(pattern.as_chunks().0) {
            let apart = _mm256_sub_epi64(load64(lanes), first);
            different = _mm256_or_si256(different, apart);
            stray = _mm256_or_si256(stray, _mm256_xor_si256(apart, load64(pattern)));
        }
        Shape::of(_mm256_testz_si256(different, different) == 1, _mm256_testz_si256(stray, stray) == 1)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn is_inside32(lanes: &[u32; HALF], last: u32, misaligned: u32) -> bool {
        let last = _mm256_set1_epi32(last.cast_signed());
        let misaligned = _mm256_set1_epi32(misaligned.cast_signed());
        let mut bad = _mm256_setzero_si256();
        for lanes in lanes.as_chunks().0 {
            let lanes = load32(lanes);
            // What is greater than `last` changes it as a maximum.
            let outside = _mm256_xor_si256(_mm256_max_epu32(lanes, last), last);
            bad = _mm256_or_si256(bad, _mm256_or_si256(outside, _mm256_and_si256(lanes, misaligned)));
        }
        _mm256_testz_si256(bad, bad) == 1
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn is_inside64(lanes: &[u64; HALF], base: u64, last: u64, misaligned: u64) -> bool {
        let base = _mm256_set1_epi64x(base.cast_signed());
        let last = _mm256_set1_epi64x(last.cast_signed());
        // The top bit of an offset, or of what is left behind it, tells that it is outside.
        let wrong = _mm256_set1_epi64x((misaligned | 1 << 63).cast_signed());
        let top = _mm256_set1_epi64x(i64::MIN);
        let mut bad = _mm256_setzero_si256();
        for lanes in lanes.as_chunks().0 {
            let offset = _mm256_sub_epi64(load64(lanes), base);
            let rest = _mm256_and_si256(_mm256_sub_epi64(last, offset), top);
            bad = _mm256_or_si256(bad, _mm256_or_si256(rest, offset));
        }
        _mm256_testz_si256(bad, wrong) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: [u64; HALF] = {
        let mut run = [0; HALF];
        let mut lane = 0;
        while lane < HALF {
            run[lane] = 8 * lane as u64;
            lane += 1;
        }
        run
    };

    fn shapes(vector: impl Vector) {
        let narrow = |lanes: [u64; HALF]| lanes.map(|lane| lane as u32);
        let check = |lanes: [u64; HALF], shape| {
            assert_eq!(vector.shape64(&lanes, &RUN), shape, "{lanes:x?}");
            assert_eq!(vector.shape32(&narrow(lanes), &narrow(RUN)), shape, "{lanes:x?}");
        };
        for first in [0, 8, u64::MAX - 63, 1 << 40, u64::from(u32::MAX) - 63] {
            for (shape, lanes) in
                [(Shape::Run, RUN.map(|step| step.wrapping_add(first))), (Shape::One, [first; HALF])]
            {
                check(lanes, shape);
                for lane in 0..HALF {
                    let mut lanes = lanes;
                    lanes[lane] ^= 1;
                    check(lanes, Shape::Scattered);
                }
            }
        }
    }

    fn insides(vector: impl Vector) {
        let base: u64 = 0x1000_0000_0040;
        for (offset, inside) in [
            (0, true),
            (64, true),
            (60, true),
            (65, false),
            (68, false),
            (62, false),
            (u64::MAX, false),
            (u64::MAX - 3, false),
            (1 << 63, false),
            ((1 << 63) + 64, false),
            (1 << 62, false),
        ] {
            for lane in 0..HALF {
                let mut lanes = [base + 4; HALF];
                lanes[lane] = base.wrapping_add(offset);
                assert_eq!(vector.is_inside64(&lanes, base, 64, 3), inside, "{offset:#x} in lane {lane}");
            }
        }
        for (at, inside) in [(0, true), (64, true), (65, false), (68, false), (62, false), (1 << 31, false)] {
            for lane in 0..HALF {
                let mut lanes = [4; HALF];
                lanes[lane] = at;
                assert_eq!(vector.is_inside32(&lanes, 64, 3), inside, "{at:#x} in lane {lane}");
            }
        }
    }

    #[test]
    fn plain() {
        shapes(Plain);
        insides(Plain);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn avx2() {
        let Some(vector) = Avx2::detect() else {
            eprintln!("skipped: this processor has no AVX2");
            return;
        };
        shapes(vector);
        insides(vector);
    }
}
