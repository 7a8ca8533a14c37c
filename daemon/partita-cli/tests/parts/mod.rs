//! Stand-ins for the parts of Partita that the command starts.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::partita;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a start or an end may take on an overloaded host.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A `partitad` that serves nothing: it says what it was given, becomes ready, and says when it
/// ends.
const FAKE_DAEMON: &str = r#"#!/bin/sh
log="$(dirname "$0")/log"
echo "args $*" >> "$log"
echo "filter $PARTITA_LOG" >> "$log"
while [ $# -gt 0 ]; do
    case "$1" in
        --socket-dir) dir="$2" ;;
        --ready-fd) fd="$2" ;;
        --device) device="$2" ;;
    esac
    shift
done
case "$device" in
    emu:broken) echo "no such specification: broken" >&2; exit 3 ;;
    emu:dying) ;;
esac
echo "pid $$" >> "$log"
echo "dir $dir" >> "$log"
trap 'echo "ended" >> "$log"; echo "a last word" >&2; exit 0' TERM
echo READY > "/proc/self/fd/$fd"
[ "$device" = emu:dying ] && exit 4
while :; do sleep 0.02; done
"#;

/// A folder with a fake `partitad` and a library that can be preloaded and does nothing.
pub struct Parts {
    folder: TempDir,
}

impl Parts {
    pub fn new() -> Parts {
        let folder = tempfile::tempdir().unwrap();
        let daemon = folder.path().join("partitad");
        // Another process writes it: what a thread forks meanwhile would have the file open, and
        // the system starts no file that somebody has open for writing.
        let text = folder.path().join("partitad.text");
        std::fs::write(&text, FAKE_DAEMON).unwrap();
        std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Command::new("cp").arg(&text).arg(&daemon).status().unwrap().success());
        std::fs::copy(harmless_library(), folder.path().join("libpartita_cuda.so")).unwrap();
        Parts { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// `partita ARGS…` with these parts and no daemon anywhere.
    pub fn partita(&self, args: &[&str]) -> Command {
        let mut command = partita(args);
        command.env("PARTITA_LIB_DIR", self.path());
        command
    }

    /// What the fake daemon said under `key` first, waiting for it.
    pub fn said(&self, key: &str) -> String {
        wait_for(&format!("the daemon to say `{key}`"), || !self.all(key).is_empty());
        self.all(key).remove(0)
    }

    /// What the fake daemons have said under `key`.
    pub fn all(&self, key: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path().join("log")).unwrap_or_default();
        let said = text.lines().filter_map(|line| line.strip_prefix(key));
        said.map(|rest| rest.trim().to_owned()).collect()
    }
}

#[track_caller]
pub fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A library that this process has loaded itself and that has no effect of its own.
fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    paths
        .filter(|path| path.contains("/libgcc_s"))
        .map(PathBuf::from)
        .next()
        .expect("Rust programs load libgcc_s")
}
