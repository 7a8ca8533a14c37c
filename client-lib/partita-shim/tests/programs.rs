//! Unmodified CUDA programs start up, copy and launch through the library, against a data plane
//! that is part of the test.
//!
//! The nvcc that `PARTITA_NVCC` names compiles the programs. Without it the tests skip, and say so.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod fake;

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// nvcc, if the machine has it.
fn nvcc() -> Option<OsString> {
    let nvcc = env::var_os("PARTITA_NVCC");
    if nvcc.is_none() {
        // The test harness hides the `eprintln!` of a passing test.
        let line = "SKIPPED: set PARTITA_NVCC to nvcc 13's path to run CUDA programs here\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    nvcc
}

fn compile(nvcc: &OsString, source: &str, options: &[&str], dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda").join(source);
    let program = dir.join("program");
    let status =
        Command::new(nvcc).args(options).arg("-o").arg(&program).arg(source).status().unwrap();
    assert!(status.success(), "nvcc failed");
    program
}

/// The library lies where cargo put the test, or one folder up.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let candidates = test.ancestors().skip(1).take(2).map(|dir| dir.join("libpartita_cuda.so"));
    candidates
        .into_iter()
        .find(|path| path.exists())
        .expect("cargo builds the library before its tests")
}

fn run(program: &Path, arguments: &[&str], dir: &Path) -> Output {
    Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library())
        .env("PARTITA_SOCKET_DIR", dir)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{:?}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

#[test]
fn vec_add_starts_up_copies_and_launches() {
    let Some(nvcc) = nvcc() else { return };
    let check = |options: &[&str], module: &str, stream: u64| {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&nvcc, "vec_add.cu", options, dir.path());
        let journal = fake::start(dir.path());
        for (n, grid) in [("1", 1), ("1000", 4), ("100000", 391)] {
            assert_eq!(
                stdout(&run(&program, &[n], dir.path())),
                format!("PASS 0 {n}\n"),
                "{options:?}"
            );
            let lines = journal.take();
            let launch =
                format!("launch _Z6vecAddPKfS0_Pfi grid {grid},1,1 block 256,1,1 stream {stream}");
            assert!(lines.contains(&format!("module {module}")), "{options:?}: {lines:?}");
            assert!(lines.contains(&launch), "{options:?}: {lines:?}");
        }
    };
    check(&[], "PtxZstd", 0);
    check(&["--compress-mode=speed"], "PtxLz4", 0);
    check(&["--compress-mode=none", "-gencode", "arch=compute_90,code=compute_90"], "Ptx", 0);
    check(&["-default-stream", "per-thread"], "PtxZstd", 1);
}

#[test]
fn a_tour_of_the_runtime_api() {
    let Some(nvcc) = nvcc() else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = compile(&nvcc, "tour.cu", &[], dir.path());
    fake::start(dir.path());
    assert_eq!(stdout(&run(&program, &[], dir.path())), "PASS\n");
}

#[test]
fn a_fault_sticks() {
    let Some(nvcc) = nvcc() else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = compile(&nvcc, "fault.cu", &[], dir.path());
    fake::start(dir.path());
    assert_eq!(stdout(&run(&program, &[], dir.path())), "0 700 700\n");
}

#[test]
fn code_for_other_devices_is_refused_with_a_remedy() {
    let Some(nvcc) = nvcc() else { return };
    let check = |options: &[&str], expect: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&nvcc, "vec_add.cu", options, dir.path());
        fake::start(dir.path());
        let output = run(&program, &["10"], dir.path());
        assert_eq!(output.status.code(), Some(1));
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(out.contains("no kernel image is available"), "{out}");
        assert!(expect.iter().all(|words| err.contains(words)), "{err}");
    };
    check(
        &["-gencode", "arch=compute_90,code=sm_90"],
        &["sm_90", "arch=compute_90,code=compute_90"],
    );
    check(&["-gencode", "arch=compute_100,code=compute_100"], &["sm_100", "compute_90"]);
}

#[test]
fn without_a_daemon_there_is_no_device_and_a_remedy() {
    let Some(nvcc) = nvcc() else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = compile(&nvcc, "vec_add.cu", &[], dir.path());
    let output = run(&program, &[], dir.path());
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.contains("no CUDA-capable device is detected"), "{out}");
    assert!(err.contains("partita run") && err.lines().count() == 1, "{err}");
}

/// Not a test by itself: a data plane in a process of its own, which `a_dead_daemon_is_an_error`
/// kills.
#[test]
fn data_plane_in_a_process() {
    let Some(dir) = env::var_os("PARTITA_TEST_SERVE") else { return };
    let _journal = fake::start(Path::new(&dir));
    loop {
        std::thread::park();
    }
}

#[test]
fn a_dead_daemon_is_an_error() {
    let Some(nvcc) = nvcc() else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = compile(&nvcc, "until_error.cu", &[], dir.path());
    let mut daemon = Command::new(env::current_exe().unwrap())
        .args(["--exact", "data_plane_in_a_process"])
        .env("PARTITA_TEST_SERVE", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(180);
    while !dir.path().join("partitad.sock").exists() {
        assert!(Instant::now() < deadline, "no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut client = Command::new(&program)
        .env("LD_PRELOAD", library())
        .env("PARTITA_SOCKET_DIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "running");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "806 806 806");
    assert!(client.wait().unwrap().success());
}
