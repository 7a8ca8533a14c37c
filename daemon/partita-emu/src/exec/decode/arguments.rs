//! Arguments and results of calls, and `.reg` parameters (PTX ISA, "Function Declarations and
//! Definitions", "call").
//!
//! Every parameter and result has a place in the caller's local memory.
//!
//! - The caller stores an argument that is a register or a number in its place.
//! - The function loads its `.reg` parameters from their places when it begins.
//! - The function stores its `.reg` results in their places when it ends.
//! - The caller loads a result that goes to a register, behind the call.
//!
//! ptxas passes such values in registers. The values are the same.

use super::{Decoder, Result, align};
use crate::exec::call::Piece;
use crate::exec::inst::{MemoryOp, Op, Source, Space};
use crate::exec::program::Constant;
use partita_ptx::{
    Body, FuncId, Function, LabelId, Operand, Reg, Space as PtxSpace, Stmt, Symbol, Table, Type,
    VarId, Variable,
};
use std::collections::HashMap;

/// The declared type and alignment of a parameter or result.
#[derive(Clone, Copy, Debug)]
pub(super) struct Formal {
    ty: Type,
    elements: u32,
    alignment: u32,
}

impl Formal {
    fn of(variable: &Variable) -> Self {
        let alignment = variable.alignment() as u32;
        Formal { ty: variable.ty, elements: u32::from(variable.vector), alignment }
    }

    fn bytes(self) -> u32 {
        self.ty.bytes() * self.elements
    }
}

/// The results and parameters of a callee.
#[derive(Clone, Debug, Default)]
pub(super) struct Signature {
    pub(super) results: Vec<Formal>,
    pub(super) parameters: Vec<Formal>,
}

/// The direction of a move between a register and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transfer {
    ToPlace,
    FromPlace,
}

impl Decoder<'_> {
    pub(super) fn signature(&self, id: FuncId) -> Signature {
        let function = self.module.func(id);
        let formals = |vars: &[VarId]| -> Vec<Formal> {
            let of = |&var: &VarId| Formal::of(self.module.var(var));
            vars.iter().map(of).collect()
        };
        Signature { results: formals(&function.returns), parameters: formals(&function.params) }
    }

    /// The signature of the prototype at a label, or of the first target in the list at that label.
    pub(super) fn prototype(&self, label: LabelId) -> Signature {
        let body = self.scope().body;
        match table_behind(body, label) {
            Some(Table::Prototype { returns, params, .. }) => Signature {
                results: returns.iter().map(Formal::of).collect(),
                parameters: params.iter().map(Formal::of).collect(),
            },
            Some(Table::Call(targets)) => match targets.first() {
                Some(&Symbol::Func(id)) => self.signature(id),
                _ => Signature::default(),
            },
            _ => Signature::default(),
        }
    }

    /// The place of the caller's `.param` variable; `None` for any other operand.
    pub(super) fn variable_place(&self, operand: Operand) -> Option<u32> {
        match operand {
            Operand::Symbol(Symbol::Var(var), 0) => self.scope().params.get(&var).copied(),
            _ => None,
        }
    }

    /// The places of a call's arguments or results, in order.
    pub(super) fn places(&mut self, actuals: &[Operand], formals: &[Formal]) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for (index, &actual) in actuals.iter().enumerate() {
            if let (Some(place), Operand::Symbol(Symbol::Var(var), _)) =
                (self.variable_place(actual), actual)
            {
                pieces.push(self.piece(var, place));
                continue;
            }
            let formal = self.formal(actual, formals.get(index))?;
            let place = self.room(u64::from(formal.bytes()), formal.alignment)?;
            pieces.push(Piece { place, bytes: formal.bytes() });
        }
        Ok(pieces)
    }

    /// Stores arguments that are registers or numbers in their places.
    pub(super) fn give(
        &mut self,
        actuals: &[Operand],
        formals: &[Formal],
        pieces: &[Piece],
    ) -> Result<()> {
        for (index, (&actual, piece)) in actuals.iter().zip(pieces).enumerate() {
            if self.variable_place(actual).is_none() {
                let formal = self.formal(actual, formals.get(index))?;
                self.transfer(Transfer::ToPlace, actual, formal, piece.place)?;
            }
        }
        Ok(())
    }

    /// Loads results from their places into registers.
    pub(super) fn take(
        &mut self,
        actuals: &[Operand],
        formals: &[Formal],
        pieces: &[Piece],
    ) -> Result<()> {
        for (index, (&actual, piece)) in actuals.iter().zip(pieces).enumerate() {
            if actual != Operand::Sink && self.variable_place(actual).is_none() {
                let formal = self.formal(actual, formals.get(index))?;
                self.transfer(Transfer::FromPlace, actual, formal, piece.place)?;
            }
        }
        Ok(())
    }

    /// Loads a function's `.reg` parameters at its beginning.
    pub(super) fn load_formals(&mut self, function: &Function) -> Result<()> {
        let results = register_formals(self.module, &function.returns).count();
        let parameters: Vec<VarId> = register_formals(self.module, &function.params).collect();
        for (index, var) in parameters.into_iter().enumerate() {
            self.own_formal(Transfer::FromPlace, results + index, var)?;
        }
        Ok(())
    }

    /// Stores a function's `.reg` results at its end.
    pub(super) fn store_formals(&mut self, function: &Function) -> Result<()> {
        let results: Vec<VarId> = register_formals(self.module, &function.returns).collect();
        for (index, var) in results.into_iter().enumerate() {
            self.own_formal(Transfer::ToPlace, index, var)?;
        }
        Ok(())
    }

    /// A body's first registers are its `.reg` results and parameters ([`Body::formals`]).
    fn own_formal(&mut self, way: Transfer, index: usize, var: VarId) -> Result<()> {
        let Some(&place) = self.scope().params.get(&var) else {
            return self.refuse("a parameter that is not in scope");
        };
        let formal = Formal::of(self.module.var(var));
        self.transfer(way, Operand::Reg(Reg(index as u32)), formal, place)
    }

    /// The declaration of a value by the callee, or else the type of the register that holds the
    /// value.
    fn formal(&self, actual: Operand, known: Option<&Formal>) -> Result<Formal> {
        let formal = match (known, actual) {
            (Some(&formal), _) => formal,
            (None, Operand::Reg(reg)) => {
                let register = self.scope().body.reg(reg);
                let (ty, elements) = (register.ty, u32::from(register.vector));
                Formal { ty, elements, alignment: ty.bytes() * elements }
            }
            _ => return self.refuse("an argument whose type no prototype tells"),
        };
        if formal.ty == Type::Pred {
            return self.refuse("a predicate as a parameter; give a number of 32 bits");
        }
        Ok(formal)
    }

    fn transfer(
        &mut self,
        way: Transfer,
        operand: Operand,
        formal: Formal,
        place: u32,
    ) -> Result<()> {
        let elements = self.elements(operand);
        if elements.len() != formal.elements as usize {
            return self.refuse("a vector of another size than the parameter's");
        }
        let (ty, bytes) = (formal.ty, formal.ty.bytes());
        for (index, element) in elements.into_iter().enumerate() {
            let at = place + index as u32 * bytes;
            if way == Transfer::ToPlace {
                let source = self.source(element, ty)?;
                self.local_access(true, at, bytes, source);
            } else {
                let target = self.target(element, ty)?;
                let row = self.fresh(ty)?;
                self.local_access(false, at, bytes, row);
                self.move_to(target, row)?;
            }
        }
        Ok(())
    }

    /// Reserves local memory of the kernel, or of the frame of a function with its own code.
    pub(super) fn room(&mut self, bytes: u64, alignment: u32) -> Result<u32> {
        let start = align(self.frame.unwrap_or(self.program.local), alignment);
        let end = u64::from(start) + bytes;
        if end > 512 << 10 {
            return self.refuse("more than 512 KiB of local memory per thread");
        }
        match &mut self.frame {
            Some(frame) => *frame = end as u32,
            None => self.program.local = end as u32,
        }
        Ok(start)
    }

    pub(super) fn local_access(&mut self, store: bool, place: u32, bytes: u32, row: Source) {
        let (base, offset) = match &self.thread_stack {
            Some(stack) if self.frame.is_some() => (stack.frame, i64::from(place)),
            _ => (self.constant64(Constant::Bits(u64::from(place))), 0),
        };
        self.program.memory_ops.push(MemoryOp {
            store,
            space: Space::Local,
            address: Source::R64(base),
            offset,
            bytes,
            signed: false,
            elements: vec![Some(row)],
            read_only: false,
        });
        let index = self.program.memory_ops.len() as i64 - 1;
        self.emit(Op::Memory, 0, 0, 0, 0, index);
    }

    /// The place of each of a function's parameters and results.
    pub(super) fn by_formal(
        &self,
        id: FuncId,
        results: &[Piece],
        arguments: &[Piece],
    ) -> HashMap<VarId, u32> {
        let function = self.module.func(id);
        let formals = function.returns.iter().chain(&function.params);
        let pieces = results.iter().chain(arguments);
        formals.zip(pieces).map(|(&formal, piece)| (formal, piece.place)).collect()
    }
}

/// The results or parameters of a function that are registers.
fn register_formals<'m>(
    module: &'m partita_ptx::Module,
    vars: &'m [VarId],
) -> impl Iterator<Item = VarId> + 'm {
    vars.iter().copied().filter(|&var| module.var(var).space == PtxSpace::Reg)
}

/// The table that follows a label.
pub(super) fn table_behind(body: &Body, label: LabelId) -> Option<&Table> {
    let at = body.stmts.iter().position(|stmt| matches!(stmt, Stmt::Label(l) if *l == label))?;
    match body.stmts.get(at + 1) {
        Some(Stmt::Table(table)) => body.tables.get(*table as usize),
        _ => None,
    }
}
