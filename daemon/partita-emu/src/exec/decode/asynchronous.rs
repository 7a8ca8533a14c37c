//! Mbarriers, bulk copies and copies by tensor maps.

use super::{Decoder, Result};
use crate::exec::asynchronous::AsyncOp;
use crate::exec::bulk::{BulkKind, BulkOp, FillOp, Part};
use crate::exec::inst::{Op, Source, Target};
use crate::exec::mbarrier::{MbarrierKind, MbarrierOp, pending_count};
use crate::exec::tensor_copy::{CopyKind, TensorCopy};
use crate::exec::tensormap::{Field, ReplaceOp};
use partita_model::tensor_map::MAX_RANK;
use partita_ptx::{Base, Form, Mod, Op as P, Operand, Space as PtxSpace, Type, Version};

impl Decoder<'_> {
    pub(super) fn emit_async(&mut self, op: AsyncOp) {
        self.program.async_ops.push(op);
        let index = self.program.async_ops.len() as i64 - 1;
        self.emit(Op::Async, 0, 0, 0, 0, index);
    }

    pub(super) fn mbarrier(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        use MbarrierKind as K;
        if form.has(Mod::PendingCount) {
            let [d, state] = *operands else { return self.unsupported(form) };
            let state = self.source(state, Type::B64)?;
            let target = self.target(d, Type::U32)?;
            self.emit_lane(pending_count, 0, [state, Source::None, Source::None], target);
            return Ok(());
        }
        let drop = form.has(Mod::ArriveDrop);
        let kind = if form.op == P::Cp {
            K::ArriveAfterCopies { counted: form.has(Mod::Noinc) }
        } else if form.has(Mod::MbarInit) {
            K::Init
        } else if form.has(Mod::Inval) {
            K::Inval
        } else if form.has(Mod::Arrive) || drop {
            K::Arrive { drop, expect: form.has(Mod::ExpectTx) }
        } else if form.has(Mod::ExpectTx) {
            K::ExpectTx
        } else if form.has(Mod::CompleteTx) {
            K::CompleteTx
        } else if form.has(Mod::TestWait) || form.has(Mod::TryWait) {
            if form.has(Mod::Parity) { K::TestParity } else { K::TestState }
        } else {
            return self.unsupported(form);
        };
        // The last operand of `try_wait` is the longest wait.
        let (result, value_type, operands) = match (kind, operands) {
            (K::TestState | K::TestParity, [d, rest @ ..]) => {
                let ty = if kind == K::TestState { Type::B64 } else { Type::U32 };
                (Some((*d, Type::Pred)), ty, rest)
            }
            (K::Arrive { .. }, [d, rest @ ..]) => (Some((*d, Type::B64)), Type::U32, rest),
            _ => (None, Type::U32, operands),
        };
        let [at, rest @ ..] = operands else { return self.unsupported(form) };
        let space = self.space_at(form, *at)?;
        let address = self.whole_address(*at)?;
        let value = match rest.first() {
            Some(&value) => self.source(value, value_type)?,
            None => Source::None,
        };
        let target = match result {
            Some((d, ty)) => self.target(d, ty)?,
            None => Target::None,
        };
        self.emit_async(AsyncOp::Mbarrier(MbarrierOp { kind, space, address, value, target }));
        Ok(())
    }

    /// `cp.async.bulk` and `cp.reduce.async.bulk` without tensors.
    pub(super) fn bulk_copy(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let spaces: Vec<PtxSpace> = form
            .mods
            .iter()
            .filter_map(|&modifier| match modifier {
                Mod::Space(space) => Some(space),
                _ => None,
            })
            .collect();
        if form.has(Mod::Tensor) {
            return self.tensor_copy(form, &spaces, operands);
        }
        if form.has(Mod::CommitGroup) || form.has(Mod::WaitGroup) || form.has(Mod::Prefetch) {
            self.emit(Op::Nop, 0, 0, 0, 0, 0);
            return Ok(());
        }
        let [to, from, bytes, rest @ ..] = operands else { return self.unsupported(form) };
        let bytes = self.source(*bytes, Type::U32)?;
        let text = self.module.text(form.text);
        let has = |word: &str| text.split('.').any(|own| own == word);
        let (masked, inside) = (has("cp_mask"), has("ignore_oob"));
        let (part, rest) = match (spaces.as_slice(), rest) {
            (_, rest) if !masked && !inside => (Part::Whole, rest),
            ([PtxSpace::Global, PtxSpace::SharedCta], [before @ .., mask])
                if masked && !inside && !form.has(Mod::Reduce) =>
            {
                (Part::Masked(self.source(*mask, Type::U16)?), before)
            }
            ([PtxSpace::SharedCta, PtxSpace::Global], [left, right, rest @ ..]) if !masked => {
                let left = self.source(*left, Type::U32)?;
                (Part::Inside(left, self.source(*right, Type::U32)?), rest)
            }
            _ => return self.unsupported(form),
        };
        let kind = match (spaces.as_slice(), rest) {
            (
                [PtxSpace::SharedCluster | PtxSpace::SharedCta, PtxSpace::Global],
                [mbarrier, rest @ ..],
            ) => {
                let mbarrier = self.whole_address(*mbarrier)?;
                BulkKind::Load { mbarrier, ctas: self.receivers(form, rest)? }
            }
            ([PtxSpace::SharedCluster, PtxSpace::SharedCta], [mbarrier, ..]) => {
                BulkKind::Send { mbarrier: self.whole_address(*mbarrier)? }
            }
            ([PtxSpace::Global, PtxSpace::SharedCta], _) => BulkKind::Store,
            _ => return self.unsupported(form),
        };
        let reduce = match (Self::atomic_kind(form), Self::atomic_type(form)) {
            _ if !form.has(Mod::Reduce) => None,
            (Some(kind), Some(ty)) => Some((kind, ty)),
            _ => return self.unsupported(form),
        };
        let (to, from) = (self.whole_address(*to)?, self.whole_address(*from)?);
        self.emit_async(AsyncOp::Bulk(BulkOp { kind, reduce, to, from, bytes, part }));
        Ok(())
    }

    /// `st.bulk`
    pub(super) fn bulk_fill(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let &[at, bytes, Operand::Int(0) | Operand::Uint(0)] = operands else {
            return self.unsupported(form);
        };
        let space = self.space_at(form, at)?;
        let address = self.whole_address(at)?;
        let bytes = self.source(bytes, Type::U64)?;
        self.emit_async(AsyncOp::Fill(FillOp { space, address, bytes }));
        Ok(())
    }

    /// The mask of the CTAs that get what is copied, behind the mbarrier.
    fn receivers(&mut self, form: &Form, rest: &[Operand]) -> Result<Source> {
        match rest.first() {
            _ if !form.has(Mod::Multicast) => Ok(Source::None),
            Some(&ctas) => self.source(ctas, Type::U16),
            None => self.unsupported(form),
        }
    }

    /// `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor` and `cp.async.bulk.prefetch.tensor` of
    /// tiles and columns.
    fn tensor_copy(
        &mut self,
        form: &Form,
        spaces: &[PtxSpace],
        operands: &[Operand],
    ) -> Result<()> {
        let words: Vec<&str> = self.module.text(form.text).split('.').collect();
        let is = |word: &str| words.contains(&word);
        let (columns, with_offsets) = (is("im2col") || is("im2col_no_offs"), is("im2col"));
        let (gathers, scatters) = (is("tile::gather4"), is("tile::scatter4"));
        let listed = gathers || scatters;
        let into_shared = spaces.len() == 2 && spaces[1] == PtxSpace::Global;
        let fits = match spaces {
            [PtxSpace::Global] => !scatters,
            _ => !listed || !form.has(Mod::Reduce) && into_shared == gathers,
        };
        // Wide columns are not emulated.
        if words.iter().any(|word| word.starts_with("im2col::")) || !fits || listed && !is("2d") {
            return self.unsupported(form);
        }
        let mut offsets = columns.then_some([Source::None; MAX_RANK - 2]);
        let (tensor, shared, kind) = match (spaces, operands) {
            ([PtxSpace::Global], [_, ..]) if form.has(Mod::Prefetch) => {
                self.emit(Op::Nop, 0, 0, 0, 0, 0);
                return Ok(());
            }
            (
                [PtxSpace::SharedCluster | PtxSpace::SharedCta, PtxSpace::Global],
                [to, tensor, mbarrier, rest @ ..],
            ) => {
                let mbarrier = self.whole_address(*mbarrier)?;
                let mut rest = rest;
                if let (true, Some(offsets)) = (with_offsets, &mut offsets) {
                    let [given, after @ ..] = rest else { return self.unsupported(form) };
                    rest = after;
                    let given = self.elements(*given);
                    if given.len() > offsets.len() {
                        return self.unsupported(form);
                    }
                    for (offset, operand) in offsets.iter_mut().zip(given) {
                        *offset = self.source(operand, Type::U16)?;
                    }
                }
                let ctas = self.receivers(form, rest)?;
                (*tensor, *to, CopyKind::ToShared { mbarrier, ctas, pair: is("cta_group::2") })
            }
            ([PtxSpace::Global, PtxSpace::SharedCta], [tensor, from, ..]) => {
                let kind = match (form.has(Mod::Reduce), Self::atomic_kind(form)) {
                    (true, Some(kind)) => CopyKind::Reduce(kind),
                    (true, None) => return self.unsupported(form),
                    (false, _) => CopyKind::ToGlobal,
                };
                (*tensor, *from, kind)
            }
            _ => return self.unsupported(form),
        };
        let Operand::Tuple(parts) = tensor else { return self.unsupported(form) };
        let &[map, at] = self.scope().body.operands(parts) else { return self.unsupported(form) };
        let at = self.elements(at);
        let mut coordinates = [Source::None; MAX_RANK];
        if at.len() > MAX_RANK || listed && at.len() != MAX_RANK {
            return self.unsupported(form);
        }
        for (coordinate, operand) in coordinates.iter_mut().zip(&at) {
            *coordinate = self.source(*operand, Type::S32)?;
        }
        let map = match map {
            Operand::RegPlus(reg, offset) => {
                self.whole_address(Operand::Mem(Base::Reg(reg), offset))?
            }
            _ => self.source(map, Type::U64)?,
        };
        let shared = self.whole_address(shared)?;
        let rank = if listed { 2 } else { at.len() };
        self.emit_async(AsyncOp::Tensor(TensorCopy {
            kind,
            map,
            shared,
            coordinates,
            rank,
            listed,
            offsets,
        }));
        Ok(())
    }

    /// `tensormap.replace` and `tensormap.cp_fenceproxy`.
    pub(super) fn tensormap(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let words: Vec<&str> = self.module.text(form.text).split('.').collect();
        if let (["tensormap", "cp_fenceproxy", ..], [to, from, bytes]) = (&words[..], operands) {
            let bytes = self.source(*bytes, Type::U32)?;
            let (to, from) = (self.whole_address(*to)?, self.whole_address(*from)?);
            let (kind, part) = (BulkKind::Store, Part::Whole);
            self.emit_async(AsyncOp::Bulk(BulkOp { kind, reduce: None, to, from, bytes, part }));
            return Ok(());
        }
        let (["tensormap", "replace", "tile", field, ..], [map, rest @ ..]) =
            (&words[..], operands)
        else {
            return self.unsupported(form);
        };
        let (ordinal, value) = match *rest {
            [Operand::Int(ordinal), value] => (ordinal as usize, value),
            [value] => (0, value),
            _ => return self.unsupported(form),
        };
        // Since PTX 8.5 strides are bytes; before, their lowest four bits were left out.
        let unit = if self.module.version >= (Version { major: 8, minor: 5 }) { 1 } else { 16 };
        let (field, ty, limit) = match *field {
            "global_address" => (Field::GlobalAddress, Type::B64, 1),
            "rank" => (Field::Rank, Type::B32, 1),
            "box_dim" => (Field::BoxDim(ordinal), Type::B32, MAX_RANK),
            "global_dim" => (Field::GlobalDim(ordinal), Type::B32, MAX_RANK),
            "global_stride" => (Field::GlobalStride(ordinal, unit), Type::B64, MAX_RANK - 1),
            "element_stride" => (Field::ElementStride(ordinal), Type::B32, MAX_RANK),
            "elemtype" => (Field::Elemtype, Type::B32, 1),
            "interleave_layout" => (Field::InterleaveLayout, Type::B32, 1),
            "swizzle_mode" => (Field::SwizzleMode, Type::B32, 1),
            "fill_mode" => (Field::FillMode, Type::B32, 1),
            _ => return self.unsupported(form),
        };
        if ordinal >= limit {
            return self.unsupported(form);
        }
        let space = self.space_at(form, *map)?;
        let address = self.whole_address(*map)?;
        let value = self.source(value, ty)?;
        self.emit_async(AsyncOp::Replace(ReplaceOp { field, space, address, value }));
        Ok(())
    }
}
