//! What the end-to-end tests stand on: the CUDA toolchain, the built binaries, a daemon of the
//! test's own.
//!
//! The tests in `tests/` start unmodified programs, compiled by nvcc with its default options, and
//! look only at what a user sees: exit codes, output, the API, the daemon's log. Nothing here
//! reaches into a crate of ours.
//!
//! Invariants: every process started here is ended when its guard is dropped; every file lies in a
//! temporary directory or in the toolchain's cache, which is `.cache/` in the workspace unless
//! `PARTITA_CACHE_DIR` names another place.

pub mod binaries;
pub mod daemon;
pub mod fatbin;
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
