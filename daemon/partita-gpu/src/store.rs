//! Keeps measurements of the device and of kernels on disk, from one start to the next.
//!
//! ```text
//! STATE/devices/DEVICE/calibration     what the device can do
//! STATE/devices/DEVICE/interference    how much classes of programs slow each other down
//! STATE/devices/DEVICE/slowdowns       what the policy has learnt of that
//! STATE/devices/DEVICE/kernels/HASH    what a kernel does, by the hash of its code
//! ```
//!
//! DEVICE is a hash of [`partita_device::Device::identity`]: another specification, GPU or driver
//! has a folder of its own. A file is a line with a version and the SHA-256 of the rest, then JSON.
//!
//! # Invariants
//!
//! - Files appear whole or not at all: they are written beside and renamed.
//! - A damaged file, one of another version, or one with other contents counts as absent, and its
//!   contents are measured again.
//! - No failure here fails a program. A file that cannot be written is logged once, and its
//!   contents are measured at each start.

use partita_model::{KernelProfile, LaunchShape};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Version of the format. Kernels in files of other versions are measured again.
const VERSION: &str = "partita 1";
/// The largest file to read, in bytes. A kernel's file has about 500 bytes a shape.
const MOST_BYTES: u64 = 1 << 20;
/// The most kernels kept for one device; further kernels are measured at every start.
const MOST_KERNELS: usize = 1 << 14;
/// The most shapes kept for one kernel.
const MOST_SHAPES: usize = 256;

/// The folder of one device.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    kernels: AtomicUsize,
    complained: AtomicBool,
}

/// A kernel's file.
#[derive(Serialize, Deserialize)]
struct KernelFile {
    kernel: String,
    shapes: Vec<(LaunchShape, KernelProfile)>,
}

impl Store {
    /// The folder of a device of this identity below `state`.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn open(state: &Path, identity: &str) -> io::Result<Store> {
        let folder = state.join("devices").join(&hex(&Sha256::digest(identity))[..16]);
        let kernels = folder.join("kernels");
        std::fs::create_dir_all(&kernels)?;
        let count = std::fs::read_dir(&kernels)?.count();
        Ok(Store { folder, kernels: AtomicUsize::new(count), complained: AtomicBool::new(false) })
    }

    /// The contents of a file of the folder.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let path = self.folder.join(name);
        let file = std::fs::File::open(&path).ok()?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MOST_BYTES + 1), &mut bytes).ok()?;
        let contents = checked(&bytes).and_then(|body| serde_json::from_slice(body).ok());
        if contents.is_none() {
            tracing::warn!(path = %path.display(), "is damaged or of another version: it is \
                measured again");
        }
        contents
    }

    /// Writes a file of the folder.
    pub fn write(&self, name: &str, contents: &impl Serialize) {
        if let Err(error) = self.try_write(name, contents)
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, path = %self.folder.join(name).display(), "nothing measured \
                can be kept");
        }
    }

    fn try_write(&self, name: &str, contents: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(contents)?;
        let path = self.folder.join(name);
        let folder = path.parent().unwrap_or(&self.folder);
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(file, "{VERSION} {}", hex(&Sha256::digest(&body)))?;
        file.write_all(&body)?;
        file.persist(&path)?;
        Ok(())
    }

    /// The kept profiles of a kernel.
    #[must_use]
    pub fn kernel(&self, hash: &str) -> Vec<(LaunchShape, KernelProfile)> {
        let Some(name) = file_of(hash) else { return Vec::new() };
        if !self.folder.join(&name).exists() {
            return Vec::new();
        }
        let file = self.read::<KernelFile>(&name).filter(|file| file.kernel == hash);
        file.map(|file| file.shapes).unwrap_or_default()
    }

    /// Keeps the profiles of a kernel.
    pub fn keep_kernel(&self, hash: &str, shapes: &[(LaunchShape, KernelProfile)]) {
        let Some(name) = file_of(hash) else { return };
        if !self.folder.join(&name).exists()
            && self.kernels.fetch_add(1, Ordering::Relaxed) >= MOST_KERNELS
        {
            return;
        }
        let shapes = shapes.iter().take(MOST_SHAPES).copied().collect();
        self.write(&name, &KernelFile { kernel: hash.to_owned(), shapes });
    }
}

/// The file name for a hash; `None` where the text is not a hash.
fn file_of(hash: &str) -> Option<String> {
    let is_hash = hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| format!("kernels/{hash}"))
}

/// The bytes after the first line; `None` where the first line is wrong.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, body) = (std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]);
    let sum = line.strip_prefix(VERSION)?.trim_start();
    (sum == hex(&Sha256::digest(body)) && bytes.len() as u64 <= MOST_BYTES).then_some(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_model::{Counts, Dim3};

    const HASH: &str = "0123456789abcdef0123456789abcdef";

    fn shapes() -> Vec<(LaunchShape, KernelProfile)> {
        let counts = Counts { ctas: 7, ..Counts::default() };
        let profile = KernelProfile { launches: 2, counts, ..KernelProfile::default() };
        vec![(LaunchShape::new(100, Dim3::linear(64), 0), profile)]
    }

    #[test]
    fn kernels_are_kept_by_device() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path(), "a GPU").unwrap();
        assert_eq!(store.kernel(HASH), []);
        store.keep_kernel(HASH, &shapes());
        assert_eq!(store.kernel(HASH), shapes());
        assert_eq!(Store::open(state.path(), "a GPU").unwrap().kernel(HASH), shapes());
        assert_eq!(Store::open(state.path(), "another").unwrap().kernel(HASH), []);
        let files = std::fs::read_dir(store.folder.join("kernels")).unwrap().count();
        assert_eq!(files, 1, "nothing is left beside it");
    }

    #[test]
    fn damaged_files_count_as_absent() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path(), "a GPU").unwrap();
        store.keep_kernel(HASH, &shapes());
        let path = store.folder.join("kernels").join(HASH);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(store.kernel(HASH), [], "byte {at}");
        }
        for length in 0..good.len() {
            std::fs::write(&path, &good[..length]).unwrap();
            assert_eq!(store.kernel(HASH), [], "cut after {length}");
        }
        // The file belongs to another kernel.
        let other = HASH.replace('0', "f");
        std::fs::write(store.folder.join("kernels").join(&other), &good).unwrap();
        assert_eq!(store.kernel(&other), []);
        store.keep_kernel(HASH, &shapes());
        assert_eq!(store.kernel(HASH), shapes());
    }

    #[test]
    fn names_stay_in_the_folder() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path(), "a GPU").unwrap();
        for name in ["../calibration", "", "0123456789abcdef0123456789abcde/", "x"] {
            store.keep_kernel(name, &shapes());
            assert_eq!(store.kernel(name), []);
        }
        assert_eq!(std::fs::read_dir(store.folder.join("kernels")).unwrap().count(), 0);
    }
}
