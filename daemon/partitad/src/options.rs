//! The command line, and the defaults of its options.

use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser};
use partita_model::{ConfigKey, ConfigValue, Origin, PolicyName};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The state folder of the system's daemon.
const SYSTEM_STATE_DIR: &str = "/var/lib/partita";
/// The socket folder of the system's daemon.
const SYSTEM_SOCKET_DIR: &str = "/run/partita";

/// The variable that names the `partita-gpu` to start.
pub(crate) const GPU_PROGRAM: &str = "PARTITA_GPU";

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
  partitad --check-config --device emu:h200,weak,seed=7
      check what a device says
  partitad --device emu --sharing mps
      run the original kernels side by side, as a baseline for comparison
  partitad --device emu,timing=off
      serve an emulated GPU that executes and keeps no time
  partitad --device auto --metrics-listen 127.0.0.1:9835
      let Prometheus on this machine read metrics
  curl --unix-socket /run/partita/api.sock http://partita/v1/status
      ask a running daemon for its GPU, applications and partitions

Environment:
  PARTITA_LOG, RUST_LOG  the log filter, e.g. `debug` or `partitad=debug` [default: info]
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

    /// Only check the configuration file and its drop-ins, and what --device says: name them and
    /// exit with 0, or name the first error, in a file with its line, and exit with 2. Whether the
    /// GPUs can be used is not looked at.
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

    /// The options that stand on the command line, by the names of these fields.
    #[arg(skip)]
    pub named: BTreeSet<String>,
}

/// No folder for the sockets is named, and none can be derived.
#[derive(Debug, thiserror::Error)]
#[error("no folder for the sockets: XDG_RUNTIME_DIR is not set; name one with --socket-dir")]
pub struct NoSocketDir;

impl Options {
    /// The options of this process's command line. Wrong usage ends the process.
    #[must_use]
    pub fn read() -> Options {
        let matches = partita_args::matches(Options::command());
        let mut options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let is_named =
            |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        options.named = matches.ids().filter(is_named).map(ToString::to_string).collect();
        options
    }

    /// The folder of the sockets.
    ///
    /// # Errors
    /// [`NoSocketDir`] where none is named and none can be derived.
    pub fn socket_dir(&self) -> Result<PathBuf, NoSocketDir> {
        self.socket_dir_found().map(|(folder, _)| folder)
    }

    fn socket_dir_found(&self) -> Result<(PathBuf, Origin), NoSocketDir> {
        let named = named(self.socket_dir.as_deref(), "--socket-dir");
        let roots = || rustix::process::geteuid().is_root().then(|| SYSTEM_SOCKET_DIR.into());
        let roots = || roots().map(|folder| (folder, Origin::default_value()));
        let users = || below("XDG_RUNTIME_DIR", "partita");
        let found = named.or_else(|| variable("PARTITA_SOCKET_DIR")).or_else(roots);
        found.or_else(users).ok_or(NoSocketDir)
    }

    /// The state folder; `None` where none is named and none can be derived.
    #[must_use]
    pub fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir_found().map(|(folder, _)| folder)
    }

    fn state_dir_found(&self) -> Option<(PathBuf, Origin)> {
        let named = named(self.state_dir.as_deref(), "--state-dir");
        // systemd separates several folders by colons.
        let systems = || {
            let (folders, from) = variable("STATE_DIRECTORY")?;
            Some((std::env::split_paths(&folders).next()?, from))
        };
        let roots = || rustix::process::geteuid().is_root().then(|| SYSTEM_STATE_DIR.into());
        let roots = || roots().map(|folder| (folder, Origin::default_value()));
        named
            .or_else(|| variable("PARTITA_STATE_DIR"))
            .or_else(systems)
            .or_else(|| below("XDG_STATE_HOME", "partita"))
            .or_else(roots)
            .or_else(|| below("HOME", ".local/state/partita"))
    }

    /// The keys that are read once, at the start, each with the place that it comes from.
    #[must_use]
    pub fn keys(&self) -> Vec<ConfigKey> {
        let option = |key: &str, field: &str, value: Option<ConfigValue>| {
            let from = match self.named.contains(field) {
                true => Origin::option(&format!("--{key}")),
                false => Origin::default_value(),
            };
            found(key, value, from)
        };
        let text = |text: &str| Some(ConfigValue::Text(text.to_owned()));
        let devices = self.devices.iter().cloned().map(ConfigValue::Text).collect();
        let metrics = self.metrics_listen.map(|address| ConfigValue::Text(address.to_string()));
        let folder = |key, folder: Option<(PathBuf, Origin)>| match folder {
            Some((folder, from)) => found(key, Some(path(&folder)), from),
            None => found(key, None, Origin::default_value()),
        };
        let (filter, variable_of_filter) = partita_log::filter();
        let from = variable_of_filter.map_or_else(Origin::default_value, Origin::variable);
        let mut keys = vec![
            option("device", "devices", Some(ConfigValue::List(devices))),
            option("sharing", "sharing", self.sharing.as_deref().and_then(text)),
            option("config", "config", self.config.as_deref().map(path)),
            folder("socket-dir", self.socket_dir_found().ok()),
            option("socket-mode", "socket_mode", text(&format!("{:04o}", self.socket_mode))),
            option("admin-group", "admin_group", text(&self.admin_group)),
            folder("state-dir", self.state_dir_found()),
            option("metrics-listen", "metrics_listen", metrics),
            option("gpu-sockets", "gpu_sockets", Some(ConfigValue::Flag(self.gpu_sockets))),
            found("log", text(&filter), from),
        ];
        keys.extend(
            variable(GPU_PROGRAM)
                .map(|(program, from)| found("gpu-program", Some(path(&program)), from)),
        );
        keys
    }
}

fn found(key: &str, value: Option<ConfigValue>, from: Origin) -> ConfigKey {
    ConfigKey { key: key.to_owned(), gpu: None, value, from }
}

fn path(path: &Path) -> ConfigValue {
    ConfigValue::Text(path.display().to_string())
}

fn named(path: Option<&Path>, option: &str) -> Option<(PathBuf, Origin)> {
    path.map(|path| (path.to_owned(), Origin::option(option)))
}

fn variable(name: &str) -> Option<(PathBuf, Origin)> {
    let value = std::env::var_os(name).filter(|path| !path.is_empty())?;
    Some((value.into(), Origin::variable(name)))
}

fn below(name: &str, folder: &str) -> Option<(PathBuf, Origin)> {
    variable(name).map(|(path, from)| (path.join(folder), from))
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
    fn every_option_says_in_which_form_it_wants_a_number() {
        assert_eq!(partita_args::unexplained(&Options::command()), [""; 0]);
    }

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
        Options::command().debug_assert();
    }

    #[test]
    fn options_say_whether_they_were_given() {
        let mut options = Options::parse_from(["partitad", "--state-dir", "/s"]);
        options.named = ["devices", "admin_group"].map(str::to_owned).into();
        let keys = options.keys();
        let from = |key: &str| {
            let found = keys.iter().find(|one| one.key == key).unwrap();
            (found.value.as_ref().map(ToString::to_string), found.from.to_string())
        };
        assert_eq!(from("device"), (Some("auto".into()), "--device".into()));
        assert_eq!(from("state-dir"), (Some("/s".into()), "--state-dir".into()));
        assert_eq!(from("socket-mode"), (Some("0660".into()), "default".into()));
        assert_eq!(from("metrics-listen"), (None, "default".into()));
        // The fields are the names by which clap knows the options.
        let command = Options::command();
        let ids: Vec<&str> = command.get_arguments().map(|one| one.get_id().as_str()).collect();
        for field in [
            "devices",
            "sharing",
            "config",
            "socket_mode",
            "admin_group",
            "metrics_listen",
            "gpu_sockets",
        ] {
            assert!(ids.contains(&field), "{field}");
        }
    }
}
