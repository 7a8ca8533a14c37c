//! A temporary folder with files, in which the command runs.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use crate::common::partita;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A folder that holds them.
pub struct Files(TempDir);

impl Files {
    pub fn new(files: &[(&str, impl AsRef<[u8]>)]) -> Files {
        let folder = tempfile::tempdir().unwrap();
        for (name, contents) in files {
            std::fs::write(folder.path().join(name), contents).unwrap();
        }
        Files(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn partita(&self, args: &[&str]) -> Command {
        let mut command = partita(args);
        command.current_dir(self.0.path());
        command
    }
}
