//! Comparisons, predicates and selection.

use super::NONE;
use crate::exec::decode::{Decoder, Result};
use crate::exec::inst::{Op, Source, Target};
use crate::exec::lane;
use crate::exec::program::Constant;
use partita_ptx::{Form, Mod, Operand, Type};

impl Decoder<'_> {
    /// The number of a form's comparison, in the order of [`lane::compare`].
    pub(super) fn comparison(&self, form: &Form, ty: Type) -> Result<u32> {
        const ORDER: [Mod; 14] = [
            Mod::Eq,
            Mod::Ne,
            Mod::Lt,
            Mod::Le,
            Mod::Gt,
            Mod::Ge,
            Mod::Equ,
            Mod::Neu,
            Mod::Ltu,
            Mod::Leu,
            Mod::Gtu,
            Mod::Geu,
            Mod::Num,
            Mod::Nan,
        ];
        let unsigned = |modifier| match modifier {
            Mod::Lo => Some(2),
            Mod::Ls => Some(3),
            Mod::Hi => Some(4),
            Mod::Hs => Some(5),
            _ => None,
        };
        let found = form.mods.iter().find_map(|&modifier| {
            ORDER
                .iter()
                .position(|&other| other == modifier)
                .map(|index| index as u32)
                .or_else(|| if ty.is_float() { None } else { unsigned(modifier) })
        });
        match found {
            Some(found) => Ok(found),
            None => self.unsupported(form),
        }
    }

    /// Writes the comparison of two operands to a predicate.
    pub(super) fn compare(
        &mut self,
        form: &Form,
        ty: Type,
        d: u32,
        a: Operand,
        b: Operand,
    ) -> Result<()> {
        let comparison = self.comparison(form, ty)?;
        let ftz = form.has(Mod::Ftz);
        let table32 = |list: [Op; 6]| list.get(comparison as usize).copied();
        let rows = match ty {
            Type::B32 | Type::U32 => {
                table32([Op::EqB32, Op::NeB32, Op::LtU32, Op::LeU32, Op::GtU32, Op::GeU32])
            }
            Type::S32 => {
                table32([Op::EqB32, Op::NeB32, Op::LtS32, Op::LeS32, Op::GtS32, Op::GeS32])
            }
            Type::B64 | Type::U64 => {
                table32([Op::EqB64, Op::NeB64, Op::LtU64, Op::LeU64, Op::GtU64, Op::GeU64])
            }
            Type::S64 => {
                table32([Op::EqB64, Op::NeB64, Op::LtS64, Op::LeS64, Op::GtS64, Op::GeS64])
            }
            Type::F32 if !ftz => [
                Op::EqF32,
                Op::NeF32,
                Op::LtF32,
                Op::LeF32,
                Op::GtF32,
                Op::GeF32,
                Op::Lane,
                Op::NeuF32,
                Op::LtuF32,
                Op::LeuF32,
                Op::GtuF32,
                Op::GeuF32,
            ]
            .get(comparison as usize)
            .copied()
            .filter(|&op| op != Op::Lane),
            Type::F64 => [Op::Lane, Op::Lane, Op::LtF64, Op::LeF64, Op::GtF64, Op::GeF64]
                .get(comparison as usize)
                .copied()
                .filter(|&op| op != Op::Lane),
            _ => None,
        };
        if let Some(op) = rows {
            let (a, b) = if ty.bits() == 64 {
                (self.source64(a, ty)?, self.source64(b, ty)?)
            } else {
                (self.source32(a, ty)?, self.source32(b, ty)?)
            };
            self.emit(op, d, a, b, 0, 0);
            return Ok(());
        }
        let kind = match ty {
            Type::F32 => 1,
            Type::F64 => 2,
            Type::F16 => 3,
            Type::Bf16 => 4,
            _ if ty.is_integer() || ty.is_untyped() => 0,
            _ => return self.unsupported(form),
        };
        let how = kind
            | comparison << 8
            | ty.bits() << 16
            | u32::from(ty.is_signed()) << 24
            | u32::from(ftz) << 25;
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        self.emit_lane(lane::compare, how, [a, b, NONE], Target::P(d));
        Ok(())
    }

    pub(super) fn boolean(form: &Form) -> Option<Op> {
        form.mods.iter().find_map(|modifier| match modifier {
            Mod::And => Some(Op::PAnd),
            Mod::Or => Some(Op::POr),
            Mod::Xor => Some(Op::PXor),
            _ => None,
        })
    }

    pub(super) fn set_predicate(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        if matches!(ty, Type::F16x2 | Type::Bf16x2) {
            return self.set_predicate_pair(form, ty, operands);
        }
        let (first, second) = match operands[0] {
            Operand::Pair(pair) => {
                let parts = self.scope().body.operands(pair);
                (parts[0], Some(parts[1]))
            }
            other => (other, None),
        };
        let d = self.target_p(first)?;
        let boolean = Self::boolean(form);
        if boolean.is_none() && second.is_none() {
            return self.compare(form, ty, d, operands[1], operands[2]);
        }
        let plain = self.fresh_p();
        let negated = self.fresh_p();
        let c = match (boolean, operands.get(3)) {
            (Some(_), Some(&c)) => Some(self.source_p(c)?),
            _ => None,
        };
        self.compare(form, ty, plain, operands[1], operands[2])?;
        self.emit(Op::PNot, negated, plain, plain, 0, 0);
        let second = match second {
            Some(second) => Some(self.target_p(second)?),
            None => None,
        };
        // Both results are computed before either is written, because c may be one of them.
        if let (Some(op), Some(c)) = (boolean, c) {
            self.emit(op, plain, plain, c, 0, 0);
            self.emit(op, negated, negated, c, 0, 0);
        }
        self.emit(Op::PMov, d, plain, plain, 0, 0);
        if let Some(second) = second {
            self.emit(Op::PMov, second, negated, negated, 0, 0);
        }
        Ok(())
    }

    pub(super) fn set_predicate_pair(
        &mut self,
        form: &Form,
        ty: Type,
        operands: &[Operand],
    ) -> Result<()> {
        let Operand::Pair(pair) = operands[0] else { return self.unsupported(form) };
        let parts = self.scope().body.operands(pair);
        let (first, second) = (parts[0], parts[1]);
        let truths = self.compare_pair(form, ty, operands)?;
        for (part, truth) in [first, second].into_iter().zip(truths) {
            let d = self.target_p(part)?;
            self.emit(Op::PMov, d, truth, truth, 0, 0);
        }
        Ok(())
    }

    /// Compares the lower and the upper halves of two operands, with the form's boolean operator.
    pub(super) fn compare_pair(
        &mut self,
        form: &Form,
        ty: Type,
        operands: &[Operand],
    ) -> Result<[u32; 2]> {
        let comparison = self.comparison(form, ty)?;
        let kind = if ty == Type::F16x2 { 3 } else { 4 };
        let how = kind | comparison << 8 | 16 << 16 | u32::from(form.has(Mod::Ftz)) << 25;
        let (a, b) = (self.source(operands[1], ty)?, self.source(operands[2], ty)?);
        let c = match (Self::boolean(form), operands.get(3)) {
            (Some(op), Some(&c)) => Some((op, self.source_p(c)?)),
            _ => None,
        };
        let mut truths = [0; 2];
        for (half, truth) in truths.iter_mut().enumerate() {
            let mut sources = [a, b];
            if half == 1 {
                for source in &mut sources {
                    let row = self.fresh32();
                    self.emit_lane(lane::piece, 16, [*source, NONE, NONE], Target::R32(row));
                    *source = Source::R32(row);
                }
            }
            *truth = self.fresh_p();
            self.emit_lane(lane::compare, how, [sources[0], sources[1], NONE], Target::P(*truth));
            if let Some((op, c)) = c {
                self.emit(op, *truth, *truth, c, 0, 0);
            }
        }
        Ok(truths)
    }

    pub(super) fn set(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let mut types = form.types();
        let (Some(result), Some(ty)) = (types.next(), types.next()) else {
            return self.unsupported(form);
        };
        let pair = matches!(ty, Type::F16x2 | Type::Bf16x2);
        let one = match result {
            Type::U32 | Type::S32 if !pair => 0xffff_ffff,
            Type::U16 | Type::S16 | Type::U32 | Type::S32 => 0xffff,
            Type::F32 => u64::from(1.0_f32.to_bits()),
            Type::F16 | Type::F16x2 => 0x3c00,
            Type::Bf16 | Type::Bf16x2 => 0x3f80,
            _ => return self.unsupported(form),
        };
        let one = self.constant(Constant::Bits(one), 32);
        let zero = self.constant(Constant::Bits(0), 32);
        if pair {
            let truths = self.compare_pair(form, ty, operands)?;
            let rows = [self.fresh32(), self.fresh32()];
            for (row, truth) in rows.into_iter().zip(truths) {
                self.emit_lane(lane::select, 0, [one, zero, Source::P(truth)], Target::R32(row));
            }
            let target = self.target(operands[0], result)?;
            self.emit_lane(
                lane::join,
                16,
                [Source::R32(rows[0]), Source::R32(rows[1]), NONE],
                target,
            );
            return Ok(());
        }
        let truth = self.fresh_p();
        self.compare(form, ty, truth, operands[1], operands[2])?;
        if let (Some(op), Some(&c)) = (Self::boolean(form), operands.get(3)) {
            let c = self.source_p(c)?;
            self.emit(op, truth, truth, c, 0, 0);
        }
        let target = self.target(operands[0], result)?;
        self.emit_lane(lane::select, 0, [one, zero, Source::P(truth)], target);
        Ok(())
    }

    pub(super) fn select(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b, c] = operands[..] else { return self.unsupported(form) };
        let c = self.source_p(c)?;
        if ty.bits() == 64 {
            let (a, b, d) = (self.source64(a, ty)?, self.source64(b, ty)?, self.target64(d)?);
            self.emit(Op::Selp64, d, a, b, c, 0);
        } else {
            let (a, b, d) = (self.source32(a, ty)?, self.source32(b, ty)?, self.target32(d)?);
            self.emit(Op::Selp32, d, a, b, c, 0);
        }
        Ok(())
    }

    pub(super) fn select_by_sign(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let mut types = form.types();
        let (Some(ty), Some(by)) = (types.next(), types.next()) else {
            return self.unsupported(form);
        };
        if by == Type::F32 {
            let how = u32::from(form.has(Mod::Ftz));
            return self.mixed(lane::slct_f32, how, operands, &[ty, ty, by], ty);
        }
        self.mixed(slct_bits, 0, operands, &[ty, ty, by], ty)
    }
}

fn slct_bits(x: [u64; 3], _how: u32) -> u64 {
    if (x[2] as u32 as i32) >= 0 { x[0] } else { x[1] }
}
