//! `cvt`, conversions of addresses between spaces, and `mov`.

use super::{NONE, number, rounding};
use crate::exec::cluster;
use crate::exec::convert::{Conversion, Number, convert};
use crate::exec::decode::{Decoder, Result};
use crate::exec::float::{self, Rounding};
use crate::exec::inst::{Op, Source, Target};
use crate::exec::lane;
use crate::exec::program::{Constant, OfCta};
use crate::memory::{LOCAL_BASE, PARAM_BASE, SHARED_BASE, SPACE_BYTES};
use partita_ptx::{Form, Mod, Operand, Part, Space as PtxSpace, Type};

impl Decoder<'_> {
    pub(super) fn convert(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        if self.module.text(form.text).starts_with("cvt.pack.") {
            return self.convert_packed(form, operands);
        }
        if self.convert_tiny(form, operands)?.is_some() {
            return Ok(());
        }
        let mut types = form.types();
        let (Some(to), Some(from)) = (types.next(), types.next()) else {
            return self.unsupported(form);
        };
        if to == Type::Tf32 && from == Type::F32 {
            let how = [Mod::Rna, Mod::Rz, Mod::Relu, Mod::Satfinite]
                .into_iter()
                .enumerate()
                .fold(0, |how, (bit, word)| how | u32::from(form.has(word)) << bit);
            return self.mixed(to_tf32, how, operands, &[from], Type::B32);
        }
        let pair = match to {
            Type::F16x2 => Some(Number::F16),
            Type::Bf16x2 => Some(Number::Bf16),
            _ => None,
        };
        let integral =
            form.has(Mod::Rni) || form.has(Mod::Rzi) || form.has(Mod::Rmi) || form.has(Mod::Rpi);
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
        // An integer result is extended to a wider register by the result's own sign.
        let register_bits = match target {
            Target::R8(_) => 8,
            Target::R16(_) => 16,
            Target::R64(_) => 64,
            _ => 32,
        };
        if !to_number.is_float() && to_number.bits() < register_bits {
            let narrow = self.fresh64();
            self.emit_lane(convert, c.pack(), [source, NONE, NONE], Target::R64(narrow));
            let to = if register_bits == 64 { Number::S64 } else { Number::S32 };
            let wider = Conversion::plain(to_number, to);
            self.emit_lane(convert, wider.pack(), [Source::R64(narrow), NONE, NONE], target);
            return Ok(());
        }
        self.emit_lane(convert, c.pack(), [source, NONE, NONE], target);
        Ok(())
    }

    /// Conversions that operate on whole rows.
    pub(super) fn convert_rows(
        &mut self,
        c: Conversion,
        source: Source,
        target: Target,
    ) -> Option<()> {
        use Number as N;
        let nearest = c.rounding == Rounding::Nearest && !c.integral;
        let (op, d, a) = match (c.from, c.to, target, source) {
            (N::S32, N::S64 | N::U64, Target::R64(d), Source::R32(a)) => (Op::S64FromS32, d, a),
            (N::U32, N::S64 | N::U64, Target::R64(d), Source::R32(a)) => (Op::U64FromU32, d, a),
            (N::S64 | N::U64, N::S32 | N::U32, Target::R32(d), Source::R64(a)) => (Op::Low32, d, a),
            (N::S32 | N::U32, N::S32 | N::U32, Target::R32(d), Source::R32(a)) => (Op::Mov32, d, a),
            (
                N::U8,
                N::U32 | N::S32 | N::U16 | N::S16,
                Target::R32(d) | Target::R16(d),
                Source::R32(a),
            ) => (Op::Zext8, d, a),
            (N::U16, N::U32 | N::S32, Target::R32(d), Source::R32(a)) => (Op::Zext16, d, a),
            (N::S8, N::S32 | N::U32, Target::R32(d), Source::R32(a)) => (Op::Sext8, d, a),
            (N::S16, N::S32 | N::U32, Target::R32(d), Source::R32(a)) => (Op::Sext16, d, a),
            (N::U32 | N::S32, N::U16, Target::R16(d) | Target::R32(d), Source::R32(a)) => {
                (Op::Zext16, d, a)
            }
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

    pub(super) fn convert_address(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a] = operands[..] else { return self.unsupported(form) };
        let base = match form.space() {
            Some(PtxSpace::Global | PtxSpace::Const) => 0,
            Some(space) if space.is_shared() || space == PtxSpace::SharedCluster => SHARED_BASE,
            Some(PtxSpace::Local) => LOCAL_BASE,
            // A device function's parameters lie in local memory.
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
        if base == 0 {
            return self.define(d, ty, Source::R64(source));
        }
        let target = self.target64(d)?;
        let base = self.constant64(Constant::Bits(base));
        let op = if form.has(Mod::To) { Op::Sub64 } else { Op::Add64 };
        self.emit(op, target, source, base, 0, 0);
        Ok(())
    }

    pub(super) fn is_in_space(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let (low, high, how) = match form.space() {
            Some(PtxSpace::Global) => (SHARED_BASE, PARAM_BASE + SPACE_BYTES, 1),
            // Constants lie in global memory; no address range is theirs alone.
            Some(PtxSpace::Const) => (1, 0, 0),
            Some(PtxSpace::SharedCluster) => (SHARED_BASE, SHARED_BASE + SPACE_BYTES, 0),
            Some(space) if space.is_shared() => return self.is_own_shared(operands),
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

    /// `isspacep.shared::cta`
    fn is_own_shared(&mut self, operands: &[Operand]) -> Result<()> {
        let a = Source::R64(self.source64(operands[1], Type::U64)?);
        let own = Source::R32(self.own_value(OfCta::SharedWindow));
        let base = Source::R64(self.constant64(Constant::Bits(SHARED_BASE)));
        let d = self.target_p(operands[0])?;
        self.emit_lane(cluster::is_own, 0, [a, own, base], Target::P(d));
        Ok(())
    }

    pub(super) fn move_value(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let ty = self.type_of(form)?;
        let [d, a] = operands[..] else { return self.unsupported(form) };
        if ty == Type::B128 {
            return self.move_wide(d, a);
        }
        match (self.parts(d), self.parts(a)) {
            (Some(to), Some(from)) => self.move_elements(form, ty, &to, &from),
            // `mov.v4.u32 v, %tid` moves the components of a special register.
            (Some(to), None) if let Operand::Special(special, Part::Whole) = a => {
                let from: Vec<Operand> = [Part::X, Part::Y, Part::Z, Part::W]
                    .map(|part| Operand::Special(special, part))
                    .to_vec();
                self.move_elements(form, ty, &to, &from)
            }
            (Some(to), None) => self.unpack(form, ty, &to, a),
            (None, Some(from)) => self.pack(form, ty, d, &from),
            (None, None) => {
                let source = self.source(a, ty)?;
                self.define(d, ty, source)
            }
        }
    }

    /// `mov.v2`, `mov.v4`. All sources are read before a target is written, because both sides may
    /// name the same registers.
    fn move_elements(
        &mut self,
        form: &Form,
        ty: Type,
        to: &[Operand],
        from: &[Operand],
    ) -> Result<()> {
        if to.len() != from.len() {
            return self.unsupported(form);
        }
        let mut values = Vec::new();
        for (&from, &to) in from.iter().zip(to) {
            if to == Operand::Sink {
                values.push(None);
                continue;
            }
            let source = self.source(from, ty)?;
            let copy = self.fresh(ty)?;
            let target = match copy {
                Source::R64(row) => Target::R64(row),
                Source::R32(row) => Target::R32(row),
                _ => return self.unsupported(form),
            };
            self.move_to(target, source)?;
            values.push(Some(copy));
        }
        for (value, &to) in values.into_iter().zip(to) {
            if let Some(value) = value {
                let target = self.target(to, ty)?;
                self.move_to(target, value)?;
            }
        }
        Ok(())
    }

    /// Bits of one element: an equal share of `mov.b64`, or the type's bits of `mov.v4.u16`.
    fn element_bits(form: &Form, ty: Type, elements: usize) -> u32 {
        if form.vector() > 1 { ty.bits() } else { ty.bits() / elements.max(1) as u32 }
    }

    /// The type of all elements together.
    fn packed_type(bits: u32, elements: usize) -> Type {
        match bits * elements as u32 {
            64 => Type::B64,
            16 => Type::B16,
            _ => Type::B32,
        }
    }

    /// Splits a scalar into elements; the lowest bits go to the first element.
    fn unpack(&mut self, form: &Form, ty: Type, to: &[Operand], from: Operand) -> Result<()> {
        let bits = Self::element_bits(form, ty, to.len());
        let source = self.source(from, Self::packed_type(bits, to.len()))?;
        for (index, &part) in to.iter().enumerate() {
            if part == Operand::Sink {
                continue;
            }
            let target = self.target(part, if bits == 64 { Type::B64 } else { Type::B32 })?;
            self.emit_lane(lane::piece, bits * index as u32, [source, NONE, NONE], target);
        }
        Ok(())
    }

    /// Joins elements into a scalar.
    fn pack(&mut self, form: &Form, ty: Type, to: Operand, from: &[Operand]) -> Result<()> {
        let bits = Self::element_bits(form, ty, from.len());
        let part_type = match bits {
            8 => Type::B8,
            16 => Type::B16,
            _ => Type::B32,
        };
        let mut all = Vec::new();
        for &part in from {
            all.push(self.source(part, part_type)?);
        }
        let target = self.target(to, Self::packed_type(bits, from.len()))?;
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
}

/// `cvt.….tf32.f32` keeps 10 mantissa bits. `how` selects rounding: bit 0 ties away from zero, bit
/// 1 toward zero, else ties to even. Bit 2 turns negative numbers into 0. Bit 3 turns numbers
/// beyond the largest into the largest.
fn to_tf32(x: [u64; 3], how: u32) -> u64 {
    let bits = x[0] as u32;
    if f32::from_bits(bits).is_nan() {
        return u64::from(float::NAN_F32);
    }
    if how & 4 != 0 && bits >> 31 == 1 {
        return 0;
    }
    let added = match () {
        () if bits & 0x7f80_0000 == 0x7f80_0000 || how & 2 != 0 => 0,
        () if how & 1 != 0 => 0x1000,
        () => 0xfff + (bits >> 13 & 1),
    };
    let rounded = bits.wrapping_add(added) & !0x1fff;
    if how & 8 != 0 && rounded & 0x7f80_0000 == 0x7f80_0000 {
        return u64::from(rounded - 0x2000);
    }
    u64::from(rounded)
}
