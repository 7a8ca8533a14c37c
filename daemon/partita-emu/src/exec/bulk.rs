//! Bulk copies between global memory and the CTA's own shared memory, with and without a reduction
//! (PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk"). A copy is done at once, so its group never
//! waits.

use super::access::{combine, read_bytes, write_bytes};
use super::inst::{AtomicKind, AtomicOp, AtomicType, Source, Space, Target};
use super::mbarrier;
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use super::trace::AccessKind;
use partita_device::FaultKind;

/// Where a bulk copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkKind {
    /// From global to shared memory. An mbarrier then counts the bytes.
    ToShared {
        /// The mbarrier's address in shared memory.
        mbarrier: Source,
    },
    /// From shared to global memory.
    ToGlobal,
    /// A reduction from shared memory into global memory.
    Reduce(AtomicKind, AtomicType),
}

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub struct BulkOp {
    /// Which way.
    pub kind: BulkKind,
    /// Destination, in its own space.
    pub to: Source,
    /// Source, in its own space.
    pub from: Source,
    /// How many bytes.
    pub bytes: Source,
}

/// Addresses and sizes are multiples of this many bytes.
const PIECE: u64 = 16;

/// Carries a copy out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &BulkOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    let into_shared = matches!(op.kind, BulkKind::ToShared { .. });
    let (to_space, from_space) =
        if into_shared { (Space::Shared, Space::Global) } else { (Space::Global, Space::Shared) };
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let to = to_space.generic(core.get(op.to, w, lane));
        let from = from_space.generic(core.get(op.from, w, lane));
        let bytes = core.get(op.bytes, w, lane) & 0xffff_ffff;
        for (what, value) in [("destination", to), ("source", from), ("size", bytes)] {
            if !value.is_multiple_of(PIECE) {
                let detail = format!("bulk copy whose {what} is no multiple of {PIECE}");
                return Err(Box::new(Trouble {
                    kind: FaultKind::MisalignedAddress,
                    warp: site.0,
                    lane,
                    pc,
                    address: Some(if what == "source" { from } else { to }),
                    detail,
                }));
            }
        }
        for at in (0..bytes).step_by(PIECE as usize) {
            let mut piece = [0; PIECE as usize];
            read_bytes(env, site, from.wrapping_add(at), &mut piece)?;
            if let BulkKind::Reduce(kind, ty) = op.kind {
                let mut old = [0; PIECE as usize];
                read_bytes(env, site, to.wrapping_add(at), &mut old)?;
                reduce(kind, ty, &mut piece, &old);
            }
            write_bytes(env, site, to.wrapping_add(at), &piece)?;
        }
        if let BulkKind::ToShared { mbarrier } = op.kind {
            let at = Space::Shared.generic(core.get(mbarrier, w, lane));
            mbarrier::complete(env, site, at, bytes)?;
        }
        let (kind, global) =
            if into_shared { (AccessKind::LoadPastL1, from) } else { (AccessKind::Store, to) };
        match (into_shared, op.kind) {
            (true, _) => env.trace.counts.global_loads += 1,
            (false, BulkKind::Reduce(..)) => env.trace.counts.atomics += 1,
            _ => env.trace.counts.global_stores += 1,
        }
        env.trace.range(kind, global, global.wrapping_add(bytes), pc);
    }
    Ok(())
}

/// Combines the elements of a piece with the elements that memory has.
pub(super) fn reduce(kind: AtomicKind, ty: AtomicType, new: &mut [u8], old: &[u8]) {
    let size = ty.bytes() as usize;
    let none = Source::None;
    let op = AtomicOp {
        kind,
        ty,
        space: Space::Global,
        address: none,
        offset: 0,
        b: none,
        c: none,
        target: Target::None,
    };
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    for (new, old) in new.chunks_exact_mut(size).zip(old.chunks_exact(size)) {
        let result = combine(&op, word(old), word(new), 0);
        new.copy_from_slice(&result.to_le_bytes()[..size]);
    }
}
