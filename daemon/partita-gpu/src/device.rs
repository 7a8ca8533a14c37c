//! Which device `--device` names.

use partita_device::Device;
use partita_emu::{Setup, SetupError, SpecError};

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It names no device.
    #[error(transparent)]
    Text(#[from] SetupError),
    /// It names no specification.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Opens the device that a text names.
///
/// # Errors
/// [`OpenError`]; the command line is at fault.
pub fn open(text: &str) -> Result<Box<dyn Device>, OpenError> {
    Ok(Box::new(Setup::parse(text)?.open()?))
}
