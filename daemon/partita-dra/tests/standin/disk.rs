//! Small disks of a node: the driver runs in a mount namespace in which folders of its own lie on
//! file systems in memory, which can be filled.
//!
//! Root needs a mount namespace only; everybody else gets a user namespace, too.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Mounts a file system at each argument, says so, and keeps the namespace while it lives.
const SCRIPT: &str = r#"
for folder; do
    mkdir -p "$folder" && mount -t tmpfs -o size=64k,mode=755 small "$folder" || exit 1
done
echo mounted
exec sleep infinity
"#;

/// A namespace with small disks; dropping it ends it.
pub struct Disks {
    keeper: Child,
    is_root: bool,
}

impl Disks {
    /// A disk of 64 KiB at each folder. `None`, and a sentence, where this machine has no
    /// namespaces for its user.
    pub fn new(folders: &[PathBuf]) -> Option<Disks> {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new("unshare");
        if !is_root {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "disks"]);
        command.args(folders).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut keeper = command.spawn().expect("unshare can be started");
        let mut said = String::new();
        let mut output = std::io::BufReader::new(keeper.stdout.take().expect("it is piped"));
        std::io::BufRead::read_line(&mut output, &mut said).expect("it is text");
        let disks = Disks { keeper, is_root };
        if said.trim() == "mounted" {
            return Some(disks);
        }
        eprintln!(
            "SKIPPED: small disks need root or user namespaces, and this machine has neither"
        );
        None
    }

    /// The words before a program that runs in the namespace.
    pub fn enter(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--target={}", self.keeper.id())];
        if !self.is_root {
            words.extend(["--user".into(), "--preserve-credentials".into()]);
        }
        words.push("--mount".into());
        words
    }

    /// A path in the namespace, for this process.
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(path.strip_prefix("/").expect("the path is absolute"))
    }

    /// Fills the disk at this folder to its last byte.
    pub fn fill(&self, folder: &Path) {
        let mut file = std::fs::File::create(self.filler(folder)).expect("a file can be made");
        let error = loop {
            if let Err(error) = file.write_all(&[0; 512]) {
                break error;
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    }

    /// Makes room again.
    pub fn make_room(&self, folder: &Path) {
        std::fs::remove_file(self.filler(folder)).expect("it was made");
    }

    fn filler(&self, folder: &Path) -> PathBuf {
        self.path(folder).join("filler")
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        drop(self.keeper.kill());
        drop(self.keeper.wait());
    }
}
