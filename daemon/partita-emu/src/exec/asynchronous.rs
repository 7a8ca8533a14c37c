//! Bulk copies, and the mbarriers that signal their end.

use super::access::weak;
use super::bulk::{self, BulkKind, BulkOp};
use super::inst::{Inst, Source, Target};
use super::mbarrier::{self, MbarrierOp};
use super::state::Core;
use super::step::{Env, Trouble};

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub enum AsyncOp {
    /// An operation on an mbarrier.
    Mbarrier(MbarrierOp),
    /// A bulk copy.
    Bulk(BulkOp),
}

impl AsyncOp {
    /// The rows that it reads.
    #[must_use]
    pub fn sources(&self) -> [Source; 4] {
        match *self {
            AsyncOp::Mbarrier(op) => [op.address, op.value, Source::None, Source::None],
            AsyncOp::Bulk(op) => {
                let mbarrier = match op.kind {
                    BulkKind::ToShared { mbarrier } => mbarrier,
                    BulkKind::ToGlobal | BulkKind::Reduce(..) => Source::None,
                };
                [op.to, op.from, op.bytes, mbarrier]
            }
        }
    }

    /// The row that it writes.
    #[must_use]
    pub fn target(&self) -> Target {
        match self {
            AsyncOp::Mbarrier(op) => op.target,
            AsyncOp::Bulk(_) => Target::None,
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
        }
    }
    weak::end(env);
    Ok(())
}
