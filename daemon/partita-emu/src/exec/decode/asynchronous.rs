//! Mbarriers and bulk copies.

use super::{Decoder, Result};
use crate::exec::asynchronous::AsyncOp;
use crate::exec::bulk::{BulkKind, BulkOp};
use crate::exec::inst::{Op, Source, Target};
use crate::exec::mbarrier::{MbarrierKind, MbarrierOp, pending_count};
use partita_ptx::{Form, Mod, Op as P, Operand, Space as PtxSpace, Type};

impl Decoder<'_> {
    fn emit_async(&mut self, op: AsyncOp) {
        self.program.async_ops.push(op);
        let index = self.program.async_ops.len() as i64 - 1;
        self.emit(Op::Async, 0, 0, 0, 0, index);
    }

    pub(super) fn mbarrier(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        use MbarrierKind as K;
        if form.space() == Some(PtxSpace::SharedCluster) {
            return self.unsupported(form);
        }
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

    /// `cp.async.bulk` and `cp.reduce.async.bulk` without tensors. An address of shared memory
    /// belongs to the CTA, even where the ISA calls the space `shared::cluster`: a CTA without a
    /// cluster has no other.
    pub(super) fn bulk_copy(&mut self, form: &Form, operands: &[Operand]) -> Result<()> {
        let spaces: Vec<PtxSpace> = form
            .mods
            .iter()
            .filter_map(|&modifier| match modifier {
                Mod::Space(space) => Some(space),
                _ => None,
            })
            .collect();
        if form.has(Mod::Tensor) || form.has(Mod::Multicast) {
            return self.unsupported(form);
        }
        if form.has(Mod::CommitGroup) || form.has(Mod::WaitGroup) || form.has(Mod::Prefetch) {
            self.emit(Op::Nop, 0, 0, 0, 0, 0);
            return Ok(());
        }
        let [to, from, bytes, rest @ ..] = operands else { return self.unsupported(form) };
        let bytes = self.source(*bytes, Type::U32)?;
        let kind = match (spaces.as_slice(), rest) {
            ([PtxSpace::SharedCluster | PtxSpace::SharedCta, PtxSpace::Global], [mbarrier, ..]) => {
                BulkKind::ToShared { mbarrier: self.whole_address(*mbarrier)? }
            }
            ([PtxSpace::Global, PtxSpace::SharedCta], _) if form.has(Mod::Reduce) => {
                let (Some(kind), Some(ty)) = (Self::atomic_kind(form), Self::atomic_type(form))
                else {
                    return self.unsupported(form);
                };
                BulkKind::Reduce(kind, ty)
            }
            ([PtxSpace::Global, PtxSpace::SharedCta], _) => BulkKind::ToGlobal,
            _ => return self.unsupported(form),
        };
        let (to, from) = (self.whole_address(*to)?, self.whole_address(*from)?);
        self.emit_async(AsyncOp::Bulk(BulkOp { kind, to, from, bytes }));
        Ok(())
    }
}
