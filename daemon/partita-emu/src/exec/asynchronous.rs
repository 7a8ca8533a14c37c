//! Bulk copies, copies by tensor maps, stores that signal their end, and the mbarriers that do so.

use super::access::weak;
use super::async_store::{self, AsyncStore};
use super::bulk::{self, BulkKind, BulkOp, FillOp};
use super::inst::{Inst, Source, Target};
use super::launch_control::{self, CancelOp};
use super::mbarrier::{self, MbarrierOp};
use super::state::Core;
use super::step::{Env, Trouble};
use super::tensor_copy::{self, CopyKind, TensorCopy};
use super::tensormap::{self, ReplaceOp};

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub enum AsyncOp {
    /// An operation on an mbarrier.
    Mbarrier(MbarrierOp),
    /// A bulk copy.
    Bulk(BulkOp),
    /// A copy by a tensor map.
    Tensor(TensorCopy),
    /// A change of a tensor map.
    Replace(ReplaceOp),
    /// `st.async` or `red.async`.
    Store(AsyncStore),
    /// `st.bulk`
    Fill(FillOp),
    /// `clusterlaunchcontrol.try_cancel`
    Cancel(CancelOp),
}

impl AsyncOp {
    /// The rows that it reads.
    #[must_use]
    pub fn sources(&self) -> [Source; 12] {
        let mut sources = [Source::None; 12];
        match *self {
            AsyncOp::Mbarrier(op) => sources[..2].copy_from_slice(&[op.address, op.value]),
            AsyncOp::Cancel(op) => sources[..2].copy_from_slice(&[op.address, op.mbarrier]),
            AsyncOp::Fill(op) => sources[..2].copy_from_slice(&[op.address, op.bytes]),
            AsyncOp::Replace(op) => sources[..2].copy_from_slice(&[op.address, op.value]),
            AsyncOp::Tensor(op) => {
                let (mbarrier, ctas) = match op.kind {
                    CopyKind::ToShared { mbarrier, ctas, .. } => (mbarrier, ctas),
                    CopyKind::ToGlobal | CopyKind::Reduce(_) => (Source::None, Source::None),
                };
                sources[..4].copy_from_slice(&[op.map, op.shared, mbarrier, ctas]);
                sources[4..9].copy_from_slice(&op.coordinates);
                sources[9..].copy_from_slice(&op.offsets.unwrap_or([Source::None; 3]));
            }
            AsyncOp::Store(op) => {
                sources[..2].copy_from_slice(&[op.address, op.mbarrier]);
                sources[2..6].copy_from_slice(&op.elements);
            }
            AsyncOp::Bulk(op) => {
                let (mbarrier, ctas) = match op.kind {
                    BulkKind::Load { mbarrier, ctas } => (mbarrier, ctas),
                    BulkKind::Send { mbarrier } => (mbarrier, Source::None),
                    BulkKind::Store => (Source::None, Source::None),
                };
                sources[..5].copy_from_slice(&[op.to, op.from, op.bytes, mbarrier, ctas]);
                sources[5..7].copy_from_slice(&op.part.sources());
            }
        }
        sources
    }

    /// The row that it writes.
    #[must_use]
    pub fn target(&self) -> Target {
        match self {
            AsyncOp::Mbarrier(op) => op.target,
            AsyncOp::Bulk(_)
            | AsyncOp::Tensor(_)
            | AsyncOp::Replace(_)
            | AsyncOp::Store(_)
            | AsyncOp::Fill(_)
            | AsyncOp::Cancel(_) => Target::None,
        }
    }
}

/// Executes the instruction, thread after thread.
#[inline(never)]
pub fn execute(
    core: &mut Core<'_>,
    i: &Inst,
    env: &mut Env<'_>,
    pc: usize,
) -> Result<(), Box<Trouble>> {
    let program = env.program;
    weak::begin(core, i, env);
    for w in 0..core.warps {
        let mask = core.mask(i, w);
        if mask == 0 {
            continue;
        }
        match &program.async_ops[i.imm as usize] {
            AsyncOp::Mbarrier(op) => mbarrier::execute(core, op, env, (w, mask, pc))?,
            AsyncOp::Bulk(op) => bulk::execute(core, op, env, (w, mask, pc))?,
            AsyncOp::Cancel(op) => launch_control::execute(core, op, env, (w, mask, pc))?,
            AsyncOp::Fill(op) => bulk::fill(core, op, env, (w, mask, pc))?,
            AsyncOp::Tensor(op) => tensor_copy::execute(core, op, env, (w, mask, pc))?,
            AsyncOp::Store(op) => async_store::execute(core, op, env, (w, mask, pc))?,
            AsyncOp::Replace(op) => tensormap::execute(core, op, env, (w, mask, pc))?,
        }
    }
    weak::end(env);
    Ok(())
}
