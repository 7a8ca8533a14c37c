//! A few seeds of the tool, as CI can afford them: half a minute for each test on two slow cores.
//!
//! No loss is allowed. The tool's own verdict counts, so these tests hold what the tool holds.

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

#[test]
fn healthy_programs_keep_their_results_and_their_speed() {
    check(&["--seeds", "0-3", "--seconds", "4"]);
}

#[test]
fn no_acts_are_an_error_with_a_remedy() {
    let output = tool(&["--acts", "nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("nonsense") && told.contains("--help"), "{told}");
}
