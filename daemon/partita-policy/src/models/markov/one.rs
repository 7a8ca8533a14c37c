//! The chain of one kernel (Eq. 1–3): transitions, stationary distribution, IPC.

use super::inputs::{MOST_UNITS, ModelError, Side, Workload, float, latencies};
use super::{Model, Sm};
use crate::Character;
use nalgebra::{DMatrix, DVector};
use partita_model::Calibration;

/// Probabilities by number of units.
pub(super) type Row = [f64; MOST_UNITS + 1];

/// The base latency that a fit finds at most, in cycles. DRAM under load answers within it, and
/// with the least memory ratio it is a stall of eight cycles an instruction: a dependency's.
const MOST_BASE: f64 = 2000.0;
/// The slots of an instruction that a fit finds at most.
const MOST_SLOTS: f64 = 1e4;
/// Steps of a fit: it ends within 0.02 % of the number.
const FIT_STEPS: u32 = 16;

/// A kernel, and how fast it is alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Alone {
    /// What it asks for.
    pub workload: Workload,
    /// Warp instructions a cycle of one SM, by the model.
    pub ipc: f64,
}

impl Model {
    /// A kernel alone on its SMs.
    ///
    /// # Errors
    /// A number of the kernel is out of range.
    pub fn alone(&self, workload: Workload) -> Result<Alone, ModelError> {
        workload.check()?;
        let side = Side::new(self.sm(), self.units(), &workload, workload.ctas_alone);
        Ok(Alone { workload, ipc: ipc(self.sm(), &side)? })
    }

    /// A counted kernel, with the base latency that explains how fast it was alone; where it was
    /// slower than any plausible latency makes it, its instructions take several issue slots.
    ///
    /// The paper measures latencies by micro-benchmarks. A base that is fitted to the kernel also
    /// stands for what the model leaves alone: dependencies, barriers, several accesses of a warp
    /// at a time. It is 0 where the kernel was faster than any base allows. Slots that a kernel
    /// takes are lost for its partner, so what is not explained promises no profit.
    ///
    /// # Errors
    /// The time alone is not known, or a number is out of range.
    pub fn fitted(
        &self,
        character: &Character,
        hardware: &Calibration,
    ) -> Result<Alone, ModelError> {
        let measured = character.ipc(hardware).ok_or(ModelError::NotMeasured)?;
        let of = Workload::of(character, self.sm().sms, 0.0)?;
        let fastest = self.alone(of)?;
        if fastest.ipc <= measured {
            return Ok(fastest);
        }
        let base = |base_cycles| self.alone(Workload { base_cycles, ..of });
        if base(MOST_BASE)?.ipc <= measured {
            return slowed(measured, 0.0, MOST_BASE, base);
        }
        let slots = |slots| self.alone(Workload { slots, base_cycles: MOST_BASE, ..of });
        slowed(measured, 1.0, MOST_SLOTS, slots)
    }
}

/// The kernel that is as fast as measured, where its IPC falls with a number between two bounds.
fn slowed(
    measured: f64,
    least: f64,
    most: f64,
    with: impl Fn(f64) -> Result<Alone, ModelError>,
) -> Result<Alone, ModelError> {
    // Such numbers differ by orders of magnitude, so halve in logarithms.
    let (mut least, mut most) = (f64::ln_1p(least), f64::ln_1p(most));
    for _ in 0..FIT_STEPS {
        let middle = f64::midpoint(least, most);
        let slow = with(middle.exp_m1())?.ipc < measured;
        (least, most) = if slow { (least, middle) } else { (middle, most) };
    }
    with(f64::midpoint(least, most).exp_m1())
}

/// Eq. 3: warp instructions a cycle of a kernel that has an SM to itself.
fn ipc(sm: &Sm, side: &Side) -> Result<f64, ModelError> {
    let states = side.units + 1;
    let mut matrix = DMatrix::zeros(states, states);
    for (idle, column) in matrix.as_mut_slice().chunks_exact_mut(states).enumerate() {
        let ready = side.units - idle;
        let [latency] = latencies(&[*side], [idle]);
        let wake = wake(round_cycles(sm, slots(side, ready)), latency);
        let row = transitions(&binomial(ready, side.memory_ratio), ready, idle, wake);
        column.copy_from_slice(&row[..states]);
    }
    let (mut instructions, mut cycles) = (0.0, 0.0);
    for (idle, probability) in stationary(matrix)?.into_iter().enumerate() {
        let ready = side.units - idle;
        instructions += probability * issued(side, ready);
        cycles += probability * round_cycles(sm, slots(side, ready));
    }
    Ok(instructions / cycles)
}

/// Warp instructions that so many ready units issue in a round.
pub(super) fn issued(side: &Side, ready: usize) -> f64 {
    side.unit_warps * float(ready)
}

/// Issue slots that these take.
pub(super) fn slots(side: &Side, ready: usize) -> f64 {
    side.slots * issued(side, ready)
}

/// D: cycles of a round in which so many issue slots are taken. A round without a ready warp lasts
/// a cycle. So does a round of fewer warps than the SM issues from at a time.
pub(super) fn round_cycles(sm: &Sm, slots: f64) -> f64 {
    (slots / sm.issue_rate).max(1.0)
}

/// P_(i→r): the probability that a unit wakes in a round of so many cycles. The paper's is above 1
/// where a round is longer than the latency; the unit then wakes for certain.
pub(super) fn wake(round_cycles: f64, latency: f64) -> f64 {
    (round_cycles / latency).min(1.0)
}

/// Probabilities of 0, 1, 2 … successes among so many trials.
pub(super) fn binomial(trials: usize, probability: f64) -> Row {
    let mut row = [0.0; MOST_UNITS + 1];
    row[0] = 1.0;
    for trial in 0..trials {
        for successes in (0..=trial).rev() {
            let reached = row[successes];
            row[successes + 1] += reached * probability;
            row[successes] = reached * (1.0 - probability);
        }
    }
    row
}

/// Eq. 1: the probabilities of the next numbers of idle units, where so many are idle and ready,
/// each idle one wakes with a probability, and `stalls` says how many ready ones go idle.
pub(super) fn transitions(stalls: &Row, ready: usize, idle: usize, wake: f64) -> Row {
    let stays = binomial(idle, 1.0 - wake);
    let mut row = [0.0; MOST_UNITS + 1];
    for (stay, probability) in stays.iter().enumerate().take(idle + 1) {
        for (to, stall) in row[stay..].iter_mut().zip(&stalls[..=ready]) {
            *to += probability * stall;
        }
    }
    row
}

/// Eq. 2: the distribution that the transitions leave as it is. Column `i` has the probabilities
/// of going from state `i` to each other state.
pub(super) fn stationary(mut matrix: DMatrix<f64>) -> Result<Vec<f64>, ModelError> {
    let states = matrix.nrows();
    for state in 0..states {
        matrix[(state, state)] -= 1.0;
    }
    // The equations depend on one another: that the probabilities sum to 1 takes one's place.
    matrix.row_mut(states - 1).fill(1.0);
    let mut sum_is_one = DVector::zeros(states);
    sum_is_one[states - 1] = 1.0;
    let solution = matrix.lu().solve(&sum_is_one).ok_or(ModelError::NotSolved)?;
    let positive: Vec<f64> = solution.iter().map(|probability| probability.max(0.0)).collect();
    let sum: f64 = positive.iter().sum();
    if !(sum.is_finite() && sum > 0.5) {
        return Err(ModelError::NotSolved);
    }
    Ok(positive.into_iter().map(|probability| probability / sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-12, "{found}, not {wanted}");
    }

    #[test]
    fn binomials_are_those_of_the_formula() {
        for (trials, probability) in [(0, 0.3), (5, 0.0), (5, 1.0), (16, 0.25)] {
            let row = binomial(trials, probability);
            near(row.iter().sum(), 1.0);
            near(row[0], (1.0_f64 - probability).powf(float(trials)));
            near(row[trials], probability.powf(float(trials)));
        }
        near(binomial(4, 0.25)[2], 6.0 * 0.0625 * 0.5625);
    }

    /// Eq. 1 adds up all ways of going from one number of idle units to another.
    #[test]
    fn transitions_are_all_ways() {
        let (stall, wake) = (0.3, 0.1);
        for units in 1..=6 {
            for idle in 0..=units {
                let ready = units - idle;
                let row = transitions(&binomial(ready, stall), ready, idle, wake);
                near(row.iter().sum(), 1.0);
                for (next, &found) in row.iter().enumerate() {
                    let ways = (0..=idle).filter_map(|woken| {
                        let stalled = next.checked_sub(idle - woken)?;
                        let stalls = binomial(ready, stall)[stalled];
                        (stalled <= ready).then(|| binomial(idle, wake)[woken] * stalls)
                    });
                    near(found, ways.sum());
                }
            }
        }
    }

    #[test]
    fn stationary_distributions_stay() {
        // Two states that are left with 0.2 and 0.6.
        let found = stationary(DMatrix::from_vec(2, 2, vec![0.8, 0.2, 0.6, 0.4])).unwrap();
        near(found[0], 0.75);
        near(found[1], 0.25);
        // A state that is never left, and one of which nothing is known.
        let found = stationary(DMatrix::from_vec(2, 2, vec![1.0, 0.0, 0.5, 0.5])).unwrap();
        near(found[0], 1.0);
        let unknown = DMatrix::from_vec(2, 2, vec![f64::NAN; 4]);
        assert_eq!(stationary(unknown), Err(ModelError::NotSolved));
    }

    #[test]
    fn a_unit_of_a_long_round_wakes_for_certain() {
        near(wake(40.0, 20.0), 1.0);
        near(wake(5.0, 20.0), 0.25);
    }
}
