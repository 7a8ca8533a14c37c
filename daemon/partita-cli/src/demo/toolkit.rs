//! NVIDIA's compiler, and programs made with it: the demo's, and a benchmark's.
//!
//! The compiler is the user's own where there is one, else it is installed from PyPI into a cache.
//! Programs are cached by what they are made of and with.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program of ours.
#[derive(Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// Its text.
    pub source: &'static str,
}

/// Needs bandwidth.
pub const TRIAD: Program = Program { name: "triad", source: include_str!("programs/triad.cu") };
/// Needs arithmetic.
pub const GENERATE: Program =
    Program { name: "generate", source: include_str!("programs/generate.cu") };
/// Answers HTTP requests by chains of small kernels.
pub const SERVE: Program = Program { name: "serve", source: include_str!("programs/serve.cu") };
/// Launches one kernel after the other, as training does.
pub const TRAIN: Program = Program { name: "train", source: include_str!("programs/train.cu") };

/// nvcc, ptxas and the runtime library, in versions that were tried.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-cccl==13.3.5.0.6"];

/// Why there are no programs.
#[derive(Debug, thiserror::Error)]
pub enum ToolkitError {
    /// The system's word.
    #[error("{}: {source}", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no folder for the cache.
    #[error(
        "no folder for the compiler: set PARTITA_CACHE_DIR or HOME, or name nvcc in PARTITA_NVCC"
    )]
    NoCache,
    /// The named compiler is missing.
    #[error("PARTITA_NVCC names {}, which is no file: name nvcc, or unset it", .0.display())]
    NoSuchCompiler(PathBuf),
    /// A command failed.
    #[error("{command} failed ({remedy}): {reason}")]
    Command {
        /// Which.
        command: String,
        /// What may help.
        remedy: &'static str,
        /// What it said.
        reason: String,
    },
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> ToolkitError + '_ {
    move |source| ToolkitError::File { path: path.to_owned(), source }
}

/// A compiler and the folder for what it makes.
#[derive(Debug)]
pub struct Compiler {
    nvcc: PathBuf,
    cache: PathBuf,
}

impl Compiler {
    /// Finds a compiler, or installs one and says so.
    pub fn find(say: &mut dyn FnMut(&str)) -> Result<Compiler, ToolkitError> {
        let cache = cache_dir().ok_or(ToolkitError::NoCache)?;
        fs::create_dir_all(&cache).map_err(file_error(&cache))?;
        if let Some(nvcc) = own_nvcc()? {
            return Ok(Compiler { nvcc, cache });
        }
        // Several demos, or tests, at once: one installs, the others wait.
        let lock_path = cache.join("toolkit.lock");
        let lock = File::create(&lock_path).map_err(file_error(&lock_path))?;
        lock.lock().map_err(file_error(&lock_path))?;
        let environment = cache.join("cuda-13.5");
        let marker = environment.join("complete");
        let wanted = PACKAGES.join(" ");
        if !fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
            say(&format!(
                "installing NVIDIA's compiler from PyPI into {} (130 MB, once)",
                environment.display()
            ));
            if !environment.join("bin/pip").exists() {
                let mut command = Command::new("python3");
                run(
                    command.args(["-m", "venv"]).arg(&environment),
                    "Debian: apt-get install python3-venv",
                )?;
            }
            let mut command = Command::new(environment.join("bin/python3"));
            command.args(["-m", "pip", "install", "--quiet"]).args(PACKAGES);
            run(&mut command, "the package index must be reachable")?;
            fs::write(&marker, wanted).map_err(file_error(&marker))?;
        }
        let libraries = environment.join("lib");
        let python = fs::read_dir(&libraries).map_err(file_error(&libraries))?;
        let python = python.filter_map(Result::ok).map(|entry| entry.path());
        let nvcc = python
            .map(|python| python.join("site-packages/nvidia/cu13/bin/nvcc"))
            .find(|nvcc| nvcc.is_file())
            .ok_or_else(|| file_error(&libraries)(io::Error::from(io::ErrorKind::NotFound)))?;
        Ok(Compiler { nvcc, cache })
    }

    /// The program's executable, compiled with nvcc's default options if it is not there yet.
    pub fn build(&self, program: &Program) -> Result<PathBuf, ToolkitError> {
        self.build_with(program, &[])
    }

    /// The same with further options.
    pub fn build_with(&self, program: &Program, options: &[&str]) -> Result<PathBuf, ToolkitError> {
        let mut hasher = DefaultHasher::new();
        (program.source, &self.nvcc, options).hash(&mut hasher);
        let folder = self.cache.join("programs").join(format!("{:016x}", hasher.finish()));
        let executable = folder.join(program.name);
        if executable.exists() {
            return Ok(executable);
        }
        fs::create_dir_all(&folder).map_err(file_error(&folder))?;
        let source = folder.join(format!("{}.cu", program.name));
        fs::write(&source, program.source).map_err(file_error(&source))?;
        // Whoever is last wins, with the same program.
        let unfinished = folder.join(format!("{}.{}", program.name, std::process::id()));
        let mut command = Command::new(&self.nvcc);
        run(
            command.args(options).arg("-o").args([&unfinished, &source]),
            "Debian: apt-get install g++",
        )?;
        fs::rename(&unfinished, &executable).map_err(file_error(&executable))?;
        Ok(executable)
    }
}

/// The compiler that is named or installed, if any.
fn own_nvcc() -> Result<Option<PathBuf>, ToolkitError> {
    if let Some(named) = variable("PARTITA_NVCC") {
        return match named.is_file() {
            true => Ok(Some(named)),
            false => Err(ToolkitError::NoSuchCompiler(named)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
    let usual = PathBuf::from("/usr/local/cuda/bin/nvcc");
    Ok(in_path.chain([usual]).find(|path| path.is_file()))
}

/// Where what takes long to make is kept.
pub fn cache_dir() -> Option<PathBuf> {
    let own = || {
        Some(
            variable("XDG_CACHE_HOME")
                .or_else(|| Some(variable("HOME")?.join(".cache")))?
                .join("partita"),
        )
    };
    variable("PARTITA_CACHE_DIR").or_else(own)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn run(command: &mut Command, remedy: &'static str) -> Result<(), ToolkitError> {
    let shown = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let failed = |reason: String| ToolkitError::Command { command: shown.clone(), remedy, reason };
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim())))
}
