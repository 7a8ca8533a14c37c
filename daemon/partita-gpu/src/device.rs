//! Which device `--device` names.

use partita_device::Device;
use partita_emu::record::Recorder;
use partita_emu::{Setup, SetupError, SpecError};
use std::io;
use std::path::PathBuf;

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It names no device.
    #[error(transparent)]
    Text(#[from] SetupError),
    /// It names no specification.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The file for the recording cannot be made.
    #[error("{path}: {source}")]
    Record {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Opens the device that a text names.
///
/// # Errors
/// [`OpenError`]; the command line is at fault.
pub fn open(text: &str) -> Result<Box<dyn Device>, OpenError> {
    let setup = Setup::parse(text)?;
    let gpu = setup.open()?;
    match setup.record {
        None => Ok(Box::new(gpu)),
        Some(path) => {
            let recorder = Recorder::new(gpu, &path).map_err(|source| OpenError::Record { path, source })?;
            Ok(Box::new(recorder))
        }
    }
}

/// Opens another device like the one that a text names, to be measured: nothing is recorded of it.
///
/// # Errors
/// As [`open`].
pub fn open_again(text: &str) -> Result<Box<dyn Device>, OpenError> {
    Ok(Box::new(Setup::parse(text)?.open()?))
}
