//! Straight runs of instructions, and their cost for a warp that runs alone.
//!
//! A segment ends at a branch, a barrier or a meeting point, before the first use of a value that
//! it loads from memory, and after [`LONGEST`] instructions. Its length is that of an in-order
//! issue of one instruction per cycle with the latencies of [`Latencies`].

use crate::exec::inst::{FRAME, Inst, Op, Source, Target};
use crate::exec::program::Program;

/// Most instructions of a segment.
pub const LONGEST: usize = 48;

/// Cycles from issue to use, by class. From microbenchmarks of Volta to Hopper (4 cycles for most
/// of integer and single precision), which the specs share; double precision and functions stand
/// for a representative GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latencies {
    /// Integer and single precision.
    pub plain: u32,
    /// Double precision.
    pub double: u32,
    /// Division, roots, functions, conversions.
    pub function: u32,
    /// Shared memory.
    pub shared: u32,
    /// `shfl`, votes and the like.
    pub warp: u32,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { plain: 4, double: 8, function: 18, shared: 23, warp: 23 }
    }
}

/// One segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// First instruction.
    pub start: u32,
    /// First instruction beyond.
    pub end: u32,
    /// PTX instructions.
    pub weight: u32,
    /// Cycles from the first to after the last issue.
    pub cycles: u32,
    /// Cycles for which it keeps a tensor core.
    pub busy: u32,
    /// Cycles after that until all its results are there.
    pub tail: u32,
    /// Classes of rows that it reads or writes.
    pub uses: u64,
    /// Classes of rows that it loads from memory.
    pub loads: u64,
    /// Whether it may access global memory.
    pub memory: bool,
    /// Whether it only works on registers and shared memory and asks for no time.
    pub plain: bool,
    /// Whether it is a loop by itself: it ends with a branch to its start and does not access
    /// global memory.
    pub repeats: bool,
}

/// The segments of a program.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    list: Vec<Segment>,
    /// Index of the segment, by instruction.
    at: Vec<u32>,
}

fn class(wide: bool, row: u32) -> u64 {
    let index = if wide { row.wrapping_mul(7).wrapping_add(32) } else { row };
    1 << (index % 64)
}

fn latency(inst: &Inst, program: &Program, latencies: &Latencies) -> u32 {
    match inst.op {
        Op::Lane if program.lane_ops[inst.imm as usize].plain => latencies.plain,
        Op::DivF32 | Op::SqrtF32 | Op::RcpF32 | Op::DivF64 | Op::SqrtF64 | Op::Lane => {
            latencies.function
        }
        Op::AddF64 | Op::SubF64 | Op::MulF64 | Op::FmaF64 => latencies.double,
        Op::LdShared | Op::StShared => latencies.shared,
        Op::Warp | Op::Matrix | Op::Tensor => latencies.warp,
        _ => latencies.plain,
    }
}

fn is_memory(inst: &Inst) -> bool {
    matches!(inst.op, Op::LdGlobal | Op::Memory | Op::Atomic | Op::AtomicWide | Op::Texture)
}

fn ends(op: Op) -> bool {
    matches!(
        op,
        Op::Bra
            | Op::Brx
            | Op::Call
            | Op::Return
            | Op::Exit
            | Op::Barrier
            | Op::Warp
            | Op::Matrix
            | Op::Tensor
            | Op::ClusterArrive
            | Op::ClusterWait
            | Op::Nanosleep
            | Op::Trap
            | Op::System
            | Op::Atomic
            | Op::AtomicWide
            | Op::Async
    )
}

impl Segments {
    /// Gives back the room in which the lists grew.
    pub(crate) fn shrink(&mut self) {
        self.list.shrink_to_fit();
        self.at.shrink_to_fit();
    }

    /// The segments of a program.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let latencies = Latencies::default();
        let code = &program.code;
        let mut leader = vec![false; code.len() + 1];
        for (index, inst) in code.iter().enumerate() {
            match inst.op {
                Op::Bra => leader[inst.imm as usize] = true,
                Op::Brx => {
                    for &target in &program.branch_tables[inst.imm as usize] {
                        leader[target as usize] = true;
                    }
                }
                Op::Sync => leader[index] = true,
                _ => {}
            }
        }
        let mut segments = Segments::default();
        let mut ready = [0_u32; 64];
        let (mut now, mut clocks) = (0, false);
        let mut current = Segment::default();
        for (index, inst) in code.iter().enumerate() {
            let (mut reads, mut writes) = (0_u64, 0_u64);
            roles(inst, program, |wide, row, written| {
                let class = class(wide, row);
                if written {
                    writes |= class;
                } else {
                    reads |= class;
                }
            });
            let length = index - current.start as usize;
            let fresh = leader[index]
                || (reads | writes) & current.loads != 0
                || length >= LONGEST
                || index > 0 && ends(code[index - 1].op);
            if fresh && length > 0 {
                segments.close(&mut current, now, &ready, index);
                clocks = false;
                ready = [0; 64];
                now = 0;
            }
            let mut issue = now;
            for bit in 0..64 {
                if (reads | writes) >> bit & 1 == 1 {
                    issue = issue.max(ready[bit]);
                }
            }
            let cycles = match inst.op {
                Op::Matrix => program.matrix_ops[inst.imm as usize].cycles(),
                _ => 1,
            };
            // The next product of a warp group adds to the last one without a wait.
            let until = if cycles > 1 { cycles } else { latency(inst, program, &latencies) };
            if is_memory(inst) {
                current.loads |= writes;
            } else {
                for bit in 0..64 {
                    if writes >> bit & 1 == 1 {
                        ready[bit] = issue + until;
                    }
                }
            }
            current.memory |= is_memory(inst)
                || matches!(inst.op, Op::StGlobal | Op::AtomicWide | Op::Async | Op::AsyncCopy);
            clocks |=
                matches!(inst.op, Op::Special32 | Op::Special64 | Op::ClusterArrive | Op::Tensor);
            current.plain = !current.memory && !clocks;
            current.repeats =
                inst.op == Op::Bra && inst.imm == i64::from(current.start) && !current.memory;
            current.uses |= reads | writes;
            current.busy += if cycles > 1 { cycles } else { 0 };
            now = if inst.op == Op::Sync { issue } else { issue + cycles };
        }
        segments.close(&mut current, now, &ready, code.len());
        for segment in &mut segments.list {
            let weights = [segment.start, segment.end].map(|at| program.weights[at as usize]);
            segment.weight = weights[1].saturating_sub(weights[0]);
        }
        segments
    }

    fn close(&mut self, current: &mut Segment, now: u32, ready: &[u32; 64], end: usize) {
        current.end = end as u32;
        current.cycles = now;
        current.tail = ready.iter().max().copied().unwrap_or(0).saturating_sub(now);
        let id = self.list.len() as u32;
        self.at.resize(end, id);
        self.list.push(*current);
        *current = Segment { start: end as u32, ..Segment::default() };
    }

    /// The segment that an instruction is in.
    #[must_use]
    pub fn at(&self, pc: u32) -> &Segment {
        let id = self.at.get(pc as usize).copied().unwrap_or(0);
        &self.list[id as usize]
    }
}

/// Tells the frame's rows that an instruction reads (`false`) and writes (`true`): whether wide,
/// and which.
pub fn roles(inst: &Inst, program: &Program, mut tell: impl FnMut(bool, u32, bool)) {
    use Op::*;
    let mut row = |wide: bool, operand: u32, written: bool| {
        if operand & FRAME != 0 {
            tell(wide, operand & !FRAME, written);
        }
    };
    // The width of each operand: 0 is none, 1 is 32 bits, 2 is 64 bits.
    let (d, a, b, c) = match inst.op {
        Mov32 | Not32 | Neg32 | Abs32 | Zext8 | Zext16 | Sext8 | Sext16 | SqrtF32 | RcpF32
        | NegF32 | AbsF32 | F32FromS32 | F32FromU32 | S32FromF32Rz => (1, 1, 0, 0),
        Add32 | Sub32 | Mul32 | And32 | Or32 | Xor32 | Shl32 | ShrU32 | ShrS32 | MinS32
        | MinU32 | MaxS32 | MaxU32 | MulHiU32 | MulHiS32 | AddF32 | SubF32 | MulF32 | DivF32
        | MinF32 | MaxF32 | Selp32 => (1, 1, 1, 0),
        Mad32 | FmaF32 => (1, 1, 1, 1),
        Mov64 | Not64 | Neg64 | SqrtF64 | NegF64 | AbsF64 => (2, 2, 0, 0),
        Add64 | Sub64 | Mul64 | And64 | Or64 | Xor64 | AddF64 | SubF64 | MulF64 | DivF64
        | Selp64 => (2, 2, 2, 0),
        Mad64 | FmaF64 => (2, 2, 2, 2),
        Shl64 | ShrU64 | ShrS64 => (2, 2, 1, 0),
        MulWideS32 | MulWideU32 => (2, 1, 1, 0),
        MadWideS32 | MadWideU32 => (2, 1, 1, 2),
        S64FromS32 | U64FromU32 | F64FromF32 | F64FromS32 => (2, 1, 0, 0),
        Low32 | F32FromF64 => (1, 2, 0, 0),
        EqB32 | NeB32 | LtS32 | LeS32 | GtS32 | GeS32 | LtU32 | LeU32 | GtU32 | GeU32 | EqF32
        | NeF32 | LtF32 | LeF32 | GtF32 | GeF32 | NeuF32 | LtuF32 | LeuF32 | GtuF32 | GeuF32 => {
            (0, 1, 1, 0)
        }
        EqB64 | NeB64 | LtS64 | LeS64 | GtS64 | GeS64 | LtU64 | LeU64 | GtU64 | GeU64 | LtF64
        | LeF64 | GtF64 | GeF64 => (0, 2, 2, 0),
        LdGlobal => (if inst.aux & 8 != 0 { 2 } else { 1 }, 2, 0, 0),
        StGlobal => (0, 2, if inst.aux & 8 != 0 { 2 } else { 1 }, 0),
        LdShared => (if inst.aux & 8 != 0 { 2 } else { 1 }, 1, 0, 0),
        StShared => (0, 1, if inst.aux & 8 != 0 { 2 } else { 1 }, 0),
        Special32 => (1, 0, 0, 0),
        Special64 => (2, 0, 0, 0),
        Nanosleep | Brx => (0, 1, 0, 0),
        Lane | Memory | Atomic | AtomicWide | Async | AsyncCopy | Texture | Warp | Matrix
        | Tensor | System | Barrier => (0, 0, 0, 0),
        PMov | PAnd | POr | PXor | PNot | Bra | Call | Return | Sync | Exit | Trap | Nop
        | Fence | ClusterArrive | ClusterWait => (0, 0, 0, 0),
    };
    for (kind, operand, written) in
        [(a, inst.a, false), (b, inst.b, false), (c, inst.c, false), (d, inst.d, true)]
    {
        if kind != 0 {
            row(kind == 2, operand, written);
        }
    }
    let mut source = |source: Source, written: bool| match source {
        Source::R32(operand) => row(false, operand, written),
        Source::R64(operand) => row(true, operand, written),
        Source::P(_) | Source::None => {}
    };
    let target = Target::source;
    let index = inst.imm as usize;
    match inst.op {
        Lane => {
            let op = &program.lane_ops[index];
            op.sources.iter().for_each(|&s| source(s, false));
            source(target(op.target), true);
        }
        Memory | AsyncCopy => {
            let op = &program.memory_ops[index];
            source(op.address, false);
            op.elements.iter().flatten().for_each(|&s| source(s, !op.store));
        }
        Atomic => {
            let op = &program.atomic_ops[index];
            [op.address, op.b, op.c].into_iter().for_each(|s| source(s, false));
            source(target(op.target), true);
        }
        AtomicWide => {
            let op = &program.wide_atomics[index];
            source(op.element.address, false);
            op.b.iter().chain(&op.c).for_each(|&s| source(s, false));
            op.targets.iter().for_each(|&t| source(target(t), true));
        }
        Async => {
            let op = &program.async_ops[index];
            op.sources().into_iter().for_each(|s| source(s, false));
            source(target(op.target()), true);
        }
        Warp => {
            let op = &program.warp_ops[index];
            [op.a, op.b, op.c, op.members].into_iter().for_each(|s| source(s, false));
            source(target(op.target), true);
        }
        Texture => program.texture_ops[index].rows(source, target),
        Matrix => program.matrix_ops[index].rows(source, target),
        Tensor => program.tensor_ops[index].rows(source, target),
        System => {
            let op = &program.system_ops[index];
            op.arguments.iter().for_each(|&s| source(s, false));
            source(target(op.target), true);
        }
        Barrier => {
            let op = &program.barrier_ops[index];
            [op.id, op.threads].into_iter().for_each(|s| source(s, false));
            source(target(op.target), true);
        }
        _ => {}
    }
}
