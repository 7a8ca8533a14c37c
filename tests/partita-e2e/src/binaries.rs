//! The workspace's own binaries, built in the profile that the tests run in.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The folder with `partita`, `partitad`, `partita-gpu` and `libpartita_cuda.so`, built first.
///
/// # Panics
/// Where they do not build.
#[must_use]
pub fn folder() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

/// The path of one binary.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    folder().join(name)
}

fn build() -> PathBuf {
    // A test binary lies in TARGET/PROFILE/deps.
    let test = std::env::current_exe().expect("a process knows its executable");
    let folder = test.ancestors().nth(2).expect("a test binary lies in deps").to_path_buf();
    let release = folder.file_name().is_some_and(|name| name == "release");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // The whole workspace: other packages with other features of the dependencies would be built a
    // second time.
    command.current_dir(crate::workspace()).args(["build", "--quiet", "--workspace"]);
    if release {
        command.arg("--release");
    }
    command.env("CARGO_TARGET_DIR", folder.parent().expect("a profile lies in the target folder"));
    let status = command.status().expect("cargo can be started");
    assert!(status.success(), "the binaries do not build");
    folder
}
