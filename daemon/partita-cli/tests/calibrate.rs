//! `partita calibrate` as an administrator sees it.

mod common;

use common::{expect, partita, text};
use partita_gpu::device;
use partita_gpu::interference::{Interference, Measurement};
use partita_gpu::store::Store;

const DEVICE: &str = "emu:gpgpu-sim-24";

#[test]
fn what_was_measured_before_stays_and_the_rest_is_measured() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let args = ["calibrate", "interference", "--device", DEVICE, "--state-dir", folder];
    let show = [&args[..], &["--show"]].concat();
    expect(&mut partita(&show), 1, &["0 of 14 measurements", "without --show"]);

    // A alone and A beside A are left to measure. A speed of 1 tells what was there before.
    let store = Store::open(state.path(), &device::open(DEVICE, None).unwrap().identity()).unwrap();
    let mut kept = Interference { alone: [Some(1.0); 4], beside: [[Some(1.0); 4]; 4] };
    kept.alone[3] = None;
    kept.beside[3][3] = None;
    store.write(Interference::FILE, &kept);
    expect(&mut partita(&show), 1, &["12 of 14 measurements"]);
    let output = expect(&mut partita(&args), 0, &["14 of 14 measurements"]);
    let table = text(&output.stdout);
    assert!(table.lines().any(|line| line.starts_with("M ") && line.contains("1.00")), "{table}");

    let found: Interference = store.read(Interference::FILE).unwrap();
    assert_eq!(found.alone[..3], kept.alone[..3]);
    let pair = found.alone[3].unwrap() / found.beside[3][3].unwrap();
    assert!((1.7..2.3).contains(&pair), "two programs on half of the SMs each: {pair}");
    assert!(found.has(Measurement::Pair([3, 3])));
    let json = expect(&mut partita(&[&show[..], &["--json"]].concat()), 0, &[]).stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["classes"], serde_json::json!(["M", "MC", "C", "A"]));
    assert!((json["slowdowns"][3][3].as_f64().unwrap() - pair).abs() < 1e-9);
}

#[test]
fn a_device_that_cannot_be_measured_is_refused() {
    let args = |device| ["calibrate", "interference", "--device", device];
    expect(&mut partita(&args("emu:nowhere")), 1, &["--device emu:nowhere", "gpgpu-sim-24"]);
    let timeless = "emu:gpgpu-sim-24,timing=off";
    let nowhere = [&args(DEVICE)[..], &["--state-dir", "/proc/nowhere"]].concat();
    expect(&mut partita(&nowhere), 1, &["state folder /proc/nowhere", "--state-dir"]);
    expect(&mut partita(&args(timeless)), 1, &["keeps no time", "timing=off"]);
    expect(
        &mut partita(&["calibrate", "interference", "--show", "--again"]),
        2,
        &["cannot be used with"],
    );
}
