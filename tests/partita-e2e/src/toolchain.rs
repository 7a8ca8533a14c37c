//! NVIDIA's compiler from PyPI, installed once into a cache, and programs compiled with it, cached
//! by content.
//!
//! Compiling needs no GPU and no driver. The compiler needs a host compiler (`g++`) and Python with
//! `venv`; where one is missing the message names the Debian package.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages that are installed together.
struct Addition {
    /// For people, with the size of the download.
    what: &'static str,
    /// The file that says that they are there, and which.
    marker: &'static str,
    /// With the versions that were tried.
    packages: &'static [&'static str],
    /// Of pip.
    options: &'static [&'static str],
}

/// nvcc, ptxas, the runtime library and CUB.
const BASE: Addition = Addition {
    what: "the CUDA toolchain (about 130 MB)",
    marker: "complete",
    packages: &["nvidia-cuda-nvcc==13.5.37", "nvidia-cuda-cccl==13.3.5.0.6"],
    options: &[],
};

/// NVRTC, and numba-cuda without nvJitLink, so that PTX goes through the driver's linker. libNVVM
/// is in [`BASE`].
const PYTHON: Addition = Addition {
    what: "NVRTC and numba-cuda (about 200 MB)",
    marker: "complete-python",
    packages: &[
        "nvidia-cuda-nvrtc==13.5.37",
        "numba-cuda==0.30.4",
        "numba==0.68.1",
        "llvmlite==0.50.0",
        "numpy==2.4.6",
        "cuda-bindings==13.5.0",
        "cuda-core==1.2.2",
        "cuda-pathfinder==1.9.0",
        "packaging==26.3",
    ],
    options: &["--no-deps"],
};

/// What compiles while a program runs, beside [`PYTHON`].
const FRAMEWORKS: Addition = Addition {
    what: "CuPy and Triton (about 350 MB)",
    marker: "complete-frameworks",
    packages: &["cupy-cuda13x==14.2.0", "triton==3.9.0", "nvidia-cuda-runtime==13.5.37"],
    options: &["--no-deps"],
};

/// CUTLASS's headers and examples.
const CUTLASS: Addition = Addition {
    what: "CUTLASS (about 6 MB)",
    marker: "complete-cutlass",
    packages: &["nvidia-cutlass==4.2.0.0"],
    options: &["--no-deps"],
};

/// Headers and the runtime library of the last CUDA 12.
const CUDA_12: Addition = Addition {
    what: "the runtime of CUDA 12.9 (about 4 MB)",
    marker: "complete-cuda-12",
    packages: &["nvidia-cuda-runtime-cu12==12.9.79"],
    options: &["--no-deps"],
};

/// Where downloads and compiled programs are kept.
#[must_use]
pub fn cache_dir() -> PathBuf {
    std::env::var_os("PARTITA_CACHE_DIR")
        .map_or_else(|| crate::workspace().join(".cache"), PathBuf::from)
}

/// The toolkit's folder (`bin/nvcc`, `bin/ptxas`, `lib/…`), installed first if it is not there.
///
/// # Panics
/// Where it cannot be installed: the message says what failed and what to install.
#[must_use]
pub fn toolkit() -> PathBuf {
    toolkit_of(&installed(&BASE))
}

fn toolkit_of(venv: &Path) -> PathBuf {
    site_packages(venv).join("nvidia/cu13")
}

fn site_packages(venv: &Path) -> PathBuf {
    let python = fs::read_dir(venv.join("lib"))
        .expect("a virtual environment has a lib folder")
        .filter_map(Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .expect("a virtual environment has a python3 folder");
    python.path().join("site-packages")
}

/// The headers of the driver's API of CUDA 13.5 and, where its package can be had, 12.9.
///
/// # Panics
/// As [`toolkit`].
#[must_use]
pub fn driver_headers() -> Vec<PathBuf> {
    let toolkit = toolkit();
    installed(&CUDA_12);
    let older = toolkit.with_file_name("cuda_runtime").join("include/cuda.h");
    assert!(older.exists(), "{} is not where its package puts it", older.display());
    vec![toolkit.join("include/cuda.h"), older]
}

/// A Python interpreter that has numba-cuda and NVRTC.
///
/// # Panics
/// As [`toolkit`].
#[must_use]
pub fn python() -> PathBuf {
    installed(&BASE);
    installed(&PYTHON).join("bin/python3")
}

/// A Python interpreter that has CuPy, Triton and NVIDIA's bindings besides.
///
/// # Panics
/// As [`toolkit`].
#[must_use]
pub fn python_frameworks() -> PathBuf {
    let python = python();
    installed(&FRAMEWORKS);
    python
}

/// The virtual environment of the toolchain with an addition. The function installs the addition if
/// it is missing.
fn installed(addition: &Addition) -> PathBuf {
    let cache = cache_dir();
    fs::create_dir_all(&cache).expect("the cache directory can be created");
    // Tests run in several processes at once: one installs, the others wait.
    let lock = File::create(cache.join("toolkit.lock")).expect("the lock file can be created");
    lock.lock().expect("the lock can be taken");

    let venv = cache.join("cuda-13.5");
    let marker = venv.join(addition.marker);
    let wanted = addition.packages.join(" ");
    if fs::read_to_string(&marker).is_ok_and(|found| found == wanted) {
        return venv;
    }
    let Addition { what, packages, options, .. } = addition;
    eprintln!("installing {what} from PyPI into {}", venv.display());
    if !venv.join("bin/pip").exists() {
        run(
            Command::new("python3").args(["-m", "venv"]).arg(&venv),
            "Debian: apt-get install python3-venv",
        );
    }
    run(
        // `bin/pip` would install into the environment's original folder, even after a move of the
        // cache.
        Command::new(venv.join("bin/python3"))
            .args(["-m", "pip", "install", "--quiet"])
            .args(*options)
            .args(*packages),
        "the package index must be reachable",
    );
    fs::write(&marker, wanted).expect("the marker can be written");
    venv
}

/// Compiles one of the programs in `programs/` with nvcc's default options (static cudart,
/// zstd-compressed PTX) and returns the executable.
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
    let source = source(name, "cu");
    let mut hasher = DefaultHasher::new();
    (read(&source), read(&source.with_file_name("check.h")), options, BASE.packages)
        .hash(&mut hasher);
    if contains(&read(&source), b"\"held.h\"") {
        read(&source.with_file_name("held.h")).hash(&mut hasher);
    }
    for file in options.iter().filter(|option| option.ends_with(".cu")) {
        read(Path::new(file)).hash(&mut hasher);
    }
    compiled(name, hasher.finish(), |unfinished| {
        let mut command = Command::new(toolkit().join("bin/nvcc"));
        command.args(options).arg("-o").arg(unfinished).arg(&source);
        command
    })
}

fn source(name: &str, extension: &str) -> PathBuf {
    crate::workspace().join("tests/partita-e2e/programs").join(name).with_extension(extension)
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The executable with this name and hash of its sources, compiled by `command` unless the cache
/// has it. `command` is given the path to write.
fn compiled(name: &str, hash: u64, command: impl FnOnce(&Path) -> Command) -> PathBuf {
    let folder = cache_dir().join("programs").join(format!("{hash:016x}"));
    let executable = folder.join(name);
    if executable.exists() {
        return executable;
    }
    fs::create_dir_all(&folder).expect("the program's folder can be created");
    // Threads and processes compile the same program at once. The last one wins, with the same
    // bytes.
    let workplace = tempfile::tempdir_in(&folder).expect("a folder can be made in the cache");
    let unfinished = workplace.path().join(name);
    run(&mut command(&unfinished), "Debian: apt-get install g++");
    fs::rename(&unfinished, &executable).expect("the program can be renamed in its folder");
    executable
}

/// The executable of a program in `programs/`, compiled with the options that it asks for in a line
/// `// nvcc: …`.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn gallery_program(name: &str) -> PathBuf {
    let path = source(name, "cu");
    let text = fs::read_to_string(&path).expect("the program is there");
    let options = text.lines().find_map(|line| line.strip_prefix("// nvcc: ")).unwrap_or_default();
    // `@other.cu` is another file of the program.
    let options: Vec<String> = options
        .split_whitespace()
        .map(|option| match option.strip_prefix('@') {
            Some(file) => path.with_file_name(file).display().to_string(),
            None => option.to_owned(),
        })
        .collect();
    program_with(name, &options.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The runtime library that a program is linked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runtime {
    /// CUDA 13.5's, in the program: nvcc's default.
    Static,
    /// CUDA 13.5's, beside the program.
    Shared,
    /// CUDA 12.9's, in the program.
    Static12,
    /// CUDA 12.9's, beside the program.
    Shared12,
}

impl Runtime {
    /// The options of nvcc for it.
    ///
    /// # Panics
    /// As [`toolkit`].
    #[must_use]
    pub fn options(self) -> Vec<String> {
        let toolkit = toolkit();
        let beside = |library: &str, folder: PathBuf| {
            let folder = folder.join("lib").display().to_string();
            [
                "-cudart", "none", "-L", &folder, "-l", library, "-Xlinker", "-rpath", "-Xlinker",
                &folder,
            ]
            .map(str::to_owned)
            .to_vec()
        };
        let older = || {
            installed(&CUDA_12);
            toolkit.with_file_name("cuda_runtime")
        };
        let with_older_headers = |mut options: Vec<String>| {
            options.extend(["-I".to_owned(), older().join("include").display().to_string()]);
            options
        };
        match self {
            Runtime::Static => Vec::new(),
            Runtime::Shared => beside(":libcudart.so.13", toolkit.clone()),
            Runtime::Static12 => with_older_headers(beside(":libcudart_static.a", older())),
            Runtime::Shared12 => with_older_headers(beside(":libcudart.so.12", older())),
        }
    }
}

/// Compiles a library of `programs/` that is to be preloaded.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn preloaded_library(name: &str, folder: &Path) -> PathBuf {
    let source = source(name, "cpp");
    let library = folder.join(name).with_extension("so");
    let mut command = Command::new("g++");
    command.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o"]).args([&library, &source]);
    command.arg("-I").arg(toolkit().join("include"));
    run(&mut command, "Debian: apt-get install g++");
    library
}

/// Compiles one of CUTLASS's examples, unchanged. `path` is its folder and file, without an ending.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn cutlass_example(path: &str, architecture: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (path, architecture, BASE.packages, CUTLASS.packages).hash(&mut hasher);
    let name = path.rsplit('/').next().unwrap_or(path);
    compiled(name, hasher.finish(), |unfinished| {
        let root = site_packages(&installed(&CUTLASS)).join("cutlass_library/source");
        let source = root.join("examples").join(path).with_extension("cu");
        let mut command = Command::new(toolkit().join("bin/nvcc"));
        command.args(["-std=c++17", "-O1", "--expt-relaxed-constexpr", "-w", "-gencode"]);
        command.arg(format!("arch=compute_{architecture},code=compute_{architecture}"));
        for folder in ["include", "tools/util/include", "examples/common"] {
            command.arg("-I").arg(root.join(folder));
        }
        // Any `libcuda.so.1` would do: ours only lends its symbols to the linker.
        command.arg(crate::binaries::binary("libpartita_cuda.so"));
        command.arg("-o").arg(unfinished).arg(source);
        command
    })
}

/// Compiles one of the C++ programs in `programs/` that call the driver's API and NVRTC, and
/// returns the executable. It is linked as against any `libcuda.so.1`: ours only lends its symbols
/// to the linker.
///
/// # Panics
/// Where it does not compile.
#[must_use]
pub fn driver_program(name: &str) -> PathBuf {
    let source = source(name, "cpp");
    let mut hasher = DefaultHasher::new();
    (read(&source), BASE.packages, PYTHON.packages).hash(&mut hasher);
    compiled(name, hasher.finish(), |unfinished| {
        installed(&BASE);
        let toolkit = toolkit_of(&installed(&PYTHON));
        let library = toolkit.join("lib");
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-O1", "-o"]).arg(unfinished).arg(&source);
        command.arg("-I").arg(toolkit.join("include"));
        command.arg("-L").arg(&library).args(["-l:libnvrtc.so.13", "-Wl,-rpath"]).arg(&library);
        command.arg(crate::binaries::binary("libpartita_cuda.so"));
        command
    })
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
