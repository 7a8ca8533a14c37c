//! A writer of code: appends instructions, labels and branches to a body's statements. What they
//! mean is for its users.

use crate::cancel;
use crate::carry::{declare, emit};
use crate::ir::{Body, Guard, LabelId, Module, Operand, Pos, Reg, Stmt, Symbol, Type};

/// Where instructions are appended.
pub(super) struct Code<'a> {
    pub module: &'a mut Module,
    pub body: &'a mut Body,
    pub out: &'a mut Vec<Stmt>,
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
}
