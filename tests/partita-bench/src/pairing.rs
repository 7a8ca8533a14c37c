//! Pairs of applications that end: how long they take together under an arrangement.
//!
//! Each application has as many launches as its own kernels complete alone in the same time, the
//! *work*. The time of a pair is the *makespan*: from the first launch to the moment at which both
//! have ended (Slate §III-B's T'). One after the other they take twice the work.

use crate::application::Application;
use crate::arrangement::Arrangement;
use crate::cells::{Cell, Cells};
use crate::outcome::{RunError, Shared};
use crate::track::float;
use partita_emu::Spec;

/// A run ends at the latest after so many times the time that the pair would take one after the
/// other.
const PATIENCE: u64 = 4;

/// An application alone.
#[derive(Clone, Debug)]
pub struct Solo {
    /// Launches that its kernels as they are complete in the time of the work.
    pub launches: u64,
    /// The time of these launches in nanoseconds, as they are written.
    pub original: f64,
    /// The same under the policy that is judged.
    pub shared: f64,
    /// Warp instructions of the same launches under the policy, as a part of the original's.
    pub instructions: f64,
}

/// All applications, with what each does alone.
#[derive(Debug)]
pub struct Pairing<'a> {
    /// The modelled GPU.
    pub spec: &'a Spec,
    /// Who takes part.
    pub applications: Vec<&'a Application>,
    /// The time that each works alone, in cycles.
    pub work: u64,
    /// What each does alone, in the same order.
    pub solos: Vec<Solo>,
}

impl<'a> Pairing<'a> {
    /// Applications of which nothing is measured yet.
    #[must_use]
    pub fn new(spec: &'a Spec, applications: Vec<&'a Application>, work: u64) -> Self {
        Pairing { spec, applications, work, solos: Vec::new() }
    }

    /// The first runs: each application alone for as long as the work takes.
    #[must_use]
    pub fn first_cells(&self) -> Vec<Cell<'a>> {
        let alone = |&application: &&'a Application| Cell {
            applications: vec![application],
            spec: self.spec,
            arrangement: Arrangement::Original(self.spec.sms),
            cycles: self.work,
            launches: Vec::new(),
            arrivals: Vec::new(),
        };
        self.applications.iter().map(alone).collect()
    }

    /// Takes the work of each application from the first runs, which are there.
    ///
    /// # Errors
    /// Where one cannot run.
    pub fn take_work(&mut self, cells: &mut Cells) -> Result<(), RunError> {
        self.solos.clear();
        for (cell, application) in self.first_cells().iter().zip(&self.applications) {
            let launches = launches_of(application, cells.get(cell)?.shares[0].track.ctas());
            self.solos.push(Solo { launches, original: 0.0, shared: 0.0, instructions: 1.0 });
        }
        Ok(())
    }

    /// The runs of each application alone with its work: as it is written, and under a policy.
    #[must_use]
    pub fn alone_cells(&self, policy: &Arrangement) -> Vec<Cell<'a>> {
        let original = Arrangement::Original(self.spec.sms);
        (0..self.applications.len())
            .flat_map(|index| {
                [self.cell(&[index], original.clone()), self.cell(&[index], policy.clone())]
            })
            .collect()
    }

    /// Takes what each application does alone from these runs, which are there.
    ///
    /// # Errors
    /// Where one cannot run.
    pub fn take_alone(&mut self, policy: &Arrangement, cells: &mut Cells) -> Result<(), RunError> {
        let runs = self.alone_cells(policy);
        let instructions = |run: &Shared| float(run.counters.work.warp_instructions);
        for (solo, pair) in self.solos.iter_mut().zip(runs.chunks_exact(2)) {
            let (original, shared) = (cells.get(&pair[0])?, cells.get(&pair[1])?);
            solo.instructions = instructions(&shared) / instructions(&original).max(1.0);
            (solo.original, solo.shared) = (makespan(&original), makespan(&shared));
        }
        Ok(())
    }

    /// Applications under an arrangement, each with its work.
    #[must_use]
    pub fn cell(&self, members: &[usize], arrangement: Arrangement) -> Cell<'a> {
        let count = u64::try_from(members.len()).unwrap_or(u64::MAX);
        Cell {
            applications: members.iter().map(|&index| self.applications[index]).collect(),
            spec: self.spec,
            arrangement,
            cycles: self.work.saturating_mul(PATIENCE).saturating_mul(count),
            launches: members.iter().map(|&index| self.solos[index].launches).collect(),
            arrivals: Vec::new(),
        }
    }

    /// CTAs of an application's work.
    #[must_use]
    pub fn ctas(&self, index: usize) -> f64 {
        let (pass, launches) = (&self.applications[index].pass, self.solos[index].launches);
        let sizes = pass.iter().map(|step| u64::try_from(step.grid.count()).unwrap_or(u64::MAX));
        let count = u64::try_from(pass.len()).unwrap_or(u64::MAX).max(1);
        let rest = usize::try_from(launches % count).unwrap_or(0);
        let whole: u64 = sizes.clone().sum();
        float(whole) * float(launches / count) + float(sizes.take(rest).sum())
    }

    /// All pairs, those of an application with itself too.
    #[must_use]
    pub fn pairs(&self) -> Vec<[usize; 2]> {
        let count = self.applications.len();
        (0..count).flat_map(|first| (first..count).map(move |second| [first, second])).collect()
    }
}

/// When the last application of a run had ended, in nanoseconds.
#[must_use]
pub fn makespan(shared: &Shared) -> f64 {
    let ended = shared.shares.iter().map(|share| share.track.last_growth());
    ended.max().map_or(0.0, float)
}

/// How much sooner all is done than with the other makespan: 0.1 where that takes 1.1 times as
/// long.
#[must_use]
pub fn gain(makespan: f64, other: f64) -> f64 {
    if makespan > 0.0 { other / makespan - 1.0 } else { 0.0 }
}

/// Whole launches of the passes with so many CTAs; one at least.
fn launches_of(application: &Application, ctas: u64) -> u64 {
    let sizes: Vec<u64> = application
        .pass
        .iter()
        .map(|step| u64::try_from(step.grid.count()).unwrap_or(u64::MAX))
        .collect();
    let of_pass: u64 = sizes.iter().sum::<u64>().max(1);
    let mut left = ctas % of_pass;
    let begun = sizes.iter().take_while(|&&size| {
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    });
    let begun = u64::try_from(begun.count()).unwrap_or(0);
    let passes = u64::try_from(sizes.len()).unwrap_or(0).saturating_mul(ctas / of_pass);
    (passes + begun).max(1)
}

/// The best of several static splits for a makespan: each application at the speed that it has in
/// the split until the first has ended, then the other alone. `speeds` are parts of the speed alone
/// under the same policy; the work alone takes `alone`.
#[must_use]
pub fn split_makespan(speeds: [f64; 2], alone: [f64; 2]) -> f64 {
    let [one, other] = [0, 1].map(|index| alone[index] / speeds[index].max(1e-9));
    let (first, last) = if one <= other { (one, 1) } else { (other, 0) };
    first + alone[last] - first * speeds[last]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Step;
    use partita_model::Dim3;

    #[test]
    fn launches_are_whole() {
        let step = |ctas| Step::new("kernel", Dim3::linear(ctas), Dim3::linear(32), &[]);
        let application =
            Application { pass: vec![step(10), step(5), step(1)], ..Application::default() };
        for (ctas, launches) in [(0, 1), (9, 1), (10, 1), (15, 2), (16, 3), (31, 5), (160, 30)] {
            assert_eq!(launches_of(&application, ctas), launches, "{ctas}");
        }
    }

    #[test]
    fn who_is_left_goes_on_alone() {
        // Both at 0.6: the work of 100 takes 166.7 for both.
        assert!((split_makespan([0.6, 0.6], [100.0, 100.0]) - 500.0 / 3.0).abs() < 1e-9);
        // After 125 the other has 37.5 left.
        assert!((split_makespan([0.8, 0.5], [100.0, 100.0]) - 162.5).abs() < 1e-9);
        assert!((gain(100.0, 120.0) - 0.2).abs() < 1e-9);
    }
}
