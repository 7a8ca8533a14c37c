//! A few seeds of the tool, as CI can afford them: two minutes on two slow cores.
//!
//! Results, errors and the speed of healthy programs are held for every act
//! (`docs/architecture/testing.md`).

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use partita_e2e::binaries;
use serde_json::Value;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// The acts share two cores with the healthy programs: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn tool(arguments: &[&str]) -> Output {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_partita-hostile"));
    command.arg("--binaries").arg(binaries::folder()).args(arguments);
    let output = command.output().unwrap();
    drop(guard);
    output
}

/// Plays seeds and checks that nothing was lost, and that the acts did something.
fn check(arguments: &[&str]) {
    let output = tool(&[&["--json"], arguments].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let played: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {:?} {told}", output.status));
    for seed in played.as_array().unwrap() {
        assert_eq!(seed["losses"], Value::Array(Vec::new()), "{seed:#}");
        assert_eq!(seed["restarts"], 0, "{seed:#}");
        for program in seed["healthy"].as_array().unwrap() {
            assert!(program["beside"]["rounds"].as_u64().unwrap() > 0, "{seed:#}");
            assert_eq!(program["beside"]["wrong"], 0, "{seed:#}");
        }
        for act in seed["acts"].as_array().unwrap() {
            assert!(act["done"].as_u64().unwrap() > 0, "{act:#} did nothing");
        }
    }
    assert!(output.status.success(), "{:?}: {told}", output.status);
}

/// Less than the 80 % that the tool asks for: a few seconds on a busy machine have some thirty
/// rounds, and one long round more or less changes the speed by some per cent.
#[test]
fn healthy_programs_keep_their_results_and_their_speed() {
    check(&["--seeds", "0-2", "--seconds", "4", "--hostile", "4", "--least", "60"]);
}

/// Kernels that run as they are written, and first touches of fresh pages without device time: the
/// acts that once took nearly all of the device or of the host's time.
#[test]
fn healthy_programs_keep_their_speed_beside_what_took_all_of_it() {
    let effort = ["--seeds", "0", "--seconds", "4", "--hostile", "1"];
    check(&[&effort[..], &["--acts", "originals", "--least", "60"]].concat());
    // Host caches decide the rounds of a run: one of 4 seconds in six had half of the speed.
    let longer = ["--seeds", "0", "--seconds", "10", "--hostile", "1"];
    let device = ["--device", "emu:cd-search-24,timing=off", "--acts", "managed-memory"];
    check(&[&longer[..], &device, &["--least", "50"]].concat());
}

/// Half of the speed: the processor time of clients that connect again and again varies.
#[test]
fn healthy_programs_keep_their_results_and_half_their_speed_without_time() {
    let device = ["--device", "emu:cd-search-24,timing=off", "--least", "50"];
    check(&[&device[..], &["--seeds", "0-1", "--seconds", "4"]].concat());
}

#[test]
fn an_unknown_act_is_an_error_with_a_remedy() {
    let output = tool(&["--acts", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("nonsense") && told.contains("--help"), "{told}");
}
