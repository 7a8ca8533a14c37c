//! Arithmetic, logic, comparison, conversion and moves.

mod blackwell;
mod compare;
mod convert;
mod integer;
mod packed;
mod video;

use crate::exec::convert::Number;
use crate::exec::decode::{Decoder, Result};
use crate::exec::float::{self, Bf16, F16, FTZ, NAN, RELU, Rounding, SAT, XORSIGN_ABS};
use crate::exec::inst::{Op, Source};
use crate::exec::lane::{self, LaneFn, SATURATE, SIGNED};
use partita_ptx::{Form, Mod, Op as P, Operand, Type};

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

/// The `how` parameter of a floating-point lane function.
fn float_how(form: &Form) -> u32 {
    let flag = |present: bool, bit: u32| if present { bit } else { 0 };
    rounding(form).bits()
        | flag(form.has(Mod::Ftz), FTZ)
        | flag(form.has(Mod::Sat), SAT)
        | flag(form.has(Mod::NaN), NAN)
        | flag(form.has(Mod::Xorsign), XORSIGN_ABS)
        | flag(form.has(Mod::Relu), RELU)
}

/// The `how` parameter of an integer lane function.
fn integer_how(ty: Type) -> u32 {
    ty.bits() | if ty.is_signed() { SIGNED } else { 0 }
}

/// An operation on a type runs over rows, or lane by lane.
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

    /// Decodes an operation of this family, or passes it to the next.
    pub(super) fn operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if self.newer_arithmetic(form, operands)?.is_some() {
            return Ok(());
        }
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
            P::Bmsk => self.uniform(
                Way::Lanes(lane::bmsk, u32::from(form.has(Mod::Clamp))),
                Type::B32,
                operands,
                2,
            ),
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
                let property = [
                    Mod::Finite,
                    Mod::Infinite,
                    Mod::Number,
                    Mod::Notanumber,
                    Mod::Normal,
                    Mod::Subnormal,
                ]
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

    /// Emits a lane function whose sources have different types.
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
