//! The way to the daemon: its socket and the handshake.

use crate::terms;
use partita_model::GpuNumber;
use partita_wire::message::{self, MessageError};
use partita_wire::{
    Answer, AttachError, ClientEnd, FEATURES, GpuOffer, GpuWish, HandshakeError, Hello,
    MAX_MESSAGE, PROTOCOL, Refusal, SOCKET_NAME, Welcome,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit of the daemon's answer. The daemon may have to start the data plane first, and an
/// overloaded host takes its time for both.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a client whose handshake broke off looks for the next daemon. A restart takes less than
/// a second.
const NEXT_DAEMON: Duration = Duration::from_secs(10);
/// The pause before the first look; it doubles with each, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(640);
const SYSTEM_DIR: &str = "/run/partita";

/// The reason why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The socket is missing, or no daemon serves it.
    #[error(
        "no Partita daemon answers at {path} ({source}): start one with `systemctl start \
         partitad`, \
         or run the program with `partita run`, or set PARTITA_SOCKET_DIR to the folder of the \
         daemon's socket"
    )]
    NoDaemon {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        source: Errno,
    },
    /// What the program asks for itself means nothing.
    #[error("{variable}: {reason}")]
    Terms {
        /// The environment variable.
        variable: &'static str,
        /// What is wrong with it, and how to write it.
        reason: String,
    },
    /// The socket is not for this user.
    #[error(
        "may not connect to {path}: ask for membership in the group `partita` (and log in again)"
    )]
    Forbidden {
        /// The socket.
        path: PathBuf,
    },
    /// The path cannot name a socket.
    #[error(
        "{path} cannot be the path of a socket ({source}): set PARTITA_SOCKET_DIR to a shorter one"
    )]
    Path {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: Errno,
    },
    /// The daemon does not answer.
    #[error(
        "the daemon at {path} did not answer within {seconds} s: look at `journalctl -u partitad`"
    )]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The time limit.
        seconds: u64,
    },
    /// The daemon ended in the middle of the handshake, and no other followed.
    #[error(
        "the daemon at {path} closed the connection in the middle of the handshake, and none \
         answered there for {seconds} s: look at `journalctl -u partitad`, and run the program \
         again once `partita status` answers"
    )]
    Lost {
        /// The socket.
        path: PathBuf,
        /// How long the client waited.
        seconds: u64,
    },
    /// The connection broke off.
    #[error("the conversation with the daemon at {path} failed: {source}")]
    Message {
        /// The socket.
        path: PathBuf,
        /// The cause.
        source: MessageError,
    },
    /// The daemon's answer does not parse.
    #[error("{path}: {source}")]
    Handshake {
        /// The socket.
        path: PathBuf,
        /// The fault.
        source: HandshakeError,
    },
    /// The daemon refuses.
    #[error("the daemon at {path} refused: {}", refusal.text)]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The daemon's reason.
        refusal: Refusal,
    },
    /// The descriptor from the daemon is not a session's memory.
    #[error("{path}: {source}")]
    Attach {
        /// The socket.
        path: PathBuf,
        /// The fault.
        source: AttachError,
    },
    /// The daemon is too old to choose a GPU, or offers GPUs without being asked.
    #[error(
        "the daemon at {path} gave no session on {wanted}: restart partitad, which is of another \
         version"
    )]
    OtherGpu {
        /// The socket.
        path: PathBuf,
        /// The wanted GPU.
        wanted: String,
    },
    /// The system refuses to make a socket.
    #[error("cannot make a socket: {0}")]
    System(Errno),
}

/// The folder of the daemon's socket: `PARTITA_SOCKET_DIR` if it is set; else the first of
/// `/run/partita` and `$XDG_RUNTIME_DIR/partita` that has a socket in it; else `/run/partita`.
#[must_use]
pub fn find_socket_dir() -> PathBuf {
    choose_dir(
        std::env::var_os("PARTITA_SOCKET_DIR").map(PathBuf::from),
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        |dir| dir.join(SOCKET_NAME).exists(),
    )
}

fn choose_dir(
    asked: Option<PathBuf>,
    runtime: Option<PathBuf>,
    has_socket: impl Fn(&Path) -> bool,
) -> PathBuf {
    if let Some(dir) = asked.filter(|dir| !dir.as_os_str().is_empty()) {
        return dir;
    }
    let system = PathBuf::from(SYSTEM_DIR);
    let own = runtime.filter(|dir| dir.is_absolute()).map(|dir| dir.join("partita"));
    let found =
        [Some(&system), own.as_ref()].into_iter().flatten().find(|dir| has_socket(dir)).cloned();
    found.unwrap_or(system)
}

/// The hello of the calling process.
pub(crate) fn own_hello(gpu: GpuWish) -> Result<Hello, ConnectError> {
    let argument = std::env::args_os().next().map(PathBuf::from);
    let name = argument
        .as_deref()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    let variable = |name: &str| std::env::var(name).ok();
    let number = match gpu {
        GpuWish::Number(number) => number,
        GpuWish::First | GpuWish::Only => GpuNumber(0),
    };
    Ok(Hello {
        protocol: PROTOCOL,
        features: FEATURES,
        pid: std::process::id(),
        program: name.unwrap_or_default(),
        application: std::env::var("PARTITA_APP").unwrap_or_default(),
        gpu,
        terms: terms::of_environment(number, variable)?,
    })
}

/// The answer of a daemon.
pub(crate) enum Greeted {
    /// A session.
    Session(Box<Welcome>, Box<ClientEnd>),
    /// The GPUs to choose from.
    Offer(Vec<GpuOffer>),
}

/// Shakes hands with the daemon in `dir`, and with the next one where the daemon ends before it has
/// answered: no session was made, so nothing is done twice.
pub(crate) fn connect(dir: &Path, hello: &Hello) -> Result<Greeted, ConnectError> {
    let path = dir.join(SOCKET_NAME);
    match shake_hands(&path, hello) {
        Err(ConnectError::Message { source: MessageError::Closed, .. }) => {}
        done => return done,
    }
    let lost = Instant::now();
    let mut pause = FIRST_PAUSE;
    while lost.elapsed() < NEXT_DAEMON {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        match shake_hands(&path, hello) {
            // Without systemd there is no socket meanwhile. That of a process that is ending may
            // still take a connection.
            Err(
                ConnectError::NoDaemon { .. }
                | ConnectError::Message { source: MessageError::Closed, .. },
            ) => {}
            done => return done,
        }
    }
    Err(ConnectError::Lost { path, seconds: NEXT_DAEMON.as_secs() })
}

fn shake_hands(path: &Path, hello: &Hello) -> Result<Greeted, ConnectError> {
    let path = path.to_owned();
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(ConnectError::System)?;
    for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(PATIENCE))
            .map_err(ConnectError::System)?;
    }
    let address = SocketAddrUnix::new(&path)
        .map_err(|source| ConnectError::Path { path: path.clone(), source })?;
    rustix::net::connect(&socket, &address).map_err(|source| match source {
        Errno::ACCESS | Errno::PERM => ConnectError::Forbidden { path: path.clone() },
        Errno::AGAIN => silent(&path),
        source => ConnectError::NoDaemon { path: path.clone(), source },
    })?;
    let broken = |source| match source {
        MessageError::System { source: Errno::AGAIN, .. } => silent(&path),
        source => ConnectError::Message { path: path.clone(), source },
    };
    // A daemon that refuses may have closed the connection already. Its answer can still be read.
    match message::send(&socket, &hello.encode(), &[]) {
        Ok(()) | Err(MessageError::Closed) => {}
        Err(error) => return Err(broken(error)),
    }
    let mut answer = message::receive(&socket, MAX_MESSAGE).map_err(broken)?;
    let handshake = |source| ConnectError::Handshake { path: path.clone(), source };
    let welcome = match Answer::decode(&answer.bytes).map_err(handshake)? {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused(refusal) => return Err(ConnectError::Refused { path, refusal }),
        Answer::Offer(offers) => return Ok(Greeted::Offer(offers)),
    };
    let [memfd, bell] = answer.take_fds().map_err(broken)?;
    let end = ClientEnd::attach(&welcome, &memfd, bell);
    let end = end.map_err(|source| ConnectError::Attach { path: path.clone(), source })?;
    Ok(Greeted::Session(welcome, Box::new(end)))
}

fn silent(path: &Path) -> ConnectError {
    ConnectError::Silent { path: path.to_owned(), seconds: PATIENCE.as_secs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_dir_is_chosen_in_order() {
        let check = |asked: Option<&str>, runtime: Option<&str>, present: &[&str], expect: &str| {
            let dir = choose_dir(asked.map(PathBuf::from), runtime.map(PathBuf::from), |dir| {
                present.iter().any(|present| Path::new(present) == dir)
            });
            assert_eq!(dir, Path::new(expect), "{asked:?} {runtime:?} {present:?}");
        };
        check(Some("/x"), Some("/r"), &["/run/partita", "/r/partita"], "/x");
        check(None, Some("/r"), &["/run/partita", "/r/partita"], "/run/partita");
        check(None, Some("/r"), &["/r/partita"], "/r/partita");
        check(Some(""), Some("/r"), &["/r/partita"], "/r/partita");
        check(None, Some("/r"), &[], "/run/partita");
        check(None, Some("relative"), &["relative/partita"], "/run/partita");
        check(None, None, &[], "/run/partita");
    }

    #[test]
    fn no_daemon_is_an_error_with_a_remedy() {
        let error = connect(Path::new("/nonexistent"), &own_hello(GpuWish::First).unwrap())
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("/nonexistent/partitad.sock") && error.contains("partita run"),
            "{error}"
        );
        let long = PathBuf::from(format!("/{}", "x".repeat(200)));
        let error = connect(&long, &own_hello(GpuWish::First).unwrap()).err().unwrap();
        assert!(matches!(error, ConnectError::Path { .. }), "{error}");
    }
}
