//! Video instructions: on one number, on pairs, on quads.

use crate::exec::decode::{Decoder, Result};
use crate::exec::inst::{Source, Target};
use crate::exec::lane::scalar_video::{self as scalar, Kind as Scalar, Second};
use crate::exec::lane::video::{Kind, Video, video};
use crate::exec::lane::{self, sign_extend};
use crate::exec::program::Constant;
use partita_ptx::{Form, Mod, Op as P, Operand, Part, Type};

/// Width and offset in bits of a part such as `b1` or `h0`.
fn piece(text: &str) -> Option<(u32, u32)> {
    let index = text.get(1..)?.parse::<u32>().ok()?;
    match (text.as_bytes().first()?, index) {
        (b'b', 0..4) => Some((8, 8 * index)),
        (b'h', 0..2) => Some((16, 16 * index)),
        _ => None,
    }
}

/// Indices of the parts that a selector or mask such as `h10` or `b7654` names. The text has the
/// lowest part last.
fn selection(text: &str, quads: bool) -> Option<Vec<u32>> {
    let digits = text.strip_prefix(if quads { 'b' } else { 'h' })?;
    digits.chars().rev().map(|digit| digit.to_digit(8)).collect()
}

impl<'m> Decoder<'m> {
    /// Decodes a video instruction on pairs or quads.
    pub(super) fn video(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let is_set = matches!(form.op, P::Vset2 | P::Vset4);
        let kind = match form.op {
            P::Vadd2 | P::Vadd4 => Kind::Add,
            P::Vsub2 | P::Vsub4 => Kind::Sub,
            P::Vavrg2 | P::Vavrg4 => Kind::Avrg,
            P::Vabsdiff2 | P::Vabsdiff4 => Kind::Absdiff,
            P::Vmin2 | P::Vmin4 => Kind::Min,
            P::Vmax2 | P::Vmax4 => Kind::Max,
            _ => Kind::Set(self.comparison(form, Type::S32)?),
        };
        let quads = matches!(
            form.op,
            P::Vadd4 | P::Vsub4 | P::Vavrg4 | P::Vabsdiff4 | P::Vmin4 | P::Vmax4 | P::Vset4
        );
        let types: Vec<bool> = form.types().map(Type::is_signed).collect();
        let signed = match (types.as_slice(), is_set) {
            (&[d, a, b], false) => [d, a, b],
            (&[a, b], true) => [false, a, b],
            _ => return self.unsupported(form),
        };
        let [d, a, b, c] = operands[..] else { return self.unsupported(form) };
        let ((d, mask), (a, of_a), (b, of_b)) = (self.parted(d), self.parted(a), self.parted(b));
        let mask = match mask {
            None => 0xf,
            Some(text) => match selection(text, quads) {
                Some(lanes) => lanes.iter().fold(0, |mask, lane| mask | 1 << lane),
                None => return self.unsupported(form),
            },
        };
        let (saturate, accumulate) = (form.has(Mod::Sat), form.has(Mod::Add));
        let how = Video { kind, quads, signed, saturate, accumulate, mask };
        let plain = [self.source(a, Type::B32)?, self.source(b, Type::B32)?];
        let mut sources = [plain[0], plain[1], self.source(c, Type::B32)?];
        for (source, of) in sources.iter_mut().zip([of_a, of_b]) {
            let Some(text) = of else { continue };
            let Some(chosen) = selection(text, quads) else { return self.unsupported(form) };
            let row = self.fresh32();
            let nibbles = bytes(&chosen, quads);
            let selector = Source::R32(self.constant32(Constant::Bits(nibbles)));
            self.emit_lane(lane::prmt, 0, [plain[0], plain[1], selector], Target::R32(row));
            *source = Source::R32(row);
        }
        let target = self.target(d, Type::B32)?;
        self.emit_lane(video, how.pack(), sources, target);
        Ok(())
    }

    /// A register and the part of it that the operand names.
    fn parted(&self, operand: Operand) -> (Operand, Option<&'m str>) {
        let module = self.module;
        match operand {
            Operand::Part { reg, part: Part::Other(name) } => {
                (Operand::Reg(reg), Some(module.text(name)))
            }
            other => (other, None),
        }
    }

    /// An operand of a scalar video instruction, extended to 64 bits by the operand's own sign.
    fn video_source(&mut self, form: &Form, operand: Operand, ty: Type) -> Result<Source> {
        let (operand, part) = self.parted(operand);
        let place = match part {
            None => Some((32, 0)),
            Some(text) => piece(text),
        };
        let Some((bits, offset)) = place else { return self.unsupported(form) };
        if let Operand::Int(value) | Operand::Uint(value) = operand {
            let value = if ty.is_signed() { sign_extend(value, 32) } else { value & 0xffff_ffff };
            return Ok(Source::R64(self.constant64(Constant::Bits(value))));
        }
        let source = self.source(operand, ty)?;
        let row = self.fresh64();
        let how = bits | offset << 8 | if ty.is_signed() { scalar::SIGNED } else { 0 };
        self.emit_lane(scalar::part, how, [source, Source::None, Source::None], Target::R64(row));
        Ok(Source::R64(row))
    }

    /// Decodes a video instruction on one number.
    pub(super) fn scalar_video(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let types: Vec<Type> = form.types().collect();
        let is_set = form.op == P::Vset;
        let (of_d, of_a, of_b) = match (types.as_slice(), is_set) {
            (&[d, a, b], false) => (d, a, b),
            (&[a, b], true) => (Type::U32, a, b),
            _ => return self.unsupported(form),
        };
        let [d, a, b, ref rest @ ..] = *operands else { return self.unsupported(form) };
        let (d, merged) = self.parted(d);
        let place = merged.map_or(Some((32, 0)), piece);
        let Some((bits, offset)) = place else { return self.unsupported(form) };
        let second =
            match form.mods.iter().find(|word| matches!(word, Mod::Add | Mod::Min | Mod::Max)) {
                _ if merged.is_some() => Second::Merge,
                Some(Mod::Add) => Second::Add,
                Some(Mod::Min) => Second::Min,
                Some(_) => Second::Max,
                None => Second::None,
            };
        let (a, b) = (self.video_source(form, a, of_a)?, self.video_source(form, b, of_b)?);
        let c = match rest.first() {
            Some(&c) => self.source(c, Type::B32)?,
            None => Source::None,
        };
        let value = Source::R64(self.fresh64());
        let Source::R64(row) = value else { return self.unsupported(form) };
        let sign = if of_d.is_signed() { scalar::SIGNED } else { 0 };
        if is_set {
            let truth = self.fresh_p();
            let how = self.comparison(form, Type::S32)? << 8 | 64 << 16 | 1 << 24;
            self.emit_lane(lane::compare, how, [a, b, Source::None], Target::P(truth));
            let none = Source::None;
            self.emit_lane(lane::piece, 0, [Source::P(truth), none, none], Target::R64(row));
        } else {
            let clamp = form.has(Mod::Clamp);
            let kind = match form.op {
                P::Vadd => Scalar::Add,
                P::Vsub => Scalar::Sub,
                P::Vabsdiff => Scalar::Absdiff,
                P::Vmin => Scalar::Min,
                P::Vmax => Scalar::Max,
                P::Vshl if clamp => Scalar::ShlClamp,
                P::Vshl => Scalar::ShlWrap,
                P::Vshr if clamp => Scalar::ShrClamp,
                _ => Scalar::ShrWrap,
            };
            let saturate = if form.has(Mod::Sat) { scalar::SATURATE } else { 0 };
            let how = bits | sign | saturate | (kind as u32) << 24;
            self.emit_lane(scalar::primary, how, [a, b, Source::None], Target::R64(row));
        }
        let target = self.target(d, Type::B32)?;
        let how = bits | offset << 8 | sign | (second as u32) << 24;
        self.emit_lane(scalar::secondary, how, [value, c, Source::None], target);
        Ok(())
    }

    /// `vmad`
    pub(super) fn video_multiply_add(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let types: Vec<Type> = form.types().collect();
        let (&[_, of_a, of_b], &[d, a, b, c]) = (types.as_slice(), operands) else {
            return self.unsupported(form);
        };
        let negated = |operand: Operand| match operand {
            Operand::Neg(reg) => (Operand::Reg(reg), true),
            Operand::Part { reg, part: Part::Whole } => (Operand::Reg(reg), true),
            other => (other, false),
        };
        let ((a, minus_a), (b, minus_b), (c, minus_c)) = (negated(a), negated(b), negated(c));
        let signed = of_a.is_signed() || of_b.is_signed() || minus_a != minus_b || minus_c;
        let how = [
            (minus_a != minus_b, scalar::NEGATE_PRODUCT),
            (minus_c, scalar::NEGATE_ADDEND),
            (form.has(Mod::Po), scalar::PLUS_ONE),
            (form.has(Mod::Shr7), scalar::SHIFT_7),
            (form.has(Mod::Shr15), scalar::SHIFT_15),
            (form.has(Mod::Sat), scalar::SATURATE),
            (signed, scalar::SIGNED),
        ];
        let how = how.iter().filter(|(given, _)| *given).fold(0, |how, (_, bit)| how | bit);
        let (a, b) = (self.video_source(form, a, of_a)?, self.video_source(form, b, of_b)?);
        let c = self.source(c, Type::B32)?;
        let target = self.target(d, Type::B32)?;
        self.emit_lane(scalar::multiply_add, how, [a, b, c], target);
        Ok(())
    }
}

/// A selector of `prmt` that takes these parts, lowest first.
fn bytes(parts: &[u32], quads: bool) -> u64 {
    let nibbles: Vec<u32> = if quads {
        parts.to_vec()
    } else {
        parts.iter().flat_map(|&half| [2 * half, 2 * half + 1]).collect()
    };
    nibbles.iter().rev().fold(0, |all, &nibble| all << 4 | u64::from(nibble & 7))
}
