//! The checkpoint: what the driver keeps of each claim, one file a claim.
//!
//! Invariants: a claim's file is there before anything else is made for the claim, and goes last.
//! A file that cannot be read is put aside, never deleted, and costs no other claim anything.

use crate::claim::{Part, check_uid};
use crate::files::{self, FileError};
use partita_model::ReservationRequest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The version of the files' format.
const VERSION: u32 = 1;
/// The largest file, in bytes.
const FILE_BYTES: u64 = 1 << 20;

/// What is kept of a claim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The format's version.
    pub version: u32,
    /// The claim's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether all has been made; else the claim is read again.
    pub is_prepared: bool,
    /// Whether the kubelet has ended it while the daemon could not be told.
    pub is_ended: bool,
    /// The reservations by id.
    pub reservations: BTreeMap<String, ReservationRequest>,
    /// The devices.
    pub parts: Vec<Part>,
    /// The UUIDs of the GPUs.
    pub gpus: Vec<String>,
}

impl Kept {
    /// A claim for which nothing has been made yet.
    #[must_use]
    pub fn new(namespace: &str, name: &str, uid: &str) -> Kept {
        Kept {
            version: VERSION,
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
            is_prepared: false,
            is_ended: false,
            reservations: BTreeMap::new(),
            parts: Vec::new(),
            gpus: Vec::new(),
        }
    }
}

/// The folder of the checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    claims: BTreeMap<String, Kept>,
}

impl Checkpoint {
    /// Reads the folder. What cannot be read is put aside with a warning.
    #[must_use]
    pub fn open(folder: PathBuf) -> Checkpoint {
        let mut claims = BTreeMap::new();
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        for file in entries.map(|entry| entry.path()) {
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&file) {
                Ok(kept) => drop(claims.insert(kept.uid.clone(), kept)),
                Err(error) => put_aside(&file, &error),
            }
        }
        Checkpoint { folder, claims }
    }

    /// Every claim, in order of UID.
    pub fn all(&self) -> impl Iterator<Item = &Kept> {
        self.claims.values()
    }

    /// What is kept of this claim.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<&Kept> {
        self.claims.get(uid)
    }

    /// Keeps this of a claim.
    ///
    /// # Errors
    /// Where the file cannot be written; what was kept before stays then.
    pub fn keep(&mut self, kept: Kept) -> Result<(), FileError> {
        let text = serde_json::to_vec_pretty(&kept).unwrap_or_default();
        files::replace(&self.file(&kept.uid), 0o600, &text)?;
        self.claims.insert(kept.uid.clone(), kept);
        Ok(())
    }

    /// Forgets a claim.
    ///
    /// # Errors
    /// Where the file cannot be removed; the claim stays then.
    pub fn forget(&mut self, uid: &str) -> Result<(), FileError> {
        files::remove(&self.file(uid))?;
        self.claims.remove(uid);
        Ok(())
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.folder.join(format!("{uid}.json"))
    }
}

fn read(file: &Path) -> io::Result<Kept> {
    if std::fs::metadata(file)?.len() > FILE_BYTES {
        return Err(io::Error::other(format!("it is over {FILE_BYTES} bytes long")));
    }
    let kept: Kept = serde_json::from_slice(&std::fs::read(file)?)?;
    if kept.version != VERSION {
        return Err(io::Error::other(format!("its version is {}, not {VERSION}", kept.version)));
    }
    check_uid(&kept.uid).map_err(io::Error::other)?;
    if file.file_stem().is_none_or(|stem| stem != kept.uid.as_str()) {
        return Err(io::Error::other("it is another claim's"));
    }
    Ok(kept)
}

fn put_aside(file: &Path, error: &io::Error) {
    let aside = file.with_extension("json.bad");
    tracing::warn!(
        "{}: {error}: it is put aside as {}; its claim is read from the API server when the \
         kubelet asks for it",
        file.display(),
        aside.display()
    );
    drop(std::fs::rename(file, aside));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_survives_and_what_is_broken_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("claims");
        let mut checkpoint = Checkpoint::open(path.clone());
        for uid in ["a", "b", "c", "d"] {
            checkpoint.keep(Kept::new("space", "name", uid)).unwrap();
        }
        checkpoint.forget("d").unwrap();
        checkpoint.forget("d").unwrap();
        std::fs::write(path.join("b.json"), "{\"version\": 1").unwrap();
        std::fs::copy(path.join("a.json"), path.join("c.json")).unwrap();
        let newer = std::fs::read_to_string(path.join("a.json")).unwrap();
        let newer = newer.replace("\"version\": 1", "\"version\": 2");
        std::fs::write(path.join("e.json"), newer).unwrap();
        let again = Checkpoint::open(path.clone());
        let uids: Vec<&str> = again.all().map(|kept| kept.uid.as_str()).collect();
        assert_eq!(uids, ["a"]);
        assert_eq!(again.get("a"), Some(&Kept::new("space", "name", "a")));
        for uid in ["b", "c", "e"] {
            assert!(path.join(format!("{uid}.json.bad")).exists(), "{uid}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut checkpoint = Checkpoint::open(folder.path().join("claims"));
        // A file where the folder should be.
        std::fs::write(folder.path().join("claims"), "").unwrap();
        let error = checkpoint.keep(Kept::new("s", "n", "a")).unwrap_err().to_string();
        assert!(error.contains("the kubelet asks again"), "{error}");
        assert_eq!(checkpoint.get("a"), None);
    }
}
