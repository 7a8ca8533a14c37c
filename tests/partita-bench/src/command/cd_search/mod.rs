//! `partita bench cd-search`: the evaluation of CD-search on our workloads and on recorded kernels
//! of other programs ("strangers").

mod figures;
mod plots;
pub mod seeds;
mod strangers;

use crate::evaluation::{Evaluation, Studied};
use clap::Args;
use figures::Figures;
use partita_bench::study::{Beside, Kind, MIX_CYCLES, Mix, Study, pairs};
use partita_bench::{Application, Cell, Cells, Random, Workload, workloads};
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_model::SmSet;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita bench cd-search --quick
      measure each workload alone, and a sample of the mixes
  partita bench cd-search --quick --mixes 2 --json | jq '.metrics[] | {name, value, goal}'
      a smaller sample, as JSON
  partita run --device emu,timing=off,record=scan.rec -- ./scan
  partita bench cd-search --quick --mixes 0 --strangers scan.rec
      measure the kernels of a recorded program
  partita bench cd-search --quick --mixes 12 --cycles 8000000
      mixes that run four times as long as the paper's
  partita bench cd-search --quick --mixes 12 --seeds 1,2,11
      measure three samples, and their spread
  partita bench cd-search --estimate
      estimate the time of the whole table on this machine, by one run of each workload
  partita bench cd-search --out results
      measure the whole table; after an interruption, the same command continues

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The paper's GPU.
const SPEC: &str = "gpgpu-sim-24";
/// SM counts of the curves: Fig. 7's, and those of a quick run.
const COUNTS: [u16; 11] = [1, 2, 4, 6, 8, 10, 14, 16, 18, 20, 22];
const QUICK_COUNTS: [u16; 3] = [4, 6, 18];
/// Mixes of a quick run.
const QUICK_MIXES: usize = 6;
/// Mixes of four applications, and mixes that a changed GPU is tried with, in the whole table.
const FOURS: usize = 30;
const SENSITIVE: usize = 12;

/// What a mix is tried with where nothing else is said.
const ALL: Beside = Beside { baselines: true, oracle: true, cold: true, paper: true };

/// Measure CD-search: classes, throughput, power, distance to an oracle.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CdSearchArgs {
    #[command(flatten)]
    common: Evaluation,

    /// The number of mixes of two applications, chosen by the seed [default: all; 6 with --quick].
    #[arg(long, value_name = "N")]
    mixes: Option<usize>,

    /// Measure only these workloads.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// Measure the kernels of these recordings, too. `partita run --device
    /// emu,timing=off,record=FILE` makes a recording.
    #[arg(long, value_name = "RECORDING", num_args = 1..)]
    strangers: Vec<PathBuf>,

    /// The length of a mix in SM cycles. The default is the paper's; a search whose windows wait
    /// for long CTAs takes a large part of it.
    #[arg(long, value_name = "N", default_value_t = MIX_CYCLES,
        value_parser = clap::value_parser!(u64).range(500_000..=1_000_000_000))]
    cycles: u64,

    /// The seeds of the workloads' data, the sample, and the choices that a GPU leaves open. With
    /// several seeds a figure is their mean, and its spread is their standard deviation.
    #[arg(long, alias = "seed", value_name = "SEED", value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,

    /// The seed of the run at hand.
    #[arg(skip)]
    seed: u64,

    /// Estimate the time of the table, by one run of each workload.
    #[arg(long)]
    estimate: bool,
}

/// The same study on another GPU.
struct Variant {
    name: &'static str,
    /// What the paper reports: STP of the performance mode over even shares, per cent.
    paper: Option<f64>,
    dram: f64,
    /// Quarters of the GPU's SMs.
    sm_quarters: u16,
}

const VARIANTS: [Variant; 4] = [
    Variant { name: "75 % of the memory bandwidth", paper: Some(14.4), dram: 0.75, sm_quarters: 4 },
    Variant { name: "125 % of the memory bandwidth", paper: None, dram: 1.25, sm_quarters: 4 },
    Variant { name: "150 % of the memory bandwidth", paper: Some(5.9), dram: 1.5, sm_quarters: 4 },
    Variant { name: "125 % of the SMs", paper: Some(19.4), dram: 1.0, sm_quarters: 5 },
];

impl CdSearchArgs {
    /// Measures.
    pub fn execute(mut self) -> Result<Vec<u8>, Failure> {
        if self.estimate {
            self.seed = self.seeds[0];
            return self.estimated();
        }
        let mut studied = Vec::new();
        for seed in self.seeds.clone() {
            self.seed = seed;
            studied.push(self.study()?);
        }
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let report = Report {
            bench: "cd-search".into(),
            device: format!("{}, {} cycles a mix", spec.name, self.cycles),
            seed: self.seeds[0],
            metrics: seeds::combined(studied.iter().map(|studied| &*studied.metrics)),
        };
        self.common.shown(&report, &self.seeds, &studied)
    }

    /// One seed.
    fn study(&self) -> Result<Studied, Failure> {
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let all = self.workloads()?;
        let mut cells = Evaluation::cells(self.seed)?;
        let mut study =
            Study::new(&spec, all.iter().map(|workload| &workload.application).collect());
        study.mix_cycles = self.cycles;
        let counts = self.counts(&spec);
        self.common.compute("alone", &mut cells, &study.alone_cells(&counts))?;
        study.measure_alone(&counts, &mut cells)?;
        let twos = self.sampled(&study);
        let mixes = self.mixes("mixes", &study, &twos, ALL, &mut cells)?;
        let mut figures = Figures {
            workloads: &all,
            study: &study,
            mixes,
            fours: Vec::new(),
            variants: Vec::new(),
            strangers: Vec::new(),
        };
        if !self.common.quick {
            let fours = self.fours(&study);
            let paper = Beside { paper: true, ..Beside::default() };
            figures.fours = self.mixes("four applications", &study, &fours, paper, &mut cells)?;
            for variant in &VARIANTS {
                let found = self.variant(variant, &spec, &all, &twos, &mut cells)?;
                figures.variants.push((variant.name, variant.paper, found));
            }
        }
        if let Some(companion) = all.first() {
            let (companion, threads) = (&companion.application, self.common.threads());
            figures.strangers =
                strangers::measure(&self.strangers, companion, &spec, threads, &mut cells)?;
        }
        if let Some(folder) = &self.common.out {
            let of_seed = folder.join(format!("seed-{}", self.seed));
            plots::write(if self.seeds.len() > 1 { &of_seed } else { folder }, &figures)?;
        }
        let mut text = figures.tables();
        if self.common.decisions {
            text.push_str(&figures.decisions());
        }
        Ok(Studied { metrics: figures.metrics(), text })
    }

    fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        let mut all = workloads(self.seed);
        if let Some(name) =
            self.only.iter().find(|name| all.iter().all(|w| w.application.name != **name))
        {
            let names: Vec<&str> = all.iter().map(|w| w.application.name.as_str()).collect();
            return Err(Failure::new(format!(
                "no workload `{name}`: there are {}",
                names.join(", ")
            )));
        }
        if !self.only.is_empty() {
            all.retain(|workload| self.only.contains(&workload.application.name));
        }
        Ok(all)
    }

    fn counts(&self, spec: &Spec) -> Vec<u16> {
        let counts: &[u16] = if self.common.quick { &QUICK_COUNTS } else { &COUNTS };
        counts.iter().copied().filter(|count| *count < spec.sms).collect()
    }

    fn mixes(
        &self,
        what: &str,
        study: &Study<'_>,
        members: &[Vec<usize>],
        beside: Beside,
        cells: &mut Cells,
    ) -> Result<Vec<Mix>, Failure> {
        let wanted: Vec<Cell<'_>> =
            members.iter().flat_map(|members| study.mix_cells(members, beside)).collect();
        self.common.compute(what, cells, &wanted)?;
        if beside.oracle {
            let mut wanted = Vec::new();
            for members in members {
                wanted.extend(study.finalist_cells(members, cells)?);
            }
            self.common.compute(&format!("{what}, the oracle"), cells, &wanted)?;
        }
        members.iter().map(|members| Ok(study.mix(members, beside, cells)?)).collect()
    }

    /// The mixes of two to try: half of them of both classes, as far as there are such, the others
    /// of one.
    fn sampled(&self, study: &Study<'_>) -> Vec<Vec<usize>> {
        let mut all: Vec<Vec<usize>> = pairs(study.applications.len()).map(Vec::from).collect();
        let Some(wanted) = self.mixes.or_else(|| self.common.quick.then_some(QUICK_MIXES)) else {
            return all;
        };
        Random::new(self.seed).shuffle(&mut all);
        let mut chosen = Vec::new();
        for (kind, share) in [(Kind::Mixed, 2), (Kind::Memory, 4), (Kind::Compute, wanted.max(1))] {
            let of_kind = all.iter().filter(|members| study.kind(members) == kind).cloned();
            chosen.extend(of_kind.take(wanted.div_ceil(share)));
        }
        let rest = all.into_iter().filter(|members| !chosen.contains(members));
        let rest: Vec<Vec<usize>> = rest.take(wanted.saturating_sub(chosen.len())).collect();
        chosen.truncate(wanted);
        chosen.extend(rest);
        chosen
    }

    fn fours(&self, study: &Study<'_>) -> Vec<Vec<usize>> {
        let count = study.applications.len();
        let twos: Vec<[usize; 2]> = pairs(count).collect();
        let mut fours: Vec<Vec<usize>> = Vec::new();
        for [a, b] in &twos {
            fours.extend(twos.iter().filter(|[c, _]| c > b).map(|[c, d]| vec![*a, *b, *c, *d]));
        }
        Random::new(self.seed).shuffle(&mut fours);
        fours.truncate(FOURS);
        fours
    }

    /// Some of the mixes on another GPU.
    fn variant(
        &self,
        variant: &Variant,
        spec: &Spec,
        all: &[Workload],
        twos: &[Vec<usize>],
        cells: &mut Cells,
    ) -> Result<Vec<Mix>, Failure> {
        let dram_gigabytes_per_second = spec.dram_gigabytes_per_second * variant.dram;
        let sms = (spec.sms * variant.sm_quarters / 4).min(SmSet::CAPACITY);
        let spec = Spec { dram_gigabytes_per_second, sms, ..spec.clone() };
        let applications: Vec<&Application> =
            all.iter().map(|workload| &workload.application).collect();
        let mut study = Study::new(&spec, applications);
        study.mix_cycles = self.cycles;
        self.common.compute(variant.name, cells, &study.alone_cells(&[]))?;
        study.measure_alone(&[], cells)?;
        let mut chosen: Vec<Vec<usize>> =
            twos.iter().filter(|members| study.kind(members) != Kind::Compute).cloned().collect();
        Random::new(self.seed).shuffle(&mut chosen);
        chosen.truncate(SENSITIVE);
        self.mixes(variant.name, &study, &chosen, Beside::default(), cells)
    }

    /// Runs each workload once and says what everything would take for one seed.
    fn estimated(&self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let all = self.workloads()?;
        // What was kept would say nothing of how fast this machine is.
        let mut cells = Cells::new(None, self.seed)?;
        let mut study =
            Study::new(&spec, all.iter().map(|workload| &workload.application).collect());
        study.mix_cycles = self.cycles;
        let wanted = study.alone_cells(&self.counts(&spec));
        let each = wanted.len() / study.applications.len().max(1);
        let firsts: Vec<Cell<'_>> = wanted.iter().step_by(each.max(1)).cloned().collect();
        self.common.compute("one of each", &mut cells, &firsts)?;
        let alone: u64 = wanted.iter().map(Cell::work).sum();
        let members = [0, 1.min(study.applications.len() - 1)];
        let beside = Beside { oracle: false, ..ALL };
        let mix: u64 = study.mix_cells(&members, beside).iter().map(Cell::work).sum();
        // All splits for a while, the finalists for as long as the mix.
        let splits = (11 * partita_bench::study::ORACLE_CYCLES + 4 * self.cycles)
            * u64::from(study.spec.sms);
        let twos = pairs(study.applications.len()).count();
        let count =
            self.mixes.unwrap_or(if self.common.quick { QUICK_MIXES } else { twos }).min(twos)
                as u64;
        let mut work = alone + count * (mix + splits);
        if !self.common.quick {
            let one = self.cycles * u64::from(study.spec.sms);
            work += FOURS as u64 * 2 * one
                + VARIANTS.len() as u64 * (SENSITIVE as u64 * 2 * one + alone / 4);
        }
        let seconds = cells.estimate(work).unwrap_or(0.0) / self.common.threads() as f64;
        Ok(format!(
            "about {:.0} minutes with {} at a time\n",
            seconds / 60.0,
            self.common.threads()
        )
        .into_bytes())
    }
}
