//! Kernels of real programs in every form: their effects on memory, and `ptxas`'s acceptance.
//!
//! Programs run once unmodified and are recorded. `partita bench forms` runs their launches again
//! as workers, tickets, fenced, in slices, counted, with several grids and task sizes, while the
//! partition changes at random. A run tries a few launches of each kernel; `PARTITA_FORMS=all`
//! tries more, and every module for every architecture, which takes an hour.

use partita_e2e::daemon::Daemon;
use partita_e2e::{binaries, toolchain};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Programs that nvcc compiles. Not among them are those whose launches cannot be tried: they
/// allocate on the device, look at clocks, fault, or use what recordings do not keep.
const NVCC: [&str; 48] = [
    "async_alloc",
    "atomics",
    "barrier",
    "bfloat16",
    "bfs",
    "big_parameter",
    "bignum",
    "bitonic",
    "copy2d",
    "cub",
    "doubles",
    "dynamic_shared",
    "early_return",
    "events",
    "fft",
    "floats",
    "forms",
    "gemm",
    "grid_stride",
    "groups",
    "half",
    "histogram",
    "intrinsics",
    "lookback",
    "lu",
    "mandelbrot",
    "many_launches",
    "mma",
    "montecarlo",
    "nbody",
    "no_parameters",
    "odd_grid",
    "pipeline",
    "queens",
    "radix",
    "recursion",
    "reduce",
    "redux",
    "scan",
    "sha256",
    "simd",
    "spmv",
    "stencil",
    "symbols",
    "thrust_reduce",
    "thrust_scan",
    "thrust_unique",
    "warp",
];

/// By NVRTC, by Triton (before, in `programs/triton`) and by Numba, whose scripts lie in
/// `programs/numba`.
const COMPILED_AT_RUN_TIME: [&str; 9] = [
    "nvrtc",
    "triton",
    "numba-functions",
    "numba-histogram",
    "numba-math_functions",
    "numba-matmul",
    "numba-reduce",
    "numba-streams",
    "numba-vecadd",
];

/// Architectures whose `ptxas` must take a module, where its target permits them.
const ARCHITECTURES: &str = "75,80,86,89,90,100,103,110,120,121";

/// Recordings whose modules `ptxas` sees in a run that does not try all: few and small, of every
/// compiler and target.
const ASSEMBLED: [&str; 8] = [
    "early_return",
    "forms",
    "lookback",
    "nvrtc",
    "numba-matmul",
    "numba-reduce",
    "pipeline",
    "triton",
];

fn try_all() -> bool {
    std::env::var("PARTITA_FORMS").is_ok_and(|value| value == "all")
}

/// Runs a program as it stands and leaves its recording in the folder.
fn record(folder: &Path, name: &str, program: &Path, arguments: &[PathBuf]) -> PathBuf {
    let recording = folder.join(name).with_extension("rec");
    let daemon = Daemon::start(&format!("emu:h200,timing=off,record={}", recording.display()));
    let output = daemon.run(program).args(arguments).output().expect("partita can be started");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.ends_with("PASSED\n"),
        "{name}: {stdout}\n{}",
        daemon.log()
    );
    recording
}

/// The recordings of all programs. Compiling takes most of the time where the cache is empty, so
/// that every core has a program at a time.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let programs = partita_e2e::workspace().join("tests/partita-e2e/programs");
    let python = toolchain::python();
    let record_program = |name: &str| match name {
        "nvrtc" => record(folder, name, &toolchain::driver_program(name), &[]),
        "triton" => record(folder, name, &toolchain::driver_program(name), &[programs.join(name)]),
        _ => match name.strip_prefix("numba-") {
            Some(script) => {
                let script = programs.join("numba").join(script).with_extension("py");
                record(folder, name, &python, &[script])
            }
            None => record(folder, name, &toolchain::gallery_program(name), &[]),
        },
    };
    let names: Vec<&str> = NVCC.into_iter().chain(COMPILED_AT_RUN_TIME).collect();
    let recordings: Vec<OnceLock<PathBuf>> = names.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let take = || {
        while let Some(at) = Some(next.fetch_add(1, Relaxed)).filter(|at| *at < names.len()) {
            recordings[at].get_or_init(|| record_program(names[at]));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(take);
        }
    });
    recordings.into_iter().map(|made| made.into_inner().expect("every program ran")).collect()
}

/// The metrics of `partita bench forms` over recordings, none of which may fail.
fn bench(arguments: &[&str], recordings: &[PathBuf]) -> Value {
    let mut command = Command::new(binaries::binary("partita"));
    let output =
        command.args(["bench", "forms", "--json"]).args(arguments).args(recordings).output();
    let output = output.expect("partita can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

fn metric(report: &Value, name: &str) -> f64 {
    let metrics = report["metrics"].as_array().expect("a report has metrics");
    let metric = metrics.iter().find(|metric| metric["name"] == name);
    metric
        .and_then(|metric| metric["value"].as_f64())
        .unwrap_or_else(|| panic!("no `{name}` in {report}"))
}

#[test]
fn kernels_do_the_same_in_every_form() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recordings = recordings(folder.path());
    let effort: &[&str] = if try_all() {
        &["--launches", "8", "--runs", "6"]
    } else {
        &["--launches", "1", "--runs", "1"]
    };
    let report = bench(effort, &recordings);
    eprintln!("{report}");
    assert!(metric(&report, "kernels") >= 80.0, "{report}");
    assert!(metric(&report, "workers and tickets") >= 90.0, "{report}");
    for form in ["worker", "ticket", "fence", "fence, choose, cancel", "slice", "count"] {
        assert!(metric(&report, &format!("runs {form}")) >= 80.0, "{report}");
    }

    let ptxas = toolchain::toolkit().join("bin/ptxas");
    let is_assembled = |path: &PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
        try_all() || name.is_some_and(|name| ASSEMBLED.contains(&name.as_str()))
    };
    let assembled: Vec<PathBuf> = recordings.into_iter().filter(is_assembled).collect();
    let architectures = if try_all() { ARCHITECTURES } else { "75,80,90,120" };
    let ptxas = ptxas.to_str().expect("a path in UTF-8");
    let arguments = ["--launches", "0", "--ptxas", ptxas, "--architectures", architectures];
    let report = bench(&arguments, &assembled);
    eprintln!("{report}");
    assert!(metric(&report, "texts that ptxas took") >= 100.0, "{report}");
}
