//! Checks and opens the device that `--device` names, and sleeps until a device has news.

use partita_cuda_device::self_test::{Check, Told};
use partita_cuda_device::{CudaDevice, Tester};
use partita_device::Device;
use partita_emu::record::Recorder;
use partita_emu::{Setup, SetupError, SpecError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a device does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The text names no device.
    #[error("{0}; or say `cuda`, `cuda:NUMBER`, `auto`")]
    Text(#[from] SetupError),
    /// The text names no GPU.
    #[error(transparent)]
    Cuda(#[from] partita_cuda_device::OptionsError),
    /// The GPU cannot be used.
    #[error("{0}; `partita doctor` says more, and `--device emu` is the emulated GPU")]
    Gpu(#[from] partita_cuda_device::OpenError),
    /// The text names no specification.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The file for the recording cannot be made.
    #[error("{path}: {source}")]
    Record {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Windows of a real GPU that are kept ready.
const PREPARED_WINDOWS: u8 = 4;

/// Opens the device that a text names: `emu…`, `cuda…`, or `auto`, which is the first GPU where
/// there is one. Machine code is kept below `state`.
///
/// # Errors
/// [`OpenError`]. A GPU that is there and cannot be used is an error for `auto`, too: nothing falls
/// back to the emulator unasked on a machine that has one.
pub fn open(text: &str, state: Option<&Path>) -> Result<Box<dyn Device>, OpenError> {
    open_with(text, state, None)
}

/// As [`open`]. `program`, a `partita-gpu`, makes the self-test of a real GPU.
///
/// # Errors
/// As [`open`].
pub fn open_with(
    text: &str,
    state: Option<&Path>,
    program: Option<&Path>,
) -> Result<Box<dyn Device>, OpenError> {
    if let Some(options) = options_of_auto(text) {
        return match open_gpu(&format!("cuda{options}"), state, program) {
            Err(OpenError::Gpu(error)) if error.means_none() => {
                tracing::warn!("{error}: serving the emulated GPU");
                open_emulator(&format!("emu{options}"))
            }
            result => result,
        };
    }
    match text.starts_with("cuda") {
        true => open_gpu(text, state, program),
        false => open_emulator(text),
    }
}

/// Checks what a text says, and opens nothing. Of `auto` only the options of a real GPU are
/// checked, because it is not known whether there is one.
///
/// # Errors
/// [`OpenError`] where the text is at fault, or the specification that it names.
pub fn check(text: &str) -> Result<(), OpenError> {
    if let Some(options) = options_of_auto(text) {
        partita_cuda_device::Options::parse(&format!("cuda{options}"))?;
    } else if text.starts_with("cuda") {
        partita_cuda_device::Options::parse(text)?;
    } else {
        Setup::parse(text)?.find_spec()?;
    }
    Ok(())
}

/// What follows `auto`, where the text is that.
fn options_of_auto(text: &str) -> Option<&str> {
    text.strip_prefix("auto").filter(|rest| rest.is_empty() || rest.starts_with(','))
}

/// Makes checks of the self-test on the GPU that a text names, `checks` a list in JSON, and says
/// each line that is found.
///
/// # Errors
/// The reason in words.
pub fn test(text: &str, checks: &str, mut say: impl FnMut(String) + Send) -> Result<(), String> {
    let options = partita_cuda_device::Options::parse(text).map_err(|error| error.to_string())?;
    let checks: Vec<Check> = serde_json::from_str(checks).map_err(|error| error.to_string())?;
    let mut tell = |told: Told| {
        if let Ok(line) = serde_json::to_string(&told) {
            say(line);
        }
    };
    // Drivers for tests watch a process's first thread for calls that wait, and these may.
    let run = || partita_cuda_device::self_test::run(&options, &checks, &mut tell);
    std::thread::scope(|scope| scope.spawn(run).join())
        .map_err(|_| "a check panicked".to_owned())?
        .map_err(|error| error.to_string())
}

/// How many GPUs the driver shows; none where it cannot be used.
#[must_use]
pub fn count_gpus() -> u32 {
    let driver = partita_cuda_device::driver::Driver::load(None).ok();
    driver.and_then(|driver| driver.device_count().ok()).unwrap_or(0)
}

fn open_gpu(
    text: &str,
    state: Option<&Path>,
    program: Option<&Path>,
) -> Result<Box<dyn Device>, OpenError> {
    let cache = state.map(|folder| folder.join("machine-code"));
    let tester = program.map(|program| Tester {
        program: program.to_owned(),
        arguments: ["--device", text, "--self-test"].map(str::to_owned).into(),
    });
    let options = partita_cuda_device::Options {
        cache,
        tester,
        prepared_windows: PREPARED_WINDOWS,
        ..partita_cuda_device::Options::parse(text)?
    };
    let gpu = CudaDevice::open(&options)?;
    tracing::info!("{}", gpu.identity());
    for limit in gpu.limits() {
        tracing::info!("a limit of this GPU or its driver: {limit}");
    }
    Ok(Box::new(gpu))
}

fn open_emulator(text: &str) -> Result<Box<dyn Device>, OpenError> {
    let setup = Setup::parse(text)?;
    let gpu = setup.open()?;
    match setup.record {
        None => Ok(Box::new(gpu)),
        Some(path) => {
            let recorder =
                Recorder::new(gpu, &path).map_err(|source| OpenError::Record { path, source })?;
            Ok(Box::new(recorder))
        }
    }
}

/// Opens another emulated GPU like the one that a text names, to be measured: nothing is recorded
/// of it. A real GPU is measured itself.
///
/// # Errors
/// As [`open`].
pub fn open_again(text: &str) -> Result<Box<dyn Device>, OpenError> {
    let text = match text.strip_prefix("auto") {
        Some(options) => format!("emu{options}"),
        None => text.to_owned(),
    };
    Ok(Box::new(Setup::parse(&text)?.open()?))
}

/// Sleeps until the device has news, or a moment.
pub fn sleep(device: &dyn Device) {
    if let Some(news) = device.news() {
        let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // A signal may end the wait early, which has no effect.
        let _ = poll(&mut [PollFd::new(&news, PollFlags::IN)], Some(&moment));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::DeviceKind;

    #[test]
    fn texts_are_checked_without_a_device() {
        for text in ["cuda:7,guards=strict", "auto", "auto,clock=gpu", "emu", "emu:a100,weak"] {
            assert!(check(text).is_ok(), "{text}");
        }
        let refused = |text: &str| check(text).expect_err(text).to_string();
        assert!(refused("gpu").contains("`auto`"));
        assert!(refused("cuda:x").contains("say cuda"));
        assert!(refused("auto,timing=off").contains("say cuda"));
        assert!(refused("emu,timing=of").contains("`timing=of` is no option"));
        assert!(refused("emu:nowhere").contains("nowhere"));
        assert!(refused("emu:/no/such/file").contains("/no/such/file"));
    }

    #[test]
    fn texts_name_devices() {
        let refused = |text: &str| open(text, None).err().expect(text).to_string();
        assert!(refused("gpu").contains("`auto`"));
        assert!(refused("cuda:x").contains("say cuda"));
        assert!(refused("auto:1").contains("`auto:1`"));
        assert!(refused("emu:nowhere").contains("nowhere"));
        assert_eq!(
            open("emu:cd-search-24", None).expect("a spec of that name").facts().kind,
            DeviceKind::Emulated
        );
    }
}
