//! `partita doctor` as its user sees it.

mod common;

use common::{expect, partita, text};
use serde_json::Value;

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
