//! What happens to the daemon itself.

use super::{DEVICE, Daemon, survive_on};
use std::path::Path;

#[test]
fn corrupt_state_files() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let serve = || {
        let variables: [(&str, &Path); 1] = [("PARTITA_STATE_DIR", &state)];
        let daemon = Daemon::serving(DEVICE, &variables, &["--policy", "cd-search"]);
        survive_on(&daemon, |_| {});
    };
    serve();
    // Every file that it keeps is garbage now, and some are folders.
    let mut spoiled = 0;
    let mut folders = vec![state.clone()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(at).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                std::fs::write(&path, [0xff; 100]).unwrap();
                spoiled += 1;
            }
        }
    }
    for name in ["kernels", "device.json", "profiles.json"] {
        let _ = std::fs::create_dir_all(state.join(name).join("garbage"));
    }
    assert!(spoiled > 0, "it keeps nothing");
    serve();
}
