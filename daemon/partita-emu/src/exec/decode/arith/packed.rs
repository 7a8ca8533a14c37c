//! Conversions to and from several small numbers in one register.

use crate::exec::decode::{Decoder, Result};
use crate::exec::inst::Source;
use crate::exec::packed::{FROM_PAIR, IS_E5M2, RELU, SIGNED, from_tiny_pair, pack, to_tiny_pair};
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

impl Decoder<'_> {
    /// `cvt` between the 8-bit formats and others; `None` where neither type is an 8-bit format.
    pub(super) fn convert_tiny(&mut self, form: &Form, operands: &[Operand]) -> Result<Option<()>> {
        let types: Vec<Type> = form.types().collect();
        let &[to, from] = types.as_slice() else { return Ok(None) };
        let e5m2 = |ty: Type| match ty {
            Type::E4m3x2 => Some(0),
            Type::E5m2x2 => Some(IS_E5M2),
            _ => None,
        };
        let relu = if form.has(Mod::Relu) { RELU } else { 0 };
        match (e5m2(to), e5m2(from), operands) {
            (Some(format), None, &[d, a, b]) if from == Type::F32 => {
                let sources = [self.source(a, from)?, self.source(b, from)?, Source::None];
                let target = self.target(d, Type::B16)?;
                self.emit_lane(to_tiny_pair, format | relu, sources, target);
            }
            (Some(format), None, &[d, a]) if from == Type::F16x2 => {
                let sources = [self.source(a, from)?, Source::None, Source::None];
                let target = self.target(d, Type::B16)?;
                self.emit_lane(to_tiny_pair, format | relu | FROM_PAIR, sources, target);
            }
            (None, Some(format), &[d, a]) if to == Type::F16x2 => {
                let sources = [self.source(a, Type::B16)?, Source::None, Source::None];
                let target = self.target(d, Type::B32)?;
                self.emit_lane(from_tiny_pair, format | relu, sources, target);
            }
            (None, None, _) => return Ok(None),
            _ => return self.unsupported(form),
        }
        Ok(Some(()))
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
