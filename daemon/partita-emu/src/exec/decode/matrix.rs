//! Matrix instructions of a warp.

use super::{Decoder, Result};
use crate::exec::inst::{Op, Source, Space, Target, WarpKind};
use crate::exec::matrix::{Element, Fragment, Layout, Role};
use crate::exec::product::Rule;
use crate::exec::program::Constant;
use crate::exec::quad::{Quads, registers};
use crate::exec::sparse::{Sparse, selectors};
use crate::exec::tensor::{MatrixOp, Place};
use partita_ptx::{Form, Mod, Op as P, Operand, Type};

/// Shapes, as (m, n, k), by the kind of elements of A and B: of `mma` (PTX ISA, table "Matrix
/// shapes" of the section "Warp Level Matrix Multiply-Accumulate Instructions") and of `wmma`.
const MMA: [(Element, &[[usize; 3]]); 11] = [
    (Element::B1, &[[8, 8, 128], [16, 8, 128], [16, 8, 256]]),
    (Element::S4, &[[8, 8, 32], [16, 8, 32], [16, 8, 64]]),
    (Element::U4, &[[8, 8, 32], [16, 8, 32], [16, 8, 64]]),
    (Element::E4m3, &[[16, 8, 16], [16, 8, 32]]),
    (Element::E5m2, &[[16, 8, 16], [16, 8, 32]]),
    (Element::F16, &[[16, 8, 8], [16, 8, 16]]),
    (Element::Bf16, &[[16, 8, 8], [16, 8, 16]]),
    (Element::Tf32, &[[16, 8, 4], [16, 8, 8]]),
    (Element::F64, &[[8, 8, 4], [16, 8, 4], [16, 8, 8], [16, 8, 16]]),
    (Element::S8, &[[8, 8, 16], [16, 8, 16], [16, 8, 32]]),
    (Element::U8, &[[8, 8, 16], [16, 8, 16], [16, 8, 32]]),
];
/// The same of `mma.sp`.
const SPARSE: [(Element, &[[usize; 3]]); 9] = [
    (Element::S4, &[[16, 8, 64], [16, 8, 128]]),
    (Element::U4, &[[16, 8, 64], [16, 8, 128]]),
    (Element::E4m3, &[[16, 8, 64]]),
    (Element::E5m2, &[[16, 8, 64]]),
    (Element::F16, &[[16, 8, 16], [16, 8, 32]]),
    (Element::Bf16, &[[16, 8, 16], [16, 8, 32]]),
    (Element::Tf32, &[[16, 8, 8], [16, 8, 16]]),
    (Element::S8, &[[16, 8, 32], [16, 8, 64]]),
    (Element::U8, &[[16, 8, 32], [16, 8, 64]]),
];
const WIDE: &[[usize; 3]] = &[[16, 16, 16], [32, 8, 16], [8, 32, 16]];
const WMMA: [(Element, &[[usize; 3]]); 9] = [
    (Element::B1, &[[8, 8, 128]]),
    (Element::S4, &[[8, 8, 32]]),
    (Element::U4, &[[8, 8, 32]]),
    (Element::F16, WIDE),
    (Element::Bf16, WIDE),
    (Element::Tf32, &[[16, 16, 8]]),
    (Element::F64, &[[8, 8, 4]]),
    (Element::S8, WIDE),
    (Element::U8, WIDE),
];

pub(super) fn element(ty: Type) -> Option<Element> {
    Some(match ty {
        Type::B1 => Element::B1,
        Type::S4 => Element::S4,
        Type::U4 => Element::U4,
        Type::E4m3 => Element::E4m3,
        Type::E5m2 => Element::E5m2,
        Type::S8 => Element::S8,
        Type::U8 => Element::U8,
        Type::F16 => Element::F16,
        Type::Bf16 => Element::Bf16,
        Type::Tf32 => Element::Tf32,
        Type::F32 => Element::F32,
        Type::S32 => Element::S32,
        Type::F64 => Element::F64,
        _ => return None,
    })
}

/// Whether half of the left factor is zero and not stored.
pub(super) fn is_sparse(text: &str) -> bool {
    text.split('.').any(|word| matches!(word, "sp" | "sp::ordered_metadata"))
}

/// `m16n8k16` in a spelling.
pub(super) fn shape(text: &str) -> Option<[usize; 3]> {
    text.split('.').find_map(|word| {
        let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
    })
}

pub(super) fn fragment(role: Role, [m, n, k]: [usize; 3], element: Element) -> Fragment {
    let (rows, columns) = match role {
        Role::A => (m, k),
        Role::B => (k, n),
        Role::C => (m, n),
    };
    Fragment { role, rows, columns, element }
}

impl Decoder<'_> {
    pub(super) fn matrix_operation(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let op = match form.op {
            P::Mma
                if form.types().nth(1) == Some(Type::F16)
                    && !is_sparse(self.module.text(form.text))
                    && shape(self.module.text(form.text)) == Some([8, 8, 4]) =>
            {
                self.quads(form, operands)?
            }
            P::Mma if self.module.text(form.text).contains(".kind::") => {
                self.narrow_product(form, operands)?
            }
            P::Mma if form.has(Mod::Sync) => {
                let shapes =
                    if is_sparse(self.module.text(form.text)) { &SPARSE } else { &MMA[..] };
                self.mma(form, operands, shapes)?
            }
            P::Wmma if form.has(Mod::Load) => self.wmma_load(form, operands)?,
            P::Wmma if form.has(Mod::Store) => self.wmma_store(form, operands)?,
            P::Wmma => self.mma(form, operands, &WMMA)?,
            P::Ldmatrix | P::Stmatrix if !form.has(Mod::M8n8) => {
                self.rows_of_bytes(form, operands)?
            }
            _ => self.rows_of_eight(form, operands)?,
        };
        self.emit_matrix(op);
        Ok(())
    }

    pub(super) fn emit_matrix(&mut self, op: MatrixOp) {
        // `.aligned`: the whole warp executes the instruction together.
        let all = Source::R32(self.constant32(Constant::Bits(0xffff_ffff)));
        self.warp(WarpKind::BarWarp, [Source::None; 3], all, false, Target::None, Target::None);
        self.program.matrix_ops.push(op);
        let index = self.program.matrix_ops.len() as i64 - 1;
        self.emit(Op::Matrix, 0, 0, 0, 0, index);
    }

    fn mma(
        &mut self,
        form: &Form,
        operands: &[Operand],
        shapes: &[(Element, &[[usize; 3]])],
    ) -> Result<MatrixOp> {
        let text = self.module.text(form.text);
        let types: Vec<Element> = form.types().filter_map(element).collect();
        // The type list of `wmma.mma` on f16 names only D and C.
        let (d, a, b, c) = match (types.as_slice(), form.types().count()) {
            (&[d, a, b, c], 4) => (d, a, b, c),
            (&[d, c], 2) if form.op == P::Wmma => (d, Element::F16, Element::F16, c),
            _ => return self.unsupported(form),
        };
        let Some(mnk) = shape(text) else { return self.unsupported(form) };
        let known = shapes.iter().any(|(kind, shapes)| *kind == a && shapes.contains(&mnk));
        let tiny = |element| matches!(element, Element::E4m3 | Element::E5m2);
        let integers = a.is_integer() && b.is_integer() && a.width() == b.width();
        let same = a == b || integers || tiny(a) && tiny(b);
        let sum = |sum: Element| match a {
            Element::F16 | Element::E4m3 | Element::E5m2 => {
                matches!(sum, Element::F16 | Element::F32)
            }
            Element::F64 => sum == Element::F64,
            _ if a.is_integer() => sum == Element::S32,
            _ => sum == Element::F32,
        };
        let other = text.contains(".block_scale");
        // Products of single bits have their own kinds.
        let bitwise = form.has(Mod::Xor) || form.has(Mod::And);
        let other = other || bitwise != (a == Element::B1);
        let sparse = self.sparse(form, operands.get(4..).unwrap_or_default(), (a, mnk[2]))?;
        let &[to, left, right, plus, ..] = operands else { return self.unsupported(form) };
        if !known || !same || !sum(c) || !sum(d) || other || b.width() == 32 && b != Element::Tf32 {
            return self.unsupported(form);
        }
        let mut factors =
            [fragment(Role::A, mnk, a), fragment(Role::B, mnk, b), fragment(Role::C, mnk, c)];
        if sparse.is_some() {
            factors[0].columns /= 2;
        }
        let mut sources = [Vec::new(), Vec::new(), Vec::new()];
        for (index, operand) in [left, right, plus].into_iter().enumerate() {
            sources[index] = self.fragment_sources(form, operand, &factors[index])?;
        }
        let of_d = Fragment { element: d, ..factors[2] };
        let targets = self.fragment_targets(form, to, &of_d)?;
        let rule = if form.has(Mod::Xor) {
            Rule::Xor
        } else if form.has(Mod::Satfinite) {
            Rule::Saturate
        } else {
            Rule::Plain
        };
        let (factors, result) = (factors.map(Layout::new), Layout::new(of_d));
        let scales = None;
        Ok(MatrixOp::Multiply { factors, sources, result, targets, rule, sparse, scales })
    }

    /// The operands that only sparse products have: metadata, and a selector of threads.
    pub(super) fn sparse(
        &mut self,
        form: &Form,
        operands: &[Operand],
        (element, k): (Element, usize),
    ) -> Result<Option<Sparse>> {
        match (is_sparse(self.module.text(form.text)), operands) {
            (false, []) => Ok(None),
            (true, &[metadata, Operand::Int(selector)])
                if form.op != P::Wmma && (selector as usize) < selectors(element, k) =>
            {
                let metadata = self.source(metadata, Type::B32)?;
                Ok(Some(Sparse { metadata, selector: selector as usize }))
            }
            _ => self.unsupported(form),
        }
    }

    /// `mma.m8n8k4` on f16.
    fn quads(&mut self, form: &Form, operands: &[Operand]) -> Result<MatrixOp> {
        let types: Vec<Element> = form.types().filter_map(element).collect();
        let (&[of_d, Element::F16, Element::F16, of_c], &[to, a, b, c]) =
            (types.as_slice(), operands)
        else {
            return self.unsupported(form);
        };
        let half = |element| matches!(element, Element::F16 | Element::F32);
        let layouts: Vec<bool> = form
            .mods
            .iter()
            .filter_map(|word| match word {
                Mod::Row => Some(true),
                Mod::Col => Some(false),
                _ => None,
            })
            .collect();
        let &[a_by_rows, b_by_rows] = layouts.as_slice() else { return self.unsupported(form) };
        let counts = [2, 2, registers(of_c)];
        let mut sources = [Vec::new(), Vec::new(), Vec::new()];
        for ((operand, sources), count) in [a, b, c].into_iter().zip(&mut sources).zip(counts) {
            let parts = self.elements(operand);
            if parts.len() != count {
                return self.unsupported(form);
            }
            for part in parts {
                sources.push(self.source(part, Type::B32)?);
            }
        }
        let parts = self.elements(to);
        if parts.len() != registers(of_d) || !half(of_c) || !half(of_d) {
            return self.unsupported(form);
        }
        let targets =
            parts.into_iter().map(|part| self.target(part, Type::B32)).collect::<Result<_>>()?;
        let quads = Quads { a_by_rows, b_by_rows, of_c, of_d };
        Ok(MatrixOp::Quads { quads, sources, targets })
    }

    fn fragment_type(fragment: &Fragment) -> Type {
        if fragment.element == Element::F64 { Type::F64 } else { Type::B32 }
    }

    /// Whether a fragment has its number of registers. A `wmma` fragment may have two or four times
    /// as many, which repeat f16 elements.
    fn is_whole(form: &Form, given: usize, fragment: &Fragment) -> bool {
        let own = fragment.registers();
        let repeats =
            form.op == P::Wmma && fragment.element == Element::F16 && fragment.role != Role::C;
        given == own || repeats && given == 8 && given.is_multiple_of(own)
    }

    pub(super) fn fragment_sources(
        &mut self,
        form: &Form,
        operand: Operand,
        fragment: &Fragment,
    ) -> Result<Vec<Source>> {
        let parts = self.elements(operand);
        if !Self::is_whole(form, parts.len(), fragment) {
            return self.unsupported(form);
        }
        parts.into_iter().map(|part| self.source(part, Self::fragment_type(fragment))).collect()
    }

    pub(super) fn fragment_targets(
        &mut self,
        form: &Form,
        operand: Operand,
        fragment: &Fragment,
    ) -> Result<Vec<Target>> {
        let parts = self.elements(operand);
        if !Self::is_whole(form, parts.len(), fragment) {
            return self.unsupported(form);
        }
        parts.into_iter().map(|part| self.target(part, Self::fragment_type(fragment))).collect()
    }

    /// The fragment, whether columns are contiguous, the place, and the stride of `wmma.load` and
    /// `wmma.store`.
    fn wmma_memory(
        &mut self,
        form: &Form,
        place: Operand,
        stride: Option<&Operand>,
    ) -> Result<(Fragment, bool, Place, Source)> {
        let text = self.module.text(form.text);
        let role =
            match form.mods.iter().find(|word| matches!(word, Mod::A | Mod::B | Mod::C | Mod::D)) {
                Some(Mod::A) => Role::A,
                Some(Mod::B) => Role::B,
                _ => Role::C,
            };
        let (Some(mnk), Some(element)) = (shape(text), form.last_type().and_then(element)) else {
            return self.unsupported(form);
        };
        let known = WMMA
            .iter()
            .any(|(kind, shapes)| (role == Role::C || *kind == element) && shapes.contains(&mnk));
        let sums = matches!(element, Element::F16 | Element::F32 | Element::S32 | Element::F64);
        if !known || role == Role::C && !sums {
            return self.unsupported(form);
        }
        let space = self.space_of(form)?;
        let address = self.whole_address(place)?;
        let stride = match stride {
            Some(&stride) => self.source(stride, Type::U32)?,
            None => Source::None,
        };
        Ok((fragment(role, mnk, element), form.has(Mod::Col), Place { space, address }, stride))
    }

    fn wmma_load(&mut self, form: &Form, operands: &[Operand]) -> Result<MatrixOp> {
        let [to, from, rest @ ..] = operands else { return self.unsupported(form) };
        let (fragment, by_columns, from, stride) = self.wmma_memory(form, *from, rest.first())?;
        let targets = self.fragment_targets(form, *to, &fragment)?;
        Ok(MatrixOp::Load { fragment, from, stride, by_columns, targets })
    }

    fn wmma_store(&mut self, form: &Form, operands: &[Operand]) -> Result<MatrixOp> {
        let [to, from, rest @ ..] = operands else { return self.unsupported(form) };
        let (fragment, by_columns, to, stride) = self.wmma_memory(form, *to, rest.first())?;
        let sources = self.fragment_sources(form, *from, &fragment)?;
        Ok(MatrixOp::Store { fragment, to, stride, by_columns, sources })
    }

    /// `ldmatrix`, `stmatrix`, `movmatrix` of 8 by 8 elements of 16 bits.
    fn rows_of_eight(&mut self, form: &Form, operands: &[Operand]) -> Result<MatrixOp> {
        let [first, second] = *operands else { return self.unsupported(form) };
        if !form.has(Mod::M8n8) || form.last_type() != Some(Type::B16) {
            return self.unsupported(form);
        }
        let transposed = form.has(Mod::Trans);
        let count = if form.has(Mod::X4) {
            4
        } else if form.has(Mod::X2) {
            2
        } else {
            1
        };
        let (registers, memory) = match form.op {
            P::Movmatrix => {
                let source = self.source(second, Type::B32)?;
                let target = self.target(first, Type::B32)?;
                return Ok(MatrixOp::Transpose { source, target });
            }
            P::Ldmatrix => (first, second),
            _ => (second, first),
        };
        let place = self.place_of_rows(form, memory)?;
        let parts = self.elements(registers);
        if parts.len() != count {
            return self.unsupported(form);
        }
        if form.op == P::Ldmatrix {
            let targets = parts
                .into_iter()
                .map(|part| self.target(part, Type::B32))
                .collect::<Result<_>>()?;
            return Ok(MatrixOp::LoadRows { from: place, transposed, targets });
        }
        let sources =
            parts.into_iter().map(|part| self.source(part, Type::B32)).collect::<Result<_>>()?;
        Ok(MatrixOp::StoreRows { to: place, transposed, sources })
    }

    /// Where the rows of `ldmatrix` and `stmatrix` lie. Of a generic address the hardware takes the
    /// low 32 bits, as an address of shared memory (`LDSM`, whose register has 32 bits).
    pub(super) fn place_of_rows(&mut self, form: &Form, memory: Operand) -> Result<Place> {
        match self.space_at(form, memory)? {
            Space::Shared | Space::Generic => {
                Ok(Place { space: Space::Shared, address: self.whole_address(memory)? })
            }
            _ => self.unsupported(form),
        }
    }
}
