//! A writer of code: appends instructions, labels and branches to a body's statements. What they
//! mean is for its users.

use crate::cancel;
use crate::carry::{declare, emit};
use crate::exits::{self, Leave};
use crate::ir::{
    Body, Guard, LabelId, Module, Op, Operand, Part, Pos, Reg, Special, Stmt, Symbol, Type,
};

/// Where instructions are appended.
pub(super) struct Code<'a> {
    pub module: &'a mut Module,
    pub body: &'a mut Body,
    pub out: &'a mut Vec<Stmt>,
}

/// Where the register holds.
pub(super) fn when(reg: Reg) -> Guard {
    Guard { reg, negated: false }
}

pub(super) fn unless(reg: Reg) -> Guard {
    Guard { reg, negated: true }
}

/// Tells of a thread's exit, and exits.
pub(super) struct Tells<'a> {
    pub tell: &'a dyn Fn(&mut Code<'_>),
    pub ways: &'static [Op],
}

impl Leave for Tells<'_> {
    fn leave(&mut self, module: &mut Module, body: &mut Body, out: &mut Vec<Stmt>) {
        let mut code = Code { module, body, out };
        (self.tell)(&mut code);
        code.say(if self.ways == exits::OF_KERNELS { "ret" } else { "exit" }, &[]);
    }
}

impl Code<'_> {
    pub(super) fn reg(&mut self, stem: &str, ty: Type) -> Reg {
        let name = self.module.names.fresh(stem);
        declare(self.body, name, ty, self.out)
    }

    pub(super) fn say(&mut self, text: &str, operands: &[Operand]) {
        emit(self.module, self.body, self.out, text, operands);
    }

    /// Guards the last instruction.
    pub(super) fn only(&mut self, guard: Guard) {
        if let Some(Stmt::Inst(inst)) = self.out.last_mut() {
            inst.guard = Some(guard);
        }
    }

    /// Says where in the program's text the last instruction stands.
    pub(super) fn at(&mut self, pos: Pos) {
        if let Some(Stmt::Inst(inst)) = self.out.last_mut() {
            inst.pos = pos;
        }
    }

    pub(super) fn label(&mut self) -> LabelId {
        cancel::label(self.module, self.body)
    }

    /// The label stands here.
    pub(super) fn place(&mut self, label: LabelId) {
        self.out.push(Stmt::Label(label));
    }

    pub(super) fn go(&mut self, to: LabelId) {
        self.say("bra", &[Operand::Symbol(Symbol::Label(to), 0)]);
    }

    pub(super) fn go_if(&mut self, guard: Guard, to: LabelId) {
        self.go(to);
        self.only(guard);
    }

    pub(super) fn vector(&mut self, parts: &[Operand]) -> Operand {
        Operand::Vector(self.body.add_operands(parts))
    }

    /// Finds the thread's number in its CTA and the number of threads; changes the third register.
    pub(super) fn number_threads(&mut self, [thread, threads, other]: [Operand; 3]) {
        let tid = |part| Operand::Special(Special::Tid, part);
        let ntid = |part| Operand::Special(Special::Ntid, part);
        // x + width * (y + height * z)
        self.say("mov.u32", &[thread, tid(Part::X)]);
        self.say("mov.u32", &[threads, ntid(Part::X)]);
        for part in [Part::Y, Part::Z] {
            self.say("mov.u32", &[other, tid(part)]);
            self.say("mad.lo.u32", &[thread, other, threads, thread]);
            self.say("mov.u32", &[other, ntid(part)]);
            self.say("mul.lo.u32", &[threads, threads, other]);
        }
    }
}
