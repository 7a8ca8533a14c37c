//! The runs of `partita bench kernelet` on one GPU, and what plans take by them.

use crate::evaluation::Evaluation;
use partita_bench::coscheduling::{Coscheduling, CoschedulingError, Pair, Queue, Sliced, Solo, id};
use partita_bench::pairing::makespan;
use partita_bench::{Application, Arrangement, Cells, MIXES};
use partita_cli::failure::Failure;
use partita_emu::Spec;
use partita_model::{PartitionerKind, SelectorKind};
use partita_policy::{Adviser as _, Candidate, Group, Kernelet, KerneletSettings, PairTable};

/// Random plans that a mix is compared with (Kernelet §5.1).
pub const RANDOM_PLANS: usize = 1_000;

/// What is measured on a GPU.
pub struct How<'a> {
    pub spec: &'a Spec,
    /// Launches of each program in a mix.
    pub launches: u64,
    /// Cycles that a pair is measured for.
    pub cycles: u64,
    pub seed: u64,
}

/// One GPU.
pub struct Measured {
    pub spec: Spec,
    pub names: Vec<String>,
    pub solos: Vec<Solo>,
    /// Slices of each program, by rising size.
    pub slices: Vec<Vec<Sliced>>,
    pub pairs: Vec<Pair>,
    pub mixes: Vec<Mix>,
}

/// One mix of the paper's Table 2. Times are in nanoseconds.
pub struct Mix {
    pub name: &'static str,
    /// Measured, from the first arrival to the last end.
    pub apart: f64,
    pub consolidation: f64,
    /// Under the selector `kernelet`, as the daemon runs it.
    pub live: f64,
    /// By the table of measured pairs, without arrivals.
    pub apart_by_table: f64,
    pub kernelet: f64,
    pub oracle: f64,
    pub best: f64,
    /// Of random plans, rising.
    pub random: Vec<f64>,
    /// What the adviser cut the mix into.
    pub groups: Vec<Group>,
}

impl Measured {
    /// Measures.
    pub fn new(
        common: &Evaluation,
        programs: &[Application],
        how: &How<'_>,
        cells: &mut Cells,
    ) -> Result<Measured, Failure> {
        let mut study =
            Coscheduling::new(how.spec, programs.iter().collect(), how.cycles).map_err(failed)?;
        common.compute("alone", cells, &study.alone_cells())?;
        study.take_alone(cells).map_err(failed)?;
        let slices = slices(common, &study, cells)?;
        let mut pairs = Vec::new();
        for members in study.pairs() {
            pairs.extend(study.ratios(members).map_err(failed)?);
        }
        common.compute("pairs", cells, &study.pair_cells(&pairs))?;
        study.take_pairs(&mut pairs, cells).map_err(failed)?;
        let mixes = mixes(common, &study, &pairs, how, cells)?;
        Ok(Measured {
            spec: how.spec.clone(),
            names: programs.iter().map(|program| program.name.clone()).collect(),
            solos: study.solos,
            slices,
            pairs,
            mixes,
        })
    }
}

fn slices(
    common: &Evaluation,
    study: &Coscheduling<'_>,
    cells: &mut Cells,
) -> Result<Vec<Vec<Sliced>>, Failure> {
    let members = 0..study.programs.len();
    let cuts = members.clone().map(|member| study.in_slices(member));
    let cuts = cuts.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let wanted: Vec<_> = cuts.iter().flat_map(|cuts| study.slice_cells(cuts)).collect();
    common.compute("slices", cells, &wanted)?;
    let found = members.zip(&cuts).map(|(member, cuts)| study.take_slices(member, cuts, cells));
    found.collect::<Result<_, _>>().map_err(failed)
}

fn mixes(
    common: &Evaluation,
    study: &Coscheduling<'_>,
    pairs: &[Pair],
    how: &How<'_>,
    cells: &mut Cells,
) -> Result<Vec<Mix>, Failure> {
    let place = |name: &str| study.programs.iter().position(|program| program.name == name);
    let queues: Vec<(&'static str, Queue)> = MIXES
        .iter()
        .map(|(name, programs)| {
            let members = programs.iter().filter_map(|program| place(program)).collect();
            (*name, members)
        })
        .filter(|(_, members): &(_, Vec<usize>)| members.len() > 1)
        .map(|(name, members)| (name, Queue::new(study, members, how.launches, how.seed)))
        .collect();
    let runs = |queue| arrangements(study, queue);
    let wanted: Vec<_> = queues.iter().flat_map(|(_, queue)| runs(queue)).collect();
    common.compute("mixes", cells, &wanted)?;
    let adviser = Kernelet::new(study.hardware, KerneletSettings::default())
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut found = Vec::new();
    for (name, queue) in &queues {
        let mut measured = Vec::new();
        for run in runs(queue) {
            measured.push(makespan(&cells.get(&run)?) - queue.first());
        }
        let [apart, consolidation, live] = measured[..] else { continue };
        let table = study.table(&queue.members, how.launches, pairs).map_err(failed)?;
        let groups = adviser.advise(&candidates(study, &queue.members));
        let time = |plan: &[Group]| table.time(plan).map_err(|error| failed(error.into()));
        found.push(Mix {
            name,
            apart,
            consolidation,
            live,
            apart_by_table: time(&table.apart())?,
            kernelet: time(&groups)?,
            oracle: time(&table.greedy())?,
            best: time(&table.best().map_err(|error| failed(error.into()))?)?,
            random: random(&table, how.seed)?,
            groups,
        });
    }
    Ok(found)
}

/// The runs of a queue: one after the other, consolidated as by MPS, and under the selector.
fn arrangements<'a>(study: &'a Coscheduling<'_>, queue: &'a Queue) -> [partita_bench::Cell<'a>; 3] {
    let live = Arrangement::Policy(SelectorKind::Kernelet, PartitionerKind::Even);
    [queue.apart(study), queue.under(study, Arrangement::Mps), queue.under(study, live)]
}

fn candidates(study: &Coscheduling<'_>, members: &[usize]) -> Vec<Candidate> {
    let candidate = |&member: &usize| Candidate {
        application: id(member),
        character: Some(study.solos[member].character),
    };
    members.iter().map(candidate).collect()
}

fn random(table: &PairTable, seed: u64) -> Result<Vec<f64>, Failure> {
    let seeds = seed.wrapping_mul(1 << 16)..;
    let times = seeds.take(RANDOM_PLANS).map(|seed| table.time(&table.random(seed)));
    let mut times = times.collect::<Result<Vec<f64>, _>>().map_err(|error| failed(error.into()))?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn failed(error: CoschedulingError) -> Failure {
    Failure::new(error.to_string())
}
