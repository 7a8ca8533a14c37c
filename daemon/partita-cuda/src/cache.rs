//! Machine code on disk: the driver's compilations, kept by content, driver and GPU.
//!
//! A file's name is a hash of everything that decides the file's content. The file ends with a hash
//! of that content; a damaged or truncated file is made again. Any file may be deleted at any time.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::PathBuf;

const DIGEST_BYTES: usize = 32;

/// A folder of machine code for one GPU and driver.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    /// The GPU and the driver's version.
    target: String,
}

impl Cache {
    pub(crate) fn new(folder: PathBuf, target: String) -> Self {
        Cache { folder, target }
    }

    fn path(&self, ptx: &str) -> PathBuf {
        let mut digest = Sha256::new();
        digest.update((self.target.len() as u64).to_le_bytes());
        digest.update(&self.target);
        digest.update(ptx);
        let name: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(&name[..2]).join(format!("{name}.cubin"))
    }

    /// The machine code of a text, if the folder has it undamaged.
    pub(crate) fn find(&self, ptx: &str) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.path(ptx)).ok()?;
        let image = bytes.len().checked_sub(DIGEST_BYTES)?;
        let is_whole = Sha256::digest(&bytes[..image])[..] == bytes[image..];
        bytes.truncate(image);
        is_whole.then_some(bytes)
    }

    /// Keeps machine code. After an error the text is compiled again next time.
    pub(crate) fn keep(&self, ptx: &str, image: &[u8]) {
        let path = self.path(ptx);
        let result = || -> std::io::Result<()> {
            let folder = path.parent().unwrap_or(&self.folder);
            std::fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(image)?;
            file.write_all(&Sha256::digest(image))?;
            file.persist(&path)?;
            Ok(())
        };
        if let Err(error) = result() {
            tracing::warn!(%error, folder = %self.folder.display(), "machine code is not cached");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_and_other_targets_are_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().into(), "GPU A, driver 1".into());
        assert_eq!(cache.find("text"), None);
        cache.keep("text", b"image");
        assert_eq!(cache.find("text").as_deref(), Some(&b"image"[..]));
        assert_eq!(cache.find("texts"), None);
        assert_eq!(Cache::new(folder.path().into(), "GPU A, driver 2".into()).find("text"), None);
        let path = cache.path("text");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[2] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(cache.find("text"), None);
        std::fs::write(&path, &bytes[..7]).unwrap();
        assert_eq!(cache.find("text"), None);
    }
}
