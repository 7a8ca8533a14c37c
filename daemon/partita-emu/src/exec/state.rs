//! The hot state of a run, and the lane-wise work of an instruction: read rows, compute 32 lanes,
//! write a row.
//!
//! Each function looks an operand up once for all warps of the team. Per warp only the mask and the
//! rows remain.

use super::inst::{FRAME, Inst, Source, Target};
use super::program::Program;
use super::registers::{AnyWidth, Frame, Operand, Rows, Width};
use super::rows::{LANES, Row32, Row64, blend32, blend64, each, lanes_where, lanes_where_wide};
use super::team::{MAX_WARPS, Masks};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Writes a row in the active lanes of every warp. A closure in its place would be a function of
/// its own, compiled without the vector units of its caller.
macro_rules! write_rows {
    ($core:ident.$rows:ident($i:ident), |$w:ident| $values:expr) => {{
        let (masks, d) = ($core.active($i), $core.$rows($i.d));
        for $w in 0..$core.warps() {
            if masks[$w] != 0 {
                d.of($w).put(masks[$w], &$values);
            }
        }
    }};
}

/// As [`write_rows`], for predicates.
macro_rules! write_predicates {
    ($core:ident($i:ident), |$w:ident| $bits:expr) => {{
        let (masks, d) = ($core.active($i), $core.predicates($i.d));
        for $w in 0..$core.warps() {
            if masks[$w] != 0 {
                merge(d.of($w), masks[$w], $bits);
            }
        }
    }};
}

/// The hot state of a run: the registers and which of their lanes are active.
#[derive(Clone, Copy)]
pub struct Core<'a> {
    /// The team's rows.
    pub frame: Frame<'a>,
    /// Warps of the team.
    pub warps: usize,
    /// First warp of the team.
    pub first_warp: usize,
    /// Active threads.
    pub masks: Masks,
}

impl<'a> Core<'a> {
    /// The threads that execute an instruction.
    #[inline(always)]
    #[must_use]
    pub fn active(&self, inst: &Inst) -> Masks {
        if inst.guard == 0 {
            return self.masks;
        }
        let (guard, flip) = self.guard(inst);
        let mut masks = self.masks;
        for w in 0..MAX_WARPS {
            masks[w] &= guard.of(w).get() ^ flip;
        }
        masks
    }

    /// The threads of a warp that execute an instruction.
    #[inline(always)]
    #[must_use]
    pub fn mask(&self, inst: &Inst, warp: usize) -> u32 {
        let mask = self.masks[warp & (MAX_WARPS - 1)];
        if inst.guard == 0 {
            return mask;
        }
        let (guard, flip) = self.guard(inst);
        mask & (guard.of(warp).get() ^ flip)
    }

    #[inline(always)]
    fn guard(&self, inst: &Inst) -> (Operand<'a, Cell<u32>>, u32) {
        (self.frame.predicates::<AnyWidth>(guard_of(inst)), flip_of(inst))
    }

    /// A 32-bit row of a warp.
    #[inline(always)]
    #[must_use]
    pub fn row32(&self, operand: u32, warp: usize) -> &'a Row32 {
        self.frame.rows32::<AnyWidth>(operand).of(warp)
    }

    /// A 64-bit row of a warp.
    #[inline(always)]
    #[must_use]
    pub fn row64(&self, operand: u32, warp: usize) -> &'a Row64 {
        self.frame.rows64::<AnyWidth>(operand).of(warp)
    }

    /// A predicate of a warp.
    #[inline(always)]
    #[must_use]
    pub fn predicate(&self, operand: u32, warp: usize) -> u32 {
        self.frame.predicates::<AnyWidth>(operand).of(warp).get()
    }

    /// Writes a predicate under a mask.
    #[inline(always)]
    pub fn put_p(&self, operand: u32, warp: usize, mask: u32, value: u32) {
        merge(self.frame.predicates::<AnyWidth>(operand).of(warp), mask, value);
    }

    /// The value of a source in one lane.
    #[must_use]
    pub fn get(&self, source: Source, warp: usize, lane: usize) -> u64 {
        match source {
            Source::None => 0,
            Source::R32(r) => u64::from(self.row32(r, warp).lane(lane)),
            Source::R64(r) => self.row64(r, warp).lane(lane),
            Source::P(p) => u64::from(self.predicate(p, warp) >> lane & 1),
        }
    }

    /// A source in all lanes.
    #[must_use]
    pub fn get_all(&self, source: Source, warp: usize) -> [u64; LANES] {
        let mut row = [0; LANES];
        self.get_row(source, warp, &mut row);
        row
    }

    /// Reads a source in all lanes into a row, which stays as it is where there is no source.
    #[inline(always)]
    fn get_row(&self, source: Source, warp: usize, into: &mut [u64; LANES]) {
        match source {
            Source::None => {}
            Source::R32(r) => {
                let row = self.row32(r, warp);
                for lane in 0..LANES {
                    into[lane] = row.lane(lane).into();
                }
            }
            Source::R64(r) => {
                let row = self.row64(r, warp);
                for lane in 0..LANES {
                    into[lane] = row.lane(lane);
                }
            }
            Source::P(p) => {
                let bits = self.predicate(p, warp);
                for lane in 0..LANES {
                    into[lane] = u64::from(bits >> lane & 1);
                }
            }
        }
    }

    /// Writes a target in all lanes of a mask.
    pub fn put_all(&self, target: Target, warp: usize, mask: u32, value: &[u64; LANES]) {
        match target {
            Target::None => {}
            Target::R8(r) => {
                self.row32(r, warp).put(mask, &each(|lane| u32::from(value[lane] as u8)))
            }
            Target::R16(r) => {
                self.row32(r, warp).put(mask, &each(|lane| u32::from(value[lane] as u16)))
            }
            Target::R32(r) => self.row32(r, warp).put(mask, &each(|lane| value[lane] as u32)),
            Target::R64(r) => self.row64(r, warp).put(mask, value),
            Target::P(p) => {
                self.put_p(p, warp, mask, lanes_where_wide(|lane| value[lane] & 1 == 1))
            }
        }
    }

    /// An operation of the side table, lane by lane.
    #[inline(never)]
    pub fn lane_by_lane(&self, i: &Inst, program: &Program) {
        let op = &program.lane_ops[i.imm as usize];
        // Rows are read in place: copies of three of them took 4 % of a timed run.
        let mut rows = [[0; LANES]; 3];
        for w in 0..self.warps {
            let mask = self.mask(i, w);
            if mask == 0 {
                continue;
            }
            for (row, source) in rows.iter_mut().zip(op.sources) {
                self.get_row(source, w, row);
            }
            let [a, b, c] = &rows;
            let mut out = [0; LANES];
            for l in 0..LANES {
                if mask >> l & 1 == 1 {
                    out[l] = (op.function)([a[l], b[l], c[l]], op.how);
                }
            }
            self.put_all(op.target, w, mask, &out);
        }
    }
}

/// The predicate that guards an instruction.
#[inline(always)]
fn guard_of(inst: &Inst) -> u32 {
    ((inst.guard >> 1) - 1) | FRAME
}

/// All ones where the guard is negated.
#[inline(always)]
fn flip_of(inst: &Inst) -> u32 {
    0_u32.wrapping_sub(inst.guard & 1)
}

/// The state as the most frequent instructions see it: the compiler knows what `W` tells of the
/// team.
pub struct Hot<'a, W> {
    core: Core<'a>,
    width: PhantomData<W>,
}

impl<'a, W> Deref for Hot<'a, W> {
    type Target = Core<'a>;

    #[inline(always)]
    fn deref(&self) -> &Core<'a> {
        &self.core
    }
}

impl<W> DerefMut for Hot<'_, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.core
    }
}

impl<'a, W: Width> Hot<'a, W> {
    /// The same state.
    #[inline(always)]
    #[must_use]
    pub fn of(core: Core<'a>) -> Self {
        Hot { core, width: PhantomData }
    }

    /// Warps of the team.
    #[inline(always)]
    #[must_use]
    pub fn warps(&self) -> usize {
        W::warps(self.core.warps)
    }

    /// The rows of a 32-bit operand.
    #[inline(always)]
    #[must_use]
    pub fn rows32(&self, operand: u32) -> W::Operand<'a, Row32> {
        self.core.frame.rows32::<W>(operand)
    }

    /// The rows of a 64-bit operand.
    #[inline(always)]
    #[must_use]
    pub fn rows64(&self, operand: u32) -> W::Operand<'a, Row64> {
        self.core.frame.rows64::<W>(operand)
    }

    /// A predicate operand.
    #[inline(always)]
    #[must_use]
    pub fn predicates(&self, operand: u32) -> W::Operand<'a, Cell<u32>> {
        self.core.frame.predicates::<W>(operand)
    }

    // This and `mask` repeat those of `Core`: one generic function for both made divergent kernels
    // 7 % slower.

    /// The threads that execute an instruction.
    #[inline(always)]
    #[must_use]
    pub fn active(&self, inst: &Inst) -> Masks {
        let mut masks = self.core.masks;
        if inst.guard != 0 {
            let (guard, flip) = (self.predicates(guard_of(inst)), flip_of(inst));
            for w in 0..W::warps(MAX_WARPS) {
                masks[w] &= guard.of(w).get() ^ flip;
            }
        }
        masks
    }

    /// The threads of a warp that execute an instruction.
    #[inline(always)]
    #[must_use]
    pub fn mask(&self, inst: &Inst, warp: usize) -> u32 {
        let mask = self.core.masks[warp & (MAX_WARPS - 1)];
        if inst.guard == 0 {
            return mask;
        }
        mask & (self.predicates(guard_of(inst)).of(warp).get() ^ flip_of(inst))
    }

    /// Threads of the fragment.
    #[inline(always)]
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.core.masks[..W::warps(MAX_WARPS)].iter().map(|mask| mask.count_ones()).sum()
    }

    /// Warps of which a thread is in the fragment.
    #[inline(always)]
    #[must_use]
    pub fn warps_in(&self) -> usize {
        self.core.masks[..W::warps(MAX_WARPS)].iter().filter(|&&mask| mask != 0).count()
    }

    /// 32 bits from 32.
    #[inline(always)]
    pub fn unary32(&self, i: &Inst, f: impl Fn(u32) -> u32) {
        let a = self.rows32(i.a);
        write_rows!(self.rows32(i), |w| {
            let a = a.of(w);
            each(|l| f(a.lane(l)))
        });
    }

    /// 32 bits from two of 32.
    #[inline(always)]
    pub fn binary32(&self, i: &Inst, f: impl Fn(u32, u32) -> u32) {
        let (a, b) = (self.rows32(i.a), self.rows32(i.b));
        write_rows!(self.rows32(i), |w| {
            let (a, b) = (a.of(w), b.of(w));
            each(|l| f(a.lane(l), b.lane(l)))
        });
    }

    /// 32 bits from three of 32.
    #[inline(always)]
    pub fn ternary32(&self, i: &Inst, f: impl Fn(u32, u32, u32) -> u32) {
        let (a, b, c) = (self.rows32(i.a), self.rows32(i.b), self.rows32(i.c));
        write_rows!(self.rows32(i), |w| {
            let (a, b, c) = (a.of(w), b.of(w), c.of(w));
            each(|l| f(a.lane(l), b.lane(l), c.lane(l)))
        });
    }

    /// 64 bits from 64.
    #[inline(always)]
    pub fn unary64(&self, i: &Inst, f: impl Fn(u64) -> u64) {
        let a = self.rows64(i.a);
        write_rows!(self.rows64(i), |w| {
            let a = a.of(w);
            each(|l| f(a.lane(l)))
        });
    }

    /// 64 bits from two of 64.
    #[inline(always)]
    pub fn binary64(&self, i: &Inst, f: impl Fn(u64, u64) -> u64) {
        let (a, b) = (self.rows64(i.a), self.rows64(i.b));
        write_rows!(self.rows64(i), |w| {
            let (a, b) = (a.of(w), b.of(w));
            each(|l| f(a.lane(l), b.lane(l)))
        });
    }

    /// 64 bits from three of 64.
    #[inline(always)]
    pub fn ternary64(&self, i: &Inst, f: impl Fn(u64, u64, u64) -> u64) {
        let (a, b, c) = (self.rows64(i.a), self.rows64(i.b), self.rows64(i.c));
        write_rows!(self.rows64(i), |w| {
            let (a, b, c) = (a.of(w), b.of(w), c.of(w));
            each(|l| f(a.lane(l), b.lane(l), c.lane(l)))
        });
    }

    /// A shift: the value has 64 bits, the count 32.
    #[inline(always)]
    pub fn shift64(&self, i: &Inst, f: impl Fn(u64, u32) -> u64) {
        let (a, b) = (self.rows64(i.a), self.rows32(i.b));
        write_rows!(self.rows64(i), |w| {
            let (a, b) = (a.of(w), b.of(w));
            each(|l| f(a.lane(l), b.lane(l)))
        });
    }

    /// 64 bits from 32.
    #[inline(always)]
    pub fn widen(&self, i: &Inst, f: impl Fn(u32) -> u64) {
        let a = self.rows32(i.a);
        write_rows!(self.rows64(i), |w| {
            let a = a.of(w);
            each(|l| f(a.lane(l)))
        });
    }

    /// 32 bits from 64.
    #[inline(always)]
    pub fn narrow(&self, i: &Inst, f: impl Fn(u64) -> u32) {
        let a = self.rows64(i.a);
        write_rows!(self.rows32(i), |w| {
            let a = a.of(w);
            each(|l| f(a.lane(l)))
        });
    }

    /// 64 bits from two of 32.
    #[inline(always)]
    pub fn wide_product(&self, i: &Inst, f: impl Fn(u32, u32) -> u64) {
        let (a, b) = (self.rows32(i.a), self.rows32(i.b));
        write_rows!(self.rows64(i), |w| {
            let (a, b) = (a.of(w), b.of(w));
            each(|l| f(a.lane(l), b.lane(l)))
        });
    }

    /// 64 bits from two of 32 and one of 64.
    #[inline(always)]
    pub fn wide_sum(&self, i: &Inst, f: impl Fn(u32, u32, u64) -> u64) {
        let (a, b, c) = (self.rows32(i.a), self.rows32(i.b), self.rows64(i.c));
        write_rows!(self.rows64(i), |w| {
            let (a, b, c) = (a.of(w), b.of(w), c.of(w));
            each(|l| f(a.lane(l), b.lane(l), c.lane(l)))
        });
    }

    /// A predicate from two of 32 bits.
    #[inline(always)]
    pub fn compare32(&self, i: &Inst, f: impl Fn(u32, u32) -> bool) {
        let (a, b) = (self.rows32(i.a), self.rows32(i.b));
        write_predicates!(self(i), |w| {
            let (a, b) = (a.of(w), b.of(w));
            lanes_where(|l| f(a.lane(l), b.lane(l)))
        });
    }

    /// A predicate from two of 64 bits.
    #[inline(always)]
    pub fn compare64(&self, i: &Inst, f: impl Fn(u64, u64) -> bool) {
        let (a, b) = (self.rows64(i.a), self.rows64(i.b));
        write_predicates!(self(i), |w| {
            let (a, b) = (a.of(w), b.of(w));
            lanes_where_wide(|l| f(a.lane(l), b.lane(l)))
        });
    }

    /// A predicate from two; bit 0 of `aux` negates the second.
    #[inline(always)]
    pub fn combine(&self, i: &Inst, f: impl Fn(u32, u32) -> u32) {
        let (a, b) = (self.predicates(i.a), self.predicates(i.b));
        let flip = 0_u32.wrapping_sub(u32::from(i.aux & 1));
        write_predicates!(self(i), |w| f(a.of(w).get(), b.of(w).get() ^ flip));
    }

    /// `selp` of 32 bits.
    #[inline(always)]
    pub fn select32(&self, i: &Inst) {
        let (a, b, c) = (self.rows32(i.a), self.rows32(i.b), self.predicates(i.c));
        write_rows!(self.rows32(i), |w| blend32(c.of(w).get(), &a.of(w).get(), &b.of(w).get()));
    }

    /// `selp` of 64 bits.
    #[inline(always)]
    pub fn select64(&self, i: &Inst) {
        let (a, b, c) = (self.rows64(i.a), self.rows64(i.b), self.predicates(i.c));
        write_rows!(self.rows64(i), |w| blend64(c.of(w).get(), &a.of(w).get(), &b.of(w).get()));
    }
}

/// Writes the bits of a predicate that `mask` names.
#[inline(always)]
pub fn merge(predicate: &Cell<u32>, mask: u32, value: u32) {
    predicate.set(predicate.get() & !mask | value & mask);
}
