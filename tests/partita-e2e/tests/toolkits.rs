//! Programs whose kernels come from compilers other than nvcc: NVRTC, numba, CuPy and Triton; and
//! other languages' bindings to the driver.
//!
//! Each program checks its results against a reference on the host, and its last line ends in
//! `PASSED`.

use partita_e2e::daemon::Daemon;
use partita_e2e::toolchain;
use std::path::Path;
use std::process::{Command, Output};

#[track_caller]
fn expect_passed(output: &Output, daemon: &Daemon) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stdout.lines().last().unwrap_or_default();
    assert!(
        output.status.success() && last.ends_with("PASSED"),
        "{}\n{stdout}\n{stderr}\n{}",
        output.status,
        daemon.log()
    );
}

#[test]
fn nvrtc_compiles_for_three_architectures_and_the_gpus_own_and_the_driver_loads_it() {
    let program = toolchain::driver_program("nvrtc");
    let daemon = Daemon::start("emu");
    let output = daemon.run(&program).output().expect("partita can be started");
    expect_passed(&output, &daemon);
    for architecture in ["compute_75", "compute_80", "compute_90", "real"] {
        let line = format!("nvrtc {architecture}");
        assert!(
            String::from_utf8_lossy(&output.stdout).lines().any(|printed| printed == line),
            "{output:?}"
        );
    }
}

#[test]
fn objects_and_libraries_are_linked_while_the_program_runs() {
    let program = toolchain::driver_program("linking");
    let only_ptx = ["-dc", "-gencode", "arch=compute_75,code=compute_75"];
    let [object, part] = ["rdc", "rdc_part"].map(|name| toolchain::program_with(name, &only_ptx));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let library = folder.path().join("libpart.a");
    let status = Command::new("ar").arg("rcs").arg(&library).arg(part).status();
    assert!(status.is_ok_and(|status| status.success()), "Debian: apt-get install binutils");
    let runtime = toolchain::toolkit().join("lib/libcudadevrt.a");
    let daemon = Daemon::start("emu,timing=off");
    let output = daemon.run(&program).args([&object, &library, &runtime]).output();
    expect_passed(&output.expect("partita can be started"), &daemon);
}

#[test]
fn modules_of_kernels_that_launch_kernels_come_and_go() {
    let program = toolchain::driver_program("nested_module");
    let only_ptx = ["-dc", "-gencode", "arch=compute_75,code=compute_75"];
    let object = toolchain::program_with("nested", &only_ptx);
    let runtime = toolchain::toolkit().join("lib/libcudadevrt.a");
    let daemon = Daemon::start("emu,timing=off");
    let output = daemon.run(&program).args([&object, &runtime]).output();
    expect_passed(&output.expect("partita can be started"), &daemon);
}

/// `programs/triton/` has their PTX beside their source: Triton itself takes 1 GB.
#[test]
fn kernels_that_triton_compiled() {
    let kernels = partita_e2e::workspace().join("tests/partita-e2e/programs/triton");
    let program = toolchain::driver_program("triton");
    for device in ["emu", "emu,timing=off"] {
        let daemon = Daemon::start(device);
        let output = daemon.run(&program).arg(&kernels).output().expect("partita can be started");
        expect_passed(&output, &daemon);
        assert!(output.stdout.starts_with(b"triton kernels=8\n"), "{output:?}");
    }
}

#[test]
fn processes_and_libraries_come_and_go() {
    let program = toolchain::driver_program("lifetimes");
    let daemon = Daemon::start("emu");
    let output = daemon.run(&program).output().expect("partita can be started");
    expect_passed(&output, &daemon);
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}

/// Every function that the headers of CUDA 12.9 and 13.5 declare is exported: implemented, or
/// refused by name.
#[test]
fn every_name_of_the_drivers_api_is_exported() {
    let library = std::fs::read(partita_e2e::binaries::binary("libpartita_cuda.so"))
        .expect("the library was built");
    let exported = |name: &str| {
        let entry = [b"\0", name.as_bytes(), b"\0"].concat();
        library.windows(entry.len()).any(|window| window == entry)
    };
    for header in toolchain::driver_headers() {
        let text = std::fs::read_to_string(&header).expect("the header can be read");
        let names: std::collections::BTreeSet<&str> = text
            .match_indices("CUDAAPI cu")
            .filter_map(|(at, word)| {
                let rest = &text[at + word.len() - 2..];
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
                rest[end..].starts_with('(').then(|| &rest[..end])
            })
            .collect();
        assert!(names.len() > 400, "{}: only {} names", header.display(), names.len());
        let missing: Vec<&&str> = names.iter().filter(|name| !exported(name)).collect();
        assert!(missing.is_empty(), "{}: {missing:?}", header.display());
    }
}

fn numba(name: &str) {
    let python = toolchain::python();
    let daemon = Daemon::start("emu");
    let program = partita_e2e::workspace()
        .join("tests/partita-e2e/programs/numba")
        .join(name)
        .with_extension("py");
    let output = daemon.run(&python).arg(program).output().expect("partita can be started");
    expect_passed(&output, &daemon);
}

macro_rules! numba {
    ($($name:ident)*) => {
        mod numba {
            $(
                #[test]
                fn $name() {
                    super::numba(stringify!($name));
                }
            )*
        }
    };
}

numba! { functions histogram math_functions matmul reduce streams vecadd }

/// Runs a program on a GPU, and returns what it printed.
fn framework(device: &str, name: &str) -> String {
    // No compiled code of an earlier run.
    let cache = tempfile::tempdir().expect("a folder can be made");
    framework_with(cache.path(), device, name)
}

/// The same with a folder for compiled code.
fn framework_with(cache: &Path, device: &str, name: &str) -> String {
    let python = toolchain::python_frameworks();
    let program = partita_e2e::workspace().join("tests/partita-e2e/programs/frameworks").join(name);
    // The program has its own daemon.
    let mut command = Command::new(partita_e2e::binaries::binary("partita"));
    command.args(["run", "--device", device, "--"]).arg(python).arg(program.with_extension("py"));
    for variable in ["CUPY_CACHE_DIR", "TRITON_CACHE_DIR", "PARTITA_CACHE_DIR"] {
        command.env(variable, cache);
    }
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().expect("partita can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.ends_with("PASSED\n"),
        "{}\n{text}\n{errors}",
        output.status
    );
    text.into_owned()
}

#[test]
fn cupy() {
    framework("emu,timing=off", "cupy_arrays");
}

#[test]
fn triton_compiles_while_the_program_runs() {
    let said = framework("emu:a100,capability=8.0,timing=off", "triton_kernels");
    assert!(said.contains("blocks of 64 by 64: mma"), "{said}");
}

/// Triton takes warp-group instructions for `tl.dot` from compute capability 9.0 on.
#[test]
fn triton_compiles_for_the_default_gpu() {
    let said = framework("emu", "triton_kernels");
    assert!(said.contains("blocks of 128 by 64: wgmma"), "{said}");
}

/// Without timing the kernels run as tickets, with timing mostly as they are.
fn triton_in_both_modes(name: &str, wanted: &[&str]) {
    let cache = tempfile::tempdir().expect("a folder can be made");
    for device in ["emu", "emu,timing=off"] {
        let said = framework_with(cache.path(), device, name);
        for wanted in wanted {
            assert!(said.contains(wanted), "{device}: no {wanted:?} in\n{said}");
        }
    }
}

/// Attention and layer norm, forward and backward, and cross entropy.
#[test]
fn triton_trains_a_transformers_layers() {
    triton_in_both_modes("triton_attention", &["attention, causal", "wgmma", "layer norm"]);
}

/// Persistent, stream-K and split-K products, by tensor maps that host and kernels make, in all
/// types.
#[test]
fn triton_multiplies_matrices_in_many_ways() {
    triton_in_both_modes("triton_gemm", &["cp.async.bulk.tensor", "wgmma"]);
}

#[test]
fn cuda_bindings() {
    framework("emu", "cuda_bindings");
}

#[test]
fn a_rust_program_with_cudarc() {
    let daemon = Daemon::start("emu");
    let output = daemon.run(&partita_e2e::binaries::binary("cudarc_saxpy")).output();
    expect_passed(&output.expect("partita can be started"), &daemon);
}
