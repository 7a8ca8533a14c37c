//! Files that are whole or not there: written beside their place and renamed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file that could not be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}; {}", .file.display(), remedy(.source))]
pub struct FileError {
    file: PathBuf,
    source: io::Error,
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room on the node; the kubelet asks again by itself"
        }
        io::ErrorKind::FileTooLarge => partita_log::file_limit::REMEDY,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "partita-dra runs as root, and its pod mounts this folder for writing"
        }
        _ => "look at the node's disk; the kubelet asks again by itself",
    }
}

/// Writes a file with this mode. A reader sees the old content or the new one.
///
/// # Errors
/// Where it cannot be written. The old content stays then.
pub fn replace(file: &Path, mode: u32, content: &[u8]) -> Result<(), FileError> {
    // A container runtime reads all `*.json` of a folder, and must not find half a file.
    let beside = file.with_extension("tmp");
    try_replace(file, &beside, mode, content).map_err(|source| {
        drop(std::fs::remove_file(&beside));
        FileError { file: file.to_owned(), source }
    })
}

fn try_replace(file: &Path, beside: &Path, mode: u32, content: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    drop(std::fs::remove_file(beside));
    let mut written = OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
    written.write_all(content)?;
    written.sync_all()?;
    std::fs::rename(beside, file)?;
    File::open(folder)?.sync_all()
}

/// Removes a file, where it is there.
///
/// # Errors
/// Where it cannot be removed.
pub fn remove(file: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(file) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FileError { file: file.to_owned(), source })
        }
        _ => Ok(()),
    }
}
