//! Unmodified programs under `partita run`: results, exit codes, bad input.

use partita_e2e::daemon::Daemon;
use partita_e2e::held::Held;
use partita_e2e::{binaries, fatbin, toolchain};
use partita_model::{CopyKind, Nanos, Sharing, Timekeeping, TraceEntry};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn output(command: &mut Command) -> Output {
    command.output().expect("partita can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// `partita run` where no daemon serves: the environment names none.
fn run_private(program: &Path) -> Command {
    let mut command = Command::new(binaries::binary("partita"));
    command.args(["run", "--private", "--"]).arg(program).stdin(Stdio::null());
    command
}

#[track_caller]
fn expect_success(output: &Output, lines: &[&str]) {
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}\n{stdout}\n{}", output.status, text(&output.stderr));
    for line in lines {
        assert!(stdout.lines().any(|printed| printed == *line), "no line `{line}` in:\n{stdout}");
    }
}

#[test]
fn vec_add_gives_its_success_line_at_every_size() {
    let program = toolchain::program("vecAdd");
    let daemon = Daemon::start("emu");
    for n in [1, 31, 1_000, 1_000_003] {
        let output = output(daemon.run(&program).arg(n.to_string()));
        let sum: f64 = (0..n).map(|i| f64::from(i % 1001) * 0.5 + f64::from(i % 777) - 300.0).sum();
        expect_success(&output, &[&format!("vecAdd n={n} sum={sum:.1}"), "PASSED"]);
        assert_eq!(text(&output.stderr), "", "nothing is said where a daemon serves");
    }
}

#[test]
fn a_private_daemon_serves_one_program() {
    let program = toolchain::program("vecAdd");
    let output = output(run_private(&program).arg("1000"));
    expect_success(&output, &["PASSED"]);
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("emulated GPU"), "{stderr}");
}

#[test]
fn without_timing_the_results_are_the_same_and_the_reports_say_so() {
    let program = toolchain::program("vecAdd");
    let output = output(
        Command::new(binaries::binary("partita"))
            .args(["run", "--no-timing"])
            .arg(&program)
            .arg("100003"),
    );
    let sum: f64 =
        (0..100_003).map(|i| f64::from(i % 1001) * 0.5 + f64::from(i % 777) - 300.0).sum();
    expect_success(&output, &[&format!("vecAdd n=100003 sum={sum:.1}"), "PASSED"]);
    assert!(text(&output.stderr).contains("timing=off"), "{}", text(&output.stderr));

    let daemon = Daemon::start("emu,timing=off");
    expect_success(&self::output(daemon.run(&program).arg("1000")), &["PASSED"]);
    for command in ["status", "trace"] {
        let told = text(&self::output(&mut daemon.partita(&[command])).stdout);
        assert!(told.contains("timing=off"), "{told}");
    }
    assert_eq!(daemon.status().gpu.timekeeping, Timekeeping::Off);
    assert_eq!(daemon.trace().timekeeping, Timekeeping::Off);
    assert_eq!(Daemon::start("emu").status().gpu.timekeeping, Timekeeping::Simulated);
}

#[test]
fn coverage_counts_the_calls() {
    let mut command = Command::new(binaries::binary("partita"));
    command.args(["run", "--private", "--coverage"]).arg(toolchain::program("vecAdd")).arg("1000");
    let output = output(&mut command);
    expect_success(&output, &["PASSED"]);
    let stderr = text(&output.stderr);
    let launches = stderr.lines().find(|line| line.contains("cuLaunchKernel"));
    let cells: Vec<&str> =
        launches.unwrap_or_else(|| panic!("{stderr}")).split_whitespace().collect();
    assert_eq!(cells, ["1", "0", "cuLaunchKernel", "by", "the", "daemon"]);
    assert!(stderr.contains(", 0 of them not supported\n"), "{stderr}");
}

#[test]
fn kernels_run_as_they_are_under_the_baselines() {
    let program = toolchain::program("vecAdd");
    for (name, sharing) in
        [("mps,thread-percentage=50", Sharing::Mps), ("timeslice", Sharing::TimeSlice)]
    {
        let daemon = Daemon::start(&format!("emu:cd-search-24,sharing={name}"));
        let mut other = daemon.run(&program).arg("40000").stdout(Stdio::null()).spawn().unwrap();
        expect_success(&output(daemon.run(&program).arg("40000")), &["PASSED"]);
        assert!(other.wait().unwrap().success());
        assert_eq!(daemon.status().policy.sharing, sharing);
        let told = text(&output(&mut daemon.partita(&["status"])).stdout);
        assert!(told.contains("hardware"), "{told}");
    }
}

/// The trace has what a program copies, and the file for Perfetto has the same.
#[test]
fn the_trace_has_the_copies_of_a_program() {
    let daemon = Daemon::start("emu:cd-search-24");
    let program = toolchain::program("vecAdd");
    expect_success(&output(daemon.run(&program).arg("100000")), &["PASSED"]);
    let trace = daemon.trace();
    let of = |kind| trace.copies.iter().filter(move |copy| copy.kind == kind);
    let bytes = |kind| of(kind).map(|copy| copy.bytes).sum::<u64>();
    assert_eq!(bytes(CopyKind::HostToDevice), 2 * 400_000);
    assert_eq!(bytes(CopyKind::DeviceToHost), 400_000);
    // Copies to the device, CTAs, copies to the host.
    let ctas = trace.entries.iter().filter_map(|entry| match entry {
        TraceEntry::Residency { change, .. } => Some(change.time),
        TraceEntry::Resize { .. } => None,
    });
    let (first, last) = (ctas.clone().min().expect("CTAs"), ctas.max().expect("CTAs"));
    assert!(of(CopyKind::HostToDevice).all(|copy| copy.end <= first), "{:#?}", trace.copies);
    assert!(of(CopyKind::DeviceToHost).all(|copy| copy.start >= last), "{:#?}", trace.copies);
    // 12 GB/s and 8 us a copy (`partita-emu`): nothing is faster than that.
    for copy in &trace.copies {
        assert!(copy.end.0 - copy.start.0 >= copy.bytes / 12, "{copy:?}");
    }
    for pair in of(CopyKind::HostToDevice).collect::<Vec<_>>().windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?}");
    }

    let written = output(&mut daemon.partita(&["trace", "--perfetto", "-"]));
    assert!(written.status.success(), "{}", text(&written.stderr));
    let file: serde_json::Value = serde_json::from_slice(&written.stdout).expect("JSON");
    let events = file["traceEvents"].as_array().expect("events");
    let begun = events.iter().filter(|event| event["cat"] == "copy" && event["ph"] == "b");
    assert_eq!(begun.count(), trace.copies.len());
    let drawn = text(&output(&mut daemon.partita(&["trace"])).stdout);
    assert!(drawn.contains("  H->D a") && drawn.contains("  D->H ."), "{drawn}");
}

/// Runs two programs at once, which connect in this order. Returns the device times at which each
/// one's last CTA left.
fn ends_of_two(programs: [(&str, &str); 2]) -> Vec<u64> {
    let daemon = Daemon::start("emu:cd-search-24,patience=60000,together=2");
    let mut children = Vec::new();
    for (name, argument) in programs {
        daemon.wait_for("the program before", |status| status.applications.len() == children.len());
        let mut command = daemon.run(&toolchain::program(name));
        command.arg(argument).stdout(Stdio::piped());
        children.push(command.spawn().expect("partita can be started"));
    }
    for child in children {
        expect_success(&child.wait_with_output().expect("it was started"), &["PASSED"]);
    }
    let gpu = daemon.status().gpu;
    assert_eq!(gpu.patience_exceeded, 0);
    assert_eq!(gpu.host_time.map(|rules| rules.call), Some(Nanos(2_000)));
    let mut ends = BTreeMap::new();
    for entry in daemon.trace().entries {
        if let TraceEntry::Residency { change, application, .. } = entry {
            ends.insert(application, change.time.0);
        }
    }
    let mut ends: Vec<u64> = ends.into_values().collect();
    ends.sort_unstable();
    ends
}

#[test]
fn two_programs_take_the_same_time_again() {
    for programs in
        [[("vecAdd", "300000"), ("vecAdd", "300000")], [("vecAdd", "200000"), ("poly", "65536")]]
    {
        let (first, second) = (ends_of_two(programs), ends_of_two(programs));
        assert_eq!((first.len(), second.len()), (2, 2));
        for (first, second) in first.iter().zip(&second) {
            assert_eq!(first, second, "ns of {programs:?}");
        }
        eprintln!("{programs:?}: {first:?}, {second:?} ns");
    }
}

/// A pause beyond the patience, with nothing on the device.
#[test]
fn pauses_on_the_host_take_no_device_time() {
    let program = toolchain::program("pauses");
    let taken = |patience_ms: u32| {
        let daemon = Daemon::start(&format!("emu:cd-search-24,patience={patience_ms}"));
        let output = output(daemon.run(&program).args(["5", "600"]));
        expect_success(&output, &["PASSED"]);
        (text(&output.stdout), daemon.status().gpu.patience_exceeded)
    };
    let (time, exceeded) = taken(60_000);
    assert_eq!(exceeded, 0);
    assert_eq!(taken(300), (time, 0));
}

#[test]
fn ten_million_elements() {
    let output = output(run_private(&toolchain::program("vecAdd")).arg("10000000"));
    expect_success(&output, &["PASSED"]);
}

/// A program of these bytes. Another process writes it: what a thread forks meanwhile would have
/// the file open, and the system starts no file that somebody has open for writing.
fn program_of(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let (source, program) = (folder.path().join("bytes"), folder.path().join(name));
    std::fs::write(&source, bytes).expect("the folder takes a file");
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755))
        .expect("it is our file");
    let copied = Command::new("cp").args([&source, &program]).status();
    assert!(copied.expect("there is a cp").success());
    program
}

#[test]
fn the_kernel_that_runs_is_the_one_in_the_fatbin() {
    let program = toolchain::program("vecAdd");
    let mut bytes = std::fs::read(&program).unwrap();
    assert_eq!(fatbin::patch_ptx(&mut bytes, "add.f32", "sub.f32"), 1);
    let folder = tempfile::tempdir().unwrap();
    let patched = program_of(&folder, "vecSub", &bytes);

    let output = output(run_private(&patched).arg("1000"));
    let sum: f64 =
        (0..1000).map(|i| f64::from(i % 1001) * 0.5 - (f64::from(i % 777) - 300.0)).sum();
    let stdout = text(&output.stdout);
    assert!(stdout.contains(&format!("sum={sum:.1}")), "{stdout}");
    assert_eq!(output.status.code(), Some(1), "the program itself sees that the result is wrong");
}

#[test]
fn the_report_says_that_the_rewritten_kernel_ran() {
    let program = toolchain::program("poly");
    let daemon = Daemon::start("emu");
    let held = Held::start(&daemon, &program, &["32768", "500", "1"]);
    let status = daemon.wait_for("a kernel in the report", |status| {
        status.applications.iter().any(|application| !application.kernels.is_empty())
    });
    let kernel = &status.applications[0].kernels[0];
    assert_eq!((kernel.form.as_str(), kernel.reason.as_deref()), ("worker", None), "{kernel:?}");
    assert!(kernel.name.contains("poly"), "{kernel:?}");
    assert!(held.release().status.success());
}

/// Arguments of `faults.cu`, the error of the faulty call and of the next call, and the log line's
/// text. The log line also has kernel, CTA, thread and line; `docs/faults.md` has the full
/// messages.
const FAULTS: [(&str, &str, &[&str]); 14] = [
    (
        "beyond",
        "cudaErrorIllegalAddress",
        &["`_Z5storePil`", "thread (64,0,0)", "0 bytes beyond the allocation 0x"],
    ),
    ("freed", "cudaErrorIllegalAddress", &["store of 4 bytes, inside the freed allocation 0x"]),
    (
        "null",
        "cudaErrorIllegalAddress",
        &["address 0x0: store of 4 bytes outside what the launch may touch"],
    ),
    (
        "misaligned",
        "cudaErrorMisalignedAddress",
        &["load of 16 bytes at an address that is no multiple of it"],
    ),
    ("constant", "cudaErrorIllegalAddress", &["store of 4 bytes to constant memory"]),
    (
        "shared",
        "cudaErrorIllegalAddress",
        &["thread (32,0,0)", "store of 4 bytes beyond the CTA's", "of shared memory"],
    ),
    ("recursion", "cudaErrorHardwareStackError", &["the call of `_Z6deeperiPVi` needs"]),
    (
        "call",
        "cudaErrorInvalidPc",
        &["call of 0x1234, which is the address of no function of the module"],
    ),
    ("trap", "cudaErrorLaunchFailure", &["the kernel executed `trap`"]),
    (
        "breakpoint",
        "cudaErrorLaunchFailure",
        &["the kernel executed `brkpt`, and no debugger is there"],
    ),
    ("free", "cudaErrorIllegalAddress", &["free of an address that `malloc` has not given"]),
    ("barrier", "cudaErrorLaunchFailure", &["barrier 1 can never be passed"]),
    ("texture", "cudaErrorIllegalAddress", &["no texture or surface object 0x"]),
    (
        "surface",
        "cudaErrorLaunchFailure",
        &["(32, 0, 0) and 4 bytes lie outside of a surface of 32 bytes, 8 rows"],
    ),
];

#[test]
fn a_fault_gives_cudas_error_and_a_line_in_the_log() {
    let daemon = Daemon::start("emu,memcheck=on");
    let program = toolchain::program("faults");
    let mut logged = 0;
    for (what, error, parts) in FAULTS {
        let output = output(daemon.run(&program).arg(what));
        expect_success(&output, &[]);
        // The error sticks to its own program; the next program is another session.
        assert_eq!(text(&output.stdout), format!("{error}\n{error}\n"), "{what}");
        let log = daemon.log();
        let new = &log[logged..];
        let line = new
            .lines()
            .find(|line| line.contains("PTX line"))
            .unwrap_or_else(|| panic!("{what}: {new}"));
        for part in ["in kernel `", "CTA (0,0,0)", "thread ("].iter().chain(parts) {
            assert!(line.contains(part), "{what}: no `{part}` in: {line}");
        }
        logged = log.len();
    }
    let after = output(daemon.run(&toolchain::program("vecAdd")).arg("1000"));
    expect_success(&after, &["PASSED"]);
}

/// A kernel may access memory past an allocation, inside the pages that its program has mapped, as
/// on a GPU.
#[test]
fn an_access_past_an_allocation_passes_and_is_told_once() {
    let daemon = Daemon::start("emu");
    let program = toolchain::program("faults");
    for what in ["beyond", "freed"] {
        let output = output(daemon.run(&program).arg(what));
        expect_success(&output, &[]);
        assert_eq!(text(&output.stdout), "cudaSuccess\ncudaSuccess\n", "{what}");
    }
    let log = daemon.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("memcheck=on")).collect();
    assert_eq!(lines.len(), 2, "one for each session: {log}");
    assert!(lines[0].contains("_Z5storePil") && lines[0].contains("PTX line"), "{lines:?}");
    assert!(daemon.status().gpu.stray_accesses > 0);
}

#[test]
fn a_program_without_ptx_for_the_device_is_told_the_remedy() {
    let program = toolchain::program_with("vecAdd", &["-gencode", "arch=compute_90,code=sm_90"]);
    let output = output(run_private(&program).arg("10"));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cudaErrorNoKernelImageForDevice"), "{stderr}");
    assert!(stderr.contains("-gencode"), "{stderr}");
}

#[test]
fn malformed_ptx_is_refused_with_its_place() {
    let program = toolchain::program("vecAdd");
    let mut bytes = std::fs::read(&program).unwrap();
    assert_eq!(fatbin::patch_ptx(&mut bytes, "add.f32", "add.f32 ,"), 1);
    let folder = tempfile::tempdir().unwrap();
    let patched = program_of(&folder, "broken", &bytes);

    let output = output(run_private(&patched).arg("10"));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cudaErrorInvalidPtx"), "{stderr}");
    let place = stderr.lines().any(|line| line.contains("expected") && line.contains(':'));
    assert!(place, "no line, column and expectation in:\n{stderr}");
}

#[test]
fn exit_codes_signals_arguments_and_input_are_the_programs_own() {
    let daemon = Daemon::start("emu");
    let shell = Path::new("/bin/sh");
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        let output = output(daemon.run(shell).args(["-c", script]));
        assert_eq!(output.status.code(), Some(code), "{script}");
    }
    let killed = output(daemon.run(shell).args(["-c", "kill -USR1 $$"]));
    assert_eq!(killed.status.signal(), Some(10), "{killed:?}");
    let killed = output(run_private(shell).args(["-c", "kill -KILL $$"]));
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");

    let echoed =
        output(daemon.run(shell).args(["-c", "printf '%s|' \"$@\"", "x", "--help", "a b", ""]));
    assert_eq!(text(&echoed.stdout), "--help|a b||");

    let mut child =
        daemon.run(Path::new("cat")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"through").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "through");
}

#[test]
fn what_cannot_be_started_is_named() {
    let daemon = Daemon::start("emu");
    let missing = output(&mut daemon.run(Path::new("/no/such/program")));
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("/no/such/program"), "{}", text(&missing.stderr));

    let folder = tempfile::tempdir().unwrap();
    let plain = folder.path().join("plain.txt");
    std::fs::write(&plain, "not a program").unwrap();
    let refused = output(&mut daemon.run(&plain));
    assert_eq!(refused.status.code(), Some(126));
    assert!(text(&refused.stderr).contains("plain.txt"), "{}", text(&refused.stderr));

    let unknown = Command::new(binaries::binary("partita"))
        .args(["run", "--device", "emu:no-such-gpu", "--private", "--", "true"])
        .output()
        .unwrap();
    assert!(!unknown.status.success());
    let stderr = text(&unknown.stderr);
    assert!(stderr.contains("no-such-gpu") && stderr.contains("cd-search-24"), "{stderr}");
}
