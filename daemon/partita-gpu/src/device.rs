//! Which device `--device` names.

use partita_device::Device;
use partita_emu::{EmulatedGpu, Options, Spec, SpecError};
use std::path::Path;

/// What `emu` without a specification stands for.
const DEFAULT_SPEC: &str = "h200";

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It names no kind of device.
    #[error("no device is called `{0}`; there is `emu`, or `emu:SPEC` with one of {specs} or a file's path", specs = Spec::names().join(", "))]
    Unknown(String),
    /// It names no specification.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

/// Opens the device that a text names.
///
/// # Errors
/// [`OpenError`]; the command line is at fault.
pub fn open(text: &str) -> Result<Box<dyn Device>, OpenError> {
    let spec = match text.split_once(':') {
        None if text == "emu" => Spec::named(DEFAULT_SPEC)?,
        Some(("emu", path)) if path.contains('/') => Spec::from_path(Path::new(path))?,
        Some(("emu", name)) => Spec::named(name)?,
        _ => return Err(OpenError::Unknown(text.to_owned())),
    };
    Ok(Box::new(EmulatedGpu::new(spec, Options::default())))
}
