//! The CDI specification of a claim: what a container runtime changes in the claim's containers.
//!
//! A container finds the daemon's sockets, the shim, an `/etc/ld.so.preload` that names the shim,
//! and the tag of its application. The specification has no `LD_PRELOAD` and no
//! `LD_LIBRARY_PATH`, because images set both, and entrypoints overwrite them.

use crate::claim::job_of;
use crate::files::{self, FileError};
use crate::kept::Kept;
use crate::options::Places;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of CDI that has additional groups.
const CDI_VERSION: &str = "0.7.0";
/// Where containers find things, wherever they lie on the node.
const LIB_DIR: &str = "/usr/lib/partita";
const SOCKET_DIR: &str = "/run/partita";
const PRELOAD: &str = "/etc/ld.so.preload";
const SHIM: &str = "/usr/lib/partita/libpartita_cuda.so";

/// The file that containers get as `/etc/ld.so.preload`.
fn preload_file(places: &Places) -> PathBuf {
    places.plugin_dir().join("ld.so.preload")
}

/// Writes the containers' `/etc/ld.so.preload`: these libraries, then the shim, each once. A tool
/// that wraps the driver's functions stands before the shim.
///
/// # Errors
/// Where it cannot be written.
pub fn write_preload(places: &Places, libraries: &[PathBuf]) -> Result<(), FileError> {
    let mut all: Vec<&Path> = Vec::new();
    for library in libraries {
        if !all.contains(&library.as_path()) && library != Path::new(SHIM) {
            all.push(library);
        }
    }
    all.push(Path::new(SHIM));
    let text: String = all.iter().map(|library| format!("{}\n", library.display())).collect();
    files::replace(&preload_file(places), 0o644, text.as_bytes())
}

/// The CDI name of a claim's device.
#[must_use]
pub fn device_name(places: &Places, uid: &str, number: usize) -> String {
    format!("{}/claim={uid}-{number}", places.driver_name)
}

/// The claim's file.
#[must_use]
pub fn file(places: &Places, uid: &str) -> PathBuf {
    places.cdi_dir.join(format!("{}-claim_{uid}.json", places.driver_name))
}

/// Writes the claim's specification.
///
/// # Errors
/// Where it cannot be written.
pub fn write(places: &Places, kept: &Kept) -> Result<(), FileError> {
    let text = serde_json::to_vec_pretty(&specification(places, kept)).unwrap_or_default();
    let file = file(places, &kept.uid);
    if std::fs::read(&file).is_ok_and(|before| before == text) {
        return Ok(());
    }
    files::replace(&file, 0o644, &text)
}

fn specification(places: &Places, kept: &Kept) -> Value {
    // A container may have any of the devices, and what it needs is the same for each.
    let device = |number: usize| {
        let claim = format!("PARTITA_CLAIM={}/{}", kept.namespace, kept.name);
        let name = format!("{}-{number}", kept.uid);
        json!({"name": name, "containerEdits": {"env": [claim]}})
    };
    let devices: Vec<Value> = (0..kept.parts.len()).map(device).collect();
    let links = format!("{LIB_DIR}/cuda");
    let mut variables = vec![
        format!("PARTITA_SOCKET_DIR={SOCKET_DIR}"),
        format!("PARTITA_APP={}", job_of(&kept.uid)),
        format!("CUDA_VISIBLE_DEVICES={}", kept.gpus.join(",")),
        // The variables of `partita run` for Python's compilers.
        "CUPY_COMPILE_WITH_PTX=1".into(),
        "CUPY_ACCELERATORS=".into(),
    ];
    if places.lib_dir.join("cuda/ptxas").exists() {
        variables.push(format!("TRITON_LIBCUDA_PATH={links}"));
        variables.push(format!("TRITON_PTXAS_PATH={links}/ptxas"));
        variables.push(format!("TRITON_PTXAS_BLACKWELL_PATH={links}/ptxas"));
    }
    let mount = |from: &Path, to: &str| {
        let options = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
        json!({"hostPath": from, "containerPath": to, "type": "none", "options": options})
    };
    let mounts = [
        mount(&places.lib_dir, LIB_DIR),
        mount(&places.socket_dir, SOCKET_DIR),
        mount(&preload_file(places), PRELOAD),
    ];
    let mut edits = json!({"env": variables, "mounts": mounts});
    if let Some(group) = group_of_sockets(places) {
        edits["additionalGids"] = json!([group]);
    }
    let kind = format!("{}/claim", places.driver_name);
    json!({"cdiVersion": CDI_VERSION, "kind": kind, "devices": devices, "containerEdits": edits})
}

/// The group that may connect to the daemon, where not everybody may.
fn group_of_sockets(places: &Places) -> Option<u32> {
    let metadata = std::fs::metadata(places.socket_dir.join("partitad.sock")).ok()?;
    let is_open = metadata.mode() & 0o002 != 0;
    Some(metadata.gid()).filter(|group| !is_open && *group != 0)
}
