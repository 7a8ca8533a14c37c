//! Files that are named on the command line; `-` is stdin or stdout.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes: a wrong name, such as a device node, cannot fill the
/// memory.
const LONGEST_FILE: u64 = 4 << 30;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is too long.
    #[error("{} has more than {LONGEST_FILE} bytes", .path.display())]
    TooLong {
        /// Which.
        path: PathBuf,
    },
    /// It is not text.
    #[error("{}: not text: byte {offset} is not UTF-8; give a PTX file (cuobjdump -ptx extracts \
        PTX from a program)", .path.display())]
    NotText {
        /// Which.
        path: PathBuf,
        /// Where.
        offset: usize,
    },
    /// It cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The bytes of a file.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let fault = |source| FileError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let count = if path == Path::new("-") {
        io::stdin().lock().take(LONGEST_FILE + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).map_err(fault)?.take(LONGEST_FILE + 1).read_to_end(&mut bytes)
    };
    let count = count.map_err(fault)?;
    if u64::try_from(count).is_ok_and(|count| count > LONGEST_FILE) {
        return Err(FileError::TooLong { path: path.to_owned() });
    }
    Ok(bytes)
}

/// The text of a file.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    String::from_utf8(read(path)?).map_err(|error| FileError::NotText {
        path: path.to_owned(),
        offset: error.utf8_error().valid_up_to(),
    })
}

/// Writes a file, or returns what is for stdout.
pub fn write(path: &Path, contents: Vec<u8>) -> Result<Vec<u8>, FileError> {
    if path == Path::new("-") {
        return Ok(contents);
    }
    write_file(path, &contents).map(|()| Vec::new())
}

/// Writes a file.
pub fn write_file(path: &Path, contents: &[u8]) -> Result<(), FileError> {
    std::fs::write(path, contents)
        .map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// How a file is called in messages about its contents.
pub fn shown(path: &Path) -> String {
    if path == Path::new("-") { "<stdin>".into() } else { path.display().to_string() }
}

/// Whatever is no regular file stays: a file in the place of a device or a pipe would break other
/// programs. Links are followed.
///
/// # Errors
/// Where something else than a regular file has the path.
pub fn refuse_special(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(io::Error::other("it is no regular file")),
        _ => Ok(()),
    }
}
