//! The support of the end-to-end tests: the CUDA toolchain, the built binaries, a daemon of the
//! test's own, programs that hold a launch.
//!
//! The tests in `tests/` start unmodified programs, compiled by nvcc with its default options. They
//! look only at what a user sees: exit codes, output, the API, the daemon's log. Nothing here
//! reaches into another crate of the workspace.
//!
//! Invariants: dropping a guard ends the process that it started. Every file lies in a temporary
//! directory or in the toolchain's cache, which is `.cache/` in the workspace unless
//! `PARTITA_CACHE_DIR` names another place.

pub mod binaries;
pub mod borders;
pub mod daemon;
pub mod fatbin;
pub mod gallery;
pub mod held;
pub mod slurm;
pub mod toolchain;

use std::path::PathBuf;

/// The root of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate lies two folders below the workspace's root")
        .to_path_buf()
}
