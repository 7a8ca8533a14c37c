//! The process behind the Markov model, played warp by warp with three states: ready, and waiting
//! for a coalesced or an uncoalesced access. It shares no code with the model.

use partita_policy::markov::{Sm, Workload};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A kernel on the SM.
#[derive(Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) workload: Workload,
    pub(crate) ctas: u32,
    /// Warps that are ready or idle together; the number of warps in units is rounded.
    pub(crate) unit_warps: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Unit {
    Ready,
    Coalesced,
    Uncoalesced,
}

/// Warps of a unit in the paper's virtual SM: one of each scheduler's.
pub(crate) fn unfolded(sm: &Sm) -> f64 {
    sm.issue_rate.max(1.0)
}

/// Warps of a unit in a model with at most so many units of a kernel alone.
pub(crate) fn folded(sm: &Sm, workload: &Workload, units: u32) -> f64 {
    let warps = f64::from(workload.warps * workload.ctas_alone);
    unfolded(sm).max(warps / f64::from(units))
}

/// Warp instructions a cycle of each kernel in so many rounds.
pub(crate) fn simulate(sm: &Sm, kernels: &[Resident], rounds: u32, seed: u64) -> Vec<f64> {
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut happens = |probability: f64| {
        let bits = u32::try_from(random.next_u64() >> 32).unwrap_or(0);
        f64::from(bits) < probability * 4_294_967_296.0
    };
    let mut sides: Vec<Side> = kernels.iter().map(|kernel| Side::new(sm, kernel)).collect();
    let (mut cycles, mut issued) = (0.0, vec![0.0; kernels.len()]);
    for _ in 0..rounds {
        let ready = sides.iter().map(|side| side.count(Unit::Ready) * side.unit_warps);
        let slots =
            sides.iter().zip(ready.clone()).map(|(side, ready)| side.workload.slots * ready);
        let round = (slots.sum::<f64>() / sm.issue_rate).max(1.0);
        cycles += round;
        for (issued, now) in issued.iter_mut().zip(ready) {
            *issued += now;
        }
        let queues = [0, 1].map(|at| sides.iter().map(|side| side.queued(at)).sum::<f64>());
        for side in &mut sides {
            let workload = side.workload;
            let waited = f64::max(workload.llc * queues[0], workload.dram * queues[1])
                + workload.base_cycles;
            for unit in &mut side.units {
                let sectors = match unit {
                    Unit::Ready => {
                        if happens(workload.memory_ratio) {
                            let uncoalesced = happens(workload.uncoalesced);
                            *unit = if uncoalesced { Unit::Uncoalesced } else { Unit::Coalesced };
                        }
                        continue;
                    }
                    Unit::Coalesced => workload.coalesced_sectors,
                    Unit::Uncoalesced => workload.uncoalesced_sectors,
                };
                if happens(round / (waited + sectors * sm.port_cycles).max(1.0)) {
                    *unit = Unit::Ready;
                }
            }
        }
    }
    issued.into_iter().map(|issued| issued / cycles).collect()
}

struct Side {
    workload: Workload,
    unit_warps: f64,
    units: Vec<Unit>,
    /// Cycles of LLC and DRAM for an outstanding sector.
    service: [f64; 2],
}

impl Side {
    fn new(sm: &Sm, kernel: &Resident) -> Self {
        let workload = kernel.workload;
        let warps = f64::from(workload.warps * kernel.ctas);
        let mut units = vec![Unit::Ready];
        while units.len() as f64 + 0.5 <= warps / kernel.unit_warps {
            units.push(Unit::Ready);
        }
        let unit_warps = warps / units.len() as f64;
        let (llc, dram) = (workload.llc * sm.llc_cycles, workload.dram * sm.dram_cycles);
        let bottleneck = llc.max(dram).max(f64::MIN_POSITIVE);
        let service = [sm.llc_cycles * llc / bottleneck, sm.dram_cycles * dram / bottleneck];
        Side { workload, unit_warps, units, service }
    }

    fn count(&self, state: Unit) -> f64 {
        self.units.iter().filter(|unit| **unit == state).count() as f64
    }

    fn queued(&self, at: usize) -> f64 {
        let sectors = self.count(Unit::Coalesced) * self.workload.coalesced_sectors
            + self.count(Unit::Uncoalesced) * self.workload.uncoalesced_sectors;
        sectors * self.unit_warps * self.service[at]
    }
}
