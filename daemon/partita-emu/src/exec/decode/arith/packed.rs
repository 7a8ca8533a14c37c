//! Conversions to and from several small numbers in one register (PTX ISA, "cvt", "cvt.pack").

use crate::exec::decode::{Decoder, Result};
use crate::exec::inst::{Source, Target};
use crate::exec::lane::join;
use crate::exec::narrow_convert::{
    FINITE, Format, From, RELU, UP, four_by_chance, from_pair, how, pair_by_chance, to_pair,
};
use crate::exec::packed::{SIGNED, pack};
use partita_ptx::{Form, Mod, Operand, Type};

/// The types of `cvt.pack` and their widths in bits. Types below 8 bits occur only here.
const PACKED: [(&str, u32); 8] = [
    ("u16", 16),
    ("s16", SIGNED | 16),
    ("u8", 8),
    ("s8", SIGNED | 8),
    ("u4", 4),
    ("s4", SIGNED | 4),
    ("u2", 2),
    ("s2", SIGNED | 2),
];

/// The format of a type of narrow numbers, and how many it has.
fn narrow(ty: Type) -> Option<(Format, u32)> {
    Some(match ty {
        Type::E4m3x2 => (Format::E4m3, 2),
        Type::E5m2x2 => (Format::E5m2, 2),
        Type::E3m2x2 => (Format::E3m2, 2),
        Type::E2m3x2 => (Format::E2m3, 2),
        Type::E2m1x2 => (Format::E2m1, 2),
        Type::Ue8m0x2 => (Format::Ue8m0, 2),
        Type::E4m3x4 => (Format::E4m3, 4),
        Type::E5m2x4 => (Format::E5m2, 4),
        Type::E3m2x4 => (Format::E3m2, 4),
        Type::E2m3x4 => (Format::E2m3, 4),
        Type::E2m1x4 => (Format::E2m1, 4),
        _ => return None,
    })
}

impl Decoder<'_> {
    /// `cvt` from or to pairs and quads of narrow numbers; `None` for any other.
    pub(super) fn convert_tiny(&mut self, form: &Form, operands: &[Operand]) -> Result<Option<()>> {
        let types: Vec<Type> = form.types().collect();
        let &[to, from] = types.as_slice() else { return Ok(None) };
        let by_chance = form.has(Mod::Rs);
        let halves = match (to, by_chance) {
            (Type::F16x2, true) => Some((Format::F16, 2)),
            (Type::Bf16x2, true) => Some((Format::Bf16, 2)),
            _ => None,
        };
        let flag = |present: bool, bit: u32| if present { bit } else { 0 };
        let flags = flag(form.has(Mod::Relu), RELU)
            | flag(form.has(Mod::Satfinite), FINITE)
            | flag(form.has(Mod::Rp), UP);
        let text = self.module.text(form.text);
        let is_narrow = halves.or(narrow(to)).or(narrow(from)).is_some();
        if is_narrow && text.contains(".scaled::") {
            return self.unsupported(form);
        }
        match (halves.or(narrow(to)), narrow(from), operands) {
            (Some((format, 2)), None, &[d, a, b, random]) if by_chance && from == Type::F32 => {
                if !matches!(format, Format::F16 | Format::Bf16) {
                    return self.unsupported(form);
                }
                let sources = [a, b, random].map(|operand| self.source(operand, Type::B32));
                let [a, b, random] = sources;
                let target = self.target(d, Type::B32)?;
                let how = how(format, From::Singles, flags);
                self.emit_lane(pair_by_chance, how, [a?, b?, random?], target);
            }
            (Some((format, 4)), None, &[d, all, random]) if by_chance && from == Type::F32 => {
                let &[a, b, e, f] = self.elements(all).as_slice() else {
                    return self.unsupported(form);
                };
                let first = self.two_in_one(a, b)?;
                let second = self.two_in_one(e, f)?;
                let random = self.source(random, Type::B32)?;
                let target = self.target(d, to)?;
                let how = how(format, From::Singles, flags);
                self.emit_lane(four_by_chance, how, [first, second, random], target);
            }
            _ if by_chance => return self.unsupported(form),
            (Some((format, 2)), None, &[d, a, b]) if from == Type::F32 => {
                let sources = [self.source(a, from)?, self.source(b, from)?, Source::None];
                let target = self.target(d, to)?;
                self.emit_lane(to_pair, how(format, From::Singles, flags), sources, target);
            }
            (Some((format, 2)), None, &[d, a])
                if from == Type::F16x2 && format != Format::Ue8m0 || from == Type::Bf16x2 =>
            {
                let given = if from == Type::F16x2 { From::Halves } else { From::Bfloats };
                let sources = [self.source(a, Type::B32)?, Source::None, Source::None];
                let target = self.target(d, to)?;
                self.emit_lane(to_pair, how(format, given, flags), sources, target);
            }
            (None, Some((format, 2)), &[d, a])
                if to == Type::F16x2 && format != Format::Ue8m0 || to == Type::Bf16x2 =>
            {
                let wanted = if to == Type::F16x2 { From::Halves } else { From::Bfloats };
                let sources = [self.source(a, from)?, Source::None, Source::None];
                let target = self.target(d, Type::B32)?;
                self.emit_lane(from_pair, how(format, wanted, flags), sources, target);
            }
            (None, None, _) => return Ok(None),
            _ => return self.unsupported(form),
        }
        Ok(Some(()))
    }

    /// Two numbers of 32 bits in a row of 64, the first in the lower half.
    fn two_in_one(&mut self, low: Operand, high: Operand) -> Result<Source> {
        let (low, high) = (self.source(low, Type::F32)?, self.source(high, Type::F32)?);
        let row = self.fresh64();
        self.emit_lane(join, 32, [low, high, Source::None], Target::R64(row));
        Ok(Source::R64(row))
    }

    /// `cvt.pack`
    pub(super) fn convert_packed(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let mut words = self.module.text(form.text).split('.').skip(3);
        let kind = words.next().and_then(|word| PACKED.iter().find(|(name, _)| *name == word));
        let (Some(&(_, how)), [d, a, b, rest @ ..]) = (kind, operands) else {
            return self.unsupported(form);
        };
        let c = match rest.first() {
            Some(&c) => self.source(c, Type::B32)?,
            None => Source::None,
        };
        let sources = [self.source(*a, Type::S32)?, self.source(*b, Type::S32)?, c];
        let target = self.target(*d, Type::B32)?;
        self.emit_lane(pack, how, sources, target);
        Ok(())
    }
}
