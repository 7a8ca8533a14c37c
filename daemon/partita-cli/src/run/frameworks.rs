//! Environment variables for Python's compilers, so that they hand over PTX and find the driver.
//!
//! A partition needs a kernel's PTX. By default CuPy and Triton hand over machine code, and Triton
//! links a stub with `libcuda.so.1`, which it looks for in the dynamic linker's cache. Their
//! environment variables change that; a variable that the user has set stays.
//! `docs/guide/frameworks.md` has the variables for users who preload the library without `partita
//! run`.
//!
//! Triton needs a folder with `libcuda.so.1` and a program `ptxas`. The folder lies in the user's
//! cache and holds two links. It stays, because this process becomes the program and cannot remove
//! it.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The name under which this command is Triton's assembler.
pub const ASSEMBLER: &str = "ptxas";
const DRIVER: &str = "libcuda.so.1";

/// CuPy's variables (its reference, "Environment variables"). CuPy's CUB kernels are machine code,
/// so reductions use CuPy's own kernels.
const CUPY: [(&str, &str); 2] = [("CUPY_COMPILE_WITH_PTX", "1"), ("CUPY_ACCELERATORS", "")];

/// The variables to set, without those that are set, for programs that load the shim. Without a
/// folder for Triton its variables stay unset: Triton names what it does not find.
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

/// The folder with both links, created on demand. Each installation has its own folder.
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
        // Several processes may do this at a time: each creates a link and renames it.
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
