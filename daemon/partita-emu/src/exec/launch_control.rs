//! CTAs that take over the work of others that have not begun: `clusterlaunchcontrol` (PTX ISA,
//! "clusterlaunchcontrol.try_cancel", "clusterlaunchcontrol.query_cancel").
//!
//! A request takes the next cluster that would begin out of the grid, and answers at once. The 16
//! opaque bytes of the answer hold the first CTA's index, x and y in the lower half and z in the
//! upper, and in the highest bit whether there was a cluster.

use super::access::{is_shared, write_bytes};
use super::cluster::mapa;
use super::inst::{Source, Space};
use super::mbarrier;
use super::rows::lanes;
use super::state::Core;
use super::step::{Env, Trouble};
use partita_device::FaultKind;
use partita_model::Dim3;

/// Bytes of an answer.
const ANSWER: u64 = 16;

/// The clusters of a grid that have not begun.
#[derive(Debug)]
pub struct Unbegun<'a> {
    /// The number of the CTA that begins next.
    pub next: &'a mut u64,
    /// CTAs of the grid.
    pub total: u64,
    /// The grid's extent.
    pub grid: Dim3,
    /// A cluster's extent.
    pub cluster: Dim3,
}

impl Unbegun<'_> {
    /// CTAs of a cluster.
    fn ctas(&self) -> u64 {
        u64::try_from(self.cluster.count()).unwrap_or(u64::MAX).max(1)
    }

    /// Takes the next cluster, which then never begins: the index of its first CTA.
    fn take(&mut self) -> Option<[u32; 3]> {
        let ctas = self.ctas();
        let end = self.next.checked_add(ctas).filter(|&end| end <= self.total)?;
        let number = *self.next / ctas;
        // Clusters begin as a whole.
        if !self.next.is_multiple_of(ctas) {
            return None;
        }
        *self.next = end;
        let Dim3 { x, y, z } = self.cluster;
        let wide = |grid: u32, cluster: u32| u64::from((grid / cluster.max(1)).max(1));
        let (across, down) = (wide(self.grid.x, x), wide(self.grid.y, y));
        let place = [number % across, number / across % down, number / across / down];
        let [i, j, k] = place.map(|at| at as u32);
        Some([i * x, j * y, k * z])
    }
}

/// Side table of [`super::inst::Op::Async`]: `clusterlaunchcontrol.try_cancel`.
#[derive(Clone, Copy, Debug)]
pub struct CancelOp {
    /// Shared or generic.
    pub space: Space,
    /// Where the answer goes.
    pub address: Source,
    /// The mbarrier that counts its bytes.
    pub mbarrier: Source,
    /// Whether all CTAs of the cluster get the answer.
    pub to_all: bool,
}

/// Carries requests out for the threads of a warp, one after the other.
pub fn execute(
    core: &mut Core<'_>,
    op: &CancelOp,
    env: &mut Env<'_>,
    (w, mask, pc): (usize, u32, usize),
) -> Result<(), Box<Trouble>> {
    for lane in lanes(mask) {
        let site = (w + core.first_warp, lane, pc);
        let address = op.space.generic(core.get(op.address, w, lane));
        let mbarrier = op.space.generic(core.get(op.mbarrier, w, lane));
        if !is_shared(address) {
            return Err(Box::new(Trouble {
                kind: FaultKind::InvalidAddressSpace,
                warp: site.0,
                lane,
                pc,
                address: Some(address),
                detail: "`clusterlaunchcontrol.try_cancel` to an address outside shared memory"
                    .to_owned(),
            }));
        }
        let answer = env.unbegun.take().map_or([0; 2], |[x, y, z]| {
            [u64::from(x) | u64::from(y) << 32, u64::from(z) | 1 << 63]
        });
        let mut bytes = [0; ANSWER as usize];
        bytes[..8].copy_from_slice(&answer[0].to_le_bytes());
        bytes[8..].copy_from_slice(&answer[1].to_le_bytes());
        let ctas = env.unbegun.ctas();
        let ranks = if op.to_all && ctas > 1 { ctas } else { 1 };
        for rank in 0..ranks {
            let at = |own: u64| if ranks > 1 { mapa([own, rank, 0], 0) } else { own };
            write_bytes(env, site, at(address), &bytes)?;
            mbarrier::complete(env, site, at(mbarrier), ANSWER)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_taken_in_the_order_in_which_they_would_begin() {
        let mut next = 4;
        let (grid, cluster) = (Dim3::new(4, 2, 2), Dim3::new(2, 1, 1));
        let mut unbegun = Unbegun { next: &mut next, total: 16, grid, cluster };
        let taken: Vec<_> = std::iter::from_fn(|| unbegun.take()).collect();
        let wanted = [[0, 1, 0], [2, 1, 0], [0, 0, 1], [2, 0, 1], [0, 1, 1], [2, 1, 1]].as_slice();
        assert_eq!(taken, wanted);
        assert_eq!(next, 16);
        let mut odd = 3;
        let mut unbegun = Unbegun { next: &mut odd, total: 16, grid, cluster };
        assert_eq!(unbegun.take(), None);
    }
}
