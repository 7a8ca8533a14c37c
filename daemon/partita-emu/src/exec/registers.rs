//! The register file of a CTA: the rows that all its warps share, then one frame per team.
//!
//! In a team's frame the rows of one register stand side by side, one for each warp. So an
//! instruction finds the operands of all warps in one place. A shared row stands alone and serves
//! every warp. Behind the last frame there is room for [`MAX_WARPS`] further rows. Every operand is
//! viewed as that many rows, whatever the team's size, so the lookup of a warp's row needs no
//! check.
//!
//! With timing every team has one warp. The interpreter is compiled for that case, too
//! ([`OneWarp`]): an operand is one row then.

use super::inst::FRAME;
use super::program::{LaunchShape, OF_CTA, OfCta, Program};
use super::rows::{LANES, Row, Row32, Row64, each};
use super::team::MAX_WARPS;
use partita_model::Dim3;
use std::cell::Cell;

/// Index of the predicate that is always false.
pub const P_FALSE: u32 = 0;
/// Index of the predicate that is always true.
pub const P_TRUE: u32 = 1;

/// Counts or offsets of 32-bit rows, 64-bit rows and predicates.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    r32: usize,
    r64: usize,
    predicates: usize,
}

/// The register file of a CTA.
#[derive(Clone, Debug)]
pub struct Registers {
    r32: Vec<Row32>,
    r64: Vec<Row64>,
    p: Vec<Cell<u32>>,
    /// Shared rows.
    shared: Extent,
    /// Registers of a frame.
    frame: Extent,
    /// Logarithm of the rows of one register in a team's frame: the team's warps, rounded up to a
    /// power of two.
    stride: u32,
}

impl Registers {
    /// Registers for teams of at most `warps_per_team` warps, a power of two.
    #[must_use]
    pub fn new(
        program: &Program,
        shape: &LaunchShape<'_>,
        warps: usize,
        warps_per_team: usize,
    ) -> Self {
        let stride = warps_per_team.min(warps).next_power_of_two();
        let room = warps.next_multiple_of(stride);
        let shared = Extent {
            r32: program.constants32.len(),
            r64: program.constants64.len(),
            predicates: 2,
        };
        // An odd number of registers spreads the frames' rows over the sets of the host's cache.
        let frame = Extent {
            r32: program.frame32 | 1,
            r64: program.frame64 | 1,
            predicates: program.predicates | 1,
        };
        let registers = Registers {
            r32: vec![Row::filled(0); shared.r32 + frame.r32 * room + MAX_WARPS],
            r64: vec![Row::filled(0); shared.r64 + frame.r64 * room + MAX_WARPS],
            p: vec![Cell::new(0); shared.predicates + frame.predicates * room + MAX_WARPS],
            shared,
            frame,
            stride: stride.ilog2(),
        };
        for (row, constant) in registers.r32.iter().zip(&program.constants32) {
            row.set(&[constant.value(shape) as u32; LANES]);
        }
        for (row, constant) in registers.r64.iter().zip(&program.constants64) {
            row.set(&[constant.value(shape); LANES]);
        }
        registers.p[P_TRUE as usize].set(u32::MAX);
        for warp in 0..warps {
            registers.fill_fixed(program, shape.block, warp);
        }
        registers
    }

    fn fill_fixed(&self, program: &Program, block: Dim3, warp: usize) {
        let linear = |lane: usize| (warp * LANES + lane) as u32;
        let thread: [&dyn Fn(u32) -> u32; 3] =
            [&|i| i % block.x, &|i| i / block.x % block.y, &|i| i / block.x / block.y];
        for (row, of) in program.fixed.tid.iter().zip(thread) {
            if let Some(row) = row {
                self.own32(*row | FRAME, warp).set(&each(|lane| of(linear(lane))));
            }
        }
        if let Some(row) = program.fixed.laneid {
            self.own32(row | FRAME, warp).set(&each(|lane| lane as u32));
        }
    }

    /// A CTA is about to start; `own` are its own values, by [`super::program::OfCta`].
    pub fn enter(&self, program: &Program, own: &[u32; OF_CTA]) {
        for (row, &value) in program.cta_rows.iter().zip(own) {
            if let Some(row) = row {
                self.r32[*row as usize].set(&[value; LANES]);
            }
        }
        let window = own[OfCta::SharedWindow as usize];
        let [narrow, wide] = &program.shared_rows;
        for &(row, place) in narrow {
            let address = (place as u32).wrapping_add(window);
            let row = &self.r32[row as usize];
            if row.lane(0) != address {
                row.set(&[address; LANES]);
            }
        }
        for &(row, place) in wide {
            let address = place.wrapping_add(window.into());
            let row = &self.r64[row as usize];
            if row.lane(0) != address {
                row.set(&[address; LANES]);
            }
        }
    }

    /// A 32-bit operand in one warp of the CTA's.
    #[must_use]
    pub fn own32(&self, operand: u32, warp: usize) -> &Row32 {
        let team = warp >> self.stride << self.stride;
        self.frame_of(team).rows32::<AnyWidth>(operand).of(warp - team)
    }

    /// A 64-bit operand in one warp of the CTA's.
    #[must_use]
    pub fn own64(&self, operand: u32, warp: usize) -> &Row64 {
        let team = warp >> self.stride << self.stride;
        self.frame_of(team).rows64::<AnyWidth>(operand).of(warp - team)
    }

    /// Whether teams have one warp.
    #[must_use]
    pub fn has_single_warps(&self) -> bool {
        self.stride == 0
    }

    /// The frame of the team whose first warp is `first_warp`.
    #[must_use]
    pub fn frame_of(&self, first_warp: usize) -> Frame<'_> {
        Frame {
            r32: &self.r32,
            r64: &self.r64,
            p: &self.p,
            base: Extent {
                r32: self.shared.r32 + first_warp * self.frame.r32,
                r64: self.shared.r64 + first_warp * self.frame.r64,
                predicates: self.shared.predicates + first_warp * self.frame.predicates,
            },
            stride: self.stride,
        }
    }
}

/// A team's view of the registers.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    r32: &'a [Row32],
    r64: &'a [Row64],
    p: &'a [Cell<u32>],
    base: Extent,
    stride: u32,
}

/// An operand: its rows in all warps of a team.
pub trait Rows<'a, R>: Copy {
    /// The row of a warp.
    fn of(self, warp: usize) -> &'a R;
}

/// The rows of an operand of a team of any number of warps.
#[derive(Debug)]
pub struct Operand<'a, R> {
    rows: &'a [R; MAX_WARPS],
    /// All ones where each warp has its own row, else zero.
    own: usize,
}

impl<R> Clone for Operand<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Operand<'_, R> {}

impl<'a, R> Rows<'a, R> for Operand<'a, R> {
    #[inline(always)]
    fn of(self, warp: usize) -> &'a R {
        &self.rows[warp & self.own & (MAX_WARPS - 1)]
    }
}

impl<'a, R> Rows<'a, R> for &'a R {
    #[inline(always)]
    fn of(self, _: usize) -> &'a R {
        self
    }
}

/// The warps of a team, as far as they are known when the interpreter is compiled.
pub trait Width {
    /// An operand's rows.
    type Operand<'a, R: 'a>: Rows<'a, R>;

    /// Finds the rows of an operand of the team whose frame begins at `base`.
    fn operand<'a, R>(
        rows: &'a [R],
        operand: u32,
        base: usize,
        stride: u32,
    ) -> Self::Operand<'a, R>;

    /// The number of warps of a team that has `warps`.
    fn warps(warps: usize) -> usize;
}

/// A team has any number of warps.
#[derive(Debug)]
pub enum AnyWidth {}

/// A team has one warp, as where time is kept.
#[derive(Debug)]
pub enum OneWarp {}

const NO_ROW: &str = "there is room behind every row";

impl Width for AnyWidth {
    type Operand<'a, R: 'a> = Operand<'a, R>;

    #[inline(always)]
    fn operand<R>(rows: &[R], operand: u32, base: usize, stride: u32) -> Operand<'_, R> {
        let own = ((operand as i32) >> 31) as usize;
        let register = (operand & !FRAME) as usize;
        let start = (register << (stride & own as u32)) + (base & own);
        let rows = rows.get(start..).and_then(|rows| rows.first_chunk()).expect(NO_ROW);
        Operand { rows, own }
    }

    #[inline(always)]
    fn warps(warps: usize) -> usize {
        warps.min(MAX_WARPS)
    }
}

impl Width for OneWarp {
    type Operand<'a, R: 'a> = &'a R;

    #[inline(always)]
    fn operand<R>(rows: &[R], operand: u32, base: usize, _: u32) -> &R {
        let own = ((operand as i32) >> 31) as usize;
        let register = (operand & !FRAME) as usize;
        rows.get(register + (base & own)).expect(NO_ROW)
    }

    #[inline(always)]
    fn warps(_: usize) -> usize {
        1
    }
}

impl<'a> Frame<'a> {
    /// The rows of a 32-bit operand.
    #[inline(always)]
    #[must_use]
    pub fn rows32<W: Width>(&self, index: u32) -> W::Operand<'a, Row32> {
        W::operand(self.r32, index, self.base.r32, self.stride)
    }

    /// The rows of a 64-bit operand.
    #[inline(always)]
    #[must_use]
    pub fn rows64<W: Width>(&self, index: u32) -> W::Operand<'a, Row64> {
        W::operand(self.r64, index, self.base.r64, self.stride)
    }

    /// A predicate operand.
    #[inline(always)]
    #[must_use]
    pub fn predicates<W: Width>(&self, index: u32) -> W::Operand<'a, Cell<u32>> {
        W::operand(self.p, index, self.base.predicates, self.stride)
    }
}
