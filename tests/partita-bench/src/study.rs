//! The evaluation of CD-search: which runs there are, and the figures that follow from them.
//!
//! - **Truth** is measured: an application is memory-intensive where all SMs make its own kernels
//!   less than 1.5 times as fast as half of them (CD-search Fig. 7).
//! - **Speeds** count original work against the original kernels alone on the whole GPU
//!   ([`crate::Track`]).
//! - **A mix** runs from the arrival of its applications to the end, its search included, as in
//!   CD-search §6. Their kernels have run before, so their profiles are known; *cold* they are not,
//!   and first launches are counted.
//! - **The oracle** is the best split that never moves, over even numbers of SMs, measured after a
//!   warm-up: all for a while, then the best of them as long as the mix itself, because long CTAs
//!   make short intervals flatter some splits (one by 7 %).

use crate::application::Application;
use crate::arrangement::Arrangement;
use crate::cells::{Cell, Cells};
use crate::hardware::measured;
use crate::outcome::{RunError, Shared};
use crate::track::{Track, antt, float, stp};
use partita_emu::Spec;
use partita_model::{Class, SupplyModel};
use std::collections::BTreeMap;

/// Speed with all SMs by speed with half of them, below which an application is memory-intensive.
pub const SATURATES: f64 = 1.5;
/// A mix runs for so many cycles where nothing else is said (CD-search §6).
pub const MIX_CYCLES: u64 = 2_000_000;
/// An application alone on all SMs runs for so many, as it is and as workers; beyond that it goes
/// on at the same pace. CTAs that begin together end together: in fewer cycles such a wave more or
/// less is several percent.
pub const WHOLE_CYCLES: u64 = MIX_CYCLES;
/// A point of a curve takes so many.
pub const CURVE_CYCLES: u64 = 500_000;
/// A split of the oracle: warm-up, and all.
const ORACLE_WARM_UP: u64 = 150_000;
/// See [`ORACLE_WARM_UP`].
pub const ORACLE_CYCLES: u64 = 500_000;
/// So many splits run as long as the mix.
const FINALISTS: usize = 3;
/// What the power mode's oracle keeps of the even split's throughput.
const KEEP: f64 = 0.95;

/// An application alone.
#[derive(Clone, Debug)]
pub struct Alone {
    /// Its kernels as they are, on all SMs.
    pub whole: Track,
    /// Speed against that, by SMs.
    pub curve: BTreeMap<u16, f64>,
    /// Its class by the curve.
    pub truth: Class,
    /// Its class by the off-SM bandwidth model and what the emulator counted on half of the SMs.
    pub modelled: Option<Class>,
    /// Part of DRAM's bandwidth that it used on half of the SMs.
    pub dram: f64,
    /// Its kernels as workers on all SMs, against the same as they are.
    pub worker: f64,
}

impl Alone {
    /// Speed on all SMs by speed on half of them.
    #[must_use]
    pub fn gain(&self, sms: u16) -> f64 {
        let at = |sms| self.curve.get(&sms).copied().unwrap_or(0.0);
        at(sms) / at(sms / 2).max(1e-9)
    }
}

/// What a mix consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Both classes: performance mode.
    Mixed,
    /// All memory-intensive: power mode.
    Memory,
    /// All compute-intensive: nothing to do.
    Compute,
}

impl Kind {
    /// Of these classes.
    #[must_use]
    pub fn of(classes: &[Class]) -> Kind {
        let memory = classes.iter().filter(|class| **class == Class::Memory).count();
        match memory {
            0 => Kind::Compute,
            all if all == classes.len() => Kind::Memory,
            _ => Kind::Mixed,
        }
    }
}

/// Speeds of a mix in one arrangement.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Of each application, against alone.
    pub speeds: Vec<f64>,
    /// Mean power in watts.
    pub watts: f64,
}

impl Outcome {
    /// System throughput.
    #[must_use]
    pub fn stp(&self) -> f64 {
        stp(&self.speeds)
    }

    /// Average normalised turnaround time.
    #[must_use]
    pub fn antt(&self) -> f64 {
        antt(&self.speeds)
    }
}

/// A mix in several arrangements.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Indices of its applications.
    pub members: Vec<usize>,
    /// Their classes by measured curves.
    pub kind: Kind,
    /// What the policy took them for at first.
    pub found: Vec<Option<Class>>,
    /// CD-search from arrival to end.
    pub searched: Outcome,
    /// The same after the search.
    pub after: Option<Outcome>,
    /// The paper's own algorithm from arrival to end, and SMs at the end, where it was tried.
    pub paper: Option<(Outcome, Vec<u16>)>,
    /// From arrival to end, where nothing was known of any kernel, if that was tried.
    pub cold: Option<Outcome>,
    /// Device time of the search, in nanoseconds.
    pub search: Option<u64>,
    /// How often everything was classified again.
    pub again: u32,
    /// SMs at the end.
    pub sms: Vec<u16>,
    /// Even shares.
    pub even: Outcome,
    /// MPS-like sharing, where it was tried.
    pub mps: Option<Outcome>,
    /// Time slices, where they were tried.
    pub slices: Option<Outcome>,
    /// The best split that never moves, and its speeds.
    pub oracle: Option<(Vec<u16>, Outcome)>,
    /// What the policy decided, and why.
    pub decisions: Vec<String>,
}

/// What a mix is tried with besides CD-search and even shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beside {
    /// MPS-like sharing and time slices.
    pub baselines: bool,
    /// The oracle.
    pub oracle: bool,
    /// CD-search without profiles from earlier runs.
    pub cold: bool,
    /// The paper's own algorithm.
    pub paper: bool,
}

/// Applications on one modelled GPU.
pub struct Study<'a> {
    /// The GPU.
    pub spec: &'a Spec,
    /// The applications.
    pub applications: Vec<&'a Application>,
    /// A mix runs for so many SM cycles.
    pub mix_cycles: u64,
    /// What each is alone, as far as it was measured.
    pub alone: Vec<Alone>,
}

impl<'a> Study<'a> {
    /// Nothing measured yet.
    #[must_use]
    pub fn new(spec: &'a Spec, applications: Vec<&'a Application>) -> Study<'a> {
        Study { spec, applications, mix_cycles: MIX_CYCLES, alone: Vec::new() }
    }

    fn cell(&self, members: &[usize], arrangement: Arrangement, cycles: u64) -> Cell<'a> {
        let applications = members.iter().map(|&index| self.applications[index]).collect();
        Cell {
            applications,
            spec: self.spec,
            arrangement,
            cycles,
            launches: Vec::new(),
            arrivals: Vec::new(),
        }
    }

    /// The runs that [`Study::measure_alone`] looks at.
    #[must_use]
    pub fn alone_cells(&self, counts: &[u16]) -> Vec<Cell<'a>> {
        let all = 0..self.applications.len();
        all.flat_map(|index| {
            let runs = self.alone_runs(counts).into_iter();
            runs.map(move |(arrangement, cycles)| self.cell(&[index], arrangement, cycles))
        })
        .collect()
    }

    /// All SMs, half of them, all as workers, and then the others.
    fn alone_runs(&self, counts: &[u16]) -> Vec<(Arrangement, u64)> {
        let sms = self.spec.sms;
        let mut runs = vec![
            (Arrangement::Original(sms), WHOLE_CYCLES),
            (Arrangement::Original(sms / 2), CURVE_CYCLES),
            (Arrangement::Static(vec![sms]), WHOLE_CYCLES),
        ];
        let others = counts.iter().filter(|count| ![sms, sms / 2].contains(count));
        runs.extend(others.map(|&count| (Arrangement::Original(count), CURVE_CYCLES)));
        runs
    }

    /// Measures every application alone, on these SM counts besides all and half of them.
    ///
    /// # Errors
    /// Where one cannot run.
    pub fn measure_alone(&mut self, counts: &[u16], cells: &mut Cells) -> Result<(), RunError> {
        for index in 0..self.applications.len() {
            let alone = self.one_alone(index, counts, cells)?;
            self.alone.push(alone);
        }
        Ok(())
    }

    fn one_alone(
        &self,
        index: usize,
        counts: &[u16],
        cells: &mut Cells,
    ) -> Result<Alone, RunError> {
        let sms = self.spec.sms;
        let mut shared = Vec::new();
        let runs = self.alone_runs(counts);
        for (arrangement, cycles) in &runs {
            shared.push(cells.get(&self.cell(&[index], arrangement.clone(), *cycles))?);
        }
        let track = |shared: &Shared| shared.shares[0].track.clone();
        let whole = track(&shared[0]);
        let speed = |shared: &Shared| {
            let track = track(shared);
            track.speed_against(&whole, 0, track.last_growth())
        };
        let on = |(arrangement, shared): (&Arrangement, &Shared)| match arrangement {
            Arrangement::Original(count) => Some((*count, speed(shared))),
            _ => None,
        };
        let curve: BTreeMap<u16, f64> =
            runs.iter().map(|(arrangement, _)| arrangement).zip(&shared).filter_map(on).collect();
        let (half, worker) = (&shared[1], speed(&shared[2]));
        let work = &half.counters.work;
        let hardware = measured(self.spec);
        let modelled = partita_policy::classify(&hardware, &work.traffic(), SupplyModel::Printed);
        let seconds = float(half.nanos) / 1e9;
        let mut alone = Alone {
            whole: whole.clone(),
            curve,
            truth: Class::Compute,
            modelled: modelled.map(|(class, _)| class),
            dram: float(work.dram_bytes)
                / seconds.max(1e-12)
                / self.spec.calibration().dram_bytes_per_second,
            worker,
        };
        if alone.gain(sms) < SATURATES {
            alone.truth = Class::Memory;
        }
        Ok(alone)
    }

    /// What kind of mix these applications are by their curves.
    #[must_use]
    pub fn kind(&self, members: &[usize]) -> Kind {
        let classes: Vec<Class> = members.iter().map(|&index| self.alone[index].truth).collect();
        Kind::of(&classes)
    }

    /// The runs that [`Study::mix`] looks at.
    #[must_use]
    pub fn mix_cells(&self, members: &[usize], beside: Beside) -> Vec<Cell<'a>> {
        let mut cells = vec![
            self.cell(members, Arrangement::CdSearch, self.mix_cycles),
            self.cell(members, Arrangement::Even, self.mix_cycles),
        ];
        if beside.baselines {
            cells.push(self.cell(members, Arrangement::Mps, self.mix_cycles));
            cells.push(self.cell(members, Arrangement::TimeSlice, self.mix_cycles));
        }
        if beside.paper {
            cells.push(self.cell(members, Arrangement::CdSearchPaper, self.mix_cycles));
        }
        if beside.cold {
            cells.push(self.cell(members, Arrangement::ColdCdSearch, self.mix_cycles));
        }
        if beside.oracle {
            let split = |counts| self.cell(members, Arrangement::Static(counts), ORACLE_CYCLES);
            cells.extend(self.oracle_splits(members).into_iter().map(split));
        }
        cells
    }

    fn oracle_splits(&self, members: &[usize]) -> Vec<Vec<u16>> {
        match self.kind(members) {
            kind @ (Kind::Mixed | Kind::Memory) if members.len() == 2 => {
                splits_of(self.spec.sms, kind)
            }
            _ => Vec::new(),
        }
    }

    /// Runs a mix. All of its applications have been measured alone.
    ///
    /// # Errors
    /// Where one cannot run.
    pub fn mix(
        &self,
        members: &[usize],
        beside: Beside,
        cells: &mut Cells,
    ) -> Result<Mix, RunError> {
        let mut get =
            |arrangement: Arrangement, cycles| cells.get(&self.cell(members, arrangement, cycles));
        let kind = self.kind(members);
        let whole = |shared: &Shared| self.outcome(members, shared, 0);
        let shared = get(Arrangement::CdSearch, self.mix_cycles)?;
        let even = whole(&get(Arrangement::Even, self.mix_cycles)?);
        let mut mix = Mix {
            members: members.to_vec(),
            kind,
            found: shared.shares.iter().map(|share| share.class).collect(),
            after: shared.searched.map(|searched| self.outcome(members, &shared, searched)),
            search: shared.searched,
            again: shared.again,
            sms: shared.shares.iter().map(|share| share.sms).collect(),
            searched: whole(&shared),
            even,
            paper: None,
            cold: None,
            mps: None,
            slices: None,
            oracle: None,
            decisions: shared.decisions,
        };
        if beside.baselines {
            mix.mps = Some(self.to_the_end(members, &get(Arrangement::Mps, self.mix_cycles)?));
            mix.slices =
                Some(self.to_the_end(members, &get(Arrangement::TimeSlice, self.mix_cycles)?));
        }
        if beside.paper {
            let shared = get(Arrangement::CdSearchPaper, self.mix_cycles)?;
            let sms = shared.shares.iter().map(|share| share.sms).collect();
            mix.paper = Some((whole(&shared), sms));
        }
        if beside.cold {
            mix.cold = Some(whole(&get(Arrangement::ColdCdSearch, self.mix_cycles)?));
        }
        if beside.oracle {
            let finalists = self.finalists(members, cells)?;
            let splits = self.splits(members, finalists, self.mix_cycles, cells)?;
            mix.oracle = best(kind, self.spec.sms, splits);
        }
        Ok(mix)
    }

    /// The further runs that [`Study::mix`] looks at for the oracle, when those of
    /// [`Study::mix_cells`] are done.
    ///
    /// # Errors
    /// Where one of those failed.
    pub fn finalist_cells(
        &self,
        members: &[usize],
        cells: &mut Cells,
    ) -> Result<Vec<Cell<'a>>, RunError> {
        let finalists = self.finalists(members, cells)?;
        let cell = |counts| self.cell(members, Arrangement::Static(counts), self.mix_cycles);
        Ok(finalists.into_iter().map(cell).collect())
    }

    fn finalists(&self, members: &[usize], cells: &mut Cells) -> Result<Vec<Vec<u16>>, RunError> {
        let splits = self.splits(members, self.oracle_splits(members), ORACLE_CYCLES, cells)?;
        Ok(finalists(self.kind(members), self.spec.sms, splits))
    }

    fn splits(
        &self,
        members: &[usize],
        splits: Vec<Vec<u16>>,
        cycles: u64,
        cells: &mut Cells,
    ) -> Result<Vec<(Vec<u16>, Outcome)>, RunError> {
        let warm = ORACLE_WARM_UP * 1_000_000 / u64::from(self.spec.sm_clock_khz.max(1));
        let measured = |counts: Vec<u16>| {
            let shared =
                cells.get(&self.cell(members, Arrangement::Static(counts.clone()), cycles))?;
            Ok((counts, self.outcome(members, &shared, warm)))
        };
        splits.into_iter().map(measured).collect()
    }

    /// Speeds from a moment to the last CTA that was seen to end: between bursts of CTAs nothing is
    /// lost.
    fn outcome(&self, members: &[usize], shared: &Shared, from: u64) -> Outcome {
        self.speeds(members, shared, from, |track| track.last_growth())
    }

    /// Speeds of the whole run, in which applications also wait for their turn.
    fn to_the_end(&self, members: &[usize], shared: &Shared) -> Outcome {
        self.speeds(members, shared, 0, Track::end)
    }

    fn speeds(
        &self,
        members: &[usize],
        shared: &Shared,
        from: u64,
        to: impl Fn(&Track) -> u64,
    ) -> Outcome {
        let speed = |(&index, share): (&usize, &crate::outcome::Share)| {
            share.track.speed_against(&self.alone[index].whole, from, to(&share.track))
        };
        let speeds = members.iter().zip(&shared.shares).map(speed).collect();
        Outcome { speeds, watts: float(shared.counters.nanojoules) / float(shared.nanos.max(1)) }
    }
}

/// The splits that the oracle tries, in even numbers: of all SMs for a mix of both classes, else
/// also of fewer.
#[must_use]
pub fn splits_of(sms: u16, kind: Kind) -> Vec<Vec<u16>> {
    let numbers = || (2..sms).step_by(2);
    match kind {
        Kind::Mixed | Kind::Compute => numbers().map(|first| vec![first, sms - first]).collect(),
        Kind::Memory => {
            let half = || numbers().filter(|count| *count <= sms / 2);
            half().flat_map(|first| half().map(move |second| vec![first, second])).collect()
        }
    }
}

/// The best of these splits: the most throughput; for a mix without compute-intensive applications
/// the fewest SMs that keep the even split's, ties to the faster.
fn best(kind: Kind, sms: u16, splits: Vec<(Vec<u16>, Outcome)>) -> Option<(Vec<u16>, Outcome)> {
    let faster = |a: &(Vec<u16>, Outcome), b: &(Vec<u16>, Outcome)| a.1.stp().total_cmp(&b.1.stp());
    if kind != Kind::Memory {
        return splits.into_iter().max_by(faster);
    }
    let even = splits.iter().find(|(counts, _)| counts.iter().all(|count| *count == sms / 2));
    let enough = even.map_or(0.0, |(_, outcome)| KEEP * outcome.stp());
    let total = |(counts, _): &(Vec<u16>, Outcome)| counts.iter().sum::<u16>();
    let keeping = splits.into_iter().filter(|(_, outcome)| outcome.stp() >= enough);
    keeping.min_by(|a, b| total(a).cmp(&total(b)).then(faster(b, a)))
}

/// The best few, and the even split, with which those of a mix without compute-intensive
/// applications are compared.
fn finalists(kind: Kind, sms: u16, mut splits: Vec<(Vec<u16>, Outcome)>) -> Vec<Vec<u16>> {
    let is_even = |counts: &[u16]| counts.iter().all(|count| *count == sms / 2);
    let even = splits.iter().position(|(counts, _)| is_even(counts)).map(|at| splits[at].clone());
    let mut chosen: Vec<Vec<u16>> = Vec::new();
    while chosen.len() < FINALISTS
        && let Some((counts, _)) = best(kind, sms, splits.clone())
    {
        splits.retain(|(other, _)| *other != counts || is_even(other) && kind == Kind::Memory);
        if chosen.contains(&counts) {
            break;
        }
        chosen.push(counts);
    }
    chosen.extend(even.map(|(counts, _)| counts).filter(|counts| !chosen.contains(counts)));
    chosen
}

/// The threshold on DRAM utilisation that tells most mixes right, and how many it tells wrong:
/// CD-search §4.1.1's rival.
#[must_use]
pub fn wrong_by_dram(alone: &[Alone]) -> (f64, usize) {
    let wrong = |threshold: f64| {
        let right = |alone: &Alone| (alone.dram > threshold) == (alone.truth == Class::Memory);
        pairs(alone.len()).filter(|&[a, b]| !(right(&alone[a]) && right(&alone[b]))).count()
    };
    let thresholds = alone.iter().map(|alone| alone.dram).chain([0.0]);
    thresholds
        .map(|threshold| (threshold, wrong(threshold)))
        .min_by_key(|(_, wrong)| *wrong)
        .unwrap_or((0.0, 0))
}

/// All pairs of so many.
pub fn pairs(count: usize) -> impl Iterator<Item = [usize; 2]> {
    (0..count).flat_map(move |first| (first + 1..count).map(move |second| [first, second]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(speeds: &[f64]) -> Outcome {
        Outcome { speeds: speeds.to_vec(), watts: 0.0 }
    }

    fn alone(dram: f64, truth: Class) -> Alone {
        Alone {
            whole: Track::default(),
            curve: BTreeMap::new(),
            truth,
            modelled: None,
            dram,
            worker: 1.0,
        }
    }

    #[test]
    fn there_are_91_mixes_of_14() {
        assert_eq!(pairs(14).count(), 91);
        assert_eq!(Kind::of(&[Class::Memory, Class::Compute]), Kind::Mixed);
        assert_eq!(Kind::of(&[Class::Memory, Class::Memory]), Kind::Memory);
    }

    #[test]
    fn the_oracle_wants_throughput_or_few_sms() {
        let splits = vec![
            (vec![12, 12], outcome(&[0.5, 0.5])),
            (vec![4, 4], outcome(&[0.49, 0.47])),
            (vec![6, 2], outcome(&[0.5, 0.47])),
            (vec![2, 2], outcome(&[0.3, 0.3])),
        ];
        assert_eq!(best(Kind::Memory, 24, splits.clone()).unwrap().0, [6, 2]);
        let chosen = finalists(Kind::Memory, 24, splits.clone());
        assert_eq!(chosen, [vec![6, 2], vec![4, 4], vec![12, 12]]);
        assert_eq!(best(Kind::Mixed, 24, splits).unwrap().0, [12, 12]);
        let splits = [(12, 0.5), (4, 0.7), (6, 0.6), (8, 0.8), (10, 0.4)];
        let splits = splits.map(|(first, speed)| (vec![first, 24 - first], outcome(&[speed, 0.5])));
        let chosen = finalists(Kind::Mixed, 24, splits.to_vec());
        assert_eq!(chosen, [vec![8, 16], vec![4, 20], vec![6, 18], vec![12, 12]]);
        assert_eq!(splits_of(24, Kind::Mixed).len(), 11);
        assert_eq!(splits_of(24, Kind::Memory).len(), 36);
    }

    #[test]
    fn dram_utilisation_alone_can_be_wrong() {
        use Class::{Compute, Memory};
        let fine = [alone(0.1, Compute), alone(0.6, Memory), alone(0.7, Memory)];
        assert_eq!(wrong_by_dram(&fine).1, 0);
        // Limited by the LLC: no threshold tells it from the compute-intensive one.
        let hidden = [alone(0.1, Compute), alone(0.0, Memory), alone(0.7, Memory)];
        assert_eq!(wrong_by_dram(&hidden).1, 2);
    }
}
