//! Bulk copies between global memory and shared memory, and between CTAs of a cluster, with and
//! without a reduction, and `st.bulk` (PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk",
//! "st.bulk").
//! A copy is done at once, so its group never waits.

use super::access::{combine, is_shared, read_bytes, write_bytes};
use super::cluster::mapa;
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
    Load {
        /// The mbarrier's address in shared memory.
        mbarrier: Source,
        /// The CTAs of the cluster that get the bytes, one bit a rank; [`Source::None`] for the CTA
        /// that the address names.
        ctas: Source,
    },
    /// From the CTA's shared memory to that of a CTA of its cluster. An mbarrier there counts the
    /// bytes.
    Send {
        /// The mbarrier's address in shared memory.
        mbarrier: Source,
    },
    /// From shared to global memory.
    Store,
}

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub struct BulkOp {
    /// Which way.
    pub kind: BulkKind,
    /// The reduction with what is there.
    pub reduce: Option<(AtomicKind, AtomicType)>,
    /// Destination, in its own space.
    pub to: Source,
    /// Source, in its own space.
    pub from: Source,
    /// How many bytes.
    pub bytes: Source,
    /// Which of them are copied.
    pub part: Part,
}

/// Which bytes of a range a copy writes. For an mbarrier all bytes of the range count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of them.
    Whole,
    /// `.cp_mask`: the bytes of each 16 whose bits are set.
    Masked(Source),
    /// `.ignore_oob`: leaves out this number of bytes at the beginning and at the end.
    Inside(Source, Source),
}

impl Part {
    /// The rows that it reads.
    pub(super) const fn sources(self) -> [Source; 2] {
        match self {
            Part::Whole => [Source::None; 2],
            Part::Masked(mask) => [mask, Source::None],
            Part::Inside(left, right) => [left, right],
        }
    }

    /// The bytes of the piece at `at` of `bytes`, as bits; `values` are those of the rows.
    fn of_piece(self, values: [u64; 2], at: u64, bytes: u64) -> u16 {
        match self {
            Part::Whole => u16::MAX,
            Part::Masked(_) => values[0] as u16,
            Part::Inside(..) => {
                let [left, right] = values.map(|value| value & 0xffff_ffff);
                let inside = left..bytes.saturating_sub(right);
                (0..PIECE)
                    .fold(0, |bits, byte| bits | u16::from(inside.contains(&(at + byte))) << byte)
            }
        }
    }
}

/// `st.bulk`: zeros in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct FillOp {
    /// Shared or generic.
    pub space: Space,
    /// The first byte.
    pub address: Source,
    /// How many bytes.
    pub bytes: Source,
}

/// Addresses and sizes are multiples of this many bytes.
const PIECE: u64 = 16;

/// The most bytes of a copy that leaves bytes out: more than the shared memory of any CTA. Bytes
/// that are left out are not looked at, so nothing else bounds such a copy.
const MOST_PARTED: u64 = 1 << 18;

/// Carries a copy out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &BulkOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    let (to_space, from_space) = match op.kind {
        BulkKind::Load { .. } => (Space::Shared, Space::Global),
        BulkKind::Send { .. } => (Space::Shared, Space::Shared),
        BulkKind::Store => (Space::Global, Space::Shared),
    };
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
        if op.part != Part::Whole && bytes > MOST_PARTED {
            return Err(Box::new(Trouble {
                kind: FaultKind::IllegalAddress,
                warp: site.0,
                lane,
                pc,
                address: Some(to),
                detail: format!("bulk copy of {bytes} bytes, more than shared memory has"),
            }));
        }
        let mbarrier = match op.kind {
            BulkKind::Load { mbarrier, .. } | BulkKind::Send { mbarrier } => {
                Some(Space::Shared.generic(core.get(mbarrier, w, lane)))
            }
            BulkKind::Store => None,
        };
        let values = op.part.sources().map(|source| core.get(source, w, lane));
        for rank in receivers(core, op.kind, w, lane) {
            let at = |address: u64| rank.map_or(address, |rank| mapa([address, rank, 0], 0));
            copy(op, env, site, (at(to), from, bytes), values)?;
            if let Some(mbarrier) = mbarrier {
                mbarrier::complete(env, site, at(mbarrier), bytes)?;
            }
        }
        let (kind, global) = match op.kind {
            BulkKind::Load { .. } => (AccessKind::LoadPastL1, from),
            BulkKind::Store => (AccessKind::Store, to),
            BulkKind::Send { .. } => {
                env.trace.counts.shared_accesses += 1;
                continue;
            }
        };
        match (op.kind, op.reduce) {
            (BulkKind::Load { .. }, _) => env.trace.counts.global_loads += 1,
            (_, Some(_)) => env.trace.counts.atomics += 1,
            (_, None) => env.trace.counts.global_stores += 1,
        }
        env.trace.range(kind, global, global.wrapping_add(bytes), pc);
    }
    Ok(())
}

/// The most bytes that `st.bulk` sets (PTX ISA, "st.bulk").
const MOST_FILLED: u64 = 1 << 24;
/// Its address and size are multiples of this many bytes.
const FILLED: u64 = 8;

/// Carries `st.bulk` out for the threads of a warp, one after the other.
pub fn fill(
    core: &mut Core<'_>,
    op: &FillOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let at = op.space.generic(core.get(op.address, w, lane));
        let bytes = core.get(op.bytes, w, lane);
        let wrong = match () {
            () if !at.is_multiple_of(FILLED) => Some("address is no multiple of 8"),
            () if !bytes.is_multiple_of(FILLED) => Some("size is no multiple of 8"),
            () if bytes > MOST_FILLED => Some("size is more than 16777216"),
            () if !is_shared(at) => Some("address is not of shared memory"),
            () => None,
        };
        if let Some(wrong) = wrong {
            return Err(Box::new(Trouble {
                kind: FaultKind::IllegalInstruction,
                warp: site.0,
                lane,
                pc,
                address: Some(at),
                detail: format!("`st.bulk` whose {wrong}"),
            }));
        }
        for offset in (0..bytes).step_by(FILLED as usize) {
            write_bytes(env, site, at.wrapping_add(offset), &[0; FILLED as usize])?;
        }
        env.trace.counts.shared_accesses += 1;
    }
    Ok(())
}

/// The CTAs that get the bytes of a copy: their ranks, or the CTA that the address names.
fn receivers(
    core: &Core<'_>,
    kind: BulkKind,
    warp: usize,
    lane: usize,
) -> impl Iterator<Item = Option<u64>> {
    let ctas = match kind {
        BulkKind::Load { ctas, .. } => ctas,
        BulkKind::Send { .. } | BulkKind::Store => Source::None,
    };
    ranks(core, ctas, warp, lane)
}

/// The ranks in a mask of 16 CTAs; `None` once where there is no mask.
pub(super) fn ranks(
    core: &Core<'_>,
    ctas: Source,
    warp: usize,
    lane: usize,
) -> impl Iterator<Item = Option<u64>> + use<> {
    let multicast = ctas != Source::None;
    let mask = if multicast { core.get(ctas, warp, lane) as u32 & 0xffff } else { 1 };
    lanes(mask).map(move |rank| multicast.then_some(rank as u64))
}

/// Copies bytes for one receiver.
fn copy(
    op: &BulkOp,
    env: &mut Env<'_>,
    site: (usize, usize, usize),
    (to, from, bytes): (u64, u64, u64),
    values: [u64; 2],
) -> Result<(), Box<Trouble>> {
    for at in (0..bytes).step_by(PIECE as usize) {
        let part = op.part.of_piece(values, at, bytes);
        if part != u16::MAX {
            for byte in (0..PIECE).filter(|byte| part >> byte & 1 == 1) {
                let mut value = [0];
                read_bytes(env, site, from.wrapping_add(at + byte), &mut value)?;
                write_bytes(env, site, to.wrapping_add(at + byte), &value)?;
            }
            continue;
        }
        let mut piece = [0; PIECE as usize];
        read_bytes(env, site, from.wrapping_add(at), &mut piece)?;
        if let Some((kind, ty)) = op.reduce {
            let mut old = [0; PIECE as usize];
            read_bytes(env, site, to.wrapping_add(at), &mut old)?;
            reduce(kind, ty, &mut piece, &old);
        }
        write_bytes(env, site, to.wrapping_add(at), &piece)?;
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
