//! Matrix instructions of a warp on narrow numbers: `mma` with `.kind::`, block scaling, and
//! `ldmatrix` and `stmatrix` of bytes (PTX ISA, "Multiply-and-Accumulate Instruction: mma", "Block
//! Scaling for mma.sync").

use super::matrix::{fragment, is_sparse, shape};
use super::{Decoder, Result};
use crate::exec::block_scale::{Scale, Scales, THREADS, is_first_byte};
use crate::exec::byte_rows::ByteRows;
use crate::exec::inst::{Source, Target};
use crate::exec::matrix::{Element, Fragment, Layout, Role};
use crate::exec::product::Rule;
use crate::exec::tensor::MatrixOp;
use partita_ptx::{Form, Mod, Op as P, Operand, Type};

/// What a `.kind::` allows.
struct Kind {
    /// K of a product without zeros; a sparse one has twice as much.
    k: usize,
    /// Whether factors are `.e2m1` in four bits, else any format in bytes.
    packed: bool,
    /// Scale factors of a row or column, and whether they are powers of two.
    scales: Option<(usize, bool)>,
}

impl Kind {
    fn of(text: &str, scale_type: Option<Type>) -> Option<Self> {
        let words: Vec<&str> = text.split('.').collect();
        let has = |word: &str| words.contains(&word);
        let size = words.iter().find_map(|word| word.strip_prefix("scale_vec::"));
        let scaled = has("block_scale");
        let kind = words.iter().find_map(|word| word.strip_prefix("kind::"))?;
        let powers = scale_type == Some(Type::Ue8m0);
        let (k, packed, scales) = match (kind, scaled, size, scale_type) {
            ("f8f6f4", false, None, None) => (32, false, None),
            ("mxf8f6f4", true, None | Some("1X"), Some(Type::Ue8m0)) => (32, false, Some(1)),
            ("mxf4", true, None | Some("2X"), Some(Type::Ue8m0)) => (64, true, Some(2)),
            ("mxf4nvf4", true, Some("2X"), Some(Type::Ue8m0)) => (64, true, Some(2)),
            ("mxf4nvf4", true, Some("4X"), Some(Type::Ue8m0 | Type::Ue4m3)) => (64, true, Some(4)),
            _ => return None,
        };
        Some(Kind { k, packed, scales: scales.map(|count| (count, powers)) })
    }

    fn element(&self, ty: Type) -> Option<Element> {
        Some(match (ty, self.packed) {
            (Type::E2m1, true) => Element::E2m1,
            (Type::E2m1, false) => Element::E2m1InByte,
            (Type::E2m3, false) => Element::E2m3,
            (Type::E3m2, false) => Element::E3m2,
            (Type::E4m3, false) => Element::E4m3,
            (Type::E5m2, false) => Element::E5m2,
            _ => return None,
        })
    }
}

impl Decoder<'_> {
    /// `mma` with `.kind::`.
    pub(super) fn narrow_product(&mut self, form: &Form, operands: &[Operand]) -> Result<MatrixOp> {
        let text = self.module.text(form.text);
        let types: Vec<Type> = form.types().collect();
        let (&[d, a, b, c], rest) = match types.split_first_chunk() {
            Some(split) => split,
            None => return self.unsupported(form),
        };
        let kind = match rest {
            [] => Kind::of(text, None),
            [scale] => Kind::of(text, Some(*scale)),
            _ => None,
        };
        let Some(kind) = kind else { return self.unsupported(form) };
        let sum = match (d, c) {
            (Type::F32, Type::F32) => Element::F32,
            (Type::F16, Type::F16) if kind.scales.is_none() => Element::F16,
            _ => return self.unsupported(form),
        };
        let (Some(a), Some(b)) = (kind.element(a), kind.element(b)) else {
            return self.unsupported(form);
        };
        let is_sparse = is_sparse(text);
        let k = if is_sparse { 2 * kind.k } else { kind.k };
        let layouts: Vec<bool> = form
            .mods
            .iter()
            .filter(|word| matches!(word, Mod::Row | Mod::Col))
            .map(|word| *word == Mod::Row)
            .collect();
        // Only metadata in order are known for narrow numbers.
        let in_order = !is_sparse || text.split('.').any(|word| word == "sp::ordered_metadata");
        if shape(text) != Some([16, 8, k]) || layouts != [true, false] || !in_order {
            return self.unsupported(form);
        }
        let of_sparse = if is_sparse { 2 } else { 0 };
        let (&[to, left, right, plus], rest) = match operands.split_first_chunk() {
            Some(split) if split.1.len() >= of_sparse => split,
            _ => return self.unsupported(form),
        };
        let (metadata, of_scales) = rest.split_at(of_sparse);
        let sparse = self.sparse(form, metadata, (a, k))?;
        let scales = self.scales(form, &kind, of_scales)?;
        let mnk = [16, 8, k];
        let mut factors =
            [fragment(Role::A, mnk, a), fragment(Role::B, mnk, b), fragment(Role::C, mnk, sum)];
        if is_sparse {
            factors[0].columns /= 2;
        }
        let mut sources = [Vec::new(), Vec::new(), Vec::new()];
        for (index, operand) in [left, right, plus].into_iter().enumerate() {
            sources[index] = self.fragment_sources(form, operand, &factors[index])?;
        }
        let of_d: Fragment = factors[2];
        let targets = self.fragment_targets(form, to, &of_d)?;
        let (factors, result) = (factors.map(Layout::new), Layout::new(of_d));
        let rule = Rule::Plain;
        Ok(MatrixOp::Multiply { factors, sources, result, targets, rule, sparse, scales })
    }

    /// The operands of `.block_scale`: data and selectors of A, and of B.
    fn scales(
        &mut self,
        form: &Form,
        kind: &Kind,
        operands: &[Operand],
    ) -> Result<Option<Box<Scales>>> {
        let (count, powers, of_a, of_b) = match (kind.scales, operands) {
            (None, []) => return Ok(None),
            (Some((count, powers)), &[a, of_a, b, of_b]) => (count, powers, (a, of_a), (b, of_b)),
            _ => return self.unsupported(form),
        };
        let mut of = Vec::new();
        for (index, (data, selectors)) in [of_a, of_b].into_iter().enumerate() {
            let (&[data], &[byte, thread]) =
                (self.elements(data).as_slice(), self.elements(selectors).as_slice())
            else {
                return self.unsupported(form);
            };
            let wrong = |operand: Operand, right: &dyn Fn(u64) -> bool| match operand {
                Operand::Int(value) | Operand::Uint(value) => !right(value),
                _ => false,
            };
            if wrong(byte, &|byte| is_first_byte(byte, count))
                || wrong(thread, &|thread| thread <= THREADS[index])
            {
                return self.unsupported(form);
            }
            of.push(Scale {
                data: self.source(data, Type::B32)?,
                byte: self.source(byte, Type::U16)?,
                thread: self.source(thread, Type::U16)?,
            });
        }
        let &[a, b] = of.as_slice() else { return self.unsupported(form) };
        Ok(Some(Box::new(Scales { of: [a, b], powers, count })))
    }

    /// `ldmatrix.m16n16`, `ldmatrix.m8n16` and `stmatrix.m16n8`.
    pub(super) fn rows_of_bytes(&mut self, form: &Form, operands: &[Operand]) -> Result<MatrixOp> {
        let [first, second] = *operands else { return self.unsupported(form) };
        let text = self.module.text(form.text);
        let has = |word: &str| text.split('.').any(|own| own == word);
        let bits = match form.types().collect::<Vec<_>>().as_slice() {
            [Type::B8] => 8,
            [Type::B8x16, Type::B6x16P32] => 6,
            [Type::B8x16, Type::B4x16P64] => 4,
            _ => return self.unsupported(form),
        };
        let count = [("x1", 1), ("x2", 2), ("x4", 4)]
            .into_iter()
            .find_map(|(word, count)| has(word).then_some(count));
        let transposed = form.has(Mod::Trans);
        let loads = form.op == P::Ldmatrix;
        let registers = match (count, loads) {
            (Some(count @ (1 | 2)), true) if has("m16n16") && transposed => 2 * count,
            (Some(count), true) if has("m8n16") && !transposed && bits < 8 => count,
            (Some(count), false) if has("m16n8") && transposed && bits == 8 => count,
            _ => return self.unsupported(form),
        };
        let (parts, memory) = if loads { (first, second) } else { (second, first) };
        let place = self.place_of_rows(form, memory)?;
        let parts = self.elements(parts);
        if parts.len() != registers {
            return self.unsupported(form);
        }
        let (mut targets, mut sources): (Vec<Target>, Vec<Source>) = (Vec::new(), Vec::new());
        for part in parts {
            if loads {
                targets.push(self.target(part, Type::B32)?);
            } else {
                sources.push(self.source(part, Type::B32)?);
            }
        }
        Ok(MatrixOp::Bytes { rows: ByteRows { bits, transposed }, place, targets, sources })
    }
}
