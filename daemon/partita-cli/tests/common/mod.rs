//! The built command, run with an environment in which no daemon serves.

use std::process::{Command, Output, Stdio};

/// `partita ARGS…` where no daemon serves.
pub fn partita(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partita"));
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

pub fn run(command: &mut Command) -> Output {
    command.output().expect("partita can be started")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs to the end and holds exit code and stderr against what is expected.
#[track_caller]
pub fn expect(command: &mut Command, code: i32, stderr_has: &[&str]) -> Output {
    let output = run(command);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in stderr_has {
        assert!(stderr.contains(part), "no `{part}` in: {stderr}");
    }
    output
}
