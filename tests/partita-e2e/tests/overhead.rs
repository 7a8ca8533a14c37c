//! `partita bench overhead -- PROGRAM`: the cost of partitions for unmodified programs, and what is
//! said of programs that cannot be measured.

use partita_e2e::{binaries, toolchain};
use serde_json::Value;
use std::process::{Command, Output};

/// A GPU of 24 SMs, on which a slow host changes nothing.
const DEVICE: &str = "emu:cd-search-24,patience=60000";

fn overhead(arguments: &[&str]) -> Output {
    let mut command = Command::new(binaries::binary("partita"));
    command.args(["bench", "overhead", "--device", DEVICE]).args(arguments);
    command.output().expect("partita can be started")
}

#[test]
fn a_program_alone_and_beside_the_built_in_neighbour() {
    let program = toolchain::program("bitonic");
    let program = program.to_str().expect("the path is text");
    let output = overhead(&["--json", "--beside", "--", program]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let metrics = report["metrics"].as_array().expect("it has figures");
    let value = |name: &str| -> f64 {
        let metric = metrics.iter().find(|metric| metric["name"] == name);
        let value = metric.and_then(|metric| metric["value"].as_f64());
        value.unwrap_or_else(|| panic!("no `{name}` in {report}"))
    };
    assert_eq!(report["notes"], serde_json::json!([]), "the neighbour is busy: {report}");
    let (written, shared) = (value("as written"), value("with partitions"));
    assert!((shared / written - 1.0 - value("cost of partitions") / 100.0).abs() < 1e-6);
    // The kernels are not in flight for longer than the program runs.
    let sum: f64 = value("kernels as written");
    let kernels = report["kernels"].as_array().expect("it has kernels");
    assert!(kernels.iter().any(|kernel| kernel["form"] == "worker"), "{report}");
    let clock_mhz = 700.0;
    assert!(sum > 0.0 && sum / clock_mhz <= written, "{report}");
    // The program has half of the SMs in both arrangements, and the hardware's scheduler alone
    // gives it less beside CTAs that stay.
    let (half, partition) =
        (value("as written on half of the SMs"), value("with partitions, on half of the SMs"));
    assert!(half >= 0.99 && partition >= half * 0.9, "{report}");
}

#[test]
fn programs_that_cannot_be_measured() {
    let check = |arguments: &[&str], said: &[&str]| {
        let output = overhead(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for part in said {
            assert!(stderr.contains(part), "no `{part}` in: {stderr}");
        }
    };
    check(&["--", "/no/such/program"], &["`/no/such/program` cannot be started", "PATH"]);
    check(&["--", "false"], &["`false` ended with exit status: 1", "partita run"]);
    check(&["--", "true"], &["`true` has launched no kernel", "CUDA program"]);
}
