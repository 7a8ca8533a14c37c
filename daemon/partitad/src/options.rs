//! What can be said on the command line, and what holds where nothing is said.

use clap::Parser;
use partita_model::PartitionerKind;
use serde::Deserialize as _;
use serde::de::IntoDeserializer;
use std::path::PathBuf;

/// The folder of what a system's daemon keeps.
const SYSTEM_STATE_DIR: &str = "/var/lib/partita";
/// The folder of the sockets of a system's daemon.
const SYSTEM_SOCKET_DIR: &str = "/run/partita";

const EXAMPLES: &str = "\
Examples:
  partitad --device auto
      serve every GPU, or the emulated one on a machine without a GPU, in the default folder
  partitad --device cuda:0 --device cuda:2
      serve two of the GPUs; programs see them as devices 0 and 1
  partitad --device emu
      serve the emulated GPU
  partitad --device emu:titan-xp --socket-dir /tmp/partita
      serve a small emulated GPU privately; programs find it by PARTITA_SOCKET_DIR=/tmp/partita
  partitad --device emu --policy even
      share the SMs evenly, instead of by CD-search
  partitad --device emu --config /etc/partita/partitad.toml
      with the policy of a file; `systemctl reload partitad` reads it again
  partitad --device emu --sharing mps
      run kernels as they are, side by side, as a baseline to compare with
  partitad --device emu,timing=off
      serve an emulated GPU that only executes and keeps no time
  curl --unix-socket /run/partita/api.sock http://partita/v1/status
      ask a running daemon for its GPU, applications and partitions

Environment:
  PARTITA_LOG, RUST_LOG  what is logged to stderr, e.g. `debug` or `partitad=debug` [default: info]
  PARTITA_SOCKET_DIR     the folder of the sockets where --socket-dir is not given
  PARTITA_STATE_DIR      the folder of what is kept where --state-dir is not given
  PARTITA_GPU            the partita-gpu to start, instead of the one beside partitad or in PATH

Exit codes: 0 ended by SIGTERM or SIGINT, 1 failed, 2 wrong usage.";

/// Partita's daemon: shares GPUs between processes and moves the borders while their kernels run.
#[derive(Parser, Clone, Debug)]
#[command(name = "partitad", version, about, after_help = EXAMPLES)]
pub struct Options {
    /// A GPU to serve; say it again for each further one: `cuda`, or `cuda:NUMBER`; `auto`, every
    /// GPU where there is one, else the emulated one; `emu`, or `emu:SPEC` for a specification by
    /// name or file; after it options: `timing=off`, `weak`, `seed=NUMBER`, `sharing=MODE`,
    /// `thread-percentage=PART`, `capability=MAJOR.MINOR`. They are numbered in this order, from 0.
    #[arg(long = "device", value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,

    /// How applications share an emulated GPU: `spatial`, SMs of their own; the baselines
    /// `timeslice`, one after the other, and `mps`, side by side as the hardware's block scheduler
    /// has it. As `--device …,sharing=MODE`.
    #[arg(long, value_name = "MODE")]
    pub sharing: Option<String>,

    /// The configuration file. It is read again at SIGHUP; one that cannot hold is refused with its
    /// line, and the policy in force stays.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// How many SMs each application gets: `cd-search`, `cd-search-paper`, `even` or `static`; goes
    /// before the configuration's
    /// [default: cd-search, or even on a device that keeps no time]
    #[arg(long, value_name = "POLICY", value_parser = parse_partitioner)]
    pub policy: Option<PartitionerKind>,

    /// The folder of the sockets [default: $PARTITA_SOCKET_DIR, else /run/partita for root, else
    /// $XDG_RUNTIME_DIR/partita]
    #[arg(long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,

    /// Where what is measured of the GPU and of kernels is kept. Anything there may be deleted: it
    /// is measured again
    /// [default: $PARTITA_STATE_DIR, else $STATE_DIRECTORY, else $XDG_STATE_HOME/partita, else
    /// /var/lib/partita for root,
    /// else ~/.local/state/partita]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Permissions of the sockets, octal: who may connect.
    #[arg(long, value_name = "MODE", default_value = "0660", value_parser = parse_mode)]
    pub socket_mode: u32,

    /// Write the line `READY` to this file descriptor when clients can connect.
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<u32>,

    /// End when the process that started this one ends, however it does.
    #[arg(long)]
    pub end_with_parent: bool,
}

/// Why no folder for the sockets is known.
#[derive(Debug, thiserror::Error)]
#[error("no folder for the sockets: XDG_RUNTIME_DIR is not set; name one with --socket-dir")]
pub struct NoSocketDir;

impl Options {
    /// The folder of the sockets.
    ///
    /// # Errors
    /// [`NoSocketDir`] where none is named and none can be derived.
    pub fn socket_dir(&self) -> Result<PathBuf, NoSocketDir> {
        if let Some(folder) =
            self.socket_dir.clone().or_else(|| path_variable("PARTITA_SOCKET_DIR"))
        {
            return Ok(folder);
        }
        if rustix::process::geteuid().is_root() {
            return Ok(SYSTEM_SOCKET_DIR.into());
        }
        Ok(path_variable("XDG_RUNTIME_DIR").ok_or(NoSocketDir)?.join("partita"))
    }
}

impl Options {
    /// The folder of what is kept; `None` where none is named and none can be derived.
    #[must_use]
    pub fn state_dir(&self) -> Option<PathBuf> {
        let named = self.state_dir.clone().or_else(|| path_variable("PARTITA_STATE_DIR"));
        // systemd's, several folders apart by colons where there are several.
        let systems = || {
            let folders = path_variable("STATE_DIRECTORY")?;
            std::env::split_paths(&folders).next()
        };
        let users = || Some(path_variable("XDG_STATE_HOME")?.join("partita"));
        let roots = || rustix::process::geteuid().is_root().then(|| SYSTEM_STATE_DIR.into());
        let home = || Some(path_variable("HOME")?.join(".local/state/partita"));
        named.or_else(systems).or_else(users).or_else(roots).or_else(home)
    }
}

/// Names as the configuration file has them.
fn parse_partitioner(text: &str) -> Result<PartitionerKind, String> {
    let name: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
        text.into_deserializer();
    PartitionerKind::deserialize(name).map_err(|error| error.to_string())
}

fn path_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "not an octal file mode (write for example 0660)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        assert_eq!(parse_mode("0660"), Ok(0o660));
        for bad in ["", "0o660", "1777", "8", "-1", "rw-rw----"] {
            assert!(parse_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn policies() {
        assert_eq!(parse_partitioner("cd-search"), Ok(PartitionerKind::CdSearch));
        assert_eq!(parse_partitioner("cd-search-paper"), Ok(PartitionerKind::CdSearchPaper));
        let error = parse_partitioner("best").unwrap_err();
        assert!(error.contains("`even`") && error.contains("`cd-search`"), "{error}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }
}
