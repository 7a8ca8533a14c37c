//! `partita bench masola`: the evaluation of Masola (JSSPP '23 §6–8) on eight kernels of its kinds,
//! and on recorded kernels of strangers.

mod figures;

use crate::evaluation::{Evaluation, write_files};
use crate::recordings;
use crate::shown;
use clap::Args;
use figures::{Figures, Found, Set};
use partita_bench::latencies::{Group, Latencies, table_3};
use partita_bench::{Application, Cell, Cells, masola, recorded};
use partita_cli::failure::{Failure, complain};
use partita_cli::report::Report;
use partita_emu::Spec;
use partita_policy::latency::{Beside, Form, interfered, predict, together};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita bench masola --quick
      measure the seven groups of the paper's Table 3, and 9 by the seed
  partita bench masola --quick --json | jq '.metrics[] | {name, value, paper, goal}'
      the same, as JSON
  partita bench masola --out results
      measure 107 groups, and write tables and plots
  partita run --device emu,timing=off,record=scan.rec -- ./scan
  partita bench masola --quick --strangers scan.rec
      also predict the kernels of a recorded program

Runs are kept under PARTITA_CACHE_DIR, else XDG_CACHE_HOME/partita. A new build of this program
computes them again.";

/// The paper's GPU.
const SPEC: &str = "masola-rtx2060";
/// Groups beside those of Table 3 (§7.3), and of a quick run.
const GROUPS: usize = 100;
const QUICK_GROUPS: usize = 9;
/// A stranger's kernel has at least so many CTAs for each SM, and takes at least so many
/// nanoseconds: the time of a shorter one is not measured within 5 %.
const LEAST_CTAS_PER_SM: u128 = 1;
const LEAST_NANOS: f64 = 40_000.0;

/// Measure Masola's predictions: launches on part of the SMs, alone and in groups, and bandwidth.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct MasolaArgs {
    #[command(flatten)]
    common: Evaluation,

    /// The number of groups that the seed chooses, beside the seven of Table 3 [default: 100; 9
    /// with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    groups: Option<u64>,

    /// Predict the kernels of these recordings, too. `partita run --device
    /// emu,timing=off,record=FILE` makes a recording.
    #[arg(long, value_name = "RECORDING", num_args = 1..)]
    strangers: Vec<PathBuf>,

    /// The seed of the kernels' data, of the groups, and of the choices that a GPU leaves open.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
}

impl MasolaArgs {
    /// Measures.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        let spec = Spec::find(self.common.spec.as_deref().unwrap_or(SPEC))?;
        let mut cells = Evaluation::cells(self.seed)?;
        let kernels = masola(self.seed);
        let judged = self.set("", &spec, kernels.iter().collect(), &mut cells)?;
        let mut sets = vec![judged];
        let strangers = self.strangers(&spec)?;
        let taken = self.long_enough(&spec, &strangers, &mut cells)?;
        if taken.is_empty() && !self.strangers.is_empty() {
            complain(&format!(
                "no kernel of the recordings is judged: each takes less than {} us, or has fewer \
                 CTAs than the GPU has SMs",
                LEAST_NANOS / 1e3
            ));
        }
        if !taken.is_empty() {
            sets.push(self.set("strangers: ", &spec, taken, &mut cells)?);
        }
        let figures = Figures { sets };
        let report = Report {
            bench: "masola".into(),
            device: spec.name.clone(),
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
            text.extend(figures.reasons().into_bytes());
        }
        Ok(text)
    }

    /// Measures and predicts kernels alone and in groups.
    fn set<'a>(
        &self,
        name: &'static str,
        spec: &'a Spec,
        kernels: Vec<&'a Application>,
        cells: &mut Cells,
    ) -> Result<Set<'a>, Failure> {
        let mut study = Latencies::new(spec, kernels)?;
        let alone = 0..study.kernels.len();
        let wanted: Vec<Cell<'_>> = alone.flat_map(|kernel| study.alone_cells(kernel)).collect();
        self.common.compute(&format!("{name}alone"), cells, &wanted)?;
        study.take_alone(cells)?;
        let usual = if self.common.quick { QUICK_GROUPS } else { GROUPS };
        let count = self.groups.and_then(|groups| usize::try_from(groups).ok()).unwrap_or(usual);
        let mut groups = table_3(&study.kernels);
        groups.extend(study.groups(count, self.seed));
        let wanted: Vec<Cell<'_>> = groups.iter().map(|group| study.group_cell(group)).collect();
        self.common.compute(&format!("{name}groups"), cells, &wanted)?;
        let mut found = Vec::new();
        for group in groups {
            let run = cells.get(&study.group_cell(&group))?;
            let measured = study.times(&group, &run)?;
            found.push(predicted(&study, group, measured)?);
        }
        Ok(Set { name, study, groups: found })
    }

    /// The kernels of the recordings, each an application.
    fn strangers(&self, spec: &Spec) -> Result<Vec<Application>, Failure> {
        let mut applications = Vec::new();
        for path in &self.strangers {
            let entries = recordings::entries(path)?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let least = LEAST_CTAS_PER_SM * u128::from(spec.sms);
            let (found, reason) = recorded::applications(&name, &entries, least);
            if let Some(reason) = reason {
                complain(&format!("{}: followed only in part: {reason}", path.display()));
            }
            applications.extend(found);
        }
        Ok(applications)
    }

    /// Those of the strangers' kernels that run, end, have a profile, and take long enough.
    fn long_enough<'a>(
        &self,
        spec: &'a Spec,
        strangers: &'a [Application],
        cells: &mut Cells,
    ) -> Result<Vec<&'a Application>, Failure> {
        let mut taken = Vec::new();
        for application in strangers {
            let mut study = Latencies::new(spec, vec![application])?;
            let runs = study.alone_cells(0);
            let computed = cells.compute(&runs, self.common.threads(), &mut |_| ());
            let solo = computed.map_err(Failure::from).and_then(|()| Ok(study.take_alone(cells)?));
            match solo {
                Err(error) => complain(&format!("not tried: {}", error.text())),
                Ok(()) if study.solos[0].counted.whole < LEAST_NANOS => {
                    complain(&format!("not tried: {} takes less than 40 us", application.name));
                }
                Ok(()) => taken.push(application),
            }
        }
        Ok(taken)
    }
}

/// What the models say of a group.
fn predicted(study: &Latencies<'_>, members: Group, measured: Vec<f64>) -> Result<Found, Failure> {
    let residents: Vec<_> = members.iter().map(|&member| study.resident(member)).collect();
    let fitted: Vec<_> = members.iter().map(|&member| study.fitted(member)).collect();
    let works: Vec<_> =
        members.iter().map(|&(kernel, sms)| (study.solos[kernel].profiled, sms)).collect();
    let launch = study.gpu.launch;
    Ok(Found {
        printed: interfered(&study.gpu, &residents, Form::Printed),
        mended: interfered(&study.gpu, &residents, Form::Mended),
        ours: together(&fitted).into_iter().map(|nanos| nanos + launch).collect(),
        profiled: predict(&study.gpu, &works, Beside::Once)?,
        alone: residents.iter().map(|resident| resident.alone).collect(),
        members,
        measured,
    })
}
