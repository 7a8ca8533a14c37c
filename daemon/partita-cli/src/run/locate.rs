//! The paths of executables: the program, found as a shell finds it, and Partita's own parts.

use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The library that programs load in place of CUDA's driver.
pub const SHIM: &str = "libpartita_cuda.so";
/// The daemon.
pub const DAEMON: &str = "partitad";
/// The daemon's data plane.
pub const DATA_PLANE: &str = "partita-gpu";
/// This executable, even after its file was replaced.
pub const SELF: &str = "/proc/self/exe";
/// The variable that names the folder of Partita's own parts.
pub const LIB_DIR: &str = "PARTITA_LIB_DIR";

/// Why a program cannot be started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// There is no such file.
    #[error("{}: no such program", .0.display())]
    Missing(PathBuf),
    /// No folder of `PATH` has it.
    #[error("{}: no such program in PATH", .0.display())]
    NotInPath(PathBuf),
    /// The file is not executable.
    #[error("{}: not executable (set it with chmod +x if it is a program)", .0.display())]
    NotExecutable(PathBuf),
    /// The path is a folder.
    #[error("{}: is a directory, not a program", .0.display())]
    Directory(PathBuf),
    /// The kernel refused to execute it.
    #[error("{}: cannot be executed: {reason}", .program.display())]
    Refused {
        /// The program.
        program: PathBuf,
        /// Why.
        reason: String,
    },
}

impl ProgramError {
    /// The exit code that shells give: 127 not found, 126 found but not executable (POSIX Shell,
    /// 2.8.2).
    pub fn exit_code(&self) -> u8 {
        match self {
            ProgramError::Missing(_) | ProgramError::NotInPath(_) => 127,
            ProgramError::NotExecutable(_)
            | ProgramError::Directory(_)
            | ProgramError::Refused { .. } => 126,
        }
    }
}

/// Finds a program: by its path where the name has a slash, else in the folders of `path`.
pub fn program(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        return executable(Path::new(name));
    }
    // As shells do, an error remembers a file that cannot be executed, and the search goes on.
    let mut worst = ProgramError::NotInPath(name.into());
    if name.is_empty() {
        return Err(worst);
    }
    for folder in std::env::split_paths(path.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        match executable(&folder.join(name)) {
            Ok(found) => return Ok(found),
            Err(error @ ProgramError::NotExecutable(_)) => worst = error,
            Err(_) => {}
        }
    }
    Err(worst)
}

fn executable(path: &Path) -> Result<PathBuf, ProgramError> {
    let path = path.to_owned();
    match std::fs::metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(ProgramError::Refused { program: path, reason: "permission denied".into() })
        }
        Err(_) => Err(ProgramError::Missing(path)),
        Ok(metadata) if metadata.is_dir() => Err(ProgramError::Directory(path)),
        Ok(_) if access(&path, Access::EXEC_OK).is_err() => Err(ProgramError::NotExecutable(path)),
        Ok(_) => Ok(path),
    }
}

/// One of Partita's parts is not where it should be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part} is not installed: looked for {looked}; {}", remedy(part))]
pub struct PartMissing {
    part: &'static str,
    looked: String,
}

/// How a part is had. `cargo install` brings programs only, and one at a time.
pub fn remedy(part: &str) -> String {
    let (package, made) = match part {
        SHIM => (
            "partita",
            "make it in a checkout of Partita (`cargo build --release -p partita-shim`) and copy \
             target/release/libpartita_cuda.so there",
        ),
        _ => (
            "partitad",
            "install it from a checkout of Partita (`cargo install --path daemon/partitad`, and \
             the same with daemon/partita-gpu)",
        ),
    };
    format!("install the Debian package `{package}`, or {made}, or name its folder in {LIB_DIR}")
}

/// The folders that may hold Partita's parts: the folder that `PARTITA_LIB_DIR` names, else the
/// executable's folder and its neighbour `../lib/partita`.
pub fn part_folders(executable: &Path, named: Option<OsString>) -> Vec<PathBuf> {
    if let Some(folder) = named.filter(|folder| !folder.is_empty()) {
        return vec![folder.into()];
    }
    let own = executable.parent().unwrap_or(Path::new("/"));
    let prefix = own.parent().unwrap_or(Path::new("/"));
    vec![own.to_owned(), prefix.join("lib/partita")]
}

/// One of Partita's parts in the first folder that has it, as an absolute path.
pub fn part(name: &'static str, folders: &[PathBuf]) -> Result<PathBuf, PartMissing> {
    let candidates: Vec<PathBuf> = folders.iter().map(|folder| folder.join(name)).collect();
    candidates
        .iter()
        .find(|path| path.is_file())
        .and_then(|path| std::path::absolute(path).ok())
        .ok_or_else(|| PartMissing { part: name, looked: crate::sockets::list(&candidates) })
}

/// The value of `LD_PRELOAD` with `shim` last. A tool that wraps the driver's functions stands
/// before the shim and finds its functions next. `None` where the dynamic linker cannot read the
/// path: spaces and colons separate paths, and quotes do not exist (ld.so(8)).
pub fn preload(shim: &Path, existing: Option<&OsStr>) -> Option<OsString> {
    let shim = shim.as_os_str().as_bytes();
    if shim.iter().any(|byte| b" :".contains(byte)) {
        return None;
    }
    let others = existing.map(OsStr::as_bytes).unwrap_or_default();
    let others = others.split(|byte| b" :".contains(byte));
    let mut all: Vec<&[u8]> = others.filter(|other| !other.is_empty() && *other != shim).collect();
    all.push(shim);
    Some(OsString::from_vec(all.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_found_as_shells_find_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for sub in ["a", "b", "a/dir"] {
            std::fs::create_dir(at(sub)).unwrap();
        }
        for (file, mode) in
            [("a/plain", 0o644), ("a/both", 0o644), ("b/both", 0o755), ("b/tool", 0o755)]
        {
            std::fs::write(at(file), "").unwrap();
            std::fs::set_permissions(at(file), std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([at("missing"), at("a"), at("b")]).unwrap();
        let find = |name: &str| program(OsStr::new(name), Some(&path));
        let full = |name: &str| program(at(name).as_os_str(), Some(&path));

        assert_eq!(find("tool"), Ok(at("b/tool")));
        assert_eq!(find("both"), Ok(at("b/both")), "an executable one later in PATH wins");
        assert_eq!(find("plain"), Err(ProgramError::NotExecutable(at("a/plain"))));
        assert_eq!(find("nothing"), Err(ProgramError::NotInPath("nothing".into())));
        assert_eq!(find(""), Err(ProgramError::NotInPath("".into())));
        assert_eq!(
            find("dir"),
            Err(ProgramError::NotInPath("dir".into())),
            "folders are passed over"
        );
        assert_eq!(full("b/tool"), Ok(at("b/tool")));
        assert_eq!(full("a/dir"), Err(ProgramError::Directory(at("a/dir"))));
        assert_eq!(full("a/plain"), Err(ProgramError::NotExecutable(at("a/plain"))));
        assert_eq!(full("a/none"), Err(ProgramError::Missing(at("a/none"))));
        assert_eq!(full("b/tool/x"), Err(ProgramError::Missing(at("b/tool/x"))));
    }

    #[test]
    fn parts_lie_beside_the_executable_or_in_lib() {
        let prefix = tempfile::tempdir().unwrap();
        let at = |name: &str| prefix.path().join(name);
        std::fs::create_dir_all(at("bin")).unwrap();
        std::fs::create_dir_all(at("lib/partita")).unwrap();
        let folders = part_folders(&at("bin/partita"), None);
        assert_eq!(folders, [at("bin"), at("lib/partita")]);

        let missing = part(SHIM, &folders).unwrap_err().to_string();
        for named in [at("bin").join(SHIM), at("lib/partita").join(SHIM), LIB_DIR.into()] {
            assert!(missing.contains(&named.display().to_string()), "{missing}");
        }
        assert!(missing.contains("-p partita-shim"), "{missing}");
        let missing = part(DAEMON, &folders).unwrap_err().to_string();
        assert!(missing.contains("cargo install --path daemon/partitad"), "{missing}");
        std::fs::write(at("lib/partita").join(SHIM), "").unwrap();
        assert_eq!(part(SHIM, &folders), Ok(at("lib/partita").join(SHIM)));
        std::fs::write(at("bin").join(SHIM), "").unwrap();
        assert_eq!(part(SHIM, &folders), Ok(at("bin").join(SHIM)));

        assert_eq!(part_folders(&at("bin/partita"), Some("/x".into())), [PathBuf::from("/x")]);
        assert_eq!(part_folders(&at("bin/partita"), Some("".into())), folders);
    }

    #[test]
    fn the_shim_goes_last_and_the_rest_stays() {
        let check = |shim: &str, existing: Option<&str>, expected: Option<&str>| {
            let value = preload(Path::new(shim), existing.map(OsStr::new));
            assert_eq!(value.as_deref(), expected.map(OsStr::new), "{shim} {existing:?}");
        };
        check("/l/s.so", None, Some("/l/s.so"));
        check("/l/s.so", Some(""), Some("/l/s.so"));
        check("/l/s.so", Some("a.so b.so:c.so"), Some("a.so:b.so:c.so:/l/s.so"));
        check("/l/s.so", Some("a.so:/l/s.so"), Some("a.so:/l/s.so"));
        check("/my lib/s.so", None, None);
        check("/a:b/s.so", None, None);
    }
}
