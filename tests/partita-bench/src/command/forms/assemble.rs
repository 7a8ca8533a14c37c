//! Whether `ptxas` takes what the passes make.

use super::check::LANES;
use partita_ptx::{Module, Pass, WorkerOptions, passes};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

/// Every pass by itself, and what a launch gets. Beside them the original, which decides what can
/// be asked of the others.
const FORMS: [&[Pass]; 7] =
    [LANES[0], LANES[1], LANES[2], LANES[3], LANES[4], LANES[5], &[Pass::Cancel]];

/// A `ptxas` and what it was asked.
pub struct Assembler {
    ptxas: PathBuf,
    architectures: Vec<u32>,
    folder: tempfile::TempDir,
    seen: BTreeSet<String>,
    /// Texts that it took, each for one architecture.
    pub taken: u64,
}

impl Assembler {
    /// Nothing assembled so far.
    pub fn new(ptxas: PathBuf, architectures: Vec<u32>) -> io::Result<Assembler> {
        let folder = tempfile::tempdir()?;
        Ok(Assembler { ptxas, architectures, folder, seen: BTreeSet::new(), taken: 0 })
    }

    /// Lets it take a module in every form. A module that it does not take as it stands says
    /// nothing.
    pub fn assemble(&mut self, ptx: &str) -> Result<(), Vec<String>> {
        let Ok(module) = partita_ptx::parse(ptx) else { return Ok(()) };
        if !self.seen.insert(ptx.to_owned()) {
            return Ok(());
        }
        let mut refusals = Vec::new();
        for architecture in self.permitted(&module) {
            if self.take(ptx, &architecture).is_err() {
                continue;
            }
            for form in FORMS {
                let rewritten = passes::apply(&module, form, &WorkerOptions::default()).module;
                match self.take(&partita_ptx::print(&rewritten), &architecture) {
                    Ok(()) => self.taken += 1,
                    Err(refusal) => {
                        refusals.push(format!("{form:?} for {architecture}: {refusal}"))
                    }
                }
            }
        }
        if refusals.is_empty() { Ok(()) } else { Err(refusals) }
    }

    fn permitted(&self, module: &Module) -> Vec<String> {
        let target = module.target.first().map_or("", |name| module.text(*name));
        // `sm_90a` and `sm_100f` are good for one architecture or family.
        if self.architectures.is_empty() || !target.ends_with(|c: char| c.is_ascii_digit()) {
            return vec![target.to_owned()];
        }
        let least = module.sm().unwrap_or(0);
        self.architectures.iter().filter(|&&sm| sm >= least).map(|sm| format!("sm_{sm}")).collect()
    }

    fn take(&self, text: &str, architecture: &str) -> Result<(), String> {
        let (input, output) =
            (self.folder.path().join("in.ptx"), self.folder.path().join("out.cubin"));
        fs::write(&input, text).map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.ptxas);
        command.arg(format!("-arch={architecture}")).arg(&input).arg("-o").arg(&output);
        let done =
            command.output().map_err(|error| format!("{}: {error}", self.ptxas.display()))?;
        let said = String::from_utf8_lossy(&done.stderr);
        if done.status.success() {
            Ok(())
        } else {
            Err(said.lines().next().unwrap_or("it failed").to_owned())
        }
    }
}
