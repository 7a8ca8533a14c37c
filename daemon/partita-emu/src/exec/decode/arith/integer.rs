//! Sums, products, quotients, logic, shifts and bit fields.

use super::{NONE, Way, float_how, integer_how};
use crate::exec::decode::{Decoder, Result};
use crate::exec::float::{self, Bf16, F16};
use crate::exec::inst::{Op, Source, Target};
use crate::exec::lane::{self, LaneFn, SATURATE};
use crate::exec::program::Constant;
use crate::exec::registers::P_TRUE;
use partita_ptx::{Form, Mod, Op as P, Operand, Type};

impl Decoder<'_> {
    pub(super) fn sum(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let add = form.op == P::Add;
        if form.has(Mod::Cc) {
            return self.carried(form, operands);
        }
        let how = float_how(form);
        let way = match ty {
            Type::F32 if how == 0 => Way::Rows(if add { Op::AddF32 } else { Op::SubF32 }),
            Type::F32 => Way::Lanes(if add { float::add_f32 } else { float::sub_f32 }, how),
            Type::F64 if how == 0 => Way::Rows(if add { Op::AddF64 } else { Op::SubF64 }),
            Type::F64 => Way::Lanes(if add { float::add_f64 } else { float::sub_f64 }, how),
            Type::F16 => {
                Way::Lanes(if add { float::half_add::<F16> } else { float::half_sub::<F16> }, how)
            }
            Type::F16x2 => {
                Way::Lanes(if add { float::half_add2::<F16> } else { float::half_sub2::<F16> }, how)
            }
            Type::Bf16 => {
                Way::Lanes(if add { float::half_add::<Bf16> } else { float::half_sub::<Bf16> }, how)
            }
            Type::Bf16x2 => Way::Lanes(
                if add { float::half_add2::<Bf16> } else { float::half_sub2::<Bf16> },
                how,
            ),
            Type::U16x2 | Type::S16x2 if add => Way::Lanes(lane::pair16, 4),
            Type::S32 if form.has(Mod::Sat) => {
                let how = integer_how(ty) | SATURATE;
                Way::Lanes(if add { lane::add } else { lane::sub }, how)
            }
            Type::U32 | Type::S32 => Way::Rows(if add { Op::Add32 } else { Op::Sub32 }),
            Type::U64 | Type::S64 => Way::Rows(if add { Op::Add64 } else { Op::Sub64 }),
            Type::U16 | Type::S16 => {
                Way::Lanes(if add { lane::add } else { lane::sub }, integer_how(ty))
            }
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, 2)
    }

    /// The predicate that holds the carry flag `CC.CF`.
    pub(super) fn carry(&mut self) -> u32 {
        if let Some(row) = self.carry {
            return row;
        }
        let row = self.fresh_p();
        self.carry = Some(row);
        row
    }

    /// `add.cc`, `addc`, `sub.cc`, `subc`. The flag is the carry of the hardware's adder. ptxas
    /// compiles `sub.cc` to `IADD3 d, P0, a, -b` and `subc` to `IADD3.X d, a, ~b, P0`. So after a
    /// subtraction every reader of the flag sees the inverted borrow.
    pub(super) fn carried(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b] = operands[..] else { return self.refuse("three operands are expected") };
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let target = self.target(d, ty)?;
        let subtract = matches!(form.op, P::Sub | P::Subc);
        let flag = self.carry();
        let carry_in = match form.op {
            P::Addc | P::Subc => Source::P(flag),
            P::Sub => Source::P(P_TRUE),
            _ => NONE,
        };
        let carry_out = self.fresh_p();
        if form.has(Mod::Cc) {
            let function: LaneFn = if subtract { lane::carry_sub } else { lane::carry_add };
            self.emit_lane(function, ty.bits(), [a, b, carry_in], Target::P(carry_out));
        }
        let function: LaneFn = if subtract { lane::sub_carry } else { lane::add_carry };
        self.emit_lane(function, 0, [a, b, carry_in], target);
        if form.has(Mod::Cc) {
            self.emit(Op::PMov, flag, carry_out, carry_out, 0, 0);
        }
        Ok(())
    }

    /// `mad.cc` and `madc`: the product first, then a carried sum.
    pub(super) fn carried_product(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b, c] = operands[..] else { return self.refuse("four operands are expected") };
        let (a, b, c) = (self.source(a, ty)?, self.source(b, ty)?, self.source(c, ty)?);
        let target = self.target(d, ty)?;
        let product =
            if ty.bits() == 64 { Source::R64(self.fresh64()) } else { Source::R32(self.fresh32()) };
        let into = match product {
            Source::R64(row) => Target::R64(row),
            Source::R32(row) => Target::R32(row),
            _ => Target::None,
        };
        let function: LaneFn = if form.has(Mod::Hi) { lane::mul_hi } else { lane::mul_lo };
        self.emit_lane(function, integer_how(ty), [a, b, NONE], into);
        let flag = self.carry();
        let carry_in = if form.op == P::Madc { Source::P(flag) } else { NONE };
        let carry_out = self.fresh_p();
        if form.has(Mod::Cc) {
            self.emit_lane(
                lane::carry_add,
                ty.bits(),
                [product, c, carry_in],
                Target::P(carry_out),
            );
        }
        self.emit_lane(lane::add_carry, 0, [product, c, carry_in], target);
        if form.has(Mod::Cc) {
            self.emit(Op::PMov, flag, carry_out, carry_out, 0, 0);
        }
        Ok(())
    }

    pub(super) fn product(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let added = form.op != P::Mul;
        let sources = if added { 3 } else { 2 };
        if form.has(Mod::Wide) {
            return self.wide_product(ty, operands, added);
        }
        if form.has(Mod::Cc) {
            return self.carried_product(form, operands);
        }
        let how = float_how(form);
        let high = form.has(Mod::Hi);
        let pick = |mul: LaneFn, fma: LaneFn| if added { fma } else { mul };
        let way = match ty {
            Type::F32 if how == 0 => Way::Rows(if added { Op::FmaF32 } else { Op::MulF32 }),
            Type::F32 => Way::Lanes(pick(float::mul_f32, float::fma_f32), how),
            Type::F64 if how == 0 => Way::Rows(if added { Op::FmaF64 } else { Op::MulF64 }),
            Type::F64 => Way::Lanes(pick(float::mul_f64, float::fma_f64), how),
            Type::F16 => Way::Lanes(pick(float::half_mul::<F16>, float::half_fma::<F16>), how),
            Type::F16x2 => Way::Lanes(pick(float::half_mul2::<F16>, float::half_fma2::<F16>), how),
            Type::Bf16 => Way::Lanes(pick(float::half_mul::<Bf16>, float::half_fma::<Bf16>), how),
            Type::Bf16x2 => {
                Way::Lanes(pick(float::half_mul2::<Bf16>, float::half_fma2::<Bf16>), how)
            }
            Type::U32 | Type::S32 if !high => Way::Rows(if added { Op::Mad32 } else { Op::Mul32 }),
            Type::U64 | Type::S64 if !high => Way::Rows(if added { Op::Mad64 } else { Op::Mul64 }),
            Type::U32 if !added => Way::Rows(Op::MulHiU32),
            Type::S32 if !added => Way::Rows(Op::MulHiS32),
            _ if ty.is_integer() => {
                let saturate = if form.has(Mod::Sat) { SATURATE } else { 0 };
                let function = if high {
                    pick(lane::mul_hi, lane::mad_hi)
                } else {
                    pick(lane::mul_lo, lane::mad_lo)
                };
                Way::Lanes(function, integer_how(ty) | saturate)
            }
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, sources)
    }

    pub(super) fn wide_product(
        &mut self,
        ty: Type,
        operands: &[Operand],
        added: bool,
    ) -> Result<()> {
        let wider = match ty {
            Type::U16 => Type::U32,
            Type::S16 => Type::S32,
            Type::U32 => Type::U64,
            _ => Type::S64,
        };
        if ty.bits() == 16 {
            let function: LaneFn = if added { mad_wide16 } else { lane::mul_lo };
            return self.mixed(
                function,
                integer_how(ty),
                operands,
                &[ty, ty, wider][..if added { 3 } else { 2 }],
                wider,
            );
        }
        let [d, a, b] = operands[..3] else { return self.refuse("too few operands") };
        let (a, b) = (self.source32(a, ty)?, self.source32(b, ty)?);
        let c = match operands.get(3) {
            Some(&c) if added => self.source64(c, wider)?,
            _ => 0,
        };
        let d = self.target64(d)?;
        let op = match (added, ty.is_signed()) {
            (false, false) => Op::MulWideU32,
            (false, true) => Op::MulWideS32,
            (true, false) => Op::MadWideU32,
            (true, true) => Op::MadWideS32,
        };
        self.emit(op, d, a, b, c, 0);
        Ok(())
    }

    pub(super) fn quotient(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let how = float_how(form);
        let way = match ty {
            Type::F32 if how == 0 => Way::Rows(Op::DivF32),
            Type::F32 => Way::Lanes(float::div_f32, how),
            Type::F64 if how == 0 => Way::Rows(Op::DivF64),
            Type::F64 => Way::Lanes(float::div_f64, how),
            _ if ty.is_integer() => Way::Lanes(lane::div, integer_how(ty)),
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, 2)
    }

    pub(super) fn extreme(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let max = form.op == P::Max;
        let how = float_how(form);
        let pick = |min: LaneFn, other: LaneFn| if max { other } else { min };
        let way = match ty {
            Type::F32 if how == 0 => Way::Rows(if max { Op::MaxF32 } else { Op::MinF32 }),
            Type::F32 => Way::Lanes(pick(float::min_f32, float::max_f32), how),
            Type::F64 => Way::Lanes(pick(float::min_f64, float::max_f64), how),
            Type::F16 => Way::Lanes(pick(float::half_min::<F16>, float::half_max::<F16>), how),
            Type::F16x2 => Way::Lanes(pick(float::half_min2::<F16>, float::half_max2::<F16>), how),
            Type::Bf16 => Way::Lanes(pick(float::half_min::<Bf16>, float::half_max::<Bf16>), how),
            Type::Bf16x2 => {
                Way::Lanes(pick(float::half_min2::<Bf16>, float::half_max2::<Bf16>), how)
            }
            Type::U32 => Way::Rows(if max { Op::MaxU32 } else { Op::MinU32 }),
            Type::S32 if form.has(Mod::Relu) => {
                Way::Lanes(pick(lane::min_relu, lane::max_relu), integer_how(ty))
            }
            Type::S16x2 if form.has(Mod::Relu) => Way::Lanes(lane::pair16, u32::from(max) | 2 | 8),
            Type::S32 => Way::Rows(if max { Op::MaxS32 } else { Op::MinS32 }),
            Type::U16x2 => Way::Lanes(lane::pair16, u32::from(max)),
            Type::S16x2 => Way::Lanes(lane::pair16, u32::from(max) | 2),
            _ if ty.is_integer() => Way::Lanes(pick(lane::min, lane::max), integer_how(ty)),
            _ => return self.unsupported(form),
        };
        if operands.len() == 4 {
            return self.unsupported(form);
        }
        self.uniform(way, ty, operands, 2)
    }

    pub(super) fn sign(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let neg = form.op == P::Neg;
        let pick = |neg_function: LaneFn, abs: LaneFn| if neg { neg_function } else { abs };
        let how = float_how(form);
        let way = match ty {
            Type::F32 if how == 0 => Way::Rows(if neg { Op::NegF32 } else { Op::AbsF32 }),
            Type::F32 => Way::Lanes(pick(lane::neg_f32, lane::abs_f32), how),
            Type::F64 => Way::Rows(if neg { Op::NegF64 } else { Op::AbsF64 }),
            Type::F16 | Type::Bf16 => Way::Lanes(pick(float::half_neg, float::half_abs), how),
            Type::F16x2 | Type::Bf16x2 => Way::Lanes(pick(float::half_neg2, float::half_abs2), how),
            Type::S32 => Way::Rows(if neg { Op::Neg32 } else { Op::Abs32 }),
            Type::S64 if neg => Way::Rows(Op::Neg64),
            _ if ty.is_integer() => Way::Lanes(pick(lane::neg, lane::abs), integer_how(ty)),
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, 1)
    }

    pub(super) fn logic(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        if ty == Type::Pred {
            let op = match form.op {
                P::And => Op::PAnd,
                P::Or => Op::POr,
                P::Xor => Op::PXor,
                P::Not => Op::PNot,
                _ => return self.unsupported(form),
            };
            let a = self.source_p(*operands.get(1).unwrap_or(&Operand::Sink))?;
            let b = match operands.get(2) {
                Some(&b) => self.source_p(b)?,
                None => a,
            };
            let d = self.target_p(operands[0])?;
            self.emit(op, d, a, b, 0, 0);
            return Ok(());
        }
        let wide = ty.bits() == 64;
        let (op, sources) = match (form.op, wide) {
            (P::And, false) => (Op::And32, 2),
            (P::And, true) => (Op::And64, 2),
            (P::Or, false) => (Op::Or32, 2),
            (P::Or, true) => (Op::Or64, 2),
            (P::Xor, false) => (Op::Xor32, 2),
            (P::Xor, true) => (Op::Xor64, 2),
            (P::Not, false) if ty.bits() == 32 => (Op::Not32, 1),
            (P::Not, true) => (Op::Not64, 1),
            (P::Not, false) => {
                return self.uniform(Way::Lanes(lane::not, ty.bits()), ty, operands, 1);
            }
            _ => return self.uniform(Way::Lanes(lane::cnot, ty.bits()), ty, operands, 1),
        };
        self.uniform(Way::Rows(op), ty, operands, sources)
    }

    pub(super) fn shift(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b] = operands[..] else { return self.refuse("three operands are expected") };
        let left = form.op == P::Shl;
        if ty.bits() == 16 {
            let function: LaneFn = if left { lane::shl } else { lane::shr };
            return self.mixed(function, integer_how(ty), operands, &[ty, Type::U32], ty);
        }
        let count = self.source32(b, Type::U32)?;
        if ty.bits() == 64 {
            let (a, d) = (self.source64(a, ty)?, self.target64(d)?);
            let op = match (left, ty.is_signed()) {
                (true, _) => Op::Shl64,
                (false, true) => Op::ShrS64,
                (false, false) => Op::ShrU64,
            };
            self.emit(op, d, a, count, 0, 0);
        } else {
            let (a, d) = (self.source32(a, ty)?, self.target32(d)?);
            let op = match (left, ty.is_signed()) {
                (true, _) => Op::Shl32,
                (false, true) => Op::ShrS32,
                (false, false) => Op::ShrU32,
            };
            self.emit(op, d, a, count, 0, 0);
        }
        Ok(())
    }

    pub(super) fn insert_field(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b, start, length] = operands[..] else {
            return self.refuse("five operands are expected");
        };
        let field = self.fresh64();
        let (start, length) = (self.source(start, Type::U32)?, self.source(length, Type::U32)?);
        self.emit_lane(lane::pack_field, 0, [start, length, NONE], Target::R64(field));
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let target = self.target(d, ty)?;
        self.emit_lane(lane::bfi, ty.bits(), [a, b, Source::R64(field)], target);
        Ok(())
    }

    pub(super) fn look_up(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if let [Operand::Pair(results), a, b, c, table, q] = operands[..] {
            return self.look_up_and_combine(
                form,
                self.scope().body.operands(results),
                &[a, b, c, table],
                q,
            );
        }
        let [d, a, b, c, table] = operands[..] else { return self.unsupported(form) };
        let (Operand::Int(table) | Operand::Uint(table)) = table else {
            return self.unsupported(form);
        };
        self.uniform(Way::Lanes(lane::lop3, table as u32 & 0xff), Type::B32, &[d, a, b, c], 3)
    }

    /// `lop3.or` and `lop3.and`: also combines a predicate with whether any bit of the result is
    /// set.
    pub(super) fn look_up_and_combine(
        &mut self,
        form: &Form,
        results: &[Operand],
        sources: &[Operand],
        q: Operand,
    ) -> Result<()> {
        let (&[d, p], Some(op)) = (results, Self::boolean(form)) else {
            return self.unsupported(form);
        };
        let (&[a, b, c, Operand::Int(table) | Operand::Uint(table)], q) =
            (sources, self.source_p(q)?)
        else {
            return self.unsupported(form);
        };
        let mut all = [NONE; 3];
        for (source, operand) in all.iter_mut().zip([a, b, c]) {
            *source = self.source(operand, Type::B32)?;
        }
        let (row, set) = (self.fresh32(), self.fresh_p());
        self.emit_lane(lane::lop3, table as u32 & 0xff, all, Target::R32(row));
        let zero = self.constant32(Constant::Bits(0));
        self.emit(Op::NeB32, set, row, zero, 0, 0);
        let p = self.target_p(p)?;
        self.emit(op, p, set, q, 0, 0);
        let target = self.target(d, Type::B32)?;
        self.move_to(target, Source::R32(row))
    }
}

fn mad_wide16(x: [u64; 3], how: u32) -> u64 {
    lane::mul_lo([x[0], x[1], 0], how).wrapping_add(x[2])
}
