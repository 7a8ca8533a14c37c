//! The command line of `partita-dra`.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  partita-dra --node-name gpu01
      Serve the kubelet of the node gpu01, from inside a pod of the cluster.
  partita-dra --node-name gpu01 --kube-api http://127.0.0.1:8001
      The same from outside, beside `kubectl proxy`.
  partita-dra --node-name gpu01 --preload /usr/lib/tool.so
      Containers load tool.so before Partita's shim.
  partita-dra check
      Say whether the driver and partitad on this node answer; for a probe.

Exit codes: 0 done, 1 failed, 2 wrong option.
PARTITA_LOG=debug tells more.";

/// Kubernetes' DRA driver of Partita: claims of pods get SMs and memory of a shared GPU.
#[derive(Parser, Debug)]
#[command(name = "partita-dra", version, after_help = EXAMPLES)]
pub struct Options {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Where things are.
    #[command(flatten)]
    pub places: Places,
    /// The node that the driver serves.
    #[arg(long, value_name = "NAME", env = "NODE_NAME", default_value = "")]
    pub node_name: String,
    /// A library that containers load beside the shim; once for each. The path is that in the
    /// containers.
    #[arg(long, value_name = "LIBRARY")]
    pub preload: Vec<PathBuf>,
    /// The days after which a reservation ends that nobody renews: the driver renews those of
    /// prepared claims.
    #[arg(long, value_name = "N", default_value_t = 7,
        value_parser = clap::value_parser!(u16).range(1..=365))]
    pub days: u16,
    /// The API server. [default: that of the pod's cluster]
    #[arg(long, value_name = "URL")]
    pub kube_api: Option<String>,
    /// The folder with `token` and `ca.crt` for the API server.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount"
    )]
    pub kube_account: PathBuf,
}

/// Places on the node. In a pod each is mounted at the same path.
#[derive(Args, Clone, Debug)]
pub struct Places {
    /// The driver's name, as device classes and claims use it.
    #[arg(long, value_name = "NAME", global = true, default_value = "gpu.partita.dev")]
    pub driver_name: String,
    /// The kubelet's folder.
    #[arg(long, value_name = "DIR", global = true, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    /// The folder in which container runtimes look for CDI specifications.
    #[arg(long, value_name = "DIR", global = true, default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// The folder of partitad's sockets.
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        env = "PARTITA_SOCKET_DIR",
        default_value = "/run/partita"
    )]
    pub socket_dir: PathBuf,
    /// The folder of the shim on the node.
    #[arg(long, value_name = "DIR", global = true, default_value = "/usr/lib/partita")]
    pub lib_dir: PathBuf,
}

/// What to do instead of serving.
#[derive(Subcommand, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Says whether the driver and partitad on this node answer.
    Check {
        /// Leaves partitad out: what a restart of the driver mends.
        #[arg(long)]
        driver_only: bool,
    },
}

impl Places {
    /// The driver's own folder: its socket, and what it keeps.
    #[must_use]
    pub fn plugin_dir(&self) -> PathBuf {
        self.kubelet_dir.join("plugins").join(&self.driver_name)
    }

    /// The socket on which the kubelet prepares claims.
    #[must_use]
    pub fn plugin_socket(&self) -> PathBuf {
        self.plugin_dir().join("dra.sock")
    }

    /// The socket by which the kubelet finds the driver.
    #[must_use]
    pub fn registration_socket(&self) -> PathBuf {
        let name = format!("{}-reg.sock", self.driver_name);
        self.kubelet_dir.join("plugins_registry").join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_option_says_in_which_form_it_wants_a_number() {
        assert_eq!(partita_args::unexplained(&Options::command()), [""; 0]);
    }

    #[test]
    fn help_has_examples_and_is_consistent() {
        Options::command().debug_assert();
        let help = Options::command().render_long_help().to_string();
        assert!(help.contains("partita-dra --node-name gpu01"), "{help}");
    }

    #[test]
    fn sockets_lie_where_the_kubelet_looks() {
        let options = Options::parse_from(["partita-dra", "--node-name", "n"]);
        let registry = "/var/lib/kubelet/plugins_registry/gpu.partita.dev-reg.sock";
        assert_eq!(options.places.registration_socket(), PathBuf::from(registry));
        let plugin = "/var/lib/kubelet/plugins/gpu.partita.dev/dra.sock";
        assert_eq!(options.places.plugin_socket(), PathBuf::from(plugin));
    }
}
