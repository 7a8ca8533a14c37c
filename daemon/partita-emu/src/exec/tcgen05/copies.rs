//! Copies from and to tensor memory: `ld` and `st` with registers, `cp` from shared memory, and
//! `shift` (PTX ISA, "Data Movement Shape", "tcgen05.ld", "tcgen05.st", "tcgen05.cp",
//! "tcgen05.shift").

use super::descriptor::SharedMatrix;
use super::memory::{Cell, ROWS, WARP_ROWS};
use super::{Outcome, Site, memory_of, ranks_of, trouble, window};
use crate::exec::access::read_bytes;
use crate::exec::inst::{Source, Space, Target};
use crate::exec::matrix::Register;
use crate::exec::rows::LANES;
use crate::exec::state::Core;
use crate::exec::step::Env;
use partita_device::FaultKind;

/// How `ld` and `st` spread tensor memory over the registers of a warp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// `.32x32b`
    Lanes32,
    /// `.16x64b`
    Bits64,
    /// `.16x128b`
    Bits128,
    /// `.16x256b`
    Bits256,
    /// `.16x32bx2`: the upper half of the warp begins this many columns further.
    Halves(usize),
}

impl Shape {
    /// The shape of that name, the registers of a repetition, and the most repetitions.
    #[must_use]
    pub fn named(name: &str) -> Option<(Self, usize, usize)> {
        Some(match name {
            "32x32b" => (Shape::Lanes32, 1, 128),
            "16x64b" => (Shape::Bits64, 1, 128),
            "16x128b" => (Shape::Bits128, 2, 64),
            "16x256b" => (Shape::Bits256, 4, 32),
            "16x32bx2" => (Shape::Halves(0), 1, 128),
            _ => return None,
        })
    }

    /// Row and column of a thread's register, counted in registers, and the first column of its
    /// half.
    const fn place(self, thread: usize, register: usize) -> (usize, usize, usize) {
        match self {
            Shape::Lanes32 => (thread, register, 0),
            Shape::Bits64 => (thread / 4 + 8 * (thread % 2), thread / 2 % 2 + 2 * register, 0),
            Shape::Bits128 => (thread / 4 + 8 * (register % 2), thread % 4 + 4 * (register / 2), 0),
            Shape::Bits256 => (
                thread / 4 + 8 * (register / 2 % 2),
                2 * (thread % 4) + register % 2 + 8 * (register / 4),
                0,
            ),
            Shape::Halves(split) => (thread % 16, register, thread / 16 * split),
        }
    }

    /// Rows of the warp that it reaches.
    const fn rows(self) -> usize {
        if matches!(self, Shape::Lanes32) { WARP_ROWS } else { WARP_ROWS / 2 }
    }
}

/// `ld` where it has targets, else `st`.
#[derive(Clone, Debug)]
pub struct MoveOp {
    /// The shape.
    pub shape: Shape,
    /// The address in tensor memory.
    pub address: Source,
    /// `.pack::16b`, `.unpack::16b`: a register has the lower halves of two columns.
    pub packed: bool,
    /// Registers to load.
    pub targets: Vec<Target>,
    /// Registers to store.
    pub sources: Vec<Source>,
}

/// Executes `ld` or `st` for a warp.
pub fn transfer(
    core: &mut Core<'_>,
    op: &MoveOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Outcome {
    let site = (w + core.first_warp, (mask.trailing_zeros() & 31) as usize, pc);
    let address = core.get(op.address, w, site.1) & 0xffff_ffff;
    let base = Cell::at(address);
    let own = WARP_ROWS * (site.0 % 4);
    if base.row < own
        || base.row + op.shape.rows() > own + WARP_ROWS
        || !base.row.is_multiple_of(16)
    {
        let detail = format!(
            "lanes {} to {} of tensor memory; warp {} may access lanes {own} to {}",
            base.row,
            base.row + op.shape.rows() - 1,
            site.0,
            own + WARP_ROWS - 1
        );
        return Err(trouble(FaultKind::IllegalAddress, site, Some(address), detail));
    }
    let step = if op.packed { 2 } else { 1 };
    let memory = memory_of(env, site, None)?;
    let outside = |thread: usize, at: Cell| {
        let site = (site.0, thread, pc);
        not_there(site, address, at)
    };
    for (index, &target) in op.targets.iter().enumerate() {
        let mut register: Register = [0; LANES];
        for (thread, bits) in register.iter_mut().enumerate() {
            let (row, column, first) = op.shape.place(thread, index);
            let at = base.plus(row, first + step * column);
            let found = memory.row(at, step).ok_or_else(|| outside(thread, at))?;
            *bits = match *found {
                [low, high] => u64::from(low & 0xffff | high << 16),
                [word, ..] => u64::from(word),
                [] => 0,
            };
        }
        core.put_all(target, w, mask, &register);
    }
    for (index, &source) in op.sources.iter().enumerate() {
        for (thread, bits) in core.get_all(source, w).into_iter().enumerate() {
            let (row, column, first) = op.shape.place(thread, index);
            let at = base.plus(row, first + step * column);
            let found = memory.row_mut(at, step).ok_or_else(|| outside(thread, at))?;
            match found {
                [low, high] => (*low, *high) = (bits as u32 & 0xffff, bits as u32 >> 16),
                [word, ..] => *word = bits as u32,
                [] => {}
            }
        }
    }
    Ok(())
}

/// The fault of an access outside the CTA's columns.
pub(super) fn not_there(site: Site, address: u64, at: Cell) -> Box<crate::exec::step::Trouble> {
    let detail = format!(
        "lane {}, column {} of tensor memory, which the CTA has not allocated",
        at.row, at.column
    );
    trouble(FaultKind::IllegalAddress, site, Some(address), detail)
}

/// `cp`: rows of shared memory to lanes of tensor memory.
#[derive(Clone, Copy, Debug)]
pub struct CopyOp {
    /// Rows of the source.
    pub rows: usize,
    /// Pieces of 16 bytes in a row.
    pub pieces: usize,
    /// The lanes that get each row: first those of a run of rows, and how many lanes further its
    /// copies lie.
    pub spread: Spread,
    /// The address in tensor memory.
    pub address: Source,
    /// The descriptor of the matrix in shared memory.
    pub from: Source,
    /// Whether both CTAs of a pair copy.
    pub pair: bool,
}

/// Where the rows of a `cp` go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    /// Each to its lane.
    Plain,
    /// `.4x256b`: to the same lane of each warp.
    Warps,
    /// `.warpx4`: to each warp.
    Four,
    /// `.warpx2::02_13`: the first half to warps 0 and 2.
    Pairs02,
    /// `.warpx2::01_23`: the first half to warps 0 and 1.
    Pairs01,
}

impl Spread {
    /// The lanes that get a row.
    fn lanes(self, row: usize) -> Vec<usize> {
        match self {
            Spread::Plain => vec![row],
            Spread::Warps => vec![WARP_ROWS * row],
            Spread::Four => (0..4).map(|warp| row + WARP_ROWS * warp).collect(),
            Spread::Pairs02 => vec![row, row + 2 * WARP_ROWS],
            Spread::Pairs01 => {
                let first = row % WARP_ROWS + 2 * WARP_ROWS * (row / WARP_ROWS);
                vec![first, first + WARP_ROWS]
            }
        }
    }
}

/// Executes `cp` for a thread.
pub fn copy(op: &CopyOp, env: &mut Env<'_>, site: Site, (to, from): (u64, u64)) -> Outcome {
    let to = to & 0xffff_ffff;
    for rank in ranks_of(env, site, op.pair)? {
        let matrix = SharedMatrix::unpack(from, site)?.within(window(env, rank));
        for row in 0..op.rows {
            for piece in 0..op.pieces {
                let mut bytes = [0; 16];
                let address = matrix.address(true, piece as u64, row as u64);
                read_bytes(env, site, Space::Shared.generic(address), &mut bytes)?;
                let memory = memory_of(env, site, rank)?;
                for lane in op.spread.lanes(row) {
                    let at = Cell::at(to).plus(lane, 4 * piece);
                    let words = memory.row_mut(at, 4).ok_or_else(|| not_there(site, to, at))?;
                    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *word = u32::from_le_bytes(*bytes);
                    }
                }
            }
        }
    }
    env.trace.counts.shared_accesses += 1;
    Ok(())
}

/// Columns that `shift` moves: 32 bytes.
const SHIFTED: usize = 8;

/// `shift.down`: each of the first 31 rows of a warp goes one row down.
pub fn shift(env: &mut Env<'_>, site: Site, address: u64, pair: bool) -> Outcome {
    let address = address & 0xffff_ffff;
    let base = Cell::at(address);
    if !base.row.is_multiple_of(WARP_ROWS) || base.row >= ROWS {
        let detail = format!("`tcgen05.shift` from lane {}, no multiple of 32", base.row);
        return Err(trouble(FaultKind::MisalignedAddress, site, Some(address), detail));
    }
    for rank in ranks_of(env, site, pair)? {
        let memory = memory_of(env, site, rank)?;
        for row in (1..WARP_ROWS).rev() {
            let (from, to) = (base.plus(row - 1, 0), base.plus(row, 0));
            let words = memory.row(from, SHIFTED).ok_or_else(|| not_there(site, address, from))?;
            let mut held = [0; SHIFTED];
            held.copy_from_slice(words);
            if let Some(words) = memory.row_mut(to, SHIFTED) {
                words.copy_from_slice(&held);
            }
        }
    }
    Ok(())
}
