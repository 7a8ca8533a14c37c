//! `partita bench` as its user sees it: the shape of what is printed, not how fast this machine is.

mod common;

use common::{expect, partita, text};
use serde_json::Value;

#[test]
fn one_shape() {
    let base = ["bench", "emu", "--speed", "--scale", "64"];
    let output = expect(&mut partita(&base), 0, &[]);
    let table = text(&output.stdout);
    assert!(table.starts_with("emu-speed on Emulated GPU"), "{table}");
    assert!(table.contains("\nsaxpy "), "{table}");

    let output = expect(&mut partita(&[&base[..], &["--json", "--timing"]].concat()), 0, &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["bench"].as_str(), json["seed"].as_u64()), (Some("emu-speed"), Some(0)));
    let metrics = json["metrics"].as_array().unwrap();
    assert!(metrics.len() >= 7, "{json}");
    for metric in metrics {
        let keys: Vec<&str> = metric.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["goal", "met", "name", "paper", "unit", "value"], "{metric}");
        assert!(metric["value"].as_f64().unwrap() > 0.0, "{metric}");
    }
}

#[test]
fn start_loads_a_module_and_says_which() {
    let output =
        expect(&mut partita(&["bench", "emu", "--start", "--scale", "64", "--json"]), 0, &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["bench"], "emu-start");
    assert!(json["device"].as_str().unwrap().ends_with("bytes generated"), "{json}");
    let metrics = json["metrics"].as_array().unwrap();
    let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
    assert_eq!(named("load of the module")["goal"], 100.0);
    assert!(named("kernels of the module")["value"].as_f64().unwrap() >= 5.0, "{json}");
}

#[test]
fn curves_have_the_same_shape_and_time_is_the_same_each_time() {
    let json = || {
        let output =
            expect(&mut partita(&["bench", "emu", "--curves", "--scale", "16", "--json"]), 0, &[]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let first = json();
    assert_eq!(first["bench"], "emu-curves");
    let metrics = first["metrics"].as_array().unwrap();
    let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
    assert_eq!(named("Titan Xp, copy: SMs at its peak")["paper"], 9.0);
    // These do not depend on the scale.
    for name in ["vector add", "fma chain", "reads past L1"] {
        for sms in ["8", "15", "30"] {
            let metric = named(&format!("{name}, {sms} SMs over 4"));
            assert_eq!(metric["met"], true, "{metric}");
        }
    }
    assert_eq!(first, json());
}

#[test]
fn what_the_forms_add() {
    let output = expect(&mut partita(&["bench", "ptx", "--scale", "64", "--json"]), 0, &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["bench"], "ptx");
    let value = |part: &str| {
        let metrics = json["metrics"].as_array().unwrap();
        let found = metrics.iter().find(|metric| metric["name"].as_str().unwrap().contains(part));
        found.unwrap_or_else(|| panic!("no {part}: {json}"))["value"].as_f64().unwrap()
    };
    assert!(value("parse and print") > 0.0);
    // Counted, not timed: the same on every machine.
    assert!((0.0..100.0).contains(&value("worker, 10 CTAs a task")));
    assert!((0.0..40.0).contains(&value("fence: thread instructions, mean")));
    assert!((-8.0..64.0).contains(&value("worker: registers")));
}

#[test]
fn cd_search_has_the_same_shape_and_finds_what_it_has_computed() {
    let folder = tempfile::tempdir().unwrap();
    let plots = folder.path().join("plots");
    let arguments =
        ["bench", "cd-search", "--quick", "--only", "dxtc,gesummv", "--mixes", "0", "--json"];
    let json = || {
        let mut command = partita(&arguments);
        command.arg("--out").arg(&plots).env("PARTITA_CACHE_DIR", folder.path());
        serde_json::from_slice::<Value>(&expect(&mut command, 0, &[]).stdout).unwrap()
    };
    let first = json();
    assert_eq!((first["bench"].as_str(), first["seed"].as_u64()), (Some("cd-search"), Some(1)));
    let metrics = first["metrics"].as_array().unwrap();
    let named = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
    assert_eq!(named("applications, memory-intensive")["value"], 1.0, "{first}");
    assert!(std::fs::read_to_string(plots.join("curves-memory.svg")).unwrap().contains("gesummv"));
    assert!(std::fs::read_dir(folder.path().join("cells")).unwrap().count() >= 6);
    assert_eq!(json(), first);
}

/// A mix in every arrangement, on a GPU that is small enough to be emulated quickly.
#[test]
fn cd_search_tries_a_mix() {
    let folder = tempfile::tempdir().unwrap();
    let spec = include_str!("../../partita-emu/specs/cd-search-24.toml");
    let spec = spec.replacen("sms = 24 ", "sms = 4 ", 1);
    let path = folder.path().join("four.toml");
    std::fs::write(&path, spec).unwrap();
    let mut command = partita(&[
        "bench",
        "cd-search",
        "--quick",
        "--only",
        "bino,gesummv",
        "--mixes",
        "1",
        "--decisions",
    ]);
    command
        .arg("--spec")
        .arg(&path)
        .arg("--out")
        .arg(folder.path())
        .env("PARTITA_CACHE_DIR", folder.path());
    let output = expect(&mut command, 0, &[]);
    let table = text(&output.stdout);
    assert!(table.contains("bino+gesummv"), "{table}");
    let mixes = std::fs::read_to_string(folder.path().join("mixes.csv")).unwrap();
    assert_eq!(mixes.lines().count(), 2, "a head and one mix: {mixes}");
}

#[test]
fn wrong_usage() {
    expect(
        &mut partita(&["bench", "cd-search", "--only", "lu"]),
        1,
        &["no workload `lu`", "gesummv"],
    );
    expect(&mut partita(&["bench"]), 2, &["Usage"]);
    expect(&mut partita(&["bench", "emu"]), 2, &["--speed"]);
    expect(
        &mut partita(&["bench", "emu", "--speed", "--spec", "gtx"]),
        1,
        &["no spec is named `gtx`"],
    );
    expect(&mut partita(&["bench", "forms"]), 2, &["Usage"]);
    expect(&mut partita(&["bench", "forms", "/no/such.rec"]), 1, &["/no/such.rec: No such file"]);
    expect(&mut partita(&["bench", "forms", "x.rec", "--architectures", "80"]), 2, &["--ptxas"]);
}

#[test]
fn what_is_taken_for_granted_of_a_gpu_holds_on_the_emulated_one() {
    let output = expect(
        &mut partita(&["bench", "gpu", "--probe", "--device", "emu:cd-search-24", "--json"]),
        0,
        &[],
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["bench"], "gpu-probe");
    let metrics = json["metrics"].as_array().unwrap();
    let held = metrics.iter().filter(|metric| metric["met"] == true).count();
    let broken: Vec<_> = metrics.iter().filter(|metric| metric["met"] == false).collect();
    assert!(held >= 10 && broken.is_empty(), "{held} {broken:#?}");
    let named = |name: &str| {
        metrics.iter().find(|metric| metric["name"] == name).unwrap()["value"].as_f64()
    };
    assert!(named("signal and answer, median").unwrap() > 0.0);
    assert!(named("helper grids on another stream").unwrap() >= 1.0);
}

#[test]
fn every_part_of_the_gpu_benchmark_runs() {
    let folder = tempfile::tempdir().unwrap();
    let base =
        ["bench", "gpu", "--device", "emu:cd-search-24", "--out", folder.path().to_str().unwrap()];
    let parts =
        ["--part", "launch", "--part", "copies", "--part", "overhead", "--part", "calibration"];
    let output = expect(&mut partita(&[&base[..], &parts[..]].concat()), 0, &[]);
    let table = text(&output.stdout);
    for words in ["dependent empty kernels", "copy to the host", "stream, fence", "from DRAM"] {
        assert!(table.contains(words), "{table}");
    }
    let copies = std::fs::read(folder.path().join("gpu-copies.json")).unwrap();
    let copies: Value = serde_json::from_slice(&copies).unwrap();
    assert_eq!(copies["metrics"][3]["met"], true, "{copies}");
}

/// Of the other parts, on a device that asks for guarded kernels as a real GPU does.
#[test]
fn kernels_mean_the_same_in_every_form_and_share_the_gpu() {
    let base = ["bench", "gpu", "--device", "emu:cd-search-24,guards=on", "--json"];
    let parts =
        ["--part", "conformance", "--part", "resize", "--part", "curves", "--part", "pairs"];
    let output = expect(&mut partita(&[&base[..], &parts[..]].concat()), 0, &[]);
    let reports: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let metrics = |at: usize| reports[at]["metrics"].as_array().unwrap();
    let missed = metrics(0).iter().filter(|metric| metric["met"] == false).count();
    assert_eq!(
        (reports[0]["bench"].as_str(), missed),
        (Some("gpu-conformance"), 0),
        "{}",
        reports[0]
    );
    assert!(metrics(0)[1]["value"].as_f64().unwrap() >= 100.0, "{}", reports[0]);
    assert_eq!(metrics(1)[0]["value"].as_f64(), Some(8.0), "{}", reports[1]);
    assert_eq!((metrics(2).len(), metrics(3).len()), (8, 6));
}

#[test]
fn without_a_gpu_the_benchmark_says_so() {
    let mut command = partita(&["bench", "gpu"]);
    command.env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1");
    expect(&mut command, 1, &["no GPU", "--device emu:cd-search-24"]);
}

#[test]
fn doctor_names_what_is_missing_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = partita(&["doctor", "--json"]);
    command
        .env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1")
        .env("PARTITA_LIB_DIR", folder.path());
    let output = expect(&mut command, 1, &["something stands in the way"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = |check: &str| {
        let findings = json["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == check).unwrap().clone()
    };
    assert_eq!(json["verdict"], "trouble");
    assert_eq!(
        (&finding("driver")["verdict"], &finding("shim")["verdict"]),
        (&"note".into(), &"trouble".into())
    );
    assert!(finding("driver")["remedy"].as_str().unwrap().contains("550"), "{json}");
    assert_eq!(finding("shared memory")["verdict"], "fine");
    std::fs::write(folder.path().join("libpartita_cuda.so"), "").unwrap();
    let mut command = partita(&["doctor"]);
    command
        .env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1")
        .env("PARTITA_LIB_DIR", folder.path());
    let output = command.output().unwrap();
    assert!(text(&output.stdout).contains("libpartita_cuda.so"));
}
