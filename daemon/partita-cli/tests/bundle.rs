//! `partita doctor --bundle`: what is in it, and what is not.

mod common;
mod played;

use common::{expect, partita, text};
use flate2::read::GzDecoder;
use played::Api;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The files of an archive.
fn unpacked(file: &Path) -> BTreeMap<String, String> {
    let bytes = std::fs::read(file).expect("there is an archive");
    let mut archive = tar::Archive::new(GzDecoder::new(&bytes[..]));
    let entries = archive.entries().expect("it is an archive");
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.expect("an entry");
        let path = entry.path().expect("a path").display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        (path.strip_prefix("partita-bundle/").expect("one folder").to_owned(), text)
    };
    entries.map(read).collect()
}

/// Programs of the system's that a test plays: `journalctl` and `systemctl`, as shell scripts.
fn programs(journalctl: &str, systemctl: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, script) in [("journalctl", journalctl), ("systemctl", systemctl)] {
        // Another process writes it: what a thread forks meanwhile would have the file open, and
        // the system starts no file that somebody has open for writing.
        let (text, path) = (folder.path().join("text"), folder.path().join(name));
        std::fs::write(&text, script).expect("it can be written");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&text, mode).expect("it can be executed");
        let copied = Command::new("cp").arg("-p").arg(&text).arg(&path).status();
        assert!(copied.expect("cp can be started").success());
    }
    folder
}

/// A command that finds these programs first.
fn playing(command: &mut Command, programs: &TempDir) {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", programs.path().display()));
    command.env("SECRET", "secret of the environment");
}

const JOURNAL: &str = r#"#!/bin/sh
cat <<'END'
{"MESSAGE": "serving small", "_TRANSPORT": "journal", "TARGET": "partitad", "PRIORITY": "6"}
{"MESSAGE": "secret program", "_TRANSPORT": "journal", "PARTITA_TENANT": "4000000"}
END
"#;

#[test]
fn an_archive_has_what_a_report_needs_and_nothing_of_others() {
    let units = "#!/bin/sh\necho Id=partitad.service\n";
    let files = programs(JOURNAL, units);
    let answers: Vec<(&str, String)> =
        (0..9).map(|number| ("200 OK", format!("answer {number}"))).collect();
    let answers: Vec<(&str, &str)> =
        answers.iter().map(|(status, body)| (*status, body.as_str())).collect();
    let api = Api::answering_with("partita-sight: own\r\n", &answers);
    let file = files.path().join("bundle.tar.gz");
    let mut command = api.partita(&["doctor", "--bundle", &file.display().to_string()]);
    playing(&mut command, &files);
    let output = text(&expect(&mut command, 0, &[]).stdout);
    let found = unpacked(&file);
    let names = [
        "CONTENTS.txt",
        "build.json",
        "config.json",
        "decisions.json",
        "doctor.json",
        "healthy.txt",
        "kernels.json",
        "log.txt",
        "metrics.txt",
        "ready.txt",
        "reservations.json",
        "status.json",
        "units.txt",
        "versions.txt",
    ];
    assert_eq!(found.keys().collect::<Vec<_>>(), names);
    for name in names.iter().filter(|name| **name != "CONTENTS.txt") {
        assert!(output.contains(name), "`{name}` is not listed: {output}");
    }
    assert!(output.starts_with(&found["CONTENTS.txt"]), "{output}");
    assert!(found["doctor.json"].contains("shared memory"));
    assert!(found["versions.txt"].contains(env!("CARGO_PKG_VERSION")));
    assert_eq!(found["units.txt"], "Id=partitad.service\n");
    assert!(found["log.txt"].contains("serving small"));
    assert!(found["log.txt"].ends_with("are left out: 1\n"), "{}", found["log.txt"]);
    for (name, text) in &found {
        assert!(!text.contains("secret"), "{name}: {text}");
    }
    let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it is its user's");
    // The daemon leaves out what concerns other users, for administrators too.
    let asked = api.asked_each();
    assert_eq!(asked.len(), 9);
    for asked in asked {
        assert!(asked.contains("partita-sight: own\r\n"), "{asked}");
    }
}

#[test]
fn a_dead_daemon_is_no_obstacle() {
    let fails = "#!/bin/sh\necho 'not booted with systemd' >&2\nexit 1\n";
    let files = programs(fails, fails);
    let file = files.path().join("bundle.tar.gz");
    let mut command = partita(&["doctor", "--bundle", &file.display().to_string()]);
    playing(&mut command, &files);
    let output = text(&expect(&mut command, 0, &[]).stdout);
    let found = unpacked(&file);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["CONTENTS.txt", "doctor.json", "versions.txt"]);
    let reasons = &found["CONTENTS.txt"];
    assert_eq!(reasons.matches("no daemon answers").count(), 9, "{reasons}");
    assert_eq!(reasons.matches("not booted with systemd").count(), 2, "{reasons}");
    assert!(output.starts_with(reasons.as_str()));

    // An older daemon would tell about others: it is not asked again.
    let api = Api::answering("200 OK", "secret");
    let mut command = api.partita(&["doctor", "--bundle", &file.display().to_string()]);
    playing(&mut command, &files);
    expect(&mut command, 0, &[]);
    let found = unpacked(&file);
    assert_eq!(found["CONTENTS.txt"].matches("is older than partita").count(), 9);
    assert!(found.values().all(|text| !text.contains("secret")), "{found:?}");

    let mut command = partita(&["doctor", "--bundle", "/nonexistent/bundle.tar.gz"]);
    playing(&mut command, &files);
    expect(&mut command, 1, &["cannot write /nonexistent/bundle.tar.gz", "name another file"]);
}
