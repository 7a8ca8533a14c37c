//! How many registers kernels take: by ptxas where there is one, else by the emulated GPU's
//! estimate.

use crate::failure::Failure;
use partita_device::{Device, Event, Horizon};
use partita_emu::{EmulatedGpu, Options, Spec, Timing};
use partita_model::{ModuleId, WindowId};
use partita_ptx::Module;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Who says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The assembler.
    Ptxas,
    /// The rule that stands in for it on the emulated GPU.
    Estimate,
}

/// Registers per thread of the kernels of a module, by name.
pub struct Registers {
    source: Source,
    by_kernel: BTreeMap<String, u32>,
}

impl Registers {
    /// By ptxas where there is one that takes the module, else by the estimate.
    pub fn of(module: &Module) -> Result<Self, Failure> {
        match Self::by(Source::Ptxas, module) {
            Ok(registers) => Ok(registers),
            Err(_) => Self::by(Source::Estimate, module),
        }
    }

    /// By that source.
    pub fn by(source: Source, module: &Module) -> Result<Self, Failure> {
        let by_kernel = match source {
            Source::Ptxas => {
                assemble(&ptxas().ok_or_else(|| Failure::new("no ptxas is installed"))?, module)?
            }
            Source::Estimate => estimate(module)?,
        };
        Ok(Self { source, by_kernel })
    }

    /// Who says.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Those of a kernel; `None` where the source knows none.
    pub fn get(&self, kernel: &str) -> Option<u32> {
        self.by_kernel.get(kernel).copied()
    }
}

/// The assembler that `PARTITA_PTXAS` names, or one on the `PATH`.
pub fn ptxas() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PARTITA_PTXAS") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("ptxas")).find(|file| file.is_file())
}

fn assemble(ptxas: &Path, module: &Module) -> Result<BTreeMap<String, u32>, Failure> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("module.ptx");
    std::fs::write(&file, partita_ptx::print(module))?;
    let own = module.target.first().map_or("sm_90", |&name| module.text(name));
    let mut said = String::new();
    // An assembler that no longer knows the module's own architecture knows later ones.
    for architecture in [own, "sm_75", "sm_90"] {
        let output = Command::new(ptxas)
            .arg(format!("-arch={architecture}"))
            .args(["-v", "-o"])
            .arg(folder.path().join("module.cubin"))
            .arg(&file)
            .output()?;
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return Ok(used(&said));
        }
    }
    Err(Failure::new(format!("{}: {}", ptxas.display(), said.trim())))
}

/// What `ptxas -v` says of each entry function.
fn used(said: &str) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    let mut current: Option<&str> = None;
    for line in said.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            current = rest.split('\'').next();
        } else if let Some((_, rest)) = line.split_once("Used ")
            && let Some(count) = rest.split(' ').next().and_then(|word| word.parse().ok())
            && let Some(name) = current.take()
        {
            found.insert(name.to_owned(), count);
        }
    }
    found
}

fn estimate(module: &Module) -> Result<BTreeMap<String, u32>, Failure> {
    let options = Options { timing: Timing::Off, ..Options::default() };
    let mut gpu = EmulatedGpu::new(Spec::named(crate::emu::DEFAULT_SPEC)?, options);
    let text = partita_ptx::print(module);
    let bytes = (64_u64 << 20) + text.len() as u64 * 4;
    let (id, window) = (ModuleId(1), WindowId(1));
    gpu.reserve(window, bytes.next_multiple_of(2 << 20))?;
    gpu.load_module(id, window, text.as_str().into())?;
    let mut events = Vec::new();
    gpu.poll(Horizon { until: None, warp_instructions: u64::MAX }, &mut events);
    let facts = events.into_iter().find_map(|event| match event {
        Event::ModuleLoaded { facts, .. } => Some(facts),
        _ => None,
    });
    let kernels = facts.map(|facts| facts.kernels).unwrap_or_default();
    Ok(kernels.into_iter().map(|kernel| (kernel.name, kernel.registers)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ptxas_says() {
        let said = "ptxas info    : 0 bytes gmem\n\
                    ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90'\n\
                    ptxas info    : Function properties for _Z1kPf\n    0 bytes stack frame\n\
                    ptxas info    : Used 12 registers, used 1 barriers\n\
                    ptxas info    : Compiling entry function 'other' for 'sm_90'\n\
                    ptxas info    : Used 255 registers\n";
        let expected = [("_Z1kPf".to_owned(), 12), ("other".to_owned(), 255)];
        assert_eq!(used(said), BTreeMap::from(expected));
    }
}
