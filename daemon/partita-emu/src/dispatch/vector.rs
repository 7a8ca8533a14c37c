//! Questions about rows, and moves of rows, that plain loops over lanes do not compile well to.
//!
//! Each has one answer in plain Rust ([`Plain`]) and one in the intrinsics of a vector unit. A
//! value of a vector unit's type exists only where the processor has it, so having one is the
//! permission to use it.

use std::cell::Cell;

/// Lanes that are looked at together: tiles of matrices are 16 wide.
pub const HALF: usize = 16;

/// How numbers in 16 lanes lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// All lanes are equal.
    One,
    /// Each lane is the first lane plus the pattern's entry for that lane.
    Run,
    /// The lanes follow no such pattern.
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

/// Answers questions about rows of addresses, and moves rows.
pub trait Vector: Copy {
    /// The pattern that the lanes follow.
    fn shape32(self, lanes: &[Cell<u32>; HALF], pattern: &[u32; HALF]) -> Shape;

    /// As [`Vector::shape32`].
    fn shape64(self, lanes: &[Cell<u64>; HALF], pattern: &[u64; HALF]) -> Shape;

    /// Writes lanes from memory.
    fn read32(self, from: &[[u8; 4]; HALF], to: &[Cell<u32>; HALF]);

    /// As [`Vector::read32`].
    fn read64(self, from: &[[u8; 8]; HALF], to: &[Cell<u64>; HALF]);

    /// Writes memory from lanes.
    fn write32(self, from: &[Cell<u32>; HALF], to: &mut [[u8; 4]; HALF]);

    /// As [`Vector::write32`].
    fn write64(self, from: &[Cell<u64>; HALF], to: &mut [[u8; 8]; HALF]);

    /// Writes all lanes alike.
    fn fill32(self, value: u32, to: &[Cell<u32>; HALF]);

    /// As [`Vector::fill32`].
    fn fill64(self, value: u64, to: &[Cell<u64>; HALF]);

    /// Whether all lanes are at most `last` and have none of the bits of `misaligned`.
    fn is_inside32(self, lanes: &[Cell<u32>; HALF], last: u32, misaligned: u32) -> bool;

    /// Whether each lane minus `base` is at most `last` and has none of the bits of `misaligned`.
    /// `last` is below 2^63.
    fn is_inside64(self, lanes: &[Cell<u64>; HALF], base: u64, last: u64, misaligned: u64) -> bool;
}

/// Loops, for any processor.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Vector for Plain {
    #[inline(always)]
    fn shape32(self, lanes: &[Cell<u32>; HALF], pattern: &[u32; HALF]) -> Shape {
        let apart = || lanes.iter().map(|lane| lane.get().wrapping_sub(lanes[0].get()));
        Shape::of(apart().all(|apart| apart == 0), apart().eq(*pattern))
    }

    #[inline(always)]
    fn shape64(self, lanes: &[Cell<u64>; HALF], pattern: &[u64; HALF]) -> Shape {
        let apart = || lanes.iter().map(|lane| lane.get().wrapping_sub(lanes[0].get()));
        Shape::of(apart().all(|apart| apart == 0), apart().eq(*pattern))
    }

    #[inline(always)]
    fn read32(self, from: &[[u8; 4]; HALF], to: &[Cell<u32>; HALF]) {
        for (to, from) in to.iter().zip(from) {
            to.set(u32::from_le_bytes(*from));
        }
    }

    #[inline(always)]
    fn write32(self, from: &[Cell<u32>; HALF], to: &mut [[u8; 4]; HALF]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.get().to_le_bytes();
        }
    }

    #[inline(always)]
    fn fill32(self, value: u32, to: &[Cell<u32>; HALF]) {
        to.iter().for_each(|to| to.set(value));
    }

    #[inline(always)]
    fn read64(self, from: &[[u8; 8]; HALF], to: &[Cell<u64>; HALF]) {
        for (to, from) in to.iter().zip(from) {
            to.set(u64::from_le_bytes(*from));
        }
    }

    #[inline(always)]
    fn write64(self, from: &[Cell<u64>; HALF], to: &mut [[u8; 8]; HALF]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.get().to_le_bytes();
        }
    }

    #[inline(always)]
    fn fill64(self, value: u64, to: &[Cell<u64>; HALF]) {
        to.iter().for_each(|to| to.set(value));
    }

    #[inline(always)]
    fn is_inside32(self, lanes: &[Cell<u32>; HALF], last: u32, misaligned: u32) -> bool {
        lanes.iter().map(Cell::get).all(|lane| lane <= last && lane & misaligned == 0)
    }

    #[inline(always)]
    fn is_inside64(self, lanes: &[Cell<u64>; HALF], base: u64, last: u64, misaligned: u64) -> bool {
        lanes.iter().all(|lane| {
            let offset = lane.get().wrapping_sub(base);
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
    use std::cell::Cell;

    /// AVX2 of x86-64.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    impl Avx2 {
        /// Where the processor has AVX2, and with it FMA and what else the interpreter is compiled
        /// for.
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

        /// Whether the processor has AVX-512, too, as far as the interpreter is compiled for it.
        #[must_use]
        pub fn has_avx512(self) -> bool {
            use std::sync::OnceLock;
            static FOUND: OnceLock<bool> = OnceLock::new();
            *FOUND.get_or_init(|| {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512cd")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            })
        }
    }

    impl Vector for Avx2 {
        #[inline(always)]
        fn shape32(self, lanes: &[Cell<u32>; HALF], pattern: &[u32; HALF]) -> Shape {
            // SAFETY: `self` exists only where the processor has AVX2.
            unsafe { shape32(lanes, pattern) }
        }

        #[inline(always)]
        fn shape64(self, lanes: &[Cell<u64>; HALF], pattern: &[u64; HALF]) -> Shape {
            // SAFETY: as above.
            unsafe { shape64(lanes, pattern) }
        }

        #[inline(always)]
        fn read32(self, from: &[[u8; 4]; HALF], to: &[Cell<u32>; HALF]) {
            // SAFETY: as above.
            unsafe { read32(from, to) }
        }

        #[inline(always)]
        fn write32(self, from: &[Cell<u32>; HALF], to: &mut [[u8; 4]; HALF]) {
            // SAFETY: as above.
            unsafe { write32(from, to) }
        }

        #[inline(always)]
        fn fill32(self, value: u32, to: &[Cell<u32>; HALF]) {
            // SAFETY: as above.
            unsafe { fill32(value, to) }
        }

        #[inline(always)]
        fn read64(self, from: &[[u8; 8]; HALF], to: &[Cell<u64>; HALF]) {
            // SAFETY: as above.
            unsafe { read64(from, to) }
        }

        #[inline(always)]
        fn write64(self, from: &[Cell<u64>; HALF], to: &mut [[u8; 8]; HALF]) {
            // SAFETY: as above.
            unsafe { write64(from, to) }
        }

        #[inline(always)]
        fn fill64(self, value: u64, to: &[Cell<u64>; HALF]) {
            // SAFETY: as above.
            unsafe { fill64(value, to) }
        }

        #[inline(always)]
        fn is_inside32(self, lanes: &[Cell<u32>; HALF], last: u32, misaligned: u32) -> bool {
            // SAFETY: as above.
            unsafe { is_inside32(lanes, last, misaligned) }
        }

        #[inline(always)]
        fn is_inside64(
            self,
            lanes: &[Cell<u64>; HALF],
            base: u64,
            last: u64,
            misaligned: u64,
        ) -> bool {
            // SAFETY: as above.
            unsafe { is_inside64(lanes, base, last, misaligned) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load32(lanes: &[Cell<u32>; 8]) -> __m256i {
        // SAFETY: the reference names 32 readable bytes, which no other thread can write; the load
        // needs no alignment.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load64(lanes: &[Cell<u64>; 4]) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store32(lanes: &[Cell<u32>; 8], value: __m256i) {
        // SAFETY: the reference names 32 bytes of cells, which may be written, and the store needs
        // no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_ptr().cast_mut().cast(), value) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn read32(from: &[[u8; 4]; HALF], to: &[Cell<u32>; HALF]) {
        for (to, from) in to.as_chunks().0.iter().zip(from.as_chunks::<8>().0) {
            // SAFETY: the reference names 32 readable bytes, and the load needs no alignment.
            store32(to, unsafe { _mm256_loadu_si256(from.as_ptr().cast()) });
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn write32(from: &[Cell<u32>; HALF], to: &mut [[u8; 4]; HALF]) {
        for (to, from) in to.as_chunks_mut::<8>().0.iter_mut().zip(from.as_chunks().0) {
            let value = load32(from);
            // SAFETY: the reference names 32 writable bytes, and the store needs no alignment.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn fill32(value: u32, to: &[Cell<u32>; HALF]) {
        let value = _mm256_set1_epi32(value.cast_signed());
        to.as_chunks().0.iter().for_each(|to| store32(to, value));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store64(lanes: &[Cell<u64>; 4], value: __m256i) {
        // SAFETY: the reference names 32 bytes of cells, which may be written, and the store needs
        // no alignment.
        unsafe { _mm256_storeu_si256(lanes.as_ptr().cast_mut().cast(), value) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn read64(from: &[[u8; 8]; HALF], to: &[Cell<u64>; HALF]) {
        for (to, from) in to.as_chunks().0.iter().zip(from.as_chunks::<4>().0) {
            // SAFETY: the reference names 32 readable bytes, and the load needs no alignment.
            store64(to, unsafe { _mm256_loadu_si256(from.as_ptr().cast()) });
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn write64(from: &[Cell<u64>; HALF], to: &mut [[u8; 8]; HALF]) {
        for (to, from) in to.as_chunks_mut::<4>().0.iter_mut().zip(from.as_chunks().0) {
            let value = load64(from);
            // SAFETY: the reference names 32 writable bytes, and the store needs no alignment.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn fill64(value: u64, to: &[Cell<u64>; HALF]) {
        let value = _mm256_set1_epi64x(value.cast_signed());
        to.as_chunks().0.iter().for_each(|to| store64(to, value));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn pattern32(lanes: &[u32; 8]) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn pattern64(lanes: &[u64; 4]) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(lanes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn shape32(lanes: &[Cell<u32>; HALF], pattern: &[u32; HALF]) -> Shape {
        let first = _mm256_set1_epi32(lanes[0].get().cast_signed());
        let mut different = _mm256_setzero_si256();
        let mut stray = _mm256_setzero_si256();
        for (lanes, pattern) in lanes.as_chunks().0.iter().zip(pattern.as_chunks().0) {
            let apart = _mm256_sub_epi32(load32(lanes), first);
            different = _mm256_or_si256(different, apart);
            stray = _mm256_or_si256(stray, _mm256_xor_si256(apart, pattern32(pattern)));
        }
        Shape::of(
            _mm256_testz_si256(different, different) == 1,
            _mm256_testz_si256(stray, stray) == 1,
        )
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn shape64(lanes: &[Cell<u64>; HALF], pattern: &[u64; HALF]) -> Shape {
        let first = _mm256_set1_epi64x(lanes[0].get().cast_signed());
        let mut different = _mm256_setzero_si256();
        let mut stray = _mm256_setzero_si256();
        for (lanes, pattern) in lanes.as_chunks().0.iter().zip(pattern.as_chunks().0) {
            let apart = _mm256_sub_epi64(load64(lanes), first);
            different = _mm256_or_si256(different, apart);
            stray = _mm256_or_si256(stray, _mm256_xor_si256(apart, pattern64(pattern)));
        }
        Shape::of(
            _mm256_testz_si256(different, different) == 1,
            _mm256_testz_si256(stray, stray) == 1,
        )
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn is_inside32(lanes: &[Cell<u32>; HALF], last: u32, misaligned: u32) -> bool {
        let last = _mm256_set1_epi32(last.cast_signed());
        let misaligned = _mm256_set1_epi32(misaligned.cast_signed());
        let mut bad = _mm256_setzero_si256();
        for lanes in lanes.as_chunks().0 {
            let lanes = load32(lanes);
            // The maximum differs from `last` if the lane is greater.
            let outside = _mm256_xor_si256(_mm256_max_epu32(lanes, last), last);
            bad =
                _mm256_or_si256(bad, _mm256_or_si256(outside, _mm256_and_si256(lanes, misaligned)));
        }
        _mm256_testz_si256(bad, bad) == 1
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn is_inside64(lanes: &[Cell<u64>; HALF], base: u64, last: u64, misaligned: u64) -> bool {
        let base = _mm256_set1_epi64x(base.cast_signed());
        let last = _mm256_set1_epi64x(last.cast_signed());
        // The offset is outside if its top bit, or the top bit of `last` − offset, is set.
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
            assert_eq!(vector.shape64(&lanes.map(Cell::new), &RUN), shape, "{lanes:x?}");
            assert_eq!(
                vector.shape32(&narrow(lanes).map(Cell::new), &narrow(RUN)),
                shape,
                "{lanes:x?}"
            );
        };
        for first in [0, 8, u64::MAX - 63, 1 << 40, u64::from(u32::MAX) - 63] {
            for (shape, lanes) in [
                (Shape::Run, RUN.map(|step| step.wrapping_add(first))),
                (Shape::One, [first; HALF]),
            ] {
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
                assert_eq!(
                    vector.is_inside64(&lanes.map(Cell::new), base, 64, 3),
                    inside,
                    "{offset:#x} in lane {lane}"
                );
            }
        }
        for (at, inside) in
            [(0, true), (64, true), (65, false), (68, false), (62, false), (1 << 31, false)]
        {
            for lane in 0..HALF {
                let mut lanes = [4; HALF];
                lanes[lane] = at;
                assert_eq!(
                    vector.is_inside32(&lanes.map(Cell::new), 64, 3),
                    inside,
                    "{at:#x} in lane {lane}"
                );
            }
        }
    }

    fn moves(vector: impl Vector) {
        let narrow: [u32; HALF] =
            std::array::from_fn(|lane| 0x0102_0304_u32.wrapping_mul(lane as u32 + 5));
        let wide = narrow.map(|lane| u64::from(lane) << 32 | u64::from(!lane));
        let cells = [0; HALF].map(Cell::new);
        vector.read32(&narrow.map(u32::to_le_bytes), &cells);
        assert_eq!(cells.each_ref().map(Cell::get), narrow);
        let mut memory = [[0; 4]; HALF];
        vector.write32(&cells, &mut memory);
        assert_eq!(memory, narrow.map(u32::to_le_bytes));
        vector.fill32(narrow[3], &cells);
        assert_eq!(cells.each_ref().map(Cell::get), [narrow[3]; HALF]);
        let cells = [0; HALF].map(Cell::new);
        vector.read64(&wide.map(u64::to_le_bytes), &cells);
        assert_eq!(cells.each_ref().map(Cell::get), wide);
        let mut memory = [[0; 8]; HALF];
        vector.write64(&cells, &mut memory);
        assert_eq!(memory, wide.map(u64::to_le_bytes));
        vector.fill64(wide[3], &cells);
        assert_eq!(cells.each_ref().map(Cell::get), [wide[3]; HALF]);
    }

    #[test]
    fn plain() {
        shapes(Plain);
        insides(Plain);
        moves(Plain);
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
        moves(vector);
    }
}
