//! Registers, constants, sources and targets of compact instructions.

use super::{Decoder, Result};
use crate::exec::inst::{FRAME, Op, Source, Target};
use crate::exec::program::Constant;
use crate::exec::{lane, registers};
use partita_ptx::{Body, Guard, Module, Op as P, Operand, Part, Reg, Stmt, Type};

impl Decoder<'_> {
    pub(super) fn names_register(body: &Body, operand: &Operand, reg: Reg) -> bool {
        match operand {
            Operand::Reg(own) => *own == reg,
            Operand::Pair(slice) => {
                body.operands(*slice).iter().any(|part| Self::names_register(body, part, reg))
            }
            _ => false,
        }
    }

    pub(super) fn guard_of(&mut self, guard: Guard) -> Result<u32> {
        match self.register(guard.reg)? {
            Source::P(row) => Ok(((row & !FRAME) + 1) << 1 | u32::from(guard.negated)),
            _ => self.refuse("the guard is no predicate"),
        }
    }

    pub(super) fn fresh32(&mut self) -> u32 {
        self.program.frame32 += 1;
        (self.program.frame32 as u32 - 1) | FRAME
    }

    pub(super) fn fresh64(&mut self) -> u32 {
        self.program.frame64 += 1;
        (self.program.frame64 as u32 - 1) | FRAME
    }

    pub(super) fn fresh_p(&mut self) -> u32 {
        self.program.predicates += 1;
        (self.program.predicates as u32 - 1) | FRAME
    }

    /// The row of a register.
    pub(super) fn register(&mut self, reg: Reg) -> Result<Source> {
        if let Some(known) = self.scope().regs[reg.index()] {
            return Ok(known);
        }
        let register = *self.scope().body.reg(reg);
        if register.vector != 1 {
            return self.refuse("a vector register where a scalar is expected");
        }
        let row = self.fresh(register.ty)?;
        self.scope_mut().regs[reg.index()] = Some(row);
        Ok(row)
    }

    /// A row for a value of a type.
    pub(super) fn fresh(&mut self, ty: Type) -> Result<Source> {
        Ok(match ty.bits() {
            _ if ty == Type::Pred => Source::P(self.fresh_p()),
            0..=32 => Source::R32(self.fresh32()),
            64 => Source::R64(self.fresh64()),
            bits => return self.refuse(format!("registers of {bits} bits")),
        })
    }

    /// The row of a component of a vector register.
    fn component(&mut self, reg: Reg, part: Part) -> Result<Source> {
        let register = *self.scope().body.reg(reg);
        let index = part.component(&self.module.names).filter(|&index| index < register.vector);
        let Some(index) = index.filter(|_| register.vector > 1) else {
            return self.refuse("a part of a register that has no such part");
        };
        if !self.scope().vectors.contains_key(&reg) {
            let rows = (0..register.vector).map(|_| self.fresh(register.ty));
            let rows = rows.collect::<Result<Vec<Source>>>()?;
            self.scope_mut().vectors.insert(reg, rows);
        }
        Ok(self.scope().vectors[&reg][usize::from(index)])
    }

    /// The elements of a list or of a vector register; `None` for a scalar.
    pub(super) fn parts(&self, operand: Operand) -> Option<Vec<Operand>> {
        const COMPONENTS: [Part; 4] = [Part::X, Part::Y, Part::Z, Part::W];
        match operand {
            Operand::Vector(parts) => Some(self.scope().body.operands(parts).to_vec()),
            Operand::Reg(reg) if self.scope().body.reg(reg).vector > 1 => {
                let count = usize::from(self.scope().body.reg(reg).vector).min(COMPONENTS.len());
                Some(COMPONENTS[..count].iter().map(|&part| Operand::Part { reg, part }).collect())
            }
            _ => None,
        }
    }

    pub(super) fn constant32(&mut self, constant: Constant) -> u32 {
        let next = self.constants32.len() as u32;
        *self.constants32.entry(constant).or_insert_with(|| {
            self.program.constants32.push(constant);
            next
        })
    }

    pub(super) fn constant64(&mut self, constant: Constant) -> u32 {
        let next = self.program.constants64.len() as u32;
        *self.constants64.entry(constant).or_insert_with(|| {
            self.program.constants64.push(constant);
            next
        })
    }

    pub(super) fn constant(&mut self, constant: Constant, bits: u32) -> Source {
        if bits == 64 {
            Source::R64(self.constant64(constant))
        } else {
            Source::R32(self.constant32(constant))
        }
    }

    /// A source in its own width: a register's, or `ty`'s for any other operand.
    pub(super) fn source(&mut self, operand: Operand, ty: Type) -> Result<Source> {
        let bits = if ty.bits() == 64 { 64 } else { 32 };
        match operand {
            Operand::Reg(reg) => self.register(reg),
            Operand::Part { reg, part } => self.component(reg, part),
            Operand::Not(reg) => {
                let Source::P(p) = self.register(reg)? else {
                    return self.refuse("`!` on no predicate");
                };
                let temp = self.fresh_p();
                self.emit(Op::PNot, temp, p, p, 0, 0);
                Ok(Source::P(temp))
            }
            Operand::Int(_) | Operand::Uint(_) | Operand::F32(_) | Operand::F64(_) => {
                let value = literal(operand, ty);
                if ty == Type::Pred {
                    let truth = if value & 1 == 1 { registers::P_TRUE } else { registers::P_FALSE };
                    return Ok(Source::P(truth));
                }
                Ok(self.constant(Constant::Bits(value), bits))
            }
            Operand::Special(special, part) => self.special(special, part, bits),
            Operand::Symbol(symbol, offset) => self.symbol(symbol, offset, bits),
            _ => self.refuse("an operand of this kind"),
        }
    }

    /// A source as a row of 32 bits.
    pub(super) fn source32(&mut self, operand: Operand, ty: Type) -> Result<u32> {
        match self.source(operand, ty)? {
            Source::R32(row) => Ok(row),
            Source::R64(row) => {
                let temp = self.fresh32();
                self.emit(Op::Low32, temp, row, 0, 0, 0);
                Ok(temp)
            }
            _ => self.refuse("a predicate where a number is expected"),
        }
    }

    /// A source as a row of 64 bits.
    pub(super) fn source64(&mut self, operand: Operand, ty: Type) -> Result<u32> {
        match self.source(operand, ty)? {
            Source::R64(row) => Ok(row),
            Source::R32(row) => {
                let temp = self.fresh64();
                self.emit(Op::U64FromU32, temp, row, 0, 0, 0);
                Ok(temp)
            }
            _ => self.refuse("a predicate where a number is expected"),
        }
    }

    /// A source as a predicate.
    pub(super) fn source_p(&mut self, operand: Operand) -> Result<u32> {
        match self.source(operand, Type::Pred)? {
            Source::P(row) => Ok(row),
            _ => self.refuse("a number where a predicate is expected"),
        }
    }

    /// The row of a result. `_` gives a fresh row that no instruction reads.
    pub(super) fn target(&mut self, operand: Operand, ty: Type) -> Result<Target> {
        Ok(match operand {
            Operand::Sink => match ty {
                Type::Pred => Target::P(self.fresh_p()),
                _ if ty.bits() == 64 => Target::R64(self.fresh64()),
                _ => Target::R32(self.fresh32()),
            },
            Operand::Reg(reg) => {
                if self.scope().fixed.contains(&reg) {
                    return self.refuse("a second write to a register that one instruction writes");
                }
                let row = self.register(reg)?;
                Self::into_row(row, self.scope().body.reg(reg).ty)
            }
            Operand::Part { reg, part } => {
                let row = self.component(reg, part)?;
                Self::into_row(row, self.scope().body.reg(reg).ty)
            }
            _ => return self.refuse("a result that is no register"),
        })
    }

    /// A row as a result, cut to the width of `ty`.
    fn into_row(row: Source, ty: Type) -> Target {
        match row {
            Source::P(row) => Target::P(row),
            Source::R64(row) => Target::R64(row),
            Source::R32(row) if ty.bits() == 8 => Target::R8(row),
            Source::R32(row) if ty.bits() == 16 => Target::R16(row),
            Source::R32(row) => Target::R32(row),
            Source::None => Target::None,
        }
    }

    pub(super) fn target32(&mut self, operand: Operand) -> Result<u32> {
        match self.target(operand, Type::B32)? {
            Target::R32(row) | Target::R16(row) | Target::R8(row) => Ok(row),
            _ => self.refuse("a result that is no register of 32 bits"),
        }
    }

    pub(super) fn target64(&mut self, operand: Operand) -> Result<u32> {
        match self.target(operand, Type::B64)? {
            Target::R64(row) => Ok(row),
            _ => self.refuse("a result that is no register of 64 bits"),
        }
    }

    pub(super) fn target_p(&mut self, operand: Operand) -> Result<u32> {
        match self.target(operand, Type::Pred)? {
            Target::P(row) => Ok(row),
            _ => self.refuse("a result that is no predicate"),
        }
    }

    /// Gives a register a value that never changes. If no other instruction writes the register,
    /// the register becomes an alias of the value's row, and no code is emitted.
    pub(super) fn define(&mut self, operand: Operand, ty: Type, source: Source) -> Result<()> {
        if let Operand::Reg(reg) = operand
            && self.is_fixed(source)
            && self.counts_before()
        {
            let scope = self.scope();
            let register = *scope.body.reg(reg);
            let same_width = match source {
                Source::R32(_) => register.ty.bits() <= 32 && register.ty != Type::Pred,
                Source::R64(_) => register.ty.bits() == 64,
                _ => false,
            };
            // An earlier instruction in the text may read the register after this one has executed.
            let unread = scope.regs[reg.index()].is_none();
            if unread && same_width && register.vector == 1 && scope.once[reg.index()] {
                let scope = self.scope_mut();
                scope.regs[reg.index()] = Some(source);
                scope.fixed.insert(reg);
                return Ok(());
            }
        }
        let target = self.target(operand, ty)?;
        self.move_to(target, source)
    }

    /// Whether a row keeps its value while a CTA runs.
    fn is_fixed(&self, source: Source) -> bool {
        let fixed = &self.program.fixed;
        match source {
            Source::R32(row) if row & FRAME != 0 => {
                fixed.tid.iter().chain([&fixed.laneid]).flatten().any(|&own| own == row & !FRAME)
            }
            Source::R32(_) => true,
            Source::R64(row) => row & FRAME == 0,
            _ => false,
        }
    }

    /// Whether an instruction without code may count with the one before it: all threads come from
    /// that one.
    fn counts_before(&self) -> bool {
        let code = &self.program.code;
        let apart = |op| matches!(op, Op::Bra | Op::Brx | Op::Call | Op::Return | Op::Exit);
        self.guard == 0
            && self.last_label != Some(code.len())
            && !code.last().is_some_and(|inst| apart(inst.op))
    }

    /// Moves a value to a result, which truncates or extends with zeros.
    pub(super) fn move_to(&mut self, target: Target, source: Source) -> Result<()> {
        match (target, source) {
            (Target::R32(d) | Target::R16(d) | Target::R8(d), Source::R32(a)) => {
                self.emit(Op::Mov32, d, a, 0, 0, 0)
            }
            (Target::R64(d), Source::R64(a)) => self.emit(Op::Mov64, d, a, 0, 0, 0),
            (Target::R32(d), Source::R64(a)) => self.emit(Op::Low32, d, a, 0, 0, 0),
            (Target::R64(d), Source::R32(a)) => self.emit(Op::U64FromU32, d, a, 0, 0, 0),
            (Target::P(d), Source::P(a)) => self.emit(Op::PMov, d, a, a, 0, 0),
            (Target::None, _) => {}
            (target, source) => {
                self.emit_lane(lane::piece, 0, [source, Source::None, Source::None], target)
            }
        }
        Ok(())
    }
}

/// For each register of a body, whether exactly one instruction writes it.
pub(super) fn written_once(module: &Module, body: &Body) -> Vec<bool> {
    fn count(body: &Body, operand: &Operand, writes: &mut [u32]) {
        match operand {
            Operand::Reg(reg) | Operand::Part { reg, .. } => writes[reg.index()] += 1,
            Operand::Vector(parts) | Operand::List(parts) | Operand::Pair(parts) => {
                body.operands(*parts).iter().for_each(|part| count(body, part, writes));
            }
            _ => {}
        }
    }
    let mut writes = vec![0; body.regs.len()];
    for stmt in &body.stmts {
        let Stmt::Inst(inst) = stmt else { continue };
        if module.form(inst).op == P::St {
            continue;
        }
        // Results come first. Where the first operand is no result, the extra count costs at most a
        // needless copy.
        if let Some(first) = body.operands(inst.operands).first() {
            count(body, first, &mut writes);
        }
    }
    writes.into_iter().map(|writes| writes == 1).collect()
}

/// A literal's bits in a type.
fn literal(operand: Operand, ty: Type) -> u64 {
    match (operand, ty) {
        (Operand::F64(bits), Type::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (Operand::F64(bits), Type::F16) => {
            u64::from(half::f16::from_f64(f64::from_bits(bits)).to_bits())
        }
        (Operand::F32(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Operand::F32(bits), _) => u64::from(bits),
        (Operand::F64(bits), _) => bits,
        (Operand::Int(value) | Operand::Uint(value), _) => match ty.bits() {
            8 => value & 0xff,
            16 => value & 0xffff,
            _ => value,
        },
        _ => 0,
    }
}
