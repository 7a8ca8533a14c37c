//! `partita bench kernelet`: the evaluation of Kernelet (TPDS '14 §5) on eight programs of its
//! kinds, on the paper's two GPUs.

mod figures;
mod measure;

use crate::evaluation::{Evaluation, write_files};
use crate::shown;
use clap::Args;
use figures::Figures;
use measure::Measured;
use partita_bench::{Application, eight};
use partita_cli::failure::Failure;
use partita_cli::report::Report;
use partita_emu::Spec;

const EXAMPLES: &str = "\
Examples:
  partita bench kernelet --quick
      measure both GPUs of the paper with few launches
  partita bench kernelet --quick --spec kernelet-c2050 --json | jq '.metrics[] | {name, value}'
      one GPU, as JSON
  partita bench kernelet --quick --spec kernelet-c2050 --decisions
      also print which programs share SMs, with the expected speeds
  partita bench kernelet --quick --only pc,tea
      two programs, and the pairs and mixes that they make
  partita bench kernelet --launches 200 --out results
      longer queues; after an interruption, the same command continues

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The paper's GPUs.
const SPECS: [&str; 2] = ["kernelet-c2050", "kernelet-gtx680"];
/// Launches of each program in a mix; the paper has 1,000.
const LAUNCHES: u64 = 60;
const QUICK_LAUNCHES: u64 = 6;
/// Cycles that a pair is measured for.
const CYCLES: u64 = 2_000_000;
const QUICK_CYCLES: u64 = 500_000;

/// Measure Kernelet: predictions of its model, pairs that share SMs, plans, queues of launches.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct KerneletArgs {
    #[command(flatten)]
    common: Evaluation,

    /// Measure only these programs, and the mixes that have two of them.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,

    /// The launches of each program in a mix [default: 60; 6 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=10_000))]
    launches: Option<u64>,

    /// The seed of the programs' data, of the arrivals, of the random plans, and of the choices
    /// that a GPU leaves open.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

impl KerneletArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let names = match &self.common.spec {
            Some(name) => vec![name.as_str()],
            None => SPECS.to_vec(),
        };
        let specs = names.into_iter().map(Spec::find).collect::<Result<Vec<Spec>, _>>()?;
        let programs = self.programs()?;
        let (usual, cycles) =
            if self.common.quick { (QUICK_LAUNCHES, QUICK_CYCLES) } else { (LAUNCHES, CYCLES) };
        let launches = self.launches.unwrap_or(usual);
        let mut cells = Evaluation::cells(self.seed)?;
        let mut all = Vec::new();
        for spec in &specs {
            let how = measure::How { spec, launches, cycles, seed: self.seed };
            all.push(Measured::new(&self.common, &programs, &how, &mut cells)?);
        }
        let figures = Figures { all };
        let gpus: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let report = Report {
            bench: "kernelet".into(),
            device: format!("{}, {launches} launches of each program", gpus.join("; ")),
            seed: self.seed,
            metrics: figures.metrics(),
        };
        if let Some(folder) = &self.common.out {
            write_files(folder, &figures.files())?;
        }
        let mut text = shown(&report, self.common.json)?;
        if !self.common.json {
            text.extend(figures.tables().into_bytes());
        }
        if self.common.decisions {
            text.extend(figures.decisions().into_bytes());
        }
        Ok(text)
    }

    fn programs(&self) -> Result<Vec<Application>, Failure> {
        let mut all = eight(self.seed);
        let names: Vec<String> = all.iter().map(|program| program.name.clone()).collect();
        if let Some(unknown) = self.only.iter().find(|name| !names.contains(name)) {
            let names = names.join(", ");
            return Err(Failure::new(format!("no program `{unknown}`: there are {names}")));
        }
        if !self.only.is_empty() {
            all.retain(|program| self.only.contains(&program.name));
        }
        Ok(all)
    }
}
