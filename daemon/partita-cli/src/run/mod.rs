//! `partita run`: a program with Partita in the place of CUDA's driver.
//!
//! The process that the user starts **becomes** the program. Exit code, signals, process group,
//! terminal, descriptors and process id are therefore the program's, and nothing is forwarded. A
//! private daemon outlives the program's start: it belongs to a keeper process, which this process
//! starts before it becomes the program. With `--coverage` only, this process stays, waits for the
//! program and ends with the program's exit code.
//!
//! The run changes `LD_PRELOAD` and `PARTITA_SOCKET_DIR` in the environment, `PARTITA_COVERAGE`
//! with `--coverage`, and the variables of [`frameworks`].

pub mod child;
mod coverage;
mod frameworks;
mod keeper;
pub mod locate;
mod private;
mod spare;

pub use frameworks::ASSEMBLER;
pub use keeper::{KEEPER_COMMAND, KeeperArgs};

use crate::failure::{Failure, complain};
use crate::sockets::{self, Probe};
use crate::terms::Asked;
use clap::Args;
use locate::{PartMissing, ProgramError};
use partita_emu::{Setup, SetupError};
use private::PrivateError;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXAMPLES: &str = "\
Examples:
  partita run ./vecAdd 1000
      run the program on the system's daemon; without a daemon, on a private emulated GPU
  partita run --device emu:titan-xp -- ./vecAdd --help
      run the program on a private emulated GPU; `partita emu specs` lists the specifications
  partita run --device emu:a100 --device emu:h200 -- ./two_gpus
      run the program on two emulated GPUs, which it sees as two devices
  partita run --no-timing python3 train.py
      run the program on a private emulated GPU that keeps no time: same results, sooner
  partita run --socket-dir /tmp/partita python3 train.py
      run the program on the daemon that serves in this folder, and on no other
  partita run --sms 8..24 --priority latency -- ./server
      run the program with 8 SMs at least and 24 at most; batch programs leave it their SMs
  partita run --coverage ./app
      run the program, then list its CUDA calls with counts, and those that Partita lacks

Environment:
  PARTITA_SOCKET_DIR  the folder of the daemon's sockets
                      [default: /run/partita, then $XDG_RUNTIME_DIR/partita]
  PARTITA_LIB_DIR     the folder of libpartita_cuda.so and partitad
                      [default: this command's own, then ../lib/partita]
  CUPY_COMPILE_WITH_PTX, CUPY_ACCELERATORS, TRITON_LIBCUDA_PATH, TRITON_PTXAS_PATH,
  TRITON_PTXAS_BLACKWELL_PATH
                      set for the program unless the environment sets them: CuPy and Triton
                      then hand over PTX and find the driver
  CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER
                      the GPUs that the program sees, and their order as in CUDA: the
                      fastest first, or PCI_BUS_ID, which is the order of `partita status`
  PARTITA_SMS, PARTITA_WEIGHT, PARTITA_PRIORITY
                      what --sms, --weight and --priority set; of MPS's variables
                      CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is a maximum, and
                      CUDA_MPS_CLIENT_PRIORITY a priority
  PARTITA_KEEP        the seconds for which a shell session keeps a private daemon that waits
                      for the next run, which then starts sooner; 0 for none
                      [default: 60 where stderr is a terminal, else 0]
  PARTITA_LOG         what a private daemon logs to stderr, e.g. `info` [default: warn];
                      `info` also names each CUDA call that Partita refuses, `trace` every call

Exit codes: the program's own; 127 the program was not found, 126 the program cannot be executed,
1 Partita failed, 2 wrong usage.";

/// Run a CUDA program, unchanged, on the GPU that Partita shares.
#[derive(Args, Debug, PartialEq, Eq)]
#[command(after_help = EXAMPLES, override_usage = "partita run [OPTIONS] [--] PROGRAM [ARGS]...")]
pub struct RunArgs {
    /// Start a private daemon with this GPU for the length of the run: `emu` or `emu:SPEC`,
    /// followed by options as in `emu:SPEC,timing=off`. Repeat the option for each further GPU.
    #[arg(long = "device", value_name = "DEVICE", value_parser = parse_device)]
    devices: Vec<String>,

    /// Start a private daemon with an emulated GPU that executes and keeps no time, as `--device
    /// …,timing=off` does. Results are the same and come sooner; clocks and events still rise.
    #[arg(long, conflicts_with = "socket_dir")]
    no_timing: bool,

    /// Start a private daemon whose emulated GPU is shared in this mode, as `--device
    /// …,sharing=MODE` does: `spatial`, each application has its own SMs; `timeslice`, one
    /// application after the other; `mps`, side by side as the hardware's block scheduler decides.
    #[arg(long, value_name = "MODE", conflicts_with = "socket_dir")]
    sharing: Option<String>,

    /// Start a private daemon with an emulated GPU that holds every access of a kernel to the
    /// program's allocations, to the byte: `--device …,memcheck=on`. Without this option a kernel
    /// may go past an allocation inside the pages that the program has mapped, as on a GPU.
    #[arg(long, conflicts_with = "socket_dir")]
    memcheck: bool,

    /// Use the daemon that serves in this folder; fail where none does.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["devices", "private"])]
    socket_dir: Option<PathBuf>,

    /// Start a private daemon with the emulated GPU, even where the system's daemon serves.
    #[arg(long)]
    private: bool,

    #[command(flatten)]
    asked: Asked,

    /// At the end, list on stderr the CUDA calls of the program and its children: how often each
    /// was made, how many returned an error, and which are not supported. The program then runs as
    /// a child of this process.
    #[arg(long)]
    coverage: bool,

    /// The program (a path, or a name that is looked up in PATH) and its arguments. Options behind
    /// PROGRAM belong to the program.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Part(#[from] PartMissing),
    #[error(transparent)]
    Private(#[from] PrivateError),
    #[error("--no-timing, --memcheck or --sharing with device {device}: {source}")]
    Device { device: String, source: SetupError },
    #[error("cannot count the program's CUDA calls: {0}")]
    Coverage(std::io::Error),
    #[error("the folder of this command is unknown: {0}; name the folder of Partita's parts in \
        {var}", var = locate::LIB_DIR)]
    Executable(std::io::Error),
    #[error("{} cannot be preloaded: to the dynamic linker, spaces and colons in a path are \
        separators; install Partita elsewhere or name another folder in \
        {var}", .0.display(), var = locate::LIB_DIR)]
    Preload(PathBuf),
    #[error("no daemon answers in {}: start partitad with this --socket-dir, or omit \
        --socket-dir", .0.display())]
    NotServed(PathBuf),
    #[error("cannot connect to the daemon in {}: {source}; join the group of its socket \
        (Debian: adduser USER partita), or use a private emulated GPU with `partita run \
        --private`", .folder.display())]
    Denied { folder: PathBuf, source: std::io::Error },
    #[error(
        "this machine has an NVIDIA GPU but no daemon answers (tried {tried}): start the daemon \
         (systemctl enable --now partitad), or use the emulated GPU with --device emu"
    )]
    GpuUnserved { tried: String },
}

impl RunError {
    fn into_failure(self) -> Failure {
        let code = match &self {
            RunError::Program(error) => error.exit_code(),
            RunError::Device { .. } => 2,
            _ => 1,
        };
        Failure::from(self).with_code(code)
    }
}

/// Which daemon a run uses.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// The one that answers in this folder.
    Serving(PathBuf),
    /// A private one, with the reason for the user.
    Private { why: String },
}

impl RunArgs {
    /// Becomes the program, or ends with it. Returns only where that fails.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        match self.become_program() {
            Ok(never) => match never {},
            Err(error) => Err(error.into_failure()),
        }
    }

    fn become_program(self) -> Result<std::convert::Infallible, RunError> {
        let devices = self.private_devices()?;
        // The command line requires at least one word.
        let (program, args) =
            self.command.split_first().ok_or_else(|| ProgramError::NotInPath(PathBuf::new()))?;
        let found = locate::program(program, std::env::var_os("PATH").as_deref())?;
        let own = std::env::current_exe().map_err(RunError::Executable)?;
        let folders = locate::part_folders(&own, std::env::var_os(locate::LIB_DIR));
        let shim = locate::part(locate::SHIM, &folders)?;
        let preload = locate::preload(&shim, std::env::var_os("LD_PRELOAD").as_deref())
            .ok_or_else(|| RunError::Preload(shim.clone()))?;

        let socket_dir = match self.choose()? {
            Choice::Serving(folder) => std::path::absolute(&folder).unwrap_or(folder),
            Choice::Private { why } => {
                let daemon = locate::part(locate::DAEMON, &folders)?;
                let folder = private::start(&daemon, &devices)?;
                complain(&format!(
                    "{why}a private daemon serves the emulated GPU{} ({}) in {}",
                    if devices.len() == 1 { "" } else { "s" },
                    devices.join(", "),
                    folder.display()
                ));
                folder
            }
        };

        // The name as it was given: a program may look at how it was called.
        let mut command = Command::new(program);
        command.args(args).env("LD_PRELOAD", preload).env(sockets::SOCKET_DIR, &socket_dir);
        command.envs(self.asked.variables());
        let cache = crate::demo::toolkit::cache_dir();
        let is_taken = |name: &str| std::env::var_os(name).is_some();
        command.envs(frameworks::settings(&shim, &own, cache.as_deref(), is_taken));
        if self.coverage {
            match coverage::run(command, &socket_dir).map_err(RunError::Coverage)? {
                Ok(code) => std::process::exit(code),
                Err(error) => return Err(RunError::Program(refusal(found, &error))),
            }
        }
        let error = command.exec();
        Err(RunError::Program(refusal(found, &error)))
    }

    /// What a private daemon would serve.
    fn private_devices(&self) -> Result<Vec<String>, RunError> {
        let named =
            if self.devices.is_empty() { vec!["emu".to_owned()] } else { self.devices.clone() };
        named.into_iter().map(|device| self.private_device(device)).collect()
    }

    fn private_device(&self, given: String) -> Result<String, RunError> {
        let mut device = given.clone();
        if self.no_timing {
            device.push_str(",timing=off");
        }
        if self.memcheck {
            device.push_str(",memcheck=on");
        }
        if let Some(sharing) = &self.sharing {
            device.push_str(",sharing=");
            device.push_str(sharing);
        }
        match Setup::parse(&device) {
            Ok(_) => Ok(device),
            Err(source) => Err(RunError::Device { device: given, source }),
        }
    }

    fn choose(&self) -> Result<Choice, RunError> {
        let own = self.private || self.no_timing || self.memcheck || self.sharing.is_some();
        if own || !self.devices.is_empty() {
            return Ok(Choice::Private { why: String::new() });
        }
        let folders = sockets::search(self.socket_dir.as_deref(), |name| std::env::var_os(name));
        let probes = folders.into_iter().map(|folder| {
            let probe = sockets::probe(&folder);
            (folder, probe)
        });
        let gpu = Path::new("/dev/nvidiactl").exists();
        decide(probes.collect(), self.socket_dir.as_deref(), gpu)
    }
}

/// The choice that follows from the probes: the first daemon that answers. The emulated GPU never
/// replaces a real GPU unasked, nor a named daemon, nor a daemon that refuses this user.
fn decide(
    probes: Vec<(PathBuf, Probe)>,
    named: Option<&Path>,
    has_gpu: bool,
) -> Result<Choice, RunError> {
    let mut tried = Vec::new();
    let mut denied = None;
    for (folder, probe) in probes {
        match probe {
            Probe::Answers => return Ok(Choice::Serving(folder)),
            Probe::Absent => tried.push(folder),
            Probe::Denied(source) => denied = denied.or(Some(RunError::Denied { folder, source })),
        }
    }
    if let Some(error) = denied {
        return Err(error);
    }
    if let Some(folder) = named {
        return Err(RunError::NotServed(folder.to_owned()));
    }
    let tried = sockets::list(&tried);
    if has_gpu {
        return Err(RunError::GpuUnserved { tried });
    }
    Ok(Choice::Private { why: format!("no daemon answers (tried {tried}): ") })
}

/// The meaning of a failed execve for a program that was found.
fn refusal(program: PathBuf, error: &std::io::Error) -> ProgramError {
    let reason = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        // execve(2): also where the script's interpreter or the ELF's dynamic loader is not there.
        Some(rustix::io::Errno::NOENT) => {
            "its interpreter does not exist (see its first line, or `file`)".into()
        }
        Some(rustix::io::Errno::NOEXEC) => "not a program of this machine's kind".into(),
        _ => error.to_string(),
    };
    ProgramError::Refused { program, reason }
}

fn parse_device(text: &str) -> Result<String, SetupError> {
    Setup::parse(text).map(|_| text.to_owned())
}

/// Whether a variable is set to something.
fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value != OsStr::new(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command as Subcommand};
    use clap::Parser as _;

    #[test]
    fn options_end_at_the_program() {
        let check = |line: &[&str], expected: Option<(&[&str], Option<&str>)>| {
            let parsed = Cli::try_parse_from(["partita", "run"].iter().chain(line));
            let found = parsed.ok().map(|cli| match cli.command {
                Subcommand::Run(args) => (args.command, args.devices),
                other => panic!("{other:?}"),
            });
            let expected = expected.map(|(command, devices)| {
                let devices =
                    devices.map(|devices| devices.split(' ').map(str::to_owned).collect());
                (
                    command.iter().map(OsString::from).collect::<Vec<_>>(),
                    devices.unwrap_or_default(),
                )
            });
            assert_eq!(found, expected, "{line:?}");
        };
        check(&["ls"], Some((&["ls"], None)));
        check(&["--", "ls"], Some((&["ls"], None)));
        check(&["ls", "-l", "--help"], Some((&["ls", "-l", "--help"], None)));
        check(&["ls", "--device", "emu:x"], Some((&["ls", "--device", "emu:x"], None)));
        check(
            &["ls", "a", "--private", "--", "-x"],
            Some((&["ls", "a", "--private", "--", "-x"], None)),
        );
        check(&["--", "ls", "--", "x"], Some((&["ls", "--", "x"], None)));
        check(&["--", "--odd", "-h"], Some((&["--odd", "-h"], None)));
        check(&["--device", "emu", "ls", ""], Some((&["ls", ""], Some("emu"))));
        check(&["--device=emu:small", "--", "ls"], Some((&["ls"], Some("emu:small"))));
        check(
            &["--device", "emu:a", "--device", "emu:b", "ls"],
            Some((&["ls"], Some("emu:a emu:b"))),
        );
        check(&["--no-timing", "ls", "--no-timing"], Some((&["ls", "--no-timing"], None)));
        check(
            &["--device", "emu:small,timing=off", "ls"],
            Some((&["ls"], Some("emu:small,timing=off"))),
        );
        check(&["--device", "emu:small,timing", "ls"], None);
        check(&["--no-timing", "--socket-dir", "/x", "ls"], None);
        check(&[], None);
        check(&["--bogus", "ls"], None);
        check(&["--device", "cuda:0", "ls"], None);
        check(&["--device", "emu:", "ls"], None);
        check(&["--private", "--socket-dir", "/x", "ls"], None);
    }

    #[test]
    fn nothing_falls_back_unasked() {
        let denied = || Probe::Denied(std::io::ErrorKind::PermissionDenied.into());
        let check = |probes: Vec<(&str, Probe)>, named: Option<&str>, gpu: bool, expected: &str| {
            let probes = probes.into_iter().map(|(folder, probe)| (folder.into(), probe)).collect();
            let found = match decide(probes, named.map(Path::new), gpu) {
                Ok(Choice::Serving(folder)) => format!("serving {}", folder.display()),
                Ok(Choice::Private { why }) => format!("private {why}"),
                Err(error) => error.to_string(),
            };
            assert!(found.starts_with(expected), "{found}");
        };
        use Probe::{Absent, Answers};
        check(vec![("/a", Absent), ("/b", Answers)], None, true, "serving /b");
        check(vec![("/a", denied()), ("/b", Answers)], None, false, "serving /b");
        check(
            vec![("/a", Absent), ("/b", Absent)],
            None,
            false,
            "private no daemon answers (tried /a, /b)",
        );
        check(vec![("/a", Absent)], None, true, "this machine has an NVIDIA GPU but");
        check(vec![("/a", Absent)], Some("/a"), false, "no daemon answers in /a");
        check(
            vec![("/a", denied()), ("/b", Absent)],
            None,
            false,
            "cannot connect to the daemon in /a",
        );
    }
}
