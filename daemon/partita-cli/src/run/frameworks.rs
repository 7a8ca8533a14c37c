//! What Python's compilers need to be told, so that they hand over PTX and find the driver where it
//! is.
//!
//! A partition needs a kernel's PTX. CuPy and Triton would hand over machine code, and Triton links
//! a stub with `libcuda.so.1`, which it looks for in the dynamic linker's cache. Both are told
//! otherwise by environment variables of theirs; one that is set already stays as it is.
//! `docs/guide/frameworks.md` has the same for who preloads the library without `partita run`.
//!
//! Triton wants a folder with `libcuda.so.1` and a program `ptxas`. It lies in the user's cache,
//! holds two links, and stays: this process becomes the program and cannot clean up behind it.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The name under which this command is Triton's assembler.
pub const ASSEMBLER: &str = "ptxas";
const DRIVER: &str = "libcuda.so.1";

/// CuPy: "Environment variables" of its reference. Its kernels of CUB are machine code, so
/// reductions take its own.
const CUPY: [(&str, &str); 2] = [("CUPY_COMPILE_WITH_PTX", "1"), ("CUPY_ACCELERATORS", "")];

/// Variables to set, of those that are not set, for programs with this library in the driver's
/// place. Where there is no folder for Triton it is left alone: it says itself what it does not
/// find.
pub fn settings(
    shim: &Path,
    own: &Path,
    cache: Option<&Path>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, OsString)> {
    let mut settings: Vec<_> = CUPY.map(|(name, value)| (name, OsString::from(value))).into();
    if let Some(folder) = cache.and_then(|cache| folder(cache, shim, own).ok()) {
        settings.push(("TRITON_LIBCUDA_PATH", folder.clone().into()));
        for name in ["TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"] {
            settings.push((name, folder.join(ASSEMBLER).into()));
        }
    }
    settings.retain(|(name, _)| !is_set(name));
    settings
}

/// The folder with both names, made first if it is not there. Each installation has its own.
fn folder(cache: &Path, shim: &Path, own: &Path) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (shim, own).hash(&mut hasher);
    let folder = cache.join(format!("triton-{:016x}", hasher.finish()));
    std::fs::create_dir_all(&folder)?;
    for (name, target) in [(DRIVER, shim), (ASSEMBLER, own)] {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|found| found == target) {
            continue;
        }
        // Others may be doing the same: each makes a link of its own and moves it there.
        let new = folder.join(format!("{name}.{}", std::process::id()));
        symlink(target, &new)?;
        std::fs::rename(&new, &link)?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_stays_and_what_is_not_is_set() {
        let cache = tempfile::tempdir().unwrap();
        let (shim, own) = (Path::new("/lib/libpartita_cuda.so"), Path::new("/bin/partita"));
        let names = |cache: Option<&Path>, set: &str| -> Vec<&str> {
            settings(shim, own, cache, |name| name == set)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        assert_eq!(names(None, "CUPY_ACCELERATORS"), ["CUPY_COMPILE_WITH_PTX"]);
        // A second time it is there.
        for _ in 0..2 {
            assert_eq!(
                names(Some(cache.path()), "TRITON_PTXAS_PATH"),
                [
                    "CUPY_COMPILE_WITH_PTX",
                    "CUPY_ACCELERATORS",
                    "TRITON_LIBCUDA_PATH",
                    "TRITON_PTXAS_BLACKWELL_PATH"
                ]
            );
        }
        let set = settings(shim, own, Some(cache.path()), |_| false);
        let folder = PathBuf::from(&set[2].1);
        assert_eq!(std::fs::read_link(folder.join("libcuda.so.1")).unwrap(), shim);
        assert_eq!(std::fs::read_link(&set[3].1).unwrap(), own);
        // Nothing can be made in a file.
        let file = cache.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(names(Some(&file), "").len(), 2);
    }
}
