//! The folders of daemons' sockets, and whether a daemon answers.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The variable that names the folder of the sockets.
pub const SOCKET_DIR: &str = "PARTITA_SOCKET_DIR";
/// The socket that programs connect to.
pub const CLIENT_SOCKET: &str = "partitad.sock";
/// The socket of the HTTP API.
pub const API_SOCKET: &str = "api.sock";

const SYSTEM: &str = "/run/partita";

/// The folders in which a daemon may listen, in order of preference: the named folder, else the
/// environment's, else the system's and then the user's.
pub fn search(
    named: Option<&Path>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Vec<PathBuf> {
    let variable = |name| environment(name).filter(|value| !value.is_empty());
    if let Some(folder) = named {
        return vec![folder.to_owned()];
    }
    if let Some(folder) = variable(SOCKET_DIR) {
        return vec![folder.into()];
    }
    let user = variable("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("partita"));
    [SYSTEM.into()].into_iter().chain(user).collect()
}

/// The result of an attempt to connect to a daemon.
#[derive(Debug)]
pub enum Probe {
    /// A daemon listens.
    Answers,
    /// No daemon listens.
    Absent,
    /// A daemon may listen, but this user may not connect.
    Denied(io::Error),
}

/// Whether a daemon accepts programs in `folder`.
pub fn probe(folder: &Path) -> Probe {
    let attempt = || -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(folder.join(CLIENT_SOCKET))?)
    };
    match attempt() {
        // A full queue of waiting clients means that a daemon listens.
        Ok(()) | Err(Errno::AGAIN) => Probe::Answers,
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::NAMETOOLONG) => {
            Probe::Absent
        }
        Err(error) => Probe::Denied(error.into()),
    }
}

/// Paths for a message: `a, b`.
pub fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_wins() {
        let check = |named: Option<&str>, variables: &[(&str, &str)], expected: &[&str]| {
            let environment = |name: &str| {
                variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
            };
            let found = search(named.map(Path::new), environment);
            assert_eq!(found, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        check(None, &[], &["/run/partita"]);
        check(
            None,
            &[("XDG_RUNTIME_DIR", "/run/user/7")],
            &["/run/partita", "/run/user/7/partita"],
        );
        check(None, &[("XDG_RUNTIME_DIR", "")], &["/run/partita"]);
        check(None, &[("XDG_RUNTIME_DIR", "/u"), (SOCKET_DIR, "/here")], &["/here"]);
        check(None, &[(SOCKET_DIR, "")], &["/run/partita"]);
        check(Some("/named"), &[(SOCKET_DIR, "/here")], &["/named"]);
    }

    #[test]
    fn only_a_listening_socket_answers() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(probe(folder.path()), Probe::Absent));
        let path = folder.path().join(CLIENT_SOCKET);
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(matches!(probe(folder.path()), Probe::Absent), "bound but deaf");
        rustix::net::listen(&socket, 4).unwrap();
        assert!(matches!(probe(folder.path()), Probe::Answers));
        drop(socket);
        assert!(matches!(probe(folder.path()), Probe::Absent), "stale");
    }

    #[test]
    fn a_socket_of_the_wrong_kind_is_no_daemon_to_fall_back_from() {
        let folder = tempfile::tempdir().unwrap();
        let _listener =
            std::os::unix::net::UnixListener::bind(folder.path().join(CLIENT_SOCKET)).unwrap();
        assert!(matches!(probe(folder.path()), Probe::Denied(_)));
    }
}
