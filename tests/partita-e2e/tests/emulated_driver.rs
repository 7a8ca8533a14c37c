//! Unmodified programs on the real backend, over the driver that executes
//! (`tests/emulated-driver`).
//!
//! A run tries a few programs of the gallery. `PARTITA_EMULATED_DRIVER_GALLERY=all` tries all, and
//! `PARTITA_EMULATED_DRIVER_GALLERY=scan,gemm` these. `PARTITA_EMULATED_DRIVER` sets other
//! switches of the driver than the tests choose.

use partita_e2e::daemon::Daemon;
use partita_e2e::gallery::NAMES;
use partita_e2e::held::Held;
use partita_e2e::toolchain;
use partita_model::{SmSet, StatusReport};
use rustix::process::{Signal, kill_process};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// The emulated GPU's time is of no use here, and programs have PTX of CUDA 13.5.
const SWITCHES: &str = "timing=off,cuda=13050";
/// The same for programs whose kernels reach the host's memory. Without pageable access such a
/// kernel ends the context, and with the context's lock the owner's thread hangs (docs/roadmap.md,
/// "The real GPU").
const WITH_HOST_MEMORY: &str = "timing=off,cuda=13050,no-pageable-access=off,context-lock=off";
const POLICY: &str = "[policy]\npartitioner = \"even\"\n";

/// How long a program of the gallery may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The programs of every run: an atomic, a barrier, a copy beside a kernel, a module's variables.
const PROGRAMS: &str = "atomics,reduce,symbols";

/// The switches of the environment, else these.
fn switches(usual: &str) -> String {
    std::env::var("PARTITA_EMULATED_DRIVER").unwrap_or_else(|_| usual.to_owned())
}

/// The reason why a program has not passed.
fn failure(output: &Output) -> Option<String> {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && stdout.ends_with("PASSED\n");
    let stderr = String::from_utf8_lossy(&output.stderr);
    (!passed).then(|| format!("{}\n{stdout}\n{stderr}", output.status))
}

/// Runs a program of the gallery on a daemon of its own. The reason why it has not passed.
fn run(name: &str, switches: &str) -> Result<(), String> {
    let program = toolchain::gallery_program(name);
    let daemon = Daemon::on_emulated_driver(switches, POLICY);
    let mut command = daemon.run(&program);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("partita can be started");
    let start = Instant::now();
    while child.try_wait().expect("it is a child").is_none() {
        if start.elapsed() > LIMIT {
            child.kill().expect("it is a child");
            return Err(format!("it hangs\n{}", daemon.log()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output can be read");
    failure(&output).map_or(Ok(()), |reason| Err(format!("{reason}\n{}", daemon.log())))
}

#[test]
fn an_unmodified_program_adds_vectors_on_the_real_backend() {
    let daemon = Daemon::on_emulated_driver(SWITCHES, POLICY);
    assert_eq!(daemon.status().gpu.sms, 132);
    let program = toolchain::program("vecAdd");
    let output = daemon.run(&program).output().expect("partita can be started");
    assert_eq!(failure(&output), None);
}

#[test]
fn programs_of_the_gallery_pass() {
    let asked = std::env::var("PARTITA_EMULATED_DRIVER_GALLERY").ok();
    let switches = switches(SWITCHES);
    let names = match asked.as_deref() {
        Some("all") => NAMES.join(","),
        names => names.unwrap_or(PROGRAMS).to_owned(),
    };
    let mut wrong = Vec::new();
    for name in names.split(',') {
        let start = Instant::now();
        let result = run(name, &switches);
        let words = if result.is_ok() { "passed" } else { "FAILED" };
        println!("{name}: {words} after {:.1} s", start.elapsed().as_secs_f64());
        wrong.extend(result.err().map(|reason| format!("--- {name} ---\n{reason}")));
    }
    assert!(wrong.is_empty(), "{} programs failed\n{}", wrong.len(), wrong.join("\n"));
}

fn ctas(status: &StatusReport) -> Vec<u64> {
    status.applications.iter().map(|application| application.ctas_completed).collect()
}

/// A border moves under load, one program is killed, and the other keeps its results.
#[test]
#[ignore = "takes 45 seconds; --ignored runs it"]
fn a_border_moves_and_a_killed_program_harms_nobody() {
    let daemon = Daemon::on_emulated_driver(&switches(WITH_HOST_MEMORY), POLICY);
    let program = toolchain::program("poly");
    let start = |seed: &str| Held::start(&daemon, &program, &["32768", "3000", seed]);
    let first = start("1");
    let status = daemon.wait_for("the first program", |status| status.applications.len() == 1);
    let one = status.applications[0].id;
    let second = start("2");
    let status = daemon.wait_for("two programs with work", |status| {
        status.applications.len() == 2 && ctas(status).iter().all(|ctas| *ctas > 0)
    });
    let other = status.applications.iter().map(|found| found.id).find(|id| *id != one);
    let other = other.expect("there are two");
    let (few, many) = (SmSet::range(0, 16), SmSet::range(16, 116));
    assert!(daemon.resize(&[(one, few), (other, many)]));
    let moved = daemon.wait_for("the new border", |status| {
        status.partitions.iter().any(|part| part.application == one && part.sms == few)
    });
    let then = ctas(&moved);
    daemon.wait_for("progress behind the border", |status| {
        ctas(status).iter().zip(&then).all(|(now, then)| *now > *then)
    });
    kill_process(second.id(), Signal::KILL).expect("it is there");
    assert!(!second.output().status.success());
    daemon.wait_for("one program", |status| status.applications.len() == 1);
    assert_eq!(failure(&first.release()), None);
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    assert_eq!(status.gpu.memory_used_bytes, 0, "everything was given back");
}
