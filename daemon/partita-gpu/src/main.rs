//! `partita-gpu`, which `partitad` starts; the library's page describes it.

use clap::Parser;
use partita_gpu::device;
use partita_gpu::shell::{Shell, ShellError};
use partita_gpu::store::Store;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// The system's allocator takes a fifth of a launch's time in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Partita's data plane, which partitad starts. Its standard input is the control socket, its
/// standard output the sessions socket.
#[derive(Parser)]
#[command(name = "partita-gpu", version, about)]
struct Options {
    /// The GPU to serve: `cuda`, or `cuda:NUMBER`; `auto`, the first GPU where there is one, else
    /// the emulated one; `emu`, or `emu:SPEC` for a specification by name or file; after it
    /// options: `timing=off`, `weak`, `seed=NUMBER`, `sharing=MODE`, `thread-percentage=PART`,
    /// `capability=MAJOR.MINOR`, `record=FILE`.
    #[arg(long, value_name = "DEVICE", required_unless_present = "count")]
    device: Option<String>,

    /// Only say how many GPUs the driver shows, 0 where there is none.
    #[arg(long, conflicts_with = "device")]
    count: bool,

    /// Where what is measured of the device and of kernels is kept; without it, nowhere.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let _log = partita_log::init();
    // The process also ends when the control socket closes. The signal covers the case that nothing
    // reads the socket any more.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "cannot die with partitad");
    }
    partita_gpu::host_memory::be_the_first_to_go();
    let Some(text) = options.device else {
        println!("{}", device::count_gpus());
        return ExitCode::SUCCESS;
    };
    let device = match device::open(&text, options.state_dir.as_deref()) {
        Ok(device) => device,
        Err(error) => {
            partita_log::last_words(&format!("partita-gpu: {error}"));
            return ExitCode::from(2);
        }
    };
    let store = options.state_dir.and_then(|folder| {
        let store = Store::open(&folder, &device.identity());
        let complain = |error| {
            tracing::warn!(%error, folder = %folder.display(), "what is measured is not kept");
        };
        store.map_err(complain).ok()
    });
    let store = store.map(Arc::new);
    let result = sockets()
        .and_then(|(control, sessions)| Shell::new(device, &text, store, control, sessions)?.run());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn sockets() -> Result<(OwnedFd, OwnedFd), ShellError> {
    let take = |fd: std::os::fd::BorrowedFd<'_>| {
        let fd = fd.try_clone_to_owned()?;
        // A missing socket must end the process at once, with a message.
        rustix::net::sockopt::socket_type(&fd)?;
        Ok(fd)
    };
    let system = |source| ShellError::System {
        what: "partita-gpu is started by partitad, not by hand",
        source,
    };
    let control = take(std::io::stdin().as_fd()).map_err(system)?;
    let sessions = take(std::io::stdout().as_fd()).map_err(system)?;
    Ok((control, sessions))
}
