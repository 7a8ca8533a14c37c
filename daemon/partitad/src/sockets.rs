//! The folder of the sockets: claiming it, binding in it, leaving it clean.
//!
//! Invariants: at most one live `partitad` serves a folder. A lock on `partitad.lock` decides, not
//! the existence of the sockets: a killed daemon leaves sockets behind, but the kernel drops its
//! lock. Sockets are replaced only under the lock.

use partita_model::GpuNumber;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The socket for clients.
pub const CLIENT_SOCKET: &str = partita_wire::SOCKET_NAME;
/// The socket of the HTTP API.
pub const API_SOCKET: &str = "api.sock";
const LOCK: &str = "partitad.lock";
/// The folder of the sockets of `partita-gpu`. Only the daemon's user enters it.
const GPU_FOLDER: &str = "gpu";

/// Clients that the kernel lets wait until they are accepted.
const BACKLOG: i32 = 1024;

/// Why a folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The folder or its lock cannot be made.
    #[error(
        "cannot use {path} as the folder of the sockets: {source}; name another with --socket-dir"
    )]
    Folder {
        /// What was tried.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// Another daemon is alive there.
    #[error("another partitad serves in {path}; end it, or name another folder with --socket-dir")]
    Taken {
        /// The folder.
        path: PathBuf,
    },
    /// A socket cannot be bound.
    #[error("cannot listen on {path}: {source}")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
}

/// A folder that this process alone serves. Dropping it removes the sockets that it made.
#[derive(Debug)]
pub struct SocketFolder {
    path: PathBuf,
    mode: u32,
    /// systemd's sockets, where it has made them.
    activated: Activated,
    _lock: File,
}

/// The listening sockets that systemd has made and handed over. They differ by their kind. Clients
/// that connect while no `partitad` runs wait in them.
#[derive(Default, Debug)]
pub struct Activated {
    clients: Option<OwnedFd>,
    http: Option<OwnedFd>,
}

impl Activated {
    /// Takes the sockets that systemd has handed over to this process; none without systemd. It is
    /// called once: the sockets belong to what is returned.
    ///
    /// # Errors
    /// The system's.
    pub fn take() -> io::Result<Activated> {
        // It marks the descriptors, so that no child inherits them.
        drop(sd_notify::listen_fds()?);
        let mut found = Activated::default();
        for (_, socket) in sd_listen_fds::get().map_err(io::Error::other)? {
            let socket = socket.into_std();
            if !socket_acceptconn(&socket).unwrap_or(false) {
                tracing::warn!("systemd hands over something that does not listen");
                continue;
            }
            rustix::io::ioctl_fionbio(&socket, true)?;
            match socket_type(&socket)? {
                SocketType::SEQPACKET => found.clients = Some(socket),
                SocketType::STREAM => found.http = Some(socket),
                other => tracing::warn!(?other, "systemd hands over a socket that nobody serves"),
            }
        }
        Ok(found)
    }
}

impl SocketFolder {
    /// Makes the folder where it is missing, and claims it.
    ///
    /// # Errors
    /// [`SocketError::Folder`], [`SocketError::Taken`].
    pub fn claim(
        path: &Path,
        mode: u32,
        activated: Activated,
    ) -> Result<SocketFolder, SocketError> {
        let folder_error = |source| SocketError::Folder { path: path.to_owned(), source };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(folder_error)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK))
            .map_err(folder_error)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(SocketFolder { path: path.to_owned(), mode, activated, _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err(SocketError::Taken { path: path.to_owned() }),
            Err(error) => Err(folder_error(error.into())),
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listens for clients on [`CLIENT_SOCKET`], or on systemd's socket. The listener's type says
    /// nothing of the kind of its sockets: they are `SEQPACKET` sockets and keep packets apart.
    ///
    /// # Errors
    /// [`SocketError::Bind`].
    pub fn listen_for_clients(&self) -> Result<UnixListener, SocketError> {
        let activated = self.activated.clients.as_ref();
        Ok(self.listen(activated, CLIENT_SOCKET, SocketType::SEQPACKET)?.into())
    }

    /// Listens for HTTP on [`API_SOCKET`], or on systemd's socket.
    ///
    /// # Errors
    /// [`SocketError::Bind`].
    pub fn listen_for_http(&self) -> Result<UnixListener, SocketError> {
        Ok(self.listen(self.activated.http.as_ref(), API_SOCKET, SocketType::STREAM)?.into())
    }

    /// The socket of the `partita-gpu` of a GPU. Its folder is made where it is missing.
    ///
    /// # Errors
    /// [`SocketError::Folder`].
    pub fn gpu_socket(&self, number: GpuNumber) -> Result<PathBuf, SocketError> {
        let folder = self.path.join(GPU_FOLDER);
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|source| SocketError::Folder { path: folder.clone(), source })?;
        Ok(folder.join(format!("{}.sock", number.0)))
    }

    fn listen(
        &self,
        activated: Option<&OwnedFd>,
        name: &str,
        kind: SocketType,
    ) -> Result<OwnedFd, SocketError> {
        let path = self.path.join(name);
        match activated {
            Some(socket) => socket.try_clone().map_err(|source| SocketError::Bind { path, source }),
            None => listen_on(&path, kind, self.mode),
        }
    }
}

/// Listens where a `partita-gpu` is called, in the place of one that is gone.
///
/// # Errors
/// [`SocketError::Bind`].
pub fn listen_for_calls(path: &Path) -> Result<OwnedFd, SocketError> {
    listen_on(path, SocketType::SEQPACKET, 0o600)
}

fn listen_on(path: &Path, kind: SocketType, mode: u32) -> Result<OwnedFd, SocketError> {
    let bind_error = |source: io::Error| SocketError::Bind { path: path.to_owned(), source };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(bind_error(error)),
        _ => {}
    }
    let open = || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // Nobody may connect before the permissions are what they should be: a socket that does
        // not listen yet refuses everyone.
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    open().map_err(bind_error)
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let Activated { clients, http } = &self.activated;
        for (name, systemds) in [(CLIENT_SOCKET, clients), (API_SOCKET, http)] {
            if systemds.is_some() {
                continue;
            }
            // Only tidiness: the next daemon replaces what it finds.
            drop(std::fs::remove_file(self.path.join(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn claim(path: &Path, mode: u32) -> Result<SocketFolder, SocketError> {
        SocketFolder::claim(path, mode, Activated::default())
    }

    #[test]
    fn systemds_sockets_are_served_and_left_there() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join(API_SOCKET);
        let http = UnixListener::bind(&path).unwrap();
        let activated = Activated { clients: None, http: Some(http.into()) };
        let folder = SocketFolder::claim(temporary.path(), 0o660, activated).unwrap();
        let listener = folder.listen_for_http().unwrap();
        UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        drop((listener, folder));
        assert!(path.exists());
    }

    #[test]
    fn a_folder_is_served_once_and_left_clean() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("a/b");
        let folder = claim(&path, 0o600).unwrap();
        let error = claim(&path, 0o600).unwrap_err();
        assert!(matches!(error, SocketError::Taken { .. }), "{error}");
        let listener = folder.listen_for_http().unwrap();
        folder.listen_for_clients().unwrap();
        UnixStream::connect(path.join(API_SOCKET)).unwrap();
        let mode = std::fs::metadata(path.join(API_SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop((listener, folder));
        assert!(!path.join(API_SOCKET).exists());
        assert!(!path.join(CLIENT_SOCKET).exists());
        claim(&path, 0o600).unwrap();
    }

    #[test]
    fn stale_sockets_are_replaced() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join(API_SOCKET);
        drop(UnixListener::bind(&path).unwrap());
        let folder = claim(temporary.path(), 0o660).unwrap();
        let _listener = folder.listen_for_http().unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn errors_name_the_path_and_the_remedy() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = claim(&file, 0o660).unwrap_err().to_string();
        assert!(error.contains("file") && error.contains("--socket-dir"), "{error}");
        let long = temporary.path().join("x".repeat(100));
        let error = claim(&long, 0o660).unwrap().listen_for_clients().unwrap_err();
        assert!(error.to_string().contains("cannot listen"), "{error}");
    }
}
