//! `st.async` and `red.async`: stores into shared memory of a CTA of the cluster whose bytes an
//! mbarrier there counts (PTX ISA, "st.async", "red.async"). A store is done at once.

use super::access::{read_bytes, write_bytes};
use super::bulk;
use super::inst::{AtomicKind, AtomicType, Source, Space};
use super::mbarrier;
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};

/// Side table of [`super::inst::Op::Async`].
#[derive(Clone, Copy, Debug)]
pub struct AsyncStore {
    /// The reduction, of `red.async`.
    pub reduce: Option<(AtomicKind, AtomicType)>,
    /// Where the first element goes.
    pub address: Source,
    /// One, two or four elements.
    pub elements: [Source; 4],
    /// Bytes of an element.
    pub bytes: u32,
    /// The mbarrier.
    pub mbarrier: Source,
}

/// Carries a store out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &AsyncStore,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    let size = op.bytes as usize;
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let address = Space::Shared.generic(core.get(op.address, w, lane));
        let mut value = [0; 32];
        let elements = op.elements.iter().filter(|&&element| element != Source::None);
        let mut length = 0;
        for &element in elements {
            let word = core.get(element, w, lane).to_le_bytes();
            value[length..length + size].copy_from_slice(&word[..size]);
            length += size;
        }
        if let Some((kind, ty)) = op.reduce {
            let mut old = [0; 8];
            read_bytes(env, site, address, &mut old[..size])?;
            bulk::reduce(kind, ty, &mut value[..size], &old[..size]);
        }
        write_bytes(env, site, address, &value[..length])?;
        let mbarrier = Space::Shared.generic(core.get(op.mbarrier, w, lane));
        mbarrier::complete(env, site, mbarrier, length as u64)?;
    }
    env.trace.counts.shared_accesses += 1;
    Ok(())
}
