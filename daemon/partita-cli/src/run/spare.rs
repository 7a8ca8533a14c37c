//! A private daemon that waits for the next run of a shell session.
//!
//! When a program has ended, its keeper starts a daemon anew and hands it to the next `partita run`
//! of the same session that would start the same daemon. A run therefore gets a daemon of its own
//! that nobody has used, as without a spare, and need not wait for its start.
//!
//! Invariants: a spare serves one run. Its keeper listens on an abstract socket, whose name is that
//! of the user, the session and everything that makes the daemon what it is; both sides ask the
//! system for the other's user. The spare ends with the session's leader, or when nobody wants it
//! for the time of [`KEEP`]. Whatever goes wrong, the run starts a daemon of its own.

use crate::failure::complain;
use partita_wire::message;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, getsid, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The variable that says for how many seconds a spare waits; 0 for none.
pub const KEEP: &str = "PARTITA_KEEP";
/// The time where the variable is not set, in a session with a terminal.
const KEEP_SECONDS: u64 = 60;
/// The longest time that one side waits for a message of the other.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest folder of sockets, in bytes.
const MOST: usize = 4096;
/// Variables that change a daemon, beside those of [`PREFIXES`].
const VARIABLES: [&str; 5] = ["HOME", "TMPDIR", "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD"];
const PREFIXES: [&str; 3] = ["PARTITA_", "RUST_", "XDG_"];
/// What the system says of a process that its children inherit.
const INHERITED: [&str; 3] = ["cgroup", "limits", "ns/mnt"];

/// The place in which a session keeps a spare.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The session's leader.
    pub leader: Pid,
    /// What makes the daemon what it is.
    pub key: u64,
    /// How long the spare waits.
    pub seconds: u64,
}

impl Place {
    /// The place for `partitad` at `daemon` with `devices`; `None` where the session keeps none.
    pub fn find(daemon: &Path, devices: &[String]) -> Option<Self> {
        // A session outside this namespace of processes has no number here.
        let leader = getsid(None).ok()?;
        let seconds = match std::env::var(KEEP) {
            Ok(text) if !text.is_empty() => text.parse().unwrap_or_else(|_| {
                complain(&format!("{KEEP}={text} is no number of seconds: no daemon is kept"));
                0
            }),
            _ if has_terminal(leader) => KEEP_SECONDS,
            _ => 0,
        };
        (seconds > 0).then(|| Place { leader, key: key(daemon, devices), seconds })
    }

    fn name(&self) -> Option<SocketAddrUnix> {
        let (user, leader) = (geteuid().as_raw(), self.leader.as_raw_nonzero());
        let name = format!("partita-spare/{user}/{leader}/{:016x}", self.key);
        SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()
    }

    /// Asks for the spare; returns the folder of its sockets.
    pub fn take(&self) -> Option<PathBuf> {
        let socket = seqpacket().ok()?;
        connect(&socket, &self.name()?).ok()?;
        if !is_own_user(&socket) {
            return None;
        }
        let runner = pidfd_open(getpid(), PidfdFlags::empty()).ok()?;
        let stderr = std::io::stderr();
        message::send(&socket, b"run", &[runner.as_fd(), stderr.as_fd()]).ok()?;
        let folder = message::receive(&socket, MOST).ok()?.bytes;
        Some(OsString::from_vec(folder).into())
    }
}

/// Whether the session has a terminal, and a user sees there what this process says.
fn has_terminal(leader: Pid) -> bool {
    rustix::termios::tcgetsid(std::io::stderr()).is_ok_and(|session| session == leader)
}

/// A number that differs, but by chance, where a daemon would.
fn key(daemon: &Path, devices: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (daemon, devices).hash(&mut hasher);
    let file = std::fs::metadata(daemon).ok();
    file.map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec())).hash(&mut hasher);
    std::env::current_dir().ok().hash(&mut hasher);
    let matters = |name: &OsStr| {
        let bytes = name.as_bytes();
        VARIABLES.iter().any(|each| each.as_bytes() == bytes)
            || PREFIXES.iter().any(|prefix| bytes.starts_with(prefix.as_bytes()))
    };
    let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| matters(name)).collect();
    variables.sort();
    variables.hash(&mut hasher);
    for name in INHERITED {
        let path = Path::new("/proc/self").join(name);
        std::fs::read(&path).ok().hash(&mut hasher);
        std::fs::read_link(&path).ok().hash(&mut hasher);
    }
    let cpus = rustix::thread::sched_getaffinity(None).ok();
    format!("{cpus:?} {:?}", rustix::process::getpriority_process(None)).hash(&mut hasher);
    hasher.finish()
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bounded(&socket)?;
    Ok(socket)
}

fn bounded(socket: &OwnedFd) -> Result<(), Errno> {
    set_socket_timeout(socket, Timeout::Recv, Some(PATIENCE))?;
    set_socket_timeout(socket, Timeout::Send, Some(PATIENCE))
}

/// Anybody may take an abstract name, and anybody may connect to one.
fn is_own_user(socket: &OwnedFd) -> bool {
    socket_peercred(socket).is_ok_and(|peer| peer.uid == geteuid())
}

/// A run that wants the spare.
#[derive(Debug)]
pub struct Caller {
    /// A pidfd of its process.
    pub runner: OwnedFd,
    /// Its stderr.
    pub stderr: OwnedFd,
    connection: OwnedFd,
}

impl Caller {
    /// Tells it the folder of the daemon's sockets; false where it has gone.
    pub fn answer(&self, folder: &Path) -> bool {
        message::send(&self.connection, folder.as_os_str().as_bytes(), &[]).is_ok()
    }
}

/// A place that this process has taken.
#[derive(Debug)]
pub struct Spare {
    listener: OwnedFd,
    leader: OwnedFd,
    until: Instant,
}

impl Spare {
    /// Takes a place. `None` where the session has ended, or another process has the place.
    pub fn open(place: &Place) -> Option<Self> {
        let listener = seqpacket().ok()?;
        bind(&listener, &place.name()?).ok()?;
        let leader = pidfd_open(place.leader, PidfdFlags::empty()).ok()?;
        Some(Spare { listener, leader, until: Instant::now() + Duration::from_secs(place.seconds) })
    }

    /// A descriptor that is readable when the session has ended.
    pub fn leader(&self) -> BorrowedFd<'_> {
        self.leader.as_fd()
    }

    /// Waits for a run that wants the daemon. `None` where none has come in time, or the session or
    /// the daemon has ended.
    pub fn wait(self, daemon: BorrowedFd<'_>) -> Option<Caller> {
        listen(&self.listener, 1).ok()?;
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let mut polled = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&self.leader, PollFlags::IN),
                PollFd::from_borrowed_fd(daemon, PollFlags::IN),
            ];
            let timeout = Timespec::try_from(left).ok()?;
            match poll(&mut polled, Some(&timeout)) {
                Err(Errno::INTR) => continue,
                Err(_) | Ok(0) => return None,
                Ok(_) => {}
            }
            if polled[1..].iter().any(|fd| !fd.revents().is_empty()) {
                return None;
            }
            if let Some(caller) = self.accept() {
                return Some(caller);
            }
        }
    }

    fn accept(&self) -> Option<Caller> {
        let connection = accept_with(&self.listener, SocketFlags::CLOEXEC).ok()?;
        bounded(&connection).ok()?;
        if !is_own_user(&connection) {
            return None;
        }
        let mut message = message::receive(&connection, MOST).ok()?;
        let [runner, stderr] = message.take_fds().ok()?;
        Some(Caller { runner, stderr, connection })
    }
}

/// The place that options of the keeper name.
pub fn place_of(options: &[u64]) -> Option<Place> {
    let &[leader, key, seconds] = options else { return None };
    let leader = Pid::from_raw(i32::try_from(leader).ok()?)?;
    Some(Place { leader, key, seconds })
}
