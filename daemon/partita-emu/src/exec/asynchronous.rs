//! Bulk copies, copies by tensor maps, and the mbarriers that signal their end.

use super::access::weak;
use super::bulk::{self, BulkKind, BulkOp};
use super::inst::{Inst, Source, Target};
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
}

impl AsyncOp {
    /// The rows that it reads.
    #[must_use]
    pub fn sources(&self) -> [Source; 8] {
        let mut sources = [Source::None; 8];
        match *self {
            AsyncOp::Mbarrier(op) => sources[..2].copy_from_slice(&[op.address, op.value]),
            AsyncOp::Replace(op) => sources[..2].copy_from_slice(&[op.address, op.value]),
            AsyncOp::Tensor(op) => {
                let mbarrier = match op.kind {
                    CopyKind::ToShared { mbarrier } => mbarrier,
                    CopyKind::ToGlobal | CopyKind::Reduce(_) => Source::None,
                };
                sources[..3].copy_from_slice(&[op.map, op.shared, mbarrier]);
                sources[3..].copy_from_slice(&op.coordinates);
            }
            AsyncOp::Bulk(op) => {
                let mbarrier = match op.kind {
                    BulkKind::ToShared { mbarrier } => mbarrier,
                    BulkKind::ToGlobal | BulkKind::Reduce(..) => Source::None,
                };
                sources[..4].copy_from_slice(&[op.to, op.from, op.bytes, mbarrier]);
            }
        }
        sources
    }

    /// The row that it writes.
    #[must_use]
    pub fn target(&self) -> Target {
        match self {
            AsyncOp::Mbarrier(op) => op.target,
            AsyncOp::Bulk(_) | AsyncOp::Tensor(_) | AsyncOp::Replace(_) => Target::None,
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
            AsyncOp::Tensor(op) => tensor_copy::execute(core, op, env, (w, mask, pc))?,
            AsyncOp::Replace(op) => tensormap::execute(core, op, env, (w, mask, pc))?,
        }
    }
    weak::end(env);
    Ok(())
}
