//! The configuration in force, as the API and `--check-config` tell it.

use super::{DEVICE, Daemon, gpu_binary};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Reads the configuration until it is as wanted.
fn config_with(daemon: &Daemon, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let config = daemon.ask("GET /v1/config", "").body;
        if is_so(&config) {
            return config;
        }
        assert!(start.elapsed() < super::PATIENCE, "waited in vain for {what}: {config}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The value of a key, and where it comes from.
fn found(config: &Value, key: &str) -> (String, String, Value) {
    let keys = config["keys"].as_array().unwrap();
    let one = keys.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    let from = &one["from"];
    let place = from["name"].as_str().unwrap_or_default().to_owned();
    (one["value"].to_string(), place, from["line"].clone())
}

#[test]
fn a_reload_is_all_or_nothing_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("partitad.toml");
    let drop_ins = folder.path().join("partitad.toml.d");
    std::fs::create_dir(&drop_ins).unwrap();
    let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    write(&file, "[policy]\npartitioner = \"even\"\nalone_ms = 700\n");
    let drop_in = drop_ins.join("a.toml");
    write(&drop_in, "[policy]\nalone_ms = 800\n");
    let daemon = Daemon::serving(DEVICE, &[], &["--config", file.to_str().unwrap()]);
    let reload = || kill_process(daemon.pid(), Signal::HUP).unwrap();
    let (file, drop_in_name) = (file.display().to_string(), drop_in.display().to_string());

    let before = config_with(&daemon, "an answer", |config| config["refused"].is_null());
    let alone = || ("800".to_owned(), drop_in_name.clone(), 2.into());
    assert_eq!(found(&before, "policy.alone_ms"), alone());
    let partitioner = ("\"even\"".to_owned(), file.clone(), 2.into());
    assert_eq!(found(&before, "policy.partitioner"), partitioner);
    assert_eq!(found(&before, "device").1, "--device");
    assert_eq!(found(&before, "state-dir").1, "PARTITA_STATE_DIR");
    assert_eq!(found(&before, "log"), ("\"info\"".into(), "PARTITA_LOG".into(), Value::Null));
    assert_eq!(found(&before, "policy.group").1, "");

    // One key is right and one is wrong: neither comes into force.
    write(&drop_in, "[policy]\nalone_ms = 900\nhold_up_ms = 0\n");
    reload();
    let refused = config_with(&daemon, "a refusal", |config| !config["refused"].is_null());
    let why = refused["refused"]["why"].as_str().unwrap();
    assert!(why.starts_with(&format!("{drop_in_name}:3: a limit of 0 ms")), "{why}");
    assert_eq!(refused["keys"], before["keys"]);
    assert!(daemon.log().contains("the policy in force stays"), "{}", daemon.log());

    write(&drop_in, "[policy]\nhold_up_ms = 900\n");
    reload();
    let after = config_with(&daemon, "the new file", |config| config["refused"].is_null());
    assert_eq!(found(&after, "policy.alone_ms"), ("700".into(), file, 3.into()));
    assert_eq!(found(&after, "policy.hold_up_ms"), ("900".into(), drop_in_name, 2.into()));
}

#[test]
fn devices_are_checked_without_a_gpu() {
    let check = |options: &[&str], code: i32, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partitad"));
        command.arg("--check-config").args(options).env("PARTITA_GPU", gpu_binary());
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        for word in words {
            assert!(said.contains(word), "`{word}` in {said}");
        }
    };
    let fine = ["--device emu:h200,weak: fine", "--device cuda:3: fine"];
    check(&["--device", "emu:h200,weak", "--device", "cuda:3"], 0, &fine);
    check(&[], 0, &["no file", "--device auto: fine"]);
    check(&["--device", "emu:nothing"], 2, &["cannot serve the device", "nothing", "h200"]);
    check(&["--device", "emu:/nothing/at/all"], 2, &["/nothing/at/all"]);
    check(&["--device", "emu", "--device", "emu,timing=of"], 2, &["`timing=of` is no option"]);
    check(&["--device", "emu", "--sharing", "some"], 2, &["`sharing=some` is no option"]);
    check(&["--device", "cuda,timing=off"], 2, &["say cuda"]);
    check(&["--device", "gpu"], 2, &["`gpu", "is no device", "`auto`"]);
    check(&["--device", "emu,record=a", "--device", "emu,record=a"], 2, &["same file"]);
}

#[test]
fn without_the_program_for_gpus_files_are_checked() {
    let check = |program: &str, options: &[&str], code: i32, words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partitad"));
        command.arg("--check-config").args(options).env("PARTITA_GPU", program);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {said}");
        assert!(said.contains(words), "`{words}` in {said}");
    };
    check("/nonexistent/partita-gpu", &["--device", "emu"], 1, "/nonexistent/partita-gpu");
    check("/bin/false", &["--device", "emu"], 1, "it ended with exit status: 1");
}

#[test]
fn a_missing_file_names_the_remedy() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partitad"));
    command.args(["--check-config", "--config", "/nonexistent/partitad.toml"]);
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in ["/nonexistent/partitad.toml", "name the file that is there with --config"] {
        assert!(stderr.contains(part), "{stderr}");
    }
}
