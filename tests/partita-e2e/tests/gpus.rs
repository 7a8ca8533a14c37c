//! Programs on a daemon with two emulated GPUs of different kinds.

use partita_e2e::daemon::Daemon;
use partita_e2e::toolchain::{self, Runtime};
use rustix::process::{Pid, Signal, kill_process};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const EVEN: &str = "[policy]\npartitioner = \"even\"\n";
/// GPU 0 is the slower one: CUDA counts the fastest first.
const TWO: [&str; 2] = ["emu:cd-search-24,timing=off", "emu:h200,timing=off"];

fn output(command: &mut Command) -> Output {
    command.output().expect("partita can be started")
}

#[track_caller]
fn expect_passed(output: &Output, daemon: &Daemon) {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let passed = output.status.success() && stdout.ends_with("PASSED\n");
    assert!(passed, "{}\n{stdout}\n{stderr}\n{}", output.status, daemon.log());
}

fn compiled(runtime: Runtime) -> PathBuf {
    let own = runtime.options();
    toolchain::program_with("two_gpus", &own.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Uses `cudaSetDevice` in turns on one thread, one thread for each device, copies between the
/// devices, and waits for the other's events.
#[test]
fn a_program_uses_two_gpus() {
    let daemon = Daemon::with_devices(&TWO, EVEN);
    for runtime in [Runtime::Static, Runtime::Shared12] {
        expect_passed(&output(&mut daemon.run(&compiled(runtime))), &daemon);
    }
    let status = daemon.wait_for("empty GPUs", |status| {
        status.applications.is_empty() && status.others[0].applications.is_empty()
    });
    assert_eq!((status.gpu.memory_used_bytes, status.others[0].gpu.memory_used_bytes), (0, 0));
}

/// Time stands still on a GPU while no thread waits for it. So two GPUs must not wait for each
/// other.
#[test]
fn a_program_uses_two_gpus_that_keep_time() {
    let daemon = Daemon::with_devices(
        &["emu:cd-search-24,patience=60000", "emu:titan-xp,patience=60000"],
        EVEN,
    );
    expect_passed(&output(&mut daemon.run(&compiled(Runtime::Static))), &daemon);
    let status = daemon.status();
    assert_eq!((status.gpu.patience_exceeded, status.others[0].gpu.patience_exceeded), (0, 0));
}

/// The devices that a program lists, by their numbers of SMs.
fn listed(daemon: &Daemon, variables: &[(&str, &str)]) -> Vec<u32> {
    let mut command = daemon.run(&compiled(Runtime::Static));
    let output = output(command.arg("list").envs(variables.iter().copied()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    let sms =
        |line: &str| line.split(", ").find_map(|part| part.strip_suffix(" SMs")?.parse().ok());
    text.lines().filter_map(sms).collect()
}

#[test]
fn the_environment_says_which_devices_a_program_sees() {
    let daemon = Daemon::with_devices(&TWO, EVEN);
    let by_bus = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let check = |variables: &[(&str, &str)], sms: &[u32]| {
        assert_eq!(listed(&daemon, variables), sms, "{variables:?}");
    };
    check(&[], &[132, 24]);
    check(&[by_bus], &[24, 132]);
    check(&[by_bus, ("CUDA_VISIBLE_DEVICES", "1")], &[132]);
    check(&[by_bus, ("CUDA_VISIBLE_DEVICES", "1,0")], &[132, 24]);
    check(&[("CUDA_VISIBLE_DEVICES", "1")], &[24]);
    check(&[by_bus, ("CUDA_VISIBLE_DEVICES", "0,2,1")], &[24]);
    check(&[("CUDA_VISIBLE_DEVICES", "")], &[]);
    check(&[("CUDA_VISIBLE_DEVICES", "-1")], &[]);
    check(&[("CUDA_VISIBLE_DEVICES", "GPU-1a5b,GPU-0a38")], &[132, 24]);
    check(&[("CUDA_VISIBLE_DEVICES", "GPU-0a38")], &[24]);
}

#[test]
fn who_only_looks_at_a_device_is_no_application_there() {
    let daemon = Daemon::with_devices(&TWO, EVEN);
    let mut program = daemon
        .run(&compiled(Runtime::Static))
        .args(["last", "stay"])
        .stdout(Stdio::null())
        .spawn()
        .expect("partita can be started");
    let status = daemon.wait_for("the program", |status| !status.applications.is_empty());
    assert!(status.others[0].applications.is_empty(), "{status:#?}");
    drop(program.kill());
    drop(program.wait());
}

#[test]
fn the_fall_of_one_gpu_is_not_that_of_programs_on_the_other() {
    let daemon = Daemon::with_devices(&TWO, EVEN);
    let on = |number: &str| {
        let mut command = daemon.run(&compiled(Runtime::Static));
        command.envs([("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", number)]);
        command.stdout(Stdio::piped());
        command
    };
    let mut programs = ["0", "1"].map(|number| on(number).args(["last", "stay"]).spawn().unwrap());
    let status = daemon.wait_for("both programs", |status| {
        let launched = |applications: &[partita_model::ApplicationReport]| {
            applications.iter().any(|a| a.launches_completed > 0)
        };
        launched(&status.applications) && launched(&status.others[0].applications)
    });
    let pids = [&status.applications, &status.others[0].applications].map(|on| on[0].pids.clone());
    assert_eq!(pids, [vec![programs[0].id()], vec![programs[1].id()]]);

    let gpu = Pid::from_raw(status.others[0].gpu.pid.cast_signed()).expect("it runs");
    kill_process(gpu, Signal::KILL).expect("it is ours");
    let told = programs[1].wait().expect("it was started");
    assert_eq!(told.code(), Some(1), "the program learns of it");
    expect_passed(&output(on("0").arg("last")), &daemon);
    expect_passed(&output(on("1").arg("last")), &daemon);
    let after = daemon.status();
    assert_eq!((after.gpu.restarts, after.others[0].gpu.restarts), (0, 1));
    assert_eq!(after.applications[0].pids, pids[0], "the other one has noticed nothing");
    drop(programs[0].kill());
    drop(programs[0].wait());
}

#[test]
fn a_program_sees_the_gpus_of_its_user() {
    // Every system has this user, and no tests run as this user.
    let config = format!("{EVEN}[[policy.gpu]]\nnumber = 1\ntenants = [\"daemon\"]\n");
    let daemon = Daemon::with_devices(&TWO, &config);
    assert_eq!(listed(&daemon, &[]), [24]);
    // A scheduler's number, which counts the node's GPUs.
    assert_eq!(listed(&daemon, &[("CUDA_VISIBLE_DEVICES", "1")]), [24]);
    assert!(listed(&daemon, &[("CUDA_VISIBLE_DEVICES", "-1")]).is_empty());
    expect_passed(&output(daemon.run(&compiled(Runtime::Static)).arg("last")), &daemon);
}
