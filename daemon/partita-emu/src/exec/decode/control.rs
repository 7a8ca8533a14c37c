//! Branches, calls, barriers, collective operations of a warp, and fences.

use super::arguments::{Signature, table_behind};
use super::{Decoder, Result};
use crate::exec::access::SEQUENTIAL;
use crate::exec::inst::{
    BarrierKind, BarrierOp, Op, Source, SystemKind, SystemOp, Target, WarpKind, WarpOp,
};
use crate::exec::program::Constant;
use crate::exec::step::BREAKPOINT;
use partita_ptx::{Form, FuncId, Mod, Op as P, Operand, Symbol, Table, Type};

impl Decoder<'_> {
    pub(super) fn control_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        match form.op {
            P::Bra => match operands[0] {
                Operand::Symbol(Symbol::Label(label), 0) => {
                    let label = self.label(label);
                    self.jump(label);
                    Ok(())
                }
                _ => self.unsupported(form),
            },
            P::Brx => self.indexed_branch(form, operands),
            P::Ret => {
                match self.scope().returns_to {
                    Some(label) => self.jump(label),
                    None => self.emit(Op::Exit, 0, 0, 0, 0, 0),
                }
                Ok(())
            }
            P::Exit => {
                self.emit(Op::Exit, 0, 0, 0, 0, 0);
                Ok(())
            }
            P::Trap => {
                self.emit(Op::Trap, 0, 0, 0, 0, 0);
                Ok(())
            }
            P::Call => self.call(form, operands),
            P::Alloca | P::Stacksave | P::Stackrestore => self.stack_operation(form, operands),
            P::Mma | P::Wmma | P::Ldmatrix | P::Stmatrix | P::Movmatrix => {
                self.matrix_operation(form, operands)
            }
            P::Wgmma => self.warpgroup_operation(form, operands),
            P::Tcgen05 => self.tensor_operation(form, operands),
            P::Bar | P::Barrier => self.barrier(form, operands),
            P::Shfl => self.shuffle(form, operands),
            P::Vote => self.vote(form, operands),
            P::Match => self.find_equal(form, operands),
            P::Redux => self.reduce(form, operands),
            P::Elect => {
                let (d, p) = self.two_results(operands[0], Type::U32)?;
                let members = self.source(operands[1], Type::B32)?;
                self.warp(WarpKind::Elect, [Source::None; 3], members, false, d, p);
                Ok(())
            }
            P::Activemask => {
                let d = self.target32(operands[0])?;
                self.emit_aux(
                    Op::Special32,
                    crate::exec::inst::Hardware::Activemask as u16,
                    d,
                    0,
                    0,
                    0,
                );
                Ok(())
            }
            P::Nanosleep => {
                let a = self.source32(operands[0], Type::U32)?;
                self.emit(Op::Nanosleep, 0, a, 0, 0, 0);
                Ok(())
            }
            P::Brkpt => {
                self.emit_aux(Op::Trap, BREAKPOINT, 0, 0, 0, 0);
                Ok(())
            }
            P::Membar | P::Fence => {
                // PTX ISA, "membar": a synonym of `fence.sc`. A fence without a qualifier is
                // `.acq_rel`.
                let sequential = form.op == P::Membar || form.has(Mod::Sc);
                let order = if sequential { SEQUENTIAL } else { 0 };
                self.emit_aux(Op::Fence, order | Self::scope_bits(form), 0, 0, 0, 0);
                Ok(())
            }
            P::Griddepcontrol | P::Pmevent | P::Setmaxnreg => {
                self.emit(Op::Nop, 0, 0, 0, 0, 0);
                Ok(())
            }
            _ => self.unsupported(form),
        }
    }

    fn indexed_branch(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let [index, Operand::Symbol(Symbol::Label(list), 0)] = *operands else {
            return self.unsupported(form);
        };
        let table = table_behind(self.scope().body, list);
        let Some(Table::Branch(targets)) = table else { return self.unsupported(form) };
        let mut labels = Vec::new();
        for target in targets {
            let Symbol::Label(label) = *target else { return self.unsupported(form) };
            labels.push(self.label(label) as u32);
        }
        let a = self.source32(index, Type::U32)?;
        let guard = std::mem::take(&mut self.guard);
        let after = self.fresh_label();
        if guard != 0 {
            self.guard = guard ^ 1;
            self.jump(after);
            self.guard = 0;
        }
        self.program.branch_tables.push(labels);
        let table = self.program.branch_tables.len() as i64 - 1;
        self.emit(Op::Brx, 0, a, 0, 0, table);
        self.here(after);
        Ok(())
    }

    fn call(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (mut returns, mut callee, mut arguments) = (Vec::new(), None, Vec::new());
        let mut prototype = Signature::default();
        for &operand in operands {
            match (operand, callee) {
                (Operand::List(list), None) => returns = self.scope().body.operands(list).to_vec(),
                (Operand::List(list), Some(_)) => {
                    arguments = self.scope().body.operands(list).to_vec()
                }
                (Operand::Symbol(Symbol::Func(id), 0), None) => callee = Some(Ok(id)),
                (Operand::Reg(_), None) => callee = Some(Err(operand)),
                (_, None) => return self.unsupported(form),
                (Operand::Symbol(Symbol::Label(label), 0), Some(_)) => {
                    prototype = self.prototype(label);
                }
                _ => {}
            }
        }
        let Some(callee) = callee else { return self.unsupported(form) };
        let guard = std::mem::take(&mut self.guard);
        let after = self.fresh_label();
        if guard != 0 {
            self.guard = guard ^ 1;
            self.jump(after);
            self.guard = 0;
        }
        let callee = callee.map(|id| self.module.definition(id).unwrap_or(id));
        let system = callee.ok().filter(|&id| self.module.func(id).body.is_none());
        match system {
            Some(id) => {
                let name = self.module.text(self.module.func(id).name).to_owned();
                self.system_call(&name, &returns, &arguments)?;
            }
            None => self.call_function(callee, prototype, &returns, &arguments)?,
        }
        self.here(after);
        // A label must precede an instruction.
        self.emit(Op::Nop, 0, 0, 0, 0, 0);
        Ok(())
    }

    /// A call of a function of the module, in place or at run time.
    fn call_function(
        &mut self,
        callee: std::result::Result<FuncId, Operand>,
        prototype: Signature,
        returns: &[Operand],
        arguments: &[Operand],
    ) -> Result<()> {
        let signature = callee.map_or(prototype, |id| self.signature(id));
        let counts = (signature.results.len(), signature.parameters.len());
        if callee.is_ok() && counts != (returns.len(), arguments.len()) {
            return self.refuse("a call with another number of arguments than the function has");
        }
        let given = self.places(arguments, &signature.parameters)?;
        let results = self.places(returns, &signature.results)?;
        self.give(arguments, &signature.parameters, &given)?;
        match callee {
            Ok(id) if !self.is_outlined(id) => {
                let params = self.by_formal(id, &results, &given);
                let back = self.fresh_label();
                self.expand(id, Some(back), params)?;
            }
            callee => self.run_time_call(callee, results.clone(), given)?,
        }
        self.take(returns, &signature.results, &results)
    }

    fn system_call(
        &mut self,
        name: &str,
        returns: &[Operand],
        arguments: &[Operand],
    ) -> Result<()> {
        let (kind, widths): (SystemKind, &[u32]) = match name {
            "vprintf" => (SystemKind::Vprintf, &[8, 8]),
            "__assertfail" => (SystemKind::AssertFail, &[8, 8, 4, 8]),
            "malloc" => (SystemKind::Malloc, &[8]),
            "free" => (SystemKind::Free, &[8]),
            _ => return self.unknown_function(name),
        };
        let mut sources = [Source::None; 4];
        for ((source, &argument), &width) in sources.iter_mut().zip(arguments).zip(widths) {
            let ty = if width == 8 { Type::U64 } else { Type::U32 };
            let row = match self.variable_place(argument) {
                Some(place) => {
                    let row = self.fresh64();
                    self.local_access(false, place, width, Source::R64(row));
                    row
                }
                None => self.source64(argument, ty)?,
            };
            *source = Source::R64(row);
        }
        let result = self.fresh64();
        let op = SystemOp { kind, arguments: sources, target: Target::R64(result) };
        self.program.system_ops.push(op);
        let index = self.program.system_ops.len() as i64 - 1;
        self.emit(Op::System, 0, 0, 0, 0, index);
        if let Some(&to) = returns.first() {
            let (width, ty) = match kind {
                SystemKind::Malloc => (8, Type::U64),
                _ => (4, Type::U32),
            };
            match self.variable_place(to) {
                Some(place) => self.local_access(true, place, width, Source::R64(result)),
                None => {
                    let target = self.target(to, ty)?;
                    self.move_to(target, Source::R64(result))?;
                }
            }
        }
        Ok(())
    }

    fn barrier(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if form.has(Mod::Cluster) {
            return self.cluster_barrier(form);
        }
        if form.has(Mod::Warp) {
            let members = self.source(operands[0], Type::B32)?;
            self.warp(
                WarpKind::BarWarp,
                [Source::None; 3],
                members,
                false,
                Target::None,
                Target::None,
            );
            return Ok(());
        }
        let kind = if form.has(Mod::Arrive) {
            BarrierKind::Arrive
        } else if form.has(Mod::Red) {
            match form.mods.iter().find(|m| matches!(m, Mod::Popc | Mod::And | Mod::Or)) {
                Some(Mod::Popc) => BarrierKind::RedPopc,
                Some(Mod::And) => BarrierKind::RedAnd,
                _ => BarrierKind::RedOr,
            }
        } else {
            BarrierKind::Sync
        };
        let reduces = form.has(Mod::Red);
        let (result, rest) =
            if reduces { (Some(operands[0]), &operands[1..]) } else { (None, operands) };
        let (value, rest) = match (reduces, rest) {
            (true, [rest @ .., value]) => (Some(*value), rest),
            _ => (None, rest),
        };
        let zero = Source::R32(self.constant32(Constant::Bits(0)));
        let id = match rest.first() {
            Some(&id) => self.source(id, Type::U32)?,
            None => zero,
        };
        let threads = match rest.get(1) {
            Some(&threads) => self.source(threads, Type::U32)?,
            None => Source::None,
        };
        let value = match value {
            Some(value) => Source::P(self.source_p(value)?),
            None => Source::None,
        };
        let target = match result {
            Some(result) => {
                let ty = if kind == BarrierKind::RedPopc { Type::U32 } else { Type::Pred };
                self.target(result, ty)?
            }
            None => Target::None,
        };
        self.program.barrier_ops.push(BarrierOp {
            kind,
            id,
            threads,
            value,
            negated: false,
            target,
        });
        let index = self.program.barrier_ops.len() as i64 - 1;
        self.emit(Op::Barrier, 0, 0, 0, 0, index);
        Ok(())
    }

    pub(super) fn warp(
        &mut self,
        kind: WarpKind,
        [a, b, c]: [Source; 3],
        members: Source,
        negated: bool,
        target: Target,
        predicate: Target,
    ) {
        self.program.warp_ops.push(WarpOp { kind, a, b, c, members, negated, target, predicate });
        let index = self.program.warp_ops.len() as i64 - 1;
        self.emit(Op::Warp, 0, 0, 0, 0, index);
    }

    /// `d|p` or `d`.
    fn two_results(&mut self, operand: Operand, ty: Type) -> Result<(Target, Target)> {
        match operand {
            Operand::Pair(pair) => {
                let parts = self.scope().body.operands(pair);
                let (d, p) = (parts[0], parts[1]);
                Ok((self.target(d, ty)?, self.target(p, Type::Pred)?))
            }
            other => Ok((self.target(other, ty)?, Target::None)),
        }
    }

    fn shuffle(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let kind = if form.has(Mod::Up) {
            WarpKind::ShflUp
        } else if form.has(Mod::Down) {
            WarpKind::ShflDown
        } else if form.has(Mod::Bfly) {
            WarpKind::ShflBfly
        } else {
            WarpKind::ShflIdx
        };
        let [result, a, b, c, ref members @ ..] = *operands else { return self.unsupported(form) };
        let sources =
            [self.source(a, Type::B32)?, self.source(b, Type::B32)?, self.source(c, Type::B32)?];
        let members = match members.first() {
            Some(&members) => self.source(members, Type::B32)?,
            None => Source::None,
        };
        let (target, predicate) = self.two_results(result, Type::B32)?;
        self.warp(kind, sources, members, false, target, predicate);
        Ok(())
    }

    fn vote(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (kind, ty) = if form.has(Mod::Ballot) {
            (WarpKind::VoteBallot, Type::B32)
        } else if form.has(Mod::All) {
            (WarpKind::VoteAll, Type::Pred)
        } else if form.has(Mod::Any) {
            (WarpKind::VoteAny, Type::Pred)
        } else {
            (WarpKind::VoteUni, Type::Pred)
        };
        let a = Source::P(self.source_p(operands[1])?);
        let members = match operands.get(2) {
            Some(&members) => self.source(members, Type::B32)?,
            None => Source::None,
        };
        let target = self.target(operands[0], ty)?;
        self.warp(kind, [a, Source::None, Source::None], members, false, target, Target::None);
        Ok(())
    }

    fn find_equal(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let kind = if form.has(Mod::All) { WarpKind::MatchAll } else { WarpKind::MatchAny };
        let Some(ty) = form.last_type() else { return self.unsupported(form) };
        let a = self.source(operands[1], ty)?;
        let members = self.source(operands[2], Type::B32)?;
        let (target, predicate) = self.two_results(operands[0], Type::B32)?;
        self.warp(kind, [a, Source::None, Source::None], members, false, target, predicate);
        Ok(())
    }

    fn reduce(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let signed = form.last_type() == Some(Type::S32);
        let float = form.last_type() == Some(Type::F32);
        if form.last_type().is_none_or(|ty| ty.is_float() && !float) {
            return self.unsupported(form);
        }
        let kind = form.mods.iter().find_map(|modifier| {
            Some(match modifier {
                Mod::Min | Mod::Max if float => WarpKind::ReduxF32 {
                    maximum: *modifier == Mod::Max,
                    absolute: form.has(Mod::Abs),
                    nan: form.has(Mod::NaN),
                },
                _ if float => return None,
                Mod::Add => WarpKind::ReduxAdd,
                Mod::Min if signed => WarpKind::ReduxMinS,
                Mod::Max if signed => WarpKind::ReduxMaxS,
                Mod::Min => WarpKind::ReduxMinU,
                Mod::Max => WarpKind::ReduxMaxU,
                Mod::And => WarpKind::ReduxAnd,
                Mod::Or => WarpKind::ReduxOr,
                Mod::Xor => WarpKind::ReduxXor,
                _ => return None,
            })
        });
        let Some(kind) = kind else { return self.unsupported(form) };
        let a = self.source(operands[1], Type::B32)?;
        let members = self.source(operands[2], Type::B32)?;
        let target = self.target(operands[0], Type::B32)?;
        self.warp(kind, [a, Source::None, Source::None], members, false, target, Target::None);
        Ok(())
    }
}
