//! The folder in which `partitad` keeps what it has measured, where nobody names one.

use std::path::PathBuf;

/// The environment's folder, else the user's, else the system's. `None` where there is no home.
pub(crate) fn state_dir() -> Option<PathBuf> {
    let variable =
        |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    variable("PARTITA_STATE_DIR")
        .or_else(|| variable("XDG_STATE_HOME").map(|folder| folder.join("partita")))
        .or_else(|| rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/lib/partita")))
        .or_else(|| variable("HOME").map(|home| home.join(".local/state/partita")))
}
