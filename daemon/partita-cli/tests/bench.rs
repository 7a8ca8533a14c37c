//! `partita bench` becomes `partita-bench`: what goes through to it, and what is said without it.

mod common;

use common::{expect, partita, text};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// Who writes and starts programs. A process that another thread forks meanwhile has the file open
/// for writing until it executes something else, and the system starts no such file.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder with a copy of `partita`, so that no `partita-bench` that was built lies beside it.
fn alone() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::copy(env!("CARGO_BIN_EXE_partita"), folder.path().join("partita"))
        .expect("partita can be copied");
    folder
}

fn partita_in(folder: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(folder.path().join("partita"));
    command.args(args).env("PATH", "/usr/bin:/bin");
    command
}

fn put_program(folder: &TempDir, script: &str) {
    let program = folder.path().join("partita-bench");
    std::fs::write(&program, script).expect("the program can be written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .expect("it is our file");
}

#[test]
fn without_the_program_the_message_says_how_to_get_it() {
    let _turn = turn();
    let folder = alone();
    let remedy = "cargo install --path tests/partita-bench";
    let path = folder.path().display().to_string();
    expect(&mut partita_in(&folder, &["bench", "wire"]), 1, &["not installed", &path, remedy]);
    let help = expect(&mut partita(&["help", "bench"]), 0, &[]);
    assert!(text(&help.stdout).contains("partita bench --help"), "{}", text(&help.stdout));
}

#[test]
fn arguments_and_exit_code_go_through() {
    let _turn = turn();
    let folder = alone();
    put_program(&folder, "#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 7\n");
    let args = ["bench", "gpu", "--help", "-h", "", "--", "two words", "--json"];
    let output = expect(&mut partita_in(&folder, &args), 7, &[]);
    assert_eq!(text(&output.stdout), "<gpu><--help><-h><><--><two words><--json>");
}

/// The process stays the same one, so a signal reaches the program and its end reaches the caller.
#[test]
fn the_process_becomes_the_program() {
    let _turn = turn();
    let folder = alone();
    put_program(&folder, "#!/bin/sh\nkill -USR1 $$\n");
    let mut command = partita_in(&folder, &["bench"]);
    // A process group of its own: the signal is for this process only.
    let output = command.process_group(0).output().unwrap();
    assert_eq!(output.status.signal(), Some(10), "SIGUSR1: {output:?}");
}
