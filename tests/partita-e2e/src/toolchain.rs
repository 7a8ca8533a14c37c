//! NVIDIA's compiler from PyPI, installed once into a cache, and programs compiled with it, cached by content.
//!
//! No GPU and no driver is needed to compile. The compiler needs a host compiler (`g++`) and Python with `venv`; where
//! one is missing the message names the Debian package.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The packages that bring nvcc, ptxas, the runtime library and CUB, with the versions that were tried.
const PACKAGES: [&str; 2] = ["nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-cccl==13.3.5.0.6"];

/// Where downloads and compiled programs are kept.
#[must_use]
pub fn cache_dir() -> PathBuf {
    std::env::var_os("PARTITA_CACHE_DIR").map_or_else(|| crate::workspace().join(".cache"), PathBuf::from)
}

/// The toolkit's folder (`bin/nvcc`, `bin/ptxas`, `lib/…`), installed first if it is not there.
///
/// # Panics
/// Where it cannot be installed: the message says what failed and what to install.
#[must_use]
pub fn toolkit() -> PathBuf {
    let cache = cache_dir();
    fs::create_dir_all(&cache).expect("the cache directory can be created");
    // Tests run in several processes at once: one installs, the others wait.
    let lock = File::create(cache.join("toolkit.lock")).expect("the lock file can be created");
    lock.lock().expect("the lock can be taken");

    let venv = cache.join("cuda-13.5");
    let marker = venv.join("complete");
    if !marker.exists() {
        drop(fs::remove_dir_all(&venv));
        eprintln!("installing the CUDA toolchain from PyPI into {} (about 130 MB)", venv.display());
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv), "Debian: apt-get install python3-venv");
        run(
            Command::new(venv.join("bin/pip")).args(["install", "--quiet"]).args(PACKAGES),
            "the package index must be reachable",
        );
        File::create(&marker).expect("the marker can be written");
    }
    let site = fs::read_dir(venv.join("lib"))
        .expect("a virtual environment has a lib folder")
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .expect("a virtual environment has a python3 folder");
    site.path().join("site-packages/nvidia/cu13")
}

/// Compiles one of the programs in `programs/` with nvcc's default options (static cudart, zstd-compressed PTX) and
/// returns the executable.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    program_with(name, &[])
}

/// The same with further options of nvcc.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn program_with(name: &str, options: &[&str]) -> PathBuf {
    let source = crate::workspace().join("tests/partita-e2e/programs").join(name).with_extension("cu");
    let read = |path: &Path| fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut hasher = DefaultHasher::new();
    (read(&source), read(&source.with_file_name("check.h")), options, PACKAGES).hash(&mut hasher);
    let folder = cache_dir().join("programs").join(format!("{:016x}", hasher.finish()));
    let executable = folder.join(name);
    if executable.exists() {
        return executable;
    }
    let toolkit = toolkit();
    fs::create_dir_all(&folder).expect("the program's folder can be created");
    // Tests compile the same program at once, in threads and in processes; whoever is last wins, with the same bytes.
    let workplace = tempfile::tempdir_in(&folder).expect("a folder can be made in the cache");
    let unfinished = workplace.path().join(name);
    run(
        Command::new(toolkit.join("bin/nvcc")).args(options).arg("-o").arg(&unfinished).arg(&source),
        "Debian: apt-get install g++",
    );
    fs::rename(&unfinished, &executable).expect("the program can be renamed in its folder");
    executable
}

/// PTX of one of the programs.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn ptx(name: &str, arch: &str) -> PathBuf {
    program_with(name, &["--ptx", &format!("-arch={arch}")])
}

fn run(command: &mut Command, remedy: &str) {
    let program = PathBuf::from(command.get_program());
    let shown = program.file_name().map_or(program.as_path(), Path::new).display().to_string();
    let output = command.output().unwrap_or_else(|error| panic!("{shown}: {error} ({remedy})"));
    assert!(
        output.status.success(),
        "{shown} failed with {} ({remedy}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}
