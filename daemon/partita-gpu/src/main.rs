//! `partita-gpu`, which `partitad` or systemd starts; the library's page describes it.

use clap::Parser;
use partita_gpu::device;
use partita_gpu::door::{Caller, Door};
use partita_gpu::shell::{Grace, Shell, ShellError};
use partita_gpu::store::Store;
use partita_gpu::systemd::Systemd;
use partita_log::Log;
use partita_wire::call::{Call, CallAnswer, Want};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The system's allocator takes a fifth of a launch's time in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long the process waits for its first call.
const FIRST_CALL: Duration = Duration::from_secs(60);

/// The longest sleep while no device is open.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Partita's data plane, which partitad or systemd starts. Its standard input is the listening
/// socket on which partitad calls.
#[derive(Parser)]
#[command(name = "partita-gpu", version, about)]
struct Options {
    /// The GPU to serve: `cuda`, or `cuda:NUMBER`; `auto`, the first GPU where there is one, else
    /// the emulated one; `emu`, or `emu:SPEC` for a specification by name or file; after it
    /// options: `timing=off`, `weak`, `seed=NUMBER`, `sharing=MODE`, `thread-percentage=PART`,
    /// `capability=MAJOR.MINOR`, `record=FILE` [default: the GPU that partitad names in its call]
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// Only say how many GPUs the driver shows, 0 where there is none.
    #[arg(long, conflicts_with = "device")]
    count: bool,

    /// Only check what --device says, without a GPU: exit with 0, or name the error and exit with
    /// 2.
    #[arg(long, requires = "device")]
    check: bool,

    /// Only make these checks of the self-test on a real GPU, a list in JSON, and print what is
    /// found: how `partita-gpu` asks itself when it opens a GPU.
    #[arg(long, value_name = "CHECKS", requires = "device", hide = true)]
    self_test: Option<String>,

    /// Where what is measured of the device and of kernels is kept; without it, nowhere.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// How long sessions go on while there is no partitad [default: as long as they last]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<u64>,

    /// End when the parent process ends, in whatever way.
    #[arg(long)]
    end_with_parent: bool,
}

fn main() -> ExitCode {
    let options = partita_args::parse::<Options>();
    if options.check {
        return check(options.device.as_deref().unwrap_or_default());
    }
    let log = partita_log::init("partita-gpu");
    if (options.end_with_parent || options.self_test.is_some())
        && let Err(error) = set_parent_process_death_signal(Some(Signal::KILL))
    {
        tracing::warn!(%error, "cannot die with partitad");
    }
    partita_gpu::host_memory::be_the_first_to_go();
    if options.count {
        println!("{}", device::count_gpus());
        return ExitCode::SUCCESS;
    }
    if let Some(checks) = &options.self_test {
        return test(options.device.as_deref().unwrap_or_default(), checks);
    }
    match serve(options, &log) {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check(device: &str) -> ExitCode {
    match device::check(device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            partita_log::last_words(&format!("partita-gpu: {error}"));
            ExitCode::from(2)
        }
    }
}

fn test(device: &str, checks: &str) -> ExitCode {
    let say = |line: String| {
        // The process that asked may have ended.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    };
    match device::test(device, checks, say) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("partita-gpu: the self-test of {device}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options, log: &Log) -> Result<ExitCode, ShellError> {
    let mut systemd = Systemd::from_environment();
    let door = door()?;
    if let Some(number) = door.gpu() {
        log.serves(number);
    }
    systemd.tell("waiting for partitad");
    let (text, mut caller) = match options.device {
        Some(text) => (text, None),
        None => match first_call(&door, &mut systemd)? {
            Some((text, caller)) => (text, Some(caller)),
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    // The path of this program, also after an upgrade of the package has replaced the file.
    let own = Path::new("/proc/self/exe");
    let device = match device::open_with(&text, options.state_dir.as_deref(), Some(own)) {
        Ok(device) => device,
        Err(error) => {
            if let Some(caller) = caller {
                caller.answer(&CallAnswer::Never { text: error.to_string() });
            }
            partita_log::last_words(&format!("partita-gpu: {error}"));
            return Ok(ExitCode::from(2));
        }
    };
    let store = options.state_dir.and_then(|folder| {
        let store = Store::open(&folder, &device.identity());
        let complain = |error| {
            tracing::warn!(%error, folder = %folder.display(), "what is measured is not kept");
        };
        store.map_err(complain).ok()
    });
    let line = caller.as_mut().and_then(Caller::take_line);
    if let Some(caller) = caller {
        caller.answer(&CallAnswer::Connected);
    }
    systemd.tell(&format!("serving {text}"));
    let grace = Grace(options.grace.map(Duration::from_secs));
    let shell = Shell::new(device, &text, store.map(Arc::new), door, line, (grace, systemd))?;
    shell.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for a call that names the device. None where nobody needs the process.
fn first_call(door: &Door, systemd: &mut Systemd) -> Result<Option<(String, Caller)>, ShellError> {
    let system = |source| ShellError::System { what: "cannot wait for partitad", source };
    let start = Instant::now();
    while start.elapsed() < FIRST_CALL {
        systemd.turn();
        if !door.wait(LOOK_AROUND).map_err(system)? {
            continue;
        }
        let Some(caller) = door.next_caller() else { continue };
        match &caller.call {
            Ok(Call { want: Want::Count, .. }) => {
                caller.answer(&CallAnswer::Count(device::count_gpus()));
            }
            Ok(Call { want: Want::Serve { device }, .. }) => {
                return Ok(Some((device.clone(), caller)));
            }
            // systemd starts the installed version for the next call.
            Err(mismatch) => {
                caller.answer(&CallAnswer::Later { text: mismatch.to_string() });
                return Ok(None);
            }
        }
    }
    Ok(None)
}

fn door() -> Result<Door, ShellError> {
    let system = |source| ShellError::System {
        what: "partita-gpu is started by partitad or systemd, not by hand",
        source,
    };
    std::io::stdin().as_fd().try_clone_to_owned().and_then(Door::new).map_err(system)
}
