//! Arithmetic, logic, comparison, conversion and moves.

mod packed;
mod video;

use super::{Decoder, Result};
use crate::exec::convert::{Conversion, Number, convert};
use crate::exec::float::{self, Bf16, F16, FTZ, NAN, RELU, Rounding, SAT, XORSIGN_ABS};
use crate::exec::inst::{Op, Source, Target};
use crate::exec::lane::{self, LaneFn, SATURATE, SIGNED};
use crate::exec::program::Constant;
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE, SPACE_BYTES};
use partita_ptx::{Form, Mod, Op as P, Operand, Space as PtxSpace, Type};

const NONE: Source = Source::None;

fn rounding(form: &Form) -> Rounding {
    if form.has(Mod::Rz) || form.has(Mod::Rzi) {
        Rounding::Zero
    } else if form.has(Mod::Rm) || form.has(Mod::Rmi) {
        Rounding::Down
    } else if form.has(Mod::Rp) || form.has(Mod::Rpi) {
        Rounding::Up
    } else {
        Rounding::Nearest
    }
}

/// The parameter of a floating-point lane function.
fn float_how(form: &Form) -> u32 {
    let flag = |present: bool, bit: u32| if present { bit } else { 0 };
    rounding(form).bits()
        | flag(form.has(Mod::Ftz), FTZ)
        | flag(form.has(Mod::Sat), SAT)
        | flag(form.has(Mod::NaN), NAN)
        | flag(form.has(Mod::Xorsign), XORSIGN_ABS)
        | flag(form.has(Mod::Relu), RELU)
}

/// The parameter of an integer lane function.
fn integer_how(ty: Type) -> u32 {
    ty.bits() | if ty.is_signed() { SIGNED } else { 0 }
}

/// How an operation runs on a type: over rows, or lane by lane.
enum Way {
    Rows(Op),
    Lanes(LaneFn, u32),
}

impl Decoder<'_> {
    fn type_of(&self, form: &Form) -> Result<Type> {
        match form.last_type() {
            Some(ty) => Ok(ty),
            None => self.unsupported(form),
        }
    }

    /// Emits an operation whose sources and result have one type.
    fn uniform(&mut self, way: Way, ty: Type, operands: &[Operand], sources: usize) -> Result<()> {
        if operands.len() < sources + 1 {
            return self.refuse("too few operands");
        }
        match way {
            Way::Rows(op) if ty.bits() == 64 => {
                let mut rows = [0; 3];
                for (row, &operand) in rows.iter_mut().zip(&operands[1..=sources]) {
                    *row = self.source64(operand, ty)?;
                }
                let d = self.target64(operands[0])?;
                self.emit(op, d, rows[0], rows[1], rows[2], 0);
            }
            Way::Rows(op) => {
                let mut rows = [0; 3];
                for (row, &operand) in rows.iter_mut().zip(&operands[1..=sources]) {
                    *row = self.source32(operand, ty)?;
                }
                let d = self.target32(operands[0])?;
                self.emit(op, d, rows[0], rows[1], rows[2], 0);
            }
            Way::Lanes(function, how) => {
                let mut all = [NONE; 3];
                for (source, &operand) in all.iter_mut().zip(&operands[1..=sources]) {
                    *source = self.source(operand, ty)?;
                }
                let target = self.target(operands[0], ty)?;
                self.emit_lane(function, how, all, target);
            }
        }
        Ok(())
    }

    /// Decodes an operation of this family, or hands it on.
    pub(super) fn operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        match form.op {
            P::Add | P::Sub => self.sum(form, operands),
            P::Addc | P::Subc => self.carried(form, operands),
            P::Mul | P::Mad | P::Fma => self.product(form, operands),
            P::Madc => self.carried_product(form, operands),
            P::Mul24 | P::Mad24 => {
                let ty = self.type_of(form)?;
                let function: LaneFn = match (form.op == P::Mad24, form.has(Mod::Hi)) {
                    (false, false) => lane::mul24_lo,
                    (false, true) => lane::mul24_hi,
                    (true, false) => lane::mad24_lo,
                    (true, true) => lane::mad24_hi,
                };
                let sources = if form.op == P::Mad24 { 3 } else { 2 };
                let how = integer_how(ty) | if form.has(Mod::Sat) { SATURATE } else { 0 };
                self.uniform(Way::Lanes(function, how), ty, operands, sources)
            }
            P::Div => self.quotient(form, operands),
            P::Rem => {
                let ty = self.type_of(form)?;
                self.uniform(Way::Lanes(lane::rem, integer_how(ty)), ty, operands, 2)
            }
            P::Min | P::Max => self.extreme(form, operands),
            P::Abs | P::Neg => self.sign(form, operands),
            P::Sad => {
                let ty = self.type_of(form)?;
                self.uniform(Way::Lanes(lane::sad, integer_how(ty)), ty, operands, 3)
            }
            P::And | P::Or | P::Xor | P::Not | P::Cnot => self.logic(form, operands),
            P::Shl | P::Shr => self.shift(form, operands),
            P::Shf => {
                let how = u32::from(form.has(Mod::R)) | u32::from(form.has(Mod::Clamp)) << 1;
                self.uniform(Way::Lanes(lane::shf, how), Type::B32, operands, 3)
            }
            P::Bfe => {
                let ty = self.type_of(form)?;
                self.mixed(lane::bfe, integer_how(ty), operands, &[ty, Type::U32, Type::U32], ty)
            }
            P::Bfi => self.insert_field(form, operands),
            P::Bfind => {
                let ty = self.type_of(form)?;
                let how = integer_how(ty) | if form.has(Mod::Shiftamt) { 1 << 10 } else { 0 };
                self.mixed(lane::bfind, how, operands, &[ty], Type::U32)
            }
            P::Brev | P::Clz | P::Popc => {
                let ty = self.type_of(form)?;
                let (function, result): (LaneFn, Type) = match form.op {
                    P::Brev => (lane::brev, ty),
                    P::Clz => (lane::clz, Type::U32),
                    _ => (lane::popc, Type::U32),
                };
                self.mixed(function, ty.bits(), operands, &[ty], result)
            }
            P::Bmsk => {
                self.uniform(Way::Lanes(lane::bmsk, u32::from(form.has(Mod::Clamp))), Type::B32, operands, 2)
            }
            P::Szext => {
                let ty = self.type_of(form)?;
                let how = integer_how(ty) | if form.has(Mod::Clamp) { 1 << 10 } else { 0 };
                self.uniform(Way::Lanes(lane::szext, how), ty, operands, 2)
            }
            P::Fns => self.uniform(Way::Lanes(lane::fns, 0), Type::B32, operands, 3),
            P::Prmt => {
                let mode = [Mod::F4e, Mod::B4e, Mod::Rc8, Mod::Ecl, Mod::Ecr, Mod::Rc16]
                    .iter()
                    .position(|&mode| form.has(mode))
                    .map_or(0, |index| index as u32 + 1);
                self.uniform(Way::Lanes(lane::prmt, mode), Type::B32, operands, 3)
            }
            P::Lop3 => self.look_up(form, operands),
            P::Dp4a | P::Dp2a => {
                let mut types = form.types();
                let (a, b) = (types.next().unwrap_or(Type::U32), types.next().unwrap_or(Type::U32));
                let how = u32::from(a.is_signed())
                    | u32::from(b.is_signed()) << 1
                    | u32::from(form.has(Mod::Hi)) << 2;
                let function: LaneFn = if form.op == P::Dp4a { lane::dp4a } else { lane::dp2a };
                self.uniform(Way::Lanes(function, how), Type::B32, operands, 3)
            }
            P::Setp => self.set_predicate(form, operands),
            P::Set => self.set(form, operands),
            P::Selp => self.select(form, operands),
            P::Slct => self.select_by_sign(form, operands),
            P::Testp => {
                let ty = self.type_of(form)?;
                let property =
                    [Mod::Finite, Mod::Infinite, Mod::Number, Mod::Notanumber, Mod::Normal, Mod::Subnormal]
                        .iter()
                        .position(|&property| form.has(property))
                        .unwrap_or(0) as u32;
                self.mixed(lane::testp, ty.bits() | property << 8, operands, &[ty], Type::Pred)
            }
            P::Copysign => {
                let ty = self.type_of(form)?;
                self.uniform(Way::Lanes(lane::copysign, ty.bits()), ty, operands, 2)
            }
            P::Rcp | P::Sqrt | P::Rsqrt | P::Sin | P::Cos | P::Lg2 | P::Ex2 | P::Tanh => {
                self.function(form, operands)
            }
            P::Vadd2 | P::Vsub2 | P::Vavrg2 | P::Vabsdiff2 | P::Vmin2 | P::Vmax2 | P::Vset2 => {
                self.video(form, operands)
            }
            P::Vadd4 | P::Vsub4 | P::Vavrg4 | P::Vabsdiff4 | P::Vmin4 | P::Vmax4 | P::Vset4 => {
                self.video(form, operands)
            }
            P::Vadd | P::Vsub | P::Vabsdiff | P::Vmin | P::Vmax | P::Vshl | P::Vshr | P::Vset => {
                self.scalar_video(form, operands)
            }
            P::Vmad => self.video_multiply_add(form, operands),
            P::Cvt => self.convert(form, operands),
            P::Cvta => self.convert_address(form, operands),
            P::Isspacep => self.is_in_space(form, operands),
            P::Mov => self.move_value(form, operands),
            _ => self.memory_operation(form, operands),
        }
    }

    /// A lane function whose sources have types of their own.
    fn mixed(
        &mut self,
        f: LaneFn,
        how: u32,
        operands: &[Operand],
        types: &[Type],
        result: Type,
    ) -> Result<()> {
        if operands.len() < types.len() + 1 {
            return self.refuse("too few operands");
        }
        let mut sources = [NONE; 3];
        for ((source, &operand), &ty) in sources.iter_mut().zip(&operands[1..]).zip(types) {
            *source = self.source(operand, ty)?;
        }
        let target = self.target(operands[0], result)?;
        self.emit_lane(f, how, sources, target);
        Ok(())
    }

    fn sum(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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
            Type::F16 => Way::Lanes(if add { float::half_add::<F16> } else { float::half_sub::<F16> }, how),
            Type::F16x2 => {
                Way::Lanes(if add { float::half_add2::<F16> } else { float::half_sub2::<F16> }, how)
            }
            Type::Bf16 => {
                Way::Lanes(if add { float::half_add::<Bf16> } else { float::half_sub::<Bf16> }, how)
            }
            Type::Bf16x2 => {
                Way::Lanes(if add { float::half_add2::<Bf16> } else { float::half_sub2::<Bf16> }, how)
            }
            Type::U16x2 | Type::S16x2 if add => Way::Lanes(lane::pair16, 4),
            Type::S32 if form.has(Mod::Sat) => {
                let how = integer_how(ty) | SATURATE;
                Way::Lanes(if add { lane::add } else { lane::sub }, how)
            }
            Type::U32 | Type::S32 => Way::Rows(if add { Op::Add32 } else { Op::Sub32 }),
            Type::U64 | Type::S64 => Way::Rows(if add { Op::Add64 } else { Op::Sub64 }),
            Type::U16 | Type::S16 => Way::Lanes(if add { lane::add } else { lane::sub }, integer_how(ty)),
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, 2)
    }

    /// The predicate that holds the carry flag `CC.CF`.
    fn carry(&mut self) -> u32 {
        if let Some(row) = self.carry {
            return row;
        }
        let row = self.fresh_p();
        self.carry = Some(row);
        row
    }

    fn carried(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b] = operands[..] else { return self.refuse("three operands are expected") };
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let target = self.target(d, ty)?;
        let subtract = matches!(form.op, P::Sub | P::Subc);
        let flag = self.carry();
        let carry_in = if matches!(form.op, P::Addc | P::Subc) { Source::P(flag) } else { NONE };
        let carry_out = self.fresh_p();
        if form.has(Mod::Cc) {
            let function: LaneFn = if subtract { lane::borrow_sub } else { lane::carry_add };
            self.emit_lane(function, ty.bits(), [a, b, carry_in], Target::P(carry_out));
        }
        let function: LaneFn = if subtract { lane::sub_borrow } else { lane::add_carry };
        self.emit_lane(function, 0, [a, b, carry_in], target);
        if form.has(Mod::Cc) {
            self.emit(Op::PMov, flag, carry_out, carry_out, 0, 0);
        }
        Ok(())
    }

    /// `mad.cc` and `madc`: the product first, then a carried sum.
    fn carried_product(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b, c] = operands[..] else { return self.refuse("four operands are expected") };
        let (a, b, c) = (self.source(a, ty)?, self.source(b, ty)?, self.source(c, ty)?);
        let target = self.target(d, ty)?;
        let product = if ty.bits() == 64 { Source::R64(self.fresh64()) } else { Source::R32(self.fresh32()) };
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
            self.emit_lane(lane::carry_add, ty.bits(), [product, c, carry_in], Target::P(carry_out));
        }
        self.emit_lane(lane::add_carry, 0, [product, c, carry_in], target);
        if form.has(Mod::Cc) {
            self.emit(Op::PMov, flag, carry_out, carry_out, 0, 0);
        }
        Ok(())
    }

    fn product(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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
            Type::Bf16x2 => Way::Lanes(pick(float::half_mul2::<Bf16>, float::half_fma2::<Bf16>), how),
            Type::U32 | Type::S32 if !high => Way::Rows(if added { Op::Mad32 } else { Op::Mul32 }),
            Type::U64 | Type::S64 if !high => Way::Rows(if added { Op::Mad64 } else { Op::Mul64 }),
            Type::U32 if !added => Way::Rows(Op::MulHiU32),
            Type::S32 if !added => Way::Rows(Op::MulHiS32),
            _ if ty.is_integer() => {
                let saturate = if form.has(Mod::Sat) { SATURATE } else { 0 };
                let function =
                    if high { pick(lane::mul_hi, lane::mad_hi) } else { pick(lane::mul_lo, lane::mad_lo) };
                Way::Lanes(function, integer_how(ty) | saturate)
            }
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, sources)
    }

    fn wide_product(&mut self, ty: Type, operands: &[Operand], added: bool) -> Result<()> {
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

    fn quotient(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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

    fn extreme(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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
            Type::Bf16x2 => Way::Lanes(pick(float::half_min2::<Bf16>, float::half_max2::<Bf16>), how),
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
            // min(min(a, b), c)
            let [d, a, b, c] = operands[..] else { return self.unsupported(form) };
            self.uniform(way, ty, &[d, a, b], 2)?;
            let again = match ty {
                Type::F32 => Way::Lanes(pick(float::min_f32, float::max_f32), how),
                _ => return self.unsupported(form),
            };
            return self.uniform(again, ty, &[d, d, c], 2);
        }
        self.uniform(way, ty, operands, 2)
    }

    fn sign(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let neg = form.op == P::Neg;
        let pick = |neg_function: LaneFn, abs: LaneFn| if neg { neg_function } else { abs };
        let how = float_how(form);
        let way = match ty {
            Type::F32 if how == 0 => Way::Rows(if neg { Op::NegF32 } else { Op::AbsF32 }),
            Type::F32 => Way::Lanes(pick(lane::neg_f32, lane::abs_f32), how),
            Type::F64 => Way::Rows(if neg { Op::NegF64 } else { Op::AbsF64 }),
            Type::F16 | Type::Bf16 => Way::Lanes(pick(float::half_neg, float::half_abs), 0),
            Type::F16x2 | Type::Bf16x2 => Way::Lanes(pick(float::half_neg2, float::half_abs2), 0),
            Type::S32 => Way::Rows(if neg { Op::Neg32 } else { Op::Abs32 }),
            Type::S64 if neg => Way::Rows(Op::Neg64),
            _ if ty.is_integer() => Way::Lanes(pick(lane::neg, lane::abs), integer_how(ty)),
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, 1)
    }

    fn logic(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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
            (P::Not, false) => return self.uniform(Way::Lanes(lane::not, ty.bits()), ty, operands, 1),
            _ => return self.uniform(Way::Lanes(lane::cnot, ty.bits()), ty, operands, 1),
        };
        self.uniform(Way::Rows(op), ty, operands, sources)
    }

    fn shift(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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

    fn insert_field(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a, b, start, length] = operands[..] else { return self.refuse("five operands are expected") };
        let field = self.fresh64();
        let (start, length) = (self.source(start, Type::U32)?, self.source(length, Type::U32)?);
        self.emit_lane(lane::pack_field, 0, [start, length, NONE], Target::R64(field));
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let target = self.target(d, ty)?;
        self.emit_lane(lane::bfi, ty.bits(), [a, b, Source::R64(field)], target);
        Ok(())
    }

    fn look_up(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if let [Operand::Pair(results), a, b, c, table, q] = operands[..] {
            return self.look_up_and_combine(form, self.scope().body.operands(results), &[a, b, c, table], q);
        }
        let [d, a, b, c, table] = operands[..] else { return self.unsupported(form) };
        let (Operand::Int(table) | Operand::Uint(table)) = table else { return self.unsupported(form) };
        self.uniform(Way::Lanes(lane::lop3, table as u32 & 0xff), Type::B32, &[d, a, b, c], 3)
    }

    /// `lop3.or` and `lop3.and`: also whether any bit of the result is set, combined with a predicate.
    fn look_up_and_combine(
        &mut self,
        form: &Form,
        results: &[Operand],
        sources: &[Operand],
        q: Operand,
    ) -> Result<()> {
        let (&[d, p], Some(op)) = (results, Self::boolean(form)) else { return self.unsupported(form) };
        let (&[a, b, c, Operand::Int(table) | Operand::Uint(table)], q) = (sources, self.source_p(q)?) else {
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

    /// The comparison of a form as a number, in the order of [`lane::compare`].
    fn comparison(&self, form: &Form, ty: Type) -> Result<u32> {
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
    fn compare(&mut self, form: &Form, ty: Type, d: u32, a: Operand, b: Operand) -> Result<()> {
        let comparison = self.comparison(form, ty)?;
        let ftz = form.has(Mod::Ftz);
        let table32 = |list: [Op; 6]| list.get(comparison as usize).copied();
        let rows = match ty {
            Type::B32 | Type::U32 => {
                table32([Op::EqB32, Op::NeB32, Op::LtU32, Op::LeU32, Op::GtU32, Op::GeU32])
            }
            Type::S32 => table32([Op::EqB32, Op::NeB32, Op::LtS32, Op::LeS32, Op::GtS32, Op::GeS32]),
            Type::B64 | Type::U64 => {
                table32([Op::EqB64, Op::NeB64, Op::LtU64, Op::LeU64, Op::GtU64, Op::GeU64])
            }
            Type::S64 => table32([Op::EqB64, Op::NeB64, Op::LtS64, Op::LeS64, Op::GtS64, Op::GeS64]),
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
        let how =
            kind | comparison << 8 | ty.bits() << 16 | u32::from(ty.is_signed()) << 24 | u32::from(ftz) << 25;
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        self.emit_lane(lane::compare, how, [a, b, NONE], Target::P(d));
        Ok(())
    }

    fn boolean(form: &Form) -> Option<Op> {
        form.mods.iter().find_map(|modifier| match modifier {
            Mod::And => Some(Op::PAnd),
            Mod::Or => Some(Op::POr),
            Mod::Xor => Some(Op::PXor),
            _ => None,
        })
    }

    fn set_predicate(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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
        // Both results are complete before either is written: c may be one of them.
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

    fn set_predicate_pair(&mut self, form: &Form, ty: Type, operands: &[Operand]) -> Result<()> {
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

    /// Compares the lower and the upper halves of two operands, with the boolean operator of the form.
    fn compare_pair(&mut self, form: &Form, ty: Type, operands: &[Operand]) -> Result<[u32; 2]> {
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

    fn set(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let mut types = form.types();
        let (Some(result), Some(ty)) = (types.next(), types.next()) else { return self.unsupported(form) };
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
            self.emit_lane(lane::join, 16, [Source::R32(rows[0]), Source::R32(rows[1]), NONE], target);
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

    fn select(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
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

    fn select_by_sign(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let mut types = form.types();
        let (Some(ty), Some(by)) = (types.next(), types.next()) else { return self.unsupported(form) };
        if by == Type::F32 {
            let how = u32::from(form.has(Mod::Ftz));
            return self.mixed(lane::slct_f32, how, operands, &[ty, ty, by], ty);
        }
        self.mixed(slct_bits, 0, operands, &[ty, ty, by], ty)
    }

    fn function(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let how = float_how(form);
        let way = match (form.op, ty) {
            (P::Rcp, Type::F32) if how == 0 => Way::Rows(Op::RcpF32),
            (P::Rcp, Type::F32) => Way::Lanes(float::rcp_f32, how),
            (P::Rcp, Type::F64) if form.has(Mod::Approx) => Way::Lanes(float::rcp_approx_f64, how),
            (P::Rcp, Type::F64) => Way::Lanes(float::rcp_f64, how),
            (P::Sqrt, Type::F32) if how == 0 => Way::Rows(Op::SqrtF32),
            (P::Sqrt, Type::F32) => Way::Lanes(float::sqrt_f32, how),
            (P::Sqrt, Type::F64) if how == 0 => Way::Rows(Op::SqrtF64),
            (P::Sqrt, Type::F64) => Way::Lanes(float::sqrt_f64, how),
            (P::Rsqrt, Type::F32) => Way::Lanes(float::rsqrt_f32, how),
            (P::Rsqrt, Type::F64) => Way::Lanes(float::rsqrt_approx_f64, how),
            (P::Sin, Type::F32) => Way::Lanes(float::sin_f32, how),
            (P::Cos, Type::F32) => Way::Lanes(float::cos_f32, how),
            (P::Lg2, Type::F32) => Way::Lanes(float::lg2_f32, how),
            (P::Ex2, Type::F32) => Way::Lanes(float::ex2_f32, how),
            (P::Ex2, Type::F16) => Way::Lanes(float::half_ex2::<F16>, how),
            (P::Ex2, Type::F16x2) => Way::Lanes(float::half_ex2_2::<F16>, how),
            (P::Ex2, Type::Bf16) => Way::Lanes(float::half_ex2::<Bf16>, how),
            (P::Ex2, Type::Bf16x2) => Way::Lanes(float::half_ex2_2::<Bf16>, how),
            (P::Tanh, Type::F32) => Way::Lanes(float::tanh_f32, how),
            (P::Tanh, Type::F16) => Way::Lanes(float::half_tanh::<F16>, how),
            (P::Tanh, Type::F16x2) => Way::Lanes(float::half_tanh2::<F16>, how),
            (P::Tanh, Type::Bf16) => Way::Lanes(float::half_tanh::<Bf16>, how),
            (P::Tanh, Type::Bf16x2) => Way::Lanes(float::half_tanh2::<Bf16>, how),
            _ => return self.unsupported(form),
        };
        self.uniform(way, ty, operands, 1)
    }

    fn convert(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if self.module.text(form.text).starts_with("cvt.pack.") {
            return self.convert_packed(form, operands);
        }
        if self.convert_tiny(form, operands)?.is_some() {
            return Ok(());
        }
        let mut types = form.types();
        let (Some(to), Some(from)) = (types.next(), types.next()) else { return self.unsupported(form) };
        if to == Type::Tf32 && from == Type::F32 {
            let how = u32::from(form.has(Mod::Rna)) | u32::from(form.has(Mod::Rz)) << 1;
            return self.mixed(to_tf32, how, operands, &[from], Type::B32);
        }
        let pair = match to {
            Type::F16x2 => Some(Number::F16),
            Type::Bf16x2 => Some(Number::Bf16),
            _ => None,
        };
        let integral = form.has(Mod::Rni) || form.has(Mod::Rzi) || form.has(Mod::Rmi) || form.has(Mod::Rpi);
        let conversion = |from, to| Conversion {
            from,
            to,
            rounding: rounding(form),
            integral,
            ftz: form.has(Mod::Ftz),
            sat: form.has(Mod::Sat),
            relu: form.has(Mod::Relu),
            finite: form.has(Mod::Satfinite),
        };
        if let Some(half) = pair {
            let ([d, a, b], Type::F32) = (operands, from) else {
                return self.unsupported(form);
            };
            let how = conversion(Number::F32, half).pack();
            let (high, low) = (self.fresh32(), self.fresh32());
            let (a, b) = (self.source(*a, from)?, self.source(*b, from)?);
            self.emit_lane(convert, how, [a, NONE, NONE], Target::R16(high));
            self.emit_lane(convert, how, [b, NONE, NONE], Target::R16(low));
            let target = self.target(*d, to)?;
            self.emit_lane(lane::join, 16, [Source::R32(low), Source::R32(high), NONE], target);
            return Ok(());
        }
        let (Some(from_number), Some(to_number)) = (number(from), number(to)) else {
            return self.unsupported(form);
        };
        let c = conversion(from_number, to_number);
        let [d, a] = operands[..] else { return self.unsupported(form) };
        let plain = !c.sat && !c.ftz && !c.relu && !c.finite;
        let source = self.source(a, from)?;
        let target = self.target(d, to)?;
        if plain && let Some(()) = self.convert_rows(c, source, target) {
            return Ok(());
        }
        // An integer result fills a wider register by its own sign.
        let register_bits = match target {
            Target::R8(_) => 8,
            Target::R16(_) => 16,
            Target::R64(_) => 64,
            _ => 32,
        };
        if !to_number.is_float() && to_number.bits() < register_bits {
            let narrow = self.fresh64();
            self.emit_lane(convert, c.pack(), [source, NONE, NONE], Target::R64(narrow));
            let wider = Conversion {
                from: to_number,
                to: if register_bits == 64 { Number::S64 } else { Number::S32 },
                rounding: Rounding::Nearest,
                integral: false,
                ftz: false,
                sat: false,
                relu: false,
                finite: false,
            };
            self.emit_lane(convert, wider.pack(), [Source::R64(narrow), NONE, NONE], target);
            return Ok(());
        }
        self.emit_lane(convert, c.pack(), [source, NONE, NONE], target);
        Ok(())
    }

    /// The conversions that run over whole rows.
    fn convert_rows(&mut self, c: Conversion, source: Source, target: Target) -> Option<()> {
        use Number as N;
        let nearest = c.rounding == Rounding::Nearest && !c.integral;
        let (op, d, a) = match (c.from, c.to, target, source) {
            (N::S32, N::S64 | N::U64, Target::R64(d), Source::R32(a)) => (Op::S64FromS32, d, a),
            (N::U32, N::S64 | N::U64, Target::R64(d), Source::R32(a)) => (Op::U64FromU32, d, a),
            (N::S64 | N::U64, N::S32 | N::U32, Target::R32(d), Source::R64(a)) => (Op::Low32, d, a),
            (N::S32 | N::U32, N::S32 | N::U32, Target::R32(d), Source::R32(a)) => (Op::Mov32, d, a),
            (N::U8, N::U32 | N::S32 | N::U16 | N::S16, Target::R32(d) | Target::R16(d), Source::R32(a)) => {
                (Op::Zext8, d, a)
            }
            (N::U16, N::U32 | N::S32, Target::R32(d), Source::R32(a)) => (Op::Zext16, d, a),
            (N::S8, N::S32 | N::U32, Target::R32(d), Source::R32(a)) => (Op::Sext8, d, a),
            (N::S16, N::S32 | N::U32, Target::R32(d), Source::R32(a)) => (Op::Sext16, d, a),
            (N::U32 | N::S32, N::U16, Target::R16(d) | Target::R32(d), Source::R32(a)) => (Op::Zext16, d, a),
            (N::U32 | N::S32, N::S16, Target::R16(d), Source::R32(a)) => (Op::Zext16, d, a),
            (N::S32, N::F32, Target::R32(d), Source::R32(a)) if nearest => (Op::F32FromS32, d, a),
            (N::U32, N::F32, Target::R32(d), Source::R32(a)) if nearest => (Op::F32FromU32, d, a),
            (N::F32, N::S32, Target::R32(d), Source::R32(a)) if c.rounding == Rounding::Zero => {
                (Op::S32FromF32Rz, d, a)
            }
            (N::S32, N::F64, Target::R64(d), Source::R32(a)) => (Op::F64FromS32, d, a),
            (N::F32, N::F64, Target::R64(d), Source::R32(a)) => (Op::F64FromF32, d, a),
            (N::F64, N::F32, Target::R32(d), Source::R64(a)) if nearest => (Op::F32FromF64, d, a),
            _ => return None,
        };
        self.emit(op, d, a, 0, 0, 0);
        Some(())
    }

    fn convert_address(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a] = operands[..] else { return self.unsupported(form) };
        let base = match form.space() {
            Some(PtxSpace::Global | PtxSpace::Const) => 0,
            Some(space) if space.is_shared() => SHARED_BASE,
            Some(PtxSpace::Local) => LOCAL_BASE,
            // Parameters of a device function lie in local memory.
            Some(space) if space.is_param() => {
                if self.scope().returns_to.is_some() {
                    LOCAL_BASE
                } else {
                    PARAM_BASE
                }
            }
            _ => return self.unsupported(form),
        };
        if ty.bits() != 64 {
            return self.unsupported(form);
        }
        let source = self.source64(a, ty)?;
        let target = self.target64(d)?;
        if base == 0 {
            self.emit(Op::Mov64, target, source, 0, 0, 0);
            return Ok(());
        }
        let base = self.constant64(Constant::Bits(base));
        let op = if form.has(Mod::To) { Op::Sub64 } else { Op::Add64 };
        self.emit(op, target, source, base, 0, 0);
        Ok(())
    }

    fn is_in_space(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (low, high, how) = match form.space() {
            Some(PtxSpace::Global) => (SHARED_BASE, PARAM_BASE + SPACE_BYTES, 1),
            // Constants lie among global memory; none is told apart by its address.
            Some(PtxSpace::Const) => (1, 0, 0),
            // Without clusters the cluster's shared memory is the CTA's own.
            Some(space) if space.is_shared() || space == PtxSpace::SharedCluster => {
                (SHARED_BASE, SHARED_BASE + SPACE_BYTES, 0)
            }
            Some(PtxSpace::Local) => (LOCAL_BASE, LOCAL_BASE + SPACE_BYTES, 0),
            Some(space) if space.is_param() => (PARAM_BASE, PARAM_BASE + SPACE_BYTES, 0),
            _ => return self.unsupported(form),
        };
        let [d, a] = operands[..] else { return self.unsupported(form) };
        let a = Source::R64(self.source64(a, Type::U64)?);
        let d = self.target_p(d)?;
        let low = Source::R64(self.constant64(Constant::Bits(low)));
        let high = Source::R64(self.constant64(Constant::Bits(high)));
        self.emit_lane(lane::is_in_window, how, [a, low, high], Target::P(d));
        Ok(())
    }

    fn move_value(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a] = operands[..] else { return self.unsupported(form) };
        if ty == Type::B128 {
            return self.move_wide(d, a);
        }
        match (d, a) {
            (Operand::Vector(parts), _) => {
                let parts = self.scope().body.operands(parts);
                let bits = ty.bits() / parts.len().max(1) as u32;
                let source = self.source(a, ty)?;
                for (index, &part) in parts.iter().enumerate() {
                    if part == Operand::Sink {
                        continue;
                    }
                    let target = self.target(part, if bits == 64 { Type::B64 } else { Type::B32 })?;
                    self.emit_lane(lane::piece, bits * index as u32, [source, NONE, NONE], target);
                }
                Ok(())
            }
            (_, Operand::Vector(parts)) => {
                let parts = self.scope().body.operands(parts);
                let bits = ty.bits() / parts.len().max(1) as u32;
                let part_type = match bits {
                    8 => Type::B8,
                    16 => Type::B16,
                    _ => Type::B32,
                };
                let mut all = Vec::new();
                for &part in parts {
                    all.push(self.source(part, part_type)?);
                }
                let target = self.target(d, ty)?;
                let Some((&first, rest)) = all.split_first() else { return self.unsupported(form) };
                let mut joined = first;
                for (index, &part) in rest.iter().enumerate() {
                    let last = index + 1 == rest.len();
                    let row = self.fresh64();
                    let into = if last { target } else { Target::R64(row) };
                    self.emit_lane(lane::join, bits * (index as u32 + 1), [joined, part, NONE], into);
                    joined = Source::R64(row);
                }
                Ok(())
            }
            _ => {
                let source = self.source(a, ty)?;
                let target = self.target(d, ty)?;
                self.move_to(target, source)
            }
        }
    }
}

fn mad_wide16(x: [u64; 3], how: u32) -> u64 {
    lane::mul_lo([x[0], x[1], 0], how).wrapping_add(x[2])
}

fn slct_bits(x: [u64; 3], _how: u32) -> u64 {
    if (x[2] as u32 as i32) >= 0 { x[0] } else { x[1] }
}

/// `cvt.rna.tf32.f32`: 10 mantissa bits; ties away from zero (bit 0), to zero (bit 1), else to even.
fn to_tf32(x: [u64; 3], how: u32) -> u64 {
    let bits = x[0] as u32;
    if f32::from_bits(bits).is_nan() {
        return u64::from(float::NAN_F32);
    }
    if bits & 0x7f80_0000 == 0x7f80_0000 || how & 2 != 0 {
        return u64::from(bits & !0x1fff);
    }
    let half = if how & 1 != 0 { 0x1000 } else { 0xfff + (bits >> 13 & 1) };
    u64::from(bits.wrapping_add(half) & !0x1fff)
}

fn number(ty: Type) -> Option<Number> {
    Some(match ty {
        Type::U8 => Number::U8,
        Type::S8 => Number::S8,
        Type::U16 => Number::U16,
        Type::S16 => Number::S16,
        Type::U32 => Number::U32,
        Type::S32 => Number::S32,
        Type::U64 => Number::U64,
        Type::S64 => Number::S64,
        Type::F16 => Number::F16,
        Type::Bf16 => Number::Bf16,
        Type::F32 => Number::F32,
        Type::F64 => Number::F64,
        _ => return None,
    })
}
