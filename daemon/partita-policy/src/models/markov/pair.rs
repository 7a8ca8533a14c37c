//! The chain of two kernels on one SM (Eq. 4–6), and how many CTAs of each (Eq. 7).
//!
//! A state is a pair of numbers of idle units. The two kernels change state independently in a
//! round, so a column of the transition matrix is the outer product of two short rows. They see
//! one another in the length of a round and in the latency.

use super::inputs::{ModelError, Side, latencies};
use super::one::{
    Alone, Row, binomial, issued, round_cycles, slots, stationary, transitions, wake,
};
use super::{Model, Sm};
use nalgebra::DMatrix;

/// Ratios of a pair that are compared, at most.
const MOST_RATIOS: u32 = 5;
/// Differences of two slices' times that count as the same, as a part of the longer time: the
/// model knows times no better.
const TOLERANCE: f64 = 0.1;
/// Profits that differ by less are the same.
const ROUNDING: f64 = 1e-9;

/// How many CTAs of each of two kernels share an SM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ratio {
    /// The balanced slice ratio (Eq. 7): slices of the two kernels take the same time. Of ratios
    /// whose times differ alike, the one of the greatest profit.
    #[default]
    Balanced,
    /// The ratio of the greatest co-scheduling profit: for workers that stay, whose slices need
    /// not end together.
    Profitable,
}

/// Two kernels that share SMs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shared {
    /// CTAs of each on an SM.
    pub ctas: [u32; 2],
    /// Warp instructions of each a cycle of one SM, in company (cIPC).
    pub ipc: [f64; 2],
    /// The same, alone (IPC).
    pub alone: [f64; 2],
}

impl Shared {
    /// The speed of each, as a part of its speed alone.
    #[must_use]
    pub fn speeds(&self) -> [f64; 2] {
        [self.ipc[0] / self.alone[0], self.ipc[1] / self.alone[1]]
    }

    /// The sum of the speeds (STP of Eyerman and Eeckhout).
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.speeds().iter().sum()
    }

    /// CP, the co-scheduling profit (§2.2): the part of the time that running together saves.
    ///
    /// CP = 1 − 1 ÷ Σ (cIPC_i ÷ IPC_i). The formula is damaged in print; the fraction follows from
    /// the text around it. Below 0 where running one after the other is faster.
    #[must_use]
    pub fn profit(&self) -> f64 {
        1.0 - 1.0 / self.throughput()
    }
}

impl Model {
    /// Two kernels with so many CTAs each on an SM.
    ///
    /// # Errors
    /// A number of a kernel is out of range, or a number of CTAs is 0 or more than fit.
    pub fn shared(&self, kernels: [&Alone; 2], ctas: [u32; 2]) -> Result<Shared, ModelError> {
        for (kernel, &ctas) in kernels.iter().zip(&ctas) {
            kernel.workload.check()?;
            if !(1..=kernel.workload.ctas_fit).contains(&ctas) {
                let wanted = "a number from 1 to the CTAs that fit on an SM";
                return Err(ModelError::field("ctas", f64::from(ctas), wanted));
            }
        }
        let side = |of: usize| Side::new(self.sm(), self.units(), &kernels[of].workload, ctas[of]);
        let ipc = ipc(self.sm(), &[side(0), side(1)])?;
        Ok(Shared { ctas, ipc, alone: [kernels[0].ipc, kernels[1].ipc] })
    }

    /// Two kernels with the numbers of CTAs that a rule chooses. `None` where no CTA of one fits
    /// beside a CTA of the other.
    ///
    /// # Errors
    /// A number of a kernel is out of range.
    pub fn chosen(&self, kernels: [&Alone; 2], rule: Ratio) -> Result<Option<Shared>, ModelError> {
        let ratios = self.ratios(kernels)?;
        let apart = |shared: &Shared| match rule {
            Ratio::Balanced => difference(slice_cycles(kernels, shared)),
            Ratio::Profitable => 0.0,
        };
        let least = ratios.iter().map(apart).fold(f64::INFINITY, f64::min);
        let balanced = ratios.iter().filter(|shared| apart(shared) <= least + TOLERANCE);
        // Of alike ratios the one in the middle leaves each kernel the most.
        let even = |shared: &Shared| {
            let part =
                |of: usize| f64::from(shared.ctas[of]) / f64::from(kernels[of].workload.ctas_fit);
            (part(0) - part(1)).abs()
        };
        let better = |best: &Shared, next: &Shared| {
            let gain = next.profit() - best.profit();
            gain > ROUNDING || (gain >= -ROUNDING && even(next) < even(best))
        };
        Ok(balanced.copied().reduce(|best, next| if better(&best, &next) { next } else { best }))
    }

    /// Two kernels with each ratio of CTAs that makes an SM full, [`MOST_RATIOS`] at most.
    ///
    /// A CTA takes the part of an SM that follows from how many fit. Only ratios that leave no
    /// place for a further CTA of the kernel of which more fit are among them.
    ///
    /// # Errors
    /// A number of a kernel is out of range.
    pub fn ratios(&self, kernels: [&Alone; 2]) -> Result<Vec<Shared>, ModelError> {
        let fit = kernels.map(|kernel| kernel.workload.ctas_fit);
        let alone = kernels.map(|kernel| kernel.workload.ctas_alone);
        // Larger CTAs have fewer ratios, and those leave less of an SM empty.
        let (large, small) = if fit[0] <= fit[1] { (0, 1) } else { (1, 0) };
        let with = |of_large: u32| {
            let places = u64::from(fit[small]) * u64::from(fit[large] - of_large);
            let beside = u32::try_from(places / u64::from(fit[large])).unwrap_or(0);
            let mut ctas = [0; 2];
            (ctas[large], ctas[small]) = (of_large, beside.min(alone[small]));
            self.shared(kernels, ctas)
        };
        let most = alone[large].min(fit[large].saturating_sub(1));
        let taken = most.min(MOST_RATIOS);
        // Evenly among 1, 2 … `most`, with as much left out at both ends.
        let spread = |at: u32| 1 + (2 * at + 1) * most / (2 * taken);
        (0..taken).map(spread).map(with).collect()
    }
}

/// The greatest difference of the times of two slices, as a part of the longer: Eq. 7's ΔT, but
/// not in cycles, because long CTAs would then decide alone.
fn difference(cycles: [f64; 2]) -> f64 {
    (cycles[0] - cycles[1]).abs() / cycles[0].max(cycles[1])
}

/// The terms of Eq. 7: cycles of a slice of each kernel, I × P ÷ cIPC.
fn slice_cycles(kernels: [&Alone; 2], shared: &Shared) -> [f64; 2] {
    [0, 1].map(|of| {
        kernels[of].workload.warp_instructions * f64::from(shared.ctas[of]) / shared.ipc[of]
    })
}

/// Eq. 4 and 5: warp instructions a cycle of each of two kernels.
fn ipc(sm: &Sm, sides: &[Side; 2]) -> Result<[f64; 2], ModelError> {
    let [one, other] = sides;
    let states = (one.units + 1) * (other.units + 1);
    let stalls = |side: &Side| -> Vec<Row> {
        (0..=side.units).map(|ready| binomial(ready, side.memory_ratio)).collect()
    };
    let stalls = [stalls(one), stalls(other)];
    let mut matrix = DMatrix::zeros(states, states);
    for (state, column) in matrix.as_mut_slice().chunks_exact_mut(states).enumerate() {
        let idle = idle_of(state, other);
        let ready = [one.units - idle[0], other.units - idle[1]];
        let cycles = round_cycles(sm, slots(one, ready[0]) + slots(other, ready[1]));
        let latencies = latencies(sides, idle);
        let rows = [0, 1].map(|of| {
            let wake = wake(cycles, latencies[of]);
            transitions(&stalls[of][ready[of]], ready[of], idle[of], wake)
        });
        for (part, first) in column.chunks_exact_mut(other.units + 1).zip(&rows[0]) {
            for (to, second) in part.iter_mut().zip(&rows[1]) {
                *to = first * second;
            }
        }
    }
    let (mut instructions, mut cycles) = ([0.0; 2], 0.0);
    for (state, probability) in stationary(matrix)?.into_iter().enumerate() {
        let idle = idle_of(state, other);
        let ready = [one.units - idle[0], other.units - idle[1]];
        instructions[0] += probability * issued(one, ready[0]);
        instructions[1] += probability * issued(other, ready[1]);
        cycles += probability * round_cycles(sm, slots(one, ready[0]) + slots(other, ready[1]));
    }
    Ok(instructions.map(|instructions| instructions / cycles))
}

/// Idle units of each kernel in a state.
fn idle_of(state: usize, other: &Side) -> [usize; 2] {
    [state / (other.units + 1), state % (other.units + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::markov::Workload;
    use partita_model::Calibration;

    const HARDWARE: Calibration = Calibration {
        sms: 24,
        sm_clock_khz: 1_400_000,
        warp_instructions_per_cycle: 1.0,
        access_bytes: 32,
        noc_bytes_per_second: 1.0e12,
        llc_bytes_per_second: 4.3e11,
        dram_bytes_per_second: 1.77e11,
        dram_utilisation: 0.5,
    };

    /// Two kernels without accesses, of which `fit` CTAs fit: together they do what they do one
    /// after the other, whatever the ratio.
    fn ratios(fit: [u32; 2]) -> (Vec<[u32; 2]>, [u32; 2]) {
        let model = Model::new(&HARDWARE, 8).unwrap();
        let kernels = fit.map(|ctas| {
            let workload = Workload {
                memory_ratio: 0.0,
                warp_instructions: 1_000.0,
                warps: 6,
                ctas_fit: ctas,
                ctas_alone: ctas,
                uncoalesced: 0.0,
                coalesced_sectors: 4.0,
                uncoalesced_sectors: 32.0,
                llc: 1.0,
                dram: 1.0,
                slots: 1.0,
                base_cycles: 400.0,
            };
            model.alone(workload).unwrap()
        });
        let kernels = [&kernels[0], &kernels[1]];
        let all = model.ratios(kernels).unwrap().iter().map(|shared| shared.ctas).collect();
        (all, model.chosen(kernels, Ratio::Profitable).unwrap().unwrap().ctas)
    }

    #[test]
    fn of_alike_ratios_the_middle_one_is_chosen() {
        // Six of the first kernel are as much as 20 of the second.
        let (all, chosen) = ratios([6, 20]);
        assert_eq!(all, [[1, 16], [2, 13], [3, 10], [4, 6], [5, 3]]);
        assert_eq!(chosen, [3, 10]);
        // Of 20 ratios the middles of five parts.
        let (all, chosen) = ratios([21, 21]);
        assert_eq!(all, [[3, 18], [7, 14], [11, 10], [15, 6], [19, 2]]);
        assert_eq!(chosen, [11, 10]);
    }
}
