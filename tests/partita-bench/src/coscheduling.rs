//! The evaluation of Kernelet (TPDS '14, §5): programs alone, in slices, in pairs that share SMs,
//! and what plans of pairs take.
//!
//! | step | what is measured |
//! | --- | --- |
//! | [`Coscheduling::alone_cells`] | each program alone as it is written: time, IPC, use of DRAM |
//! | [`Coscheduling::slice_cells`] | the same in slices of several sizes |
//! | [`Coscheduling::pair_cells`] | pairs with the ratios of CTAs that the model compares |
//! | [`Queue`] | launches that arrive: one after the other, together, under a policy |
//!
//! A pair with a ratio runs as the selector `kernelet` lets it: each program has a part of every
//! SM. [`Coscheduling::together`] is the only place that knows.

use crate::application::Application;
use crate::arrangement::Arrangement;
use crate::arrivals::{in_one_stream, poisson};
use crate::cells::{COUNT_CYCLES, Cell, Cells};
use crate::hardware::measured;
use crate::outcome::{RunError, Shared};
use crate::slices::sliced;
use crate::track::float;
use partita_emu::Spec;
use partita_model::{ApplicationId, Calibration, SmPart};
use partita_policy::markov::{Alone, Model, ModelError, Workload};
use partita_policy::{Character, Launched, PairTable, PairTableError};

/// A program alone is measured for so many times as long as a pair: a launch counts when it has
/// ended, and the first one also waits for its start and for its data.
const ALONE: u64 = 4;

/// A program alone on the whole GPU, as it is written.
#[derive(Clone, Debug)]
pub struct Solo {
    /// Nanoseconds of a launch.
    pub nanos: f64,
    /// Warp instructions a cycle of one SM.
    pub ipc: f64,
    /// PUR: the part of the issue slots that are used.
    pub issue: f64,
    /// MUR: the part of DRAM's peak bandwidth that is used.
    pub bandwidth: f64,
    /// CTAs that fit on an SM.
    pub ctas_per_sm: u32,
    /// CTAs of a launch.
    pub ctas: u32,
    /// What the model is told of it.
    pub character: Character,
    /// The model's kernel, with the base latency that explains its time alone.
    pub fitted: Alone,
    /// The model's IPC with a base latency by the specification: a prediction.
    pub predicted_ipc: f64,
}

/// A pair of programs with a ratio of CTAs on SMs that they share.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Places of its programs, the lower one first.
    pub members: [usize; 2],
    /// CTAs of each on an SM.
    pub ctas: [u32; 2],
    /// Speeds as parts of the speeds alone: measured.
    pub speeds: [f64; 2],
    /// The same by the model.
    pub predicted: [f64; 2],
}

/// A program in slices of one size.
#[derive(Clone, Copy, Debug)]
pub struct Sliced {
    /// CTAs of a slice.
    pub ctas: u32,
    /// The time beyond that of launches as they are written, as a part of it.
    pub overhead: f64,
}

/// Programs that are scheduled together on a GPU.
pub struct Coscheduling<'a> {
    /// The modelled GPU.
    pub spec: &'a Spec,
    /// What is measured of the GPU.
    pub hardware: Calibration,
    /// The model of the GPU.
    pub model: Model,
    /// The programs.
    pub programs: Vec<&'a Application>,
    /// What each is alone, once it was measured.
    pub solos: Vec<Solo>,
    /// Cycles that a pair is measured for.
    pub cycles: u64,
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum CoschedulingError {
    /// A program cannot run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The model refuses a program.
    #[error("{0}: {1}")]
    Model(String, ModelError),
    /// A program cannot be cut.
    #[error("{0}")]
    Slices(String),
    /// The table of pairs lacks something.
    #[error(transparent)]
    Table(#[from] PairTableError),
    /// No CTA of a program was counted.
    #[error("{0}: its kernel is not counted in {COUNT_CYCLES} cycles; make its launches shorter")]
    NotCounted(String),
    /// A program completed nothing in its run.
    #[error("{0} completes no launch in {1} cycles; measure longer")]
    TooShort(String, u64),
}

impl<'a> Coscheduling<'a> {
    /// Programs of which nothing is measured yet.
    ///
    /// # Errors
    /// Where the calibration describes no GPU.
    pub fn new(
        spec: &'a Spec,
        programs: Vec<&'a Application>,
        cycles: u64,
    ) -> Result<Self, CoschedulingError> {
        let hardware = measured(spec);
        let model = Model::new(&hardware, Model::UNITS)
            .map_err(|error| CoschedulingError::Model(spec.name.clone(), error))?;
        Ok(Coscheduling { spec, hardware, model, programs, solos: Vec::new(), cycles })
    }

    /// The runs of each program alone: as it is written, and to count its work.
    #[must_use]
    pub fn alone_cells(&self) -> Vec<Cell<'a>> {
        let cells = |&program: &&'a Application| {
            let original = self.alone_cell(program);
            let counted = Cell { cycles: COUNT_CYCLES, ..original.clone() };
            [original, Cell { arrangement: Arrangement::Count, ..counted }]
        };
        self.programs.iter().flat_map(cells).collect()
    }

    /// Takes what each program is alone from its runs, which are there.
    ///
    /// # Errors
    /// Where one cannot run, or completes nothing.
    pub fn take_alone(&mut self, cells: &mut Cells) -> Result<(), CoschedulingError> {
        let runs = self.alone_cells();
        let mut solos = Vec::new();
        for (program, pair) in self.programs.iter().zip(runs.chunks_exact(2)) {
            solos.push(self.solo(program, &cells.get(&pair[0])?, &cells.get(&pair[1])?)?);
        }
        self.solos = solos;
        Ok(())
    }

    fn solo(
        &self,
        program: &Application,
        original: &Shared,
        counted: &Shared,
    ) -> Result<Solo, CoschedulingError> {
        let too_short = || CoschedulingError::TooShort(program.name.clone(), self.cycles);
        let share = original.shares.first().ok_or_else(too_short)?;
        let per_cta = nanos_per_cta(original, 0).ok_or_else(too_short)?;
        let step = program.pass.first().ok_or_else(too_short)?;
        let ctas = u32::try_from(step.grid.count()).unwrap_or(u32::MAX);
        let threads = u32::try_from(step.block.count()).unwrap_or(u32::MAX);
        let launched = Launched {
            warps: threads.div_ceil(32),
            ctas_per_sm: share.ctas_per_sm.into(),
            ctas: ctas.into(),
        };
        let profile = counted.profiles.values().flatten().next().map(|(_, profile)| *profile);
        let character = profile.and_then(|profile| Character::of(&profile, launched));
        let not_counted = || CoschedulingError::NotCounted(program.name.clone());
        let character = Character { alone: Some(per_cta), ..character.ok_or_else(not_counted)? };
        let refused = |error| CoschedulingError::Model(program.name.clone(), error);
        let fitted = self.model.fitted(&character, &self.hardware).map_err(refused)?;
        let base = self.base_cycles(&character);
        let workload = Workload::of(&character, self.spec.sms, base).map_err(refused)?;
        let predicted = self.model.alone(workload).map_err(refused)?;
        let ipc = character.ipc(&self.hardware).unwrap_or(0.0);
        let work = &original.counters.work;
        let seconds = float(original.nanos) / 1e9;
        Ok(Solo {
            nanos: per_cta * f64::from(ctas),
            ipc,
            issue: ipc / self.hardware.warp_instructions_per_cycle,
            bandwidth: float(work.dram_bytes)
                / seconds
                / (self.spec.dram_gigabytes_per_second * 1e9),
            ctas_per_sm: u32::from(share.ctas_per_sm),
            ctas,
            character,
            fitted,
            predicted_ipc: predicted.ipc,
        })
    }

    /// The latency of a mean access that finds all queues empty, by the specification.
    fn base_cycles(&self, character: &Character) -> f64 {
        let part = |of: f64| (of / character.sectors.max(1e-9)).clamp(0.0, 1.0);
        let (llc, dram) = (part(character.llc_sectors), part(character.dram_sectors));
        let dram = dram.min(llc);
        let spec = self.spec;
        (1.0 - llc) * float(spec.l1_latency_cycles)
            + (llc - dram) * float(spec.llc_latency_cycles)
            + dram * float(spec.dram_latency_cycles)
    }

    fn alone_cell(&self, program: &'a Application) -> Cell<'a> {
        let cell = self.cell(vec![program], Arrangement::Original(self.spec.sms));
        Cell { cycles: ALONE * self.cycles, ..cell }
    }

    fn cell(&self, applications: Vec<&'a Application>, arrangement: Arrangement) -> Cell<'a> {
        Cell {
            applications,
            spec: self.spec,
            arrangement,
            cycles: self.cycles,
            launches: Vec::new(),
            arrivals: Vec::new(),
        }
    }

    /// The ratios of a pair that the model compares, with the model's speeds.
    ///
    /// # Errors
    /// Where the model refuses one.
    pub fn ratios(&self, members: [usize; 2]) -> Result<Vec<Pair>, CoschedulingError> {
        let kernels = members.map(|index| &self.solos[index].fitted);
        let ratios = self.model.ratios(kernels).map_err(|error| {
            let names = members.map(|index| self.programs[index].name.as_str()).join("-");
            CoschedulingError::Model(names, error)
        })?;
        let pair = |shared: partita_policy::markov::Shared| Pair {
            members,
            ctas: shared.ctas,
            speeds: [0.0; 2],
            predicted: shared.speeds(),
        };
        let possible = ratios.into_iter().filter(|shared| shared.ctas.iter().all(|&ctas| ctas > 0));
        Ok(possible.map(pair).collect())
    }

    /// Pairs of unlike programs.
    #[must_use]
    pub fn pairs(&self) -> Vec<[usize; 2]> {
        let count = self.programs.len();
        (0..count).flat_map(|one| (one + 1..count).map(move |other| [one, other])).collect()
    }

    /// A table of pairs with so many launches of each of these programs.
    ///
    /// # Errors
    /// Where a speed is no speed.
    pub fn table(
        &self,
        members: &[usize],
        launches: u64,
        pairs: &[Pair],
    ) -> Result<PairTable, CoschedulingError> {
        let mut table = PairTable::default();
        for &member in members {
            table.add(id(member), self.solos[member].nanos * float(launches))?;
        }
        for pair in pairs.iter().filter(|pair| pair.members.iter().all(|of| members.contains(of))) {
            table.measure(pair.members.map(id), pair.ctas.to_vec(), pair.speeds)?;
        }
        Ok(table)
    }
}

impl<'a> Coscheduling<'a> {
    /// A pair that shares every SM with so many CTAs of each there.
    #[must_use]
    pub fn together(&self, pair: &Pair) -> Cell<'a> {
        let part = |place: usize| {
            let small = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
            let fit = self.solos[pair.members[place]].ctas_per_sm;
            SmPart::new(small(pair.ctas[place]), small(fit))
        };
        let parts = [0, 1].into_iter().filter_map(part).collect();
        let programs = pair.members.map(|member| self.programs[member]).to_vec();
        self.cell(programs, Arrangement::Parts(parts))
    }

    /// The runs of pairs.
    #[must_use]
    pub fn pair_cells(&self, pairs: &[Pair]) -> Vec<Cell<'a>> {
        pairs.iter().map(|pair| self.together(pair)).collect()
    }

    /// Takes the speeds of pairs from their runs, which are there.
    ///
    /// # Errors
    /// Where one cannot run, or completes nothing.
    pub fn take_pairs(
        &self,
        pairs: &mut [Pair],
        cells: &mut Cells,
    ) -> Result<(), CoschedulingError> {
        for pair in pairs {
            let shared = cells.get(&self.together(pair))?;
            for place in 0..2 {
                let name = &self.programs[pair.members[place]].name;
                let too_short = || CoschedulingError::TooShort(name.clone(), self.cycles);
                let alone = self.solos[pair.members[place]].character.alone;
                let nanos = nanos_per_cta(&shared, place).ok_or_else(too_short)?;
                pair.speeds[place] = alone.unwrap_or(nanos) / nanos;
            }
        }
        Ok(())
    }

    /// A program in slices of one, two, four … times what fits on the GPU, up to a whole launch.
    ///
    /// # Errors
    /// Where it cannot be cut.
    pub fn in_slices(&self, member: usize) -> Result<Vec<(u32, Application)>, CoschedulingError> {
        let solo = &self.solos[member];
        let round = (solo.ctas_per_sm * u32::from(self.spec.sms)).max(1);
        let sizes = std::iter::successors(Some(round), |size| Some(size * 2));
        let cut = |size: u32| {
            let cut = sliced(self.programs[member], size);
            Ok((size, cut.map_err(CoschedulingError::Slices)?))
        };
        sizes.take_while(|&size| size < solo.ctas).chain([solo.ctas]).map(cut).collect()
    }

    /// The runs of a program in slices.
    #[must_use]
    pub fn slice_cells<'b>(&'b self, cuts: &'b [(u32, Application)]) -> Vec<Cell<'b>> {
        cuts.iter().map(|(_, cut)| self.alone_cell(cut)).collect()
    }

    /// What slices of each size cost a program.
    ///
    /// # Errors
    /// Where one cannot run, or completes nothing.
    pub fn take_slices(
        &self,
        member: usize,
        cuts: &[(u32, Application)],
        cells: &mut Cells,
    ) -> Result<Vec<Sliced>, CoschedulingError> {
        let mut found = Vec::new();
        for ((ctas, cut), cell) in cuts.iter().zip(self.slice_cells(cuts)) {
            let too_short = || CoschedulingError::TooShort(cut.name.clone(), self.cycles);
            let nanos = nanos_per_cta(&cells.get(&cell)?, 0).ok_or_else(too_short)?;
            let alone = self.solos[member].character.alone.unwrap_or(nanos);
            found.push(Sliced { ctas: *ctas, overhead: nanos / alone - 1.0 });
        }
        Ok(found)
    }
}

/// A mix of programs whose launches arrive while others run.
pub struct Queue {
    /// Places of its programs.
    pub members: Vec<usize>,
    /// Launches of each program.
    pub launches: u64,
    /// When they arrive.
    pub arrivals: Vec<Vec<u64>>,
    /// The same launches in one stream.
    stream: (Application, Vec<u64>),
}

impl Queue {
    /// So many launches of each program, at such a rate that work arrives twice as fast as the GPU
    /// does it one after the other: launches wait soon, and until the last one has come.
    #[must_use]
    pub fn new(study: &Coscheduling<'_>, members: Vec<usize>, launches: u64, seed: u64) -> Queue {
        let each: f64 = members.iter().map(|&member| study.solos[member].nanos).sum();
        let count = usize::try_from(launches).unwrap_or(usize::MAX);
        let arrivals = poisson(members.len(), count, each / 2.0, seed);
        let programs: Vec<&Application> =
            members.iter().map(|&member| study.programs[member]).collect();
        let stream = in_one_stream(&programs, &arrivals);
        Queue { members, launches, arrivals, stream }
    }

    /// The first arrival, in nanoseconds.
    #[must_use]
    pub fn first(&self) -> f64 {
        let firsts = self.arrivals.iter().filter_map(|arrivals| arrivals.first());
        firsts.min().map_or(0.0, |first| float(*first))
    }

    /// The run of the launches one after the other.
    #[must_use]
    pub fn apart<'b>(&'b self, study: &'b Coscheduling<'_>) -> Cell<'b> {
        let (application, arrivals) = &self.stream;
        Cell {
            launches: vec![arrivals.len() as u64],
            arrivals: vec![arrivals.clone()],
            cycles: u64::MAX / 4_000_000,
            ..study.cell(vec![application], Arrangement::Original(study.spec.sms))
        }
    }

    /// The run of each program as an application of its own, under an arrangement.
    #[must_use]
    pub fn under<'b>(&'b self, study: &'b Coscheduling<'_>, arrangement: Arrangement) -> Cell<'b> {
        let programs = self.members.iter().map(|&member| study.programs[member]).collect();
        Cell {
            launches: vec![self.launches; self.members.len()],
            arrivals: self.arrivals.clone(),
            cycles: u64::MAX / 4_000_000,
            ..study.cell(programs, arrangement)
        }
    }
}

/// The name of a program in tables of pairs.
#[must_use]
pub fn id(member: usize) -> ApplicationId {
    ApplicationId(u32::try_from(member).unwrap_or(u32::MAX))
}

/// Mean nanoseconds from one completed CTA of an application to the next; `None` where none was.
fn nanos_per_cta(shared: &Shared, place: usize) -> Option<f64> {
    let track = &shared.shares.get(place)?.track;
    let ctas = track.ctas();
    (ctas > 0).then(|| float(track.last_growth()) / float(ctas))
}
