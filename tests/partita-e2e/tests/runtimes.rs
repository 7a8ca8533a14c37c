//! The runtime libraries that programs bring along: each kind, several in one process, and beside
//! other makers' libraries.

use partita_e2e::daemon::Daemon;
use partita_e2e::toolchain::{self, Runtime};
use std::path::PathBuf;
use std::process::Output;

const ALL: [Runtime; 4] = [Runtime::Static, Runtime::Shared, Runtime::Static12, Runtime::Shared12];

#[track_caller]
fn expect_passed(output: &Output, daemon: &Daemon) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && stdout.ends_with("PASSED\n");
    assert!(passed, "{}\n{stdout}\n{stderr}\n{}", output.status, daemon.log());
}

fn compile(name: &str, runtime: Runtime, options: &[&str]) -> PathBuf {
    let own = runtime.options();
    let all: Vec<&str> = own.iter().map(String::as_str).chain(options.iter().copied()).collect();
    toolchain::program_with(name, &all)
}

/// Kernels, `__constant__` and `__device__` variables, streams and events, graphs, textures.
#[test]
fn programs_run_with_each_runtime_and_each_packing() {
    const PACKED: [&str; 4] = [
        "--compress-mode=none",
        "--compress-mode=speed",
        "--compress-mode=size",
        "--compress-mode=balance",
    ];
    let daemon = Daemon::start("emu,timing=off");
    for (runtime, packed) in ALL.into_iter().zip(PACKED) {
        for name in ["symbols", "events", "graph", "texture"] {
            let program = compile(name, runtime, &[packed]);
            expect_passed(&daemon.run(&program).output().expect("partita can be started"), &daemon);
        }
    }
}

fn plugins() -> [PathBuf; 4] {
    ALL.map(|runtime| compile("runtimes_plugin", runtime, &["-shared", "-Xcompiler", "-fPIC"]))
}

/// The program's own, and four that it opens and closes.
#[test]
fn several_runtimes_work_in_one_process() {
    let daemon = Daemon::start("emu,timing=off");
    for runtime in [Runtime::Static, Runtime::Shared12] {
        let program = compile("runtimes", runtime, &[]);
        let output = daemon.run(&program).args(plugins()).output().expect("partita can be started");
        expect_passed(&output, &daemon);
        assert!(output.stdout.starts_with(b"runtimes libraries=4 versions=2\n"), "{output:?}");
    }
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}

/// Before the allocator and the driver's functions.
#[test]
fn a_preloaded_tool_sees_the_programs_calls() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let tool = toolchain::preloaded_library("preloaded", folder.path());
    let daemon = Daemon::start("emu,timing=off");
    let runs = [
        (toolchain::driver_program("lifetimes"), Vec::new(), "synchronisations 1"),
        (compile("runtimes", Runtime::Static, &[]), plugins().to_vec(), "synchronisations 0"),
    ];
    for (program, arguments, synchronisations) in runs {
        let mut command = daemon.run(&program);
        let output = command
            .args(arguments)
            .env("LD_PRELOAD", &tool)
            .output()
            .expect("partita can be started");
        expect_passed(&output, &daemon);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let line = format!("preloaded: allocations 1 {synchronisations}\n");
        assert!(stderr.contains(&line), "no `{line}` in {stderr}");
    }
}
