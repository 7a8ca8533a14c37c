//! `partita bench policies`: every policy on the same random mixes of all programs that the benches
//! of the papers have.

mod decision_time;
mod figures;

use crate::cd_search::seeds::combined;
use crate::evaluation::{Evaluation, Studied, write_files};
use clap::Args;
use figures::{Figures, Mix};
use partita_bench::comparison::{Comparison, mixes, programs};
use partita_bench::{Application, Arrangement, Cell};
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_model::{PartitionerKind, PolicyName, SelectorKind};

const EXAMPLES: &str = "\
Examples:
  partita bench policies --quick
      compare all policies on six pairs and two mixes of four programs
  partita bench policies --quick --policies cd-search,slate+cd-search
      compare two policies with even shares, MPS-like sharing and time slices
  partita bench policies --spec a100 --mixes 4 --json | jq '.metrics[] | {name, value}'
      another GPU, as JSON
  partita bench policies --seeds 1,2,3 --out results
      three samples of mixes, and their spread; after an interruption, the same command continues

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The modelled GPU where none is named.
const SPEC: &str = "gpgpu-sim-24";
/// What each program has to do, in SM cycles alone.
const WORK: u64 = 1_000_000;
const QUICK_WORK: u64 = 500_000;
/// Pairs; there are half as many mixes of four.
const MIXES: usize = 24;
const QUICK_MIXES: usize = 4;

/// What all policies are compared with.
const EVEN: Arrangement = Arrangement::Policy(SelectorKind::Everyone, PartitionerKind::Even);

/// Compare all policies: throughput, turnaround, fairness, decision time.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct PoliciesArgs {
    #[command(flatten)]
    common: Evaluation,

    /// The number of random pairs; there are half as many mixes of four programs [default: 24; 4
    /// with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    mixes: Option<u16>,

    /// Compare only these policies, as `partitad --policy` names them.
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policies: Vec<PolicyName>,

    /// The time that each program works alone, in SM cycles [default: 1,000,000; 500,000 with
    /// --quick].
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u64).range(200_000..=1_000_000_000))]
    cycles: Option<u64>,

    /// The seeds of the mixes, of the programs' data and of the choices that a GPU leaves open.
    /// With several seeds a figure is their mean, and its spread is their standard deviation.
    #[arg(long, alias = "seed", value_name = "SEED", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
}

/// A policy with the name that `--policy` knows.
pub struct Candidate {
    pub name: String,
    pub selector: SelectorKind,
    pub partitioner: PartitionerKind,
}

impl Candidate {
    fn new(selector: SelectorKind, partitioner: PartitionerKind) -> Candidate {
        let name = match selector {
            SelectorKind::Everyone => named(partitioner),
            _ => format!("{}+{}", named(selector), named(partitioner)),
        };
        Candidate { name, selector, partitioner }
    }

    fn arrangement(&self) -> Arrangement {
        Arrangement::Policy(self.selector, self.partitioner)
    }
}

/// The name of a kind in configurations.
fn named(kind: impl serde::Serialize) -> String {
    let name = serde_json::to_value(kind).ok();
    name.and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

impl PoliciesArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let candidates = self.candidates();
        let mut studied = Vec::new();
        for &seed in &self.seeds {
            studied.push(self.study(&spec, &candidates, seed)?);
        }
        let mut metrics = combined(studied.iter().map(|studied| &*studied.metrics));
        metrics.extend(decision_time::metrics(&spec, &candidates)?);
        let report = Report {
            bench: "policies".into(),
            device: format!("{}, {} cycles of work", spec.name, self.work()),
            seed: self.seeds[0],
            metrics,
        };
        self.common.shown(&report, &self.seeds, &studied)
    }

    fn work(&self) -> u64 {
        self.cycles.unwrap_or(if self.common.quick { QUICK_WORK } else { WORK })
    }

    /// The policies that were asked for, else all.
    fn candidates(&self) -> Vec<Candidate> {
        use PartitionerKind::{CdSearch, CdSearchPaper, Demand, Even, Smra};
        use SelectorKind::{Everyone, Kernelet, Matching, Slate};
        if self.policies.is_empty() {
            let all = [
                (Everyone, CdSearch),
                (Everyone, CdSearchPaper),
                (Everyone, Demand),
                (Everyone, Smra),
                (Slate, Demand),
                (Slate, CdSearch),
                (Kernelet, Even),
                (Matching, Smra),
                (Matching, CdSearch),
            ];
            return { all.into_iter() }
                .map(|(selector, partitioner)| Candidate::new(selector, partitioner))
                .collect();
        }
        let named = self.policies.iter().map(|policy| {
            let selector = policy.selector.unwrap_or_default();
            let partitioner = policy.partitioner.unwrap_or(selector.usual_partitioner());
            Candidate::new(selector, partitioner)
        });
        named.collect()
    }

    /// Measures with one seed.
    fn study(&self, spec: &Spec, candidates: &[Candidate], seed: u64) -> Result<Studied, Failure> {
        let all = programs(seed);
        let pairs = self
            .mixes
            .map_or_else(|| if self.common.quick { QUICK_MIXES } else { MIXES }, usize::from);
        let mut chosen = mixes(all.len(), &[(2, pairs), (4, pairs.div_ceil(2))], seed);
        // Programs that are in no mix are not measured.
        let used: Vec<usize> =
            (0..all.len()).filter(|at| chosen.iter().any(|mix| mix.contains(at))).collect();
        let programs: Vec<&Application> = used.iter().map(|&at| &all[at]).collect();
        for member in chosen.iter_mut().flatten() {
            *member = used.binary_search(member).unwrap_or(0);
        }
        let mut cells = Evaluation::cells(seed)?;
        let mut study = Comparison::new(spec, programs, self.work());
        self.common.compute("work", &mut cells, &study.first_cells())?;
        study.take_work(&mut cells)?;
        self.common.compute("alone", &mut cells, &study.alone_cells())?;
        study.take_alone(&mut cells)?;
        let mut arrangements = vec![EVEN, Arrangement::Mps, Arrangement::TimeSlice];
        arrangements.extend(candidates.iter().map(Candidate::arrangement));
        let wanted: Vec<Cell<'_>> = { chosen.iter() }
            .flat_map(|mix| arrangements.iter().map(|how| study.cell(mix, how.clone())))
            .collect();
        self.common.compute("mixes", &mut cells, &wanted)?;
        let mut found = Vec::new();
        for mix in &chosen {
            let mut outcomes = Vec::new();
            for how in &arrangements {
                outcomes.push(study.outcome(mix, how.clone(), &mut cells)?);
            }
            found.push(Mix { title: study.title(mix), outcomes });
        }
        let mut names = vec!["even".to_owned(), "MPS".to_owned(), "time slices".to_owned()];
        names.extend(candidates.iter().map(|candidate| candidate.name.clone()));
        let figures = Figures { names, mixes: found };
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{seed}"));
            let folder = if self.seeds.len() > 1 { &of_seed } else { folder };
            write_files(folder, &[("mixes.csv", figures.csv()), ("mixes.svg", figures.plot())])?;
        }
        Ok(Studied { metrics: figures.metrics(), text: figures.table() })
    }
}
