//! All policies on the same mixes of programs: who ends when.
//!
//! Each program of a mix has work that takes it a given time alone, as in [`crate::pairing`]. All
//! begin together, and a program that has ended leaves. From its end follows its slowdown, and from
//! the slowdowns STP, ANTT and the worst slowdown of a mix (Eyerman and Eeckhout 2008).

use crate::application::Application;
use crate::arrangement::Arrangement;
use crate::cells::{Cell, Cells};
use crate::eight::eight;
use crate::outcome::{RunError, Shared};
use crate::pairing::Pairing;
use crate::random::Random;
use crate::samples::samples;
use crate::track::{antt, float, stp};
use crate::workloads::workloads;
use partita_emu::Spec;

/// All programs of the benches of policies, with the bench in each name.
#[must_use]
pub fn programs(seed: u64) -> Vec<Application> {
    let of = |bench: &'static str| {
        move |program: Application| Application {
            name: format!("{bench}/{}", program.name),
            ..program
        }
    };
    let first = workloads(seed).into_iter().map(|workload| workload.application);
    let first = first.map(of("cd-search"));
    first
        .chain(samples(seed).into_iter().map(of("slate")))
        .chain(eight(seed).into_iter().map(of("kernelet")))
        .collect()
}

/// Random mixes: so many of each size, without a program twice in a mix.
#[must_use]
pub fn mixes(programs: usize, sizes: &[(usize, usize)], seed: u64) -> Vec<Vec<usize>> {
    let mut random = Random::new(seed);
    let mut all = Vec::new();
    for &(size, count) in sizes {
        for _ in 0..count {
            let mut places: Vec<usize> = (0..programs).collect();
            random.shuffle(&mut places);
            places.truncate(size);
            places.sort_unstable();
            all.push(places);
        }
    }
    all
}

/// A program's work takes at most so many times the time that it is given: one launch may be long.
const LONGEST: u64 = 40;
/// A mix runs for so many times the time that its programs take one after the other, at most.
const PATIENCE: u32 = 4;

/// What became of a mix.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Of each program: the time alone by the time to its end in the mix.
    pub speeds: Vec<f64>,
    /// The time to the last end, in nanoseconds.
    pub makespan: f64,
}

impl Outcome {
    /// System throughput: the sum of the speeds.
    #[must_use]
    pub fn stp(&self) -> f64 {
        stp(&self.speeds)
    }

    /// Average normalised turnaround time: the mean slowdown.
    #[must_use]
    pub fn antt(&self) -> f64 {
        antt(&self.speeds)
    }

    /// The slowdown of the program that suffers most.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.speeds.iter().map(|speed| 1.0 / speed.max(1e-9)).fold(0.0, f64::max)
    }
}

/// Programs on one modelled GPU, with the work of each.
pub struct Comparison<'a> {
    pairing: Pairing<'a>,
    /// Nanoseconds of each program's work alone, as it is written.
    alone: Vec<f64>,
}

impl<'a> Comparison<'a> {
    /// Programs of which nothing is measured yet. The work of each takes `work` SM cycles alone.
    #[must_use]
    pub fn new(spec: &'a Spec, programs: Vec<&'a Application>, work: u64) -> Self {
        Comparison { pairing: Pairing::new(spec, programs, work), alone: Vec::new() }
    }

    /// The runs that tell each program's work.
    #[must_use]
    pub fn first_cells(&self) -> Vec<Cell<'a>> {
        self.pairing.first_cells()
    }

    /// Takes the work from the first runs, which are there. The launch that is under way when the
    /// time is over counts, because one launch may take longer than that.
    ///
    /// # Errors
    /// Where a program cannot run.
    pub fn take_work(&mut self, cells: &mut Cells) -> Result<(), RunError> {
        self.pairing.take_work(cells)?;
        for solo in &mut self.pairing.solos {
            solo.launches += 1;
        }
        Ok(())
    }

    /// The runs of each program's work alone.
    #[must_use]
    pub fn alone_cells(&self) -> Vec<Cell<'a>> {
        let original = Arrangement::Original(self.pairing.spec.sms);
        let cycles = self.pairing.work.saturating_mul(LONGEST);
        let cell = |at| Cell { cycles, ..self.pairing.cell(&[at], original.clone()) };
        (0..self.pairing.applications.len()).map(cell).collect()
    }

    /// Takes the times alone from their runs, which are there.
    ///
    /// # Errors
    /// Where a program cannot run.
    pub fn take_alone(&mut self, cells: &mut Cells) -> Result<(), RunError> {
        let runs = self.alone_cells();
        let ends: Result<Vec<f64>, RunError> = { runs.iter().enumerate() }
            .map(|(at, run)| cells.get(run).map(|shared| self.end(at, &shared, 0)))
            .collect();
        self.alone = ends?;
        Ok(())
    }

    /// The run of a mix under an arrangement.
    #[must_use]
    pub fn cell(&self, members: &[usize], arrangement: Arrangement) -> Cell<'a> {
        let alone: f64 = members.iter().map(|&at| self.alone[at]).sum();
        let cycles = f64::from(PATIENCE) * alone * f64::from(self.pairing.spec.sm_clock_khz) / 1e6;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a duration")]
        let cycles = (cycles as u64).max(1);
        Cell { cycles, ..self.pairing.cell(members, arrangement) }
    }

    /// What became of a mix, whose run is there.
    ///
    /// # Errors
    /// Where a program cannot run.
    pub fn outcome(
        &self,
        members: &[usize],
        arrangement: Arrangement,
        cells: &mut Cells,
    ) -> Result<Outcome, RunError> {
        let shared = cells.get(&self.cell(members, arrangement))?;
        let ends = members.iter().enumerate().map(|(place, &at)| self.end(at, &shared, place));
        let ends: Vec<f64> = ends.collect();
        let speeds = members.iter().zip(&ends).map(|(&at, end)| self.alone[at] / end).collect();
        Ok(Outcome { speeds, makespan: ends.into_iter().fold(0.0, f64::max) })
    }

    /// The names of a mix's programs.
    #[must_use]
    pub fn title(&self, members: &[usize]) -> String {
        let names = members.iter().map(|&at| self.pairing.applications[at].name.as_str());
        names.collect::<Vec<_>>().join(" ")
    }

    /// When a program's work ended. A program that the run's end cut off would have gone on at the
    /// same pace, but counts with no more than [`PATIENCE`] × the run: it may have just waited.
    fn end(&self, at: usize, shared: &Shared, place: usize) -> f64 {
        let track = &shared.shares[place].track;
        let (done, work) = (float(track.ctas()), self.pairing.ctas(at));
        if done >= work {
            return float(track.last_growth().max(1));
        }
        float(shared.nanos) * (work / done.max(1.0)).min(f64::from(PATIENCE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_have_no_program_twice_and_follow_from_the_seed() {
        let all = mixes(27, &[(2, 20), (4, 10)], 7);
        assert_eq!(all.len(), 30);
        for mix in &all {
            assert!(mix.windows(2).all(|pair| pair[0] < pair[1]), "{mix:?}");
            assert!(mix.iter().all(|&at| at < 27), "{mix:?}");
        }
        assert_eq!(all, mixes(27, &[(2, 20), (4, 10)], 7));
        assert_ne!(all, mixes(27, &[(2, 20), (4, 10)], 8));
    }

    #[test]
    fn programs_have_names_of_their_own() {
        let mut names: Vec<String> = programs(1).into_iter().map(|program| program.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count), (27, 27));
    }

    #[test]
    fn slowdowns_make_the_figures_of_a_mix() {
        let outcome = Outcome { speeds: vec![0.5, 0.25], makespan: 4.0 };
        assert!((outcome.stp() - 0.75).abs() < 1e-9);
        assert!((outcome.antt() - 3.0).abs() < 1e-9);
        assert!((outcome.worst() - 4.0).abs() < 1e-9);
    }
}
