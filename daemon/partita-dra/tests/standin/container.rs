//! A container runtime: it applies a CDI specification to a program.
//!
//! The container's root is the machine's own under an overlay, in a mount namespace of its own.
//! What the specification mounts is mounted, and nothing of the machine changes. That takes root.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Makes the container's root, mounts `FROM:TO` pairs, and runs `env -i VARIABLES PROGRAM…` there.
/// Arguments: USER, GROUPS, the number of pairs, the pairs, then what `env` gets.
const SCRIPT: &str = r#"
set -e
user=$1 groups=$2 pairs=$3
shift 3
base=$(mktemp -d)
trap 'umount -R "$base"; rmdir "$base"' EXIT
mount -t tmpfs none "$base"
mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/upper,workdir=$base/work" "$base/root"
for folder in dev proc; do mount --rbind "/$folder" "$base/root/$folder"; done
while [ "$pairs" -gt 0 ]; do
    from=${1%%:*} to=$base/root${1#*:}
    if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "${to%/*}"; : >"$to"; fi
    mount --rbind "$from" "$to"
    shift
    pairs=$((pairs - 1))
done
chroot --userspec="$user:$user" --groups="$groups" "$base/root" /usr/bin/env -i "$@"
"#;

/// Whether this machine can run containers so.
pub fn can_run() -> bool {
    let probe = "b=$(mktemp -d) && mount -t tmpfs none $b && mkdir $b/u $b/w $b/r && \
        mount -t overlay overlay -o lowerdir=/,upperdir=$b/u,workdir=$b/w $b/r; \
        rc=$?; umount -R $b; rmdir $b; exit $rc";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", probe]);
    let can = command.output().is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("SKIPPED: containers of the test need root and overlay file systems");
    }
    can
}

/// A program as this user in a container that has these CDI devices.
pub fn command(cdi: &Path, devices: &[String], user: u32, program: &[&str]) -> Command {
    let edits = edits(cdi, devices);
    let mut groups = vec![user.to_string()];
    let mut variables = Vec::new();
    let mut mounts = BTreeSet::new();
    for edit in &edits {
        let text = |value: &Value| value.as_str().expect("it is text").to_owned();
        variables.extend(edit["env"].as_array().into_iter().flatten().map(text));
        for mount in edit["mounts"].as_array().into_iter().flatten() {
            let from = mount["hostPath"].as_str().expect("a mount has a source");
            let to = mount["containerPath"].as_str().expect("a mount has a target");
            assert!(Path::new(from).exists(), "{from} is there");
            mounts.insert(format!("{from}:{to}"));
        }
        groups
            .extend(edit["additionalGids"].as_array().into_iter().flatten().map(Value::to_string));
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "container"]);
    command.args([user.to_string(), groups.join(","), mounts.len().to_string()]);
    command.args(mounts).arg("PATH=/usr/bin:/bin").args(variables).args(program);
    command
}

/// The edits for these devices: each specification's own, and those of the devices.
fn edits(cdi: &Path, devices: &[String]) -> Vec<Value> {
    let files = std::fs::read_dir(cdi).expect("there are specifications");
    let mut all = Vec::new();
    let mut found = 0;
    for file in files.map(|file| file.expect("the folder can be read").path()) {
        let text = std::fs::read_to_string(&file).expect("a specification can be read");
        let specification: Value = serde_json::from_str(&text).expect("it is JSON");
        let kind = specification["kind"].as_str().expect("it has a kind").to_owned();
        let known = specification["devices"].as_array().expect("it has devices");
        let is_meant = |device: &&Value| {
            let name = device["name"].as_str().expect("a device has a name");
            devices.contains(&format!("{kind}={name}"))
        };
        let meant: Vec<&Value> = known.iter().filter(is_meant).collect();
        if !meant.is_empty() {
            all.push(specification["containerEdits"].clone());
        }
        found += meant.len();
        all.extend(meant.into_iter().map(|device| device["containerEdits"].clone()));
    }
    assert_eq!(found, devices.len(), "each device has a specification");
    all
}
