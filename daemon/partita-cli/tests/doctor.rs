//! `partita doctor` as its user sees it.

mod common;

use common::{expect, partita, text};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

#[test]
fn doctor_names_what_is_missing_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = partita(&["doctor", "--json"]);
    command
        .env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1")
        .env("PARTITA_LIB_DIR", folder.path());
    let output = expect(&mut command, 1, &["a check fails"]);
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

#[test]
fn doctor_looks_where_it_is_told_and_names_a_daemon_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let silent = folder.path().join("silent");
    std::fs::create_dir(&silent).unwrap();
    let finding = || {
        let mut command = partita(&["doctor", "--json", "--socket-dir"]);
        command.arg(&silent).env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1");
        let output = command.output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = json["findings"].as_array().unwrap();
        let of_daemon = findings.iter().find(|finding| finding["check"] == "daemon");
        of_daemon.unwrap().clone()
    };
    let name = silent.display().to_string();
    assert!(finding()["found"].as_str().unwrap().contains(&name), "{}", finding());
    // It accepts programs, and closes the connections of its API.
    let programs = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&programs, &SocketAddrUnix::new(silent.join("partitad.sock")).unwrap()).unwrap();
    listen(&programs, 4).unwrap();
    let questions = UnixListener::bind(silent.join("api.sock")).unwrap();
    std::thread::spawn(move || questions.incoming().for_each(drop));
    let found = finding();
    assert_eq!(found["verdict"], "trouble", "{found}");
    assert!(found["found"].as_str().unwrap().contains("did not answer"), "{found}");
}

#[test]
fn a_limit_on_the_size_of_files_below_a_sessions_memory_is_trouble() {
    // The shell counts in KiB: 64 MiB, and half of what the largest session has.
    for limit in ["65536", "8388608"] {
        let mut command = Command::new("bash");
        let partita = partita(&[]);
        command.args(["-c", &format!("ulimit -f {limit}; exec \"$0\" doctor --json")]);
        command.arg(partita.get_program()).env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1");
        for (name, value) in partita.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let output = command.output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = json["findings"].as_array().unwrap();
        let found = findings.iter().find(|found| found["check"] == "shared memory").unwrap();
        assert_eq!(found["verdict"], "trouble", "{limit}: {json}");
        assert!(found["remedy"].as_str().unwrap().contains("LimitFSIZE="), "{json}");
    }
}

/// The script of the image for CI looks at the limit itself, in KiB.
#[test]
fn the_image_for_ci_asks_for_files_as_large_as_a_sessions_memory() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../systemd/images/partita-ci");
    let text = std::fs::read_to_string(script).unwrap();
    let layout = partita_wire::Layout::new(partita_wire::Sizes::default()).unwrap();
    let line = format!("readonly SESSION_KIB={}\n", layout.total().div_ceil(1024));
    assert!(text.contains(&line), "{line}");
}

/// What `cargo install` brings: this program alone, in a `bin` folder.
#[test]
fn a_command_that_came_alone_says_what_is_missing_and_how_it_is_had() {
    let prefix = tempfile::tempdir().unwrap();
    let at = |name: &str| prefix.path().join(name);
    std::fs::create_dir(at("bin")).unwrap();
    // Another process writes it: see `Parts` of the tests of `partita run`.
    let copied =
        Command::new("cp").arg(env!("CARGO_BIN_EXE_partita")).arg(at("bin")).status().unwrap();
    assert!(copied.success());
    let alone = |args: &[&str]| {
        let mut command = Command::new(at("bin/partita"));
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("PARTITA_LIBCUDA", "/nonexistent/libcuda.so.1")
            .env("PARTITA_SOCKET_DIR", at("sockets"))
            .env("PARTITA_STATE_DIR", prefix.path());
        command
    };
    let finding = |check: &str, code: i32| {
        let output = expect(&mut alone(&["doctor", "--json"]), code, &[]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut findings = json["findings"].as_array().unwrap().iter();
        let found = findings.find(|finding| finding["check"] == check).unwrap();
        ["verdict", "found", "remedy"].map(|key| found[key].as_str().unwrap_or("").to_owned())
    };
    let put = |file: &Path| std::fs::write(file, "").unwrap();

    let shim = ["libpartita_cuda.so", "cargo build --release -p partita-shim", "`partita`"];
    let daemon = ["partitad", "cargo install --path daemon/partitad", "`partitad`"];
    let message = |output: std::process::Output| text(&output.stderr);
    for (what, parts) in [("shim", shim), ("daemon", daemon)] {
        let [verdict, found, remedy] = finding(what, 1);
        assert_eq!(verdict, "trouble");
        assert!(found.contains(parts[0]) && found.contains(at("bin").to_str().unwrap()), "{found}");
        assert!(remedy.contains(parts[1]) && remedy.contains(parts[2]), "{remedy}");
    }
    let said = message(alone(&["run", "true"]).output().unwrap());
    assert!(shim.iter().all(|part| said.contains(part)), "{said}");
    expect(&mut alone(&["status"]), 1, &["no daemon answers", "start partitad"]);
    expect(&mut alone(&["bench"]), 1, &["the benchmarks are not installed", "cargo install"]);

    std::fs::create_dir_all(at("lib/partita")).unwrap();
    put(&at("lib/partita/libpartita_cuda.so"));
    let said = message(alone(&["run", "--private", "true"]).output().unwrap());
    assert!(daemon.iter().all(|part| said.contains(part)), "{said}");
    put(&at("bin/partitad"));
    let [verdict, found, remedy] = finding("daemon", 1);
    assert!(verdict == "trouble" && found.contains("bin/partita-gpu"), "{verdict} {found}");
    assert!(remedy.contains("daemon/partita-gpu"), "{remedy}");
    put(&at("bin/partita-gpu"));
    let [verdict, found, _] = finding("daemon", 0);
    assert!(verdict == "note" && found.contains("starts a private one"), "{verdict} {found}");
}
