//! The command line, and the defaults of its options.

use clap::Parser;
use partita_model::PolicyName;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The state folder of the system's daemon.
const SYSTEM_STATE_DIR: &str = "/var/lib/partita";
/// The socket folder of the system's daemon.
const SYSTEM_SOCKET_DIR: &str = "/run/partita";

const EXAMPLES: &str = "\
Examples:
  partitad
      serve every GPU, or the emulated GPU on a machine without one, in the default folder
  partitad --device cuda:0 --device cuda:2
      serve two of the GPUs; programs see them as devices 0 and 1
  partitad --device emu
      serve the emulated GPU
  partitad --device emu:titan-xp --socket-dir /tmp/partita
      serve a small emulated GPU privately; programs find it by PARTITA_SOCKET_DIR=/tmp/partita
  partitad --device emu --policy even
      share the SMs evenly, instead of by CD-search
  partitad --device emu --config /etc/partita/partitad.toml
      use the policy of a file; `systemctl reload partitad` reads the file again
  partitad --check-config --config /etc/partita/partitad.toml
      check a file before `systemctl reload partitad` reads it
  partitad --device emu --sharing mps
      run the original kernels side by side, as a baseline for comparison
  partitad --device emu,timing=off
      serve an emulated GPU that executes and keeps no time
  partitad --device auto --metrics-listen 127.0.0.1:9835
      let Prometheus on this machine read metrics
  curl --unix-socket /run/partita/api.sock http://partita/v1/status
      ask a running daemon for its GPU, applications and partitions

Environment:
  PARTITA_LOG, RUST_LOG  the log filter for stderr, e.g. `debug` or `partitad=debug` [default: info]
  PARTITA_SOCKET_DIR     the folder of the sockets, without --socket-dir
  PARTITA_STATE_DIR      the state folder, without --state-dir
  PARTITA_GPU            the partita-gpu to start, instead of the one beside partitad or in PATH

Exit codes: 0 ended by SIGTERM or SIGINT, 1 failed, 2 wrong usage.";

/// Partita's daemon: share GPUs between processes, and move the borders while their kernels run.
#[derive(Parser, Clone, Debug)]
#[command(name = "partitad", version, about, after_help = EXAMPLES)]
pub struct Options {
    /// A GPU to serve: `cuda` or `cuda:NUMBER`; `auto`, which is every GPU, or the emulated GPU on
    /// a machine without one; `emu`, or `emu:SPEC` with a specification's name or file. Options may
    /// follow: `timing=off`, `weak`, `seed=NUMBER`, `sharing=MODE`, `thread-percentage=PART`,
    /// `capability=MAJOR.MINOR`. Repeat --device for each further GPU; GPUs are numbered in this
    /// order, from 0.
    #[arg(long = "device", value_name = "DEVICE", default_value = "auto")]
    pub devices: Vec<String>,

    /// The way in which applications share an emulated GPU, as `--device …,sharing=MODE`:
    /// `spatial`, each application has its own SMs; the baselines `timeslice`, one application
    /// after the other, and `mps`, side by side as the hardware's block scheduler decides.
    #[arg(long, value_name = "MODE")]
    pub sharing: Option<String>,

    /// The configuration file; the files FILE.d/*.toml add to it, in order of name. SIGHUP reads
    /// the files again; a file with an error is refused with the line of the error, and the policy
    /// in force stays.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Only check the configuration file and its drop-ins: name the files and exit with 0, or name
    /// the first error with file and line and exit with 2.
    #[arg(long)]
    pub check_config: bool,

    /// The policy. A partitioner decides the SMs of each application: `cd-search`,
    /// `cd-search-paper`, `demand`, `even`, `smra` or `static`. A selector decides which
    /// applications run together: `everyone`, `slate`, `kernelet` or `matching`. `slate+cd-search`
    /// names both. This option overrides the configuration file
    /// [default: everyone+cd-search, or everyone+even on a device that keeps no time]
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<PolicyName>,

    /// The folder of the sockets [default: $PARTITA_SOCKET_DIR, else /run/partita for root, else
    /// $XDG_RUNTIME_DIR/partita]
    #[arg(long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,

    /// The folder for measurements of the GPU and of kernels. Its files may be deleted: the daemon
    /// measures again
    /// [default: $PARTITA_STATE_DIR, else $STATE_DIRECTORY, else $XDG_STATE_HOME/partita, else
    /// /var/lib/partita for root,
    /// else ~/.local/state/partita]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Permissions of the sockets, octal: they decide who may connect.
    #[arg(long, value_name = "MODE", default_value = "0660", value_parser = parse_mode)]
    pub socket_mode: u32,

    /// The group whose members may change things over the API and see everything, as root and the
    /// daemon's user. The group need not exist.
    #[arg(long, value_name = "GROUP", default_value = "partita-admin")]
    pub admin_group: String,

    /// Serve metrics, health and readiness also on this TCP address, as in `127.0.0.1:9835`. The
    /// page names users by number and jobs by tag, to everyone who can reach the address.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_listen: Option<SocketAddr>,

    /// Leave it to systemd to start partita-gpu: call on gpu/NUMBER.sock in the folder of the
    /// sockets, where partita-gpu@NUMBER.socket listens. Without this option partitad starts
    /// partita-gpu itself, and ends it when it is ended by SIGTERM or SIGINT.
    #[arg(long, conflicts_with = "end_with_parent")]
    pub gpu_sockets: bool,

    /// Write the line `READY` to this file descriptor when clients can connect.
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<u32>,

    /// End when the parent process ends, in whatever way.
    #[arg(long)]
    pub end_with_parent: bool,
}

/// No folder for the sockets is named, and none can be derived.
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
    /// The state folder; `None` where none is named and none can be derived.
    #[must_use]
    pub fn state_dir(&self) -> Option<PathBuf> {
        let named = self.state_dir.clone().or_else(|| path_variable("PARTITA_STATE_DIR"));
        // systemd separates several folders by colons.
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
        use partita_model::{PartitionerKind, SelectorKind};
        let named = |text: &str| {
            let name: PolicyName = text.parse()?;
            Ok::<_, String>((name.selector, name.partitioner))
        };
        let (slate, paper) = (Some(SelectorKind::Slate), Some(PartitionerKind::CdSearchPaper));
        assert_eq!(named("cd-search-paper"), Ok((None, paper)));
        assert_eq!(named("slate"), Ok((slate, None)));
        assert_eq!(named("slate+cd-search-paper"), Ok((slate, paper)));
        let both = (Some(SelectorKind::Matching), Some(PartitionerKind::Smra));
        assert_eq!(named("matching+smra"), Ok(both));
        for bad in ["best", "slate+", "even+slate", "slate+even+even", "Slate", ""] {
            let error = named(bad).unwrap_err();
            assert!(error.contains("`even`") && error.contains("`slate`"), "{bad}: {error}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Options::command().debug_assert();
    }
}
