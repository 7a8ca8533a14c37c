//! How a check becomes code: a predicate that says that the access is wrong, and a branch to a
//! trap. What is checked, and where, is decided elsewhere ([`super`], [`super::places`]).

use super::arrays::{self, Locals};
use super::shared::Apart;
use super::{Check, Names, State, TRAPS, frames};
use crate::cancel::label;
use crate::carry::{declare, emit};
use crate::ir::{
    Body, Guard, Inst, LabelId, Module, Name, Op, Operand, Part, Reg, Special, Stmt, Symbol, Type,
    VarId,
};

/// Registers of one body.
#[derive(Clone, Copy)]
pub(super) struct Regs {
    pub low: Reg,
    pub end: Reg,
    pub from: Reg,
    pub far: Reg,
    pub wide: Reg,
    pub bad: Reg,
    pub some: Reg,
}

impl Regs {
    pub fn new(module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>) -> Self {
        let mut reg = |stem: &str, ty| {
            let name: Name = module.names.fresh(stem);
            declare(body, name, ty, out)
        };
        Self {
            low: reg("%pw_low", Type::B32),
            end: reg("%pw_end", Type::B32),
            from: reg("%pw_from", Type::B32),
            far: reg("%pw_far", Type::B64),
            wide: reg("%pw_wide", Type::B64),
            bad: reg("%pw_bad", Type::Pred),
            some: reg("%pw_some", Type::Pred),
        }
    }
}

pub(super) struct Emitter<'a> {
    pub state: &'a mut State,
    pub regs: Regs,
    /// The local arrays of the body.
    pub arrays: Vec<VarId>,
    /// The constants that an address of the body may name.
    pub constants: Vec<VarId>,
    pub locals: Locals,
    /// How generic addresses of shared memory are told.
    pub apart: Apart,
    /// Bytes of dynamic shared memory behind the program's own.
    pub hidden: u32,
    /// The labels of the traps.
    pub traps: [Option<LabelId>; TRAPS.len()],
}

impl Emitter<'_> {
    /// Appends a check, for threads of which the guard holds and for the first lanes.
    pub fn check(
        &mut self,
        module: &mut Module,
        body: &mut Body,
        check: Check,
        (guard, lanes): (Option<Guard>, Option<u32>),
        out: &mut Vec<Stmt>,
    ) {
        let bad = Operand::Reg(self.regs.bad);
        let kind = match check {
            Check::Aligned { reg, plus, bytes } => {
                self.aligned(module, body, (reg, plus, bytes), out);
                0
            }
            Check::Shared { base, plus, bytes, how } => {
                self.shared(module, body, (base, plus, bytes, how), out);
                1
            }
            Check::Variable { reg, plus, bytes, var, is_generic } => {
                let access = (reg, plus, bytes, var, is_generic);
                arrays::inside(module, body, self.regs, access, out);
                1
            }
            Check::AlignedName { var, plus, bytes } => {
                self.aligned_name(module, body, (var, plus, bytes), out);
                0
            }
            Check::NotLocal { reg, plus } => {
                arrays::widened(module, body, self.regs, (reg, plus), out);
                let far = Operand::Reg(self.regs.far);
                emit(module, body, out, "isspacep.local", &[bad, far]);
                1
            }
            Check::OwnLocal { reg, plus, bytes, is_generic } => {
                let access = (reg, plus, bytes, is_generic);
                match self.locals {
                    Locals::Within(frame) => {
                        frames::within(module, body, self.regs, access, frame, out);
                    }
                    _ => arrays::among(module, body, self.regs, access, &self.arrays, out),
                }
                1
            }
            Check::Constant { reg, plus, bytes } => {
                let access = (reg, plus, bytes);
                arrays::in_constants(module, body, self.regs, access, &self.constants, out);
                1
            }
            Check::Lines { base, plus, bytes, lines } => {
                self.shared(module, body, (base, plus, bytes, Names::Own), out);
                lines.beyond(module, body, self.regs, (base, plus), out);
                1
            }
            Check::Stride { stride, of } => {
                let low = Operand::Reg(self.regs.low);
                let below = Operand::Int(u64::from(of) - 1);
                emit(module, body, out, "and.b32", &[low, stride, below]);
                emit(module, body, out, "setp.ne.u32", &[bad, low, Operand::Int(0)]);
                0
            }
            Check::Barrier { number } => {
                emit(module, body, out, "setp.gt.u32", &[bad, number, Operand::Int(15)]);
                2
            }
            Check::Threads { count } => {
                self.threads(module, body, count, out);
                2
            }
            Check::Handle { reg } => {
                emit(module, body, out, "setp.eq.u64", &[bad, Operand::Reg(reg), Operand::Int(0)]);
                1
            }
            Check::Never { aligned } => {
                let low = Operand::Reg(self.regs.low);
                emit(module, body, out, "mov.u32", &[low, Operand::Int(0)]);
                emit(module, body, out, "setp.eq.u32", &[bad, low, Operand::Int(0)]);
                usize::from(!aligned)
            }
        };
        if let Some(lanes) = lanes {
            self.lanes(module, body, (lanes, guard), out);
        }
        if let Some(Guard { reg, negated }) = guard {
            let some = Operand::Reg(self.regs.some);
            let text = if negated { "not.pred" } else { "mov.pred" };
            emit(module, body, out, text, &[some, Operand::Reg(reg)]);
            emit(module, body, out, "and.pred", &[bad, bad, some]);
        }
        let trap = *self.traps[kind].get_or_insert_with(|| label(module, body));
        emit(module, body, out, "bra", &[Operand::Symbol(Symbol::Label(trap), 0)]);
        if let Some(Stmt::Inst(inst)) = out.last_mut() {
            inst.guard = Some(Guard { reg: self.regs.bad, negated: false });
        }
    }

    /// The instruction uses the addresses of the warp's first lanes. It is wrong where one of these
    /// is, or has exited, or is excluded by the guard.
    fn lanes(
        &self,
        module: &mut Module,
        body: &mut Body,
        (lanes, guard): (u32, Option<Guard>),
        out: &mut Vec<Stmt>,
    ) {
        let [low, end] = [self.regs.low, self.regs.end].map(Operand::Reg);
        let [bad, some] = [self.regs.bad, self.regs.some].map(Operand::Reg);
        let lane = Operand::Special(Special::Laneid, Part::Whole);
        let all = Operand::Int(0xffff_ffff);
        emit(module, body, out, "mov.u32", &[low, lane]);
        emit(module, body, out, "setp.lt.and.u32", &[bad, low, Operand::Int(lanes.into()), bad]);
        emit(module, body, out, "setp.lt.u32", &[some, low, Operand::Int(32)]);
        if let Some(Guard { reg, negated }) = guard {
            let text = if negated { "not.pred" } else { "mov.pred" };
            emit(module, body, out, text, &[some, Operand::Reg(reg)]);
        }
        emit(module, body, out, "vote.sync.ballot.b32", &[low, some, all]);
        emit(module, body, out, "vote.sync.any.pred", &[bad, bad, all]);
        let first = Operand::Int(u64::from(u32::MAX >> (32 - lanes)));
        emit(module, body, out, "not.b32", &[end, low]);
        emit(module, body, out, "and.b32", &[end, end, first]);
        emit(module, body, out, "setp.ne.or.u32", &[bad, end, Operand::Int(0), bad]);
    }

    fn aligned(
        &self,
        module: &mut Module,
        body: &mut Body,
        (reg, plus, bytes): (Reg, u32, u32),
        out: &mut Vec<Stmt>,
    ) {
        let (low, bad) = (Operand::Reg(self.regs.low), Operand::Reg(self.regs.bad));
        let mut from = Operand::Reg(reg);
        if body.reg(reg).ty.bits() == 64 {
            emit(module, body, out, "cvt.u32.u64", &[low, from]);
            from = low;
        }
        let plus = plus & (bytes - 1);
        if plus != 0 {
            emit(module, body, out, "add.s32", &[low, from, Operand::Int(plus.into())]);
            from = low;
        }
        emit(module, body, out, "and.b32", &[low, from, Operand::Int(u64::from(bytes) - 1)]);
        emit(module, body, out, "setp.ne.u32", &[bad, low, Operand::Int(0)]);
    }

    /// The address of a variable is no multiple of some bytes. Only the assembler knows where it
    /// lies.
    fn aligned_name(
        &self,
        module: &mut Module,
        body: &mut Body,
        (var, plus, bytes): (VarId, u32, u32),
        out: &mut Vec<Stmt>,
    ) {
        let wide = self.regs.wide;
        let address = Operand::Symbol(Symbol::Var(var), 0);
        emit(module, body, out, "mov.u64", &[Operand::Reg(wide), address]);
        self.aligned(module, body, (wide, plus, bytes), out);
    }

    /// The threads for which a barrier waits are not more than there are, in whole warps.
    fn threads(&self, module: &mut Module, body: &mut Body, count: Operand, out: &mut Vec<Stmt>) {
        let [low, end] = [self.regs.low, self.regs.end].map(Operand::Reg);
        let [bad, some] = [self.regs.bad, self.regs.some].map(Operand::Reg);
        threads(module, body, [end, low], out);
        emit(module, body, out, "add.u32", &[end, end, Operand::Int(31)]);
        emit(module, body, out, "and.b32", &[end, end, Operand::Int(!31)]);
        emit(module, body, out, "mov.u32", &[low, count]);
        emit(module, body, out, "setp.gt.u32", &[bad, low, end]);
        emit(module, body, out, "and.b32", &[end, low, Operand::Int(31)]);
        emit(module, body, out, "setp.ne.u32", &[some, end, Operand::Int(0)]);
        emit(module, body, out, "or.pred", &[bad, bad, some]);
        emit(module, body, out, "setp.eq.u32", &[some, low, Operand::Int(0)]);
        emit(module, body, out, "or.pred", &[bad, bad, some]);
    }
}

/// Multiplies the CTA's threads into the first register; changes the second.
fn threads(module: &mut Module, body: &mut Body, [all, other]: [Operand; 2], out: &mut Vec<Stmt>) {
    let size = |part| Operand::Special(Special::Ntid, part);
    emit(module, body, out, "mov.u32", &[all, size(Part::X)]);
    for part in [Part::Y, Part::Z] {
        emit(module, body, out, "mov.u32", &[other, size(part)]);
        emit(module, body, out, "mul.lo.u32", &[all, all, other]);
    }
}

/// Whether control may go past the last statement.
fn falls_off(module: &Module, stmts: &[Stmt]) -> bool {
    let last = stmts.iter().rfind(|stmt| matches!(stmt, Stmt::Inst(_) | Stmt::Label(_)));
    let ends = |inst: &Inst| {
        let op = module.form(inst).op;
        inst.guard.is_none() && matches!(op, Op::Ret | Op::Exit | Op::Trap | Op::Bra | Op::Brx)
    };
    !matches!(last, Some(Stmt::Inst(inst)) if ends(inst))
}

/// Appends the traps, behind all code of the body.
pub(super) fn emit_traps(
    module: &mut Module,
    body: &mut Body,
    traps: [Option<LabelId>; TRAPS.len()],
    out: &mut Vec<Stmt>,
) {
    if falls_off(module, out) {
        emit(module, body, out, "ret", &[]);
    }
    for (label, (stem, _)) in traps.into_iter().zip(TRAPS) {
        let Some(label) = label else { continue };
        body.labels[label.0 as usize].name = module.names.fresh(stem);
        out.push(Stmt::Label(label));
        emit(module, body, out, "trap", &[]);
    }
}
