//! `partita bench slate`: the evaluation of Slate (IPDPS '19 §V) on five programs of its kinds.

mod figures;
mod funnel;

use crate::cd_search::seeds::combined;
use crate::evaluation::{Evaluation, Studied, write_files};
use clap::Args;
use figures::{Figures, Pair};
use partita_bench::pairing::{Pairing, makespan, split_makespan};
use partita_bench::{Application, Arrangement, Cell, Cells, samples};
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_model::{PartitionerKind, SelectorKind};

const EXAMPLES: &str = "\
Examples:
  partita bench slate --quick
      measure all 15 pairs with short runs
  partita bench slate --quick --json | jq '.metrics[] | {name, value, goal}'
      the same, as JSON
  partita bench slate --only quasirandom,gaussian --decisions
      measure three pairs, and print why applications run together
  partita bench slate --out results
      measure all pairs; after an interruption, the same command continues

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The paper's GPU.
const SPEC: &str = "titan-xp";
/// What an application has to do, in SM cycles alone, and the same of a quick run.
///
/// The paper loops kernels for 30 s. Emulation allows milliseconds; the start and the end of an
/// application should count for little in them. A border takes 30 us, a turn 2 ms.
const WORK: u64 = 12_000_000;
const QUICK_WORK: u64 = 800_000;
/// What a split of the oracle is measured for.
const SPLIT_CYCLES: u64 = 1_000_000;
const QUICK_SPLIT_CYCLES: u64 = 300_000;
/// SMs of the first application in the splits that a quick run tries, in eighths of all.
const QUICK_EIGHTHS: [u16; 3] = [2, 4, 6];

/// The policy that is judged.
const SLATE: Arrangement = Arrangement::Policy(SelectorKind::Slate, PartitionerKind::Demand);
/// The policies beside it.
const OTHERS: [(&str, Arrangement); 4] = [
    ("slate+cd-search", Arrangement::Policy(SelectorKind::Slate, PartitionerKind::CdSearch)),
    ("even", Arrangement::Policy(SelectorKind::Everyone, PartitionerKind::Even)),
    ("cd-search", Arrangement::Policy(SelectorKind::Everyone, PartitionerKind::CdSearch)),
    ("kernelet", Arrangement::Policy(SelectorKind::Kernelet, PartitionerKind::Even)),
];

/// Measure Slate's table: throughput of pairs against time slices, MPS, even shares and an oracle.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct SlateArgs {
    #[command(flatten)]
    common: Evaluation,

    /// Measure only these programs, and their pairs.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// The time that each application works alone, in SM cycles [default: 12,000,000; 800,000
    /// with --quick].
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u64).range(200_000..=1_000_000_000))]
    cycles: Option<u64>,

    /// The seeds of the programs' data and of the choices that a GPU leaves open. With several
    /// seeds a figure is their mean, and its spread is their standard deviation.
    #[arg(long, alias = "seed", value_name = "SEED", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,

    /// Leave out what the funnel costs, which runs a daemon and needs nvcc.
    #[arg(long)]
    no_funnel: bool,
}

impl SlateArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(self.spec_name())?;
        let studied: Vec<Studied> =
            self.seeds.iter().map(|&seed| self.study(&spec, seed)).collect::<Result<_, _>>()?;
        let report = Report {
            bench: "slate".into(),
            device: format!("{}, {} cycles of work", spec.name, self.work()),
            seed: self.seeds[0],
            metrics: combined(studied.iter().map(|studied| &*studied.metrics)),
        };
        self.common.shown(&report, &self.seeds, &studied)
    }

    /// Measures with one seed.
    fn study(&self, spec: &Spec, seed: u64) -> Result<Studied, Failure> {
        let all = self.programs(seed)?;
        let mut cells = Evaluation::cells(seed)?;
        let mut pairing = Pairing::new(spec, all.iter().collect(), self.work());
        self.common.compute("work", &mut cells, &pairing.first_cells())?;
        pairing.take_work(&mut cells)?;
        self.common.compute("alone", &mut cells, &pairing.alone_cells(&SLATE))?;
        pairing.take_alone(&SLATE, &mut cells)?;
        let pairs = self.pairs(&pairing, &mut cells)?;
        // Host time does not depend on the seed.
        let has_funnel = !self.no_funnel && seed == self.seeds[0];
        let funnel = match has_funnel {
            true => funnel::measure(self.spec_name(), self.common.quick, &pairing)?,
            false => Vec::new(),
        };
        let figures = Figures { pairing: &pairing, pairs, funnel };
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{seed}"));
            let folder = if self.seeds.len() > 1 { &of_seed } else { folder };
            let files = [("pairs.svg", figures.plot()), ("pairs.csv", figures.csv())];
            write_files(folder, &files)?;
        }
        let mut text = figures.table();
        if self.common.decisions {
            text.push_str(&figures.decisions());
        }
        Ok(Studied { metrics: figures.metrics(), text })
    }

    fn programs(&self, seed: u64) -> Result<Vec<Application>, Failure> {
        let mut all = samples(seed);
        let names: Vec<String> = all.iter().map(|sample| sample.name.clone()).collect();
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(name)) {
            let names = names.join(", ");
            return Err(Failure::new(format!("no program `{unknown}`: there are {names}")));
        }
        if !self.only.is_empty() {
            all.retain(|sample| self.only.contains(&sample.name));
        }
        Ok(all)
    }

    /// The modelled GPU.
    fn spec_name(&self) -> &str {
        self.common.spec.as_deref().unwrap_or(SPEC)
    }

    /// Cycles that each application works alone.
    fn work(&self) -> u64 {
        self.cycles.unwrap_or(if self.common.quick { QUICK_WORK } else { WORK })
    }

    fn pairs(&self, pairing: &Pairing<'_>, cells: &mut Cells) -> Result<Vec<Pair>, Failure> {
        let pairs = pairing.pairs();
        let mut arrangements = vec![Arrangement::TimeSlice, Arrangement::Mps, SLATE];
        arrangements.extend(OTHERS.map(|(_, how)| how));
        let splits = self.splits(pairing.spec.sms);
        let mut wanted: Vec<Cell<'_>> = Vec::new();
        for pair in &pairs {
            wanted.extend(arrangements.iter().map(|how| pairing.cell(pair, how.clone())));
            wanted.extend(splits.iter().map(|split| self.split_cell(pairing, *pair, split)));
        }
        self.common.compute("pairs", cells, &wanted)?;
        let pair = |members: &[usize; 2]| -> Result<Pair, Failure> {
            let mut found = |how: &Arrangement| cells.get(&pairing.cell(members, how.clone()));
            let slate = found(&SLATE)?;
            let mut others = Vec::new();
            for (_, how) in &OTHERS {
                others.push(makespan(&found(how)?));
            }
            let mut pair = Pair {
                members: *members,
                slices: makespan(&found(&Arrangement::TimeSlice)?),
                mps: makespan(&found(&Arrangement::Mps)?),
                slate: makespan(&slate),
                others,
                oracle: f64::INFINITY,
                decisions: slate.decisions,
            };
            let alone = members.map(|index| pairing.solos[index].shared);
            pair.oracle = alone.iter().sum();
            for split in &splits {
                let shared = cells.get(&self.split_cell(pairing, *members, split))?;
                let speeds = [0, 1].map(|place| {
                    let track = &shared.shares[place].track;
                    let whole = pairing.ctas(members[place]) / alone[place];
                    let done = track.ctas() as f64 / track.last_growth().max(1) as f64;
                    done / whole
                });
                pair.oracle = pair.oracle.min(split_makespan(speeds, alone));
            }
            Ok(pair)
        };
        pairs.iter().map(pair).collect()
    }

    /// SMs of the two applications in the splits of the oracle.
    fn splits(&self, sms: u16) -> Vec<[u16; 2]> {
        let firsts: Vec<u16> = if self.common.quick {
            QUICK_EIGHTHS.iter().map(|eighths| (sms * eighths / 8).max(1)).collect()
        } else {
            (2..sms).step_by(2).collect()
        };
        firsts.into_iter().map(|first| [first, sms - first]).collect()
    }

    /// A pair on a split that does not move, for a while.
    fn split_cell<'a>(
        &self,
        pairing: &Pairing<'a>,
        members: [usize; 2],
        split: &[u16; 2],
    ) -> Cell<'a> {
        let arrangement = Arrangement::Static(split.to_vec());
        let cycles = if self.common.quick { QUICK_SPLIT_CYCLES } else { SPLIT_CYCLES };
        Cell {
            cycles: cycles.min(pairing.work),
            launches: Vec::new(),
            arrivals: Vec::new(),
            ..pairing.cell(&members, arrangement)
        }
    }
}
