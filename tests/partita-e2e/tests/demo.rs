//! `partita demo` and `partita bench gpu --part programs`: their figures are measured, and their
//! refusals name the remedy.

use partita_e2e::binaries;
use serde_json::Value;
use std::process::{Command, Output};

fn demo(arguments: &[&str]) -> Output {
    let mut command = Command::new(binaries::binary("partita"));
    command.arg("demo").args(arguments).output().expect("partita can be started")
}

/// The figure with this name of a report.
#[track_caller]
fn figure(report: &Value, name: &str) -> f64 {
    let metrics = report["metrics"].as_array().expect("it has figures");
    let metric = metrics.iter().find(|metric| metric["name"] == name);
    metric
        .and_then(|metric| metric["value"].as_f64())
        .unwrap_or_else(|| panic!("no `{name}` in {report}"))
}

#[test]
fn the_summary_is_measured() {
    let output = demo(&["--json", "--mix", "mixed"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["bench"], "demo");
    let metrics = report["metrics"].as_array().expect("it has figures");
    let value = |name: &str| figure(&report, name);
    for way in ["time-sliced", "MPS-like", "even", "CD-search"] {
        let (stp, antt) = (value(&format!("{way}: STP")), value(&format!("{way}: ANTT")));
        assert!((0.5..=2.2).contains(&stp), "{way}: {stp}");
        assert!((0.9..50.0).contains(&antt), "{way}: {antt}");
        // The sum of the speeds, each of which is a figure of its own.
        let speeds: Vec<f64> = (metrics.iter())
            .filter(|metric| {
                let name = metric["name"].as_str().unwrap_or_default();
                name.starts_with(&format!("{way}: ")) && name.ends_with("speed against alone")
            })
            .filter_map(|metric| metric["value"].as_f64())
            .collect();
        assert_eq!(speeds.len(), 2, "{report}");
        assert!((speeds.iter().sum::<f64>() - stp).abs() < 1e-6, "{way}: {speeds:?} against {stp}");
    }
    assert!(value("search") > 0.0 && value("resize: last worker left, longest") > 0.0);
}

/// The GPU has six SMs, because the test emulates a program at full length seven times.
#[test]
fn programs_are_measured_alone_and_in_pairs() {
    let specs =
        Command::new(binaries::binary("partita")).args(["emu", "specs", "cd-search-24"]).output();
    let text =
        String::from_utf8(specs.expect("partita can be started").stdout).expect("it is text");
    let folder = tempfile::tempdir().expect("a folder");
    let spec = folder.path().join("six.toml");
    let text = text
        .replace("\nsms = 24 ", "\nsms = 6 ")
        .replace("_per_second = 177.4 ", "_per_second = 60.0 ");
    std::fs::write(&spec, text).expect("it can be written");
    let mut command = Command::new(binaries::binary("partita"));
    command.args(["bench", "gpu", "--part", "programs", "--json", "--device"]);
    let output =
        command.arg(format!("emu:{}", spec.display())).output().expect("partita can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let value = |name: &str| figure(&report, name);
    let throughput = |place: &str| value(&format!("compute+memory, {place}: STP"));
    for place in ["time slices", "MPS", "even", "CD-search"] {
        assert!((0.5..2.2).contains(&throughput(place)), "{report}");
        assert!(value(&format!("compute+memory, {place}: ANTT")) > 0.9, "{report}");
    }
    let ratio = value("CD-search ÷ MPS, pairs of different needs: STP, mean");
    assert!((ratio - throughput("CD-search") / throughput("MPS")).abs() < 1e-6, "{report}");
    for kind in ["compute", "memory"] {
        assert!(value(&format!("{kind} alone")) > 0.0, "{report}");
        assert!(value(&format!("{kind} alone, through Partita as workers")) < 50.0, "{report}");
    }
}

/// A request waits for a kernel of the batch program before each of its own under MPS, and for none
/// where the server has the priority `latency`.
#[test]
fn requests_wait_for_the_batch_program_only_without_priorities() {
    let output = demo(&["latency", "--json", "--requests", "6"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(report["bench"], "demo latency");
    let value = |name: &str| figure(&report, name);
    let one = value("alone: one request");
    for way in ["alone", "MPS-like", "Partita"] {
        let of = |what: &str| value(&format!("{way}: {what}"));
        assert_eq!(of("different words").to_bits(), 0, "{report}");
        // A result is ready no sooner than its request alone has taken, but for the copies' ends.
        assert!(of("P50") >= 0.8 * one && of("P99") >= of("P50"), "{way}: {report}");
        let tail = of("P99") / value("alone: P99");
        assert!((of("P99 against alone") - tail).abs() < 1e-6, "{way}: {report}");
    }
    assert!(value("MPS-like: P50") > 2.0 * value("Partita: P50"), "{report}");
    for way in ["MPS-like", "Partita"] {
        let batch = value(&format!("{way}: train: speed against alone"));
        assert!((0.01..1.1).contains(&batch), "{way}: {report}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_what_would_be_right() {
    for (arguments, part) in [
        (&["--apps", "1"][..], "2..=8"),
        (&["--apps", "x"], "invalid"),
        (&["--mix", "both"], "compute, memory, mixed"),
        (&["--spec", "nonesuch"], "cd-search-24"),
        (&["latency", "--requests", "0"], "1..=1000"),
        (&["latency", "--load", "1.5"], "from 0.05 to 0.95"),
        (&["latency", "--load", "x"], "give a part of 1"),
        (&["latency", "--spec", "nonesuch"], "cd-search-24"),
        (&["--apps", "3", "latency"], "cannot be used with"),
    ] {
        let output = demo(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: no `{part}` in {stderr}");
        assert!(output.stdout.is_empty());
    }
}
