//! `partita cdi`: what a container runtime must do so that programs in a container share the GPU.
//!
//! [`spec`] writes the sentences of the Container Device Interface; this module finds the files of
//! this installation, checks that they are there, and puts the specification into its place.
//!
//! Invariants: no file is written before everything that it names was found; both files are
//! replaced whole, so that a runtime never reads half of one.

mod spec;

use crate::failure::Failure;
use crate::files::FileError;
use crate::run::locate::{self, PartMissing};
use crate::sockets;
use clap::{Args, Subcommand};
use spec::{Parts, SHIM_INSIDE};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  sudo partita cdi generate
      write /etc/cdi/partita.json; Podman, CRI-O and containerd read it at each start of a container
  podman run --device partita.dev/gpu=shared IMAGE ./app
      an image without anything of Partita: its CUDA program runs on the daemon outside
  podman run --device partita.dev/gpu=shared IMAGE partita run --sms 8..24 ./app
      the command is inside, too
  podman run --device partita.dev/gpu=shared --device partita.dev/gpu=api IMAGE partita status
      with the API's socket: the container's user sees and steers what it may outside
  partita cdi generate --print --socket-dir /tmp/partita
      look at the specification for another daemon, and write nothing

Environment:
  PARTITA_SOCKET_DIR  the folder of the daemon's sockets, without --socket-dir
  PARTITA_LIB_DIR     the folder of libpartita_cuda.so [default: this command's own, then
                      ../lib/partita]

Exit codes: 0 written, 1 a file is not there or cannot be written, 2 wrong usage.";

/// Let containers use the GPU that Partita shares, by the Container Device Interface (CDI).
#[derive(Args, Debug)]
pub struct CdiArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Generate(GenerateArgs),
}

/// Write the CDI specification of this machine's daemon.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct GenerateArgs {
    /// The specification; the list of preloaded libraries goes beside it, as
    /// `partita.ld.so.preload`.
    #[arg(long, value_name = "FILE", default_value = "/etc/cdi/partita.json")]
    output: PathBuf,

    /// Print the specification and write nothing.
    #[arg(long)]
    print: bool,

    /// The folder of the daemon's sockets [default: $PARTITA_SOCKET_DIR, else /run/partita]
    #[arg(long, value_name = "DIR")]
    socket_dir: Option<PathBuf>,

    /// A further library that containers preload, before the shim: what an image's own
    /// /etc/ld.so.preload names, because the list of the specification takes its place. Repeat it
    /// for each library.
    #[arg(long, value_name = "LIBRARY", value_parser = parse_library)]
    also_preload: Vec<String>,
}

/// Why no specification is written.
#[derive(Debug, thiserror::Error)]
enum CdiError {
    #[error(transparent)]
    Part(#[from] PartMissing),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the path of this command is unknown: {0}")]
    Executable(std::io::Error),
    #[error("{} is no socket: start the daemon (systemctl enable --now partitad), or name the \
        folder of its sockets with --socket-dir", .0.display())]
    NoSocket(PathBuf),
    #[error("{} is not UTF-8, which a specification must be: install Partita elsewhere",
        .0.display())]
    NotText(PathBuf),
    #[error("cannot make the folder {}: {source}; write as root, or name another file with \
        --output", .folder.display())]
    Folder { folder: PathBuf, source: std::io::Error },
}

impl CdiArgs {
    /// Does it.
    pub fn execute(self) -> Result<Vec<u8>, Failure> {
        match self.command {
            Command::Generate(args) => Ok(args.execute()?),
        }
    }
}

impl GenerateArgs {
    fn execute(self) -> Result<Vec<u8>, CdiError> {
        let own = std::env::current_exe().map_err(CdiError::Executable)?;
        let folders = locate::part_folders(&own, std::env::var_os(locate::LIB_DIR));
        let sockets = sockets::search(self.socket_dir.as_deref(), |name| std::env::var_os(name));
        // The list is never empty; the system's folder is the first without a named one.
        let sockets = std::path::absolute(sockets.first().cloned().unwrap_or_default());
        let sockets = sockets.map_err(CdiError::Executable)?;
        let socket = text(socket_in(&sockets, sockets::CLIENT_SOCKET)?)?;
        let api_socket = text(socket_in(&sockets, sockets::API_SOCKET)?)?;
        let output = std::path::absolute(&self.output).map_err(CdiError::Executable)?;
        let folder = output.parent().unwrap_or(Path::new("/")).to_owned();
        let list = folder.join("partita.ld.so.preload");
        let parts = Parts {
            shim: text(locate::part(locate::SHIM, &folders)?)?,
            command: text(own)?,
            socket,
            api_socket,
            preload_list: text(list.clone())?,
        };
        let mut document = serde_json::to_vec_pretty(&spec::of(&parts)).unwrap_or_default();
        document.push(b'\n');
        if self.print {
            return Ok(document);
        }
        std::fs::create_dir_all(&folder)
            .map_err(|source| CdiError::Folder { folder: folder.clone(), source })?;
        let mut lines = self.also_preload;
        lines.retain(|line| line != SHIM_INSIDE);
        lines.push(SHIM_INSIDE.to_owned());
        replace(&list, format!("{}\n", lines.join("\n")).as_bytes())?;
        replace(&output, &document)?;
        let text = format!(
            "{} offers {} and {}; try:\n  podman run --rm --device {} IMAGE PROGRAM\n",
            output.display(),
            spec::name(spec::SHARED),
            spec::name(spec::API),
            spec::name(spec::SHARED),
        );
        Ok(text.into_bytes())
    }
}

/// A socket that is there. Whether this user may connect does not matter: others will.
fn socket_in(folder: &Path, name: &str) -> Result<PathBuf, CdiError> {
    let path = folder.join(name);
    let is_socket = std::fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket { Ok(path) } else { Err(CdiError::NoSocket(path)) }
}

fn text(path: PathBuf) -> Result<String, CdiError> {
    path.into_os_string().into_string().map_err(|path| CdiError::NotText(path.into()))
}

/// Puts a file into the place of another. Everybody may read it: containers of every user do.
fn replace(path: &Path, contents: &[u8]) -> Result<(), FileError> {
    let fault = |source| FileError::Write { path: path.to_owned(), source };
    crate::files::refuse_special(path).map_err(fault)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let new = tempfile::NamedTempFile::new_in(folder).map_err(fault)?;
    std::fs::write(new.path(), contents).map_err(fault)?;
    new.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(fault)?;
    new.persist(path).map_err(|error| fault(error.error))?;
    Ok(())
}

fn parse_library(text: &str) -> Result<String, String> {
    // ld.so(8): blanks and colons separate the entries of the list.
    match text.is_empty() || text.contains(|c: char| c.is_whitespace() || c == ':') {
        true => Err("a path without blanks and colons, which separate the list's entries".into()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn args(folder: &Path, more: &[&str]) -> GenerateArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: GenerateArgs,
        }
        let output = folder.join("cdi/partita.json").display().to_string();
        let sockets = folder.display().to_string();
        let line = ["x", "--output", &output, "--socket-dir", &sockets];
        <Line as clap::Parser>::try_parse_from(line.iter().chain(more)).unwrap().args
    }

    #[test]
    fn nothing_is_written_without_a_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let error = args(folder.path(), &[]).execute().unwrap_err().to_string();
        assert!(error.contains("--socket-dir") || error.contains("libpartita_cuda.so"), "{error}");
        let file = folder.path().join(sockets::CLIENT_SOCKET);
        std::fs::write(&file, "").unwrap();
        let error = socket_in(folder.path(), sockets::CLIENT_SOCKET).unwrap_err().to_string();
        assert!(error.contains("is no socket"), "{error}");
        std::fs::remove_file(&file).unwrap();
        let _listener = UnixListener::bind(&file).unwrap();
        assert_eq!(socket_in(folder.path(), sockets::CLIENT_SOCKET).unwrap(), file);
        assert!(!folder.path().join("cdi").exists());
    }

    #[test]
    fn files_are_replaced_and_everybody_may_read_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one");
        for contents in ["first", "second"] {
            replace(&path, contents.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = replace(Path::new("/proc/none"), b"").unwrap_err().to_string();
        assert!(error.contains("/proc/none"), "{error}");
        // What is no file stays: a pipe, and what a link leads to.
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, folder.path().join("link")).unwrap();
        for special in [socket, folder.path().join("link")] {
            let error = std::error::Error::source(&replace(&special, b"").unwrap_err())
                .map(ToString::to_string);
            assert!(error.is_some_and(|error| error.contains("no regular file")));
            assert!(std::fs::metadata(&special).unwrap().file_type().is_socket());
        }
    }

    #[test]
    fn a_library_is_one_entry_of_the_list() {
        assert_eq!(parse_library("/a/b.so"), Ok("/a/b.so".into()));
        for bad in ["", "/a b.so", "/a:b.so", "a\n"] {
            assert!(parse_library(bad).is_err(), "{bad:?}");
        }
    }
}
