//! Video instructions on pairs and quads; those on parts of a register (`.b0`, `.h1`, masks) are not known.

use crate::exec::decode::{Decoder, Result};
use crate::exec::inst::Source;
use crate::exec::lane::video::{Kind, Video, video};
use partita_ptx::{Form, Mod, Op as P, Operand, Type};

impl Decoder<'_> {
    /// Decodes a video instruction.
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
            _ => return self.unknown(form),
        };
        let [d, a, b, c] = operands[..] else { return self.unknown(form) };
        let how = Video { kind, quads, signed, saturate: form.has(Mod::Sat), accumulate: form.has(Mod::Add) };
        let mut sources = [Source::None; 3];
        for (source, operand) in sources.iter_mut().zip([a, b, c]) {
            *source = self.source(operand, Type::B32)?;
        }
        let target = self.target(d, Type::B32)?;
        self.emit_lane(video, how.pack(), sources, target);
        Ok(())
    }
}
