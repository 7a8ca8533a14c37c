//! `partita bench` as its user sees it: the shape of what is printed, not how fast this machine is.

use partita_emu::record::Recorder;
use partita_emu::{EmulatedGpu, Options, Spec};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_partita-bench");

/// `partita-bench ARGS…` where no daemon serves.
fn bench(args: &[&str]) -> Command {
    of(Path::new(PROGRAM), args)
}

/// A folder, and in it the program: cells are found again by the same program only, and a build
/// beside the tests may put another in its place.
fn kept_program() -> (TempDir, PathBuf) {
    let folder =
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("Cargo's folder takes files");
    let program = folder.path().join("partita-bench");
    std::fs::hard_link(PROGRAM, &program).expect("both are in Cargo's folder");
    (folder, program)
}

fn of(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .env("PARTITA_SOCKET_DIR", "/nonexistent/partita")
        .env("PARTITA_STATE_DIR", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("PARTITA_LOG")
        .env_remove("RUST_LOG")
        .env_remove("LD_PRELOAD");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs to the end and holds exit code and stderr against what is expected.
#[track_caller]
fn expect(command: &mut Command, code: i32, stderr_has: &[&str]) -> Output {
    let output = command.output().expect("partita-bench can be started");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in stderr_has {
        assert!(stderr.contains(part), "no `{part}` in: {stderr}");
    }
    output
}

#[test]
fn one_shape() {
    let base = ["emu", "--speed", "--scale", "64"];
    let output = expect(&mut bench(&base), 0, &[]);
    let table = text(&output.stdout);
    assert!(table.starts_with("emu-speed on Emulated GPU"), "{table}");
    assert!(table.contains("\nsaxpy "), "{table}");

    let output = expect(&mut bench(&[&base[..], &["--json", "--timing"]].concat()), 0, &[]);
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
fn several_threads_are_compared_with_one() {
    let words = ["emu", "--speed", "--threads", "2", "--scale", "64", "--json"];
    let json: Value = serde_json::from_slice(&expect(&mut bench(&words), 0, &[]).stdout).unwrap();
    assert_eq!(json["bench"], "emu-threads");
    let names: Vec<&str> =
        json["metrics"].as_array().unwrap().iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names[1..3], ["chain", "chain, gain"], "{json}");
    expect(&mut bench(&["emu", "--speed", "--timing", "--threads", "2"]), 2, &["--timing"]);
}

#[test]
fn start_loads_a_module_and_says_which() {
    let output = expect(&mut bench(&["emu", "--start", "--scale", "64", "--json"]), 0, &[]);
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
        let output = expect(&mut bench(&["emu", "--curves", "--scale", "16", "--json"]), 0, &[]);
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
fn without_options_every_part_of_the_emulator_is_measured() {
    let output = expect(&mut bench(&["emu", "--scale", "64", "--json"]), 0, &[]);
    let names: Vec<String> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["bench"].to_string())
        .collect();
    assert_eq!(names, [r#""emu-speed""#, r#""emu-start""#, r#""emu-curves""#]);
}

#[test]
fn what_the_forms_add() {
    let output = expect(&mut bench(&["ptx", "--scale", "64", "--json"]), 0, &[]);
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
fn kernelet_measures_pairs_and_finds_what_it_has_computed() {
    let (folder, program) = kept_program();
    let files = folder.path().join("files");
    let arguments =
        ["kernelet", "--quick", "--only", "pc,tea", "--launches", "2", "--spec", "kernelet-c2050"];
    let run = |more: &[&str]| {
        let mut command = of(&program, &arguments);
        let output = expect(command.args(more).env("PARTITA_CACHE_DIR", folder.path()), 0, &[]);
        text(&output.stdout)
    };
    let first = run(&["--json", "--out", files.to_str().unwrap()]);
    let json: Value = serde_json::from_str(&first).unwrap();
    let metrics = json["metrics"].as_array().unwrap();
    let named = |name: &str| {
        let name = format!("Tesla C2050: {name}");
        let found = metrics.iter().find(|metric| metric["name"] == name.as_str());
        found.unwrap_or_else(|| panic!("no {name}: {first}"))["value"].as_f64().unwrap()
    };
    // Two programs of unlike kinds: all are predicted and measured, and no plan beats the best.
    assert!((0.3..0.8).contains(&named("PUR, mean")), "{first}");
    assert!(named("IPC of pairs, mean error of the peak") < 30.0, "{first}");
    let kept = std::fs::read_dir(folder.path().join("cells")).unwrap().count();
    assert_eq!(run(&["--json"]), first);
    assert_eq!(std::fs::read_dir(folder.path().join("cells")).unwrap().count(), kept);
    let mixes = std::fs::read_to_string(files.join("mixes.csv")).unwrap();
    let names: Vec<&str> =
        mixes.lines().skip(1).filter_map(|line| line.split(',').nth(1)).collect();
    assert_eq!(names, ["MIX", "ALL"], "{mixes}");
    let shown = run(&["--decisions"]);
    assert!(
        shown.contains("\nTesla C2050, ALL\n") || shown.contains("(Kernelet), ALL\n"),
        "{shown}"
    );
    expect(&mut bench(&["kernelet", "--only", "lu"]), 1, &["no program `lu`", "spmv"]);
}

#[test]
fn cd_search_has_the_same_shape_and_finds_what_it_has_computed() {
    let (folder, program) = kept_program();
    let plots = folder.path().join("plots");
    let arguments = ["cd-search", "--quick", "--only", "dxtc,gesummv", "--mixes", "0", "--json"];
    let json = || {
        let mut command = of(&program, &arguments);
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

/// Queues of one program of each class, on a GPU that is small enough to be emulated quickly.
#[test]
fn punyala_measures_queues_and_finds_what_it_has_computed() {
    let (folder, program) = kept_program();
    let spec = include_str!("../../../daemon/partita-emu/specs/punyala-60.toml");
    let spec = spec.replacen("sms = 60 ", "sms = 8 ", 1);
    let path = folder.path().join("eight.toml");
    std::fs::write(&path, spec).unwrap();
    let arguments = ["punyala", "--quick", "--programs", "1", "--cycles", "100000", "--live", "1"];
    let json = || {
        let mut command = of(&program, &arguments);
        command.arg("--spec").arg(&path).args(["--json", "--out"]).arg(folder.path());
        command.env("PARTITA_CACHE_DIR", folder.path());
        serde_json::from_slice::<Value>(&expect(&mut command, 0, &[]).stdout).unwrap()
    };
    let first = json();
    let value = |name: &str| {
        let metrics = first["metrics"].as_array().unwrap();
        let found = metrics.iter().find(|metric| metric["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {first}"))["value"].as_f64().unwrap()
    };
    assert!(value("ILP: value of the exhaustive matching, least") > 99.0, "{first}");
    // No plan of pairs is faster than the best one.
    let oracle = value("oracle: mean gain over even, queues of 20");
    assert!(oracle >= value("ILP: mean gain over even, queues of 20") - 1e-9, "{first}");
    assert!(value("14 applications: live over even").is_finite());
    let matrix = std::fs::read_to_string(folder.path().join("interference.json")).unwrap();
    serde_json::from_str::<partita_model::InterferenceMatrix>(&matrix).unwrap();
    let kept = std::fs::read_dir(folder.path().join("cells")).unwrap().count();
    json();
    assert_eq!(std::fs::read_dir(folder.path().join("cells")).unwrap().count(), kept);
}

/// A mix in every arrangement, on a GPU that is small enough to be emulated quickly.
#[test]
fn cd_search_tries_a_mix() {
    let folder = tempfile::tempdir().unwrap();
    let spec = include_str!("../../../daemon/partita-emu/specs/cd-search-24.toml");
    let spec = spec.replacen("sms = 24 ", "sms = 4 ", 1);
    let path = folder.path().join("four.toml");
    std::fs::write(&path, spec).unwrap();
    let mut command =
        bench(&["cd-search", "--quick", "--only", "bino,gesummv", "--mixes", "1", "--decisions"]);
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

/// A pair of each split on a GPU that is small enough to be emulated quickly.
#[test]
fn shares_are_held_and_found_again() {
    let (folder, program) = kept_program();
    let spec = include_str!("../../../daemon/partita-emu/specs/cd-search-24.toml");
    let spec = spec.replacen("sms = 24 ", "sms = 4 ", 1);
    let path = folder.path().join("four.toml");
    std::fs::write(&path, spec).unwrap();
    let arguments = ["shares", "--quick", "--kinds", "compute", "--micros", "200", "--json"];
    let json = || {
        let mut command = of(&program, &arguments);
        command.arg("--spec").arg(&path).arg("--out").arg(folder.path());
        command.env("PARTITA_CACHE_DIR", folder.path());
        serde_json::from_slice::<Value>(&expect(&mut command, 0, &[]).stdout).unwrap()
    };
    let first = json();
    let metrics = first["metrics"].as_array().unwrap();
    let held: Vec<&Value> = metrics
        .iter()
        .filter(|metric| metric["name"].as_str().unwrap().ends_with(": SMs held"))
        .collect();
    assert_eq!(held.len(), 2 * 3 * 2, "splits, ways but MPS, and programs: {first}");
    let with_goal: Vec<_> = held.iter().filter_map(|metric| metric["met"].as_bool()).collect();
    assert_eq!(with_goal, [true; 8], "{first}");
    assert_eq!(held[1]["goal"], 3.0, "{first}");
    let table = std::fs::read_to_string(folder.path().join("shares.csv")).unwrap();
    assert_eq!(table.lines().count(), 1 + 2 * 4 * 2, "{table}");
    let changes = std::fs::read_to_string(folder.path().join("changes.csv")).unwrap();
    let sms = metrics
        .iter()
        .find(|metric| metric["name"] == "compute, changed shares: SMs that changed hands");
    let sms = sms.and_then(|metric| metric["value"].as_f64()).unwrap();
    assert!(
        sms >= 1.0 && (changes.lines().count() as f64 - 1.0 - sms).abs() < 1e-9,
        "{sms}: {changes}"
    );
    assert_eq!(json(), first);
    expect(&mut bench(&["shares", "--kinds", "slow"]), 2, &["compute, memory, mixed, bursty"]);
}

#[test]
fn wrong_usage() {
    expect(&mut bench(&["cd-search", "--only", "lu"]), 1, &["no workload `lu`", "gesummv"]);
    expect(&mut bench(&[]), 2, &["Usage"]);
    expect(&mut bench(&["emu", "--speed", "--spec", "gtx"]), 1, &["no spec is named `gtx`"]);
    expect(&mut bench(&["forms"]), 2, &["Usage"]);
    expect(&mut bench(&["forms", "/no/such.rec"]), 1, &["/no/such.rec: No such file"]);
    expect(&mut bench(&["forms", "x.rec", "--architectures", "80"]), 2, &["--ptxas"]);
}

#[test]
fn a_recording_without_its_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.rec");
    let gpu = EmulatedGpu::new(Spec::named("cd-search-24").unwrap(), Options::default());
    drop(Recorder::new(gpu, &path).unwrap());
    let whole = std::fs::read(&path).unwrap();
    let before_last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for (kept, words) in [(before_last, "has no end behind step 1"), (whole.len() - 1, "cut off")] {
        std::fs::write(&path, &whole[..kept]).unwrap();
        let words = ["cut.rec: the recording", words];
        expect(&mut bench(&["forms", path.to_str().unwrap()]), 1, &words);
    }
}

#[test]
fn what_is_taken_for_granted_of_a_gpu_holds_on_the_emulated_one() {
    let output =
        expect(&mut bench(&["gpu", "--probe", "--device", "emu:cd-search-24", "--json"]), 0, &[]);
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
    let base = ["gpu", "--device", "emu:cd-search-24", "--out", folder.path().to_str().unwrap()];
    let parts =
        ["--part", "launch", "--part", "copies", "--part", "overhead", "--part", "calibration"];
    let (kept, program) = kept_program();
    let mut started = of(&program, &[&base[..], &parts[..]].concat());
    let mut started =
        started.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // An upgrade takes the program's file away: the parts that follow begin nevertheless.
    while !folder.path().join("gpu-launch.json").exists() {
        assert!(started.try_wait().unwrap().is_none(), "it ended without its first part");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(kept);
    let output = started.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
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
    let base = ["gpu", "--device", "emu:cd-search-24,guards=on", "--json"];
    let parts =
        ["--part", "conformance", "--part", "resize", "--part", "curves", "--part", "pairs"];
    let output = expect(&mut bench(&[&base[..], &parts[..]].concat()), 0, &[]);
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
    let mut command = bench(&["gpu"]);
    command.env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1");
    expect(&mut command, 1, &["no GPU", "--device emu:cd-search-24"]);
}

#[test]
fn overhead_of_a_shape_and_of_no_shape() {
    let base = ["overhead", "--quick", "--spec", "cd-search-24", "--json", "--only"];
    let output = expect(&mut bench(&[&base[..], &["1 x 32, 3.3 us, barriers"]].concat()), 0, &[]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let forms: Vec<_> =
        json["cells"].as_array().unwrap().iter().map(|cell| &cell["form"]).collect();
    assert_eq!(forms, ["worker", "ticket", "default"], "{json}");
    let none = bench(&[&base[..], &["7 x 7"]].concat()).output().unwrap();
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("no shape with `7 x 7` in its name"), "{none:?}");
}

#[test]
fn overhead_beside_a_neighbour_needs_a_program_and_an_emulated_gpu() {
    expect(&mut bench(&["overhead", "--beside"]), 2, &["PROGRAM"]);
    expect(&mut bench(&["overhead", "--beside=  ", "--", "true"]), 2, &["no program is named"]);
    expect(&mut bench(&["overhead", "--cells", "--", "true"]), 2, &["--cells"]);
    let on_a_gpu = ["overhead", "--device", "cuda", "--beside", "--", "true"];
    expect(&mut bench(&on_a_gpu), 2, &["only an emulated GPU tells"]);
}
