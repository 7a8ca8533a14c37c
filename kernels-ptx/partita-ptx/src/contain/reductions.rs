//! The votes of barriers that are polled.
//!
//! One lane of each warp adds its warp's votes to a word of shared memory. A barrier has [`SUMS`]
//! such words, and its openings use them in turn. The thread that opens the barrier clears the word
//! of the opening after the next: all threads have read that word by then, and none votes there
//! before all have come once more. Barriers themselves are `super::barriers`.

use crate::carry::emit;
use crate::ir::{Base, Body, Form, Guard, Mod, Module, Operand, Pos, Stmt};

use super::barriers::{ALL, Regs, guard};

/// Where the sums begin among the words of barriers, in bytes.
const FIRST: i32 = 80;
/// Sums of a barrier.
const SUMS: u64 = 4;

/// Where the sums of a barrier stand among the words, in bytes.
pub(super) fn sums(number: u64) -> impl Iterator<Item = u64> {
    (0..SUMS).map(move |sum| u64::from(FIRST.unsigned_abs()) + 4 * (number * SUMS + sum))
}

/// What the threads of a barrier vote on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduction {
    pub result: Operand,
    pub vote: Operand,
    pub how: How,
}

/// What becomes of the votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Count,
    Any,
    All,
}

/// The reduction of an instruction.
pub(super) fn reduction(form: &Form, operands: &[Operand]) -> Option<Reduction> {
    let (&[result, ..], &[.., vote @ (Operand::Reg(_) | Operand::Not(_))]) = (operands, operands)
    else {
        return None;
    };
    let how = match () {
        () if form.has(Mod::Popc) => How::Count,
        () if form.has(Mod::Or) => How::Any,
        () if form.has(Mod::And) => How::All,
        () => return None,
    };
    Some(Reduction { result, vote, how })
}

/// Finds the sum of the opening that the thread waits for, and that of the opening after the next.
pub(super) fn find_sums(
    module: &mut Module,
    body: &mut Body,
    regs: &Regs,
    (number, words): (Operand, Operand),
    out: &mut Vec<Stmt>,
) {
    let &Regs { opened, old, new, .. } = regs;
    let (turn, bytes) = (Operand::Int(SUMS - 1), Operand::Int(4 * SUMS));
    emit(module, body, out, "mov.u32", &[new, number]);
    emit(module, body, out, "mul.lo.u32", &[new, new, bytes]);
    for (ahead, sum) in [0, SUMS / 2].into_iter().zip(regs.sums) {
        let sum = Operand::Reg(sum);
        emit(module, body, out, "mov.u32", &[sum, words]);
        emit(module, body, out, "add.u32", &[sum, sum, new]);
        emit(module, body, out, "add.u32", &[old, opened, Operand::Int(ahead)]);
        emit(module, body, out, "and.b32", &[old, old, turn]);
        emit(module, body, out, "shl.b32", &[old, old, Operand::Int(2)]);
        emit(module, body, out, "add.u32", &[sum, sum, old]);
    }
}

/// One lane adds up its warp's votes: those for what is looked for, or against it.
pub(super) fn vote(
    module: &mut Module,
    body: &mut Body,
    regs: &Regs,
    reduction: Reduction,
    out: &mut Vec<Stmt>,
) {
    let vote = match (reduction.how, reduction.vote) {
        (How::All, Operand::Reg(reg)) => Operand::Not(reg),
        (How::All, Operand::Not(reg)) => Operand::Reg(reg),
        (_, vote) => vote,
    };
    emit(module, body, out, "vote.sync.ballot.b32", &[regs.new, vote, ALL]);
    emit(module, body, out, "popc.b32", &[regs.new, regs.new]);
    let sum = Operand::Mem(Base::Reg(regs.sums[0]), FIRST);
    emit(module, body, out, "red.shared.add.u32", &[sum, regs.new]);
    guard(out, Guard { reg: regs.leads, negated: true }, Pos::default());
}

/// The thread that opens the barrier clears the sum of the opening after the next.
pub(super) fn clear_next(module: &mut Module, body: &mut Body, regs: &Regs, out: &mut Vec<Stmt>) {
    let next = Operand::Mem(Base::Reg(regs.sums[1]), FIRST);
    emit(module, body, out, "st.volatile.shared.u32", &[next, Operand::Int(0)]);
    guard(out, Guard { reg: regs.leads, negated: false }, Pos::default());
}

/// The result of the votes.
pub(super) fn tell(
    module: &mut Module,
    body: &mut Body,
    regs: &Regs,
    reduction: Reduction,
    out: &mut Vec<Stmt>,
) {
    let sum = Operand::Mem(Base::Reg(regs.sums[0]), FIRST);
    emit(module, body, out, "ld.volatile.shared.u32", &[regs.old, sum]);
    let none = Operand::Int(0);
    match reduction.how {
        How::Count => emit(module, body, out, "mov.u32", &[reduction.result, regs.old]),
        How::Any => emit(module, body, out, "setp.ne.u32", &[reduction.result, regs.old, none]),
        How::All => emit(module, body, out, "setp.eq.u32", &[reduction.result, regs.old, none]),
    }
}
