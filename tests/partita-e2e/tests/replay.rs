//! A live run of two programs is recorded and replayed without them: `partita emu replay`.

use partita_e2e::daemon::Daemon;
use partita_e2e::{binaries, toolchain};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn replay(recording: &Path) -> Output {
    let mut command = Command::new(binaries::binary("partita"));
    command
        .args(["emu", "replay", "--json"])
        .arg(recording)
        .output()
        .expect("partita can be started")
}

#[test]
fn a_run_of_two_programs_is_replayed_to_the_bit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("run.rec");
    let device =
        format!("emu:cd-search-24,sharing=spatial,together=2,record={}", recording.display());
    // Workers are replayed, with what the engine writes into their control blocks.
    let config = "[policy]\npartitioner = \"even\"\noriginals = \"never\"\n";
    let daemon = Daemon::with_config(&device, config);
    let children = [("vecAdd", "100000"), ("poly", "40000")].map(|(name, size)| {
        let mut command = daemon.run(&toolchain::program(name));
        command.arg(size).stdout(Stdio::piped()).spawn().expect("partita can be started")
    });
    for child in children {
        let output = child.wait_with_output().expect("it was started");
        assert!(output.status.success() && output.stdout.ends_with(b"PASSED\n"), "{output:?}");
    }
    let status = daemon.wait_for("an empty GPU", |status| status.applications.is_empty());
    drop(daemon);

    let output = replay(&recording);
    let found: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    assert_eq!(output.status.code(), Some(0), "{found:#}");
    assert_eq!((&found["different"], &found["complete"]), (&0.into(), &true.into()), "{found:#}");
    let count = |name: &str| found[name].as_u64().unwrap_or_default();
    // Both programs launch one grid each. One makes two copies to the device and one to the host;
    // the other makes a fill and a copy to the host.
    assert!(count("launches") >= 2 && count("copies") >= 5, "{found:#}");
    // No grid of workers starts before its control block has been written.
    assert!(count("writes") >= count("launches"), "{found:#}");
    assert!(count("completions") >= count("launches") + count("copies"), "{found:#}");
    assert!(count("memories") >= 3, "each window when it was given back, and the end: {found:#}");
    assert!(count("device_time_ns") >= status.gpu.device_time_ns, "{found:#}");

    // A GPU with slower memory gives a different run.
    let bytes = std::fs::read(&recording).expect("it was written");
    let latency = b"dram_latency_cycles = ";
    let at =
        bytes.windows(latency.len()).position(|part| part == latency).expect("the spec has it");
    let slower = [&bytes[..at + latency.len()], b"1", &bytes[at + latency.len()..]].concat();
    std::fs::write(&recording, slower).expect("it can be written");
    let output = replay(&recording);
    let found: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    assert_eq!(output.status.code(), Some(1), "{found:#}");
    assert!(found["different"].as_u64() > Some(0), "{found:#}");

    std::fs::write(&recording, &bytes[..bytes.len() - 10]).expect("it can be written");
    let output = replay(&recording);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cut off"), "{output:?}");
}
