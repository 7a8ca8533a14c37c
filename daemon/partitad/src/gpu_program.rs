//! The executable `partita-gpu`: where it is, and how it is started.
//!
//! A `partita-gpu` that `partitad` starts gets its listening socket as standard input, because that
//! can be handed to a child, and taken by it, without touching bare descriptor numbers. Its
//! standard error is ours: one log.

use crate::supervisor::SupervisionError;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// The variables that `partita-gpu` keeps. Everything else, `LD_PRELOAD` and `NOTIFY_SOCKET` among
/// it, is not its business.
const VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "LANG",
    "LD_LIBRARY_PATH",
    "PARTITA_LOG",
    "RUST_LOG",
    "RUST_BACKTRACE",
    // Whether stderr leads to the journal.
    "JOURNAL_STREAM",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "PARTITA_LIBCUDA",
    "PARTITA_LIBNVIDIA_ML",
    // The switches of the driver that tests put in NVIDIA's place.
    "PARTITA_EMULATED_DRIVER",
];

/// What NVIDIA's driver reads when it is loaded. Kernels are loaded with their modules, because
/// loading one at its first launch would wait for the whole device; work of 32 streams goes at
/// once. `partita-gpu@.service` sets the same.
const DRIVER_SETTINGS: [(&str, &str); 2] =
    [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")];

/// How long the sessions of a `partita-gpu` go on without a `partitad`, in seconds.
const GRACE_SECONDS: &str = "600";

/// What to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuProgram {
    /// The executable.
    pub path: PathBuf,
    /// What `--state-dir` gets.
    pub state_dir: Option<PathBuf>,
    /// Whether the process ends with this one, however that ends: this one ends with its parent,
    /// too.
    pub end_with_parent: bool,
}

impl GpuProgram {
    /// Finds the executable: `PARTITA_GPU`, else beside this process's own, else in `PATH`.
    ///
    /// # Errors
    /// [`SupervisionError::NotFound`].
    pub fn find(
        state_dir: Option<PathBuf>,
        end_with_parent: bool,
    ) -> Result<Self, SupervisionError> {
        let named =
            std::env::var_os("PARTITA_GPU").filter(|path| !path.is_empty()).map(PathBuf::from);
        let beside =
            || std::env::current_exe().ok()?.parent().map(|folder| folder.join("partita-gpu"));
        let in_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path)
                .map(|folder| folder.join("partita-gpu"))
                .find(|path| path.is_file())
        };
        let path = named.or_else(|| beside().filter(|path| path.is_file())).or_else(in_path);
        let path = path.ok_or(SupervisionError::NotFound)?;
        Ok(GpuProgram { path, state_dir, end_with_parent })
    }

    /// How many GPUs the driver shows, by its word; none where it says none.
    #[must_use]
    pub fn count_gpus(&self) -> usize {
        let output = self.asking().arg("--count").stderr(Stdio::inherit()).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Lets the program check what `device` says, without a GPU.
    ///
    /// # Errors
    /// [`SupervisionError::Never`] with its word, or [`SupervisionError::Start`].
    pub fn check(&self, device: &str) -> Result<(), SupervisionError> {
        let output = self.asking().args(["--check", "--device", device]).output();
        let output =
            output.map_err(|source| SupervisionError::Start { path: self.path.clone(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim();
        let said = said.strip_prefix("partita-gpu: ").unwrap_or(said);
        if output.status.code() != Some(2) || said.is_empty() {
            let source = io::Error::other(format!("it ended with {}: {said}", output.status));
            return Err(SupervisionError::Start { path: self.path.clone(), source });
        }
        Err(SupervisionError::Never(format!("`{device}`: {said}")))
    }

    /// The program for a question that it answers at once.
    fn asking(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.path);
        command.env_clear().envs(kept_variables()).stdin(Stdio::null());
        command
    }

    /// Starts the process, which serves `device` and answers calls on `listener`.
    ///
    /// # Errors
    /// [`SupervisionError::Start`].
    pub fn start(&self, device: &str, listener: OwnedFd) -> Result<Child, SupervisionError> {
        let mut command = Command::new(&self.path);
        command.args([OsString::from("--device"), OsString::from(device)]);
        command.args(["--grace", GRACE_SECONDS]);
        if let Some(folder) = &self.state_dir {
            command.arg("--state-dir").arg(folder);
        }
        if self.end_with_parent {
            command.arg("--end-with-parent");
        }
        command
            .env_clear()
            .envs(kept_variables())
            .envs(DRIVER_SETTINGS)
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            // A Ctrl-C at the terminal is for partitad, which then ends this one in order.
            .process_group(0)
            .spawn()
            .map_err(|source| SupervisionError::Start { path: self.path.clone(), source })
    }
}

fn kept_variables() -> impl Iterator<Item = (&'static str, OsString)> {
    VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?)))
}
