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
fn wrong_usage() {
    expect(&mut partita(&["bench"]), 2, &["Usage"]);
    expect(&mut partita(&["bench", "emu"]), 2, &["--speed"]);
    expect(&mut partita(&["bench", "emu", "--speed", "--spec", "gtx"]), 1, &["no spec is named `gtx`"]);
}
