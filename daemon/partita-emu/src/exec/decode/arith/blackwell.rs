//! Arithmetic that came with compute capability 10.0: pairs of single precision, halves as operands
//! of single precision, quads of bytes, and minimum and maximum of three numbers.

use super::{NONE, Way, float_how};
use crate::exec::convert::{Conversion, Number, convert};
use crate::exec::decode::{Decoder, Result};
use crate::exec::float;
use crate::exec::inst::{Op, Source, Target};
use crate::exec::lane::LaneFn;
use crate::exec::lane::video::{Kind, Video, video};
use crate::exec::pairs;
use partita_ptx::{Form, Mod, Op as P, Operand, Type};

impl Decoder<'_> {
    /// Decodes an instruction of this file; `None` for any other.
    pub(super) fn newer_arithmetic(
        &mut self,
        form: &Form,
        operands: &[Operand],
    ) -> Result<Option<()>> {
        if !matches!(form.op, P::Add | P::Sub | P::Mul | P::Fma | P::Min | P::Max) {
            return Ok(None);
        }
        let types: Vec<Type> = form.types().collect();
        match (types.as_slice(), form.op) {
            ([Type::F32x2], P::Add | P::Sub | P::Mul | P::Fma) => self.pair(form, operands)?,
            ([Type::U8x4 | Type::S8x4], P::Add | P::Sub | P::Min | P::Max) => {
                self.bytes(form, operands)?;
            }
            ([Type::F32, half @ (Type::F16 | Type::Bf16)], P::Add | P::Sub | P::Fma) => {
                self.with_halves(form, *half, operands)?;
            }
            ([Type::F32], P::Min | P::Max) if operands.len() == 4 => {
                self.extreme_of_three(form, operands)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// PTX ISA, "Floating Point Instructions", `.f32x2`.
    fn pair(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (function, sources): (LaneFn, usize) = match form.op {
            P::Add => (pairs::add, 2),
            P::Sub => (pairs::sub, 2),
            P::Mul => (pairs::mul, 2),
            _ => (pairs::fma, 3),
        };
        self.uniform(Way::Lanes(function, float_how(form)), Type::F32x2, operands, sources)?;
        // The pipe of single precision makes both numbers at once.
        if let Some(op) = self.program.lane_ops.last_mut() {
            op.plain = true;
        }
        Ok(())
    }

    /// PTX ISA, "Integer Arithmetic Instructions", `.u8x4` and `.s8x4`.
    fn bytes(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let signed = form.last_type().is_some_and(Type::is_signed);
        let how = Video {
            kind: match form.op {
                P::Add => Kind::Add,
                P::Sub => Kind::Sub,
                P::Min => Kind::Min,
                _ => Kind::Max,
            },
            quads: true,
            signed: [signed; 3],
            saturate: form.has(Mod::Sat),
            accumulate: false,
            mask: 0xf,
        };
        self.uniform(Way::Lanes(video, how.pack()), Type::B32, operands, 2)
    }

    /// PTX ISA, "Mixed Precision Floating Point Instructions": all operands but the last are
    /// halves, and become numbers of single precision.
    fn with_halves(&mut self, form: &Form, half: Type, operands: &[Operand]) -> Result<()> {
        let factors = if form.op == P::Fma { 2 } else { 1 };
        if operands.len() != factors + 2 {
            return self.unsupported(form);
        }
        let from = if half == Type::F16 { Number::F16 } else { Number::Bf16 };
        let widen = Conversion::plain(from, Number::F32);
        let mut sources = [NONE; 3];
        for (source, &operand) in sources.iter_mut().zip(&operands[1..=factors]) {
            let (narrow, row) = (self.source(operand, half)?, self.fresh32());
            self.emit_lane(convert, widen.pack(), [narrow, NONE, NONE], Target::R32(row));
            *source = Source::R32(row);
        }
        sources[factors] = self.source(operands[factors + 1], Type::F32)?;
        let (function, op): (LaneFn, Op) = match form.op {
            P::Add => (float::add_f32, Op::AddF32),
            P::Sub => (float::sub_f32, Op::SubF32),
            _ => (float::fma_f32, Op::FmaF32),
        };
        let (how, target) = (float_how(form), self.target(operands[0], Type::F32)?);
        match (how, target, sources) {
            (0, Target::R32(d), [Source::R32(a), Source::R32(b), c]) => {
                let c = if let Source::R32(c) = c { c } else { 0 };
                self.emit(op, d, a, b, c, 0);
            }
            _ => self.emit_lane(function, how, sources, target),
        }
        Ok(())
    }

    /// PTX ISA, "Floating Point Instructions: min, max" on three numbers, with `.abs` of the sizes.
    fn extreme_of_three(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let absolute = form.has(Mod::Abs);
        if form.has(Mod::Xorsign) {
            return self.unsupported(form);
        }
        let function: LaneFn = if form.op == P::Max { float::max_f32 } else { float::min_f32 };
        let mut sources = [0; 3];
        for (row, &operand) in sources.iter_mut().zip(&operands[1..]) {
            *row = self.source32(operand, Type::F32)?;
            if absolute {
                let size = self.fresh32();
                self.emit(Op::AbsF32, size, *row, 0, 0, 0);
                *row = size;
            }
        }
        let [a, b, c] = sources.map(Source::R32);
        let (how, target) = (float_how(form), self.target(operands[0], Type::F32)?);
        // The result may be one of the operands.
        let first = self.fresh32();
        self.emit_lane(function, how, [a, b, NONE], Target::R32(first));
        self.emit_lane(function, how, [Source::R32(first), c, NONE], target);
        Ok(())
    }
}
