//! What the benchmarks of policies have in common: options, and runs that are kept on disk.
//!
//! `cd_search`, `kernelet`, `latency`, `masola`, `policies`, `punyala`, `shares` and `slate` take
//! these options. What a benchmark asks further is its own.

use crate::shown;
use clap::Args;
use partita_bench::{Cell, Cells};
use partita_cli::demo::toolkit::cache_dir;
use partita_cli::failure::Failure;
use partita_cli::progress::Bar;
use partita_cli::report::{Metric, Report};
use std::fs;
use std::path::{Path, PathBuf};

/// Options of a benchmark of policies.
#[derive(Args, Debug)]
pub struct Evaluation {
    /// Measure a sample, with shorter runs.
    #[arg(long)]
    pub quick: bool,

    /// The modelled GPU: a name that `partita emu specs` lists, or a file's path with a slash
    /// [default: the GPU of the benchmark's paper].
    #[arg(long, value_name = "NAME")]
    pub spec: Option<String>,

    /// The number of runs at a time [default: the number of processors].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Write plots and tables to this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Print the policy's decisions, with the reasons.
    #[arg(long, conflicts_with = "json")]
    pub decisions: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Evaluation {
    /// Runs at a time.
    pub fn threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(processors)
    }

    /// The runs of a seed, kept in the user's cache.
    ///
    /// # Errors
    /// Where the cache's folder cannot be made.
    pub fn cells(seed: u64) -> Result<Cells, Failure> {
        let folder = cache_dir().map(|folder| folder.join("cells"));
        Ok(Cells::new(folder.as_deref(), seed)?)
    }

    /// Computes runs, and shows how far that has got.
    ///
    /// # Errors
    /// The first application that cannot run.
    pub fn compute(
        &self,
        what: &str,
        cells: &mut Cells,
        wanted: &[Cell<'_>],
    ) -> Result<(), Failure> {
        let mut bar = Bar::new(what, "runs");
        let result = cells.compute(wanted, self.threads(), &mut |progress| {
            bar.show((progress.done, progress.of), &progress.title, progress.left);
        });
        bar.end();
        Ok(result?)
    }

    /// The report over all seeds, and beside it the text of each seed where people read it.
    ///
    /// # Errors
    /// Where the report cannot be shown.
    pub fn shown(
        &self,
        report: &Report,
        seeds: &[u64],
        studied: &[Studied],
    ) -> Result<Vec<u8>, Failure> {
        let mut text = shown(report, self.json)?;
        if !self.json {
            for (seed, studied) in seeds.iter().zip(studied) {
                if seeds.len() > 1 {
                    text.extend(format!("\nseed {seed}\n").into_bytes());
                }
                text.extend(studied.text.bytes());
            }
        }
        Ok(text)
    }
}

/// What a benchmark found with one seed.
pub struct Studied {
    pub metrics: Vec<Metric>,
    pub text: String,
}

/// Writes files to a folder, which is made.
///
/// # Errors
/// Names the folder.
pub fn write_files(folder: &Path, files: &[(&str, String)]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    for (name, contents) in files {
        fs::write(folder.join(name), contents).map_err(failed)?;
    }
    Ok(())
}
